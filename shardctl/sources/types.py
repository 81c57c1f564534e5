"""The types of fields over any number of records: found in parts, joined in any order."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


class Types:
    """The types of the fields of some records, and the strings of the field that may name classes.

    Parts are joined in any order with the same result. Field order is that of the first part, then the others by name.
    """

    @classmethod
    def of(cls, batch: pa.RecordBatch, label: str) -> Types:
        """Return the types of these columns as their values need them; strings of the column `label` may name classes."""
        raise NotImplementedError

    def join(self, other: Types) -> Types:
        """Return the types of the records of both."""
        raise NotImplementedError

    def schema(self) -> pa.Schema:
        """Return the columns that hold all values without a change."""
        raise NotImplementedError

    def mixed(self) -> list[str]:
        """Return the fields whose values fit no common type: their column is a string, with JSON text in it."""
        raise NotImplementedError

    def labels(self) -> list[str] | None:
        """Return the different strings of the field that may name classes, sorted.

        None: not all of its values are strings, there are none, or more than 100,000 different ones.
        """
        raise NotImplementedError

    def to_json(self) -> Any:
        """Return everything as plain data."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, record: Any) -> Types:
        """Build what `to_json` gave."""
        raise NotImplementedError
