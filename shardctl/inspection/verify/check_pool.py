"""The processes that check a dataset. One that dies of what it reads is a finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from shardctl.errors import WorkerError
from shardctl.format.dataset_place import DatasetPlace, to_json
from shardctl.format.tables import ShardTable
from shardctl.inspection.verify.check_processes import LIMITS
from shardctl.inspection.verify.finding import MEND, REBUILD, Finding, error
from shardctl.system.processes.death import FATAL_KILLS, Death
from shardctl.system.processes.pool import Pool, Task
from shardctl.system.sequences import LazySequence
from shardctl.system.text import printable

MOST_KILLS = 4 * FATAL_KILLS
"""Deaths of processes that were killed from outside at one shard, wherever in it, after which the check is given up."""


class CheckPool:
    """The processes that check a dataset or a shard at a level. They end with the block of a `with`."""

    def __init__(self, place: DatasetPlace, level: str, pool: Pool) -> None:
        self._place, self._level, self._pool = place, level, pool

    def __enter__(self) -> CheckPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def run(
        self, tasks: Sequence[Task], on_answer: Callable[[Task, Any], None], crashed: Callable[[Task, Finding], None]
    ) -> None:
        """Do checks. `on_answer` gets what they return (worker.py), `crashed` the finding that a process has died of its check.

        What a process did that was killed from outside is done again. Raises WorkerError if that goes on.
        """
        kills: Counter[tuple[int, int | None]] = Counter()
        all_kills: Counter[int] = Counter()

        def died(task: Task, death: Death) -> Task | None:
            if death.from_outside:
                kills[task["number"], death.place] += 1
                all_kills[task["number"]] += 1
                times = kills[task["number"], death.place]
                if (death.place is None and times >= FATAL_KILLS) or all_kills[task["number"]] >= MOST_KILLS:
                    raise WorkerError(self._kills(task, death, all_kills[task["number"]]))
                if times < FATAL_KILLS:
                    return task
            if death.place is not None and death.place not in dict(task["fatal"]):
                return {**task, "fatal": [*task["fatal"], [death.place, _why_fatal(death)]]}
            crashed(task, self._crash(task, death))
            return None

        start = {"folder": to_json(self._place.folder), "lone": self._place.lone, "level": self._level, "fatal": []}
        given = LazySequence(len(tasks), lambda number: {**start, "number": number, **tasks[number]})
        self._pool.run(given, lambda task, message: on_answer(task, message["done"]), died)

    def _crash(self, task: Task, death: Death) -> Finding:
        what = "needs more memory than any shard should" if death.out_of_memory else f"the process that read it {death}"
        if task["check"] == "shard":
            return error("crashes-reader", f"{what}; {REBUILD}", self._name(task))
        if task["check"] == "lone shard":
            return error("crashes-reader", what, self._name(task))
        return error("crashes-reader", f"{self._name(task)}: {what}; {MEND}")

    def _kills(self, task: Task, death: Death, times: int) -> str:
        return (
            f"{self._place.shown}: the process that checked {printable(self._name(task))} {death}, {times} times,"
            " as systems do when memory runs out; this tells nothing about the dataset; free some memory and check it again"
        )

    def _name(self, task: Task) -> str:
        """Return the name of what a task checks."""
        if task["check"] == "shard":
            return ShardTable(self._place.folder)[task["shard"]].path
        return self._place.lone if task["check"] == "lone shard" else str(task.get("name", task["check"]))


def _why_fatal(death: Death) -> str:
    """Return what the decoder of an image does to the process that it runs in."""
    if death.overtime:
        return f"its decoder takes longer than {LIMITS.seconds:g} s"
    if death.from_outside:
        return "the process that decodes it is killed every time, as systems do when memory runs out"
    return "its decoder crashes"
