"""The plan: which unit goes to which shard, as tables on disk. Nothing is held per record, or per
unit in Python objects."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.arrays import Bools, Numbers, column_of, dtype_of, numbers_of
from shardctl.format.names import PLAN, SHARDS
from shardctl.format.tables import UNIT_FIELDS, new_table
from shardctl.making.plan.splits import Splitting
from shardctl.sources.formats import Cut
from shardctl.sources.walked import CHUNK_ROWS, why_unread
from shardctl.system.permutation import Permutation, evenly_spaced

if TYPE_CHECKING:
    from shardctl.transforms.duplicates.pictures import Repeats


@dataclass(frozen=True)
class Units:
    """Units in the order of the walk. `file`, `offset`, `size`, `first` and `records` are (n,)
    int64.

    `file` counts along the listing. `first` is the number of a unit's first record in its file,
    from 1; 0 where the file is one record. `faults` has units that are not read, with the reason;
    so are the `repeats` of others, and files of one record with a fault in the listing.
    """

    file: Numbers
    offset: Numbers
    size: Numbers
    first: Numbers
    records: Numbers
    faults: dict[int, Rejection]
    repeats: Repeats | None = None

    def __len__(self) -> int:
        return len(self.file)

    def readable(self) -> Numbers:
        """Return the numbers of the units that have no fault, in order."""
        able = np.ones(len(self), bool)
        able[list(self.faults)] = False
        return np.flatnonzero(able)


class UnitsInMaking:
    """Takes the units of one file after the other, in any order of the files, at 40 bytes a
    unit."""

    def __init__(self) -> None:
        self._columns = tuple(array("q") for _ in range(5))
        self._faults: dict[int, Rejection] = {}

    def add(self, file: int, cuts: list[Cut]) -> None:
        """Add all units of a file, given by its place in the listing. A fault has one record."""
        # a file that cannot be read is rejected as a whole
        number = 0 if len(cuts) == 1 and cuts[0].fault else 1
        for cut in cuts:
            if cut.fault is not None:
                self._faults[len(self._columns[0])] = cut.fault
            for column, value in zip(
                self._columns, (file, cut.offset, cut.size, number, cut.records), strict=True
            ):
                column.append(value)
            number += cut.records

    def finish(self) -> Units:
        """Return the units in the order of the files. Nothing can be added any more."""
        file, offset, size, first, records = (
            np.frombuffer(column, np.int64) for column in self._columns
        )
        order = np.argsort(file, kind="stable")
        faults = {}
        if self._faults:
            places = np.flatnonzero(np.isin(order, list(self._faults)))
            faults = {place: self._faults[int(order[place])] for place in places.tolist()}
        return Units(file[order], offset[order], size[order], first[order], records[order], faults)


@dataclass(frozen=True)
class SplitPlan:
    """One split: how many records its units have, how many of these are its own (about, where the
    records of a unit are in several splits), rejected or not, and its number of shards."""

    name: str
    records: int
    expected: int
    shards: int


@dataclass(frozen=True)
class Changes:
    """What an update does: files `added`, `removed` and `changed`; shards `rebuilt`, `new` and
    `kept`.

    `anew` says why all shards are built again, "" if they are not.
    """

    added: int
    removed: int
    changed: int
    rebuilt: int
    new: int
    kept: int
    anew: str = ""


JOB_PLAN_SCHEMA = pa.schema([*UNIT_FIELDS, ("error", pa.string()), ("message", pa.string())])
"""The plan of a job. A unit with an `error` is not read."""

NO_ROWS = pa.Table.from_batches([], JOB_PLAN_SCHEMA)

JOB_SHARDS_SCHEMA = pa.schema(
    [
        ("split", pa.int32()),
        ("number", pa.int32()),
        ("first_unit", pa.int64()),
        ("units", pa.int64()),
        ("records", pa.int64()),
        ("kept", pa.int32()),
        ("blocks", pa.list_(pa.int32())),
    ]
)
"""The shards of a job: each has rows of its plan of its own. `number` counts within the split.
Where a dataset is brought up to date, `kept` is the number of the shard in it that this one is,
NOT_KEPT where it is to be built. `blocks` has the rows of each block where these are known, else
null: shards whose rows were copied have other blocks than a conversion makes."""

NOT_KEPT = -1


class ShardParts(NamedTuple):
    """The parts of a planned shard, which has so many `records`. First come the rows `old_from`
    to `old_to` that stay of the old plan, then the records `new_from` to `new_to` of the units in
    its `split`. `kept` is the number of the old shard that it is, NOT_KEPT if it is built."""

    split: int
    number: int
    records: int
    new_from: int
    new_to: int
    kept: int = NOT_KEPT
    old_from: int = 0
    old_to: int = 0


class Planner:
    """Makes the tables of a job: which units, or parts of units, each shard has.

    The units of each split are in the order of the walk, or with the seed `shuffle` in a random
    one; only those of the files in `of_files`, (files,), None: of all. `draw` is set where a unit's
    records are in different splits: then every split has all units.
    """

    def __init__(
        self,
        units: Units,
        splitting: Splitting,
        shuffle: int | None,
        of_files: Bools | None = None,
    ) -> None:
        of_file = splitting.of_file
        self._units, self.draw, self.names = units, splitting.draw, splitting.names
        self._own: list[Numbers] = []
        for number in range(len(splitting.names)):
            wanted = np.ones(len(units), bool) if of_files is None else of_files[units.file]
            if of_file is not None:
                wanted = wanted & (of_file[units.file] == number)
            own = np.flatnonzero(wanted)
            if shuffle is not None:
                own = own[Permutation(len(own), shuffle, number)(np.arange(len(own)))]
            self._own.append(own)
        self._ends = [np.cumsum(units.records[own]) for own in self._own]
        self.records = [int(ends[-1]) if len(ends) else 0 for ends in self._ends]
        """The records of each split's units."""
        self.inputs = self.records[0] if self.draw is not None else sum(self.records)
        """The records of all units."""
        units_in_all = sum(map(len, self._ends))
        self.records_per_unit = sum(self.records) / max(1, units_in_all) or 1.0
        """How many records a unit has on average."""

    @property
    def split_records(self) -> list[int]:
        """About how many records each split has: where units are shared, its share of them."""
        return [round(of * share) for of, share in zip(self.records, self.shares, strict=True)]

    @property
    def shares(self) -> list[float]:
        """The share of the records of its units that each split has."""
        if self.draw is None:
            return [1.0] * len(self.names)
        return np.diff([0.0, *self.draw.edges, 1.0]).tolist()  # type: ignore[no-any-return]

    def divided(
        self, split: int, count: int, first: int = 0, number: int = 0
    ) -> Iterator[ShardParts]:
        """Yield so many shards of the records of a split from `first` on, from this number on;
        their sizes differ by 1 at most."""
        left = self.records[split] - first
        edges = (first + left * place // max(1, count) for place in range(count + 1))
        for place, (start, end) in enumerate(pairwise(edges), number):
            yield ShardParts(split, place, end - start, start, end)

    def write(self, folder: Path, shards: Sequence[int]) -> None:
        """Write plan.arrow and shards.arrow; `shards` is the number of shards of each split."""
        new = chain.from_iterable(self.divided(*each) for each in enumerate(shards))
        self.write_parts(folder, new, NO_ROWS)

    def write_parts(self, folder: Path, shards: Iterable[ShardParts], old: pa.Table) -> None:
        """Write plan.arrow and shards.arrow; `old` are the rows of the plan before that stay."""
        rows, first = array("q"), 0
        with plan_table(folder, JOB_PLAN_SCHEMA) as add:
            for split, number, records, start, end, kept, *stays in shards:
                units = pa.Table.from_batches([self.rows(split, start, end)])
                units = pa.concat_tables([old[slice(*stays)], units])
                rows.extend((split, number, first, len(units), records, kept))
                first += len(units)
                add(units)
        write_shards(folder, rows)

    def write_units(self, folder: Path) -> None:
        """Write plan.arrow with every unit that has records as a row, in the order of the splits,
        and no shards."""
        with plan_table(folder, JOB_PLAN_SCHEMA) as add:
            for split, ends in enumerate(self._ends):
                first = 0
                for start in range(0, len(ends), CHUNK_ROWS):
                    end = int(ends[start : start + CHUNK_ROWS][-1])
                    add(pa.Table.from_batches([self.rows(split, first, end)]))
                    first = end

    def write_some(self, folder: Path, units: int, run: int) -> Numbers:
        """Write a plan with the first `run` records of some units all over the splits; more of each
        if there are fewer units.

        Returns the files that it has, (files,) int64: the plan counts along them. The first
        records, since others may take a reading of all that is before them.
        """
        starts = np.cumsum([0, *map(len, self._own)])
        repeats, parts = self._units.repeats, []
        if repeats is None:
            chosen = evenly_spaced(int(starts[-1]), units)
        else:
            kept = np.flatnonzero(~repeats.dropped[np.concatenate(self._own)])
            chosen = kept[evenly_spaced(len(kept), units)].tolist()
        for place in chosen:
            split = int(np.searchsorted(starts, place, side="right")) - 1
            ends, unit = self._ends[split], place - int(starts[split])
            first = int(ends[unit - 1]) if unit else 0
            parts.append(
                self.rows(split, first, min(first + run * units // len(chosen), int(ends[unit])))
            )
        return _write_plan(folder, parts)

    def write_widely(self, folder: Path, places: int, run: int, reach: int) -> Numbers:
        """Write a plan with runs of up to `run` records that follow each other, at some places
        evenly over all records.

        Of a unit of more than `reach` bytes only about so many from its beginning on count: those
        after them may take a reading of all that is before them. Returns the files that it has, as
        `write_some`.
        """
        firsts: list[tuple[int, int]] = []
        # Where the records of a unit are in several splits, each split has all units.
        for number in range(min(places, self.inputs)):
            split, place = self._located(number * self.inputs // places)
            unit = int(np.searchsorted(self._ends[split], place, side="right"))
            own = self._own[split][unit]
            records, size = int(self._units.records[own]), int(self._units.size[own])
            start = int(self._ends[split][unit]) - records
            # as far in what is within reach as it is in all of the unit
            near = records if size <= reach else max(1, records * reach // size)
            firsts.append((split, start + (place - start) * near // records))
        parts = []
        for (split, first), (other, after) in zip(firsts, [*firsts[1:], (-1, 0)], strict=True):
            end = min(first + run, after if other == split else self.records[split])
            parts.append(self.rows(split, first, end))
        return _write_plan(folder, parts)

    def write_each(self, folder: Path, places: Sequence[int]) -> Numbers:
        """Write the tables of a job that makes a shard of each of some records; `places` count
        through all splits.

        Returns the files that it has, as `write_some`.
        """
        parts, rows = [], array("q")
        for number, place in enumerate(places):
            split, first = self._located(place)
            parts.append(self.rows(split, first, first + 1))
            rows.extend((split, number, number, 1, 1, NOT_KEPT))
        write_shards(folder, rows)
        return _write_plan(folder, parts)

    def _located(self, place: int) -> tuple[int, int]:
        """Return the split of a record by its place through all splits, and its place in that."""
        starts = np.cumsum([0, *self.records])
        split = int(np.searchsorted(starts, place, side="right")) - 1
        return split, place - int(starts[split])

    def place_of(self, file: int, record: int) -> int | None:
        """Return the place of a record through all splits, as `write_each` takes it; None if there
        is no such record.

        `file` counts along the listing; `record` is its number in its file, from 1, or 0 where the
        file is one record.
        """
        before = 0
        for own, ends in zip(self._own, self._ends, strict=True):
            here = np.flatnonzero(self._units.file[own] == file)
            skipped = record - self._units.first[own[here]]
            found = np.flatnonzero((skipped >= 0) & (skipped < self._units.records[own[here]]))
            if len(found):
                unit = here[found[0]]
                return before + int(ends[unit] - self._units.records[own[unit]] + skipped[found[0]])
            before += int(ends[-1]) if len(ends) else 0
        return None

    def rows(self, split: int, first: int, end: int) -> pa.RecordBatch:
        """Return plan rows for the records from `first` to `end` of a split's units; the outermost
        may be parts of units."""
        ends, own = self._ends[split], self._own[split]
        low = int(np.searchsorted(ends, first, side="right"))
        high = int(np.searchsorted(ends, end, side="left")) + 1 if first < end else low
        units, ends = own[low:high], ends[low:high]
        records = self._units.records[units]
        starts = ends - records
        skip = np.maximum(first - starts, 0)
        taken = np.minimum(ends, end) - starts - skip
        base = self._units.first[units]
        of_unit, repeats = self._units.faults, self._units.repeats
        # why some units are not read; none at all if all of them are
        faults = [of_unit.get(number) for number in units.tolist()] if of_unit else []
        if repeats is not None:
            repeated = repeats.rejections(units)
            faults = [fault or other for fault, other in zip_longest(faults, repeated)]
        columns = [
            self._units.file[units].astype(np.int32),
            self._units.offset[units],
            self._units.size[units],
            skip,
            np.where(base > 0, base + skip, 0),
            taken,
        ]
        reasons = why_unread(faults, len(units))
        return pa.record_batch([*map(column_of, columns), *reasons], schema=JOB_PLAN_SCHEMA)


def _write_plan(folder: Path, parts: Sequence[pa.RecordBatch]) -> Numbers:
    """Write a small plan, and return the files that it has, (files,) int64: the plan counts along
    them."""
    table = pa.Table.from_batches(parts, JOB_PLAN_SCHEMA).combine_chunks()
    file = numbers_of(table["file"])
    files = np.array(sorted(set(file.tolist())), np.int64)
    table = table.set_column(
        0, JOB_PLAN_SCHEMA.field(0), column_of(np.searchsorted(files, file).astype(np.int32))
    )
    with new_table(folder / PLAN, JOB_PLAN_SCHEMA) as plan:
        plan.write_table(table)
    return files


def write_shards(
    folder: Path, rows: array[int] | Numbers, blocks: Sequence[Any] | None = None
) -> None:
    """Write shards.arrow from the values of its rows, one after the other, and the rows of the
    blocks of each where these are known."""
    *types, of_blocks = JOB_SHARDS_SCHEMA.types
    columns = np.frombuffer(rows, np.int64).reshape(-1, len(types)).T
    typed = zip(columns, types, strict=True)
    arrays = [column_of(column.astype(dtype_of(type_))) for column, type_ in typed]
    missing = pa.nulls(len(columns[0]), of_blocks)
    arrays.append(pa.array(blocks, of_blocks) if blocks else missing)
    with new_table(folder / SHARDS, JOB_SHARDS_SCHEMA) as table:
        table.write_batch(pa.record_batch(arrays, schema=JOB_SHARDS_SCHEMA))


JOINED_SHARDS = 64
"""Shards whose rows of the plan are copied into one table."""


@contextmanager
def plan_table(folder: Path, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    """Yield what takes the rows of one shard after the other, and writes plan.arrow: many shards
    together, as a batch for each would be slow to open, and a table maps a file."""
    held, held_rows = list[pa.Table](), 0

    def write() -> None:
        nonlocal held, held_rows
        plan.write_table(pa.concat_tables(held).combine_chunks(), max_chunksize=CHUNK_ROWS)
        held, held_rows = [], 0

    def add(rows: pa.Table) -> None:
        nonlocal held, held_rows
        held.append(rows)
        held_rows += rows.num_rows
        if held_rows >= CHUNK_ROWS:
            write()
        elif len(held) == JOINED_SHARDS:
            held = [pa.concat_tables(held).combine_chunks()]

    with new_table(folder / PLAN, schema) as plan:
        yield add
        if held:
            write()
