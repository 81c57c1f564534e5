"""A dataset on disk: its manifest, its tables, and how they join: which shard has which units of
which files.

The tables may be damaged or forged. What is used of them is checked when it is used, so that
nothing leads astray: a number out of range, a path that leads out of its source, units that do not
add up to their shard. All of it raises DatasetError.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.format.arrays import Array, Bools, Hashes, Numbers, one_chunk, table_rows
from shardctl.format.manifest import Manifest
from shardctl.format.names import FILES, PLAN, SHARDS, Json
from shardctl.format.shard import BlockFile, field_names
from shardctl.format.tables import (
    FILE_FIELDS,
    PLAN_SCHEMA,
    REPAIR_ADVICE,
    ShardEntry,
    ShardTable,
    open_checked_table,
    open_table,
)
from shardctl.format.token_columns import packed_column
from shardctl.system.files import is_file
from shardctl.system.folders import Folder
from shardctl.system.text import printable

MOST = 2**62
"""Numbers of the plan are below this, so that sums of two of them fit in 64 bits."""

_PLAN_NUMBERS = tuple(name for name in PLAN_SCHEMA.names if name != "digest")


@dataclass(frozen=True)
class RawFile:
    """A row of files.arrow: a raw file, `path` below the source with the number `root`; what the
    labels say of it."""

    number: int
    path: str
    root: int
    size: int
    label: int | None = None
    columns: Json | None = None

    def key(self, record: int) -> str:
        """Return the key of a record of the file; 0 is that of a file that is one record."""
        return f"{self.path}#{record}" if record else self.path


@dataclass(frozen=True)
class UnitFacts:
    """A row of plan.arrow, by its number: a stretch of a file, and what became of it. `digest` is
    None if it was not read."""

    number: int
    file: int
    offset: int
    size: int
    skip: int
    first: int
    records: int
    shard: int
    first_row: int
    samples: int
    rejected: int
    digest: int | None


class ShardUnits:
    """The units of one shard. All columns of the plan are attributes, (units,) int64; `digest` is
    uint64, 0 for none.

    `number` is the row of the plan. Rows of the shard: a unit's samples are the rows from
    `first_row` on, in the order of its records. Where the records of a shard are shuffled, units
    that are mixed have the same `first_row`, and their samples are among all rows from there to the
    next unit's `first_row`; those of the last of them may go on from there.
    """

    def __init__(
        self, entry: ShardEntry, shard: int, part: pa.Table, files: int, mixed: bool, shown: str
    ) -> None:
        self.entry, self._mixed = entry, mixed
        (
            self.file,
            self.offset,
            self.size,
            self.skip,
            self.first,
            self.records,
            self.shard,
            self.first_row,
            self.samples,
            self.rejected,
        ) = (_numbers(part, name, shown) for name in _PLAN_NUMBERS)
        digest = one_chunk(part["digest"])
        self.digest: Hashes = _values(digest, 0)
        self.has_digest: Bools = np.asarray(digest.is_valid())
        self.number: Numbers = entry.first_unit + np.arange(len(self), dtype=np.int64)
        wrong = self._contradiction(shard, files)
        if wrong:
            raise DatasetError(
                f"{shown}: contradicts itself, {wrong} (shard {printable(entry.path)}); "
                f"{REPAIR_ADVICE}"
            )
        self._making = np.flatnonzero(self.samples)
        self._starts = self.first_row[self._making]
        self._stops = self._where_they_end()

    def _where_they_end(self) -> Numbers:
        """Return the row behind the last one that may be of a unit, for those that have samples."""
        count, ends = len(self._making), np.cumsum(self.samples[self._making])
        bounds = np.append(self._starts, self.entry.rows)
        following = np.searchsorted(self._starts, self._starts, side="right")
        stops = bounds[following]
        # The last rows of a unit may be mixed with those of the units after it.
        go_on = (following == np.arange(1, count + 1)) & (ends > stops)
        stops[go_on] = bounds[np.searchsorted(self._starts, stops[go_on], side="right")]
        return stops

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self.file)

    def __getitem__(self, place: int) -> UnitFacts:
        """Return a unit by its place in the shard."""
        values = {name: int(getattr(self, name)[place]) for name in ("number", *_PLAN_NUMBERS)}
        return UnitFacts(
            **values, digest=int(self.digest[place]) if self.has_digest[place] else None
        )

    def _contradiction(self, shard: int, files: int) -> str:
        """Return what cannot be, "" if there is nothing: then all of these numbers can be used."""
        if not files and not len(self) and not self.entry.units and not self.entry.rejected:
            return ""  # its samples were written by shardctl.write: they are of no unit
        if len(self) != self.entry.units:
            return "units are missing"
        if len(self) and self.file.max() >= files:
            return "it has a unit of a file that there is not"
        if not (self.shard == shard).all():
            return "units are not in the order of the shards"
        if (self.first > MOST - self.records).any() or (self.offset > MOST - self.size).any():
            return "it has a unit that does not end"
        if (self._sum("samples"), self._sum("rejected")) != (self.entry.rows, self.entry.rejected):
            return "the samples and rejects of units do not add up to the shard"
        if (np.diff(self.first_row) < 0).any() or (
            self.first_row > np.cumsum(self.samples) - self.samples
        ).any():
            return "rows of a shard belong to no unit"
        if not self.apart and not (self._mixed and self.first.any()):
            return "the rows of units are not in their order"
        return ""

    def _sum(self, name: str) -> int:
        """Return the sum of a column, -1 if it is more than 64 bits hold."""
        column = getattr(self, name)
        return int(column.sum()) if column.sum(dtype=np.float64) < MOST else -1

    @property
    def apart(self) -> bool:
        """Whether the rows of each unit are in one piece, one unit after the other."""
        return bool((self.first_row == np.cumsum(self.samples) - self.samples).all())

    @property
    def in_order(self) -> bool:
        """Whether the rows have the order of the units, and of the records in them."""
        return self.apart and not (self._mixed and self.first.any())

    @property
    def bounds(self) -> tuple[Numbers, Numbers]:
        """For every unit, the rows among which its samples are: the first, and the one behind the
        last. (units,) each."""
        stops = self.first_row.copy()
        stops[self._making] = self._stops
        return self.first_row, stops

    def places_in_order(self, rows: Numbers) -> Numbers:
        """Return the units, by their places, that some rows are made from: (n,) each. Only where
        they are `apart`."""
        return self._making[np.searchsorted(self._starts, rows, side="right") - 1]

    def of_row(self, row: int) -> Numbers:
        """Return the units, by their places (n,), that a row may belong to: one, or those that were
        mixed."""
        return self._making[(self._starts <= row) & (row < self._stops)]


@dataclass(frozen=True)
class RecordUnit:
    """A unit that has a record: `file` and `unit` from the tables, the `record`'s number (0: the
    file is one record).

    `shard` is the number of the shard that the unit's samples are in, among its rows from
    `first_row` to before `end_row`.
    """

    file: RawFile
    unit: UnitFacts
    record: int
    shard: int
    first_row: int
    end_row: int


class DatasetTables:
    """The dataset in a folder. Nothing is read before it is needed; tables are memory-mapped."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    @cached_property
    def manifest(self) -> Manifest:
        """manifest.json. Raises DatasetError."""
        return Manifest.load(self.folder)

    @cached_property
    def shards(self) -> ShardTable:
        """shards.arrow. Raises DatasetError."""
        return ShardTable(self.folder)

    @cached_property
    def plan(self) -> pa.Table:
        """plan.arrow, as long as shards.arrow says. Its numbers are not checked: `units` does that
        for a shard.

        Raises DatasetError.
        """
        plan = open_table(self.folder, PLAN, PLAN_SCHEMA)
        if plan.num_rows != int(self.shards.units.sum()):
            shown = self.folder.shown(PLAN)
            raise DatasetError(
                f"{shown}: has {plan.num_rows} units, {SHARDS} {int(self.shards.units.sum())}; "
                f"{REPAIR_ADVICE}"
            )
        return plan

    @cached_property
    def files(self) -> pa.Table:
        """files.arrow. Its values are not checked: `file` does that for one. Raises
        DatasetError."""
        return open_files(self.folder)

    @cached_property
    def _shuffled(self) -> bool:
        """Whether the records of files of many records were mixed within their shards."""
        try:
            settings = self.manifest.settings
        except DatasetError:
            settings = self.shards.making.settings
        return settings.get("shuffle") is not None

    def units(self, shard: int) -> ShardUnits:
        """Return the units of a shard, by its number. Raises DatasetError."""
        entry = self.shards[shard]
        part = self.plan.slice(entry.first_unit, entry.units)
        return ShardUnits(
            entry, shard, part, self.files.num_rows, self._shuffled, self.folder.shown(PLAN)
        )

    def file(self, number: int) -> RawFile:
        """Return a row of files.arrow, checked. Raises DatasetError."""
        files, shown = self.files, self.folder.shown(FILES)
        wrong = DatasetError(f"{shown}: holds values that cannot be; {REPAIR_ADVICE}")
        if not 0 <= number < files.num_rows:
            raise wrong
        try:
            names = ("path", "root", "size", "label", "columns")
            part = files.slice(number, 1).select([n for n in names if n in files.column_names])
            part.validate(full=True)
            (row,) = part.to_pylist()
            numbers = row["root"], row["size"]
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise wrong from error
        if not is_path_below(row["path"]) or not all(
            type(value) is int and 0 <= value < MOST for value in numbers
        ):
            raise wrong
        return RawFile(number, **row)

    @cached_property
    def paths(self) -> pa.ChunkedArray:
        """The paths of all files, checked: none leads outside of its memory. Raises
        DatasetError."""
        return open_checked_table(self.folder, FILES, ["path"])["path"]

    @cached_property
    def said(self) -> pa.Table:
        """The columns `label` and `columns` of files.arrow, those that it has. All their values are
        checked.

        Raises DatasetError.
        """
        names = [name for name in ("label", "columns") if name in self.files.column_names]
        return open_checked_table(self.folder, FILES, names)

    def paths_of(self, numbers: Numbers) -> pa.Array:
        """Return the paths of some files by their numbers, which `units` has checked: (n,) string.
        Raises DatasetError."""
        return take(self.paths, numbers)

    def shard_of_unit(self, unit: int) -> int:
        """Return the number of the shard that a row of the plan belongs to."""
        return int(np.searchsorted(self.shards.first_unit, unit, side="right")) - 1

    def source_of(self, file: RawFile) -> str:
        """Return the path of a raw file when the dataset was made. Raises DatasetError."""
        if file.root >= len(self.manifest.sources):
            raise DatasetError(
                f"{self.folder.shown(FILES)}: names a source that the manifest lacks; "
                f"{REPAIR_ADVICE}"
            )
        source = self.manifest.sources[file.root]
        return source if is_file(Path(source)) else f"{source}/{file.path}"

    def file_of_row(self, shard: int, row: int, key: str | None) -> RawFile | None:
        """Return the file that a row of a shard was made from; None if that is unknown.

        Where units were mixed, the row's `key` tells; of a row that was made of several records,
        the file of the first one.
        """
        units = self.units(shard)
        if self.joins:
            return self._file_of_key(np.unique(units.file), key)
        files = np.unique(units.file[units.of_row(row)]).tolist()
        found = (
            [self.file(number) for number in files] if len(files) == 1 or key is not None else []
        )
        if len(found) == 1:
            return found[0]
        names = {path for path, _ in possible_names(key)} if key is not None else set()
        return next((file for file in found if file.path in names), None)

    @property
    def joins(self) -> bool:
        """Whether rows may be of several records, so that the plan does not tell which."""
        return (
            bool((self.manifest.records or {}).get("joined"))
            or packed_column(self.manifest.roles) is not None
        )

    def _file_of_key(self, files: Numbers, key: str | None) -> RawFile | None:
        """Return the one of some files that has the record of this key."""
        import pyarrow.compute as pc  # 40 ms that only this needs

        if key is None:
            return None
        names = [path for path, _ in possible_names(key)]
        there = pc.is_in(self.paths_of(files), value_set=pa.array(names, pa.string())).to_numpy(
            zero_copy_only=False
        )
        return next((self.file(number) for number in files[there].tolist()), None)

    def find(self, key: str) -> list[RecordUnit]:
        """Return the units that have the record with this key, in the order of the dataset.

        None: no file has such a record. Where the records of a unit are in several splits, the unit
        is in a shard of each. Raises DatasetError.
        """
        import pyarrow.compute as pc  # 40 ms that only this needs

        paths = self.paths
        places: list[RecordUnit] = []
        for path, record in possible_names(key):
            start = 0
            while (at := pc.index(paths.slice(start), path).as_py()) >= 0:
                places += self._of_record(start + at, record)
                start += at + 1
        return sorted(places, key=lambda place: place.unit.number)

    def _of_record(self, number: int, record: int) -> Iterator[RecordUnit]:
        """Yield the units of a file that have one of its records."""
        file = self.file(number)
        start = 0
        units: tuple[int, ShardUnits] | None = None
        for batch in self.plan.select(["file", "first", "records"]).to_batches():
            of, first, records = (_values(column, -1) for column in batch.columns)
            has = (
                (of == number)
                & (first <= record)
                & ((first == 0) if record == 0 else (first > 0) & (record - first < records))
            )
            for row in (start + np.flatnonzero(has)).tolist():
                shard = self.shard_of_unit(row)
                if units is None or units[0] != shard:
                    units = shard, self.units(shard)
                place = row - units[1].entry.first_unit
                rows = (int(edge[place]) for edge in units[1].bounds)
                yield RecordUnit(file, units[1][place], record, shard, *rows)
            start += batch.num_rows

    def blocks_of_keys(self) -> Iterator[tuple[int, int, pa.Array]]:
        """Yield the keys of every block of the dataset, with the number of its shard and its first
        row. Reads all shards."""
        for shard, entry in enumerate(self.shards):
            file, row = keys_of(self.folder, entry.path), 0
            for block, rows in enumerate(entry.block_rows):
                yield shard, row, checked_column(file, block)
                row += rows

    def rows_with(self, key: str, place: RecordUnit) -> list[int]:
        """Return the rows of a shard that have this key, among those of a place. Reads the blocks
        that may have it."""
        entry = self.shards[place.shard]
        file, row, rows = keys_of(self.folder, entry.path), 0, []
        for block, count in enumerate(entry.block_rows):
            if row < place.end_row and place.first_row < row + count:
                keys = checked_column(file, block)
                first = max(0, place.first_row - row)
                wanted = keys.slice(first, place.end_row - row - first)
                rows += [
                    row + first + at for at, other in enumerate(wanted.to_pylist()) if other == key
                ]
            row += count
        return rows


