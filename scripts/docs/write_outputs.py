"""Run the commands that pages show, and write what they print into the pages: write_outputs.py
PAGE.md…

An output that is the same apart from times, rates and sizes stays as it is. A page with a command
that fails stays as it is too. `--check` writes nothing, and exits with 1 if a page shows another
output. Pages that need an object store get one of this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from sessions import Difference, blocks, differences, needs

WIDTH = 90
"""Characters in a line of a page's code."""

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))


@contextlib.contextmanager
def environment_of(page: str) -> Iterator[Mapping[str, str]]:
    """Give the variables with which the commands of a page reach what it needs."""
    environment: dict[str, str] = {}
    if "torchvision" in needs(page):
        places = [str(Path(__file__).parent / "without_cuda"), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    if "s3" not in needs(page):
        yield environment
        return
    from object_server import ObjectServer

    with ObjectServer() as server:
        server.make_bucket("bucket")
        yield {**environment, **server.environment}


def run_page(path: Path) -> list[Difference]:
    """Run a page in a folder of its own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        environment_of(path.read_text(encoding="utf-8")) as environment,
    ):
        return list(differences(path, Path(folder), environment))


def write(path: Path, found: list[Difference]) -> None:
    """Write outputs into a page."""
    lines = path.read_text(encoding="utf-8").split("\n")
    printed = {each.command.line: each.printed for each in found}
    for block in reversed(list(blocks("\n".join(lines)))):
        new = []
        for command in block.commands:
            first, *others = command.text.split("\n")
            shown = [
                part for line in printed.get(command.line, command.shown) for part in _broken(line)
            ]
            new += [f"$ {first}", *(f"> {line}" for line in others), *shown]
        if block.commands:
            lines[block.begin : block.end] = new
    path.write_text("\n".join(lines), encoding="utf-8")


def _broken(line: str) -> list[str]:
    """Return a line in lines that fit a page."""
    return (
        textwrap.wrap(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
        if len(line) > WIDTH
        else [line]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    failed = False
    for path in given.pages:
        found = run_page(path)
        failed |= any(each.code for each in found) or (given.check and bool(found))
        for each in found:
            print(each, file=sys.stderr)
        if not given.check and not any(each.code for each in found):
            write(path, found)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
