"""Samples made of batches of records: text and tables, with no Python object per record."""

from __future__ import annotations

from shardctl.build.shards.maker import Maker
from shardctl.build.shards.planned import PlannedUnit
from shardctl.build.shards.reject_writer import RejectedRecord
from shardctl.build.shards.retry_hints import BuildAgain
from shardctl.build.shards.sample_writer import SampleWriter
from shardctl.build.shards.shard_build import ShardBuild
from shardctl.build.shards.shard_totals import UnitOutcome
from shardctl.errors import Rejection
from shardctl.format.sample import Sample
from shardctl.format.step_counts import Counts
from shardctl.sources.formats import Parsed
from shardctl.system.processes.death import OUT_OF_MEMORY_MESSAGE
from shardctl.transforms.pipeline.batches import BatchPipeline, keyed, lay_out, records_of_file
from shardctl.transforms.records import HeldMemoryError, Records


class BatchMaker(Maker):
    """Makes samples by the batch transforms of a recipe; where there are none, records become samples as they are."""

    def __init__(self, build: ShardBuild, writer: SampleWriter) -> None:
        self._build, self._writer = build, writer
        job = build.job
        self._pipeline = BatchPipeline(job.recipe.batch_transforms, job.folder, job.layout.roles.by_name)

    @property
    def step_counts(self) -> list[Counts]:
        """What became of the records in each of the batch transforms."""
        return self._pipeline.counts()

    def add_file(self, fields: Sample, planned: PlannedUnit, outcome: UnitOutcome) -> BuildAgain | None:
        """Make the samples of a file that is one record. Raises Rejection."""
        self._build.progress.enter("transform")
        found = self._add(planned, records_of_file(planned.file_number, planned.key(), fields), outcome)
        if isinstance(found, BuildAgain):
            return found
        for _, rejection in found:
            raise rejection
        return None

    def add_records(self, planned: PlannedUnit, parsed: Parsed, outcome: UnitOutcome) -> list[RejectedRecord] | BuildAgain:
        """Make the samples of some records of a unit, and return those that are rejected."""
        if not parsed.batch.num_rows:
            return []
        batch = keyed(parsed.batch, planned.file.path, parsed.numbers)
        return self._add(planned, Records(planned.file_number, parsed.numbers, batch), outcome)

    def _add(self, planned: PlannedUnit, records: Records, outcome: UnitOutcome) -> list[RejectedRecord] | BuildAgain:
        file, job = planned.file, self._build.job
        rejects: list[RejectedRecord] = []
        try:
            for made in self._pipeline.apply(records, lambda record, rejection: rejects.append((record, rejection))):
                self._writer.add_batch(lay_out(made.batch, job.layout, file.label, file.columns), outcome)
        except HeldMemoryError:
            self._build.progress.leave()  # no record is to blame
            raise
        except MemoryError:
            if not job.recipe.joins or len(records.numbers) > 1 or self._writer.rows.is_writing(planned.number):
                raise
            # It may have taken others along, which were held in a step.
            rejection = Rejection("transform", "out-of-memory", OUT_OF_MEMORY_MESSAGE)
            place = (planned.number, int(records.numbers[0]) or None)
            hints = self._build.hints.with_lost({place: rejection})
            return BuildAgain(hints, f"{planned.key(place[1])}: memory ran out in a step that holds other records")
        self._writer.totals.inputs += len(records.numbers) - len(rejects)
        return rejects

    def finish(self) -> None:
        """Add what the steps still hold, at the end of the shard."""
        for held in self._pipeline.finish():
            self._writer.add_batch(lay_out(held.batch, self._build.job.layout), self._writer.totals.outcomes[-1])
