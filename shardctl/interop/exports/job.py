"""What a worker is told: the dataset, what was chosen of it, the form, its settings and the
columns; and the worker process, in which worker_loop.py calls `handle`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from shardctl.errors import DatasetError, UsageError
from shardctl.format.dataset_place import DatasetFolder, from_json, to_json
from shardctl.interop.exports.base import Export, ExportPart, PartResult, Progress
from shardctl.interop.exports.options import EXPORTS, Choice, FormSettings
from shardctl.interop.exports.source import Source
from shardctl.interop.exports.staging import Staging
from shardctl.sources.export_description import Field
from shardctl.system.dataclass import dataclass
from shardctl.system.job_folder import JobFolder
from shardctl.system.locations.local import LocalFolder
from shardctl.system.options import declared_in
from shardctl.system.processes.progress_slot import WorkerProgress
from shardctl.system.processes.worker_loop import Tell
from shardctl.system.text import counted, did_you_mean, unknown

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
        export = chosen_export(to, dict(settings))
        return cls(source, export, settings, fields, export.parts(source))

    def to_json(self) -> dict[str, Any]:
        """Return what makes the same job of the same dataset, as plain data."""
        return {
            "dataset": to_json(self._folder),
            "choice": self.source.choice.to_json(),
            "to": self.export.name,
            "settings": dict(self.settings),
            "fields": [asdict(field) for field in self.fields],
        }

    def named(self) -> dict[str, Any]:
        """Return what is the same in every run of the same export, wherever a dataset on a store is
        fetched to."""
        return {**self.to_json(), "dataset": self._folder.text}

    @property
    def _folder(self) -> DatasetFolder:
        """The folder of the dataset, by the name that it has wherever a process is."""
        here = self.source.folder.local
        return self.source.folder if here is None else LocalFolder(here.resolve())

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ExportJob:
        """Return the job that `to_json` gave. Raises DatasetError if the dataset is not there any
        more."""
        source = Source(from_json(record["dataset"]), Choice.from_json(record["choice"]))
        fields = tuple(Field(**field) for field in record["fields"])
        return cls.of(source, record["to"], record["settings"], fields)

    def write(self, part: ExportPart, folder: Path, progress: Progress) -> PartResult:
        """Write one part. Raises DatasetError if there is another dataset by the time that it is
        done."""
        before = self.source.turned
        written = self.export.write(self.source, self.fields, part, folder, progress)
        if turned := self.source.turned - before:
            written = replace(written, facts={**written.facts, TURNED: turned})
        # here too: at the end of the export the first one may be back
        self.source.check_unchanged()
        return written

    def notes_of(
        self, folder: Path, written: Sequence[tuple[ExportPart, PartResult]]
    ) -> tuple[str, ...]:
        """Return sentences about what was written, known only when all parts are."""
        turned = sum(each.facts.get(TURNED, 0) for _, each in written)
        said = self.export.notes_of(self.source, folder, written)
        return (
            (*said, f"{counted(turned, 'image')} turned as EXIF says, and written anew")
            if turned
            else said
        )


def chosen_export(to: str, settings: dict[str, Any]) -> Export:
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
    export: Export = class_(**settings)
    return export


def handle(task: dict[str, Any], tell: Tell, _progress: WorkerProgress) -> Any:
    """Write the part with the number `part` of the export in the folder `folder`, and return what
    was written.

    Raises DatasetError if the dataset is not in the `state` for which the export was planned.
    """
    staging = Staging(Path(task["folder"]))
    job = _job(staging.job, task["state"], task["version"])
    part = job.parts[task["part"]]
    written = job.write(part, staging.files, tell)
    staging.mark_done(part, written)
    return written.to_json()


@lru_cache(maxsize=1)
def _job(folder: JobFolder, state: str, _version: int) -> ExportJob:
    """Return the job, which is read once for all parts of an export. Raises DatasetError if its
    dataset is another one."""
    job = ExportJob.from_json(folder.record())
    # moved away, and another one put in its place, since the export was planned
    if job.source.state != state:
        raise DatasetError(
            f"{job.source.shown}: was changed while it was exported; run the same command again"
        )
    return job
