"""Time and memory of listing many files, beside a bare os.scandir and stat of the same files.

    python scripts/bench/bench_listing.py [--files 200000] [--folders 1000] [--labels
    none|csv|jsonl] [--runs 5] [--convert]

The files are empty and are made in a scratch folder first (--in names where). "shardctl" is what an
up-to-date check does: kind, listing, fingerprint. Runs alternate; seconds are medians of the wall
clock, and of the processor time in brackets. Memory is the growth of the largest resident size
(VmHWM) over what it was after the imports, in a process of its own.

--plan makes the files links to 256 small JPEG images, and plans a conversion of them (a dry run);
--convert does it too, once: seconds of the whole command, files/s, memory of the parent and of the
largest worker, bytes of the tables. `--files 10000000 --runs 1 --plan` is the case of 10 million.
FOLDER-drawn beside the folder of --in holds the images themselves.

--unused times only the look at what nothing uses, for a listing that is made up: its names are in
memory, and each folder has a text and a table with ten columns.
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

from processes import run

LINKED = 256
"""Images that all names of --convert are links to: ext4 allows 65,000 names of one file."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=200_000)
    parser.add_argument("--folders", type=int, default=1000, help="1: all in one flat folder")
    parser.add_argument("--labels", choices=["none", "csv", "jsonl"], default="none")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--in",
        dest="scratch",
        type=Path,
        help="where the files are made; kept if they are there already",
    )
    parser.add_argument(
        "--plan", action="store_true", help="make images, and plan a conversion of them (a dry run)"
    )
    parser.add_argument(
        "--convert", action="store_true", help="make images, plan a conversion and convert them too"
    )
    parser.add_argument(
        "--unused", action="store_true", help="time only the look at files that nothing uses"
    )
    parser.add_argument("--peak", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print(json.dumps(peak(options.peak)))
        return
    if options.unused:
        unused(options.files, options.folders, options.runs)
        return
    with tempfile.TemporaryDirectory() as folder:
        root = options.scratch or Path(folder) / "names"
        root.mkdir(parents=True, exist_ok=True)
        images = options.plan or options.convert
        make(
            root,
            options.files,
            options.folders,
            draw(root.with_name(f"{root.name}-drawn")) if images else [],
        )
        label(root, options.files, options.folders, options.labels)
        if images:
            convert(root, options.files, options.convert)
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


def convert(root: Path, files: int, really: bool) -> None:
    """Look at the images with --dry-run, convert them, and look whether they are up to date; print
    what each took."""
    steps = {"dry run": ["--dry-run"], **({"convert": [], "up to date": []} if really else {})}
    with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
        out = Path(scratch) / "out"
        command = [sys.executable, "-m", "shardctl", "convert", root, out, "--workers", "2", "-q"]
        for name, options in steps.items():
            ran = run([*command, *options], limit=4 * 3600)
            if ran.failure:
                print(f"{name:20} failed after {ran.seconds:.1f} s: {ran.failure}")
                return
            memory = f"parent {ran.parent / 1e6:.0f} MB, worker {ran.worker / 1e6:.0f} MB"
            print(
                f"{name:20} {ran.seconds:.1f} s, {files / ran.seconds:,.0f} files/s, {memory}",
                flush=True,
            )
        if not really:
            return
        tables = {
            path.name: path.stat().st_size for path in out.glob("*.arrow") if "-" not in path.name
        }
        print(
            f"{'tables':20} "
            f"{', '.join(f'{name} {size:,} bytes' for name, size in sorted(tables.items()))}"
        )


def label(root: Path, files: int, folders: int, form: str) -> None:
    """Write a labels file with a row per file: its label, and a caption."""
    for old in root.glob("labels.*"):
        old.unlink()
    if form == "none":
        return
    with open(root / f"labels.{form}", "w", encoding="utf-8") as file:
        if form == "csv":
            file.write("file_name,label,caption\n")
        for number in range(files):
            row = (
                place(number, folders),
                f"class {number % 1000}",
                f"a photo of something, number {number}",
            )
            record = dict(zip(("file_name", "label", "caption"), row, strict=True))
            file.write(
                f'{row[0]},{row[1]},"{row[2]}"\n' if form == "csv" else json.dumps(record) + "\n"
            )


def unused(files: int, folders: int, runs: int) -> None:
    """Print how long the look at what nothing uses takes, wall clock and processor time,
    medians."""
    import numpy as np
    import pyarrow as pa

    from shardctl.sources.annotations.unused import Images, Unused, warnings_of_unused
    from shardctl.sources.files import SourceRoot
    from shardctl.sources.label_table import hash_names
    from shardctl.sources.walk import walk

    names = [f"class_{number:05d}" for number in range(folders)]
    paths = [
        f"{name}/image_{number:08d}.jpg" for name in names for number in range(files // folders)
    ]
    groups = np.repeat(np.arange(folders, dtype=np.int32), files // folders)
    table = pa.table({"path": paths, "root": np.zeros(len(paths), np.int32), "group": groups})
    hashes = hash_names(paths)
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            Path(scratch, name).mkdir()
            Path(scratch, name, "notes.txt").write_text("made by hand\n", encoding="utf-8")
            rows = [
                [f"column {number}" for number in range(10)],
                *([f"value {row}"] * 10 for row in range(1000)),
            ]
            Path(scratch, name, "rows.csv").write_text(
                "\n".join(map(",".join, rows)), encoding="utf-8"
            )

        def look() -> None:
            kept = Unused()
            for file in walk([SourceRoot(scratch)], print):
                kept.add(file)
            warnings_of_unused(kept, Images([SourceRoot(scratch)], names, table, hashes))

        wall, processor = (
            statistics.median(column)
            for column in zip(*(timed(look) for _ in range(runs)), strict=True)
        )
    print(f"{'what nothing uses':20} {wall:.2f} s ({processor:.2f} s), {len(paths):,} images")


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
    from shardctl.build.plan.fingerprint import fingerprint_parts
    from shardctl.build.plan.listing import LabelRule, detect_kind, list_files
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
    before = high_water()
    count = listed(root)
    return {"inputs": count, "bytes": high_water() - before}


def high_water() -> int:
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
