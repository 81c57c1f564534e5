"""What `shardctl convert` and `shardctl finish` show of a conversion: lines and a progress bar on stderr, then the result."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from shardctl.build.convert import ConvertResult, Listener, narration
from shardctl.build.convert.estimate import Estimate
from shardctl.build.convert.pace import Pace
from shardctl.build.shards.task import WorkDone
from shardctl.cli.lines import good, tell
from shardctl.cli.output import Output
from shardctl.system.text import printable

if TYPE_CHECKING:
    from tqdm import tqdm


class ConversionView:
    """What a user sees on stderr while a conversion to `dst` runs."""

    def __init__(self, dst: str, output: Output) -> None:
        self._dst, self._output = dst, output
        self._bar: tqdm[Any] | None = None
        self._pace, self._records = Pace(), 0
        self._printed: tuple[str, ...] = ()

    def listener(self) -> Listener:
        """Return the callbacks for the conversion."""
        on_line = self._on_line if self._output.verbose else Listener.on_line
        if self._output.hides_progress:
            return Listener(on_line=on_line)
        return Listener(
            self._listing,
            self._waiting,
            self._announce,
            self._resuming,
            self._progress,
            on_line,
            self._comparing,
            self._part,
        )

    def tell_rest(self, result: ConvertResult) -> None:
        """Show the notices that were not shown before the work, and the warnings, even with --quiet."""
        print_notices(result, self._output, self._printed)

    def close(self) -> None:
        """End the line of the progress bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _listing(self, inputs: int) -> None:
        if self._output.verbose:
            tell([narration.listed_line(inputs)])

    def _comparing(self, inputs: int) -> None:
        if not sys.stderr.isatty():
            return
        if self._bar is None:
            from tqdm import tqdm  # 20 ms, by now beside the workers

            self._bar = tqdm(unit=" inputs compared", dynamic_ncols=True)
        self._bar.update(inputs - self._bar.n)

    def _waiting(self, owner: str) -> None:
        tell([narration.waiting_line(owner, self._dst)])

    def _announce(self, estimate: Estimate) -> None:
        self.close()  # the bar of the comparison
        tell(narration.estimate_lines(estimate))
        self._printed, self._records = narration.notices_of(estimate), estimate.records

    def _resuming(self, done: int, shards: int) -> None:
        tell([narration.resuming_line(done, shards)])

    def _part(self, name: str, shards: int, records: int) -> None:
        tell([narration.part_line(name, shards, records)])
        self._records = records

    def _on_line(self, line: str) -> None:
        """Show what a worker has printed, above the bar where there is one."""
        if self._bar is not None:
            self._bar.write(printable(line), file=sys.stderr)
        else:
            tell([printable(line)])

    def _progress(self, progress: WorkDone) -> None:
        if not sys.stderr.isatty():
            return
        if self._bar is None:
            from tqdm import tqdm  # 20 ms, by now beside the workers

            self._bar = tqdm(total=self._records, unit=" inputs", dynamic_ncols=True, smoothing=0.1)
            self._pace.begin(self._records)
        self._pace.add(progress)
        self._bar.set_postfix_str(narration.pace_words(self._pace), refresh=False)
        self._bar.update(progress.records)


def print_notices(result: ConvertResult, output: Output, printed: Collection[str] = ()) -> None:
    """Print on stderr the notices and warnings that were not `printed` yet; warnings even with --quiet."""
    notices = () if output.hides_progress else result.notices
    tell(narration.notice_lines(notices, result.warnings, printed))


def print_result(result: ConvertResult, dst: str) -> None:
    """Print what a conversion has done."""
    first, *rest = narration.result_lines(result, dst)
    verb = result.status if first.startswith(f"{result.status} ") else ""
    for line in (good(verb) + first[len(verb) :], *rest):
        click.echo(line)


def result_record(result: ConvertResult) -> dict[str, Any]:
    """Return what --json prints of a conversion."""
    names = ("status", "samples", "shards", "bytes", "rejected", "seconds", "samples_per_s", "fingerprint")
    record = {name: getattr(result, name) for name in names}
    record["reject_reasons"] = result.reasons
    record["reject_examples"] = [asdict(example) for example in result.examples]
    record["copied_rejects"] = result.copied
    record["notices"] = list(result.notices)
    record["warnings"] = list(result.warnings)
    record["jpeg"] = result.jpeg
    record["steps"] = result.steps
    if result.changes is not None:
        record["changes"] = asdict(result.changes)
    if result.explanation is not None:
        record["explanation"] = asdict(result.explanation)
    if result.part is not None:
        record["part"] = asdict(result.part)
    if result.estimate is not None:
        record["inputs"] = result.estimate.inputs
        record["free_bytes"] = result.estimate.free_bytes
        record["estimated_seconds"] = round(result.estimate.seconds, 2)
    return record
