"""TFRecord: SPLIT-00000.tfrecord for each shard, with a tf.train.Example for each sample. No
TensorFlow is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from shardctl.interop.exports.base import ExportPart, PartResult, Progress
from shardctl.interop.exports.compressed import SUFFIXES, check_compression, compressing
from shardctl.interop.exports.examples import ExampleExport, serialized
from shardctl.interop.exports.rows import batches
from shardctl.interop.exports.source import Source
from shardctl.sources.export_description import Field
from shardctl.sources.formats.tfrecord import HEAD, TAIL, crc32c, masked
from shardctl.system.files import FileFacts, StreamedFile, replacing


@dataclass(frozen=True)
class TfRecord(ExampleExport):
    """A TFRecord file for each shard, plain or gzip."""

    compression: str = "none"
    name: ClassVar[str] = "tfrecord"

    def check(self, source: Source) -> None:
        """Raise UsageError for a compression that TensorFlow does not read, InstallError if a
        package is missing."""
        check_compression(self.name, self.compression)
        crc32c()

    def write(
        self,
        source: Source,
        fields: Sequence[Field],
        part: ExportPart,
        folder: Path,
        progress: Progress,
    ) -> PartResult:
        """Write one file; none if no sample was chosen of the shard."""
        name = f"{part.name}.tfrecord{SUFFIXES[self.compression]}"
        samples, facts = write_records(
            batches(source, fields, part, progress), fields, folder / name
        )
        return PartResult(samples, {name: facts} if samples else {})


def write_records(
    given: Iterator[pa.RecordBatch], fields: Sequence[Field], path: Path
) -> tuple[int, FileFacts]:
    """Write samples into a file, which may have none, and return how many they are and what the
    file is."""
    checksum = crc32c()
    samples = 0
    with replacing(path, StreamedFile) as sink, compressing(sink, path) as stream:
        for batch in given:
            for data in serialized(batch, fields):
                length = len(data).to_bytes(8, "little")
                head = HEAD.pack(len(data), masked(checksum(length)))
                stream.write(b"".join((head, data, TAIL.pack(masked(checksum(data))))))
            samples += batch.num_rows
    return samples, sink.facts
