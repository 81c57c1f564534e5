"""A dataset that can be read while it is made: each shard as soon as it is finished, in the order
of the dataset."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError, UsageError
from shardctl.format.arrays import Numbers
from shardctl.format.dataset_folder import DatasetFolder
from shardctl.format.manifest import SplitFacts
from shardctl.format.names import MANIFEST, STAGING, path_of_shard
from shardctl.format.shard import ShardReader
from shardctl.format.tables import SHARDS_SCHEMA, ShardEntry, ShardTable
from shardctl.loader.blocks.memory import Batch
from shardctl.loader.blocks.shards import Shards
from shardctl.loader.dataset import Dataset, checked_arguments, open_dataset, options_among
from shardctl.loader.loader import Loader, LoaderStats, refuse_other_order
from shardctl.loader.options import LoaderOptions
from shardctl.loader.stream import Selection, sums
from shardctl.making.commit.commit import new_manifest
from shardctl.making.shards.job import marker_path
from shardctl.making.shards.marker import read_marker
from shardctl.system.arguments import whole_number
from shardctl.system.files import is_file
from shardctl.system.job_folder import JOB, JobFolder
from shardctl.system.text import lacks, printable


def _too_early(what: str) -> UsageError:
    return UsageError(f"{what} needs the complete dataset: wait() first")


LOOK_SECONDS = 0.05
"""Seconds between looks whether another shard is finished."""


class Finished(NamedTuple):
    """The shards of a split that are finished, from the first one on without a gap: the samples and
    the SHA-256 of each, and whether these are all.

    `part` returns them from one of them on, by its number, or from an earlier one, and its number;
    until the next look.
    """

    contents: list[tuple[int, str]]
    are_all: bool
    part: Callable[[int], tuple[Shards, int]]


class FinishedPart(Shards):
    """Finished shards of a dataset that need not be complete, from some shard on."""

    def __init__(
        self, target: Path, split: str | None, shards: Sequence[ShardEntry], recipe: dict[str, Any]
    ) -> None:
        self.folder = DatasetFolder(target)
        self.root, self.split = target, split
        reader = ShardReader(self.folder, shards[0].path)
        rows, size = sum(each.rows for each in shards), sum(each.bytes for each in shards)
        facts = SplitFacts(split or reader.info["split"], rows, len(shards), size)
        self.manifest = new_manifest(reader.layout, recipe, {}, (facts,))
        rows_of_table = [each.row() for each in shards]
        table = ShardTable(self.folder, pa.Table.from_pylist(rows_of_table, SHARDS_SCHEMA))
        self._take(table, range(len(shards)))

    def _gone(self, name: str, what: str) -> DatasetError:
        """Return the error for a shard that is not there: its dataset was never complete."""
        return self._other(name, what)


def finished_shards(target: Path, split: str | None) -> Iterator[Finished | None]:
    """Look for finished shards of a split, or of all splits, and yield them, or None for none yet.
    The last look finds those of the complete dataset.

    Raises UsageError for an unknown split, DatasetError if the dataset is not the one whose shards
    were looked at before.
    """
    job: tuple[Path, int] | None = None
    recipe: dict[str, Any] = {}
    left: list[tuple[int, str, int]] = []
    known: list[ShardEntry] = []

    def part(first: int) -> tuple[Shards, int]:
        return FinishedPart(target, split, known[first:], recipe), first

    while not (target / MANIFEST).exists():
        found = None
        # it may just have taken its place, or given way to another
        with suppress(OSError, ValueError, KeyError, TypeError, StopIteration):
            path = next(filter(is_file, (target / STAGING).glob(f"*/{JOB}")))
            folder, here = path.parent, (path.parent, path.stat().st_ino)
            # a job may begin anew, as it does where a late record has another type
            if here != job:
                record = JobFolder(folder).record()
                splits = [(each["name"], each["shards"]) for each in record["splits"]]
                names = [name for name, _ in splits]
                if split is not None and split not in names:
                    raise UsageError(f"{printable(target)}: {lacks('split', split, names)}")
                shards = ((name, number) for name, count in splits for number in range(count))
                left = [
                    (place, name, number)
                    for place, (name, number) in enumerate(shards)
                    if split in (None, name)
                ]
                left.reverse()
                job, known, recipe = here, [], record["recipe"]
            while left:
                place, name, number = left[-1]
                marker = marker_path(folder, place)
                if not marker.exists():
                    break
                facts = read_marker(marker).facts
                shard = path_of_shard(name, number, facts.sha256)
                if (target / shard).stat().st_size != facts.bytes:
                    break
                left.pop()
                if facts.rows:  # the dataset leaves out the others
                    known.append(ShardEntry.of_written(name, number, shard, facts))
            contents = [(each.rows, each.sha256) for each in known]
            found = Finished(contents, not left, part)
        yield found
    opened = open_dataset(target, split)
    if job is not None and opened.manifest.fingerprint != job[0].name:
        raise DatasetError(
            f"{printable(target)}: was updated while it was read; start the epoch again"
        )
    complete = opened._selection.shards
    yield Finished(list(complete.rows_and_digests()), True, lambda first: (complete, 0))


def in_background(settle: Callable[[], None]) -> Future[None]:
    """Make the dataset, or wait for it, in a thread. What that raises is raised where the dataset
    is read."""
    made = Future[None]()

    def run() -> None:
        try:
            settle()
            made.set_result(None)
        except BaseException as error:  # noqa: BLE001 - raised again by `result`
            made.set_exception(error)

    threading.Thread(target=run, daemon=True, name="shardctl.snapshot").start()
    return made


class PartialDataset:
    """What `snapshot(…, wait=False)` returns: a dataset whose first epoch can be read while it is
    made."""

    def __init__(self, target: Path, making: Future[None], split: str | None = None) -> None:
        self._target, self._making, self._split = target, making, split
        self._opened: Dataset | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all of it is there."""
        return self._making.done() and (self._target / MANIFEST).exists()

    def wait(self) -> Dataset:
        """Return the dataset once it is complete. Raises what `snapshot` raises."""
        self._making.result()
        if self._opened is None:
            self._opened = open_dataset(self._target, self._split)
        return self._opened

    def __getattr__(self, name: str) -> Any:
        """Return what the dataset has, once it is complete. Raises UsageError before."""
        if name.startswith("_") or not hasattr(Dataset, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._whole(name), name)

    def __len__(self) -> int:
        """Return the number of samples, once the dataset is complete. Raises UsageError before."""
        return len(self._whole("len()"))

    def __getitem__(self, index: int) -> Any:
        """Return a sample, once the dataset is complete. Raises UsageError before."""
        return self._whole("a sample by its number")[index]

    def __iter__(self) -> Iterator[Any]:
        """Yield the samples, once the dataset is complete. Raises UsageError before."""
        return iter(self._whole("iteration"))

    def _whole(self, what: str) -> Dataset:
        if not self._making.done():
            raise _too_early(what)
        return self.wait()

    def in_split(self, split: str) -> PartialDataset:
        """Return the samples of one split. Raises UsageError where one was chosen before."""
        if self._split is not None:
            raise UsageError(f"the split {self._split} is chosen already")
        return PartialDataset(self._target, self._making, split)

    def loader(self, *given: Any, **options: Any) -> PartialLoader:
        """Return a loader of batches, with the options of `Dataset.loader` (but `repeat`,
        `processes` and `bucket`).

        Its first epoch reads each shard when it is finished, in the order of the dataset; with
        `shuffle` the blocks of a shard and the samples of a block are in a random order. Where its
        last batch is filled up, it is with samples of the last shards. Every later epoch is one of
        `Dataset.loader`. Raises UsageError.
        """
        # an unknown option is a TypeError at once
        chosen = signature(Dataset.loader).bind(self, *given, **options).arguments
        del chosen["self"]
        for name in ("repeat", "processes", "bucket"):
            if chosen.get(name) not in (None, 1):
                raise _too_early(f"{name}=")
        options_among(LoaderOptions, checked_arguments(chosen))  # raises for impossible ones
        return PartialLoader(self, chosen)


