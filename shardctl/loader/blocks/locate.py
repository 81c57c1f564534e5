"""Where the values of some samples lie: in mapped uncompressed files, or in blocks that are fetched
into memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardctl.errors import DamageError, DatasetError, first_line
from shardctl.format.arrays import Array, DType, Numbers, begin_runs, column_of, edges_of
from shardctl.format.shard import VERIFY_ADVICE, Opener, load_file
from shardctl.loader.blocks.block_cache import (
    BlockCache,
    Faults,
    checked,
    keys_of,
    name_samples,
)
from shardctl.loader.blocks.column import Block, Column, Flat, flatten
from shardctl.loader.blocks.gather import Located, gather_fixed
from shardctl.loader.blocks.memory import BatchMemory
from shardctl.loader.blocks.shards import OpenShard, Shards
from shardctl.loader.blocks.stages import Stages
from shardctl.system.mmap import mended, was_mended, watch

if TYPE_CHECKING:
    from shardctl.loader.blocks.picture_steps import BatchSteps

CHECK_SECONDS = 0.01
"""How old the last look at a file may be: one takes a system call and the interpreter's lock,
twice; 7 % at full speed."""


class Samples:
    """The samples of a batch, (n,), in an epoch: sample i is row `rows[i]` of block `block[i]`.
    `steps` change their images, and what is marked in them; arrays of the batch lie in `memory`."""

    steps: BatchSteps | None = None

    def __init__(
        self, shards: Shards, numbers: Numbers, epoch: int = 0, memory: BatchMemory | None = None
    ) -> None:
        self.shards, self.numbers, self.epoch = shards, numbers, epoch
        self.memory = memory or BatchMemory()
        self.block: Numbers = np.searchsorted(shards.starts, numbers, side="right") - 1
        self.rows: Numbers = numbers - shards.starts[self.block]
        self._grouped: tuple[Numbers, Numbers] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def groups(self) -> tuple[Numbers, Numbers]:
        """The distinct blocks, sorted, and which of them each sample is in, (n,)."""
        if self._grouped is None:
            self._grouped = _distinct(self.block)
        return self._grouped

    def name_of(self, place: int) -> str:
        """Name one of the samples for a message."""
        block, row = int(self.block[place]), int(self.rows[place])
        key = next(iter(keys_of(self.shards, block)[row : row + 1]), "?")
        return f"{self.shards.where(block)}, row {row}, key {key!r}"

    def unreadable(self, place: int, why: str) -> DamageError:
        """Return the error for one of the samples."""
        return DamageError(f"{self.name_of(place)}: {why}", [place])

    def unreadable_blocks(self, faults: Faults) -> DamageError:
        """Return the error for blocks that cannot be read."""
        places = np.flatnonzero(np.isin(self.block, list(faults)))
        block = int(self.block[places[0]])
        named = DamageError(name_samples(self.shards, block, faults[block]), places)
        named.__cause__ = faults[block].__cause__
        return named

    def check_bounds(self, column: Column, begins: Array, ends: Array, sizes: Array) -> None:
        """Raise DamageError for values that lead out of their block."""
        wrong = np.flatnonzero((begins < 0) | (ends < begins) | (ends > sizes))
        if len(wrong):
            where = self.shards.where(int(self.block[wrong[0]]))
            raise DamageError(
                f"{where}, row {self.rows[wrong[0]]}: damaged, {column.name} leads out of its "
                f"block; {VERIFY_ADVICE}",
                wrong,
            )


_MAPPED = 256
"""Blocks whose places in mapped files are remembered for single samples."""

_NO_BYTES = pa.py_buffer(b"")

Files = tuple[list[pa.Buffer], Numbers]
"""The bytes of the files that some samples are in, and for every sample in which."""

_PLACE = np.dtype([("data", "i8"), ("size", "i8"), ("offsets", "i8")])


class InPlace:
    """Reads uncompressed columns in place, in the mapped (or loaded) files. Their places are looked
    up block by block.

    `passing` says which blocks are in no file, and `elsewhere` which cannot be read in place, by
    column: with a null or a compressed buffer. A place is the position in the file of the column's data, its size in bytes, and the position of
    its offsets.
    """

    def __init__(
        self, shards: Shards, columns: list[Column], opener: Opener, checksums: bool
    ) -> None:
        self._shards, self._columns = shards, columns
        self._opener, self._checksums = opener, checksums
        blocks = len(shards.starts) - 1
        self._mapped: dict[int, tuple[OpenShard, Block]] = {}
        self._places: dict[str, Array] = {
            column.name: np.zeros(blocks, _PLACE) for column in columns
        }
        self._known = np.zeros(blocks, bool)
        self.passing = np.zeros(blocks, bool)
        self.elsewhere = {column.name: np.zeros(blocks, bool) for column in columns}

    def prepare(self, wanted: Samples, stages: Stages) -> tuple[Files, Faults]:
        """Open the files of these samples, make sure that they are unchanged, and find the columns
        in their blocks."""
        watch()
        numbers, which = _distinct(self._shards.shard_of(wanted.block))
        known = self._known[wanted.block]
        if known.all():
            return self._files(numbers, which, ())
        unknown = _distinct(wanted.block[~known])[0].tolist()
        passing, missing = self._shards.settle(unknown, stages)
        # One thread at a time: two that make so many short calls take the interpreter's lock from
        # each other at each of them.
        with self._shards.opening:
            for block in passing:  # they are in no file, and must be read into memory
                for elsewhere in self.elsewhere.values():
                    elsewhere[block] = True
                self.passing[block] = self._known[block] = True
            files, faults = self._files(
                numbers, which, [block for block in unknown if block not in missing]
            )
            return files, {**faults, **missing}

    def _files(
        self, numbers: Numbers, which: Numbers, unknown: Iterable[int]
    ) -> tuple[Files, Faults]:
        faults: Faults = {}
        opened = [
            self._open(shard, time.monotonic() - CHECK_SECONDS, faults)
            for shard in numbers.tolist()
        ]
        for block in unknown:
            shard = opened[np.searchsorted(numbers, self._shards.place_of(block)[0])]
            if shard is not None and not self._known[block]:
                try:
                    self._look(block, shard)
                except DamageError as error:
                    faults[block] = error
        contents = [shard.file.contents if shard is not None else _NO_BYTES for shard in opened]
        return (contents, which), faults

    def mapped(self, block: int) -> Block | None:
        """Return a block that was looked at before where it lies in its file, which is unchanged;
        None for another one. Raises DamageError."""
        if self.passing[block] or not self._known[block]:
            return None
        watch()
        faults: Faults = {}
        shard, number = self._shards.place_of(block)
        opened = self._open(shard, time.monotonic() - CHECK_SECONDS, faults)
        if opened is None:
            raise DamageError(name_samples(self._shards, block, faults[block]), [0])
        known = self._mapped.get(block)
        if known is None or known[0] is not opened:
            batch = checked(self._shards, block, opened.file.fetch(number))
            while len(self._mapped) >= _MAPPED:
                self._mapped.pop(next(iter(self._mapped)), None)
            known = self._mapped[block] = opened, Block(batch)
        return known[1]

    def changed(self, wanted: Samples) -> Faults:
        """Look at the files of these samples again, now. Return what is wrong with the blocks of
        those that have changed."""
        faults: Faults = {}
        for shard in np.unique(self._shards.shard_of(wanted.block)).tolist():
            self._open(shard, float("inf"), faults)
        return faults

    def _open(self, shard: int, since: float, faults: Faults) -> OpenShard | None:
        """Return a shard that is unchanged; None if what is wrong with its blocks was noted."""
        try:
            opened = self._shards.open(shard, self._opener)
            if self._opener is not load_file:
                self._shards.check_unchanged(shard, opened, since)
                if mended() and was_mended(opened.file.contents.address):
                    raise DatasetError(
                        f"{opened.file.shown}: parts cannot be read (cut short, or the disk "
                        f"failed); {VERIFY_ADVICE}"
                    )
        except DamageError as error:
            faults.update(dict.fromkeys(self._shards.blocks_of(shard), error))
            return None
        return opened

    def _look(self, block: int, opened: OpenShard) -> None:
        """Find the columns in a block. Raises DamageError."""
        number = self._shards.place_of(block)[1]
        batch = checked(self._shards, block, opened.file.fetch(number), self._checksums)
        base, end = opened.file.contents.address, opened.file.contents.size
        for column in self._columns:
            try:
                flat = flatten(batch.column(column.name), column)
            except ValueError as error:
                raise opened.file.unreadable(number, error) from error
            self.elsewhere[column.name][block] = True
            if flat is not None:
                buffer, begins = flat
                data = buffer.address - base if buffer.size else 0
                offsets = begins.ctypes.data - base if begins is not None else 0
                if 0 <= data <= end - buffer.size and 0 <= offsets < end:
                    self._places[column.name][block] = (data, buffer.size, offsets)
                    self.elsewhere[column.name][block] = False
        self._known[block] = True

    def locate(self, column: Column, wanted: Samples, files: Files) -> Located:
        """Return where the values of a column lie. Raises DamageError for offsets that lead out of
        the block."""
        places = self._places[column.name]
        data = places["data"][wanted.block]
        if column.kind == "fixed":
            widths = np.full(len(wanted), column.width)
            return Located(*files, data + wanted.rows * column.width, widths)
        dtype = column.offset_dtype
        at, pair = (
            places["offsets"][wanted.block] + wanted.rows * dtype.itemsize,
            2 * dtype.itemsize,
        )
        pairs = gather_fixed(Located(*files, at, np.full(len(wanted), pair)), pair)
        bounds = np.ascontiguousarray(pairs).view(dtype).astype(np.int64) * column.width
        begins, ends = bounds[:, 0], bounds[:, 1]
        wanted.check_bounds(column, begins, ends, places["size"][wanted.block])
        return Located(*files, data + begins, ends - begins)


def _distinct(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Return the distinct numbers, sorted, and which of them each is. Small numbers are counted and
    not sorted.

    As np.unique, which at its first call imports numpy.ma: half of the time to the first batch.
    """
    most = int(numbers.max(initial=-1))
    if most <= len(numbers):
        there = np.bincount(numbers, minlength=most + 1) > 0
        return np.flatnonzero(there), (np.cumsum(there) - 1)[numbers]
    order = np.argsort(numbers)
    ordered = numbers[order]
    new = begin_runs(ordered)
    which = np.empty(len(numbers), np.int64)
    which[order] = np.cumsum(new) - 1
    return ordered[new], which


