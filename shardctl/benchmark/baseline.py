"""The baseline for shards: the same recipe on the raw inputs in every epoch, as a training job without shards works."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.benchmark.options import BenchOptions
from shardctl.benchmark.page_cache import drop
from shardctl.benchmark.result import BaselineResult
from shardctl.benchmark.throughput import Throughput
from shardctl.codecs.image import Store
from shardctl.engines.samples import Root, SampleMaker, read_recorded
from shardctl.errors import InputError, Rejection
from shardctl.manifest import PLAN, Manifest, open_checked_table
from shardctl.order import Permutation
from shardctl.recipe import Recipe, refuse_unnamed_functions
from shardctl.storage import printable

INPUTS = 2048
"""The largest number of inputs that are read, from all over the dataset; repeated while there is time left."""

SECONDS = 4.0

_AHEAD = 2
"""Finished batches that may wait, beyond those being made."""


def run_baseline(
    root: Path, manifest: Manifest, options: BenchOptions, found: Throughput, report: Callable[[int], None]
) -> BaselineResult:
    """Measure batches from the raw inputs with as many threads as `found` had. `report` gets the samples of every batch.

    Raises InputError if the raw inputs no longer exist, UsageError for user functions that the options do not allow.
    """
    refuse_unnamed_functions(manifest.recipe, options.transforms, root, "a baseline")
    inputs = _Inputs(root, manifest, options)
    inputs.drop() if options.cold else inputs.read()
    samples, rejected, seconds = inputs.run(found.threads, options, report)
    if not samples:
        raise InputError(f"{printable(str(root))}: all of its raw inputs have changed or are gone; --baseline reads them again")
    splits = [split for split in manifest.splits if options.split in (None, split.name)]
    size, rate = sum(split.samples for split in splits), samples / seconds
    return compare(size, rate, found.rate, manifest.seconds, rejected)


def compare(samples: int, raw: float, shards: float, conversion: float | None, rejected: int) -> BaselineResult:
    """Compare an epoch from raw inputs with one from shards; rates in samples/s, `conversion` in s."""
    raw_epoch, shards_epoch = samples / raw, samples / shards
    cost = raw_epoch if conversion is None else conversion
    return BaselineResult(
        raw_samples_per_s=round(raw, 1),
        raw_epoch_s=round(raw_epoch, 3),
        shards_epoch_s=round(shards_epoch, 3),
        ratio=round(raw_epoch / shards_epoch, 2),
        conversion_s=round(cost, 3),
        conversion_measured=conversion is not None,
        pays_after=math.ceil(cost / (raw_epoch - shards_epoch)) if raw_epoch > shards_epoch else None,
        rejected=rejected,
    )


@dataclass(frozen=True)
class _Batch:
    """The results of some inputs."""

    samples: int
    rejected: int


class _Inputs:
    """Some of the raw inputs of a dataset, and its recipe."""

    def __init__(self, root: Path, manifest: Manifest, options: BenchOptions) -> None:
        recipe = Recipe.from_settings(manifest.recipe)
        # Training needs pixels: they are not encoded again, and stored bytes are decoded.
        self._recipe = dataclasses.replace(recipe, store=Store.parse("raw")) if recipe.store else recipe
        for source in manifest.sources:
            if not Path(source).exists():
                raise InputError(f"{printable(source)}: is gone, and --baseline reads the raw inputs of {printable(str(root))}")
        bases = (source if Path(source).is_dir() else str(Path(source).parent) for source in manifest.sources)
        self._roots = tuple(Root.anywhere(base) for base in bases)
        self._rows = _some_rows(open_checked_table(root / PLAN), options.split)

    def _paths(self) -> Iterator[Path]:
        for row in self._rows:
            yield Path(self._roots[row["root"]].path) / row["source"]

    def drop(self) -> None:
        """Drop the files from the page cache."""
        drop(set(self._paths()))

    def read(self) -> None:
        """Read the inputs once, so that they are in the page cache as the shards are."""
        for row in self._rows:
            self._bytes_of(row)

    def _bytes_of(self, row: dict[str, Any]) -> bytes | None:
        try:
            return read_recorded(self._roots, row)
        except Rejection:
            return None

    def run(self, threads: int, options: BenchOptions, report: Callable[[int], None]) -> tuple[int, int, float]:
        """Make batches for SECONDS, or once if the cache is cold. Return samples, rejected inputs and seconds.

        A rejected input counts once, however often its batch is made.
        """
        size = options.batch_size
        batches = [self._rows[first : first + size] for first in range(0, len(self._rows), size)]
        tasks = iter(batches) if options.cold else itertools.cycle(batches)
        began, samples, rejected, first_time = time.perf_counter(), 0, 0, len(batches)
        with ThreadPoolExecutor(threads) as pool:
            ahead: list[Future[_Batch]] = [pool.submit(self._make, rows) for rows in itertools.islice(tasks, threads + _AHEAD)]
            while ahead:
                made = ahead.pop(0).result()
                samples, first_time = samples + made.samples, first_time - 1
                rejected += made.rejected if first_time >= 0 else 0
                report(made.samples)
                if time.perf_counter() - began < (options.seconds or SECONDS) or (not samples and first_time > 0):
                    ahead += [pool.submit(self._make, rows) for rows in itertools.islice(tasks, 1)]
        return samples, rejected, time.perf_counter() - began

    def _make(self, rows: list[dict[str, Any]]) -> _Batch:
        """Make a batch: read, decode, transform, and stack images of one shape."""
        maker = SampleMaker(self._recipe, None, lambda stage: None)
        made = []
        for row in rows:
            data = self._bytes_of(row)
            if data is None:
                continue
            try:
                made.append(maker.sample(data, row))
            except Rejection:
                continue
        _stack([sample["image"] for sample in made if "image" in sample])
        return _Batch(len(made), len(rows) - len(made))


def _stack(images: list[npt.NDArray[Any]]) -> None:
    if images and len({image.shape for image in images}) == 1:
        np.stack(images)


def _some_rows(plan: pa.Table, split: str | None) -> list[dict[str, Any]]:
    """Return rows of the plan whose input became a sample, in a random order."""
    order, rows = Permutation(plan.num_rows, 0), []
    for first in range(0, plan.num_rows, INPUTS):
        places = order(np.arange(first, min(first + INPUTS, plan.num_rows), dtype=np.int64))
        for row in plan.take(pa.array(np.sort(places))).to_pylist():
            if row["outcome"] == "ok" and split in (None, row["split"]):
                rows.append(row)
        if len(rows) >= INPUTS:
            break
    np.random.default_rng(0).shuffle(rows)
    return rows[:INPUTS]
