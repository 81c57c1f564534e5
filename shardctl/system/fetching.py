"""Blocks on their way: many are requested at the same time, in threads that wait for the network
and hold no core."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
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

_UNKNOWN, _EXPECTED, _DONE = 0, 1, 2
"""What a list of blocks says of each: it was not asked for in this epoch, it is to be requested, it
was."""


class _Coming(Future[Any]):
    """One block on its way, of about `cost` bytes, 0 where there must be room for it. `holders` may
    still want it; `begun` once a thread fetches it."""

    cost = holders = 0
    begun = False


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
        self.held: dict[int, _Coming] = {}
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
            with self._fetcher.lock:
                self.queue.extend(new)
                self._fetcher.call_threads(len(new))

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
    started as they are needed, and end when there is nothing to do: to start one takes much less
    time than an answer.
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
        self.lock = threading.Condition()
        self._coming: dict[int, _Coming] = {}
        self._urgent: deque[int] = deque()
        self._aheads: list[Ahead] = []
        self._threads = self._held_bytes = 0

    def ahead(self, keeps: bool = True) -> Ahead:
        """Return a list, to be filled, of blocks that will be needed."""
        made = Ahead(self, self._blocks, keeps)
        with self.lock:
            self._aheads.append(made)
        return made

    def give_up(self, ahead: Ahead) -> None:
        """Forget the blocks of a list."""
        with self.lock:
            ahead.queue.clear()
            if ahead in self._aheads:
                self._aheads.remove(ahead)
            held, ahead.held = ahead.held, {}
            for block, coming in held.items():
                self._release(block, coming)

    def close(self, seconds: float) -> None:
        """Fetch no more, and wait for what is under way, but not for longer than this."""
        with self.lock:
            for ahead in list(self._aheads):
                self.give_up(ahead)
            self.lock.wait_for(lambda: not self._threads, seconds)

    @contextmanager
    def wanted(self, blocks: Iterable[int]) -> Iterator[None]:
        """Bring these blocks now, all at the same time; what was not taken when the block ends is
        forgotten. No block is taken while they are chosen."""
        with self.lock:
            # needed now, whatever room there is
            held = {block: self._coming.setdefault(block, _Coming()) for block in blocks}
            for block, coming in held.items():
                coming.holders += 1
                if not coming.begun:
                    self._urgent.append(block)
            self.call_threads(len(held) - 1)  # the caller fetches one itself
        try:
            yield
        finally:
            with self.lock:
                for block, coming in held.items():
                    self._release(block, coming)

    def is_coming(self, block: int) -> bool:
        """Whether a block is under way, or arrived and was not taken."""
        return block in self._coming

    def skip(self, block: int) -> None:
        """Note that a block was used, perhaps without this: it is not expected any more."""
        for ahead in self._aheads:
            with self.lock:
                if ahead.state[block] == _EXPECTED:
                    ahead.state[block] = _DONE

    def take(self, block: int, stays: bool = False) -> Result:
        """Return what `fetch` returned for a block, or fetch it now. Raises what `fetch` raised. If
        it `stays`, what is not None can be taken again, until it is dropped."""
        coming = self._arrived(block)
        with self.lock:
            if not stays or coming.exception() or coming.result() is None:
                self._forget(block, coming)
            self.skip(block)
        return coming.result()  # type: ignore[no-any-return]  # of `fetch`

    def _arrived(self, block: int) -> _Coming:
        with self.lock:
            coming = self._coming.setdefault(block, _Coming())
            coming.holders += 1
            mine, coming.begun = not coming.begun, True
        if mine:
            self._run(block, coming)
        try:
            coming.exception()  # waits for it
        except BaseException:  # interrupted
            with self.lock:
                self._release(block, coming)
            raise
        return coming

    def drop(self, block: int) -> None:
        """Give up a block that was looked at."""
        with self.lock:
            if block in self._coming:
                self._release(block, self._coming[block])

    def _run(self, block: int, coming: _Coming) -> None:
        try:
            coming.set_result(self._fetch(block))
        except BaseException as error:  # noqa: BLE001 - raised where the block is taken
            coming.set_exception(error)

    def _release(self, block: int, coming: _Coming) -> None:
        coming.holders -= 1
        if coming.holders <= 0 and (coming.done() or not coming.begun):
            self._forget(block, coming)

    def _forget(self, block: int, coming: _Coming) -> None:
        if self._coming.get(block) is coming:
            del self._coming[block]
            for ahead in self._aheads:
                ahead.held.pop(block, None)
            if coming.cost:
                self._held_bytes -= coming.cost
                self.call_threads(1)

    def call_threads(self, count: int) -> None:
        """Start threads for new work, where not too many are there. Needs the lock."""
        for _ in range(min(count, AT_ONCE - self._threads)):
            self._threads += 1
            threading.Thread(target=self._serve, daemon=True, name="shardctl-fetch").start()

    def _serve(self) -> None:
        """Bring blocks, as a thread, until there is nothing to do."""
        while True:
            with self.lock:
                found = self._next()
                if found is None:
                    self._threads -= 1
                    self.lock.notify_all()
                    return
            self._run(*found)
            with self.lock:
                if found[1].holders <= 0:  # given up meanwhile, or taken
                    self._forget(*found)
            del found

    def _next(self) -> tuple[int, _Coming] | None:
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
                    coming = self._coming[block] = _Coming()
                    coming.cost = max(1, self._cost(block))
                    self._held_bytes += coming.cost
                if ahead.keeps:
                    coming.holders += 1
                    ahead.held[block] = coming
                if not coming.begun:
                    coming.begun = True
                    return block, coming
        return None
