"""`shardctl inspect` of shards of other tools: files, records, bytes, fields with their types, and
the first records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardctl.build.sampling import take
from shardctl.build.shards.engines.local import Engine
from shardctl.format.python_values import python_rows
from shardctl.interop.foreign.shards import Shards, open_shards
from shardctl.sources.formats import Reading
from shardctl.sources.types import Types
from shardctl.system.scratch import scratch_folder


@dataclass(frozen=True)
class ForeignOverview:
    """What is in shards of another tool.

    `formats` counts the files of each format. `schema` are pairs of field and type, and `classes`
    the names of the classes of fields that have some. `faults` are files, or parts of them, that
    cannot be read, each with the reason. `first` has the first records, each with its `key`.
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
    """Look at the shards at a path, and at their `first` records. Raises InputError if there are
    none."""
    with open_shards(path, workers) as (shards, engine):
        units, listing = shards.units, shards.listing
        types = shards.discovery.find_types(units, all_of_them=False)
        schema = [(f.name, str(f.type)) for f in types.schema()] if types is not None else []
        classes = (
            {name: list(names) for name, names in types.classes.items()}
            if types is not None
            else {}
        )
        faulty = {unit: fault for unit, fault in units.faults.items() if int(units.records[unit])}
        faults = {_name_of(shards, unit): fault.message for unit, fault in faulty.items()}
        records: list[dict[str, Any]] = []
        if types is not None:
            records, fault = _first_records(shards, engine, types, first)
            faults |= {} if fault is None else {_name_of(shards, int(units.readable()[0])): fault}
        else:
            faults |= {
                _name_of(shards, unit): fault.message
                for unit, fault in shards.discovery.untyped.items()
            }
        return ForeignOverview(
            shards.formats,
            len(listing),
            listing.total_bytes,
            int(units.records.sum()) - len(faulty),
            schema,
            classes,
            faults,
            records,
            tuple(listing.notices),
        )


def _name_of(shards: Shards, unit: int) -> str:
    """Return what a unit that cannot be read is called: its file, and its first record where it is
    not the whole file."""
    [path] = shards.listing.paths_at(shards.units.file[unit : unit + 1])
    first = int(shards.units.first[unit])
    return f"{path}#{first}" if first else path


def _first_records(
    shards: Shards, engine: Engine, types: Types, count: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Return the first records of the first unit that can be read; and if there are none of them,
    why they cannot be."""
    first = shards.units.readable()[:1]
    [path] = shards.listing.paths_at(shards.units.file[first])
    number, records = int(shards.units.first[first[0]]), int(shards.units.records[first[0]])
    wanted = np.arange(number, number + min(count, records))
    with scratch_folder() as scratch:
        ranges = shards.discovery.ranges(shards.units, first)
        taken, fault = take(engine, ranges, Reading(), [wanted], types.found(), scratch)
        found = [
            {"key": f"{path}#{number}", **row}
            for _, numbers, batch in taken
            for number, row in zip(numbers.tolist(), python_rows(batch), strict=True)
        ]
    return found, None if found or fault is None else fault[1]
