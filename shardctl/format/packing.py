"""Documents packed into blocks of one length: where each piece of each document lies. Lengths in,
places out: no tokens.

Ding and others, "Fewer Truncations Improve Language Modeling" (2024), have best-fit decreasing for
this. Here documents of equal length are placed together, so that the cost depends on the number of
different lengths rather than of documents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardctl.format.arrays import Numbers, owners_of


@dataclass(frozen=True)
class Pieces:
    """Pieces of documents, in the order in which they lie: one behind the other in a block, and
    block after block.

    Piece i is `length[i]` tokens from `start[i]` on of the document `document[i]`, in the block
    `block[i]`. Each (n,) int64.
    """

    document: Numbers
    start: Numbers
    length: Numbers
    block: Numbers

    def __len__(self) -> int:
        return len(self.document)

    @property
    def blocks(self) -> int:
        """How many blocks there are: each has a piece."""
        return int(self.block[-1]) + 1 if len(self) else 0

    def of_blocks(self, first: int, last: int) -> Pieces:
        """Return the pieces of the blocks from `first` to before `last`, which are counted from 0
        then."""
        part = slice(*np.searchsorted(self.block, (first, last)).tolist())
        return Pieces(
            self.document[part], self.start[part], self.length[part], self.block[part] - first
        )


def concat(lengths: Numbers, size: int) -> Pieces:
    """Lay documents (n,) of these lengths one behind the other, and cut that into blocks of `size`
    tokens.

    The last block may be shorter. Documents without tokens have no piece.
    """
    document = np.flatnonzero(lengths)
    ends = np.cumsum(lengths[document])
    total = int(ends[-1]) if len(ends) else 0
    starts = ends - lengths[document]
    cuts = np.arange(0, total, size)
    after = np.searchsorted(starts, cuts)  # the first document that begins there or later
    inside = starts.take(after, mode="clip") != cuts
    cuts, after = cuts[inside], after[inside]
    document = np.insert(document, after, document[after - 1])
    begin = np.insert(starts, after, starts[after - 1])
    starts = np.insert(starts, after, cuts)
    return Pieces(document, starts - begin, np.diff(starts, append=total), starts // size)


def windows(lengths: Numbers, size: int, overlap: int = 0) -> Pieces:
    """Cut documents (n,) of these lengths into pieces of at most `size` tokens, of which neighbours
    share `overlap`.

    Each piece is a block of its own. Documents without tokens have no piece.
    """
    step = size - overlap
    counts = np.where(lengths > 0, 1 + np.maximum(0, -(-(lengths - size) // step)), 0)
    document = owners_of(counts)
    start = (np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)) * step
    return Pieces(
        document, start, np.minimum(size, lengths[document] - start), np.arange(len(document))
    )


def best_fit(lengths: Numbers, size: int) -> Pieces:
    """Pack documents (n,) of these lengths into blocks of `size` tokens by best-fit decreasing;
    none that fits is cut.

    Longer ones are cut into pieces of `size` tokens and a rest. Pieces are in the order of their
    documents in a block, and blocks in that of their first documents.
    """
    pieces = windows(lengths, size)
    block = _best_fit(pieces.length, size)
    if not len(block):
        return pieces
    first = np.empty(int(block.max()) + 1, np.int64)
    # of several values for one place, the last one stays
    first[block[::-1]] = np.arange(len(block))[::-1]
    is_first = np.zeros(len(block), bool)
    is_first[first] = True
    block = (np.cumsum(is_first) - 1)[first][block]
    order = _stable_order(block)
    return Pieces(pieces.document[order], pieces.start[order], pieces.length[order], block[order])


def _stable_order(numbers: Numbers) -> Numbers:
    """Return what sorts numbers (n,) of up to 32 bits, by 16 bits at a time: numpy has a radix sort
    for these."""
    order: Numbers = np.argsort(numbers.astype(np.uint16), kind="stable")
    if numbers.max(initial=0) < 1 << 16:
        return order
    return order[np.argsort((numbers >> 16).astype(np.uint16)[order], kind="stable")]


def _best_fit(lengths: Numbers, size: int) -> Numbers:
    """Return the block of each piece of 1 to `size` tokens, (n,): the fullest one that it fits in,
    longest pieces first.

    Blocks with the same room are kept as ranges of their numbers, and `rooms` has a bit for each
    room that some block has.
    """
    order = _stable_order(size - lengths)
    counts = np.bincount(lengths, minlength=size + 1)
    block = np.empty(len(lengths), np.int64)
    free: dict[int, list[tuple[int, int]]] = {}
    rooms = blocks = placed = 0
    for length in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[length])
        while left:
            fitting = rooms >> length
            if fitting:
                room = length + (fitting & -fitting).bit_length() - 1
                first, many = free[room].pop()
                if not free[room]:
                    rooms ^= 1 << room
            else:
                room, first, many = size, blocks, -(-left // (size // length))
                blocks += many
            each = min(room // length, left)
            used = min(many, left // each)
            for begin, end, rest in (
                (first, first + used, room - each * length),
                (first + used, first + many, room),
            ):
                if begin < end and rest:
                    free.setdefault(rest, []).append((begin, end - begin))
                    rooms |= 1 << rest
            taken = used * each
            block[order[placed : placed + taken]] = first + np.arange(taken) // each
            placed, left = placed + taken, left - taken
    return block


def fewest_blocks(counts: Numbers, size: int) -> int:
    """Return a number of blocks of `size` tokens that no packing without cuts can do with less.

    `counts[n]` pieces have n tokens, (size + 1,). It is the bound L2 of Martello and Toth (1990).
    For each k up to half a block: pieces of more than size - k tokens leave no room for one of k or
    more, no block has two of more than half a block, and what of the smaller ones of k or more does
    not fit beside these needs blocks of its own. With k = 0 it is at least the tokens over the
    size, rounded up.
    """
    half = size // 2
    number, tokens = np.cumsum(counts), np.cumsum(counts * np.arange(size + 1))
    least = np.arange(half + 1)
    below = np.maximum(least - 1, 0)
    large = number[size] - number[size - least]
    middle = number[size - least] - number[half]
    room = middle * size - (tokens[size - least] - tokens[half])
    small = tokens[half] - np.where(least > 0, tokens[below], 0)
    more = np.maximum(0, -(-(small - room) // size))
    return int((large + middle + more).max())


METHODS: dict[str, Callable[[Numbers, int], Pieces]] = {
    "concat": concat,
    "bfd": best_fit,
    "none": windows,
}
"""The ways to divide documents of some lengths among blocks of a size, by the names that the step
`pack` has for them."""
