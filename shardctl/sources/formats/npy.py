"""Arrays of numpy: .npy files, and ZIP archives of them, .npz. Arrays of equal length are the
columns of the records.

Nothing is unpickled. The format is that of numpy/lib/format.py: magic and version, the length of
the header (u16, from version 2 on u32), the header, which is a literal of Python, and then all
elements, in the order of C or of Fortran.
"""

from __future__ import annotations

import ast
import errno
import math
import os
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import IO, BinaryIO, Literal, cast

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy

from shardctl.errors import Rejection, first_line
from shardctl.format.arrays import Array, DType, Shape
from shardctl.sources.files import local_version, read_range
from shardctl.sources.formats.base import Digest, Unit, refused
from shardctl.sources.formats.columns import FAULTS, check_names, hash_ranges, rows_of
from shardctl.sources.formats.numbered import Rows, batch_of, column, column_type, row_bytes
from shardctl.sources.splits import split_word
from shardctl.sources.walk import is_of_system
from shardctl.system.files import ordinary
from shardctl.system.text import printable

MAGIC = b"\x93NUMPY"

MOST_HEADER = 64 << 10
"""The longest header that is read: parsing a literal takes many times its size."""

COLUMN = "data"
"""The column of an array that has no name."""

MOST_STRIDES = 1 << 16
"""In so many places the elements of a row may lie: each is read by itself."""

_HEADER_FAULTS = (*FAULTS, SyntaxError, MemoryError, AttributeError)
"""What Python and numpy raise for headers that are none."""


def read_header(file: BinaryIO, what: str, array: str = "") -> Stored:
    """Read what stands before the elements of an array, `what` or `array` in messages. Raises
    OSError, Rejection."""
    start = file.read(8)
    if len(start) < 8 or not start.startswith(MAGIC):
        raise refused("not-npy", f"{what} is not an array of numpy; save it with numpy.save")
    version = start[6]
    length = {1: 2, 2: 4, 3: 4}.get(version)
    if length is None:
        raise _bad_header(what, f"version {version} of the format is not known")
    count = int.from_bytes(file.read(length), "little")
    text = file.read(count) if count <= MOST_HEADER else b""
    if not count or len(text) < count:
        raise _bad_header(what, f"the header is cut, or has over {MOST_HEADER} bytes")
    try:
        shape, dtype, fortran = _parsed(text.decode("utf-8" if version == 3 else "latin-1"))
    except _HEADER_FAULTS as error:
        raise _bad_header(what, first_line(error)) from None
    return Stored(array or what, shape, dtype, fortran and len(shape) > 1, 8 + length + count)


def _bad_header(what: str, reason: str) -> Rejection:
    return refused(
        "bad-header",
        f"the header of {what} cannot be read ({printable(reason)}); it is damaged, save it again",
    )


def _parsed(text: str) -> tuple[Shape, DType, bool]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of old ways to write types
        # Python 2 wrote an L behind a long number
        header = ast.literal_eval(re.sub(r"(?<=\d)L(?=[,)])", "", text.strip()))
        if not isinstance(header, dict) or header.keys() != {"descr", "fortran_order", "shape"}:
            raise ValueError("it has other keys than descr, fortran_order and shape")
        shape, fortran = header["shape"], header["fortran_order"]
        if not isinstance(shape, tuple) or not all(
            type(length) is int and 0 <= length < 2**63 for length in shape
        ):
            raise ValueError("its shape is none")
        if not isinstance(fortran, bool):
            raise ValueError("its order is none")
        return shape, npy.descr_to_dtype(header["descr"]), fortran


