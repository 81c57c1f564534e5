"""What it takes to find duplicates among texts: time, memory and disk of `shardctl convert
--duplicates …`, over the documents.

    python scripts/bench/bench_duplicates_text.py [--documents 100000 1000000] [--rules keep exact line near] [--folder DIR]

The documents are made up, of two million different words. One in ten is the copy of another one,
and one in ten has a few words changed; one line in ten is one of a hundred. `keep` is the
conversion without de-duplication: the difference is what it costs.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from harness import options_of
from processes import run

FILES = 8
WORDS = 2_000_000
COPIES, CHANGED, COMMON = 0.1, 0.1, 0.1
CHANGED_WORDS = 0.01
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--documents", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--rules", nargs="+", default=["keep", "exact", "line", "near"])
    parser.add_argument("--workers", default="2")
    parser.add_argument(
        "--folder", type=Path, help="where the documents and the datasets are written"
    )
    options = parser.parse_args()
    for count in options.documents:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            source = Path(folder) / "in"
            source.mkdir()
            size = write(source, count)
            print(f"{count:,} documents, {size / 1e6:,.0f} MB", flush=True)
            for rule in options.rules:
                print(
                    f"  {rule:10}",
                    measured(source, Path(folder), rule, options.workers),
                    flush=True,
                )


def measured(source: Path, folder: Path, rule: str, workers: str) -> str:
    """Convert, and say what that took."""
    out, scratch = folder / "out", folder / "scratch"
    shutil.rmtree(out, ignore_errors=True)
    scratch.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = str(scratch)
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            peak[0] = max(peak[0], used(scratch))

    watching = threading.Thread(target=watch)
    watching.start()
    command = [
        sys.executable,
        "-m",
        "shardctl",
        "convert",
        source,
        out,
        "--duplicates",
        rule,
        "--workers",
        workers,
        "-q",
    ]
    started = time.monotonic()
    ran = run([*map(str, command)], pause=0.05)
    seconds = time.monotonic() - started
    done.set()
    watching.join()
    if ran.failure:
        return f"failed: {ran.failure}"
    steps = json.loads((out / "manifest.json").read_text()).get("steps") or [{}]
    tables = sum(path.stat().st_size for path in out.glob("duplicates-*"))
    found = {name: steps[0][name] for name in ("rejected", "pieces_dropped") if name in steps[0]}
    return (
        f"{seconds:6.1f} s, worker {ran.worker / 1e6:.0f} MB, parent {ran.parent / 1e6:.0f} MB,"
        f" scratch {peak[0] / 1e6:,.0f} MB, table {tables / 1e6:.0f} MB, {found}"
    )


def used(folder: Path) -> int:
    """Return the bytes of disk that the files in a folder take."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except OSError:
            continue  # it is gone by now
    return total


def write(folder: Path, count: int) -> int:
    """Write documents as JSON lines, and return their bytes."""
    files = [open(folder / f"{number}.jsonl", "w", encoding="utf-8") for number in range(FILES)]  # noqa: SIM115 - closed below
    for number, text in enumerate(documents(count)):
        files[number * FILES // count].write(json.dumps({"text": text}) + "\n")
    for file in files:
        file.close()
    return sum(path.stat().st_size for path in folder.iterdir())


def documents(count: int) -> Iterator[str]:
    """Yield documents of a median of 60 words, in lines of 12."""
    draw, rng = random.Random(1), np.random.default_rng(1)
    words = ["".join(draw.choices(LETTERS, k=draw.randint(3, 10))) for _ in range(WORDS)]
    common = [" ".join(draw.choices(words, k=12)) for _ in range(100)]
    kept: list[list[str]] = []
    for _ in range(count):
        kind = draw.random()
        if kept and kind < COPIES:
            lines = draw.choice(kept)
        elif kept and kind < COPIES + CHANGED:
            lines = [" ".join(changed(line.split(), words, draw)) for line in draw.choice(kept)]
        else:
            length = int(np.clip(rng.lognormal(np.log(60), 0.7), 5, 2000))
            chosen = rng.integers(0, WORDS, length).tolist()
            lines = [
                " ".join(words[place] for place in chosen[start : start + 12])
                for start in range(0, length, 12)
            ]
            lines = [draw.choice(common) if draw.random() < COMMON else line for line in lines]
        if len(kept) < 100_000:
            kept.append(lines)
        yield "\n".join(lines)


def changed(line: list[str], words: list[str], draw: random.Random) -> list[str]:
    """Return words with some of them changed."""
    return [draw.choice(words) if draw.random() < CHANGED_WORDS else word for word in line]


if __name__ == "__main__":
    main()
