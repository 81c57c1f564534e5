"""Samples that a user's functions make of records of text and tables, some of them laid out together."""

from __future__ import annotations

from shardctl.build.shards.planned import PlannedUnit
from shardctl.build.shards.record_maker import RecordMaker
from shardctl.build.shards.records import samples_of
from shardctl.build.shards.reject_writer import RejectedRecord
from shardctl.build.shards.retry_hints import BuildAgain
from shardctl.build.shards.shard_totals import UnitOutcome
from shardctl.format.exact_values import python_rows
from shardctl.sources.formats import Parsed
from shardctl.system.processes.progress_slot import TOGETHER, WHOLE, WorkerProgress
from shardctl.transforms.pipeline.batches import keyed


class FunctionMaker(RecordMaker):
    """Calls functions record by record, and lays their samples out a column at a time. The records have no images."""

    def add_records(self, planned: PlannedUnit, parsed: Parsed, outcome: UnitOutcome) -> list[RejectedRecord] | BuildAgain:
        """Make the samples of some records of a unit, and return those that are rejected."""
        file, numbers, progress = planned.file, parsed.numbers, self._build.progress
        records = keyed(parsed.batch, file.path, numbers)
        keys, batch = records.column(0).to_pylist(), records.select(range(1, records.num_columns))
        samples = samples_of(self._build.job, file, python_rows(batch), keys)
        applied = self._pipeline.finish_records(numbers.tolist(), samples, _NotedCalls(progress))
        progress.begin(planned.number, int(numbers[0]) if len(numbers) == 1 else WHOLE)
        batch = self._pipeline.lay_out(applied)
        self._writer.totals.inputs += len(numbers) - len(applied.rejects)  # those that gave no sample too
        self._writer.add_batch(batch, outcome)
        return list(applied.rejects.items())


class _NotedCalls:
    """Notes each call of a function on a record of one place, or of a model on several."""

    def __init__(self, progress: WorkerProgress) -> None:
        self._progress = progress

    def one(self, record: int) -> None:
        self._progress.enter_call(record)

    def many(self, records: list[int]) -> None:
        self._progress.enter_call(records[0] if len(records) == 1 else TOGETHER)
