"""Shard tasks on this machine: in this process, or in a pool of worker processes that an input may
kill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardctl.build.shards import WORKER
from shardctl.build.shards.engines.base import Engine, OnFound, Report
from shardctl.build.shards.job import Job
from shardctl.build.shards.probe import Probe
from shardctl.build.shards.retry_hints import RetryHints
from shardctl.build.shards.scan import PrePlanTask, run_task
from shardctl.build.shards.work_done import WorkDone
from shardctl.errors import SourceGoneError, WorkerError
from shardctl.system.machine import usable_cores
from shardctl.system.processes.pool import Limits, OnLine, Pool, Task, most_workers
from shardctl.system.processes.worker_state import (
    FATAL_KILLS,
    KEYS,
    OUT_OF_MEMORY_MESSAGE,
    TOGETHER,
    Death,
    WorkerProgress,
)
from shardctl.system.sequences import LazySequence
from shardctl.system.text import printable


def start(_address: str, workers: int | str, limits: Limits, on_line: OnLine) -> Engine:
    """Start the engine for --engine local, which has no address."""
    return local_engine(workers, limits, on_line)


def local_engine(workers: int | str, limits: Limits, on_line: OnLine = lambda line: None) -> Engine:
    """Return an engine with up to `workers` processes ("auto": as many as are worth having); 0
    works in this process.

    The processes start when there is work. `on_line` gets the lines that workers print. There are
    no limits in this process.
    """
    return LocalPool(workers, limits, on_line) if workers else InProcess()


class InProcess:
    """Builds one shard after the other in this process: the easiest to debug, and it dies with the
    input.

    It imports what workers import. A process that has workers does without these modules, which
    take 20 ms.
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

    def __init__(
        self, workers: int | str, limits: Limits, on_line: OnLine = lambda line: None
    ) -> None:
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
                raise WorkerError(
                    f"{FATAL_ACCIDENTS} worker processes in a row {death} while they looked at the "
                    "files"
                )
            if death.place is None or times < (
                FATAL_KILLS if death.from_outside else FATAL_CRASHES
            ):
                return task
            error = "timed-out" if death.overtime else "crashed"
            remedy = (
                ""
                if death.overtime or death.from_outside
                else "; it is likely to be damaged, get it again"
            )
            reason = [
                death.stage,
                error,
                f"the process that looked at it {death} every time{remedy}",
            ]
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


# --- which record a worker died of: what is done again after a death, and what is given up ---

FATAL_CRASHES = 2
"""Deaths at one record after which it is rejected: the second one shows that it was no accident."""

FATAL_ACCIDENTS = 4
"""Deaths outside of any record, at one shard, after which the conversion is given up."""


@dataclass(frozen=True)
class _DeathPlace:
    """Where a worker died: `unit` is None if it was at none, `record` None if at all records of the
    unit.

    `record` is TOGETHER if a model was called with several records, from `unit` on.
    """

    shard: int | None
    unit: int | None
    record: int | None
    from_outside: bool


HANGING = 3
"""Inputs, the first ones that are tried beforehand, after which a function that takes too long for
each of them is refused."""


