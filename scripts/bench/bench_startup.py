"""How long small commands take from shell to shell, beside the imports that they cannot do without.

    .venv/bin/python scripts/bench/bench_startup.py [CORPUS] [--runs 15] [--photos-runs 5] [--json
    FILE]

CORPUS is a folder with photos/ (default: $SHARDCTL_CORPUS, else ../shared/data; without it, photos
that `shardctl demo` draws). Every round runs each command once, in turn, as a process of its own;
the least and the median of the rounds are shown, and the least as a multiple of bare Python's. "all
photos" is all of the folder to raw 224 x 224, beside two processes that only read, decode and
resize (bare_loop.py). The last commands look at the dataset that this makes; it is in the page
cache.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_convert import folders
from harness import options_of, save
from processes import as_installed

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = options_of(__doc__, corpus=True, runs=15)
    parser.add_argument("--photos-runs", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=HERE.parent.parent) as folder:
        photos, _ = folders(Path(given.corpus), Path(folder))
        one, out = Path(folder) / "one", Path(folder) / "out"
        one.mkdir()
        shutil.copy(
            min(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg")), one
        )
        python, shardctl = [sys.executable], [sys.executable, "-m", "shardctl"]
        crop = ["--resize", "256", "--crop", "224", "--store", "raw", "-q"]
        small = {
            "python -c pass": [*python, "-c", "pass"],
            "import click": [*python, "-c", "import click"],
            "import numpy, pyarrow": [*python, "-c", "import numpy, pyarrow"],
            "the imports of a worker": [*python, "-c", "import shardctl.making.shards.task"],
            "shardctl --version": [*shardctl, "--version"],
            "shardctl -h": [*shardctl, "-h"],
            "convert -h": [*shardctl, "convert", "-h"],
            "convert --help": [*shardctl, "convert", "--help"],
            "convert, one photo": [*shardctl, "convert", str(one), str(out)],
            "the same, --workers 0": [*shardctl, "convert", str(one), str(out), "--workers", "0"],
        }
        found = show(small, given.runs, out)
        large = {
            "bare loop, all photos": [*python, str(HERE / "bare_loop.py"), str(photos), "224"],
            "convert, all photos": [*shardctl, "convert", str(photos), str(out), *crop],
        }
        found |= show(large, given.photos_runs, out)
        first = (
            f"import shardctl; next(iter(shardctl.open({str(out)!r}).loader(batch_size=32, "
            "shuffle=True)))"
        )
        looks = {
            "import, open, first batch": [*python, "-c", first],
            "inspect, all photos": [*shardctl, "inspect", str(out)],
            "verify, all photos": [*shardctl, "verify", str(out)],
            "verify --level deep": [*shardctl, "verify", str(out), "--level", "deep"],
            "convert, up to date": [*shardctl, "convert", str(photos), str(out), *crop],
        }
        found |= show(looks, given.photos_runs, None)
    save(given.json, found)


def show(commands: dict[str, list[str]], runs: int, out: Path | None) -> dict[str, list[float]]:
    """Run the commands in turn, and print what they took in milliseconds. Without `out`, no dataset
    is deleted before each."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            if out is not None:
                shutil.rmtree(out, ignore_errors=True)
            seconds[name].append(timed(command))
    first = min(next(iter(seconds.values())))
    print(f"{runs} interleaved runs                 least    median   times the first")
    for name, times in seconds.items():
        print(
            f"  {name:28} {min(times) * 1e3:7.0f} {statistics.median(times) * 1e3:9.0f} "
            f"{min(times) / first:10.1f}",
            flush=True,
        )
    return seconds


def timed(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(
        command,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=as_installed(),
    )
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
