"""How fast the loader is, beside bare loops that do only what cannot be left out.

    python scripts/bench/bench_loader.py [CORPUS] [--runs 7] [--threads 2] [--keep FOLDER] [--json
    FILE] [--only CASE …]

CORPUS is a folder with photos/ and captions/ (default: $SHARDCTL_CORPUS, else ../shared/data;
without it, inputs that `shardctl demo` draws). The datasets are made first, in a scratch folder, or
in FOLDER, where they are kept for the next time. Every round runs each contender once, in turn, in
one process, over the same samples with a warm page cache; batches have 256 samples; a contender
reads EPOCHS epochs in one go, so that what is left over at the end of each counts as little as in
training. Figures are medians over the rounds; the ratio is that of the medians. A run of shardctl
with a cold cache comes first.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import simplejpeg
from harness import options_of, save

import shardctl
from shardctl.benchmark.measure.machine import evict
from shardctl.loader.dataset import Dataset

sys.path.append(str(Path(__file__).resolve().parents[1] / "data"))
from handmade import repeat_shard, write_dataset

HERE = Path(__file__).resolve().parent
BATCH = 256
EPOCHS = 4
PHOTO_REPEATS = 8
LINES = 1_000_000
TOKEN_BLOCKS = 100_000
TOKENS = 2048
SHARDS = 10_000
MEAN, STD = 255 * np.array([0.485, 0.456, 0.406]), 255 * np.array([0.229, 0.224, 0.225])
"""Of ImageNet."""

Sink = Callable[[np.ndarray[Any, Any]], None]
"""Is given images (n, 224, 224, 3)."""

Contender = Callable[[], float]
"""Reads all samples EPOCHS times and returns the rate: samples per second."""


def main() -> None:
    parser = options_of(__doc__, corpus=True, runs=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(dir=HERE.parent.parent) as scratch:
        bench = Bench(
            Path(options.corpus), (options.keep or Path(scratch)).resolve(), options.threads
        )
        for name, case in bench.cases().items():
            if not options.only or name in options.only:
                results.append(measure(name, case, options.runs))
        if not options.only or "open" in options.only:
            results.append(opening(bench.many_shards(), options.runs))
        if not options.only or "memory" in options.only:
            results.append(memory(bench))
    save(options.json, results)


def measure(
    name: str, case: Callable[[], tuple[dict[str, Contender], Path]], runs: int
) -> dict[str, Any]:
    """Run every contender of a case in turn, and print the medians."""
    contenders, dataset = case()
    evict(dataset)
    cold = contenders["shardctl"]()
    warm(dataset)
    rates: dict[str, list[float]] = {label: [] for label in contenders}
    for _ in range(runs + 1):
        for label, contender in contenders.items():
            rates[label].append(contender())
    medians = {label: statistics.median(found[1:]) for label, found in rates.items()}
    others = [label for label in contenders if not label.startswith("shardctl")]
    ratio = "".join(f", {medians['shardctl'] / medians[label]:.2f} of {label}" for label in others)
    shown = ", ".join(f"{label} {rate:,.0f}/s" for label, rate in medians.items())
    print(f"{name}: {shown}{ratio}; cold {cold:,.0f}/s", flush=True)
    return {"case": name, "samples_per_s": medians, "cold": cold, "all": rates}


def warm(dataset: Path) -> None:
    for path in dataset.iterdir():
        path.read_bytes()


def timed(batches: Iterable[Any], size: Callable[[Any], int]) -> float:
    began = time.perf_counter()
    samples = sum(size(batch) for batch in batches)
    return samples / (time.perf_counter() - began)


class Bench:
    """The cases, and the datasets that they read."""

    def __init__(self, corpus: Path, folder: Path, threads: int, lines: int = LINES) -> None:
        self.corpus, self.folder, self.threads, self.line_count = corpus, folder, threads, lines
        folder.mkdir(parents=True, exist_ok=True)

    def cases(self) -> dict[str, Callable[[], tuple[dict[str, Contender], Path]]]:
        return {
            "raw, random": lambda: self.raw(shuffle=True),
            "raw, in order": lambda: self.raw(shuffle=False),
            "raw zstd, shuffled": lambda: self.compressed("zstd"),
            "raw lz4, shuffled": lambda: self.compressed("lz4"),
            "jpeg to 224 crop, shuffled": self.jpeg,
            "text lines zstd, shuffled": self.lines,
            "token blocks, random": self.tokens,
            "raw normalised to float32": self.normalized,
            "token blocks as int64": self.wide_tokens,
        }

    # --- the cases

    def raw(self, shuffle: bool) -> tuple[dict[str, Contender], Path]:
        path = self.photos("raw", "--crop", "224", "--store", "raw")
        dataset = shardctl.open(path)
        table = self.as_npy(dataset)
        return {
            "bare gather": lambda: self.bare_gather(table, shuffle),
            "shardctl": self.loader(dataset, "image", shuffle),
        }, path

    def compressed(self, codec: str) -> tuple[dict[str, Contender], Path]:
        path = self.photos(
            f"raw-{codec}", "--crop", "224", "--store", "raw", "--compression", codec
        )
        return {
            "bare decompression": lambda: self.bare_decompression(path, discard),
            "the same and one copy": lambda: self.bare_decompression(path, collect),
            "shardctl": self.loader(shardctl.open(path), "image", True),
        }, path

    def jpeg(self) -> tuple[dict[str, Contender], Path]:
        path = self.photos("jpeg", "--crop", "256", "--store", "jpeg:90")
        dataset = shardctl.open(path)
        encoded = dataset.take(range(len(dataset)), columns=["image"], decode=False)["image"]
        return {
            "bare simplejpeg": lambda: self.bare_jpeg(encoded, discard),
            "the same and one copy": lambda: self.bare_jpeg(encoded, collect),
            "shardctl": self.loader(dataset, "image", True, crop=224),
            "shardctl, reuse": self.loader(dataset, "image", True, crop=224, reuse=True),
        }, path

    def lines(self) -> tuple[dict[str, Contender], Path]:
        path = self.folder / "lines"
        if not path.exists():
            source = self.folder / "lines.jsonl"
            write_lines(self.corpus, source, self.line_count)
            convert(source, path, "--compression", "zstd")
        return {"shardctl": self.loader(shardctl.open(path), "text", True)}, path

    def normalized(self) -> tuple[dict[str, Contender], Path]:
        path = self.photos("raw", "--crop", "224", "--store", "raw")
        dataset = shardctl.open(path)
        table = self.as_npy(dataset)
        scale, shift = np.tile(np.float32(1 / STD), 224), np.tile(np.float32(-MEAN / STD), 224)

        def finish(image: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
            np.multiply(image, scale, out=out, dtype=np.float32)
            np.add(out, shift, out=out)

        return {
            "bare loop": lambda: self.bare_rows(
                table.reshape(len(table), 224, -1), np.dtype(np.float32), finish
            ),
            "shardctl": self.loader(dataset, "image", True, normalize={"image": (MEAN, STD)}),
            "shardctl, reuse": self.loader(
                dataset, "image", True, normalize={"image": (MEAN, STD)}, reuse=True
            ),
        }, path

    def wide_tokens(self) -> tuple[dict[str, Contender], Path]:
        _, path = self.tokens()
        table = np.load(self.folder / "tokens.npy", mmap_mode="r")
        return {
            "bare gather + astype": lambda: self.bare_gather(
                table, True, lambda batch: batch.astype(np.int64)
            ),
            "shardctl": self.loader(shardctl.open(path), "tokens", True, dtype={"tokens": "int64"}),
        }, path

    def tokens(self) -> tuple[dict[str, Contender], Path]:
        path = self.folder / "tokens"
        if not path.exists():
            columns = pa.schema(
                [("key", pa.string()), ("tokens", pa.fixed_shape_tensor(pa.uint16(), [TOKENS]))]
            )
            write_dataset(path, columns, token_blocks(), TOKEN_BLOCKS // 4, sample_bytes=2 * TOKENS)
        dataset = shardctl.open(path)
        table = self.folder / "tokens.npy"
        if not table.exists():
            np.save(
                table,
                np.concatenate(
                    [batch["tokens"] for batch in dataset.loader(4096, columns=["tokens"])]
                ),
            )
        return {
            "bare gather": lambda: self.bare_gather(np.load(table, mmap_mode="r"), True),
            "shardctl": self.loader(dataset, "tokens", True),
        }, path

    def loader(self, dataset: Dataset, column: str, shuffle: bool, **options: Any) -> Contender:
        loader = dataset.loader(
            BATCH, shuffle=shuffle, threads=self.threads, columns=[column], repeat=EPOCHS, **options
        )
        return lambda: timed(loader, lambda batch: len(batch[column]))

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

    def bare_gather(
        self, table: np.ndarray[Any, Any], shuffle: bool, finish: Callable[[Any], Any] = np.asarray
    ) -> float:
        """Copy samples from one memory-mapped array into batches from Arrow's pool, and finish
        each."""
        flat = np.asarray(table).reshape(len(table), -1)

        def gather(indices: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            batch = from_pool((len(indices), flat.shape[1]), flat.dtype)
            return finish(np.take(flat, indices, axis=0, out=batch, mode="clip"))

        return timed(self.in_threads(gather, batches_of(len(table), shuffle)), len)

    def bare_rows(
        self, table: np.ndarray[Any, Any], dtype: np.dtype[Any], finish: Callable[[Any, Any], None]
    ) -> float:
        """Finish samples of one memory-mapped array one by one into batches from Arrow's pool."""

        def make(indices: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            batch = from_pool((len(indices), *table.shape[1:]), dtype)
            for place, index in enumerate(indices.tolist()):
                finish(table[index], batch[place])
            return batch

        return timed(self.in_threads(make, batches_of(len(table), shuffle=True)), len)

    def bare_decompression(self, path: Path, sink: Callable[[], Sink]) -> float:
        """Have Arrow decompress every block, in no order."""
        readers = [
            pa.ipc.open_file(
                str(shard), options=pa.ipc.IpcReadOptions(use_threads=False, included_fields=[1])
            )
            for shard in sorted(path.glob("train-*.arrow"))
        ]
        blocks = EPOCHS * [
            (reader, number) for reader in readers for number in range(reader.num_record_batches)
        ]
        random.shuffle(blocks)

        def read(share: list[tuple[Any, int]]) -> int:
            take, samples = sink(), 0
            for reader, number in share:
                images = reader.get_batch(number).column(0).to_numpy_ndarray()
                take(images)
                samples += len(images)
            return samples

        return timed(
            self.in_threads(read, [blocks[place :: self.threads] for place in range(self.threads)]),
            int,
        )

    def bare_jpeg(self, encoded: list[bytes], sink: Callable[[], Sink]) -> float:
        """Decode every image into the same buffer of its thread."""
        indices = random.sample(EPOCHS * list(range(len(encoded))), EPOCHS * len(encoded))

        def decode(share: list[int]) -> int:
            take, buffer = sink(), np.empty((256, 256, 3), np.uint8)
            for index in share:
                simplejpeg.decode_jpeg(encoded[index], "RGB", buffer=buffer)
                take(buffer[None, 16:240, 16:240])
            return len(share)

        return timed(
            self.in_threads(
                decode, [indices[place :: self.threads] for place in range(self.threads)]
            ),
            int,
        )

    # --- the datasets

    def photos(self, name: str, *options: str) -> Path:
        path = self.folder / name
        if not path.exists():
            convert(self.sources(), path, "--resize", "256", *options)
        return path

    def sources(self) -> Path:
        many = self.folder / "many-photos"
        if not many.exists():
            photos = self.corpus / "photos"
            if not photos.is_dir():
                print(f"{self.corpus}: no corpus there, using drawn images")
                command = [
                    sys.executable,
                    "-m",
                    "shardctl",
                    "demo",
                    str(self.folder / "demo"),
                    "--images",
                    "500",
                    "-q",
                ]
                subprocess.run(command, check=True)
                photos = self.folder / "demo" / "photos"
            many.mkdir()
            for repeat in range(PHOTO_REPEATS):
                (many / f"again{repeat}").symlink_to(photos.resolve())
        return many

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

    def many_shards(self) -> Path:
        path = self.folder / "many-shards"
        if not path.exists():
            columns = pa.schema([("key", pa.string()), ("label", pa.int64())])
            write_dataset(
                path,
                columns,
                ((f"sample{n:07d}", n % 10) for n in range(SHARDS)),
                SHARDS,
                sample_bytes=40,
            )
            repeat_shard(path, SHARDS)
        return path


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


def discard() -> Sink:
    """Return what does nothing with images."""
    return lambda images: None


def collect() -> Sink:
    """Return what copies images into one batch after the other: the least that has to be done with
    them."""
    shape, pixels = (BATCH, 224, 224, 3), np.dtype(np.uint8)
    batch, filled = from_pool(shape, pixels), 0

    def take(images: np.ndarray[Any, Any]) -> None:
        nonlocal batch, filled
        for image in images:
            if filled == BATCH:
                batch, filled = from_pool(shape, pixels), 0
            batch[filled] = image
            filled += 1

    return take


def convert(source: Path, target: Path, *options: str) -> None:
    command = [
        sys.executable,
        "-m",
        "shardctl",
        "convert",
        str(source),
        str(target),
        "--shuffle",
        "1",
        "-q",
        *options,
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


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
        words = [
            "a",
            "man",
            "dog",
            "red",
            "ball",
            "plays",
            "on",
            "the",
            "green",
            "grass",
            "with",
            "two",
            "children",
            "near",
            "water",
        ]
        captions = [" ".join(random.choices(words, k=10)) for _ in range(20_000)]
    with open(target, "w") as file:
        file.writelines(
            json.dumps({"text": f"{captions[n % len(captions)]} {n}"}) + "\n" for n in range(count)
        )


def token_blocks() -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    numbers = np.random.default_rng(0)
    for block in range(TOKEN_BLOCKS):
        yield f"block{block:07d}", numbers.integers(0, 50_000, TOKENS, dtype=np.uint16)


def opening(path: Path, runs: int) -> dict[str, Any]:
    """Time opening a dataset of many shards, and the first batch after it, each in a process of its
    own."""
    times: dict[str, list[tuple[float, float]]] = {}
    for shuffle in (False, "global", "window"):
        for _ in range(runs):
            code = (
                "import time, numpy, shardctl, shardctl.loader.dataset\n"
                f"a = time.perf_counter(); ds = shardctl.open({str(path)!r}); b = "
                "time.perf_counter()\n"
                f"batches = iter(ds.loader({BATCH}, shuffle={shuffle!r}, threads=2)); "
                "next(batches); c = time.perf_counter()\n"
                "print(b - a, c - b)"
            )
            ran = subprocess.run(
                [sys.executable, "-c", code], check=True, capture_output=True, text=True
            )
            opened, first = map(float, ran.stdout.split())
            times.setdefault(str(shuffle), []).append((opened, first))
    result: dict[str, Any] = {"case": "open"}
    for shuffle, pairs in times.items():
        result[shuffle] = [
            1e3 * statistics.median(pair[place] for pair in pairs) for place in (0, 1)
        ]
        opened, first = result[shuffle]
        print(
            f"{SHARDS:,} shards, shuffle={shuffle}: open {opened:.1f} ms, first batch {first:.1f} "
            "ms more"
        )
    return result


def memory(bench: Bench) -> dict[str, Any]:
    """Read a dataset three times, and the same with a quarter of the samples; print what of it is
    this process's own memory."""
    result: dict[str, Any] = {"case": "memory"}
    for name, path, column in (
        ("raw", bench.photos("raw", "--crop", "224", "--store", "raw"), "image"),
        ("lines", bench.folder / "lines", "text"),
    ):
        for share in (4, 1):
            code = (
                "import re, shardctl\n"
                f"ds = shardctl.open({str(path)!r}); ds = ds.limit(len(ds) // {share})\n"
                "def own(): return int(re.search(r'RssAnon:\\s+(\\d+)', "
                "open('/proc/self/status').read())[1]) / 1024\n"
                f"loader = ds.loader({BATCH}, shuffle=True, threads=2, columns=[{column!r}])\n"
                "before, peak = own(), []\n"
                "for epoch in range(3):\n"
                "    most = 0\n"
                "    for batch in loader: most = max(most, own())\n"
                "    peak.append(most)\n"
                "print(before, *peak)"
            )
            ran = subprocess.run(
                [sys.executable, "-c", code], check=True, capture_output=True, text=True
            )
            before, *peaks = map(float, ran.stdout.split())
            shown = ", ".join(f"{peak:.0f}" for peak in peaks)
            print(
                f"{name}, 1/{share} of the samples: {before:.0f} MiB before, peaks of three epochs "
                f"{shown} MiB"
            )
            result[f"{name} 1/{share}"] = [before, *peaks]
    return result


if __name__ == "__main__":
    main()
