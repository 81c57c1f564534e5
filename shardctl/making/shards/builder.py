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
from shardctl.making.shards.makers import BatchMaker, FunctionMaker, Maker, ModelMaker
from shardctl.making.shards.marker import MARKER_SCHEMA, ShardMarker
from shardctl.making.shards.planned import BuildAgain, PlannedUnit
from shardctl.making.shards.records import read_fitting, read_unit
from shardctl.making.shards.rows import RejectedRecord, ShardBuild, record_of_jpegs
from shardctl.sources.annotations.masks import MASK
from shardctl.sources.formats import ColumnMisfit, Misfit, Parsed, Unit
from shardctl.sources.kinds import KINDS
from shardctl.system.processes.worker_state import OUT_OF_MEMORY_MESSAGE
from shardctl.system.text import printable


class ShardBuilder:
    """Makes the samples of units, and writes them into one shard.

    Rows that were written cannot be taken back. If a record of a unit of many shows that it must be
    read in another way, and rows of the unit were written before, the shard must be built again. If
    none were, the unit is read in the other way at once.
    """

    def __init__(self, build: ShardBuild) -> None:
        self._build, self._job, self._images = build, build.job, build.images
        self._progress, self._hints = build.progress, build.hints
        self.maker = _maker_of(build)
        self._inputs_before = 0

    def add(self, planned: PlannedUnit) -> None:
        """Add the samples of a unit.

        Raises BuildAgain, TypesDifferError, SourceGoneError, InputError, and MemoryError where no
        record is to blame.
        """
        self.maker.begin_unit(planned.number)
        self._build.begin(planned)
        rejection = None
        try:
            if self._job.fields is None:
                self._add_file(planned)
            else:
                self._add_records(planned)
        except BuildAgain:
            self._progress.leave()
            raise
        except Rejection as problem:
            rejection = problem
        except MemoryError:
            if self._build.rows.is_writing(planned.number):
                raise
            rejection = self._out_of_memory()
        if rejection is not None and not self.maker.hold_reject(rejection):
            first, count = self._build.choice.span(planned)
            if count:  # of this split
                self._build.reject(first, rejection, count)
        self._progress.leave()

    def _out_of_memory(self) -> Rejection:
        return Rejection(self._progress.stage, "out-of-memory", OUT_OF_MEMORY_MESSAGE)

    def _add_file(self, planned: PlannedUnit) -> None:
        """Add the samples of a file that is one record. Raises Rejection, MemoryError,
        SourceGoneError, InputError."""
        job, lost = self._job, self._hints.lost.get((planned.number, None))
        if lost is not None and lost.stage in ("plan", "read", "prune"):
            raise lost
        data = read_whole(job, planned)
        mask = read_mask(job, planned)
        digest = digest_of(data) if mask is None else digest_with(data, mask)
        self._build.outcome.digest = digest
        check_digest(job, planned, digest)
        if lost is not None:
            raise lost
        self._progress.enter("decode")
        fields = KINDS[job.recipe.kind].fields(data, planned.file.path, job.recipe.reading)
        self.maker.add_file(fields if mask is None else {**fields, MASK: mask})

    def _add_records(self, planned: PlannedUnit) -> None:
        """Add the samples of a unit of many records. Raises BuildAgain, Rejection, MemoryError,
        TypesDifferError, SourceGoneError, InputError."""
        build, hints, images = self._build, self._hints, self._images
        self._inputs_before = build.inputs
        if (planned.number, None) in hints.lost:
            raise hints.lost[planned.number, None]
        one_by_one = BuildAgain(
            hints.with_careful(planned.number),
            f"{planned.key()}: memory ran out for a record of the unit",
        )
        try:
            build.choice.of_split(planned)
        except MemoryError:
            raise one_by_one from None
        lost = hints.lost_records(planned.number)
        build.begin_records([record for record in lost if build.choice.has(planned, record)])
        self.maker.begin_records()
        if images is not None:
            images.begin()
        if planned.number in hints.careful:
            self._add_each(planned)
        else:
            try:
                if planned.number in hints.unfit:
                    self._add_fitting(planned)
                else:
                    self._add_part(planned, planned.unit)
            except MemoryError:
                if build.rows.is_writing(planned.number) or planned.unit.records == 1:
                    raise
                raise one_by_one from None
        self.maker.flush()
        self._tell([], None)
        if images is not None:  # the digest covers the image files that the records name
            assert build.outcome.digest is not None, "all records were read"
            build.outcome.digest = images.unit_digest(build.outcome.digest)
            try:
                check_digest(self._job, planned, build.outcome.digest)
            except Rejection as rejection:
                self._lose(planned, images.missing or rejection)
        if build.pruned and not build.outcome.samples:
            build.outcome.digest = None  # it would stand for what was taken out

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

    def _add_each(self, planned: PlannedUnit) -> None:
        """Add a unit's samples, reading its records one by one, so that what goes wrong costs one
        of them."""
        digest, unit = self._digest_of(planned), planned.unit
        for place in range(unit.records):
            record = unit.first + place
            self._progress.begin(planned.number, record)
            try:
                self._add_part(
                    planned, unit._replace(skip=unit.skip + place, first=record, records=1)
                )
            except MemoryError:
                if self._build.rows.is_writing(planned.number):
                    raise
                self._tell([(record, self._out_of_memory())], record)
        self._build.outcome.digest = digest

    def _add_part(self, planned: PlannedUnit, part: Unit) -> None:
        """Add the samples of a unit, or of a part of it, as they are read."""
        digest, choose = xxhash.xxh3_64(), self._build.choice.to_read(planned)
        try:
            for parsed in read_unit(self._job, planned, part, choose, digest):
                self._add_parsed(parsed)
            self._build.outcome.digest = digest.intdigest()
            if part == planned.unit and self._images is None:  # and not one record of it
                check_digest(self._job, planned, digest.intdigest())
        except Misfit as misfit:
            self._take_misfit(planned, part, misfit)
        except Rejection as rejection:
            self._lose(planned, rejection)

    def _add_fitting(self, planned: PlannedUnit) -> None:
        """Add the samples of the records of a unit that fit the types that were given, and reject
        the others.

        Fewer and fewer are read together until one alone does not fit: one by one, each of them
        would cost a whole unit.
        """
        digest, choose = self._digest_of(planned), self._build.choice.to_read(planned)
        try:
            for parsed in read_fitting(
                self._job,
                planned,
                choose,
                lambda record, misfit: self._tell([(record, _other_type(misfit))], record),
            ):
                self._add_parsed(parsed)
        except Rejection as rejection:
            self._lose(planned, rejection)
        self._build.outcome.digest = digest

    def _add_parsed(self, parsed: Parsed) -> None:
        """Add the samples of some records of the unit."""
        rejects = [*parsed.rejects, *self.maker.add_records(parsed)]
        seen = [*parsed.numbers[-1:].tolist(), *(record for record, _ in rejects)]
        self._tell(rejects, max(seen, default=0))

    def _tell(self, rejects: Sequence[RejectedRecord], last: int | None) -> None:
        self._build.tell(rejects, last, self.maker.waiting)

    def _take_misfit(self, planned: PlannedUnit, part: Unit, misfit: Misfit) -> None:
        """Do what must be done where a value does not fit the types of the fields. Raises
        BuildAgain, Rejection, TypesDifferError."""
        if self._job.recipe.typed_fields is None:
            if self._job.recorded:  # its types were found in all records
                raise self._without(planned, changed(self._job, planned))
            raise TypesDifferError(f"{printable(planned.key())}: {misfit}") from misfit
        if isinstance(misfit, ColumnMisfit):
            self._lose(planned, _other_type(misfit))
        elif part.records == 1 and part != planned.unit:
            self._tell([(part.first, _other_type(misfit))], part.first)
        elif self._has_begun():
            hints = replace(self._hints, unfit=self._hints.unfit | {planned.number})
            raise BuildAgain(hints, f"{planned.key()}: records of the unit do not fit ({misfit})")
        else:
            self._add_fitting(planned)

    def _has_begun(self) -> bool:
        """Return whether a record of the unit has been counted, as a sample, a reject, or one that
        still waits."""
        return self._build.inputs > self._inputs_before or self.maker.waiting is not None

    def _lose(self, planned: PlannedUnit, rejection: Rejection) -> NoReturn:
        """Have a unit rejected as a whole. Raises Rejection, or BuildAgain where a record of it has
        been counted: none must count twice."""
        raise self._without(planned, rejection) if self._has_begun() else rejection

    def _without(self, planned: PlannedUnit, rejection: Rejection) -> BuildAgain:
        hints = self._hints.with_lost({(planned.number, None): rejection.bare()})
        return BuildAgain(hints, f"{planned.key()}: the unit was not read to its end ({rejection})")

    def _digest_of(self, planned: PlannedUnit) -> int:
        """Return the digest of a unit, of which no record is parsed. Raises Rejection."""
        digest, none = xxhash.xxh3_64(), lambda numbers: np.zeros(len(numbers), bool)
        try:
            for _ in read_unit(self._job, planned, planned.unit, none, digest):
                pass
        except Misfit as misfit:  # whatever the record
            raise _other_type(misfit) from misfit
        # else the digest that is known covers the images too, and is compared at the end
        if self._images is None:
            check_digest(self._job, planned, digest.intdigest())
        return digest.intdigest()

    def finish(self) -> ShardMarker:
        """Write all samples that still wait, and return what is in the shard: its file has no size
        and no SHA-256 before it is closed. Raises InputError."""
        self.maker.finish()
        build, rows = self._build, self._build.rows
        rows.flush()
        blocks = build.shard.finish()
        return ShardMarker(
            facts=ShardFacts(sum(blocks), 0, build.shard.raw_bytes, "", blocks),
            inputs=build.inputs,
            rejected=build.rejected,
            shapes=tuple(sorted(build.shapes)),
            labels=dict(build.labels),
            objects=rows.objects,
            cut_off=rows.cut_off,
            units=pa.Table.from_pylist(list(map(vars, build.outcomes)), MARKER_SCHEMA),
            jpegs=record_of_jpegs(rows.jpegs) if build.job.keeps_sources else None,
            steps=tuple(self.maker.step_counts),
            first_frames=build.pipeline.first_frames,
        )


def _other_type(misfit: Misfit) -> Rejection:
    return Rejection(
        "decode", "other-type", f"{misfit}; --schema says otherwise, change it or the record"
    )


def _maker_of(build: ShardBuild) -> Maker:
    """Return what makes the samples of a shard."""
    job = build.job
    if job.recipe.models:
        return ModelMaker(build)
    if job.fields is None:
        return BatchMaker(build) if job.recipe.batch_transforms else Maker(build)
    if job.recipe.store is not None or job.has_images:
        return Maker(build)
    # nothing but a user's function looks at each record
    return FunctionMaker(build) if job.recipe.sample_transforms else BatchMaker(build)
