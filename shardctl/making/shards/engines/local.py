"""What builds shards, and the engine of this machine: in this process, or in a pool of worker
processes that an input may kill."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from shardctl.errors import Rejection, SourceGoneError, WorkerError
from shardctl.making.shards import WORKER
from shardctl.making.shards.inputs import ExamineTask, Found, PrePlanTask, run_task
from shardctl.making.shards.job import PROBE, Job, Probe, RetryHints, ShardTask
from shardctl.making.shards.marker import WorkDone
from shardctl.system.machine import usable_cores
from shardctl.system.permutation import LazySequence
from shardctl.system.processes.pool import Limits, OnLine, Pool, most_workers
from shardctl.system.processes.worker_state import (
    KEYS,
    OUT_OF_MEMORY_MESSAGE,
    TOGETHER,
    Death,
    Deaths,
    WorkerProgress,
)
from shardctl.system.text import printable
from shardctl.transforms.base import Transform

Report = Callable[[WorkDone], None]

OnFound = Callable[[int, Found], None]


class Engine:
    """Something that builds shards: by itself, one after the other in this process. That is the
    easiest to debug, and it dies with the input. It alone imports what workers import."""

    def prepare(self) -> None:
        """Get ready for work that is coming, beside what this process does meanwhile."""

    def at_once(self) -> int:
        """Return how many shards are built at the same time, as far as that is known."""
        return 1

    def examine(self, tasks: Sequence[PrePlanTask], on_found: OnFound) -> None:
        """Look at files before there is a plan. `on_found` gets the place of each task and what it
        found, in any order."""
        for number, task in enumerate(tasks):
            on_found(number, run_task(task, WorkerProgress(), {}))

    def probe(self, job: Job) -> Probe:
        """Push all records of the plan of a small job through its recipe, on this machine: its
        folder is one for scratch. Raises InputError."""
        from shardctl.making.shards.task import probe_records

        return probe_records(job, WorkerProgress(), RetryHints())

    def run(self, job: Job, shards: Sequence[int], report: Report) -> None:
        """Build these shards of the job, in any order. Raises WorkerError, or what stopped a shard.

        The job's folder is in that of the dataset: whatever builds a shard must be able to read and
        to write it.
        """
        from shardctl.making.shards.task import build_shard

        for shard in shards:
            build_shard(job, shard, report, WorkerProgress(), RetryHints())

    def let_go(self) -> None:
        """Have idle processes end, and do not wait for them: there is no more work as far as is
        known."""

    def close(self) -> None:
        """Stop the workers, at once if shards are still being built. What is asked of the engine
        next starts others."""


def start(_address: str, workers: int | str, limits: Limits, on_line: OnLine) -> Engine:
    """Start the engine for --engine local, which has no address."""
    return local_engine(workers, limits, on_line)


def local_engine(workers: int | str, limits: Limits, on_line: OnLine = lambda line: None) -> Engine:
    """Return an engine with up to `workers` processes ("auto": as many as are worth having); 0
    works in this process.

    The processes start when there is work. `on_line` gets the lines that workers print. There are
    no limits in this process.
    """
    return LocalPool(workers, limits, on_line) if workers else Engine()


class LocalPool(Engine):
    """Builds shards in child processes."""

    def __init__(self, workers: int | str, limits: Limits, on_line: OnLine) -> None:
        self._limits, self._workers = limits, most_workers() if workers == "auto" else int(workers)
        self._pool = Pool(
            WORKER,
            workers,
            limits,
            on_line,
            # 0 workers is work in this process, which has no limit of memory
            lambda possible: (
                "" if limits.memory and not possible else f"use --workers {possible}, or "
            ),
        )

    def prepare(self) -> None:
        """Have the workers' modules imported."""
        self._pool.prepare()

    def at_once(self) -> int:
        """Return the number of its processes, or of cores if they are fewer."""
        return max(1, min(self._workers, usable_cores()))

    def probe(self, job: Job) -> Probe:
        """Probe the records, in one of the processes."""
        job.write_recipe_files()
        job.save()
        found: list[Probe] = []
        task = ShardTask(str(job.folder), PROBE)
        self._pool.run(
            [task],
            lambda _, message: found.append(message["done"]),
            CrashPolicy(job, self._limits).judge,
        )
        return found[0]

    def examine(self, tasks: Sequence[PrePlanTask], on_found: OnFound) -> None:
        """Look at the files. What ends every process that looks at it is a fault of its own."""
        deaths = Deaths()

        def died(task: ExamineTask, death: Death) -> ExamineTask:
            place = death.place
            most = FATAL_ACCIDENTS if place is None else FATAL_CRASHES
            if not deaths.is_fatal((task.number, place), death, most):
                return task
            if place is None:
                raise WorkerError(_accident("looked at the files", death))
            message = f"the process that looked at it {death} every time"
            if not (death.overtime or death.from_outside):
                message += "; it is likely to be damaged, get it again"
            reason = Rejection(death.stage, "timed-out" if death.overtime else "crashed", message)
            return replace(task, lost={**task.lost, place: reason})

        self._pool.run(
            LazySequence(len(tasks), lambda number: ExamineTask(number, tasks[number], {})),
            lambda task, message: on_found(task.number, message["done"]),
            died,
        )

    def run(self, job: Job, shards: Sequence[int], report: Report) -> None:
        """Build the shards."""
        for _ in self.steps(job, shards, report):
            pass

    def steps(self, job: Job, shards: Sequence[int], report: Report) -> Iterator[None]:
        """Build the shards step by step, as `Pool.steps` does."""
        policy, folder = CrashPolicy(job, self._limits), str(job.folder)
        reported: dict[int, WorkDone] = {}

        def on_message(task: ShardTask, message: dict[str, Any]) -> None:
            if "done" in message:
                reported.pop(task.shard, None)
                return
            done = message["progress"]
            reported[task.shard] = reported.get(task.shard, WorkDone()) + done
            report(done)

        def died(task: ShardTask, death: Death) -> ShardTask:
            if lost := reported.pop(task.shard, None):
                report(-lost)  # the shard is built again from its first unit
            return policy.judge(task, death)

        tasks = LazySequence(len(shards), lambda place: ShardTask(folder, shards[place]))
        yield from self._pool.steps(tasks, on_message, died)

    def let_go(self) -> None:
        """Have the workers end."""
        self._pool.let_go()

    def close(self) -> None:
        """End the workers."""
        self._pool.close()


