"""The engines by the names that --engine takes: a new one is a file and a line in ENGINES."""

from __future__ import annotations

from collections.abc import Callable

from shardctl.build.shards.engines import local, ray
from shardctl.build.shards.engines.base import Engine
from shardctl.errors import UsageError
from shardctl.system.processes.pool import Limits, OnLine

LOCAL = "local"
"""The engine on this machine: only it sees the same devices as this process."""

Start = Callable[[str, int | str, Limits, OnLine], Engine]
"""Starts an engine: it gets the address after the colon ("" for none), and the arguments of `local.start`."""

ENGINES: dict[str, Start] = {
    LOCAL: lambda _, *given: local.start(*given),
    "ray": ray.start,
}


def check(text: str, workers: int | str) -> None:
    """Raise UsageError if there is no such engine, or none without worker processes."""
    name, colon, address = text.partition(":") if isinstance(text, str) else (text, "", "")
    if name not in ENGINES or (colon and (name == LOCAL or not address)):
        raise UsageError(f"the engine is local, ray or ray:ADDRESS; it is {text!r}")
    if name != LOCAL and workers == 0:
        raise UsageError(f"the engine {name} works in processes of other machines; give 1 worker or more, or the engine local")


def start(text: str, workers: int | str, limits: Limits, on_line: OnLine) -> Engine:
    """Start an engine that `check` has passed. Raises UsageError for its address, InstallError if its package is missing."""
    name, _, address = text.partition(":")
    return ENGINES[name](address, workers, limits, on_line)
