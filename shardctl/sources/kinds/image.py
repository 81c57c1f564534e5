"""Image files."""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa

from shardctl.format.roles import Sample
from shardctl.images.codecs import image
from shardctl.images.defaults import OTHER_SUFFIXES, SUFFIXES
from shardctl.sources.endings import without_compression
from shardctl.sources.files import begin_of
from shardctl.sources.format_table import FRAME, TABLE_SUFFIXES, TEXT_SUFFIXES
from shardctl.sources.formats import Reading
from shardctl.sources.kinds.base import Form
from shardctl.sources.kinds.table import TableKind
from shardctl.sources.walk import COMPRESSED, FoundFile

SIDE_FILES = frozenset(
    (
        ".txt",
        ".text",
        ".md",
        ".csv",
        ".tsv",
        ".json",
        ".jsonl",
        ".ndjson",
        ".xml",
        ".html",
        ".htm",
        ".yaml",
        ".yml",
        ".toml",
    )
    + (
        ".ini",
        ".py",
        ".sh",
        ".log",
        ".pdf",
        ".zip",
        ".tar",
        ".gz",
        ".npy",
        ".npz",
        ".parquet",
        ".arrow",
        ".db",
        ".mat",
        ".pkl",
    )
)
"""Names of files that are often beside images; they are not opened to check whether they are
images."""


KNOWN_SUFFIXES = SUFFIXES | OTHER_SUFFIXES


_NAMED = frozenset((*KNOWN_SUFFIXES, *SIDE_FILES, *TABLE_SUFFIXES, *TEXT_SUFFIXES))


def is_unnamed(file: FoundFile) -> bool:
    """Return whether the name of a file does not say what it is: it is opened to see that."""
    return (
        file.suffix not in _NAMED
        and without_compression(file.suffix) not in _NAMED
        and file.fault is None
    )


class ImageKind:
    """One image per file, or per record of a table. A file whose name says nothing is an image if
    it begins like one."""

    name: ClassVar[str] = "image"
    has_sidecars: ClassVar[bool] = True
    columns: ClassVar[pa.Schema | None] = None

    def form(self, file: FoundFile, reading: Reading) -> Form:
        """Tell by the name, or by the first bytes where the name says nothing. Tables, where images
        are in tables."""
        if reading.image is not None:
            return TableKind().form(file, reading)
        suffix = file.suffix
        one = Form.MANY if reading.record == FRAME else Form.ONE
        if suffix in KNOWN_SUFFIXES:
            return one
        if suffix in SIDE_FILES or suffix.endswith(tuple(COMPRESSED)):
            return Form.NOTHING
        if file.fault:
            return Form.UNKNOWN
        try:
            return one if image.is_image(begin_of(file.opened, image.SNIFF_BYTES)) else Form.NOTHING
        except OSError:
            return Form.UNKNOWN

    def fields(self, data: bytes, path: str, reading: Reading) -> Sample:
        """Keep the bytes, with the path: the recipe says what becomes of them."""
        return {"image": {"bytes": data, "path": path}}
