"""What a worker is told: the dataset, what was chosen of it, the form, its settings and the
columns; and the worker process, in which worker_loop.py calls `handle`."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from shardctl.errors import DatasetError, UsageError, WorkerError
from shardctl.format.dataset_folder import DatasetFolder
from shardctl.format.dataset_location import AnyDataset, from_json, to_json
from shardctl.format.generations import WAS_REPLACED
from shardctl.format.names import Json
from shardctl.interop.exports import WORKER
from shardctl.interop.exports.base import Done, Export, ExportPart, PartResult, Progress, Work
from shardctl.interop.exports.options import EXPORTS, Choice, FormSettings
from shardctl.interop.exports.source import Source
from shardctl.interop.exports.staging import Staging
from shardctl.sources.export_description import Field
from shardctl.system.job_folder import JobFolder
from shardctl.system.options import Word, declared_in
from shardctl.system.permutation import LazySequence
from shardctl.system.processes.forkserver import Tell
from shardctl.system.processes.pool import Limits, Pool, Task
from shardctl.system.processes.worker_state import Death, Deaths, WorkerProgress
from shardctl.system.text import counted, did_you_mean, printable, unknown

TURNED = "turned"
"""The fact of a part that counts the images that were turned."""


@dataclass(frozen=True)
class ExportJob:
    """An export that is about to be written: its source, the form, the columns, and the parts in
    their order."""

    source: Source
    export: Export
    settings: Mapping[str, Any]
    fields: tuple[Field, ...]
    parts: Sequence[ExportPart]

    @classmethod
    def of(
        cls, source: Source, to: str, settings: Mapping[str, Any], fields: tuple[Field, ...]
    ) -> ExportJob:
        """Return the job of a form with these settings."""
        export = chosen_export(to, settings)
        return cls(source, export, settings, fields, export.parts(source))

    def to_json(self) -> Json:
        """Return what makes the same job of the same dataset, as plain data."""
        return {
            "dataset": to_json(self._folder),
            "choice": asdict(self.source.choice),
            "to": self.export.name,
            "settings": dict(self.settings),
            "fields": [asdict(field) for field in self.fields],
        }

    def named(self) -> Json:
        """Return what is the same in every run of the same export, wherever a dataset on a store is
        fetched to."""
        return {**self.to_json(), "dataset": self._folder.text}

    @property
    def _folder(self) -> AnyDataset:
        """The folder of the dataset, by the name that it has wherever a process is."""
        folder = self.source.folder
        if isinstance(folder, DatasetFolder):
            return replace(folder, root=folder.root.resolve())
        return folder

    @classmethod
    def from_json(cls, record: Mapping[str, Any], state: str) -> ExportJob:
        """Return the job that `to_json` gave. Raises DatasetError if the dataset is not in the
        `state` for which it was planned."""
        source = Source(from_json(record["dataset"]), Choice.from_json(record["choice"]))
        if source.state != state:  # moved away, and another one put in its place
            raise DatasetError(f"{source.shown}: {WAS_REPLACED}")
        fields = tuple(Field(**field) for field in record["fields"])
        return cls.of(source, record["to"], record["settings"], fields)

    def write(self, part: ExportPart, folder: Path, progress: Progress) -> PartResult:
        """Write one part. Raises DatasetError if there is another dataset by the time that it is
        done."""
        before = self.source.turned
        work = Work(
            **vars(part), source=self.source, fields=self.fields, folder=folder, progress=progress
        )
        try:
            written = self.export.write(work)
        finally:  # at the end of the export the first one may be back
            self.source.check_unchanged()
        if turned := self.source.turned - before:
            written = replace(written, facts={**written.facts, TURNED: turned})
        return written

    def notes_of(self, done: Done) -> tuple[str, ...]:
        """Return sentences about what was written, known only when all parts are."""
        turned = sum(each.facts.get(TURNED, 0) for _, each in done.parts)
        said = self.export.notes_of(done)
        return (
            (*said, f"{counted(turned, 'image')} turned as EXIF says, and written anew")
            if turned
            else said
        )


def chosen_export(to: str, settings: Mapping[str, Any]) -> Export:
    """Return the export of a name with its settings. Raises UsageError for an unknown name or
    setting."""
    if to not in EXPORTS:
        raise UsageError(unknown("the form of an export", to, EXPORTS))
    module, _, name = EXPORTS[to].export.partition(":")
    class_: Any = getattr(importlib.import_module(f"shardctl.interop.exports.{module}"), name)
    known = [field.name for field in fields(class_)]
    odd = next((name for name in settings if name not in known), None)
    if odd is not None:
        has = f"{did_you_mean(odd, known) or ';'} it has {', '.join(known)}" if known else ""
        declared = declared_in(FormSettings)
        shown = declared[odd].spelled(odd) if odd in declared else odd
        raise UsageError(f"{shown} is not for an export to {to}{has}")
    for name, words in EXPORTS[to].settings.items():
        if words and name in settings:
            Word(*words).check(name, settings[name])
    export: Export = class_(**settings)
    return export


SMALL = 128 << 20
"""Bytes of a dataset that `auto` workers leave to this process: 100 MB of JPEGs take longer with
two.

