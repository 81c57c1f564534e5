"""One writer at a time: a lock that the system drops with its owner, and a heartbeat for owners on
other machines.

The parts of one conversion (`convert --part`) write at the same time, each with a lease of its own
below that of the dataset: whoever wants to be the only writer waits for them too.
"""

from __future__ import annotations

import datetime
import errno
import fcntl
import json
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from shardctl.errors import BusyError, StorageError
from shardctl.system.file_locks import is_at
from shardctl.system.files import naming_the_path, refuse_links
from shardctl.system.machine import boot
from shardctl.system.processes.fork import CLOSED_IN_FORKS
from shardctl.system.text import printable

LEASE = "lease"
PARTS = "parts"
"""A folder in that of a job, with a folder for each of its parts that is being built."""


def file_of_part(part: str) -> str:
    """Return the name of the file or folder for the lease of part I/N."""
    return part.replace("/", " of ")


def part_of_file(name: str) -> str:
    """Return I/N, of which `file_of_part` made a name."""
    return name.replace(" of ", "/")


HEARTBEAT_SECONDS = 5.0
"""Seconds between heartbeats: the owner of a lease writes it again."""

STALE_SECONDS = 30.0
"""Age at which the lease of another machine counts as left behind. Six heartbeats: file servers
stall for seconds."""

LOOK_SECONDS = 0.25
"""Seconds between checks of a waiting process whether the lease is free."""

ENDING_SECONDS = 60.0
"""How long a waiting process believes that the owner is just ending, while nothing else is seen:
file servers show what was removed for seconds. After that something else must be wrong."""

SETTLE_SECONDS = 1.0
"""Seconds that a process that takes over a lease without a lock waits, to see whether another one
does the same."""

RECORD_BYTES = 512

_ENDING = "one that is just ending"
_BEGUN = "one that has just begun"
_UNREADABLE = "one that cannot be read"

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)
"""The errors of file systems without locks: Lustre mounted without them, some NFS, some FUSE."""


@dataclass(frozen=True)
class Owner:
    """Who holds a lease. `boot` names one run of one machine's kernel: locks are known to hold
    within it."""

    host: str
    boot: str
    process: int
    since: str
    token: str

    @classmethod
    def me(cls) -> Owner:
        """Return this process as a new owner."""
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        return cls(socket.gethostname(), boot(), os.getpid(), now, secrets.token_hex(8))

    def __str__(self) -> str:
        return f"process {self.process} on {printable(self.host)}, since {printable(self.since)}"


def overtaken(shown: str, owner: object) -> BusyError:
    """Return an error for work whose lease another process has taken over."""
    return BusyError(
        f"{shown}: the process stood still for so long that {owner or 'another one'} took over; "
        "nothing was lost"
    )


