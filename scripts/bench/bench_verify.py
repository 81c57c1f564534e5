"""How long verify takes: beside reading the bytes alone, and beside SHA-256 of them on all cores.

    .venv/bin/python scripts/bench/bench_verify.py [CORPUS] [--gib 2.5] [--runs 3] [--json FILE]

CORPUS as in bench_update.py, whose tiny JPEGs become raw pixels of 96x96: a dataset of so many GiB,
in shards of 128 MiB. Every round runs each contender once, in turn, as a process of its own:
`verify --level quick`, `--level full`, `cat` of the shards, and SHA-256 of them: a process for each
core, each with the next shard, reading 1 MiB at a time into the same buffer. Contenders that are
`cold` begin without the shards in the page cache (posix_fadvise). Medians over the rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from harness import (
    SHARDCTL,
    done,
    in_turn,
    options_of,
    save,
    scratch,
    seconds,
    shards_of,
    tell,
    tiny_files,
    warm,
)

from shardctl.benchmark.measure.meters import drop

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
RAW = ("--store", "raw", "--resize", "96x96")


def main() -> None:
    options = options_of(__doc__, corpus=True, runs=3, gib=2.5).parse_args()
    with scratch() as folder:
        tiny_files(options.corpus, int(options.gib * 2**30) // (96 * 96 * 3), folder / "in")
        dataset = folder / "out"
        done(*SHARDCTL, "convert", folder / "in", dataset, *RAW)
        shards = shards_of(dataset)
        verify = (*SHARDCTL, "verify", dataset, "--level")
        commands = {
            "cat": ("sh", "-c", 'cat "$@" > /dev/null', "cat", *shards),
            "SHA-256 on all cores": (sys.executable, "-c", HASH, *shards),
            "verify --level full": (*verify, "full"),
            "verify --level quick": (*verify, "quick"),
        }

        def timed(command: tuple[object, ...], cold: bool) -> Callable[[], float]:
            def run() -> float:
                drop(shards) if cold else warm(dataset)
                return seconds(lambda: done(*command))

            return run

        contenders = {
            f"{name}, {'cold' if cold else 'warm'}": timed(command, cold)
            for name, command in commands.items()
            for cold in (True, False)
        }
        found = in_turn(contenders, options.runs)
    tell(found)
    save(options.json, found)


if __name__ == "__main__":
    main()
