"""A dataset in Python: open, index, take, iterate, filter, load, mix."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.arguments import mapping, names, real_number, truth, whole_number
from shardctl.errors import DatasetError, UsageError
from shardctl.loader import DatasetStream, Loader, LoaderOptions, Mixture, Selection, StreamOptions, check_mixture
from shardctl.manifest import MANIFEST, Manifest
from shardctl.order import OrderOptions
from shardctl.reader import (
    HEADER_FIELDS,
    IMAGE,
    LABEL,
    Batch,
    Column,
    Finish,
    Gatherer,
    GatherOptions,
    Indices,
    Normalization,
    Shards,
    columns_of,
    header_fields,
    identity,
    in_place,
)
from shardctl.sample import Sample
from shardctl.storage import printable
from shardctl.transforms.base import parse_size
from shardctl.transforms.resize import Resize
from shardctl.where import first_line, kept_rows, parse_where, quoted

ITERATE_ROWS = 64
"""Number of samples that plain iteration reads at a time."""


def open_dataset(path: str | Path, split: str | None = None) -> Dataset:
    """Open a dataset, or one of its splits. Raises DatasetError, and UsageError for an unknown split."""
    root = Path(path)
    while True:
        found = identity(root / MANIFEST)
        try:
            opened = Dataset(Selection(Shards(root, split)))
        except DatasetError:
            if identity(root / MANIFEST) == found:
                raise
            continue  # `convert --overwrite` replaced the dataset between the reading of two of its files
        if identity(root / MANIFEST) == found:
            return opened


class Dataset:
    """The samples of one split (or of all splits, in order), or a selection of them. Samples are read when they are used."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._samples = self._gatherer(columns=None)

    @property
    def root(self) -> Path:
        """The folder of the dataset."""
        return self._selection.shards.root

    @property
    def split(self) -> str | None:
        """The split that was opened, None for all splits."""
        return self._selection.shards.split

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._selection)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Sample: ...

    @overload
    def __getitem__(self, index: slice) -> Dataset: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Sample | Dataset:
        """Return one sample as a dict; negative indices count from the end. A slice returns the dataset of those samples.

        A missing value is None. Raises IndexError, and TypeError for what is no whole number.
        """
        if isinstance(index, slice):
            places = np.arange(*index.indices(len(self)), dtype=np.int64)
            return Dataset(Selection(self._selection.shards, self._selection.samples(places)))
        if isinstance(index, bool | np.bool_):  # older versions of numpy take np.True_ for 1
            raise TypeError(f"the index of a sample must be a whole number; it is {index}")
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"sample {place} of a dataset of {len(self)}")
        batch = self.take([place % len(self)])
        return {name: values[0] for name, values in batch.items()}

    def __iter__(self) -> Iterator[Sample]:
        """Yield every sample as a dict. A missing value is None."""
        for first in range(0, len(self), ITERATE_ROWS):
            batch = self.take(range(first, min(first + ITERATE_ROWS, len(self))))
            for row in range(len(batch["key"])):
                yield {name: values[row] for name, values in batch.items()}

    def __repr__(self) -> str:
        """Return the number of samples, the split, the classes and the columns, for display."""
        of_split = f" of split {self.split}" if self.split else ""
        of_all = "" if self._selection.chosen is None else f", chosen from {len(self._selection.shards)}"
        classes = self.manifest.fields.get("label", {}).get("names")
        named = f"; {len(classes)} classes" if classes is not None else ""
        columns = ", ".join(name for name, _ in self.manifest.schema)
        where = printable(str(self._selection.shards.root))
        return f"<shardctl.Dataset {where!r}: {len(self)} samples{of_split}{of_all}{named}; columns {columns}>"

    @property
    def identity(self) -> dict[str, Any]:
        """The identity of this dataset as plain data: its fingerprint, the split, the selection of samples."""
        return self._selection.identity()

    def __reduce__(self) -> tuple[Any, ...]:
        """Open the dataset again when it is unpickled, for instance in a worker process."""
        return _reopen, (str(self._selection.shards.root), self.split, self._selection.chosen)

    def take(self, indices: Sequence[int], columns: Sequence[str] | None = None, decode: bool = True) -> Batch:
        """Return the samples at these indices, in this order, as one batch; negative indices count from the end.

        A column of numbers is an array, or a list with None if a value is missing. Raises IndexError, UsageError.
        """
        given = np.asarray(indices)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise UsageError(f"take() needs a list of whole numbers; it is {indices!r}")
        size = len(self)
        for extreme in (given.min(), given.max()) if given.size else ():
            if not -size <= extreme < size:
                raise IndexError(f"sample {extreme} of a dataset of {size}")
        wanted = given.astype(np.int64)
        wanted[wanted < 0] += size
        gatherer = self._samples if columns is None and decode else self._gatherer(columns, decode)
        return gatherer.gather(self._selection.samples(wanted))[0]

    def _gatherer(self, columns: Sequence[str] | None, decode: bool = True) -> Gatherer:
        shards = self._selection.shards
        chosen = None if columns is None else names("columns", columns)
        return Gatherer(shards, columns_of(shards, chosen), Finish(decode=decode), GatherOptions())

    def filter(self, predicate: str | pc.Expression) -> Dataset:
        """Return the samples that match a condition: `"label == 'cat' and width > 500"`, or `pc.field("label") == 3`.

        A string has the syntax of `shardctl inspect --where`: only the columns that it names are read, and `width`, `height`
        and `image_bytes` come from the headers of images. `split` is the split of a sample, and `index` its place in this
        dataset, as in `ds[index]`. An Arrow expression can use every column except images and arrays,
        and reads all of these columns once. The result takes 8 bytes of memory per sample. Raises UsageError if the condition
        does not fit the columns.
        """
        columns = [c.name for c in columns_of(self._selection.shards, None) if not c.shape and not c.is_encoded_image]
        derived: list[str] = []
        said = quoted(str(predicate))
        if isinstance(predicate, str):
            where = parse_where(predicate, self._askable(columns), self.classes, "filter")
            columns = [name for name in columns if name in where.columns]
            derived = [name for name in where.columns if name not in columns]
            predicate = where.expression
        try:
            chosen = np.fromiter(self._matching(predicate, columns, derived), np.int64)
        except (pa.ArrowException, KeyError, TypeError) as error:
            reason = first_line(error)
            among = ", ".join([*columns, *derived])
            raise UsageError(f"filter {said} cannot be computed from the columns {among}: {reason}") from error
        return Dataset(Selection(self._selection.shards, chosen))

    def _askable(self, columns: list[str]) -> pa.Schema:
        """Return the names that a condition may use: these columns, the place of a sample, and the fields of image headers."""
        known = {**_PLACE_FIELDS, **(HEADER_FIELDS if IMAGE in self.schema.names else {})}
        derived = [pa.field(*each) for each in known.items()]
        return pa.schema(
            [self.schema.field(name) for name in columns] + [field for field in derived if field.name not in columns]
        )

    def _matching(self, predicate: pc.Expression, columns: list[str], derived: list[str]) -> Iterator[int]:
        of_images = [name for name in derived if name in HEADER_FIELDS]
        samples = self._gatherer([*columns, IMAGE] if of_images else columns or ["key"])
        starts = self._selection.starts()
        for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            places = self._selection.samples(np.arange(begin, end))
            table = samples.table(places)
            if of_images:
                images = table.column(IMAGE).combine_chunks()
                found = header_fields(Column.of(table.schema.field(IMAGE)), images, of_images)
                table = pa.table({**{name: table.column(name) for name in columns}, **found})
            if "index" in derived:
                table = table.append_column("index", pa.array(np.arange(begin, end)))
            if "split" in derived:  # these samples are in one block, so in one split
                split = self._selection.shards.split_of(int(places[0]))
                table = table.append_column("split", pa.array([split] * len(places), pa.string()))
            yield from kept_rows(table.append_column(_PLACE, pa.array(places)), predicate).column(_PLACE).to_pylist()

    def limit(self, samples: int) -> Dataset:
        """Return the first `samples` samples. Raises UsageError for a negative number."""
        if whole_number("limit", samples) < 0:
            raise UsageError(f"a limit of {samples} samples is impossible; give 0 or more")
        return Dataset(Selection(self._selection.shards, self._selection.samples(np.arange(min(samples, len(self))))))

    @property
    def schema(self) -> pa.Schema:
        """The Arrow types of the fields."""
        return self._selection.shards.layout.columns

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The class names: `classes[n]` is the name of label n. None if labels have no names."""
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
        crop: int | str | tuple[int, int] | None = None,
        crop_from: str = "center",
        flip: bool | float = False,
        resize: int | str | tuple[int, int] | None = None,
        channels_first: bool = False,
        pad: Mapping[str, float] | None = None,
        fill: Mapping[str, float] | None = None,
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
        """Return a loader of batches; docs/loader.md says what every option does. Raises UsageError.

        LoaderOptions describes the options of batches, OrderOptions those of the order, GatherOptions those of reading
        (`cache` is in bytes, `on_error` is "raise" or "skip"), and Finish those of decoding and converting values.
        """
        if on_error not in ("raise", "skip"):
            raise UsageError(f"on_error {on_error!r} is not known; use 'raise' or 'skip'")
        gather = GatherOptions(
            mmap=truth("mmap", mmap),
            preload=truth("preload", preload),
            cache_bytes=_cache(cache),
            checksums=truth("checksums", checksums),
            skip=on_error == "skip",
            profile=truth("profile", profile),
        )
        finish = Finish(
            truth("decode", decode),
            _crop(crop),
            crop_from,
            _probability(flip),
            mapping("pad", pad),
            mapping("dtype", dtype),
            mapping("normalize", normalize),
            whole_number("seed", seed),
            _resize(resize),
            truth("channels_first", channels_first),
            mapping("fill", fill),
        )
        mode = shuffle if isinstance(shuffle, str) else self._best_order(gather) if truth("shuffle", shuffle) else None
        order = OrderOptions(mode, finish.seed, lanes, interleave)
        chosen = names("columns", columns) if columns is not None else None
        stream = DatasetStream(self._selection, StreamOptions(order, chosen, finish, gather))
        options = LoaderOptions(
            batch_size,
            rank,
            world_size,
            threads,
            truth("drop_last", drop_last),
            remainder,
            prefetch,
            repeat,
            mapping("bucket", bucket),
            finish.seed,
            truth("reuse", reuse),
        )
        loader = Loader(stream, options)
        if LABEL not in (fill or {}) and any(column.name == LABEL for column in stream.columns):
            self._check_labels()
        return loader

    def _check_labels(self) -> None:
        """Raise UsageError if the manifest says that labels are missing: now, and not after hours of training."""
        counts, shards = self.manifest.class_counts, self._selection.shards
        if counts is None or self._selection.chosen is not None:
            return
        splits = [facts.name for facts in self.manifest.splits if self.split in (None, facts.name)]
        labelled = sum(sum(counts.get(split, ())) for split in splits)
        if labelled >= len(self):
            return
        key = self._first_without_label()
        if key is not None:
            raise UsageError(
                f"{printable(str(shards.root))}: {len(self) - labelled} of {len(self)} samples have no label, the first of them"
                f" is {key!r}; give fill={{'label': -1}} to the loader, or leave the column out with columns="
            )

    def _first_without_label(self) -> str | None:
        """Return the key of the first sample that has no label; None if each has one, perhaps outside of the classes."""
        labels, starts = self._gatherer([LABEL]), self._selection.starts()
        for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            column = labels.table(np.arange(begin, end)).column(LABEL)
            if column.null_count:
                place = column.to_pylist().index(None)
                return str(self.take([begin + place], columns=["key"])["key"][0])
        return None

    def _best_order(self, gather: GatherOptions) -> str:
        """Return the best random order for the storage: of single samples, or of whole blocks."""
        return "global" if in_place(self._selection.shards, gather) else "window"


def mix(datasets: Sequence[Dataset], weights: Sequence[float], samples: int | None = None) -> Mix:
    """Mix several datasets by weight: each has its exact share of every 4,096 samples of the mixture.

    An epoch of the mixture has `samples` samples, by default as many as all datasets together. Each dataset continues
    where the epoch before ended, and starts again in another order after its last sample. Labels with names are
    renumbered by `classes` of the mixture. Raises UsageError if there is not one weight above 0 for every dataset, for a
    dataset without samples, and for fewer than 1 sample.
    """
    return Mix(datasets, weights, samples)


class Mix:
    """Several datasets that are read as one. `shardctl.mix` makes it."""

    def __init__(self, datasets: Sequence[Dataset], weights: Sequence[float], samples: int | None) -> None:
        self._datasets = list(datasets)
        for dataset in self._datasets:
            if not isinstance(dataset, Dataset):
                raise UsageError(f"mix() takes a list of datasets from shardctl.open; {dataset!r} is not one")
        self._weights = [real_number("a weight", weight) for weight in weights]
        self._samples = None if samples is None else whole_number("samples", samples)
        check_mixture([len(dataset) for dataset in self._datasets], self._weights, self._samples)

    def __len__(self) -> int:
        """Return the number of samples in an epoch."""
        return sum(map(len, self._datasets)) if self._samples is None else self._samples

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The class names of all datasets, in the order in which they first appear: `classes[n]` is the name of label n.

        None if a dataset has no class names.
        """
        found: dict[str, None] = {}
        for dataset in self._datasets:
            if dataset.classes is None:
                return None
            found |= dict.fromkeys(dataset.classes)
        return tuple(found)

    def __repr__(self) -> str:
        """Return a description for display."""
        named = f"; {len(self.classes)} classes" if self.classes is not None else ""
        parts = ", ".join(f"{weight:g} x {dataset!r}" for weight, dataset in zip(self._weights, self._datasets, strict=True))
        return f"<shardctl.Mix: {len(self)} samples{named}; {parts}>"

    def loader(self, batch_size: int, *, seed: int = 0, **options: Any) -> Loader:
        """Return a loader of mixed batches, with the options of Dataset.loader. Raises UsageError."""
        parts = [dataset.loader(batch_size, seed=seed, **options) for dataset in self._datasets]
        streams = [self._relabelled(part.stream, dataset) for part, dataset in zip(parts, self._datasets, strict=True)]
        self._check_types(options.get("columns"))
        return Loader(Mixture(streams, self._weights, self._samples, whole_number("seed", seed)), parts[0].options)

    def _relabelled(self, stream: Any, dataset: Dataset) -> DatasetStream:
        """Return a dataset's stream with its labels renumbered by the classes of the mixture."""
        own: DatasetStream = stream
        if LABEL not in own.specs() or all(each.classes is None for each in self._datasets):
            return own
        classes = self.classes
        if classes is None or dataset.classes is None:
            bare = next(each for each in self._datasets if each.classes is None)
            raise UsageError(
                f"the labels of {printable(str(bare.root))} have no names and those of another dataset have: they cannot be"
                " combined; leave the column out with columns="
            )
        numbers = {name: number for number, name in enumerate(classes)}
        labels = tuple(numbers[name] for name in dataset.classes)
        return own if labels == tuple(range(len(labels))) else own.relabelled(labels)

    def _check_types(self, columns: Sequence[str] | None) -> None:
        """Raise UsageError if a column that is not numeric has another type in another dataset."""
        first, *others = self._datasets
        for name in first.schema.names if columns is None else columns:
            for other in others:
                if name not in other.schema.names:
                    continue  # the mixture reports it, with the names of all fields
                one, two = first.schema.field(name).type, other.schema.field(name).type
                if Column.of(first.schema.field(name)).kind == "other" and not one.equals(two):
                    raise UsageError(f"column {name} is {one} in one dataset and {two} in another; leave it out with columns=")


