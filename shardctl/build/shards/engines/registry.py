"""The engines by the names that --engine takes: a new one is a file and a line in ENGINES."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardctl.build.shards.engines import local, ray
from shardctl.build.shards.engines.base import Engine
from shardctl.errors import UsageError
from shardctl.system.processes.pool import Limits, OnLine

LOCAL = "local"

Start = Callable[[str, int | str, Limits, OnLine], Engine]
"""Starts an engine: it gets the address after the colon ("" for none), and the arguments of `local.start`."""


@dataclass(frozen=True)
class EngineKind:
    """How an engine is started. `here` says that it works on this machine: it sees the same devices, and needs no address."""

    start: Start
    here: bool = False


ENGINES: dict[str, EngineKind] = {
    LOCAL: EngineKind(lambda _, *given: local.start(*given), here=True),
    "ray": EngineKind(ray.start),
}


def check(text: str, workers: int | str) -> None:
    """Raise UsageError if there is no such engine, or none without worker processes."""
    name, colon, address = text.partition(":") if isinstance(text, str) else (text, "", "")
    if name not in ENGINES or (colon and (ENGINES[name].here or not address)):
        *names, last = spellings()
        raise UsageError(f"the engine is {', '.join(names)} or {last}; it is {text!r}")
    if not ENGINES[name].here and workers == 0:
        raise UsageError(f"the engine {name} works in processes of other machines; give 1 worker or more, or the engine local")


def start(text: str, workers: int | str, limits: Limits, on_line: OnLine) -> Engine:
    """Start an engine that `check` has passed. Raises UsageError for its address, InstallError if its package is missing."""
    name, _, address = text.partition(":")
    return ENGINES[name].start(address, workers, limits, on_line)


def spellings() -> list[str]:
    """Return what --engine takes: local, ray, ray:ADDRESS."""
    return [text for name, kind in ENGINES.items() for text in ([name] if kind.here else [name, f"{name}:ADDRESS"])]


def is_here(text: str) -> bool:
    """Return whether an engine that `check` has passed works on this machine, and sees the same devices as this process."""
    return ENGINES[text.partition(":")[0]].here
