"""Makers of samples: records that were read go in, and come out as samples, or are rejected."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.counts import Counts
from shardctl.format.python_values import python_rows
from shardctl.format.roles import Sample
from shardctl.making.shards.planned import BuildAgain, PlannedUnit
from shardctl.making.shards.records import sample_of, samples_of
from shardctl.making.shards.rows import RejectedRecord, UnitOutcome
from shardctl.making.shards.shard_build import ShardBuild
from shardctl.sources.formats import Parsed
from shardctl.system.processes.worker_state import (
    OUT_OF_MEMORY_MESSAGE,
    TOGETHER,
    WHOLE,
)
from shardctl.transforms.base import HeldMemoryError, Records
from shardctl.transforms.pipeline.batches import BatchPipeline, keyed, lay_out, records_of_file
from shardctl.transforms.pipeline.functions import MadeSample
from shardctl.transforms.pipeline.model_batching import ModelBatcher


class Maker(ABC):
    """Makes the samples of records as the recipe says, and has them written. Some of the records
    may wait for others."""

    @property
    def waiting(self) -> int | None:
        """The first record of the current unit that waits, None if none does."""
        return None

    @property
    def step_counts(self) -> list[Counts]:
        """What became of the records in each step of text and tables."""
        return []

    @abstractmethod
    def add_file(self, fields: Sample, planned: PlannedUnit, outcome: UnitOutcome) -> None:
        """Make the samples of a file that is one record, given as its fields. Raises Rejection."""

    def begin(self, planned: PlannedUnit) -> None:  # noqa: B027 - most makers have nothing to do
        """Begin with a unit of many records. Raises MemoryError, SourceGoneError."""

    @abstractmethod
    def add_records(
        self, planned: PlannedUnit, parsed: Parsed, outcome: UnitOutcome
    ) -> list[RejectedRecord]:
        """Make the samples of some records of a unit, and return those that are rejected."""

    def begin_unit(self, number: int) -> None:  # noqa: B027 - the same
        """Finish the slot before, if this unit is not of the same one. Raises InputError."""

    def slot_of(self, unit: int) -> range:
        """Return the units that this one must be made with: those of its slot, where units are
        records and there are models."""
        return range(unit, unit + 1)

    def hold_reject(self, planned: PlannedUnit, outcome: UnitOutcome, rejection: Rejection) -> bool:
        """Take a file that is one record and is rejected, to be told of in its turn; False: it need
        not wait."""
        return False

    def flush(self) -> None:  # noqa: B027 - in most makers no record waits
        """Make the samples of the records that wait within their unit, or within their slot. Raises
        InputError."""

    def finish(self) -> None:
        """Make the samples of all that still waits, at the end of the shard. Raises InputError."""
        self.flush()


class RecordMaker(Maker):
    """Makes the samples of each record by itself."""

    def __init__(self, build: ShardBuild) -> None:
        self._build, self._pipeline, self._images = build, build.pipeline, build.images

    def add_file(self, fields: Sample, planned: PlannedUnit, outcome: UnitOutcome) -> None:
        """Make the samples of a file that is one record. Raises Rejection."""
        self._add(fields, planned, outcome, None)

    def add_records(
        self, planned: PlannedUnit, parsed: Parsed, outcome: UnitOutcome
    ) -> list[RejectedRecord]:
        """Make the samples of some records of a unit, and return those that are rejected."""
        progress, rejects = self._build.progress, list[RejectedRecord]()
        records: Iterable[tuple[int, Sample]] = zip(
            parsed.numbers.tolist(), self._rows_of(parsed.batch), strict=True
        )
        for record, fields in (
            records if self._images is None else self._images.prefetched(records, planned)
        ):
            progress.begin(planned.number, record)
            try:
                self._add(fields, planned, outcome, record)
            except Rejection as rejection:
                rejects.append((record, rejection))
        progress.begin(planned.number)
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

    def _add(
        self, fields: Sample, planned: PlannedUnit, outcome: UnitOutcome, record: int | None
    ) -> None:
        """Add the samples of one record, None: of the file that is one. Raises Rejection."""
        read: list[int] = []
        if self._images is not None:
            fields = self._images.take(fields, planned)
            read = self._images.read
        self._write(
            self._pipeline.make(sample_of(self._build.job, planned, record, fields)), outcome, read
        )

    def _write(self, made: list[MadeSample], outcome: UnitOutcome, read: list[int]) -> None:
        """Write the samples of one record, whose images were in files with these digests."""
        if self._images is not None:
            self._images.became_samples(read)
        self._build.output.add_record(made, outcome)


def _is_64_bit_time(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_timestamp(type_) or pa.types.is_duration(type_) or pa.types.is_time64(type_)
    )


class BatchMaker(Maker):
    """Makes samples by the batch transforms of a recipe; where there are none, records become
    samples as they are."""

    def __init__(self, build: ShardBuild) -> None:
        self._build, self._output, job = build, build.output, build.job
        self._pipeline = BatchPipeline(
            job.recipe.batch_transforms, job.folder, job.layout.roles.by_name
        )

    @property
    def step_counts(self) -> list[Counts]:
        """What became of the records in each of the batch transforms."""
        return self._pipeline.counts()

    def add_file(self, fields: Sample, planned: PlannedUnit, outcome: UnitOutcome) -> None:
        """Make the samples of a file that is one record. Raises Rejection."""
        self._build.progress.enter("transform")
        found = self._add(
            planned, records_of_file(planned.file_number, planned.key(), fields), outcome
        )
        for _, rejection in found:
            raise rejection

    def add_records(
        self, planned: PlannedUnit, parsed: Parsed, outcome: UnitOutcome
    ) -> list[RejectedRecord]:
        """Make the samples of some records of a unit, and return those that are rejected."""
        if not parsed.batch.num_rows:
            return []
        batch = keyed(parsed.batch, planned.file.path, parsed.numbers)
        return self._add(planned, Records(planned.file_number, parsed.numbers, batch), outcome)

    def _add(
        self, planned: PlannedUnit, records: Records, outcome: UnitOutcome
    ) -> list[RejectedRecord]:
        file, job = planned.file, self._build.job
        rejects: list[RejectedRecord] = []
        try:
            for made in self._pipeline.apply(
                records, lambda record, rejection: rejects.append((record, rejection))
            ):
                self._output.add_batch(
                    lay_out(made.batch, job.layout, file.label, file.columns), outcome
                )
        except HeldMemoryError:
            self._build.progress.leave()  # no record is to blame
            raise
        except MemoryError:
            if (
                not job.recipe.joins
                or len(records.numbers) > 1
                or self._output.rows.is_writing(planned.number)
            ):
                raise
            # It may have taken others along, which were held in a step.
            rejection = Rejection("transform", "out-of-memory", OUT_OF_MEMORY_MESSAGE)
            place = (planned.number, int(records.numbers[0]) or None)
            raise BuildAgain(
                self._build.hints.with_lost({place: rejection}),
                f"{planned.key(place[1])}: memory ran out in a step that holds other records",
            ) from None
        self._output.inputs += len(records.numbers) - len(rejects)
        return rejects

    def finish(self) -> None:
        """Add what the steps still hold, at the end of the shard."""
        for held in self._pipeline.finish():
            self._output.add_batch(
                lay_out(held.batch, self._build.job.layout), self._output.outcomes[-1]
            )


class FunctionMaker(RecordMaker):
    """Calls functions record by record, and lays their samples out a column at a time. The records
    have no images."""

    def add_records(
        self, planned: PlannedUnit, parsed: Parsed, outcome: UnitOutcome
    ) -> list[RejectedRecord]:
        """Make the samples of some records of a unit, and return those that are rejected."""
        file, numbers, progress = planned.file, parsed.numbers, self._build.progress
        records = keyed(parsed.batch, file.path, numbers)
        keys, batch = records.column(0).to_pylist(), records.select(range(1, records.num_columns))
        samples = samples_of(self._build.job, file, python_rows(batch), keys)
        applied = self._pipeline.finish_records(
            numbers.tolist(),
            samples,
            lambda records, _: progress.enter_call(records[0] if len(records) == 1 else TOGETHER),
        )
        progress.begin(planned.number, int(numbers[0]) if len(numbers) == 1 else WHOLE)
        batch = self._pipeline.lay_out(applied)
        # those that gave no sample too
        self._build.output.inputs += len(numbers) - len(applied.rejects)
        self._build.output.add_batch(batch, outcome)
        return list(applied.rejects.items())


@dataclass
class _WaitingRecord:
    """A record that waits for others: `number` among these, or why it is rejected already.

    `record` is its number in its file, None if it is the file. `read` are digests of image files
    (TableImages.read).
    """

    planned: PlannedUnit
    outcome: UnitOutcome
    record: int | None
    number: int = -1
    rejection: Rejection | None = None
    read: list[int] = field(default_factory=list)


class ModelMaker(RecordMaker):
    """Makes the samples of the records of a slot together.

    A slot is as many neighbouring records as the models need: of the shard, or of a unit of many
    records. Records that are rejected count too, so that a slot has the same records whatever
    becomes of them.
    """

    def __init__(self, build: ShardBuild) -> None:
        super().__init__(build)
        self._slot_records = build.job.recipe.records_together
        self._together = ModelBatcher(build.pipeline, self._on)
        self._waiting: list[_WaitingRecord] = []
        self._by_number: dict[int, _WaitingRecord] = {}
        self._slot = self._calls = 0
        self._ranks: npt.NDArray[np.int64] | None = None

    @property
    def waiting(self) -> int | None:
        """The first record of the current unit that waits, None if none does."""
        return self._waiting[0].record if self._waiting else None

    def begin(self, planned: PlannedUnit) -> None:
        """Begin with a unit of many records. Raises MemoryError, SourceGoneError."""
        self._ranks = self._build.choice.ranks(planned)

    def begin_unit(self, number: int) -> None:
        """Finish the slot before, if this unit is not of the same one. Raises InputError."""
        if self._waiting and number not in self.slot_of(self._waiting[0].planned.number):
            self.flush()

    def slot_of(self, unit: int) -> range:
        """Return the units that this one must be made with: those of its slot, where units are
        records."""
        if self._build.job.fields is not None:
            return range(unit, unit + 1)
        first = unit - (unit - self._build.planned.first_unit) % self._slot_records
        return range(first, first + self._slot_records)

    def hold_reject(self, planned: PlannedUnit, outcome: UnitOutcome, rejection: Rejection) -> bool:
        """Take a file that is one record and is rejected, to be told of in its turn."""
        if self._build.job.fields is None:
            self._waiting.append(_WaitingRecord(planned, outcome, None, rejection=rejection.bare()))
        return self._build.job.fields is None

    def _add(
        self, fields: Sample, planned: PlannedUnit, outcome: UnitOutcome, record: int | None
    ) -> None:
        """Have one record wait, None: the file that is one. Raises Rejection."""
        if record is not None:
            slot = self._slot_of_record(planned, record)
            if slot != self._slot:
                self.flush()
                self._slot = slot
                self._build.progress.begin(planned.number, record)
        read: list[int] = []
        if self._images is not None:
            fields = self._images.take(fields, planned)
            read = self._images.read
        number = self._together.add(sample_of(self._build.job, planned, record, fields))
        self._waiting.append(_WaitingRecord(planned, outcome, record, number, read=read))

    def _slot_of_record(self, planned: PlannedUnit, record: int) -> int:
        """Return the slot of a record in its unit: they are counted as they are planned, whatever
        becomes of them."""
        place = record - planned.unit.first
        return int(place if self._ranks is None else self._ranks[place]) // self._slot_records

    def flush(self) -> None:
        """Do the rest to the records that wait, and add their samples. Raises InputError."""
        if not self._waiting:
            return
        progress, waiting = self._build.progress, self._waiting
        self._by_number = {each.number: each for each in waiting if each.rejection is None}
        result = self._together.finish(waiting[0].planned.number in self._build.hints.careful)
        self._waiting, self._by_number = [], {}
        for each in waiting:
            found: list[MadeSample] | Rejection = each.rejection or result[each.number]
            if each.record is None:
                each.outcome.first_row = self._build.rows.first_row
            if isinstance(found, Rejection):
                if each.record is None:
                    self._build.output.reject(
                        each.planned, each.outcome, each.planned.unit.first, found
                    )
                else:
                    self._build.output.hold(each.record, found)
                continue
            progress.begin(
                each.planned.number, WHOLE if each.record is None else each.record, "encode"
            )
            self._write(found, each.outcome, each.read)
        progress.leave()

    def _on(self, record: int | None, stage: str) -> None:
        """Note that work on a record which waits reaches a stage; None: that a model is called with
        several of them."""
        if record is not None:
            each = self._by_number[record]
            self._build.progress.begin(
                each.planned.number, WHOLE if each.record is None else each.record, stage
            )
            return
        self._calls += 1
        self._build.progress.begin(self._waiting[0].planned.number, TOGETHER - self._calls, stage)
