"""TFRecord: SPLIT-00000.tfrecord for each shard, with a tf.train.Example for each sample. No TensorFlow is needed."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from shardctl.errors import UsageError
from shardctl.exports.base import Column, Export, Part, Place, Progress, Written
from shardctl.exports.examples import form_of_images, loss_of, serialized
from shardctl.exports.images import Recoding
from shardctl.exports.rows import batches
from shardctl.exports.source import Source
from shardctl.sources.exported import Field, FileFacts
from shardctl.sources.formats.tfrecord import HEAD, TAIL, crc32c, masked
from shardctl.storage import StreamedFile, replacing

COMPRESSIONS = {"none": ".tfrecord", "gzip": ".tfrecord.gz"}
GZIP_LEVEL = 6


@dataclass(frozen=True)
class TfRecord(Export):
    """A TFRecord file for each shard, plain or gzip."""

    compression: str = "none"
    name: ClassVar[str] = "tfrecord"

    def check(self, source: Source) -> None:
        """Raise UsageError for a compression that TensorFlow does not read, InstallError if a package is missing."""
        if self.compression not in COMPRESSIONS:
            raise UsageError(f"compression {self.compression!r} is not one of tfrecord's; use {' or '.join(COMPRESSIONS)}")
        crc32c()

    def place(self, column: Column) -> Place | None:
        """Say which feature a column becomes. Raises UsageError if another one has the name of the paths of its images."""
        if column.is_image:
            return Place(column.target, form_of_images(column))
        if column.is_raw_image:
            form = (Recoding.parse(column.store) or Recoding("png")).form_of(column.type, column.role)
            if form != "value":
                return Place(column.target, form)
        return Place(column.target, "value", loss_of(column))

    def write(self, source: Source, fields: Sequence[Field], part: Part, folder: Path, progress: Progress) -> Written:
        """Write one file; none if no sample was chosen of the shard."""
        name = part.name + COMPRESSIONS[self.compression]
        samples, facts = write_records(batches(source, fields, part, progress), fields, folder / name)
        return Written(samples, {name: facts} if samples else {})


def write_records(given: Iterator[pa.RecordBatch], fields: Sequence[Field], path: Path) -> tuple[int, FileFacts]:
    """Write samples into a file, which may have none, and return how many they are and what the file is."""
    checksum = crc32c()
    samples = 0
    with replacing(path, StreamedFile) as sink:
        with _compressed(sink, path) as stream:
            for batch in given:
                for data in serialized(batch, fields):
                    length = len(data).to_bytes(8, "little")
                    head = HEAD.pack(len(data), masked(checksum(length)))
                    stream.write(b"".join((head, data, TAIL.pack(masked(checksum(data))))))
                samples += batch.num_rows
        size = sink.tell()
    return samples, FileFacts(size, sink.sha256)


@contextmanager
def _compressed(sink: Any, path: Path) -> Iterator[Any]:
    """Yield what to write to. No name and no time get into what gzip writes."""
    if path.suffix != ".gz":
        yield sink
        return
    with gzip.GzipFile(filename="", mode="wb", compresslevel=GZIP_LEVEL, fileobj=sink, mtime=0) as stream:
        yield stream