@dataclass(eq=False)
class Lease:
    """The right to write one dataset, as long as its heartbeat continues."""

    _path: Path
    _descriptor: int
    _owner: Owner
    _shown: str

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def begin(self) -> None:
        """Write the owner into the lease, and go on doing so."""
        _write(self._descriptor, self._owner)
        self._thread.start()

    def check(self) -> None:
        """Raise BusyError if another process has taken the lease over, as it may where this one
        stood still for long."""
        with naming_the_path(self._path):
            owner = _owner_now(self._path, self._descriptor)
        if owner != self._owner:
            raise overtaken(self._shown, owner)

    def release(self) -> None:
        """End the heartbeat, and take the lease file away if it is still this one's."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        with suppress(OSError):  # out of reach; then it grows old there
            # No owner: the disk was too full to write one.
            if is_at(self._descriptor, self._path) and _owner(self._descriptor) in (
                None,
                self._owner,
            ):
                self._path.unlink()

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            # Out of space or out of reach for a while: the lease grows older, which is what it
            # should do then.
            with suppress(OSError, StorageError, BusyError):
                self.check()
                _write(self._descriptor, self._owner)


def is_leased(staging: Path) -> bool:
    """Return whether a process holds the lease, or one that was killed has left it, or the empty
    folder that it was in."""
    with suppress(OSError):  # it is not there
        names = os.listdir(staging)
        return not names or LEASE in names
    return False


Waiting = Callable[[str], None]
"""Callback of a process that waits for another writer: it gets its name."""


def hold(
    staging: Path, waiting: Waiting | None, looking: Callable[[], None] = lambda: None
) -> AbstractContextManager[Lease]:
    """Be the only writer of the dataset with this `staging` folder, but for the parts of a
    conversion that are being built: none can begin meanwhile.

    If there is another writer, call `waiting` with its name and wait; if `waiting` is None, raise
    BusyError at once. While this process waits, `looking` is called some times in a second.
    """
    return _holding(staging, Wait(_shown(staging), waiting, looking))


def hold_part(job: Path, part: str) -> AbstractContextManager[Lease]:
    """Be the only one who builds this part of a conversion, whose job is in the folder `job` of a
    staging folder.

    The caller holds the lease of the dataset when this begins. Raises BusyError if another process
    builds it.
    """
    wait = Wait(f"{_shown(job.parent)}: part {part}", None)
    return _holding(job / PARTS / file_of_part(part), wait)


def parts_being_built(staging: Path) -> dict[str, str]:
    """Return who builds which part of a conversion. The caller holds the lease of the dataset: no
    part can begin now."""
    found = {}
    with naming_the_path(staging):
        for folder in sorted(staging.glob(f"*/{PARTS}/*")):
            if (holder := _holder(folder)) is not None:
                found[part_of_file(folder.name)] = holder
    return found


def await_parts(
    staging: Path, waiting: Waiting | None, looking: Callable[[], None] = lambda: None
) -> None:
    """Wait until no part of a conversion is being built, as `hold` waits. The caller holds the
    lease of the dataset."""
    wait = Wait(_shown(staging), waiting, looking)
    while parts := parts_being_built(staging):
        part, owner = next(iter(parts.items()))
        wait.tell(f"part {part}: {owner}")
        wait.pause(LOOK_SECONDS)


@dataclass
class Wait:
    """Waits for another writer of the dataset that is `shown` so, and tells `waiting` who it is.
    Meanwhile `looking` is called some times in a second."""

    shown: str
    waiting: Waiting | None
    looking: Callable[[], None] = lambda: None
    announced = ""

    def tell(self, other: str) -> None:
        """Tell of this writer, once. Raises BusyError where nobody is told."""
        if self.waiting is None:
            raise BusyError(f"{self.shown}: another shardctl is writing it ({other})", other)
        if other != self.announced:
            self.waiting(other)
            self.announced = other

    def pause(self, seconds: float) -> None:
        """Wait for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.looking()
            time.sleep(min(left, LOOK_SECONDS))


@contextmanager
def _holding(staging: Path, wait: Wait) -> Iterator[Lease]:
    """Hold the lease in a folder, which is made for it, and taken away with it if nothing else is
    in it."""
    me = Owner.me()
    with naming_the_path(staging):
        refuse_links(staging)
        new = [folder for folder in (staging, staging.parent) if not folder.exists()]
        descriptor = _acquire(staging, me, wait)
    CLOSED_IN_FORKS.add(descriptor)
    try:
        lease = Lease(staging / LEASE, descriptor, me, wait.shown)
        try:
            with naming_the_path(staging):
                lease.begin()
            yield lease
        finally:
            lease.release()
    finally:
        CLOSED_IN_FORKS.discard(descriptor)
        os.close(descriptor)
        for folder in dict.fromkeys([staging, *new]):
            with suppress(OSError):  # something is in it, and stays
                folder.rmdir()


def _acquire(staging: Path, me: Owner, wait: Wait) -> int:
    """Return the descriptor of the lease, once it belongs to `me`. Raises StorageError where there
    is no other writer, and only the lease cannot be made."""
    seen = time.monotonic()
    while True:
        descriptor, other = _try(staging, me)
        if other is None:
            return descriptor
        wait.tell(other)
        if other != _ENDING:
            seen = time.monotonic()
        elif time.monotonic() - seen > ENDING_SECONDS:
            raise StorageError(
                f"{wait.shown}: cannot write here: its lease could not be made for "
                f"{ENDING_SECONDS:.0f} seconds, though no other shardctl writes it"
            )
        wait.pause(LOOK_SECONDS)