The figures are in docs/dev/measurements.md.
"""


class Parts:
    """The parts of an export, written by workers or in this process; those that are done already
    are left."""

    def __init__(
        self,
        job: ExportJob,
        staging: Staging,
        workers: int | str,
        progress: Callable[[int, int], None],
    ) -> None:
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
        source, ends = (
            self._job.source,
            list(accumulate(len(parts[number].shards) for number in missing)),
        )
        names = [
            source.shard(shard).entry.path for number in missing for shard in parts[number].shards
        ]
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
        start = {
            "folder": str(self._staging.folder),
            "state": self._job.source.state,
            "version": version,
        }
        deaths = Deaths()

        def on_message(task: Task, message: Json) -> None:
            if "done" in message:
                self._found[task["part"]] = PartResult.from_json(message["done"])
                note(task["place"])
            else:
                self._reported[task["part"]] += message["progress"]
                self._tell(message["progress"])

        def died(task: Task, death: Death) -> Task:
            self._tell(-self._reported.pop(task["part"], 0))  # these samples are read again
            if deaths.is_fatal(task["part"], death):
                name = printable(self._job.parts[task["part"]].name)
                why = f" ({printable(death.last_words)})" if death.last_words else ""
                raise WorkerError(
                    f"{self._job.source.shown}: the process that wrote {name} {death}{why}; "
                    "fewer --workers need less memory, and `shardctl verify` tells more"
                )
            return task

        workers = (
            min(self._workers, len(missing)) if isinstance(self._workers, int) else self._workers
        )
        pool = Pool(
            WORKER, workers, Limits(), remedy=lambda possible: f"use --workers {possible}, or "
        )
        try:
            pool.run(
                LazySequence(
                    len(missing), lambda place: {**start, "place": place, "part": missing[place]}
                ),
                on_message,
                died,
            )
        finally:
            pool.close()


def handle(task: Json, tell: Tell, _progress: WorkerProgress) -> Any:
    """Write the part with the number `part` of the export in the folder `folder`, and return what
    was written.

    Raises DatasetError if the dataset is not in the `state` for which the export was planned.
    """
    staging = Staging(Path(task["folder"]))
    job = _job(staging.job, task["state"], task["version"])
    part = job.parts[task["part"]]
    written = job.write(part, staging.files, tell)
    staging.mark_done(part, written)
    return asdict(written)


@lru_cache(maxsize=1)
def _job(folder: JobFolder, state: str, _version: int) -> ExportJob:
    """Return the job, which is read once for all parts of an export. Raises DatasetError if its
    dataset is another one."""
    return ExportJob.from_json(folder.record(), state)
