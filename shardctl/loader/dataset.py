"""A dataset in Python: open, index, take, iterate, filter, load."""

from __future__ import annotations

import operator
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError, ShardctlError, UsageError
from shardctl.format.arrays import Numbers
from shardctl.format.dataset_folder import generation_in
from shardctl.format.manifest import Generation, Manifest
from shardctl.format.roles import Image, Objects, Roles, Sample
from shardctl.format.token_columns import columns_of_blocks
from shardctl.loader.blocks.batch import BatchReader, columns_of
from shardctl.loader.blocks.column import Column
from shardctl.loader.blocks.locate import GatherOptions
from shardctl.loader.blocks.memory import Batch, BatchMemory
from shardctl.loader.blocks.pictures import most_pixels
from shardctl.loader.blocks.shards import Shards, open_shards
from shardctl.loader.blocks.transforms import (
    Normalization,
    Transforms,
)
from shardctl.loader.loader import Loader
from shardctl.loader.options import LoaderOptions
from shardctl.loader.order import OrderOptions
from shardctl.loader.stream import (
    DatasetStream,
    Selection,
    VariantStream,
    of_variant,
    reader_of,
)
from shardctl.system.arguments import caller_level, mapping, names, real_number, truth, whole_number
from shardctl.system.folders import LocalFolder
from shardctl.system.locations import is_url
from shardctl.system.machine import usable_cores
from shardctl.system.python_names import in_python, named_arguments, no_attribute
from shardctl.system.stores import refuse_half_url
from shardctl.system.text import counted, format_bytes, lacks, size_of
from shardctl.transforms.tokenizers.base import Tokenizer
from shardctl.transforms.tokenizers.table import stored_tokenizer

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from shardctl.sources.boxes import Shown

RecipeGiven: TypeAlias = "str | Path | Mapping[str, Any] | None"
"""A recipe file, a ready recipe (@NAME), or its keys."""

FunctionsGiven: TypeAlias = "str | Callable[..., Any] | Sequence[str | Callable[..., Any]]"
"""Functions of samples, or where each is: MODULE:FUNCTION."""

SHOWN = 5
"""Samples that a notebook shows of a dataset."""

ITERATE_ROWS = 64
"""Number of samples that plain iteration reads at a time."""


def open_dataset(
    path: str | Path,
    split: str | None = None,
    generation: int | None = None,
    cache: str | Path | bool | None = None,
    cache_limit: int | str | None = None,
) -> Dataset:
    """Open a dataset or one of its splits: its newest state, or an earlier `generation` that was
    kept (docs/update.md).

    The dataset may be on a store (s3://bucket/out). The data that was read is then kept in the
    folder `cache`, up to `cache_limit` bytes (a number, or a text such as "500GB"; see
    docs/commands/cache.md). For None, the environment variables SHARDCTL_CACHE and
    SHARDCTL_CACHE_LIMIT are used. False turns the cache off. A local dataset is never cached.
    Raises DatasetError, UsageError for an unknown split, and for a store StoreError, StorageError
    (the cache), InstallError.
    """
    if split is not None and not isinstance(split, str):
        raise UsageError(f"split is one name, or None for all; it is {split!r}")
    if cache_limit is not None:
        size_of(cache_limit, "cache_limit")
    if is_url(path):
        # local datasets need nothing of it
        from shardctl.loader.remote.open import remote_shards

        return Dataset(Selection(remote_shards(str(path), split, generation, cache, cache_limit)))
    root = Path(path)
    refuse_half_url(str(path))
    if generation is None:
        return Dataset(Selection(open_shards(root, split)))
    folder = generation_in(root, whole_number("generation", generation))
    return Dataset(Selection(Shards(folder, split)))


