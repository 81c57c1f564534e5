"""Units that are a file, which is one record."""

from __future__ import annotations

from shardctl.build.shards.inputs import check_digest, digest_of, read_whole
from shardctl.build.shards.maker import Maker
from shardctl.build.shards.mask_files import digest_with, read_mask
from shardctl.build.shards.planned import PlannedUnit
from shardctl.build.shards.retry_hints import BuildAgain
from shardctl.build.shards.shard_build import ShardBuild
from shardctl.build.shards.shard_totals import UnitOutcome
from shardctl.sources.annotations.masks import MASK
from shardctl.sources.kinds import KINDS


class FileUnits:
    """Reads units that are a file each, and has their samples made."""

    def __init__(self, build: ShardBuild, maker: Maker) -> None:
        self._build, self._maker = build, maker
        self._kind = KINDS[build.job.recipe.kind]

    def add(self, planned: PlannedUnit, outcome: UnitOutcome) -> BuildAgain | None:
        """Add the samples of a unit. Raises Rejection, MemoryError, SourceGoneError, InputError."""
        job, progress = self._build.job, self._build.progress
        lost = self._build.hints.lost.get((planned.number, None))
        if lost is not None and lost.stage in ("plan", "read", "prune"):
            raise lost
        data = read_whole(job, planned)
        mask = read_mask(job, planned)
        outcome.digest = digest_of(data) if mask is None else digest_with(data, mask)
        check_digest(job, planned, outcome.digest)
        if lost is not None:
            raise lost
        progress.enter("decode")
        fields = self._kind.fields(data, planned.file.path, job.recipe.reading)
        return self._maker.add_file(fields if mask is None else {**fields, MASK: mask}, planned, outcome)
