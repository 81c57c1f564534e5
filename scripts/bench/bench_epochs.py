"""How even the epochs of a loader are, and how fast the first one is where the shards are not in the
page cache.

    python scripts/bench/bench_epochs.py [--images 4400] [--epochs 30] [--rounds 3] [--json FILE]
    python scripts/bench/bench_epochs.py --cold --images 8800

The dataset has images of 224x224 pixels, stored as `raw`. Every round runs each contender once, in
turn, each in a process of its own, in batches of 256 with two threads.

Without --cold all is in the page cache, and a contender reads all epochs in random order: with one
loader, or with a new one for each epoch. The bare loop copies the same samples from one
memory-mapped array into six batches that it makes once. Shown are the median epoch, and the slowest
after the second.

With --cold a contender reads one epoch, opening counts, and its ratio is to two processes of `cat`
that read half of the shards each. Before each the shards are dropped from the page cache
(posix_fadvise). A host may take the free memory of a virtual machine (free page reporting), and to
get it back takes longer than to read a disk: 2.5 GiB are written to and freed before each.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from harness import done, in_turn, options_of, save, scratch, seconds, shards_of, warm

import shardctl
import shardctl.loader.dataset  # now: how long the import takes is another question
from shardctl.benchmark.measure.meters import drop

SHAPE, BATCH, THREADS = (224, 224, 3), 256, 2
IMAGE_BYTES = 224 * 224 * 3

Epoch = Callable[[], int]
"""Reads one epoch, and returns the number of its samples."""


def main() -> None:
    parser = options_of(__doc__, rounds=3, epochs=30, images=4400)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--contender", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        name, folder = options.contender
        epoch = {**WARM, **COLD}[name](Path(folder))
        rates = []
        for _ in range(options.epochs):
            took = seconds(lambda: rates.append(epoch()))
            rates[-1] /= took
        print(json.dumps(rates))
        return
    with scratch() as folder:
        make(folder, options.images)
        epochs = 1 if options.cold else options.epochs

        def read(name: str) -> list[float]:
            if options.cold:
                drop(shards_of(folder / "dataset"))
                back_memory()
            given = ("--contender", name, folder, "--epochs", epochs)
            rates: list[float] = json.loads(done(sys.executable, __file__, *given))
            return rates

        names = COLD if options.cold else WARM
        found = in_turn({name: lambda name=name: read(name) for name in names}, options.rounds)
    for name, runs in found.items():
        if options.cold:
            rate = statistics.median(run[0] for run in runs)
            pairs = zip(runs, found["cat"], strict=True)
            ratio = statistics.median(run[0] / cat[0] for run, cat in pairs)
            print(f"{name}: {rate * IMAGE_BYTES / 1e6:,.0f} MB/s, {ratio:.2f} of cat")
        else:
            middle = statistics.median(statistics.median(run[2:]) for run in runs)
            ratios = [min(run[2:]) / statistics.median(run[2:]) for run in runs]
            print(
                f"{name}: median epoch {middle:,.0f}/s; the slowest, of the median:"
                f" {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            )
    save(options.json, found)


def make(folder: Path, count: int) -> None:
    """Make the dataset and the array, and read them once."""
    some = np.random.default_rng(0).integers(0, 256, (16, *SHAPE), dtype=np.uint8)
    table = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, (count, *SHAPE))
    for place in range(count):
        table[place] = some[place % 16]
    table.flush()
    samples = (
        {"key": f"{place:05d}", "image": some[place % 16], "label": place % 10}
        for place in range(count)
    )
    shardctl.write(folder / "dataset", samples)
    warm(folder)
    os.sync()


def back_memory() -> None:
    """Have the host of a virtual machine back as much free memory as a contender takes."""
    memory = mmap.mmap(-1, 5 << 29, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    pages = np.frombuffer(memory, np.uint8)
    pages[:: mmap.PAGESIZE] = 1
    del pages
    memory.close()


def cat(folder: Path) -> Epoch:
    """Read the shards in two processes that do nothing else."""
    shards = shards_of(folder / "dataset")
    count = sum(path.stat().st_size for path in shards) // IMAGE_BYTES

    def epoch() -> int:
        readers = [
            subprocess.Popen(["cat", *map(str, shards[part::2])], stdout=subprocess.DEVNULL)
            for part in (0, 1)
        ]
        return count if not any(reader.wait() for reader in readers) else 0

    return epoch


def samples_of(dataset: Any, shuffle: bool = True) -> Any:
    return dataset.loader(BATCH, shuffle=shuffle, threads=THREADS, columns=["image", "label"])


def read_all(loader: Any) -> int:
    return sum(len(batch["image"]) for batch in loader)


def one_loader(folder: Path) -> Epoch:
    loader = samples_of(shardctl.open(folder / "dataset"))
    return lambda: read_all(loader)


def loader_for_each(folder: Path) -> Epoch:
    dataset = shardctl.open(folder / "dataset")
    return lambda: read_all(samples_of(dataset))


def opened(shuffle: bool) -> Callable[[Path], Epoch]:
    return lambda folder: lambda: read_all(samples_of(shardctl.open(folder / "dataset"), shuffle))


def bare(folder: Path) -> Epoch:
    """Return what copies the samples of one array into batches that are made once."""
    table = np.load(folder / "images.npy", mmap_mode="r")
    count, table = len(table), table.reshape(len(table), -1)
    ring = [np.empty((BATCH, table.shape[1]), np.uint8) for _ in range(6)]
    pool, numbers = ThreadPoolExecutor(THREADS), np.random.default_rng(0)

    def gather(place: int, indices: np.ndarray[Any, Any]) -> int:
        np.take(table, indices, axis=0, out=ring[place % len(ring)][: len(indices)], mode="clip")
        return len(indices)

    def epoch() -> int:
        order, waiting, samples = numbers.permutation(count), deque[Any](), 0
        for place, first in enumerate(range(0, count, BATCH)):
            waiting.append(pool.submit(gather, place, order[first : first + BATCH]))
            if len(waiting) == len(ring) - 1:
                samples += waiting.popleft().result()
        return samples + sum(each.result() for each in waiting)

    return epoch


WARM: dict[str, Callable[[Path], Epoch]] = {
    "one loader": one_loader,
    "a new loader for each epoch": loader_for_each,
    "bare loop": bare,
}
COLD: dict[str, Callable[[Path], Epoch]] = {
    "cat": cat,
    "in order": opened(shuffle=False),
    "random": opened(shuffle=True),
}


if __name__ == "__main__":
    main()
