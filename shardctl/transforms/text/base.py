"""What steps of text have in common: they work on the column `text` of batches of records."""

from __future__ import annotations

import unicodedata
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, Rejection
from shardctl.format.token_columns import TOKENS
from shardctl.system.text import printable
from shardctl.transforms.base import BatchTransform, Counts, Records, RejectRow


def version_of(package: str) -> str:
    """Return a package with its version: "regex 2026.11.15". unidata: Python's tables of Unicode,
    which say what letters are."""
    if package == "unidata":
        return f"unidata {unicodedata.unidata_version}"
    from importlib.metadata import version  # 15 ms, for the few steps that ask

    return f"{package} {version(package)}"


TEXT = "text"


Fault = tuple[int, Rejection]
"""The row of a text that is rejected, and why: at the stage "filter" for a rule about texts,
"transform" where a step cannot be done."""


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
    place = given.get_field_index(TEXT)
    if place >= 0 and pa.types.is_string(given.field(place).type):
        return
    if TOKENS in given.names:
        raise InputError(f"{who} takes texts, and the step before it has made tokens of them")
    is_there = (
        f"the field {TEXT} is {given.field(place).type}"
        if place >= 0
        else f"they have {_listed(given)}"
    )
    raise InputError(
        f"{who} takes texts, but the records have none: {is_there}; --text-field FIELD names the "
        "field of texts"
    )


def _listed(given: pa.Schema) -> str:
    return ", ".join(map(printable, given.names)) or "no fields"


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
        kept, before = np.ones(len(records.numbers), bool), texts_of(records)

        def reject_row(row: int, rejection: Rejection) -> None:
            kept[row] = False
            reject(row, rejection)

        after = self.work(before, reject_row)
        return ((records if after is before else with_texts(records, after)).kept(kept),)


class TextTransform(TextStep):
    """Changes the text of records."""

    @abstractmethod
    def changed(self, texts: pa.Array) -> pa.Array:
        """Return the changed texts: (n,) string without nulls, and so is the result; the same
        object if nothing changes."""

    def work(self, texts: pa.Array, reject: RejectRow) -> pa.Array:
        """Return the changed texts. It rejects none."""
        return self.changed(texts)


class TextFilter(TextStep):
    """Rejects records whose text does not keep to a rule, and changes none."""

    @abstractmethod
    def faults(self, texts: pa.Array) -> Iterable[Fault]:
        """Yield the texts that do not keep to a rule, each once, with the first rule that it
        breaks. `texts` is (n,) string without nulls."""

    def work(self, texts: pa.Array, reject: RejectRow) -> pa.Array:
        """Return the same texts."""
        for fault in self.faults(texts):
            reject(*fault)
        return texts


def where(
    texts: pa.Array, chosen: pa.Array, change: Callable[[pa.Array], pa.Array | list[str]]
) -> pa.Array:
    """Return texts, those that are chosen, (n,) bool, as `change` makes them."""
    import pyarrow.compute as pc

    if not chosen.true_count:
        return texts
    made = change(texts.filter(chosen))
    changed = pa.array(made, pa.string()) if isinstance(made, list) else made
    return (
        changed if chosen.true_count == len(texts) else pc.replace_with_mask(texts, chosen, changed)
    )
