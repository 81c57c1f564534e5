"""`verify`: all damage of a dataset, or of one shard without its dataset, as findings.

It prints nothing, and does not stop at the first finding. Arrow files are read and images decoded in child processes: bytes
that crash such a process are one more finding.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardctl.errors import UsageError, explaining_interrupts
from shardctl.format.dataset_place import open_place, refuse_part_of_dataset
from shardctl.inspection.verify.check_pool import CheckPool
from shardctl.inspection.verify.check_processes import pool_of_checks
from shardctl.inspection.verify.dataset import DatasetCheck
from shardctl.inspection.verify.finding import Finding
from shardctl.inspection.verify.result import LEVELS, VerifyResult, result_of
from shardctl.system.processes.pool import Pool, Task
from shardctl.system.progress import counting
from shardctl.system.text import counted, unknown


def verify(path: str | Path, level: str = "full", progress: bool | Callable[[int, int], None] = True) -> VerifyResult:
    """Check a dataset, or one shard without its dataset.

    `progress` False shows no progress on stderr; a function is called with (shards done, shards) instead. `path` may be the URL
    of one on a store: `quick` lists it and reads the end of each shard, the other levels download all. Raises DatasetError if
    there is no dataset at all, UsageError for an unknown level, and StoreError if a store refuses or does not answer. Raises
    WorkerError if the processes that check are killed from outside again and again.
    """
    return verify_with(None, path, level, progress)


def verify_with(
    processes: Pool | None, path: str | Path, level: str, progress: bool | Callable[[int, int], None]
) -> VerifyResult:
    """Check as `verify` does, with the processes of `pool_of_checks`, which end afterwards; None: with new ones."""
    if level not in LEVELS:
        raise UsageError(unknown("level", level, LEVELS))
    checked = "no shard was checked yet"
    with (
        explaining_interrupts(lambda: f"interrupted; {checked}, and nothing is changed by a check"),
        open_place(path, "ends" if level == "quick" else "whole", listed=True) as place,
    ):
        refuse_part_of_dataset(place)
        with CheckPool(place, level, processes or pool_of_checks(1 if place.lone else "auto")) as pool:
            if place.lone:
                return _verify_lone_shard(level, pool)
            with counting(progress, "shards", "verifying") as report:

                def on_shard(done: int, total: int) -> None:
                    nonlocal checked
                    checked = f"{done:,} of {counted(total, 'shard')} were checked"
                    report(done, total)

                return DatasetCheck(place.folder, level, on_shard, pool).run()


def _verify_lone_shard(level: str, pool: CheckPool) -> VerifyResult:
    samples, findings = 0, []

    def on_answer(_: Task, answer: Any) -> None:
        nonlocal samples, findings
        samples, found = answer
        findings = [Finding(**finding) for finding in found]

    pool.run([{"check": "lone shard"}], on_answer, lambda _, crash: findings.append(crash))
    return result_of(level, 1, samples, findings)
