"""What can be measured: shards, and a reader of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shardctl.benchmark.measure.meters import own_memory_mb, peak_memory_mb
from shardctl.benchmark.measure.page_cache import evict, residency
from shardctl.benchmark.options import BenchOptions
from shardctl.errors import DatasetError, UsageError
from shardctl.format.token_columns import columns_of_blocks
from shardctl.loader.blocks.fetching import NAMES as NETWORK_COUNTS
from shardctl.loader.blocks.memory import Batch
from shardctl.loader.blocks.transforms import zeros
from shardctl.loader.dataset import Dataset, open_dataset
from shardctl.loader.loader import Loader
from shardctl.system.locations import is_url
from shardctl.system.text import printable

IN_ORDER = "in-order"
"""The name of the order that is not random."""


class Stats(Protocol):
    """What a reader measures of itself; LoaderStats of shardctl.loader is one."""

    @property
    def stages(self) -> dict[str, float]:
        """Seconds of all threads by stage."""

    @property
    def wait_put_s(self) -> float:
        """Seconds that threads waited because finished batches were not yet taken."""

    @property
    def making_s(self) -> float:
        """Seconds that threads worked."""

    @property
    def processes_cpu_s(self) -> float:
        """Processor seconds of other processes than this one, since they began."""


class Batches(Protocol):
    """An open reader: a loader of shardctl, or the reader of another tool in a process of its
    own."""

    @property
    def threads(self) -> int:
        """The number of threads, or of worker processes, that read."""

    def __iter__(self) -> Iterator[Batch]: ...
    def stats(self) -> Stats:
        """Return what was measured since the start of the last iteration."""

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration start at the beginning of this epoch."""

    def close(self) -> None:
        """End what was started for reading."""


@dataclass(frozen=True)
class Memory:
    """Memory in 10^6 bytes: `own` without mapped files, None if the system does not report it, and
    `peak` with them."""

    own: float | None
    peak: float


@dataclass(frozen=True)
class Opened:
    """A reader, and the seconds that it took to open the shards."""

    batches: Batches
    seconds: float


class Subject(Protocol):
    """What is measured: shards, and how they are read."""

    def open(self, epochs: int | None, drop_last: bool = False) -> Opened:
        """Open a reader of so many epochs (None: for ever). Raises DatasetError, InputError,
        InstallError."""

    def order_of(self, batches: Batches) -> str:
        """Return the name of the order in which they come."""

    def memory_of(self, batches: Batches) -> Memory:
        """Return the memory of the processes that read."""

    def transfers_of(self, batches: Batches) -> dict[str, int] | None:
        """Return what has come over a network since the reader was opened, as LoaderStats counts
        it; None for local files."""

    def evict(self) -> None:
        """Drop the shards from the page cache. Raises UsageError."""

    def residency(self) -> float | None:
        """Return the share of the shards that is in the page cache (0 to 1); None if the system
        does not report it."""


@dataclass(frozen=True)
class OwnDataset:
    """A dataset of shardctl, read with its loader."""

    place: str | Path
    options: BenchOptions

    def open(self, epochs: int | None, drop_last: bool = False) -> Opened:
        """Open a loader. Raises DatasetError."""
        began = time.perf_counter()
        loader = open_loader(self.place, self.options, epochs, drop_last)
        return Opened(loader, time.perf_counter() - began)

    def order_of(self, batches: Batches) -> str:
        """Return the name of the loader's order."""
        assert isinstance(batches, Loader)  # from `open`
        return str(batches.stream.identity()["shuffle"] or IN_ORDER)

    def memory_of(self, batches: Batches) -> Memory:
        """Return the memory of this process and of the loader's."""
        assert isinstance(batches, Loader)  # from `open`
        return Memory(own_memory_mb(batches.process_ids), peak_memory_mb(batches.process_ids))

    def transfers_of(self, batches: Batches) -> dict[str, int] | None:
        """Return what has come over the network, for a dataset on a store."""
        assert isinstance(batches, Loader)  # from `open`
        counts = vars(batches.stats())
        return {name: counts[name] for name in NETWORK_COUNTS} if is_url(self.place) else None

    def evict(self) -> None:
        """Drop the shards from the page cache. Raises UsageError for a dataset on a store."""
        if is_url(self.place):
            raise UsageError(
                f"{printable(str(self.place))}: only files of this machine can be dropped; leave "
                "out --cold"
            )
        evict(Path(self.place))

    def residency(self) -> float | None:
        """Return the share of the shards in the page cache, None for a dataset on a store. Raises
        DatasetError."""
        return None if is_url(self.place) else residency(Path(self.place))


def opened(place: str | Path, options: BenchOptions) -> Dataset:
    """Open a dataset as the options say. Raises DatasetError."""
    return open_dataset(place, options.split, cache=options.cache, cache_limit=options.cache_limit)


def open_loader(
    place: str | Path, options: BenchOptions, repeat: int | None, drop_last: bool = False
) -> Loader:
    """Open the dataset, and return a loader that reads it `repeat` times (None: for ever). Raises
    DatasetError."""
    dataset = opened(place, options)
    if not len(dataset):
        of_split = f" in split {options.split}" if options.split else ""
        raise DatasetError(f"{printable(str(place))}: there is no sample to read{of_split}")
    read = columns_of_blocks(dataset.schema.names, dataset.roles) or dataset.schema.names
    loader = dataset.loader(
        options.batch_size,
        shuffle=options.shuffle,
        threads=options.threads,
        decode=options.decode,
        repeat=repeat,
        drop_last=drop_last and len(dataset) >= options.batch_size,
        profile=True,
        fill={name: value for name, value in zeros(dataset.schema).items() if name in read},
        processes=options.processes,
    )
    loader.start()
    return loader
