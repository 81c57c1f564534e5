"""Has the shards of a job built, but for those that are there already."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shardctl.build.commit.staging import finished_shards
from shardctl.build.convert.estimate import SPARE_DISK
from shardctl.build.convert.listener import Listener
from shardctl.build.convert.result import count_rejects
from shardctl.build.convert.update.previous import PreviousDataset
from shardctl.build.options import reject_limit
from shardctl.build.plan.plan import NOT_KEPT
from shardctl.build.shards.engines.local import Engine
from shardctl.build.shards.job import DatasetJob, Job
from shardctl.build.shards.marker import WorkDone
from shardctl.errors import DiskFullError, SourceGoneError, StorageError, TooManyRejectsError
from shardctl.system.files import free_bytes
from shardctl.system.text import format_bytes, printable

Chosen = npt.NDArray[np.bool_]
"""Which shards of a job are meant: (shards,)."""


def build(
    job: Job,
    chosen: Chosen,
    before: PreviousDataset | None,
    engine: Engine,
    max_rejects: str | int | None,
    listener: Listener,
) -> int:
    """Build those of the chosen shards that are not finished, and return the number of samples
    made.

    Shards that are kept of the dataset `before` count as finished. Raises TooManyRejectsError if
    more is rejected than `max_rejects` allows for all inputs, and what the engine raises.
    """
    left = chosen.copy()
    tally = Tally(max_rejects, job.inputs, listener.progress)
    for shard, finished in finished_shards(job, chosen):
        left[shard] = False
        tally.add(WorkDone(job.place(shard).records, finished.facts.rows, finished.rejected, 0))
    if (left != chosen).any():
        listener.resuming(int(chosen.sum() - left.sum()), int(chosen.sum()))
    for shard in np.flatnonzero(chosen & (job.kept != NOT_KEPT)).tolist():
        assert before is not None, "only then is a shard kept"
        left[shard] = False
        entry = before.table[int(job.kept[shard])]
        tally.add(WorkDone(job.place(shard).records, entry.rows, entry.rejected, 0))
    samples = tally.samples
    listener.building()
    engine.run(job, array("q", np.flatnonzero(left).tobytes()), tally.add)
    engine.let_go()  # while this process writes the tables
    return tally.samples - samples


@contextmanager
def telling_what_is_done(job: DatasetJob, chosen: Chosen | None = None) -> Iterator[None]:
    """Add to an error or an interrupt how many of the chosen shards are done, and how to go on."""
    chosen = np.ones(job.shards, bool) if chosen is None else chosen
    try:
        yield
    except (KeyboardInterrupt, StorageError, SourceGoneError) as error:
        state, done = _what_is_done(job, chosen)
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"interrupted; {state}") from error
        if isinstance(error, DiskFullError) and job.url:
            advice = "" if "TMPDIR" in str(error) else _advice_for_scratch()
            raise DiskFullError(f"{advice or error}. {state}") from error
        if isinstance(error, DiskFullError):
            need = format_bytes(
                (1 - done)
                * job.inputs
                * job.costs.samples_per_record
                * job.costs.sample_bytes
                * SPARE_DISK
            )
            raise DiskFullError(f"{error}; about {need} more are needed. {state}") from error
        raise type(error)(f"{error}. {state}") from error


def _advice_for_scratch() -> str:
    """Return what to do where shards go to a store, and the disk is full on which they are
    built."""
    place = Path(tempfile.gettempdir())
    return (
        f"{printable(str(place))}: the disk is full ({format_bytes(free_bytes(place))} free); a "
        "shard for each worker is built"
        " there before the upload. Set TMPDIR to a folder on a larger disk, or use fewer --workers"
    )


def _what_is_done(job: Job, chosen: Chosen) -> tuple[str, float]:
    """Return how much of the chosen shards is done, as a sentence and as a share of the records of
    all."""
    try:
        done = [job.place(shard).records for shard, _ in finished_shards(job, chosen)]
    except OSError as error:
        return f"shardctl cannot read what is done ({job.working.shown()}: {error.strerror})", 0.0
    sentence = (
        f"{len(done):,} of {int(chosen.sum()):,} shards are done; run the same command "
        "again to continue"
    )
    return sentence, sum(done) / max(1, job.records)


# --- the work that is done so far, and its limit of rejects ---


class Tally:
    """Counts the work that the workers report, and stops the conversion if too much is rejected."""

    def __init__(
        self, limit: str | int | None, inputs: int, listen: Callable[[WorkDone], None]
    ) -> None:
        self._limit = reject_limit(limit, inputs)
        self._inputs, self._listen = inputs, listen
        self.rejected = self.samples = 0

    def add(self, progress: WorkDone) -> None:
        """Add finished work. Raises TooManyRejectsError."""
        self.rejected += progress.rejected
        self.samples += progress.samples
        self._listen(progress)
        if self.rejected > self._limit:
            raise TooManyRejectsError(
                f"{count_rejects(self.rejected, self._inputs)} so far, more than --max-rejects "
                "allows;"
                " nothing was committed. Fix or remove them, or run the same command with a higher "
                "limit to continue"
            )
