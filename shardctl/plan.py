"""The plan: which input goes to which shard, as a table on disk. Nothing is held per input in Python objects."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import InputError, UsageError
from shardctl.listing import CHUNK_ROWS, LISTING_SCHEMA, LabelRule, Listing
from shardctl.order import Permutation, mix64
from shardctl.sources.labels import SideTable, some
from shardctl.storage import replacing

SPLIT_FOLDERS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval")
"""Top folders that `--split auto` takes for splits."""


@dataclass(frozen=True)
class SplitRule:
    """How inputs are divided: `auto`, `folder`, or shares such as train=0.9,val=0.1 drawn by a hash of the key."""

    mode: str
    shares: tuple[tuple[str, float], ...] = ()

    @classmethod
    def parse(cls, text: str) -> SplitRule:
        """Read what `--split` says. Raises UsageError."""
        if text in ("auto", "folder", "none"):
            return cls(text)
        shares = []
        for part in text.split(","):
            name, _, share = part.strip().partition("=")
            try:
                shares.append((name, float(share)))
            except ValueError:
                raise UsageError(f"split {text!r} is not of the form train=0.9,val=0.1 (or auto, folder, none)") from None
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.]*", name):
                raise UsageError(f"split name {name!r} must be made of letters, digits, _ and .")
        if len({name for name, _ in shares}) < len(shares):
            raise UsageError(f"split {text!r} names a split twice")
        if any(not 0 < share <= 1 for _, share in shares) or abs(sum(share for _, share in shares) - 1) > 1e-6:
            raise UsageError(f"split {text!r}: the shares must be over 0 and add up to 1")
        return cls("shares", tuple(shares))

    def __str__(self) -> str:
        return ",".join(f"{name}={share:g}" for name, share in self.shares) if self.shares else self.mode


@dataclass(frozen=True)
class PlanSettings:
    """Everything but the recipe that decides what the dataset is. `shuffle` is a seed, None for the order of the walk."""

    split: SplitRule
    labels: LabelRule
    shuffle: int | None
    seed: int

    def record(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        return {
            "split": str(self.split),
            "labels": str(self.labels),
            "shuffle": self.shuffle,
            "lenient_labels": self.labels.lenient,
        }


@dataclass(frozen=True)
class Labelling:
    """Where `label` comes from: the class of every folder id (-1: none), or None; and the names of the classes."""

    of_folder: npt.NDArray[np.int64] | None
    classes: tuple[str, ...] | None


def label_inputs(listing: Listing, settings: PlanSettings, by_folder: bool) -> Labelling:
    """Decide the labels. The class of a file is the name of the folder that it lies in.

    `by_folder` says that the top folders are splits, which are no classes. Raises InputError where folder labels were
    asked for and no file lies in a folder.
    """
    if listing.side is not None:
        return Labelling(None, listing.side.classes)
    if settings.labels.mode == "none":
        return Labelling(None, None)
    below = [name.partition("/")[2] if by_folder else name for name in listing.folders]
    names = [name.rpartition("/")[2] for name in below]
    classes = sorted(set(names) - {""})
    if settings.labels.mode == "folder" and not classes:
        raise InputError("no input lies in a folder that could be its class; use --labels none or a labels file")
    if settings.labels.mode == "auto" and (len(classes) < 2 or "" in names):
        return Labelling(None, None)
    places = Counter(name for name, _ in set(zip(names, below, strict=True)))
    twice = sorted(name for name, count in places.items() if count > 1 and name)
    if twice:
        listing.notices.append(f"folders of the same name in different places are one class: {some(twice)}")
    numbers = {name: number for number, name in enumerate(classes)}
    return Labelling(np.array([numbers.get(name, -1) for name in names], np.int64), tuple(classes))


@dataclass(frozen=True)
class Splitting:
    """The split of every input (by number), and the names of the splits. `of_input` is (n,) uint8."""

    names: tuple[str, ...]
    of_input: npt.NDArray[np.uint8]
    by_folder: bool


def split_inputs(listing: Listing, settings: PlanSettings) -> Splitting:
    """Divide the inputs. Raises InputError where splitting by folder was asked for and there are no folders."""
    rule = settings.split
    if rule.mode == "shares":
        return _split_by_shares(listing, rule, settings.seed)
    tops = [name.partition("/")[0] for name in listing.folders]
    if rule.mode == "folder" and "" in tops:
        raise InputError("--split folder: some inputs lie in no folder that could name their split")
    if rule.mode == "folder" or (rule.mode == "auto" and all(top.lower() in SPLIT_FOLDERS for top in tops)):
        present = sorted(set(tops), key=lambda top: (_rank(top), top))
        bad = [name for name in present if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.]*", name)]
        if bad:
            raise InputError(f"--split folder: {some(bad)} cannot name a split; use letters, digits, _ and .")
        if len(present) > 255:
            raise InputError(f"--split folder: {len(present)} top folders are too many for splits")
        number = np.array([present.index(top) for top in tops], np.uint8)
        return Splitting(tuple(present), number[listing.table["folder"].to_numpy()], True)
    return Splitting(("train",), np.zeros(len(listing), np.uint8), False)


def _rank(name: str) -> int:
    return SPLIT_FOLDERS.index(name.lower()) if name.lower() in SPLIT_FOLDERS else len(SPLIT_FOLDERS)


def _split_by_shares(listing: Listing, rule: SplitRule, seed: int) -> Splitting:
    """Draw each input's split from a hash of its key, so that it stays where it is when other inputs come or go."""
    seeded = mix64(listing.hashes ^ mix64(np.array([seed], np.uint64)))
    drawn = seeded.astype(np.float64) / 2.0**64
    edges = np.cumsum([share for _, share in rule.shares])[:-1]
    number = np.searchsorted(edges, drawn, side="right").astype(np.uint8)
    return Splitting(tuple(name for name, _ in rule.shares), number, False)


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
    columns = [f for f in LISTING_SCHEMA if f.name not in ("folder", "hash")]
    columns += [pa.field("split", pa.string()), pa.field("variant", pa.int32()), pa.field("label", pa.int64())]
    fields = side_fields(side)
    return pa.schema([*columns, pa.field("columns", pa.struct(fields))] if fields else columns)


