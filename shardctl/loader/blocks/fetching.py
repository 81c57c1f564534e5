"""Blocks on their way: many are requested at the same time, in threads that wait for the network
and hold no core."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import numpy as np

from shardctl.system.processes.fork import keep_renewed

Result = TypeVar("Result")

AT_ONCE = 64
"""Requests under way at a time: at 30 ms of latency, 1 MiB each, more than 2 GB/s."""

AHEAD_BYTES = 256 << 20
"""Bytes of blocks that were asked for ahead and are not used yet: 2 s at 1 Gbit/s, and not much
beside a batch of images."""

QUEUED = 64
"""Blocks that are known to come next, and not requested yet. With fewer, the order is looked at
further ahead."""

IDLE_SECONDS = 2.0
"""How long a thread waits for work before it ends. A loader that is read has work for it more
often."""


_UNKNOWN, _EXPECTED, _DONE = 0, 1, 2
"""What a list of blocks says of each: it was not asked for in this epoch, it is to be requested, it
was."""


class _Coming(Generic[Result]):
    """One block on its way. `holders` may still want it; `begun` once a thread fetches it."""

    def __init__(self, cost: int) -> None:
        self.cost = cost
        self.holders = 0
        self.begun = False
        self.arrived = threading.Event()
        self.result: Result | None = None
        self.error: BaseException | None = None


class Ahead:
    """Blocks that will be needed, in the order of their first use. Made by Fetcher.ahead; close it
    when they are not needed.

    What arrives is kept until it is taken, if this `keeps` it: else it is for other processes,
    which find it in a cache.
    """

    def __init__(self, fetcher: Fetcher[Any], blocks: int, keeps: bool) -> None:
        self._fetcher, self.keeps = fetcher, keeps
        self.state = np.zeros(blocks, np.uint8)
        self.queue: deque[int] = deque()
        self.held: dict[int, _Coming[Any]] = {}
        self._epoch = 0

    def expect(self, blocks: Iterable[int], epoch: int = 0) -> None:
        """Say that these blocks will be needed after all those before. Each counts once in an
        epoch."""
        if epoch != self._epoch:
            self.state[self.state == _DONE] = _UNKNOWN
            self._epoch = epoch
        new = [block for block in blocks if self.state[block] == _UNKNOWN]
        self.state[new] = _EXPECTED
        if new:
            self._fetcher.queue_up(self, new)

    @property
    def is_short(self) -> bool:
        """Whether more blocks may be said to be needed."""
        return len(self.queue) < QUEUED

    def close(self) -> None:
        """Give up the blocks that were not used."""
        self._fetcher.give_up(self)


class Fetcher(Generic[Result]):
    """Calls `fetch` for blocks in many threads, each block once at a time. Threads may share it.

    `cost` says how many bytes a block has, about. Blocks that are needed now come before those that
    are expected. What arrived is kept until it is taken, or nobody holds it any more. Threads are
    started as they are needed, and end when there is nothing to do.
    """

    def __init__(
        self, fetch: Callable[[int], Result], cost: Callable[[int], int], blocks: int
    ) -> None:
        self._fetch, self._cost, self._blocks = fetch, cost, blocks
        self.renew()
        keep_renewed(self)

    def renew(self) -> None:
        """Begin with nothing under way: in a forked child, the threads that fetched blocks are not
        there."""
        # not by its condition, which Ctrl-C can leave taken (loader/prefetch.py)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._coming: dict[int, _Coming[Result]] = {}
        self._urgent: deque[int] = deque()
        self._aheads: list[Ahead] = []
        self._threads = self._idle = self._held_bytes = 0

    def ahead(self, keeps: bool = True) -> Ahead:
        """Return a list, to be filled, of blocks that will be needed."""
        made = Ahead(self, self._blocks, keeps)
        with self._lock:
            self._aheads.append(made)
        return made

    def queue_up(self, ahead: Ahead, blocks: list[int]) -> None:
        """Take blocks to be fetched when there is room."""
        with self._lock:
            ahead.queue.extend(blocks)
            self._call_threads(len(blocks))

    def give_up(self, ahead: Ahead) -> None:
        """Forget the blocks of a list."""
        with self._lock:
            ahead.queue.clear()
            if ahead in self._aheads:
                self._aheads.remove(ahead)
            held, ahead.held = ahead.held, {}
            for block, coming in held.items():
                self._release(block, coming)

    @contextmanager
    def wanted(self, blocks: list[int]) -> Iterator[None]:
        """Bring these blocks now, all at the same time; what was not taken when the block ends is
        forgotten."""
        held: list[tuple[int, _Coming[Result]]] = []
        with self._lock:
            for block in blocks:
                coming = self._coming.get(block)
                if coming is None:
                    coming = self._coming[block] = _Coming(0)  # needed now, whatever room there is
                if not coming.begun:
                    self._urgent.append(block)
                coming.holders += 1
                held.append((block, coming))
            self._call_threads(len(blocks) - 1)  # the caller fetches one itself
        try:
            yield
        finally:
            with self._lock:
                for block, coming in held:
                    self._release(block, coming)

    def is_coming(self, block: int) -> bool:
        """Whether a block is under way, or arrived and was not taken."""
        return block in self._coming

    def skip(self, block: int) -> None:
        """Note that a block was used without this: it is not expected any more."""
        if self._aheads:
            with self._lock:
                self._expect_no_more(block)

    def _expect_no_more(self, block: int) -> None:
        for ahead in self._aheads:
            if ahead.state[block] == _EXPECTED:
                ahead.state[block] = _DONE

    def take(self, block: int) -> Result:
        """Return what `fetch` returned for a block, or fetch it now. Raises what `fetch` raised."""
        coming = self._awaited(block)
        with self._lock:
            self._forget(block, coming)
            self._expect_no_more(block)
        if coming.error is not None:
            raise coming.error
        return coming.result  # type: ignore[return-value]  # it arrived without an error

    def look(self, block: int) -> Result:
        """As `take`, and leave it to be taken if somebody holds it."""
        coming = self._awaited(block)
        with self._lock:
            if not coming.holders:
                self._forget(block, coming)
        if coming.error is not None:
            raise coming.error
        return coming.result  # type: ignore[return-value]  # the same

    def _awaited(self, block: int) -> _Coming[Result]:
        with self._lock:
            coming = self._coming.get(block)
            if coming is None:
                coming = self._coming[block] = _Coming(0)
            mine = not coming.begun
            coming.begun = True
        if mine:
            self._run(block, coming)
        coming.arrived.wait()
        return coming

    def _run(self, block: int, coming: _Coming[Result]) -> None:
        try:
            coming.result = self._fetch(block)
        except BaseException as error:  # noqa: BLE001 - raised where the block is taken
            coming.error = error
        finally:
            coming.arrived.set()

    def _release(self, block: int, coming: _Coming[Result]) -> None:
        coming.holders -= 1
        if coming.holders <= 0 and (coming.arrived.is_set() or not coming.begun):
            self._forget(block, coming)

    def _forget(self, block: int, coming: _Coming[Result]) -> None:
        if self._coming.get(block) is coming:
            del self._coming[block]
            for ahead in self._aheads:
                ahead.held.pop(block, None)
            self._held_bytes -= coming.cost
            if coming.cost:
                self._call_threads(1)

    def _call_threads(self, count: int) -> None:
        """Wake threads for new work, and start some where too few wait."""
        for _ in range(min(count - self._idle, AT_ONCE - self._threads)):
            self._threads += 1
            arguments = (weakref.ref(self), self._changed)
            threading.Thread(
                target=_serve, args=arguments, daemon=True, name="shardctl-fetch"
            ).start()
        self._changed.notify(max(0, count))

    def serve(self, found: tuple[int, _Coming[Result]]) -> None:
        """Bring a block that `next_or_rest` gave."""
        block, coming = found
        self._run(block, coming)
        with self._lock:
            if coming.holders <= 0:  # given up meanwhile, or taken
                self._forget(block, coming)

    def next_or_rest(self, rested: bool) -> tuple[int, _Coming[Result]] | None:
        """Return a block to fetch now; if there is none, count the calling thread as one that
        waits. Needs the lock."""
        self._idle -= rested
        found = self._next()
        self._idle += found is None
        return found

    def leave(self) -> None:
        """Count the calling thread no more. Needs the lock."""
        self._idle -= 1
        self._threads -= 1

    def _next(self) -> tuple[int, _Coming[Result]] | None:
        """Return the block to fetch now, marked as begun; None if there is none, or no room for
        one."""
        while self._urgent:
            block = self._urgent.popleft()
            coming = self._coming.get(block)
            if coming is not None and not coming.begun:
                coming.begun = True
                return block, coming
        for ahead in self._aheads:
            while ahead.queue and self._held_bytes < AHEAD_BYTES:
                block = ahead.queue.popleft()
                if ahead.state[block] != _EXPECTED:
                    continue
                ahead.state[block] = _DONE
                coming = self._coming.get(block)
                if coming is None:
                    coming = self._coming[block] = _Coming(max(1, self._cost(block)))
                    self._held_bytes += coming.cost
                if ahead.keeps:
                    coming.holders += 1
                    ahead.held[block] = coming
                if not coming.begun:
                    coming.begun = True
                    return block, coming
        return None


def _serve(reference: weakref.ref[Fetcher[Any]], changed: threading.Condition) -> None:
    """Bring blocks, as a thread, until there has been nothing to do for a while. Does not keep the
    fetcher alive meanwhile."""
    rested = False
    while True:
        with changed:
            fetcher = reference()
            found = fetcher.next_or_rest(rested) if fetcher is not None else None
            while found is None:
                if fetcher is None:
                    return
                del fetcher
                woken = changed.wait(IDLE_SECONDS)
                fetcher = reference()
                if fetcher is None:
                    return
                found = fetcher.next_or_rest(rested=True)
                if found is None and not woken:
                    fetcher.leave()
                    return
            rested = False
        assert fetcher is not None
        fetcher.serve(found)
        del fetcher, found


@dataclass
class Counts:
    """What has been done since the dataset was opened. Blocks count at their first use, and again
    when they are read anew."""

    requests: int = 0
    network_bytes: int = 0
    network_blocks: int = 0
    cached_blocks: int = 0


NAMES = tuple(each.name for each in fields(Counts))
