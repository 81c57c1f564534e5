"""Puts a shard together: units go in, their samples come out as rows, and what became of each unit
is counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import Rejection, TypesDifferError
from shardctl.format.shard import ShardFacts
from shardctl.making.shards.inputs import (
    changed,
    check_digest,
    digest_of,
    digest_with,
    read_mask,
    read_whole,
)
from shardctl.making.shards.makers import BatchMaker, FunctionMaker, Maker, ModelMaker, RecordMaker
from shardctl.making.shards.marker import MARKER_SCHEMA, ShardMarker
from shardctl.making.shards.planned import BuildAgain, PlannedUnit
from shardctl.making.shards.record_images import TableImages
from shardctl.making.shards.records import read_fitting, read_unit
from shardctl.making.shards.rows import RejectedRecord, UnitOutcome, record_of_jpegs
from shardctl.making.shards.shard_build import ShardBuild
from shardctl.sources.annotations.masks import MASK
from shardctl.sources.formats import ColumnMisfit, Misfit, Parsed, Unit
from shardctl.sources.kinds import KINDS
from shardctl.system.processes.worker_state import OUT_OF_MEMORY_MESSAGE
from shardctl.system.text import printable


class RecordUnits:
    """Reads units of files of many records, and has the samples of their records made.

    Rows that were written cannot be taken back. If a record shows that its unit must be read in
    another way, and rows of the unit were written before, the shard must be built again. If none
    were, the unit is read in the other way at once.
    """

    def __init__(self, build: ShardBuild, maker: Maker) -> None:
        self._maker, self._images, self._output = maker, build.images, build.output
        self._job, self._progress, self._hints = build.job, build.progress, build.hints
        self._choice, self._rows = build.choice, build.rows
        self._inputs_before = 0

    def add(self, planned: PlannedUnit, outcome: UnitOutcome) -> None:
        """Add the samples of a unit. Raises BuildAgain, Rejection, MemoryError, TypesDifferError,
        SourceGoneError, InputError."""
        self._inputs_before = self._output.inputs
        if (planned.number, None) in self._hints.lost:
            raise self._hints.lost[planned.number, None]
        try:
            self._choice.of_split(planned)
        except MemoryError:
            raise self._one_by_one(planned) from None
        lost = self._hints.lost_records(planned.number)
        self._output.begin([record for record in lost if self._choice.has(planned, record)])
        self._maker.begin(planned)
        if self._images is not None:
            self._images.begin()
        self._add_as_hinted(planned, outcome)
        self._maker.flush()
        self._tell_rejects(planned, outcome, [], None)
        if self._images is not None:
            self._add_image_digest(planned, outcome, self._images)
        if self._output.pruned and not outcome.samples:
            outcome.digest = None  # it would stand for what was taken out

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

    def _add_as_hinted(self, planned: PlannedUnit, outcome: UnitOutcome) -> None:
        """Add the records of a unit in the way that is known to be needed."""
        if planned.number in self._hints.careful:
            self._add_each(planned, outcome)
            return
        try:
            if planned.number in self._hints.unfit:
                self._add_fitting(planned, outcome)
            else:
                self._add_part(planned, planned.unit, outcome)
        except MemoryError:
            if self._rows.is_writing(planned.number) or planned.unit.records == 1:
                raise
            raise self._one_by_one(planned) from None

    def _add_each(self, planned: PlannedUnit, outcome: UnitOutcome) -> None:
        """Add a unit's samples, reading its records one by one, so that what goes wrong costs one
        of them."""
        digest = self._digest_of(planned)
        unit = planned.unit
        for place in range(unit.records):
            record = unit.first + place
            self._progress.begin(planned.number, record)
            alone = unit._replace(skip=unit.skip + place, first=record, records=1)
            try:
                self._add_part(planned, alone, outcome)
            except MemoryError:
                if self._rows.is_writing(planned.number):
                    raise
                rejection = Rejection(self._progress.stage, "out-of-memory", OUT_OF_MEMORY_MESSAGE)
                self._tell_rejects(planned, outcome, [(record, rejection)], record)
        outcome.digest = digest

    def _add_part(self, planned: PlannedUnit, part: Unit, outcome: UnitOutcome) -> None:
        """Add the samples of a unit, or of a part of it, as they are read."""
        digest, choose = xxhash.xxh3_64(), self._choice.to_read(planned)
        try:
            for parsed in read_unit(self._job, planned, part, choose, digest):
                self._add_parsed(planned, parsed, outcome)
            outcome.digest = digest.intdigest()
            if part == planned.unit and self._images is None:  # and not one record of it
                check_digest(self._job, planned, outcome.digest)
        except Misfit as misfit:
            self._take_misfit(planned, part, outcome, misfit)
        except Rejection as rejection:
            self._lose(planned, rejection)

    def _add_fitting(self, planned: PlannedUnit, outcome: UnitOutcome) -> None:
        """Add the samples of the records of a unit that fit the types that were given, and reject
        the others.

        Fewer and fewer are read together until one alone does not fit: one by one, each of them
        would cost a whole unit.
        """
        digest, choose = self._digest_of(planned), self._choice.to_read(planned)

        def misfit(record: int, problem: Misfit) -> None:
            self._tell_rejects(planned, outcome, [(record, _other_type(problem))], record)

        try:
            for parsed in read_fitting(self._job, planned, choose, misfit):
                self._add_parsed(planned, parsed, outcome)
        except Rejection as rejection:
            self._lose(planned, rejection)
        outcome.digest = digest

    def _add_parsed(self, planned: PlannedUnit, parsed: Parsed, outcome: UnitOutcome) -> None:
        """Add the samples of some records of a unit."""
        rejects = [*parsed.rejects, *self._maker.add_records(planned, parsed, outcome)]
        seen = [*parsed.numbers[-1:].tolist(), *(record for record, _ in rejects)]
        self._tell_rejects(planned, outcome, rejects, max(seen, default=0))

    def _tell_rejects(
        self,
        planned: PlannedUnit,
        outcome: UnitOutcome,
        rejects: Sequence[RejectedRecord],
        last: int | None,
    ) -> None:
        self._output.tell(planned, outcome, rejects, last, self._maker.waiting)

    def _take_misfit(
        self, planned: PlannedUnit, part: Unit, outcome: UnitOutcome, misfit: Misfit
    ) -> None:
        """Do what must be done where a value does not fit the types of the fields. Raises
        BuildAgain, Rejection, TypesDifferError."""
        if self._job.recipe.typed_fields is None:
            if self._job.recorded:  # its types were found in all records
                raise self._without(planned, changed(self._job, planned))
            raise TypesDifferError(f"{printable(planned.key())}: {misfit}") from misfit
        if isinstance(misfit, ColumnMisfit):
            self._lose(planned, _other_type(misfit))
        elif part.records == 1 and part != planned.unit:
            self._tell_rejects(planned, outcome, [(part.first, _other_type(misfit))], part.first)
        elif self._has_begun():
            hints = replace(self._hints, unfit=self._hints.unfit | {planned.number})
            raise BuildAgain(hints, f"{planned.key()}: records of the unit do not fit ({misfit})")
        else:
            self._add_fitting(planned, outcome)

    def _has_begun(self) -> bool:
        """Return whether a record of the unit has been counted, as a sample, a reject, or one that
        still waits."""
        return self._output.inputs > self._inputs_before or self._maker.waiting is not None

    def _lose(self, planned: PlannedUnit, rejection: Rejection) -> NoReturn:
        """Have a unit rejected as a whole. Raises Rejection, or BuildAgain where a record of it has
        been counted: none must count twice."""
        raise self._without(planned, rejection) if self._has_begun() else rejection

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
    ) -> None:
        """Have the digest of a unit cover the image files that its records name. Raises
        Rejection."""
        assert outcome.digest is not None, "all records were read"
        outcome.digest = images.unit_digest(outcome.digest)
        try:
            check_digest(self._job, planned, outcome.digest)
        except Rejection as rejection:
            self._lose(planned, images.missing or rejection)

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


class ShardBuilder:
    """Makes the samples of units, and writes them into one shard."""

    def __init__(self, build: ShardBuild) -> None:
        self._build, self._output, self._progress = build, build.output, build.progress
        self.maker = _maker_of(build)
        self.records = RecordUnits(build, self.maker)

    def add(self, planned: PlannedUnit) -> None:
        """Add the samples of a unit.

        Raises BuildAgain, TypesDifferError, SourceGoneError, InputError, and MemoryError where no
        record is to blame.
        """
        self.maker.begin_unit(planned.number)
        outcome = UnitOutcome(self._build.rows.first_row)
        self._output.outcomes.append(outcome)
        self._progress.begin(planned.number)
        try:
            if self._build.job.fields is None:
                self._add_file(planned, outcome)
            else:
                self.records.add(planned, outcome)
        except BuildAgain:
            self._progress.leave()
            raise
        except Rejection as rejection:
            self._reject_unit(planned, outcome, rejection)
        except MemoryError:
            if self._build.rows.is_writing(planned.number):
                raise
            self._reject_unit(
                planned,
                outcome,
                Rejection(self._progress.stage, "out-of-memory", OUT_OF_MEMORY_MESSAGE),
            )
        self._progress.leave()

    def _add_file(self, planned: PlannedUnit, outcome: UnitOutcome) -> None:
        """Add the samples of a file that is one record. Raises Rejection, MemoryError,
        SourceGoneError, InputError."""
        job, lost = self._build.job, self._build.hints.lost.get((planned.number, None))
        if lost is not None and lost.stage in ("plan", "read", "prune"):
            raise lost
        data = read_whole(job, planned)
        mask = read_mask(job, planned)
        outcome.digest = digest_of(data) if mask is None else digest_with(data, mask)
        check_digest(job, planned, outcome.digest)
        if lost is not None:
            raise lost
        self._progress.enter("decode")
        fields = KINDS[job.recipe.kind].fields(data, planned.file.path, job.recipe.reading)
        self.maker.add_file(fields if mask is None else {**fields, MASK: mask}, planned, outcome)

    def finish(self) -> ShardMarker:
        """Write all samples that still wait, and return what is in the shard: its file has no size
        and no SHA-256 before it is closed. Raises InputError."""
        self.maker.finish()
        build, output, rows = self._build, self._output, self._build.rows
        rows.flush()
        blocks = build.shard.finish()
        return ShardMarker(
            facts=ShardFacts(sum(blocks), 0, build.shard.raw_bytes, "", blocks),
            inputs=output.inputs,
            rejected=output.rejected,
            shapes=tuple(sorted(output.shapes)),
            labels=dict(output.labels),
            objects=rows.objects,
            cut_off=rows.cut_off,
            units=pa.Table.from_pylist(list(map(vars, output.outcomes)), MARKER_SCHEMA),
            jpegs=record_of_jpegs(rows.jpegs) if build.job.keeps_sources else None,
            steps=tuple(self.maker.step_counts),
            first_frames=build.pipeline.first_frames,
        )

    def _reject_unit(
        self, planned: PlannedUnit, outcome: UnitOutcome, rejection: Rejection
    ) -> None:
        """Reject all records of a unit that are of this split."""
        if not self.maker.hold_reject(planned, outcome, rejection):
            first, count = self._build.choice.span(planned)
            if count:
                self._output.reject(planned, outcome, first, rejection, count)


def _maker_of(build: ShardBuild) -> Maker:
    """Return what makes the samples of a shard."""
    job = build.job
    if job.recipe.models:
        return ModelMaker(build)
    if job.fields is None:
        return BatchMaker(build) if job.recipe.batch_transforms else RecordMaker(build)
    if job.recipe.store is not None or job.has_images:
        return RecordMaker(build)
    # nothing but a user's function looks at each record
    return FunctionMaker(build) if job.recipe.sample_transforms else BatchMaker(build)
