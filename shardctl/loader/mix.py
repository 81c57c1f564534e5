"""Several datasets read as one, mixed by weight."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from shardctl.errors import UsageError
from shardctl.format.roles import Mask
from shardctl.loader.blocks.column import Column
from shardctl.loader.dataset import Dataset
from shardctl.loader.loader import Loader
from shardctl.loader.stream import DatasetStream, Mixture
from shardctl.system.arguments import real_number, whole_number
from shardctl.system.python_names import named_arguments, no_attribute
from shardctl.system.text import counted, printable


def mix(datasets: Sequence[Dataset], weights: Sequence[float], samples: int | None = None) -> Mix:
    """Mix several datasets by weight: each has its exact share of every 4,096 samples of the
    mixture.

    An epoch of the mixture has `samples` samples, by default as many as all datasets together. Each
    dataset continues where the epoch before ended, and starts again in another order after its last
    sample. Labels with names are renumbered by `classes` of the mixture. Raises UsageError if there
    is not one weight above 0 for every dataset, for a dataset without samples, and for fewer than 1
    sample.
    """
    return Mix(datasets, weights, samples)


class Mix:
    """Several datasets that are read as one. `shardctl.mix` makes it."""

    if not TYPE_CHECKING:  # type checkers say themselves what is not there
        __getattr__ = no_attribute

    @named_arguments("Mix", "shardctl.mix([a, b], [0.5, 0.5])")
    def __init__(
        self, datasets: Sequence[Dataset], weights: Sequence[float], samples: int | None
    ) -> None:
        for name, given in (("datasets", datasets), ("weights", weights)):
            if isinstance(given, Dataset | str) or not isinstance(given, Iterable):
                raise UsageError(f"{name} takes a list; write mix([a, b], [0.5, 0.5])")
        self._datasets = datasets = list(datasets)
        for dataset in datasets:
            if not isinstance(dataset, Dataset):
                raise UsageError(
                    "mix() takes a list of datasets from shardctl.open; one is a "
                    f"{type(dataset).__name__}"
                )
        self._weights = weights = [real_number("a weight", weight) for weight in weights]
        positive = all(weight > 0 for weight in weights) and math.isfinite(sum(weights))
        if not datasets or len(datasets) != len(weights) or not positive:
            raise UsageError(
                f"mix() takes a weight above 0 for each dataset; it has {len(datasets)}, and the "
                f"weights {weights}"
            )
        if not all(map(len, datasets)):
            raise UsageError("a dataset without samples cannot be mixed in")
        self._samples = None if samples is None else whole_number("samples", samples, 1)

    def __len__(self) -> int:
        """Return the number of samples in an epoch."""
        return sum(map(len, self._datasets)) if self._samples is None else self._samples

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The class names of all datasets, in the order in which they first appear: `classes[n]` is
        the name of label n.

        None if a dataset has no class names.
        """
        label = self._datasets[0].roles.main_label
        return None if label is None else self.class_names.get(label)

    @property
    def class_names(self) -> dict[str, tuple[str, ...]]:
        """The classes of all datasets together, by field of labels or objects; not of one that has
        no names in a dataset."""
        first, *others = [each.class_names for each in self._datasets]
        return {
            name: tuple(dict.fromkeys(each for names in (first, *others) for each in names[name]))
            for name in first
            if all(name in names for names in others)
        }

    def __repr__(self) -> str:
        """Return a description for display."""
        named = f"; {len(self.classes)} classes" if self.classes is not None else ""
        parts = ", ".join(
            f"{weight:g} x {dataset!r}"
            for weight, dataset in zip(self._weights, self._datasets, strict=True)
        )
        return f"<shardctl.Mix: {counted(len(self), 'sample')}{named}; {parts}>"

    @named_arguments("loader")
    def loader(self, batch_size: int, *, seed: int = 0, **options: Any) -> Loader:
        """Return a loader of mixed batches, with the options of Dataset.loader. Raises
        UsageError."""
        parts = [dataset.loader(batch_size, seed=seed, **options) for dataset in self._datasets]
        opens = {"lanes", "interleave"}.isdisjoint(options)
        streams: list[DatasetStream] = []
        for part, dataset in zip(parts, self._datasets, strict=True):
            own: Any = part.stream
            streams.append(own.one_of(len(parts), opens, self._new_labels(own.columns, dataset)))
        _check_meanings([stream.columns for stream in streams])
        return Loader(
            Mixture(streams, self._weights, self._samples, whole_number("seed", seed, 0)),
            parts[0].options,
        )

    def _new_labels(
        self, columns: Sequence[Column], dataset: Dataset
    ) -> dict[str, tuple[int, ...]]:
        """Return the labels of a dataset by the classes of the mixture, where they are others:
        `found[column][n]` in the place of n."""
        together, changed = self.class_names, {}
        for name in [column.name for column in columns]:
            bare = [each for each in self._datasets if name not in each.class_names]
            if len(bare) == len(self._datasets):
                continue
            if bare:
                raise UsageError(
                    f"the values of {name} have names in one dataset, and not in "
                    f"{printable(bare[0].location)}; leave it out with columns="
                )
            numbers = {each: number for number, each in enumerate(together[name])}
            labels = tuple(numbers[each] for each in dataset.class_names[name])
            if labels != tuple(range(len(labels))):
                changed[name] = labels
        return changed


def _check_meanings(every: Sequence[Sequence[Column]]) -> None:
    """Raise UsageError if values that are not changed mean something else in another dataset, or
    are of another type."""
    first, *others = ({column.name: _meanings(column) for column in columns} for columns in every)
    for name, here in first.items():
        for other in others:
            there = other.get(name, here)  # the mixture names the fields that not all have
            wrong = next((w for w in {**here, **there} if here.get(w) != there.get(w)), None)
            if wrong is not None:
                raise UsageError(
                    f"{wrong} is {here.get(wrong)} in one dataset and {there.get(wrong)} in "
                    "another; leave it out with columns="
                )


def _meanings(column: Column) -> dict[str, str]:
    """Return what the numbers of a mask mean, or the places of keypoints, and the type of what is
    not numeric."""
    name, mask, objects = column.name, column.picture, column.objects
    said = {f"column {name}": str(column.type)} if column.kind == "other" else {}
    if isinstance(mask, Mask):
        if mask.ignore is not None:
            said[f"{name}: ignore"] = repr(mask.ignore)
        said |= {f"{name}: class {n}": repr(each) for n, each in enumerate(mask.names or ())}
    if objects is not None and "keypoints" in column.object_members:
        named = enumerate(objects.keypoints or ())
        said |= {f"{name}: keypoint {n}": repr(each) for n, each in named}
    return said
