"""The check of marked objects: those of which the loader cannot make anything, and those that say nothing."""

from __future__ import annotations

from collections.abc import Iterator

from shardctl.inspection.verify.check import Block, Fault, Shard
from shardctl.inspection.verify.finding import CONVERT_AGAIN


def wrong_objects(shard: Shard, block: Block) -> Iterator[Fault]:
    """Yield the samples of a block whose objects are not as docs/annotations.md describes them, each with its first fault."""
    if shard.roles.objects:
        from shardctl.inspection.verify import object_faults  # brings the modules of the loader along, for 70 ms
        from shardctl.sources.annotations.base import BAD

        for row, what in object_faults.wrong_objects(block.data, shard.roles):
            yield block.fault(row, BAD, f"{what}; {CONVERT_AGAIN}")
