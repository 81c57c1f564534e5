"""The content of files that hold records: of a plain one any part, a compressed one is read from
its beginning."""

from __future__ import annotations

import bz2
import lzma
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

import zstandard

from shardctl.errors import Rejection
from shardctl.sources.formats.base import refused
from shardctl.system.files import open_ordinary

CHUNK_BYTES = 1 << 20
"""The most bytes that are decompressed at a time."""

READ_BYTES = 256 << 10
"""Compressed bytes that are read at a time."""

WINDOW_BYTES = 2 << 30
"""The most memory that a file may ask for. `zstd --long=31` does; the memory is used only as far as
there is data for it."""


class Truncated(Exception):
    """The compressed file ends before its data does."""


class _Zlib:
    """zlib, or isal, with the methods of bz2 and lzma."""

    def __init__(self, module: Any, wbits: int) -> None:
        self._inflate = module.decompressobj(wbits=wbits)
        self.needs_input = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inflate, name)  # eof, unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        tail = self.unconsumed_tail
        chunk: bytes = self._inflate.decompress(tail + data if tail else data, max_length)
        # a full chunk: more may be ready
        self.needs_input = not self.unconsumed_tail and len(chunk) < max_length
        return chunk


class Compression(NamedTuple):
    """A way to compress files: its name, the bytes that such a file begins with, and how one is
    read."""

    name: str
    magic: bytes
    chunks: Callable[[BinaryIO, Compression], Iterator[bytes]]

    def refused(self, error: object = "") -> Rejection:
        """Return what the library means. Of damaged data nothing is used: how far it could be read
        would differ with the version of the library."""
        if "memory" in str(error).lower():
            return refused(
                "needs-memory",
                f"it takes over {WINDOW_BYTES >> 30} GiB of memory; compress it anew",
            )
        if "dictionary" in str(error).lower():
            return refused(
                "needs-dictionary",
                "it needs a dictionary; decompress it first, with zstd -d -D DICTIONARY",
            )
        return refused(
            "damaged",
            f"its {self.name} data is damaged; get it again, or save what {self.name} -dc can read",
        )


_OTHER_CONTENT = {
    b"\x1f\x8b": "add .gz to its name",
    b"\x28\xb5\x2f\xfd": "add .zst to its name",
    b"\xfd7zXZ\0": "add .xz to its name",
    b"BZh91AY&SY": "add .bz2 to its name",
    b"PK\3\4": "it is a ZIP archive",
    b"PAR1": "it is a Parquet file",
    b"ARROW1\0\0": "it is an Arrow file",
    b"\xff\xd8\xff": "it is a JPEG image",
    b"\x89PNG\r\n": "it is a PNG image",
}
"""What files begin with that are no text, whatever their names say."""


def refuse_other_content(start: bytes) -> None:
    """Raise Rejection if a file that is to be text begins with `start` (10 bytes), and so is
    something else."""
    for magic, advice in _OTHER_CONTENT.items():
        if start.startswith(magic):
            raise refused("wrong-format", f"it is no text; {advice}")


def compression_of(start: bytes) -> str | None:
    """Return how a file is compressed that begins with `start` (10 bytes or more), None for a file
    that is not."""
    if len(start) >= len(_ZSTD_MAGIC) and _is_zstd(start[: len(_ZSTD_MAGIC)]):
        return "zst"
    if start.startswith(_BZIP2_MAGIC):  # these three letters may be a name
        return "bz2" if start[3:4].isdigit() and start[4:10] in _BZIP2_BLOCKS else None
    return next((name for name, way in COMPRESSIONS.items() if start.startswith(way.magic)), None)


def compression_named(path: str) -> str | None:
    """Return how a file is compressed by the end of its name: gz for `a.jsonl.gz`, None for
    `a.csv`."""
    ending = os.path.splitext(path.lower())[1][1:]  # noqa: PTH122 (called for millions of names)
    return ending if ending in COMPRESSIONS else None


def decompressed(file: BinaryIO, compression: str) -> Iterator[bytes]:
    """Yield the bytes of a compressed file, up to 1 MiB at a time, all its members or frames one
    after the other.

    Each member's checksum is tested at its end: nothing is certain of what was yielded before.
    Raises Truncated after the last bytes that can be had of a file that ends early, Rejection
    (stage `read`) if it is damaged or something else, OSError.
    """
    way = _ZLIB if compression == _ZLIB.name else COMPRESSIONS[compression]
    start = file.read(len(way.magic))
    file.seek(0)
    if not start:
        raise refused("empty", f"the file is empty, not a {way.name} file; make it again")
    if not _may_begin(start, way):
        raise refused("wrong-format", f"it is not a {way.name} file; rename it")
    return way.chunks(file, way)


def _may_begin(data: bytes, way: Compression) -> bool:
    """Tell whether a member may begin like this; zstd has frames to be skipped, with magic numbers
    of their own."""
    return _is_zstd(data) if way.magic == _ZSTD_MAGIC else way.magic.startswith(data)


