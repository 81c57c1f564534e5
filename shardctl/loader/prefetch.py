"""Results made by several threads and returned in order, and tuning of the number of threads.

Threads, not processes: Arrow, numpy and libjpeg-turbo let other threads run while they work. Where
worker processes make the results, these threads wait for them.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shardctl.errors import UsageError

Task = TypeVar("Task")
Result = TypeVar("Result")

MOST_AUTO_THREADS = 32
"""Most threads that "auto" takes. Beyond the cores they only help where reading waits for a
network."""

SPARE = 4
"""Finished results that may wait, beyond those being made: with 2, threads wait for room 8 % of the
time at full speed."""

_TUNE_SECONDS = 0.25
"""Seconds that a number of threads is tried before it is judged."""

_WAITS = 0.05
"""Share of its time that the consumer may wait before another thread is tried."""

_GAIN = 1.05
"""Smallest gain in rate for which another thread is kept."""


@dataclass
class Waits:
    """Seconds that the consumer waited for a result, that threads waited for room, and that threads
    worked."""

    get: float = 0.0
    put: float = 0.0
    making: float = 0.0
    made: int = 0


class Prefetcher(Generic[Task, Result]):
    """Calls `make` on every task in up to `threads` threads, and yields the results in the order of
    the tasks.

    At most `depth` results are made ahead; None means SPARE more than there are threads in use. A
    tuner decides how many of the threads are in use. `close` ends the threads.
    """

    def __init__(
        self,
        make: Callable[[Task], Result],
        tasks: Iterator[Task],
        threads: int,
        depth: int | None,
        tuner: Tuner | None,
    ) -> None:
        self._make, self._tasks, self._depth = make, tasks, depth
        self._tuner = tuner
        self._active = tuner.threads if tuner else threads
        self.waits = Waits()
        self._process = os.getpid()
        # `with` takes this lock, not its condition: that one's __enter__ and __exit__ are in
        # Python, and Ctrl-C between their lines would leave the lock taken. The threads would then
        # wait for it, and `close` for them.
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._results: dict[int, tuple[Result | None, BaseException | None]] = {}
        self._begun = self._taken = 0
        self._exhausted = self._closed = False
        # Daemons, so that an iterator that is never closed does not keep the program from ending;
        # _close_all ends them first.
        self._threads = [
            threading.Thread(
                target=self._work, args=(number,), name=f"shardctl-loader-{number}", daemon=True
            )
            for number in range(threads)
        ]
        _ALIVE.add(self)
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[Result]:
        while True:
            if os.getpid() != self._process:
                raise UsageError(
                    "this iterator belongs to the parent process; make a new one after a fork"
                )
            with self._lock:
                began = time.perf_counter()
                while self._taken not in self._results and not (
                    self._exhausted and self._taken == self._begun
                ):
                    self._condition.wait()
                if self._taken not in self._results:
                    return
                result, error = self._results.pop(self._taken)
                self._taken += 1
                self.waits.get += time.perf_counter() - began
                if self._tuner:
                    self._active = self._tuner.update(self.waits)
                self._condition.notify_all()
            if error is not None:
                raise error
            yield result  # type: ignore[misc]  # without an error it is a result

    def _work(self, number: int) -> None:
        while True:
            with self._lock:
                began = time.perf_counter()
                while not self._closed and not self._exhausted and not self._has_room(number):
                    self._condition.wait()
                if number < self._active:
                    self.waits.put += time.perf_counter() - began
                if self._closed or self._exhausted:
                    return
                try:
                    task, mine, error = next(self._tasks), self._begun, None
                except StopIteration:
                    self._exhausted = True
                    self._condition.notify_all()
                    return
                except BaseException as failure:  # noqa: BLE001 - the consumer raises it
                    task, mine, error = None, self._begun, failure
                    self._exhausted = True
                self._begun += 1
            began = time.perf_counter()
            result = None
            if task is not None:
                try:
                    result = self._make(task)
                except BaseException as failure:  # noqa: BLE001 - the same
                    error = failure
            with self._lock:
                self.waits.making += time.perf_counter() - began
                self.waits.made += 1
                self._results[mine] = (result, error)
                self._condition.notify_all()

    def _has_room(self, number: int) -> bool:
        depth = self._active + SPARE if self._depth is None else self._depth
        return number < self._active and self._begun - self._taken < depth

    def close(self) -> None:
        """End the threads, and wait until they have."""
        if os is None:
            return  # Python is ending, and its modules are gone: so are the threads
        if os.getpid() != self._process:
            # a forked child has none of them, and their lock may be held by one that is not there
            return
        with self._lock:
            self._closed = True
            self._results.clear()
            self._condition.notify_all()
        if any(threading.current_thread() in each._threads for each in list(_ALIVE)):
            # collected in a thread that makes batches, which may hold what the others wait for:
            # they end by themselves
            return
        for thread in self._threads:
            if thread.ident is not None:  # else an interrupt came before it was started
                thread.join()


class Tuner:
    """Finds a number of threads: one more if the consumer waits and that helps; one less if nothing
    waits."""

    def __init__(self, cores: int, most: int = MOST_AUTO_THREADS) -> None:
        self.most = max(2, min(most, 2 * cores))
        self.threads = min(self.most, max(1, cores))
        self._since = time.perf_counter()
        self._before = Waits()
        self._tried: float | None = None
        self._settled = False

    def update(self, waits: Waits) -> int:
        """Judge the waits so far, and return the number of threads to use from now on."""
        now = time.perf_counter()
        span, made = now - self._since, waits.made - self._before.made
        if span < _TUNE_SECONDS or made < 2 * self.threads:
            return self.threads
        rate, waited = made / span, (waits.get - self._before.get) / span
        idle = waits.put - self._before.put
        if self._tried is not None:
            if rate < self._tried * _GAIN:
                self.threads -= 1
                self._settled = True
            self._tried = None
        elif waited > _WAITS and not self._settled and self.threads < self.most:
            self._tried = rate
            self.threads += 1
        elif waited < _WAITS / 5 and idle > span and self.threads > 1:
            self.threads -= 1
            self._settled = False
        self._since, self._before = now, Waits(waits.get, waits.put, waits.making, waits.made)
        return self.threads


_ALIVE: weakref.WeakSet[Prefetcher[Any, Any]] = weakref.WeakSet()


def _close_all() -> None:
    for prefetcher in list(_ALIVE):
        prefetcher.close()


atexit.register(_close_all)
