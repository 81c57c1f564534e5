"""One writer at a time on an object store: an object with a heartbeat, since a store has no locks.

Whoever creates the object is the owner. It writes it again every few seconds, on the condition that
it is still the version that it wrote last; so a version that stands still is that of an owner who
is gone. A waiting process measures that with its own clock, and never compares a time with one of
another machine. It then writes itself into the object, on the condition that it is still that
version: of several that do so at once one succeeds, and the old owner, if it was only stopped, is
refused at its next heartbeat.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from shardctl.errors import (
    BusyError,
    NoSuchKeyError,
    ObjectChangedError,
    PerhapsBusyError,
    StoreError,
)
from shardctl.system.file_lease import (
    HEARTBEAT_SECONDS,
    STALE_SECONDS,
    Owner,
    Wait,
    Waiting,
    overtaken,
)
from shardctl.system.stores.base import Store
from shardctl.system.text import printable

ASK_SECONDS = 1.0
"""Seconds between the requests of a waiting process that ask for the lease."""

LEAVE_SECONDS = 10.0
"""How long the end of a lease waits for a heartbeat that is on its way. After that the lease is
left to grow old."""


@dataclass(frozen=True)
class LeaseTiming:
    """Seconds: between heartbeats, until a lease that stands still counts as left behind, between
    the looks of who waits."""

    heartbeat: float = HEARTBEAT_SECONDS
    stale: float = STALE_SECONDS
    ask: float = ASK_SECONDS


@dataclass(frozen=True)
class LeaseToken:
    """The key of a lease, and the token of who holds it: enough for workers elsewhere to see
    whether that is still so."""

    key: str
    token: str

    def check(self, store: Store) -> None:
        """Raise BusyError if another process has taken the lease over, or it is gone."""
        try:
            owner = _read(store.get(self.key).to_pybytes())
        except NoSuchKeyError:
            owner = None
        if owner is None or owner.token != self.token:
            raise overtaken(printable(store.url), owner)


@dataclass(eq=False)
class Lease:
    """The right to write one dataset, as long as its heartbeat continues. Threads may share it."""

    _store: Store
    _key: str
    _owner: Owner
    _version: str
    _pace: LeaseTiming
    _beats = 0
    _lost: BusyError | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    @property
    def sign(self) -> LeaseToken:
        """What tells other processes whether this one still holds the lease."""
        return LeaseToken(self._key, self._owner.token)

    def check(self) -> None:
        """Renew the lease: for the seconds that follow, nobody takes it over.

        Raises BusyError if another process has done so, as it may where this one stood still for
        long; StoreError if the store does not answer.
        """
        with self._lock:
            if self._lost is None and not self._renew():
                owner = owner_of(self._store, self._key)
                self._lost = overtaken(printable(self._store.url), owner)
            if self._lost is not None:
                raise self._lost

    def _renew(self) -> bool:
        """Write the next heartbeat, and return whether the lease is still this one's."""
        self._beats += 1
        beat = _record(self._owner, self._beats)
        version = self._store.replace(self._key, beat, self._version)
        if version is None and (last := self._last_of_mine()) is not None:
            version = self._store.replace(self._key, beat, last)
        self._version = version or self._version
        return version is not None

    def _last_of_mine(self) -> str | None:
        """Return the version of the lease if it is this one's: a heartbeat without an answer may
        have been written later."""
        found = self._store.stat(self._key)
        if found is None:
            return None
        try:
            written = _read(self._store.get(self._key, version=found.version).to_pybytes())
        except (NoSuchKeyError, ObjectChangedError):
            return None
        return found.version if written == self._owner else None

    def close(self) -> None:
        """Delete the lease if it is still this one's, and end the heartbeat.

        It is deleted without a condition, and the store may take long to do so: the heart beats
        until that is done, so that it is not the lease of one that has taken over meanwhile.
        """
        try:
            if self._lock.acquire(timeout=LEAVE_SECONDS):
                self._lock.release()
                # out of reach, and then it grows old; or another one's
                with contextlib.suppress(StoreError, BusyError):
                    self.check()
                    self._store.delete([self._key])
        finally:
            self._ended.set()
        self._thread.join(LEAVE_SECONDS)

    def _beat(self) -> None:
        while not self._ended.wait(self._pace.heartbeat):
            try:
                self.check()
            except BusyError:
                return  # the next check says so
            except StoreError:
                # out of reach for a while: the lease grows older, which is what it should do then
                continue


