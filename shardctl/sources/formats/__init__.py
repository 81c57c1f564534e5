"""Formats of files that hold many records: small siblings behind one protocol."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from shardctl.sources.formats.base import (
    CHOSEN,
    DETECT,
    GIVEN,
    PIECE_BYTES,
    RECORD_BYTES,
    UNIT_BYTES,
    Choose,
    ColumnMisfit,
    Cut,
    Digest,
    Format,
    Misfit,
    Numbers,
    Parsed,
    Reading,
    TextFormat,
    Unit,
)
from shardctl.sources.walk import COMPRESSED

SHUFFLED_UNIT_BYTES = 128 << 10
"""About how many bytes of a file of lines are a unit where records are shuffled: the neighbours of a record in its file are
still its neighbours in a unit."""

_JSON_LINES = ("jsonl:JsonLines", "lines:LineFile")
_TEXT = {"line": ("text:Lines", "lines:LineFile"), "paragraph": ("text:Paragraphs", "sequential:Sequential")}

TEXT_FORMATS: dict[str, tuple[str, str]] = {
    ".jsonl": _JSON_LINES,
    ".ndjson": _JSON_LINES,
    ".csv": ("csv:Delimited", "csv_file:DelimitedFile"),
    ".tsv": ("csv:tab_delimited", "csv_file:DelimitedFile"),
}
"""Formats that are text, by the ending of a file's name: the text format, and what reads it from a plain file in UTF-8. What is
compressed or in another encoding is read by sequential.py. A module is imported when the first file of its format is met."""

FORMATS: dict[str, str] = {
    ".json": "json_array:JsonDocument",
    ".parquet": "parquet:ParquetFile",
    ".arrow": "arrow:ArrowFile",
    ".arrows": "arrow:ArrowFile",
    ".ipc": "arrow:ArrowFile",
    ".feather": "arrow:ArrowFile",
}
"""Formats that are not read line by line, by the ending of a file's name."""

PACKAGED: dict[str, str] = {
    ".array_record": "array_record:ArrayRecord",
    ".mdb": "lmdb:Lmdb",
    ".lmdb": "lmdb:Lmdb",
}
"""Formats that a package of others reads, record by record."""

NUMBERED: dict[str, str] = {
    ".npy": "npy:Npy",
    ".npz": "npz:Npz",
    ".megatron": "megatron:Megatron",
    ".h5": "hdf5:Hdf5",
    ".hdf5": "hdf5:Hdf5",
    ".lance": "lance:Lance",
}
"""Formats of arrays, whose rows are the records. They are read by numbered.py. An .idx of Megatron is known by its content:
other files have this ending too."""

CONTAINERS: dict[str, str] = {
    ".tar": "webdataset:WebDataset",
    ".tfrecord": "tfrecord:TFRecord",
    ".mds": "mds:Mds",
    ".rec": "recordio:RecordIO",
}
"""Formats whose records lie one after the other in a file, which may be compressed as a whole. They are read by framed.py."""

JSON_STREAM = "json_stream:JsonStream"
"""What reads .json that is compressed or in another encoding."""

TEXT_SUFFIXES = frozenset((".txt", ".text", ".md"))
"""Endings of the names of plain text, whose records are what `Reading.record` says."""

TABLE_SUFFIXES = frozenset((*TEXT_FORMATS, *FORMATS, *PACKAGED, *NUMBERED, *CONTAINERS))

PLAIN_TEXTS = frozenset((*TEXT_SUFFIXES, *TEXT_FORMATS, ".json"))
"""Endings of files that are text. Behind them .gz and the like may stand: Parquet and Arrow files are compressed within."""

__all__ = [
    "CHOSEN",
    "CONTAINERS",
    "DETECT",
    "GIVEN",
    "NUMBERED",
    "PACKAGED",
    "PIECE_BYTES",
    "PLAIN_TEXTS",
    "RECORD_BYTES",
    "TABLE_SUFFIXES",
    "TEXT_SUFFIXES",
    "UNIT_BYTES",
    "Choose",
    "ColumnMisfit",
    "Cut",
    "Digest",
    "Format",
    "Misfit",
    "Numbers",
    "Parsed",
    "Reading",
    "Unit",
    "check_file",
    "find_format",
    "note_on",
]


@cache
def find_format(suffix: str, reading: Reading, shuffled: bool = False) -> Format:
    """Return the format of files of many records with this ending. `shuffled` asks for smaller units."""
    plain, _, last = suffix.rpartition(".")
    compressed = bool(plain) and f".{last}" in COMPRESSED
    name = plain if compressed else suffix
    if name in CONTAINERS:
        opened: Format = _find("framed:Framed")(_find(CONTAINERS[name])())
        return opened
    if name in PACKAGED:
        read: Format = _find(PACKAGED[name])()
        return read
    if name in NUMBERED:
        of_rows: Format = _find("numbered:Numbered")(_find(NUMBERED[name])())
        return of_rows
    streamed = compressed or reading.encoding != "utf-8"
    if name in FORMATS:
        made: Format = _find(JSON_STREAM if streamed and name == ".json" else FORMATS[name])()
        return made
    text_name, carrier = _TEXT[reading.record] if name in TEXT_SUFFIXES else TEXT_FORMATS[name]
    found: Any = _find(text_name)()
    text: TextFormat = found.of(reading) if name in (".csv", ".tsv") else found
    if streamed or carrier.startswith("sequential"):
        made = _find("sequential:Sequential")(text)
    else:
        made = _find(carrier)(text, SHUFFLED_UNIT_BYTES if shuffled else UNIT_BYTES)
    return made


FILE_CHECKS = {".mds": "mds:check_hashes"}
"""What compares a file as a whole with what others say of it, by the ending of its name."""


def check_file(suffix: str, path: str) -> None:
    """Compare a file with what is known of it as a whole, beside its records. Raises Rejection, OSError."""
    if suffix in FILE_CHECKS:
        _find(FILE_CHECKS[suffix])(path)


FILE_NOTES = {".tar": "webdataset:note_on_end"}
"""What looks at a file for something that is no damage and should be known, by the ending of its name."""


def note_on(suffix: str, path: str) -> tuple[str, str] | None:
    """Return what should be known of a file, a short stable name and a sentence; None if nothing. Raises OSError, Rejection."""
    found: tuple[str, str] | None = _find(FILE_NOTES[suffix])(path) if suffix in FILE_NOTES else None
    return found


def _find(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"shardctl.sources.formats.{module}"), attribute)
