"""Puts a shard together: units go in, makers make samples of their records, and these come out as
rows; what became of each unit is counted. What all builders do with rows and rejects is in
ShardInMaking (rows.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import Rejection, TypesDifferError
from shardctl.format.arrays import Numbers
from shardctl.format.counts import Counts
from shardctl.format.python_values import python_rows
from shardctl.format.roles import Sample
from shardctl.format.update_state import ShardCounts
from shardctl.making.shards.inputs import (
    changed,
    check_digest,
    digest_of,
    read_mask,
    read_whole,
)
from shardctl.making.shards.job import BuildAgain, Job, PlannedUnit
from shardctl.making.shards.marker import MARKER_SCHEMA, ShardMarker
from shardctl.making.shards.records import fields_of, read_fitting, read_unit, sample_of, samples_of
from shardctl.making.shards.rows import RejectedRecord, ShardInMaking, UnitOutcome, record_of_jpegs
from shardctl.sources.annotations.masks import MASK
from shardctl.sources.formats import ColumnMisfit, Misfit, Parsed, Unit
from shardctl.system.processes.worker_state import (
    OUT_OF_MEMORY_MESSAGE,
    TOGETHER,
    WHOLE,
)
from shardctl.system.text import printable
from shardctl.transforms.base import HeldMemoryError, Records
from shardctl.transforms.pipeline.batches import BatchPipeline, keyed, lay_out, records_of_file
from shardctl.transforms.pipeline.functions import MadeSample
from shardctl.transforms.pipeline.samples import ModelBatcher

_TIMES = (pa.types.is_timestamp, pa.types.is_duration, pa.types.is_time64)
"""Times of 64 bits."""


class ShardBuilder(ShardInMaking):
    """Makes the samples of units, each record by itself, as the recipe says, and writes them into one
    shard. Other builders have some records wait for others.

    Rows that were written cannot be taken back. If a record of a unit of many shows that it must be
    read in another way, and rows of the unit were written before, the shard must be built again. If
    none were, the unit is read in the other way at once.
    """

    _inputs_before = 0

    def add(self, planned: PlannedUnit) -> None:
        """Add the samples of a unit.

        Raises BuildAgain, TypesDifferError, SourceGoneError, InputError, and MemoryError where the
        worker must end.
        """
        self.begin(planned)
        rejection = None
        try:
            if self.job.whole:
                self._add_file()
            else:
                self._add_records()
        except BuildAgain:
            self.progress.leave()
            raise
        except Rejection as problem:
            rejection = problem
        except MemoryError:
            if self.rows.ends_worker(planned.number):
                raise
            rejection = self._out_of_memory()
        if rejection is not None:
            self._reject_unit(rejection)
        self.progress.leave()

    def _reject_unit(self, rejection: Rejection) -> None:
        first, count = self.choice.span()
        if count:  # of this split
            self.reject(first, rejection, count)

    def _out_of_memory(self) -> Rejection:
        return Rejection(self.progress.stage, "out-of-memory", OUT_OF_MEMORY_MESSAGE)

    def _add_file(self) -> None:
        """Add the samples of a file that is one record. Raises Rejection, MemoryError,
        SourceGoneError, InputError."""
        job, planned = self.job, self.planned
        lost = self.hints.lost.get((planned.number, None))
        if lost is not None and lost.stage in ("plan", "read", "prune"):
            raise lost
        data = read_whole(job, planned)
        mask = read_mask(job, planned)
        digest = digest_of(data)
        if mask is not None:
            of_both = (digest, digest_of(mask["bytes"]))
            digest = digest_of(b"".join(each.to_bytes(8, "little") for each in of_both))
        self.outcome.digest = digest
        check_digest(job, planned, digest)
        if lost is not None:  # its digest stays: an update must know the file again
            raise lost
        self.progress.enter("decode")
        fields = fields_of(job, planned, data)
        self._make_file(fields if mask is None else {**fields, MASK: mask})

    def _add_records(self) -> None:
        """Add the samples of a unit of many records. Raises BuildAgain, Rejection, MemoryError,
        TypesDifferError, SourceGoneError, InputError."""
        planned, hints, images = self.planned, self.hints, self.images
        self._inputs_before = self.inputs
        hints.refuse_lost(planned.number)
        one_by_one = BuildAgain(
            replace(hints, careful=hints.careful | {planned.number}),
            f"{planned.key()}: memory ran out for a record of the unit",
        )
        try:
            _ = self.choice.of_split  # keys may have to be read
        except MemoryError:
            raise one_by_one from None
        lost = hints.lost_records(planned.number)
        self.begin_records([record for record in lost if self.choice.has(record)])
        if images is not None:
            images.begin()
        if planned.number in hints.careful:
            self._add_each()
        else:
            try:
                if planned.number in hints.unfit:
                    self._add_fitting()
                else:
                    self._add_part(planned.unit)
            except MemoryError:
                if self.rows.ends_worker(planned.number) or planned.unit.records == 1:
                    raise
                raise one_by_one from None
        self.flush()
        self.tell([], None)
        if images is not None:  # the digest covers the image files that the records name
            assert self.outcome.digest is not None, "all records were read"
            self.outcome.digest = images.unit_digest(self.outcome.digest)
            try:
                check_digest(self.job, planned, self.outcome.digest)
            except Rejection as rejection:
                self._lose(images.missing or rejection)
        if self.pruned and not self.outcome.samples:
            self.outcome.digest = None  # it would stand for what was taken out

    def read_only(self, planned: PlannedUnit) -> None:
        """Read a unit, and make nothing of it. Raises Rejection, SourceGoneError."""
        self.hints.refuse_lost(planned.number)
        self.planned = planned
        self.progress.begin(planned.number)
        try:
            self._digest_of()
        except MemoryError as error:
            raise Rejection("read", "out-of-memory", OUT_OF_MEMORY_MESSAGE) from error
        finally:
            self.progress.leave()

    def _add_each(self) -> None:
        """Add a unit's samples, reading its records one by one, so that what goes wrong costs one
        of them."""
        digest, planned = self._digest_of(), self.planned
        for place in range(planned.unit.records):
            record = planned.unit.first + place
            self.progress.begin(planned.number, record)
            try:
                self._add_part(planned.unit.part(place, 1))
            except MemoryError:
                if self.rows.ends_worker(planned.number):
                    raise
                self.tell([(record, self._out_of_memory())], record)
        self.outcome.digest = digest

    def _add_part(self, part: Unit) -> None:
        """Add the samples of a unit, or of a part of it, as they are read."""
        planned, digest, choose = self.planned, xxhash.xxh3_64(), self.choice.to_read()
        is_whole = choose is None and part == planned.unit
        ahead = self.ahead.get(planned.number) if is_whole else None
        try:
            for parsed in read_unit(self.job, planned, part, choose, digest, ahead):
                self._add_parsed(parsed)
            self.outcome.digest = digest.intdigest()
            if part == planned.unit and self.images is None:  # and not one record of it
                check_digest(self.job, planned, digest.intdigest())
        except Misfit as misfit:
            self._take_misfit(part, misfit)
        except Rejection as rejection:
            self._lose(rejection)

    def _add_fitting(self) -> None:
        """Add the samples of the records of a unit that fit the types that were given, and reject
        the others.

        Fewer and fewer are read together until one alone does not fit: one by one, each of them
        would cost a whole unit.
        """
        digest, choose = self._digest_of(), self.choice.to_read()
        try:
            for parsed in read_fitting(
                self.job,
                self.planned,
                choose,
                lambda record, misfit: self.tell([(record, _other_type(misfit))], record),
            ):
                self._add_parsed(parsed)
        except Rejection as rejection:
            self._lose(rejection)
        self.outcome.digest = digest

    def _add_parsed(self, parsed: Parsed) -> None:
        """Add the samples of some records of the unit."""
        rejects = [*parsed.rejects, *self._make_records(parsed)]
        seen = [*parsed.numbers[-1:].tolist(), *(record for record, _ in rejects)]
        self.tell(rejects, max(seen, default=0))

    def _take_misfit(self, part: Unit, misfit: Misfit) -> None:
        """Do what must be done where a value does not fit the types of the fields. Raises
        BuildAgain, Rejection, TypesDifferError."""
        planned = self.planned
        if self.job.recipe.typed_fields is None:
            if self.job.recorded:  # its types were found in all records
                raise self._without(changed(self.job, planned))
            raise TypesDifferError(f"{printable(planned.key())}: {misfit}") from misfit
        if isinstance(misfit, ColumnMisfit):
            self._lose(_other_type(misfit))
        elif part.records == 1 and part != planned.unit:
            self.tell([(part.first, _other_type(misfit))], part.first)
        elif self._has_begun():
            hints = replace(self.hints, unfit=self.hints.unfit | {planned.number})
            raise BuildAgain(hints, f"{planned.key()}: records of the unit do not fit ({misfit})")
        else:
            self._add_fitting()

    def _has_begun(self) -> bool:
        """Return whether a record of the unit has been counted, as a sample, a reject, or one that
        still waits."""
        return self.inputs > self._inputs_before or self.waiting is not None

    def _lose(self, rejection: Rejection) -> NoReturn:
        """Have a unit rejected as a whole. Raises Rejection, or BuildAgain where a record of it has
        been counted: none must count twice."""
        raise self._without(rejection) if self._has_begun() else rejection

    def _without(self, rejection: Rejection) -> BuildAgain:
        planned = self.planned
        hints = self.hints.with_lost({(planned.number, None): rejection.bare()})
        return BuildAgain(hints, f"{planned.key()}: the unit was not read to its end ({rejection})")

    def _digest_of(self) -> int:
        """Return the digest of a unit, of which no record is parsed. Raises Rejection."""
        digest, none = xxhash.xxh3_64(), lambda numbers: np.zeros(len(numbers), bool)
        planned = self.planned
        try:
            for _ in read_unit(self.job, planned, planned.unit, none, digest):
                pass
        except Misfit as misfit:  # whatever the record
            raise _other_type(misfit) from misfit
        # else the digest that is known covers the images too, and is compared at the end
        if self.images is None:
            check_digest(self.job, planned, digest.intdigest())
        return digest.intdigest()

    @property
    def step_counts(self) -> list[Counts]:
        """What became of the records in each step of text and tables."""
        return []

    def units_together(self, unit: int) -> range:
        """Return the units that this one must be made with: those of its group, where units are
        records and there are models."""
        return range(unit, unit + 1)

    def _make_file(self, fields: Sample) -> None:
        """Make the samples of a file that is one record, given as its fields. Raises Rejection."""
        self._add(fields, None)

    def _make_records(self, parsed: Parsed) -> list[RejectedRecord]:
        """Make the samples of some records of the unit, and return those that are rejected."""
        rejects = list[RejectedRecord]()
        records: Iterable[tuple[int, Sample]] = zip(
            parsed.numbers.tolist(), self._rows_of(parsed.batch), strict=True
        )
        if self.images is not None:
            records = self.images.prefetched(records, self.planned)
        for record, fields in records:
            self.progress.begin(self.planned.number, record)
            try:
                self._add(fields, record)
            except Rejection as rejection:
                rejects.append((record, rejection))
        self.progress.begin(self.planned.number)  # adding a record has left it
        return rejects

    def _rows_of(self, batch: pa.RecordBatch) -> Iterator[Sample]:
        """Yield the fields of records. Only a user's functions get times; else they stay
        numbers."""
        if self.job.recipe.sample_transforms:
            yield from python_rows(batch)
            return
        columns = [
            column.view(pa.int64()) if any(is_time(column.type) for is_time in _TIMES) else column
            for column in batch.columns
        ]
        rows = pa.RecordBatch.from_arrays(columns, batch.schema.names)
        for row in range(rows.num_rows):  # not all at once: each holds a copy of its images
            yield rows.slice(row, 1).to_pylist()[0]

    def _add(self, fields: Sample, record: int | None) -> None:
        """Add the samples of one record, None: of the file that is one. Raises Rejection."""
        sample, read = self._sample(fields, record)
        self._write(self.pipeline.make(sample), read)

    def _sample(self, fields: Sample, record: int | None) -> tuple[Sample, list[int]]:
        """Return a record as the recipe begins with it, and the digests of the files that its
        images are in. Raises Rejection."""
        read = list[int]()
        if self.images is not None:
            fields = self.images.take(fields, self.planned)
            read = self.images.read
        return sample_of(self.job, self.planned, record, fields), read

    def _write(self, made: list[MadeSample], read: list[int]) -> None:
        """Write the samples of one record, whose images were in files with these digests."""
        if self.images is not None:
            self.images.became_samples(read)
        self.add_record(made)

    def flush(self) -> None:
        """Make the samples of the records that wait within their unit, or within their group. Raises
        InputError."""

    def finish(self) -> None:
        """Write all samples that still wait, at the end of the shard. Raises InputError."""
        self.flush()
        self.rows.flush()

    def marker(self) -> ShardMarker:
        """Return what is in the shard, once its file is closed."""
        rows, facts = self.rows, self.writer.facts
        jpegs = record_of_jpegs(rows.jpegs) if self.job.keeps_sources else None
        counts = ShardCounts(
            dict(self.labels),
            tuple(sorted(self.shapes)),
            rows.objects,
            rows.cut_off,
            None if jpegs is None else tuple(jpegs.counts().values()),
            tuple(self.step_counts),
        )
        return ShardMarker(
            path=self.planned_shard.path(facts.sha256),
            facts=facts,
            inputs=self.inputs,
            rejected=self.rejected,
            counts=counts,
            units=pa.Table.from_pylist(list(map(vars, self.outcomes)), MARKER_SCHEMA),
            jpegs=jpegs,
            first_frames=self.pipeline.first_frames,
        )


def _other_type(misfit: Misfit) -> Rejection:
    return Rejection(
        "decode", "other-type", f"{misfit}; --schema says otherwise, change it or the record"
    )


class BatchBuilder(ShardBuilder):
    """Makes samples by the batch transforms of a recipe; where there are none, records become
    samples as they are."""

    def __init__(self, job: Job, *given: Any) -> None:
        super().__init__(job, *given)
        self._pipeline = BatchPipeline(
            job.recipe.batch_transforms, job.folder, job.layout.roles.by_name
        )

    @property
    def step_counts(self) -> list[Counts]:
        """What became of the records in each of the batch transforms."""
        return self._pipeline.counts()

    def _make_file(self, fields: Sample) -> None:
        """Make the samples of a file that is one record. Raises Rejection."""
        planned = self.planned
        self.progress.enter("transform")
        for _, rejection in self._apply(
            records_of_file(planned.file_number, planned.key(), fields)
        ):
            raise rejection

    def _make_records(self, parsed: Parsed) -> list[RejectedRecord]:
        """Make the samples of some records of the unit, and return those that are rejected."""
        if not parsed.batch.num_rows:
            return []
        planned = self.planned
        batch = keyed(parsed.batch, planned.file.path, parsed.numbers)
        return self._apply(Records(planned.file_number, parsed.numbers, batch))

    def _apply(self, records: Records) -> list[RejectedRecord]:
        planned, job, rejects = self.planned, self.job, list[RejectedRecord]()
        try:
            for made in self._pipeline.apply(records, lambda *reject: rejects.append(reject)):
                self.add_batch(
                    lay_out(made.batch, job.layout, planned.file.label, planned.file.columns)
                )
        except HeldMemoryError:
            self.progress.leave()  # no record is to blame
            raise
        except MemoryError:
            several = not job.recipe.joins or len(records.numbers) > 1
            if several or self.rows.ends_worker(planned.number):
                raise
            # It may have taken others along, which were held in a step.
            rejection = Rejection("transform", "out-of-memory", OUT_OF_MEMORY_MESSAGE)
            record = int(records.numbers[0]) or None
            raise BuildAgain(
                self.hints.with_lost({(planned.number, record): rejection}),
                f"{planned.key(record)}: memory ran out in a step that holds other records",
            ) from None
        self.inputs += len(records.numbers) - len(rejects)
        return rejects

    def finish(self) -> None:
        """Add what the steps still hold, at the end of the shard."""
        for held in self._pipeline.finish():
            self.add_batch(lay_out(held.batch, self.job.layout))
        super().finish()


class FunctionBuilder(ShardBuilder):
    """Calls functions record by record, and lays their samples out a column at a time. The records
    have no images."""

    def _make_records(self, parsed: Parsed) -> list[RejectedRecord]:
        """Make the samples of some records of the unit, and return those that are rejected."""
        file, numbers = self.planned.file, parsed.numbers
        records = keyed(parsed.batch, file.path, numbers)
        keys, batch = records.column(0).to_pylist(), records.select(range(1, records.num_columns))
        samples = samples_of(self.job, file, python_rows(batch), keys)
        enter = self.progress.enter_call
        applied = self.pipeline.finish_records(
            numbers.tolist(),
            samples,
            lambda records, _: enter(records[0] if len(records) == 1 else TOGETHER),
        )
        self.progress.begin(self.planned.number, int(numbers[0]) if len(numbers) == 1 else WHOLE)
        batch = self.pipeline.lay_out(applied)
        # those that gave no sample too
        self.inputs += len(numbers) - len(applied.rejects)
        self.add_batch(batch)
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

    @property
    def at(self) -> tuple[int, int]:
        """How the progress slot names it."""
        return self.planned.number, WHOLE if self.record is None else self.record


class ModelBuilder(ShardBuilder):
    """Makes the samples of the records of a group together.

    A group is as many neighbouring records as the models need: of the shard, or of a unit of many
    records. Records that are rejected count too, so that a group has the same records whatever
    becomes of them.
    """

    def __init__(self, job: Job, *given: Any) -> None:
        super().__init__(job, *given)
        self._records_together = job.recipe.records_together
        self._together = ModelBatcher(self.pipeline, self._on)
        self._waiting: list[_WaitingRecord] = []
        self._by_number: dict[int, _WaitingRecord] = {}
        self._group = self._calls = 0
        self._ranks: Numbers | None = None

    @property
    def waiting(self) -> int | None:
        """The first record of the current unit that waits, None if none does."""
        return self._waiting[0].record if self._waiting else None

    def units_together(self, unit: int) -> range:
        """Return the units that this one must be made with: those of its group, where units are
        records."""
        if not self.job.whole:
            return range(unit, unit + 1)
        first = unit - (unit - self.planned_shard.first_unit) % self._records_together
        return range(first, first + self._records_together)

    def begin(self, planned: PlannedUnit) -> None:
        """Begin with a unit; before, finish the group before, if this one is not of it. Raises
        InputError."""
        if self._waiting and planned.number not in self.units_together(
            self._waiting[0].planned.number
        ):
            self.flush()
        super().begin(planned)

    def begin_records(self, lost: Sequence[int]) -> None:
        """Begin with a unit of many records. Raises MemoryError, SourceGoneError."""
        super().begin_records(lost)
        self._ranks = self.choice.ranks()

    def _reject_unit(self, rejection: Rejection) -> None:
        """Have a file that is one record wait, to be told of in its turn."""
        if self.job.whole:
            self._wait(None, rejection=rejection.bare())
        else:
            super()._reject_unit(rejection)

    def _wait(self, record: int | None, **known: Any) -> None:
        self._waiting.append(_WaitingRecord(self.planned, self.outcome, record, **known))

    def _add(self, fields: Sample, record: int | None) -> None:
        """Have one record wait, None: the file that is one. Raises Rejection."""
        planned = self.planned
        if record is not None:
            # they are counted as they are planned, whatever becomes of them
            place = record - planned.unit.first
            rank = place if self._ranks is None else int(self._ranks[place])
            if rank // self._records_together != self._group:
                self.flush()
                self._group = rank // self._records_together
                self.progress.begin(planned.number, record)
        sample, read = self._sample(fields, record)
        self._wait(record, number=self._together.add(sample), read=read)

    def flush(self) -> None:
        """Do the rest to the records that wait, and add their samples. Raises InputError."""
        if not self._waiting:
            return
        waiting = self._waiting
        self._by_number = {each.number: each for each in waiting if each.rejection is None}
        result = self._together.finish(waiting[0].planned.number in self.hints.careful)
        self._waiting, self._by_number = [], {}
        for each in waiting:
            found: list[MadeSample] | Rejection = each.rejection or result[each.number]
            self.planned, self.outcome = each.planned, each.outcome
            if each.record is None:
                each.outcome.first_row = self.rows.first_row
            if not isinstance(found, Rejection):
                self.progress.begin(*each.at, "encode")
                self._write(found, each.read)
            elif each.record is None:
                self.reject(each.planned.unit.first, found)
            else:
                self.hold(each.record, found)
        self.progress.leave()

    def _on(self, record: int | None, stage: str) -> None:
        """Note that work on a record which waits reaches a stage; None: that a model is called with
        several of them."""
        if record is not None:
            self.progress.begin(*self._by_number[record].at, stage)
            return
        self._calls += 1
        self.progress.begin(self._waiting[0].planned.number, TOGETHER - self._calls, stage)


def builder_of(job: Job) -> type[ShardBuilder]:
    """Return the class that builds the shards of a job."""
    if job.recipe.models:
        return ModelBuilder
    if job.whole:
        return BatchBuilder if job.recipe.batch_transforms else ShardBuilder
    if job.recipe.store is not None or job.has_image_columns:
        return ShardBuilder
    # nothing but a user's function looks at each record
    return FunctionBuilder if job.recipe.sample_transforms else BatchBuilder
