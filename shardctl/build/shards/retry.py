"""Which record a worker died of: what is done again after a death, and what is given up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shardctl.build.shards.job import Job
from shardctl.errors import SourceGoneError, WorkerError
from shardctl.system.dataclass import dataclass
from shardctl.system.processes.death import FATAL_KILLS, OUT_OF_MEMORY_MESSAGE, Death
from shardctl.system.processes.pool import Limits
from shardctl.system.processes.progress_slot import KEYS, TOGETHER
from shardctl.system.sequences import LazySequence
from shardctl.system.text import printable

Task = dict[str, Any]

FATAL_CRASHES = 2
"""Deaths at one record after which it is rejected: the second one shows that it was no accident."""

FATAL_ACCIDENTS = 4
"""Deaths outside of any record, at one shard, after which the conversion is given up."""


@dataclass(frozen=True)
class _DeathPlace:
    """Where a worker died: `unit` is None if it was at none, `record` None if at all records of the unit.

    `record` is TOGETHER if a model was called with several records, from `unit` on.
    """

    shard: int | None
    unit: int | None
    record: int | None
    from_outside: bool


HANGING = 3
"""Inputs, the first ones that are tried beforehand, after which a function that takes too long for each of them is refused."""


class CrashPolicy:
    """Finds the records that workers die of, and has them rejected where they stand."""

    def __init__(self, job: Job, limits: Limits) -> None:
        self._job, self._limits = job, limits
        self._deaths: Counter[_DeathPlace] = Counter()

    def task(self, shard: int | None) -> Task:
        """Return the task of a shard (None: the probe) that nothing has gone wrong with yet.

        `lost` are records that are given up: [unit, record or None, stage, error, message]. The records of the units in
        `careful` are read one by one, and a model is called with each alone before it is with several. `trial` is a unit that
        is tried before the shard is built, and with `on` all that come after it, so that the shard is not built from its
        beginning for every record that ends a worker. `suspect` is [unit, attempt] of one that could not be read in time.
        With `anew` nothing is taken from the dataset before, whose files cannot be read perhaps.
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
        """Return the task to do after a death: the same again, without the record where it has been fatal often enough.

        Raises WorkerError if workers keep dying at no record, SourceGoneError if a source does not answer.
        """
        if death.stage == "compare" and death.overtime:
            raise SourceGoneError(self._no_answer(task, death))
        unit = None if death.stage == "compare" else death.place
        if death.stage == KEYS and unit not in task["careful"]:
            death = replace(death, record=None)  # keys were read together: the number only says how far
        unread = death.overtime and death.stage in ("read", KEYS)
        together = death.record is not None and death.record <= TOGETHER
        of_many = unit is not None and death.record is None and not unread and self._has_many(unit)
        if (of_many or together) and unit not in task["careful"]:
            return {**task, "careful": [*task["careful"], unit], "trial": unit}
        place = _DeathPlace(task["shard"], unit, TOGETHER if together else death.record, death.from_outside)
        self._deaths[place] += 1
        deaths = self._deaths[place]
        if together and deaths >= (FATAL_KILLS if death.from_outside else FATAL_CRASHES):
            raise WorkerError(self._only_together(death))
        if unit is None and deaths >= FATAL_ACCIDENTS:
            raise WorkerError(self._accident(task, death))
        # A read that took too long tells nothing of the record before another read of its source has not.
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
        """Raise WorkerError if all of these are the very first inputs, and took too long: the others would take as long."""
        first = self._job.planned_at(0).unit
        places = [[0, first.first + number] if first.first else [number, None] for number in range(len(lost))]
        if [entry[:2] for entry in lost] == places and all(error == "timed-out" for _, _, _, error, _ in lost):
            names = ", ".join(str(step.settings().get("target", step.name)) for step in self._job.recipe.sample_transforms)
            within = f" in {names}" if names else ""
            raise WorkerError(
                f"each of the first {len(lost):,} inputs that were tried took longer than {self._limits.seconds:g} s{within};"
                " nothing was committed. If they need more time, raise --input-timeout"
            )

    def _has_many(self, unit: int) -> bool:
        return int(self._job.plan["records"][unit].as_py()) > 1

    def _accident(self, task: Task, death: Death) -> str:
        what = "tried some inputs beforehand" if task["shard"] is None else f"wrote shard {task['shard']}"
        if death.out_of_memory:
            return (
                f"{FATAL_ACCIDENTS} worker processes in a row ran out of memory while they {what}, and not at one of their"
                " inputs. Use fewer --workers, or a higher --worker-memory; nothing was committed"
            )
        said = f": {death.last_words}" if death.last_words else ""
        return (
            f"{FATAL_ACCIDENTS} worker processes in a row {death} while they {what}, and not at one of their inputs{said};"
            " nothing was committed"
        )

    def _only_together(self, death: Death) -> str:
        assert death.place is not None, "it was calling a model"
        first = printable(self._job.planned_at(death.place).key())
        models = ", ".join(str(step.settings().get("target", step.name)) for step in self._job.recipe.models)
        how = f"took longer than {self._limits.seconds:g} s" if death.overtime else f"{death}"
        return (
            f"a worker process {how} every time {models} was called with several inputs, from {first} on, and with each of them"
            " alone it works; nothing was committed. Set batch lower, or use fewer --workers, a higher --worker-memory or"
            " --input-timeout"
        )

    def _no_answer(self, task: Task, death: Death) -> str:
        assert death.place is not None, "it was comparing"
        planned, other = self._job.planned_at(task["suspect"][0]), self._job.planned_at(death.place).file
        root = printable(self._job.roots[planned.file.root].path)
        return (
            f"{root}: the source does not respond: reading {printable(planned.file.path)}, and then {printable(other.path)},"
            f" took longer than {self._limits.seconds:g} s; check its disk or server, or raise --input-timeout"
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