def _try(staging: Path, me: Owner) -> tuple[int, str | None]:
    """Open the lease and try to get it. Return its descriptor, and who else has it; then the
    descriptor is closed."""
    # Another writer takes away no more than these two folders. What is wrong with those above, or
    # with making the first one in a folder that is there, is no sign of one.
    staging.parent.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        staging.parent.mkdir(exist_ok=True)
    with ExitStack() as opened:
        try:
            staging.mkdir(exist_ok=True)
            descriptor, made = _open(staging / LEASE)
            opened.callback(os.close, descriptor)
            other = _other_owner(descriptor, made, staging, me)
        except (FileNotFoundError, FileExistsError):
            if staging.exists() and not staging.is_dir():
                raise
            return -1, _ENDING  # it has just taken the file or the folder away
        if other is None:
            opened.pop_all()
        return descriptor, other


def _open(path: Path) -> tuple[int, bool]:
    """Open the lease file, and return whether this call has made it."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644), True
    except FileExistsError:
        return _open_old(path), False


def _open_old(path: Path) -> int:
    # a lease is written in place: a link in its place would have another file overwritten
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW)


def _other_owner(descriptor: int, made: bool, staging: Path, me: Owner) -> str | None:
    """Return who holds the lease, None once `me` does."""
    try:
        locked = _lock(descriptor)
    except (BlockingIOError, PermissionError):
        # the latter on SMB, which does not let others read what is locked either
        with suppress(OSError):
            return str(_owner(descriptor) or _BEGUN)
        return _UNREADABLE
    owner = _owner(descriptor)
    if not is_at(descriptor, staging / LEASE):
        return _ENDING
    # A lock that is free proves that the owner is gone, if that was a process of this machine. The
    # locks of other machines need not be seen here, and some file systems have none at all: then
    # the heartbeat decides.
    if made or (locked and (owner is None or owner.boot == boot())):
        return None
    if _age(descriptor, staging) <= STALE_SECONDS:
        return str(owner or _BEGUN)
    return (
        None
        if _take_over(descriptor, staging / LEASE, me)
        else "another one that has just taken it over"
    )


def _lock(descriptor: int) -> bool:
    """Lock the lease file, and return whether its file system has locks. Raises BlockingIOError or
    PermissionError if it is locked."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True


def _holder(staging: Path) -> str | None:
    """Return who holds the lease in a folder; None if nobody does: there is none, or it was left
    behind. Takes it from none."""
    try:
        descriptor = _open_old(staging / LEASE)
    except FileNotFoundError:
        return None
    try:
        locked = _lock(descriptor)
        owner = _owner(descriptor)
        if locked and (owner is None or owner.boot == boot()):
            return None
        return str(owner or _BEGUN) if _age(descriptor, staging) <= STALE_SECONDS else None
    except (BlockingIOError, PermissionError):
        with suppress(OSError):
            return str(_owner(descriptor) or _BEGUN)
        return _UNREADABLE
    finally:
        os.close(descriptor)


def _take_over(descriptor: int, path: Path, me: Owner) -> bool:
    """Write `me` into a lease that was left behind. Of several that do so at once the last one has
    it."""
    _write(descriptor, me)
    time.sleep(SETTLE_SECONDS)
    return _owner_now(path, descriptor) == me


def _write(descriptor: int, owner: Owner) -> None:
    os.pwrite(descriptor, json.dumps(asdict(owner)).encode().ljust(RECORD_BYTES), 0)


def _owner(descriptor: int) -> Owner | None:
    try:
        return Owner(**json.loads(os.pread(descriptor, RECORD_BYTES, 0)))
    except (ValueError, TypeError):
        return None


def _owner_now(path: Path, held: int) -> Owner | None:
    """Return who the lease at `path` says its owner is, None if it is gone. `held` is its
    descriptor.

    It is opened again, since NFS shows the writes of others only after an open.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return _owner(descriptor)
    except PermissionError:  # SMB lets only the descriptor that has the lock read
        return _owner(held)
    finally:
        os.close(descriptor)


def _age(descriptor: int, staging: Path) -> float:
    """Return the seconds since the last heartbeat by the clock of the file system, which all
    machines see alike."""
    with tempfile.TemporaryFile(dir=staging) as clock:
        clock.write(b"now")
        clock.flush()
        return os.fstat(clock.fileno()).st_mtime - os.fstat(descriptor).st_mtime


def _shown(staging: Path) -> str:
    """Name the dataset of a staging folder."""
    return printable(staging.parent)
