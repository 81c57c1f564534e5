"""What steps of text have in common: they work on the column `text` of batches of records."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, Rejection
from shardctl.roles import Role
from shardctl.storage import printable
from shardctl.transforms.base import BatchTransform
from shardctl.transforms.records import BatchRun, EachBatch, Records, RejectRow

TEXT = "text"


class Fault(NamedTuple):
    """A text that does not keep to a rule: its row, the short name of the rule, and what is wrong, with the value."""

    row: int
    rule: str
    why: str


def texts_of(records: Records) -> pa.Array:
    """Return the texts of records, (n,) string; an empty one where a text is missing."""
    texts = records.batch.column(TEXT)
    return texts.fill_null("") if texts.null_count else texts


def require_text(given: pa.Schema, who: str) -> None:
    """Raise InputError unless there is a column of texts."""
    place = given.get_field_index(TEXT)
    if place >= 0 and pa.types.is_string(given.field(place).type):
        return
    is_there = f"the field {TEXT} is {given.field(place).type}" if place >= 0 else f"they have {_listed(given)}"
    raise InputError(f"{who} takes texts, and the records have none: {is_there}; --text-field FIELD names the field of texts")


def _listed(given: pa.Schema) -> str:
    return ", ".join(map(printable, given.names)) or "no fields"


class TextTransform(BatchTransform):
    """Changes the text of records, and leaves their other fields as they are."""

    @abstractmethod
    def changed(self, texts: pa.Array) -> pa.Array:
        """Return the changed texts: (n,) string without nulls, and so is the result."""

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the same columns."""
        require_text(given, self.name)
        return given

    def begin(self, folder: Path, roles: Mapping[str, Role]) -> BatchRun:
        """Return what changes the texts of one batch after the other. A missing text stays missing."""
        return EachBatch(self._apply)

    def _apply(self, records: Records, reject: RejectRow) -> Records:
        before = records.batch.column(TEXT)
        after = self.changed(texts_of(records))
        if before.null_count:
            import pyarrow.compute as pc

            after = pc.if_else(before.is_null(), pa.scalar(None, pa.string()), after)
        return records.with_column(TEXT, after)


class TextFilter(BatchTransform):
    """Rejects records whose text does not keep to a rule, and changes none."""

    @abstractmethod
    def faults(self, texts: pa.Array) -> Iterable[Fault]:
        """Yield the texts that do not keep to a rule, each once, with the first rule that it breaks. `texts` is (n,) string
        without nulls."""

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the same columns."""
        require_text(given, self.name)
        return given

    def begin(self, folder: Path, roles: Mapping[str, Role]) -> BatchRun:
        """Return what judges one batch after the other."""
        return EachBatch(self._apply)

    def _apply(self, records: Records, reject: RejectRow) -> Records:
        kept = np.ones(len(records.numbers), bool)
        for fault in self.faults(texts_of(records)):
            kept[fault.row] = False
            reject(fault.row, Rejection("filter", fault.rule, fault.why))
        return records.kept(kept)
