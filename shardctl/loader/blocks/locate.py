"""Where the values of some samples lie: in mapped uncompressed files, or in blocks that are fetched into memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import DamageError, DatasetError, first_line
from shardctl.format.arrays import column_of
from shardctl.format.shard import VERIFY_ADVICE, Opener, check_intact, load_file
from shardctl.loader.blocks.block_cache import (
    BlockCache,
    Faults,
    key_of_row,
    name_samples,
    other_rows,
)
from shardctl.loader.blocks.column import Block, Column, Flat, flatten
from shardctl.loader.blocks.gather import Indices, Located, gather_fixed
from shardctl.loader.blocks.shards import OpenShard, Shards
from shardctl.loader.blocks.stages import Stages
from shardctl.system.mmap import mended, was_mended, watch

CHECK_SECONDS = 0.01
"""How old the last look at a file may be: one takes a system call and the interpreter's lock,
twice; 7 % at full speed."""


class Wanted:
    """Samples to be read: sample i is row `rows[i]` of block `block[i]`. `starts` says at which
    sample each block begins."""

    def __init__(self, starts: Indices, samples: Indices) -> None:
        self.block: Indices = np.searchsorted(starts, samples, side="right") - 1
        self.rows: Indices = samples - starts[self.block]
        self._grouped: tuple[Indices, Indices] | None = None
        self._sorted: tuple[Indices, list[int]] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, places: Indices) -> Wanted:
        """Return the samples at these places."""
        some = copy(self)
        some.block, some.rows = self.block[places], self.rows[places]
        some._grouped = some._sorted = None
        return some

    @property
    def blocks(self) -> Indices:
        """The distinct blocks, sorted."""
        return self._groups()[0]

    @property
    def inverse(self) -> Indices:
        """Which of `blocks` each sample is in, (n,)."""
        return self._groups()[1]

    @property
    def by_block(self) -> tuple[Indices, list[int]]:
        """The samples sorted by block (n,), and where each block's begin, and the last one's
        end."""
        if self._sorted is None:
            # A stable sort of 16-bit numbers is a radix sort, a tenth of the time.
            groups = self.inverse.astype(np.uint16) if len(self.blocks) < 2**16 else self.inverse
            edges = np.cumsum(np.bincount(self.inverse, minlength=len(self.blocks)))
            self._sorted = np.argsort(groups, kind="stable"), [0, *edges.tolist()]
        return self._sorted

    def _groups(self) -> tuple[Indices, Indices]:
        if self._grouped is None:
            self._grouped = _distinct(self.block)
        return self._grouped


_PLACE = np.dtype([("data", "i8"), ("size", "i8"), ("offsets", "i8")])


class InPlace:
    """Reads uncompressed columns in place, in the mapped (or loaded) files. Their places are looked
    up block by block.

    A place is the position in the file of the column's data, its size in bytes, and the position of
    its offsets.
    """

    def __init__(
        self, shards: Shards, columns: list[Column], opener: Opener, checksums: bool
    ) -> None:
        self._shards, self._columns, self._opener, self._checksums = (
            shards,
            columns,
            opener,
            checksums,
        )
        blocks = len(shards.starts) - 1
        self._places: dict[str, npt.NDArray[Any]] = {
            column.name: np.zeros(blocks, _PLACE) for column in columns
        }
        self._known = np.zeros(blocks, bool)
        self._passing = np.zeros(blocks, bool)
        self._elsewhere = {column.name: np.zeros(blocks, bool) for column in columns}

    def prepare(self, wanted: Wanted, stages: Stages) -> tuple[Files, Faults]:
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
            for block in passing:
                self._pass_by(block)
            files, faults = self._files(
                numbers, which, [block for block in unknown if block not in missing]
            )
            return files, {**faults, **missing}

    def _pass_by(self, block: int) -> None:
        """Note that a block is in no file, and must be read into memory."""
        for elsewhere in self._elsewhere.values():
            elsewhere[block] = True
        self._passing[block] = self._known[block] = True

    def pass_by(self, wanted: Wanted) -> bool:
        """Return whether some of these samples are in no file."""
        return bool(self._passing[wanted.block].any())

    def _files(
        self, numbers: Indices, which: Indices, unknown: Iterable[int]
    ) -> tuple[Files, Faults]:
        faults: Faults = {}
        opened = [self._open(shard, faults) for shard in numbers.tolist()]
        for block in unknown:
            shard = opened[np.searchsorted(numbers, self._shards.place_of(block)[0])]
            if shard is not None and not self._known[block]:
                self._find(block, shard, faults)
        return Files(opened, which), faults

    def changed(self, wanted: Wanted) -> Faults:
        """Look at the files of these samples again, now. Return what is wrong with the blocks of
        those that have changed."""
        faults: Faults = {}
        for shard in np.unique(self._shards.shard_of(wanted.block)).tolist():
            try:
                opened = self._shards.open(shard, self._opener)
                self._shards.check_unchanged(shard, opened, float("inf"))
                self._check_readable(opened)
            except DamageError as error:
                faults.update(dict.fromkeys(self._shards.blocks_of(shard), error))
        return faults

    def _open(self, shard: int, faults: Faults) -> OpenShard | None:
        try:
            opened = self._shards.open(shard, self._opener)
            if self._opener is not load_file:
                self._shards.check_unchanged(shard, opened, time.monotonic() - CHECK_SECONDS)
                self._check_readable(opened)
        except DamageError as error:
            faults.update(dict.fromkeys(self._shards.blocks_of(shard), error))
            return None
        return opened

    def _check_readable(self, opened: OpenShard) -> None:
        """Raise DatasetError for a mapped file that has zeros where pages could not be read."""
        if mended() and was_mended(opened.file.contents.address):
            raise DatasetError(
                f"{opened.file.shown}: parts of it could not be read (it was cut short, or the "
                f"disk failed); {VERIFY_ADVICE}"
            )

    def _find(self, block: int, opened: OpenShard, faults: Faults) -> None:
        """Find the columns in a block."""
        try:
            self._look(block, opened)
        except DamageError as error:
            faults[block] = error

    def lie_elsewhere(self, column: Column, wanted: Wanted) -> bool:
        """Return whether some of these values cannot be read in place: a null in their block, or a
        compressed buffer."""
        return bool(self._elsewhere[column.name][wanted.block].any())

    def _look(self, block: int, opened: OpenShard) -> None:
        number = self._shards.place_of(block)[1]
        batch, metadata = opened.file.fetch(number)
        if batch.num_rows != self._shards.rows_of(block):
            raise other_rows(self._shards, block)
        if self._checksums:
            check_intact(batch, metadata, self._shards.where(block))
        base, end = opened.file.contents.address, opened.file.contents.size
        for column in self._columns:
            try:
                flat = flatten(batch.column(column.name), column)
            except ValueError as error:
                raise opened.file.unreadable(number, error) from error
            if flat is None:
                self._elsewhere[column.name][block] = True
                continue
            data = flat.data.address - base if flat.data.size else 0
            offsets = flat.offsets.ctypes.data - base if flat.offsets is not None else 0
            if not (0 <= data <= end - flat.data.size and 0 <= offsets < end):
                self._elsewhere[column.name][block] = True
                continue
            self._places[column.name][block] = (data, flat.data.size, offsets)
        self._known[block] = True

    def locate(self, column: Column, wanted: Wanted, files: Files) -> Located:
        """Return where the values of a column lie. Raises DamageError for offsets that lead out of
        the block."""
        places = self._places[column.name]
        data = places["data"][wanted.block]
        if column.kind == "fixed":
            return files.located(data + wanted.rows * column.width, column.width)
        dtype = column.offset_dtype
        at = places["offsets"][wanted.block] + wanted.rows * dtype.itemsize
        pairs = gather_fixed(files.located(at, 2 * dtype.itemsize), 2 * dtype.itemsize)
        bounds = np.ascontiguousarray(pairs).view(dtype).astype(np.int64) * column.width
        _check_bounds(
            self._shards, column, wanted, bounds[:, 0], bounds[:, 1], places["size"][wanted.block]
        )
        return files.located(data + bounds[:, 0], bounds[:, 1] - bounds[:, 0])


def _distinct(numbers: Indices) -> tuple[Indices, Indices]:
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
    new = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    which = np.empty(len(numbers), np.int64)
    which[order] = np.cumsum(new) - 1
    return ordered[new], which


_NO_BYTES = pa.py_buffer(b"")


class Files:
    """The bytes of the files that some samples are in; `which` says for every sample in which."""

    def __init__(self, opened: list[OpenShard | None], which: Indices) -> None:
        self._buffers = [
            shard.file.contents if shard is not None else _NO_BYTES for shard in opened
        ]
        self._which = which

    def located(self, position: Indices, length: Indices | int) -> Located:
        """Return the bytes at these positions of the samples' files."""
        lengths = np.full(len(position), length) if isinstance(length, int) else length
        return Located(self._buffers, self._which, position, lengths)


