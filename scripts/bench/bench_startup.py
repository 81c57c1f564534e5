"""How long small commands take from shell to shell, beside the imports that they cannot do without.

    .venv/bin/python scripts/bench/bench_startup.py [CORPUS] [--runs 15] [--json FILE]

CORPUS is a folder with photos/ (default: $SHARDCTL_CORPUS, else ../shared/data; without it, photos
that `shardctl demo` draws). Every round runs each command once, in turn, as a process of its own.
The dataset that the last one opens has one photo; it is in the page cache.
"""

from __future__ import annotations

import shutil
import sys
from functools import partial

from harness import (
    SHARDCTL,
    done,
    folders,
    images,
    in_turn,
    options_of,
    save,
    scratch,
    seconds,
    tell,
)

FIRST = "import shardctl, sys; next(iter(shardctl.open(sys.argv[1]).loader(32, shuffle=True)))"


def main() -> None:
    options = options_of(__doc__, corpus=True, runs=15).parse_args()
    with scratch() as folder:
        one, out, kept = folder / "one", folder / "out", folder / "kept"
        one.mkdir()
        shutil.copy(images(folders(options.corpus, folder)[0])[0], one)
        done(*SHARDCTL, "convert", one, kept)
        commands = {
            "python -c pass": (sys.executable, "-c", "pass"),
            "import click": (sys.executable, "-c", "import click"),
            "shardctl --version": (*SHARDCTL, "--version"),
            "convert -h": (*SHARDCTL, "convert", "-h"),
            "convert, one photo": (*SHARDCTL, "convert", one, out),
            "import, open, first batch": (sys.executable, "-c", FIRST, kept),
        }

        def timed(command: tuple[object, ...]) -> float:
            shutil.rmtree(out, ignore_errors=True)
            return seconds(lambda: done(*command))

        contenders = {name: partial(timed, command) for name, command in commands.items()}
        found = in_turn(contenders, options.runs)
    tell(found)
    save(options.json, found)


if __name__ == "__main__":
    main()
