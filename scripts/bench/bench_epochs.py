"""How even the epochs of a loader are: the rate of each of many epochs, with one loader and with a
new one for each epoch.

    python scripts/bench/bench_epochs.py [--epochs 30] [--rounds 3] [--keep FOLDER] [--json FILE]

The dataset has 4,400 images of 224x224 pixels, stored as `raw`, in the page cache. Every round runs
each contender once, in turn, each in a process of its own. A contender reads all epochs in random
order, in batches of 256 with two threads. The bare loop copies the same samples from one
memory-mapped array into six batches that it makes once.

The figures are medians over the rounds: the median epoch, the slowest after the second, their
ratio, and what the system did for all epochs: minor page faults, its time, and the largest own
memory of the process (RssAnon).
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from harness import options_of, save

import shardctl

HERE = Path(__file__).resolve().parent
IMAGES, SHAPE, BATCH, THREADS = 4400, (224, 224, 3), 256, 2

Epoch = Callable[[], int]
"""Reads one epoch, and returns the number of its samples."""


def main() -> None:
    parser = options_of(__doc__, rounds=3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--contender", choices=[*CONTENDERS], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        print(json.dumps(epochs_of(CONTENDERS[options.contender](options.keep), options.epochs)))
        return
    with tempfile.TemporaryDirectory(dir=HERE.parent.parent) as scratch:
        folder = (options.keep or Path(scratch)).resolve()
        make(folder)
        found: dict[str, list[dict[str, Any]]] = {}
        for _ in range(options.rounds):
            for name in CONTENDERS:
                command = [sys.executable, __file__, "--contender", name, "--keep", str(folder)]
                command += ["--epochs", str(options.epochs)]
                ran = subprocess.run(command, check=True, capture_output=True, text=True)
                found.setdefault(name, []).append(json.loads(ran.stdout))
    for name, runs in found.items():
        tell(name, runs)
    save(options.json, found)


def make(folder: Path) -> None:
    """Make the dataset and the array, unless they are there, and read them once."""
    table = folder / "images.npy"
    if not table.exists():
        numbers = np.random.default_rng(0)
        some = [numbers.integers(0, 256, SHAPE, dtype=np.uint8) for _ in range(16)]
        images = np.lib.format.open_memmap(table, "w+", np.uint8, (IMAGES, *SHAPE))
        for place in range(IMAGES):
            images[place] = some[place % len(some)]
        images.flush()
        samples = (
            {"key": f"{place:05d}", "image": some[place % len(some)], "label": place % 10}
            for place in range(IMAGES)
        )
        shardctl.write(folder / "dataset", samples)
    for path in [table, *(folder / "dataset").iterdir()]:
        path.read_bytes()


def one_loader(folder: Path) -> Epoch:
    """Return what reads the epochs of one loader."""
    loader = new_loader(shardctl.open(folder / "dataset"))
    return lambda: sum(len(batch["image"]) for batch in loader)


def loader_for_each(folder: Path) -> Epoch:
    """Return what makes a new loader for each epoch."""
    dataset = shardctl.open(folder / "dataset")
    return lambda: sum(len(batch["image"]) for batch in new_loader(dataset))


def new_loader(dataset: Any) -> Any:
    return dataset.loader(BATCH, shuffle=True, threads=THREADS, columns=["image", "label"])


def bare(folder: Path) -> Epoch:
    """Return what copies the samples of one array into batches that are made once."""
    table = np.load(folder / "images.npy", mmap_mode="r").reshape(IMAGES, -1)
    ring = [np.empty((BATCH, table.shape[1]), np.uint8) for _ in range(6)]
    pool, numbers = ThreadPoolExecutor(THREADS), np.random.default_rng(0)

    def gather(place: int, indices: np.ndarray[Any, Any]) -> int:
        np.take(table, indices, axis=0, out=ring[place % len(ring)][: len(indices)], mode="clip")
        return len(indices)

    def epoch() -> int:
        order, waiting, samples = numbers.permutation(IMAGES), deque[Any](), 0
        for place, first in enumerate(range(0, IMAGES, BATCH)):
            waiting.append(pool.submit(gather, place, order[first : first + BATCH]))
            if len(waiting) == len(ring) - 1:
                samples += waiting.popleft().result()
        return samples + sum(each.result() for each in waiting)

    return epoch


CONTENDERS: dict[str, Callable[[Path], Epoch]] = {
    "one loader": one_loader,
    "a new loader for each epoch": loader_for_each,
    "bare loop": bare,
}


def epochs_of(epoch: Epoch, count: int) -> dict[str, Any]:
    """Run epochs, and return the rate of each, and what the system did."""
    rates: list[float] = []
    before, most = resource.getrusage(resource.RUSAGE_SELF), 0.0
    for _ in range(count):
        began = time.perf_counter()
        samples = epoch()
        rates.append(samples / (time.perf_counter() - began))
        most = max(most, own_memory())
    after = resource.getrusage(resource.RUSAGE_SELF)
    faults, system = after.ru_minflt - before.ru_minflt, after.ru_stime - before.ru_stime
    return {"rates": rates, "faults": faults, "system_s": system, "mib": most}


def own_memory() -> float:
    """Return how much memory the process has of its own, in MiB."""
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def tell(name: str, runs: list[dict[str, Any]]) -> None:
    def median(value: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(value(run) for run in runs)

    middle, slowest = (
        median(lambda run: statistics.median(run["rates"][2:])),
        median(lambda run: min(run["rates"][2:])),
    )
    ratios = [min(run["rates"][2:]) / statistics.median(run["rates"][2:]) for run in runs]
    print(
        f"{name}: median epoch {middle:,.0f}/s, slowest after the second {slowest:,.0f}/s,"
        f" ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f});"
        f" first epoch {median(lambda run: run['rates'][0]):,.0f}/s; "
        f"{median(lambda run: run['faults']):,.0f} minor faults,"
        f" {median(lambda run: run['system_s']):.2f} s of the system, "
        f"{median(lambda run: run['mib']):,.0f} MiB",
        flush=True,
    )


if __name__ == "__main__":
    main()
