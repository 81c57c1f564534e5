"""Two checkouts of shardctl compared: the same commands by both, in turn, in processor time.

    python scripts/bench/bench_versions.py BEFORE AFTER [CORPUS] [--runs 7] [--only CASE …]

BEFORE and AFTER are folders with the package shardctl. CORPUS has photos/ (default:
$SHARDCTL_CORPUS, else ../shared/data; without it, photos that `shardctl demo` draws). Each command
is a process of its own, with 2 workers where it has any; its time is that of all its processes,
from the system's accounts. Medians, and the median of the ratios of the pairs, after / before.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import options_of

HERE = Path(__file__).resolve().parent

EPOCHS = (
    "import sys, shardctl\nds = shardctl.open(sys.argv[1])\nfor epoch in range(int(sys.argv[2])):\n"
)
EPOCHS += (
    "    for batch in ds.loader(64, shuffle=True, seed=epoch, threads=2, "
    "**eval(sys.argv[3])):\n        pass\n"
)


def run(tree: Path, *command: str | Path) -> float:
    """Return the seconds of processor time of a Python command that uses one of the trees."""
    variables = {**os.environ, "PYTHONPATH": str(tree)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *command],
        check=True,
        env=variables,
        cwd=tree,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def make_inputs(folder: Path, corpus: Path, tree: Path) -> None:
    run(tree, "-m", "shardctl", "demo", folder / "demo", "--images", "400", "--texts", "2000")
    photos = corpus / "photos"
    (folder / "photos").mkdir()
    found = sorted(
        path
        for path in (photos if photos.is_dir() else folder / "demo" / "photos").rglob("*")
        if path.suffix.lower() in (".jpg", ".jpeg")
    )
    for number, path in enumerate(found):
        (folder / "photos" / f"{number:05d}.jpg").symlink_to(path.resolve())
    words = (
        "the shard has many samples and each of them is read once by every worker of a job",
    ) * 20
    draw = random.Random(1)
    lines = (
        json.dumps({"id": number, "text": " ".join(draw.sample(words, draw.randint(1, 3)))})
        for number in range(100_000)
    )
    (folder / "lines.jsonl").write_text("\n".join(lines))


def cases(folder: Path) -> dict[str, Callable[[Path], float]]:
    """Return what is timed, each a function of a tree. What a case needs before is made by the tree
    itself, and not timed."""

    def convert(*arguments: str | Path) -> Callable[[Path], float]:
        def timed(tree: Path) -> float:
            shutil.rmtree(folder / "out", ignore_errors=True)
            return run(
                tree,
                "-m",
                "shardctl",
                "convert",
                *arguments,
                folder / "out",
                "--quiet",
                "--workers",
                "2",
            )

        return timed

    def loaded(name: str, epochs: int, options: str) -> Callable[[Path], float]:
        return lambda tree: run(tree, "-c", EPOCHS, folder / name, str(epochs), options)

    def updated(tree: Path) -> float:
        shutil.rmtree(folder / "followed", ignore_errors=True)
        source = folder / "demo" / "texts"
        run(tree, "-m", "shardctl", "convert", source, folder / "followed", "--quiet")
        added = source / "calm" / "added.txt"
        added.write_text("one more")
        try:
            return run(
                tree,
                "-m",
                "shardctl",
                "convert",
                source,
                folder / "followed",
                "--quiet",
                "--update",
            )
        finally:
            added.unlink()

    crop = ("--resize", "256", "--crop", "224")
    return {
        "convert --help": lambda tree: run(tree, "-m", "shardctl", "convert", "--help"),
        "bench --help": lambda tree: run(tree, "-m", "shardctl", "bench", "--help"),
        "photos to raw": convert(folder / "photos", *crop, "--store", "raw"),
        "photos kept": convert(folder / "photos"),
        "tiny files": convert(folder / "demo" / "texts"),
        "JSON lines": convert(folder / "lines.jsonl"),
        "tokens": convert(folder / "lines.jsonl", "--tokenizer", "bytes", "--block-length", "512"),
        "update": updated,
        "loader, raw": loaded("raw", 4, "{}"),
        "loader, JPEG": loaded("kept", 2, "{'resize': 256, 'crop': 224}"),
        "loader, text": loaded("text", 4, "{}"),
    }


def main() -> None:
    parser = options_of(__doc__, runs=7)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument(
        "corpus",
        nargs="?",
        type=Path,
        default=os.environ.get("SHARDCTL_CORPUS", HERE.parents[2] / "shared" / "data"),
    )
    parser.add_argument("--only", nargs="*", default=())
    given = parser.parse_args()
    trees: Sequence[Path] = [given.before.resolve(), given.after.resolve()]
    with tempfile.TemporaryDirectory(dir=HERE.parent.parent) as scratch:
        folder = Path(scratch)
        # else one of them compiles its modules in every process, where Python is told to keep no
        # bytecode
        for tree in trees:
            subprocess.run(
                [sys.executable, "-m", "compileall", "-q", tree / "shardctl"], check=True
            )
        make_inputs(folder, Path(given.corpus), trees[1])
        for name, arguments in (
            ("raw", ("photos", "--resize", "256", "--crop", "224", "--store", "raw")),
            ("kept", ("photos",)),
            ("text", ("lines.jsonl",)),
        ):
            source, *options = arguments
            run(
                trees[1],
                "-m",
                "shardctl",
                "convert",
                folder / source,
                folder / name,
                "--quiet",
                *options,
            )
        for name, timed in cases(folder).items():
            if given.only and name not in given.only:
                continue
            pairs = [tuple(timed(tree) for tree in trees) for _ in range(given.runs)]
            before, after = (statistics.median(column) for column in zip(*pairs, strict=True))
            ratio = statistics.median(after / before for before, after in pairs)
            print(f"| {name} | {before:.3f} | {after:.3f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
