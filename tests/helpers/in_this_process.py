"""Conversions, repairs and exports in this process, without workers, as most tests make them; and shardctl
started in another one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import shardctl


def convert(*given: Any, **options: Any) -> Any:
    return shardctl.convert(*given, **{"workers": 0, **options})


def repair(*given: Any, **options: Any) -> Any:
    return shardctl.repair(*given, **{"workers": 0, **options})


def export(*given: Any, **options: Any) -> Any:
    return shardctl.export(*given, **{"workers": 0, **options})


def command_line(*words: object) -> list[str]:
    """Return the command line that starts shardctl in a process of its own."""
    return [sys.executable, "-m", "shardctl", *map(str, words)]


def children_of(process: int) -> list[int]:
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in found]
