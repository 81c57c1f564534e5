"""Which of many hashes on disk are equal to another one, whose text comes before it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from shardctl.transforms.duplicates.runs import PARTS, PARTS_BITS, Rows, Runs

PIECE_BITS = 28
"""A place is the rank of a document among all, followed by the number of a piece of it in so many
bits."""

HASHED = np.dtype(
    [("high", np.uint64), ("low", np.uint64), ("place", np.int64), ("size", np.int64)]
)
"""A hash of 128 bits, the place of what was hashed, and its bytes."""

DROPPED = np.dtype([("place", np.int64), ("kept", np.int64), ("similarity", np.float32)])
"""What is dropped, by its place; the place of what is kept; how alike they are, from 0 to 1."""


def add_hashes(runs: Runs, rows: Rows) -> None:
    """Add rows of HASHED, divided by their hashes."""
    runs.add(rows, rows["high"] >> np.uint64(64 - PARTS_BITS))


def repeated(runs: Runs) -> Iterator[tuple[Rows, int]]:
    """Yield what has the same hash as something before it, as rows of DROPPED, and the bytes of it.
    The runs are used up.

    It does not depend on the order in which the hashes were added. In memory is a part of the
    different hashes.
    """
    for part in range(PARTS):
        first = np.zeros(0, HASHED)
        # one line may be there a hundred million times: only its first place is kept in memory
        if runs.chunked(part):
            for chunk in runs.chunks(part):
                joined = np.concatenate([first, chunk])
                first = joined[np.unique(_firsts(joined))]
        for chunk in runs.chunks(part):
            yield _repeated_in(chunk, first)
        runs.remove(part)


def _repeated_in(rows: Rows, before: Rows) -> tuple[Rows, int]:
    """Return those of some rows that repeat others of them, or of those `before`, and the bytes of
    them."""
    joined = np.concatenate([before, rows])
    place = joined["place"]
    kept = place[_firsts(joined)]
    again = np.flatnonzero(place[len(before) :] != kept[len(before) :]) + len(before)
    dropped = np.zeros(len(again), DROPPED)
    dropped["place"], dropped["kept"], dropped["similarity"] = place[again], kept[again], 1
    return dropped, int(joined["size"][again].sum())


def _firsts(rows: Rows) -> npt.NDArray[np.int64]:
    """Return for each row that of the same hash with the lowest place: numbers of rows, (n,)."""
    high, low, place = (np.ascontiguousarray(rows[name]) for name in ("high", "low", "place"))
    if not len(high):
        return np.zeros(0, np.int64)
    order = np.argsort(high, kind="stable")
    same = high[order][1:] == high[order][:-1]
    if (same & (low[order][1:] != low[order][:-1])).any():  # half a hash is the same by chance
        order = np.lexsort((low, high))
        same = (high[order][1:] == high[order][:-1]) & (low[order][1:] == low[order][:-1])
    begins = np.append(True, ~same)
    group = np.cumsum(begins) - 1
    lowest = np.minimum.reduceat(place[order], np.flatnonzero(begins))
    is_lowest = np.flatnonzero(place[order] == lowest[group])
    chosen = np.zeros(len(lowest), np.int64)
    chosen[group[is_lowest]] = order[is_lowest]
    firsts = np.empty(len(order), np.int64)
    firsts[order] = chosen[group]
    return firsts
