"""The rows of a shard on their way into its file: in order, or mixed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.codecs.jpeg import JpegFacts
from shardctl.engines.breadcrumb import Breadcrumb
from shardctl.order import Permutation
from shardctl.pipeline.samples import Made
from shardctl.shard import ShardWriter

SHUFFLED_BYTES = 32 << 20
"""Bytes of records that are in memory together where the records of a shard are shuffled."""


class Rows:
    """The rows of a shard on their way into its file. `first_row` is that of the next rows.

    `jpegs` has what the image of each row is as JPEG, in the order of the rows, where samples come one by one.
    """

    def __init__(self, writer: ShardWriter) -> None:
        self._writer = writer
        self.first_row = 0
        self.jpegs: list[JpegFacts | None] = []

    def add(self, made: Made, crumb: Breadcrumb) -> None:
        """Append a sample.

        Whatever happens while a block of many samples is written is the fault of none of them. Only the memory for a block
        that one sample fills is that sample's.
        """
        if self._writer.fills_a_block(made.size):
            crumb.enter("write")
        else:
            crumb.leave()
        self._write(made)
        self.first_row += 1

    def _write(self, made: Made) -> None:
        self._writer.add(made.values, made.size)
        self.jpegs.append(made.jpeg)

    def add_batch(self, batch: pa.RecordBatch, crumb: Breadcrumb) -> None:
        """Append the rows of a batch that has the columns of the shard. As `add`."""
        if self._writer.fills_a_block(batch.nbytes):
            crumb.enter("write")
        else:
            crumb.leave()
        self._writer.add_batch(batch)
        self.first_row += batch.num_rows

    def flush(self) -> None:
        """All rows have come."""


class ShuffledRows(Rows):
    """Mixes the rows of neighbouring units, some of them in memory at a time: `first_row` is that of all of these."""

    def __init__(self, writer: ShardWriter, seed: int, name: str) -> None:
        super().__init__(writer)
        self._seed, self._name, self._windows = seed, name, 0
        self._made: list[Made] = []
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, made: Made, crumb: Breadcrumb) -> None:
        """Hold a sample."""
        crumb.leave()
        self._made.append(made)
        self._hold(made.size)

    def add_batch(self, batch: pa.RecordBatch, crumb: Breadcrumb) -> None:
        """Hold a batch."""
        crumb.leave()
        self._batches.append(batch)
        self._hold(batch.nbytes)

    def _hold(self, size: int) -> None:
        self._bytes += size
        if self._bytes >= SHUFFLED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are held, in a random order."""
        made, batches = self._made, self._batches
        self._made, self._batches, self._bytes = [], [], 0
        count = len(made) + sum(batch.num_rows for batch in batches)
        stream = xxhash.xxh3_64_intdigest(f"{self._name}\0{self._windows}".encode()) >> 1
        order = Permutation(count, self._seed, stream)(np.arange(count))
        for place in order.tolist() if made else ():
            self._write(made[place])
        if batches:
            self._writer.add_batch(pa.concat_batches(batches).take(pa.array(order)))
        self.first_row += count
        self._windows += 1
