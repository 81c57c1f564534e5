"""A dataset or one of its splits as a whole, from its manifest and its tables.

Shards are read only to count classes, where the manifest does not have their counts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError, UsageError
from shardctl.format.arrays import Numbers
from shardctl.format.dataset_tables import checked_column
from shardctl.format.manifest import Manifest, SplitFacts
from shardctl.format.names import Json, shard_name
from shardctl.format.shard import BlockFile, ShardReader
from shardctl.format.tables import Reject, ShardEntry, ShardTable, count_reasons, read_rejects
from shardctl.system.folders import Folder
from shardctl.system.report import Section, Table, in_a_notebook
from shardctl.system.text import counted, format_bytes


@dataclass(frozen=True)
class BlockFacts:
    """One block of a shard. `intact` is None if its checksum was not computed."""

    block: int
    rows: int
    raw_bytes: int
    checksum: str | None
    intact: bool | None

    @property
    def checked(self) -> str:
        """What is known of its checksum, in words."""
        return {None: "not checked", True: "holds", False: "DIFFERS"}[self.intact]


@dataclass(frozen=True)
class ShardOverview:
    """One shard, with or without its dataset."""

    name: str
    split: str
    samples: int
    bytes: int
    raw_bytes: int
    columns: tuple[tuple[str, str], ...]
    column_bytes: dict[str, int]
    blocks: tuple[BlockFacts, ...]

    def __repr__(self) -> str:
        """Return how much there is, for display."""
        return (
            f"<shardctl.ShardOverview {self.name!r}: {self.size}; columns "
            f"{', '.join(name for name, _ in self.columns)}>"
        )

    def _repr_html_(self) -> str:
        """Return the columns and the blocks, for a notebook."""
        return in_a_notebook(shard_report(self))

    @property
    def size(self) -> str:
        """How much there is, in words."""
        samples = (
            f"{counted(self.samples, 'sample')} of split {self.split} in "
            f"{counted(len(self.blocks), 'block')}"
        )
        return f"{samples}, {format_bytes(self.bytes)}, {format_bytes(self.raw_bytes)} uncompressed"


def shard_report(found: ShardOverview) -> Iterator[Section]:
    """Yield what is known of one shard."""
    yield Section(f"{found.name}: {found.size}")
    columns = [(name, found.column_bytes.get(name, 0), type_) for name, type_ in found.columns]
    yield Section("columns:", (Table(columns, ("column", "uncompressed bytes", "type")),))
    blocks = [(b.block, b.rows, b.raw_bytes, b.checksum, b.checked) for b in found.blocks]
    yield Section(
        "blocks:", (Table(blocks, ("block", "rows", "uncompressed bytes", "checksum", "")),)
    )


def describe_shard(folder: Folder, name: str, check: bool = False) -> ShardOverview:
    """Describe one shard file, with no need of its dataset; `check` computes the checksums. Raises
    DatasetError."""
    reader = ShardReader(folder, name)
    blocks, column_bytes, samples, raw = [], Counter[str](), 0, 0
    for number, block in enumerate(reader.blocks()):
        intact = reader.checked_block(number)[1] if check else None
        blocks.append(
            BlockFacts(number, block.num_rows, block.nbytes, reader.stored_checksum(number), intact)
        )
        samples += block.num_rows
        raw += block.nbytes
        for field, column in zip(reader.schema, block.columns, strict=True):
            column_bytes[field.name] += column.nbytes
    columns = tuple((f.name, str(f.type)) for f in reader.schema)
    split = str(reader.info["split"])
    return ShardOverview(
        shard_name(split, reader.info["shard"]),
        split,
        samples,
        reader.bytes,
        raw,
        columns,
        dict(column_bytes),
        tuple(blocks),
    )


def find_shard(folder: Folder, name: str) -> ShardEntry:
    """Return the shard of a dataset by what it is called, its path or its number. Raises UsageError if there is
    none."""
    table = ShardTable(folder)
    number = int(name) if name.isdecimal() else table.index_of(name)
    if number is None or number >= len(table):
        raise UsageError(
            f"{folder.shown()}: no shard {name!r}; it has {counted(len(table), 'shard')}, from "
            f"{table[0].name}"
        )
    return table[number]


def column_bytes(folder: Folder, split: str | None = None) -> dict[str, int]:
    """Add up the bytes of every column before compression, reading every shard of a dataset, or of
    one split."""
    total: Counter[str] = Counter()
    for entry in ShardTable(folder):
        if split in (None, entry.split):
            total.update(describe_shard(folder, entry.path).column_bytes)
    return dict(total)


NO_LABEL = "(no label)"

_SMALLER = 1.005
"""From this ratio on compression has made something smaller. Below it are shards of a few bytes,
and incompressible images."""


@dataclass(frozen=True)
class Overview:
    """A dataset as a whole. `compression_ratio` is uncompressed bytes / stored bytes, `shard_bytes`
    the least, median, most.

    `classes_by_split` counts the samples of each class, by split; None if there are no classes.
    `reject_reasons` counts the rejects by stage and error, `reject_examples` has one of each. With
    a `split`, samples, shards, bytes and classes are about this split. Rejects are still about the
    whole dataset.
    """

    manifest: Manifest
    raw_bytes: int
    shard_bytes: tuple[int, int, int]
    classes_by_split: dict[str, dict[str, int]] | None
    reject_reasons: dict[str, int]
    reject_examples: tuple[Reject, ...]
    split: str | None

    @property
    def splits(self) -> tuple[SplitFacts, ...]:
        """The described splits."""
        return tuple(facts for facts in self.manifest.splits if self.split in (None, facts.name))

    @property
    def samples(self) -> int:
        """The samples of these splits."""
        return sum(facts.samples for facts in self.splits)

    @property
    def shards(self) -> int:
        """The shards of these splits."""
        return sum(facts.shards for facts in self.splits)

    @property
    def bytes(self) -> int:
        """The bytes of their shards."""
        return sum(facts.bytes for facts in self.splits)

    @property
    def schema(self) -> dict[str, str]:
        """The columns of the shards: the name and the Arrow type of each."""
        return dict(self.manifest.schema)

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe with which the samples were made."""
        return self.manifest.recipe

    @property
    def fingerprint(self) -> str:
        """What stands for the inputs, the recipe and the settings: 32 hex digits."""
        return self.manifest.fingerprint

    @property
    def compression_ratio(self) -> float:
        """How much smaller compression made the blocks."""
        return self.raw_bytes / max(1, self.bytes)

    @property
    def compressed(self) -> str:
        """How much smaller compression made the blocks, in words."""
        if self.manifest.recipe["compression"] == "none":
            return "not compressed"
        ratio = self.compression_ratio
        return f"compressed {ratio:.2f} to 1" if ratio >= _SMALLER else "no smaller by compression"

    @property
    def classes(self) -> dict[str, int] | None:
        """The samples of each class, over all splits."""
        if self.classes_by_split is None:
            return None
        totals: Counter[str] = Counter()
        for counts in self.classes_by_split.values():
            totals.update(counts)
        return dict(totals)

    def record(self) -> dict[str, Any]:
        """Return everything as plain data, for --json."""
        m = self.manifest
        return {
            "kind": m.kind,
            "split": self.split,
            "samples": self.samples,
            "shards": self.shards,
            "bytes": self.bytes,
            "raw_bytes": self.raw_bytes,
            "compression_ratio": round(self.compression_ratio, 3),
            "shard_bytes": dict(zip(("min", "median", "max"), self.shard_bytes, strict=True)),
            "rejected": m.rejected,
            "reject_reasons": self.reject_reasons,
            "reject_examples": [vars(reject) for reject in self.reject_examples],
            "splits": [vars(split) for split in self.splits],
            "jpeg": m.jpeg,
            "steps": m.steps,
            "classes": self.classes,
            "classes_by_split": self.classes_by_split,
            "schema": [{"name": name, "type": type_} for name, type_ in self.schema.items()],
            "fields": m.fields,
            "recipe": self.recipe,
            "settings": m.settings,
            "fingerprint": self.fingerprint,
            "sources": list(m.sources),
            "created": m.created,
            "seconds": m.seconds,
            "shardctl_version": m.shardctl_version,
        }


