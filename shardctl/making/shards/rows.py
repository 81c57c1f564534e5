"""A shard that is being built: its rows and its rejects on their way into their files, in order or
mixed, and counted."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import DatasetError, Rejection
from shardctl.format.counts import JpegRecord
from shardctl.format.shard import ShardWriter
from shardctl.format.shard_copy import objects_of
from shardctl.format.tables import PRUNED, Reject, of_several
from shardctl.images.codecs.image import Opened, open_image
from shardctl.images.codecs.jpeg import JpegFacts, jpeg_facts
from shardctl.making.shards.job import BuildAgain, Job, PlannedShard, PlannedUnit, RetryHints
from shardctl.making.shards.previous_samples import PreviousUnits
from shardctl.making.shards.records import Ahead, RecordChoice, TableImages
from shardctl.system.permutation import Permutation
from shardctl.system.processes.worker_state import KEYS, NOWHERE, WorkerProgress
from shardctl.transforms.picture import Shape
from shardctl.transforms.pipeline.functions import MadeSample
from shardctl.transforms.pipeline.samples import SamplePipeline


def record_of_jpegs(jpegs: Sequence[JpegFacts | None]) -> JpegRecord:
    """Return the record of images that follow each other; None is one that is no JPEG."""
    found = [facts for facts in jpegs if facts is not None]
    plain = np.fromiter((facts is not None and facts.plain for facts in jpegs), bool, len(jpegs))
    return JpegRecord(
        plain,
        len(found),
        sum(each.progressive for each in found),
        sum(each.full_colour for each in found),
    )


def jpegs_in(blocks: Iterable[pa.RecordBatch], image: str) -> JpegRecord:
    """Return what the images in a column of rows are as JPEG."""
    images = (each for block in blocks for each in block.column(image).field("bytes"))
    return record_of_jpegs([jpeg_facts(each.as_py()) for each in images])


SHUFFLED_BYTES = 32 << 20
"""Bytes of records that are in memory together where the records of a shard are shuffled."""

SETTLED_ROWS = 64
"""Samples whose objects are moved together, at most."""

SETTLED_BYTES = 4 << 20
"""Their bytes."""

Settle = Callable[[Sequence[MadeSample]], list[MadeSample]]
"""Finishes samples that wait for others, such as SamplePipeline.settle."""

Waiting = tuple[MadeSample, tuple[int, int]]
"""A sample that waits for others, with the place and the record that the progress slot had for
it."""


class Rows:
    """The rows of a shard on their way into its file. `first_row` is that of the next rows.

    `objects` and `cut_off` count those of samples; `jpegs` has what the image of each row is as
    JPEG, in the order of the rows, where samples come one by one. Samples that wait are held until
    there are some to settle. `settles_alone` while one of them is settled, and the progress slot
    names its record.
    """

    def __init__(self, writer: ShardWriter, settle: Settle, progress: WorkerProgress) -> None:
        self._writer, self._settle, self._progress = writer, settle, progress
        self._waiting: list[Waiting] = []
        self._waiting_bytes = 0
        self.first_row = self.objects = self.cut_off = 0
        self.jpegs: list[JpegFacts | None] = []
        self.settles_alone = False

    def add(self, made: MadeSample, at: tuple[int, int]) -> None:
        """Append a sample of the record that the progress slot has as `at`.

        Whatever happens while a block of many samples is written is the fault of none of them. Only
        the memory for a block that one sample fills is that sample's, and the memory for moving the
        objects of one alone.
        """
        self.first_row += 1
        self._progress.leave()  # nobody is to blame, unless it fills a block or is settled alone
        self._take(made, at)

    def _take(self, made: MadeSample, at: tuple[int, int]) -> None:
        if not made.waits and (not self._waiting or self._writer.fills_a_block(made.size)):
            self._write_waiting()
            self._write(made, at)
            return
        self._waiting.append((made, at))
        self._waiting_bytes += made.size
        if len(self._waiting) >= SETTLED_ROWS or self._waiting_bytes >= SETTLED_BYTES:
            self._write_waiting()

    def _write_waiting(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        try:
            settled = self._settle([made for made, _ in waiting])
        except MemoryError:
            # one after the other they need less, and the one that needs too much is named
            self.settles_alone, settled = True, []
            for made, at in waiting:
                self._progress.begin(*at, "transform")
                settled += self._settle([made])
                self._progress.leave()
            self.settles_alone = False
        for made, (_, at) in zip(settled, waiting, strict=True):
            self._write(made, at)

    def _write(self, made: MadeSample, at: tuple[int, int]) -> None:
        fills_a_block = self._writer.fills_a_block(made.size)
        if fills_a_block:
            self._progress.begin(*at, "write")
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
        self, batch: pa.RecordBatch, objects: int, jpegs: Iterable[JpegFacts | None]
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

    def ends_worker(self, unit: int) -> bool:
        """Return whether memory that runs out while this unit is added ends the worker. It does
        while rows are written, as they cannot be taken back.

        The progress slot tells the parent which record is to blame, if any.
        """
        return self.settles_alone or self._progress.at[0] != unit or self._progress.stage == "write"

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
        self._made: list[Waiting] = []
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, made: MadeSample, at: tuple[int, int]) -> None:
        """Hold a sample."""
        self._made.append((made, at))
        self._hold(made.size)

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Hold a batch."""
        self._batches.append(batch)
        self._hold(batch.nbytes)

    def _hold(self, size: int) -> None:
        self._progress.leave()
        self._bytes += size
        if self._bytes >= SHUFFLED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are held, in a random order."""
        made, batches = self._made, self._batches
        self._made, self._batches, self._bytes = [], [], 0
        count = len(made) + sum(batch.num_rows for batch in batches)
        # the name as it was in format 2: the same records have the same order for good
        stream = xxhash.xxh3_64_intdigest(f"{self._name}.arrow\0{self._windows}".encode()) >> 1
        order = Permutation(count, self._seed, stream)(np.arange(count))
        for place in order.tolist() if made else ():
            self._take(*made[place])
        self._write_waiting()
        if batches:
            self._writer.add_batch(pa.concat_batches(batches).take(pa.array(order)))
        self.first_row += count
        self._windows += 1


MOST_SHAPES = 2
"""Different shapes of images that are kept of a shard: two show that they differ."""

RejectedRecord = tuple[int, Rejection]
"""The number of a record, and why it is rejected."""


@dataclass
class UnitOutcome:
    """What became of a unit: its samples are among the rows of the shard from `first_row` on."""

    first_row: int
    samples: int = 0
    rejected: int = 0
    digest: int | None = None


class ShardInMaking:
    """A shard that is being built, and the unit that is worked on, with its outcome. `writer`
    writes it.

    `reject` is given each reject, `look` each image before it is decoded. `images` finds those of
    the records of tables, where they have some.

    `inputs` records have become `samples`, or were `rejected`, or neither. `outcomes` has each
    unit, in order. `labels` counts the samples by class, and `shapes` are the first few different
    shapes of their images.

    Rejects are told of in order. Within a unit of many records, some may wait for a model. Rejects
    of records behind the first of these are written later. Records that are lost are not read, and
    are written in their turn. `pruned`: a person took a record of the unit out. `ahead` has units
    that follow and were read.
    """

    planned: PlannedUnit
    outcome: UnitOutcome

    def __init__(
        self,
        job: Job,
        planned_shard: PlannedShard,
        progress: WorkerProgress,
        hints: RetryHints,
        writer: ShardWriter,
        reject: Callable[[Reject], object],
        look: Callable[[Opened], None] = lambda opened: None,
    ) -> None:
        self.job, self.planned_shard = job, planned_shard
        self.progress, self.hints, self.writer = progress, hints, writer
        self.pipeline = SamplePipeline(
            job.recipe,
            job.layout,
            progress.enter,
            of_records=job.annotation_rules,
            look=look,
            recorded=job.recorded,
        )
        rows = writer, self.pipeline.settle, progress
        self.rows = (
            Rows(*rows)
            if job.whole or job.shuffle is None
            else ShuffledRows(*rows, job.shuffle, planned_shard.name)
        )
        self.images = TableImages(job, progress) if job.has_image_columns else None
        self.ahead: dict[int, Ahead] = {}
        self._on_reject = reject
        self.inputs = self.samples = self.rejected = 0
        self.outcomes: list[UnitOutcome] = []
        self.labels: Counter[int] = Counter()
        self.shapes: set[Shape] = set()
        self._lost: Sequence[int] = ()
        self._late: list[RejectedRecord] = []
        self.pruned = False

    def begin(self, planned: PlannedUnit) -> None:
        """Begin with a unit."""
        self.planned, self.outcome = planned, UnitOutcome(self.rows.first_row)
        self.choice = RecordChoice(
            self.job, planned, self.planned_shard.split, self.progress, self.hints
        )
        self.outcomes.append(self.outcome)
        self.progress.begin(planned.number)

    def add_record(self, made: list[MadeSample]) -> None:
        """Add the samples of one record, which the progress slot names."""
        self.inputs += 1
        self.outcome.samples += len(made)
        self.samples += len(made)
        at = self.progress.at
        for sample in made:
            self.rows.add(sample, at)
            if sample.label is not None:
                self.labels[sample.label] += 1
            if sample.shape and len(self.shapes) < MOST_SHAPES:
                self.shapes.add(sample.shape)

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Add samples that are a batch with the columns of the shard. Their records are the
        caller's to count."""
        place, record = self.progress.at
        self.rows.add_batch(batch)
        if place != NOWHERE:
            self.progress.begin(place, record)
        self.outcome.samples += batch.num_rows
        self._count(batch)

    def _count(self, batch: pa.RecordBatch) -> None:
        """Count the samples of a batch, also by class."""
        self.samples += batch.num_rows
        if self.job.layout.classes is None or "label" not in batch.schema.names:
            return
        column = batch.column("label")
        if column.null_count:  # to drop them imports pyarrow.compute: 25 to 40 ms
            column = column.drop_null()
        counts = np.bincount(column.to_numpy())
        self.labels.update({int(label): int(counts[label]) for label in np.flatnonzero(counts)})

    def add_previous(self, units: PreviousUnits) -> None:
        """Add units that the dataset before has made: of files that are one record each.

        Raises BuildAgain if its shard is damaged: this one is made from the sources alone.
        """
        layout, store = self.job.layout, self.job.recipe.store
        first_rows = self.rows.first_row + np.cumsum(units.samples) - units.samples
        for row, samples, digest in zip(
            first_rows.tolist(), units.samples.tolist(), units.digests, strict=True
        ):
            self.outcomes.append(UnitOutcome(row, samples, digest=digest))
        self.inputs += len(units.samples)
        image = layout.roles.main_image if store is not None and store.name != "none" else None
        try:
            for batch in units.batches(layout.columns):
                self._count(batch)
                # `flatten` gives the bytes of the rows of a slice, `field` would give all
                wanted = image is not None and (self.job.keeps_sources or units.shape is None)
                images = batch.column(image).flatten()[0] if wanted else []
                self.rows.add_made(
                    batch,
                    objects_of(batch, layout),
                    [jpeg_facts(data.as_py()) for data in images] if self.job.keeps_sources else [],
                )
                known = iter([units.shape] if units.shape and image else map(_shape_of, images))
                while len(self.shapes) < MOST_SHAPES and (shape := next(known, None)):
                    self.shapes.add(shape)
        except DatasetError as error:
            why = f"a shard of the dataset before is damaged ({error})"
            raise BuildAgain(replace(self.hints, anew=True), why) from error

    def begin_records(self, lost: Sequence[int]) -> None:
        """Begin with a unit of many records. These of them are lost, and sorted."""
        self._lost, self._late, self.pruned = lost, [], False

    def hold(self, record: int, rejection: Rejection) -> None:
        """Take a reject that has waited, to be told of when those before it are."""
        self._late.append((record, rejection))

    @property
    def waiting(self) -> int | None:
        """The first record of the current unit that waits for others, None if none does."""
        return None

    def tell(self, rejects: Sequence[RejectedRecord], last: int | None) -> None:
        """Reject some records of the unit, and those up to `last` (None: to the end of the unit)
        that are lost. What comes after the record that is `waiting` is told later."""
        ahead = [record for record in self._lost if last is None or record <= last]
        self._lost = self._lost[len(ahead) :]
        known = [(record, self.hints.lost[self.planned.number, record]) for record in ahead]
        ordered = sorted([*self._late, *rejects, *known], key=itemgetter(0))
        waiting = self.waiting
        self._late = [] if waiting is None else [each for each in ordered if each[0] > waiting]
        for record, rejection in ordered[: len(ordered) - len(self._late)]:
            self.reject(record, rejection)

    def reject(self, record: int, rejection: Rejection, records: int = 1) -> None:
        """Reject so many records of the unit, of which `record` is the first."""
        self.pruned |= rejection.error == PRUNED
        message = rejection.message + of_several(records)
        stage = "read" if rejection.stage == KEYS else rejection.stage
        path, key = self.planned.file.path, self.planned.key(record)
        self._on_reject(Reject(path, key, stage, rejection.error, message, records))
        self.outcome.rejected += records
        self.rejected += records
        self.inputs += records


def _shape_of(data: pa.BinaryScalar) -> Shape:
    width, height = open_image(data.as_py(), max_pixels=sys.maxsize, keep_truncated=True).size
    return height, width, 3
