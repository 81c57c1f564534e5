"""Losslessly coded JPEG, which hardly any program writes."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt


def lossless_jpeg(pixels: npt.NDArray[Any]) -> bytes:
    """Code (height, width, components) uint8 as SOF3: every value as its difference from the one to
    its left."""
    values = pixels.astype(int)
    guess = np.full(values.shape, 128)
    guess[1:, 0] = values[:-1, 0]
    guess[:, 1:] = values[:, :-1]
    bits = []
    for difference in (values - guess).reshape(-1).tolist():
        size = abs(difference).bit_length()
        bits.append(f"{size:04b}")
        if size:
            bits.append(
                f"{difference if difference > 0 else difference + (1 << size) - 1:0{size}b}"
            )
    stream = "".join(bits)
    stream += "1" * (-len(stream) % 8)
    scan = int(stream, 2).to_bytes(len(stream) // 8, "big").replace(b"\xff", b"\xff\x00")
    height, width, components = pixels.shape
    names = b"RGB"[:components]
    tables = bytes([0]) + bytes([0, 0, 0, 9] + [0] * 12) + bytes(range(9))
    frame = struct.pack(">BHHB", 8, height, width, components) + b"".join(
        bytes([name, 0x11, 0]) for name in names
    )
    start = bytes([components]) + b"".join(bytes([name, 0]) for name in names) + bytes([1, 0, 0])
    segments = [(0xC3, frame), (0xC4, tables), (0xDA, start)]
    head = b"".join(
        struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content
        for marker, content in segments
    )
    return b"\xff\xd8" + head + scan + b"\xff\xd9"
