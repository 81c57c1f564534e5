"""The rows of a shard on their way into its file: in order, or mixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.format.shard import ShardWriter
from shardctl.images.codecs.jpeg import JpegFacts
from shardctl.system.permutation import Permutation
from shardctl.system.processes.worker_state import WorkerProgress
from shardctl.transforms.pipeline.made_sample import MadeSample

SHUFFLED_BYTES = 32 << 20
"""Bytes of records that are in memory together where the records of a shard are shuffled."""

SETTLED_ROWS = 64
"""Samples whose objects are moved together, at most."""

SETTLED_BYTES = 4 << 20
"""Their bytes."""

Settle = Callable[[Sequence[MadeSample]], list[MadeSample]]
"""Finishes samples that wait for others, such as SamplePipeline.settle."""


class WaitingSample(NamedTuple):
    """A sample that waits for others, with the place and the record that the progress slot had for
    it."""

    made: MadeSample
    place: int
    record: int


class Rows:
    """The rows of a shard on their way into its file. `first_row` is that of the next rows.

    `objects` and `cut_off` count those of samples; `jpegs` has what the image of each row is as
    JPEG, in the order of the rows, where samples come one by one. Samples that wait are held until
    there are some to settle. `settles_alone` while one of them is settled, and the progress slot
    names its record.
    """

    def __init__(self, writer: ShardWriter, settle: Settle, progress: WorkerProgress) -> None:
        self._writer, self._settle, self._progress = writer, settle, progress
        self._waiting: list[WaitingSample] = []
        self._waiting_bytes = 0
        self.first_row = self.objects = self.cut_off = 0
        self.jpegs: list[JpegFacts | None] = []
        self.settles_alone = False

    def add(self, made: MadeSample, place: int, record: int) -> None:
        """Append a sample of this record of a place.

        Whatever happens while a block of many samples is written is the fault of none of them. Only
        the memory for a block that one sample fills is that sample's, and the memory for moving the
        objects of one alone.
        """
        self.first_row += 1
        self._progress.leave()
        self._take(made, place, record)

    def _take(self, made: MadeSample, place: int, record: int) -> None:
        if not made.waits and (not self._waiting or self._writer.fills_a_block(made.size)):
            self._write_waiting()
            self._write(made, place, record)
            return
        self._waiting.append(WaitingSample(made, place, record))
        self._waiting_bytes += made.size
        if len(self._waiting) >= SETTLED_ROWS or self._waiting_bytes >= SETTLED_BYTES:
            self._write_waiting()

    def _write_waiting(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        for held in self._settled(waiting):
            self._write(*held)

    def _settled(self, waiting: list[WaitingSample]) -> list[WaitingSample]:
        try:
            return self._settled_together(waiting)
        except MemoryError:
            # one after the other they need less, and the one that needs too much is named
            self.settles_alone = True
        settled = list[WaitingSample]()
        for held in waiting:
            self._progress.begin(held.place, held.record, "transform")
            settled += self._settled_together([held])
            self._progress.leave()
        self.settles_alone = False
        return settled

    def _settled_together(self, waiting: list[WaitingSample]) -> list[WaitingSample]:
        settled = self._settle([held.made for held in waiting])
        return [held._replace(made=made) for held, made in zip(waiting, settled, strict=True)]

    def _write(self, made: MadeSample, place: int, record: int) -> None:
        fills_a_block = self._writer.fills_a_block(made.size)
        if fills_a_block:
            self._progress.begin(place, record, "write")
        self._writer.add(tuple(made.fields.values()), made.size)
        if fills_a_block:
            self._progress.leave()
        self.objects += made.objects
        self.cut_off += made.cut_off
        self.jpegs.append(made.jpeg)

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Append the rows of a batch that has the columns of the shard. As `add`."""
        if self._writer.fills_a_block(batch.nbytes):
            self._progress.enter("write")
        else:
            self._progress.leave()
        self._writer.add_batch(batch)
        self.first_row += batch.num_rows

    def add_made(
        self, batch: pa.RecordBatch, objects: int, jpegs: Sequence[JpegFacts | None]
    ) -> None:
        """Append samples that were made before: no record of the job is to blame for what happens
        meanwhile.

        `objects` are marked in them, and `jpegs` has what the image of each is as JPEG, where that
        is counted.
        """
        self._write_waiting()
        self._progress.leave()
        self._writer.add_batch(batch)
        self.first_row += batch.num_rows
        self.objects += objects
        self.jpegs += jpegs

    def is_writing(self, unit: int) -> bool:
        """Return whether rows are being written while this unit is added: they can neither be taken
        back nor be written again.

        Where memory runs out then, the worker ends, and its progress slot tells whether a record is
        to blame.
        """
        return self.settles_alone or self._progress.place != unit or self._progress.stage == "write"

    def flush(self) -> None:
        """All rows have come."""
        self._write_waiting()


class ShuffledRows(Rows):
    """Mixes the rows of neighbouring units, some of them in memory at a time: `first_row` is that
    of all of these."""

    def __init__(
        self, writer: ShardWriter, settle: Settle, progress: WorkerProgress, seed: int, name: str
    ) -> None:
        super().__init__(writer, settle, progress)
        self._seed, self._name, self._windows = seed, name, 0
        self._made: list[WaitingSample] = []
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, made: MadeSample, place: int, record: int) -> None:
        """Hold a sample."""
        self._made.append(WaitingSample(made, place, record))
        self._progress.leave()
        self._hold(made.size)

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Hold a batch."""
        self._progress.leave()
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
            self._take(*made[place])
        self._write_waiting()
        if batches:
            self._writer.add_batch(pa.concat_batches(batches).take(pa.array(order)))
        self.first_row += count
        self._windows += 1