def open_files(folder: Folder) -> pa.Table:
    """Memory-map files.arrow. Its values are not checked. Raises DatasetError."""
    table = open_table(folder, FILES)
    known = pa.schema([*FILE_FIELDS, ("label", pa.int64())])
    names = field_names(table.schema)
    types = dict(zip(names, table.schema.types, strict=True))
    if (
        names[: len(FILE_FIELDS)] != [name for name, _ in FILE_FIELDS]
        or len(types) < len(names)
        or any(known.field(name).type != types[name] for name in names if name in known.names)
        or not pa.types.is_struct(types.get("columns", pa.struct([])))
    ):
        raise DatasetError(
            f"{folder.shown(FILES)}: does not have the columns that `shardctl help format` gives it"
        )
    return table


def take(column: pa.ChunkedArray, places: Numbers) -> pa.Array:
    """Return the values at some places of a long column, (n,)."""
    distinct, back = np.unique(places, return_inverse=True)
    found = table_rows(pa.table([column], ["value"]), distinct)["value"].combine_chunks()
    return found.take(pa.array(back))


def is_path_below(path: Any) -> bool:
    """Return whether this is a path, with / between its parts, that does not lead out of the folder
    it is relative to."""
    return isinstance(path, str) and all(
        part not in ("", ".", "..") and "\0" not in part for part in path.split("/")
    )


