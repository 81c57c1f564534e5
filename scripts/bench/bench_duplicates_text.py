"""What it takes to find duplicates among texts: time, memory and disk of `shardctl convert
--duplicates …`, over the documents.

    python scripts/bench/bench_duplicates_text.py [--documents 100000 1000000] [--rules keep exact line near] [--folder DIR]
    python scripts/bench/bench_duplicates_text.py --recall          (needs rensa: pip install rensa)

The documents are made up, of two million different words. One in ten is the copy of another one,
and one in ten has a few words changed; one line in ten is one of a hundred. `keep` is the
conversion without de-duplication: the difference is what it costs.
"""

from __future__ import annotations

import argparse
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
import numpy.typing as npt
import pyarrow as pa
from processes import run

from shardctl.transforms.duplicates.exact import Runs
from shardctl.transforms.duplicates.near import (
    BANDED,
    Components,
    Sketches,
    add_bands,
    connect,
    shingles_of,
    signatures_of,
    sketches_of,
)

FILES = 8
WORDS = 2_000_000
COPIES, CHANGED, COMMON = 0.1, 0.1, 0.1
CHANGED_WORDS = 0.01
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--rules", nargs="+", default=["keep", "exact", "line", "near"])
    parser.add_argument("--workers", default="2")
    parser.add_argument(
        "--folder", type=Path, help="where the documents and the datasets are written"
    )
    parser.add_argument(
        "--recall",
        action="store_true",
        help="compare what is found with rensa and with the true similarity",
    )
    options = parser.parse_args()
    if options.recall:
        recall()
        return
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


def recall(pairs: int = 4000, length: int = 120) -> None:
    """Compare which pairs are found, by their true similarity, at a threshold of 0.8."""
    from rensa import RMinHash, RMinHashLSH

    draw = random.Random(2)
    words = ["".join(draw.choices(LETTERS, k=draw.randint(3, 10))) for _ in range(200_000)]
    texts: list[str] = []
    for _ in range(pairs):
        one = draw.choices(words, k=length)
        share = draw.random() * 0.08
        texts += [
            " ".join(one),
            " ".join(draw.choice(words) if draw.random() < share else word for word in one),
        ]
    true = np.array([jaccard(*texts[place : place + 2]) for place in range(0, len(texts), 2)])
    started = time.monotonic()
    ours = found_by_shardctl(texts)
    print(
        f"shardctl: {len(texts) / (time.monotonic() - started):,.0f} documents/s, similarities are "
        "exact"
    )
    started = time.monotonic()
    others = []
    for text in texts:
        one = RMinHash(num_perm=128, seed=42)
        one.update([" ".join(each) for each in shingles(text)])
        others.append(one)
    theirs = np.array(
        [others[place].jaccard(others[place + 1]) for place in range(0, len(texts), 2)]
    )
    print(
        f"rensa: {len(texts) / (time.monotonic() - started):,.0f} documents/s, error "
        f"{np.std(theirs - true):.4f}"
    )
    lsh = RMinHashLSH(threshold=0.8, num_perm=128, num_bands=16)
    for number, one in enumerate(others):
        lsh.insert(number, one)
    banded = np.array([place + 1 in lsh.query(others[place]) for place in range(0, len(texts), 2)])
    for low, high in (
        (0.5, 0.6),
        (0.6, 0.7),
        (0.7, 0.75),
        (0.75, 0.8),
        (0.8, 0.85),
        (0.85, 0.9),
        (0.9, 1.01),
    ):
        here = (true >= low) & (true < high)
        print(
            f"  similarity {low:.2f} to {min(high, 1):.2f} ({here.sum():4} pairs): shardctl "
            f"{np.mean(ours[here]):.3f},"
            f" rensa's estimate {np.mean(theirs[here] >= 0.8):.3f}, rensa's 16 bands alone "
            f"{np.mean(banded[here]):.3f}"
        )


def found_by_shardctl(texts: list[str]) -> npt.NDArray[np.bool_]:
    """Return which of pairs of texts, one after the other, are found."""
    with tempfile.TemporaryDirectory() as folder:
        hashes, starts = shingles_of(pa.array(texts))
        sketches, bands = (
            Sketches(Path(folder, "sketches"), len(texts)),
            Runs(Path(folder, "bands"), BANDED),
        )
        sketches.add(np.arange(len(texts)), *sketches_of(hashes, starts))
        sketches.finish()
        add_bands(bands, signatures_of(hashes, starts), np.arange(len(texts)), 0.8)
        bands.flush()
        components = Components(len(texts))
        connect(bands, sketches, components, 0.8)
        return np.isin(np.arange(1, len(texts), 2), components.dropped())


def shingles(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[place : place + 5]) for place in range(max(1, len(words) - 4))}


def jaccard(one: str, other: str) -> float:
    return len(shingles(one) & shingles(other)) / len(shingles(one) | shingles(other))


if __name__ == "__main__":
    main()
