"""What a worker is told: the dataset, what was chosen of it, the form, its settings and the
columns; and the worker process, in which worker_loop.py calls `handle`."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from shardctl.errors import DatasetError, UsageError, WorkerError
from shardctl.format.dataset_folder import DatasetFolder
from shardctl.format.dataset_location import AnyDataset, from_json, to_json
from shardctl.format.generations import WAS_REPLACED
from shardctl.format.names import Json
from shardctl.interop.exports import WORKER
from shardctl.interop.exports.base import (
    Done,
    Export,
    ExportPart,
    PartResult,
    Progress,
    Source,
    Work,
)
from shardctl.interop.exports.options import EXPORTS, Choice, FormSettings
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
    """An export that is about to be written: its source, the form with its settings, and the
    columns."""

    source: Source
    export: Export
    fields: tuple[Field, ...]

    @cached_property
    def parts(self) -> Sequence[ExportPart]:
        """The parts in their order."""
        return self.export.parts(self.source)

    def to_json(self) -> Json:
        """Return what makes the same job of the same dataset, as plain data."""
        return {
            "dataset": to_json(self._folder),
            "choice": asdict(self.source.choice),
            "to": self.export.name,
            "settings": vars(self.export),
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
        source = Source(from_json(record["dataset"]), Choice(**record["choice"]))
        if source.state != state:  # moved away, and another one put in its place
            raise DatasetError(f"{source.shown}: {WAS_REPLACED}")
        fields = tuple(Field(**field) for field in record["fields"])
        return cls(source, chosen_export(record["to"], record["settings"]), fields)

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

    def notes_of(self, done: Done) -> Iterator[str]:
        """Yield sentences about what was written, known only when all parts are."""
        yield from self.export.notes_of(done)
        if turned := sum(each.facts.get(TURNED, 0) for _, each in done.parts):
            yield f"{counted(turned, 'image')} turned as EXIF says, and written anew"


def chosen_export(to: str, settings: Mapping[str, Any]) -> Export:
    """Return the export of a name with its settings. Raises UsageError for an unknown name or
    setting."""
    if to not in EXPORTS:
        raise UsageError(unknown("the form of an export", to, EXPORTS))
    module, _, name = EXPORTS[to].export.partition(":")
    class_: Any = getattr(importlib.import_module(f"shardctl.interop.exports.{module}"), name)
    known = [field.name for field in fields(class_)]
    declared = declared_in(FormSettings)
    for odd in settings:
        if odd not in known:
            has = f"{did_you_mean(odd, known) or ';'} it has {', '.join(known)}" if known else ""
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


def write_parts(
    job: ExportJob, staging: Staging, workers: int | str, progress: Callable[[int, int], None]
) -> list[tuple[ExportPart, PartResult]]:
    """Write the parts of an export that are not done yet, by workers or in this process, and return
    all parts in order. `progress` is called with (samples read, samples)."""
    source, parts, found, read = job.source, job.parts, dict[int, PartResult](), 0

    def tell(samples: int) -> None:
        nonlocal read
        read += samples
        progress(read, source.samples)

    def keep(place: int, written: PartResult) -> None:
        found[missing[place]] = written
        note(ends[place] - 1)

    staging.begin(job.to_json())
    for number, part in enumerate(parts):
        if (done := staging.done(part)) is not None:
            found[number] = done
    staging.sweep(list(found.values()))
    tell(sum(source.shard(shard).entry.rows for number in found for shard in parts[number].shards))
    missing = [number for number in range(len(parts)) if number not in found]
    ends = list(accumulate(len(parts[number].shards) for number in missing))
    names = [source.shard(shard).entry.path for number in missing for shard in parts[number].shards]
    few = len(parts) == 1 or source.bytes < SMALL
    with source.folder.prefetch(names) as note:
        if missing and workers != 0 and not (few and workers == "auto"):
            _write_in_pool(job, staging, workers, missing, tell, keep)
        else:
            for place, number in enumerate(missing):
                written = job.write(parts[number], staging.files, tell)
                staging.finish(parts[number], written)
                keep(place, written)
    return [(part, found[number]) for number, part in enumerate(parts)]


def _write_in_pool(
    job: ExportJob,
    staging: Staging,
    workers: int | str,
    missing: Sequence[int],
    tell: Progress,
    keep: Callable[[int, PartResult], None],
) -> None:
    """Have some parts written by workers. `keep` gets what was written of each, by its place among
    these."""
    start = {
        "folder": str(staging.path),
        "state": job.source.state,
        "version": staging.record_path.stat().st_mtime_ns,
    }
    deaths, told = Deaths(), Counter[int]()

    def on_message(task: Task, message: Json) -> None:
        if "done" in message:
            keep(task["place"], PartResult.from_json(message["done"]))
        else:
            told[task["part"]] += message["progress"]
            tell(message["progress"])

    def died(task: Task, death: Death) -> Task:
        tell(-told.pop(task["part"], 0))  # these samples are read again
        if deaths.is_fatal(task["part"], death):
            name = printable(job.parts[task["part"]].name)
            why = f" ({printable(death.last_words)})" if death.last_words else ""
            raise WorkerError(
                f"{job.source.shown}: the process that wrote {name} {death}{why}; "
                "fewer --workers need less memory, and `shardctl verify` tells more"
            )
        return task

    if isinstance(workers, int):
        workers = min(workers, len(missing))
    pool = Pool(WORKER, workers, Limits(), remedy=lambda possible: f"use --workers {possible}, or ")
    tasks = LazySequence(
        len(missing), lambda place: {**start, "place": place, "part": missing[place]}
    )
    try:
        pool.run(tasks, on_message, died)
    finally:
        pool.close()


def handle(task: Json, tell: Tell, _progress: WorkerProgress) -> Any:
    """Write the part with the number `part` of the export in the folder `folder`, and return what
    was written.

    Raises DatasetError if the dataset is not in the `state` for which the export was planned.
    """
    staging = Staging(Path(task["folder"]))
    job = _job(staging, task["state"], task["version"])
    part = job.parts[task["part"]]
    written = job.write(part, staging.files, tell)
    staging.finish(part, written)
    return asdict(written)


@lru_cache(maxsize=1)
def _job(folder: JobFolder, state: str, _version: int) -> ExportJob:
    """Return the job, which is read once for all parts of an export. Raises DatasetError if its
    dataset is another one."""
    return ExportJob.from_json(folder.record(), state)
