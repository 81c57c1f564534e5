"""Which texts are nearly the same as others: bands of the MinHash signatures of their shingles, and
sketches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from shardctl.format.arrays import Bools, Bytes, Floats, Hashes, Numbers, bytes_of
from shardctl.system.permutation import mix64
from shardctl.transforms.duplicates.exact import DROPPED, PARTS_BITS, PIECE_BITS, Rows, Runs, differ

PERMUTATIONS = 128
SHINGLE = 5
"""Words of a shingle."""

RECALL = 0.99
"""The share of the pairs just as alike as the threshold that share a band: of those that are more
alike, more do."""

BANDED = np.dtype([("key", np.uint64), ("rank", np.int64)])
"""The hash of one band of a document's signature, and the rank of the document."""

Signatures = npt.NDArray[np.uint32]

Sketch = npt.NDArray[np.uint32]

SKETCH = 512
"""The most hashes of a document's shingles that are kept to compare it with others: almost all
documents have fewer."""

PAIRS = 1 << 11
"""Pairs of documents that are compared together."""

_STRETCH = 1 << 18
"""Bytes whose words are hashed together: they fit into a cache."""

_TOGETHER = 1 << 14
"""Shingles that are hashed together, and pairs of documents that are looked at together."""


def bands_of(threshold: float) -> tuple[int, int]:
    """Return how many bands there are for a threshold, and of how many of the signature's numbers
    each.

    The more numbers, the fewer documents share a band by chance.
    """
    size = max(
        size
        for size in range(1, PERMUTATIONS + 1)
        if size == 1 or 1 - (1 - threshold**size) ** (PERMUTATIONS // size) >= RECALL
    )
    return PERMUTATIONS // size, size


# --- shingles and signatures ---


def _constants(count: int, seed: int) -> Hashes:
    """Return odd numbers of 64 bits that look random, (count,): the same everywhere."""
    state = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(
        seed
    )
    odd: Hashes = mix64(state) | np.uint64(1)
    return odd


_MULTIPLIERS = _constants(PERMUTATIONS, 1)
_PLACES = _constants(SHINGLE, 2)
_OF_BYTES = _constants(256, 3)
"""What each byte of a word counts: capital letters of ASCII as small ones, 0 for what is between
words."""

_OF_BYTES[ord("A") : ord("Z") + 1] = _OF_BYTES[ord("a") : ord("z") + 1]
_IS_WORD = np.array([byte >= 128 or chr(byte).isalnum() for byte in range(256)])
_IS_ALONE = np.zeros(256, bool)
_IS_ALONE[0xE3:0xEA] = True
"""First bytes of U+3000 to U+9FFF: Chinese characters and kana, each of which is a word: there are
no spaces between words."""

_MARKS = ((0xC2, 0xC0, 0x80, 2), (0xE2, 0xFE, 0x80, 3))
"""Marks that are not ASCII, U+0080 to U+00BF and U+2000 to U+207F: the first byte; of the second
one the bits that are looked at, and what they are; how many bytes there are."""


@lru_cache(maxsize=1)
def _powers() -> tuple[Hashes, Hashes]:
    """Return the powers of a number, modulo 2^64, and those of its inverse: (_STRETCH,) each."""
    base = 0x9E3779B97F4A7C15
    found = []
    for number in (base, pow(base, -1, 1 << 64)):
        powers = np.full(_STRETCH, number, np.uint64)
        powers[0] = 1
        found.append(np.cumprod(powers, dtype=np.uint64))
    return found[0], found[1]


def shingles_of(texts: pa.Array) -> tuple[Hashes, Numbers]:
    """Return the hashes of the shingles of texts, (n,) string without nulls, and where those of
    each text begin: (n,) int64.

    A shingle is SHINGLE words that follow each other; all words of a text that has fewer; the text
    itself if it has none. A word is letters of any alphabet and digits; ASCII letters count as
    small ones, a Chinese character is a word.
    """
    data, offsets = bytes_of(texts)
    words, row = _words(data, offsets)
    count = np.bincount(row, minlength=len(texts))
    first = np.cumsum(count) - count
    shingles = np.maximum(count - SHINGLE + 1, 1)
    starts = np.cumsum(shingles) - shingles
    found = np.empty(int(shingles.sum()), np.uint64)
    if len(words) >= SHINGLE:
        windows = len(words) - SHINGLE + 1
        whole = row[:windows] == row[SHINGLE - 1 :]
        sums = np.zeros(windows, np.uint64)
        for place in range(SHINGLE):
            sums += words[place : place + windows] * _PLACES[place]
        found[np.repeat(count >= SHINGLE, shingles)] = sums[whole]
    short = np.flatnonzero((count > 0) & (count < SHINGLE))
    sums = np.zeros(len(short), np.uint64)
    for place in range(SHINGLE - 1):
        has = count[short] > place
        sums[has] += words[first[short[has]] + place] * _PLACES[place]
    found[starts[short]] = sums
    for text in np.flatnonzero(count == 0).tolist():
        found[starts[text]] = xxhash.xxh3_64_intdigest(data[offsets[text] : offsets[text + 1]].data)
    return mix64(found), starts


def _words(data: Bytes, offsets: Numbers) -> tuple[Hashes, Numbers]:
    """Return the hash of each word, and the number of its text: (words,) each."""
    hashes, rows, begin = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)], 0
    while begin < len(data):
        end = _end_of_stretch(data, begin)
        low, high = np.searchsorted(offsets, [begin, end])
        starts, found = _words_of_stretch(data[begin:end], offsets[low:high] - begin)
        hashes.append(found)
        rows.append(np.searchsorted(offsets, starts + begin, side="right") - 1)
        begin = end
    return np.concatenate(hashes), np.concatenate(rows)


