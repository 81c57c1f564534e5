"""Reads a whole file by a format as conversions do: scanned in pieces, cut, types joined, then read
unit by unit."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import Rejection
from shardctl.sources.formats.base import Choose, Cut, Format, Misfit, Reading, Unit
from shardctl.sources.types import Types, without_nulls

READING = Reading()


def read_apart(format_: Format, path: Path) -> Everything:
    """Return what is read at once, having made sure that the units give the same backwards."""
    units = units_of(cut(format_, path))
    assert len(units) > 2
    whole = read(format_, path)
    assert read(format_, path, units=units[::-1]).digests == whole.digests[::-1]
    return whole


def damaged_reads(format_: Format, path: Path, places: Iterable[int]) -> int:
    """Read copies of a file with a byte turned over, and cut, at each of these places. All that may
    be raised is a Rejection; return how often it was."""
    data, rejected = path.read_bytes(), 0
    for place in places:
        turned = bytearray(data)
        turned[place] ^= 0x81
        for broken in (bytes(turned), data[:place]):
            path.write_bytes(broken)
            try:
                read(format_, path)
            except Rejection as rejection:
                rejected += "\n" not in rejection.message
    path.write_bytes(data)
    return rejected


def spoilt_reads(format_: Format, path: Path, schema: pa.Schema, copies: int, places: int) -> int:
    """Read copies of a table with bytes changed at so many places. All that may be raised is a
    Rejection or a Misfit; return how often it was."""
    good, random, named = path.read_bytes(), np.random.default_rng(1), 0
    for _ in range(copies):
        data = bytearray(good)
        for place in random.integers(0, len(data), places):
            data[place] ^= int(random.integers(1, 256))
        path.write_bytes(data)
        try:
            assert read(format_, path, schema=schema).table.num_columns == len(schema)
        except (Rejection, Misfit):
            named += 1
    return named


Made = TypeVar("Made", bound=Format)


def sized(form: Made, **sizes: int) -> Made:
    """Return a format with other sizes than those of a class: of its parts, for instance."""
    for name, size in sizes.items():
        assert hasattr(form, name)
        setattr(form, name, size)
    return form


def parts_of(unit: Unit, count: int) -> tuple[list[Unit], list[Unit]]:
    """Return parts of so many records of a unit, from its beginning and from its end."""
    parts = [
        unit._replace(skip=skip, first=1 + skip, records=min(count, unit.records - skip))
        for skip in range(0, unit.records, count)
    ]
    return parts, parts[::-1]


@dataclass(frozen=True)
class Everything:
    """All records of a file: their numbers, their values and what was rejected, as (number, error,
    message)."""

    numbers: list[int]
    table: pa.Table
    rejects: list[tuple[int, str, str]]
    digests: list[str]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.table.to_pylist()


def cut(format_: Format, path: Path, reading: Reading = READING) -> list[Cut]:
    size = path.stat().st_size
    scans = [format_.scan(str(path), *piece, reading) for piece in format_.pieces(size)]
    cuts = format_.join(pickle.loads(pickle.dumps(scans)), size)
    if cuts is None:
        cuts = format_.join([format_.scan(str(path), 0, size, reading)], size)
    assert cuts is not None
    return cuts


def units_of(cuts: list[Cut]) -> list[Unit]:
    firsts = np.cumsum([1, *(each.records for each in cuts)]).tolist()
    return [
        Unit(each.offset, each.size, 0, first, each.records)
        for each, first in zip(cuts, firsts, strict=False)
    ]


def types_of(format_: Format, path: Path, reading: Reading = READING) -> Types:
    cuts = cut(format_, path, reading)
    found = [
        format_.types(str(path), unit, reading)
        for each, unit in zip(cuts, units_of(cuts), strict=True)
        if not each.fault
    ]
    nothing = [Types.of_schema(pa.schema([]), reading.label)] if not found else []
    return reduce(Types.join, pickle.loads(pickle.dumps(found)) or nothing)


def read(
    format_: Format,
    path: Path,
    reading: Reading = READING,
    schema: pa.Schema | None = None,
    choose: Choose | None = None,
    units: list[Unit] | None = None,
) -> Everything:
    faults = {}
    if units is None:
        cuts = cut(format_, path, reading)
        units = units_of(cuts)
        faults = {unit: each.fault for each, unit in zip(cuts, units, strict=True) if each.fault}
    if schema is None:
        schema = types_of(format_, path, reading).found()
    numbers: list[int] = []
    batches: list[pa.RecordBatch] = []
    rejects: list[tuple[int, str, str]] = []
    digests = []
    for unit in units:
        if fault := faults.get(unit):
            if choose is None or choose(np.array([unit.first]))[0]:
                rejects.append((unit.first, fault.error, fault.message))
            continue
        digest = xxhash.xxh3_64()
        for parsed in format_.read(str(path), unit, reading, schema, choose, digest):
            parsed.batch.validate(full=True)
            assert len(parsed.numbers) == len(parsed.batch)
            numbers += parsed.numbers.tolist()
            batches.append(parsed.batch)
            rejects += [(number, why.error, why.message) for number, why in parsed.rejects]
        digests.append(digest.hexdigest())
    return Everything(
        numbers, pa.Table.from_batches(batches, without_nulls(schema)), rejects, digests
    )