class CrashPolicy:
    """Finds the records that workers die of, and has them rejected where they stand."""

    def __init__(self, job: Job, limits: Limits) -> None:
        self._job, self._limits = job, limits
        self._deaths: Counter[_DeathPlace] = Counter()

    def task(self, shard: int | None) -> Task:
        """Return the task of a shard (None: the probe) that nothing has gone wrong with yet.

        `lost` has the records that are given up: [unit, record or None, stage, error, message].
        Records of units in `careful` are read one by one, and a model gets each alone before it
        gets several. The worker tries the unit `trial` before it builds the shard, and with `on`
        all units after it. So it does not build the shard from its beginning for every record that
        ends a worker. `suspect` is [unit, attempt] of a unit that could not be read in time. With
        `anew` the worker takes nothing from the dataset before: perhaps its files cannot be read.
        """
        return {
            "do": "shard",
            "job": self._job.packed() if shard is None else str(self._job.folder),
            "shard": shard,
            "lost": [],
            "careful": [],
            "trial": None,
            "on": False,
            "suspect": None,
            "anew": False,
        }

    def tasks(self, shards: Sequence[int]) -> Sequence[Task]:
        """Return the tasks of some shards, each made when it is asked for."""
        return LazySequence(len(shards), lambda place: self.task(shards[place]))

    def judge(self, task: Task, death: Death) -> Task:
        """Return the task to do after a death: the same again, without the record where it has been
        fatal often enough.

        Raises WorkerError if workers keep dying at no record, SourceGoneError if a source does not
        answer.
        """
        if death.stage == "compare" and death.overtime:
            raise SourceGoneError(self._no_answer(task, death))
        unit = None if death.stage == "compare" else death.place
        if death.stage == KEYS and unit not in task["careful"]:
            # keys were read together: the number only says how far
            death = replace(death, record=None)
        unread = death.overtime and death.stage in ("read", KEYS)
        together = death.record is not None and death.record <= TOGETHER
        of_many = unit is not None and death.record is None and not unread and self._has_many(unit)
        if (of_many or together) and unit not in task["careful"]:
            return {**task, "careful": [*task["careful"], unit], "trial": unit}
        place = _DeathPlace(
            task["shard"], unit, TOGETHER if together else death.record, death.from_outside
        )
        self._deaths[place] += 1
        deaths = self._deaths[place]
        if together and deaths >= (FATAL_KILLS if death.from_outside else FATAL_CRASHES):
            raise WorkerError(self._only_together(death))
        if unit is None and deaths >= FATAL_ACCIDENTS:
            raise WorkerError(self._accident(task, death))
        # A read that took too long tells nothing of the record before another read of its source
        # has not.
        suspect = [unit, deaths - 1] if unread else None
        again = {**task, "suspect": suspect, "trial": unit, "anew": task["anew"] or unit is None}
        if unit is None or deaths < (FATAL_KILLS if death.from_outside else FATAL_CRASHES):
            return again
        stage = "encode" if death.stage == "write" else death.stage
        lost = [*task["lost"], [unit, death.record, stage, *self._reason(death)]]
        if death.overtime and len(lost) == HANGING and task["shard"] is None:
            self._refuse_to_hang(lost)
        several = len(lost) > 1
        return {**again, "lost": lost, "trial": unit if several else None, "on": several}

    def _refuse_to_hang(self, lost: list[Any]) -> None:
        """Raise WorkerError if all of these are the very first inputs, and took too long: the
        others would take as long."""
        first = self._job.planned_at(0).unit
        places = [
            [0, first.first + number] if first.first else [number, None]
            for number in range(len(lost))
        ]
        if [entry[:2] for entry in lost] == places and all(
            error == "timed-out" for _, _, _, error, _ in lost
        ):
            names = ", ".join(
                str(step.settings().get("target", step.name))
                for step in self._job.recipe.sample_transforms
            )
            within = f" in {names}" if names else ""
            raise WorkerError(
                f"each of the first {len(lost):,} inputs that were tried took longer than "
                f"{self._limits.seconds:g} s{within};"
                " nothing was committed. If they need more time, raise --input-timeout"
            )

    def _has_many(self, unit: int) -> bool:
        return int(self._job.plan["records"][unit].as_py()) > 1

    def _accident(self, task: Task, death: Death) -> str:
        what = (
            "tried some inputs beforehand"
            if task["shard"] is None
            else f"wrote shard {task['shard']}"
        )
        if death.out_of_memory:
            return (
                f"{FATAL_ACCIDENTS} worker processes in a row ran out of memory while they {what}, "
                "and not at one of their"
                " inputs. Use fewer --workers, or a higher --worker-memory; nothing was committed"
            )
        said = f": {death.last_words}" if death.last_words else ""
        return (
            f"{FATAL_ACCIDENTS} worker processes in a row {death} while they {what}, and not at "
            f"one of their inputs{said};"
            " nothing was committed"
        )

    def _only_together(self, death: Death) -> str:
        assert death.place is not None, "it was calling a model"
        first = printable(self._job.planned_at(death.place).key())
        models = ", ".join(
            str(step.settings().get("target", step.name)) for step in self._job.recipe.models
        )
        how = f"took longer than {self._limits.seconds:g} s" if death.overtime else f"{death}"
        return (
            f"a worker process {how} every time {models} was called with several inputs, from "
            f"{first} on, and with each of them"
            " alone it works; nothing was committed. Set batch lower, or use fewer --workers, a "
            "higher --worker-memory or"
            " --input-timeout"
        )

    def _no_answer(self, task: Task, death: Death) -> str:
        assert death.place is not None, "it was comparing"
        planned, other = (
            self._job.planned_at(task["suspect"][0]),
            self._job.planned_at(death.place).file,
        )
        root = printable(self._job.roots[planned.file.root].path)
        return (
            f"{root}: the source does not respond: reading {printable(planned.file.path)}, and "
            f"then {printable(other.path)},"
            f" took longer than {self._limits.seconds:g} s; check its disk or server, or raise "
            "--input-timeout"
        )

    def _reason(self, death: Death) -> tuple[str, str]:
        """Return the name of the reason and the sentence. The same death must give the same
        bytes."""
        if death.overtime:
            return (
                "timed-out",
                f"took longer than {self._limits.seconds:g} s; --input-timeout sets the limit",
            )
        if death.out_of_memory:
            return "out-of-memory", OUT_OF_MEMORY_MESSAGE
        if death.from_outside:
            return (
                "killed",
                f"its worker process {death} every time it processed it, as systems do when memory "
                "runs out",
            )
        if death.code < 0:
            return "crashed", f"its worker process {death} every time it processed it"
        return "exited", f"its worker process {death} every time it processed it"
