"""Several datasets read as one, mixed by weight."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from shardctl.errors import UsageError
from shardctl.format.arrays import Bools, Floats, Indices
from shardctl.format.roles import Mask, Objects, Role
from shardctl.loader.blocks.column import Column, Spec
from shardctl.loader.blocks.fetching import Ahead
from shardctl.loader.blocks.memory import Batch, BatchMemory
from shardctl.loader.dataset import Dataset
from shardctl.loader.loader import Loader
from shardctl.loader.order import EpochOrder
from shardctl.loader.stream import DatasetStream, Stream, sums
from shardctl.system.arguments import real_number, whole_number
from shardctl.system.permutation import key_of, permute
from shardctl.system.text import counted, printable

_ROUND = 4096
"""Positions of a round. In each, every stream has its exact share, rounded to whole samples."""

_TURN = 21
"""The purpose of a random key: each purpose has its own random stream."""


def check_mixture(sizes: Sequence[int], weights: Sequence[float], samples: int | None) -> None:
    """Raise UsageError if datasets of these sizes cannot be mixed by these weights into epochs of
    `samples` samples."""
    if not sizes:
        raise UsageError("mix() needs at least one dataset")
    if len(sizes) != len(weights):
        raise UsageError(f"{len(sizes)} datasets and {len(weights)} weights do not go together")
    if not (all(weight > 0 for weight in weights) and math.isfinite(sum(weights))):
        raise UsageError(f"weights must be above 0, and their sum finite; they are {list(weights)}")
    if not all(sizes):
        raise UsageError("a dataset without samples cannot be mixed in")
    if samples is not None:
        whole_number("samples", samples, 1)


class Mixture:
    """Draws from several streams. Each runs through its own samples, epoch after epoch, at its own
    speed.

    Position q is in round q // _ROUND; a keyed permutation of the round says whose turn it is, and
    how many of that stream's came before it in all earlier rounds is a product. So any position is
    found without counting. Streams, weights and samples are what `check_mixture` allows.
    """

    def __init__(
        self, streams: Sequence[Stream], weights: Sequence[float], samples: int | None, seed: int
    ) -> None:
        self._streams, self._seed = list(streams), seed
        self._made_of = (self._streams, weights, samples, seed)
        self._size = sum(map(len, streams)) if samples is None else samples
        self._weights = [float(weight) for weight in weights]
        self._counts = _apportion(np.asarray(weights, np.float64), _ROUND)
        self._turns = np.repeat(np.arange(len(streams)), self._counts)
        self._specs = _common([stream.specs() for stream in streams])

    def __len__(self) -> int:
        return self._size

    def __reduce__(self) -> tuple[Any, ...]:
        """Make the same mixture when it is unpickled."""
        return Mixture, self._made_of

    def strict(self) -> Mixture:
        """Return the same mixture, which skips no sample."""
        return Mixture([stream.strict() for stream in self._streams], *self._made_of[1:])

    def epoch(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch: the next len(self) positions."""
        return MixedOrder(epoch * self._size)

    def gather(self, samples: Indices, epoch: int, memory: BatchMemory) -> tuple[Batch, Bools]:
        """Return the samples at these positions of the whole mixture, and which of them are there,
        in memory of their own."""
        parts, places, there = [], [], np.ones(len(samples), bool)
        for number, own_epoch, own, chosen in self._apart(samples):
            batch, found = self._streams[number].gather(own, own_epoch, BatchMemory())
            there[chosen] = found
            parts.append(batch)
            places.append(chosen[found])
        order = np.argsort(np.concatenate(places)) if places else np.empty(0, np.int64)
        return _join(parts, order, self._specs), there

    def _apart(self, samples: Indices) -> Iterator[tuple[int, int, Indices, Indices]]:
        """Yield a stream's number, an epoch of it, the samples of that epoch that are meant, and
        their places among all."""
        turn, count = self._draw(samples)
        for number, stream in enumerate(self._streams):
            mine = np.flatnonzero(turn == number)
            own_epochs = count[mine] // len(stream)
            for own_epoch in np.unique(own_epochs).tolist():
                chosen = mine[own_epochs == own_epoch]
                yield (
                    number,
                    own_epoch,
                    stream.epoch(own_epoch).samples(count[chosen] - own_epoch * len(stream)),
                    chosen,
                )

    def ahead(self, keeps: bool) -> list[Ahead | None]:
        """Return what fetches blocks before they are needed, for each dataset; None where they are
        local."""
        return [each for stream in self._streams for each in stream.ahead(keeps)]

    def expect(self, ahead: Sequence[Ahead | None], samples: Indices, epoch: int) -> None:
        """Have the blocks of these positions of the mixture fetched."""
        for number, own_epoch, own, _ in self._apart(samples):
            self._streams[number].expect(ahead[number : number + 1], own, own_epoch)

    def lengths(self, column: str, samples: Indices) -> Indices:
        """Raise UsageError: the lengths of a mixture's samples are not known before they are
        read."""
        raise UsageError(f"a mixture cannot use bucket= ({column}); bucket one dataset")

    def _draw(self, positions: Indices) -> tuple[Indices, Indices]:
        """Return whose turn each position is, and how many of that stream came before it."""
        turn, count = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        rounds = positions // _ROUND
        for number in np.unique(rounds).tolist():
            here = rounds == number
            slots = permute(np.arange(_ROUND), _ROUND, key_of(self._seed, number, _TURN))
            turns = self._turns[slots]
            before = np.empty(_ROUND, np.int64)
            for stream in range(len(self._streams)):
                before[turns == stream] = np.arange(self._counts[stream])
            places = positions[here] - number * _ROUND
            turn[here] = turns[places]
            count[here] = number * self._counts[turns[places]] + before[places]
        return turn, count

    def identity(self) -> dict[str, Any]:
        """Return what decides which sample comes when."""
        which = {
            "mixture": len(self._streams),
            "weights": self._weights,
            "samples": self._size,
            "seed": self._seed,
        }
        for number, stream in enumerate(self._streams):
            which |= {
                f"datasets[{number}].{name}": value for name, value in stream.identity().items()
            }
        return which

    @property
    def together(self) -> int:
        """The best number of samples to make at a time."""
        return min(stream.together for stream in self._streams)

    def specs(self) -> dict[str, Spec]:
        """Return what the values of each field of a batch are: ragged where the datasets have
        different shapes."""
        return self._specs

    def counts(self) -> dict[str, float]:
        """Return the cache hits and misses, the skipped samples and the seconds of stages, over all
        datasets."""
        return sums([stream.counts() for stream in self._streams])


