"""Orders without tables: a keyed bijection on [0, n) that says which element comes k-th."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.uint64] | np.uint64
"""One number, or one for each position."""

_ROUNDS = 4
_DIGIT_ROUNDS = 6
"""With 4, the places that an element of a handful may get are not quite equally likely (chi-squared, 20,000 keys)."""

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 2**64 - 1


def mix64(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble 64-bit numbers one to one. Source: the finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    z: npt.NDArray[np.uint64] = values.copy()
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _mix_one(value: int) -> int:
    return int(mix64(np.array([value & _WORD], np.uint64))[0])


def key_of(*parts: int) -> int:
    """Mix whole numbers into one 64-bit key, each in its place: another key for (1, 2) than for (2, 1)."""
    state = 0
    for part in parts:
        state = _mix_one(state + _GOLDEN + part)
    return state


class Permutation:
    """A pseudo-random order of [0, size), fixed by (size, *key), in memory that does not grow with its size.

    A Feistel network over the smallest even number of bits that holds `size`; positions that fall outside are sent
    through it again ("cycle walking", Black and Rogaway 2002), fewer than 3 more times on average. Datasets are shuffled by
    it when they are converted; it must give the same order for ever.
    """

    def __init__(self, size: int, *key: int) -> None:
        self.size = size
        self._half_bits = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half_bits)) - 1)
        state = key_of(*key)
        self._round_keys = [np.uint64(_mix_one(state + r * _GOLDEN)) for r in range(1, _ROUNDS + 1)]

    def __call__(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the elements at these positions, (n,) int64, each in [0, size)."""
        values = self._feistel(positions.astype(np.uint64))
        outside = np.flatnonzero(values >= self.size)
        while len(outside):
            values[outside] = self._feistel(values[outside])
            outside = outside[values[outside] >= self.size]
        return values.astype(np.int64)

    def _feistel(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        left, right = values >> self._half_bits, values & self._mask
        for key in self._round_keys:
            left, right = right, left ^ (mix64(right + key) & self._mask)
        joined: npt.NDArray[np.uint64] = (left << self._half_bits) | right
        return joined


def permute(positions: npt.NDArray[np.int64], sizes: Numbers, keys: Numbers) -> npt.NDArray[np.int64]:
    """Return, for every position (n,), the element at it in the order of [0, size) that its key fixes.

    `sizes` (below 2^63) and `keys` are uint64: one for all positions, or one for each, for many small orders at once.

    As `Permutation`, but a network over two digits, of the bases a and b, a * b just above the size: hardly any position
    falls outside (one in the square root of the size), so that few go through it twice. That makes it several times as
    fast for the few hundred positions of a batch. Source: Black and Rogaway 2002, "method 3", with sums modulo the bases
    in place of exclusive or.
    """
    limits, every_key = np.atleast_1d(sizes), np.atleast_1d(keys)
    high = np.maximum(np.ceil(np.sqrt(limits.astype(np.float64))), 1).astype(np.uint64)
    low = (np.maximum(limits, np.uint64(1)) + high - np.uint64(1)) // high
    round_keys = [mix64(every_key + np.uint64(r * _GOLDEN & _WORD)) for r in range(1, _DIGIT_ROUNDS + 1)]
    values = _network(positions.astype(np.uint64), high, low, round_keys)
    outside = np.flatnonzero(values >= limits)
    while len(outside):
        some_limits, some_high, some_low, *some_keys = (_at(array, outside) for array in (limits, high, low, *round_keys))
        values[outside] = _network(values[outside], some_high, some_low, some_keys)
        outside = outside[values[outside] >= some_limits]
    return values.astype(np.int64)


def _at(array: npt.NDArray[np.uint64], places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return what an array has at these places: its one number for all of them, or the number of each."""
    return array if len(array) == 1 else array[places]


def _network(values: npt.NDArray[np.uint64], high: Any, low: Any, round_keys: list[Any]) -> npt.NDArray[np.uint64]:
    left = values // low
    right = values - left * low
    for even, odd in zip(round_keys[::2], round_keys[1::2], strict=True):
        left = _add(left, right + even, high)
        right = _add(right, left + odd, low)
    joined: npt.NDArray[np.uint64] = left * low + right
    return joined


def _add(digit: npt.NDArray[np.uint64], source: npt.NDArray[np.uint64], base: Any) -> npt.NDArray[np.uint64]:
    """Add a scrambled number of [0, base) to a digit, modulo the base (below 2^32). Without a division."""
    scrambled: npt.NDArray[np.uint64] = source * np.uint64(0xBF58476D1CE4E5B9)
    scrambled ^= scrambled >> np.uint64(32)
    scrambled *= np.uint64(0x94D049BB133111EB)
    scrambled >>= np.uint64(32)
    scrambled *= base
    scrambled >>= np.uint64(32)
    scrambled += digit
    scrambled -= base * (scrambled >= base)
    return scrambled
