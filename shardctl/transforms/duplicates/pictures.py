"""Which images of a dataset are duplicates of others: the answer of a rule for hashes of all of
them.

An image is kept unless one that is kept before it, in the order of the listing, is alike; it is
then dropped for the first of these. So the answer depends on nothing but the images and their
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
import numpy.typing as npt

from shardctl.errors import Rejection
from shardctl.format.arrays import Bools, Bytes, Hashes, Numbers
from shardctl.system.text import printable
from shardctl.transforms.duplicates.exact import HASHED, firsts
from shardctl.transforms.duplicates.rule import DuplicateRule

Places = Numbers
Distances = Bytes

LEAF = 256
"""So many hashes are compared each with each."""

_PARTS = 8
"""Into so many parts more hashes are cut: each part is compared with what is kept of those before
it."""

_AT_ONCE = 1 << 16
"""Pairs of hashes that are in memory at a time, at about 100 bytes each."""

SETUP, LOOKUP = 1 << 20, 10
"""What tables for lookups, and one lookup, cost: as much as comparing so many pairs one by one
(measured)."""

_TABLES, _CHUNK = 4, 16
"""A hash is looked up by each of 4 chunks of 16 bits: where it differs in d bits, one chunk differs
in d // 4 or fewer."""


@dataclass(frozen=True)
class Repeats:
    """The duplicates among files. `kept_for` has the place of the file that each one is dropped
    for, its own where it is kept: (n,) int64. `apart` is in how many bits their hashes differ, (n,)
    uint8, where they look alike; None: the bytes are equal.

    `paths` gives the paths of files by their places, in increasing order.
    """

    rule: DuplicateRule
    kept_for: Places
    apart: Distances | None
    paths: Callable[[Places], list[str]]

    @property
    def dropped(self) -> Bools:
        """Which files are dropped, (n,)."""
        dropped: Bools = self.kept_for != np.arange(len(self.kept_for))
        return dropped

    def rejections(self, places: Places) -> list[Rejection | None]:
        """Return why files are dropped, None for those that are kept."""
        kept_for = self.kept_for[places]
        named = np.unique(kept_for[kept_for != places])
        paths = dict(zip(named.tolist(), self.paths(named), strict=True)) if len(named) else {}
        return [
            None if kept == place else self._rejection(place, printable(paths[kept]))
            for place, kept in zip(places.tolist(), kept_for.tolist(), strict=True)
        ]

    def _rejection(self, place: int, path: str) -> Rejection:
        why = f"has the same bytes as {path}, which is kept"
        if self.apart is not None:
            bits = f"{self.apart[place]} of 64 bits of their hashes differ"
            why = f"looks like {path}, which is kept ({bits}, up to {self.rule.distance} may)"
        return Rejection("plan", "duplicate", why)


def first_of_equal(digests: Hashes) -> Places:
    """Return for each digest the place of the first one that is equal, its own if there is none
    before it.

    `digests` is (n, 2) uint64; the result is (n,) int64.
    """
    rows = np.zeros(len(digests), HASHED)
    rows["high"], rows["low"] = digests.T
    rows["place"] = np.arange(len(digests))
    return firsts(rows)


def first_of_similar(hashes: Hashes, distance: int) -> Places:
    """Return for each hash the place of the first kept one that differs in no more than `distance`
    bits, its own if it is kept.

    `hashes` and the result are (n,). One million unrelated hashes take some seconds, and twice as
    many four times as long.
    """
    values, first, value_of = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int32)  # of each value, in the order in which they come first
    rank[order] = np.arange(len(order), dtype=np.int32)
    ranks, values, first = rank[value_of.reshape(-1)], values[order], first[order]
    del value_of, order, rank
    return first[_first_kept(values, distance)][ranks]


def distances(some: Hashes, others: Hashes) -> Distances:
    """Return in how many bits hashes differ, pair by pair."""
    return _ones(some ^ others)


