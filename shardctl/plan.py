"""The plan: which input goes to which shard, as a table on disk. Nothing is held per input in Python objects."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import InputError
from shardctl.listing import CHUNK_ROWS, LISTING_SCHEMA, LabelRule, Listing
from shardctl.order import Permutation
from shardctl.sources.labels import SPLIT_COLUMN, SideTable, some
from shardctl.sources.splits import named_as_splits
from shardctl.splitting import SplitRule, Splitting, split_inputs
from shardctl.storage import counted, printable, replacing


@dataclass(frozen=True)
class PlanSettings:
    """The settings beside the recipe that decide the content of the dataset. `shuffle` is a seed, None for listing order."""

    split: SplitRule
    labels: LabelRule
    shuffle: int | None
    seed: int

    def record(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        record = {
            "split": str(self.split),
            "labels": str(self.labels),
            "shuffle": self.shuffle,
            "lenient_labels": self.labels.lenient,
        }
        return {**record, "drop_columns": list(self.labels.drop)} if self.labels.drop else record


@dataclass(frozen=True)
class Labelling:
    """Where `label` comes from, and the names of the classes.

    `of_group` has the class of every group of inputs, `of_name` that of every label that the inputs bring: -1 for none.
    Both are None if a labels file has the labels, and if there are none.
    """

    classes: tuple[str, ...] | None = None
    of_group: npt.NDArray[np.int64] | None = None
    of_name: npt.NDArray[np.int64] | None = None


def label_inputs(listing: Listing, settings: PlanSettings, by_folder: bool) -> Labelling:
    """Decide the labels: from the labels file, from the inputs themselves, or from the names of their folders.

    `by_folder` says that the top folders are splits, which are no classes. Raises InputError if folder labels were
    asked for and no file lies in a folder, and where only some inputs lie in class folders.
    """
    mode = settings.labels.mode
    if listing.side is not None:
        return Labelling(listing.side.classes)
    if mode == "none":
        return Labelling()
    if mode == "auto" and listing.columns is not None and "label" in listing.columns.names:
        return _label_by_field(listing)
    return _label_by_folder(listing, mode, by_folder)


def _label_by_field(listing: Listing) -> Labelling:
    """Take the field `label` of the lines: where it is a string, its values name the classes."""
    if listing.label_names is None or listing.columns is None:
        return Labelling()
    classes = sorted(listing.label_names)
    listing.columns = pa.schema([f for f in listing.columns if f.name != "label"])
    numbers = {name: number for number, name in enumerate(classes)}
    without = int(np.count_nonzero(listing.table["label"].to_numpy() < 0))
    if without:
        listing.notices.append(f"{counted(without, 'line')} of {len(listing):,} without a label")
    return Labelling(tuple(classes), of_name=np.array([numbers[name] for name in listing.label_names], np.int64))


def _label_by_folder(listing: Listing, mode: str, by_folder: bool) -> Labelling:
    """Take the name of a file's folder as its class."""
    below = [group.folder.partition("/")[2] if by_folder else group.folder for group in listing.groups]
    names = [name.rpartition("/")[2] for name in below]
    classes = sorted(set(names) - {""})
    if mode == "folder" and not classes:
        raise InputError("no input is in a folder that could be its class; use --labels none or a labels file")
    if mode == "auto" and len(classes) < 2:
        if classes:
            listing.notices.append(
                f"all inputs in folders are in one, {printable(classes[0])}, which is no class; --labels folder makes it one"
            )
        return Labelling()
    if mode == "auto" and len(named_as_splits(classes)) == len(classes):
        listing.notices.append(f"{some(classes)} are names of splits, and no classes; --labels folder makes them classes")
        return Labelling()
    if "" in names:
        _tell_of_stray_inputs(listing, mode, [number for number, name in enumerate(names) if not name], classes)
    places = Counter(name for name, _ in set(zip(names, below, strict=True)))
    twice = sorted(name for name, count in places.items() if count > 1 and name)
    if twice:
        listing.notices.append(f"folders of the same name in different places are one class: {some(twice)}")
    numbers = {name: number for number, name in enumerate(classes)}
    return Labelling(tuple(classes), of_group=np.array([numbers.get(name, -1) for name in names], np.int64))


def _tell_of_stray_inputs(listing: Listing, mode: str, groups: list[int], classes: list[str]) -> None:
    """Return a notice on inputs outside of class folders. Raises InputError unless --labels folder was given."""
    rows = np.flatnonzero(np.isin(listing.table["group"].to_numpy(), groups))
    lie = f"{counted(len(rows), 'input')} ({some(listing.keys_at(rows[:100]))})"
    lie += f" beside {len(classes)} class folders ({some(classes)})"
    if mode == "auto":
        raise InputError(
            f"{lie} would have no label: move or remove other files, or use --labels folder to leave such labels"
            " empty, --labels none to have no labels at all"
        )
    listing.notices.append(f"{lie}: no label")


@dataclass(frozen=True)
class SplitPlan:
    """One split: how many plan rows it has, and in how many shards they go."""

    name: str
    rows: int
    shards: int

    def range_of(self, shard: int) -> tuple[int, int]:
        """Return (first row, number of rows) of a shard, counted from the split's first row. Sizes differ by 1 at most."""
        first = shard * self.rows // self.shards
        return first, (shard + 1) * self.rows // self.shards - first