class InMemory:
    """Reads columns of the blocks of `wanted.groups`, which are in memory. `_order` (n,) are the
    samples sorted by block. Those of each block begin at `_edges`, which has the end too."""

    def __init__(self, wanted: Samples, blocks: list[Block]) -> None:
        self._wanted, self._blocks = wanted, blocks
        self._numbers, self._inverse = wanted.groups
        # A stable sort of 16-bit numbers is a radix sort, a tenth of the time.
        small = self._inverse.astype(np.uint16) if len(blocks) < 2**16 else self._inverse
        self._order = np.argsort(small, kind="stable")
        self._edges = edges_of(np.bincount(self._inverse, minlength=len(blocks))).tolist()

    def locate(self, column: Column) -> Located | Array | None:
        """Return where the values of a flat column lie, or its numbers; None if a block has a null.

        Raises DamageError for offsets that lead out of the block.
        """
        flats: list[Flat] = []
        for place, block in enumerate(self._blocks):
            try:
                flat = block.flat(column)
            except ValueError as error:
                raise self._damage(place, error) from error
            if flat is None:
                return None
            flats.append(flat)
        wanted, buffers = self._wanted, [data for data, _ in flats]
        if column.kind == "fixed":
            if not column.shape:
                assert column.dtype is not None
                numbers = [
                    np.frombuffer(data, column.dtype, block.batch.num_rows)
                    for data, block in zip(buffers, self._blocks, strict=True)
                ]
                return self._from_each(numbers, column.dtype)
            lengths = np.full(len(wanted), column.width)
            return Located(buffers, self._inverse, wanted.rows * column.width, lengths)
        offsets = [begins for _, begins in flats if begins is not None]
        begins, ends = (
            self._from_each(each, column.offset_dtype).astype(np.int64) * column.width
            for each in (offsets, [each[1:] for each in offsets])
        )
        sizes = np.array([buffer.size for buffer in buffers], np.int64)[self._inverse]
        wanted.check_bounds(column, begins, ends, sizes)
        return Located(buffers, self._inverse, begins, ends - begins)

    def take(self, column: Column) -> pa.Array:
        """Copy the values of any column into one Arrow array; of objects, the wanted members.
        Raises DamageError."""
        if not self._blocks:
            return column.wanted(pa.array([], column.type))
        order, parts = self._order, []
        for place, (begin, end) in enumerate(pairwise(self._edges)):
            try:
                values = self._blocks[place].checked(column)
            except ValueError as error:
                raise self._damage(place, error) from error
            parts.append(values.take(column_of(self._wanted.rows[order[begin:end]])))
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_arrays(parts).take(column_of(back))

    def _damage(self, place: int, error: ValueError) -> DamageError:
        """Return the error for a block that Arrow must not read."""
        wanted, block = self._wanted, int(self._numbers[place])
        message = f"{wanted.shards.where(block)} cannot be read ({first_line(error)})"
        return DamageError(f"{message}; {VERIFY_ADVICE}", np.flatnonzero(wanted.block == block))

    def _from_each(self, arrays: list[Array], dtype: DType) -> Array:
        """Collect one number per sample, (n,), each from its row of the array (rows,) of its
        block."""
        order = self._order
        rows, found = self._wanted.rows[order], np.empty(len(order), dtype)
        for array, (begin, end) in zip(arrays, pairwise(self._edges), strict=True):
            # without it, numpy copies `out` first
            array.take(rows[begin:end], out=found[begin:end], mode="clip")
        result = np.empty_like(found)
        result[order] = found
        return result


