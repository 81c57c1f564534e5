"""Megatron's indexed datasets: NAME.idx says where the sequences of tokens in NAME.bin are. Each
sequence is a record.

The index, little-endian: `MMIDIDX\\0\\0`, version 1 (u64), code of the type (u8), the number of
sequences and that of documents (u64 each); the length of every sequence (i32), its first byte in
NAME.bin (i64), and the sequences at which documents begin (i64).
(megatron/core/datasets/indexed_dataset.py)
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from shardctl.format.arrays import DType, Numbers, edges_of
from shardctl.sources.files import read_range
from shardctl.sources.formats.base import RECORD_BYTES, UNIT_BYTES, Digest, Unit, refused
from shardctl.sources.formats.columns import BATCH_BYTES, BATCH_ROWS, hash_ranges
from shardctl.sources.formats.numbered import Rows, batch_of
from shardctl.system.files import open_ordinary
from shardctl.system.text import format_bytes, printable

MAGIC = b"MMIDIDX\0\0"
TOKENS = ".bin"
COLUMN = "tokens"

_HEAD = struct.Struct("<9sQBQQ")
_TYPES = {
    code: np.dtype(name)
    for code, name in enumerate(("<u1", "<i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2"), 1)
}
_LENGTH, _PLACE = np.dtype("<i4"), np.dtype("<i8")

_RUN = 1 << 16
"""Sequences of the index that are looked at together."""


def companions(path: str) -> Iterator[str]:
    """Yield the file with the tokens, as InputFormat.companions has it."""
    yield Path(path).with_suffix(TOKENS).name


_Run = tuple[Numbers, Numbers]
"""Sequences one after the other: the length of each in tokens, and its first byte, (n,) each."""


class Sequences(Rows):
    """The sequences of an index, and the file that has their tokens. Raises OSError; Rejection if
    the index is damaged, or there are no tokens beside it."""

    def __init__(self, path: str) -> None:
        self._tokens = str(Path(path).with_suffix(TOKENS))
        with ExitStack() as stack:
            self._index = stack.enter_context(open_ordinary(path))
            self._type, self._count = _read_head(self._index)
            try:
                self._file = open_ordinary(self._tokens)
            except FileNotFoundError:
                raise refused(
                    "no-tokens",
                    f"its tokens are not there; put {printable(Path(self._tokens).name)} beside it",
                ) from None
            stack.pop_all()
        self._size = os.fstat(self._file.fileno()).st_size
        self.schema = pa.schema(
            [(COLUMN, pa.list_(pa.from_numpy_dtype(self._type.newbyteorder("="))))]
        )

    def _run(self, first: int, count: int) -> _Run:
        """Return some sequences. Raises Rejection if one is not in the file of tokens."""
        file, item = self._index.fileno(), self._type.itemsize
        lengths = _numbers(file, _HEAD.size + first * _LENGTH.itemsize, count, _LENGTH)
        places = _numbers(
            file,
            _HEAD.size + self._count * _LENGTH.itemsize + first * _PLACE.itemsize,
            count,
            _PLACE,
        )
        wrong = np.flatnonzero(
            (lengths < 0) | (places < 0) | (places > self._size - lengths * item)
        )
        if len(wrong):
            raise refused(
                "truncated",
                f"sequence {first + int(wrong[0]) + 1} is not in the file of tokens; get both again",
            )
        longest = int(lengths.max(initial=0)) * item
        if longest > RECORD_BYTES:
            raise refused(
                "too-large",
                f"a sequence has {format_bytes(longest)}, but at most {format_bytes(RECORD_BYTES)} are read; divide it",
            )
        return lengths, places

    def cuts(self) -> list[tuple[int, int, int]]:
        """Return runs of sequences of about 1 MiB of tokens, each with its range in the file of
        tokens if it has one."""
        cuts: list[tuple[int, int, int]] = []
        for first in range(0, self._count, _RUN):
            lengths, places = self._run(first, min(_RUN, self._count - first))
            for part in _parts(lengths * self._type.itemsize, UNIT_BYTES, _RUN):
                size = int(lengths[part].sum()) * self._type.itemsize
                cuts.append((int(places[part.start]), size, part.stop - part.start))
        return cuts

    def hash(self, unit: Unit, digest: Digest) -> None:
        """Give the lengths and the tokens of a unit to a digest."""
        for run in self._runs(unit):
            digest.update(run[0].tobytes())
            hash_ranges(self._tokens, self._ranges(run), digest)

    def _ranges(self, run: _Run) -> Iterator[tuple[int, int]]:
        item, (lengths, places) = self._type.itemsize, run
        if (places[1:] == places[:-1] + lengths[:-1] * item).all():
            yield int(places[0]), int(lengths.sum()) * item
            return
        for length, place in zip(lengths.tolist(), places.tolist(), strict=True):
            yield place, length * item

    def _runs(self, unit: Unit) -> Iterator[_Run]:
        """Yield the sequences of a unit, as many at a time as a batch has."""
        end = unit.first - 1 + unit.records
        for first in range(unit.first - 1, end, _RUN):
            lengths, places = self._run(first, min(_RUN, end - first))
            for part in _parts(lengths * self._type.itemsize, BATCH_BYTES, BATCH_ROWS):
                yield lengths[part], places[part]

    def batches(self, unit: Unit, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the sequences of a unit."""
        for run in self._runs(unit):
            yield batch_of({COLUMN: self._lists(run)} if names else {}, len(run[0]))

    def _lists(self, run: _Run) -> pa.Array:
        file = self._file.fileno()
        data = b"".join(read_range(file, offset, size) for offset, size in self._ranges(run))
        values = np.frombuffer(data, self._type).astype(self._type.newbyteorder("="), copy=False)
        return pa.ListArray.from_arrays(pa.array(edges_of(run[0]), pa.int32()), pa.array(values))

    def close(self) -> None:
        """Close both files."""
        self._index.close()
        self._file.close()


def _read_head(index: BinaryIO) -> tuple[DType, int]:
    """Return the type of the tokens and the number of sequences. Raises Rejection if the index is
    not as it says."""
    size = os.fstat(index.fileno()).st_size
    start = os.pread(index.fileno(), _HEAD.size, 0)
    if len(start) < _HEAD.size or not start.startswith(MAGIC):
        raise refused("not-megatron", "it is not an index of Megatron; make it again")
    _, version, code, count, documents = _HEAD.unpack(start)
    if version != 1 or code not in _TYPES:
        raise refused(
            "unknown-version",
            f"it has version {version} and the type {code}, which are not read; make it again",
        )
    wanted = _HEAD.size + count * (_LENGTH.itemsize + _PLACE.itemsize) + documents * _PLACE.itemsize
    modes = wanted + count  # a byte for each sequence of several modes
    if size not in (wanted, modes):
        raise refused(
            "truncated" if size < wanted else "wrong-size",
            f"an index of {count:,} sequences needs {wanted:,} bytes, and has {size:,}; get it again",
        )
    return _TYPES[code], count


def _numbers(file: int, offset: int, count: int, dtype: DType) -> Numbers:
    return np.frombuffer(read_range(file, offset, count * dtype.itemsize), dtype).astype(np.int64)


def _parts(sizes: Numbers, most_bytes: int, most: int) -> Iterator[slice]:
    """Yield stretches of things of these sizes that are so large together, one of them at least."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        end = int(np.searchsorted(ends, before + most_bytes, side="right"))
        end = max(start + 1, min(start + most, end))
        yield slice(start, end)
        start = end
