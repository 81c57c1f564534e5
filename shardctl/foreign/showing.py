"""`shardctl inspect` of shards of other tools: files, records, bytes, fields with their types, and the first records."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import xxhash

from shardctl.foreign.shards import Shards, open_shards
from shardctl.sources.endings import ending_of
from shardctl.sources.formats import Reading, Unit, find_format
from shardctl.times import python_rows


@dataclass(frozen=True)
class ForeignOverview:
    """What is in shards of another tool.

    `formats` counts the files of each format. `schema` are pairs of field and type, and `classes` the names of the classes of
    fields that have some. `faults` are files, or parts of them, that cannot be read, each with the reason. `first` has the
    first records, each with its `key`.
    """

    formats: dict[str, int]
    files: int
    bytes: int
    records: int
    schema: list[tuple[str, str]]
    classes: dict[str, list[str]]
    faults: dict[str, str]
    first: list[dict[str, Any]]
    notices: tuple[str, ...] = ()


def look(path: Path, first: int = 3, workers: int | str = "auto") -> ForeignOverview:
    """Look at the shards at a path, and at their `first` records. Raises InputError if there are none."""
    with open_shards(path, workers) as (shards, _):
        units, listing = shards.units, shards.listing
        types = shards.surveyor.find_types(units, all_of_them=False)
        schema = [(f.name, str(f.type)) for f in types.schema()] if types is not None else []
        classes = {name: list(names) for name, names in types.classes.items()} if types is not None else {}
        faulty = {unit: fault for unit, fault in units.faults.items() if int(units.records[unit])}
        paths = {unit: listing.paths_at(units.file[unit : unit + 1])[0] for unit in faulty}
        return ForeignOverview(
            shards.formats,
            len(listing),
            listing.total_bytes,
            int(units.records.sum()) - len(faulty),
            schema,
            classes,
            {f"{paths[unit]}#{int(units.first[unit])}": fault.message for unit, fault in faulty.items()},
            _first_records(shards, first) if types is not None else [],
            tuple(listing.notices),
        )


def _first_records(shards: Shards, count: int) -> list[dict[str, Any]]:
    """Return the first records of the first unit that can be read."""
    readable = shards.units.readable()
    if not len(readable) or not count:
        return []
    number = int(readable[0])
    units, reading = shards.units, Reading()
    opened = shards.surveyor.opened(units.file[number : number + 1])[0]
    path = shards.listing.paths_at(units.file[number : number + 1])[0]
    records = min(int(units.records[number]), count)
    unit = Unit(int(units.offset[number]), int(units.size[number]), 0, int(units.first[number]), records)
    form = find_format(ending_of(opened, opened), reading)
    found = form.types(opened, unit, reading).found()
    made: list[dict[str, Any]] = []
    for parsed in form.read(opened, unit, reading, found, None, xxhash.xxh3_64()):
        made += (
            {"key": f"{path}#{n}", **row} for n, row in zip(parsed.numbers.tolist(), python_rows(parsed.batch), strict=True)
        )
    return list(islice(made, count))
