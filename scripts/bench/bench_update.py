"""How long it takes to follow a source: --update, the check that nothing has changed, --append and
compact.

    .venv/bin/python scripts/bench/bench_update.py [CORPUS] [--files 100000] [--runs 5] [--json
    FILE]

CORPUS is a folder with small/cifar10/ (default: $SHARDCTL_CORPUS, else ../shared/data; without it,
images that `shardctl demo` draws). Its tiny JPEGs are copied until there are as many files as asked
for, and converted to raw pixels. Every round runs each contender once, in turn, as a process of its
own: start-up counts, as it does for a user. 1 % of the files is changed before each update: those
of one stretch (a new day), or from all over; then 1 % is removed, and added again. Beside the check
that nothing has changed, a bare walk with os.scandir and stat in a process of its own; beside
compact, `cp` of the shards and `sha256sum` of them. Medians over the rounds.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from harness import options_of, save
from processes import as_installed

from shardctl.format.tables import ShardTable
from shardctl.system.folders import LocalFolder

HERE = Path(__file__).resolve().parent
OPTIONS = ["--store", "raw", "--resize", "32x32"]
WALK = """
import os, sys
def walk(folder):
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from walk(entry.path)
            else:
                status = entry.stat()
                yield entry.name, status.st_size, status.st_mtime_ns
print(sum(1 for _ in walk(sys.argv[1])))
"""


def main() -> None:
    parser = options_of(__doc__, corpus=True, runs=5)
    parser.add_argument("--files", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=HERE.parent.parent) as scratch:
        results = measure(Path(options.corpus), options.files, options.runs, Path(scratch))
    for name, seconds in results.items():
        print(
            f"{name:34} {statistics.median(seconds):8.2f} s   ({min(seconds):.2f} to "
            f"{max(seconds):.2f})"
        )
    save(options.json, results)


def sources(corpus: Path, count: int, folder: Path) -> list[Path]:
    """Write so many tiny files in class folders, and return them in the order of a walk."""
    small = corpus / "small" / "cifar10"
    if not small.is_dir():
        subprocess.run(
            [sys.executable, "-m", "shardctl", "demo", str(folder / "demo")],
            check=True,
            capture_output=True,
        )
        small = folder / "demo" / "photos"
    files = sorted(path for path in small.rglob("*.jpg"))
    made = []
    for number in range(count):
        file = files[number % len(files)]
        path = folder / "in" / file.parent.name / f"{number // len(files):04}-{file.name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.read_bytes())
        made.append(path)
    return sorted(made)


def measure(corpus: Path, count: int, runs: int, folder: Path) -> dict[str, list[float]]:
    files = sources(corpus, count, folder)
    source, out = folder / "in", folder / "out"
    command = [sys.executable, "-m", "shardctl", "convert", str(source)]
    found: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, call: Callable[[], object]) -> None:
        started = time.perf_counter()
        call()
        found[name].append(time.perf_counter() - started)

    def run(*arguments: object) -> None:
        subprocess.run([*map(str, arguments)], check=True, capture_output=True, env=as_installed())

    for number in range(runs):
        shutil.rmtree(out, ignore_errors=True)
        timed("fresh conversion", lambda: run(*command, out, *OPTIONS))
        timed("bare walk", lambda: run(sys.executable, "-c", WALK, source))
        timed("up-to-date check", lambda: run(*command, out, *OPTIONS))
        many = len(files) // 100
        first = (number * 37 * many) % (len(files) - many)
        touch(files[first : first + many])
        timed("update, 1 % in one stretch", lambda: run(*command, out, *OPTIONS, "--update"))
        touch(files[number :: len(files) // many])
        timed("update, 1 % from all over", lambda: run(*command, out, *OPTIONS, "--update"))
        gone = [file for place, file in enumerate(files) if place % 100 == number]
        held = [(file, file.read_bytes()) for file in gone]
        for file in gone:
            file.unlink()
        timed("update, 1 % removed all over", lambda: run(*command, out, *OPTIONS, "--update"))
        for file, data in held:
            file.write_bytes(data)
        timed("update, 1 % added all over", lambda: run(*command, out, *OPTIONS, "--update"))
        shards = [str(out / entry.path) for entry in ShardTable(LocalFolder(out))]
        (folder / "copies").mkdir()
        timed("cp of all shards", lambda shards=shards: run("cp", *shards, folder / "copies"))
        timed("sha256sum of all shards", lambda shards=shards: run("sha256sum", *shards))
        shutil.rmtree(folder / "copies")
        timed("compact", lambda: run(sys.executable, "-m", "shardctl", "compact", out))
    return found


def touch(files: list[Path]) -> None:
    for file in files:
        os.utime(file)


if __name__ == "__main__":
    main()
