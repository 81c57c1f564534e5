"""Arrays of numpy in a ZIP archive: .npz files. Arrays of equal length are the columns of the records."""

from __future__ import annotations

import errno
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import IO, BinaryIO, ClassVar, cast

import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.sources.formats.array_columns import row_bytes
from shardctl.sources.formats.base import Digest, Unit
from shardctl.sources.formats.columns import hash_range, rows_of, version_of
from shardctl.sources.formats.npy import Header, Stored, StoredRows, check_size, columns_of, read_header, schema_of
from shardctl.sources.formats.numbered import batch_of, runs_of
from shardctl.sources.formats.ranges import read_range
from shardctl.sources.splits import split_word
from shardctl.sources.walk import is_of_system
from shardctl.system.files import ordinary
from shardctl.system.text import printable

_HEAD = struct.Struct("<4s5H3I2H")
"""What stands before the name of a member: of it the lengths of the name and of what follows it are used."""

_FAULTS = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError, struct.error, OverflowError)
"""What zipfile raises for archives that are damaged, encrypted, or of kinds that it does not know."""

_CHUNK = 1 << 20


class Npz:
    """Opens .npz files."""

    name: ClassVar[str] = "npz"

    def open(self, path: str) -> NpzRows | InflatedRows:
        """Return the rows of the arrays. Raises OSError; Rejection if they are not the columns of records."""
        file = open(path, "rb", opener=ordinary)  # noqa: SIM115 (closed by close)
        try:
            return _rows(file, path)
        except _FAULTS as error:
            file.close()
            raise _damaged(error) from None
        except OSError as error:
            file.close()
            if error.errno not in (None, errno.EINVAL):  # a place before the beginning
                raise
            raise _damaged(error) from None
        except BaseException:
            file.close()
            raise


def _damaged(error: Exception) -> Rejection:
    reason = printable(str(error).splitlines()[0][:200]) if str(error) else type(error).__name__
    return Rejection("read", "not-npz", f"it is not an .npz file that can be read ({reason}); it is damaged, save it again")


def _rows(file: BinaryIO, path: str) -> NpzRows | InflatedRows:
    archive = zipfile.ZipFile(file)
    members = [each for each in archive.infolist() if not is_of_system(each.filename)]
    if not members:
        raise Rejection("read", "empty", "the archive has no arrays; save it again")
    headers = [_header(archive, each) for each in members]
    stored = [_is_stored(each) for each in members]
    starts = [_start(file, each) if plain else 0 for each, plain in zip(members, stored, strict=True)]
    arrays = [
        Stored(each.filename.removesuffix(".npy"), _what(each), header, start + header.size)
        for each, header, start in zip(members, headers, starts, strict=True)
    ]
    _check_lengths(arrays)
    if all(stored):
        return NpzRows(file, path, arrays, archive)
    turned = next((each.what for each in arrays if each.header.fortran), None)
    if turned is not None:
        message = f"{turned} is compressed and in the order of Fortran; save it as numpy.ascontiguousarray gives it"
        raise Rejection("read", "fortran-order", message)
    return InflatedRows(file, path, arrays, archive)


def _what(member: zipfile.ZipInfo) -> str:
    return f"the array {printable(member.filename.removesuffix('.npy'))}"


def _is_stored(member: zipfile.ZipInfo) -> bool:
    if not member.filename.endswith(".npy"):
        raise Rejection(
            "read", "not-npy", f"its member {printable(member.filename)} is not an .npy file; save it with numpy.savez"
        )
    if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        message = f"{_what(member)} is encrypted, or compressed in a way that is not read; save it with numpy.savez_compressed"
        raise Rejection("read", "unknown-compression", message)
    return member.compress_type == zipfile.ZIP_STORED


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Header:
    """Return what a member says of its array. Raises Rejection, and what _FAULTS has."""
    _is_stored(member)
    with archive.open(member) as file:
        header = read_header(cast(BinaryIO, file), _what(member))
    row_bytes(header.dtype, header.shape, _what(member))
    check_size(_what(member), header, member.file_size - header.size)
    return header


