"""The format of a file that holds many records: told by the ending of its name, or by how it begins
where that says nothing."""

from __future__ import annotations

import os
import re
from functools import lru_cache

from shardctl.errors import Rejection
from shardctl.images.defaults import OTHER_SUFFIXES, SUFFIXES
from shardctl.sources.files import copy_of_begin, present_copy
from shardctl.sources.format_table import (
    CONTAINER_SUFFIXES,
    INPUT_FORMATS,
    PLAIN_TEXTS,
    TABLE_SUFFIXES,
    TEXT_SUFFIXES,
    Family,
    InputFormat,
)
from shardctl.sources.formats import import_attribute
from shardctl.sources.walk import COMPRESSED, suffix_of
from shardctl.system.locations import is_stored

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
        ".xml",
        ".html",
        ".htm",
        ".yaml",
        ".yml",
        ".toml",
        ".ini",
        ".py",
        ".sh",
        ".log",
        ".pdf",
        ".zip",
        ".db",
        ".mat",
        ".pkl",
    )
    + (
        ".jpg",
        ".jpeg",
        ".png",
        ".gif",
        ".webp",
        ".bmp",
        ".tif",
        ".tiff",
        ".mp3",
        ".mp4",
        ".wav",
        ".so",
        ".o",
        ".c",
        ".h",
    )
)
"""Endings of files that are none of these formats: they are not opened to see what they are."""

_IMAGES = SUFFIXES | OTHER_SUFFIXES

SNIFFED_BYTES = 512
"""How much of the beginning of a file tells its format: a header of tar."""


@lru_cache
def without_compression(suffix: str) -> str:
    """Return the ending of a file's name without that of its compression: .jsonl of .jsonl.gz."""
    plain, _, last = suffix.rpartition(".")
    return (
        plain
        if f".{last}" in COMPRESSED and (plain in PLAIN_TEXTS or plain in CONTAINER_SUFFIXES)
        else suffix
    )


def ending_of(path: str, opened: str) -> str:
    """Return the ending that tells the format of a file: that of its name, or the one that fits how
    the file begins.

    `path` has the name, and `opened` is where the file is. The ending is "" for a file whose format
    is not known.
    """
    name = path.rpartition("/")[2]
    suffix = suffix_of(name)
    plain = without_compression(suffix)
    if plain in TABLE_SUFFIXES or plain in TEXT_SUFFIXES:
        return suffix
    lower = name.lower()
    spelled = next((ending for pattern, ending in _SPELLINGS if pattern.search(lower)), None)
    if spelled is not None:
        return spelled
    of_image = suffix if suffix in _IMAGES else ""
    return of_image if suffix in _OTHERS else _ending_by_content(opened) or of_image


def _ending_by_content(opened: str) -> str:
    try:
        if is_stored(opened):
            if (copy := present_copy(opened)) is not None:
                return _ending_by_content(copy)
            with copy_of_begin(opened) as begin:
                return _ending_by_content(begin)
        status = os.stat(opened)  # noqa: PTH116 - see pyproject.toml on Path in what is done per unit
    except OSError:
        return ""
    return _sniffed(opened, status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache(4096)
def _sniffed(opened: str, *_version: int) -> str:
    # it imports compressions, which few files need
    from shardctl.sources.formats.content import open_content

    try:
        with open_content(opened, lambda begin: _known_by_function(begin) is not None) as content:
            start = content.at(0, SNIFFED_BYTES)
            compressed = content.compression is not None
    except (OSError, Rejection):
        return ""
    row = _known_by_magic(start) or _known_by_function(start)
    return (
        row.endings[0]
        if row is not None and (not compressed or row.family is Family.CONTAINER)
        else ""
    )


def _known_by_magic(start: bytes) -> InputFormat | None:
    return next(
        (
            row
            for row in _BY_MAGIC
            if all(start.startswith(magic, place) for place, magic in row.magic)
        ),
        None,
    )


def _known_by_function(start: bytes) -> InputFormat | None:
    return next((row for row in _BY_FUNCTION if import_attribute(row.begins)(start)), None)