def _cache(cache: Any) -> int:
    """Return a number of bytes."""
    size = int(real_number("cache", cache))
    if size < 0:
        raise UsageError(f"cache must be a number of bytes, 0 or more; it is {size}")
    return size


def _crop(crop: Any) -> tuple[int, int] | None:
    """Return (height, width) from one number, from two, or from "WIDTHxHEIGHT"."""
    if crop is None:
        return None
    size = _size("crop", crop)
    return (size, size) if isinstance(size, int) else size


def _size(option: str, value: Any) -> int | tuple[int, int]:
    """Return one number, or (height, width)."""
    if isinstance(value, str):
        parsed = parse_size(value, option)
        return parsed if isinstance(parsed, int) else parsed[::-1]
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise UsageError(f"{option} takes one number or (height, width); it is {value!r}")
        height, width = (whole_number(option, side) for side in value)
        return height, width
    return whole_number(option, value)


def _resize(resize: Any) -> Resize | None:
    """Return the same transform as in a conversion, where width comes before height."""
    if resize is None:
        return None
    size = _size("resize", resize)
    return Resize.parse(size if isinstance(size, int) else size[::-1])


def _probability(flip: Any) -> float:
    """Return the probability of mirroring an image."""
    if isinstance(flip, bool | np.bool_):
        return 0.5 if flip else 0.0
    share = real_number("flip", flip)
    if not 0 <= share <= 1:
        raise UsageError(f"flip is True (for half of the images), or a probability from 0 to 1; it is {flip!r}")
    return share


_PLACE = "__place__"
"""The column that holds the result of a filter."""

_PLACE_FIELDS = {"index": pa.int64(), "split": pa.string()}
"""What a condition can ask of any sample. A column of the same name takes precedence."""


def _reopen(root: str, split: str | None, chosen: Indices | None) -> Dataset:
    opened = open_dataset(root, split)
    return opened if chosen is None else Dataset(Selection(opened._selection.shards, chosen))
