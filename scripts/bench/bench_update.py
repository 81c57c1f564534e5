"""How long it takes to follow a source: --update, the check that nothing has changed, and compact.

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
import sys
from collections import defaultdict
from pathlib import Path

from harness import (
    SHARDCTL,
    WALK,
    done,
    options_of,
    save,
    scratch,
    seconds,
    shards_of,
    tell,
    tiny_files,
)


def main() -> None:
    options = options_of(__doc__, corpus=True, files=100_000, runs=5).parse_args()
    with scratch() as folder:
        found = measure(options.corpus, options.files, options.runs, folder)
    tell(found)
    save(options.json, found)


def measure(corpus: Path, count: int, runs: int, folder: Path) -> dict[str, list[float]]:
    source, out, copies = folder / "in", folder / "out", folder / "copies"
    files = tiny_files(corpus, count, source)
    convert = (*SHARDCTL, "convert", source, out, "--store", "raw", "--resize", "32x32")
    found: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, *command: object) -> None:
        found[name].append(seconds(lambda: done(*command)))

    for number in range(runs):
        shutil.rmtree(out, ignore_errors=True)
        timed("fresh conversion", *convert)
        timed("bare walk", sys.executable, "-c", WALK, source)
        timed("up-to-date check", *convert)
        many = len(files) // 100
        first = (number * 37 * many) % (len(files) - many)
        for what, changed in (
            ("in one stretch", files[first : first + many]),
            ("from all over", files[number :: len(files) // many]),
        ):
            for file in changed:
                os.utime(file)
            timed(f"update, 1 % {what}", *convert, "--update")
        held = {file: file.read_bytes() for file in files[number::100]}
        for file in held:
            file.unlink()
        timed("update, 1 % removed all over", *convert, "--update")
        for file, data in held.items():
            file.write_bytes(data)
        timed("update, 1 % added all over", *convert, "--update")
        shards = shards_of(out)
        copies.mkdir()
        timed("cp of all shards", "cp", *shards, copies)
        timed("sha256sum of all shards", "sha256sum", *shards)
        shutil.rmtree(copies)
        timed("compact", *SHARDCTL, "compact", out)
    return found


if __name__ == "__main__":
    main()
