"""How long `inspect` takes on a dataset of 10,000 shards and 10 million samples, start-up included.

    python scripts/bench/bench_inspect.py [--keep DIR] [--runs 7]

The dataset is made of JSONL by a real conversion, which takes some minutes; with --keep it is made
once.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SAMPLES = 10_000_000
PER_SHARD = 1000
SHARDCTL = Path(sys.executable).with_name("shardctl")

COMMANDS = {
    "python -c 'import numpy, pyarrow, click'": None,
    "overview": (),
    "overview --json": ("--json",),
    "--key": ("--key", "lines.jsonl#7654321"),
    "--key, unknown": ("--key", "lines.jsonl#99999999"),
    "--shard --row": ("--shard", "7654", "--row", "320"),
    "--head 5": ("--head", "5"),
    "--where --head 5": ("--where", "len(text) > 28 and label == 3", "--head", "5"),
    "--html": ("--html", "/dev/null"),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--runs", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        dataset = made(arguments.keep or Path(scratch))
        times: dict[str, list[float]] = {name: [] for name in COMMANDS}
        memory: dict[str, int] = {}
        for _ in range(arguments.runs):
            for name, options in COMMANDS.items():
                command = [sys.executable, "-c", "import numpy, pyarrow, click"]
                if options is not None:
                    command = [str(SHARDCTL), "inspect", str(dataset), *options]
                seconds, memory[name] = run(command)
                times[name].append(seconds)
        for name, found in times.items():
            print(
                f"{name:<45} {statistics.median(found):6.3f} s  ({min(found):.3f} to "
                f"{max(found):.3f}), {memory[name]:,} KB"
            )


def run(command: list[str]) -> tuple[float, int]:
    """Return the seconds that a command takes, and the most memory that it held, mapped files
    included, in KB."""
    began = time.perf_counter()
    done = subprocess.run(
        ["/usr/bin/time", "-f", "%M", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    return time.perf_counter() - began, int(done.stderr.splitlines()[-1])


def made(folder: Path) -> Path:
    """Return the dataset, making it where it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    source, dataset = folder / "lines.jsonl", folder / "ten-million"
    if not source.exists():
        with open(source, "w", encoding="utf-8") as file:
            file.writelines(lines())
    subprocess.run(
        [SHARDCTL, "convert", source, dataset, "--samples-per-shard", str(PER_SHARD)], check=True
    )
    return dataset


def lines() -> Iterator[str]:
    for number in range(SAMPLES):
        words = f"w{number % 5000} w{number * 7 % 5000}"
        yield f'{{"id": {number}, "label": {number % 10}, "text": "sample {number} {words}"}}\n'


if __name__ == "__main__":
    main()
