"""How the cells of CSV columns are written, which decides what is a number, so that no value is
changed (docs/inputs/labels.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from shardctl.sources.jsonl import EXACT_IN_FLOAT, NULL_WORDS

_WHOLE = r"^(0|-?[1-9][0-9]*)$"
_WORDS = r"^(nan|NaN|inf|-inf)$"
_DECIMAL = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-][0-9]+)?$"
_LIKE_A_NUMBER = r"^\s*[+-]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
"""Text that looks like a number: if it is kept as text, a notice says so."""

_NO_NUMBERS = sorted(word for word in NULL_WORDS if not re.search(_WORDS, word))
"""Words for a missing value that make a column text."""

Cells: TypeAlias = pa.Array | pa.ChunkedArray
"""A column of strings."""

_LOOKS_LIKE_A_NUMBER = re.compile(rf"{_LIKE_A_NUMBER}|{_WORDS}")


@dataclass(frozen=True)
class CellStats:
    """How the cells of a column are written: what decides whether the column is one of numbers.
    Found in parts and joined.

    The parts may be joined in any order and grouping: the type is the same. An empty cell says
    nothing.

    `cells`: there are cells that are not empty. `text`: a cell does not even look like a number;
    then nothing else is known. `digits`: a cell has digits (`nan` and `inf` alone are words).
    `whole`: all cells are whole numbers. `places` are the fewest and the most decimal places. The
    others are the first cell that is a whole number `beyond` 64 bits, is `inexact` (float64 would
    not give it back as it is written) or is `padded` with a zero at its end, as 1.10 is (1.0 is
    not: that is how a whole float64 is printed). `nulls` are the words for a missing value that are
    in other cells than these: they make the column text, too.
    """

    cells: bool = False
    text: bool = False
    digits: bool = False
    whole: bool = True
    places: tuple[int, int] | None = None
    beyond: str | None = None
    inexact: str | None = None
    padded: str | None = None
    nulls: frozenset[str] = frozenset()

    @property
    def is_text(self) -> bool:
        """Whether a cell is not written as a number, or as `nan` or `inf`."""
        return self.text or bool(self.nulls)

    @classmethod
    def of(cls, column: Cells) -> CellStats:
        """Look at a column of strings, in which an empty string is an empty cell; null is one
        too."""
        few = [
            value
            for value in column.slice(0, 100).to_pylist()
            if value and value not in _NO_NUMBERS
        ]
        if not all(map(_LOOKS_LIKE_A_NUMBER.search, few)):
            return cls(True, text=True)  # the usual column of text, without a copy of it
        values = filled(column).drop_null()
        if not len(values):
            return cls()
        try:
            numbers = values.cast(pa.int64())
        except pa.ArrowInvalid:  # a cell is no whole number of 64 bits
            numbers = None
        # 007 and 0x1F can be read as whole numbers too
        if numbers is None or not numbers.cast(pa.string()).equals(values):
            return cls._of_texts(values)
        ends = pc.min_max(numbers)
        is_exact = ends["min"].as_py() >= -EXACT_IN_FLOAT and ends["max"].as_py() <= EXACT_IN_FLOAT
        inexact = None if is_exact else _first_inexact(values)
        return cls(True, digits=True, places=(0, 0), inexact=inexact)

    @classmethod
    def _of_texts(cls, values: Cells) -> CellStats:
        """Look at cells of which not all are whole numbers of 64 bits, as these are printed."""
        numbers, inexact, exponents = values, None, False
        if not _are_plain_decimals(values):
            if not _all(values, rf"{_LIKE_A_NUMBER}|{_WORDS}"):
                are_nulls = pc.is_in(values, value_set=pa.array(_NO_NUMBERS, values.type))
                nulls, others = values.filter(are_nulls), values.filter(pc.invert(are_nulls))
                if not len(nulls):
                    return cls(True, text=True)
                return replace(cls.of(others), cells=True).join(
                    cls(True, nulls=frozenset(pc.unique(nulls).to_pylist()))
                )
            numbers = values.filter(pc.invert(pc.match_substring_regex(values, _WORDS)))
            if not len(numbers):
                return cls(True, whole=False)
            inexact, exponents = _first_inexact(numbers), True
        beyond = _first_beyond(numbers)
        if inexact is not None and not _all(numbers, _DECIMAL):
            # 12e5: it is text, whatever its places are
            return cls(True, digits=True, whole=False, beyond=beyond, inexact=inexact)
        mantissa = pc.replace_substring_regex(numbers, "[eE].*$", "") if exponents else numbers
        places = _places(mantissa)
        few, many = (end.as_py() for end in pc.min_max(places).values())
        whole = not many and len(numbers) == len(values) and _all(values, _WHOLE)
        padded = numbers.filter(pc.and_(pc.greater(places, 1), pc.ends_with(mantissa, "0")))
        return cls(
            True,
            digits=True,
            whole=whole,
            places=(few, many),
            beyond=beyond,
            inexact=inexact,
            padded=str(padded[0]) if len(padded) else None,
        )

    def join(self, other: CellStats) -> CellStats:
        """Return how the cells of both are written."""
        if self.text or other.text:
            return CellStats(True, text=True)
        ends = [end for places in (self.places, other.places) if places for end in places]
        return CellStats(
            cells=self.cells or other.cells,
            digits=self.digits or other.digits,
            whole=self.whole and other.whole,
            places=(min(ends), max(ends)) if ends else None,
            beyond=_first(self.beyond, other.beyond),
            inexact=_first(self.inexact, other.inexact),
            padded=_first(self.padded, other.padded),
            nulls=self.nulls | other.nulls,
        )

    def type(self) -> pa.DataType:
        """Return int64, float64 or string. More cells never make numbers of a column that is text,
        unless it has words only."""
        if self.is_text or not self.digits or self.beyond or (self.inexact and not self.whole):
            return pa.string()
        if self.whole:
            return pa.int64()
        # 1.10 is not 1.1 where it is a version. Where all values have the same number of places,
        # nothing is lost.
        if self.padded and self.places and self.places[0] < self.places[1]:
            return pa.string()
        return pa.float64()

    def odd(self) -> str | None:
        """Return a cell for which the column is text though all its cells look like numbers; None
        if that is not so."""
        if not pa.types.is_string(self.type()) or self.is_text or not self.digits:
            return None
        return self.beyond or (None if self.whole else self.inexact or self.padded)

    def hiding_nulls(self) -> list[str]:
        """Return the words for which the column is text though all its other cells are numbers;
        none if that is not so."""
        of_others = replace(self, nulls=frozenset()).type()
        return [] if pa.types.is_string(of_others) else sorted(self.nulls)


def _are_plain_decimals(values: Cells) -> bool:
    """Return whether float64 gives all numbers back, and none has an exponent or is a word: it saves
    patterns."""
    if not pc.all(_plainly_exact(values)).as_py():
        return False
    odd = pc.or_(pc.match_substring(values, "e"), pc.match_substring(values, "n"))
    return not pc.any(odd).as_py()


def gives_back(cells: pa.Array, numbers: pa.Array, places: str) -> bool:
    """Return whether a column of float64 is still one with these cells, null where empty; `numbers`
    are their values.

    `places`: how many decimal places all cells before have; `any` if they differ, so that no zero
    may be at the end of one.
    """
    fixed = None if places == "any" else (int(places), int(places))
    if fixed is None:  # cells that are printed like this have no zeros at their end
        cells = cells.filter(pc.not_equal(numbers.cast(pa.string()), cells))
    known = CellStats(True, digits=True, whole=False, places=fixed or (0, 1))
    joined = known.join(CellStats.of(cells))
    return bool(pa.types.is_floating(joined.type())) and fixed in (None, joined.places)


def _first(*cells: str | None) -> str | None:
    """Return the same one of these in any order."""
    return min((cell for cell in cells if cell is not None), default=None)


def filled(column: Cells) -> Cells:
    """Return the column with null for empty cells."""
    empty = pc.equal(pc.binary_length(column), 0)
    return (
        pc.if_else(empty, pa.scalar(None, pa.string()), column) if pc.any(empty).as_py() else column
    )


def _first_beyond(numbers: Cells) -> str | None:
    """Return the first whole number that does not fit in 64 bits."""
    long = numbers.filter(pc.greater_equal(pc.binary_length(numbers), 19))
    whole = long.filter(pc.match_substring_regex(long, _WHOLE))
    return next((value for value in whole.to_pylist() if not -(2**63) <= int(value) < 2**63), None)


def _places(mantissa: Cells) -> Cells:
    """Return the number of decimal places of decimals without an exponent."""
    point = pc.find_substring(mantissa, ".")
    after = pc.subtract(pc.subtract(pc.binary_length(mantissa), point), 1)
    return pc.if_else(pc.less(point, 0), pa.scalar(0, after.type), after)


def _first_inexact(numbers: Cells) -> str | None:
    """Return the first number that float64 would not give back as it is written, but for zeros at
    its end."""
    doubtful = numbers.filter(pc.invert(_plainly_exact(numbers)))
    if not len(doubtful):
        return None
    odd = doubtful.filter(pc.invert(pc.match_substring_regex(doubtful, _DECIMAL)))
    if len(odd):
        return str(odd[0])
    return next(
        (value for value in doubtful.to_pylist() if Decimal(value) != Decimal(repr(float(value)))),
        None,
    )


def _plainly_exact(numbers: Cells) -> Cells:
    """Return which numbers come back as they are written, but for zeros at their end, from float64
    as Arrow prints it.

    It saves looking closely at nearly all of them: only exponents, rounded numbers and other ways
    to write one are left.
    """
    try:
        printed = numbers.cast(pa.float64()).cast(pa.string())
    except pa.ArrowInvalid:
        return pc.equal(pc.binary_length(numbers), -1)
    same = pc.equal(printed, numbers)
    if pc.all(same).as_py():
        return same
    trimmed = pc.ascii_rtrim(pc.ascii_rtrim(numbers, "0"), ".")
    return pc.or_(
        same, pc.and_(pc.equal(printed, trimmed), pc.match_substring_regex(numbers, r"\.[0-9]+$"))
    )


def _all(values: Cells, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(values, pattern)).as_py())
