"""How long two checkouts take for the smallest things: wall time of help, a completion, one photo
and a first batch, in turn.

    python scripts/bench/bench_help.py BEFORE AFTER [--runs 21]

Both are compiled first, as an installation is. The first batch is of 300 raw images of 64 px that
`shardctl demo` draws; the photo is one of these. Medians and the least of the runs, in ms.
"""

from __future__ import annotations

import argparse
import compileall
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from processes import as_installed

COMMANDS = (["--version"], ["-h"], ["convert", "-h"], ["convert", "--help"], ["inspect", "--help"])

COMPLETION = {
    "_SHARDCTL_COMPLETE": "bash_complete",
    "COMP_WORDS": "shardctl convert --re",
    "COMP_CWORD": "2",
}


SHARDCTL = ("-m", "shardctl")

FIRST_BATCH = (
    "import shardctl; next(iter(shardctl.open('small').loader(batch_size=32, shuffle=True)))"
)


def seconds(tree: Path, folder: Path, arguments: list[str], variables: dict[str, str]) -> float:
    """Return how long Python takes for a command of one of the trees, in a folder."""
    environment = {**as_installed(), **variables, "PYTHONPATH": str(tree)}
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", nargs=2, type=Path, metavar="TREE")
    parser.add_argument("--runs", type=int, default=21)
    given = parser.parse_args()
    trees = [tree.resolve() for tree in given.trees]
    for tree in trees:
        compileall.compile_dir(tree / "shardctl", quiet=1)
    took: defaultdict[tuple[str, Path], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        small = ["convert", "demo/photos", "small", "--resize", "64x64", "--store", "raw", "-q"]
        for arguments in (["demo", "demo", "-q"], small):
            seconds(trees[0], folder, [*SHARDCTL, *arguments], {})
        (folder / "one").mkdir()
        shutil.copy(min((folder / "demo" / "photos").rglob("*.jpg")), folder / "one")
        for _ in range(given.runs):
            for tree in trees:
                for arguments in COMMANDS:
                    took[" ".join(arguments), tree].append(
                        seconds(tree, folder, [*SHARDCTL, *arguments], {})
                    )
                took["a completion", tree].append(seconds(tree, folder, [*SHARDCTL], COMPLETION))
                shutil.rmtree(folder / "out", ignore_errors=True)
                took["convert one out", tree].append(
                    seconds(tree, folder, [*SHARDCTL, "convert", "one", "out"], {})
                )
                took["a first batch", tree].append(seconds(tree, folder, ["-c", FIRST_BATCH], {}))
    print("| command | before | least | after | least |\n| --- | ---: | ---: | ---: | ---: |")
    for command in dict.fromkeys(command for command, _ in took):
        cells = [
            f"{1000 * of:.0f}"
            for tree in trees
            for of in (statistics.median(took[command, tree]), min(took[command, tree]))
        ]
        print(f"| `{command}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
