"""What a worker is told: the dataset, what was chosen of it, the form, its settings and the
columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from shardctl.format.dataset_location import DatasetFolder, from_json, to_json
from shardctl.interop.exports.base import Export, ExportPart, PartResult, Progress
from shardctl.interop.exports.forms import chosen_export
from shardctl.interop.exports.options import Choice
from shardctl.interop.exports.source import Source
from shardctl.sources.export_description import Field
from shardctl.system.folders import LocalFolder
from shardctl.system.text import counted

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
