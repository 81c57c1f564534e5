"""What steps of text have in common: they work on the column `text` of batches of records."""

from __future__ import annotations

import unicodedata
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, Rejection
from shardctl.format.arrays import Array, Bools
from shardctl.format.token_columns import TOKENS
from shardctl.system.text import printable
from shardctl.transforms.base import BatchTransform, Counts, Fault, Records, RejectRow, type_of
from shardctl.transforms.settings import shown_beside


def version_of(package: str) -> str:
    """Return a package with its version: "regex 2026.11.15". unidata: Python's tables of Unicode,
    which say what letters are."""
    if package == "unidata":
        return f"unidata {unicodedata.unidata_version}"
    from importlib.metadata import version  # 15 ms, for the few steps that ask

    return f"{package} {version(package)}"


TEXT = "text"


def texts_of(records: Records) -> pa.Array:
    """Return the texts of records, (n,) string; an empty one where a text is missing."""
    texts = records.batch.column(TEXT)
    return texts.fill_null("") if texts.null_count else texts


def with_texts(records: Records, texts: pa.Array) -> Records:
    """Return records with other texts, (n,) string. A missing text stays missing."""
    given = records.batch.column(TEXT)
    if given.null_count:
        import pyarrow.compute as pc  # 40 ms to import, and images do not need it

        texts = pc.if_else(given.is_null(), pa.scalar(None, pa.string()), texts)
    return records.with_column(TEXT, texts)


def require_text(given: pa.Schema, who: str) -> None:
    """Raise InputError unless there is a column of texts."""
    type_ = type_of(given, TEXT)
    if pa.types.is_string(type_):
        return
    if TOKENS in given.names:
        raise InputError(f"{who} takes texts, and the step before it has made tokens of them")
    is_there = f"they have {', '.join(map(printable, given.names)) or 'no fields'}"
    if TEXT in given.names:
        is_there = f"the field {TEXT} is {type_}"
    raise InputError(
        f"{who} takes texts, but the records have none: {is_there}; --text-field FIELD names them"
    )


class TextStep(BatchTransform):
    """Works on the text of records, and leaves their other fields as they are. It may reject single
    records."""

    made_by: ClassVar[tuple[str, ...]] = ()
    """The packages that decide what it makes, as `version_of` takes them."""

    def versions(self) -> tuple[str, ...]:
        """Return them with their versions."""
        return tuple(map(version_of, self.made_by))

    @abstractmethod
    def work(self, texts: pa.Array, reject: RejectRow) -> pa.Array:
        """Return the texts afterwards, and tell `reject` of those that are rejected, each once: (n,)
        string without nulls, and so is the result. What it has for a text that is rejected does not
        matter."""

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the same columns."""
        require_text(given, self.name)
        return given

    def made(self, records: Records, reject: RejectRow, counts: Counts) -> Iterable[Records]:
        """Return the records with their texts afterwards. A missing text stays missing."""
        faults, before = list[Fault](), texts_of(records)
        after = self.work(before, lambda *fault: faults.append(fault))
        made = records if after is before else with_texts(records, after)
        return (made.without(faults, reject),)


class TextTransform(TextStep):
    """Changes the text of records."""

    @abstractmethod
    def changed(self, texts: pa.Array) -> pa.Array:
        """Return the changed texts: (n,) string without nulls, and so is the result; the same
        object if nothing changes."""

    def work(self, texts: pa.Array, reject: RejectRow) -> pa.Array:
        """Return the changed texts. It rejects none."""
        return self.changed(texts)


@dataclass(frozen=True)
class Rule:
    """A value of each text, (n,), and the least and the most that it may be: whole numbers, or
    shares.

    `name` is what its rejects are counted by, `what` the value in words. With `exclusive` a value
    at the limit is rejected too.
    """

    name: str
    what: str
    values: Array
    least: float | None = None
    most: float | None = None
    exclusive: bool = False

    def broken(self) -> Bools:
        """Return which texts do not keep to it, (n,)."""
        low = -np.inf if self.least is None else self.least
        high = np.inf if self.most is None else self.most
        if self.exclusive:
            return (self.values <= low) | (self.values >= high)
        return (self.values < low) | (self.values > high)

    def why(self, row: int) -> str:
        """Say what is wrong with a text that breaks it."""
        value = self.values[row].item()
        low = self.least is not None and value <= self.least
        limit = self.least if low else self.most
        assert limit is not None, "only a text that breaks a rule is asked about"
        side = f"not {'over' if low else 'under'}" if value == limit else "under" if low else "over"
        return f"{self.what} {shown_beside(value, limit)} is {side} {limit:.15g}"


def broken_by(rules: Iterable[Rule]) -> Iterator[Fault]:
    """Yield the texts that break a rule, each once, with the first of the rules that it breaks, in
    the order of the texts."""
    first: dict[int, Rule] = {}
    for rule in rules:
        for row in np.flatnonzero(rule.broken()).tolist():
            first.setdefault(row, rule)
    for row in sorted(first):
        yield row, Rejection("filter", first[row].name, first[row].why(row))


class TextFilter(TextStep):
    """Rejects records whose text does not keep to a rule, and changes none. `texts` are (n,) string
    without nulls."""

    def rules(self, texts: pa.Array) -> Iterator[Rule]:
        """Yield the rules with their values of `texts`."""
        raise NotImplementedError

    def work(self, texts: pa.Array, reject: RejectRow) -> pa.Array:
        """Return the same texts."""
        for fault in broken_by(self.rules(texts)):
            reject(*fault)
        return texts


def each_changed(texts: pa.Array, change: Callable[[str], str]) -> pa.Array:
    """Return texts, each as `change` makes it."""
    return pa.array(map(change, texts.to_pylist()), pa.string())


def where(texts: pa.Array, chosen: pa.Array, change: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return texts, those that are chosen, (n,) bool, as `change` makes them."""
    import pyarrow.compute as pc

    if not chosen.true_count:
        return texts
    changed = change(texts.filter(chosen))
    return (
        changed if chosen.true_count == len(texts) else pc.replace_with_mask(texts, chosen, changed)
    )
