"""How the files of many records of a job are read, as a dataset records it."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shardctl.build.plan.splits import Draw


@dataclass(frozen=True)
class RecordReading:
    """How files of many records are read; where a file is one record, nothing is said.

    `fields` are the columns that they are read into; None where a file is one record. `by_field` says that their `label` names
    the classes. `upright` says that masks and objects of records follow the turned image, as those of datasets that older
    versions made do not. `draw` decides the split of every record where a unit is in several.
    """

    fields: pa.Schema | None = None
    by_field: bool = False
    upright: bool = True
    draw: Draw | None = None

    @classmethod
    def from_json(cls, record: dict[str, Any] | None) -> RecordReading:
        """Build what a dataset records. Raises KeyError, TypeError, ValueError, ArrowException."""
        if record is None:
            return cls()
        draw = record["draw"]
        return cls(
            fields=decode_schema(record["schema"]),
            by_field=bool(record["by_field"]),
            upright=record.get("upright") is True,
            draw=Draw.from_json(draw) if draw else None,
        )


def encode_schema(schema: pa.Schema | None) -> str | None:
    """Return a schema as text, None for none."""
    return None if schema is None else base64.b64encode(schema.serialize()).decode("ascii")


def decode_schema(text: str | None) -> pa.Schema | None:
    """Return the schema that `encode_schema` gave as text. Raises ValueError, ArrowException."""
    return None if text is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
