"""A dataset as people hold it in their hands: open, index, take, iterate, load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import DatasetError, UsageError
from shardctl.loader import DatasetStream, Loader, LoaderOptions, Mixture, Selection, StreamOptions
from shardctl.manifest import MANIFEST, Manifest
from shardctl.order import OrderOptions
from shardctl.reader import (
    Batch,
    Finish,
    Gatherer,
    GatherOptions,
    Indices,
    Normalization,
    Shards,
    columns_of,
    identity,
    in_place,
)
from shardctl.sample import Sample

ITERATE_ROWS = 64
"""Samples that plain iteration reads at a time."""


def open_dataset(path: str | Path, split: str | None = None) -> Dataset:
    """Open a dataset, or one of its splits. Raises DatasetError, and UsageError for a split that there is not."""
    root = Path(path)
    while True:
        found = identity(root / MANIFEST)
        try:
            opened = Dataset(Selection(Shards(root, split)))
        except DatasetError:
            if identity(root / MANIFEST) == found:
                raise
            continue  # `convert --overwrite` put another dataset in its place between one file and the next
        if identity(root / MANIFEST) == found:
            return opened


class Dataset:
    """The samples of one split (or of all, in order), or some of them. Nothing is read before it is asked for."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._samples = self._gatherer(columns=None)

    @property
    def split(self) -> str | None:
        """The split that was opened, None for all."""
        return self._selection.shards.split

    def __len__(self) -> int:
        return len(self._selection)

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

    def __repr__(self) -> str:
        """Name the dataset and tell it from others."""
        which = ", ".join(f"{name}={value!r}" for name, value in self._selection.identity().items())
        return f"shardctl.Dataset({str(self._selection.shards.root)!r}, {which})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Open the dataset again where it is unpickled: in a worker process."""
        return _reopen, (str(self._selection.shards.root), self.split, self._selection.chosen)

    def take(self, indices: Sequence[int], columns: Sequence[str] | None = None, decode: bool = True) -> Batch:
        """Return the samples at these indices, in this order, as one batch."""
        wanted = np.asarray(indices, np.int64)
        if len(wanted) and not (wanted.min() >= 0 and wanted.max() < len(self)):
            raise IndexError(f"an index is outside a dataset of {len(self)}")
        gatherer = self._samples if columns is None and decode else self._gatherer(columns, decode)
        return gatherer.gather(self._selection.samples(wanted))[0]

    def _gatherer(self, columns: Sequence[str] | None, decode: bool = True) -> Gatherer:
        shards = self._selection.shards
        return Gatherer(shards, columns_of(shards, columns), Finish(decode=decode), GatherOptions())

    def filter(self, predicate: pc.Expression) -> Dataset:
        """Return the samples for which an Arrow expression on their columns is true: `pc.field("label") == 3`.

        It sees every column but images and arrays, and reads all of them once. The result needs 8 bytes per sample of it.
        Raises UsageError for an expression that is none of these columns.
        """
        columns = [c.name for c in columns_of(self._selection.shards, None) if not c.shape and not c.is_encoded_image]
        chosen = np.fromiter(self._matching(predicate, columns), np.int64)
        return Dataset(Selection(self._selection.shards, chosen))

    def _matching(self, predicate: pc.Expression, columns: list[str]) -> Iterator[int]:
        samples = self._gatherer(columns)
        starts = self._selection.starts()
        for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            places = self._selection.samples(np.arange(begin, end))
            table = samples.table(places).append_column(_PLACE, pa.array(places))
            try:
                found = table.filter(predicate).column(_PLACE)
            except (pa.ArrowException, KeyError, TypeError) as error:
                raise UsageError(f"the filter {predicate} does not fit the columns {', '.join(columns)}: {error}") from error
            yield from found.to_pylist()

    def limit(self, samples: int) -> Dataset:
        """Return the first so many samples. Raises UsageError for fewer than 0."""
        if samples < 0:
            raise UsageError(f"a limit of {samples} samples is impossible; give 0 or more")
        return Dataset(Selection(self._selection.shards, self._selection.samples(np.arange(min(samples, len(self))))))

    @property
    def schema(self) -> pa.Schema:
        """The Arrow types of the fields."""
        return self._selection.shards.layout.columns

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the values of `label`, where it has names."""
        return self._selection.shards.layout.classes

    @property
    def manifest(self) -> Manifest:
        """What manifest.json says."""
        return self._selection.shards.manifest

    def loader(
        self,
        batch_size: int,
        shuffle: bool | str = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        threads: int | str = "auto",
        drop_last: bool = False,
        columns: Sequence[str] | None = None,
        decode: bool = True,
        *,
        lanes: int = 64,
        interleave: int = 64,
        remainder: str = "uneven",
        prefetch: int | None = None,
        repeat: int | None = 1,
        bucket: Mapping[str, int] | None = None,
        crop: int | tuple[int, int] | None = None,
        crop_from: str = "center",
        flip: bool = False,
        pad: Mapping[str, float] | None = None,
        dtype: Mapping[str, str] | None = None,
        normalize: Mapping[str, Normalization] | None = None,
        mmap: bool = True,
        preload: bool = False,
        cache: int = 0,
        checksums: bool = False,
        on_error: str = "raise",
        reuse: bool = False,
        profile: bool = False,
    ) -> Loader:
        """Return a loader of batches. Raises UsageError.

        What is made of batches is in LoaderOptions, the order in OrderOptions, reading in GatherOptions (`cache` is in
        bytes, `on_error` is "raise" or "skip"), and what is done to values in Finish. docs/loader.md has all of it.
        """
        if on_error not in ("raise", "skip"):
            raise UsageError(f"on_error {on_error!r} is not known; use 'raise' or 'skip'")
        gather = GatherOptions(
            mmap=mmap, preload=preload, cache_bytes=cache, checksums=checksums, skip=on_error == "skip", profile=profile
        )
        finish = Finish(
            decode,
            (crop, crop) if isinstance(crop, int) else crop,
            crop_from,
            flip,
            pad or {},
            dtype or {},
            normalize or {},
            seed,
        )
        mode = shuffle if isinstance(shuffle, str) else self._best_order(gather) if shuffle else None
        order = OrderOptions(mode, seed, lanes, interleave)
        chosen = tuple(columns) if columns is not None else None
        stream = DatasetStream(self._selection, StreamOptions(order, chosen, finish, gather))
        options = LoaderOptions(
            batch_size, rank, world_size, threads, drop_last, remainder, prefetch, repeat, bucket or {}, seed, reuse
        )
        return Loader(stream, options)

    def _best_order(self, gather: GatherOptions) -> str:
        """Return the best order that the storage allows: single samples anywhere, or whole blocks."""
        return "global" if in_place(self._selection.shards, gather) else "window"


def mix(datasets: Sequence[Dataset], weights: Sequence[float], samples: int | None = None) -> Mix:
    """Mix several datasets: of every 4,096 samples of the mixture, each gives its share by weight.

    An epoch of the mixture has `samples`, as many as all datasets together for None. Each dataset goes on where it was in
    the epoch before, and begins again in another order when it is through.
    """
    return Mix(datasets, weights, samples)


class Mix:
    """Several datasets that are read as one."""

    def __init__(self, datasets: Sequence[Dataset], weights: Sequence[float], samples: int | None) -> None:
        self._datasets, self._weights, self._samples = list(datasets), list(weights), samples

    def loader(self, batch_size: int, *, seed: int = 0, **options: Any) -> Loader:
        """Return a loader of mixed batches, with the options of Dataset.loader. Raises UsageError."""
        parts = [dataset.loader(batch_size, seed=seed, **options) for dataset in self._datasets]
        mixture = Mixture([part.stream for part in parts], self._weights, self._samples, seed)
        return Loader(mixture, parts[0].options)


_PLACE = "__place__"
"""The column that a filter's result is read from."""


def _reopen(root: str, split: str | None, chosen: Indices | None) -> Dataset:
    opened = open_dataset(root, split)
    return opened if chosen is None else Dataset(Selection(opened._selection.shards, chosen))
