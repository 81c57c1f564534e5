"""One batch: from sample numbers to columns of values, each in the cheapest way that its storage allows."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.codecs import image
from shardctl.codecs.jpeg import JpegDecoder
from shardctl.errors import DatasetError, Rejection, ShardctlError, UsageError
from shardctl.mapping import mended
from shardctl.reader.blocks import BlockCache, Faults, name_samples
from shardctl.reader.column import Column
from shardctl.reader.finish import IMAGE, LABEL, Finish, Finisher, Misfit
from shardctl.reader.gather import Bytes, Located, adjoining, gather, gather_fixed
from shardctl.reader.lists import Lists, is_missing, numbers_of, with_none
from shardctl.reader.locate import DamagedValues, InMemory, InPlace, Wanted
from shardctl.reader.memory import Batch, BatchMemory
from shardctl.reader.samples import SampleCache
from shardctl.reader.shards import VERIFY_ADVICE, Indices, Shards
from shardctl.reader.stages import DECODE, GATHER, NoStages, StageClock, Stages
from shardctl.shard import Opener, load_file, map_file, map_resident_file


@dataclass(frozen=True)
class GatherOptions:
    """How samples are read.

    `mmap` False reads blocks into memory instead of mapping files (for network file systems), `preload` keeps everything
    that was read. If blocks cannot be read in place, at most `blocks` of them and `block_bytes` bytes are kept in memory.
    `cache_bytes` limits the memory for decoded images. `checksums` compares each block with its checksum when it is first
    read. `skip` leaves out samples that cannot be read, and counts them. `profile` measures the time of each stage.
    """

    mmap: bool = True
    preload: bool = False
    blocks: int = 64
    block_bytes: float = 1e9
    cache_bytes: int = 0
    checksums: bool = False
    skip: bool = False
    profile: bool = False


def columns_of(shards: Shards, names: Sequence[str] | None) -> list[Column]:
    """Return the chosen columns, all of them for None. Raises UsageError for an unknown one."""
    schema = shards.layout.columns
    missing = [name for name in names or () if name not in schema.names]
    if missing:
        raise UsageError(f"no column {', '.join(missing)}; the dataset has {', '.join(schema.names)}")
    return [Column.of(schema.field(name)) for name in (schema.names if names is None else names)]


@dataclass(frozen=True)
class Spec:
    """The kind of values of one field of a batch.

    `shape` is that of one sample, and `dtype` that of its numbers. "fixed" fields are arrays (batch, *shape), "padded" ones
    arrays (batch, longest, …) filled up with `fill`, "ragged" ones lists of arrays with axes of length -1; "text" and "bytes"
    ones are lists, and "other" ones anything.
    """

    kind: str
    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] = np.dtype(np.int64)  # noqa: RUF009 - a dtype never changes
    fill: float = 0


_CHUNK = 2 << 20
"""Bytes of small samples that are collected and then finished in one go: with less, threads wait for each other's Python."""

_MANY = 64
"""Samples in a chunk, at the least, for which collecting them pays; larger ones are finished one by one, where they lie."""


_ANY_SIZE = 2**62
"""Pixels of the largest image: what was converted is read."""


class _Unreadable(Exception):
    """Some samples cannot be read: their places among the requested ones, and the reasons."""

    def __init__(self, places: Indices, error: DatasetError) -> None:
        super().__init__(str(error))
        self.places, self.error = places, error


