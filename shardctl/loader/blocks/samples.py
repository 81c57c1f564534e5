"""A cache of decoded images, of limited size."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt


class DecodedImageCache:
    """Keeps decoded images until `limit` bytes are full. Threads may share it.

    Nothing is dropped for something newer: an epoch meets every sample once, so that what was used last is needed last, and
    each byte of a full cache is worth the same whichever samples are in it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit
        self._kept: dict[tuple[str, int], npt.NDArray[np.uint8]] = {}
        self._lock = threading.Lock()
        self.hits = self.misses = 0

    def get(self, field: str, sample: int) -> npt.NDArray[np.uint8] | None:
        """Return the decoded image of a field of a sample, None if it is not kept."""
        if not self._limit:
            return None
        found = self._kept.get((field, sample))
        if found is None:
            self.misses += 1
        else:
            self.hits += 1
        return found

    def keep(self, field: str, sample: int, pixels: npt.NDArray[np.uint8]) -> None:
        """Keep a copy of a decoded image if there is room."""
        if self._left < pixels.nbytes:
            return
        with self._lock:
            if self._left >= pixels.nbytes and (field, sample) not in self._kept:
                self._kept[field, sample] = np.array(pixels)
                self._left -= pixels.nbytes