def _end_of_stretch(data: Bytes, begin: int) -> int:
    """Return where a stretch ends: before a word, or in one that has more than half a stretch."""
    end = begin + _STRETCH
    if end >= len(data):
        return len(data)
    half = data[end - _STRETCH // 2 : end + 1]
    word = _in_words(half)
    begins = word & (np.append(False, ~word[:-1]) | _IS_ALONE[half])  # as far as they tell
    starts = np.flatnonzero(begins & (half & 0xC0 != 0x80))
    if len(starts):
        return end - _STRETCH // 2 + int(starts[-1])
    while data[end] & 0xC0 == 0x80:  # not within a character
        end -= 1
    return end


def _in_words(data: Bytes) -> Bools:
    """Return which bytes are of words."""
    word = _IS_WORD[data]
    for first, mask, second, size in _MARKS:
        marks = np.flatnonzero((data[:-1] == first) & ((data[1:] & mask) == second))
        for place in range(size):
            word[np.minimum(marks + place, len(data) - 1)] = False
    return word


def _words_of_stretch(data: Bytes, text_starts: Numbers) -> tuple[Numbers, Hashes]:
    """Return where words begin, and their hashes."""
    powers, inverse = _powers()
    word = _in_words(data)
    bound = np.zeros(len(data) + 4, bool)
    bound[text_starts] = True
    alone = np.flatnonzero(_IS_ALONE[data])
    bound[alone] = True
    bound[alone + 3] = True
    before, after = np.append(False, word[:-1]), np.append(word[1:], False)
    starts = np.flatnonzero(word & (~before | bound[: len(data)]))
    ends = np.flatnonzero(word & (~after | bound[1 : len(data) + 1])) + 1
    sums = np.zeros(len(data) + 1, np.uint64)
    np.cumsum(_OF_BYTES[data] * powers[: len(data)], out=sums[1:])
    return starts, mix64((sums[ends] - sums[starts]) * inverse[starts])


def signatures_of(shingles: Hashes, starts: Numbers) -> Signatures:
    """Return the MinHash signatures of texts whose shingles these are: (n, PERMUTATIONS). Each text
    has one shingle or more."""
    lowest = np.full((PERMUTATIONS, len(starts)), np.iinfo(np.uint64).max, np.uint64)
    product = np.empty(_TOGETHER, np.uint64)
    for begin in range(0, len(shingles), _TOGETHER):
        here = shingles[begin : begin + _TOGETHER]
        first = np.searchsorted(starts, begin, side="right") - 1
        end = np.searchsorted(starts, begin + len(here))
        cuts = np.maximum(starts[first:end] - begin, 0)
        for number, multiplier in enumerate(_MULTIPLIERS):
            np.multiply(here, multiplier, out=product[: len(here)])
            of_texts = lowest[number, first:end]
            np.minimum(of_texts, np.minimum.reduceat(product[: len(here)], cuts), out=of_texts)
    return np.ascontiguousarray((lowest >> np.uint64(32)).astype(np.uint32).T)


# --- sketches ---


def sketches_of(shingles: Hashes, starts: Numbers) -> tuple[Sketch, Numbers]:
    """Return the SKETCH lowest different hashes of each text, of 32 bits and in order, one text
    after the other; and how many there are of each: (n,) int64.
    """
    row = np.repeat(
        np.arange(len(starts), dtype=np.uint64), np.diff(np.append(starts, len(shingles)))
    )
    keys = np.sort((row << np.uint64(32)) | (shingles >> np.uint64(32)))
    keys = keys[differ(keys)]
    row_of = (keys >> np.uint64(32)).astype(np.int64)
    keys = keys[np.arange(len(keys)) - np.searchsorted(row_of, row_of) < SKETCH]
    sizes = np.bincount((keys >> np.uint64(32)).astype(np.int64), minlength=len(starts))
    return keys.astype(np.uint32), sizes


class Sketches:
    """The sketches of documents, by rank, in the files of a folder."""

    def __init__(self, folder: Path, count: int) -> None:
        folder.mkdir()
        shape = (max(1, count), 2)
        with open(folder / "places", "wb") as file:
            file.truncate(16 * shape[0])
            # a full disk is an error here, and the end of the process where it is mapped
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, 16 * shape[0])
        self._places = np.memmap(folder / "places", np.int64, "r+", shape=shape)
        self._path = folder / "values"
        self._file = open(self._path, "wb")  # noqa: SIM115 - closed by `finish`
        self._written = 0
        self._values: Sketch = np.zeros(0, np.uint32)

    def add(self, ranks: Numbers, values: Sketch, sizes: Numbers) -> None:
        """Add the sketches of documents, as `sketches_of` gave them. Raises OSError."""
        self._places[ranks, 0] = self._written + np.cumsum(sizes) - sizes
        self._places[ranks, 1] = sizes
        self._file.write(values.tobytes())
        self._written += len(values)

    def finish(self) -> None:
        """All have come, and can be compared. Raises OSError."""
        self._file.close()
        self._values = np.memmap(self._path, np.uint32, "r") if self._written else self._values

    def similarities(self, some: Numbers, others: Numbers) -> Floats:
        """Return how alike documents are, pair by pair: the Jaccard similarity of their shingles,
        (n,).

        It is exact where both have fewer than SKETCH different ones, and else an estimate from the
        lowest of both.
        """
        cuts = range(PAIRS, len(some), PAIRS)
        return np.concatenate(
            list(map(self._similarities, np.split(some, cuts), np.split(others, cuts)))
        )

    def _similarities(self, some: Numbers, others: Numbers) -> Floats:
        count = len(some)
        starts, sizes = self._places[np.concatenate([some, others])].T
        pair = np.repeat(np.concatenate([np.arange(count)] * 2), sizes)
        before = np.cumsum(sizes) - sizes
        values = self._values[np.repeat(starts - before, sizes) + np.arange(len(pair))]
        keys = np.sort((pair.astype(np.uint64) << np.uint64(32)) | values)
        begins = differ(keys)
        twice = np.append(~begins[1:], False)[: len(keys)][begins]
        pair = (keys[begins] >> np.uint64(32)).astype(np.int64)
        place = np.arange(len(pair)) - np.searchsorted(pair, pair)
        full = (sizes.reshape(2, -1) >= SKETCH).any(axis=0)
        most = np.where(full, SKETCH, np.iinfo(np.int64).max)
        counted = place < most[pair]
        both = np.bincount(pair[counted & twice], minlength=count)
        return both / np.maximum(1, np.bincount(pair[counted], minlength=count))


