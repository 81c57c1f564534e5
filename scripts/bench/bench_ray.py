"""What Ray costs: one conversion in two worker processes of this machine, and on a Ray cluster of
this machine with two CPUs.

    .venv/bin/python scripts/bench/bench_ray.py [FOLDER] [--times 30] [--runs 5] [--json FILE]

FOLDER holds photos (default: photos/ below $SHARDCTL_CORPUS, else below ../shared/data; without it,
images that `shardctl demo` draws). It is put --times times into one folder, through links. The
cluster is started once, before the measurement. Each round runs both, in turn, after one round that
does not count. "work" is the time from the first progress that is told to the end of the last
shard; "start" is that from the announcement of the work to the first progress; "whole" is all of
`shardctl.convert`. Both must write the same SHA256SUMS. Medians over the rounds.
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
from typing import Any

import ray

import shardctl
from shardctl.build.convert import Listener

HERE = Path(__file__).resolve().parent
PROCESSES = 2
RECIPE = {
    "store": "raw",
    "transform": [{"name": "resize", "size": 256}, {"name": "crop", "size": 224}],
}
ENGINES = ("local", "ray")


def main() -> None:
    corpus = Path(os.environ.get("SHARDCTL_CORPUS", HERE.parents[2] / "shared" / "data"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=corpus / "photos")
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=HERE.parent.parent) as scratch:
        results = measure(
            repeated(options.folder, Path(scratch), options.times), Path(scratch), options.runs
        )
    medians = {
        engine: {part: statistics.median(each[part] for each in runs) for part in runs[0]}
        for engine, runs in results.items()
    }
    for engine, parts in medians.items():
        print(
            f"{engine:6}" + "".join(f"  {part} {seconds:7.2f} s" for part, seconds in parts.items())
        )
    print(f"work on Ray / local: {medians['ray']['work'] / medians['local']['work']:.3f}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def repeated(folder: Path, scratch: Path, times: int) -> Path:
    """Return a folder in which a folder is so many times."""
    if not folder.is_dir():
        print(f"{folder}: no photos there, using drawn images")
        subprocess.run(
            [sys.executable, "-m", "shardctl", "demo", scratch / "demo", "--images", "600", "-q"],
            check=True,
        )
        folder = scratch / "demo" / "photos"
    many = scratch / "many"
    many.mkdir()
    for number in range(times):
        (many / f"again{number:02d}").symlink_to(folder.resolve())
    return many


def measure(source: Path, scratch: Path, runs: int) -> dict[str, list[dict[str, float]]]:
    """Return the times of every run of both engines, in seconds."""
    ray.init(
        "local",
        num_cpus=PROCESSES,
        object_store_memory=100 << 20,
        include_dashboard=False,
        log_to_driver=False,
    )
    results: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
    sums = set()
    for turn in range(runs + 1):
        for engine in ENGINES:
            out = scratch / "out"
            seconds = convert(source, out, engine)
            sums.add((out / "SHA256SUMS").read_bytes())
            shutil.rmtree(out)
            if turn:
                results[engine].append(seconds)
    assert len(sums) == 1, "the engines do not write the same bytes"
    ray.shutdown()
    return results


def convert(source: Path, out: Path, engine: str) -> dict[str, float]:
    """Convert once, and return what took how long."""
    announced: list[float] = []
    told: list[float] = []

    def announce(_: Any) -> None:
        announced.append(time.monotonic())

    def progress(_: Any) -> None:
        told.append(time.monotonic())

    began = time.monotonic()
    listener = Listener(announce=announce, progress=progress)
    shardctl.convert(
        source, out, recipe=RECIPE, engine=engine, workers=PROCESSES, listener=listener
    )
    return {
        "start": told[0] - announced[0],
        "work": told[-1] - told[0],
        "whole": time.monotonic() - began,
    }


if __name__ == "__main__":
    main()
