"""Tables with many columns: CPU seconds of a conversion for 1, 2 and 4 times as many columns, which
should be proportional.

    .venv/bin/python scripts/bench/bench_wide.py [--columns 1000] [--rows 100]

It writes tables of made-up whole numbers to a temporary folder and converts them with one process.
Where the time of four times the columns is much more than four times as long, something looks at
all columns for each of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

Rows = list[dict[str, int]]


def write_jsonl(path: Path, rows: Rows) -> None:
    """Write one object on each line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_csv(path: Path, rows: Rows) -> None:
    """Write a header and a row of cells for each."""
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


def write_parquet(path: Path, rows: Rows) -> None:
    """Write one row group."""
    parquet.write_table(pa.Table.from_pylist(rows), path)


KINDS: dict[str, Callable[[Path, Rows], None]] = {
    "jsonl": write_jsonl,
    "csv": write_csv,
    "parquet": write_parquet,
}


def cpu_seconds(arguments: list[str]) -> float:
    """Run the command line, and return the seconds of processor time that it and its processes
    took."""
    before = os.times()
    subprocess.run(
        [sys.executable, "-m", "shardctl", *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


def main() -> None:
    """Convert tables of each kind, and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--columns", type=int, default=1000, help="of the narrowest table")
    parser.add_argument("--rows", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for kind, write in KINDS.items():
            seconds = []
            for columns in (options.columns, 2 * options.columns, 4 * options.columns):
                rows = [
                    {f"field_{name:06d}": (row * 7 + name) % 1000 for name in range(columns)}
                    for row in range(options.rows)
                ]
                source = Path(folder) / f"{columns}.{kind}"
                write(source, rows)
                target = Path(folder) / f"{columns}-{kind}"
                seconds.append(cpu_seconds(["convert", str(source), str(target), "--workers", "0"]))
            print(f"{kind:8}", *(f"{each:6.2f} s" for each in seconds), flush=True)


if __name__ == "__main__":
    main()