# --- which record a worker died of: what is done again after a death, and what is given up ---

FATAL_CRASHES = 2
"""Deaths at one record after which it is rejected: the second one shows that it was no accident."""

FATAL_ACCIDENTS = 4
"""Deaths outside of any record, at one shard, after which the conversion is given up."""

HANGING = 3
"""Inputs, the first ones that are tried beforehand, after which a function that takes too long for
each of them is refused."""


@dataclass(frozen=True)
class CrashPolicy:
    """Finds the records that workers die of, and has them rejected where they stand."""

    job: Job
    limits: Limits
    deaths: Deaths = field(default_factory=Deaths)

    def judge(self, task: ShardTask, death: Death) -> ShardTask:
        """Return the task to do after a death: the same again, without the record where it has been
        fatal often enough.

        Raises WorkerError if workers keep dying at no record, SourceGoneError if a source does not
        answer.
        """
        hints = replace(task.hints, apart=True)
        limit = f"took longer than {self.limits.seconds or 0:g} s"
        if death.stage == "compare" and death.overtime:
            self._refuse_silent(task, death, limit)
        unit = None if death.stage == "compare" else death.place
        if death.stage == KEYS and unit not in hints.careful:
            # keys were read together: the number only says how far
            death = replace(death, record=None)
        unread = death.overtime and death.stage in ("read", KEYS)
        together = death.record is not None and death.record <= TOGETHER
        if unit is not None and unit not in hints.careful:
            of_all = death.record is None and not unread
            if together or (of_all and self.job.plan["records"][unit].as_py() > 1):
                return replace(
                    task, hints=replace(hints, careful=hints.careful | {unit}), trial=unit
                )
        where = task.shard, unit, TOGETHER if together else death.record, death.from_outside
        is_fatal = self.deaths.is_fatal(where, death, FATAL_CRASHES)
        deaths = self.deaths.times[where]
        if together and is_fatal:
            self._refuse_together(death, limit)
        # A read that took too long tells nothing of the record before another read of its source
        # has not.
        suspect = (unit, deaths - 1) if unread and unit is not None else None
        again = replace(task, hints=hints, suspect=suspect, trial=unit)
        if unit is None:
            if deaths >= FATAL_ACCIDENTS:
                is_probe = task.shard == PROBE
                what = "tried inputs beforehand" if is_probe else f"wrote shard {task.shard}"
                raise WorkerError(_accident(f"{what}, and not at one of their inputs", death))
            return replace(again, hints=replace(hints, anew=True))
        if not is_fatal:
            return again
        # the same death must give the same bytes
        said = f"its worker process {death} every time it processed it"
        if death.overtime:
            reason = "timed-out", f"{limit}; --input-timeout sets the limit"
        elif death.out_of_memory:
            reason = "out-of-memory", OUT_OF_MEMORY_MESSAGE
        elif death.from_outside:
            reason = "killed", f"{said}, as systems do when memory runs out"
        else:
            reason = "crashed" if death.code < 0 else "exited", said
        stage = "encode" if death.stage == "write" else death.stage
        hints = hints.with_lost({(unit, death.record): Rejection(stage, *reason)})
        if death.overtime and len(hints.lost) == HANGING and task.shard == PROBE:
            self._refuse_to_hang(hints, limit)
        several = len(hints.lost) > 1
        return replace(again, hints=hints, trial=unit if several else None, on=several)

    def _refuse_to_hang(self, hints: RetryHints, limit: str) -> None:
        """Raise WorkerError if all that is lost are the very first inputs, and took too long: the
        others would take as long."""
        first = self.job.planned_at(0).unit.first
        places = [(0, first + number) if first else (number, None) for number in range(HANGING)]
        if list(hints.lost) == places and {reason.error for reason in hints.lost.values()} == {
            "timed-out"
        }:
            names = _names_of(self.job.recipe.sample_transforms)
            within = f" in {names}" if names else ""
            raise WorkerError(
                f"each of the first {HANGING:,} inputs {limit}{within}; nothing was committed; "
                "--input-timeout sets the limit"
            )

    def _refuse_together(self, death: Death, limit: str) -> NoReturn:
        assert death.place is not None, "it was calling a model"
        first = printable(self.job.planned_at(death.place).key())
        raise WorkerError(
            f"a worker process {limit if death.overtime else death} every time "
            f"{_names_of(self.job.recipe.models)} was called with several inputs, from {first} "
            "on, not with each alone; nothing was committed. Use a lower batch, fewer "
            "--workers, a higher --worker-memory or --input-timeout"
        )

    def _refuse_silent(self, task: ShardTask, death: Death, limit: str) -> NoReturn:
        assert death.place is not None and task.suspect is not None, "it was comparing"  # noqa: PT018
        files = [self.job.planned_at(number).file for number in (task.suspect[0], death.place)]
        root = printable(self.job.bases[files[0].root].path)
        raise SourceGoneError(
            f"{root}: the source does not respond: "
            f"{', then '.join(printable(file.path) for file in files)}, {limit}; check its disk, or "
            "raise --input-timeout"
        )


def _names_of(steps: Iterable[Transform]) -> str:
    return ", ".join(str(step.settings().get("target", step.name)) for step in steps)


def _accident(what: str, death: Death) -> str:
    """Say that workers keep ending while they did something."""
    ended, said, remedy = str(death), "", ""
    if death.out_of_memory:
        ended = "ran out of memory"
        remedy = "; use fewer --workers, or a higher --worker-memory"
    elif death.last_words:
        said = f": {death.last_words}"
    return (
        f"{FATAL_ACCIDENTS} worker processes in a row {ended} while they {what}{said}; nothing was "
        f"committed{remedy}"
    )
