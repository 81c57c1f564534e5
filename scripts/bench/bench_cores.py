"""At how many cores do the threads of the loader end, and what do worker processes (`processes=`)
give?

    .venv/bin/python scripts/bench/bench_cores.py [--rounds 5] [--counts 1 2 4] [--json FILE]

Python runs in one thread of a process at a time. So its lock alone ends threads at the number of
cores

    processor time of a sample / the part of it in which the thread holds Python's lock.

On 16 cores some ended earlier (docs/dev/measurements.md): handing the lock on takes time too.
The first is measured with one thread. The second is at most the processor time of the same samples
with next to nothing to do beside Python: images of 16 px and a decoder that does nothing, arrays of
16 bytes. Then come the samples/s of 1, 2 and 4 threads and of 1, 2 and 4 processes (or `--counts`),
and what this process itself spends on a sample that processes have made: that bounds them as the
lock bounds threads. Every round runs each contender once, in turn; figures are medians. A contender
reads more samples if it can use more cores, so that all take about the same time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import simplejpeg
from harness import in_turn, options_of, save, scratch

import shardctl
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.system.machine import usable_cores

BATCH = 256
LARGE, TINY = 256, 16
"""Pixels of a side."""

SAMPLES = 2048


@dataclass
class Case:
    """What is read: a dataset, the same with next to nothing to do, how often in one go per core,
    and the loader's options."""

    dataset: Path
    bare: Path
    epochs: int
    options: dict[str, Any] = field(default_factory=lambda: {"columns": ["x"]})


Took = tuple[float, float, float]
"""Samples/s, and microseconds of a processor for a sample: of this process, and of all."""


def main() -> None:
    parser = options_of(__doc__, rounds=5)
    parser.add_argument(
        "--counts", type=int, nargs="+", default=(1, 2, 4), help="of threads, and of processes"
    )
    options = parser.parse_args()
    with scratch() as folder:
        results = []
        for name, make in CASES.items():
            counts = sorted({1, *options.counts})
            results.append(measure(name, make(folder), options.rounds, counts))
            save(options.json, results)


def measure(name: str, case: Case, rounds: int, counts: list[int]) -> dict[str, Any]:
    contenders = {
        "bare": reading(case.bare, case, 1),
        **{f"threads {count}": reading(case.dataset, case, count) for count in counts},
        # A second question waits at each process, so that it is never without work.
        **{f"processes {n}": reading(case.dataset, case, 2 * n, processes=n) for n in counts},
    }
    in_turn(contenders, 1)
    found = {
        label: [statistics.median(column) for column in zip(*runs, strict=True)]
        for label, runs in in_turn(contenders, rounds).items()
    }
    sample, held, handed = (found[label][1] for label in ("threads 1", "bare", "processes 1"))
    print(
        f"{name}: {sample:.2f} us of a processor for a sample, of which at most {held:.2f} hold the"
        f" lock: it ends threads at {sample / held:.0f} cores; processes take {handed:.2f} us here:"
        f" they end at {sample / handed:.0f}"
    )
    for label, (rate, _, together) in found.items():
        print(
            f"    {label:<14} {rate:>12,.0f} samples/s, {together:>7.2f} us of processors",
            flush=True,
        )
    return {"case": name, "found": found}


def reading(dataset: Path, case: Case, threads: int, **how: int) -> Callable[[], Took]:
    """Return what reads a dataset once; a bare JPEG is not decoded."""
    loader = shardctl.open(dataset).loader(
        BATCH,
        shuffle=True,
        repeat=case.epochs * min(threads, usable_cores()),
        threads=threads,
        **how,
        **case.options,
    )
    pixels = np.zeros((TINY, TINY, 3), np.uint8)

    def decode_nothing(*_: object, **__: object) -> Any:
        return pixels

    def read() -> Took:
        loader.start()
        elsewhere = loader.stats().processes_cpu_s
        used, began = time.process_time(), time.perf_counter()
        samples = sum(len(next(iter(batch.values()))) for batch in loader)
        rate = samples / (time.perf_counter() - began)
        here = 1e6 * (time.process_time() - used) / samples
        elsewhere = loader.stats().processes_cpu_s - elsewhere
        return rate, here, here + 1e6 * elsewhere / samples

    def read_bare() -> Took:
        with mock.patch.object(simplejpeg, "decode_jpeg", decode_nothing):
            return read()

    return read_bare if dataset == case.bare else read


def jpeg(folder: Path) -> Case:
    """JPEG of 256 px, 4:2:0, quality 90."""
    return Case(jpegs(folder, LARGE), jpegs(folder, TINY), 1, {"columns": ["image"]})


def raw(folder: Path) -> Case:
    """Pixels of 224 px."""
    return Case(arrays(folder, 224 * 224 * 3), arrays(folder, 16), 4)


def compressed(folder: Path) -> Case:
    """The same, compressed: every process decompresses every block."""
    return Case(arrays(folder, 224 * 224 * 3, compression="zstd"), arrays(folder, 16), 2)


def tokens(folder: Path) -> Case:
    """Blocks of 2,048 tokens, made int64."""
    return Case(
        arrays(folder, 2048, 16),
        arrays(folder, 16, 16),
        2,
        {"columns": ["x"], "dtype": {"x": "int64"}},
    )


CASES: dict[str, Callable[[Path], Case]] = {
    "jpeg": jpeg,
    "raw": raw,
    "raw zstd": compressed,
    "tokens": tokens,
}


def jpegs(folder: Path, side: int) -> Path:
    from handmade import write_dataset

    path = folder / f"jpeg-{side}"
    if not path.exists():
        numbers = np.random.default_rng(0)
        some = []
        for _ in range(64):
            coarse = (
                numbers.integers(0, 255, (side // 8, side // 8, 3))
                .repeat(8, axis=0)
                .repeat(8, axis=1)
            )
            noisy = np.clip(coarse + numbers.normal(0, 12, coarse.shape), 0, 255).astype(np.uint8)
            some.append(simplejpeg.encode_jpeg(noisy, 90, "RGB", "420"))
        rows = ((f"k{n}", (some[n % 64], "x.jpg")) for n in range(SAMPLES))
        columns = pa.schema([("key", pa.string()), ("image", ENCODED_IMAGE)])
        write_dataset(
            path, columns, rows, SAMPLES // 4, sample_bytes=len(some[0]), shape=(side, side, 3)
        )
    return path


def arrays(folder: Path, width: int, times: int = 1, compression: str = "none") -> Path:
    from handmade import write_dataset

    path = folder / f"arrays-{width}-{times}-{compression}"
    if not path.exists():
        dtype = np.uint8 if times == 1 else np.uint16
        numbers = np.random.default_rng(0)
        some = [numbers.integers(0, 24, width).astype(dtype) for _ in range(64)]
        columns = pa.schema(
            [
                ("key", pa.string()),
                ("x", pa.fixed_shape_tensor(pa.from_numpy_dtype(dtype), [width])),
            ]
        )
        rows = ((f"k{n}", some[n % 64]) for n in range(SAMPLES * times))
        write_dataset(
            path, columns, rows, SAMPLES * times // 4, compression, sample_bytes=some[0].nbytes
        )
    return path


if __name__ == "__main__":
    main()
