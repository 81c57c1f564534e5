"""Where the blocks of an Arrow IPC file lie, from the last bytes of the file alone.

https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format: a file ends with a footer (a
flatbuffer), its length as a 32-bit number, and "ARROW1". The footer lists the place of each record
batch.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

MAGIC = b"ARROW1"
END_BYTES = 4 + len(MAGIC)
"""What comes after the footer."""

_BLOCK = np.dtype([("offset", "<i8"), ("metadata", "<i4"), ("padding", "<i4"), ("body", "<i8")])
"""The struct Block of File.fbs."""

_DICTIONARIES, _RECORD_BATCHES = 2, 3
"""The numbers of these fields in the table Footer of File.fbs."""


@dataclass(frozen=True)
class Extents:
    """The place of each block in a file: where it begins and how many bytes it has, (blocks,) int64
    each."""

    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]


def footer_bytes(tail: bytes) -> int:
    """Return how many of the last bytes of a file belong to its footer. Raises ValueError if it is
    no Arrow file."""
    if len(tail) < END_BYTES or tail[-len(MAGIC) :] != MAGIC:
        raise ValueError("it does not end as an Arrow file does")
    (length,) = struct.unpack_from("<i", tail, len(tail) - END_BYTES)
    if length <= 0:
        raise ValueError(f"its footer has {length} bytes")
    return int(length) + END_BYTES


def extents_of(tail: bytes, size: int) -> Extents:
    """Return where the blocks lie in a file of `size` bytes, of which `tail` are the last, with all
    of the footer.

    Every block lies inside the file, before the footer. Raises ValueError if the footer says
    anything else.
    """
    length = footer_bytes(tail)
    if length > len(tail) or length > size:
        raise ValueError("its footer is longer than the file")
    footer = tail[len(tail) - length : len(tail) - END_BYTES]
    try:
        if len(_vector(footer, _DICTIONARIES)):
            raise ValueError("it has dictionaries, which no shard has")
        found = _vector(footer, _RECORD_BATCHES)
    except struct.error as error:
        raise ValueError(f"its footer leads out of itself ({error})") from None
    starts, metadata, body = (
        found[name].astype(np.int64) for name in ("offset", "metadata", "body")
    )
    end = size - length
    if (
        (starts < 0)
        | (metadata <= 0)
        | (body < 0)
        | (starts > end)
        | (body > end - starts)
        | (metadata > end - starts - body)
    ).any():
        raise ValueError("a block lies outside of it")
    return Extents(starts, metadata + body)


def _vector(footer: bytes, field: int) -> npt.NDArray[Any]:
    """Return a vector of Blocks of the root table. Raises struct.error or ValueError where the
    bytes lead astray."""
    (table,) = struct.unpack_from("<I", footer, 0)
    (back,) = struct.unpack_from("<i", footer, table)
    vtable = table - back
    _expect(vtable >= 0)
    (vtable_bytes,) = struct.unpack_from("<H", footer, vtable)
    entry = 4 + 2 * field
    if entry + 2 > vtable_bytes:
        return np.empty(0, _BLOCK)
    (at,) = struct.unpack_from("<H", footer, vtable + entry)
    if not at:
        return np.empty(0, _BLOCK)
    (forward,) = struct.unpack_from("<I", footer, table + at)
    vector = table + at + forward
    (count,) = struct.unpack_from("<I", footer, vector)
    _expect(vector + 4 + count * _BLOCK.itemsize <= len(footer))
    return np.frombuffer(footer, _BLOCK, count, vector + 4)


def _expect(holds: bool) -> None:
    if not holds:
        raise ValueError("its footer leads out of itself")
