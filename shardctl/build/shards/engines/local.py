"""Shard tasks on this machine: in this process, or in a pool of worker processes that an input may kill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from shardctl.build.shards import WORKER
from shardctl.build.shards.engines.base import Engine, OnFound, Report
from shardctl.build.shards.job import Job
from shardctl.build.shards.probe import Probe
from shardctl.build.shards.retry import FATAL_ACCIDENTS, FATAL_CRASHES, CrashPolicy
from shardctl.build.shards.retry_hints import RetryHints
from shardctl.build.shards.scan import PrePlanTask, run_task
from shardctl.build.shards.work_done import WorkDone
from shardctl.errors import WorkerError
from shardctl.system.machine import usable_cores
from shardctl.system.processes.death import FATAL_KILLS, Death
from shardctl.system.processes.pool import Limits, OnLine, Pool, Task, most_workers
from shardctl.system.processes.progress_slot import WorkerProgress
from shardctl.system.sequences import LazySequence


def start(_address: str, workers: int | str, limits: Limits, on_line: OnLine) -> Engine:
    """Start the engine for --engine local, which has no address."""
    return local_engine(workers, limits, on_line)


def local_engine(workers: int | str, limits: Limits, on_line: OnLine = lambda line: None) -> Engine:
    """Return an engine with up to `workers` processes ("auto": as many as are worth having); 0 works in this process.

    The processes start when there is work. `on_line` gets the lines that workers print. There are no limits in this process.
    """
    return LocalPool(workers, limits, on_line) if workers else InProcess()


class InProcess:
    """Builds one shard after the other in this process: the easiest to debug, and it dies with the input.

    It imports what workers import. A process that has workers does without these modules, which take 20 ms.
    """

    def prepare(self) -> None:
        """Nothing to get ready."""

    def at_once(self) -> int:
        """Return 1."""
        return 1

    def probe(self, job: Job) -> Probe:
        """Probe the records."""
        from shardctl.build.shards.probing import probe_records

        return probe_records(job, WorkerProgress(), RetryHints())

    def examine(self, tasks: Sequence[PrePlanTask], on_found: OnFound) -> None:
        """Look at the files."""
        for number, task in enumerate(tasks):
            on_found(number, run_task(task, WorkerProgress(), {}))

    def run(self, job: Job, shards: Sequence[int], report: Report) -> None:
        """Build the shards."""
        from shardctl.build.shards.task import build_shard

        for shard in shards:
            build_shard(job, shard, report, WorkerProgress())

    def let_go(self) -> None:
        """There are no processes."""

    def close(self) -> None:
        """Nothing to stop."""


class LocalPool:
    """Builds shards in child processes."""

    def __init__(self, workers: int | str, limits: Limits, on_line: OnLine = lambda line: None) -> None:
        self._limits, self._workers = limits, most_workers() if workers == "auto" else int(workers)
        self._pool = Pool(WORKER, workers, limits, on_line, self._use_fewer)

    def _use_fewer(self, possible: int) -> str:
        if not possible and self._limits.memory:
            return ""  # 0 workers is work in this process, which has no limit of memory
        return f"use --workers {possible}, or "

    def prepare(self) -> None:
        """Have the workers' modules imported."""
        self._pool.prepare()

    def at_once(self) -> int:
        """Return the number of its processes, or of cores if they are fewer."""
        return max(1, min(self._workers, usable_cores()))

    def probe(self, job: Job) -> Probe:
        """Probe the records, in one of the processes."""
        found: list[Probe] = []
        policy = CrashPolicy(job, self._limits)

        def on_message(_: Task, message: dict[str, Any]) -> None:
            found.append(Probe.from_json(message["done"]))

        self._pool.run([policy.task(None)], on_message, policy.judge)
        return found[0]

    def examine(self, tasks: Sequence[PrePlanTask], on_found: OnFound) -> None:
        """Look at the files. What ends every process that looks at it is a fault of its own."""
        deaths: Counter[tuple[int, int | None]] = Counter()

        def on_message(task: Task, message: dict[str, Any]) -> None:
            on_found(task["number"], message["done"])

        def died(task: Task, death: Death) -> Task:
            deaths[task["number"], death.place] += 1
            times = deaths[task["number"], death.place]
            if death.place is None and times >= FATAL_ACCIDENTS:
                raise WorkerError(f"{FATAL_ACCIDENTS} worker processes in a row {death} while they looked at the files")
            if death.place is None or times < (FATAL_KILLS if death.from_outside else FATAL_CRASHES):
                return task
            error = "timed-out" if death.overtime else "crashed"
            remedy = "" if death.overtime or death.from_outside else "; it is likely to be damaged, get it again"
            reason = [death.stage, error, f"the process that looked at it {death} every time{remedy}"]
            return {**task, "lost": [*task["lost"], [death.place, *reason]]}

        def packed(number: int) -> Task:
            task = tasks[number]
            return {"do": task.name, "number": number, "task": task.to_json(), "lost": []}

        self._pool.run(LazySequence(len(tasks), packed), on_message, died)

    def run(self, job: Job, shards: Sequence[int], report: Report) -> None:
        """Build the shards."""
        policy = CrashPolicy(job, self._limits)
        reported: dict[int, WorkDone] = {}

        def on_message(task: Task, message: dict[str, Any]) -> None:
            if "done" in message:
                reported.pop(task["shard"], None)
                return
            done = WorkDone(*message["progress"])
            reported[task["shard"]] = reported.get(task["shard"], WorkDone(0, 0, 0, 0)) + done
            report(done)

        def died(task: Task, death: Death) -> Task:
            if lost := reported.pop(task["shard"], None):
                report(-lost)  # the shard is built again from its first unit
            return policy.judge(task, death)

        self._pool.run(policy.tasks(shards), on_message, died)

    def let_go(self) -> None:
        """Have the workers end."""
        self._pool.let_go()

    def close(self) -> None:
        """End the workers."""
        self._pool.close()

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