@dataclass(frozen=True)
class GatherOptions:
    """How samples are read.

    `mmap` False reads blocks into memory instead of mapping files (for network file systems),
    `preload` keeps everything that was read. If blocks cannot be read in place, at most `blocks` of
    them and `block_bytes` bytes are kept in memory. `cache` limits the bytes of decoded images that
    are kept. `checksums` compares each block with its checksum when it is first read. `on_error`
    "skip" leaves out samples that cannot be read, and counts them; "raise" does not. `profile`
    measures the time of each stage.
    """

    mmap: bool = True
    preload: bool = False
    blocks: int = 64
    block_bytes: float = 1e9
    cache: int = 0
    checksums: bool = False
    on_error: str = "raise"
    profile: bool = False

    @property
    def skips(self) -> bool:
        """Whether samples that cannot be read are left out."""
        return self.on_error == "skip"

    def in_place(self, shards: Shards) -> bool:
        """Return whether samples can be read one by one: uncompressed, and mapped or loaded."""
        return (
            (self.mmap or self.preload)
            and shards.has_places
            and shards.manifest.recipe.get("compression") == "none"
        )


class Storage:
    """Where all samples of some columns lie. Threads may share it."""

    def __init__(
        self, shards: Shards, columns: Sequence[Column], options: GatherOptions, stages: Stages
    ) -> None:
        self._shards, self.stages = shards, stages
        # Those of a store are compared when they come.
        checksums = options.checksums and shards.is_local
        flat = [column for column in columns if column.is_flat]
        opener = shards.opener(options.preload)
        self.in_place = (
            InPlace(shards, flat, opener, checksums) if options.in_place(shards) else None
        )
        limits = (options.blocks, options.block_bytes)
        if options.preload:
            limits = (len(shards.starts), float("inf"))
        # Made now: threads that need one at the same time would each make their own.
        self.blocks, self.nested = (
            BlockCache(shards, some, *limits, checksums, stages)
            for some in (list(columns), [column for column in columns if not column.is_flat])
        )
        """The blocks that are read into memory: whole, and without the columns that are always read
        in place."""

    def row_of(self, wanted: Samples) -> OneRow | None:
        """Return where one sample lies in a mapped file; None where blocks must be read. Raises
        DamageError."""
        in_place, number = self.in_place, int(wanted.block[0])
        block = None if in_place is None else in_place.mapped(number)
        return None if block is None else OneRow(wanted, block)

    def counts(self) -> dict[str, int]:
        """Return the hits and misses of the cache of blocks, and what came over a network."""
        hits, misses = self.blocks.hits + self.nested.hits, self.blocks.misses + self.nested.misses
        return {"block_hits": hits, "block_misses": misses, **self._shards.counts()}


