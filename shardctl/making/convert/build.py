"""The shards of a job: those that are left are built, and an error says how many are there."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from shardctl.errors import DiskFullError, SourceGoneError, StorageError
from shardctl.format.arrays import Bools
from shardctl.making.commit.jobs import finished_shards
from shardctl.making.convert.listener import SPARE_DISK, Listener
from shardctl.making.convert.previous import PreviousDataset
from shardctl.making.convert.rejects import count_rejects, too_many
from shardctl.making.options import reject_limit
from shardctl.making.plan.plan import NOT_KEPT
from shardctl.making.shards.engines.local import Engine
from shardctl.making.shards.job import DatasetJob, Job
from shardctl.making.shards.marker import WorkDone
from shardctl.system.files import free_bytes
from shardctl.system.text import format_bytes, printable


def build_shards(
    job: Job,
    chosen: Bools,
    previous: PreviousDataset | None,
    engine: Engine,
    max_rejects: str | int | None,
    listener: Listener,
) -> int:
    """Build those of the chosen shards that are not finished, and return the number of samples
    made.

    Shards that are kept of the dataset `previous` count as finished. Raises TooManyRejectsError if
    more is rejected than `max_rejects` allows for all inputs, and what the engine raises.
    """
    limit, rejected, samples = reject_limit(max_rejects, job.expected), 0, 0

    def add(work: WorkDone) -> None:
        nonlocal rejected, samples
        rejected, samples = rejected + work.rejected, samples + work.samples
        listener.progress(work)
        if rejected > limit:
            raise too_many(f"{count_rejects(rejected, job.expected)} so far")

    left = chosen.copy()
    for shard, done in finished_shards(job, chosen):
        left[shard] = False
        add(WorkDone(job.planned_shard(shard).records, done.facts.rows, done.rejected))
    if (left != chosen).any():
        listener.resuming(int(chosen.sum() - left.sum()), int(chosen.sum()))
    for shard in np.flatnonzero(chosen & (job.kept != NOT_KEPT)).tolist():
        assert previous is not None, "only then is a shard kept"
        left[shard] = False
        entry = previous.table[int(job.kept[shard])]
        add(WorkDone(job.planned_shard(shard).records, entry.rows, entry.rejected))
    there = samples
    listener.building()
    engine.run(job, np.flatnonzero(left).tolist(), add)
    engine.let_go()  # while this process writes the tables
    return samples - there


@contextlib.contextmanager
def telling_what_is_done(job: DatasetJob, chosen: Bools | None = None) -> Iterator[None]:
    """Add to an error or an interrupt how many of the chosen shards are done, and how to go on."""
    chosen = np.ones(job.shards, bool) if chosen is None else chosen
    try:
        yield
    except (KeyboardInterrupt, StorageError, SourceGoneError) as error:
        done, said, more = list[int](), str(error), ""
        try:
            done = [job.planned_shard(shard).records for shard, _ in finished_shards(job, chosen)]
            state = (
                f"{len(done):,} of {int(chosen.sum()):,} shards are done; run the same command "
                "again to continue"
            )
        except OSError as fault:
            state = f"shardctl cannot read what is done ({job.working.shown()}: {fault.strerror})"
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"interrupted; {state}") from error
        if isinstance(error, DiskFullError) and job.url and "TMPDIR" not in said:
            scratch = Path(tempfile.gettempdir())
            said = (
                f"{printable(scratch)}: the disk is full "
                f"({format_bytes(free_bytes(scratch))} free); each worker builds a shard there "
                "before the upload. Set TMPDIR to a larger disk, or use fewer --workers"
            )
        elif isinstance(error, DiskFullError) and not job.url:
            samples = (1 - sum(done) / max(1, job.records)) * job.expected
            need = samples * job.samples_per_record * job.sample_bytes * SPARE_DISK
            more = f"; about {format_bytes(need)} more are needed"
        raise type(error)(f"{said}{more}. {state}") from error