class PartialLoader:
    """An iterable of batches, as shardctl's Loader. One iteration is one epoch; the first one needs
    no complete dataset."""

    def __init__(self, dataset: PartialDataset, options: dict[str, Any]) -> None:
        """`options` are those of `Dataset.loader`."""
        self._dataset, self._options = dataset, options
        self._shuffle, self._seed = options.get("shuffle", False), options.get("seed", 0)
        self._global_batch = options["batch_size"] * (options.get("world_size") or 1)
        self._consumed = 0
        self._shards: list[tuple[int, str]] = []
        self._content: str | None = None
        self._later: Loader | None = None  # until the first epoch is over
        self._now: Loader | None = None
        self._read: LoaderStats | None = None

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of the next epoch, or the rest of the epoch of a loaded state."""
        self._now, self._read = self._later, None
        yield from self._first_epoch() if self._now is None else self._now

    def _complete(self) -> Loader:
        """Return a loader of the later epochs, which need the complete dataset."""
        later = self._dataset.wait().loader(**self._options)
        later.set_epoch(1)
        return later

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain data. That of the first epoch counts the samples that all
        ranks have consumed."""
        if self._later is not None:
            return self._later.state_dict()
        return {"epoch": 0, "samples": self._consumed, "order": self._order()}

    def _order(self) -> dict[str, Any]:
        """Return what decides the order, with a digest of the shards of which samples are
        consumed."""
        content = self._content
        if content is None:
            ends = np.cumsum([rows for rows, _ in self._shards])
            begun = self._shards[: np.searchsorted(ends, self._consumed) + 1]
            digests = "".join(sha256 for _, sha256 in begun) if self._consumed else ""
            content = hashlib.sha256(digests.encode()).hexdigest()[:16]
        return {
            "arriving": True,
            "split": self._dataset._split,
            "shuffle": bool(self._shuffle),
            "seed": self._seed,
            "content": content,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state. Raises UsageError for that of another order."""
        order = state.get("order", {})
        if not isinstance(order, dict) or not order.get("arriving"):
            self._later = self._complete()
            self._later.load_state_dict(state)
            return
        content = order.get("content", "")
        refuse_other_order(order, {**self._order(), "content": content})
        self._consumed = whole_number("samples", state.get("samples"), 0)
        self._later, self._content = None, content

    @property
    def next_epoch(self) -> int:
        """The epoch of the next iteration."""
        return int(self._consumed > 0) if self._later is None else self._later.next_epoch

    def stats(self) -> LoaderStats | None:
        """Return the statistics since the start of the last iteration, as those of Loader; None
        before the first batch."""
        now = self._now.stats() if self._now is not None else None
        return now if now is None or self._read is None else _together(self._read, now)

    def _first_epoch(self) -> Iterator[Batch]:
        """Yield batches of the shards that are finished, and wait for more of them, until all are
        read."""
        for found in finished_shards(self._dataset._target, self._dataset._split):
            ends = np.cumsum([0, *(rows for rows, _ in found.contents)]) if found else np.zeros(1)
            if found is None or not (
                found.are_all or ends[-1] - self._consumed >= self._global_batch
            ):
                if self._dataset._making.done():
                    self._dataset._making.result()
                time.sleep(LOOK_SECONDS)
                continue
            before = self._order()
            self._shards, self._content = found.contents, None
            refuse_other_order(before, self._order())  # others were consumed
            first = int(np.searchsorted(ends[1:], self._consumed, side="right"))
            if first < len(found.contents):
                shards, first = found.part(first)
                yield from self._batches_of(shards, first, int(ends[first]), not found.are_all)
            if found.are_all:
                break
        self._later, self._consumed = self._complete(), 0

    def _batches_of(
        self, shards: Shards, first: int, before: int, more_come: bool
    ) -> Iterator[Batch]:
        """Yield the batches of some shards that are not consumed; the first of these is the `first`
        of the split, and `before` samples come before it. Where `more_come`, only full ones."""
        chosen = _shuffled(shards, self._seed, first) if self._shuffle else None
        options = {**self._options, "shuffle": False}
        if more_come:
            options |= {"drop_last": True, "remainder": None}
        self._read = self.stats()
        self._now = Dataset(Selection(shards, chosen)).loader(**options)
        skipped = self._consumed - before
        self._now.load_state_dict({**self._now.state_dict(), "samples": skipped})
        left_out = (len(shards) - skipped) % self._global_batch if self._now.options.drops else 0
        end = len(shards) - left_out
        for batch in self._now:
            at = self._now.state_dict()
            self._consumed = before + (end if at["epoch"] else at["samples"])
            yield batch


NOT_SUMMED = ("threads", "processes", "samples_per_s", "stages")
"""Figures of LoaderStats that are no sums; `stages` has a sum for each of them."""


def _together(before: LoaderStats, now: LoaderStats) -> LoaderStats:
    """Return the statistics of two loaders, one after the other, as those of one."""
    both = before, now
    summed = sums(
        [{name: each for name, each in vars(of).items() if name not in NOT_SUMMED} for of in both]
    )
    rate = summed["samples"] / summed["seconds"] if summed["seconds"] else 0.0
    figures: dict[str, Any] = {**summed, "stages": sums([of.stages for of in both])}
    return replace(now, **figures, samples_per_s=rate)


def _shuffled(shards: Shards, seed: int, first: int) -> Numbers:
    """Return the samples in the order in which they are read: the blocks of each shard in a random
    order, and the samples of each block. It depends on the seed and the number of the shard
    alone."""
    order = []
    for number in range(shards.count):
        rng = np.random.Generator(
            np.random.Philox(key=np.array([seed % 2**64, first + number], np.uint64))
        )
        for block in rng.permutation(shards.blocks_of(number)).tolist():
            order.append(int(shards.starts[block]) + rng.permutation(shards.rows_of(block)))
    return np.concatenate(order) if order else np.empty(0, np.int64)