def _is_zstd(start: bytes) -> bool:
    skippable = bool(start) and start[0] >> 4 == 5 and b"\x2a\x4d\x18".startswith(start[1:])
    return skippable or _ZSTD_MAGIC.startswith(start)


def _members(
    new: Callable[[], Any], fault: type[Exception], file: BinaryIO, way: Compression
) -> Iterator[bytes]:
    """Decompress members one after the other; zeros between and after them are padding."""
    decompressor = new()
    data = b""
    while True:
        try:
            chunk = decompressor.decompress(data, CHUNK_BYTES)
        except fault as error:
            raise way.refused(error) from None
        if chunk:
            yield chunk
        data = b""
        if decompressor.eof:
            data = _next_member(decompressor.unused_data, file, way)
            if not data:
                return
            decompressor = new()
        elif decompressor.needs_input:
            data = file.read(READ_BYTES)
            if not data:
                raise Truncated


def _next_member(data: bytes, file: BinaryIO, way: Compression) -> bytes:
    """Return the first bytes of the next member, none at the end of the file. Raises Rejection if
    it is something else."""
    data = data.lstrip(b"\0")
    while len(data) < len(way.magic):
        more = file.read(READ_BYTES)
        if not more:
            break
        data = (data + more).lstrip(b"\0")
    if not _may_begin(data[: len(way.magic)], way):
        raise refused("damaged", f"something else follows its {way.name} data; get the file again")
    return data


def _inflated(wbits: int, file: BinaryIO, way: Compression) -> Iterator[bytes]:
    """Decompress with isal where it is installed, and give what zlib gives.

    Of a file that is cut, zlib can decode a byte or so more. That must not depend on what is
    installed: zlib gives the rest.
    """
    given = 0
    if isal_zlib:
        try:
            for chunk in _members(partial(_Zlib, isal_zlib, wbits), isal_zlib.error, file, way):
                given += len(chunk)
                yield chunk
            return
        except Truncated:
            file.seek(0)
    passed = 0
    for chunk in _members(partial(_Zlib, zlib, wbits), zlib.error, file, way):
        rest = chunk[max(0, given - passed) :]
        passed += len(chunk)
        if rest:
            yield rest


_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BZIP2_MAGIC = b"BZh"
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
"""What follows the digit after it: the first block, or the end of nothing."""


