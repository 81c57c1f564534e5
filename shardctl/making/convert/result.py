"""The result of a conversion, and the sentences about it: the plan, the writer that it waits for,
the progress, the result.

At a terminal a person reads full lines; the log of a job has few and short lines (the functions
with `log` in their name). Both kinds share the words for the same fact. The functions return text;
their callers write it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path

import numpy as np

from shardctl.format.arrays import hash_names
from shardctl.format.counts import Counts, jpeg_costs, step_lines
from shardctl.format.dataset_folder import dataset_in, dataset_of
from shardctl.format.manifest import Manifest
from shardctl.format.names import REJECTS
from shardctl.format.tables import Reject, count_reasons, failures, read_rejects, reason_lines
from shardctl.images.defaults import KEPT_SHARE
from shardctl.making.convert.conversion import Inputs
from shardctl.making.convert.decision import Explanation, explain
from shardctl.making.convert.listener import Estimate
from shardctl.making.convert.rejects import (
    MANY_REJECTS,
    copy_rejects,
    count_rejects,
)
from shardctl.making.notices import notice
from shardctl.making.plan.listing import Listing
from shardctl.making.plan.plan import Changes
from shardctl.making.shards.job import DatasetJob
from shardctl.system.file_lease import STALE_SECONDS
from shardctl.system.folders import LocalFolder
from shardctl.system.locations import is_url
from shardctl.system.report import WARNING, in_notebook, lines_in_notebook, marked, rows_in_notebook
from shardctl.system.text import counted, format_bytes, format_duration, printable, some

SOME_FAILURES = 0.05
"""Share of inputs that could not be converted above which there is a warning."""


@dataclass(frozen=True)
class PartDone:
    """A part of a conversion that is built: which one, how many shards of the whole are done, and
    how many there are."""

    name: str
    shards_done: int
    shards: int


@dataclass(frozen=True)
class ConvertResult:
    """The result of a conversion.

    `status` is created, resumed, updated (in the place of another dataset), up-to-date, planned (a
    dry run), explained, or built (a part, whose numbers are about its own shards). `samples_per_s`
    counts only the samples of this run. `reasons` counts the rejects by stage and error, `examples` has one of each. Check `warnings`
    before you use the dataset. `jpeg` counts JPEG images with their original bytes, and how many of
    them take longer to decode. `steps` has the counts of each step of text and tables. `changes`
    says how a dataset was brought up to date, `explanation` is the answer to `explain`.
    """

    status: str
    samples: int
    shards: int
    bytes: int
    rejected: int
    seconds: float
    samples_per_s: float
    fingerprint: str
    reasons: dict[str, int] = field(default_factory=dict)
    examples: tuple[Reject, ...] = ()
    estimate: Estimate | None = None
    copied: int = 0
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    jpeg: dict[str, int] | None = None
    steps: list[Counts] | None = None
    changes: Changes | None = None
    explanation: Explanation | None = None
    part: PartDone | None = None

    def __repr__(self) -> str:
        """Return what was made, for display."""
        return f"<shardctl.ConvertResult {self._line}>"

    def _repr_html_(self) -> str:
        """Return what was made, warnings and notices, and why inputs were rejected, for a
        notebook."""
        reasons = [
            (count, reason, each.key, each.message)
            for (reason, count), each in zip(self.reasons.items(), self.examples, strict=True)
        ]
        return in_notebook(
            self._line,
            lines_in_notebook(self.warnings, marked("warning", WARNING)),
            lines_in_notebook(self.notices),
            rows_in_notebook("rejected inputs", reasons, ("inputs", "reason", "for instance", "")),
        )

    @property
    def _line(self) -> str:
        size = (
            f"{counted(self.samples, 'sample')} in {counted(self.shards, 'shard')}, "
            f"{format_bytes(self.bytes)}"
        )
        part = f" {self.part.name}" if self.part is not None else ""
        warned = f"; {counted(len(self.warnings), 'warning')} in .warnings" if self.warnings else ""
        return (
            f"{self.status}{part}: {size}, in {self.seconds:.1f} s; "
            f"{counted(self.rejected, 'input')} rejected{warned}"
        )


def result_of(
    folder: LocalFolder,
    status: str,
    seconds: float,
    notices: Sequence[str] = (),
    warnings: Sequence[str] = (),
    labelled: bool = False,
    made: bool = True,
) -> ConvertResult:
    """Return the result of a conversion whose dataset is in place. `labelled` says that its records
    have their labels, `made` that it was made now: else nothing is said again of what its rejects
    are and what the recipe has done."""
    manifest = Manifest.load(folder)
    dataset = dataset_of(manifest, folder)
    reasons, examples = dict[str, int](), tuple[Reject, ...]()
    if made or has_some_rejects(manifest):
        reasons, examples = count_reasons(read_rejects(dataset))
    counts = manifest.class_counts if labelled else None
    if counts is not None and (missing := manifest.samples - sum(map(sum, counts.values()))) > 0:
        samples = counted(manifest.samples, "sample")
        notices = (*notices, notice("without-label", missing=missing, samples=samples))
    if made:
        costs = jpeg_costs(manifest.jpeg, manifest.samples)
        notices = (*notices, *_lacking_classes(manifest), *costs)
    if made and (objects := manifest.objects) and objects["cut_off"]:
        of_all = counted(objects["kept"] + objects["cut_off"], "object")
        rule = f"keep_objects: {manifest.recipe.get('keep_objects', KEPT_SHARE)}"
        if (boxes := manifest.settings.get("boxes")) is not None:
            rule = f"{rule}, boxes: {boxes}"
        cut = notice("objects-cut-off", cut=objects["cut_off"], objects=of_all, rule=rule)
        notices = (*notices, cut)
    empty = [split.name for split in manifest.splits if not split.samples]
    if 0 < len(empty) < len(manifest.splits):  # a loader of one has nothing to give
        warnings = (notice("empty-split", names=some(empty)), *warnings)
    of_dataset = (*warnings_of(manifest, reasons, examples), *repeated_keys(dataset, manifest))
    return ConvertResult(
        status=status,
        samples=manifest.samples,
        shards=manifest.shards,
        bytes=manifest.bytes,
        rejected=manifest.rejected,
        seconds=seconds,
        samples_per_s=0.0,
        fingerprint=manifest.fingerprint,
        reasons=reasons if made else {},
        examples=examples if made else (),
        notices=tuple(dict.fromkeys(notices)),
        warnings=tuple(dict.fromkeys((*of_dataset, *warnings))),
        jpeg=manifest.jpeg,
        steps=manifest.steps,
    )


def has_own_labels(listing: Listing) -> bool:
    """Return whether the records of the inputs may have labels in themselves."""
    return not listing.whole and listing.side is None


def has_some_rejects(manifest: Manifest) -> bool:
    """Return whether a dataset has so many rejects that `warnings_of` may have something to say."""
    return manifest.rejected > manifest.inputs * SOME_FAILURES


def warnings_of(
    manifest: Manifest, reasons: dict[str, int], examples: tuple[Reject, ...]
) -> tuple[str, ...]:
    """Return what should be checked before this dataset is used: whether many inputs are missing
    from it, and why."""
    failed = failures(reasons)
    count = sum(failed.values())
    if count > manifest.inputs * SOME_FAILURES:
        of_all = f"{count:,} of {counted(manifest.inputs, 'input')}"
        what = f"{of_all} ({count / manifest.inputs:.1%}) could not be converted"
        reason = next(iter(failed))
    elif manifest.rejected > manifest.inputs * MANY_REJECTS:
        what = f"{count_rejects(manifest.rejected, manifest.inputs)}, more than half"
        reason = next(iter(reasons))
    else:
        return ()
    example = dict(zip(reasons, examples, strict=True))[reason]
    key, said = printable(example.key), printable(example.message)
    count = reasons[reason]
    return (notice("many-rejects", what=what, count=count, reason=reason, key=key, message=said),)


def _lacking_classes(manifest: Manifest) -> Iterator[str]:
    """Say which classes of other splits a split with labels has no sample of."""
    names, counts = manifest.roles.classes or (), manifest.class_counts or {}
    used = np.any(list(counts.values()), axis=0)
    for split, own in counts.items():
        lacking = list(compress(names, used > np.array(own, bool)))
        if any(own) and lacking:
            of = f"{len(lacking):,} of {counted(len(names), 'class', 'classes')}"
            yield notice("classes-lacking", split=split, of=of, names=some(lacking))


def repeated_keys(folder: LocalFolder, manifest: Manifest) -> tuple[str, ...]:
    """Say how many keys are there more than once, where they are values of a field. Of each 8 bytes
    are in memory.

    Nothing is said of a dataset on an object store: all of it would have to be read again.
    """
    if folder.url or not manifest.has_own_keys or "variant" in dict(manifest.schema):
        return ()
    from shardctl.format.dataset_tables import DatasetTables  # keys are paths in most datasets

    stored = DatasetTables(folder)
    hashes = np.concatenate(
        [
            np.zeros(0, np.uint64),
            *(hash_names(keys.to_pylist()) for _, _, keys in stored.blocks_of_keys()),
        ]
    )
    ordered = np.sort(hashes)
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(again):
        return ()
    left, key = int(np.flatnonzero(hashes == again[0])[0]), ""
    for _, _, keys in stored.blocks_of_keys():
        if 0 <= left < len(keys):
            key = str(keys[left].as_py())
        left -= len(keys)
    are = "1 sample has" if len(again) == 1 else f"{len(again):,} samples have"
    return (notice("repeated-keys", are=are, key=printable(key) or '"" (an empty text)'),)


def explained(inputs: Inputs) -> ConvertResult:
    """Return what differs from the dataset that is there; nothing is written. Raises DatasetError
    if there is none."""
    conversion = inputs.conversion
    manifest = inputs.manifest or Manifest.load(conversion.folder)
    return ConvertResult(
        "explained",
        manifest.samples,
        manifest.shards,
        manifest.bytes,
        manifest.rejected,
        conversion.seconds,
        0.0,
        manifest.fingerprint,
        notices=tuple(inputs.listing.notices),
        explanation=explain(inputs, manifest),
    )


def finished(
    inputs: Inputs,
    status: str,
    made: int | None,
    told: Listing | DatasetJob,
) -> ConvertResult:
    """Return the result of a dataset that is complete now, with the notices and warnings of what
    `told` them. This call made `made` of its samples, None where it was there before."""
    conversion = inputs.conversion
    seconds, copies = conversion.seconds, conversion.options.copy_rejects
    found = result_of(
        conversion.folder,
        status,
        seconds,
        told.notices,
        told.warnings,
        has_own_labels(inputs.listing),
        made is not None,
    )
    copied = 0
    if copies is not None:
        bases = tuple(base.path for base in inputs.bases)
        copied = copy_rejects(dataset_in(conversion.folder.root), bases, Path(copies))
    return replace(found, samples_per_s=(made or 0) / seconds, copied=copied)


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
            "are rejected"
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
        listed = (
            f"the {REJECTS} of the dataset" if is_url(dst) else dataset_in(Path(dst)).shown(REJECTS)
        )
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