class Gatherer:
    """Reads batches of some columns. Threads may share it."""

    def __init__(self, shards: Shards, columns: list[Column], finish: Finish, options: GatherOptions) -> None:
        finish.check(columns, shards.layout)
        self.shards, self.columns, self._finish, self._options = shards, columns, finish, options
        self._keep_truncated = shards.manifest.recipe.get("truncated") == "keep"
        flat = [column for column in columns if column.kind in ("fixed", "variable")]
        opener: Opener = load_file if options.preload else map_resident_file if shards.fit_in_memory else map_file
        self._in_place = InPlace(shards, flat, opener, options.checksums) if in_place(shards, options) else None
        self._images = SampleCache(options.cache_bytes)
        self._local = threading.local()
        self.stages: Stages = StageClock() if options.profile else NoStages()
        self.skipped = 0

    @cached_property
    def _blocks(self) -> BlockCache:
        limit, limit_bytes = self._options.blocks, self._options.block_bytes
        if self._options.preload:
            limit, limit_bytes = len(self.shards.starts), float("inf")
        return BlockCache(self.shards, self.columns, limit, limit_bytes, self._options.checksums, self.stages)

    def counts(self) -> dict[str, int]:
        """Return the cache hits and misses of blocks and decoded images, and the number of skipped samples."""
        blocks = self.__dict__.get("_blocks")
        hits, misses = (blocks.hits, blocks.misses) if blocks else (0, 0)
        return {
            "block_hits": hits,
            "block_misses": misses,
            "image_hits": self._images.hits,
            "image_misses": self._images.misses,
            "skipped": self.skipped,
        }

    def specs(self) -> dict[str, Spec]:
        """Return the kind of values of each field of a batch."""
        specs = {}
        for column in self.columns:
            specs[column.name] = self._spec(column)
            if column.name in self._finish.pad:
                specs[f"{column.name}_length"] = Spec("fixed", (column.ndim,) if column.ndim > 1 else ())
        return specs

    def _spec(self, column: Column) -> Spec:
        if column.is_encoded_image and self._finish.decode:
            shape = self._finish.image_shape(self.shards.layout.shape)
            of_any_size = (3, -1, -1) if self._finish.channels_first else (-1, -1, 3)
            return Spec("fixed" if shape else "ragged", shape or of_any_size, self._finish.dtype(column.name, np.uint8))
        if column.is_boolean:
            return Spec("fixed", (), np.dtype(bool))
        if column.dtype is None:
            return Spec("text" if column.is_text else "bytes" if column.kind == "variable" else "other")
        dtype = self._finish.dtype(column.name, column.dtype)
        if column.is_ragged:
            fill, shape = self._finish.pad.get(column.name), (-1,) * column.ndim
            return Spec("ragged", shape, dtype) if fill is None else Spec("padded", shape, dtype, fill)
        shape = self._finish.image_shape(column.shape) if column.name == IMAGE else column.shape
        return Spec("fixed", shape or (), dtype)

    def gather(
        self, samples: Indices, epoch: int = 0, memory: BatchMemory | None = None
    ) -> tuple[Batch, npt.NDArray[np.bool_]]:
        """Return the samples (n,), in that order, and which of them are present: all, unless some were skipped.

        The content of `memory` is overwritten. Raises DatasetError if a shard is damaged.
        """
        memory = memory or BatchMemory()
        there = np.ones(len(samples), bool)
        while True:
            left = np.flatnonzero(there)
            try:
                with self.stages.stage(GATHER):
                    return self._gather(samples[left], epoch, memory), there
            except _Unreadable as unreadable:
                if not self._options.skip:
                    raise unreadable.error from unreadable.error.__cause__
                there[left[unreadable.places]] = False
                self.skipped += len(unreadable.places)

    def _gather(self, samples: Indices, epoch: int, memory: BatchMemory) -> Batch:
        wanted = Wanted(self.shards.starts, samples)
        mended_before = mended()
        sources = _Sources(self, wanted)
        batch: Batch = {}
        for column in self.columns:
            batch.update(self._values(column, sources, samples, epoch, memory))
        if mended() != mended_before and self._in_place is not None:  # a mapped file shrank, perhaps one of these
            faults = self._in_place.changed(wanted)
            if faults:
                raise self.unreadable(wanted, faults)
        return batch

    def lengths(self, name: str, samples: Indices) -> Indices:
        """Return how many items (numbers, bytes) samples have in a ragged column, (n,). Raises UsageError, DatasetError."""
        column = next((column for column in self.columns if column.name == name and column.kind == "variable"), None)
        if column is None:
            raise UsageError(f"{name} is not a ragged column that is read")
        if not len(samples):
            return np.empty(0, np.int64)
        try:
            located = _Sources(self, Wanted(self.shards.starts, samples), counted=False).locate(column)
        except _Unreadable as unreadable:
            if not self._options.skip:
                raise unreadable.error from unreadable.error.__cause__
            return np.zeros(len(samples), np.int64)  # the readable ones are found when they are read, in any order
        if not isinstance(located, Located):
            raise UsageError(f"{name} has missing values, and so no lengths to make buckets by")
        return located.length // column.width

    def table(self, samples: Indices) -> pa.Table:
        """Return the samples as they are stored, as an Arrow table. Raises DatasetError if a shard is damaged."""
        wanted = Wanted(self.shards.starts, samples)
        try:
            memory = _Sources(self, wanted, counted=False).memory
        except _Unreadable as unreadable:
            raise unreadable.error from unreadable.error.__cause__
        memory.validate()
        return pa.table({column.name: memory.take(column, wanted) for column in self.columns})

    def _values(self, column: Column, sources: _Sources, samples: Indices, epoch: int, memory: BatchMemory) -> Batch:
        try:
            located = sources.locate(column)
        except DamagedValues as damaged:
            raise _Unreadable(damaged.places, damaged) from damaged
        try:
            if located is None:
                taken = sources.memory.take(column, sources.wanted)
                return self._taken(column, taken, samples, epoch, sources.wanted, memory)
            if isinstance(located, np.ndarray):
                return {column.name: self._numbers(column, located, sources.wanted)}
            return self._located(column, located, samples, epoch, sources.wanted, memory)
        except Misfit as misfit:
            where = self._where(sources.wanted, misfit.place)
            raise UsageError(f"{where}: {column.name}: {misfit}; give a dtype that holds it") from None

    def _located(
        self, column: Column, located: Located, samples: Indices, epoch: int, wanted: Wanted, memory: BatchMemory
    ) -> Batch:
        """Return values that are at any places in memory."""
        if column.is_encoded_image and self._finish.decode:
            finisher = Finisher(self._finish, column.name, np.uint8, samples, epoch)
            with self.stages.stage(DECODE):
                return {column.name: self._decoded(column, located, samples, finisher, wanted, memory)}
        if column.kind == "fixed":
            return {column.name: self._fixed(column, located, samples, epoch, wanted, memory)}
        if column.dtype is None:
            return {column.name: self._strings(column, located, wanted)}
        data = gather(located).buffers()[2]
        values = np.frombuffer(data, column.dtype) if data is not None else np.empty(0, column.dtype)
        lengths = located.length // column.width
        return _ragged(column, Lists(values[: int(lengths.sum())], [lengths]), self._finish, memory)

    def _taken(
        self, column: Column, values: pa.Array, samples: Indices, epoch: int, wanted: Wanted, memory: BatchMemory
    ) -> Batch:
        """Return values that Arrow has collected: some of their block are missing, or they are of a type of many parts."""
        name, fill = column.name, self._finish.fill
        if column.is_encoded_image:
            lost = np.flatnonzero(is_missing(values) | is_missing(values.field("bytes")))
            if len(lost):
                raise _Unreadable(
                    lost, DatasetError(f"{self._where(wanted, int(lost[0]))}: {name} is missing; {VERIFY_ADVICE}")
                )
            return self._located(column, _in_array(values.field("bytes")), samples, epoch, wanted, memory)
        if column.dtype is None and not column.is_boolean:
            return {name: values.to_pylist()}
        if column.is_ragged:
            return self._lists(column, Lists.of(values), wanted, memory)
        numbers, missing = numbers_of(values, column)
        if missing is not None and fill is None:
            return {name: with_none(numbers, missing)}
        if missing is not None:
            self._need_fill(column, np.flatnonzero(missing.reshape(len(missing), -1).any(axis=1)), wanted)
        if column.is_boolean or not column.shape:
            found = numbers if column.is_boolean else self._numbers(column, numbers, wanted)
        else:
            rows = np.arange(len(numbers), dtype=np.int64)
            data = pa.py_buffer(numbers)
            lying = Located([data], np.zeros_like(rows), rows * column.width, np.full(len(rows), column.width))
            found = self._fixed(column, lying, samples, epoch, wanted, memory)
        if missing is not None and fill is not None:
            found = np.array(found)
            whole = found.shape == missing.shape  # a picture that was cut is filled as a whole
            found[missing if whole else missing.reshape(len(missing), -1).any(axis=1)] = fill.get(name, np.nan)
        return {name: found}

    def _lists(self, column: Column, lists: Lists, wanted: Wanted, memory: BatchMemory) -> Batch:
        fill = self._finish.fill
        lacking = np.zeros(len(wanted), bool) if lists.lacking is None else lists.lacking.copy()
        if fill is not None:
            self._need_fill(column, np.flatnonzero(lacking), wanted, also_floats=True)
        if lists.missing is not None:
            lacking[lists.owners(np.flatnonzero(lists.missing))] = True
            if fill is not None:
                self._need_fill(column, np.flatnonzero(lacking), wanted)
        return _ragged(column, lists, self._finish, memory)

    def _need_fill(self, column: Column, places: Indices, wanted: Wanted, also_floats: bool = False) -> None:
        """Raise UsageError if values of these samples are missing and `fill` has no value for them."""
        is_float = column.dtype is not None and column.dtype.kind == "f" and not also_floats
        if not len(places) or is_float or column.name in (self._finish.fill or {}):
            return
        example = False if column.is_boolean else -1 if column.dtype is not None and column.dtype.kind == "i" else 0
        raise UsageError(
            f"{self._where(wanted, int(places[0]))}: {column.name} is missing; give fill={{{column.name!r}: {example}}} to the"
            " loader, or leave the column out with columns="
        )

    def _numbers(self, column: Column, values: npt.NDArray[Any], wanted: Wanted) -> npt.NDArray[Any]:
        """Return numbers (n,), converted and normalised where that is wanted."""
        if not self._finish.changes(column):
            return values
        if column.name == LABEL and self._finish.relabel is not None:
            values = self._relabelled(values, wanted)
        finisher = Finisher(self._finish, column.name, values.dtype, np.empty(0, np.int64), 0)
        result = np.empty(values.shape, finisher.dtype)
        finisher.write(values, result)
        return result

    def _relabelled(self, labels: npt.NDArray[Any], wanted: Wanted) -> npt.NDArray[Any]:
        """Return the new labels of these."""
        table = np.array(self._finish.relabel, np.int64)
        wrong = np.flatnonzero((labels < 0) | (labels >= len(table)))
        if len(wrong):
            place = int(wrong[0])
            raise DatasetError(f"{self._where(wanted, place)}: label {labels[place]} is not one of the {len(table)} classes")
        found: npt.NDArray[Any] = table[labels]
        return found

    def _fixed(
        self, column: Column, located: Located, samples: Indices, epoch: int, wanted: Wanted, memory: BatchMemory
    ) -> npt.NDArray[Any]:
        """Return the values of a fixed column, (n, *shape): as they lie where that is possible, else a copy."""
        assert column.dtype is not None
        if not self._finish.changes(column):
            # A view may lose its file after it was handed out, which cannot be skipped then.
            seen = None if self._options.skip else adjoining(located, column.width)
            return _shaped(gather_fixed(located, column.width) if seen is None else seen, column)
        if not column.shape:
            return self._numbers(column, _shaped(gather_fixed(located, column.width), column), wanted)
        finisher = Finisher(self._finish, column.name, column.dtype, samples, epoch)
        shape = self._finish.image_shape(column.shape) if column.name == IMAGE else column.shape
        result = memory.array(column.name, (len(located), *(shape or column.shape)), finisher.dtype)
        step = _CHUNK // column.width
        if finisher.one_by_one or step < _MANY:
            for place, row in enumerate(located.rows()):
                whole = finisher.resized(row.view(column.dtype).reshape(column.shape))
                try:
                    finisher.write(finisher.view(whole, place), result[place])
                except Misfit as misfit:
                    raise misfit.of(place) from None
            return result
        for first in range(0, len(located), step):
            part = slice(first, first + step)
            try:
                finisher.write(_shaped(gather_fixed(located.at(part), column.width), column), result[part])
            except Misfit as misfit:
                raise misfit.of(first + misfit.at * column.dtype.itemsize // column.width) from None
        return result

    def _strings(self, column: Column, located: Located, wanted: Wanted) -> list[Any]:
        values = gather(located)
        if column.is_text:
            try:
                values = values.cast(pa.large_string())
            except pa.ArrowInvalid as error:
                wrong = [place for place, value in enumerate(values.to_pylist()) if not _is_utf8(value)]
                where = self._where(wanted, wrong[0])
                raise _Unreadable(
                    np.array(wrong), DatasetError(f"{where}: {column.name} is not UTF-8; {VERIFY_ADVICE}")
                ) from error
        result: list[Any] = values.to_pylist()
        return result

    def _decoded(
        self, column: Column, located: Located, samples: Indices, finisher: Finisher, wanted: Wanted, memory: BatchMemory
    ) -> Any:
        shape = self._finish.image_shape(self.shards.layout.shape)
        if shape is None:
            return [_in_list(finisher, pixels, place) for place, pixels in self._pixels(located, samples, wanted, None)]
        batch = memory.array(column.name, (len(samples), *shape), finisher.dtype)
        in_place = None if self._finish.changes(column) else batch
        for place, pixels in self._pixels(located, samples, wanted, in_place):
            if in_place is not None and pixels.ctypes.data == batch[place].ctypes.data:
                continue
            try:
                finisher.write(finisher.view(pixels, place), batch[place])
            except Misfit as misfit:
                raise misfit.of(place) from None
            except DatasetError as error:
                raise self._faulty(wanted, place, str(error)) from error
            except ValueError as error:
                raise self._faulty(wanted, place, f"{error}; {VERIFY_ADVICE}") from error
        return batch

    def _pixels(self, located: Located, samples: Indices, wanted: Wanted, out: Any) -> Iterator[tuple[int, image.Pixels]]:
        """Yield each image, decoded: into its row of `out` where that is given and it fits."""
        decoder = self._decoder()
        for place, (data, sample) in enumerate(zip(located.rows(), samples.tolist(), strict=True)):
            pixels = self._images.get(sample)
            if pixels is None:
                try:
                    pixels = self._decode(decoder, data, out[place] if out is not None else None)
                except (ShardctlError, MemoryError):  # of the machine, not of the image
                    raise
                except Rejection as rejection:
                    why = f"it does not decode: {rejection.message}; {VERIFY_ADVICE}"
                    raise self._faulty(wanted, place, why) from rejection
                except Exception as error:
                    why = f"it does not decode: {type(error).__name__}: {error}; {VERIFY_ADVICE}"
                    raise self._faulty(wanted, place, why) from error
                self._images.keep(sample, pixels)
            yield place, pixels

    def _decode(self, decoder: JpegDecoder, data: Bytes, out: image.Pixels | None) -> image.Pixels:
        """Decode one image, in the size that is wanted. Raises Rejection, and whatever a decoder raises."""
        if self._finish.resize is not None:
            opened = image.open_image(data.tobytes(), _ANY_SIZE, self._keep_truncated)
            return image.render(opened, self._finish.resized_view(*opened.size))
        try:
            pixels = decoder.decode(data, out)
        except Exception:  # noqa: BLE001 - the slow way decides about what the fast one cannot read
            pixels = None
        return image.decode(data.tobytes(), _ANY_SIZE, self._keep_truncated) if pixels is None else pixels

    def _faulty(self, wanted: Wanted, place: int, why: str) -> _Unreadable:
        return _Unreadable(np.array([place]), DatasetError(f"{self._where(wanted, place)}: image: {why}"))

    def _where(self, wanted: Wanted, place: int) -> str:
        """Name a sample for a message."""
        block, row = int(wanted.block[place]), int(wanted.rows[place])
        return f"{self.shards.where(block)}, row {row}, key {self._key(int(self.shards.starts[block]) + row)!r}"

    def _key(self, sample: int) -> str:
        """Return the key of a sample, for a message."""
        try:
            reader = Gatherer(self.shards, columns_of(self.shards, ["key"]), Finish(), GatherOptions(mmap=False))
            return str(reader.gather(np.array([sample]))[0]["key"][0])
        except DatasetError:
            return "?"

    def _decoder(self) -> JpegDecoder:
        if not hasattr(self._local, "decoder"):
            self._local.decoder = JpegDecoder()
        decoder: JpegDecoder = self._local.decoder
        return decoder

    def unreadable(self, wanted: Wanted, faults: Faults) -> _Unreadable:
        """Return the error for blocks that cannot be read."""
        places = np.flatnonzero(np.isin(wanted.block, list(faults)))
        block = int(wanted.block[places[0]])
        error = faults[block]
        named = name_samples(self.shards, block, error)
        named.__cause__ = error.__cause__
        return _Unreadable(places, named)


def in_place(shards: Shards, options: GatherOptions) -> bool:
    """Return whether samples can be read one by one: uncompressed, and mapped or loaded."""
    return (options.mmap or options.preload) and shards.manifest.recipe.get("compression") == "none"


class _Sources:
    """The blocks and files of the values of one batch."""

    def __init__(self, gatherer: Gatherer, wanted: Wanted, counted: bool = True) -> None:
        """Find the files; samples that are `counted` are not requested again in this epoch."""
        self._gatherer, self.wanted, self._counted = gatherer, wanted, counted
        self._in_place = gatherer._in_place
        self._memory: InMemory | None = None
        if self._in_place is not None:
            self._files, faults = self._in_place.prepare(wanted)
            if faults:
                raise gatherer.unreadable(wanted, faults)

    @property
    def memory(self) -> InMemory:
        """The blocks, in memory. (A cached_property would hold a lock that all threads share before Python 3.12.)"""
        if self._memory is None:
            counts = np.bincount(self.wanted.inverse, minlength=len(self.wanted.blocks)) * self._counted
            found, faults = self._gatherer._blocks.get(self.wanted.blocks.tolist(), counts.tolist())
            if faults:
                raise self._gatherer.unreadable(self.wanted, faults)
            self._memory = InMemory(self._gatherer.shards, [found[block] for block in self.wanted.blocks.tolist()])
        return self._memory

    def locate(self, column: Column) -> Located | npt.NDArray[Any] | None:
        """Return the places of a column's values, or its numbers; None if they must be read one by one."""
        if column.kind not in ("fixed", "variable"):
            return None
        place = self._in_place
        if place is not None and not place.lie_elsewhere(column, self.wanted):
            return place.locate(column, self.wanted, self._files)
        flats = self.memory.flats(column, self.wanted)
        if flats is None:
            return None
        if column.kind == "fixed" and not column.shape:
            return self.memory.numbers(column, flats, self.wanted)
        return self.memory.locate(column, flats, self.wanted)


def _in_list(finisher: Finisher, pixels: image.Pixels, place: int) -> npt.NDArray[Any]:
    """Return one finished image of a list."""
    try:
        return finisher.finished(pixels, place)
    except Misfit as misfit:
        raise misfit.of(place) from None


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _shaped(values: Bytes, column: Column) -> npt.NDArray[Any]:
    assert column.dtype is not None
    if not values.flags.c_contiguous:
        values = np.ascontiguousarray(values)
    return values.view(column.dtype).reshape(len(values), *column.shape)


def _ragged(column: Column, lists: Lists, finish: Finish, memory: BatchMemory) -> Batch:
    """Return lists of numbers as arrays of their own, or padded to the longest, with their lengths."""
    assert column.dtype is not None
    name = column.name
    finisher = Finisher(finish, name, column.dtype, np.empty(0, np.int64), 0)
    numbers = lists.numbers
    if finish.changes(column) or lists.missing is not None:
        numbers = np.empty(numbers.shape, finisher.dtype)
        try:
            finisher.write(lists.numbers, numbers)
        except Misfit as misfit:
            raise misfit.of(int(lists.owners(np.array([misfit.at]))[0])) from None
    if finish.fill is None:
        return {name: lists.with_numbers(numbers).arrays_or_none()}
    if lists.missing is not None:
        numbers[lists.missing] = finish.fill.get(name, np.nan)
    finished = lists.with_numbers(numbers)
    if name not in finish.pad:
        return {name: finished.arrays()}
    padded = finished.padded(finish.pad[name], lambda shape: memory.array(name, shape, finisher.dtype))
    return {name: padded, f"{name}_length": finished.sizes()}


def _in_array(values: pa.Array) -> Located:
    """Return where the values of an Arrow array of bytes lie; none of them is missing."""
    _, offsets, data = values.buffers()
    edges = np.frombuffer(offsets, np.int32, len(values) + 1 + values.offset)[values.offset :].astype(np.int64)
    buffer = data if data is not None else pa.py_buffer(b"")
    return Located([buffer], np.zeros(len(values), np.int64), edges[:-1], np.diff(edges))
