"""Orders without tables: a keyed bijection on [0, n) that says which element comes k-th; evenly
spaced choices, and items that are made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[Any]
"""Unsigned, of 32 or 64 bits: one number, or one for each position."""

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

_ROUNDS = 4

_DIGIT_ROUNDS = 8
"""Of a handful of elements, some are neighbours 10 % (of 5) or 5 % (of 12) more often than they
should be, with 6 rounds twice that; from 23 elements on nothing shows (chi-squared over 100,000
keys)."""

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 2**64 - 1


def mix64(values: Hashes) -> Hashes:
    """Scramble 64-bit numbers one to one. Source: the finaliser of SplitMix64 (Steele, Lea, Flood
    2014)."""
    z: Hashes = values.copy()
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _mix_one(value: int) -> int:
    return int(mix64(np.array([value & _WORD], np.uint64))[0])


def key_of(*parts: int) -> int:
    """Mix whole numbers into one 64-bit key, each in its place: another key for (1, 2) than for (2,
    1)."""
    state = 0
    for part in parts:
        state = _mix_one(state + _GOLDEN + part)
    return state


class Permutation:
    """A pseudo-random order of [0, size), fixed by (size, *key), in memory that does not grow with
    its size.

    A Feistel network over the smallest even number of bits that holds `size`; positions that fall
    outside are sent through it again ("cycle walking", Black and Rogaway 2002), fewer than 3 more
    times on average. Datasets are shuffled by it when they are converted; it must give the same
    order for ever.
    """

    def __init__(self, size: int, *key: int) -> None:
        self.size = size
        self._half_bits = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half_bits)) - 1)
        state = key_of(*key)
        self._round_keys = [np.uint64(_mix_one(state + r * _GOLDEN)) for r in range(1, _ROUNDS + 1)]

    def __call__(self, positions: Places) -> Places:
        """Return the elements at these positions, (n,) int64, each in [0, size)."""
        values = self._feistel(positions.astype(np.uint64))
        outside = np.flatnonzero(values >= self.size)
        while len(outside):
            values[outside] = self._feistel(values[outside])
            outside = outside[values[outside] >= self.size]
        return values.astype(np.int64)

    def _feistel(self, values: Hashes) -> Hashes:
        left, right = values >> self._half_bits, values & self._mask
        for key in self._round_keys:
            left, right = right, left ^ (mix64(right + key) & self._mask)
        joined: Hashes = (left << self._half_bits) | right
        return joined


@dataclass(frozen=True)
class _Word:
    """Numbers modulo 2^(2 * half), for digits of `half` bits, and what is added and multiplied to
    scramble them."""

    dtype: Any
    half: Any
    multipliers: tuple[Any, Any]
    constants: tuple[Any, ...]

    @classmethod
    def of(cls, dtype: Any, half: int, *multipliers: int) -> _Word:
        """Build one of a type, with constants for every round."""
        constants = (
            dtype((number * _GOLDEN & _WORD) >> (64 - 2 * half)) for number in range(_DIGIT_ROUNDS)
        )
        first, second = map(dtype, multipliers)
        return cls(dtype, dtype(half), (first, second), tuple(constants))


_NARROW = _Word.of(np.uint32, 16, 0x85EBCA6B, 0xC2B2AE35)
"""Source of the multipliers: the finaliser of MurmurHash3 (Appleby 2011)."""

_WIDE = _Word.of(np.uint64, 32, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Source of the multipliers: the finaliser of SplitMix64."""

_NARROW_SIZE = 2**31
"""The largest size for narrow words."""


@dataclass(frozen=True)
class Orders:
    """Pseudo-random orders in memory that does not grow with their sizes: the i-th is one of [0,
    sizes[i]).

    As `Permutation`, but a network over two digits, of the bases `high` and `low`, whose product is
    just above the size: hardly any position falls outside (one in the square root of the size), so
    that few go through it twice. That makes it several times as fast for the few hundred positions
    of a batch. Source: Black and Rogaway 2002, "method 3", with sums modulo the bases in place of
    exclusive or.
    """

    word: _Word
    limits: Numbers
    high: Numbers
    low: Numbers
    keys: tuple[Numbers, Numbers]

    @classmethod
    def of(cls, sizes: Places, keys: Hashes) -> Orders:
        """Return the orders (k,) that are fixed by these sizes (below 2^63) and keys."""
        word = _NARROW if sizes.max() <= _NARROW_SIZE else _WIDE
        limits = sizes.astype(word.dtype)
        high = np.maximum(np.ceil(np.sqrt(sizes.astype(np.float64))), 1).astype(word.dtype)
        low = (np.maximum(limits, word.dtype(1)) + high - word.dtype(1)) // high
        return cls(
            word,
            limits,
            high,
            low,
            (keys.astype(word.dtype), (keys >> np.uint64(32)).astype(word.dtype)),
        )

    def at(self, which: Places) -> Orders:
        """Return some of these orders; a single one as it is, however often it is wanted."""
        if len(self.limits) == 1:
            return self
        even, odd = self.keys
        return Orders(
            self.word,
            self.limits[which],
            self.high[which],
            self.low[which],
            (even[which], odd[which]),
        )

    def elements(self, positions: Places) -> Places:
        """Return, for every position (n,), the element at it: in the order with its number, or in
        the only one."""
        values = self._network(positions.astype(self.word.dtype))
        outside = np.flatnonzero(values >= self.limits)
        while len(outside):
            some = self.at(outside)
            values[outside] = some._network(values[outside])
            outside = outside[values[outside] >= some.limits]
        return values.astype(np.int64)

    def _network(self, values: Numbers) -> Numbers:
        left = values // self.low
        right = values - left * self.low
        for number in range(0, _DIGIT_ROUNDS, 2):
            left = self._add(left, right, number, self.high)
            right = self._add(right, left, number + 1, self.low)
        joined: Numbers = left * self.low + right
        return joined

    def _add(self, digit: Numbers, source: Numbers, number: int, base: Numbers) -> Numbers:
        """Add what round `number` makes of one digit to the other, modulo its base. Without a
        division."""
        word = self.word
        scrambled: Numbers = source + (self.keys[number % 2] + word.constants[number])
        scrambled *= word.multipliers[0]
        scrambled ^= scrambled >> word.half
        scrambled *= word.multipliers[1]
        scrambled >>= word.half
        scrambled *= base
        scrambled >>= word.half
        scrambled += digit
        # Where the base is not reached the difference is a huge number: there are none below 0.
        np.minimum(scrambled, scrambled - base, out=scrambled)
        return scrambled


def permute(positions: Places, size: int, key: int) -> Places:
    """Return, for every position (n,), the element at it in the order of [0, size) that the key
    fixes."""
    return Orders.of(np.array([size]), np.array([key], np.uint64)).elements(positions)


T = TypeVar("T")


class LazySequence(Sequence[T]):
    """A sequence of `count` items that keeps none: a list of millions of tasks takes gigabytes.

    `make` is called with the place of an item when it is asked for.

    It has no slices.
    """

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._places = range(count)
        self._make = make

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, place: Any) -> Any:
        return self._make(self._places[place])


def evenly_spaced(size: int, count: int) -> list[int]:
    """Return up to `count` of the numbers below `size`, evenly apart, the first and the last among
    them."""
    # Not np.unique, which at its first call imports numpy.ma: 20 ms.
    return (
        sorted(set(np.linspace(0, size - 1, min(size, count)).astype(int).tolist())) if size else []
    )
