"""Image files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from shardctl.codecs import image
from shardctl.sample import Sample
from shardctl.sources.base import Input, file_input
from shardctl.sources.walk import FoundFile

SIDE_FILES = frozenset(
    (".txt", ".text", ".md", ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".xml", ".html", ".htm", ".yaml", ".yml", ".toml")
    + (".ini", ".py", ".sh", ".log", ".pdf", ".zip", ".tar", ".gz", ".npy", ".npz", ".parquet", ".arrow", ".db", ".mat", ".pkl")
)
"""Names of files that are often beside images; they are not opened to check whether they are images."""


KNOWN_SUFFIXES = frozenset((*image.SUFFIXES, *image.OTHER_SUFFIXES))


class ImageSource:
    """One image per file. A file whose name says nothing is an image if it begins like one."""

    kind = "image"

    def takes(self, file: FoundFile) -> bool | None:
        """Tell by the name, or by the first bytes where the name says nothing; None if those cannot be read."""
        suffix = file.suffix
        if suffix in KNOWN_SUFFIXES:
            return True
        if suffix in SIDE_FILES:
            return False
        if file.fault:
            return None
        try:
            with open(file.opened, "rb") as opened:
                return image.is_image(opened.read(image.SNIFF_BYTES))
        except OSError:
            return None

    def inputs(self, file: FoundFile) -> Iterable[Input]:
        """Return the file as one input."""
        return (file_input(file),)

    def parse(self, data: bytes, source: str) -> Sample:
        """Keep the bytes: the recipe says what becomes of them."""
        return {"image": data}

    def columns(self) -> pa.Schema | None:
        """Return None: the one column is the image, and its type is the recipe's."""
        return None

    def labels(self) -> Sequence[str] | None:
        """Return None: an image brings no label of its own."""
        return None

    def notices(self) -> list[str]:
        """Return nothing: an image is known only when it is decoded."""
        return []
