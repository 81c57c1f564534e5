"""A dataset as people hold it in their hands: open, index, take, iterate, load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.loader import Loader, LoaderOptions
from shardctl.manifest import MANIFEST, Manifest
from shardctl.reader import Batch, SampleReader
from shardctl.sample import Sample

ITERATE_ROWS = 64
"""Samples that plain iteration reads at a time."""


def open_dataset(path: str | Path, split: str | None = None) -> Dataset:
    """Open a dataset, or one of its splits. Raises DatasetError, and UsageError for a split that there is not."""
    root = Path(path)
    while True:
        found = _identity(root / MANIFEST)
        try:
            opened = Dataset(root, split)
        except DatasetError:
            if _identity(root / MANIFEST) == found:
                raise
            continue  # `convert --overwrite` put another dataset in its place between one file and the next
        if _identity(root / MANIFEST) == found:
            return opened


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what tells one file at this path from the next; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


class Dataset:
    """The samples of one split (or of all, in the manifest's order). Nothing is read before it is asked for."""

    def __init__(self, root: Path, split: str | None = None) -> None:
        self._reader = SampleReader(root, split)
        self.split = split

    def __len__(self) -> int:
        return len(self._reader)

    def __getitem__(self, index: int) -> Sample:
        """Return one sample; negative indices count from the end."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of a dataset of {len(self)}")
        batch = self.take([index % len(self)])
        return {name: values[0] for name, values in batch.items()}

    def __iter__(self) -> Iterator[Sample]:
        for first in range(0, len(self), ITERATE_ROWS):
            batch = self.take(range(first, min(first + ITERATE_ROWS, len(self))))
            for row in range(len(batch["key"])):
                yield {name: values[row] for name, values in batch.items()}

    def take(self, indices: Sequence[int], columns: Sequence[str] | None = None, decode: bool = True) -> Batch:
        """Return the samples at these indices, in this order, as one batch."""
        wanted = np.asarray(indices, np.int64)
        if len(wanted) and not (wanted.min() >= 0 and wanted.max() < len(self)):
            raise IndexError(f"an index is outside a dataset of {len(self)}")
        return self._reader.gather(wanted, self._reader.check_columns(columns), decode)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow types of the fields."""
        return self._reader.layout.columns

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the values of `label`, where it has names."""
        return self._reader.layout.classes

    @property
    def manifest(self) -> Manifest:
        """What manifest.json says."""
        return self._reader.manifest

    def loader(
        self,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        threads: int | str = "auto",
        drop_last: bool = False,
        columns: Sequence[str] | None = None,
        decode: bool = True,
    ) -> Loader:
        """Return a loader of batches; see LoaderOptions for what each argument says. Raises UsageError."""
        chosen = tuple(columns) if columns is not None else None
        options = LoaderOptions(batch_size, shuffle, seed, rank, world_size, threads, drop_last, chosen, decode)
        return Loader(self._reader, options)