# --- what is alike ---


def add_bands(runs: Runs, signatures: Signatures, ranks: Numbers, threshold: float) -> None:
    """Add rows of BANDED for documents, divided by their keys."""
    bands, size = bands_of(threshold)
    weights = _constants(size, 4)
    for band in range(bands):
        numbers = signatures[:, band * size : (band + 1) * size].astype(np.uint64)
        rows = np.zeros(len(ranks), BANDED)
        rows["key"] = mix64((numbers * weights).sum(axis=1, dtype=np.uint64) + np.uint64(band))
        rows["rank"] = ranks
        runs.add(rows, rows["key"] >> np.uint64(64 - PARTS_BITS))


class Components:
    """Which documents are connected, each with the lowest rank of all that it is connected with: 8
    bytes a document."""

    def __init__(self, count: int) -> None:
        self._parent = np.arange(count)

    def roots(self, ranks: Numbers) -> Numbers:
        """Return the lowest rank of what each of some documents is connected with, (n,)."""
        found = self._parent[ranks]
        while not np.array_equal(further := self._parent[found], found):
            found = further
        self._parent[ranks] = found
        return found

    def connect(self, some: Numbers, others: Numbers) -> None:
        """Connect documents, pair by pair."""
        while len(some):
            one, other = self.roots(some), self.roots(others)
            apart = one != other
            some, others, one, other = some[apart], others[apart], one[apart], other[apart]
            np.minimum.at(self._parent, np.maximum(one, other), np.minimum(one, other))

    def dropped(self) -> Numbers:
        """Return the documents that are connected with one of a lower rank, in order."""
        return np.flatnonzero(self._parent != np.arange(len(self._parent)))


