"""A column of texts as flat arrays: their bytes of UTF-8 one after the other, and where each text
begins."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]


class TextBytes(NamedTuple):
    """The bytes of texts, one after the other. Text i is data[offsets[i]:offsets[i + 1]]; offsets
    are (n + 1,) from 0."""

    data: Bytes
    offsets: Places

    @property
    def sizes(self) -> Places:
        """How many bytes each text has, (n,)."""
        return np.diff(self.offsets)


def bytes_of(texts: pa.Array) -> TextBytes:
    """Return the bytes of texts, (n,) string. They are not copied. A missing text has none.

    Raises TypeError for anything else: `encode` of a tokenizer gets what a person gives.
    """
    if not isinstance(texts, pa.Array):
        raise TypeError(
            "texts are an array of Arrow, as in pa.array(['one text']); it is "
            f"{type(texts).__name__}"
        )
    if not len(texts):
        return TextBytes(np.zeros(0, np.uint8), np.zeros(1, np.int64))
    _, offsets_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[
        texts.offset : texts.offset + len(texts) + 1
    ].astype(np.int64)
    data = (
        np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    )
    return TextBytes(data[offsets[0] : offsets[-1]], offsets - offsets[0])


def texts_from(data: Bytes, offsets: Places) -> pa.Array:
    """Return bytes as texts: (n,) string, text i is data[offsets[i]:offsets[i + 1]]."""
    buffers = [
        None,
        pa.py_buffer(offsets.astype(np.int32)),
        pa.py_buffer(np.ascontiguousarray(data)),
    ]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)
