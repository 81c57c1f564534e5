"""Makers of samples: records that were read go in, and come out as samples, or are rejected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.counts import Counts
from shardctl.format.python_values import python_rows
from shardctl.format.roles import Sample
from shardctl.making.shards.planned import BuildAgain, PlannedUnit
from shardctl.making.shards.records import sample_of, samples_of
from shardctl.making.shards.rows import RejectedRecord, ShardBuild, UnitOutcome
from shardctl.sources.formats import Parsed
from shardctl.system.processes.worker_state import (
    OUT_OF_MEMORY_MESSAGE,
    TOGETHER,
    WHOLE,
    WorkerProgress,
)
from shardctl.transforms.base import HeldMemoryError, Records
from shardctl.transforms.pipeline.batches import BatchPipeline, keyed, lay_out, records_of_file
from shardctl.transforms.pipeline.functions import MadeSample
from shardctl.transforms.pipeline.model_batching import ModelBatcher


class Maker:
    """Makes the samples of each record of the shard's units by itself, as the recipe says, and has
    them written. Other makers have some records wait for others."""

    def __init__(self, build: ShardBuild) -> None:
        self._build, self._images = build, build.images

    @property
    def waiting(self) -> int | None:
        """The first record of the current unit that waits, None if none does."""
        return None

    @property
    def step_counts(self) -> list[Counts]:
        """What became of the records in each step of text and tables."""
        return []

    def slot_of(self, unit: int) -> range:
        """Return the units that this one must be made with: those of its slot, where units are
        records and there are models."""
        return range(unit, unit + 1)

    def begin_unit(self, number: int) -> None:
        """Finish the slot before, if this unit is not of the same one. Raises InputError."""

    def begin_records(self) -> None:
        """Begin with the records of a unit of many. Raises MemoryError, SourceGoneError."""

    def add_file(self, fields: Sample) -> None:
        """Make the samples of a file that is one record, given as its fields. Raises Rejection."""
        self._add(fields, None)

    def add_records(self, parsed: Parsed) -> list[RejectedRecord]:
        """Make the samples of some records of the unit, and return those that are rejected."""
        build, rejects = self._build, list[RejectedRecord]()
        records: Iterable[tuple[int, Sample]] = zip(
            parsed.numbers.tolist(), self._rows_of(parsed.batch), strict=True
        )
        if self._images is not None:
            records = self._images.prefetched(records, build.unit)
        for record, fields in records:
            build.progress.begin(build.unit.number, record)
            try:
                self._add(fields, record)
            except Rejection as rejection:
                rejects.append((record, rejection))
        build.progress.begin(build.unit.number)
        return rejects

    def _rows_of(self, batch: pa.RecordBatch) -> Iterator[Sample]:
        """Yield the fields of records. Only a user's functions get times; else they stay
        numbers."""
        if self._build.job.recipe.sample_transforms:
            yield from python_rows(batch)
            return
        columns = [
            column.view(pa.int64()) if _is_64_bit_time(column.type) else column
            for column in batch.columns
        ]
        rows = pa.RecordBatch.from_arrays(columns, batch.schema.names)
        for row in range(rows.num_rows):  # not all at once: each holds a copy of its images
            yield rows.slice(row, 1).to_pylist()[0]

    def _add(self, fields: Sample, record: int | None) -> None:
        """Add the samples of one record, None: of the file that is one. Raises Rejection."""
        sample, read = self._sample(fields, record)
        self._write(self._build.pipeline.make(sample), read)

    def _sample(self, fields: Sample, record: int | None) -> tuple[Sample, list[int]]:
        """Return a record as the recipe begins with it, and the digests of the files that its
        images are in. Raises Rejection."""
        build, read = self._build, list[int]()
        if self._images is not None:
            fields = self._images.take(fields, build.unit)
            read = self._images.read
        return sample_of(build.job, build.unit, record, fields), read

    def _write(self, made: list[MadeSample], read: list[int]) -> None:
        """Write the samples of one record, whose images were in files with these digests."""
        if self._images is not None:
            self._images.became_samples(read)
        self._build.add_record(made)

    def hold_reject(self, rejection: Rejection) -> bool:
        """Take a file that is one record and is rejected, to be told of in its turn; False: it need
        not wait."""
        return False

    def flush(self) -> None:
        """Make the samples of the records that wait within their unit, or within their slot. Raises
        InputError."""

    def finish(self) -> None:
        """Make the samples of all that still waits, at the end of the shard. Raises InputError."""
        self.flush()


def _is_64_bit_time(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_timestamp(type_) or pa.types.is_duration(type_) or pa.types.is_time64(type_)
    )


class BatchMaker(Maker):
    """Makes samples by the batch transforms of a recipe; where there are none, records become
    samples as they are."""

    def __init__(self, build: ShardBuild) -> None:
        super().__init__(build)
        job = build.job
        self._pipeline = BatchPipeline(
            job.recipe.batch_transforms, job.folder, job.layout.roles.by_name
        )

    @property
    def step_counts(self) -> list[Counts]:
        """What became of the records in each of the batch transforms."""
        return self._pipeline.counts()

    def add_file(self, fields: Sample) -> None:
        """Make the samples of a file that is one record. Raises Rejection."""
        unit = self._build.unit
        self._build.progress.enter("transform")
        for _, rejection in self._apply(records_of_file(unit.file_number, unit.key(), fields)):
            raise rejection

    def add_records(self, parsed: Parsed) -> list[RejectedRecord]:
        """Make the samples of some records of the unit, and return those that are rejected."""
        if not parsed.batch.num_rows:
            return []
        unit = self._build.unit
        batch = keyed(parsed.batch, unit.file.path, parsed.numbers)
        return self._apply(Records(unit.file_number, parsed.numbers, batch))

    def _apply(self, records: Records) -> list[RejectedRecord]:
        build, unit, job = self._build, self._build.unit, self._build.job
        rejects = list[RejectedRecord]()
        try:
            for made in self._pipeline.apply(records, lambda *reject: rejects.append(reject)):
                build.add_batch(lay_out(made.batch, job.layout, unit.file.label, unit.file.columns))
        except HeldMemoryError:
            build.progress.leave()  # no record is to blame
            raise
        except MemoryError:
            several = not job.recipe.joins or len(records.numbers) > 1
            if several or build.rows.is_writing(unit.number):
                raise
            # It may have taken others along, which were held in a step.
            rejection = Rejection("transform", "out-of-memory", OUT_OF_MEMORY_MESSAGE)
            record = int(records.numbers[0]) or None
            raise BuildAgain(
                build.hints.with_lost({(unit.number, record): rejection}),
                f"{unit.key(record)}: memory ran out in a step that holds other records",
            ) from None
        build.inputs += len(records.numbers) - len(rejects)
        return rejects

    def finish(self) -> None:
        """Add what the steps still hold, at the end of the shard."""
        for held in self._pipeline.finish():
            self._build.add_batch(lay_out(held.batch, self._build.job.layout))


class FunctionMaker(Maker):
    """Calls functions record by record, and lays their samples out a column at a time. The records
    have no images."""

    def add_records(self, parsed: Parsed) -> list[RejectedRecord]:
        """Make the samples of some records of the unit, and return those that are rejected."""
        build, file, numbers = self._build, self._build.unit.file, parsed.numbers
        records = keyed(parsed.batch, file.path, numbers)
        keys, batch = records.column(0).to_pylist(), records.select(range(1, records.num_columns))
        samples = samples_of(build.job, file, python_rows(batch), keys)
        applied = build.pipeline.finish_records(
            numbers.tolist(), samples, _NotedCalls(build.progress)
        )
        build.progress.begin(build.unit.number, int(numbers[0]) if len(numbers) == 1 else WHOLE)
        batch = build.pipeline.lay_out(applied)
        # those that gave no sample too
        build.inputs += len(numbers) - len(applied.rejects)
        build.add_batch(batch)
        return list(applied.rejects.items())


class _NotedCalls:
    """Notes each call of a function on a record of one place, or of a model on several."""

    def __init__(self, progress: WorkerProgress) -> None:
        self._progress = progress

    def one(self, record: int) -> None:
        self._progress.enter_call(record)

    def many(self, records: list[int]) -> None:
        self._progress.enter_call(records[0] if len(records) == 1 else TOGETHER)


@dataclass
class _WaitingRecord:
    """A record that waits for others: `number` among these, or why it is rejected already.

    `record` is its number in its file, None if it is the file. `read` are digests of image files
    (TableImages.read).
    """

    unit: PlannedUnit
    outcome: UnitOutcome
    record: int | None
    number: int = -1
    rejection: Rejection | None = None
    read: list[int] = field(default_factory=list)

    @property
    def at(self) -> tuple[int, int]:
        """How the progress slot names it."""
        return self.unit.number, WHOLE if self.record is None else self.record


class ModelMaker(Maker):
    """Makes the samples of the records of a slot together.

    A slot is as many neighbouring records as the models need: of the shard, or of a unit of many
    records. Records that are rejected count too, so that a slot has the same records whatever
    becomes of them.
    """

    def __init__(self, build: ShardBuild) -> None:
        super().__init__(build)
        self._slot_records = build.job.recipe.records_together
        self._together = ModelBatcher(build.pipeline, self)
        self._waiting: list[_WaitingRecord] = []
        self._by_number: dict[int, _WaitingRecord] = {}
        self._slot = self._calls = 0
        self._ranks: npt.NDArray[np.int64] | None = None

    @property
    def waiting(self) -> int | None:
        """The first record of the current unit that waits, None if none does."""
        return self._waiting[0].record if self._waiting else None

    def slot_of(self, unit: int) -> range:
        """Return the units that this one must be made with: those of its slot, where units are
        records."""
        if self._build.job.fields is not None:
            return range(unit, unit + 1)
        first = unit - (unit - self._build.planned.first_unit) % self._slot_records
        return range(first, first + self._slot_records)

    def begin_unit(self, number: int) -> None:
        """Finish the slot before, if this unit is not of the same one. Raises InputError."""
        if self._waiting and number not in self.slot_of(self._waiting[0].unit.number):
            self.flush()

    def begin_records(self) -> None:
        """Begin with the records of a unit of many. Raises MemoryError, SourceGoneError."""
        self._ranks = self._build.choice.ranks(self._build.unit)

    def hold_reject(self, rejection: Rejection) -> bool:
        """Take a file that is one record and is rejected, to be told of in its turn."""
        if self._build.job.fields is not None:
            return False
        self._wait(None, rejection=rejection.bare())
        return True

    def _wait(self, record: int | None, **known: Any) -> None:
        self._waiting.append(_WaitingRecord(self._build.unit, self._build.outcome, record, **known))

    def _add(self, fields: Sample, record: int | None) -> None:
        """Have one record wait, None: the file that is one. Raises Rejection."""
        unit = self._build.unit
        if record is not None:
            # they are counted as they are planned, whatever becomes of them
            place = record - unit.unit.first
            rank = place if self._ranks is None else int(self._ranks[place])
            if rank // self._slot_records != self._slot:
                self.flush()
                self._slot = rank // self._slot_records
                self._build.progress.begin(unit.number, record)
        sample, read = self._sample(fields, record)
        self._wait(record, number=self._together.add(sample), read=read)

    def flush(self) -> None:
        """Do the rest to the records that wait, and add their samples. Raises InputError."""
        if not self._waiting:
            return
        build, waiting = self._build, self._waiting
        self._by_number = {each.number: each for each in waiting if each.rejection is None}
        result = self._together.finish(waiting[0].unit.number in build.hints.careful)
        self._waiting, self._by_number = [], {}
        for each in waiting:
            found: list[MadeSample] | Rejection = each.rejection or result[each.number]
            build.unit, build.outcome = each.unit, each.outcome
            if each.record is None:
                each.outcome.first_row = build.rows.first_row
            if not isinstance(found, Rejection):
                build.progress.begin(*each.at, "encode")
                self._write(found, each.read)
            elif each.record is None:
                build.reject(each.unit.unit.first, found)
            else:
                build.hold(each.record, found)
        build.progress.leave()

    def on(self, record: int, stage: str) -> None:
        """Note that work on a record which waits begins, or reaches a stage."""
        self._build.progress.begin(*self._by_number[record].at, stage)

    def on_all(self) -> None:
        """Note that a model is called with several of the records that wait."""
        self._calls += 1
        self._build.progress.begin(
            self._waiting[0].unit.number, TOGETHER - self._calls, "transform"
        )
