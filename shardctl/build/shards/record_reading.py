"""How the files of many records of a job are read, as a dataset records it."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shardctl.build.plan.splits import Draw


@dataclass(frozen=True)
class RecordReading:
    """How files of many records are read. The defaults are for files of one record."""

    fields: pa.Schema | None = None
    """The columns of the records; None for files of one record."""

    by_field: bool = False
    """Whether the field `label` of the records names the classes."""

    draw: Draw | None = None
    """Decides the split of each record; None where a unit belongs to one split."""

    @classmethod
    def from_json(cls, record: dict[str, Any] | None) -> RecordReading:
        """Build what a dataset records. Raises KeyError, TypeError, ValueError, ArrowException."""
        if record is None:
            return cls()
        draw = record["draw"]
        return cls(
            fields=decode_schema(record["schema"]),
            by_field=bool(record["by_field"]),
            draw=Draw.from_json(draw) if draw else None,
        )


def encode_schema(schema: pa.Schema | None) -> str | None:
    """Return a schema as text, None for none."""
    return None if schema is None else base64.b64encode(schema.serialize()).decode("ascii")


def decode_schema(text: str | None) -> pa.Schema | None:
    """Return the schema that `encode_schema` gave as text. Raises ValueError, ArrowException."""
    return None if text is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
