"""How fast JPEG comes out of the loader, how much of that is the decoder, and at how many cores
threads end.

    .venv/bin/python scripts/bench/bench_jpeg.py [CORPUS] [--rounds 7] [--keep FOLDER] [--json FILE]

CORPUS is as in bench_loader.py, which makes the dataset: photos of 256 px as jpeg:90. Every round
runs each contender once, in turn, over the same images in a random order, with a warm page cache.
What other programs do counts less in processor time than in time on the clock: both are printed, as
medians of the rounds; ratios are medians of the ratios of each round.

The interpreter's lock is what ends threads: what is done while it is held is done by one thread at
a time. How long that is is measured with a decoder that costs nothing: simplejpeg.decode_jpeg is
replaced by a function that returns at once. To copy pixels does not hold the lock, so a crop of 8
px stands for all that a crop costs apart from the copy. What simplejpeg itself does with the lock
held is not in it: it sets up a decoder and an array. The loader reuses the memory of its batches,
as in a long training: new memory is slow on a virtual machine.

FFCV: `scripts/bench/bench_peers.py --only shardctl FFCV --cases jpeg`.
"""

from __future__ import annotations

import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import simplejpeg
from bench_loader import BATCH, HERE, Bench, warm
from harness import options_of, save
from PIL import Image

import shardctl
from shardctl.loader.dataset import Dataset

EPOCHS = 2
SIZE, CROP, TINY_CROP = 256, 224, 8
RESIZED, SMALL_CROP = 192, 176

Times = tuple[float, float]
"""Microseconds for each image: on the clock, and of all processors."""


def main() -> None:
    parser = options_of(__doc__, corpus=True, rounds=7)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=HERE.parent.parent) as scratch:
        bench = Bench(Path(options.corpus), (options.keep or Path(scratch)).resolve(), threads=2)
        path = bench.photos("jpeg", "--crop", str(SIZE), "--store", "jpeg:90")
        warm(path)
        times: dict[str, list[Times]] = {}
        contenders = contenders_of(shardctl.open(path))
        for number in range(options.rounds + 1):
            for name, run in contenders.items():
                if number:  # the first round warms up
                    times.setdefault(name, []).append(run())
                else:
                    run()
    tell(times)
    save(options.json, times)


def contenders_of(dataset: Dataset) -> dict[str, Callable[[], Times]]:
    encoded = dataset.take(range(len(dataset)), columns=["image"], decode=False)["image"]
    order = (np.random.default_rng(0).permutation(EPOCHS * len(encoded)) % len(encoded)).tolist()

    def bare(threads: int) -> Callable[[], Times]:
        return lambda: per_image(lambda: decode_all(encoded, order, threads))

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

    def free(run: Callable[[], Times]) -> Callable[[], Times]:
        def without_decoder() -> Times:
            with free_decoder():
                return run()

        return without_decoder

    return {
        "bare simplejpeg, 1 thread": bare(1),
        "loader, 1 thread": loader(1),
        f"loader, crop {CROP}, 1 thread": loader(1, crop=CROP),
        "bare simplejpeg, 2 threads": bare(2),
        "loader, 2 threads": loader(2),
        f"loader, crop {CROP}, 2 threads": loader(2, crop=CROP),
        f"bare simplejpeg, {CROP} and flip, 2 threads": lambda: per_image(
            lambda: cut_all(encoded, order, from_simplejpeg)
        ),
        f"loader, {CROP} and flip, 2 threads": loader(2, crop=CROP, crop_from="random", flip=0.5),
        f"bare Pillow, to {RESIZED}, {SMALL_CROP} and flip, 2 threads": lambda: per_image(
            lambda: cut_all(encoded, order, from_pillow)
        ),
        f"loader, to {RESIZED}, {SMALL_CROP} and flip, 2 threads": loader(
            2, resize=RESIZED, crop=SMALL_CROP, crop_from="random", flip=0.5
        ),
        "free decoder": free(loader(1)),
        "free decoder, tiny crop": free(loader(1, crop=TINY_CROP)),
        f"free decoder, crop {CROP}": free(loader(1, crop=CROP)),
        "free decoder, crop and flip": free(
            loader(1, crop=TINY_CROP, crop_from="random", flip=0.5)
        ),
    }


def per_image(read: Callable[[], int]) -> Times:
    """Time what reads some images and returns how many."""
    clock, processor = time.perf_counter(), time.process_time()
    images = read()
    return 1e6 * (time.perf_counter() - clock) / images, 1e6 * (
        time.process_time() - processor
    ) / images


