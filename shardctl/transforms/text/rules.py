"""Rules about texts: a value of each text, and the limits that it must keep to."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.transforms.limits import shown_beside
from shardctl.transforms.text.base import Fault, TextFilter
from shardctl.transforms.text.characters import Mask


@dataclass(frozen=True)
class Rule:
    """A value of each text, (n,), and the least and the most that it may be: whole numbers, or
    shares.

    `name` is what its rejects are counted by, `what` the value in words. With `exclusive` a value
    at the limit is rejected too.
    """

    name: str
    what: str
    values: npt.NDArray[Any]
    least: float | None = None
    most: float | None = None
    exclusive: bool = False

    def broken(self) -> Mask:
        """Return which texts do not keep to it, (n,)."""
        broken = np.zeros(len(self.values), bool)
        if self.least is not None:
            broken |= self.values <= self.least if self.exclusive else self.values < self.least
        if self.most is not None:
            broken |= self.values >= self.most if self.exclusive else self.values > self.most
        return broken

    def why(self, row: int) -> str:
        """Say what is wrong with a text that breaks it."""
        value = self.values[row].item()
        low = self.least is not None and (
            value <= self.least if self.exclusive else value < self.least
        )
        limit = self.least if low else self.most
        assert limit is not None, "only a text that breaks a rule is asked about"
        side = f"not {'over' if low else 'under'}" if value == limit else "under" if low else "over"
        return f"{self.what} {shown_beside(value, limit)} is {side} {limit:.15g}"


def whole_numbers(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return counts that Arrow made, (n,) without nulls."""
    return values.to_numpy().astype(np.int64)  # type: ignore[no-any-return]  # pyarrow has no types


def broken_by(rules: Iterable[Rule]) -> Iterator[Fault]:
    """Yield the texts that break a rule, each once, with the first of the rules that it breaks, in
    the order of the texts."""
    first: dict[int, Rule] = {}
    for rule in rules:
        for row in np.flatnonzero(rule.broken()).tolist():
            first.setdefault(row, rule)
    for row in sorted(first):
        yield Fault(row, first[row].name, first[row].why(row))


class RuleFilter(TextFilter):
    """Rejects records whose text breaks a rule."""

    @abstractmethod
    def rules(self, texts: pa.Array) -> Iterator[Rule]:
        """Yield the rules with their values of `texts`, which are (n,) string without nulls."""

    def faults(self, texts: pa.Array) -> Iterable[Fault]:
        """Yield the texts that break a rule."""
        return broken_by(self.rules(texts))
