"""Units of files read to their ends, to see which of their records cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import xxhash

from shardctl.build.shards.prefetch import ReadRequest
from shardctl.build.shards.scan import ByteRange, Found, ranges_from
from shardctl.sources.formats import Misfit, Reading, Unit, check_file, find_format, note_on
from shardctl.system.processes.worker_state import WorkerProgress

MOST_REJECTS = 1000
"""Rejected records of a unit that are named; the others are counted."""


@dataclass(frozen=True)
class FullScanTask:
    """Work on some units. Found is {"records": …, "rejects": […], "more": …, "note": …} of each.

    A reject is [number, error, message], `more` counts those that are not named, `note` is [kind,
    message] or None.
    """

    name: ClassVar[str] = "read through"
    ranges: tuple[ByteRange, ...]

    def __len__(self) -> int:
        return len(self.ranges)

    def finish(self, found: Found) -> None:
        """Nothing is left to do."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> FullScanTask:
        """Build what `to_json` gave."""
        return cls(ranges_from(record))

    def reads(self, number: int) -> Sequence[ReadRequest]:
        """Return the object that a unit is of."""
        return self.ranges[number].requests

    def examine(self, number: int, progress: WorkerProgress) -> dict[str, Any]:
        """Read a unit, each record with the types that its own unit needs. Raises Rejection,
        OSError."""
        part = self.ranges[number]
        assert part.unit is not None, "units are read, and not pieces"
        path = part.path_to_read()
        reading, unit = Reading(), Unit(*part.unit)
        note = None
        if unit.first == 1:
            check_file(part.suffix, path)
            note = note_on(part.suffix, path)
        form = find_format(part.suffix, reading)
        schema = form.types(path, unit, reading).found()
        records, rejects = 0, list[list[Any]]()
        try:
            for parsed in form.read(path, unit, reading, schema, None, xxhash.xxh3_64()):
                records += len(parsed.numbers) + len(parsed.rejects)
                rejects += [
                    [number, rejection.error, rejection.message]
                    for number, rejection in parsed.rejects
                ]
        except Misfit as misfit:
            rejects.append([unit.first + records, "other-type", str(misfit)])
        named, more = rejects[:MOST_REJECTS], max(0, len(rejects) - MOST_REJECTS)
        return {"records": unit.records, "rejects": named, "more": more, "note": note}
