"""What can be measured: shards, a reader of them, and how many tokens a sample has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shardctl.benchmark.measure.meters import memory_with
from shardctl.benchmark.measure.result import IN_ORDER
from shardctl.benchmark.options import BenchOptions
from shardctl.benchmark.presets import Preset
from shardctl.errors import DatasetError, UsageError
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.roles import Roles
from shardctl.format.tables import ShardTable
from shardctl.format.token_columns import DOCUMENT_LENGTHS, columns_of_blocks, packed_column
from shardctl.loader.blocks.column import Column
from shardctl.loader.blocks.memory import Batch
from shardctl.loader.blocks.stages import NETWORK_COUNTS
from shardctl.loader.blocks.transforms import zeros
from shardctl.loader.dataset import Dataset, open_dataset
from shardctl.loader.loader import Loader
from shardctl.system.locations import is_url
from shardctl.system.permutation import evenly_spaced
from shardctl.system.text import printable


class Batches(Protocol):
    """An open reader: a loader of shardctl, or the reader of another tool in a process of its
    own."""

    @property
    def threads(self) -> int:
        """The number of threads, or of worker processes, that read."""

    def __iter__(self) -> Iterator[Batch]: ...
    def stats(self) -> Any:
        """Return what was measured since the start of the last iteration: `stages`, `wait_put_s`,
        `making_s` and `processes_cpu_s` of LoaderStats."""

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration start at the beginning of this epoch."""

    def close(self) -> None:
        """End what was started for reading."""


Report = Callable[[int], None]
"""Is told the number of samples of every batch."""

Memory = tuple[float | None, float]
"""In 10^6 bytes: without mapped files, None if the system does not report it, and with them."""


class Subject(Protocol):
    """What is measured: shards, and how they are read."""

    def open(self, epochs: int | None, drop_last: bool = False) -> tuple[Batches, float]:
        """Return a reader of so many epochs (None: for ever), and the seconds that it took to open
        the shards. Raises DatasetError, InputError, InstallError."""

    def order_and_memory(self, batches: Batches) -> tuple[str, Memory]:
        """Return the name of the order in which they come, and the memory of the processes that
        read."""

    def transfers_of(self, batches: Batches) -> dict[str, int] | None:
        """Return what has come over a network since the reader was opened, as LoaderStats counts
        it; None for local files."""

    @property
    def files(self) -> list[Path]:
        """The files of the shards; none where they are on a store. Raises DatasetError."""


@dataclass(frozen=True)
class OwnDataset:
    """A dataset of shardctl, read with its loader."""

    place: str | Path
    options: BenchOptions

    def open(self, epochs: int | None, drop_last: bool = False) -> tuple[Batches, float]:
        """Open a loader. Raises DatasetError."""
        began = time.perf_counter()
        loader = open_loader(self.place, self.options, epochs, drop_last)
        return loader, time.perf_counter() - began

    def order_and_memory(self, batches: Batches) -> tuple[str, Memory]:
        """Return the name of the loader's order, and the memory of this process and of the
        loader's."""
        assert isinstance(batches, Loader)  # from `open`
        order = str(batches.stream.identity()["shuffle"] or IN_ORDER)
        return order, memory_with(batches.process_ids)

    def transfers_of(self, batches: Batches) -> dict[str, int] | None:
        """Return what has come over the network, for a dataset on a store."""
        counts = vars(batches.stats())
        return {name: counts[name] for name in NETWORK_COUNTS} if is_url(self.place) else None

    @property
    def files(self) -> list[Path]:
        """The files of the shards; none of a dataset on a store. Raises DatasetError."""
        if is_url(self.place):
            return []
        dataset = dataset_in(Path(self.place))
        return list(map(dataset.path, ShardTable(dataset).paths))


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
        raise DatasetError(f"{printable(place)}: there is no sample to read{of_split}")
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
        processes=options.processes or "auto",
        recipe=options.recipe,
        step=options.steps,
        transform=() if options.baseline else options.transforms,
    )
    loader.start()
    return loader


TOKEN_COLUMNS = ("tokens", "input_ids", "token_ids", "ids")
BYTES_PER_TOKEN = 4
"""Of English text under the usual vocabularies (OpenAI, "What are tokens and how to count them?":
about 4 characters)."""

_LOOKED_AT = 512


def samples_per_s(dataset: Dataset, preset: Preset, shown: str) -> tuple[float, tuple[str, ...]]:
    """Return the rate of a preset in samples/s of a dataset, and a description of how it was
    computed.

    `shown` names the dataset in messages. Raises UsageError if the dataset does not have what the
    preset needs.
    """
    roles, columns = dataset.roles, [Column.of(field) for field in dataset.schema]
    if preset.unit == "images":
        if not roles.images:
            raise UsageError(
                f"{preset.name} takes images, but {printable(shown)} has none; give a "
                "--consumer-rate"
            )
        return preset.rate, ()
    found = _token_columns(columns, roles)
    if not found:
        raise UsageError(
            f"{preset.name} takes tokens, but {printable(shown)} has no tokens or text; give a "
            "--consumer-rate"
        )
    mean = max(1.0, _mean_tokens(dataset, found))
    names = " and ".join(column.name for column in found)
    padded = any(column.name == packed_column(roles) for column in found)
    how = (
        f"a quarter of the bytes of {names}"
        if found[0].is_text
        else f"the mean of {names}{' without padding' if padded else ''}"
    )
    return preset.rate / mean, (
        f"{preset.rate:,.0f} tokens/s at {mean:,.1f} tokens per sample ({how})",
    )


def tokens_per_sample(dataset: Dataset) -> float | None:
    """Return the mean number of tokens of a sample, without padding; None if none of its fields has
    the role of tokens."""
    columns = _lists_of_numbers(
        [Column.of(field) for field in dataset.schema if field.name in dataset.roles.tokens]
    )
    return _mean_tokens(dataset, columns[:1]) if columns else None


def _token_columns(columns: list[Column], roles: Roles) -> list[Column]:
    """Return the column that holds tokens: by role, by name, or the first of lists of whole
    numbers; else all text."""
    rows = _lists_of_numbers(columns)
    tokens = [column for column in rows if column.name in roles.tokens]
    named = [column for column in rows if column.name in TOKEN_COLUMNS]
    return (tokens + named + rows)[:1] or [
        column for column in columns if column.is_text and column.name != "key"
    ]


def _lists_of_numbers(columns: list[Column]) -> list[Column]:
    """Return the columns of lists of whole numbers, of any length or of one."""
    whole = [column for column in columns if column.dtype is not None and column.dtype.kind in "iu"]
    return [column for column in whole if column.kind == "variable" or len(column.shape) == 1]


def _mean_tokens(dataset: Dataset, columns: list[Column]) -> float:
    """Return the mean number of tokens of some samples from all over the dataset; those of padding
    do not count."""
    places = evenly_spaced(len(dataset), _LOOKED_AT)
    if columns[0].name == packed_column(dataset.roles) and DOCUMENT_LENGTHS in dataset.schema.names:
        lengths = dataset.take(places, columns=[DOCUMENT_LENGTHS])[DOCUMENT_LENGTHS]
        total = sum(float(np.sum(of_block)) for of_block in lengths if of_block is not None)
    else:
        batch = dataset.take(places, columns=[column.name for column in columns])
        total = sum(_tokens(value) for values in batch.values() for value in values)
    return total / max(1, len(places))


def _tokens(value: Any) -> float:
    if isinstance(value, str):
        return len(value.encode()) / BYTES_PER_TOKEN
    return 0.0 if value is None else len(value)
