"""Import beside the real libraries: the same JPEGs from tar, TFRecord, MDS and Parquet, the runs in
turn.

    python scripts/bench/bench_imports.py [--images 4000] [--size 256] [--runs 5] [--scratch DIR]

It needs the environments of `make interop`. For each format the library itself writes the files and
reads all of them once in one process (bytes of every field, nothing decoded, from the page cache);
`shardctl convert --workers 2` of the same files with no recipe, once with a look into each image
and once without (`--kind table`); `cp` of the same bytes, and one core's SHA-256 of them, are the
limit. Times are of whole processes: the library's with its imports, and without them as it measures
itself.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from processes import as_installed

ROOT = Path(__file__).parents[2]
INTEROP = Path(os.environ.get("SHARDCTL_INTEROP", ROOT / ".interop"))

KINDS = ("convert", "bytes", "library", "inside", "limit")
"""What is timed: bytes is convert without a look into the images, inside the library without its
imports."""

FORMATS = {"tar": "tensorflow", "tfrecord": "tensorflow", "parquet": "tensorflow", "mds": "torch"}
"""The formats, and the environments of their libraries."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scratch")
    given = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="bench-imports-", dir=given.scratch))
    try:
        _measure(base, given.images, given.size, given.runs)
    finally:
        shutil.rmtree(base)


def _measure(base: Path, images: int, size: int, runs: int) -> None:
    photos = base / "photos"
    _make_photos(photos, images, size)
    for name, environment in FORMATS.items():
        _peer(environment, "write", name, photos, base / name)
    bytes_of = {
        name: sum(file.stat().st_size for file in (base / name).rglob("*")) for name in FORMATS
    }
    found: dict[str, dict[str, list[float]]] = {
        name: {kind: [] for kind in KINDS} for name in FORMATS
    }
    for _ in range(runs):
        for name, environment in FORMATS.items():
            times = found[name]
            times["limit"].append(_limit(base / name, base / "copy"))
            times["convert"].append(_convert(base / name, base / "out", images))
            times["bytes"].append(_convert(base / name, base / "out", images, "--kind", "table"))
            began = time.monotonic()
            answer = _peer(environment, "read", name, base / name)
            times["library"].append(time.monotonic() - began)
            assert answer["records"] == images, answer
            times["inside"].append(answer["seconds"])
    print(
        f"{images} JPEGs of {size} px, medians of {runs} runs in turn, load "
        f"{os.getloadavg()[0]:.1f}"
    )
    print(
        "format    MB    convert  (bytes)  library (with imports)  cp + SHA-256  convert/library  "
        "(bytes)"
    )
    for name, times in found.items():
        medians = {key: statistics.median(values) for key, values in times.items()}
        library = f"{medians['inside']:7.2f}s ({medians['library']:.2f}s)"
        converted = f"{medians['convert']:7.2f}s ({medians['bytes']:.2f}s)"
        ratios = [medians[kind] / medians["inside"] for kind in ("convert", "bytes")]
        size = bytes_of[name] / 1e6
        shown = f"{medians['limit']:12.2f}s {ratios[0]:15.2f} {ratios[1]:10.2f}"
        print(f"{name:<9} {size:5.0f} {converted} {library} {shown}")


def _make_photos(folder: Path, images: int, size: int) -> None:
    """Write smooth noise: its JPEGs are as large as those of photos of the same size."""
    import io

    import numpy as np
    from PIL import Image

    folder.mkdir()
    rng = np.random.default_rng(7)
    for number in range(images):
        small = rng.integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8)
        picture = Image.fromarray(small).resize((size, size), Image.Resampling.BICUBIC)
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=90)
        (folder / f"{number:06d}.jpg").write_bytes(stream.getvalue())


def _limit(source: Path, target: Path) -> float:
    """Return how long it takes to copy the files and to hash them, one after the other."""
    began = time.monotonic()
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    for file in source.rglob("*"):
        if file.is_file():
            with open(file, "rb") as opened:
                hashlib.file_digest(opened, "sha256")
    took = time.monotonic() - began
    shutil.rmtree(target)
    return took


def _convert(source: Path, out: Path, images: int, *options: str) -> float:
    began = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "shardctl",
        "convert",
        str(source),
        str(out),
        "--workers",
        "2",
        "--json",
        "-q",
        *options,
    ]
    done = subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=as_installed())
    took = time.monotonic() - began
    assert json.loads(done.stdout)["samples"] == images, done.stdout
    shutil.rmtree(out)
    return took


def _peer(environment: str, *command: object) -> dict[str, Any]:
    python = INTEROP / environment / "bin" / "python"
    environ = {**as_installed(), "TF_CPP_MIN_LOG_LEVEL": "3", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        [str(python), str(ROOT / "scripts" / "data" / "peer_formats.py"), *map(str, command)],
        check=True,
        capture_output=True,
        env=environ,
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


if __name__ == "__main__":
    main()