@dataclass(frozen=True)
class Stored:
    """An array that lies in a file as it is: its elements begin at `start`. `name` is that of its
    column, `what` is it."""

    what: str
    shape: Shape
    dtype: DType
    fortran: bool
    start: int
    name: str = COLUMN

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        """The size of a row. Raises Rejection if the array is no column."""
        size = row_bytes(self.dtype, self.shape, self.what)
        if self.fortran and size > MOST_STRIDES * self.dtype.itemsize:
            raise refused(
                "fortran-order",
                f"{self.what} is in the order of Fortran, a row of {size} bytes in very many places; save it with numpy.ascontiguousarray",
            )
        return size

    def check_size(self, size: int) -> None:
        """Raise Rejection if the elements do not take so many bytes."""
        own = math.prod(self.shape) * self.dtype.itemsize
        if own == size:
            return
        wanted = f"{own:,} bytes" if own < 2**63 else "more bytes than any file has"
        raise refused(
            "truncated" if size < own else "wrong-size",
            f"{self.what} is to have {wanted} by its header, and has {size:,}; save it again",
        )

    def ranges(self, first: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield where these rows lie, (offset, size): in one place, or in the order of Fortran in
        one for each element."""
        if not self.fortran:
            yield self.start + first * self.row_bytes, count * self.row_bytes
            return
        item = self.dtype.itemsize
        for place in range(self.row_bytes // item):
            yield self.start + (place * self.rows + first) * item, count * item

    def read(self, file: int, first: int, count: int) -> Array:
        """Return these rows of an open file. Raises OSError, Rejection."""
        parts = (read_range(file, offset, size) for offset, size in self.ranges(first, count))
        return self.shaped(b"".join(parts), count)

    def shaped(self, data: bytes, count: int) -> Array:
        """Return rows from their bytes, in the order in which they are stored."""
        order: Literal["F", "C"] = "F" if self.fortran else "C"
        return np.frombuffer(data, self.dtype).reshape((count, *self.shape[1:]), order=order)


def _columns(array: Stored, arrays: int) -> dict[str, tuple[DType, Shape]]:
    """Return the columns of an array among so many, the type and the shape of their values: it is
    one, or one for each of its fields if it is alone and structured."""
    if arrays == 1 and array.dtype.names and len(array.shape) == 1:
        return {name: (array.dtype[name], ()) for name in array.dtype.names}
    return {array.name: (array.dtype, array.shape[1:])}


class ArrayRows(Rows):
    """Arrays of equal length that lie in an open file, or in an archive, as they are."""

    def __init__(
        self, file: BinaryIO, path: str, arrays: list[Stored], archive: zipfile.ZipFile | None
    ) -> None:
        fields = [
            (name, column_type(dtype, shape, each.what))
            for each in arrays
            for name, (dtype, shape) in _columns(each, len(arrays)).items()
        ]
        check_names([name for name, _ in fields])
        self.schema = pa.schema(fields)
        self._file, self.path, self._arrays, self._archive = file, path, arrays, archive
        self.count, self.start = arrays[0].rows, arrays[0].start
        self.row_bytes = sum(each.row_bytes for each in arrays)

    def cuts(self) -> Sequence[tuple[int, int, int]]:
        """Return runs of rows of about 1 MiB. Raises Rejection if a checksum is wrong."""
        if self._archive is not None:
            try:  # zipfile compares a checksum at the end of a member
                for member in self._archive.infolist():
                    with self._archive.open(member) as file:
                        while file.read(_CHUNK):
                            pass
            except _FAULTS as error:
                raise _damaged(error) from None
        return super().cuts()

    def hash(self, unit: Unit, digest: Digest) -> None:
        """Give the rows of a unit to a digest, one array after the other."""
        for array in self._arrays:
            hash_ranges(self.path, array.ranges(unit.first - 1, unit.records), digest)

    def batches(self, unit: Unit, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a unit."""
        for first, count in self.runs(unit):
            rows = (array.read(self._file.fileno(), first, count) for array in self._arrays)
            yield self._batch(self._arrays, rows, names, count)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _batch(
        self, arrays: list[Stored], rows: Iterable[Array], names: list[str], count: int
    ) -> pa.RecordBatch:
        """Return the columns of these names, given rows of arrays."""
        columns: dict[str, pa.Array] = {}
        for array, values in zip(arrays, rows, strict=True):
            own = _columns(array, len(self._arrays))
            whole = array.name in own
            columns |= {
                name: column(values if whole else values[name]) for name in own if name in names
            }
        return batch_of(columns, count)


class InflatedRows(ArrayRows):
    """The rows of arrays of which some are compressed: they are read from the first one on."""

    def cuts(self) -> Sequence[tuple[int, int, int]]:
        """Return all rows as one unit. Raises Rejection if a checksum is wrong."""
        size = os.fstat(self._file.fileno()).st_size
        return [(0, size, self.count)] if super().cuts() else []

    hash = Rows.hash

    def batches(self, unit: Unit, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a unit, going on where the last one ended."""
        key = (self.path, *local_version(self.path), tuple(names))
        yield from rows_of(key, lambda: self._inflated(names), unit.first - 1, unit.records)

    def _inflated(self, names: list[str]) -> Generator[pa.RecordBatch]:
        """Yield all rows. The file is opened anew: it stays open from one unit to the next."""
        whole, arrays = Unit(0, 0, 0, 1, self.count), self._arrays
        wanted = [each for each in arrays if _columns(each, len(arrays)).keys() & set(names)]
        with ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(self.path))
            files = [stack.enter_context(archive.open(f"{each.name}.npy")) for each in wanted]
            for file, array in zip(files, wanted, strict=True):
                _exactly(file, array.start)
            for _, count in self.runs(whole):
                rows = (
                    array.shaped(_exactly(file, count * array.row_bytes), count)
                    for file, array in zip(files, wanted, strict=True)
                )
                yield self._batch(wanted, rows, names, count)


def _exactly(file: IO[bytes], size: int) -> bytes:
    """Return the next bytes. Raises ValueError if there are fewer."""
    data = file.read(size)
    if len(data) < size:
        raise ValueError("a compressed array ends early")
    return data


def npy_rows(path: str) -> ArrayRows:
    """Return the rows of an array. Raises OSError; Rejection if the file has more or less than
    the header says."""
    file = open(path, "rb", opener=ordinary)  # noqa: SIM115 (closed by close)
    try:
        array = read_header(file, "it", "the array")
        row_bytes(array.dtype, array.shape, array.what)
        array.check_size(os.fstat(file.fileno()).st_size - array.start)
        return ArrayRows(file, path, [array], None)
    except BaseException:
        file.close()
        raise


_HEAD = struct.Struct("<4s5H3I2H")
"""What stands before the name of a member: of it the lengths of the name and of what follows it are
used."""

_FAULTS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    RuntimeError,
    struct.error,
    OverflowError,
)
"""What zipfile raises for archives that are damaged, encrypted, or of kinds that it does not
know."""

_CHUNK = 1 << 20


def npz_rows(path: str) -> ArrayRows:
    """Return the rows of the arrays. Raises OSError; Rejection if they are not the columns of
    records."""
    file = open(path, "rb", opener=ordinary)  # noqa: SIM115 (closed by close)
    try:
        return _rows(file, path)
    except BaseException as error:
        file.close()
        # no number, or that of a place before the beginning
        is_content = isinstance(error, OSError) and error.errno in (None, errno.EINVAL)
        if not isinstance(error, _FAULTS) and not is_content:
            raise
        raise _damaged(error) from None


def _damaged(error: BaseException) -> Rejection:
    return refused(
        "not-npz",
        f"it is not an .npz file that can be read ({printable(first_line(error))}); it is damaged, save it again",
    )


def _rows(file: BinaryIO, path: str) -> ArrayRows:
    archive = zipfile.ZipFile(file)
    members = [each for each in archive.infolist() if not is_of_system(each.filename)]
    if not members:
        raise refused("empty", "the archive has no arrays; save it again")
    arrays = [_array(archive, each) for each in members]
    _check_lengths(arrays)
    if all(each.compress_type == zipfile.ZIP_STORED for each in members):
        plain = [
            replace(array, start=array.start + _start(file, member))
            for array, member in zip(arrays, members, strict=True)
        ]
        return ArrayRows(file, path, plain, archive)
    turned = next((each.what for each in arrays if each.fortran), None)
    if turned is not None:
        raise refused(
            "fortran-order",
            f"{turned} is compressed and in the order of Fortran; save it with numpy.ascontiguousarray",
        )
    return InflatedRows(file, path, arrays, archive)


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Stored:
    """Return the array of a member, whose elements begin at `start` in it. Raises Rejection, and
    what _FAULTS has."""
    if not member.filename.endswith(".npy"):
        raise refused(
            "not-npy",
            f"its member {printable(member.filename)} is no .npy file; save it with numpy.savez",
        )
    name = member.filename.removesuffix(".npy")
    what = f"the array {printable(name)}"
    known = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    if member.flag_bits & 1 or member.compress_type not in known:
        raise refused(
            "unknown-compression",
            f"{what} is encrypted, or compressed in another way; use numpy.savez_compressed",
        )
    with archive.open(member) as file:
        array = replace(read_header(cast(BinaryIO, file), what), name=name)
    row_bytes(array.dtype, array.shape, what)
    array.check_size(member.file_size - array.start)
    return array


def _start(file: BinaryIO, member: zipfile.ZipInfo) -> int:
    """Return where the bytes of a member that is stored as it is begin. Raises BadZipFile if they
    are not in the file."""
    head = _HEAD.unpack(read_range(file.fileno(), member.header_offset, _HEAD.size))
    start = member.header_offset + _HEAD.size + int(head[9]) + int(head[10])
    if (
        member.compress_size != member.file_size
        or start + member.file_size > os.fstat(file.fileno()).st_size
    ):
        raise zipfile.BadZipFile("a member would end outside of its place")
    return start


def _check_lengths(arrays: list[Stored]) -> None:
    """Raise Rejection if the arrays are not columns of the same records."""
    words = {each.name: word for each in arrays if (word := split_word(each.name)) is not None}
    if len({word.role for word in words.values()}) > 1:
        named = " and ".join(map(printable, sorted(words)))
        raise refused(
            "several-splits",
            f"its arrays {named} are of several splits; save each split in a file of its own, as train.npz",
        )
    other = next((each for each in arrays if each.rows != arrays[0].rows), None)
    if other is not None:
        one = arrays[0]
        raise refused(
            "several-lengths",
            f"{one.what} has {one.rows:,} rows and {other.what} {other.rows:,}; save them in files of their own",
        )
