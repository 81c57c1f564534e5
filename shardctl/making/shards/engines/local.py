"""What builds shards, and the engine of this machine: in this process, or in a pool of worker
processes that an input may kill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from shardctl.errors import Rejection, SourceGoneError, WorkerError
from shardctl.making.shards import WORKER
from shardctl.making.shards.job import Job, RetryHints, ShardTask
from shardctl.making.shards.marker import WorkDone
from shardctl.making.shards.scan import ExamineTask, Found, PrePlanTask, Probe, run_task
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
        from shardctl.making.shards.probing import probe_records

        return probe_records(job, WorkerProgress(), RetryHints())

    def run(self, job: Job, shards: Sequence[int], report: Report) -> None:
        """Build these shards of the job, in any order. Raises WorkerError, or what stopped a shard.

        The job's folder is in that of the dataset: whatever builds a shard must be able to read and
        to write it.
        """
        from shardctl.making.shards.task import build_shard

        for shard in shards:
            build_shard(job, shard, report, WorkerProgress())

    def let_go(self) -> None:
        """Have idle processes end, and do not wait for them: there is no more work as far as is
        known."""

    def close(self) -> None:
        """Stop, at once if shards are still being built."""


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
        job.write_files()
        job.save()
        found: list[Probe] = []
        task = ShardTask(str(job.folder), None)
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
                raise WorkerError(
                    f"{FATAL_ACCIDENTS} worker processes in a row {death} while they looked at the "
                    "files"
                )
            error = "timed-out" if death.overtime else "crashed"
            remedy = (
                ""
                if death.overtime or death.from_outside
                else "; it is likely to be damaged, get it again"
            )
            message = f"the process that looked at it {death} every time{remedy}"
            return replace(task, lost={**task.lost, place: Rejection(death.stage, error, message)})

        self._pool.run(
            LazySequence(len(tasks), lambda number: ExamineTask(number, tasks[number], {})),
            lambda task, message: on_found(task.number, message["done"]),
            died,
        )

    def run(self, job: Job, shards: Sequence[int], report: Report) -> None:
        """Build the shards."""
        policy, folder = CrashPolicy(job, self._limits), str(job.folder)
        reported: dict[int, WorkDone] = {}

        def on_message(task: ShardTask, message: dict[str, Any]) -> None:
            assert task.shard is not None, "it is no probe"
            if "done" in message:
                reported.pop(task.shard, None)
                return
            done = message["progress"]
            reported[task.shard] = reported.get(task.shard, WorkDone()) + done
            report(done)

        def died(task: ShardTask, death: Death) -> ShardTask:
            assert task.shard is not None, "it is no probe"
            if lost := reported.pop(task.shard, None):
                report(-lost)  # the shard is built again from its first unit
            return policy.judge(task, death)

        tasks = LazySequence(len(shards), lambda place: ShardTask(folder, shards[place]))
        self._pool.run(tasks, on_message, died)

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

HANGING = 3
"""Inputs, the first ones that are tried beforehand, after which a function that takes too long for
each of them is refused."""


class CrashPolicy:
    """Finds the records that workers die of, and has them rejected where they stand."""

    def __init__(self, job: Job, limits: Limits) -> None:
        self._job, self._limits = job, limits
        self._deaths = Deaths()

    def judge(self, task: ShardTask, death: Death) -> ShardTask:
        """Return the task to do after a death: the same again, without the record where it has been
        fatal often enough.

        Raises WorkerError if workers keep dying at no record, SourceGoneError if a source does not
        answer.
        """
        if death.stage == "compare" and death.overtime:
            raise SourceGoneError(self._no_answer(task, death))
        unit, hints = None if death.stage == "compare" else death.place, task.hints
        if death.stage == KEYS and unit not in hints.careful:
            # keys were read together: the number only says how far
            death = replace(death, record=None)
        unread = death.overtime and death.stage in ("read", KEYS)
        together = death.record is not None and death.record <= TOGETHER
        of_many = unit is not None and death.record is None and not unread and self._has_many(unit)
        if unit is not None and (of_many or together) and unit not in hints.careful:
            return replace(task, hints=hints.with_careful(unit), trial=unit)
        where = task.shard, unit, TOGETHER if together else death.record, death.from_outside
        is_fatal = self._deaths.is_fatal(where, death, FATAL_CRASHES)
        deaths = self._deaths.times[where]
        if together and is_fatal:
            raise WorkerError(self._only_together(death))
        # A read that took too long tells nothing of the record before another read of its source
        # has not.
        suspect = (unit, deaths - 1) if unread and unit is not None else None
        again = replace(task, suspect=suspect, trial=unit)
        if unit is None:
            if deaths >= FATAL_ACCIDENTS:
                raise WorkerError(self._accident(task, death))
            return replace(again, hints=replace(hints, anew=True))
        if not is_fatal:
            return again
        stage = "encode" if death.stage == "write" else death.stage
        hints = hints.with_lost({(unit, death.record): Rejection(stage, *self._reason(death))})
        if death.overtime and len(hints.lost) == HANGING and task.shard is None:
            self._refuse_to_hang(hints)
        several = len(hints.lost) > 1
        return replace(again, hints=hints, trial=unit if several else None, on=several)

    def _refuse_to_hang(self, hints: RetryHints) -> None:
        """Raise WorkerError if all that is lost are the very first inputs, and took too long: the
        others would take as long."""
        first = self._job.planned_at(0).unit.first
        places = [
            (0, first + number) if first else (number, None) for number in range(len(hints.lost))
        ]
        if list(hints.lost) == places and all(
            reason.error == "timed-out" for reason in hints.lost.values()
        ):
            names = ", ".join(
                str(step.settings().get("target", step.name))
                for step in self._job.recipe.sample_transforms
            )
            within = f" in {names}" if names else ""
            raise WorkerError(
                f"each of the first {len(places):,} inputs took longer than {self._limits.seconds:g} s"
                f"{within}; nothing was committed; --input-timeout sets the limit"
            )

    def _has_many(self, unit: int) -> bool:
        return int(self._job.plan["records"][unit].as_py()) > 1

    def _accident(self, task: ShardTask, death: Death) -> str:
        what = "tried inputs beforehand" if task.shard is None else f"wrote shard {task.shard}"
        ended = "ran out of memory" if death.out_of_memory else str(death)
        said = f": {death.last_words}" if death.last_words and not death.out_of_memory else ""
        remedy = "; use fewer --workers, or a higher --worker-memory" if death.out_of_memory else ""
        return (
            f"{FATAL_ACCIDENTS} worker processes in a row {ended} while they {what}, and not at "
            f"one of their inputs{said}; nothing was committed{remedy}"
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
            f"{first} on, not with each alone; nothing was committed. Set batch lower, or use "
            "fewer --workers, a higher --worker-memory or --input-timeout"
        )

    def _no_answer(self, task: ShardTask, death: Death) -> str:
        assert death.place is not None, "it was comparing"
        assert task.suspect is not None, "it was comparing"
        planned, other = (
            self._job.planned_at(task.suspect[0]),
            self._job.planned_at(death.place).file,
        )
        root = printable(self._job.roots[planned.file.root].path)
        return (
            f"{root}: the source does not respond: {printable(planned.file.path)}, then "
            f"{printable(other.path)}, took longer than {self._limits.seconds:g} s; check its disk, "
            "or raise --input-timeout"
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
        said = f"its worker process {death} every time it processed it"
        if death.from_outside:
            return "killed", f"{said}, as systems do when memory runs out"
        return "crashed" if death.code < 0 else "exited", said
