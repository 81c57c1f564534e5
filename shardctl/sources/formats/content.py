"""The content of files that hold records: of a plain one any part, a compressed one is read from
its beginning."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol

from shardctl.errors import Rejection
from shardctl.sources.formats.streams import (
    Compression,
    Truncated,
    compression_of,
    decompressed,
    next_chunk,
)
from shardctl.system.files import ordinary

BUFFER_BYTES = 16 << 10
"""What is read of a plain file at once where less is asked for: several small records, and little
beside a header."""

INFLATED_BYTES = 1 << 20
"""The most bytes of zlib data that are decompressed at a time."""

_ZLIB = "zlib"


class Content(Protocol):
    """The content of a file. `compression` names how the file is compressed, None if it is not.

    `fault` says why a compressed file cannot be read to its end, as soon as that was met.
    """

    compression: str | None
    fault: Rejection | None

    def at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset` on, fewer where the content ends. Raises OSError,
        Rejection."""
        ...

    def reaches(self, offset: int) -> bool:
        """Return whether there is content up to `offset`. Raises OSError, Rejection."""
        ...

    def release(self, offset: int) -> None:
        """Nothing before `offset` will be asked for again."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...

    def __enter__(self) -> Content: ...

    def __exit__(self, *_: object) -> None: ...


class PlainContent:
    """A file that is not compressed."""

    compression: str | None = None
    fault: Rejection | None = None

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._buffer, self._start = b"", 0
        self._size = os.fstat(file.fileno()).st_size

    def at(self, offset: int, size: int) -> bytes:
        """Return a part: small ones from a buffer, so that headers do not cost a call of the system
        each."""
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
        # at most 2 GiB at once
        while size and (data := os.pread(self._file.fileno(), size, offset)):
            parts.append(data)
            offset, size = offset + len(data), size - len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def reaches(self, offset: int) -> bool:
        """Return whether the file is so long."""
        return offset <= self._size

    def release(self, offset: int) -> None:
        """Everything stays at hand."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> PlainContent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StreamedContent:
    """A compressed file: what was not released is in memory."""

    def __init__(self, file: BinaryIO, compression: str, chunks: Iterator[bytes]) -> None:
        self.compression: str | None = compression
        self.fault: Rejection | None = None
        self._file, self._chunks = file, chunks
        self._held = bytearray()
        self._start = 0
        self._ended = False

    def at(self, offset: int, size: int) -> bytes:
        """Return a part, having read on as far as that needs."""
        if offset < self._start:
            raise ValueError("this part was released")
        self.reaches(offset + size)
        place = offset - self._start
        return bytes(self._held[place : place + size])

    def reaches(self, offset: int) -> bool:
        """Return whether there is content up to `offset`, having read on so far."""
        while offset > self._start + len(self._held) and not self._ended:
            self._fill()
        return offset <= self._start + len(self._held)

    def _fill(self) -> None:
        chunk, fault = next_chunk(self._chunks)
        self.fault = fault or self.fault
        self._ended = not chunk
        self._held += chunk

    def release(self, offset: int) -> None:
        """Forget what is before `offset`, and pass over what has not been read yet."""
        while offset > self._start + len(self._held) and not self._ended:
            self._start += len(self._held)
            self._held.clear()
            self._fill()
        passed = min(offset - self._start, len(self._held))
        if passed > 0:
            del self._held[:passed]
            self._start += passed

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> StreamedContent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


HEAD_BYTES = 16
"""The first bytes of a file, by which `open_content` tells how it is compressed."""


def never_plain(_start: bytes) -> bool:
    """Return False: no file of a format begins like a compressed one."""
    return False


def open_content(
    path: str, is_plain: Callable[[bytes], bool] = never_plain
) -> PlainContent | StreamedContent:
    """Open a file; how it is compressed, its first bytes say. Raises OSError, Rejection.

    `is_plain` tells of the first HEAD_BYTES that look like those of a compressed file whether they
    are no such thing.
    """
    file = open(path, "rb", buffering=0, opener=ordinary)  # noqa: SIM115 (closed by close)
    try:
        start = file.read(HEAD_BYTES)
        file.seek(0)
        name = compression_of(start) or (_ZLIB if _is_zlib(start) else None)
        if name is not None and is_plain(start):
            name = None
        if name is None:
            return PlainContent(file)
        chunks = _ZLIB_WAY.chunks(file, _ZLIB_WAY) if name == _ZLIB else decompressed(file, name)
        return StreamedContent(file, name, chunks)
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


def _inflated(file: BinaryIO, way: Compression) -> Iterator[bytes]:
    inflate = zlib.decompressobj()
    while not inflate.eof:
        data = inflate.unconsumed_tail or file.read(BUFFER_BYTES)
        if not data:
            raise Truncated
        try:
            chunk = inflate.decompress(data, INFLATED_BYTES)
        except zlib.error as error:
            raise way.refused(error) from None
        if chunk:
            yield chunk


_ZLIB_WAY = Compression(_ZLIB, b"\x78", _inflated)
