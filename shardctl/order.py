"""Orders without tables: a keyed bijection on [0, n) that says which element comes k-th."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_ROUNDS = 4
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


class Permutation:
    """A pseudo-random order of [0, size), fixed by (size, *key), in memory that does not grow with its size.

    A Feistel network over the smallest even number of bits that holds `size`; positions that fall outside are sent
    through it again ("cycle walking", Black and Rogaway 2002), fewer than 3 more times on average.
    """

    def __init__(self, size: int, *key: int) -> None:
        self.size = size
        self._half_bits = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half_bits)) - 1)
        state = 0
        for part in key:
            state = _mix_one(state + _GOLDEN + part)
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