def _zstd(file: BinaryIO, way: Compression) -> Iterator[bytes]:
    """Decompress all frames. The library ends without an error where a file is cut, so its blocks
    are walked through too."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES)
    reader = decompressor.stream_reader(
        file, read_size=READ_BYTES, read_across_frames=True, closefd=False
    )
    while True:
        try:
            chunk = reader.read(CHUNK_BYTES)
        except zstandard.ZstdError as error:
            raise way.refused(error) from None
        if not chunk:
            break
        yield chunk
    _walk_frames(file, way)


def _walk_frames(file: BinaryIO, way: Compression) -> None:
    """Go from block to block without decoding them. Raises Truncated if the last frame is not
    whole, Rejection."""
    size = file.seek(0, os.SEEK_END)
    at = 0
    while at < size:
        file.seek(at)
        head = file.read(8)
        if not _is_zstd(head[:4]):
            raise way.refused()
        if len(head) < 8:
            raise Truncated
        at = (
            at + 8 + struct.unpack_from("<I", head, 4)[0]
            if head[:4] != _ZSTD_MAGIC
            else _end_of_frame(file, at, head[4])
        )
    if at > size:
        raise Truncated


def _end_of_frame(file: BinaryIO, at: int, flags: int) -> int:
    """Return where a frame ends that begins at `at` and has these flags (RFC 8878, section
    3.1.1)."""
    single_segment = flags >> 5 & 1
    size_bytes = (single_segment, 2, 4, 8)[flags >> 6]
    at += 5 + (1 - single_segment) + (0, 1, 2, 4)[flags & 3] + size_bytes
    last = False
    while not last:
        file.seek(at)
        head = file.read(3)
        if len(head) < 3:
            raise Truncated
        block = int.from_bytes(head, "little")
        last = bool(block & 1)
        repeated = block >> 1 & 3 == 1  # one byte, and how often it comes
        at += 3 + (1 if repeated else block >> 3)
    return at + 4 * (flags >> 2 & 1)  # the checksum


COMPRESSIONS = {
    "gz": Compression("gzip", b"\x1f\x8b", partial(_inflated, 31)),
    # OSError, but not that of reading
    "bz2": Compression("bzip2", _BZIP2_MAGIC, partial(_members, bz2.BZ2Decompressor, OSError)),
    "xz": Compression(
        "xz",
        b"\xfd7zXZ\0",
        partial(
            _members, partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, WINDOW_BYTES), lzma.LZMAError
        ),
    ),
    "zst": Compression("zstd", _ZSTD_MAGIC, _zstd),
}
"""The endings of names, and what they stand for."""

_ZLIB = Compression("zlib", b"\x78", partial(_inflated, 15))


BUFFER_BYTES = 16 << 10
"""What is read of a plain file at once where less is asked for: several small records, and little
beside a header."""


class Content:
    """The content of a file that is not compressed.

    `compression` names how a file is compressed, None if it is not. `fault` says why a compressed
    file cannot be read to its end, as soon as that was met.
    """

    compression: str | None = None
    fault: Rejection | None = None

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._buffer, self._start = b"", 0
        self._size = file.seek(0, os.SEEK_END)

    def at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset` on, fewer where the content ends: small parts from a
        buffer, so that headers do not cost a call of the system each. Raises OSError,
        Rejection."""
        place = offset - self._start
        if place >= 0 and place + size <= len(self._buffer):
            return self._buffer[place : place + size]
        if size >= BUFFER_BYTES:
            return self._read(offset, size)
        self._buffer, self._start = self._read(offset, BUFFER_BYTES), offset
        return self._buffer[:size]

    def _read(self, offset: int, size: int) -> bytes:
        if offset >= self._size:  # a header may say any place, also one that no file has
            return b""
        size = min(size, self._size - offset)
        parts = []
        self._file.seek(offset)
        while size and (data := self._file.read(size)):  # at most 2 GiB at once
            parts.append(data)
            size -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def reaches(self, offset: int) -> bool:
        """Return whether there is content up to `offset`. Raises OSError, Rejection."""
        return offset <= self._size

    def release(self, offset: int) -> None:
        """Nothing before `offset` will be asked for again."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Chunks:
    """What a file holds, from its beginning on. `fault` says why it is not read to its end, `done`
    whether there is no more."""

    fault: Rejection | None = None
    done = False

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.chunks = chunks

    def next_chunk(self) -> bytes:
        """Return more of it, nothing at the end."""
        chunk = b""
        try:
            chunk = next(self.chunks, b"")
        except Truncated:
            self.fault = refused("truncated", "the compressed file ends early")
        self.done = not chunk
        return chunk


class StreamedContent(Chunks, Content):
    """A compressed file: what was not released is in memory."""

    def __init__(self, file: BinaryIO, compression: str, chunks: Iterator[bytes]) -> None:
        super().__init__(chunks)
        self.compression, self._file = compression, file
        self._held = bytearray()
        self._start = 0

    def at(self, offset: int, size: int) -> bytes:
        """Return a part, having read on as far as that needs."""
        if offset < self._start:
            raise ValueError("this part was released")
        self.reaches(offset + size)
        place = offset - self._start
        return bytes(self._held[place : place + size])

    def reaches(self, offset: int) -> bool:
        """Return whether there is content up to `offset`, having read on so far."""
        while offset > self._start + len(self._held) and not self.done:
            self._fill()
        return offset <= self._start + len(self._held)

    def _fill(self) -> None:
        self._held += self.next_chunk()

    def release(self, offset: int) -> None:
        """Forget what is before `offset`, and pass over what has not been read yet."""
        while offset > self._start + len(self._held) and not self.done:
            self._start += len(self._held)
            self._held.clear()
            self._fill()
        passed = min(offset - self._start, len(self._held))
        if passed > 0:
            del self._held[:passed]
            self._start += passed


HEAD_BYTES = 16
"""The first bytes of a file, by which `content_of` tells how it is compressed."""


def open_content(path: str, is_plain: Callable[[bytes], bool]) -> Content:
    """Open a file. Raises OSError, Rejection."""
    return content_of(open_ordinary(path), is_plain)


def content_of(file: BinaryIO, is_plain: Callable[[bytes], bool]) -> Content:
    """Return the content of an open file, which it closes; how it is compressed, its first bytes
    say. Raises OSError, Rejection.

    `is_plain` tells of the first HEAD_BYTES that look like those of a compressed file whether they
    are no such thing.
    """
    try:
        start = file.read(HEAD_BYTES)
        file.seek(0)
        name = compression_of(start) or (_ZLIB.name if _is_zlib(start) else None)
        if name is None or is_plain(start):
            return Content(file)
        return StreamedContent(file, name, decompressed(file, name))
    except BaseException:
        file.close()
        raise


def _is_zlib(start: bytes) -> bool:
    """Return whether data in the format of zlib may begin like this (RFC 1950, section 2.2), with a
    window of 32 KiB."""
    return (
        start[:1] == b"\x78"
        and len(start) > 2
        and not start[1] & 0x20
        and int.from_bytes(start[:2], "big") % 31 == 0
    )


isal_zlib: ModuleType | None
try:  # two to three times as fast as zlib
    isal_zlib = import_module("isal.isal_zlib")
except ImportError:
    isal_zlib = None
