"""A shard that is being built: what all parts of that work share."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from shardctl.format.shard import ShardWriter, shard_schema
from shardctl.format.tables import Reject
from shardctl.images.codecs.image import Opened
from shardctl.making.shards.job import Job
from shardctl.making.shards.planned import PlannedShard, RetryHints
from shardctl.making.shards.record_images import TableImages
from shardctl.making.shards.records import RecordChoice
from shardctl.making.shards.rows import Rows, ShardOutput, ShuffledRows
from shardctl.system.files import HashingFile
from shardctl.system.processes.worker_state import WorkerProgress
from shardctl.transforms.pipeline.samples import SamplePipeline


class ShardBuild:
    """A shard that is being built: its job, what the plan says of it, the slot that says what is worked on,
    what is known beforehand; and where its samples are made and go.

    `look` is given each image before it is decoded. `images` finds those of the records of tables,
    where they have some.
    """

    def __init__(
        self,
        job: Job,
        planned: PlannedShard,
        progress: WorkerProgress,
        hints: RetryHints,
        sink: HashingFile | pa.NativeFile,
        reject: Callable[[Reject], None],
        look: Callable[[Opened], None] = lambda opened: None,
    ) -> None:
        self.job, self.planned, self.progress, self.hints = job, planned, progress, hints
        schema = shard_schema(job.layout, planned.split_name, planned.number)
        self.shard = ShardWriter(sink, schema, job.recipe.compression, planned.blocks)
        self.pipeline = SamplePipeline(
            job.recipe,
            job.layout,
            progress.enter,
            of_records=job.annotation_rules,
            look=look,
            recorded=job.recorded,
        )
        self.rows = Rows(self.shard, self.pipeline.settle, progress)
        if job.fields is not None and job.shuffle is not None:
            self.rows = ShuffledRows(
                self.shard, self.pipeline.settle, progress, job.shuffle, planned.name
            )
        self.output = ShardOutput(job, progress, hints, self.rows, reject)
        self.choice = RecordChoice(job, planned.split, progress, hints)
        self.images = TableImages(job, progress) if job.has_images else None
