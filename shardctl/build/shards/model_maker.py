"""Samples of records that wait until those are there that models are called with together."""

from __future__ import annotations

from dataclasses import field

import numpy as np
import numpy.typing as npt

from shardctl.build.shards.planned import PlannedUnit
from shardctl.build.shards.record_choice import RecordChoice
from shardctl.build.shards.record_images import TableImages
from shardctl.build.shards.record_maker import RecordMaker
from shardctl.build.shards.records import sample_of
from shardctl.build.shards.reject_writer import RejectWriter
from shardctl.build.shards.sample_writer import SampleWriter
from shardctl.build.shards.shard_build import ShardBuild
from shardctl.build.shards.shard_totals import UnitOutcome
from shardctl.errors import Rejection
from shardctl.format.sample import Sample
from shardctl.system.dataclass import dataclass
from shardctl.system.processes.progress_slot import TOGETHER, WHOLE
from shardctl.transforms.pipeline.made_sample import MadeSample
from shardctl.transforms.pipeline.model_batching import ModelBatcher
from shardctl.transforms.pipeline.samples import SamplePipeline


@dataclass
class _WaitingRecord:
    """A record that waits for others: `number` among these, or why it is rejected already.

    `record` is its number in its file, None if it is the file. `read` are digests of image files (TableImages.read).
    """

    planned: PlannedUnit
    outcome: UnitOutcome
    record: int | None
    number: int = -1
    rejection: Rejection | None = None
    read: list[int] = field(default_factory=list)


class ModelMaker(RecordMaker):
    """Makes the samples of the records of a slot together.

    A slot is as many neighbouring records as the models need: of the shard, or of a unit of many records. Records that are
    rejected count too, so that a slot has the same records whatever becomes of them.
    """

    def __init__(
        self,
        build: ShardBuild,
        pipeline: SamplePipeline,
        images: TableImages | None,
        writer: SampleWriter,
        rejects: RejectWriter,
        choice: RecordChoice,
    ) -> None:
        super().__init__(build, pipeline, images, writer)
        self._rejects, self._choice = rejects, choice
        self._slot_records = build.job.recipe.records_together
        self._together = ModelBatcher(pipeline, self)
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
        self._ranks = self._choice.ranks(planned)

    def begin_unit(self, number: int) -> None:
        """Finish the slot before, if this unit is not of the same one. Raises InputError."""
        if self._waiting and number not in self.slot_of(self._waiting[0].planned.number):
            self.flush()

    def slot_of(self, unit: int) -> range:
        """Return the units that this one must be made with: those of its slot, where units are records."""
        if self._build.job.fields is not None:
            return range(unit, unit + 1)
        first = unit - (unit - self._build.place.first_unit) % self._slot_records
        return range(first, first + self._slot_records)

    def hold_reject(self, planned: PlannedUnit, outcome: UnitOutcome, rejection: Rejection) -> None:
        """Take a file that is one record and is rejected, to be told of in its turn."""
        self._waiting.append(_WaitingRecord(planned, outcome, None, rejection=rejection.bare()))

    def _add(self, fields: Sample, planned: PlannedUnit, outcome: UnitOutcome, record: int | None) -> None:
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
        """Return the slot of a record in its unit: they are counted as they are planned, whatever becomes of them."""
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
                each.outcome.first_row = self._writer.rows.first_row
            if isinstance(found, Rejection):
                if each.record is None:
                    self._rejects.reject(each.planned, each.outcome, each.planned.unit.first, found)
                else:
                    self._rejects.hold(each.record, found)
                continue
            progress.begin(each.planned.number, WHOLE if each.record is None else each.record, "encode")
            self._write(found, each.outcome, each.read)
        progress.leave()

    def on(self, record: int, stage: str) -> None:
        """Note that work on a record which waits begins, or reaches a stage."""
        each = self._by_number[record]
        self._build.progress.begin(each.planned.number, WHOLE if each.record is None else each.record, stage)

    def on_all(self) -> None:
        """Note that a model is called with several of the records that wait."""
        self._calls += 1
        self._build.progress.begin(self._waiting[0].planned.number, TOGETHER - self._calls, "transform")
