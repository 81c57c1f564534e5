"""Text: whole files, lines or paragraphs of them, and objects of JSON lines."""

from __future__ import annotations

import io
from typing import ClassVar

import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.roles import Sample
from shardctl.sources.endings import ending_of, without_compression
from shardctl.sources.export_description import described
from shardctl.sources.format_table import TABLE_SUFFIXES, TEXT_SUFFIXES
from shardctl.sources.formats import RECORD_BYTES, Reading
from shardctl.sources.kinds.base import Form
from shardctl.sources.walk import COMPRESSED, FoundFile
from shardctl.system.text import format_bytes

LINES = frozenset((".jsonl", ".ndjson"))
_COMPRESSED = tuple(COMPRESSED)


class TextKind:
    """A `.txt` file is one sample with the field `text`; a record of a JSONL file is one with the
    fields of its object."""

    name: ClassVar[str] = "text"
    has_sidecars: ClassVar[bool] = True
    columns: ClassVar[pa.Schema | None] = pa.schema([("text", pa.string())])

    def form(self, file: FoundFile, reading: Reading) -> Form:
        """Tell by the name."""
        plain = without_compression(file.suffix)
        if plain in TEXT_SUFFIXES:
            return Form.ONE if reading.record == "file" else Form.MANY
        return Form.MANY if plain in LINES or _has_exported_texts(file, plain) else Form.NOTHING

    def fields(self, data: bytes, path: str, reading: Reading) -> Sample:
        """Decompress and decode the file."""
        from shardctl.sources.formats.encodings import decode_text
        from shardctl.sources.formats.streams import refuse_other_content

        if path.lower().endswith(_COMPRESSED):
            data = _decompressed(data, path.lower().rpartition(".")[2])
        else:
            refuse_other_content(data[:16])
        return {"text": decode_text(data, reading.encoding)}


def _has_exported_texts(file: FoundFile, plain: str) -> bool:
    """Return whether a file is of an export of a dataset of texts."""
    if file.fault is not None or (
        plain not in TABLE_SUFFIXES and ending_of(file.path, file.opened) not in TABLE_SUFFIXES
    ):
        return False
    export = described(file.opened)
    return export is not None and export.layout.kind == TextKind.name


def too_large() -> Rejection:
    """Return why a file is rejected that has more text than one record may have."""
    limit = format_bytes(RECORD_BYTES)
    message = (
        f"the file has more than {limit} of text, too much for one record; --record line "
        "makes a record of each line"
    )
    return Rejection("read", "too-large", message)


def _decompressed(data: bytes, compression: str) -> bytes:
    from shardctl.sources.formats.streams import Truncated, decompressed

    parts, size = [], 0
    try:
        for part in decompressed(io.BytesIO(data), compression):
            parts.append(part)
            size += len(part)
            if size > RECORD_BYTES:
                raise too_large()
    except Truncated:
        raise Rejection(
            "read",
            "truncated",
            f"the compressed file ends early, after {size} bytes; fetch it again",
        ) from None
    return b"".join(parts)
