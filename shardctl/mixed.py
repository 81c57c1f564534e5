"""Several datasets read as one, mixed by weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardctl.arguments import real_number, whole_number
from shardctl.dataset import Dataset
from shardctl.errors import UsageError
from shardctl.loader import DatasetStream, Loader, Mixture, check_mixture
from shardctl.reader import Column
from shardctl.storage import printable


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
        label = self._datasets[0].roles.main_label
        return None if label is None else self._class_names.get(label)

    @property
    def _class_names(self) -> dict[str, tuple[str, ...]]:
        """The classes of all datasets together, by field of labels; not of a field that has no names in a dataset."""
        first, *others = (dataset.class_names for dataset in self._datasets)
        return {
            name: tuple(dict.fromkeys(each for names in (first, *others) for each in names[name]))
            for name in first
            if all(name in names for names in others)
        }

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
        together, changed = self._class_names, {}
        for name in own.specs():
            if not any(name in each.class_names for each in self._datasets):
                continue
            if name not in together:
                bare = next(each for each in self._datasets if name not in each.class_names)
                raise UsageError(
                    f"the values of {name} in {printable(str(bare.root))} have no names and those of another dataset have: they"
                    " cannot be combined; leave the column out with columns="
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
                if name not in other.schema.names:
                    continue  # the mixture reports it, with the names of all fields
                one, two = first.schema.field(name).type, other.schema.field(name).type
                if Column.of(first.schema.field(name)).kind == "other" and not one.equals(two):
                    raise UsageError(f"column {name} is {one} in one dataset and {two} in another; leave it out with columns=")
