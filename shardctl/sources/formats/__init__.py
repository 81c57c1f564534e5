"""Formats of files that hold many records: small siblings behind one protocol."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, BinaryIO

from shardctl.errors import InstallError, Rejection
from shardctl.format.arrays import Numbers
from shardctl.images.defaults import KNOWN_SUFFIXES
from shardctl.sources.files import (
    BEGIN_BYTES,
    Version,
    begin_of,
    exists,
    local_copy,
    local_version,
    present_copy,
    stored_object,
)
from shardctl.sources.format_table import (
    CONTAINER_SUFFIXES,
    INPUT_FORMATS,
    PLAIN_TEXTS,
    TABLE_SUFFIXES,
    TEXT_SUFFIXES,
    Family,
    InputFormat,
    format_of,
)
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
    Parsed,
    Reading,
    TextFormat,
    Unit,
    is_json,
)
from shardctl.sources.walk import COMPRESSED, suffix_of
from shardctl.system.files import open_ordinary
from shardctl.system.locations import follow, is_stored, name_of, parent_of

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
    "import_attribute",
    "is_json",
]


@cache
def find_format(suffix: str, reading: Reading, shuffled: bool = False) -> Format:
    """Return the format of files of many records with this ending. `shuffled` asks for smaller
    units.

    Raises InstallError if a package is missing, KeyError for an ending that no format has.
    """
    plain, is_compressed = _split(suffix)
    row = format_of(plain, reading.record)
    streamed = is_compressed or reading.encoding != "utf-8"
    made = _imported(row, row.streamed if streamed and row.streamed else row.reader)
    if row.family is Family.TEXT:
        text: TextFormat = made().of(reading)
        if streamed or not row.carrier:  # it is read in one go
            found: Format = import_attribute("sequential:Sequential")(text)
        else:
            unit_bytes = SHUFFLED_UNIT_BYTES if shuffled else UNIT_BYTES
            found = import_attribute(row.carrier)(text, unit_bytes)
    elif row.family is Family.ROWS:
        found = import_attribute("numbered:Numbered")(made)
    elif row.family is Family.OWN:
        found = made()
    else:
        carrier = "Framed" if row.family is Family.CONTAINER else "OneByOne"
        found = import_attribute(f"framed:{carrier}")(made, row.of_tfds)
    return found


def _split(suffix: str) -> tuple[str, bool]:
    """Return an ending without that of a compression, and whether it had one."""
    plain, _, last = suffix.rpartition(".")
    is_compressed = bool(plain) and f".{last}" in COMPRESSED
    return plain if is_compressed else suffix, is_compressed


def _imported(row: InputFormat, reader: str) -> Any:
    if row.needs is not None:
        try:
            for module in row.needs.modules:
                import_module(module)
        except ImportError:
            raise InstallError(row.needs.message) from None
    return import_attribute(reader)


def _function(suffix: str, kind: str) -> Callable[[str], Any]:
    """Return what the format of files with this ending names as `kind`; where it has none, what
    returns None."""
    names = (getattr(row, kind) for row in INPUT_FORMATS if suffix in row.endings)
    name = next(filter(None, names), "")
    return import_attribute(name) if name else lambda _: None


def check_file(suffix: str, path: str) -> tuple[str, str] | None:
    """Look at a file as a whole, beside its records. Return what should be known of it, a short
    stable name and a sentence; None if nothing. Raises OSError; Rejection if it is not as it should
    be."""
    found: tuple[str, str] | None = _function(suffix, "check")(path)
    return found


def import_attribute(name: str) -> Any:
    """Return what the table of formats names, as `module:name`. The module is imported now."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"shardctl.sources.formats.{module}"), attribute)


_SPELLINGS = tuple(
    (re.compile(pattern), ending) for row in INPUT_FORMATS for pattern, ending in row.spellings
)
"""Other ways to spell an ending: numbered files, and short forms. How such a file is compressed,
its content says."""

