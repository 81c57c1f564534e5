"""`shardctl bench` of shards of other tools: with the reader that training uses for them, and
beside shardctl's loader."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from shardctl.benchmark.measure import Listener
from shardctl.benchmark.measure.consumers import find_consumer, without_reading_ahead
from shardctl.benchmark.measure.machine import residency
from shardctl.benchmark.measure.meters import memory_of_others
from shardctl.benchmark.measure.result import IN_ORDER, BenchResult, ReaderFacts
from shardctl.benchmark.measure.throughput import (
    Batches,
    Memory,
    OwnDataset,
    Subject,
    compare_readers,
    measure,
    summarize,
)
from shardctl.benchmark.options import BenchOptions
from shardctl.benchmark.peers.remote import PeerReader, Remote, reader_of
from shardctl.benchmark.presets import Preset
from shardctl.errors import InputError, UsageError
from shardctl.interop.foreign_shards import open_shards
from shardctl.making.sampling import convert_some
from shardctl.system.machine import memory_bytes, usable_cores
from shardctl.system.scratch import scratch_folder
from shardctl.system.text import printable

MOST_COPIED = 2 << 30
"""The most bytes of files that are read where the reader copies them first."""

_READ_BYTES = 8 << 20

TRIED = 2048
"""How many records are converted to measure shardctl beside another reader."""

ITS_SHUFFLE = "as this reader shuffles"
"""The name of a random order that is not shardctl's."""


@dataclass
class PeerShards:
    """Shards of another tool, read by its reader in the Python `python`. Having opened them, it
    says `library` and `how`."""

    reader: PeerReader
    python: str
    files: list[Path]
    notes: tuple[str, ...]
    options: BenchOptions
    scratch: Path
    library: str = ""
    how: str = ""
    reads_ahead: bool = True

    @property
    def facts(self) -> ReaderFacts:
        """What is told of the reader."""
        return ReaderFacts(self.library, self.how, self.python, self.notes)

    def open(self, epochs: int | None, drop_last: bool = False) -> tuple[Batches, float]:
        """Open the shards; the start of Python and its imports are not part of the seconds."""
        options = {
            "files": list(map(str, self.files)),
            "shuffle": bool(self.options.shuffle),
            "decode": self.options.decode,
            "batch_size": self.options.batch_size,
            "processes": self.options.processes or usable_cores(),
            "scratch": mkdtemp(dir=self.scratch),
        }
        remote = Remote(self.reader, self.python, options, epochs)
        self.library, self.how, self.reads_ahead = remote.library, remote.how, remote.reads_ahead
        return remote, remote.opening_s

    def order_and_memory(self, batches: Batches) -> tuple[str, Memory]:
        """Return the name of the order, and the memory of the processes that read, without this
        one."""
        assert isinstance(batches, Remote)  # from `open`
        order = ITS_SHUFFLE if self.options.shuffle else IN_ORDER
        return order, memory_of_others(batches.process_ids)

    def read(self) -> None:
        """Read the files once, so that they are in the page cache as the records are that were
        converted."""
        for file in self.files:
            with open(file, "rb", buffering=0) as opened:
                while opened.read(_READ_BYTES):
                    pass

    def transfers_of(self, batches: Batches) -> dict[str, int] | None:
        """Return None: the files are local."""


