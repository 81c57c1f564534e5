"""What a loader reads from: a dataset or a mixture, with an order of samples for every epoch."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from shardctl.errors import UsageError
from shardctl.format.arrays import Bools, Floats, Numbers, begin_runs, hash_names, owners_of
from shardctl.loader.blocks.batch import VARIANT, BatchReader, columns_of
from shardctl.loader.blocks.column import Column, Spec
from shardctl.loader.blocks.locate import GatherOptions
from shardctl.loader.blocks.memory import Batch, BatchMemory
from shardctl.loader.blocks.shards import Shards
from shardctl.loader.blocks.transforms import Transforms
from shardctl.loader.order import EpochOrder, Ordering, OrderOptions
from shardctl.system.fetching import Ahead
from shardctl.system.permutation import key_of, permute

if TYPE_CHECKING:
    from shardctl.loader.blocks.own_functions import FunctionReader

TASK_BYTES = 8 << 20
"""Bytes of samples that are made at a time: beyond that, the cost of a call no longer matters."""

MIXTURE_BYTES = 3e8
"""Bytes of the blocks that all datasets of a mixture keep in memory, at most."""

OBJECTS_BYTES = 1 << 10
"""Bytes of the objects of a sample: COCO has seven to an image, with polygons about as much."""


def sums(every: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return counts added up by their names."""
    names = dict.fromkeys(name for each in every for name in each)
    return {name: sum(each.get(name, 0) for each in every) for name in names}


@dataclass(frozen=True, eq=False)
class Selection:
    """The samples of a dataset that are wanted, in its order: all of them, or those in `chosen`
    (n,)."""

    shards: Shards
    chosen: Numbers | None = None

    def __len__(self) -> int:
        return len(self.shards) if self.chosen is None else len(self.chosen)

    def samples(self, places: Numbers) -> Numbers:
        """Return the dataset's samples at these places of the selection."""
        return places if self.chosen is None else self.chosen[places]

    def starts(self) -> Numbers:
        """Return at which place of the selection each stretch of one block begins, and the size."""
        if self.chosen is None:
            return self.shards.starts
        if (self.chosen[1:] > self.chosen[:-1]).all():
            return np.unique(np.searchsorted(self.chosen, self.shards.starts))
        block = np.searchsorted(self.shards.starts, self.chosen, side="right")
        return np.append(np.flatnonzero(begin_runs(block)), len(block))

    def identity(self) -> dict[str, Any]:
        """Return the identity of this selection."""
        return {
            "content": self.shards.content,
            "split": self.shards.split,
            "samples": len(self),
            "chosen": self._digest,
        }

    @cached_property
    def _digest(self) -> str | None:
        """A digest of which samples are chosen; None for all of them in their order."""
        if self.chosen is None or np.array_equal(self.chosen, np.arange(len(self.shards))):
            return None
        return hashlib.sha256(np.ascontiguousarray(self.chosen).data).hexdigest()[:16]


def reader_of(
    selection: Selection, columns: list[Column], transforms: Transforms, options: GatherOptions
) -> BatchReader | FunctionReader:
    """Return what reads batches of columns, and calls the functions of a recipe if it has some."""
    recipe, shards = transforms.recipe, selection.shards
    if recipe is None or not recipe.sample_transforms:
        return BatchReader(shards, columns, transforms, options)
    # with all steps of recipes
    from shardctl.loader.blocks.own_functions import PROBED, FunctionReader

    tried = selection.samples(np.arange(min(PROBED, len(selection))))
    return FunctionReader(shards, columns, transforms, options, recipe, tried)


