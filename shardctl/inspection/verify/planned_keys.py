"""The check of keys: each row of a shard has the key of a record that the plan gives it. They are
read a block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.format.dataset_tables import MOST, Numbers
from shardctl.format.names import PLAN
from shardctl.inspection.verify.check import Block, Fault, Shard
from shardctl.inspection.verify.finding import REBUILD
from shardctl.inspection.verify.provenance import Provenance
from shardctl.system.dataclass import dataclass


class KeyCheck:
    """The keys of one shard. They are kept up to the last block: what is wrong may be that a key
    comes again."""

    def __init__(self, shard: Shard) -> None:
        self._provenance = None if shard.record is None else shard.record.provenance
        self._blocks: list[Block] = []

    def look(self, block: Block) -> None:
        """Keep the keys of a block."""
        if self._provenance is not None:
            self._blocks.append(block.with_columns({"key", "variant"}))

    def faults(self) -> Iterator[Fault]:
        """Yield the first key that is not the one of the plan."""
        if self._provenance is None:
            return
        wrong = PlannedKeys(self._provenance).first_wrong([block.data for block in self._blocks])
        if wrong is not None:
            row, key = wrong
            block = next(each for each in self._blocks if row < each.first + each.data.num_rows)
            what = f"its row {row} has the key {key!r}, {PLAN} has another key for it"
            yield Fault("keys-differ", f"{what}; {REBUILD}", block.number, row)


@dataclass(frozen=True)
class _Rows:
    """Rows of a shard as their keys say it, (n,) int64 each.

    `record` is the number of a record, 0 where a file is one record. `unit` is the place of a
    unit, -1 where no unit of the shard has it.
    """

    unit: Numbers
    record: Numbers
    variant: Numbers


class PlannedKeys:
    """The keys that the plan gives the rows of one shard."""

    def __init__(self, provenance: Provenance) -> None:
        self._provenance, self._stored, self._units = (
            provenance,
            provenance.stored,
            provenance.units,
        )
        self._numbered = "variant" in dict(provenance.stored.manifest.schema)

    def first_wrong(self, blocks: Sequence[pa.RecordBatch]) -> tuple[int, str | None] | None:
        """Return the first row, and its key, that is not of a record that the plan gives it; None
        if there is none.

        `blocks` are all blocks of the shard, with the columns `key` and, if there are variants,
        `variant`.
        """
        if not len(self._units) or self._provenance.tells_no_keys:
            return None  # samples that shardctl.write wrote are of no unit
        in_order = self._units.in_order
        parts = []
        first = 0
        for block in blocks:
            keys = block.column("key")
            if keys.type != pa.string() or keys.null_count:
                return first, None
            parts.append(self._in_order(first, block) if in_order else self._mixed(first, block))
            wrong = np.flatnonzero(parts[-1].unit < 0)
            if len(wrong):
                return first + int(wrong[0]), keys[int(wrong[0])].as_py()
            first += block.num_rows
        again = self._first_repeated(parts)
        return None if again is None else (again, _key_at(blocks, again))

    def _in_order(self, first: int, block: pa.RecordBatch) -> _Rows:
        """Read the keys of rows that have the order of the units."""
        import pyarrow.compute as pc  # here and below: 30 ms to import, and `quick` reads no keys

        units, keys = self._units, block.column("key")
        places = units.places_in_order(first + np.arange(len(keys)))
        paths = self._stored.paths_of(units.file[places])
        whole = units.first[places] == 0
        record = np.where(whole, 0, number_at_end(keys))
        expected = paths if whole.all() else _keys(paths, record)
        if whole.any() and not whole.all():
            expected = pc.if_else(pa.array(whole), paths, expected)
        right = (
            _equal(keys, expected)
            & (units.first[places] <= record)
            & self._variants_are_right(block)
        )
        right &= whole | (record < units.first[places] + units.records[places])
        return _Rows(np.where(right, places, -1), record, self._variant(block))

    def _mixed(self, first: int, block: pa.RecordBatch) -> _Rows:
        """Read the keys of rows that were mixed with those of other units: all of files of many
        records."""
        import pyarrow.compute as pc

        units, keys = self._units, block.column("key")
        record = number_at_end(keys)
        files = np.unique(units.file)
        paths = pc.replace_substring_regex(keys, pattern="#[0-9]+$", replacement="")
        found = (
            pc.index_in(paths, value_set=self._stored.paths_of(files))
            .fill_null(-1)
            .to_numpy(zero_copy_only=False)
        )
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
            (units.first[places] > 0)
            & (units.first[places] <= record)
            & (record < units.first[places] + units.records[places])
        )
        right &= _equal(keys, _keys(paths, record)) & self._variants_are_right(block)
        row = first + np.arange(len(keys))
        starts_at, stops_at = units.bounds
        right &= (starts_at[places] <= row) & (row < stops_at[places])
        return _Rows(np.where(right, places, -1), record, self._variant(block))

    def _first_repeated(self, parts: list[_Rows]) -> int | None:
        """Return the first row of a record that an earlier row has, or that is behind a later
        record of its unit.

        Where rows were mixed, also the first row of a unit that has more rows than the plan says.
        """
        if not parts:
            return None
        unit, record, variant = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("unit", "record", "variant")
        )
        order = (
            np.arange(len(unit)) if self._units.in_order else np.lexsort((variant, record, unit))
        )
        unit, record, variant = unit[order], record[order], variant[order]
        behind = (record[1:] < record[:-1]) | (
            (record[1:] == record[:-1]) & (variant[1:] <= variant[:-1])
        )
        wrong = np.flatnonzero((unit[1:] == unit[:-1]) & behind)
        if len(wrong):
            return int(order[wrong + 1].min())
        more = np.bincount(unit, minlength=len(self._units)) != self._units.samples
        return int(order[more[unit]].min()) if more.any() else None

    def _variant(self, block: pa.RecordBatch) -> Numbers:
        if not self._numbered or not self._has_variants(block):
            return np.zeros(block.num_rows, np.int64)
        return np.from_dlpack(block.column("variant").fill_null(-1)).astype(np.int64)

    def _variants_are_right(self, block: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        if not self._numbered:
            return np.ones(block.num_rows, bool)
        variant = self._variant(block)
        return (
            (variant >= 0)
            & (self._provenance.by_functions | (variant < self._provenance.samples_per_record))
            & self._has_variants(block)
        )

    def _has_variants(self, block: pa.RecordBatch) -> bool:
        return "variant" in block.schema.names and bool(
            pa.types.is_integer(block.schema.field("variant").type)
        )


def number_at_end(keys: pa.Array) -> Numbers:
    """Return the number that the last digits of each key make, at most 18 of them; 0 if there are
    none. (n,) int64.

    No Python object is made per key.
    """
    numbers = np.zeros(len(keys), np.int64)
    _, offsets, data = keys.buffers()
    if not len(keys) or data is None or not data.size:
        return numbers
    letters = np.frombuffer(data, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(
        np.int64
    )
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
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(paths, pa.array(records).cast(pa.string()), "#")


def _equal(keys: pa.Array, others: pa.Array) -> npt.NDArray[np.bool_]:
    import pyarrow.compute as pc

    equal: npt.NDArray[np.bool_] = (
        pc.equal(keys, others).fill_null(False).to_numpy(zero_copy_only=False)
    )
    return equal


def _key_at(blocks: Sequence[pa.RecordBatch], row: int) -> str | None:
    for block in blocks:
        if row < block.num_rows:
            key: str | None = block.column("key")[row].as_py()
            return key
        row -= block.num_rows
    return None
