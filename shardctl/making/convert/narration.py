"""The sentences about a conversion: the plan, the writer that it waits for, the progress, the
result.

At a terminal a person reads full lines; the log of a job has few and short lines (the functions
with `log` in their name). Both kinds share the words for the same fact. The functions return text;
their callers write it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from shardctl.format.counts import step_lines
from shardctl.format.names import REJECTS
from shardctl.format.tables import reason_lines
from shardctl.making.convert.listener import Changes, Estimate
from shardctl.making.convert.result import ConvertResult, PartDone
from shardctl.system.file_lease import STALE_SECONDS
from shardctl.system.locations import is_url
from shardctl.system.text import counted, format_bytes, format_duration, printable

if TYPE_CHECKING:
    from shardctl.making.convert.decision import Explanation

MOST_SUFFIXES = 6
"""How many endings of files that are not converted are shown by name."""

MOST_NOTES = 5
"""How many notices of a run are shown."""

VERDICTS = {
    "up-to-date": "is up to date",
    "update": "differs in its {}: --update brings it up to date",
    "anew": "differs in its {}: --overwrite makes it anew",
}


def waiting_line(owner: str, dst: str) -> str:
    """Say that a command waits for another writer of the dataset at `dst`."""
    # In a folder of this machine its lock tells: one that was killed has ended, one that was
    # stopped has not.
    lost = f", or gives no sign of life for {STALE_SECONDS:.0f} seconds" if is_url(dst) else ""
    return f"another shardctl is writing it ({owner}); waiting until it ends{lost}"


def waiting_log_line(owner: str) -> str:
    """Say that a process of a job waits for the one that makes the dataset."""
    return f"waiting for {owner}, which is making the dataset"


def estimate_lines(estimate: Estimate) -> list[str]:
    """Say what a conversion will do."""
    splits = ", ".join(f"{split.name} {split.expected:,}" for split in estimate.splits)
    shards = counted(estimate.shards, "shard")
    if (following := _following(estimate.changes)) is not None:
        shards = f"{following.rebuilt + following.new:,} of {shards}"
    free = f" ({format_bytes(estimate.free_bytes)} free)" if estimate.free_bytes is not None else ""
    lines = [
        f"{_inputs(estimate)}, {format_bytes(estimate.input_bytes)}; {_labels(estimate)}; splits: "
        f"{splits}"
    ]
    if estimate.changes is not None:
        lines.append(changes_line(estimate.changes))
    lines.append(
        f"will write {shards}, about {format_bytes(estimate.bytes)}{free}, in about "
        f"{format_duration(estimate.seconds)}"
    )
    if estimate.probe_rejects:
        lines.append(
            f"of {counted(estimate.probed, 'input')} tried beforehand, {estimate.probe_rejects:,} "
            "cannot be converted"
        )
    return lines + _others(estimate) + notice_lines(estimate.notices, estimate.warnings)


def estimate_log_lines(estimate: Estimate) -> list[str]:
    """Say for a log what a conversion will do."""
    following = _following(estimate.changes)
    if following is None:
        lines = [f"making {counted(estimate.shards, 'shard')} of {_inputs(estimate)}"]
    else:
        shards = counted(following.rebuilt + following.new, "shard")
        lines = [f"{changed_inputs(following)}: making {shards}, of {_inputs(estimate)} in all"]
    return [*lines, *_others(estimate), *notices_of(estimate)]


def changes_line(changes: Changes) -> str:
    """Say what an update does: inputs that came, went and changed, and how many shards are
    built."""
    inputs = changed_inputs(changes)
    if changes.anew:
        return f"{inputs}; all shards are made anew, since {changes.anew}"
    new = f", {changes.new:,} new" if changes.new else ""
    return (
        f"{inputs}; {changes.rebuilt:,} of {counted(changes.rebuilt + changes.kept, 'shard')} "
        f"rebuilt{new}"
    )


def changed_inputs(changes: Changes) -> str:
    """Return how many inputs came, went and changed."""
    return f"+{changes.added:,} -{changes.removed:,} ~{changes.changed:,} inputs"


def notices_of(found: Estimate | ConvertResult) -> tuple[str, ...]:
    """Return the notices and the warnings of an estimate or a result."""
    return (*found.notices, *found.warnings)


def notice_lines(
    notices: Sequence[str], warnings: Iterable[str], printed: Collection[str] = ()
) -> list[str]:
    """Return a line for each notice and each warning that is not among those that were `printed`
    already. Of many notices some are counted."""
    new = [notice for notice in notices if notice not in printed]
    room = max(0, MOST_NOTES - len(notices) + len(new))
    more = len(new) - room
    return [
        *(f"note: {notice}" for notice in new[:room]),
        *([f"note: and {counted(more, 'more note')}: --json has all"] if more > 0 else []),
        *(f"warning: {warning}" for warning in warnings if warning not in printed),
    ]


def listed_line(inputs: int) -> str:
    """Say how many inputs were found so far."""
    return f"listed {counted(inputs, 'input')}"


def part_line(name: str, shards: int, records: int) -> str:
    """Say what a part of a conversion has to do."""
    return f"part {name}: {counted(shards, 'shard')}, {counted(records, 'input')}"


def resuming_line(done: int, shards: int) -> str:
    """Say how many shards an earlier run has done."""
    return f"resuming: {done:,} of {shards:,} shards are done already"


def resuming_log_line(done: int, shards: int) -> str:
    """Say for a log what an earlier run has done."""
    return f"resuming: {done:,} of {counted(shards, 'shard')} done"


def watching_log_line(far: tuple[int, int] | None) -> str:
    """Say how far another process is: of so many shards so many are done. None: it has no plan
    yet."""
    if far is None:
        return "waiting: listing the inputs"
    return f"waiting: {far[0]:,} of {counted(far[1], 'shard')} done"


def result_lines(result: ConvertResult, dst: str) -> list[str]:
    """Say what a conversion has done at `dst`, which is shown as it was given."""
    shown = printable(dst)
    shards = counted(result.shards, "shard")
    changes = [] if result.changes is None else [changes_line(result.changes)]
    if result.status == "planned":
        holds = f"{_planned_samples(result)} in {shards}"
        return [f"dry run: {shown} would hold {holds}; nothing was written", *changes]
    if result.explanation is not None:
        return _explanation_lines(result.explanation, shown)
    what = f"{_samples(result)} in {shards}, {format_bytes(result.bytes)}"
    if result.part is not None:
        return _part_lines(result, result.part, what, shown)
    if result.status == "up-to-date":
        return [f"{shown} is up to date: {what}"]
    # most samples were there
    copied = result.samples_per_s == 0 or _following(result.changes) is not None
    of_run = " in this run" if result.status == "resumed" else ""
    rate = "" if copied else f" ({result.samples_per_s:,.0f} samples/s{of_run})"
    took = f"in {result.seconds:.1f} s{rate}"
    lines = [f"{result.status} {shown}: {what}, {took}", *changes]
    if result.rejected:
        listed = f"the {REJECTS} of the dataset" if is_url(dst) else f"{shown}/{REJECTS}"
        lines.append(f"{_rejected(result)}, listed in {listed}:")
        lines += reason_lines(result.reasons, result.examples)
    return lines + [printable(line) for line in step_lines(result.steps or ())]


def result_log_lines(result: ConvertResult, printed: Collection[str]) -> list[str]:
    """Say what was made, how many inputs were rejected, and the notices that were not `printed`
    yet."""
    changes = "" if result.changes is None else f" ({changed_inputs(result.changes)})"
    lines = [f"{result.status}: {_samples(result)} in {result.seconds:.1f} s{changes}"]
    if result.rejected:
        lines.append(f"{_rejected(result)}; {REJECTS} has the reasons")
    return [*lines, *(notice for notice in notices_of(result) if notice not in printed)]


def copied_line(result: ConvertResult, folder: str) -> str:
    """Say how many of the rejected inputs were copied into a folder."""
    return f"{counted(result.copied, 'rejected input')} copied to {printable(folder)}"


def _following(changes: Changes | None) -> Changes | None:
    """Return the changes that an update follows. None: all shards are made."""
    return None if changes is None or changes.anew else changes


def _inputs(estimate: Estimate) -> str:
    return counted(estimate.inputs, f"{estimate.kind} input")


def _labels(estimate: Estimate) -> str:
    said = []
    if estimate.labelled_by != "nothing":
        classes = "labels"
        if estimate.classes is not None:
            classes = counted(estimate.classes, "class", "classes")
        said = [f"{classes} from the {estimate.labelled_by}"]
    if estimate.annotated:
        said.append(f"annotations: {', '.join(estimate.annotated)}")
    return "; ".join(said) or "no labels"


def _others(estimate: Estimate) -> list[str]:
    """Name the endings of files that are not converted, those of most first, with their numbers."""
    if not estimate.ignored:
        return []
    found = [f"{count:,} {printable(suffix)}" for suffix, count in estimate.ignored.items()]
    more = sum(list(estimate.ignored.values())[MOST_SUFFIXES:])
    rest = f" and {more:,} more, {sum(estimate.ignored.values()):,} in all" if more else ""
    return [f"other files, not converted: {', '.join(found[:MOST_SUFFIXES])}{rest}"]


def _planned_samples(result: ConvertResult) -> str:
    """Say how many samples there would be. Inputs that were tried and failed are none of them,
    others may fail too."""
    found = result.estimate
    if found is not None and found.rows != found.inputs:  # a sample is not an input
        return f"about {_samples(result)}"
    if found is not None and found.probe_rejects:
        return f"up to {counted(max(0, result.samples - found.probe_rejects), 'sample')}"
    return _samples(result)


def _samples(result: ConvertResult) -> str:
    return counted(result.samples, "sample")


def _rejected(result: ConvertResult) -> str:
    return f"{counted(result.rejected, 'input')} rejected"


def _part_lines(result: ConvertResult, part: PartDone, what: str, shown: str) -> list[str]:
    rate = f" ({result.samples_per_s:,.0f} samples/s in this run)" if result.samples_per_s else ""
    lines = [f"built part {part.name} for {shown}: {what}, in {result.seconds:.1f} s{rate}"]
    if result.rejected:
        lines += [f"{_rejected(result)}:", *reason_lines(result.reasons, result.examples)]
    last = f"all shards are done ({part.shards:,}); `shardctl finish {shown}` makes the dataset of them"
    if (left := part.shards - part.shards_done) > 0:
        last = f"{part.shards_done:,} of all {part.shards:,} shards are done; {left:,} are left to other parts"
    return [*lines, last]


def _explanation_lines(explanation: Explanation, shown: str) -> list[str]:
    lines = [f"{shown} {VERDICTS[explanation.verdict].format(' and '.join(explanation.parts))}"]
    for each in explanation.differences:
        lines.append(printable(f"  {each.part}: {each}"))
    of_files = (explanation.added, explanation.removed, explanation.changed)
    for what, files in zip(("new", "gone", "changed"), of_files, strict=True):
        if files.count:
            examples = ", ".join(map(printable, files.examples))
            lines.append(
                f"  inputs: {counted(files.count, 'file')} {what}, for instance {examples}"
            )
    return lines
