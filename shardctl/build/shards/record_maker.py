"""Samples made of records one by one: images, and whatever has images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from shardctl.build.shards.maker import Maker
from shardctl.build.shards.planned import PlannedUnit
from shardctl.build.shards.record_images import TableImages
from shardctl.build.shards.records import sample_of
from shardctl.build.shards.reject_writer import RejectedRecord
from shardctl.build.shards.retry_hints import BuildAgain
from shardctl.build.shards.sample_writer import SampleWriter
from shardctl.build.shards.shard_build import ShardBuild
from shardctl.build.shards.shard_totals import UnitOutcome
from shardctl.errors import Rejection
from shardctl.format.exact_values import python_rows
from shardctl.format.sample import Sample
from shardctl.sources.formats import Parsed
from shardctl.transforms.pipeline.made_sample import MadeSample
from shardctl.transforms.pipeline.samples import SamplePipeline


class RecordMaker(Maker):
    """Makes the samples of each record by itself. `images` finds those of the records of tables, where they have some."""

    def __init__(self, build: ShardBuild, pipeline: SamplePipeline, images: TableImages | None, writer: SampleWriter) -> None:
        self._build, self._pipeline, self._images, self._writer = build, pipeline, images, writer

    def add_file(self, fields: Sample, planned: PlannedUnit, outcome: UnitOutcome) -> BuildAgain | None:
        """Make the samples of a file that is one record. Raises Rejection."""
        self._add(fields, planned, outcome, None)
        return None

    def add_records(self, planned: PlannedUnit, parsed: Parsed, outcome: UnitOutcome) -> list[RejectedRecord] | BuildAgain:
        """Make the samples of some records of a unit, and return those that are rejected."""
        progress, rejects = self._build.progress, list[RejectedRecord]()
        records: Iterable[tuple[int, Sample]] = zip(parsed.numbers.tolist(), self._rows_of(parsed.batch), strict=True)
        for record, fields in records if self._images is None else self._images.prefetched(records, planned):
            progress.begin(planned.number, record)
            try:
                self._add(fields, planned, outcome, record)
            except Rejection as rejection:
                rejects.append((record, rejection))
        progress.begin(planned.number)
        return rejects

    def _rows_of(self, batch: pa.RecordBatch) -> Iterator[Sample]:
        """Yield the fields of records. Only a user's functions get times; else they stay numbers."""
        if self._build.job.recipe.sample_transforms:
            yield from python_rows(batch)
            return
        columns = [column.view(pa.int64()) if _is_64_bit_time(column.type) else column for column in batch.columns]
        rows = pa.RecordBatch.from_arrays(columns, batch.schema.names)
        for row in range(rows.num_rows):  # not all at once: each holds a copy of its images
            yield rows.slice(row, 1).to_pylist()[0]

    def _add(self, fields: Sample, planned: PlannedUnit, outcome: UnitOutcome, record: int | None) -> None:
        """Add the samples of one record, None: of the file that is one. Raises Rejection."""
        read: list[int] = []
        if self._images is not None:
            fields = self._images.take(fields, planned)
            read = self._images.read
        self._write(self._pipeline.make(sample_of(self._build.job, planned, record, fields)), outcome, read)

    def _write(self, made: list[MadeSample], outcome: UnitOutcome, read: list[int]) -> None:
        """Write the samples of one record, whose images were in files with these digests."""
        if self._images is not None:
            self._images.became_samples(read)
        self._writer.add_record(made, outcome)


def _is_64_bit_time(type_: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type_) or pa.types.is_duration(type_) or pa.types.is_time64(type_))
