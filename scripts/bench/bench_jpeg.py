"""How fast JPEG comes out of the loader, and how much of that is the decoder.

    .venv/bin/python scripts/bench/bench_jpeg.py [CORPUS] [--rounds 7] [--json FILE]

CORPUS is as in bench_loader.py, which makes the dataset: photos of 256 px as jpeg:90. Every round
runs each contender once, in turn, over the same images in a random order, with a warm page cache.
What other programs do counts less in processor time than in time on the clock: both are printed, as
medians of the rounds; ratios are medians of the ratios of each round. The loader reuses the memory
of its batches, as in a long training: new memory is slow on a virtual machine.

FFCV: `scripts/bench/bench_peers.py --only shardctl FFCV --cases jpeg`.
"""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import simplejpeg
from bench_loader import BATCH, Bench
from harness import in_turn, options_of, save, scratch, warm
from PIL import Image

import shardctl
from shardctl.loader.dataset import Dataset

EPOCHS = 2
SIZE, CROP = 256, 224
RESIZED, SMALL_CROP = 192, 176

Pixels = np.ndarray[Any, Any]

Times = tuple[float, float]
"""Microseconds for each image: on the clock, and of all processors."""


def main() -> None:
    options = options_of(__doc__, corpus=True, rounds=7).parse_args()
    with scratch() as folder:
        bench = Bench(options.corpus, folder, threads=2)
        path = bench.photos("jpeg", "--crop", str(SIZE), "--store", "jpeg:90")
        warm(path)
        cases = cases_of(shardctl.open(path))
        contenders = {
            (name, who): run for name, both in cases.items() for who, run in enumerate(both)
        }
        in_turn(contenders, 1)
        found = in_turn(contenders, options.rounds)
    results = {}
    for name in cases:
        bare, ours = (
            [statistics.median(run[at] for run in found[name, who]) for at in (0, 1)]
            for who in (0, 1)
        )
        pairs = list(zip(found[name, 0], found[name, 1], strict=True))
        ratio = [statistics.median(bare[at] / own[at] for bare, own in pairs) for at in (0, 1)]
        results[name] = {"bare": bare, "shardctl": ours, "ratio": ratio}
        print(
            f"{name}: bare {bare[0]:.1f} us an image, shardctl {ours[0]:.1f} us ({ratio[0]:.2f});"
            f" of the processors {bare[1]:.1f} and {ours[1]:.1f} us ({ratio[1]:.2f})"
        )
    save(options.json, results)


def cases_of(dataset: Dataset) -> dict[str, tuple[Callable[[], Times], Callable[[], Times]]]:
    """Return the bare loop and the loader of each case."""
    encoded = dataset.take(range(len(dataset)), columns=["image"], decode=False)["image"]
    order = (np.random.default_rng(0).permutation(EPOCHS * len(encoded)) % len(encoded)).tolist()

    def bare(threads: int, work: Callable[..., None]) -> Callable[[], Times]:
        """Do the work for all images, each thread with buffers of its own."""

        def share(indices: list[int]) -> int:
            buffer = np.empty((SIZE, SIZE, 3), np.uint8)
            batch = np.empty((BATCH, CROP, CROP, 3), np.uint8)
            numbers = np.random.default_rng(0).integers(0, 1 << 30, (len(indices), 3)).tolist()
            for place, (index, drawn) in enumerate(zip(indices, numbers, strict=True)):
                work(encoded[index], buffer, batch[place % BATCH], drawn)
            return len(indices)

        def read() -> int:
            with ThreadPoolExecutor(threads) as pool:
                return sum(pool.map(share, [order[place::threads] for place in range(threads)]))

        return lambda: per_image(read)

    def loader(threads: int, **options: Any) -> Callable[[], Times]:
        made = dataset.loader(
            BATCH,
            shuffle=True,
            threads=threads,
            columns=["image"],
            repeat=EPOCHS,
            reuse=True,
            **options,
        )
        return lambda: per_image(lambda: sum(len(batch["image"]) for batch in made))

    cut = {"crop_from": "random", "flip": 0.5}
    return {
        "1 thread": (bare(1, decode), loader(1)),
        f"crop {CROP}, 1 thread": (bare(1, decode), loader(1, crop=CROP)),
        "2 threads": (bare(2, decode), loader(2)),
        f"crop {CROP}, 2 threads": (bare(2, decode), loader(2, crop=CROP)),
        f"{CROP} and flip, 2 threads": (bare(2, from_simplejpeg), loader(2, crop=CROP, **cut)),
        f"to {RESIZED}, {SMALL_CROP} and flip, 2 threads": (
            bare(2, from_pillow),
            loader(2, resize=RESIZED, crop=SMALL_CROP, **cut),
        ),
    }


def per_image(read: Callable[[], int]) -> Times:
    """Time what reads some images and returns how many."""
    clock, processor = time.perf_counter(), time.process_time()
    images = read()
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    return 1e6 * clock / images, 1e6 * processor / images


def decode(encoded: bytes, buffer: Pixels, *_: object) -> None:
    simplejpeg.decode_jpeg(encoded, "RGB", buffer=buffer)


def from_simplejpeg(encoded: bytes, buffer: Pixels, out: Pixels, drawn: list[int]) -> None:
    copy_cut(simplejpeg.decode_jpeg(encoded, "RGB", buffer=buffer), out, drawn)


def from_pillow(encoded: bytes, _: Pixels, out: Pixels, drawn: list[int]) -> None:
    opened = Image.open(io.BytesIO(encoded))
    resized = np.asarray(opened.resize((RESIZED, RESIZED), Image.Resampling.BILINEAR))
    copy_cut(resized, out[:SMALL_CROP, :SMALL_CROP], drawn)


def copy_cut(pixels: Pixels, out: Pixels, drawn: list[int]) -> None:
    """Copy a random cut of an image, half of them mirrored."""
    side = len(out)
    down, right = (number % (len(pixels) - side + 1) for number in drawn[:2])
    part = pixels[down : down + side, right : right + side]
    if drawn[2] % 2:
        for channel in range(3):  # numpy is six times as slow with runs of one pixel
            out[:, :, channel] = part[:, ::-1, channel]
    else:
        out[...] = part


if __name__ == "__main__":
    main()
