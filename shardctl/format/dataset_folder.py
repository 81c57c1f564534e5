"""One generation of a dataset of this machine, as a folder: its manifest, its tables and its shards
by their names, wherever they lie. docs/format.md, section 1."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.errors import DatasetError
from shardctl.format.generations import generation_folders
from shardctl.format.manifest import Manifest, places_of
from shardctl.format.names import (
    BESIDE,
    DATA,
    GENERATIONS,
    MANIFEST,
    STAGING,
    Places,
    job_of_generation,
)
from shardctl.system.folders import LocalFolder
from shardctl.system.job_folder import JobFolder
from shardctl.system.text import printable

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class DatasetFolder(LocalFolder):
    """The files of a generation by their names (Places).

    The manifest is manifest.json while that is whole and of this generation. Else it is the copy
    beside the tables. `is_found` says that manifest.json cannot be read, and the generation was
    only found: then manifest.json is read all the same, and its reader says what is wrong.
    """

    places: Places = BESIDE
    is_found: bool = False

    def path(self, name: str) -> Path:
        """Return the path of a file, which need not be there."""
        return self.root / (name if name == MANIFEST else self.places.of(name))

    def read(self, name: str, start: int = 0, length: int | None = None) -> pa.Buffer:
        """Return bytes of an ordinary file."""
        if name == MANIFEST and self.places.tables and not self.is_found:
            with contextlib.suppress(DatasetError, OSError):
                data = super().read(MANIFEST)
                if Manifest.parse(data, "").places == self.places:
                    return data
            name = f"{self.places.tables}{MANIFEST}"
        return super().read(name, start, length)

    def shown(self, name: str = "") -> str:
        """Return the location of a file, or of the dataset, as it is printed."""
        return super().shown(self.places.of(name) if name and name != MANIFEST else name)

    def names(self) -> list[str]:
        """Return the names of what is right in the folder of the dataset, among its shards, and
        beside the tables."""
        of_root = set(os.listdir(self.root))
        of_tables = set(os.listdir(self.root / self.places.tables)) if self.places.tables else set()
        shards = os.listdir(self.root / DATA) if DATA in of_root else []
        return [*(of_root | of_tables), *(f"{DATA}/{name}" for name in shards)]


def dataset_of(manifest: Manifest, dataset: LocalFolder) -> DatasetFolder:
    """Return the files of the generation of a manifest, in the folder of its dataset."""
    return DatasetFolder(dataset.root, dataset.url, manifest.places)


def dataset_in(path: Path) -> DatasetFolder:
    """Return the dataset at a path as its manifest says it now; of a path of a generation, that one.

    Where the manifest cannot be read, the last generation that is there; else the files are those in
    the folder. Raises nothing: who reads the manifest says what is wrong.
    """
    here = LocalFolder(path)
    with contextlib.suppress(DatasetError):
        manifest = Manifest.load(here)
        if manifest.job and path.absolute().parent.name == GENERATIONS:
            return DatasetFolder(path.absolute().parents[1], "", manifest.places)
        return dataset_of(manifest, here)
    folders = generation_folders(path)
    jobs = (path / STAGING).glob("*") if folders else ()
    begun = {JobFolder(job).id or job.name.rpartition("-")[2] for job in jobs}  # not committed
    there = [each for each in folders if job_of_generation(each) not in begun]
    return DatasetFolder(path, "", Places(there[-1]), True) if there else DatasetFolder(path)


def generation_in(root: Path, number: int) -> DatasetFolder:
    """Return a generation of the dataset at a path, by its number. Raises DatasetError if it is not
    there."""
    manifest = Manifest.load(LocalFolder(root))
    return DatasetFolder(root, "", places_of(manifest, number, printable(root)))