def recipe_in_words(recipe: Json) -> str:
    """Return the steps of a recipe with their settings, and how it stores samples."""
    steps = []
    for step in recipe["transform"]:
        settings = ", ".join(f"{name} {value}" for name, value in step.items() if name != "name")
        steps.append(f"{step['name']} ({settings})" if settings else str(step["name"]))
    store = [f"store {recipe['store']}"] if recipe["store"] else []
    return ", ".join([*steps, *store, f"compression {recipe['compression']}"])


def settings_in_words(settings: Json) -> str:
    """Return settings that are given, each with its name; those of what `recipe_in_words` says are
    left out."""
    said = ("transform", "store", "compression")
    return ", ".join(
        f"{name} "
        f"{value if isinstance(value, str | int | float) else json.dumps(value, default=str)}"
        for name, value in settings.items()
        if name not in said and value not in (None, "", [], {})
    )


def overview(folder: Folder, split: str | None = None) -> Overview:
    """Describe a whole dataset, or one of its splits. Raises DatasetError, UsageError for an
    unknown split."""
    manifest = Manifest.load(folder)
    table = ShardTable(folder)
    numbers = manifest.shards_of(split, folder.shown())
    chosen = slice(numbers.start, numbers.stop)
    sizes, raw_sizes = table.sizes[chosen], table.raw_sizes[chosen]
    reasons, examples = count_reasons(read_rejects(folder))
    low, median, high = (int(each(sizes)) if len(sizes) else 0 for each in (min, np.median, max))
    classes = _classes(folder, manifest)
    if classes is not None and split is not None:
        classes = {split: classes[split]}
    return Overview(
        manifest, int(raw_sizes.sum()), (low, median, high), classes, reasons, examples, split
    )


