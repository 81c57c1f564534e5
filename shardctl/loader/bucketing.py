"""Batches of samples of about the same length, so that little of a padded batch is padding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardctl.loader.order import EpochOrder, Indices, key_of, neighbours, permute

_BATCHES = 31
"""The purpose of a random key: each purpose has its own random stream."""


class BucketedOrder:
    """Another order, in which each stretch of `batches` batches is sorted by length, cut into batches, and these shuffled.

    Every sample stays in its stretch. `lengths` gives the length of each of some samples. The batch at the end of the epoch
    that is not full has the longest ones of the last stretch.
    """

    def __init__(
        self,
        order: EpochOrder,
        size: int,
        lengths: Callable[[Indices], Indices],
        batch: int,
        batches: int,
        key: tuple[int, int],
    ) -> None:
        self._order, self._size, self._lengths = order, size, lengths
        self._batch, self._stretch, self._key = batch, batch * batches, key
        self._last: tuple[int, Indices] = (-1, np.empty(0, np.int64))

    def samples(self, positions: Indices) -> Indices:
        """Return the samples at these positions."""
        found = np.empty(len(positions), np.int64)
        stretches = positions // self._stretch
        for number in np.unique(stretches).tolist():
            here = stretches == number
            found[here] = self._sorted(number)[positions[here] - number * self._stretch]
        return found

    def _sorted(self, number: int) -> Indices:
        last = self._last  # another thread may put the next stretch there
        if last[0] != number:
            last = self._last = number, self._sort(number)
        return last[1]

    def _sort(self, number: int) -> Indices:
        first = number * self._stretch
        samples = self._order.samples(np.arange(first, min(first + self._stretch, self._size), dtype=np.int64))
        samples = samples[np.argsort(self._lengths(samples), kind="stable")]
        whole = len(samples) // self._batch
        turn = permute(np.arange(whole), whole, key_of(*self._key, number, _BATCHES))
        batches = samples[: whole * self._batch].reshape(whole, self._batch)[turn]
        return np.concatenate([batches.ravel(), samples[whole * self._batch :]])

    def share(self, first: int, count: int, rank: int, world_size: int) -> Indices:
        """Return every world_size-th position: all ranks get short and long ones of a batch.

        Of the last batch, too, a rank takes as many as in any other order.
        """
        if count % world_size == 0:
            return np.arange(first + rank, first + count, world_size, dtype=np.int64)
        every = np.concatenate(
            [np.arange(first + turn, first + count, world_size, dtype=np.int64) for turn in range(world_size)]
        )
        return np.sort(every[neighbours(0, count, rank, world_size)])
