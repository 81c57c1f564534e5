"""The memory of the arrays of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.system.mmap import was_mended

Batch = dict[str, Any]
"""Field name to values: arrays of shape (batch, ...) for numbers and images of one shape, lists for everything else."""


class BatchMemory:
    """The memory of one batch, reused for a later batch when the first is no longer in use.

    It is Arrow's, which keeps freed pages for a while; numpy's go back to the system.
    """

    views = True
    """Whether values that need no change may be views of the dataset's files, instead of copies in this memory."""

    def __init__(self) -> None:
        self._buffers: dict[str, Any] = {}

    def array(self, field: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an array for the values of a field, whatever is in it: where the last one lay, if there is room for it."""
        count = int(np.prod(shape, dtype=np.int64))
        buffer = self._buffers.get(field)
        if buffer is None or buffer.size < count * dtype.itemsize:
            buffer = self._buffers[field] = self._allocate(count * dtype.itemsize)
        return np.frombuffer(buffer, dtype, count).reshape(shape)

    def _allocate(self, size: int) -> Any:
        """Return new memory of `size` bytes or more: what numpy takes for a buffer, with its `size` in bytes."""
        return pa.allocate_buffer(size)


def without_views(batch: Batch) -> Batch:
    """Return a batch with copies instead of views of the dataset's files: for callers that keep it, or write to it.

    Raises DatasetError if its file is cut short meanwhile: the copy would have zeros in place of what is lost.
    """
    own = dict(batch)
    for name, values in batch.items():
        if isinstance(values, np.ndarray) and not values.flags.writeable:
            own[name] = values.copy()
            if was_mended(values.ctypes.data):
                raise DatasetError(f"a shard was cut short while {name} was copied; run `shardctl verify` on the dataset")
    return own
