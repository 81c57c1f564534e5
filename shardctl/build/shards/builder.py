"""Puts a shard together: units go in, their samples come out as rows, and what became of each unit
is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.build.shards.inputs import (
    changed,
    check_digest,
    digest_of,
    digest_with,
    read_mask,
    read_whole,
)
from shardctl.build.shards.makers import BatchMaker, FunctionMaker, Maker, ModelMaker, RecordMaker
from shardctl.build.shards.planned import PlannedUnit
from shardctl.build.shards.previous_samples import PreviousSamples, PreviousUnits
from shardctl.build.shards.record_images import TableImages
from shardctl.build.shards.records import FITTED_RECORDS, RecordChoice, read_unit
from shardctl.build.shards.rows import (
    RejectedRecord,
    RejectWriter,
    Rows,
    SampleWriter,
    ShardTotals,
    ShuffledRows,
    UnitOutcome,
    record_of_jpegs,
)
from shardctl.build.shards.shard_build import BuildAgain, ShardBuild
from shardctl.errors import Rejection, TypesDifferError
from shardctl.format.counts import Counts, JpegRecord
from shardctl.format.shard import ShardWriter, shard_schema
from shardctl.format.tables import Reject
from shardctl.sources.annotations.masks import MASK
from shardctl.sources.formats import Choose, ColumnMisfit, Misfit, Parsed, Unit
from shardctl.sources.kinds import KINDS
from shardctl.system.files import HashingFile
from shardctl.system.processes.worker_state import OUT_OF_MEMORY_MESSAGE
from shardctl.system.text import printable
from shardctl.transforms.pipeline.samples import SamplePipeline


class RecordUnits:
    """Reads units of files of many records, and has the samples of their records made.

    Rows that were written cannot be taken back. If a record shows that its unit must be read in
    another way, and rows of the unit were written before, the shard must be built again. If none
    were, the unit is read in the other way at once.
    """

    def __init__(
        self,
        build: ShardBuild,
        maker: Maker,
        images: TableImages | None,
        writer: SampleWriter,
        rejects: RejectWriter,
        choice: RecordChoice,
    ) -> None:
        self._build, self._maker, self._images = build, maker, images
        self._job, self._progress, self._hints = build.job, build.progress, build.hints
        self._writer, self._rejects, self._choice = writer, rejects, choice
        self._inputs_before = 0

    def add(self, planned: PlannedUnit, outcome: UnitOutcome) -> BuildAgain | None:
        """Add the samples of a unit. Raises Rejection, MemoryError, TypesDifferError,
        SourceGoneError, InputError."""
        self._inputs_before = self._writer.totals.inputs
        if (planned.number, None) in self._hints.lost:
            raise self._hints.lost[planned.number, None]
        try:
            self._choice.of_split(planned)
        except MemoryError:
            return self._one_by_one(planned)
        lost = self._hints.lost_records(planned.number)
        self._rejects.begin([record for record in lost if self._choice.has(planned, record)])
        self._maker.begin(planned)
        if self._images is not None:
            self._images.begin()
        again = self._add_as_hinted(planned, outcome)
        if again is not None:
            return again
        self._maker.flush()
        self._tell_rejects(planned, outcome, [], None)
        again = (
            None if self._images is None else self._add_image_digest(planned, outcome, self._images)
        )
        if self._rejects.pruned and not outcome.samples:
            outcome.digest = None  # it would stand for what was taken out
        return again

    def read_only(self, planned: PlannedUnit) -> None:
        """Read a unit, and make nothing of it. Raises Rejection, SourceGoneError."""
        if (planned.number, None) in self._hints.lost:
            raise self._hints.lost[planned.number, None]
        self._progress.begin(planned.number)
        try:
            self._digest_of(planned)
        except MemoryError as error:
            raise Rejection("read", "out-of-memory", OUT_OF_MEMORY_MESSAGE) from error
        finally:
            self._progress.leave()

    def _add_as_hinted(self, planned: PlannedUnit, outcome: UnitOutcome) -> BuildAgain | None:
        """Add the records of a unit in the way that is known to be needed."""
        if planned.number in self._hints.careful:
            return self._add_each(planned, outcome)
        try:
            if planned.number in self._hints.unfit:
                return self._add_fitting(planned, outcome)
            return self._add_part(planned, planned.unit, self._choice.to_read(planned), outcome)
        except MemoryError:
            if self._writer.rows.is_writing(planned.number) or planned.unit.records == 1:
                raise
            return self._one_by_one(planned)

    def _add_each(self, planned: PlannedUnit, outcome: UnitOutcome) -> BuildAgain | None:
        """Add a unit's samples, reading its records one by one, so that what goes wrong costs one
        of them."""
        digest = self._digest_of(planned)
        unit = planned.unit
        for place in range(unit.records):
            record = unit.first + place
            self._progress.begin(planned.number, record)
            alone = unit._replace(skip=unit.skip + place, first=record, records=1)
            try:
                again = self._add_part(planned, alone, self._choice.to_read(planned), outcome)
            except MemoryError:
                if self._writer.rows.is_writing(planned.number):
                    raise
                rejection = Rejection(self._progress.stage, "out-of-memory", OUT_OF_MEMORY_MESSAGE)
                self._tell_rejects(planned, outcome, [(record, rejection)], record)
                continue
            if again is not None:
                return again
        outcome.digest = digest
        return None

    def _add_part(
        self, planned: PlannedUnit, part: Unit, choose: Choose | None, outcome: UnitOutcome
    ) -> BuildAgain | None:
        """Add the samples of a unit, or of a part of it, as they are read."""
        digest = xxhash.xxh3_64()
        try:
            for parsed in read_unit(self._job, planned, part, choose, digest):
                again = self._add_parsed(planned, parsed, outcome)
                if again is not None:
                    return again
            outcome.digest = digest.intdigest()
            if part == planned.unit and self._images is None:  # and not one record of it
                check_digest(self._job, planned, outcome.digest)
        except Misfit as misfit:
            return self._take_misfit(planned, part, outcome, misfit)
        except Rejection as rejection:
            return self._lose(planned, rejection)
        return None

    def _add_fitting(self, planned: PlannedUnit, outcome: UnitOutcome) -> BuildAgain | None:
        """Add the samples of the records of a unit that fit the types that were given, and reject
        the others.

        Fewer and fewer are read together until one alone does not fit: one by one, each of them
        would cost a whole unit.
        """
        digest, unit = self._digest_of(planned), planned.unit
        done, together = 0, FITTED_RECORDS
        while done < unit.records:
            count = min(together, unit.records - done)
            part = unit._replace(skip=unit.skip + done, first=unit.first + done, records=count)
            try:
                # All of the part is read before any of it is added, so that it can be read again in
                # smaller ones.
                read = list(
                    read_unit(
                        self._job, planned, part, self._choice.to_read(planned), xxhash.xxh3_64()
                    )
                )
            except Misfit as misfit:
                if count > 1:
                    together = count // 2
                    continue
                self._tell_rejects(
                    planned, outcome, [(part.first, _other_type(misfit))], part.first
                )
            except Rejection as rejection:
                return self._lose(planned, rejection)
            else:
                for parsed in read:
                    again = self._add_parsed(planned, parsed, outcome)
                    if again is not None:
                        return again
            done += count
            together = min(2 * together, FITTED_RECORDS)
        outcome.digest = digest
        return None

    def _add_parsed(
        self, planned: PlannedUnit, parsed: Parsed, outcome: UnitOutcome
    ) -> BuildAgain | None:
        """Add the samples of some records of a unit."""
        found = self._maker.add_records(planned, parsed, outcome)
        if isinstance(found, BuildAgain):
            return found
        rejects = [*parsed.rejects, *found]
        seen = [*parsed.numbers[-1:].tolist(), *(record for record, _ in rejects)]
        self._tell_rejects(planned, outcome, rejects, max(seen, default=0))
        return None

    def _tell_rejects(
        self,
        planned: PlannedUnit,
        outcome: UnitOutcome,
        rejects: Sequence[RejectedRecord],
        last: int | None,
    ) -> None:
        self._rejects.tell(planned, outcome, rejects, last, self._maker.waiting)

    def _take_misfit(
        self, planned: PlannedUnit, part: Unit, outcome: UnitOutcome, misfit: Misfit
    ) -> BuildAgain | None:
        """Do what must be done where a value does not fit the types of the fields. Raises
        Rejection, TypesDifferError."""
        if self._job.recipe.typed_fields is None:
            if self._job.recorded:  # its types were found in all records
                return self._without(planned, changed(self._job, planned))
            raise TypesDifferError(f"{printable(planned.key())}: {misfit}") from misfit
        if isinstance(misfit, ColumnMisfit):
            return self._lose(planned, _other_type(misfit))
        if part.records == 1 and part != planned.unit:
            self._tell_rejects(planned, outcome, [(part.first, _other_type(misfit))], part.first)
            return None
        if self._has_begun():
            return BuildAgain(
                self._hints.with_unfit(planned.number),
                f"{planned.key()}: records of the unit do not fit ({misfit})",
            )
        return self._add_fitting(planned, outcome)

    def _has_begun(self) -> bool:
        """Return whether a record of the unit has been counted, as a sample, a reject, or one that
        still waits."""
        return self._writer.totals.inputs > self._inputs_before or self._maker.waiting is not None

    def _lose(self, planned: PlannedUnit, rejection: Rejection) -> BuildAgain:
        """Have a unit rejected as a whole, where a record of it has been counted: none must count
        twice. Raises Rejection where none has.
        """
        if not self._has_begun():
            raise rejection
        return self._without(planned, rejection)

    def _without(self, planned: PlannedUnit, rejection: Rejection) -> BuildAgain:
        hints = self._hints.with_lost({(planned.number, None): rejection.bare()})
        return BuildAgain(hints, f"{planned.key()}: the unit was not read to its end ({rejection})")

    def _one_by_one(self, planned: PlannedUnit) -> BuildAgain:
        return BuildAgain(
            self._hints.with_careful(planned.number),
            f"{planned.key()}: memory ran out for a record of the unit",
        )

    def _add_image_digest(
        self, planned: PlannedUnit, outcome: UnitOutcome, images: TableImages
    ) -> BuildAgain | None:
        """Have the digest of a unit cover the image files that its records name. Raises
        Rejection."""
        assert outcome.digest is not None, "all records were read"
        outcome.digest = images.unit_digest(outcome.digest)
        try:
            check_digest(self._job, planned, outcome.digest)
        except Rejection as rejection:
            return self._lose(planned, images.missing or rejection)
        return None

    def _digest_of(self, planned: PlannedUnit) -> int:
        """Return the digest of a unit, of which no record is parsed. Raises Rejection."""
        digest = xxhash.xxh3_64()
        try:
            for _ in read_unit(
                self._job,
                planned,
                planned.unit,
                lambda numbers: np.zeros(len(numbers), bool),
                digest,
            ):
                pass
        except Misfit as misfit:  # whatever the record
            raise _other_type(misfit) from misfit
        # else the digest that is known covers the images too: _add_image_digest compares it
        if self._images is None:
            check_digest(self._job, planned, digest.intdigest())
        return digest.intdigest()


def _other_type(misfit: Misfit) -> Rejection:
    return Rejection(
        "decode", "other-type", f"{misfit}; --schema says otherwise, change it or the record"
    )


class FileUnits:
    """Reads units that are a file each, and has their samples made."""

    def __init__(self, build: ShardBuild, maker: Maker) -> None:
        self._build, self._maker = build, maker
        self._kind = KINDS[build.job.recipe.kind]

    def add(self, planned: PlannedUnit, outcome: UnitOutcome) -> BuildAgain | None:
        """Add the samples of a unit. Raises Rejection, MemoryError, SourceGoneError, InputError."""
        job, progress = self._build.job, self._build.progress
        lost = self._build.hints.lost.get((planned.number, None))
        if lost is not None and lost.stage in ("plan", "read", "prune"):
            raise lost
        data = read_whole(job, planned)
        mask = read_mask(job, planned)
        outcome.digest = digest_of(data) if mask is None else digest_with(data, mask)
        check_digest(job, planned, outcome.digest)
        if lost is not None:
            raise lost
        progress.enter("decode")
        fields = self._kind.fields(data, planned.file.path, job.recipe.reading)
        return self._maker.add_file(
            fields if mask is None else {**fields, MASK: mask}, planned, outcome
        )


@dataclass(frozen=True)
class ShardContent:
    """What was written into a shard.

    `raw_bytes` are those of all blocks before compression. `objects` are marked in its images, and
    `cut_off` of them are no longer; `first_frames` of the images are the first of several frames.
    `jpegs` is what its images are as JPEG, None where their original bytes are not kept. `steps`
    counts what became of its records in each step of text and tables.
    """

    block_rows: tuple[int, ...]
    raw_bytes: int
    objects: int
    cut_off: int
    first_frames: int
    jpegs: JpegRecord | None
    steps: tuple[Counts, ...]


class ShardBuilder:
    """Makes the samples of units, and writes them into one shard. `totals` has what became of them
    so far."""

    def __init__(
        self, build: ShardBuild, sink: HashingFile | pa.NativeFile, reject: Callable[[Reject], None]
    ) -> None:
        job, place, progress = build.job, build.place, build.progress
        self._build, self._job, self._progress = build, job, progress
        self._shard = ShardWriter(
            sink,
            shard_schema(job.layout, place.split_name, place.number),
            job.recipe.compression,
            place.blocks,
        )
        pipeline = SamplePipeline(
            job.recipe,
            job.layout,
            progress.enter,
            of_records=job.annotation_rules,
            look=build.look,
            recorded=job.recorded,
        )
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
            self._maker = self._models = ModelMaker(
                build, pipeline, images, self._writer, self._rejects, self._choice
            )
        elif _works_on_batches(build):
            self._maker = BatchMaker(build, self._writer)
        elif job.fields is not None and job.recipe.store is None and images is None:
            self._maker = FunctionMaker(build, pipeline, None, self._writer)
        else:
            self._maker = RecordMaker(build, pipeline, images, self._writer)
        self._files = FileUnits(build, self._maker)
        self._records = RecordUnits(
            build, self._maker, images, self._writer, self._rejects, self._choice
        )

    def add(self, planned: PlannedUnit) -> BuildAgain | None:
        """Add the samples of a unit, or say why the shard must be built again.

        Raises TypesDifferError, SourceGoneError, InputError, and MemoryError where no record is to
        blame.
        """
        if self._models is not None:
            self._models.begin_unit(planned.number)
        outcome = UnitOutcome(self._rows.first_row)
        self.totals.outcomes.append(outcome)
        self._progress.begin(planned.number)
        again = None
        try:
            again = (self._files if self._job.fields is None else self._records).add(
                planned, outcome
            )
        except Rejection as rejection:
            self._reject_unit(planned, outcome, rejection)
        except MemoryError:
            if self._rows.is_writing(planned.number):
                raise
            self._reject_unit(
                planned,
                outcome,
                Rejection(self._progress.stage, "out-of-memory", OUT_OF_MEMORY_MESSAGE),
            )
        self._progress.leave()
        return again

    def add_previous(self, previous: PreviousSamples, units: PreviousUnits) -> BuildAgain | None:
        """Add units that the dataset before has made: of files that are one record each."""
        return self._writer.add_previous(previous, units)

    def read_only(self, planned: PlannedUnit) -> None:
        """Read a unit of a file of many records, and make nothing of it. Raises Rejection,
        SourceGoneError."""
        self._records.read_only(planned)

    def slot_of(self, unit: int) -> range:
        """Return the units that this one must be made with: those of its slot, where units are
        records and there are models."""
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

    def _reject_unit(
        self, planned: PlannedUnit, outcome: UnitOutcome, rejection: Rejection
    ) -> None:
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
