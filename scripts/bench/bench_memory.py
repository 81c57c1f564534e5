"""Peak memory of the workers and of the parent of `shardctl convert`, over the number of inputs.

    .venv/bin/python scripts/bench/bench_memory.py FOLDER [--times 1 10 100] [--options "--resize
    256 --crop 224 --store raw"]
        [--json FILE]

FOLDER holds images; it is read so many times over through links. The peaks (VmHWM) are read from
/proc while it runs.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path

from harness import options_of, save
from processes import Ran, run


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--options", default="--resize 256 --crop 224 --store raw")
    options = parser.parse_args()
    found = []
    for times in options.times:
        with tempfile.TemporaryDirectory(dir=Path(__file__).resolve().parents[2]) as scratch:
            source = Path(scratch) / "in"
            source.mkdir()
            for number in range(times):
                (source / f"again{number:03d}").symlink_to(options.folder.resolve())
            out = Path(scratch) / "out"
            command = [
                sys.executable,
                "-m",
                "shardctl",
                "convert",
                source,
                out,
                *shlex.split(options.options),
            ]
            ran = run([*map(str, command), "--workers", "2", "-q"], pause=0.02)
            print(f"{times:4} x {options.folder}:", peaks(ran), flush=True)
            if not ran.failure:
                found.append({"times": times, "worker": ran.worker, "parent": ran.parent})
    save(options.json, found)


def peaks(ran: Ran) -> str:
    return (
        f"worker {ran.worker / 1e6:.0f} MB, parent {ran.parent / 1e6:.0f} MB   "
        f"({ran.failure or ran.output.strip()})"
    )


if __name__ == "__main__":
    main()
