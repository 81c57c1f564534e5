"""The format of a file that holds many records: told by the ending of its name, or by how it begins where that says nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import lru_cache

from shardctl.errors import Rejection
from shardctl.sources.formats import CONTAINERS, PLAIN_TEXTS, TABLE_SUFFIXES, TEXT_SUFFIXES
from shardctl.sources.remote import remote_files
from shardctl.sources.walk import COMPRESSED, suffix_of

_SPELLINGS = (
    (re.compile(r"(^|[._-])tfrecords?([._-]\d+)?(-\d+-of-\d+)?(\.(gz|gzip|zlib|zst))?$"), ".tfrecord"),
    (re.compile(r"(^|[._-])array_?records?(-\d+-of-\d+)?$"), ".array_record"),
    (re.compile(r"\.mds\.(zstd|zst|gz|bz2|br|snappy)$"), ".mds"),
    (re.compile(r"^\d{1,20}\.manifest$"), ".lance"),
    (re.compile(r"\.(tgz|tar\.gz)$"), ".tar.gz"),
    (re.compile(r"\.(tzst|tar\.zstd)$"), ".tar.zst"),
)
"""Other ways to spell an ending: numbered files, and short forms. How such a file is compressed, its content says."""

_OTHERS = frozenset(
    (".xml", ".html", ".htm", ".yaml", ".yml", ".toml", ".ini", ".py", ".sh", ".log", ".pdf", ".zip", ".db", ".mat", ".pkl")
    + (".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".mp3", ".mp4", ".wav", ".so", ".o", ".c", ".h")
)
"""Endings of files that are none of these formats: they are not opened to see what they are."""

SNIFFED_BYTES = 512
"""How much of the beginning of a file tells its format: a header of tar."""


@lru_cache
def without_compression(suffix: str) -> str:
    """Return the ending of a file's name without that of its compression: .jsonl of .jsonl.gz."""
    plain, _, last = suffix.rpartition(".")
    return plain if f".{last}" in COMPRESSED and (plain in PLAIN_TEXTS or plain in CONTAINERS) else suffix


def ending_of(path: str, opened: str) -> str:
    """Return the ending that tells the format of a file: that of its name, or the one that fits how the file begins.

    `path` has the name, and `opened` is where the file is. The ending is "" for a file whose format is not known.
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
    return "" if suffix in _OTHERS else _ending_by_content(opened)


def _ending_by_content(opened: str) -> str:
    try:
        if remote_files.is_brought(opened) and not os.path.exists(opened):  # noqa: PTH110 - see below
            with remote_files.copy_of_begin(opened) as begin:
                return _ending_by_content(begin)
        status = os.stat(opened)  # noqa: PTH116 - see pyproject.toml on Path in what is done per unit
    except OSError:
        return ""
    return _sniffed(opened, status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache(4096)
def _sniffed(opened: str, *_version: int) -> str:
    from shardctl.sources.formats.content import open_content  # it imports compressions, which few files need

    try:
        with open_content(opened, _begins_as_tfrecord) as content:
            start = content.at(0, SNIFFED_BYTES)
            compressed = content.compression is not None
    except (OSError, Rejection):
        return ""
    ending = next((ending for ending, begins in _BEGINNINGS.items() if begins(start)), "")
    return ending if not compressed or ending in CONTAINERS else ""


def _begins_as_tfrecord(start: bytes) -> bool:
    from shardctl.sources.formats.tfrecord import begins

    return begins(start)


_BEGINNINGS: dict[str, Callable[[bytes], bool]] = {
    ".parquet": lambda start: start.startswith(b"PAR1"),
    ".arrow": lambda start: start.startswith(b"ARROW1\0\0"),
    ".tar": lambda start: start[257:262] == b"ustar",
    ".rec": lambda start: start.startswith(b"\x0a\x23\xd7\xce"),
    ".npy": lambda start: start.startswith(b"\x93NUMPY"),
    ".megatron": lambda start: start.startswith(b"MMIDIDX\0\0"),
    ".h5": lambda start: start.startswith(b"\x89HDF\r\n\x1a\n"),
    ".mdb": lambda start: start[16:20] == b"\xde\xc0\xef\xbe",
    ".array_record": lambda start: start.startswith(b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f") and start[16:24] == b"\x40" + bytes(7),
    ".tfrecord": _begins_as_tfrecord,
}
"""How files of each format begin."""