def _first_kept(hashes: Hashes, distance: int) -> Places:
    """Go through different hashes in their order, and keep each one that is not near one that was
    kept. Return for each the place of the first kept one that it is near, its own where it is
    kept."""
    first = np.arange(len(hashes))

    def settle(places: Places) -> Places:
        """Settle hashes that are near none that were kept before them, and return the places of
        those that are kept."""
        if len(places) <= LEAF:
            return settle_each(places)
        kept = np.zeros(0, np.int64)
        for part in np.array_split(places, _PARTS):
            kept = np.append(kept, settle(without_near(part, kept)))
        return kept

    def settle_each(places: Places) -> Places:
        here = hashes[places]
        near = np.triu(_ones(here[:, None] ^ here[None, :]) <= distance, 1)
        keep = np.ones(len(places), bool)
        for later in np.flatnonzero(near.any(axis=0)).tolist():
            before = np.flatnonzero(near[:, later] & keep)
            if len(before):
                keep[later] = False
                first[places[later]] = places[before[0]]
        return places[keep]

    def without_near(places: Places, kept: Places) -> Places:
        """Settle those of some hashes that are near a kept one, and return the others."""
        if not len(kept):
            return places
        # lookups cost less than to compare each with each; their pairs are spread over memory
        lookups = len(places) * _TABLES * len(_masks(distance // _TABLES))
        cost = SETUP + lookups * (LOOKUP + 4 * len(kept) / (1 << _CHUNK))
        near = _looked_up if cost < len(places) * len(kept) else _compared
        nearest = np.full(len(places), len(kept))
        for of, other in near(hashes[places], hashes[kept], distance):
            np.minimum.at(nearest, of, other)
        alike = nearest < len(kept)
        first[places[alike]] = kept[nearest[alike]]
        return places[~alike]

    settle(first.copy())
    return first


def _compared(hashes: Hashes, others: Hashes, distance: int) -> Iterator[tuple[Places, Places]]:
    """Yield the pairs of a hash and another one, by their numbers, that are near, having compared
    each with each."""
    step = max(1, _AT_ONCE // len(others))
    for start in range(0, len(hashes), step):
        of, other = np.nonzero(_ones(hashes[start : start + step, None] ^ others) <= distance)
        yield of + start, other


def _looked_up(hashes: Hashes, others: Hashes, distance: int) -> Iterator[tuple[Places, Places]]:
    """Yield the pairs of a hash and another one, by their numbers, that are near, some of them
    several times.

    Only those are compared of which one chunk is near.
    """
    masks = _masks(distance // _TABLES)
    for table in range(_TABLES):
        shift = np.uint64(table * _CHUNK)
        of_hashes, of_others = ((each >> shift).astype(np.uint16) for each in (hashes, others))
        in_order = np.argsort(of_others, kind="stable")
        ordered = others[in_order]
        ends = np.cumsum(np.bincount(of_others, minlength=1 << _CHUNK))
        starts = np.concatenate([[0], ends[:-1]])
        # neighbours look at the same places of memory
        by_hash = np.argsort(of_hashes, kind="stable")
        for some in np.array_split(by_hash, -(-len(by_hash) * len(masks) // _AT_ONCE)):
            keys = (of_hashes[some, None] ^ masks).reshape(-1)
            for numbers, places in _near(
                np.repeat(hashes[some], len(masks)), ordered, starts[keys], ends[keys], distance
            ):
                yield some[numbers // len(masks)], in_order[places]


def _near(
    hashes: Hashes, others: Hashes, starts: Places, ends: Places, distance: int
) -> Iterator[tuple[Places, Places]]:
    """Yield the pairs of a hash and one of the others from its start to its end, by their numbers,
    that are near."""
    counts = ends - starts
    total = np.cumsum(counts)
    begin, before = 0, 0
    while begin < len(counts):
        end = max(begin + 1, int(np.searchsorted(total, before + _AT_ONCE, side="right")))
        here, after = counts[begin:end], total[begin:end]
        places = np.arange(before, int(after[-1])) + np.repeat(
            starts[begin:end] - after + here, here
        )
        near = np.flatnonzero(
            _ones(np.repeat(hashes[begin:end], here) ^ others[places]) <= distance
        )
        yield begin + np.searchsorted(after, near + before, side="right"), places[near]
        begin, before = end, int(after[-1])


@cache
def _masks(radius: int) -> npt.NDArray[np.uint16]:
    """Return all numbers of 16 bits of which no more than `radius` are set."""
    numbers = (
        sum(1 << bit for bit in bits)
        for count in range(radius + 1)
        for bits in combinations(range(_CHUNK), count)
    )
    return np.fromiter(numbers, np.uint16)


def _ones(values: Hashes) -> Distances:
    """Return how many bits of each number are set."""
    if hasattr(np, "bitwise_count"):
        counted: Distances = np.bitwise_count(values)
        return counted
    # numpy 1: of each byte, which a table has
    of_bytes = np.array([number.bit_count() for number in range(256)], np.uint8)
    parts = np.ascontiguousarray(values)[..., None].view(np.uint8)
    sums: Distances = of_bytes[parts].sum(axis=-1, dtype=np.uint8)
    return sums
