"""How long verify takes: beside reading the bytes alone, and beside SHA-256 of them on all cores.

    .venv/bin/python scripts/bench/bench_verify.py [CORPUS] [--gib 2.5] [--runs 3] [--dataset
    FOLDER] [--json FILE]

CORPUS as in bench_update.py, whose tiny JPEGs become raw pixels of 96x96: a dataset of so many GiB,
in shards of 128 MiB. `--dataset` measures one that is there already. Every round runs each
contender once, in turn, as a process of its own: `verify --level quick`, `--level full`, `cat` of
the shards, and SHA-256 of them: a process for each core, each with the next shard, reading 1 MiB at
a time into the same buffer. Contenders that are `cold` begin without the shards in the page cache
(posix_fadvise). Medians over the rounds.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from bench_update import sources
from harness import options_of, save
from processes import as_installed

from shardctl.benchmark.measure.machine import evict
from shardctl.format.tables import ShardTable
from shardctl.system.folders import LocalFolder

HERE = Path(__file__).resolve().parent
HASH = """
import hashlib, os, sys
shards, buffer = sys.argv[1:], bytearray(1 << 20)
view, cores = memoryview(buffer), len(os.sched_getaffinity(0))
children = []
for core in range(cores):
    child = os.fork()
    if child:
        children.append(child)
        continue
    for shard in shards[core::cores]:
        digest = hashlib.sha256()
        with open(shard, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(view[:count])
    os._exit(0)
for child in children:
    os.waitpid(child, 0)
"""
IMAGE_BYTES = 96 * 96 * 3


def main() -> None:
    parser = options_of(__doc__, corpus=True, runs=3)
    parser.add_argument("--gib", type=float, default=2.5)
    parser.add_argument("--dataset", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=HERE.parent.parent) as scratch:
        dataset = options.dataset or made(
            Path(options.corpus), int(options.gib * 2**30), Path(scratch)
        )
        results = measure(dataset, options.runs)
    for name, seconds in results.items():
        print(
            f"{name:34} {statistics.median(seconds):8.2f} s   ({min(seconds):.2f} to "
            f"{max(seconds):.2f})"
        )
    save(options.json, results)


def made(corpus: Path, size: int, folder: Path) -> Path:
    """Make a dataset of about so many bytes."""
    sources(corpus, size // IMAGE_BYTES, folder)
    run(
        sys.executable,
        "-m",
        "shardctl",
        "convert",
        folder / "in",
        folder / "out",
        "--store",
        "raw",
        "--resize",
        "96x96",
    )
    return folder / "out"


def measure(dataset: Path, runs: int) -> dict[str, list[float]]:
    table = ShardTable(LocalFolder(dataset))
    shards = [dataset / name for name in table.names]
    print(f"{len(shards)} shards, {int(table.sizes.sum()) / 2**30:.2f} GiB")
    verify = (sys.executable, "-m", "shardctl", "verify", dataset, "--level")
    contenders = {
        "cat": ("cat", *shards),
        "SHA-256 on all cores": (sys.executable, "-c", HASH, *shards),
        "verify --level full": (*verify, "full"),
    }
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(runs):
        for name, command in contenders.items():
            evict(dataset)
            found[f"{name}, cold"].append(run(*command))
        for name, command in contenders.items():
            found[f"{name}, warm"].append(run(*command))
        found["verify --level quick"].append(run(*verify, "quick"))
        found["shardctl --version"].append(run(sys.executable, "-m", "shardctl", "--version"))
    return found


def run(*command: object) -> float:
    """Run a command, and return how many seconds it took."""
    began = time.perf_counter()
    subprocess.run(
        [*map(str, command)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=as_installed(),
    )
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
