"""What this machine lets us use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(usable_core_numbers())


def memory_bytes() -> int:
    """Return how much memory this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_core_numbers() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