class BlockSources:
    """The blocks and files of the values of one batch."""

    def __init__(self, storage: Storage, wanted: Samples, counted: bool = True) -> None:
        """Find the files; samples that are `counted` are not requested again in this epoch."""
        self._storage, self.wanted, self._counted = storage, wanted, counted
        self._memory: InMemory | None = None
        self._nested: InMemory | None = None
        if storage.in_place is not None:
            self._files, faults = storage.in_place.prepare(wanted, storage.stages)
            if faults:
                raise wanted.unreadable_blocks(faults)

    @property
    def memory(self) -> InMemory:
        """The blocks, in memory. (A cached_property would hold a lock that all threads share before
        Python 3.12.)"""
        if self._memory is None:
            self._memory = self._fetch(self._storage.blocks)
        return self._memory

    def take(self, column: Column) -> pa.Array:
        """Copy the values of a column into one Arrow array. Raises DamageError."""
        in_place = self._storage.in_place
        # Where other columns are read in place, this one comes without them.
        if in_place is None or column.is_flat or in_place.passing[self.wanted.block].any():
            return self.memory.take(column)
        if self._nested is None:
            self._nested = self._fetch(self._storage.nested)
        return self._nested.take(column)

    def _fetch(self, cache: BlockCache) -> InMemory:
        numbers, inverse = self.wanted.groups
        counts = np.bincount(inverse, minlength=len(numbers)) * self._counted
        found, faults = cache.get(numbers.tolist(), counts.tolist())
        if faults:
            raise self.wanted.unreadable_blocks(faults)
        return InMemory(self.wanted, [found[block] for block in numbers.tolist()])

    def locate(self, column: Column) -> Located | Array | None:
        """Return the places of a column's values, or its numbers; None if they must be read one by
        one."""
        if not column.is_flat:
            return None
        in_place = self._storage.in_place
        if in_place and not in_place.elsewhere[column.name][self.wanted.block].any():
            return in_place.locate(column, self.wanted, self._files)
        return self.memory.locate(column)


class OneRow(BlockSources):
    """The row of a mapped block that one sample is. What is looked up for many samples at once would
    take ten times as long as its values."""

    def __init__(self, wanted: Samples, block: Block) -> None:
        self.wanted, self._block, self._row = wanted, block, int(wanted.rows[0])

    def locate(self, column: Column) -> None:
        """Say that values must be taken."""

    @property
    def memory(self) -> Any:
        """The same, for who needs no more than `take`."""
        return self

    def take(self, column: Column) -> pa.Array:
        """Return the value of a column, (1,), where it lies. Raises DamageError."""
        try:
            return self._block.row(column, self._row)
        except ValueError as error:
            why = f"{column.name} cannot be read ({first_line(error)}); {VERIFY_ADVICE}"
            raise self.wanted.unreadable(0, why) from error