@contextlib.contextmanager
def hold(
    store: Store,
    key: str,
    waiting: Waiting | None,
    looking: Callable[[], None] = lambda: None,
    pace: LeaseTiming = LeaseTiming(),
) -> Iterator[Lease]:
    """Be the only one that holds the lease at `key`.

    If another one holds it, call `waiting` with its name and wait; if `waiting` is None, raise
    BusyError as soon as a heartbeat shows that it is there: one that was killed would else be in
    the way for ever. While this process waits, `looking` is called some times in a second.
    """
    me, watch, wait = Owner.me(), Watch(pace), Wait(printable(store.url), waiting, looking)
    mine = _record(me, 0)
    while (version := _try(store, key, mine, watch)) is None:
        owner = owner_of(store, key)
        if owner and (waiting is not None or watch.beats(key)):
            wait.tell(owner)
        wait.pause(pace.ask)
    with contextlib.closing(Lease(store, key, me, version, pace)) as lease:
        yield lease


@contextlib.contextmanager
def hold_if_free(store: Store, key: str, watch: Watch) -> Iterator[Lease]:
    """Be the only one that holds the lease at `key`, unless another one does, and wait for nothing.

    Raises BusyError if that one is there; PerhapsBusyError as long as `watch`, the same in each
    try, does not know.
    """
    me = Owner.me()
    version = _try(store, key, _record(me, 0), watch)
    if version is None:
        owner = owner_of(store, key)
        raise (BusyError if watch.beats(key) else PerhapsBusyError)(
            f"{printable(store.url)}: another shardctl is writing it "
            f"({owner or 'one that is just ending'})",
            owner,
        )
    with contextlib.closing(Lease(store, key, me, version, watch.pace)) as lease:
        yield lease


class Watch:
    """Tells which leases were left behind: their versions stood still for too long, by the clock of
    this process."""

    def __init__(self, pace: LeaseTiming = LeaseTiming()) -> None:
        self.pace = pace
        self._seen: dict[str, tuple[str, float]] = {}
        self._beating: set[str] = set()

    def is_left(self, key: str, version: str) -> bool:
        """Return whether the lease at a key, which has this version now, was left behind."""
        now = time.monotonic()
        seen, since = self._seen.get(key, ("", now))
        if seen != version:
            self._seen[key] = version, now
            if seen:
                self._beating.add(key)
            return False
        return now - since > self.pace.stale

    def beats(self, key: str) -> bool:
        """Return whether the lease at a key has changed since it was seen first: its owner is
        there."""
        return key in self._beating


def _try(store: Store, key: str, mine: bytes, watch: Watch) -> str | None:
    """Return the version of the lease with the bytes `mine`, if there was none or it was left
    behind; else None."""
    there = store.stat(key)
    if there is None:
        return store.create(key, mine)
    if watch.is_left(key, there.version):
        return store.replace(key, mine, there.version)
    return None


def _record(owner: Owner, beats: int) -> bytes:
    """Return the bytes of a lease: each heartbeat has others, since some stores make the version of
    an object of its bytes."""
    return json.dumps({**asdict(owner), "beats": beats}).encode()


def _read(data: bytes) -> Owner | None:
    try:
        fields = json.loads(data)
        del fields["beats"]
        return Owner(**fields)
    except (ValueError, TypeError, KeyError):
        return None


def owner_of(store: Store, key: str) -> str:
    """Return the name of who holds the lease, nothing if it is gone or cannot be read."""
    try:
        found = _read(store.get(key).to_pybytes())
    except NoSuchKeyError:
        return ""
    return str(found) if found is not None else "one that cannot be read"


PROBES = ".shardctl/probe-"
"""How the keys begin of the objects that are written to find out, and deleted at once."""


def probe(store: Store) -> None:
    """Raise StoreError if the store ignores conditions: two jobs that write the same dataset would
    not notice each other."""
    key = PROBES + secrets.token_hex(8)
    # who holds the lease of the dataset takes the object for that of a process that was killed, and
    # deletes it: that proves nothing
    try:
        with contextlib.suppress(BusyError), hold_if_free(store, key, Watch()) as held:
            probe_with(store, held, key)
    finally:
        store.delete([key])


def probe_with(store: Store, lease: Lease, key: str) -> None:
    """Do the same with a lease that is held, at this key: no object is left where this process is
    killed meanwhile."""
    if store.create(key, b"the second") is not None:
        lease.check()  # raises if it was another process that took the lease away
        raise unconditional(store)


def unconditional(store: Store) -> StoreError:
    """Return the error for a store that ignores conditions."""
    return StoreError(
        f"{printable(store.url)}: this store ignores conditions (If-None-Match); convert to a local folder, and upload that"
    )
