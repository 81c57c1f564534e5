"""Peak memory of the workers and of the parent of `shardctl convert`, over the number of inputs.

    .venv/bin/python scripts/bench/bench_memory.py FOLDER [--times 1 10 100] [--json FILE]

FOLDER holds images; it is read so many times over through links, and becomes raw 224x224. The peaks
(VmHWM) are read from /proc while it runs.
"""

from __future__ import annotations

from pathlib import Path

from harness import SHARDCTL, options_of, repeated, save, scratch
from processes import run

RAW = ("--resize", "256", "--crop", "224", "--store", "raw", "--workers", "2", "-q")


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10, 100])
    options = parser.parse_args()
    found = []
    for times in options.times:
        with scratch() as folder:
            source = repeated(options.folder, folder / "in", times)
            ran = run([*SHARDCTL, "convert", source, folder / "out", *RAW], pause=0.02)
        peaks = f"worker {ran.worker / 1e6:.0f} MB, parent {ran.parent / 1e6:.0f} MB"
        print(f"{times:4} x {options.folder}: {ran.failure or peaks}", flush=True)
        if not ran.failure:
            found.append({"times": times, "worker": ran.worker, "parent": ran.parent})
    save(options.json, found)


if __name__ == "__main__":
    main()