def _classes(folder: Folder, manifest: Manifest) -> dict[str, dict[str, int]] | None:
    """Return the samples of each class by split: as the manifest has them, else counted in the
    shards."""
    names, label = manifest.roles.classes, str(manifest.roles.main_label)
    if names is None:
        return None
    try:
        counts = (
            manifest.class_counts
            if manifest.class_counts is not None
            else count_labels(folder, label, len(names))
        )
    except DatasetError:
        return None  # a shard is damaged, and all the rest can be shown
    classes = {}
    for split in manifest.splits:
        of_split = counts.get(split.name, [0] * len(names))
        classes[split.name] = dict(zip(names, of_split, strict=True))
        if split.samples > sum(of_split):
            classes[split.name][NO_LABEL] = split.samples - sum(of_split)
    return classes


def count_labels(folder: Folder, label: str, names: int) -> dict[str, list[int]]:
    """Count the samples of each class in all shards, by split; only this column is read. Raises
    DatasetError."""
    counts: dict[str, Numbers] = {}
    for entry in ShardTable(folder):
        column = ShardReader(folder, entry.path).schema.get_field_index(label)
        if column < 0:
            continue
        file = BlockFile.of(folder, entry.path, [column])
        of_split = counts.setdefault(entry.split, np.zeros(names, np.int64))
        for block in range(len(file)):
            of_split += _count(checked_column(file, block), names)
    return {split: found.tolist() for split, found in counts.items()}


def _count(labels: pa.Array, names: int) -> Numbers:
    """Count the samples of each class, (names,) int64. What is not the number of a class counts
    nowhere."""
    if not pa.types.is_integer(labels.type):
        return np.zeros(names, np.int64)
    values = labels.drop_null().to_numpy()
    return np.bincount(values[(values >= 0) & (values < names)].astype(np.int64), minlength=names)
