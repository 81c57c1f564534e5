"""Several datasets read as one, mixed by weight."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from shardctl.errors import UsageError
from shardctl.format.roles import Mask, Objects, Role
from shardctl.loader.blocks.column import Column
from shardctl.loader.dataset import Dataset
from shardctl.loader.loader import Loader
from shardctl.loader.stream import DatasetStream, Mixture
from shardctl.system.arguments import real_number, whole_number
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

    def loader(self, batch_size: int, *, seed: int = 0, **options: Any) -> Loader:
        """Return a loader of mixed batches, with the options of Dataset.loader. Raises
        UsageError."""
        parts = [dataset.loader(batch_size, seed=seed, **options) for dataset in self._datasets]
        opens = {"lanes", "interleave"}.isdisjoint(options)
        streams = [
            self._relabelled(part.stream, dataset).one_of(len(parts), opens)
            for part, dataset in zip(parts, self._datasets, strict=True)
        ]
        self._check_types(options.get("columns"))
        self._check_meanings(streams[0])
        return Loader(
            Mixture(streams, self._weights, self._samples, whole_number("seed", seed)),
            parts[0].options,
        )

    def _relabelled(self, stream: Any, dataset: Dataset) -> DatasetStream:
        """Return a dataset's stream with its labels renumbered by the classes of the mixture."""
        own: DatasetStream = stream
        together, changed = self.class_names, {}
        every = [each.class_names for each in self._datasets]
        for name in [column.name for column in own.columns]:
            if not any(name in names for names in every):
                continue
            if name not in together:
                bare = self._datasets[
                    next(place for place, names in enumerate(every) if name not in names)
                ]
                raise UsageError(
                    f"the values of {name} have names in one dataset, and not in "
                    f"{printable(bare.location)}; leave it out with columns="
                )
            numbers = {each: number for number, each in enumerate(together[name])}
            labels = tuple(numbers[each] for each in dataset.class_names[name])
            if labels != tuple(range(len(labels))):
                changed[name] = labels
        return own.relabelled(changed) if changed else own

    def _check_types(self, columns: Sequence[str] | None) -> None:
        """Raise UsageError if a column that is not numeric has another type in another dataset."""
        first, *others = self._datasets
        for name in first.schema.names if columns is None else columns:
            for other in others:
                if name not in first.schema.names or name not in other.schema.names:
                    # the mixture reports it, with the names of all fields; or it is a member of
                    # objects
                    continue
                one, two = first.schema.field(name).type, other.schema.field(name).type
                if Column.of(first.schema.field(name)).kind == "other" and not one.equals(two):
                    raise UsageError(
                        f"column {name} is {one} in one dataset and {two} in another; leave it out "
                        "with columns="
                    )

    def _check_meanings(self, stream: DatasetStream) -> None:
        """Raise UsageError if numbers of masks, or keypoints, mean something else in another
        dataset: they are not changed."""
        for column in stream.columns:
            first, *others = (
                _meanings(column, dataset.roles.get(column.name)) for dataset in self._datasets
            )
            for other in others:
                wrong = [what for what in {**first, **other} if first.get(what) != other.get(what)]
                if wrong:
                    one, two = first.get(wrong[0]), other.get(wrong[0])
                    raise UsageError(
                        f"{column.name}: {wrong[0]} is {one!r} in one dataset and {two!r} in "
                        "another; leave it out with columns="
                    )


def _meanings(column: Column, role: Role | None) -> dict[str, Any]:
    """Return what the numbers of a mask, or the places of keypoints, mean."""
    if isinstance(role, Mask):
        return {
            "ignore": role.ignore,
            **{f"class {number}": name for number, name in enumerate(role.names or ())},
        }
    if isinstance(role, Objects) and "keypoints" in column.object_members:
        return {f"keypoint {number}": name for number, name in enumerate(role.keypoints or ())}
    return {}
