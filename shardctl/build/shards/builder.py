"""Makes the samples of units and writes them into a shard, and tells what became of each unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from shardctl.build.shards.inputs import changed, check_digest, digest_of, read_whole
from shardctl.build.shards.job import Job, Planned, ShardPlace
from shardctl.build.shards.mask_files import digest_with, read_mask
from shardctl.build.shards.previous_samples import Reused, Stretch, jpegs_of_images, shapes_of_images
from shardctl.build.shards.record_images import TableImages
from shardctl.build.shards.records import FITTED_RECORDS, choice_of, origin_of, read_unit
from shardctl.build.shards.retry_hints import Instructions
from shardctl.build.shards.rows import Rows, ShuffledRows
from shardctl.errors import DatasetError, Rejection, TypesDifferError
from shardctl.format.exact_values import python_rows
from shardctl.format.jpeg_record import JpegRecord
from shardctl.format.layout import Layout
from shardctl.format.sample import Sample
from shardctl.format.shard import ShardWriter, shard_schema
from shardctl.format.shard_copy import objects_of
from shardctl.format.step_counts import Counts
from shardctl.format.tables import Reject
from shardctl.images.codecs.jpeg import JpegFacts
from shardctl.sources.annotations.masks import MASK
from shardctl.sources.formats import Choose, ColumnMisfit, Misfit, Parsed, Unit
from shardctl.sources.kinds import KINDS
from shardctl.system.files import HashingFile
from shardctl.system.processes.progress_slot import KEYS, NOWHERE, TOGETHER, WHOLE, Breadcrumb
from shardctl.system.text import printable
from shardctl.transforms.pipeline.batches import BatchPipeline, keyed, lay_out, records_of_file
from shardctl.transforms.pipeline.model_batching import OUT_OF_MEMORY_MESSAGE, ModelBatcher
from shardctl.transforms.pipeline.samples import EncodedRow, SamplePipeline, Shape
from shardctl.transforms.records import HeldMemoryError, Records


@dataclass
class UnitOutcome:
    """What became of a unit: its samples are among the rows of the shard from `first_row` on."""

    first_row: int
    samples: int = 0
    rejected: int = 0
    digest: int | None = None


class LostUnitError(Exception):
    """A unit could not be read to its end after rows of it were written, or a `record` of it left a step half done that holds
    others: the shard must be built again without it."""

    def __init__(self, unit: int, rejection: Rejection, record: int | None = None) -> None:
        super().__init__(str(rejection))
        self.unit, self.rejection, self.record = unit, rejection, record


class UnfitUnitError(Exception):
    """A record of a unit does not fit the types that were given, after rows of it were written: the shard must be built again,
    and the unit read in parts."""

    def __init__(self, unit: int) -> None:
        super().__init__(f"unit {unit}")
        self.unit = unit


class CarefulUnitError(Exception):
    """Memory ran out for some record of a unit after rows of it were written: the shard must be built again, and the records
    of the unit read one by one."""

    def __init__(self, unit: int) -> None:
        super().__init__(f"unit {unit}")
        self.unit = unit


class DamagedShardError(Exception):
    """A shard of the dataset before, whose samples are taken as they are, is damaged: the shard must be built again, from the
    sources alone."""


@dataclass
class _Held:
    """A record that waits for the others that models are called with: `number` among these, or why it is rejected already.

    `record` is its number in its file, None if it is the file. `read` are digests of image files (TableImages.read).
    """

    planned: Planned
    outcome: UnitOutcome
    record: int | None
    number: int = -1
    rejection: Rejection | None = None
    read: list[int] = field(default_factory=list)


class _CallCrumbs:
    """Records each call of a function on a record of one place, or of a model on several."""

    def __init__(self, crumb: Breadcrumb) -> None:
        self._crumb = crumb

    def one(self, record: int) -> None:
        self._crumb.enter_call(record)

    def many(self, records: list[int]) -> None:
        self._crumb.enter_call(records[0] if len(records) == 1 else TOGETHER)


class ShardBuilder:
    """Makes the samples of units, and writes them into one shard. What becomes of each unit is in `outcomes`.

    Where the recipe has models, records wait until those are there that belong into the same calls: `_slot_records` places of
    the shard that follow each other, or of a unit of many records, whether they became samples or not.
    """

    def __init__(
        self,
        job: Job,
        place: ShardPlace,
        sink: HashingFile | pa.NativeFile,
        reject: Callable[[Reject], None],
        crumb: Breadcrumb,
        known: Instructions,
    ) -> None:
        self._job, self._split, self._write_reject, self._crumb, self._known = job, place.split, reject, crumb, known
        schema = shard_schema(job.layout, place.split_name, place.number)
        self._writer = ShardWriter(sink, schema, job.recipe.compression, place.blocks)
        mixed = job.fields is not None and job.shuffle is not None
        self._kind = KINDS[job.recipe.kind]
        self._pipeline = SamplePipeline(job.recipe, job.layout, crumb.enter, of_records=job.annotation_rules)
        settle = self._pipeline.settle
        self._rows = ShuffledRows(self._writer, settle, job.shuffle or 0, place.name) if mixed else Rows(self._writer, settle)
        self._images = TableImages(job, crumb) if job.has_images else None
        self._batches = BatchPipeline(job.recipe.batch_transforms, job.folder, job.layout.roles.by_name)
        self._by_sample = bool(job.recipe.sample_transforms) or job.recipe.store is not None or self._images is not None
        self._lost_ahead: list[int] = []
        self._first_unit = place.first_unit
        self._slot_records = job.recipe.records_together
        self._together = ModelBatcher[EncodedRow](self._pipeline, self._pipeline.laid_out, self) if job.recipe.models else None
        self._held: list[_Held] = []
        self._by_number: dict[int, _Held] = {}
        self._slot = self._calls = 0
        self._ranks: npt.NDArray[np.int64] | None = None
        self._late_rejects: list[tuple[int, Rejection]] = []
        self._chosen: tuple[int, Choose | None] = (NOWHERE, None)
        self.outcomes: list[UnitOutcome] = []
        self.shapes: set[Shape] = set()
        self.labels: Counter[int] = Counter()
        self.inputs = self._inputs_before = 0
        self.samples = self.rejected = 0

    @property
    def objects(self) -> int:
        """How many objects are marked in the samples that were written."""
        return self._rows.objects

    @property
    def cut_off(self) -> int:
        """How many objects of these samples were cut off."""
        return self._rows.cut_off

    @property
    def raw_bytes(self) -> int:
        """The bytes of all blocks before compression."""
        return self._writer.raw_bytes

    @property
    def step_counts(self) -> list[Counts]:
        """What became of its records in each of the batch transforms."""
        return self._batches.counts()

    @property
    def jpegs(self) -> JpegRecord | None:
        """What its images are as JPEG; None where their original bytes are not kept."""
        return jpegs_of(self._rows.jpegs) if self._job.keeps_sources else None

    def finish(self) -> tuple[int, ...]:
        """Write what is held, and return the number of rows of every block. Raises InputError."""
        self.finish_held()
        for held in self._batches.finish():
            self._add_batch(lay_out(held.batch, self._job.layout), self.outcomes[-1])
        self._rows.flush(self._crumb)
        return self._writer.finish()

    def add(self, planned: Planned) -> UnitOutcome:
        """Add the samples of a unit.

        Raises LostUnitError, CarefulUnitError, UnfitUnitError, TypesDifferError, SourceGoneError, InputError.
        """
        if self._held and planned.number not in self.slot_of(self._held[0].planned.number):
            self.finish_held()
        outcome = UnitOutcome(self._rows.first_row)
        self.outcomes.append(outcome)
        self._inputs_before = self.inputs
        self._crumb.drop(planned.number)
        try:
            (self._add_whole if self._job.fields is None else self._add_records)(planned, outcome)
        except Rejection as rejection:
            self._reject_unit(planned, outcome, rejection)
        except MemoryError:
            if self._is_writing(planned):
                raise
            self._reject_unit(planned, outcome, Rejection(self._crumb.stage, "out-of-memory", OUT_OF_MEMORY_MESSAGE))
        self._crumb.leave()
        return outcome

    def add_made(self, reused: Reused, stretch: Stretch) -> None:
        """Add units that the dataset before has made: of files that are one record each. Raises DamagedShardError."""
        first_rows = self._rows.first_row + np.cumsum(stretch.samples) - stretch.samples
        outcomes = zip(first_rows.tolist(), stretch.samples.tolist(), stretch.digests, strict=True)
        self.outcomes += [UnitOutcome(first_row, samples, digest=digest) for first_row, samples, digest in outcomes]
        self.inputs += len(stretch.samples)
        layout, store = self._job.layout, self._job.recipe.store
        image = layout.roles.main_image if store is not None and store.name != "none" else None
        try:
            for batch in reused.samples(stretch, layout.columns):
                self.samples += batch.num_rows
                self.labels.update(labels_of(batch, layout))
                jpegs = jpegs_of_images(batch, image) if image is not None and self._job.keeps_sources else []
                self._rows.add_made(batch, objects_of(batch, layout), jpegs, self._crumb)
                if image is not None and len(self.shapes) < 2:
                    shapes = shapes_of_images(batch, image) if stretch.shape is None else {stretch.shape}
                    self.shapes |= set(sorted(shapes - self.shapes)[: 2 - len(self.shapes)])
        except DatasetError as error:
            raise DamagedShardError from error

    def read_only(self, planned: Planned) -> None:
        """Read a unit of a file of many records, and make nothing of it. Raises Rejection, SourceGoneError."""
        if (planned.number, None) in self._known.lost:
            raise self._known.lost[planned.number, None]
        self._crumb.drop(planned.number)
        try:
            self._digest_of(planned)
        except MemoryError as error:
            raise Rejection("read", "out-of-memory", OUT_OF_MEMORY_MESSAGE) from error
        finally:
            self._crumb.leave()

    def _add_whole(self, planned: Planned, outcome: UnitOutcome) -> None:
        """Add the samples of a file that is one record."""
        lost = self._known.lost.get((planned.number, None))
        if lost is not None and lost.stage in ("plan", "read", "prune"):
            raise lost
        data = read_whole(self._job, planned)
        mask = read_mask(self._job, planned)
        outcome.digest = digest_of(data) if mask is None else digest_with(data, mask)
        check_digest(self._job, planned, outcome.digest)
        if lost is not None:
            raise lost
        self._crumb.enter("decode")
        fields = self._kind.fields(data, planned.file.path, self._job.recipe.reading)
        if self._batches:
            self._add_batch_of_one(fields, planned, outcome)
            return
        self._add_sample(fields if mask is None else {**fields, MASK: mask}, planned, outcome, None)

    def _add_batch_of_one(self, fields: Sample, planned: Planned, outcome: UnitOutcome) -> None:
        """Add what the batch transforms make of a file that is one record. Raises Rejection."""
        self._crumb.enter("transform")
        records = records_of_file(planned.file_number, planned.key(), fields)
        for _, rejection in self._add_batches(planned, records, outcome):
            raise rejection

    def _add_records(self, planned: Planned, outcome: UnitOutcome) -> None:
        """Add the samples of a unit of a file of many records."""
        if (planned.number, None) in self._known.lost:
            raise self._known.lost[planned.number, None]
        try:
            self._ours(planned)
        except MemoryError:
            raise CarefulUnitError(planned.number) from None
        lost = self._known.lost_records(planned.number)
        self._lost_ahead = [record for record in lost if self._is_ours(planned, record)]
        self._late_rejects = []
        if self._together is not None:
            self._ranks = self._ranks_of(planned)
        if self._images is not None:
            self._images.begin()
        if planned.number in self._known.careful:
            self._add_one_by_one(planned, outcome)
        else:
            try:
                if planned.number in self._known.unfit:
                    self._add_what_fits(planned, outcome)
                else:
                    self._add_stretch(planned, planned.unit, self._choose(planned), outcome)
            except MemoryError:
                if self._is_writing(planned):
                    raise
                if planned.unit.records == 1:
                    raise
                raise CarefulUnitError(planned.number) from None
        self.finish_held()
        self._write_rejects(planned, outcome, [], None)
        if self._images is not None:
            self._add_image_digest(planned, outcome, self._images)

    def _add_image_digest(self, planned: Planned, outcome: UnitOutcome, images: TableImages) -> None:
        """Have the digest of a unit cover the image files that its records name. Raises LostUnitError, Rejection."""
        assert outcome.digest is not None, "all records were read"
        outcome.digest = images.unit_digest(outcome.digest)
        try:
            check_digest(self._job, planned, outcome.digest)
        except Rejection as rejection:
            reason = images.missing or rejection
            self._lose_unit(planned, reason)

    def _is_writing(self, planned: Planned) -> bool:
        """Return whether rows are being written: they can neither be taken back nor be written again.

        Where memory runs out then, the worker ends, and its breadcrumb tells whether a record is to blame.
        """
        return self._rows.settles_alone or self._crumb.place != planned.number or self._crumb.stage == "write"

    def _is_ours(self, planned: Planned, record: int) -> bool:
        ours = self._ours(planned)
        return ours is None or bool(ours(np.array([record]))[0])

    def _add_one_by_one(self, planned: Planned, outcome: UnitOutcome) -> None:
        """Add a unit's samples, reading its records one by one, so that what goes wrong costs one of them."""
        digest = self._digest_of(planned)
        unit = planned.unit
        for place in range(unit.records):
            record = unit.first + place
            self._crumb.drop(planned.number, record)
            alone = unit._replace(skip=unit.skip + place, first=record, records=1)
            try:
                self._add_stretch(planned, alone, self._choose(planned), outcome)
            except MemoryError:
                if self._is_writing(planned):
                    raise
                rejection = Rejection(self._crumb.stage, "out-of-memory", OUT_OF_MEMORY_MESSAGE)
                self._write_rejects(planned, outcome, [(record, rejection)], record)
        outcome.digest = digest

    def _add_stretch(self, planned: Planned, unit: Unit, choose: Choose | None, outcome: UnitOutcome) -> None:
        digest = xxhash.xxh3_64()
        try:
            for parsed in read_unit(self._job, planned, unit, choose, digest):
                self._add_parsed(planned, parsed, outcome)
            outcome.digest = digest.intdigest()
            if unit == planned.unit and self._images is None:  # and not one record of it
                check_digest(self._job, planned, outcome.digest)
        except Misfit as misfit:
            self._take_misfit(planned, unit, outcome, misfit)
        except Rejection as rejection:
            self._lose_unit(planned, rejection)

    def _lose_unit(self, planned: Planned, rejection: Rejection) -> None:
        """Raise what rejects a unit as a whole: records must not count twice."""
        if self._has_begun():
            raise LostUnitError(planned.number, rejection) from rejection
        raise rejection

    def _has_begun(self) -> bool:
        """Return whether a record of the unit has been counted, as a sample, a reject, or one that a step still holds."""
        return self.inputs > self._inputs_before or bool(self._held)

    def _take_misfit(self, planned: Planned, unit: Unit, outcome: UnitOutcome, misfit: Misfit) -> None:
        """Do what must be done where a value does not fit the types of the fields."""
        if self._job.recipe.typed_fields is None:
            if self._job.recorded:  # its types were found in all records
                raise LostUnitError(planned.number, changed(self._job, planned)) from misfit
            raise TypesDifferError(f"{printable(planned.key())}: {misfit}") from misfit
        if isinstance(misfit, ColumnMisfit):
            self._lose_unit(planned, _other_type(misfit))
        if unit.records == 1 and unit != planned.unit:
            self._write_rejects(planned, outcome, [(unit.first, _other_type(misfit))], unit.first)
        elif self._has_begun():
            raise UnfitUnitError(planned.number)
        else:
            self._add_what_fits(planned, outcome)

    def _add_what_fits(self, planned: Planned, outcome: UnitOutcome) -> None:
        """Add the samples of the records of a unit that fit the types that were given, and reject the others.

        Fewer and fewer are read together until one alone does not fit: one by one, each of them would cost a whole unit.
        """
        digest, unit = self._digest_of(planned), planned.unit
        done, together = 0, FITTED_RECORDS
        while done < unit.records:
            count = min(together, unit.records - done)
            part = unit._replace(skip=unit.skip + done, first=unit.first + done, records=count)
            try:
                # All of the part is read before any of it is added, so that it can be read again in smaller ones.
                held = list(read_unit(self._job, planned, part, self._choose(planned), xxhash.xxh3_64()))
            except Misfit as misfit:
                if count > 1:
                    together = count // 2
                    continue
                self._write_rejects(planned, outcome, [(part.first, _other_type(misfit))], part.first)
            except Rejection as rejection:
                self._lose_unit(planned, rejection)
            else:
                for parsed in held:
                    self._add_parsed(planned, parsed, outcome)
            done += count
            together = min(2 * together, FITTED_RECORDS)
        outcome.digest = digest

    def _digest_of(self, planned: Planned) -> int:
        """Return the digest of a unit, of which no record is parsed. Raises Rejection."""
        digest = xxhash.xxh3_64()
        try:
            for _ in read_unit(self._job, planned, planned.unit, lambda numbers: np.zeros(len(numbers), bool), digest):
                pass
        except Misfit as misfit:  # whatever the record
            raise _other_type(misfit) from misfit
        if self._images is None:  # else the digest that is known covers the images too: _add_image_digest compares it
            check_digest(self._job, planned, digest.intdigest())
        return digest.intdigest()

    def _add_parsed(self, planned: Planned, parsed: Parsed, outcome: UnitOutcome) -> None:
        """Add the samples of some records of a unit."""
        rejects = list(parsed.rejects)
        batch, file = parsed.batch, planned.file
        if self._by_sample:
            together = self._job.recipe.store is None and self._images is None and self._together is None
            rejects += (self._add_together if together else self._add_each)(planned, parsed, outcome)
        elif batch.num_rows:
            rejects += self._add_batches(
                planned, Records(planned.file_number, parsed.numbers, keyed(batch, file.path, parsed.numbers)), outcome
            )
        seen = [*parsed.numbers[-1:].tolist(), *(record for record, _ in rejects)]
        self._write_rejects(planned, outcome, rejects, max(seen, default=0))

    def _add_batches(self, planned: Planned, records: Records, outcome: UnitOutcome) -> list[tuple[int, Rejection]]:
        """Add what the batch transforms make of records, and return those that are rejected, each with its number."""
        file, layout = planned.file, self._job.layout
        rejects: list[tuple[int, Rejection]] = []
        try:
            for made in self._batches.apply(records, lambda record, rejection: rejects.append((record, rejection))):
                self._add_batch(lay_out(made.batch, layout, file.label, file.columns), outcome)
        except HeldMemoryError:
            self._crumb.leave()  # no record is to blame
            raise
        except MemoryError as error:
            if not self._job.recipe.joins or len(records.numbers) > 1 or self._is_writing(planned):
                raise
            # It may have taken others along, which were held in a step.
            rejection = Rejection("transform", "out-of-memory", OUT_OF_MEMORY_MESSAGE)
            raise LostUnitError(planned.number, rejection, int(records.numbers[0]) or None) from error
        self.inputs += len(records.numbers) - len(rejects)
        return rejects

    def _add_each(self, planned: Planned, parsed: Parsed, outcome: UnitOutcome) -> list[tuple[int, Rejection]]:
        """Add the samples of records one by one, and return those that are rejected, each with its number."""
        rejects: list[tuple[int, Rejection]] = []
        records: Iterable[tuple[int, Sample]] = zip(parsed.numbers.tolist(), self._rows_of(parsed.batch), strict=True)
        for record, fields in records if self._images is None else self._images.along(records, planned):
            self._crumb.drop(planned.number, record)
            try:
                self._add_sample(fields, planned, outcome, record)
            except Rejection as rejection:
                rejects.append((record, rejection))
        self._crumb.drop(planned.number)
        return rejects

    def _add_together(self, planned: Planned, parsed: Parsed, outcome: UnitOutcome) -> list[tuple[int, Rejection]]:
        """Add the samples that functions make of records, and return those that are rejected, each with its number."""
        file, numbers = planned.file, parsed.numbers
        records = keyed(parsed.batch, file.path, numbers)
        keys, batch = records.column(0).to_pylist(), records.select(range(1, records.num_columns))
        calls = _CallCrumbs(self._crumb)
        applied = self._pipeline.finish_records(batch, numbers.tolist(), keys, file.label, file.columns, calls)
        self._crumb.drop(planned.number, int(numbers[0]) if len(numbers) == 1 else WHOLE)
        batch = self._pipeline.lay_out(applied)
        self.inputs += len(numbers) - len(applied.rejects)  # those that gave no sample too
        self._add_batch(batch, outcome)
        return list(applied.rejects.items())

    def _add_batch(self, batch: pa.RecordBatch, outcome: UnitOutcome) -> None:
        place, record = self._crumb.place, self._crumb.record
        self._rows.add_batch(batch, self._crumb)
        if place != NOWHERE:
            self._crumb.drop(place, record)
        self.labels.update(labels_of(batch, self._job.layout))
        outcome.samples += batch.num_rows
        self.samples += batch.num_rows

    def _write_rejects(
        self, planned: Planned, outcome: UnitOutcome, rejects: list[tuple[int, Rejection]], last: int | None
    ) -> None:
        """Reject some records, and those up to `last` (None: to the end of the unit) that are lost, in order.

        Where records wait, what comes after the first of them is told later.
        """
        ahead = [record for record in self._lost_ahead if last is None or record <= last]
        self._lost_ahead = self._lost_ahead[len(ahead) :]
        known = [(record, self._known.lost[planned.number, record]) for record in ahead]
        told = sorted([*self._late_rejects, *rejects, *known], key=lambda found: found[0])
        waiting = self._held[0].record if self._held else None
        self._late_rejects = [] if waiting is None else [each for each in told if each[0] > waiting]
        for record, rejection in told[: len(told) - len(self._late_rejects)]:
            self._reject(planned, outcome, record, rejection)

    def _rows_of(self, batch: pa.RecordBatch) -> Iterator[Sample]:
        """Yield the fields of records. Only a user's functions get times; else they stay numbers."""
        if self._job.recipe.sample_transforms:
            yield from python_rows(batch)
            return
        columns = [column.view(pa.int64()) if _is_64_bit_time(column.type) else column for column in batch.columns]
        rows = pa.RecordBatch.from_arrays(columns, batch.schema.names)
        for row in range(rows.num_rows):  # not all at once: each holds a copy of its images
            yield rows.slice(row, 1).to_pylist()[0]

    def _add_sample(self, fields: Sample, planned: Planned, outcome: UnitOutcome, record: int | None) -> None:
        """Add the samples of one record, None: of the file that is one. Raises Rejection."""
        origin = origin_of(planned, record, fields)
        if self._together is not None and record is not None:
            slot = self._slot_of_record(planned, record)
            if slot != self._slot:
                self.finish_held()
                self._slot = slot
                self._crumb.drop(planned.number, record)
        if self._images is not None:
            fields, origin = self._images.take(fields, origin, planned)
        read = [] if self._images is None else self._images.read
        if self._together is not None:
            number = self._together.add(fields, origin)
            self._held.append(_Held(planned, outcome, record, number, read=read))
            return
        self._add_made(self._pipeline.make(fields, origin), outcome, read)

    def _add_made(self, made: list[EncodedRow], outcome: UnitOutcome, read: list[int]) -> None:
        """Add the samples of one record, whose images were in files with these digests."""
        if self._images is not None:
            self._images.became_samples(read)
        self.inputs += 1
        outcome.samples += len(made)
        self.samples += len(made)
        place, record = self._crumb.place, self._crumb.record
        for sample in made:
            self._crumb.drop(place, record, "encode")  # the sample before it has left
            self._rows.add(sample, self._crumb)
            if sample.label is not None:
                self.labels[sample.label] += 1
            if sample.shape and len(self.shapes) < 2:
                self.shapes.add(sample.shape)

    def finish_held(self) -> None:
        """Do the rest to the records that wait, and add their samples. Raises InputError."""
        if self._together is None or not self._held:
            return
        held = self._held
        self._by_number = {each.number: each for each in held if each.rejection is None}
        result = self._together.finish(held[0].planned.number in self._known.careful)
        self._held, self._by_number = [], {}
        for each in held:
            found: list[EncodedRow] | Rejection = each.rejection or result[each.number]
            if each.record is None:
                each.outcome.first_row = self._rows.first_row
            if isinstance(found, Rejection):
                if each.record is None:
                    self._reject(each.planned, each.outcome, each.planned.unit.first, found)
                else:
                    self._late_rejects.append((each.record, found))
                continue
            self._crumb.drop(each.planned.number, WHOLE if each.record is None else each.record, "encode")
            self._add_made(found, each.outcome, each.read)
        self._crumb.leave()

    def slot_of(self, number: int) -> range:
        """Return the units that this one must be made with: those of its slot, where units are records and there are models."""
        if self._together is None or self._job.fields is not None:
            return range(number, number + 1)
        first = number - (number - self._first_unit) % self._slot_records
        return range(first, first + self._slot_records)

    def _slot_of_record(self, planned: Planned, record: int) -> int:
        """Return the slot of a record in its unit: they are counted as they are planned, whatever becomes of them."""
        place = record - planned.unit.first
        return int(place if self._ranks is None else self._ranks[place]) // self._slot_records

    def _ranks_of(self, planned: Planned) -> npt.NDArray[np.int64] | None:
        """Return the places of a unit's records among those of the same split, (records,); None if all are of this one."""
        ours, unit = self._ours(planned), planned.unit
        return None if ours is None else np.cumsum(ours(np.arange(unit.first, unit.first + unit.records))) - 1

    def on(self, record: int, stage: str) -> None:
        """Record that work on a record which waits begins, or reaches a stage."""
        held = self._by_number[record]
        self._crumb.drop(held.planned.number, WHOLE if held.record is None else held.record, stage)

    def on_all(self) -> None:
        """Record that a model is called with several of the records that wait."""
        self._calls += 1
        self._crumb.drop(self._held[0].planned.number, TOGETHER - self._calls, "transform")

    def _choose(self, planned: Planned) -> Choose | None:
        """Return what tells which records of a unit are read: those of this split, but for those that end a worker."""
        return self._known.without_lost(planned.number, self._ours(planned))

    def _ours(self, planned: Planned) -> Choose | None:
        """Return what tells which records of a unit are of this split; None: all of them. Keys are read once for it."""
        if self._chosen[0] != planned.number:
            self._chosen = planned.number, choice_of(self._job, planned, self._split, self._crumb, self._known)
        return self._chosen[1]

    def _reject_unit(self, planned: Planned, outcome: UnitOutcome, rejection: Rejection) -> None:
        """Reject all records of a unit that are of this split."""
        if self._together is not None and self._job.fields is None:  # in its turn
            self._held.append(_Held(planned, outcome, None, rejection=rejection.bare()))
            return
        unit, ours = planned.unit, self._ours(planned)
        first, count = unit.first, unit.records
        if ours is not None:
            own = np.flatnonzero(ours(np.arange(unit.first, unit.first + unit.records)))
            first, count = unit.first + int(own[0]) if len(own) else unit.first, len(own)
        if count:
            self._reject(planned, outcome, first, rejection, count)

    def _reject(self, planned: Planned, outcome: UnitOutcome, record: int, rejection: Rejection, records: int = 1) -> None:
        message = rejection.message + of_several(records)
        key = planned.key(record)
        stage = "read" if rejection.stage == KEYS else rejection.stage
        self._write_reject(Reject(planned.file.path, key, stage, rejection.error, message, records))
        outcome.rejected += records
        self.rejected += records
        self.inputs += records


def jpegs_of(jpegs: Sequence[JpegFacts | None]) -> JpegRecord:
    """Return the record of images that follow each other; None is one that is no JPEG."""
    found = [facts for facts in jpegs if facts is not None]
    plain = np.fromiter((facts is not None and facts.plain for facts in jpegs), bool, len(jpegs))
    return JpegRecord(plain, len(found), sum(each.progressive for each in found), sum(each.full_colour for each in found))


def _other_type(misfit: Misfit) -> Rejection:
    return Rejection("decode", "other-type", f"{misfit}; --schema says otherwise, change it or the record")


def of_several(records: int) -> str:
    """Return what is added to the message of a reject that stands for several records."""
    return f" (and {records - 1} records after it)" if records > 1 else ""


def _is_64_bit_time(type_: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type_) or pa.types.is_duration(type_) or pa.types.is_time64(type_))


def labels_of(batch: pa.RecordBatch, layout: Layout) -> dict[int, int]:
    """Count the samples of a batch by class."""
    if layout.classes is None or "label" not in batch.schema.names:
        return {}
    counts = np.bincount(batch.column("label").drop_null().to_numpy(), minlength=0)
    return {int(label): int(counts[label]) for label in np.flatnonzero(counts)}
