"""What a loader reads from: a dataset or a mixture, with an order of samples for every epoch."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from shardctl.errors import UsageError
from shardctl.format.arrays import Bools, Indices
from shardctl.loader.blocks.batch import BatchReader, columns_of
from shardctl.loader.blocks.column import Column, Spec
from shardctl.loader.blocks.fetching import Ahead
from shardctl.loader.blocks.locate import GatherOptions
from shardctl.loader.blocks.memory import Batch, BatchMemory
from shardctl.loader.blocks.shards import Shards
from shardctl.loader.blocks.transforms import Transforms
from shardctl.loader.order import EpochOrder, Ordering, OrderOptions

TASK_BYTES = 8 << 20
"""Bytes of samples that are made at a time: beyond that, the cost of a call no longer matters."""

OBJECTS_BYTES = 1 << 10
"""Bytes of the objects of a sample: COCO has seven to an image, with polygons about as much."""


class Stream(Protocol):
    """A dataset, or several mixed."""

    def __len__(self) -> int:
        """Return the number of samples of an epoch."""
        ...

    def epoch(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch."""
        ...

    def gather(self, samples: Indices, epoch: int, memory: BatchMemory) -> tuple[Batch, Bools]:
        """Return samples, and which of them are present. The content of `memory` may be
        overwritten."""
        ...

    def strict(self) -> Stream:
        """Return the same stream, which raises DatasetError for samples that this one may skip."""
        ...

    def ahead(self, keeps: bool) -> list[Ahead | None]:
        """Return what fetches blocks before they are needed, by this process (`keeps`) or by others
        on this machine: one for each dataset.

        None where they are local, or cannot be fetched for others.
        """
        ...

    def expect(self, ahead: Sequence[Ahead | None], samples: Indices, epoch: int) -> None:
        """Have the blocks of these samples (n,) fetched, in the order of their first use."""
        ...

    def lengths(self, column: str, samples: Indices) -> Indices:
        """Return how long these samples are in a ragged column, (n,). Raises UsageError for a
        column without lengths."""
        ...

    def identity(self) -> dict[str, Any]:
        """Return all that decides which sample comes when, as plain data: a state is of use only
        where this is the same."""
        ...

    @property
    def together(self) -> int:
        """The best number of samples to make at a time: small ones share the cost of a call. 0 if
        each batch is made alone."""
        ...

    def specs(self) -> dict[str, Spec]:
        """Return what the values of each field of a batch are."""
        ...

    def counts(self) -> dict[str, float]:
        """Return the cache hits and misses, the skipped samples, and under STAGE and its name the
        seconds of all threads that each stage has taken, where that is measured."""
        ...


