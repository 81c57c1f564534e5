"""Fetching the files that come next while the ones before them are read."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from shardctl.errors import ShardctlError

LEAVE_SECONDS = 2.0
"""How long the end waits for requests that are on their way."""


class FilePrefetcher:
    """Threads that fetch `several` files after each that was read. They end with the process,
    whatever they wait for."""

    def __init__(
        self, fetch: Callable[[str], Path], names: Sequence[str], several: int, threads: int
    ) -> None:
        self._fetch, self._names, self._several, self._most = fetch, names, several, threads
        self._requested = bytearray(len(names))
        self._queue: deque[int] = deque()
        self._ended = False
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []

    def note(self, number: int) -> None:
        """Ask for the files after this one."""
        with self._changed:
            self._requested[max(0, number)] = True
            for following in range(number + 1, min(number + 1 + self._several, len(self._names))):
                if not self._requested[following]:
                    self._requested[following] = True
                    self._queue.append(following)
            for _ in range(min(len(self._queue), self._most) - len(self._threads)):
                self._threads.append(
                    threading.Thread(target=self._work, daemon=True, name="shardctl-prefetch")
                )
                self._threads[-1].start()
            self._changed.notify(len(self._queue))

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._queue)
                if self._ended:
                    return
                name = self._names[self._queue.popleft()]
            try:
                self._fetch(name)
            except (ShardctlError, OSError):
                return  # whoever reads the file meets the same, and tells it

    def close(self) -> None:
        """Fetch no more. What is on its way is waited for, but not for long: after Ctrl-C it may be
        on its way for a minute."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        until = time.monotonic() + LEAVE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
