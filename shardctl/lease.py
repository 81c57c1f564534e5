"""One writer at a time: a lock on a file in the dataset's staging folder, which the system drops when its owner ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from shardctl.errors import BusyError
from shardctl.storage import naming_the_path, printable

try:
    import fcntl
except ImportError:  # Windows has no fcntl, and shardctl no lock there yet
    fcntl = None  # type: ignore[assignment]

LEASE = "lease"


@contextlib.contextmanager
def hold(staging: Path) -> Iterator[None]:
    """Be the only converter of this dataset within the block. Raises BusyError, naming the process that is."""
    path = staging / LEASE
    with naming_the_path(staging):
        staging.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(descriptor, staging)
        _refuse_if_gone(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _refuse_if_gone(descriptor: int, path: Path) -> None:
    """A converter that ends takes its staging folder away: a lock on the file that was there keeps nobody out."""
    if not path.exists() or not os.path.samestat(os.fstat(descriptor), path.stat()):
        raise BusyError(
            f"{printable(str(path.parent.parent))}: another shardctl convert has just written it; run the same again"
        )


def _lock(descriptor: int, staging: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, 32, 0).decode("ascii", "replace") or "unknown"
        shown = printable(str(staging.parent))
        raise BusyError(f"{shown}: another shardctl convert (process {owner}) is writing it; wait until it ends") from None
