"""Bringing the files that come next while the ones before them are read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from shardctl.absent import ENDS, WHOLE, find_mirror
from shardctl.errors import ShardctlError
from shardctl.machine import usable_cores

AHEAD = 4
"""Whole files that are brought before they are read."""

FILES_AHEAD = {WHOLE: AHEAD, ENDS: 64}
"""Files that are brought at the same time. A whole one is brought with several requests; an end with one."""

Progress = Callable[[int, int], None]
"""A callback: (done, all)."""


@contextmanager
def bringing_ahead(root: Path, names: Sequence[str], progress: Progress) -> Iterator[Progress]:
    """While the block runs, bring the files that come next, if the folder `root` stands for a dataset on a store.

    The files are read in this order; the callback that is given says how many of them are done, and calls `progress`.
    """
    mirror = find_mirror(root)
    if mirror is None or mirror.about.form not in FILES_AHEAD:
        yield progress
        return
    at_once = FILES_AHEAD[mirror.about.form]
    ahead = _Ahead(mirror.bring, names, at_once)
    try:

        def note(done: int, total: int) -> None:
            ahead.go_on(done)
            progress(done, total)

        ahead.go_on(0)
        yield note
    finally:
        ahead.close()


class _Ahead:
    def __init__(self, bring: Callable[[str], bool], names: Sequence[str], at_once: int) -> None:
        self._bring, self._names, self._at_once = bring, names, at_once
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="shardctl-ahead")
        self._next, self._failed = 0, False
        self._lock = threading.Lock()

    def go_on(self, done: int) -> None:
        """Ask for files, so many ahead of those that are done."""
        with self._lock:
            last = min(len(self._names), done + usable_cores() + self._at_once)  # others of them are being read
            for place in range(max(self._next, done), last):
                if not self._failed:
                    self._threads.submit(self._try, self._names[place])
            self._next = max(self._next, last)

    def _try(self, name: str) -> None:
        try:
            self._bring(name)
        except (ShardctlError, OSError):
            self._failed = True  # whoever reads the file meets the same, and tells it

    def close(self) -> None:
        """Bring no more."""
        self._threads.shutdown(cancel_futures=True)
