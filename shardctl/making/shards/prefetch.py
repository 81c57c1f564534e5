"""Objects of sources on a store, asked for before they are needed: a worker knows which inputs
follow.

Each request takes some ten milliseconds before its first byte comes, so that many are on their way
at the same time. Inputs that are one record each come into memory, others to the disk
(sources/files.py). While an object is waited for, the work is on no input: one that is large takes
its time. What went wrong shows when it is read.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from typing import NamedTuple, TypeVar

from shardctl.sources.files import REQUESTS, local_copy, read
from shardctl.system.locations import is_stored

AHEAD_BYTES = 64 << 20
"""Bytes that are asked for ahead, or one object if it has more."""

AHEAD_ITEMS = 256
"""Inputs, or units of them, that are looked at ahead."""

EXPECTED_BYTES = 1 << 20
"""What is taken for the size of an object that is not known: that of a large photo."""

T = TypeVar("T")


class ReadRequest(NamedTuple):
    """An object by its URL, its size in bytes, and the number of its version (0: whichever there
    is).

    `whole`: it is one record, and comes into memory. Where the size is only expected, up to `most`
    bytes are fetched.
    """

    url: str
    size: int
    version: int
    whole: bool
    most: int = 0


_came: dict[str, Future[bytes]] = {}
"""What is in memory, of the item that is worked on."""


def take(url: str, size: int, version: int = 0) -> bytes:
    """Return the bytes of an object: those that came ahead, else it is asked for now.

    Raises Rejection (changed), OSError, SourceGoneError.
    """
    future = _came.pop(url, None)
    return read(url, size, version) if future is None else future.result()


def prefetched(
    items: Iterable[T], requests_of: Callable[[T], Sequence[ReadRequest]]
) -> Iterator[T]:
    """Yield items when what they want of a store is there; that of the following ones is on its
    way."""
    waiting: deque[tuple[T, list[ReadRequest], list[Future[bytes]]]] = deque()
    ahead, fetched_last = 0, ""

    def arrived() -> Iterator[T]:
        nonlocal ahead
        item, wants, futures = waiting.popleft()
        wait(futures)
        ahead -= sum(each.size for each in wants)
        came = {each.url: future for each, future in zip(wants, futures, strict=True) if each.whole}
        _came.update(came)
        yield item
        for url in came:
            _came.pop(url, None)

    try:
        for item in items:
            # Units of one file follow each other: it is fetched once.
            wants = [
                each
                for each in requests_of(item)
                if is_stored(each.url) and (each.whole or each.url != fetched_last)
            ]
            size = sum(each.size for each in wants)
            while waiting and (ahead + size > AHEAD_BYTES or len(waiting) >= AHEAD_ITEMS):
                yield from arrived()
            ahead += size
            fetched_last = next((each.url for each in wants if not each.whole), fetched_last)
            pool = _pool(os.getpid())
            waiting.append((item, wants, [pool.submit(_fetch, each) for each in wants]))
        while waiting:
            yield from arrived()
    finally:
        for _, _, futures in waiting:
            for future in futures:
                future.cancel()


def _fetch(request: ReadRequest) -> bytes:
    if request.whole:
        return read(request.url, request.most or request.size, request.version)
    local_copy(request.url, request.version)
    return b""


@lru_cache(1)
def _pool(_process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(REQUESTS, thread_name_prefix="shardctl-fetch")
