"""What the measurements share: their options, contenders that take turns, and the file with what was
found, beside the machine that it was found on."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from shardctl.benchmark.measure.machine import environment

ROOT = Path(__file__).resolve().parents[2]
Found = TypeVar("Found")


def options_of(doc: str | None, corpus: bool = False, **turns: int) -> argparse.ArgumentParser:
    """Return a parser with --json FILE; with `corpus` the folder of inputs, and of `turns` an option
    such as --runs with its default."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if corpus:
        default = os.environ.get("SHARDCTL_CORPUS", ROOT.parent / "shared" / "data")
        parser.add_argument("corpus", nargs="?", default=default)
    for name, default_turns in turns.items():
        parser.add_argument(f"--{name}", type=int, default=default_turns)
    parser.add_argument("--json", type=Path)
    return parser


def in_turn(contenders: Mapping[str, Callable[[], Found]], turns: int) -> dict[str, list[Found]]:
    """Call each contender once in each turn, every other turn in reverse order, and return what they
    returned."""
    found: dict[str, list[Found]] = {name: [] for name in contenders}
    for turn in range(turns):
        for name in list(contenders)[:: -1 if turn % 2 else 1]:
            found[name].append(contenders[name]())
    return found


def seconds(what: Callable[[], object]) -> float:
    """Return how long a call takes by the wall clock."""
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def save(file: Path | None, found: Any) -> None:
    """Write what was found, and on which machine, to the file of --json, if there is one."""
    if file is not None:
        found = {"machine": environment(file.resolve().parent), "results": found}
        file.write_text(json.dumps(found, indent=1))