class MixedOrder(EpochOrder):
    """The positions of a mixture from one on; which samples they are is found out when they are
    read."""

    def __init__(self, first: int) -> None:
        self._first = first

    def samples(self, positions: Indices) -> Indices:
        """Return the positions in the whole mixture."""
        return positions + self._first


def _common(every: Sequence[dict[str, Spec]]) -> dict[str, Spec]:
    """Return what the fields of all streams are together. Raises UsageError if they do not go
    together."""
    first, *others = every
    whole = next((name for name, spec in first.items() if spec.kind == "whole"), None)
    if whole is not None:
        raise UsageError(
            f"{whole} describes a whole batch, which a mixture does not have; derive document_ids "
            "or position_ids"
        )
    if any(set(other) != set(first) for other in others):
        fields = " and ".join(", ".join(sorted(specs)) for specs in every)
        shared = [name for name in first if all(name in other for other in others)]
        remedy = f"give columns={shared}" if shared else "they share none, and cannot be mixed"
        raise UsageError(f"the datasets have different fields: {fields}; {remedy}")
    return {name: _common_spec(name, [specs[name] for specs in every]) for name in first}


def _common_spec(name: str, specs: Sequence[Spec]) -> Spec:
    """Return what a field is in all streams: a list of arrays where their shapes differ."""
    first, kinds = specs[0], {spec.kind for spec in specs}
    if kinds <= {"fixed", "ragged"} and len({len(spec.shape) for spec in specs}) == 1:
        if len({spec.dtype for spec in specs}) > 1:
            types = " and ".join(sorted({spec.dtype.name for spec in specs}))
            raise UsageError(
                f"column {name} is {types} in the datasets; give dtype={{{name!r}: …}} for one type"
            )
        if kinds == {"fixed"} and len({spec.shape for spec in specs}) == 1:
            return first
        shape = tuple(
            side if {spec.shape[at] for spec in specs} == {side} else -1
            for at, side in enumerate(first.shape)
        )
        return Spec("ragged", shape, first.dtype)
    if any(spec != first for spec in specs):
        types = " and ".join(sorted({f"{spec.kind} {spec.shape or ''}".strip() for spec in specs}))
        raise UsageError(
            f"column {name} is of different types in the datasets ({types}); leave it out with "
            "columns="
        )
    return first


def _apportion(weights: Floats, seats: int) -> Indices:
    """Divide whole seats by weight: seats left after rounding down go to the largest remainders. At
    least one each."""
    exact = weights / weights.sum() * seats
    counts: Indices = np.maximum(exact.astype(np.int64), 1)
    while counts.sum() > seats:
        counts[np.argmax(counts - exact)] -= 1
    counts[np.argsort(counts - exact, kind="stable")[: seats - counts.sum()]] += 1
    return counts


def _join(batches: Sequence[Batch], order: Indices, specs: dict[str, Spec]) -> Batch:
    """Return one batch of several, its samples in this order: (n,) numbers of samples, counted
    through all of them."""
    if not batches:
        # the rank has no part of the epoch's last batch; the loader yields no batch without samples
        return {}
    return {
        name: _joined([batch[name] for batch in batches], order, specs[name]) for name in batches[0]
    }


def _joined(parts: list[Any], order: Indices, spec: Spec) -> Any:
    if spec.kind == "padded":
        longest = np.max([part.shape[1:] for part in parts], axis=0)
        free = [[(0, 0), *((0, int(side)) for side in longest - part.shape[1:])] for part in parts]
        parts = [
            np.pad(part, sides, constant_values=spec.fill)
            for part, sides in zip(parts, free, strict=True)
        ]
    # decided for all batches alike, not by what is in this one
    if spec.kind in ("fixed", "padded"):
        return np.concatenate(parts)[order]
    values = [value for part in parts for value in part]
    return [values[place] for place in order.tolist()]


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
        self._datasets = list(datasets)
        for dataset in self._datasets:
            if not isinstance(dataset, Dataset):
                raise UsageError(
                    "mix() takes a list of datasets from shardctl.open; one of them is a "
                    f"{type(dataset).__name__}"
                )
        self._weights = [real_number("a weight", weight) for weight in weights]
        self._samples = None if samples is None else whole_number("samples", samples)
        check_mixture([len(dataset) for dataset in self._datasets], self._weights, self._samples)

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
        streams = [
            self._relabelled(part.stream, dataset)
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
                    f"the values of {name} in {printable(bare.location)} have no names, and in another "
                    "dataset they have; leave the column out with columns="
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
                for what in {**first, **other}:
                    one, two = first.get(what), other.get(what)
                    if one != two:
                        raise UsageError(
                            f"{column.name}: {what} is {one!r} in one dataset and {two!r} in "
                            "another; leave it out with"
                            " columns="
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