class Dataset:
    """The samples of one split (or of all splits, in order), or a selection of them. Samples are
    read when they are used."""

    if not TYPE_CHECKING:  # type checkers say themselves what is not there
        __getattr__ = no_attribute

    @named_arguments("Dataset", "shardctl.open(path)", Selection)
    def __init__(self, selection: Selection) -> None:
        self._selection, self._shards = selection, selection.shards
        self._samples = self._gatherer(columns=None)

    @property
    def root(self) -> Path:
        """The folder of the dataset; of one on a store, the local folder with its tables."""
        return self._shards.root

    @property
    def location(self) -> str:
        """The folder of the dataset, or its URL."""
        return self._shards.location

    @property
    def split(self) -> str | None:
        """The split that was opened, None for all splits."""
        return self._shards.split

    def in_split(self, split: str) -> Dataset:
        """Return the samples of one split of a dataset that was opened whole.

        Raises UsageError for an unknown split, and if samples were chosen before. Raises
        DatasetError if another dataset has taken its place and it was not kept.
        """
        if self._selection.chosen is not None or self.split is not None:
            raise UsageError("in_split takes a whole dataset; choose the split before samples")
        return Dataset(Selection(self._shards.in_split(split)))

    @property
    def generation(self) -> Generation:
        """The state of a dataset that follows its sources. Its `digest` stands for every byte of
        the samples."""
        return self.manifest.generation

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._selection)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Sample: ...

    @overload
    def __getitem__(self, index: slice) -> Dataset: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Sample | Dataset:
        """Return one sample as a dict; negative indices count from the end. A slice returns the
        dataset of those samples.

        A missing value is None. Raises IndexError, and TypeError for what is no whole number.
        """
        if isinstance(index, slice):
            places = np.arange(*index.indices(len(self)), dtype=np.int64)
            return Dataset(Selection(self._shards, self._selection.samples(places)))
        try:
            if isinstance(index, bool | np.bool_):  # older versions of numpy take np.True_ for 1
                raise TypeError
            place = operator.index(index)
        except TypeError:
            raise TypeError(
                f"the index of a sample must be a whole number; it is {index!r}; ds.take takes a "
                "list, ds.filter(\"key == 'a.jpg'\") a key"
            ) from None
        size = len(self)
        if not -size <= place < size:
            raise IndexError(f"sample {place:,} of a dataset of {size:,}")
        number = np.array([place % size], np.int64)  # `take` checks more than it takes to read
        batch = self._samples.gather(self._selection.samples(number))[0]
        return {name: values[0] for name, values in batch.items()}

    def __iter__(self) -> Iterator[Sample]:
        """Yield every sample as a dict. A missing value is None."""
        with self._shards.in_turn(self._selection.chosen):
            for first in range(0, len(self), ITERATE_ROWS):
                batch = self.take(range(first, min(first + ITERATE_ROWS, len(self))))
                for row in range(len(batch["key"])):
                    yield {name: values[row] for name, values in batch.items()}

    def __repr__(self) -> str:
        """Return the number of samples, the split, the classes and the columns, for display."""
        of_split = f" of split {self.split}" if self.split else ""
        of_all = "" if self._selection.chosen is None else f", chosen from {len(self._shards)}"
        classes = self.manifest.roles.classes
        named = f"; {counted(len(classes), 'class', 'classes')}" if classes is not None else ""
        columns = ", ".join(name for name, _ in self.manifest.schema)
        where = self._shards.shown
        return (
            f"<shardctl.Dataset {where!r}: "
            f"{counted(len(self), 'sample')}{of_split}{of_all}{named}; columns {columns}>"
        )

    def _repr_html_(self) -> str:
        """Return the splits, the columns and the first samples, for a notebook. So `ds[7:8]` shows
        one sample."""
        # training needs nothing of it
        from shardctl.loader.notebook import dataset_in_notebook

        manifest, chosen = self.manifest, self._selection.chosen
        splits = manifest.splits_of(self.split, self._shards.shown)
        of_split = f" of split {self.split}" if self.split else ""
        stored = format_bytes(sum(each.bytes for each in splits))
        size = stored if chosen is None else f"chosen from {len(self._shards):,}"
        line = f"{self._shards.shown}: {counted(len(self), 'sample')}{of_split}, {size}"
        samples: list[Sample] = []
        try:
            samples = list(self.limit(SHOWN))
        except ShardctlError as error:  # the rest can be shown
            line += f"; the samples cannot be shown: {error}"
        return dataset_in_notebook(
            line, splits if chosen is None else (), manifest, samples, self.roles
        )

    @property
    def identity(self) -> dict[str, Any]:
        """The identity of this dataset as plain data: a digest of its samples, the split, the
        selection of samples."""
        return self._selection.identity()

    def __reduce__(self) -> tuple[Any, ...]:
        """Open the same generation again when it is unpickled, for instance in a worker process.

        Raises DatasetError there if another one has taken its place, and it was not kept.
        """
        return Dataset, (self._selection,)

    def take(
        self,
        indices: Sequence[int],
        columns: Sequence[str] | None = None,
        decode: bool = True,
        *,
        recipe: RecipeGiven = None,
        step: Sequence[str] = (),
        transform: FunctionsGiven = (),
        seed: int = 0,
        epoch: int = 0,
    ) -> Batch:
        """Return the samples at these indices, in this order, as one batch; negative indices count
        from the end.

        A column of numbers is an array, or a list with None if a value is missing. With the steps of
        a loader and its seed, they are as it gives them in an epoch. Raises IndexError, UsageError.
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
        samples, epoch = self._selection.samples(wanted), whole_number("epoch", epoch, 0)
        read = self._samples if columns is None and decode else self._gatherer(columns, decode)
        steps = {
            "recipe": recipe,
            "step": names("step", step),
            "transform": transform,
            "seed": whole_number("seed", seed, 0),
        }
        transforms = self._with_steps(Transforms(decode), steps)
        if transforms.recipe is None:
            return read.gather(samples, epoch)[0]
        changed = reader_of(self._selection, read.columns, transforms, GatherOptions())
        return changed.gather(samples, epoch)[0]

    def _with_steps(self, transforms: Transforms, given: Mapping[str, Any]) -> Transforms:
        """Return transforms with the steps among these arguments of `loader`. Raises UsageError,
        InputError."""
        if all(given.get(name, default) is default for name, default in _STEPS.items()):
            return transforms
        # 20 ms, which most loaders never need
        from shardctl.transforms.recipe_files.overriding import recipe_while_reading

        dataset = self.manifest.recipe
        try:
            made = recipe_while_reading(given, dataset, most_pixels(dataset))
        except UsageError as error:
            raise UsageError(in_python(str(error), Dataset.loader)) from error
        if made.transform and not self.roles.images:
            raise UsageError(
                f"{self._shards.shown} has no images, which steps and functions change"
            )
        return replace(transforms, recipe=made if made.transform else None)

    def _gatherer(self, columns: Sequence[str] | None, decode: bool = True) -> BatchReader:
        chosen = None if columns is None else names("columns", columns)
        read = columns_of(self._shards, chosen)
        return BatchReader(self._shards, read, Transforms(decode=decode))

    def filter(self, predicate: str | pc.Expression) -> Dataset:
        """Return the samples that match a condition: `"label == 'cat' and width > 500"`, or
        `pc.field("label") == 3`.

        A string has the syntax of `shardctl inspect --where`, and only the columns in it are read.
        `width`, `height` and `image_bytes` come from the headers of the images. For other fields of
        images, write `NAME.width` and so on. `split` is the split of a sample, and `index` its
        place in this dataset, as in `ds[index]`. An Arrow expression can use every column except
        images and arrays, and reads all of these columns once. The result takes 8 bytes of memory
        per sample. Raises UsageError if the condition does not fit the columns.
        """
        # with pyarrow.compute 30 ms, which most loaders never need
        from shardctl.loader.filtering import matching

        return Dataset(Selection(self._shards, matching(self._selection, predicate)))

    def limit(self, samples: int) -> Dataset:
        """Return the first `samples` samples. Raises UsageError for a negative number."""
        whole_number("limit", samples, 0)
        return self[:samples]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow types of the fields."""
        return self._shards.layout.columns

    @property
    def roles(self) -> Roles:
        """The roles of the fields: images, masks, labels, text or tokens, with the known facts."""
        return self._shards.layout.roles

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The class names: `classes[n]` is the name of label n. None if labels have no names.

        If there are several fields of labels, these are the classes of `label`; None without a
        field `label`.
        """
        return self._shards.layout.classes

    @property
    def class_names(self) -> dict[str, tuple[str, ...]]:
        """The names of classes by field: of labels, and of the categories of objects. Fields
        without names are left out."""
        named: dict[str, Any] = {**self.roles.labels, **self.roles.objects}
        return {name: role.names for name, role in named.items() if role.names is not None}

    @property
    def manifest(self) -> Manifest:
        """What manifest.json says."""
        return self._shards.manifest

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens: the dataset's own copy, opened at its first use.

        It has `encode`, `decode`, `token`, `vocabulary`, `eos`, `bos` and `pad` (docs/text/tokens.md).
        Raises DatasetError if there is none or it cannot be used, InstallError if a package is
        missing.
        """
        return stored_tokenizer(
            LocalFolder(self._shards.fetch_files(self.manifest.given_files)), self.roles
        )

    @named_arguments("loader")
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
        remainder: str | None = None,
        repeated: bool = False,
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
        keep_objects: float | str | None = None,
        recipe: RecipeGiven = None,
        step: Sequence[str] = (),
        transform: FunctionsGiven = (),
        derive: Sequence[str] = (),
        unmoved: Sequence[str] = (),
        mmap: bool = True,
        preload: bool = False,
        cache: int = 0,
        checksums: bool = False,
        on_error: str = "raise",
        reuse: bool = False,
        profile: bool = False,
        processes: int | str | None = "auto",
        variant: str | int | None = None,
    ) -> Loader:
        """Return a loader of batches; `shardctl help loader` says what every option does. Raises
        UsageError.

        LoaderOptions describes the options of batches, and OrderOptions the options of the order.
        GatherOptions describes reading (`cache` is in bytes, `on_error` is "raise" or "skip").
        Transforms describes how values are decoded and converted.
        """
        given = checked_arguments(locals())
        reading, transforms = options_among(GatherOptions, given), options_among(Transforms, given)
        transforms = self._with_steps(transforms, given)
        if transforms.recipe is not None and processes not in (None, "auto"):
            transforms.recipe.check_sending()
        selection = self._selection
        make: type[DatasetStream] = VariantStream if variant == "epoch" else DatasetStream
        # Single samples in a random order where each is read alone, else whole blocks.
        alone = selection.shards.is_local and reading.in_place(selection.shards)
        mode = shuffle if isinstance(shuffle, str) else None
        if mode is None and truth("shuffle", shuffle):
            mode = "global" if alone else "window"
        order = OrderOptions(mode, given["seed"], lanes, interleave)
        chosen = columns_of_blocks(self.schema.names, self.roles)
        if columns is not None:
            chosen = names("columns", columns)
        if isinstance(variant, str) and make is not VariantStream:
            raise UsageError(
                f'variant {variant!r} is not known; use "epoch" or the number of a variant'
            )
        if not isinstance(variant, str | None):
            selection = of_variant(selection, whole_number("variant", variant))
        stream = make(selection, chosen, order, transforms, reading)
        begin = selection.samples(np.arange(min(ITERATE_ROWS, len(selection))))
        # now, and not after days of training
        refuse_unmoved(selection.shards, stream.columns, transforms, begin)
        if processes == "auto":
            here = reading.cache or threads != "auto"
            given["processes"] = None if here else processes_for(stream, transforms)
        elif processes is not None and reading.cache:
            raise UsageError("cache= keeps images of one process; leave out cache= or processes=")
        loader = Loader(stream, options_among(LoaderOptions, given))
        label = self.roles.main_label
        if label in {column.name for column in stream.columns} - {*given["fill"]}:
            self._check_labels(str(label))
        return loader

    def _check_labels(self, label: str) -> None:
        """Raise UsageError if the manifest says that labels are missing: now, and not after hours
        of training."""
        counts, shards = self.manifest.class_counts, self._shards
        if counts is None or self._selection.chosen is not None:
            return
        splits = self.manifest.splits_of(self.split, shards.shown)
        labelled = sum(sum(counts.get(split.name, ())) for split in splits)
        if labelled >= len(self):
            return
        labels = self._gatherer([label])
        for begin, end in pairwise(self._selection.starts().tolist()):
            column = labels.table(np.arange(begin, end)).column(label)
            if column.null_count:  # else one is outside of the classes
                place = begin + column.to_pylist().index(None)
                key = str(self.take([place], columns=["key"])["key"][0])
                raise UsageError(
                    f"{shards.shown}: {len(self) - labelled:,} of {len(self):,} samples have no "
                    f"{label}, the first is {key!r}; give fill={{{label!r}: -1}}, or leave the "
                    "column out with columns="
                )


