"""What became of every shard of a job: of those that are kept as the dataset before records it,
else as their markers do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardctl.build.commit.generations import link_or_copy
from shardctl.build.convert.update.previous import PreviousDataset
from shardctl.build.plan.plan import NOT_KEPT
from shardctl.build.shards.dataset_job import DatasetJob
from shardctl.build.shards.marker import ShardMarker, read_marker
from shardctl.errors import DatasetError
from shardctl.format.names import MANIFEST
from shardctl.system.files import naming_the_path
from shardctl.system.processes.pool import Pool
from shardctl.system.text import printable


@dataclass(frozen=True)
class Outcomes:
    """What became of the shards of a job that is done. `before` is the dataset that it brings up to
    date."""

    job: DatasetJob
    before: PreviousDataset | None

    def _kept(self, shard: int) -> tuple[PreviousDataset, int] | None:
        """Return the dataset before, and the number of a shard in it, if the shard is kept."""
        number = int(self.job.kept[shard])
        return None if self.before is None or number == NOT_KEPT else (self.before, number)

    def done(self, shard: int) -> ShardMarker:
        """Return what became of a shard."""
        kept = self._kept(shard)
        return read_marker(self.job.marker_path(shard)) if kept is None else kept[0].done(kept[1])

    def lines(self, shard: int, done: ShardMarker) -> Iterator[bytes]:
        """Yield the lines of the rejects of a shard."""
        kept = self._kept(shard)
        if kept is not None:
            yield from kept[0].reject_lines(kept[1])
        elif done.rejected:
            with open(self.job.rejects_path(shard), "rb") as file:
                yield from file

    def link_kept(self) -> None:
        """Give the shards that are kept a second name among the new ones; a copy where the file
        system has no links.

        Raises DatasetError for one that is damaged, as far as its size tells.
        """
        for shard, before, number in self.kept():
            old, new = before.folder.path(before.table[number].path), self.job.shard_path(shard)
            with naming_the_path(new):
                new.unlink(missing_ok=True)
                before.refuse_lost(number)
                link_or_copy(old, new)

    def kept(self) -> Iterator[tuple[int, PreviousDataset, int]]:
        """Yield the shards that are kept: their number, the dataset before, and their number
        there."""
        for shard in np.flatnonzero(self.job.kept != NOT_KEPT).tolist():
            kept = self._kept(shard)
            assert kept is not None, "shards are kept of a dataset"
            yield shard, *kept


def verify_update(new: Path, processes: Pool | None) -> None:
    """Check a dataset that was brought up to date before it takes its place: its tables, and the
    footer of every shard.

    `processes` are those of `checks_ahead`, None: new ones. Raises DatasetError.
    """
    # which most conversions never need
    from shardctl.inspection.verify.verification import verify_with

    findings = verify_with(processes, new, "quick", progress=False).findings
    found = next((finding for finding in findings if finding.severity == "error"), None)
    if found is not None:
        (new / MANIFEST).unlink()  # the next try makes the tables once more
        raise DatasetError(
            f"{printable(str(new))}: {found.message}; the dataset is as it was before"
        )
