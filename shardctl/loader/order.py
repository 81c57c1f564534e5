"""The order of one epoch: which sample comes at which position, and which positions are whose.
docs/loader.md.

All orders are functions of (seed, epoch, the dataset's blocks). They do not depend on threads,
ranks or earlier reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardctl.errors import UsageError
from shardctl.format.arrays import Numbers, begin_runs, edges_of
from shardctl.system.arguments import whole_number
from shardctl.system.permutation import Orders, key_of, mix64, permute

MODES = ("global", "window", "block")
PIECES_PER_LANE = 32
"""Blocks of a lane at least, where there are so many: the two at its ends are cut, and read once
for each part."""

_LANES, _PIECES, _SAMPLES = 1, 2, 3
"""The purpose of a random key: each purpose has its own random stream."""


@dataclass(frozen=True)
class OrderOptions:
    """How samples are ordered. `mode` is None for the order in which they are stored, or one of
    MODES.

    `lanes` is the number of parallel streams of blocks; each batch takes samples from all of them.
    It is halved until a lane has at least PIECES_PER_LANE blocks, if possible. `interleave` is the
    number of blocks, over all lanes, from which samples are drawn at a time.
    """

    mode: str | None = None
    seed: int = 0
    lanes: int = 64
    interleave: int = 64

    def __post_init__(self) -> None:
        """Raise UsageError for impossible options."""
        if self.mode is not None and self.mode not in MODES:
            raise UsageError(
                f"shuffle {self.mode!r} is not known; use True, False, "
                f"{', '.join(map(repr, MODES))}"
            )
        whole_number("lanes", self.lanes, 1)
        whole_number("interleave", self.interleave, 1)


class EpochOrder:
    """The order of the samples of one epoch: this one as they are stored, from `first` on."""

    def __init__(self, first: int = 0) -> None:
        self._first_sample = first

    def samples(self, positions: Numbers) -> Numbers:
        """Return the samples at these positions, (n,)."""
        return positions + self._first_sample if self._first_sample else positions

    def share(self, first: int, count: int, rank: int, world_size: int) -> Numbers:
        """Return the positions that a rank takes of the `count` that begin at `first`, a part as
        even as can be: a run of neighbours."""
        return neighbours(first, count, rank, world_size)


class Ordering:
    """Gives the order of any epoch. `starts` (blocks + 1,) says at which sample each block begins,
    and the size.

    `open_blocks` is the number of blocks from which samples are drawn at a time; 1 if the order does
    not depend on blocks.
    """

    def __init__(self, starts: Numbers, options: OrderOptions) -> None:
        self.options, self._starts = options, starts
        self._last: tuple[int, EpochOrder] = (-1, EpochOrder())
        self._lane_count, blocks = options.lanes, len(starts) - 1
        while self._lane_count % 2 == 0 and self._lane_count * PIECES_PER_LANE > blocks:
            self._lane_count //= 2
        several = max(1, options.interleave // self._lane_count)
        self._pieces = 1 if options.mode == "block" else several
        self.open_blocks = 1
        if options.mode in ("window", "block"):
            self.open_blocks = min(blocks, self._lane_count * self._pieces)

    def epoch(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch. The last one is kept: a loader asks once per epoch, a
        mixture for every batch."""
        number, order = self._last
        if number != epoch:
            order = self._make(epoch)
            self._last = epoch, order
        return order

    def _make(self, epoch: int) -> EpochOrder:
        mode, seed, size = self.options.mode, self.options.seed, int(self._starts[-1])
        if mode is None or not size:
            return EpochOrder()
        if mode == "global":
            return GlobalOrder(size, seed, epoch)
        return WindowOrder(self._lanes, seed, epoch, self._pieces)

    @cached_property
    def _lanes(self) -> Lanes:
        return Lanes(self._starts, self.options.seed, self._lane_count)


class GlobalOrder(EpochOrder):
    """Every order of all samples is as likely as any other (as far as a keyed bijection goes), in
    O(1) memory."""

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self._size, self._key = size, key_of(seed, epoch, _SAMPLES)

    def samples(self, positions: Numbers) -> Numbers:
        """Return the samples at these positions."""
        return permute(positions, self._size, self._key)


def _scattered(groups: Numbers, key: int) -> Numbers:
    """Return the elements of every group (n,) in a random order, group after group. Stable, so the
    same on any machine."""
    group_bits = int(groups[-1]).bit_length()
    hashes = mix64(np.arange(len(groups), dtype=np.uint64) + np.uint64(key)) >> np.uint64(
        group_bits
    )
    if group_bits:
        hashes |= groups.astype(np.uint64) << np.uint64(64 - group_bits)
    return np.argsort(hashes, kind="stable")


def neighbours(first: int, count: int, rank: int, world_size: int) -> Numbers:
    """Return the positions of a rank where each takes a run of neighbours."""
    return np.arange(
        first + count * rank // world_size, first + count * (rank + 1) // world_size, dtype=np.int64
    )


