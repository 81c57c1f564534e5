"""The engines by the names that --engine takes: a new one is a file and a line in ENGINES. Each is
imported when it starts."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from shardctl.errors import UsageError

if TYPE_CHECKING:
    from shardctl.making.shards.engines.local import Engine
    from shardctl.system.processes.pool import Limits, OnLine

LOCAL = "local"

ENGINES = {
    LOCAL: True,
    "ray": False,
}
"""For each whether it works on this machine: then it sees the same devices as this process, and has
no address. The module of this name has a function `start(address, workers, limits, on_line)`."""


def check(text: str, workers: int | str) -> None:
    """Raise UsageError if there is no such engine, or none without worker processes."""
    name, colon, address = text.partition(":") if isinstance(text, str) else (text, "", "")
    if name not in ENGINES or (colon and (ENGINES[name] or not address)):
        raise UsageError(f"the engine is {metavar()}; it is {text!r}")
    if not ENGINES[name] and workers == 0:
        raise UsageError(
            f"the engine {name} needs processes; give 1 worker or more, or the engine local"
        )


@contextlib.contextmanager
def started(text: str, workers: int | str, limits: Limits, on_line: OnLine) -> Iterator[Engine]:
    """Start an engine that `check` has passed, and close it in the end. Copies of objects stay as
    long. Raises UsageError for its address, InstallError if its package is missing."""
    from shardctl.sources.files import in_use  # --help imports this module

    name, _, address = text.partition(":")
    module = importlib.import_module(f"shardctl.making.shards.engines.{name}")
    with in_use():
        engine: Engine = module.start(address, workers, limits, on_line)
        try:
            yield engine
        finally:
            engine.close()


def is_here(text: str) -> bool:
    """Return whether an engine that `check` has passed works on this machine, and sees the same
    devices as this process."""
    return ENGINES[text.partition(":")[0]]


def metavar() -> str:
    """Return what --engine takes, as its help says it: local|ray[:ADDRESS]."""
    return "|".join(name if here else f"{name}[:ADDRESS]" for name, here in ENGINES.items())