class InMemory:
    """Reads columns of blocks that were read into memory. `blocks` are in the order of
    `wanted.blocks`."""

    def __init__(self, shards: Shards, blocks: list[Block]) -> None:
        self._shards, self._blocks = shards, blocks

    def flats(self, column: Column, wanted: Wanted) -> list[Flat] | None:
        """Return the buffers of a column in every block; None if one holds a null."""
        flats = []
        for block, loaded in zip(wanted.blocks.tolist(), self._blocks, strict=True):
            try:
                flat = loaded.flat(column)
            except ValueError as error:
                raise self._damage(block, wanted, error) from error
            if flat is None:
                return None
            flats.append(flat)
        return flats

    def numbers(self, column: Column, flats: list[Flat], wanted: Wanted) -> npt.NDArray[Any]:
        """Copy the numbers of a column: (n,)."""
        assert column.dtype is not None
        return _from_each(
            wanted,
            [np.frombuffer(flat.data, column.dtype, flat.rows) for flat in flats],
            column.dtype,
        )

    def locate(self, column: Column, flats: list[Flat], wanted: Wanted) -> Located:
        """Return where the values of a column lie. Raises DamageError for offsets that lead out of
        the block."""
        buffers = [flat.data for flat in flats]
        if column.kind == "fixed":
            return Located(
                buffers,
                wanted.inverse,
                wanted.rows * column.width,
                np.full(len(wanted), column.width),
            )
        offsets = [flat.offsets for flat in flats if flat.offsets is not None]
        begins = _from_each(wanted, offsets, column.offset_dtype).astype(np.int64) * column.width
        ends = (
            _from_each(wanted, [each[1:] for each in offsets], column.offset_dtype).astype(np.int64)
            * column.width
        )
        sizes = np.array([buffer.size for buffer in buffers], np.int64)[wanted.inverse]
        _check_bounds(self._shards, column, wanted, begins, ends, sizes)
        return Located(buffers, wanted.inverse, begins, ends - begins)

    def take(self, column: Column, wanted: Wanted) -> pa.Array:
        """Copy the values of any column into one Arrow array; of objects, the wanted members.
        Raises DamageError."""
        if not self._blocks:
            return column.values(
                pa.RecordBatch.from_arrays([pa.array([], column.type)], [column.name])
            )
        order, edges = wanted.by_block
        parts = [
            self._checked(column, place, wanted).take(column_of(wanted.rows[order[begin:end]]))
            for place, (begin, end) in enumerate(pairwise(edges))
        ]
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_arrays(parts).take(column_of(back))

    def _checked(self, column: Column, place: int, wanted: Wanted) -> pa.Array:
        """Return the values of a column of one block. Raises DamageError where Arrow must not read
        them."""
        try:
            return self._blocks[place].checked(column)
        except ValueError as error:
            raise self._damage(int(wanted.blocks[place]), wanted, error) from error

    def _damage(self, block: int, wanted: Wanted, error: ValueError) -> DamageError:
        message = (
            f"{self._shards.where(block)} cannot be read ({first_line(error)}); {VERIFY_ADVICE}"
        )
        return DamageError(message, np.flatnonzero(wanted.block == block))


