"""Export beside the real libraries: the same JPEGs to tar, TFRecord, Parquet and MDS, the runs in
turn.

    python scripts/bench/bench_exports.py [--images 4000] [--size 256] [--runs 5] [--workers 2,0]
    [--scratch DIR]

It needs the environments of `make interop`. For each format the library itself writes the images
from a folder of files in one process (peer_formats.py, 1000 images in a file), and `shardctl
export` writes them from its dataset: with checksums of every block that it reads and of every file
that it writes, which are on the disk when it ends. `cp` of the bytes of the export with `sync`, and
one core's SHA-256 of them, are the limit. Times are of whole processes: the library's with its
imports, and without them as it measures itself; export's likewise, but what it says itself has the
imports of the form and the start of workers. A library leaves its files to the page cache and asks
for no disk. The bar is 1.5 times the library.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_imports import FORMATS, ROOT, _limit, _make_photos, _peer
from processes import as_installed

FORMS = {"tar": "webdataset", "tfrecord": "tfrecord", "parquet": "parquet", "mds": "mds"}
"""What `shardctl export --to` calls the formats."""

BAR = 1.5

Times = dict[str, list[float]]
"""The seconds of each run by what was measured: `limit`, `library` (whole processes), `inside`, and
for each number of workers `export N` (whole processes) and `inside N`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--workers", default="2,0")
    parser.add_argument("--scratch")
    given = parser.parse_args()
    workers = [int(number) for number in given.workers.split(",")]
    base = Path(tempfile.mkdtemp(prefix="bench-exports-", dir=given.scratch))
    try:
        _measure(base, given.images, given.size, given.runs, workers)
    finally:
        shutil.rmtree(base)


def _measure(base: Path, images: int, size: int, runs: int, workers: list[int]) -> None:
    photos, dataset = base / "photos", base / "dataset"
    _make_photos(photos, images, size)
    _shardctl("convert", photos, dataset, "--samples-per-shard", "1000")
    found: dict[str, Times] = {name: {} for name in FORMATS}
    for run in range(runs):
        for name in FORMATS:
            # Whoever is first writes where the other one's files have just been removed.
            steps = [
                _Library(photos, name),
                *(_Export(dataset, name, number, images) for number in workers),
            ]
            for step in steps if run % 2 else steps[::-1]:
                shutil.rmtree(base / "out", ignore_errors=True)
                os.sync()
                step.measure(base / "out", found[name])
            found[name].setdefault("limit", []).append(_limit(base / "out", base / "copy"))
    _show(found, images, size, workers)


class _Library:
    """A library that writes the images from a folder of files."""

    def __init__(self, photos: Path, name: str) -> None:
        self._photos, self._name = photos, name

    def measure(self, out: Path, times: Times) -> None:
        """Let it write once, and note how long it took."""
        began = time.monotonic()
        answer = _peer(FORMATS[self._name], "write", self._name, self._photos, out)
        times.setdefault("library", []).append(time.monotonic() - began)
        times.setdefault("inside", []).append(answer["seconds"])


class _Export:
    """`shardctl export` of the same images."""

    def __init__(self, dataset: Path, name: str, workers: int, images: int) -> None:
        self._dataset, self._name, self._workers, self._images = dataset, name, workers, images

    def measure(self, out: Path, times: Times) -> None:
        """Let it write once, and note how long it took."""
        began = time.monotonic()
        answer = _shardctl(
            "export", self._dataset, out, "--to", FORMS[self._name], "--workers", self._workers
        )
        times.setdefault(f"export {self._workers}", []).append(time.monotonic() - began)
        times.setdefault(f"inside {self._workers}", []).append(answer["seconds"])
        assert answer["samples"] == self._images, answer


def _shardctl(*arguments: object) -> dict[str, float]:
    command = [sys.executable, "-m", "shardctl", *map(str, arguments), "--json", "-q"]
    done = subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=as_installed())
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def _show(found: dict[str, Times], images: int, size: int, workers: list[int]) -> None:
    runs = len(found["tar"]["library"])
    print(
        f"{images} JPEGs of {size} px, medians of {runs} runs in turn, load "
        f"{os.getloadavg()[0]:.1f}"
    )
    print("Seconds of whole processes (without imports); the ratio is export/library.")
    print(
        "format    workers  export           library          cp + SHA-256  ratio (without imports)"
    )
    worst = (0.0, 0.0)
    for name, times in found.items():
        medians = {key: statistics.median(values) for key, values in times.items()}
        for number in workers:
            export, inside = medians[f"export {number}"], medians[f"inside {number}"]
            ratio, ratio_inside = export / medians["library"], inside / medians["inside"]
            worst = (max(worst[0], ratio), max(worst[1], ratio_inside))
            print(
                f"{name:<9} {number:<7} {export:6.2f} ({inside:5.2f}) {medians['library']:8.2f} "
                f"({medians['inside']:5.2f})"
                f" {medians['limit']:13.2f} {ratio:9.2f} ({ratio_inside:.2f})"
            )
    print(
        f"the largest ratios are {worst[0]:.2f} and without imports {worst[1]:.2f}; the bar is "
        f"{BAR}"
    )


if __name__ == "__main__":
    main()
