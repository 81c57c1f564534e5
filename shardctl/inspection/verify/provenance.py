"""What the tables say of the rows of a shard: which records of which files they were made from. Checked a block at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.format.stored import MOST, Numbers, StoredDataset
from shardctl.transforms.recipe import user_functions
from shardctl.transforms.samples_per_record import samples_per_record, splits_records


@dataclass(frozen=True)
class _Rows:
    """Rows of a shard as their keys say it, (n,) int64 each.

    `record` is the number of a record, 0 where a file is one record. `unit` is the place of a
    unit, -1 where no unit of the shard has it.
    """

    unit: Numbers
    record: Numbers
    variant: Numbers


class ShardContent:
    """What the tables say of one shard of a dataset. Raises DatasetError if they contradict themselves."""

    def __init__(self, stored: StoredDataset, shard: int) -> None:
        self._stored, self._shard, self.units = stored, shard, stored.units(shard)
        recipe = stored.manifest.recipe
        self._samples_per_record = samples_per_record(recipe)
        self._numbered = "variant" in dict(stored.manifest.schema)
        # These may make any number of samples of one record.
        self._by_functions = bool(user_functions(recipe)) or splits_records(recipe)
        self._untold = stored.joins or stored.manifest.has_own_keys

    def of(self, row: int, key: str | None = None) -> tuple[str | None, str | None]:
        """Return the key and the source of a row. Without the `key` that it has, they are None where only that would tell."""
        file = self._stored.file_of_row(self._shard, row, key)
        if file is None:
            return key, None
        return key or self._key_of(row), self._stored.source_of(file)

    def span(self, first: int, rows: int) -> str:
        """Return the content of a block, for messages."""
        one, last = self._key_of(first), self._key_of(first + rows - 1)
        known = one is not None and last is not None and rows > 1
        return f"{rows} samples, from {one} to {last}" if known else f"rows {first} to {first + rows - 1}"

    def _key_of(self, row: int) -> str | None:
        """Return the key of a row, as far as the plan tells it: where no record of the unit was left out."""
        if self._untold:
            return None
        places = self.units.of_row(row)
        if len(places) != 1:
            return None
        unit = self.units[int(places[0])]
        if unit.first and (
            not self.units.in_order or self._by_functions or unit.samples != unit.records * self._samples_per_record
        ):
            return None
        record = unit.first + (row - unit.first_row) // self._samples_per_record if unit.first else 0
        return self._stored.file(unit.file).key(record)

    def first_wrong_key(self, blocks: Iterable[pa.RecordBatch]) -> tuple[int, str | None] | None:
        """Return the first row, and its key, that is not of a record that the plan gives it; None if there is none.

        `blocks` are all blocks of the shard, with the columns `key` and, if there are variants, `variant`.
        """
        held: list[pa.RecordBatch] = list(blocks)
        if not len(self.units) or self._untold:
            # Samples that shardctl.write wrote are of no unit, and those that a step made of several records are of several;
            # and the plan does not know keys that are values of a field.
            return None
        in_order = self.units.in_order
        parts = []
        first = 0
        for block in held:
            keys = block.column("key")
            if keys.type != pa.string() or keys.null_count:
                return first, None
            parts.append(self._in_order(first, block) if in_order else self._mixed(first, block))
            wrong = np.flatnonzero(parts[-1].unit < 0)
            if len(wrong):
                return first + int(wrong[0]), keys[int(wrong[0])].as_py()
            first += block.num_rows
        again = self._first_repeated(parts)
        return None if again is None else (again, _key_at(held, again))

    def _in_order(self, first: int, block: pa.RecordBatch) -> _Rows:
        """Read the keys of rows that have the order of the units."""
        units, keys = self.units, block.column("key")
        places = units.places_in_order(first + np.arange(len(keys)))
        paths = self._stored.paths_of(units.file[places])
        whole = units.first[places] == 0
        record = np.where(whole, 0, number_at_end(keys))
        expected = paths if whole.all() else _keys(paths, record)
        if whole.any() and not whole.all():
            expected = pc.if_else(pa.array(whole), paths, expected)
        right = _equal(keys, expected) & (units.first[places] <= record) & self._variants_are_right(block)
        right &= whole | (record < units.first[places] + units.records[places])
        return _Rows(np.where(right, places, -1), record, self._variant(block))

    def _mixed(self, first: int, block: pa.RecordBatch) -> _Rows:
        """Read the keys of rows that were mixed with those of other units: all of files of many records."""
        units, keys = self.units, block.column("key")
        record = number_at_end(keys)
        files = np.unique(units.file)
        paths = pc.replace_substring_regex(keys, pattern="#[0-9]+$", replacement="")
        found = pc.index_in(paths, value_set=self._stored.paths_of(files)).fill_null(-1).to_numpy(zero_copy_only=False)
        order = np.lexsort((units.first, units.file))
        span = int((units.first + units.records).max()) + 1
        if span * len(files) >= MOST:
            return _Rows(np.full(len(keys), -1), record, self._variant(block))
        starts = np.searchsorted(files, units.file[order]) * span + units.first[order]
        inside = np.minimum(record, span - 1)
        at = np.searchsorted(starts, found.astype(np.int64) * span + inside, side="right") - 1
        places = order[np.maximum(at, 0)]
        right = (at >= 0) & (found >= 0) & (units.file[places] == files[np.maximum(found, 0)])
        right &= (
            (units.first[places] > 0) & (units.first[places] <= record) & (record < units.first[places] + units.records[places])
        )
        right &= _equal(keys, _keys(paths, record)) & self._variants_are_right(block)
        row = first + np.arange(len(keys))
        starts_at, stops_at = units.bounds
        right &= (starts_at[places] <= row) & (row < stops_at[places])
        return _Rows(np.where(right, places, -1), record, self._variant(block))

    def _first_repeated(self, parts: list[_Rows]) -> int | None:
        """Return the first row of a record that an earlier row has, or that is behind a later record of its unit.

        Where rows were mixed, also the first row of a unit that has more rows than the plan says.
        """
        if not parts:
            return None
        unit, record, variant = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("unit", "record", "variant")
        )
        order = np.arange(len(unit)) if self.units.in_order else np.lexsort((variant, record, unit))
        unit, record, variant = unit[order], record[order], variant[order]
        behind = (record[1:] < record[:-1]) | ((record[1:] == record[:-1]) & (variant[1:] <= variant[:-1]))
        wrong = np.flatnonzero((unit[1:] == unit[:-1]) & behind)
        if len(wrong):
            return int(order[wrong + 1].min())
        more = np.bincount(unit, minlength=len(self.units)) != self.units.samples
        return int(order[more[unit]].min()) if more.any() else None

    def _variant(self, block: pa.RecordBatch) -> Numbers:
        if not self._numbered or not self._has_variants(block):
            return np.zeros(block.num_rows, np.int64)
        return np.from_dlpack(block.column("variant").fill_null(-1)).astype(np.int64)

    def _variants_are_right(self, block: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        if not self._numbered:
            return np.ones(block.num_rows, bool)
        variant = self._variant(block)
        return (variant >= 0) & (self._by_functions | (variant < self._samples_per_record)) & self._has_variants(block)

    def _has_variants(self, block: pa.RecordBatch) -> bool:
        return "variant" in block.schema.names and bool(pa.types.is_integer(block.schema.field("variant").type))


def number_at_end(keys: pa.Array) -> Numbers:
    """Return the number that the last digits of each key make, at most 18 of them; 0 if there are none. (n,) int64.

    No Python object is made per key.
    """
    numbers = np.zeros(len(keys), np.int64)
    _, offsets, data = keys.buffers()
    if not len(keys) or data is None or not data.size:
        return numbers
    letters = np.frombuffer(data, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    places, starts = ends[1:] - 1, ends[:-1]
    left = np.arange(len(keys))
    for power in range(18):
        left = left[places[left] - power >= starts[left]]
        digits = letters[places[left] - power] - np.uint8(48)  # below 0 is far above 9
        left, digits = left[digits <= 9], digits[digits <= 9]
        if not len(left):
            break
        numbers[left] += digits.astype(np.int64) * 10**power
    return numbers


def _keys(paths: pa.Array, records: Numbers) -> pa.Array:
    return pc.binary_join_element_wise(paths, pa.array(records).cast(pa.string()), "#")


def _equal(keys: pa.Array, others: pa.Array) -> npt.NDArray[np.bool_]:
    equal: npt.NDArray[np.bool_] = pc.equal(keys, others).fill_null(False).to_numpy(zero_copy_only=False)
    return equal


def _key_at(blocks: list[pa.RecordBatch], row: int) -> str | None:
    for block in blocks:
        if row < block.num_rows:
            key: str | None = block.column("key")[row].as_py()
            return key
        row -= block.num_rows
    return None
