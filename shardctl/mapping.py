"""Files mapped into memory that may shrink without killing the process.

Reading a mapped page that its file no longer has is a SIGBUS, and the end of the process: of a training job, because somebody
cut a file short. No check before reading closes the gap between the check and the reading. So the signal is handled: the
missing pages of every mapped file that shrank are replaced by zeros, the interrupted reading goes on, and `mended` counts
it, so that whoever reads knows to throw away what was read and to say which file it was.

The signal is raised by the reading instruction itself, in the thread that reads, so that the handler interrupts nothing but
a copy of bytes: a place where Python may run as in any other callback from C.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

_MAP_FIXED = 0x10
"""Linux and macOS agree on it."""

_FAILED = ctypes.c_void_p(-1).value

_lock = threading.Lock()
_watched: weakref.WeakSet[_Mapping] = weakref.WeakSet()
_mended = 0


def mended() -> int:
    """Return how many times pages have been replaced in this process."""
    return _mended


def map_whole(path: Path, large_pages: bool) -> pa.Buffer:
    """Return a file's bytes, mapped, read-only. Takes no file descriptor beyond this call. Raises OSError.

    With `large_pages` Linux reads and maps 2 MiB at a time where it can: for files that fit in memory, whose other bytes will
    be wanted too. Gathering 150 kB from anywhere is then 1.1 times as fast (docs/performance.md).
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not status.st_size:
            return pa.py_buffer(b"")
        address = _libc().mmap(None, status.st_size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address in (None, _FAILED):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    if large_pages and hasattr(mmap, "MADV_HUGEPAGE"):
        _libc().madvise(address, status.st_size, mmap.MADV_HUGEPAGE)  # a wish: it does not matter whether it is granted
    mapping = _Mapping(path, status.st_ino, address, status.st_size)
    weakref.finalize(mapping, _libc().munmap, address, status.st_size).atexit = False
    _handle_signal()
    with _lock:
        _watched.add(mapping)
    return pa.foreign_buffer(address, status.st_size, base=mapping)


def resident_pages(path: Path) -> tuple[int, int] | None:
    """Return how many pages a file has, and how many of them are in memory (mincore(2)); None where nobody tells."""
    if not hasattr(_libc(), "mincore"):
        return None
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        address = _libc().mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0) if size else None
    if address in (None, _FAILED):
        return 0, 0
    found = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    failed = _libc().mincore(address, size, found)
    _libc().munmap(address, size)
    return None if failed else (len(found), sum(byte & 1 for byte in found.raw))


class _Mapping:
    """One mapped file, for as long as some buffer refers to it."""

    def __init__(self, path: Path, inode: int, address: int, size: int) -> None:
        self._path, self._inode, self._address, self._size = path, inode, address, size
        self._good = size

    def mend(self) -> bool:
        """Put zeros in place of the pages that the file has lost. Return whether it has lost any since the last time."""
        kept = -(-self._bytes_left() // mmap.PAGESIZE) * mmap.PAGESIZE
        if kept >= self._good:
            return False
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        _libc().mmap(self._address + kept, self._size - kept, mmap.PROT_READ, flags, -1, 0)
        self._good = kept
        return True

    def _bytes_left(self) -> int:
        """Return how much of the file is there. Nothing of one that is gone: what is left of it may be cut short unseen."""
        try:
            status = self._path.stat()
        except OSError:
            return 0
        return status.st_size if status.st_ino == self._inode else 0


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.mmap.restype = ctypes.c_void_p
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal.restype = ctypes.c_void_p
    return libc


@cache
def _handle_signal() -> int:
    """Take over SIGBUS, once per process, and return the handler that there was."""
    return _libc().signal(signal.SIGBUS, ctypes.cast(_handler, ctypes.c_void_p)) or 0


def _on_signal(number: int) -> None:
    """Mend what has shrunk; where nothing has, the signal is not ours, and what was there before hears of it at once."""
    global _mended
    if any([mapping.mend() for mapping in list(_watched)]):  # noqa: C419 - all of them, not until the first
        _mended += 1
    else:
        _libc().signal(number, _handle_signal())


_handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(_on_signal)
