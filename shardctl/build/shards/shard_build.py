"""A shard that is being built: what all parts of that work share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardctl.build.shards.job import Job
from shardctl.build.shards.planned import ShardPlace
from shardctl.build.shards.retry_hints import RetryHints
from shardctl.images.codecs.image import Opened
from shardctl.system.processes.worker_state import WorkerProgress


@dataclass(frozen=True)
class ShardBuild:
    """A shard that is being built: its job, its place there, the slot that says what is worked on,
    what is known beforehand.

    `look` is given each image before it is decoded.
    """

    job: Job
    place: ShardPlace
    progress: WorkerProgress
    hints: RetryHints
    look: Callable[[Opened], None] = lambda opened: None