def side_fields(side: SideTable | None) -> list[pa.Field]:
    """Return the columns that the labels files add to every sample, `label` apart."""
    return [f for f in side.columns.schema if f.name != "label"] if side else []


def make_planner(listing: Listing, settings: PlanSettings, variants: int) -> Planner:
    """Decide splits, labels and order. Raises InputError where the inputs do not have what the settings ask for."""
    splitting = split_inputs(listing, settings)
    labelling = label_inputs(listing, settings, splitting.by_folder)
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
        columns |= self._labels(listed)
        return pa.record_batch([columns[f.name] for f in self.schema], schema=self.schema)

    def _labels(self, listed: pa.RecordBatch) -> dict[str, pa.Array]:
        none = pa.nulls(listed.num_rows, pa.int64())
        side = self._listing.side
        if side is None:
            if self.labelling.of_folder is None:
                return {"label": none}
            label = self.labelling.of_folder[listed["folder"].to_numpy()]
            return {"label": pa.array(label, pa.int64(), mask=label < 0)}
        found = side.rows_of(listed["hash"].to_numpy())
        taken = side.columns.take(pa.array(found, mask=found < 0)).combine_chunks()
        columns = {"label": _one_chunk(taken["label"]) if "label" in taken.column_names else none}
        if fields := side_fields(side):
            columns["columns"] = pa.StructArray.from_arrays([_one_chunk(taken[f.name]) for f in fields], fields=fields)
        return columns

    def _take(self, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Take rows of the listing. Batch by batch: a take from the whole table would first copy it together."""
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
