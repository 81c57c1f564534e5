"""The shards of one split, written one after the other."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from shardctl.format.layout import Layout
from shardctl.format.names import shard_name
from shardctl.format.shard import Compression, ShardFacts, ShardWriter, shard_schema
from shardctl.format.tables import ShardEntry
from shardctl.system.files import StreamedFile, naming_the_path


class ShardSeries:
    """Writes the rows of one split into one shard after the other; one block is in memory. `entries` are the shards so far."""

    def __init__(
        self, folder: Path, layout: Layout, split: str, compression: Compression, most_bytes: int, most_samples: int
    ) -> None:
        self._folder, self._layout, self._split, self._compression = folder, layout, split, compression
        self._most_bytes, self._most_samples = most_bytes, most_samples
        self._sink: StreamedFile | None = None
        self._writer: ShardWriter | None = None
        self._rows = self._raw_bytes = 0
        self.entries: list[ShardEntry] = []

    def add(self, values: tuple[Any, ...], size: int) -> None:
        """Append one row: `values` in the order of the columns, `size` about their bytes. Raises StorageError."""
        with naming_the_path(self._path):
            if self._writer is None or self._sink is None:
                self._sink = StreamedFile(self._path)
                schema = shard_schema(self._layout, self._split, len(self.entries))
                self._writer = ShardWriter(self._sink, schema, self._compression)
            self._writer.add(values, size)
            self._rows += 1
            self._raw_bytes += size
            waiting = self._raw_bytes - self._writer.raw_bytes  # a shard may be smaller than a block
            full = self._rows >= self._most_samples or max(self._sink.tell(), waiting) >= self._most_bytes
        if full:
            self.close()

    def close(self) -> None:
        """End the shard that is being written, if there is one. Raises StorageError."""
        if self._writer is None or self._sink is None:
            return
        with naming_the_path(self._path):
            blocks = self._writer.finish()
            self._sink.sync()
            self._sink.close()
        facts = ShardFacts(sum(blocks), self._sink.tell(), self._writer.raw_bytes, self._sink.sha256, blocks)
        self.entries.append(ShardEntry.of_written(self._split, self._path.name, facts))
        self._writer, self._sink, self._rows, self._raw_bytes = None, None, 0, 0

    def abandon(self) -> None:
        """Close the file of the shard that is being written, which is of no use."""
        if self._sink is not None:
            with contextlib.suppress(OSError):
                self._sink.close()
            self._writer, self._sink = None, None

    @property
    def _path(self) -> Path:
        return self._folder / shard_name(self._split, len(self.entries))