def _from_each(
    wanted: Wanted, arrays: list[npt.NDArray[Any]], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Collect one number per sample, (n,), each from its row of the array (rows,) of its block."""
    order, edges = wanted.by_block
    rows, found = wanted.rows[order], np.empty(len(wanted), dtype)
    for array, begin, end in zip(arrays, edges[:-1], edges[1:], strict=True):
        # without it, numpy copies `out` first
        array.take(rows[begin:end], out=found[begin:end], mode="clip")
    result = np.empty_like(found)
    result[order] = found
    return result


def _check_bounds(
    shards: Shards, column: Column, wanted: Wanted, begins: Indices, ends: Indices, sizes: Indices
) -> None:
    wrong = np.flatnonzero((begins < 0) | (ends < begins) | (ends > sizes))
    if len(wrong):
        where, row = shards.where(int(wanted.block[wrong[0]])), int(wanted.rows[wrong[0]])
        message = (
            f"{where}, row {row}: damaged, {column.name} leads out of its block; {VERIFY_ADVICE}"
        )
        raise DamageError(message, wrong)


def name_of(shards: Shards, wanted: Wanted, place: int) -> str:
    """Name one of the requested samples for a message."""
    block, row = int(wanted.block[place]), int(wanted.rows[place])
    return f"{shards.where(block)}, row {row}, key {key_of_row(shards, block, row)!r}"


def unreadable_sample(shards: Shards, wanted: Wanted, place: int, why: str) -> DamageError:
    """Return the error for one of the requested samples."""
    return DamageError(f"{name_of(shards, wanted, place)}: {why}", [place])


def unreadable_blocks(shards: Shards, wanted: Wanted, faults: Faults) -> DamageError:
    """Return the error for blocks that cannot be read."""
    places = np.flatnonzero(np.isin(wanted.block, list(faults)))
    block = int(wanted.block[places[0]])
    named = DamageError(name_samples(shards, block, faults[block]), places)
    named.__cause__ = faults[block].__cause__
    return named


@dataclass(frozen=True)
class GatherOptions:
    """How samples are read.

    `mmap` False reads blocks into memory instead of mapping files (for network file systems),
    `preload` keeps everything that was read. If blocks cannot be read in place, at most `blocks` of
    them and `block_bytes` bytes are kept in memory. `cache_bytes` limits the memory for decoded
    images. `checksums` compares each block with its checksum when it is first read. `skip` leaves
    out samples that cannot be read, and counts them. `profile` measures the time of each stage.
    """

    mmap: bool = True
    preload: bool = False
    blocks: int = 64
    block_bytes: float = 1e9
    cache_bytes: int = 0
    checksums: bool = False
    skip: bool = False
    profile: bool = False


def in_place(shards: Shards, options: GatherOptions) -> bool:
    """Return whether samples can be read one by one: uncompressed, and mapped or loaded."""
    return (
        (options.mmap or options.preload)
        and shards.has_places
        and shards.manifest.recipe.get("compression") == "none"
    )


class BlockPlaces:
    """The places of all samples of some columns. Threads may share it."""

    def __init__(
        self, shards: Shards, columns: Sequence[Column], options: GatherOptions, stages: Stages
    ) -> None:
        self.shards, self.stages = shards, stages
        # Those of a store are compared when they come.
        self._options = replace(options, checksums=options.checksums and shards.is_local)
        flat = [column for column in columns if column.is_flat]
        opener = shards.opener(options.preload)
        self.in_place = (
            InPlace(shards, flat, opener, self._options.checksums)
            if in_place(shards, options)
            else None
        )
        # Made now: threads that need one at the same time would each make their own.
        self.blocks = self._cache(columns)
        """The blocks that are read into memory."""
        self.nested = self._cache([column for column in columns if not column.is_flat])
        """The blocks of the columns that are never read in place: without the images and numbers
        that are."""

    def _cache(self, columns: Sequence[Column]) -> BlockCache:
        limit, limit_bytes = self._options.blocks, self._options.block_bytes
        if self._options.preload:
            limit, limit_bytes = len(self.shards.starts), float("inf")
        return BlockCache(
            self.shards, list(columns), limit, limit_bytes, self._options.checksums, self.stages
        )

    def counts(self) -> dict[str, int]:
        """Return the hits and misses of the cache of blocks, and what came over a network."""
        hits, misses = self.blocks.hits + self.nested.hits, self.blocks.misses + self.nested.misses
        return {"block_hits": hits, "block_misses": misses, **self.shards.counts()}


class BlockSources:
    """The blocks and files of the values of one batch."""

    def __init__(self, places: BlockPlaces, wanted: Wanted, counted: bool = True) -> None:
        """Find the files; samples that are `counted` are not requested again in this epoch."""
        self._places, self.wanted, self._counted = places, wanted, counted
        self._memory: InMemory | None = None
        self._nested: InMemory | None = None
        if places.in_place is not None:
            self._files, faults = places.in_place.prepare(wanted, places.stages)
            if faults:
                raise unreadable_blocks(places.shards, wanted, faults)

    @property
    def memory(self) -> InMemory:
        """The blocks, in memory. (A cached_property would hold a lock that all threads share before
        Python 3.12.)"""
        if self._memory is None:
            self._memory = self._fetch(self._places.blocks)
        return self._memory

    def memory_of(self, column: Column) -> InMemory:
        """Return the blocks of a column, in memory: without those columns that are read in place,
        where this one is not."""
        place = self._places.in_place
        # which is in memory whole
        if place is None or column.is_flat or place.pass_by(self.wanted):
            return self.memory
        if self._nested is None:
            self._nested = self._fetch(self._places.nested)
        return self._nested

    def _fetch(self, cache: BlockCache) -> InMemory:
        counts = np.bincount(self.wanted.inverse, minlength=len(self.wanted.blocks)) * self._counted
        found, faults = cache.get(self.wanted.blocks.tolist(), counts.tolist())
        if faults:
            raise unreadable_blocks(self._places.shards, self.wanted, faults)
        return InMemory(
            self._places.shards, [found[block] for block in self.wanted.blocks.tolist()]
        )

    def locate(self, column: Column) -> Located | npt.NDArray[Any] | None:
        """Return the places of a column's values, or its numbers; None if they must be read one by
        one."""
        if not column.is_flat:
            return None
        place = self._places.in_place
        if place is not None and not place.lie_elsewhere(column, self.wanted):
            return place.locate(column, self.wanted, self._files)
        flats = self.memory.flats(column, self.wanted)
        if flats is None:
            return None
        if column.kind == "fixed" and not column.shape:
            return self.memory.numbers(column, flats, self.wanted)
        return self.memory.locate(column, flats, self.wanted)