_FAMILIES = list(Family)
_BY_MAGIC = sorted(
    (row for row in INPUT_FORMATS if row.magic), key=lambda row: _FAMILIES.index(row.family)
)
_BY_FUNCTION = [row for row in INPUT_FORMATS if row.begins]
"""Formats that are known by the first bytes of a file. The first format that fits is taken: a tar
may begin with PAR1."""

_OTHERS = frozenset(
    (
        ".xml,.html,.htm,.yaml,.yml,.toml,.ini,.py,.sh,.log,.pdf,.zip,.db,.mat,.pkl,.jpg,.jpeg,.png,.gif,.webp,.bmp,.tif,.tiff,.mp3,.mp4,.wav,.so,.o,.c,.h"
    ).split(",")
)
"""Endings of files that are none of these formats: they are not opened to see what they are."""

SNIFFED_BYTES = 512
"""How much of the beginning of a file tells its format: a header of tar."""


@lru_cache
def without_compression(suffix: str) -> str:
    """Return the ending of a file's name without that of its compression: .jsonl of .jsonl.gz."""
    plain, _ = _split(suffix)
    return plain if plain in PLAIN_TEXTS or plain in CONTAINER_SUFFIXES else suffix


def ending_of(path: str, opened: str) -> str:
    """Return the ending that tells the format of a file: that of its name, or the one that fits how
    the file begins.

    `path` has the name, and `opened` is where the file is. The ending is "" for a file whose format
    is not known.
    """
    name = name_of(path)
    suffix = suffix_of(name)
    plain = without_compression(suffix)
    if plain in TABLE_SUFFIXES or plain in TEXT_SUFFIXES:
        return suffix
    lower = name.lower()
    spelled = next((ending for pattern, ending in _SPELLINGS if pattern.search(lower)), None)
    if spelled is not None:
        return spelled
    of_image = suffix if suffix in KNOWN_SUFFIXES else ""
    return of_image if suffix in _OTHERS else _ending_by_content(opened) or of_image


def _ending_by_content(opened: str) -> str:
    try:
        if is_stored(opened):
            if (copy := present_copy(opened)) is not None:
                return _ending_by_content(copy)
            return _ending_in(io.BytesIO(begin_of(opened, BEGIN_BYTES)))
        return _sniffed(opened, local_version(opened))
    except OSError:
        return ""


@lru_cache(4096)
def _sniffed(opened: str, _version: Version) -> str:
    return _ending_in(open_ordinary(opened))


def _ending_in(file: BinaryIO) -> str:
    # it imports compressions, which few files need
    from shardctl.sources.formats.content import content_of

    try:
        with closing(content_of(file, lambda begin: bool(_known_by_function(begin)))) as content:
            start = content.at(0, SNIFFED_BYTES)
            compressed = content.compression is not None
    except (OSError, Rejection):
        return ""
    row = next((row for row in _BY_MAGIC if row.fits(start)), None) or _known_by_function(start)
    return (
        row.endings[0]
        if row is not None and (not compressed or row.family is Family.CONTAINER)
        else ""
    )


def _known_by_function(start: bytes) -> InputFormat | None:
    return next((row for row in _BY_FUNCTION if import_attribute(row.begins)(start)), None)


def copy_to_read(text: str, ending: str, version: int = 0) -> str:
    """Return a path at which the format of files with this ending can read a file, or an object,
    now.

    With a `version`, another one is refused. Raises Rejection (changed), OSError, SourceGoneError,
    StorageError.
    """
    if not is_stored(text):
        return text
    companions = _function(_split(ending)[0], "companions")
    for name in companions(local_copy(text, version)) or ():
        other = follow(parent_of(text), name)
        # `..` has not led out of the bucket
        is_in_bucket = stored_object(other).bucket == stored_object(text).bucket
        if is_in_bucket and exists(other):
            with suppress(FileNotFoundError):
                local_copy(other)
    return local_copy(text, version)  # of the files that this process holds, it is one of the last
