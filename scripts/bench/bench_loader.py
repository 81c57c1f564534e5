"""How fast the loader is, beside bare loops that do only what cannot be left out.

    python scripts/bench/bench_loader.py [CORPUS] [--runs 7] [--threads 2] [--json FILE] [--only CASE …]

CORPUS is a folder with photos/ and captions/ (default: $SHARDCTL_CORPUS, else ../shared/data;
without it, inputs that `shardctl demo` draws). Every round runs each contender once, in turn, in one
process, over the same samples with a warm page cache; batches have 256 samples; a contender reads
EPOCHS epochs in one go, so that what is left over at the end of each counts as little as in
training. Figures are medians over the rounds; the ratio is that of the medians. A run of shardctl
with a cold cache comes first. JPEG: bench_jpeg.py; tokens: bench_tokens.py.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from harness import (
    SHARDCTL,
    done,
    folders,
    in_turn,
    medians_of,
    options_of,
    repeated,
    save,
    scratch,
    seconds,
    shards_of,
    warm,
)

import shardctl
from shardctl.benchmark.measure.meters import drop
from shardctl.loader.dataset import Dataset

BATCH = 256
EPOCHS = 4
LINES = 1_000_000
SHARDS = 10_000
MEAN, STD = 255 * np.array([0.485, 0.456, 0.406]), 255 * np.array([0.229, 0.224, 0.225])
"""Of ImageNet."""

RAW = ("--crop", "224", "--store", "raw")

Contender = Callable[[], float]
"""Reads all samples EPOCHS times and returns the rate: samples per second."""


def main() -> None:
    parser = options_of(__doc__, corpus=True, runs=7, threads=2)
    parser.add_argument("--only", nargs="*", default=[*CASES])
    options = parser.parse_args()
    with scratch() as folder:
        bench = Bench(options.corpus, folder, options.threads)
        save(options.json, [CASES[name](bench, name, options.runs) for name in options.only])


Case = tuple[dict[str, Contender], Path]
"""The contenders, and the dataset that they read."""


def compared(make: Callable[[Bench], Case]) -> Callable[[Bench, str, int], dict[str, Any]]:
    """Return what runs every contender of a case in turn, and prints the medians."""

    def measure(bench: Bench, name: str, runs: int) -> dict[str, Any]:
        contenders, dataset = make(bench)
        drop(shards_of(dataset))
        cold = contenders["shardctl"]()
        warm(dataset)
        in_turn(contenders, 1)
        found = in_turn(contenders, runs)
        medians = medians_of(found)
        shown = ", ".join(
            f"{label} {rate:,.0f}/s ({medians['shardctl'] / rate:.2f})"
            for label, rate in medians.items()
        )
        print(f"{name}: {shown}; cold {cold:,.0f}/s", flush=True)
        return {"case": name, "samples_per_s": medians, "cold": cold, "all": found}

    return measure


def rate_of(batches: Iterable[Any], size: Callable[[Any], int]) -> float:
    """Return how many samples are read per second."""
    samples = 0

    def read() -> None:
        nonlocal samples
        samples = sum(size(batch) for batch in batches)

    took = seconds(read)
    return samples / took


class Bench:
    """The cases, and the datasets that they read."""

    def __init__(self, corpus: Path, folder: Path, threads: int, lines: int = LINES) -> None:
        self.corpus, self.folder, self.threads, self.line_count = corpus, folder, threads, lines
        folder.mkdir(parents=True, exist_ok=True)

    # --- the cases

    def raw(self, shuffle: bool) -> Case:
        path = self.photos("raw", *RAW)
        dataset = shardctl.open(path)
        table = self.as_npy(dataset)
        return {
            "bare gather": lambda: self.bare_gather(table, shuffle),
            "shardctl": self.loader(dataset, shuffle),
        }, path

    def compressed(self, codec: str) -> Case:
        path = self.photos(f"raw-{codec}", *RAW, "--compression", codec)
        return {
            "bare decompression": lambda: self.bare_decompression(path),
            "shardctl": self.loader(shardctl.open(path), True),
        }, path

    def normalized(self) -> Case:
        path = self.photos("raw", *RAW)
        dataset = shardctl.open(path)
        table = self.as_npy(dataset)
        scale, shift = np.tile(np.float32(1 / STD), 224), np.tile(np.float32(-MEAN / STD), 224)

        def finish(image: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
            np.multiply(image, scale, out=out, dtype=np.float32)
            np.add(out, shift, out=out)

        return {
            "bare loop": lambda: self.bare_rows(table.reshape(len(table), 224, -1), finish),
            "shardctl": self.loader(dataset, True, normalize={"image": (MEAN, STD)}),
        }, path

    def loader(self, dataset: Dataset, shuffle: bool, **options: Any) -> Contender:
        loader = dataset.loader(
            BATCH,
            shuffle=shuffle,
            threads=self.threads,
            columns=["image"],
            repeat=EPOCHS,
            **options,
        )
        return lambda: rate_of(loader, lambda batch: len(batch["image"]))

    # --- the bare loops

    def in_threads(self, make: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield the results in order, two tasks per thread in the making."""
        with ThreadPoolExecutor(self.threads) as pool:
            waiting: deque[Any] = deque()
            for task in tasks:
                waiting.append(pool.submit(make, task))
                if len(waiting) > 2 * self.threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def bare_gather(self, table: np.ndarray[Any, Any], shuffle: bool) -> float:
        """Copy samples from one memory-mapped array into batches from Arrow's pool."""
        flat = np.asarray(table).reshape(len(table), -1)

        def gather(indices: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            batch = from_pool((len(indices), flat.shape[1]), flat.dtype)
            return np.take(flat, indices, axis=0, out=batch, mode="clip")

        return rate_of(self.in_threads(gather, batches_of(len(table), shuffle)), len)

    def bare_rows(self, table: np.ndarray[Any, Any], finish: Callable[[Any, Any], None]) -> float:
        """Finish samples of one memory-mapped array one by one into batches of float32 from Arrow's
        pool."""

        def make(indices: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            batch = from_pool((len(indices), *table.shape[1:]), np.dtype(np.float32))
            for place, index in enumerate(indices.tolist()):
                finish(table[index], batch[place])
            return batch

        return rate_of(self.in_threads(make, batches_of(len(table), shuffle=True)), len)

    def bare_decompression(self, path: Path) -> float:
        """Have Arrow decompress every block, in no order."""
        given = pa.ipc.IpcReadOptions(use_threads=False, included_fields=[1])
        readers = [pa.ipc.open_file(str(shard), options=given) for shard in shards_of(path)]
        blocks = EPOCHS * [
            (reader, number) for reader in readers for number in range(reader.num_record_batches)
        ]
        random.shuffle(blocks)

        def read(share: list[tuple[Any, int]]) -> int:
            return sum(reader.get_batch(number).num_rows for reader, number in share)

        shares = [blocks[place :: self.threads] for place in range(self.threads)]
        return rate_of(self.in_threads(read, shares), int)

    # --- the datasets

    def photos(self, name: str, *options: str) -> Path:
        """Return a dataset of the photos, eight times over."""
        path = self.folder / name
        if not path.exists():
            source = repeated(folders(self.corpus, self.folder)[0], self.folder / "many", 8)
            convert(source, path, "--resize", "256", *options)
        return path

    def lines(self) -> Path:
        path = self.folder / "lines"
        if not path.exists():
            source = self.folder / "lines.jsonl"
            write_lines(self.corpus, source, self.line_count)
            convert(source, path, "--compression", "zstd")
        return path

    def as_npy(self, dataset: Dataset) -> np.ndarray[Any, Any]:
        path = self.folder / "raw.npy"
        if not path.exists():
            first = dataset[0]["image"]
            table = np.lib.format.open_memmap(path, "w+", np.uint8, (len(dataset), *first.shape))
            for place, batch in enumerate(dataset.loader(BATCH, columns=["image"])):
                table[place * BATCH : place * BATCH + len(batch["image"])] = batch["image"]
            table.flush()
        path.read_bytes()
        loaded: np.ndarray[Any, Any] = np.load(path, mmap_mode="r")
        return loaded


def batches_of(size: int, shuffle: bool) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the indices of each batch of EPOCHS epochs. The orders are made first: finding them is
    not part of a bare loop."""
    numbers = np.random.default_rng()
    orders = [numbers.permutation(size) if shuffle else np.arange(size) for _ in range(EPOCHS)]
    return (order[first : first + BATCH] for order in orders for first in range(0, size, BATCH))


def from_pool(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return a batch in memory of Arrow's pool."""
    return np.frombuffer(pa.allocate_buffer(math.prod(shape) * dtype.itemsize), dtype).reshape(
        shape
    )


def convert(source: Path, target: Path, *options: str) -> None:
    done(*SHARDCTL, "convert", source, target, "--shuffle", "1", "-q", *options)


def write_lines(corpus: Path, target: Path, count: int) -> None:
    """Write captions (or invented lines) over and over, each with a number."""
    found = sorted((corpus / "captions" / "flickr8k_text").glob("*"))
    if found:
        captions = [
            line.split("\t")[-1]
            for line in found[0].read_text(encoding="utf-8").splitlines()
            if line
        ]
    else:
        words = "a man dog red ball plays on the green grass with two children near water".split()
        captions = [" ".join(random.choices(words, k=10)) for _ in range(20_000)]
    with open(target, "w") as file:
        file.writelines(
            json.dumps({"text": f"{captions[n % len(captions)]} {n}"}) + "\n" for n in range(count)
        )


OPENING = """
import sys, time, numpy, shardctl, shardctl.loader.dataset
began = time.perf_counter()
ds = shardctl.open(sys.argv[1])
opened = time.perf_counter()
next(iter(ds.loader(256, shuffle=eval(sys.argv[2]), threads=2)))
print(opened - began, time.perf_counter() - opened)
"""


def opening(bench: Bench, case: str, runs: int) -> dict[str, Any]:
    """Time opening a dataset of many shards, and the first batch after it, each in a process of its
    own."""
    from handmade import repeat_shard, write_dataset

    path, result = bench.folder / "many-shards", {"case": case}
    columns = pa.schema([("key", pa.string()), ("label", pa.int64())])
    rows = ((f"sample{n:07d}", n % 10) for n in range(SHARDS))
    write_dataset(path, columns, rows, SHARDS, sample_bytes=40)
    repeat_shard(path, SHARDS)
    for shuffle in ("False", "'global'", "'window'"):
        pairs = [done(sys.executable, "-c", OPENING, path, shuffle).split() for _ in range(runs)]
        opened, first = (1e3 * np.median([float(pair[at]) for pair in pairs]) for at in (0, 1))
        result[shuffle] = [opened, first]
        print(
            f"{SHARDS:,} shards, shuffle={shuffle}: open {opened:.1f} ms, first batch {first:.1f} ms"
        )
    return result


OWN = """
import re, sys, shardctl
def own(): return int(re.search(r'RssAnon:\\s+(\\d+)', open('/proc/self/status').read())[1]) / 1024
before, peak = own(), 0
for batch in shardctl.open(sys.argv[1]).loader(256, shuffle=True, threads=2, columns=sys.argv[2:], repeat=3):
    peak = max(peak, own())
print(before, peak)
"""


def memory(bench: Bench, case: str, _: int) -> dict[str, Any]:
    """Read a dataset three times, and print what of it is the process's own memory."""
    result: dict[str, Any] = {"case": case}
    for path, column in ((bench.photos("raw", *RAW), "image"), (bench.lines(), "text")):
        before, peak = map(float, done(sys.executable, "-c", OWN, path, column).split())
        print(f"{path.name}: {before:.0f} MiB before, at most {peak:.0f} MiB")
        result[path.name] = [before, peak]
    return result


CASES: dict[str, Callable[[Bench, str, int], dict[str, Any]]] = {
    "raw, random": compared(lambda bench: bench.raw(shuffle=True)),
    "raw, in order": compared(lambda bench: bench.raw(shuffle=False)),
    "raw zstd, shuffled": compared(lambda bench: bench.compressed("zstd")),
    "raw lz4, shuffled": compared(lambda bench: bench.compressed("lz4")),
    "raw normalised to float32": compared(Bench.normalized),
    "open": opening,
    "memory": memory,
}


if __name__ == "__main__":
    main()
