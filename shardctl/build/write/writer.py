"""Samples into the shards of their splits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shardctl.build.options import check_shards
from shardctl.build.plan.splits import Draw, SplitRule
from shardctl.build.write.fields import Fields
from shardctl.build.write.keys import Keys
from shardctl.build.write.series import ShardSeries
from shardctl.errors import UsageError
from shardctl.format.sample import Sample
from shardctl.format.shard import Compression
from shardctl.format.tables import ShardEntry
from shardctl.sources.label_table import hash_names
from shardctl.sources.splits import is_split_name
from shardctl.system.dataclass import dataclass
from shardctl.transforms.pipeline.sizes import row_size

SHARD_BYTES = 128 << 20


@dataclass(frozen=True)
class ShardLimits:
    """When a shard is full."""

    bytes: int
    samples: int

    @classmethod
    def of(cls, shard_size: int | None, samples_per_shard: int | None) -> ShardLimits:
        """Read the arguments of `write`. Raises UsageError."""
        check_shards(shard_size, samples_per_shard)
        if samples_per_shard is not None:
            return cls(1 << 62, samples_per_shard)
        return cls(shard_size or SHARD_BYTES, 1 << 62)


@dataclass(frozen=True)
class Splits:
    """The splits that samples may be in, and what draws them where there are several."""

    names: tuple[str, ...]
    draw: Draw | None = None

    @classmethod
    def parse(cls, text: str) -> Splits:
        """Read the name of a split, or shares such as train=0.9,val=0.1. Raises UsageError."""
        if not isinstance(text, str) or "=" not in text:
            refuse_bad_names([text])
            return cls((text,))
        rule = SplitRule.parse(text)
        return cls(tuple(name for name, _ in rule.shares), Draw.of(rule, 0))

    def of(self, key: str) -> str:
        """Return the split of a sample: that of a file of this name in a conversion with seed 0."""
        return self.names[int(self.draw.of_files(hash_names([key]))[0])] if self.draw else self.names[0]


def refuse_bad_names(names: Sequence[object]) -> None:
    """Raise UsageError for what cannot be the name of a split."""
    bad = [name for name in names if not isinstance(name, str) or not is_split_name(name)]
    if bad:
        raise UsageError(f"split name {bad[0]!r} must be made of letters, digits, _ and .")


class SampleWriter:
    """Writes samples into a folder: each split has shards of its own, and one block in memory."""

    def __init__(self, folder: Path, fields: Fields, compression: Compression, limits: ShardLimits, classes: int) -> None:
        self._folder, self._fields, self._compression, self._limits = folder, fields, compression, limits
        self._classes = classes
        self._series: dict[str, ShardSeries] = {}
        self._keys: dict[str, Keys] = {}
        self._labels: dict[str, npt.NDArray[np.int64]] = {}

    def add(self, sample: Sample, number: int, splits: Splits) -> None:
        """Write a sample, the `number`-th of the caller's. Raises InputError, StorageError."""
        values = self._fields.values(sample, number)
        split = splits.of(values[0])
        if split not in self._series:
            self._begin(split)
        self._keys[split].add(values)
        self._series[split].add(values, row_size(values))
        if self._classes and (label := values[self._fields.label]) is not None:
            self._labels[split][label] += 1

    def _begin(self, split: str) -> None:
        layout, limits = self._fields.layout, self._limits
        self._series[split] = ShardSeries(self._folder, layout, split, self._compression, limits.bytes, limits.samples)
        self._keys[split] = new_keys(self._fields)
        self._labels[split] = np.zeros(self._classes, np.int64)

    def finish(self) -> Iterator[WrittenSplit]:
        """End the shards, and yield what was written of each split, in the order in which they came. Raises StorageError."""
        for split, series in self._series.items():
            series.close()
            yield WrittenSplit(split, tuple(series.entries), self._keys[split].hashes, self._labels[split])

    def abandon(self) -> None:
        """Close the files, which are of no use."""
        for series in self._series.values():
            series.abandon()


@dataclass(frozen=True)
class WrittenSplit:
    """The shards of one split, a hash of each key (samples,) uint64, and the samples of each class (classes,) int64."""

    split: str
    entries: tuple[ShardEntry, ...]
    hashes: npt.NDArray[np.uint64]
    labels: npt.NDArray[np.int64]


def in_order(written: Iterable[WrittenSplit], names: Sequence[str]) -> list[WrittenSplit]:
    """Return what was written in the order of the splits' names."""
    return sorted(written, key=lambda each: list(names).index(each.split))


def new_keys(fields: Fields) -> Keys:
    """Return what takes the keys of samples with these fields."""
    return Keys(fields.layout.columns.get_field_index("variant"))
