"""What builds shards: on this machine, or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from shardctl.build.shards.job import Job
from shardctl.build.shards.marker import WorkDone
from shardctl.build.shards.scan import Found, PrePlanTask, Probe

Report = Callable[[WorkDone], None]

OnFound = Callable[[int, Found], None]


class Engine(Protocol):
    """Something that builds shards."""

    def prepare(self) -> None:
        """Get ready for work that is coming, beside what this process does meanwhile."""
        ...

    def at_once(self) -> int:
        """Return how many shards are built at the same time, as far as that is known."""
        ...

    def examine(self, tasks: Sequence[PrePlanTask], on_found: OnFound) -> None:
        """Look at files before there is a plan. `on_found` gets the place of each task and what it
        found, in any order."""
        ...

    def probe(self, job: Job) -> Probe:
        """Push all records of the plan of a small job through its recipe. Raises InputError.

        Another machine may not see the job's folder, which is one for scratch: `Job.packed` is the
        job as plain data.
        """
        ...

    def run(self, job: Job, shards: Sequence[int], report: Report) -> None:
        """Build these shards of the job, in any order. Raises WorkerError, or what stopped a shard.

        The job's folder is in that of the dataset: whatever builds a shard must be able to read and
        to write it.
        """
        ...

    def let_go(self) -> None:
        """Have idle processes end, and do not wait for them: there is no more work as far as is
        known."""
        ...

    def close(self) -> None:
        """Stop, at once if shards are still being built."""
        ...