LONG_EPOCH = 10.0
"""Seconds of an epoch from which on worker processes are worth their start, half a second each."""

MOST_AUTO_PROCESSES = 16

TIMED = 4
"""Samples that are read to see what the steps cost."""


def processes_for(stream: DatasetStream, transforms: Transforms) -> int | None:
    """Return how many worker processes a loader has where nobody says it: one for each core if an
    epoch in one thread is long, and its steps work in Python; None for threads alone."""
    recipe, cores = transforms.recipe, usable_cores()
    count = min(TIMED, len(stream))
    if recipe is None or cores < 2 or not count:
        return None
    try:
        recipe.check_sending()
    except UsageError:
        return None
    if all(step.lazy for step in recipe.image_transforms) and not recipe.sample_transforms:
        return None
    began = time.perf_counter()
    stream.gather(np.arange(count), 0, BatchMemory())
    seconds = (time.perf_counter() - began) / count * len(stream)
    return min(cores, MOST_AUTO_PROCESSES) if seconds > LONG_EPOCH else None


def _byte_count(name: str, value: Any) -> int:
    size = int(real_number(name, value))
    if size < 0:
        raise UsageError(f"{name} must be a number of bytes, 0 or more; it is {size}")
    return size


def _on_error(name: str, value: Any) -> str:
    if value not in ("raise", "skip"):
        raise UsageError(f"{name} {value!r} is not known; use 'raise' or 'skip'")
    return str(value)


