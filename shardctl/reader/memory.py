"""Where the arrays of a batch lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class BatchMemory:
    """The memory of one batch, and of a later one when nobody needs the first any more.

    It is Arrow's, which keeps freed pages for a while; numpy's go back to the system.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, pa.Buffer] = {}

    def array(self, field: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an array for the values of a field, whatever is in it: where the last one lay, if there is room for it."""
        count = int(np.prod(shape, dtype=np.int64))
        buffer = self._buffers.get(field)
        if buffer is None or buffer.size < count * dtype.itemsize:
            buffer = self._buffers[field] = pa.allocate_buffer(count * dtype.itemsize)
        return np.frombuffer(buffer, dtype, count).reshape(shape)