def possible_names(key: str) -> Iterator[tuple[str, int]]:
    """Yield what a key may mean: the path of a file that is one record (0), and of one of many
    records with a number."""
    yield key, 0
    path, _, digits = key.rpartition("#")
    if path and digits.isascii() and digits.isdecimal() and digits[0] != "0" and len(digits) < 19:
        yield path, int(digits)


def keys_of(folder: Folder, shard: str) -> BlockFile:
    """Open the column `key` of a shard. Raises DatasetError."""
    column = BlockFile.of(folder, shard).schema.get_field_index("key")
    if column < 0:
        raise DatasetError(f"{folder.shown(shard)}: it has no column of keys; {REPAIR_ADVICE}")
    return BlockFile.of(folder, shard, [column])


def checked_column(file: BlockFile, block: int) -> pa.Array:
    """Return the first of the columns that a file was opened for, of one block. Raises
    DatasetError."""
    return file.checked(block)[0].column(0)


def _values(column: pa.Array, missing: int) -> Array:
    """Return the values of a column of numbers, (n,), and `missing` where there is none."""
    # Not to_numpy, which imports pandas where that is installed: 0.3 s.
    return np.from_dlpack(column.fill_null(missing) if column.null_count else column)


def _numbers(part: pa.Table, name: str, shown: str) -> Numbers:
    """Return a column of whole numbers from 0 on, (n,) int64. Raises DatasetError."""
    column = one_chunk(part[name])
    values: Numbers = _values(column, -1).astype(np.int64, copy=False)
    if len(values) and (values.min() < 0 or values.max() >= MOST):
        raise DatasetError(f"{shown}: holds values that cannot be; {REPAIR_ADVICE}")
    return values