def decode_all(encoded: list[bytes], order: list[int], threads: int) -> int:
    """Decode images with nothing around it, each thread into one buffer."""

    def decode(share: list[int]) -> int:
        buffer = np.empty((SIZE, SIZE, 3), np.uint8)
        for index in share:
            simplejpeg.decode_jpeg(encoded[index], "RGB", buffer=buffer)
        return len(share)

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(decode, [order[place::threads] for place in range(threads)]))


def from_simplejpeg(
    encoded: bytes, buffer: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], int]:
    """Return the pixels of an image, and the side of the crop of it."""
    return simplejpeg.decode_jpeg(encoded, "RGB", buffer=buffer), CROP


def from_pillow(encoded: bytes, _: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], int]:
    """Return the pixels of an image that Pillow has decoded and resized, and the side of the crop
    of it."""
    opened = Image.open(io.BytesIO(encoded))
    return np.asarray(opened.resize((RESIZED, RESIZED), Image.Resampling.BILINEAR)), SMALL_CROP


def cut_all(
    encoded: list[bytes],
    order: list[int],
    pixels_of: Callable[..., tuple[np.ndarray[Any, Any], int]],
) -> int:
    """Decode images in two threads, and copy a random crop of each, half of them mirrored, into
    batches."""

    def cut(share: list[int]) -> int:
        buffer, batch = (
            np.empty((SIZE, SIZE, 3), np.uint8),
            np.empty((BATCH, CROP, CROP, 3), np.uint8),
        )
        numbers = np.random.default_rng(0).integers(0, 1 << 30, (len(share), 3)).tolist()
        for place, (index, (down, right, turn)) in enumerate(zip(share, numbers, strict=True)):
            pixels, side = pixels_of(encoded[index], buffer)
            free = pixels.shape[0] - side + 1
            down, right = down % free, right % free
            part, out = (
                pixels[down : down + side, right : right + side],
                batch[place % BATCH, :side, :side],
            )
            if turn % 2:
                for channel in range(3):  # numpy is six times as slow with runs of one pixel
                    out[:, :, channel] = part[:, ::-1, channel]
            else:
                out[...] = part
        return len(share)

    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(cut, [order[place::2] for place in range(2)]))


@contextmanager
def free_decoder() -> Iterator[None]:
    pixels = np.zeros((SIZE, SIZE, 3), np.uint8)

    def free(*_: Any, **__: Any) -> np.ndarray[Any, Any]:
        return pixels

    with mock.patch.object(simplejpeg, "decode_jpeg", free):
        yield


def tell(times: dict[str, list[Times]]) -> None:
    medians = {
        name: tuple(map(statistics.median, zip(*found, strict=True)))
        for name, found in times.items()
    }
    for name, (clock, processor) in medians.items():
        print(
            f"{name:<30} {clock:7.1f} us on the clock, {processor:7.1f} us of the processors for "
            "each image"
        )
    for threads in ("1 thread", "2 threads"):
        bare = times[f"bare simplejpeg, {threads}"]
        for kind in ("loader", f"loader, crop {CROP}"):
            pairs = list(zip(bare, times[f"{kind}, {threads}"], strict=True))
            clock, processor = (
                statistics.median(one[at] / other[at] for one, other in pairs) for at in (0, 1)
            )
            print(
                f"{kind}, {threads}: {clock:.2f} of bare simplejpeg on the clock, {processor:.2f} "
                "by processor time"
            )
    for cut, bare_name in (
        (f"{CROP} and flip", "simplejpeg"),
        (f"to {RESIZED}, {SMALL_CROP} and flip", "Pillow"),
    ):
        pairs = list(
            zip(
                times[f"bare {bare_name}, {cut}, 2 threads"],
                times[f"loader, {cut}, 2 threads"],
                strict=True,
            )
        )
        clock, processor = (
            statistics.median(one[at] / other[at] for one, other in pairs) for at in (0, 1)
        )
        print(
            f"loader, {cut}, 2 threads: {clock:.2f} of bare {bare_name} on the clock, "
            f"{processor:.2f} by processor time"
        )
    for kind, held in (
        ("loader", "free decoder"),
        (f"loader, crop {CROP}", "free decoder, tiny crop"),
    ):
        whole, alone = medians[f"{kind}, 1 thread"][1], medians[held][1]
        print(
            f"{kind}: Python is held {alone:.1f} of {whole:.1f} us, so threads end at about "
            f"{whole / alone:.0f} cores"
        )


if __name__ == "__main__":
    main()
