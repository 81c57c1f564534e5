"""How fast the first epoch is where the shards are not in the page cache, beside two readers that
only read them.

    python scripts/bench/bench_first_epoch.py [--rounds 5] [--keep FOLDER] [--json FILE]

The dataset has 8,800 images of 224x224 pixels, stored as `raw`. Every round runs each contender
once, in turn, each in a process of its own; the first of a round is another one each time. Before
each the shards are written to the disk and dropped from the page cache (posix_fadvise; mincore says
how much is left). `cat` is two processes that read half of the shards each. The bare loop maps the
shards and copies them into batches. The loader reads them in order and in random order, in batches
of 256 with two threads. The same loaders are measured with all shards in the page cache.

A host may take the free memory of a virtual machine (free page reporting), and to get it back takes
longer than to read a disk. So 2.5 GiB of memory are written to and freed before each contender.

The figures are medians over the rounds: MB/s of the shards, samples/s, the seconds from
`shardctl.open` to the first batch, and the ratio to `cat` of the same round.
"""

from __future__ import annotations

import argparse
import json
import math
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from harness import options_of, save

import shardctl
import shardctl.loader.dataset  # now: how long the import takes is another question
from shardctl.benchmark.measure.machine import drop, residency_of
from shardctl.system.mmap import map_whole

HERE = Path(__file__).resolve().parent
BACKED = 5 << 29
"""Bytes."""

IMAGES, SHAPE, BATCH, THREADS = 8800, (224, 224, 3), 256, 2

Found = dict[str, float]


def main() -> None:
    parser = options_of(__doc__, rounds=5)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--only", nargs="*", default=[*CONTENDERS])
    parser.add_argument("--contender", choices=[*CONTENDERS], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        print(json.dumps(CONTENDERS[options.contender](options.keep)))
        return
    with tempfile.TemporaryDirectory(dir=HERE.parent.parent) as scratch:
        dataset = (options.keep or Path(scratch)).resolve() / "first"
        make(dataset)
        found: dict[str, list[Found]] = {}
        for number in range(options.rounds):
            for name in (
                options.only[number % len(options.only) :]
                + options.only[: number % len(options.only)]
            ):
                if name.endswith("cached"):
                    for path in shards_of(dataset):
                        path.read_bytes()
                else:
                    drop(shards_of(dataset))
                back_memory()
                there = residency_of(shards_of(dataset)) or 0.0
                command = [sys.executable, __file__, "--contender", name, "--keep", str(dataset)]
                ran = subprocess.run(command, check=True, capture_output=True, text=True)
                found.setdefault(name, []).append({**json.loads(ran.stdout), "there": there})
    tell(found, sum(path.stat().st_size for path in shards_of(dataset)))
    save(options.json, found)


def make(dataset: Path) -> None:
    """Make the dataset, unless it is there."""
    if not dataset.exists():
        some = np.random.default_rng(0).integers(0, 256, (16, *SHAPE), dtype=np.uint8)
        images = (
            {"key": f"{place:05d}", "image": some[place % 16], "label": place % 10}
            for place in range(IMAGES)
        )
        shardctl.write(dataset, images)
    os.sync()


def back_memory() -> None:
    """Have the host of a virtual machine back as much free memory as a contender takes."""
    memory = mmap.mmap(-1, BACKED, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    pages = np.frombuffer(memory, np.uint8)
    pages[:: mmap.PAGESIZE] = 1
    del pages
    memory.close()


def shards_of(dataset: Path) -> list[Path]:
    return sorted(path for path in dataset.glob("*-*.arrow"))


def cat(dataset: Path) -> Found:
    """Read the shards in two processes that do nothing else."""
    began, shards = time.perf_counter(), shards_of(dataset)
    readers = [
        subprocess.Popen(["cat", *map(str, shards[part::2])], stdout=subprocess.DEVNULL)
        for part in (0, 1)
    ]
    for reader in readers:
        reader.wait()
    return {"seconds": time.perf_counter() - began, "first_s": 0.0}


def bare(dataset: Path) -> Found:
    """Copy the mapped shards into six batches, in order, by two threads: the least that a loader in
    order does."""
    began, shards = (
        time.perf_counter(),
        [map_whole(path, large_pages=True) for path in shards_of(dataset)],
    )
    size = BATCH * math.prod(SHAPE)
    ring = [np.empty(size, np.uint8) for _ in range(6)]
    pieces = [
        (np.frombuffer(shard, np.uint8)[first : first + size])
        for shard in shards
        for first in range(0, shard.size, size)
    ]

    def copy(place: int) -> None:
        ring[place % len(ring)][: len(pieces[place])] = pieces[place]

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(copy, range(len(pieces))))
    return {"seconds": time.perf_counter() - began, "first_s": 0.0}


def loader(shuffle: bool) -> Callable[[Path], Found]:
    """Return what reads all samples with a loader."""

    def read(dataset: Path) -> Found:
        began, first, samples = time.perf_counter(), 0.0, 0
        for batch in shardctl.open(dataset).loader(
            BATCH, shuffle=shuffle, threads=THREADS, columns=["image", "label"]
        ):
            first = first or time.perf_counter() - began
            samples += len(batch["label"])
        return {"seconds": time.perf_counter() - began, "first_s": first}

    return read


CONTENDERS: dict[str, Callable[[Path], Found]] = {
    "cat": cat,
    "bare loop, in order": bare,
    "random": loader(True),
    "in order": loader(False),
    "random, cached": loader(True),
    "in order, cached": loader(False),
}


def tell(found: dict[str, list[Found]], size: int) -> None:
    for name, runs in found.items():

        def median(value: Callable[[Found], float], runs: list[Found] = runs) -> float:
            return statistics.median(value(run) for run in runs)

        ratios = [
            peer["seconds"] / run["seconds"]
            for peer, run in zip(found.get("cat", []), runs, strict=False)
        ]
        shown = (
            f", {statistics.median(ratios):.2f} of cat ({min(ratios):.2f} to {max(ratios):.2f})"
            if ratios
            else ""
        )
        print(
            f"{name}: {median(lambda run: size / 1e6 / run['seconds']):,.0f} MB/s,"
            f" {median(lambda run: IMAGES / run['seconds']):,.0f} samples/s{shown};"
            f" first batch after {1e3 * median(lambda run: run['first_s']):.1f} ms;"
            f" {median(lambda run: run['there']):.0%} in the page cache before",
            flush=True,
        )


if __name__ == "__main__":
    main()
