"""Which reader training uses for which shards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shardctl.errors import UsageError
from shardctl.sources.formats.tfds import FEATURES
from shardctl.system.text import printable


@dataclass(frozen=True)
class PeerReader:
    """A reader of another tool: the module of `programs` that drives it, and the packages that pip
    installs it from."""

    program: str
    packages: str
    copies: bool = False
    """Whether it makes a copy of the shards before it reads them."""


READERS = {
    "webdataset": PeerReader("read_webdataset", "webdataset torch"),
    "tfrecord": PeerReader("read_tfrecord", "tensorflow"),
    "tfds": PeerReader("read_tfds", "tensorflow tensorflow-datasets"),
    "mds": PeerReader("read_mds", "mosaicml-streaming"),
    "parquet": PeerReader("read_huggingface", "datasets torch", copies=True),
    "arrow": PeerReader("read_huggingface", "datasets torch"),
}
"""The reader for each format of FORMAT_NAMES, and for folders of TFDS."""


def reader_of(formats: dict[str, int], files: list[str], shown: str) -> PeerReader:
    """Return the reader for files of these formats. Raises UsageError where there is none, or more
    than one is needed."""
    known = ", ".join(READERS)
    if len(formats) != 1:
        raise UsageError(
            f"{printable(shown)} has files of several formats ({', '.join(formats)}); measure one "
            "at a time"
        )
    name = next(iter(formats))
    if name == "tfrecord" and (Path(files[0]).parent / FEATURES).exists():
        name = "tfds"
        if len({Path(file).parent for file in files}) > 1:
            raise UsageError(
                f"{printable(shown)} has several folders of TFDS; measure one at a time"
            )
    if name not in READERS:
        raise UsageError(
            f"{printable(shown)}: bench knows no reader for files of {name} (it knows those for "
            f"{known});"
            " convert them, and measure the dataset"
        )
    zstd = next(
        (
            file
            for file in files
            if name == "webdataset" and file.endswith((".zst", ".zstd", ".tzst"))
        ),
        None,
    )
    if zstd is not None:
        raise UsageError(
            f"{printable(zstd)}: webdataset does not read tars that zstd has compressed; shardctl "
            "does: convert them"
        )
    return READERS[name]