def bench_shards(
    path: str | Path,
    listener: Listener | None = None,
    python: str = sys.executable,
    beside: bool = False,
    **options: Any,
) -> BenchResult:
    """Measure the rate of batches of shards of another tool, with its reader in the Python
    `python`.

    With `beside`, some records are converted into a scratch folder, and read in turn with
    shardctl's loader. `options` are those of BenchOptions that other readers have. Raises
    UsageError, InputError, InstallError.
    """
    chosen, root, listener = BenchOptions(**options), Path(path), listener or Listener()
    _check(chosen, beside)
    consumer = find_consumer(chosen, _rate_of)
    with scratch_folder() as scratch:
        subject, dataset = _find(root, chosen, python, scratch)
        if chosen.cold and subject.reader.copies:
            raise UsageError(
                "--cold is not for Parquet files, of which a copy in memory is read; leave it out"
            )
        subjects: list[Subject] = [subject]
        tried = None
        if beside:
            listener.phase("converting some")
            tried = convert_some(root, TRIED, scratch)
            subjects.append(OwnDataset(tried[0], replace(chosen, processes=None)))
            if not chosen.cold and dataset["bytes"] < memory_bytes() / 2:
                subject.read()
        page_cache = {"before": residency(subject.files)}
        listener.phase("reading")
        found, *own = measure(subjects, chosen, listener.samples)
        result = summarize(dataset, root, chosen, found, page_cache)
        if consumer is not None:
            listener.phase("feeding")
            fed = consumer.feed(subject, found, listener.samples)
            result = replace(
                result, consumer=fed if subject.reads_ahead else without_reading_ahead(fed)
            )
        if tried is not None:
            _, records, made = tried
            against = compare_readers(made.samples, records, made.bytes, found, own[0])
            result = replace(result, against=against)
        return replace(result, reader=subject.facts)


def rate_today(path: Path, python: str, options: BenchOptions) -> tuple[ReaderFacts, float]:
    """Return the reader of the shards at a path and its rate in samples/s. Raises UsageError,
    InputError, InstallError."""
    with scratch_folder() as scratch:
        subject, _ = _find(path, options, python, scratch)
        (found,) = measure([subject], options, lambda samples: None)
        return subject.facts, found.rate


def _check(options: BenchOptions, beside: bool) -> None:
    """Raise UsageError for options that the readers of others do not have."""
    options.check()
    if options.calls_function:
        raise UsageError(
            "your own function takes batches of shardctl; for shards of others give --consumer-rate"
        )
    refused = {
        "--split": options.split,
        "--baseline": options.baseline,
        "--sweep": options.sweep,
        "--order": isinstance(options.shuffle, str),
        "--threads": options.threads != "auto" and not beside,
    }
    for name, given in refused.items():
        if given:
            raise UsageError(
                f"{name} is for datasets of shardctl, not for shards of another tool; leave it out"
            )


def _rate_of(preset: Preset) -> tuple[float, tuple[str, ...]]:
    """Return the rate of a preset: a record counts as an image. Raises UsageError for tokens, which
    are not counted here."""
    if preset.unit != "images":
        raise UsageError(
            f"{preset.name} takes tokens, not counted in shards of others; give a --consumer-rate"
        )
    return preset.rate, ()


def _refuse_unreadable(files: Sequence[str]) -> None:
    """Raise InputError for a file that may not be read: of readers of others, not all name it."""
    refused = next((file for file in files if not os.access(file, os.R_OK)), None)
    if refused is not None:
        raise InputError(
            f"{printable(refused)}: cannot be read (no permission); allow it, or leave the file out"
        )


def _find(
    root: Path, options: BenchOptions, python: str, scratch: Path
) -> tuple[PeerShards, dict[str, Any]]:
    """Return the shards with their reader, and what is measured of them."""
    with open_shards(root, "auto") as shards:
        rows = [
            row
            for row in shards.listing.table.select(["path", "root", "error"]).to_pylist()
            if not row["error"]
        ]
        files = [str(Path(shards.listing.opened(row)).absolute()) for row in rows]
        _refuse_unreadable(files)
        sizes = [Path(file).stat().st_size for file in files]
        reader = reader_of(shards.formats, files, str(root))
        count = (
            len(files)
            if not reader.copies
            else max(1, int(np.searchsorted(np.cumsum(sizes), MOST_COPIED, "right")))
        )
        records = int(shards.units.records[shards.units.file < count].sum())
    notes: tuple[str, ...] = ()
    if count < len(files):
        notes = (
            f"only the first {count:,} of {len(files):,} files were read, of which this reader "
            "makes copies",
        )
    dataset = {
        "path": str(root),
        "fingerprint": None,
        "samples": records,
        "bytes": sum(sizes[:count]),
        "recipe": None,
    }
    read = list(map(Path, files[:count]))
    return PeerShards(reader, python, read, notes, options, scratch), dataset
