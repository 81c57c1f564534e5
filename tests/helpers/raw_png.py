"""PNG files of any number of bits, as Pillow does not write them."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np


def png(values: Any, bits: int, clear: list[int] | None = None) -> bytes:
    """A grey (height, width) or RGB PNG of so many bits, with a transparent colour."""
    grid = np.asarray(values)
    rows = grid.reshape(len(grid), -1)
    shifts = np.arange(bits - 1, -1, -1)
    lines = [b"\0" + np.packbits((row[:, None] >> shifts) & 1).tobytes() for row in rows]
    header = struct.pack(
        ">IIBBBBB", grid.shape[1], grid.shape[0], bits, 0 if grid.ndim == 2 else 2, 0, 0, 0
    )
    parts = [(b"IHDR", header)]
    if clear is not None:
        parts.append((b"tRNS", struct.pack(f">{len(clear)}H", *clear)))
    parts += [(b"IDAT", zlib.compress(b"".join(lines))), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