@dataclass(frozen=True)
class Order:
    """The rows of the plan as rows of the listing: split after split, shuffled within each or in the order of the walk."""

    splitting: Splitting
    rows: npt.NDArray[np.int64]
    counts: tuple[int, ...]


def order_inputs(splitting: Splitting, shuffle: int | None) -> Order:
    """Put the inputs in the order of the dataset."""
    parts = []
    for number in range(len(splitting.names)):
        rows = np.flatnonzero(splitting.of_input == number)
        if shuffle is not None:
            rows = rows[Permutation(len(rows), shuffle, number)(np.arange(len(rows)))]
        parts.append(rows)
    return Order(splitting, np.concatenate(parts), tuple(len(part) for part in parts))


def plan_schema(side: SideTable | None) -> pa.Schema:
    """Return the columns of the plan that the workers read."""
    columns = [f for f in LISTING_SCHEMA if f.name not in ("group", "label", "hash")]
    columns += [pa.field("split", pa.string()), pa.field("variant", pa.int32()), pa.field("label", pa.int64())]
    fields = side_fields(side)
    return pa.schema([*columns, pa.field("columns", pa.struct(fields))] if fields else columns)


def side_fields(side: SideTable | None) -> list[pa.Field]:
    """Return the columns that the labels files add to every sample, `label` apart."""
    return [f for f in side.columns.schema if f.name != "label"] if side else []


def make_planner(listing: Listing, settings: PlanSettings, variants: int) -> Planner:
    """Decide splits, labels and order. Raises InputError if the inputs do not have what the settings ask for."""
    splitting = split_inputs(listing, settings.split, settings.seed)
    if splitting.by == "column" and listing.side is not None:
        listing.side = listing.side.without(SPLIT_COLUMN)
    labelling = label_inputs(listing, settings, splitting.by == "folder")
    return Planner(listing, order_inputs(splitting, settings.shuffle), labelling, variants)


class Planner:
    """Makes rows of the plan out of the listing, any range of them."""

    def __init__(self, listing: Listing, order: Order, labelling: Labelling, variants: int) -> None:
        self._listing, self._order, self._variants = listing, order, variants
        self.labelling = labelling
        self.schema = plan_schema(listing.side)
        self._batches = listing.table.to_batches()
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])

    def __len__(self) -> int:
        return len(self._order.rows) * self._variants

    @property
    def split_rows(self) -> list[tuple[str, int]]:
        """The splits in order, each with the number of its rows."""
        counts = (count * self._variants for count in self._order.counts)
        return list(zip(self._order.splitting.names, counts, strict=True))

    def write(self, path: Path, places: npt.NDArray[np.int64] | None = None) -> None:
        """Write the whole plan, or the rows at some places of it; a chunk is in memory at a time."""
        count = len(self) if places is None else len(places)
        with replacing(path) as sink, pa.ipc.new_file(pa.PythonFile(sink, mode="w"), self.schema) as writer:
            for first in range(0, count, CHUNK_ROWS):
                chunk = np.arange(first, min(first + CHUNK_ROWS, count))
                writer.write_batch(self.rows(chunk if places is None else places[chunk]))

    def rows(self, places: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Return rows of the plan by their places in it."""
        rows = self._order.rows[places // self._variants]
        listed = self._take(rows)
        split = pa.array(np.array(self._order.splitting.names)[self._order.splitting.of_input[rows]].tolist(), pa.string())
        columns = {f.name: listed[f.name] for f in self.schema if f.name in listed.schema.names}
        columns |= {"split": split, "variant": pa.array((places % self._variants).astype(np.int32))}
        columns |= self._labels(listed, rows)
        return pa.record_batch([columns[f.name] for f in self.schema], schema=self.schema)

    def _labels(self, listed: pa.RecordBatch, rows: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
        """Return `label`, and `columns` where a labels file has any, of inputs: rows of the listing."""
        side, labelling = self._listing.side, self.labelling
        if side is None or self._listing.side_rows is None:
            if labelling.of_group is not None:
                label = labelling.of_group[listed["group"].to_numpy()]
            elif labelling.of_name is not None:
                label = np.append(labelling.of_name, -1)[listed["label"].to_numpy()]  # -1, for none, counts from the end
            else:
                return {"label": pa.nulls(listed.num_rows, pa.int64())}
            return {"label": pa.array(label, pa.int64(), mask=label < 0)}
        found = self._listing.side_rows[rows]
        taken = side.columns.take(pa.array(found, mask=found < 0)).combine_chunks()
        known = "label" in taken.column_names
        columns = {"label": _one_chunk(taken["label"]) if known else pa.nulls(listed.num_rows, pa.int64())}
        if fields := side_fields(side):
            columns["columns"] = pa.StructArray.from_arrays([_one_chunk(taken[f.name]) for f in fields], fields=fields)
        return columns

    def _take(self, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Take rows of the listing. Batch by batch: a take from the whole table would first copy it together."""
        if len(rows) and (np.diff(rows) == 1).all():
            # As they were listed: no copy, and without pyarrow.compute, which takes 40 ms to import.
            return pa.concat_batches(self._listing.table.slice(rows[0], len(rows)).to_batches())
        batch_of = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(batch_of, kind="stable")
        parts = []
        for number in np.unique(batch_of):
            inside = rows[order][batch_of[order] == number] - self._starts[number]
            parts.append(self._batches[number].take(pa.array(inside)))
        back = np.empty(len(rows), np.int64)
        back[order] = np.arange(len(rows))
        return pa.concat_batches(parts).take(pa.array(back))


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
