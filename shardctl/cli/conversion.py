"""What `shardctl convert` and `shardctl finish` show of a conversion: lines and a progress bar on
stderr, then the result."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, replace
from typing import Any

from shardctl.cli.output import Output, good, on_stderr, tell
from shardctl.making.convert import ConvertResult, Listener
from shardctl.making.convert.listener import ConversionProgress, Estimate
from shardctl.making.convert.result import (
    estimate_lines,
    listed_line,
    notice_lines,
    notices_of,
    part_line,
    result_lines,
    resuming_line,
    waiting_line,
)
from shardctl.system.progress import progress_of
from shardctl.system.text import printable


class ConversionView(ConversionProgress):
    """What a user sees on stderr while a conversion to `dst` runs. `printed` are the notices that
    were shown before the work."""

    def __init__(self, dst: str, output: Output) -> None:
        super().__init__(progress_of(output.shows_progress), stays=True)
        self._dst, self._output = dst, output
        self.printed: tuple[str, ...] = ()

    def listener(self) -> Listener:
        """Return the callbacks for the conversion."""
        on_line = Listener.on_line
        if self._output.verbose:  # what a worker has printed
            on_line = lambda line: self._write([printable(line)])  # noqa: E731 - used twice
        if not self._output.shows_notes:
            return Listener(on_line=on_line)
        return replace(
            super().listener(),
            waiting=lambda owner: self._write([waiting_line(owner, self._dst)]),
            resuming=lambda done, shards: self._write([resuming_line(done, shards)]),
            on_line=on_line,
        )

    def listing(self, inputs: int) -> None:
        """So many inputs are found."""
        super().listing(inputs)
        if self._output.verbose:
            self._write([listed_line(inputs)])

    def announce(self, estimate: Estimate) -> None:
        """The work is planned."""
        super().announce(estimate)
        self._write(estimate_lines(estimate))
        self.printed = notices_of(estimate)

    def part(self, name: str, shards: int, records: int) -> None:
        """Only a part of it is to be done."""
        super().part(name, shards, records)
        self._write([part_line(name, shards, records)])

    def close(self) -> None:
        """End the line of the progress bar."""
        self._shown.close()

    def _write(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._shown.write(on_stderr(line))


def print_notices(result: ConvertResult, output: Output, printed: Collection[str] = ()) -> None:
    """Print on stderr the notices and warnings that were not `printed` yet; warnings even with
    --quiet."""
    tell(notice_lines(result.notices if output.shows_notes else (), result.warnings, printed))


def lines_of_result(result: ConvertResult, dst: str) -> list[str]:
    """Return what a conversion has done, in lines."""
    first, *rest = result_lines(result, dst)
    verb = result.status if first.startswith(f"{result.status} ") else ""
    return [good(verb) + first[len(verb) :], *rest]


def result_record(result: ConvertResult) -> dict[str, Any]:
    """Return what --json prints of a conversion."""
    names = "status samples shards bytes rejected seconds samples_per_s fingerprint jpeg steps"
    record: dict[str, Any] = {name: getattr(result, name) for name in names.split()}
    record |= {
        "reject_reasons": result.reasons,
        "reject_examples": [asdict(example) for example in result.examples],
        "copied_rejects": result.copied,
        "notices": list(result.notices),
        "warnings": list(result.warnings),
    }
    for name in ("changes", "explanation", "part"):
        if (found := getattr(result, name)) is not None:
            record[name] = asdict(found)
    if result.estimate is not None:
        record["inputs"] = result.estimate.inputs
        record["free_bytes"] = result.estimate.free_bytes
        record["estimated_seconds"] = round(result.estimate.seconds, 2)
    return record
