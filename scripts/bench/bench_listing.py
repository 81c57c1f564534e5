"""Time and memory of listing many files, beside a bare os.scandir and stat of the same files.

    python scripts/bench/bench_listing.py [--files 200000] [--folders 1000] [--runs 5] [--plan]

The files are empty and are made in a scratch folder first (--in names where). "shardctl" is what an
up-to-date check does: kind, listing, fingerprint. Runs alternate; seconds are medians of the wall
clock, and of the processor time in brackets. Memory is the growth of the largest resident size
(VmHWM) over what it was after the imports, in a process of its own.

--plan makes the files links to 256 small JPEG images, and plans a conversion of them (a dry run):
`--files 10000000 --runs 1 --plan` is the case of 10 million.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness import options_of
from processes import high_water, run

LINKED = 256
"""Images that all names of --convert are links to: ext4 allows 65,000 names of one file."""


def main() -> None:
    parser = options_of(__doc__, runs=5)
    parser.add_argument("--files", type=int, default=200_000)
    parser.add_argument("--folders", type=int, default=1000, help="1: all in one flat folder")
    parser.add_argument(
        "--in",
        dest="scratch",
        type=Path,
        help="where the files are made; kept if they are there already",
    )
    parser.add_argument(
        "--plan", action="store_true", help="make images, and plan a conversion of them (a dry run)"
    )
    parser.add_argument("--peak", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print(json.dumps(peak(options.peak)))
        return
    with tempfile.TemporaryDirectory() as folder:
        root = options.scratch or Path(folder) / "names"
        root.mkdir(parents=True, exist_ok=True)
        make(
            root,
            options.files,
            options.folders,
            draw(root.with_name(f"{root.name}-drawn")) if options.plan else [],
        )
        if options.plan:
            plan(root, options.files)
        times: dict[str, list[tuple[float, float]]] = {"scandir and stat": [], "shardctl": []}
        for _ in range(options.runs):
            times["scandir and stat"].append(timed(lambda: bare(root)))
            times["shardctl"].append(timed(lambda: listed(root)))
        for name, runs in times.items():
            wall, processor = (statistics.median(column) for column in zip(*runs, strict=True))
            print(f"{name:20} {wall:.2f} s ({processor:.2f} s)")
        command = [sys.executable, __file__, "--peak", str(root)]
        found = json.loads(
            subprocess.run(command, capture_output=True, check=True, text=True).stdout
        )
        print(
            f"{found['inputs']:,} inputs, {found['bytes'] / found['inputs']:.0f} bytes of memory "
            "per input"
        )


def place(number: int, folders: int) -> str:
    name = f"image_{number:08d}.jpg"
    return name if folders == 1 else f"class_{number % folders:05d}/{name}"


def make(root: Path, files: int, folders: int, images: list[Path]) -> None:
    """Make the files: links to the images, or empty ones where there are no images."""
    for number in range(folders if folders > 1 else 0):
        (root / f"class_{number:05d}").mkdir(parents=True, exist_ok=True)
    if not (root / place(files - 1, folders)).exists():
        for number in range(files):
            if images:
                os.link(images[number % len(images)], root / place(number, folders))
            else:
                os.close(os.open(root / place(number, folders), os.O_CREAT | os.O_WRONLY))


def draw(folder: Path) -> list[Path]:
    """Make small JPEG images, all different."""
    import numpy as np
    from PIL import Image

    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number:03d}.jpg" for number in range(LINKED)]
    for number, path in enumerate(paths):
        if not path.exists():
            pixels = np.random.default_rng(number).integers(0, 256, (4, 4, 3), np.uint8)
            Image.fromarray(pixels).resize((32, 32), Image.Resampling.BILINEAR).save(path)
    return paths


def plan(root: Path, files: int) -> None:
    """Look at the images with --dry-run, and print what it took."""
    with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
        command = [sys.executable, "-m", "shardctl", "convert", root, Path(scratch) / "out"]
        ran = run([*command, "--workers", "2", "-q", "--dry-run"], limit=4 * 3600)
    said = ran.failure or f"{files / ran.seconds:,.0f} files/s"
    print(
        f"{'dry run':20} {ran.seconds:.1f} s, {said}, parent {ran.parent / 1e6:.0f} MB", flush=True
    )


def bare(root: Path) -> int:
    count, folders = 0, [str(root)]
    while folders:
        for entry in os.scandir(folders.pop()):
            entry.stat()
            if entry.is_dir():
                folders.append(entry.path)
            else:
                count += 1
    return count


def listed(root: Path) -> int:
    from shardctl.making.convert.sample_kind import detect_kind
    from shardctl.making.plan.fingerprint import fingerprint_parts
    from shardctl.making.plan.list_files import list_files
    from shardctl.making.plan.listing import LabelRule
    from shardctl.sources.files import SourceRoot
    from shardctl.sources.formats import Reading
    from shardctl.sources.kinds import KINDS
    from shardctl.transforms.recipe import Recipe

    with tempfile.TemporaryDirectory() as scratch:
        source = SourceRoot(str(root))
        kind = detect_kind([source], KINDS.values(), Reading())
        rule, table = LabelRule.parse("auto"), Path(scratch) / "listing"
        listing = list_files([source], KINDS[kind], Reading(), rule, table, lambda count: None)
        fingerprint_parts(listing, Recipe.from_json({"kind": kind}), {})
        return len(listing)


def timed(what: Callable[[], object]) -> tuple[float, float]:
    wall, processor = time.perf_counter(), time.process_time()
    what()
    return time.perf_counter() - wall, time.process_time() - processor


def peak(root: Path) -> dict[str, int]:
    from shardctl.system.machine import keep_pandas_out_of_arrow

    keep_pandas_out_of_arrow()
    with tempfile.TemporaryDirectory() as few:
        make(Path(few), 10, 1, [])
        listed(Path(few))  # so that everything is imported
    before = high_water("self")
    count = listed(root)
    return {"inputs": count, "bytes": high_water("self") - before}


if __name__ == "__main__":
    main()