_STEPS: dict[str, Any] = {
    **dict.fromkeys(("resize", "crop", "recipe", "keep_objects")),
    **dict.fromkeys(("step", "transform"), ()),
    "crop_from": "center",
    "flip": False,
}
"""The arguments of `Dataset.loader` that are steps, and what they are where there are none."""

_TRUTHS = ("decode", "channels_first", "mmap", "preload", "checksums", "profile", "drop_last")
_READERS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys((*_TRUTHS, "reuse", "repeated"), truth),
    **dict.fromkeys(("pad", "fill", "dtype", "normalize", "bucket"), mapping),
    **dict.fromkeys(("derive", "unmoved"), names),
    "seed": partial(whole_number, least=0),
    "cache": _byte_count,
    "on_error": _on_error,
    "step": names,
}
"""What reads arguments of `Dataset.loader`, by their names: it is given the name and the value."""

Options = TypeVar("Options", LoaderOptions, GatherOptions, Transforms)


def checked_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `Dataset.loader` as they are read. Raises UsageError for a wrong type."""
    return {
        name: _READERS[name](name, value) if name in _READERS else value
        for name, value in given.items()
    }


def options_among(kind: type[Options], given: Mapping[str, Any]) -> Options:
    """Return the options of one kind among the arguments of `Dataset.loader`."""
    return kind(**{each.name: given[each.name] for each in fields(kind) if each.name in given})


def refuse_unmoved(
    shards: Shards, columns: Sequence[Column], transforms: Transforms, samples: Numbers
) -> None:
    """Raise UsageError if columns would be wrong in batches whose images are resized, cut or
    mirrored; warn of what may be so.

    `columns` are read; others tell what these are, as y1 does of x1. Of the first of `samples`
    (n,), those in one block, the values are looked at. Columns in `unmoved` of the transforms are
    left out; UsageError if there are none of these names, or their roles say that they move.
    """
    roles, schema, moving = shards.layout.roles.by_name, shards.layout.columns, transforms.moving
    for name in transforms.unmoved:
        if name not in schema.names:
            raise UsageError(f"unmoved: {lacks('column', name, schema.names)}")
        role = roles.get(name)
        if moving is not None and isinstance(role, Image | Objects):
            raise UsageError(
                f"unmoved: {name} has the role {role.name}, and {moving} moves it with the "
                f"images; leave it out of unmoved=, or use another loader without {moving}"
            )
    if moving is None or not len(samples):
        return
    # 20 ms
    from shardctl.sources.boxes import (
        beside_images,
        column_of,
        has_values_to_see,
        said_of_unknown,
        why_wrong,
    )

    read, stay = [column.name for column in columns], {"key", "variant", *transforms.unmoved}
    beside = [
        f
        for f in schema
        if f.name not in stay and not isinstance(roles.get(f.name), Image | Objects)
    ]
    names = [f.name for f in beside if f.name in read]
    to_see = [
        name for name in names if name not in roles and has_values_to_see(schema.field(name).type)
    ]
    wrong, unknown = beside_images(beside, roles, _first_kinds(shards, to_see, samples))
    if places := [place for place in wrong if column_of(place, names) is not None]:
        left = list(dict.fromkeys(column_of(place, names) for place in places))
        kept = ", ".join(repr(name) for name in read if name not in left)
        raise UsageError(
            f"{why_wrong(moving, places)}. Leave out {moving}; or keep these with "
            f"unmoved={left}; or leave them out: columns=[{kept}]"
        )
    if unknown := [name for name in unknown if name in names]:
        warnings.warn(said_of_unknown(moving, unknown, "unmoved=[…]"), UserWarning, caller_level())


def _first_kinds(shards: Shards, names: Sequence[str], samples: Numbers) -> Shown:
    """Return what the first values of columns are; nothing where a shard is damaged."""
    if not names:
        return {}
    from shardctl.sources.boxes import LOOKED_AT, kinds_of

    blocks = np.searchsorted(shards.starts, samples, side="right")
    near = samples[blocks == blocks[0]][:LOOKED_AT]
    try:
        table = BatchReader(shards, columns_of(shards, names)).table(near)
        values = {name: table.column(name).to_pylist() for name in names}
    except (DatasetError, UnicodeDecodeError):  # the batches tell of it, or leave it out
        return {}
    return {name: set().union(*map(kinds_of, listed)) for name, listed in values.items()}
