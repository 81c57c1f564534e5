"""The rows of a shard on their way into its file: in order, or mixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


SETTLED_ROWS = 64
"""Samples whose objects are moved together, at most."""

SETTLED_BYTES = 4 << 20
"""Their bytes."""

Settle = Callable[[Sequence[Made]], list[Made]]
"""Finishes samples that wait for others, such as SamplePipeline.settle."""


class Rows:
    """The rows of a shard on their way into its file. `first_row` is that of the next rows.

    `objects` and `cut_off` count those of samples; `jpegs` has what the image of each row is as JPEG, in the order of the rows,
    where samples come one by one. Samples that wait are held until there are some to settle.
    """

    def __init__(self, writer: ShardWriter, settle: Settle) -> None:
        self._writer, self._settle = writer, settle
        self._waiting: list[Made] = []
        self._waiting_bytes = 0
        self.first_row = self.objects = self.cut_off = 0
        self.jpegs: list[JpegFacts | None] = []

    def add(self, made: Made, crumb: Breadcrumb) -> None:
        """Append a sample.

        Whatever happens while a block of many samples is written is the fault of none of them. Only the memory for a block
        that one sample fills is that sample's.
        """
        self.first_row += 1
        place, record = crumb.place, crumb.record
        crumb.leave()
        if self._writer.fills_a_block(made.size):
            self._write_waiting()
            crumb.drop(place, record, "write")
        elif made.waits or self._waiting:
            self._waiting.append(made)
            self._waiting_bytes += made.size
            if len(self._waiting) >= SETTLED_ROWS or self._waiting_bytes >= SETTLED_BYTES:
                self._write_waiting()
            return
        self._write([made])

    def _write_waiting(self) -> None:
        made, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._write(made)

    def _write(self, made: list[Made]) -> None:
        for each in self._settle(made) if any(each.waits for each in made) else made:
            self._writer.add(each.values, each.size)
            self.objects += each.objects
            self.cut_off += each.cut_off
            self.jpegs.append(each.jpeg)

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
        self._write_waiting()


class ShuffledRows(Rows):
    """Mixes the rows of neighbouring units, some of them in memory at a time: `first_row` is that of all of these."""

    def __init__(self, writer: ShardWriter, settle: Settle, seed: int, name: str) -> None:
        super().__init__(writer, settle)
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
        if made:
            self._write([made[place] for place in order.tolist()])
        if batches:
            self._writer.add_batch(pa.concat_batches(batches).take(pa.array(order)))
        self.first_row += count
        self._windows += 1
