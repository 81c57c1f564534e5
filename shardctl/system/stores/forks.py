"""A forked process cannot use the client of its parent: the threads that do the work are not in it, so that it would wait for
ever."""

from __future__ import annotations

import os

from shardctl.errors import StoreError


class _Process:
    """What this process knows of clients: whether it has used one, and whether a parent of it had when it was forked."""

    used = False
    inherited = False


def _after_fork() -> None:
    _Process.inherited = _Process.inherited or _Process.used


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def note_use() -> None:
    """Note that this process uses a store. Raises StoreError in a process whose parent had used one before the fork."""
    if _Process.inherited:
        raise StoreError(
            "this process was forked from a process that had used an object store, so it cannot use one itself. Start"
            " processes with the method spawn or forkserver, or fork before the first use"
        )
    _Process.used = True
