"""Shard tasks on this machine: in this process, or in a pool of worker processes that an input may kill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from shardctl.engines import WORKER
from shardctl.engines.breadcrumb import Breadcrumb
from shardctl.engines.job import Job
from shardctl.engines.pool import FATAL_KILLS, Death, Limits, OnLine, Pool, Task
from shardctl.engines.probe import Probe, probe_inputs
from shardctl.engines.task import OUT_OF_MEMORY_MESSAGE, Progress, run_shard
from shardctl.errors import SourceGoneError, WorkerError
from shardctl.storage import printable

Report = Callable[[Progress], None]

FATAL_CRASHES = 2
"""Deaths at one input after which it is rejected: the second one shows that it was no accident."""

FATAL_ACCIDENTS = 4
"""Deaths outside of any input, at one shard, after which the conversion is given up."""


class Engine(Protocol):
    """Something that builds shards."""

    def prepare(self) -> None:
        """Get ready for work that is coming, beside what this process does meanwhile."""
        ...

    def probe(self, job: Job) -> Probe:
        """Push all inputs of the plan of a small job through its recipe. Raises InputError."""
        ...

    def run(self, job: Job, shards: Iterable[int], report: Report) -> None:
        """Build these shards of the job, in any order. Raises WorkerError, or what stopped a shard."""
        ...

    def close(self) -> None:
        """Stop, at once if shards are still being built."""
        ...


def start(workers: int | str, limits: Limits, on_line: OnLine = lambda line: None) -> Engine:
    """Return an engine with up to `workers` processes ("auto": as many as are worth having); 0 works in this process.

    The processes start when there is work. `on_line` gets the lines that workers print. There are no limits in this process.
    """
    return LocalPool(workers, limits, on_line) if workers else InProcess()


class InProcess:
    """Builds one shard after the other in this process: the easiest to debug, and it dies with the input."""

    def prepare(self) -> None:
        """Nothing to get ready."""

    def probe(self, job: Job) -> Probe:
        """Probe the inputs."""
        return probe_inputs(job, Breadcrumb(), {})

    def run(self, job: Job, shards: Iterable[int], report: Report) -> None:
        """Build the shards."""
        for shard in shards:
            run_shard(job, shard, report, Breadcrumb(), {})

    def close(self) -> None:
        """Nothing to stop."""


class LocalPool:
    """Builds shards in child processes."""

    def __init__(self, workers: int | str, limits: Limits, on_line: OnLine = lambda line: None) -> None:
        self._limits = limits
        self._pool = Pool(WORKER, workers, limits, on_line, self._use_fewer)

    def _use_fewer(self, possible: int) -> str:
        if not possible and self._limits.memory:
            return ""  # 0 workers is work in this process, which has no limit of memory
        return f"use --workers {possible}, or "

    def prepare(self) -> None:
        """Have the workers' modules imported."""
        self._pool.prepare()

    def probe(self, job: Job) -> Probe:
        """Probe the inputs, in one of the processes."""
        found: list[Probe] = []
        casualties = _Casualties(job, self._limits)

        def on_message(_: Task, message: dict[str, Any]) -> None:
            found.append(Probe.from_record(message["done"]))

        self._pool.run([casualties.task(None)], on_message, casualties.judge)
        return found[0]

    def run(self, job: Job, shards: Iterable[int], report: Report) -> None:
        """Build the shards."""
        casualties = _Casualties(job, self._limits)
        told: dict[int, Progress] = {}

        def on_message(task: Task, message: dict[str, Any]) -> None:
            if "done" in message:
                told.pop(task["shard"], None)
                return
            progress = Progress(*message["progress"])
            told[task["shard"]] = told.get(task["shard"], Progress(0, 0, 0)) + progress
            report(progress)

        def died(task: Task, death: Death) -> Task:
            if lost := told.pop(task["shard"], None):
                report(-lost)  # the shard is built again from its first input
            return casualties.judge(task, death)

        self._pool.run(map(casualties.task, shards), on_message, died)

    def close(self) -> None:
        """End the workers."""
        self._pool.close()

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Casualties:
    """Finds the inputs that workers die of, and has them rejected where they stand."""

    def __init__(self, job: Job, limits: Limits) -> None:
        self._job, self._limits = job, limits
        self._deaths: Counter[tuple[int | None, int | None, bool]] = Counter()

    def task(self, shard: int | None) -> Task:
        """Return the task of a shard (None: the probe) that nothing has gone wrong with yet."""
        return {"job": str(self._job.folder), "shard": shard, "lost": [], "suspect": None}

    def judge(self, task: Task, death: Death) -> Task:
        """Return the task to do after a death: the same again, without the input where it has been fatal often enough.

        Raises WorkerError if workers keep dying at no input, SourceGoneError if a source does not answer.
        """
        if death.stage == "compare" and death.overtime:
            raise SourceGoneError(self._no_answer(task, death))
        place = None if death.stage == "compare" else death.place
        self._deaths[task["shard"], place, death.from_outside] += 1
        deaths = self._deaths[task["shard"], place, death.from_outside]
        if place is None and deaths >= FATAL_ACCIDENTS:
            raise WorkerError(self._accident(task, death))
        # A read that took too long tells nothing of the input before another read of its source has not.
        suspect = [place, deaths - 1] if death.overtime and death.stage == "read" else None
        again = {**task, "suspect": suspect}
        if place is None or deaths < (FATAL_KILLS if death.from_outside else FATAL_CRASHES):
            return again
        stage = "encode" if death.stage == "write" else death.stage
        return {**again, "lost": [*task["lost"], [place, stage, *self._reason(death)]]}

    def _accident(self, task: Task, death: Death) -> str:
        what = "tried some inputs beforehand" if task["shard"] is None else f"wrote shard {task['shard']}"
        if death.out_of_memory:
            return (
                f"{FATAL_ACCIDENTS} worker processes in a row could get no more memory while they {what}, at no input of"
                " theirs; use fewer --workers, or a higher --worker-memory; nothing was committed"
            )
        said = f": {death.last_words}" if death.last_words else ""
        return (
            f"{FATAL_ACCIDENTS} worker processes in a row {death} while they {what}, at no input of theirs{said};"
            " nothing was committed"
        )

    def _no_answer(self, task: Task, death: Death) -> str:
        row = self._job.plan.slice(task["suspect"][0], 1).to_pylist()[0]
        other = self._job.plan["source"][death.place].as_py()
        root = printable(self._job.roots[row["root"]].path)
        return (
            f"{root}: the source does not respond: reading {printable(row['source'])}, and then {printable(other)}, took longer"
            f" than {self._limits.seconds:g} s; check its disk or server, or raise --input-timeout"
        )

    def _reason(self, death: Death) -> tuple[str, str]:
        """Return the name of the reason and the sentence. The same death must give the same bytes."""
        if death.overtime:
            return "timed-out", f"took longer than {self._limits.seconds:g} s; --input-timeout sets the limit"
        if death.out_of_memory:
            return "out-of-memory", OUT_OF_MEMORY_MESSAGE
        if death.from_outside:
            return "killed", f"its worker process {death} every time it processed it, as systems do when memory runs out"
        if death.code < 0:
            return "crashed", f"its worker process {death} every time it processed it"
        return "exited", f"its worker process {death} every time it processed it"
