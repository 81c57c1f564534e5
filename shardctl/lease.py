"""One writer at a time: a lock that the system drops with its owner, and a heartbeat for owners on other machines."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from shardctl.errors import BusyError
from shardctl.storage import naming_the_path, printable

try:
    import fcntl
except ImportError:  # Windows has no fcntl, and shardctl no lock there yet
    fcntl = None  # type: ignore[assignment]

LEASE = "lease"
HEARTBEAT_SECONDS = 5.0
"""How often the owner of a lease writes it anew."""

STALE_SECONDS = 30.0
"""Age at which the lease of another machine counts as left behind. Six heartbeats: file servers stall for seconds."""

LOOK_SECONDS = 0.25
"""How often one who waits looks whether the lease is free."""

RECORD_BYTES = 512


@dataclass(frozen=True)
class Owner:
    """Who holds a lease. `boot` names one run of one machine's kernel: locks are known to hold within it."""

    host: str
    boot: str
    process: int
    since: str
    token: str

    @classmethod
    def me(cls) -> Owner:
        """Return this process as a new owner."""
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        return cls(socket.gethostname(), _boot(), os.getpid(), now, secrets.token_hex(8))

    def __str__(self) -> str:
        return f"process {self.process} on {printable(self.host)}, since {printable(self.since)}"


class Lease:
    """The right to write one dataset, as long as its heartbeat goes on."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self._owner = Owner.me()
        self._ended = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise BusyError if another machine has taken the lease over, as it may where this one stood still for long."""
        owner = _owner(self._descriptor)
        if owner != self._owner:
            raise BusyError(
                f"{_shown(self._path)}: this process stood still for so long that {owner} took over; nothing was lost"
            )

    def release(self) -> None:
        """End the heartbeat, and take the lease file away if it is still this one's."""
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError):  # out of reach; then it grows old there
            if _is_at(self._descriptor, self._path):
                self._path.unlink()

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            # Out of space or out of reach for a while: the lease grows older, which is what it should do then.
            with contextlib.suppress(OSError, BusyError):
                self.check()
                self._write()

    def _write(self) -> None:
        record = json.dumps(asdict(self._owner)).encode().ljust(RECORD_BYTES)
        os.pwrite(self._descriptor, record, 0)


@contextlib.contextmanager
def hold(staging: Path, waiting: Callable[[str], None] | None) -> Iterator[Lease]:
    """Be the only writer of the dataset that `staging` lies in.

    Where another one is, wait, having told `waiting` who it is; with None raise BusyError at once.
    """
    with naming_the_path(staging):
        new = [folder for folder in (staging, staging.parent) if not folder.exists()]
        descriptor = _acquire(staging, waiting)
    try:
        with naming_the_path(staging):
            lease = Lease(staging / LEASE, descriptor)
        try:
            yield lease
        finally:
            lease.release()
    finally:
        os.close(descriptor)
        for folder in dict.fromkeys([staging, *new]):
            with contextlib.suppress(OSError):  # something is in it, and stays
                folder.rmdir()


def _acquire(staging: Path, waiting: Callable[[str], None] | None) -> int:
    told = ""
    while True:
        staging.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # its owner has just taken the folder away
            descriptor = os.open(staging / LEASE, os.O_RDWR | os.O_CREAT, 0o644)
            other = _other_owner(descriptor, staging)
            if other is None:
                return descriptor
            os.close(descriptor)
            if waiting is None:
                raise BusyError(f"{_shown(staging / LEASE)}: another shardctl convert is writing it ({other})")
            if other != told:
                waiting(other)
                told = other
        time.sleep(LOOK_SECONDS)


def _other_owner(descriptor: int, staging: Path) -> str | None:
    """Return who holds the lease, None once this process does."""
    owner = _owner(descriptor)
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return str(owner or "one that has just begun")
    if not _is_at(descriptor, staging / LEASE):
        return "one that is just ending"
    # The lock is free. On the owner's own machine that proves that it is gone; the locks of other machines need not
    # be seen here, but its heartbeat is.
    if owner is None or owner.boot == _boot() or _age(descriptor, staging) > STALE_SECONDS:
        return None
    return str(owner)


def _owner(descriptor: int) -> Owner | None:
    try:
        return Owner(**json.loads(os.pread(descriptor, RECORD_BYTES, 0)))
    except (ValueError, TypeError):
        return None


def _age(descriptor: int, staging: Path) -> float:
    """Return the seconds since the last heartbeat by the clock of the file system, which both machines see alike."""
    clock = staging / f"clock.{secrets.token_hex(4)}"
    with open(clock, "wb") as file:
        file.write(b"now")
        file.flush()
        now = os.fstat(file.fileno()).st_mtime
    clock.unlink()
    return now - os.fstat(descriptor).st_mtime


def _is_at(descriptor: int, path: Path) -> bool:
    """Tell whether `path` still is the file that was opened: it may have been replaced or taken away since."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def _shown(lease: Path) -> str:
    return printable(str(lease.parent.parent))
