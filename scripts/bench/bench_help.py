"""How long two checkouts take to show help: wall time of `-h`, `--help` and `--version`, and of a completion, in turn.

    python scripts/bench/bench_help.py BEFORE AFTER [--runs 21]

Both are compiled first, as an installation is. Medians and the least of the runs, in ms.
"""

from __future__ import annotations

import argparse
import compileall
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

COMMANDS = (["--version"], ["-h"], ["convert", "-h"], ["convert", "--help"], ["inspect", "--help"])

COMPLETION = {"_SHARDCTL_COMPLETE": "bash_complete", "COMP_WORDS": "shardctl convert --re", "COMP_CWORD": "2"}


def seconds(tree: Path, arguments: list[str], variables: dict[str, str]) -> float:
    """Return how long a command of one of the trees takes."""
    environment = {**os.environ, **variables, "PYTHONPATH": str(tree)}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "shardctl", *arguments], cwd=tree.parent, env=environment, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs=2, type=Path, metavar="TREE")
    parser.add_argument("--runs", type=int, default=21)
    given = parser.parse_args()
    trees = [tree.resolve() for tree in given.trees]
    for tree in trees:
        compileall.compile_dir(tree / "shardctl", quiet=1)
    took: defaultdict[tuple[str, Path], list[float]] = defaultdict(list)
    for _ in range(given.runs):
        for tree in trees:
            for arguments in COMMANDS:
                took[" ".join(arguments), tree].append(seconds(tree, arguments, {}))
            took["a completion", tree].append(seconds(tree, [], COMPLETION))
    print("| command | before | least | after | least |\n| --- | ---: | ---: | ---: | ---: |")
    for command in dict.fromkeys(command for command, _ in took):
        cells = [
            f"{1000 * of:.0f}" for tree in trees for of in (statistics.median(took[command, tree]), min(took[command, tree]))
        ]
        print(f"| `{command}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
