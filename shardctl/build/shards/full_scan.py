"""Units of files read to their ends, to see which of their records cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import xxhash

from shardctl.build.shards.prefetch import Wanted
from shardctl.build.shards.scan import Found, Stretch, stretches_from
from shardctl.sources.formats import Misfit, Reading, Unit, check_file, find_format, note_on
from shardctl.sources.remote.remote_files import local
from shardctl.system.processes.progress_slot import Breadcrumb

MOST_REJECTS = 1000
"""Rejected records of a unit that are named; the others are counted."""


@dataclass(frozen=True)
class ReadingThrough:
    """Work on some units. Found is {"records": …, "rejects": […], "more": …, "note": …} of each.

    A reject is [number, error, message], `more` counts those that are not named, `note` is [kind, message] or None.
    """

    task: ClassVar[str] = "read through"
    stretches: tuple[Stretch, ...]

    def __len__(self) -> int:
        return len(self.stretches)

    def finish(self, found: Found) -> None:
        """Nothing is left to do."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> ReadingThrough:
        """Build what `to_json` gave."""
        return cls(stretches_from(record))

    def reads(self, number: int) -> Sequence[Wanted]:
        """Return the object that a unit is of."""
        return self.stretches[number].wanted

    def look_at(self, number: int, crumb: Breadcrumb) -> dict[str, Any]:
        """Read a unit, each record with the types that its own unit needs. Raises Rejection, OSError."""
        stretch = self.stretches[number]
        assert stretch.unit is not None, "units are read, and not pieces"
        local(stretch.path, stretch.version)
        reading, unit = Reading(), Unit(*stretch.unit)
        note = None
        if unit.first == 1:
            check_file(stretch.suffix, stretch.path)
            note = note_on(stretch.suffix, stretch.path)
        form = find_format(stretch.suffix, reading)
        schema = form.types(stretch.path, unit, reading).found()
        records, rejects = 0, list[list[Any]]()
        try:
            for parsed in form.read(stretch.path, unit, reading, schema, None, xxhash.xxh3_64()):
                records += len(parsed.numbers) + len(parsed.rejects)
                rejects += [[number, rejection.error, rejection.message] for number, rejection in parsed.rejects]
        except Misfit as misfit:
            rejects.append([unit.first + records, "other-type", str(misfit)])
        named, more = rejects[:MOST_REJECTS], max(0, len(rejects) - MOST_REJECTS)
        return {"records": unit.records, "rejects": named, "more": more, "note": note}
