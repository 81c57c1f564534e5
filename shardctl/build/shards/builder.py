"""Puts a shard together: units go in, their samples come out as rows, and what became of each unit is counted."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from shardctl.build.shards.batch_maker import BatchMaker
from shardctl.build.shards.file_units import FileUnits
from shardctl.build.shards.function_maker import FunctionMaker
from shardctl.build.shards.image_facts import record_of_jpegs
from shardctl.build.shards.maker import Maker
from shardctl.build.shards.model_maker import ModelMaker
from shardctl.build.shards.planned import PlannedUnit
from shardctl.build.shards.previous_samples import PreviousSamples, PreviousUnits
from shardctl.build.shards.record_choice import RecordChoice
from shardctl.build.shards.record_images import TableImages
from shardctl.build.shards.record_maker import RecordMaker
from shardctl.build.shards.record_units import RecordUnits
from shardctl.build.shards.reject_writer import RejectWriter
from shardctl.build.shards.retry_hints import BuildAgain
from shardctl.build.shards.rows import Rows, ShuffledRows
from shardctl.build.shards.sample_writer import SampleWriter
from shardctl.build.shards.shard_build import ShardBuild
from shardctl.build.shards.shard_totals import ShardTotals, UnitOutcome
from shardctl.errors import Rejection
from shardctl.format.jpeg_record import JpegRecord
from shardctl.format.shard import ShardWriter, shard_schema
from shardctl.format.step_counts import Counts
from shardctl.format.tables import Reject
from shardctl.system.dataclass import dataclass
from shardctl.system.files import HashingFile
from shardctl.system.processes.death import OUT_OF_MEMORY_MESSAGE
from shardctl.transforms.pipeline.samples import SamplePipeline


@dataclass(frozen=True)
class ShardContent:
    """What was written into a shard.

    `raw_bytes` are those of all blocks before compression. `objects` are marked in its images, and `cut_off` of them are no
    longer; `first_frames` of the images are the first of several frames. `jpegs` is what its images are as JPEG, None where
    their original bytes are not kept. `steps` counts what became of its records in each step of text and tables.
    """

    block_rows: tuple[int, ...]
    raw_bytes: int
    objects: int
    cut_off: int
    first_frames: int
    jpegs: JpegRecord | None
    steps: tuple[Counts, ...]


class ShardBuilder:
    """Makes the samples of units, and writes them into one shard. `totals` has what became of them so far."""

    def __init__(self, build: ShardBuild, sink: HashingFile | pa.NativeFile, reject: Callable[[Reject], None]) -> None:
        job, place, progress = build.job, build.place, build.progress
        self._build, self._job, self._progress = build, job, progress
        self._shard = ShardWriter(
            sink, shard_schema(job.layout, place.split_name, place.number), job.recipe.compression, place.blocks
        )
        pipeline = SamplePipeline(job.recipe, job.layout, progress.enter, of_records=job.annotation_rules, look=build.look)
        self._pipeline = pipeline
        self._rows = _rows_of(build, self._shard, pipeline)
        self.totals = ShardTotals()
        self._writer = SampleWriter(build, self._rows, self.totals)
        self._rejects = RejectWriter(reject, build.hints, self.totals)
        self._choice = RecordChoice(build)
        images = TableImages(job, progress) if job.has_images else None
        self._models: ModelMaker | None = None
        self._maker: Maker
        if job.recipe.models:
            self._maker = self._models = ModelMaker(build, pipeline, images, self._writer, self._rejects, self._choice)
        elif _works_on_batches(build):
            self._maker = BatchMaker(build, self._writer)
        elif job.fields is not None and job.recipe.store is None and images is None:
            self._maker = FunctionMaker(build, pipeline, None, self._writer)
        else:
            self._maker = RecordMaker(build, pipeline, images, self._writer)
        self._files = FileUnits(build, self._maker)
        self._records = RecordUnits(build, self._maker, images, self._writer, self._rejects, self._choice)

    def add(self, planned: PlannedUnit) -> BuildAgain | None:
        """Add the samples of a unit, or say why the shard must be built again.

        Raises TypesDifferError, SourceGoneError, InputError, and MemoryError where no record is to blame.
        """
        if self._models is not None:
            self._models.begin_unit(planned.number)
        outcome = UnitOutcome(self._rows.first_row)
        self.totals.outcomes.append(outcome)
        self._progress.begin(planned.number)
        again = None
        try:
            again = (self._files if self._job.fields is None else self._records).add(planned, outcome)
        except Rejection as rejection:
            self._reject_unit(planned, outcome, rejection)
        except MemoryError:
            if self._rows.is_writing(planned.number):
                raise
            self._reject_unit(planned, outcome, Rejection(self._progress.stage, "out-of-memory", OUT_OF_MEMORY_MESSAGE))
        self._progress.leave()
        return again

    def add_previous(self, previous: PreviousSamples, units: PreviousUnits) -> BuildAgain | None:
        """Add units that the dataset before has made: of files that are one record each."""
        return self._writer.add_previous(previous, units)

    def read_only(self, planned: PlannedUnit) -> None:
        """Read a unit of a file of many records, and make nothing of it. Raises Rejection, SourceGoneError."""
        self._records.read_only(planned)

    def slot_of(self, unit: int) -> range:
        """Return the units that this one must be made with: those of its slot, where units are records and there are models."""
        return range(unit, unit + 1) if self._models is None else self._models.slot_of(unit)

    def flush(self) -> None:
        """Make the samples of the records that wait for others. Raises InputError."""
        self._maker.flush()

    def finish(self) -> ShardContent:
        """Write all samples that still wait, and return what is in the shard. Raises InputError."""
        self._maker.finish()
        self._rows.flush()
        block_rows, rows = self._shard.finish(), self._rows
        jpegs = record_of_jpegs(rows.jpegs) if self._job.keeps_sources else None
        steps = tuple(self._maker.step_counts)
        counts = (rows.objects, rows.cut_off, self._pipeline.first_frames)
        return ShardContent(block_rows, self._shard.raw_bytes, *counts, jpegs, steps)

    def _reject_unit(self, planned: PlannedUnit, outcome: UnitOutcome, rejection: Rejection) -> None:
        """Reject all records of a unit that are of this split."""
        if self._models is not None and self._job.fields is None:  # in its turn
            self._models.hold_reject(planned, outcome, rejection)
            return
        first, count = self._choice.span(planned)
        if count:
            self._rejects.reject(planned, outcome, first, rejection, count)


def _rows_of(build: ShardBuild, shard: ShardWriter, pipeline: SamplePipeline) -> Rows:
    """Return the rows of a shard: mixed, where records of one file are to be."""
    job = build.job
    if job.fields is None or job.shuffle is None:
        return Rows(shard, pipeline.settle, build.progress)
    return ShuffledRows(shard, pipeline.settle, build.progress, job.shuffle, build.place.name)


def _works_on_batches(build: ShardBuild) -> bool:
    """Return whether records become samples some at a time, and nothing looks at each of them."""
    job = build.job
    if job.fields is None:
        return bool(job.recipe.batch_transforms)
    return not (job.recipe.sample_transforms or job.recipe.store is not None or job.has_images)
