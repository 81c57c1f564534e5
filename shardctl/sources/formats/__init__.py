"""Formats of files that hold many records: small siblings behind one protocol."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

from shardctl.errors import InstallError
from shardctl.sources.format_table import INPUT_FORMATS, Family, InputFormat, format_of
from shardctl.sources.formats.base import (
    CHOSEN,
    DETECT,
    GIVEN,
    JSON,
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
    is_json,
)
from shardctl.sources.walk import COMPRESSED

SHUFFLED_UNIT_BYTES = 128 << 10
"""About how many bytes of a file of lines are a unit where records are shuffled: the neighbours of
a record in its file are still its neighbours in a unit."""

__all__ = [
    "CHOSEN",
    "DETECT",
    "GIVEN",
    "JSON",
    "PIECE_BYTES",
    "RECORD_BYTES",
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
    "companions_of",
    "find_format",
    "import_attribute",
    "is_json",
    "note_on",
]


@cache
def find_format(suffix: str, reading: Reading, shuffled: bool = False) -> Format:
    """Return the format of files of many records with this ending. `shuffled` asks for smaller
    units.

    Raises InstallError if a package is missing, KeyError for an ending that no format has.
    """
    plain, _, last = suffix.rpartition(".")
    compressed = bool(plain) and f".{last}" in COMPRESSED
    row = format_of(plain if compressed else suffix, reading.record)
    streamed = compressed or reading.encoding != "utf-8"
    if row.family is Family.TEXT:
        return _text_format(row, reading, streamed, SHUFFLED_UNIT_BYTES if shuffled else UNIT_BYTES)
    made = _made(row, row.streamed if streamed and row.streamed else row.reader)
    carrier = _CARRIERS.get(row.family)
    form: Format = made if carrier is None else import_attribute(carrier)(made)
    return form


_CARRIERS = {Family.CONTAINER: "framed:Framed", Family.ROWS: "numbered:Numbered"}
"""What reads the formats of a family. Others read their files themselves."""


def _text_format(row: InputFormat, reading: Reading, streamed: bool, unit_bytes: int) -> Format:
    """Return what reads a text format: compressed or not in UTF-8 (`streamed`), or without a
    carrier, in one go."""
    text: TextFormat = _made(row, row.reader).of(reading)
    if streamed or not row.carrier:
        found: Format = import_attribute("sequential:Sequential")(text)
    else:
        found = import_attribute(row.carrier)(text, unit_bytes)
    return found


def _made(row: InputFormat, reader: str) -> Any:
    make = import_attribute(reader)
    try:
        return make()
    except ImportError:
        if row.needs is None:
            raise
        raise InstallError(row.needs.message) from None


def check_file(suffix: str, path: str) -> None:
    """Compare a file with what is known of it as a whole, beside its records. Raises Rejection,
    OSError."""
    for row in INPUT_FORMATS:
        if row.check and suffix in row.endings:
            import_attribute(row.check)(path)


def companions_of(suffix: str, path: str) -> Iterator[str]:
    """Yield the files that the format of a file reads beside it: see InputFormat.companions."""
    plain, _, last = suffix.rpartition(".")
    ending = plain if plain and f".{last}" in COMPRESSED else suffix
    row = next((row for row in INPUT_FORMATS if row.companions and ending in row.endings), None)
    return iter(()) if row is None else import_attribute(row.companions)(path)


def note_on(suffix: str, path: str) -> tuple[str, str] | None:
    """Return what should be known of a file, a short stable name and a sentence; None if nothing.
    Raises OSError, Rejection."""
    row = next((row for row in INPUT_FORMATS if row.note and suffix in row.endings), None)
    note: tuple[str, str] | None = import_attribute(row.note)(path) if row is not None else None
    return note


def import_attribute(name: str) -> Any:
    """Return what the table of formats names, as `module:name`. The module is imported now."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"shardctl.sources.formats.{module}"), attribute)
