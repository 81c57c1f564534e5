"""ArrayRecord: SPLIT-00000-of-00007.array_record for each shard, with a tf.train.Example for each
sample, read by number.

Google's package array_record writes the files. Each record is a chunk of its own (`group_size:1`),
so that a reader that takes samples in any order reads nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from shardctl.errors import InstallError, StorageError, UsageError, first_line
from shardctl.interop.exports.base import ExportPart, PartResult, Progress
from shardctl.interop.exports.examples import ExampleExport, serialized
from shardctl.interop.exports.rows import batches
from shardctl.interop.exports.source import Source
from shardctl.sources.export_description import Field
from shardctl.system.files import FileFacts, naming_the_path, sha256_of
from shardctl.system.packages import to_install
from shardctl.system.text import printable

OPTIONS = {"none": "group_size:1,uncompressed", "zstd": "group_size:1,zstd:3"}
"""What each compression is to the package."""


@dataclass(frozen=True)
class ArrayRecord(ExampleExport):
    """An ArrayRecord file for each shard. Encoded images do not get smaller by compression, and are
    read faster without."""

    compression: str = "none"
    name: ClassVar[str] = "array-record"

    def check(self, source: Source) -> None:
        """Raise UsageError for a compression that there is not, InstallError if the package is
        missing."""
        if self.compression not in OPTIONS:
            raise UsageError(
                f"--compression {self.compression!r} is not one of {', '.join(OPTIONS)}, which "
                "array-record has"
            )
        _module()

    def write(
        self,
        source: Source,
        fields: Sequence[Field],
        part: ExportPart,
        folder: Path,
        progress: Progress,
    ) -> PartResult:
        """Write one file; none if no sample was chosen of the shard."""
        name = f"{part.split}-{part.number:05d}-of-{part.of:05d}.array_record"
        unfinished = folder / f"{name}.unfinished"
        samples = 0
        with naming_the_path(folder / name):
            try:
                writer = _module().ArrayRecordWriter(str(unfinished), OPTIONS[self.compression])
                for batch in batches(source, fields, part, progress):
                    for data in serialized(batch, fields):
                        writer.write(data)
                    samples += batch.num_rows
                writer.close()
            except RuntimeError as error:  # the package's own
                raise StorageError(
                    f"{printable(str(folder / name))}: cannot be written ({first_line(error)})"
                ) from error
            with open(unfinished, "rb+") as file:
                os.fsync(file.fileno())
            facts = FileFacts(unfinished.stat().st_size, sha256_of(unfinished))
            unfinished.rename(folder / name)
        return PartResult(samples, {name: facts} if samples else {})


def _module() -> Any:
    try:
        from array_record.python import array_record_module
    except ImportError:
        raise InstallError(
            f"ArrayRecord needs the package array_record: pip install {to_install('array-record')}"
        ) from None
    return array_record_module