class DatasetStream:
    """The epochs of one dataset.

    A stream is what a loader reads from. `len` is the number of samples of an epoch, `together` the
    best number of samples to make at a time: 0 if each batch is made alone.
    """

    def __init__(
        self,
        selection: Selection,
        columns: tuple[str, ...] | None,
        order: OrderOptions,
        transforms: Transforms,
        reading: GatherOptions,
    ) -> None:
        """`columns` None means all of them."""
        self._made_of: tuple[Any, ...] = (selection, columns, order, transforms, reading)
        self._selection, self._transforms = selection, transforms
        self._ordering = Ordering(selection.starts(), order)
        reading = replace(reading, blocks=max(reading.blocks, 4 * self._ordering.open_blocks))
        read = columns_of(selection.shards, columns)
        self._gatherer = reader_of(selection, read, transforms, reading)

    def __len__(self) -> int:
        return len(self._selection)

    def __reduce__(self) -> tuple[Any, ...]:
        """Make the same stream when it is unpickled."""
        return type(self), self._made_of

    def one_of(
        self, streams: int, opens: bool, labels: Mapping[str, tuple[int, ...]]
    ) -> DatasetStream:
        """Return the same stream as one of several of a mixture, which hold MIXTURE_BYTES of blocks
        together. `opens`: as many blocks as one stream has open are divided among them. It has
        other labels: in each of these columns `labels[column][n]` in the place of n."""
        selection, columns, order, transforms, reading = self._made_of
        if opens:
            lanes = 1 << max(0, (order.lanes // streams).bit_length() - 1)
            order = replace(order, lanes=lanes, interleave=max(1, order.interleave // streams))
        blocks, most = max(1, reading.blocks // streams), MIXTURE_BYTES / streams
        reading = replace(reading, blocks=blocks, block_bytes=min(reading.block_bytes, most))
        transforms = replace(transforms, relabel=labels)
        return type(self)(selection, columns, order, transforms, reading)

    def strict(self) -> DatasetStream:
        """Return the same stream, which skips no sample: it raises DatasetError."""
        *others, reading = self._made_of
        made_of = (*others, replace(reading, on_error="raise"))
        return type(self)(*made_of)

    @property
    def columns(self) -> list[Column]:
        """The columns that are read."""
        return self._gatherer.columns

    def epoch(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch."""
        return self._ordering.epoch(epoch)

    def of_dataset(self, samples: Numbers, epoch: int) -> Numbers:
        """Return the dataset's samples that these are."""
        return self._selection.samples(samples)

    def gather(self, samples: Numbers, epoch: int, memory: BatchMemory) -> tuple[Batch, Bools]:
        """Return samples, and which of them are present. The content of `memory` may be
        overwritten."""
        return self._gatherer.gather(self.of_dataset(samples, epoch), epoch, memory)

    def ahead(self, keeps: bool) -> list[Ahead | None]:
        """Return what fetches blocks before they are needed, by this process (`keeps`) or by others
        on this machine: one for each dataset.

        None where they are local, or cannot be fetched for others.
        """
        return [self._selection.shards.ahead(keeps)]

    def expect(self, ahead: Sequence[Ahead | None], samples: Numbers, epoch: int) -> None:
        """Have the blocks of these samples fetched, in the order of their first use."""
        shards = self._selection.shards
        for coming in filter(None, ahead):
            blocks = shards.blocks_in_turn(self.of_dataset(samples, epoch))
            coming.expect(shards.missing(blocks, coming.keeps).tolist(), epoch)

    def lengths(self, column: str, samples: Numbers) -> Numbers:
        """Return how long these samples are in a ragged column, (n,). Raises UsageError for a column
        without lengths."""
        return self._gatherer.lengths(column, self._selection.samples(samples))

    def identity(self) -> dict[str, Any]:
        """Return all that decides which sample comes when, and how its images are changed, as plain
        data: a state is of use only where this is the same."""
        order = self._ordering.options
        which = {**self._selection.identity(), "shuffle": order.mode}
        if order.mode is not None:
            which["seed"] = order.seed
        if order.mode in ("window", "block"):
            which |= {"lanes": order.lanes, "interleave": order.interleave}
        if (recipe := self._transforms.recipe) is not None:
            keys = ("transform", "keep_objects", *(("seed",) if recipe.random else ()))
            which["steps"] = {key: each for key, each in recipe.given().items() if key in keys}
        return which

    @property
    def together(self) -> int:
        """The best number of samples to make at a time."""
        views = self._ordering.options.mode is None and any(column.shape for column in self.columns)
        whole = any(spec.kind == "whole" for spec in self.specs().values())
        if views or whole or self._transforms.pad:
            # a batch in one block is not copied; each batch has a width, or places of documents, of
            # its own
            return 0
        return TASK_BYTES // max(1, sum(self._column_bytes(column) for column in self.columns))

    def specs(self) -> dict[str, Spec]:
        """Return what the values of each field of a batch are."""
        return self._gatherer.specs()

    def tokens_as_stored(self) -> frozenset[str]:
        """Return the fields of tokens that come in the type in which they are stored."""
        tokens, converted = self._selection.shards.layout.roles.tokens, self._transforms.dtype
        return frozenset(tokens).difference(converted)

    def _column_bytes(self, column: Column) -> int:
        transforms, shards = self._transforms, self._selection.shards
        if column.is_encoded_picture and transforms.decode:
            shape = transforms.picture_shape(column) or (256, 256, *column.picture_channels)
            return int(np.prod(shape)) * transforms.dtype_of(column.name, np.uint8).itemsize
        if column.kind == "fixed" and column.dtype is not None:
            dtype = transforms.dtype_of(column.name, column.dtype)
            return column.width // column.dtype.itemsize * dtype.itemsize
        if column.objects is not None:
            return OBJECTS_BYTES
        if column.name == "key" or column.name in shards.layout.roles.labels:
            return 32
        return shards.bytes_per_sample

    def counts(self) -> dict[str, float]:
        """Return the cache hits and misses, the skipped samples, and under STAGE and its name the
        seconds of all threads that each stage has taken, where that is measured."""
        return self._gatherer.counts()


REMEMBERED = 2
"""Epochs whose samples are kept: batches of the next one are made while the last ones of this one
are taken."""


class VariantStream(DatasetStream):
    """The epochs of a dataset with variants. Epoch e has of each input its variant number e mod K,
    where it has K of them."""

    def __init__(self, selection: Selection, *how: Any) -> None:
        super().__init__(selection, *how)
        self._rows, self._first, self._count = _inputs(selection)
        self._lock = threading.Lock()
        self._epochs: dict[int, Selection] = {}

    def __len__(self) -> int:
        return len(self._first)

    def _of(self, epoch: int) -> Selection:
        """Return the samples of an epoch, in the order of the dataset."""
        with self._lock:
            if epoch not in self._epochs:
                places = self._first + epoch % self._count
                chosen = self._selection.samples(
                    places if self._rows is None else np.sort(self._rows[places])
                )
                while len(self._epochs) >= REMEMBERED:
                    del self._epochs[min(self._epochs)]
                self._epochs[epoch] = Selection(self._selection.shards, chosen)
            return self._epochs[epoch]

    def epoch(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch."""
        return Ordering(self._of(epoch).starts(), self._ordering.options).epoch(epoch)

    def of_dataset(self, samples: Numbers, epoch: int) -> Numbers:
        """Return the dataset's samples that these are."""
        return self._of(epoch).samples(samples)

    def lengths(self, column: str, samples: Numbers) -> Numbers:
        """Raise UsageError: which samples there are depends on the epoch."""
        raise UsageError(
            f'variant="epoch" and bucket={{{column!r}: …}} cannot be used together; leave out one '
            "of them"
        )

    def identity(self) -> dict[str, Any]:
        """Return what decides which sample comes when."""
        return {**super().identity(), VARIANT: "epoch"}


def of_variant(selection: Selection, variant: int) -> Selection:
    """Return the samples with this variant. Raises UsageError if there are none."""
    chosen = np.flatnonzero(_variants(selection) == variant)
    if not len(chosen):
        raise UsageError(f"{selection.shards.shown}: no sample has the variant {variant}")
    return Selection(selection.shards, selection.samples(chosen))


def _inputs(selection: Selection) -> tuple[Numbers | None, Numbers, Numbers]:
    """Return the places of all samples by input and variant (None: they are in this order), and for
    each input the first of its samples among them, and how many it has: (inputs,) each.
    """
    variants = _variants(selection)
    most = int(variants.max()) + 1 if len(variants) else 1
    if len(variants) % most == 0 and bool((variants.reshape(-1, most) == np.arange(most)).all()):
        # as a conversion writes them, if no variant of an input was rejected
        inputs = len(variants) // most
        return None, np.arange(inputs) * most, np.full(inputs, most)
    keys = _column(selection, "key")
    hashes = np.concatenate([hash_names(part.to_pylist()) for part in keys])
    rows = np.lexsort((variants, hashes))
    ordered = hashes[rows]
    first = np.flatnonzero(begin_runs(ordered))
    return rows, first, np.diff(np.append(first, len(rows)))


def _variants(selection: Selection) -> Numbers:
    """Return the variant of every sample, (n,). Raises UsageError if the dataset has none."""
    if VARIANT not in selection.shards.layout.columns.names:
        raise UsageError(
            f"{selection.shards.shown}: its samples have no variants; convert with --variants K"
        )
    parts = [
        part.to_numpy(zero_copy_only=False).astype(np.int64) for part in _column(selection, VARIANT)
    ]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _column(selection: Selection, name: str) -> list[Any]:
    """Return a column of the samples, block by block."""
    gatherer = BatchReader(selection.shards, columns_of(selection.shards, [name]))
    starts = selection.starts().tolist()
    tables = (
        gatherer.table(selection.samples(np.arange(begin, end))) for begin, end in pairwise(starts)
    )
    with selection.shards.in_turn(selection.chosen):
        return [chunk for table in tables for chunk in table.column(name).chunks]


_ROUND = 4096
"""Positions of a round. In each, every stream has its exact share, rounded to whole samples."""

_TURN = 21
"""The purpose of a random key: each purpose has its own random stream."""


class Mixture:
    """Draws from several streams. Each runs through its own samples, epoch after epoch, at its own
    speed.

    Position q is in round q // _ROUND; a keyed permutation of the round says whose turn it is, and
    how many of that stream's came before it in all earlier rounds is a product. So any position is
    found without counting. Streams, weights and samples are what `Mix` allows.
    """

    def __init__(
        self, streams: Sequence[Stream], weights: Sequence[float], samples: int | None, seed: int
    ) -> None:
        self._streams, self._seed = list(streams), seed
        self._made_of = (self._streams, weights, samples, seed)
        self._size = sum(map(len, streams)) if samples is None else samples
        self._weights = [float(weight) for weight in weights]
        self._counts = _apportion(np.asarray(weights, np.float64), _ROUND)
        self._turns = owners_of(self._counts)
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
        return EpochOrder(epoch * self._size)

    def gather(self, samples: Numbers, epoch: int, memory: BatchMemory) -> tuple[Batch, Bools]:
        """Return the samples at these positions of the whole mixture, and which of them are there,
        in memory of their own."""
        parts, places, there = [], [], np.ones(len(samples), bool)
        for number, own_epoch, own, chosen in self._apart(samples):
            batch, found = self._streams[number].gather(own, own_epoch, BatchMemory())
            there[chosen] = found
            parts.append(batch)
            places.append(chosen[found])
        if not parts:
            # the rank has no part of the epoch's last batch; the loader yields no batch without
            # samples
            return {}, there
        order = np.argsort(np.concatenate(places))
        batch = {
            name: _joined([part[name] for part in parts], order, self._specs[name])
            for name in parts[0]
        }
        return batch, there

    def _apart(self, samples: Numbers) -> Iterator[tuple[int, int, Numbers, Numbers]]:
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

    def expect(self, ahead: Sequence[Ahead | None], samples: Numbers, epoch: int) -> None:
        """Have the blocks of these positions of the mixture fetched."""
        for number, own_epoch, own, _ in self._apart(samples):
            self._streams[number].expect(ahead[number : number + 1], own, own_epoch)

    def lengths(self, column: str, samples: Numbers) -> Numbers:
        """Raise UsageError: the lengths of a mixture's samples are not known before they are
        read."""
        raise UsageError(f"a mixture cannot use bucket= ({column}); bucket one dataset")

    def _draw(self, positions: Numbers) -> tuple[Numbers, Numbers]:
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

    def tokens_as_stored(self) -> frozenset[str]:
        """Return the fields of tokens that come in the type in which they are stored."""
        return frozenset().union(*(stream.tokens_as_stored() for stream in self._streams))

    def counts(self) -> dict[str, float]:
        """Return the cache hits and misses, the skipped samples and the seconds of stages, over all
        datasets."""
        return sums([stream.counts() for stream in self._streams])


def _common(every: Sequence[dict[str, Spec]]) -> dict[str, Spec]:
    """Return what the fields of all streams are together. Raises UsageError if they do not go
    together."""
    first, *others = every
    whole = next((name for name, spec in first.items() if spec.kind == "whole"), None)
    if whole is not None:
        raise UsageError(
            f"{whole} is of a whole batch, which no mixture has; derive document_ids or "
            "position_ids"
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


def _apportion(weights: Floats, seats: int) -> Numbers:
    """Divide whole seats by weight: seats left after rounding down go to the largest remainders. At
    least one each."""
    exact = weights / weights.sum() * seats
    counts: Numbers = np.maximum(exact.astype(np.int64), 1)
    while counts.sum() > seats:
        counts[np.argmax(counts - exact)] -= 1
    counts[np.argsort(counts - exact, kind="stable")[: seats - counts.sum()]] += 1
    return counts


def _joined(parts: list[Any], order: Numbers, spec: Spec) -> Any:
    """Return the values of several batches as one, in this order: (n,) numbers of samples, counted
    through all of them."""
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


Stream: TypeAlias = DatasetStream | Mixture
"""What a loader reads from."""
