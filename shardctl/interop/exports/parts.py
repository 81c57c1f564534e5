"""The parts of an export, written in worker processes or in this one. Those that an earlier run has done are left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from shardctl.errors import WorkerError
from shardctl.interop.exports import WORKER
from shardctl.interop.exports.base import ExportPart, PartResult
from shardctl.interop.exports.job import ExportJob
from shardctl.interop.exports.staging import Staging
from shardctl.system.processes.death import FATAL_KILLS, Death
from shardctl.system.processes.pool import Limits, Pool, Task
from shardctl.system.sequences import LazySequence
from shardctl.system.text import printable

SMALL = 128 << 20
"""Bytes of a dataset that `auto` workers leave to this process: 100 MB of JPEGs take longer with two.

The figures are in docs/dev/measurements/formats.md.
"""


class Parts:
    """The parts of an export, written by workers or in this process; those that are done already are left."""

    def __init__(self, job: ExportJob, staging: Staging, workers: int | str, progress: Callable[[int, int], None]) -> None:
        self._job, self._staging, self._progress = job, staging, progress
        self._found: dict[int, PartResult] = {}
        self._samples = 0
        self._reported: Counter[int] = Counter()
        few = len(job.parts) == 1 or job.source.bytes < SMALL
        self._workers: int | str = 0 if workers == "auto" and few else workers

    def write(self) -> list[tuple[ExportPart, PartResult]]:
        """Write what is not done yet, and return all parts in order."""
        self._staging.begin(self._job.to_json())
        parts = self._job.parts
        for number, part in enumerate(parts):
            done = self._staging.done(part)
            if done is not None:
                self._found[number] = done
        self._staging.sweep(list(self._found.values()))
        self._tell(self._samples_of(self._found))
        missing = [number for number in range(len(parts)) if number not in self._found]
        source, ends = self._job.source, list(accumulate(len(parts[number].shards) for number in missing))
        names = [source.name_of(shard) for number in missing for shard in parts[number].shards]
        with source.folder.prefetch(names) as note:
            self._write_all(missing, lambda place: note(ends[place] - 1))
        return [(part, self._found[number]) for number, part in enumerate(parts)]

    def _write_all(self, missing: Sequence[int], note: Callable[[int], None]) -> None:
        """Write these parts. `note` gets the place of each among them, when it is done."""
        if missing and self._workers == 0:
            for place, number in enumerate(missing):
                part = self._job.parts[number]
                written = self._job.write(part, self._staging.files, self._tell)
                self._staging.mark_done(part, written)
                self._found[number] = written
                note(place)
        elif missing:
            self._in_pool(missing, note)

    def _samples_of(self, numbers: Mapping[int, PartResult]) -> int:
        """Return how many samples were read for some parts."""
        if not numbers:
            return 0
        rows = {number: entry.rows for number, entry in self._job.source.numbered_shards()}
        return sum(rows[shard] for number in numbers for shard in self._job.parts[number].shards)

    def _tell(self, samples: int) -> None:
        self._samples += samples
        self._progress(self._samples, self._job.source.samples)

    def _in_pool(self, missing: Sequence[int], note: Callable[[int], None]) -> None:
        version = self._staging.job.record_path.stat().st_mtime_ns
        start = {"folder": str(self._staging.folder), "state": self._job.source.state, "version": version}
        kills: Counter[int] = Counter()

        def on_message(task: Task, message: dict[str, Any]) -> None:
            if "done" in message:
                self._found[task["part"]] = PartResult.from_json(message["done"])
                note(task["place"])
            else:
                self._reported[task["part"]] += message["progress"]
                self._tell(message["progress"])

        def died(task: Task, death: Death) -> Task:
            self._tell(-self._reported.pop(task["part"], 0))  # these samples are read again
            kills[task["part"]] += 1
            if not death.from_outside or kills[task["part"]] >= FATAL_KILLS:
                name = printable(self._job.parts[task["part"]].name)
                why = f" ({printable(death.last_words)})" if death.last_words else ""
                raise WorkerError(
                    f"{self._job.source.shown}: the process that wrote {name} {death}{why}; fewer --workers need less memory,"
                    " and `shardctl verify` tells whether the dataset is damaged"
                )
            return task

        workers = min(self._workers, len(missing)) if isinstance(self._workers, int) else self._workers
        pool = Pool(WORKER, workers, Limits(), remedy=lambda possible: f"use --workers {possible}, or ")
        try:
            pool.run(
                LazySequence(len(missing), lambda place: {**start, "place": place, "part": missing[place]}), on_message, died
            )
        finally:
            pool.close()
