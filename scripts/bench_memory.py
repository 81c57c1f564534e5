"""Peak memory of the workers and of the parent of `shardctl convert`, over the number of inputs.

    .venv/bin/python scripts/bench_memory.py FOLDER [--times 1 10 100] [--options "--resize 256 --crop 224 --store raw"]

FOLDER holds images; it is read so many times over through links. The peaks (VmHWM) are read from /proc while it runs.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--options", default="--resize 256 --crop 224 --store raw")
    options = parser.parse_args()
    for times in options.times:
        with tempfile.TemporaryDirectory(dir=Path(__file__).resolve().parent.parent) as scratch:
            source = Path(scratch) / "in"
            source.mkdir()
            for number in range(times):
                (source / f"again{number:03d}").symlink_to(options.folder.resolve())
            out = Path(scratch) / "out"
            command = [sys.executable, "-m", "shardctl", "convert", source, out, *shlex.split(options.options)]
            print(f"{times:4} x {options.folder}:", peaks([*map(str, command), "--workers", "2", "-q"]), flush=True)


def peaks(command: list[str]) -> str:
    worker = parent = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        while job.poll() is None:
            parent = max(parent, high_water(job.pid))
            worker = max([worker, *(high_water(child) for child in children(job.pid))])
            time.sleep(0.02)
        said = job.stdout.read().strip() if job.stdout else ""
    return f"worker {worker:.0f} MB, parent {parent:.0f} MB   ({said})"


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def high_water(pid: int) -> float:
    """Return the peak resident memory of a process in MB (10^6 bytes), 0 for one that is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    lines = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(lines[0].split()[1]) * 1024 / 1e6 if lines else 0.0


if __name__ == "__main__":
    main()
