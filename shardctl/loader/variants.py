"""Epochs that have each input once: one of its variants in each epoch, another one in the next."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import numpy as np

from shardctl.errors import UsageError
from shardctl.loader.blocks import BatchReader, GatherOptions, Indices, Transforms, columns_of
from shardctl.loader.options import StreamOptions
from shardctl.loader.order import EpochOrder, Ordering
from shardctl.loader.stream import DatasetStream, Selection

VARIANT = "variant"

REMEMBERED = 2
"""Epochs whose samples are kept: batches of the next one are made while the last ones of this one are taken."""


class VariantStream(DatasetStream):
    """The epochs of a dataset with variants. Epoch e has of each input its variant number e mod K, where it has K of them."""

    def __init__(self, selection: Selection, options: StreamOptions) -> None:
        super().__init__(selection, options)
        self._all, self._order = selection, options.order
        self._rows, self._first, self._count = _inputs(selection)
        self._lock = threading.Lock()
        self._epochs: dict[int, Selection] = {}

    def __len__(self) -> int:
        return len(self._first)

    def __reduce__(self) -> tuple[Any, ...]:
        """Make the same stream when it is unpickled."""
        return VariantStream, (self._all, self._options)

    def _of(self, epoch: int) -> Selection:
        """Return the samples of an epoch, in the order of the dataset."""
        with self._lock:
            if epoch not in self._epochs:
                places = self._first + epoch % self._count
                chosen = self._all.samples(places if self._rows is None else np.sort(self._rows[places]))
                while len(self._epochs) >= REMEMBERED:
                    del self._epochs[min(self._epochs)]
                self._epochs[epoch] = Selection(self._all.shards, chosen)
            return self._epochs[epoch]

    def epoch(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch."""
        return Ordering(self._of(epoch).starts(), self._order).epoch(epoch)

    def of_dataset(self, samples: Indices, epoch: int) -> Indices:
        """Return the dataset's samples that these are."""
        return self._of(epoch).samples(samples)

    def lengths(self, column: str, samples: Indices) -> Indices:
        """Raise UsageError: which samples there are depends on the epoch."""
        raise UsageError(f'variant="epoch" and bucket={{{column!r}: …}} cannot be used together; leave out one of them')

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
    """Return the places of all samples by input and variant (None: they are in this order), and for each input the first of its
    samples among them, and how many it has: (inputs,) each.
    """
    variants = _variants(selection)
    most = int(variants.max()) + 1 if len(variants) else 1
    if len(variants) % most == 0 and bool((variants.reshape(-1, most) == np.arange(most)).all()):
        inputs = len(variants) // most  # as a conversion writes them, if no variant of an input was rejected
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
        raise UsageError(f"{selection.shards.shown}: its samples have no variants; convert with --variants K to make some")
    parts = [part.to_numpy(zero_copy_only=False).astype(np.int64) for part in _column(selection, VARIANT)]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _column(selection: Selection, name: str) -> list[Any]:
    """Return a column of the samples, block by block."""
    gatherer = BatchReader(selection.shards, columns_of(selection.shards, [name]), Transforms(), GatherOptions())
    starts = selection.starts().tolist()
    tables = (gatherer.table(selection.samples(np.arange(begin, end))) for begin, end in pairwise(starts))
    with selection.shards.in_turn(selection.chosen):
        return [chunk for table in tables for chunk in table.column(name).chunks]