def connect(runs: Runs, sketches: Sketches, components: Components, threshold: float) -> None:
    """Connect the documents of which a band is the same and whose sketches are alike. The runs are
    used up.

    In each band every document is compared with the one of the lowest rank: it shares other bands
    with others.
    """
    for rows in runs.parts():
        order = np.lexsort((rows["rank"], rows["key"]))
        key, rank = rows["key"][order], rows["rank"][order]
        same = ~differ(key)
        lowest = rank[np.maximum.accumulate(np.where(same, 0, np.arange(len(key))))]
        candidates = np.flatnonzero(same)
        for begin in range(0, len(candidates), _TOGETHER):
            chosen = candidates[begin : begin + _TOGETHER]
            one, other = lowest[chosen], rank[chosen]
            apart = components.roots(one) != components.roots(other)  # else it is known already
            one, other = one[apart], other[apart]
            alike = sketches.similarities(one, other) >= threshold
            components.connect(one[alike], other[alike])


def dropped_by(components: Components, sketches: Sketches) -> Iterator[Rows]:
    """Yield the documents that are dropped, in order, as rows of DROPPED."""
    ranks = components.dropped()
    for begin in range(0, len(ranks), _TOGETHER):
        here = ranks[begin : begin + _TOGETHER]
        rows = np.zeros(len(here), DROPPED)
        kept = components.roots(here)
        rows["place"], rows["kept"] = here << PIECE_BITS, kept << PIECE_BITS
        rows["similarity"] = sketches.similarities(here, kept)
        yield rows