class Lanes:
    """The blocks in a random order that only the seed decides, cut into lanes of equal size.

    A lane keeps its samples from epoch to epoch, and so does the rank that reads it. A block across
    a cut is two pieces. Position q of an epoch is sample q // lanes of lane q % lanes, so that lane
    l has ceil((size - l) / lanes) samples.
    """

    def __init__(self, starts: Numbers, seed: int, lanes: int) -> None:
        self.count = lanes
        size = int(starts[-1])
        blocks = len(starts) - 1
        order = _scattered(np.zeros(blocks, np.int64), key_of(seed, _LANES))
        ends = np.cumsum(np.diff(starts)[order])
        self.bounds: Numbers = edges_of((size - np.arange(lanes) + lanes - 1) // lanes)
        # three sorted runs: merged, not sorted
        cuts = np.sort(np.concatenate([[0], ends, self.bounds]), kind="stable")
        cuts = cuts[begin_runs(cuts)]
        block = np.searchsorted(ends, cuts[:-1], side="right")
        self.sizes: Numbers = np.diff(cuts)
        """Samples of every piece, lane after lane."""
        # as far from the end of its block as the piece's begin is
        self.first: Numbers = starts[order[block] + 1] + cuts[:-1] - ends[block]
        """The first sample of every piece."""
        self.lane: Numbers = np.searchsorted(self.bounds, cuts[:-1], side="right") - 1


class WindowOrder(EpochOrder):
    """The pieces of every lane in a random order, and the samples of each window of `pieces` of
    them in a random order."""

    def __init__(self, lanes: Lanes, seed: int, epoch: int, pieces: int) -> None:
        self._lanes = lanes
        order = _scattered(lanes.lane, key_of(seed, epoch, _PIECES))
        self._first = lanes.first[order]
        self._begins = edges_of(lanes.sizes[order])
        # Windows are cut from each lane's own beginning: the first piece of a lane begins one.
        in_lane = np.arange(len(order)) - np.searchsorted(lanes.lane, lanes.lane)
        self._windows = np.concatenate(
            [self._begins[:-1][in_lane % pieces == 0], [lanes.bounds[-1]]]
        )
        keys = mix64(
            np.arange(len(self._windows) - 1, dtype=np.uint64)
            + np.uint64(key_of(seed, epoch, _SAMPLES))
        )
        self._orders = Orders.of(np.diff(self._windows), keys)

    def samples(self, positions: Numbers) -> Numbers:
        """Return the samples at these positions."""
        place = self._lanes.bounds[positions % self._lanes.count] + positions // self._lanes.count
        window = np.searchsorted(self._windows, place, side="right") - 1
        begin = self._windows[window]
        drawn = begin + self._orders.at(window).elements(place - begin)
        piece = np.searchsorted(self._begins, drawn, side="right") - 1
        return self._first[piece] + drawn - self._begins[piece]

    def share(self, first: int, count: int, rank: int, world_size: int) -> Numbers:
        """Return positions of as few lanes as can be: with a world size that divides the lanes, the
        rank's own."""
        lanes = self._lanes.count
        if world_size == 1:
            return np.arange(first, first + count, dtype=np.int64)
        if lanes % world_size == 0 and count % lanes == 0:
            own = np.arange(lanes // world_size * rank, lanes // world_size * (rank + 1))
            return np.sort(
                ((own - first) % lanes + first + lanes * np.arange(count // lanes)[:, None]).ravel()
            )
        positions = np.arange(first, first + count, dtype=np.int64)
        by_lane = np.argsort(positions % lanes, kind="stable")
        return positions[
            np.sort(by_lane[count * rank // world_size : count * (rank + 1) // world_size])
        ]


_BATCHES = 31
"""The purpose of a random key: each purpose has its own random stream."""


class BucketedOrder(EpochOrder):
    """Another order, in which each stretch of `batches` batches is sorted by length, cut into
    batches, and these shuffled.

    Every sample stays in its stretch. `lengths` gives the length of each of some samples. The batch
    at the end of the epoch that is not full has the longest ones of the last stretch.
    """

    def __init__(
        self,
        order: EpochOrder,
        size: int,
        lengths: Callable[[Numbers], Numbers],
        batch: int,
        batches: int,
        key: tuple[int, int],
    ) -> None:
        self._order, self._size, self._lengths = order, size, lengths
        self._batch, self._stretch, self._key = batch, batch * batches, key
        self._last: tuple[int, Numbers] = (-1, np.empty(0, np.int64))

    def samples(self, positions: Numbers) -> Numbers:
        """Return the samples at these positions."""
        found = np.empty(len(positions), np.int64)
        stretches = positions // self._stretch
        for number in np.unique(stretches).tolist():
            last = self._last  # another thread may put the next stretch there
            if last[0] != number:
                last = self._last = number, self._sort(number)
            here = stretches == number
            found[here] = last[1][positions[here] - number * self._stretch]
        return found

    def _sort(self, number: int) -> Numbers:
        first = number * self._stretch
        samples = self._order.samples(
            np.arange(first, min(first + self._stretch, self._size), dtype=np.int64)
        )
        samples = samples[np.argsort(self._lengths(samples), kind="stable")]
        whole = len(samples) // self._batch
        turn = permute(np.arange(whole), whole, key_of(*self._key, number, _BATCHES))
        batches = samples[: whole * self._batch].reshape(whole, self._batch)[turn]
        return np.concatenate([batches.ravel(), samples[whole * self._batch :]])

    def share(self, first: int, count: int, rank: int, world_size: int) -> Numbers:
        """Return every world_size-th position: all ranks get short and long ones of a batch.

        Of the last batch, too, a rank takes as many as in any other order.
        """
        if count % world_size == 0:
            return np.arange(first + rank, first + count, world_size, dtype=np.int64)
        turns = [np.arange(first + turn, first + count, world_size) for turn in range(world_size)]
        return np.sort(np.concatenate(turns)[neighbours(0, count, rank, world_size)])
