"""A dataset that can be read while it is made: each shard as soon as it is finished, in the order
of the dataset."""

from __future__ import annotations

import hashlib
import inspect
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
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
from shardctl.loader.dataset import Dataset, open_dataset
from shardctl.loader.loader import Loader, LoaderStats, refuse_other_order
from shardctl.loader.options import LoaderOptions
from shardctl.loader.stream import Selection, sums
from shardctl.making.commit.commit import manifest_of
from shardctl.making.shards.job import marker_path
from shardctl.making.shards.marker import read_marker
from shardctl.system.arguments import truth, whole_number
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

    `part` returns them from one of them on, by its number, or from an earlier one, and its number.
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
        self.manifest = manifest_of(reader.layout, recipe, {}, (facts,))
        rows_of_table = [each.row() for each in shards]
        table = ShardTable(self.folder, pa.Table.from_pylist(rows_of_table, SHARDS_SCHEMA))
        self._take(table, range(len(shards)))

    def _gone(self, name: str, what: str) -> DatasetError:
        """Return the error for a shard that is not there: its dataset was never complete."""
        return self._other(name, what)


class ShardWatcher:
    """Looks for finished shards of a split, or of all."""

    def __init__(self, target: Path, split: str | None) -> None:
        self._target, self._split = target, split
        self._job: tuple[Path, int] | None = None
        self._left: list[tuple[int, str, int]] = []
        self._known: list[ShardEntry] = []
        self._recipe: dict[str, Any] = {}

    def look(self) -> Finished | None:
        """Return the finished shards, all of them if the dataset is complete; None if nothing is
        there yet.

        Raises UsageError for an unknown split, DatasetError if the dataset is not the one whose
        shards were looked at before.
        """
        if (self._target / MANIFEST).exists():
            opened = open_dataset(self._target, self._split)
            if self._job is not None and opened.manifest.fingerprint != self._job[0].name:
                raise DatasetError(
                    f"{printable(self._target)}: was updated while it was read; start the epoch "
                    "again"
                )
            shards = opened._selection.shards
            return Finished(list(shards.rows_and_digests()), True, lambda first: (shards, 0))
        # it may just have taken its place, or given way to another
        with suppress(OSError, ValueError, KeyError, TypeError, StopIteration):
            return self._of_job(next(filter(is_file, (self._target / STAGING).glob(f"*/{JOB}"))))
        return None

    def _of_job(self, path: Path) -> Finished:
        folder, job = path.parent, (path.parent, path.stat().st_ino)
        # a job may begin anew, as it does where a late record has another type
        if job != self._job:
            record = JobFolder(folder).record()
            splits = [(split["name"], split["shards"]) for split in record["splits"]]
            names = [name for name, _ in splits]
            if self._split is not None and self._split not in names:
                raise UsageError(f"{printable(self._target)}: {lacks('split', self._split, names)}")
            shards = ((name, number) for name, count in splits for number in range(count))
            self._left = [
                (place, name, number)
                for place, (name, number) in enumerate(shards)
                if self._split in (None, name)
            ]
            self._left.reverse()
            self._job, self._known, self._recipe = job, [], record["recipe"]
        while self._left:
            place, name, number = self._left[-1]
            marker = marker_path(folder, place)
            if not marker.exists():
                break
            facts = read_marker(marker).facts
            shard = path_of_shard(name, number, facts.sha256)
            if (self._target / shard).stat().st_size != facts.bytes:
                break
            self._left.pop()
            if facts.rows:  # the dataset leaves out the others
                self._known.append(ShardEntry.of_written(name, number, shard, facts))
        known, recipe = self._known.copy(), self._recipe

        def part(first: int) -> tuple[Shards, int]:
            return FinishedPart(self._target, self._split, known[first:], recipe), first

        contents = [(each.rows, each.sha256) for each in known]
        return Finished(contents, not self._left, part)


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
        return open_dataset(self._target, self._split)

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
        if not self.is_complete:
            if self._making.done():
                self._making.result()
            raise _too_early(what)
        if self._opened is None:
            self._opened = self.wait()
        return self._opened

    def in_split(self, split: str) -> PartialDataset:
        """Return the samples of one split. Raises UsageError where one was chosen before."""
        if self._split is not None:
            raise UsageError(f"the split {self._split} is chosen already")
        return PartialDataset(self._target, self._making, split)

    def loader(
        self,
        batch_size: int,
        shuffle: bool | str = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        **options: Any,
    ) -> PartialLoader:
        """Return a loader of batches, with the options of `Dataset.loader` (but `repeat`,
        `processes` and `bucket`).

        Its first epoch reads each shard when it is finished, in the order of the dataset; with
        `shuffle` the blocks of a shard and the samples of a block are in a random order. Where its
        last batch is filled up, it is with samples of the last shards. Every later epoch is one of
        `Dataset.loader`. Raises UsageError.
        """
        for name in ("repeat", "processes", "bucket"):
            if options.get(name) not in (None, 1):
                raise _too_early(f"{name}=")
        dropped, remainder = truth("drop_last", drop_last), options.get("remainder")
        LoaderOptions(batch_size, rank, world_size, drop_last=dropped, remainder=remainder).check()
        known = {"rank": rank, "world_size": world_size, "seed": seed, "drop_last": dropped}
        given = {**known, **options}
        # an unknown option is a TypeError at once
        inspect.signature(Dataset.loader).bind(None, batch_size, shuffle, **given)
        return PartialLoader(self, batch_size, shuffle, given)