def sums(every: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return counts added up by their names."""
    names = dict.fromkeys(name for each in every for name in each)
    return {name: sum(each.get(name, 0) for each in every) for name in names}


class Selection:
    """The samples of a dataset that are wanted, in its order: all of them, or those in `chosen`
    (n,)."""

    def __init__(self, shards: Shards, chosen: Indices | None = None) -> None:
        self.shards, self.chosen = shards, chosen

    def __len__(self) -> int:
        return len(self.shards) if self.chosen is None else len(self.chosen)

    def samples(self, places: Indices) -> Indices:
        """Return the dataset's samples at these places of the selection."""
        return places if self.chosen is None else self.chosen[places]

    def starts(self) -> Indices:
        """Return at which place of the selection each stretch of one block begins, and the size."""
        if self.chosen is None:
            return self.shards.starts
        if (self.chosen[1:] > self.chosen[:-1]).all():
            return np.unique(np.searchsorted(self.chosen, self.shards.starts))
        block = np.searchsorted(self.shards.starts, self.chosen, side="right")
        return np.concatenate([[0], np.flatnonzero(block[1:] != block[:-1]) + 1, [len(block)]])

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


class DatasetStream:
    """The epochs of one dataset."""

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
        self._gatherer = BatchReader(selection.shards, read, transforms, reading)

    def __len__(self) -> int:
        return len(self._selection)

    def __reduce__(self) -> tuple[Any, ...]:
        """Make the same stream when it is unpickled."""
        return type(self), self._made_of

    def relabelled(self, labels: Mapping[str, tuple[int, ...]]) -> DatasetStream:
        """Return the same stream with other labels: in each of these columns `labels[column][n]` in
        the place of n."""
        selection, columns, order, transforms, reading = self._made_of
        relabelled = replace(transforms, relabel=labels)
        return type(self)(selection, columns, order, relabelled, reading)

    def strict(self) -> DatasetStream:
        """Return the same stream, which skips no sample."""
        selection, columns, order, transforms, reading = self._made_of
        strict = replace(reading, on_error="raise")
        return type(self)(selection, columns, order, transforms, strict)

    @property
    def columns(self) -> list[Column]:
        """The columns that are read."""
        return self._gatherer.columns

    def epoch(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch."""
        return self._ordering.epoch(epoch)

    def of_dataset(self, samples: Indices, epoch: int) -> Indices:
        """Return the dataset's samples that these are."""
        return self._selection.samples(samples)

    def gather(self, samples: Indices, epoch: int, memory: BatchMemory) -> tuple[Batch, Bools]:
        """Return samples, and which of them are present."""
        return self._gatherer.gather(self.of_dataset(samples, epoch), epoch, memory)

    def ahead(self, keeps: bool) -> list[Ahead | None]:
        """Return what fetches blocks before they are needed; None where they are local."""
        return [self._selection.shards.ahead(keeps)]

    def expect(self, ahead: Sequence[Ahead | None], samples: Indices, epoch: int) -> None:
        """Have the blocks of these samples fetched, in the order of their first use."""
        shards = self._selection.shards
        for coming in filter(None, ahead):
            blocks = shards.blocks_in_turn(self.of_dataset(samples, epoch))
            coming.expect(shards.missing(blocks, coming.keeps).tolist(), epoch)

    def lengths(self, column: str, samples: Indices) -> Indices:
        """Return how long these samples are in a ragged column."""
        return self._gatherer.lengths(column, self._selection.samples(samples))

    def identity(self) -> dict[str, Any]:
        """Return what decides which sample comes when."""
        order = self._ordering.options
        which = {**self._selection.identity(), "shuffle": order.mode}
        if order.mode is not None:
            which["seed"] = order.seed
        if order.mode in ("window", "block"):
            which |= {"lanes": order.lanes, "interleave": order.interleave}
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

    def _column_bytes(self, column: Column) -> int:
        transforms, shards = self._transforms, self._selection.shards
        if column.is_encoded_picture and transforms.decode:
            shape = transforms.picture_shape(column) or (256, 256, *column.picture_channels)
            return int(np.prod(shape)) * transforms.dtype_of(column.name, np.uint8).itemsize
        if column.kind == "fixed" and column.dtype is not None:
            return (
                column.width
                // column.dtype.itemsize
                * transforms.dtype_of(column.name, column.dtype).itemsize
            )
        if column.objects is not None:
            return OBJECTS_BYTES
        if column.name == "key" or column.name in shards.layout.roles.labels:
            return 32
        return shards.bytes_per_sample

    def counts(self) -> dict[str, float]:
        """Return the cache hits and misses, the skipped samples, and the seconds of stages."""
        return self._gatherer.counts()


VARIANT = "variant"

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

    def of_dataset(self, samples: Indices, epoch: int) -> Indices:
        """Return the dataset's samples that these are."""
        return self._of(epoch).samples(samples)

    def lengths(self, column: str, samples: Indices) -> Indices:
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


def _inputs(selection: Selection) -> tuple[Indices | None, Indices, Indices]:
    """Return the places of all samples by input and variant (None: they are in this order), and for
    each input the first of its samples among them, and how many it has: (inputs,) each.
    """
    variants = _variants(selection)
    most = int(variants.max()) + 1 if len(variants) else 1
    if len(variants) % most == 0 and bool((variants.reshape(-1, most) == np.arange(most)).all()):
        # as a conversion writes them, if no variant of an input was rejected
        inputs = len(variants) // most
        return None, np.arange(inputs) * most, np.full(inputs, most)
    from shardctl.sources.label_table import hash_names  # 20 ms, which most loaders never need

    keys = _column(selection, "key")
    hashes = np.concatenate([hash_names(part.to_pylist()) for part in keys])
    rows = np.lexsort((variants, hashes))
    ordered = hashes[rows]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    return rows, first, np.diff(np.append(first, len(rows)))


def _variants(selection: Selection) -> Indices:
    """Return the variant of every sample, (n,). Raises UsageError if the dataset has none."""
    if VARIANT not in selection.shards.layout.columns.names:
        raise UsageError(
            f"{selection.shards.shown}: its samples have no variants; convert with --variants K to "
            "make some"
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