def _start(file: BinaryIO, member: zipfile.ZipInfo) -> int:
    """Return where the bytes of a member that is stored as it is begin. Raises BadZipFile if they are not in the file."""
    head = _HEAD.unpack(read_range(file.fileno(), member.header_offset, _HEAD.size))
    start = member.header_offset + _HEAD.size + int(head[9]) + int(head[10])
    if member.compress_size != member.file_size or start + member.file_size > os.fstat(file.fileno()).st_size:
        raise zipfile.BadZipFile("a member would end outside of its place")
    return start


def _check_lengths(arrays: list[Stored]) -> None:
    """Raise Rejection if the arrays are not columns of the same records."""
    words = {each.name: word for each in arrays if (word := split_word(each.name)) is not None}
    if len({word.role for word in words.values()}) > 1:
        named = " and ".join(map(printable, sorted(words)))
        message = f"its arrays {named} belong to several splits; save each split in a file of its own, such as train.npz"
        raise Rejection("read", "several-splits", message)
    other = next((each for each in arrays if each.rows != arrays[0].rows), None)
    if other is not None:
        one = arrays[0]
        message = (
            f"{one.what} has {one.rows:,} rows and {other.what} has {other.rows:,}, but all columns need the same number of"
            " rows; save them in files of their own"
        )
        raise Rejection("read", "several-lengths", message)


class NpzRows(StoredRows):
    """The rows of arrays that are not compressed."""

    def __init__(self, file: BinaryIO, path: str, arrays: list[Stored], archive: zipfile.ZipFile) -> None:
        super().__init__(file, path, arrays)
        self._archive = archive

    def cuts(self) -> list[tuple[int, int, int]]:
        """Return runs of rows of about 1 MiB. Raises Rejection if a checksum is wrong."""
        _check_sums(self._archive)
        return super().cuts()


def _check_sums(archive: zipfile.ZipFile) -> None:
    """Read all members to their ends, where zipfile compares checksums. Raises Rejection."""
    try:
        for member in archive.infolist():
            with archive.open(member) as file:
                while file.read(_CHUNK):
                    pass
    except _FAULTS as error:
        raise _damaged(error) from None


class InflatedRows:
    """The rows of arrays of which some are compressed: they are read from the first one on."""

    def __init__(self, file: BinaryIO, path: str, arrays: list[Stored], archive: zipfile.ZipFile) -> None:
        self.schema = schema_of(arrays)
        self._file, self._path, self._arrays, self._archive = file, path, arrays, archive
        self._size = os.fstat(file.fileno()).st_size

    def cuts(self) -> list[tuple[int, int, int]]:
        """Return all rows as one unit. Raises Rejection if a checksum is wrong."""
        _check_sums(self._archive)
        rows = self._arrays[0].rows
        return [(0, self._size, rows)] if rows else []

    def hash(self, unit: Unit, digest: Digest) -> None:
        """Give the bytes of the file to a digest."""
        hash_range(self._path, 0, self._size, digest)

    def batches(self, unit: Unit, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a unit, going on where the last one ended."""
        key = (self._path, *version_of(self._path), *names)
        yield from rows_of(key, lambda: _inflated(self._path, self._arrays, names), unit.first - 1, unit.records)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _inflated(path: str, arrays: list[Stored], names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield all rows. The file is opened anew: it stays open from one unit to the next."""
    wanted = [each for each in arrays if set(columns_named(each, len(arrays))) & set(names)]
    whole = Unit(0, 0, 0, 1, arrays[0].rows)
    with ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path))
        files = [stack.enter_context(archive.open(f"{each.name}.npy")) for each in wanted]
        for file, array in zip(files, wanted, strict=True):
            _exactly(file, array.header.size)
        for _, count in runs_of(whole, sum(each.row_bytes for each in arrays)):
            columns: dict[str, pa.Array] = {}
            for file, array in zip(files, wanted, strict=True):
                rows = array.shaped(_exactly(file, count * array.row_bytes), count)
                columns |= columns_of(array, rows, len(arrays), names)
            yield batch_of({name: columns[name] for name in names}, count)


def columns_named(array: Stored, arrays: int) -> list[str]:
    """Return the names of the columns of an array among so many."""
    return schema_of([array]).names if arrays == 1 else [array.name]


def _exactly(file: IO[bytes], size: int) -> bytes:
    """Return the next bytes. Raises ValueError if there are fewer."""
    parts = []
    while size and (data := file.read(size)):
        parts.append(data)
        size -= len(data)
    if size:
        raise ValueError("a compressed array ends early")
    return b"".join(parts)