class PartialLoader:
    """An iterable of batches, as shardctl's Loader. One iteration is one epoch; the first one needs
    no complete dataset."""

    def __init__(
        self,
        dataset: PartialDataset,
        batch_size: int,
        shuffle: bool | str,
        options: dict[str, Any],
    ) -> None:
        self._dataset, self._batch_size, self._shuffle = dataset, batch_size, shuffle
        self._seed, self._options = options["seed"], options
        self._global_batch = batch_size * (options["world_size"] or 1)
        self._consumed = 0
        self._shards: list[tuple[int, str]] = []
        self._content: str | None = None
        self._later: Loader | None = None
        self._now: Loader | None = None
        self._read: LoaderStats | None = None
        self._is_first = True

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of the next epoch, or the rest of the epoch of a loaded state."""
        self._now = self._read = None
        if self._is_first:
            yield from self._first_epoch()
            return
        self._now = self._complete()
        yield from self._now

    def _complete(self) -> Loader:
        """Return the loader of the later epochs, which needs the complete dataset."""
        if self._later is None:
            ds = self._dataset.wait()
            self._later = ds.loader(self._batch_size, self._shuffle, **self._options)
            self._later.set_epoch(1)
        return self._later

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain data. That of the first epoch counts the samples that all
        ranks have consumed."""
        if not self._is_first:
            return self._complete().state_dict()
        return {"epoch": 0, "samples": self._consumed, "order": self._order()}

    def _order(self) -> dict[str, Any]:
        return {
            "arriving": True,
            "split": self._dataset._split,
            "shuffle": bool(self._shuffle),
            "seed": self._seed,
            "content": self._consumed_content(),
        }

    def _consumed_content(self) -> str:
        """Return a digest of the shards of which samples are consumed."""
        if self._content is not None:
            return self._content
        ends = np.cumsum([rows for rows, _ in self._shards])
        begun = self._shards[: np.searchsorted(ends, self._consumed) + 1] if self._consumed else []
        return hashlib.sha256("".join(sha256 for _, sha256 in begun).encode()).hexdigest()[:16]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state. Raises UsageError for that of another order."""
        order = state.get("order", {})
        if not isinstance(order, dict) or not order.get("arriving"):
            self._is_first = False
            self._complete().load_state_dict(state)
        else:
            content = order.get("content", "")
            refuse_other_order(order, {**self._order(), "content": content})
            self._is_first, self._consumed = True, whole_number("samples", state.get("samples"), 0)
            self._content = content

    @property
    def next_epoch(self) -> int:
        """The epoch of the next iteration."""
        return int(self._consumed > 0) if self._is_first else self._complete().next_epoch

    def stats(self) -> LoaderStats | None:
        """Return the statistics since the start of the last iteration, as those of Loader; None
        before the first batch."""
        now = self._now.stats() if self._now is not None else None
        return now if now is None or self._read is None else _together(self._read, now)

    def _first_epoch(self) -> Iterator[Batch]:
        """Yield batches of the shards that are finished, and wait for more of them, until all are
        read."""
        arrivals = ShardWatcher(self._dataset._target, self._dataset._split)
        are_all = False
        while not are_all:
            found = arrivals.look()
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
            are_all = found.are_all
            if first < len(found.contents):
                shards, first = found.part(first)
                yield from self._batches_of(
                    shards, first, int(ends[first]), self._options["drop_last"] or not are_all
                )
        self._dataset.wait()
        self._is_first, self._consumed = False, 0

    def _batches_of(
        self, shards: Shards, first: int, before: int, drop_last: bool
    ) -> Iterator[Batch]:
        """Yield the batches of some shards that are not consumed; the first of these is the `first`
        of the split, and `before` samples come before it."""
        chosen = _shuffled(shards, self._seed, first) if self._shuffle else None
        options = {**self._options, "drop_last": drop_last}
        if drop_last:
            # it is for the end of the epoch, and this is not there yet
            options.pop("remainder", None)
        self._read = self.stats()
        self._now = Dataset(Selection(shards, chosen)).loader(self._batch_size, False, **options)
        skipped = self._consumed - before
        self._now.load_state_dict({**self._now.state_dict(), "samples": skipped})
        end = (
            len(shards) - (len(shards) - skipped) % self._global_batch if drop_last else len(shards)
        )
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
