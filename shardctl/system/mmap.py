"""Files mapped into memory that may shrink without killing the process.

Reading a mapped page that its file no longer has raises SIGBUS and ends the process: a truncated
file would kill a training job. A check before reading does not help, since the file may shrink
after it. So the signal is handled: the missing pages of the mapped file are replaced by zeros, the
interrupted reading continues, and `mended` counts it, so that the reader discards these values and
reports the file.

The signal is raised by the reading instruction itself, in the thread that reads, so that the
handler interrupts nothing but a copy of bytes: a place where Python may run as in any other
callback from C. The address that was read says whether the signal is ours: several threads may
fault on one file, and those that come second find it already repaired.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.system.files import ordinary

_MAP_FIXED = 0x10
"""Linux and macOS agree on it."""

_FAILED = ctypes.c_void_p(-1).value

_lock = threading.RLock()
_watched: weakref.WeakSet[_Mapping] = weakref.WeakSet()
_mended = 0


def mended() -> int:
    """Return how many times pages have been replaced in this process."""
    return _mended


def was_mended(address: int) -> bool:
    """Return whether this address is in a mapped file of which pages have been replaced."""
    if not _mended:
        return False
    with _lock:
        return any(address in mapping and mapping.is_mended for mapping in _watched)


def map_whole(path: Path, large_pages: bool) -> pa.Buffer:
    """Return a file's bytes, mapped, read-only. Takes no file descriptor beyond this call. Raises
    OSError.

    With `large_pages` Linux reads and maps 2 MiB at a time where it can: for files that fit in
    memory, whose other bytes will be wanted too. Gathering 150 kB from anywhere is then 1.1 times
    as fast (docs/dev/measurements.md).
    """
    descriptor = ordinary(str(path), os.O_RDONLY)
    try:
        status = os.fstat(descriptor)
        if not status.st_size:
            return pa.py_buffer(b"")
        address = _mapped(descriptor, status.st_size, mmap.PROT_READ, str(path))
    finally:
        os.close(descriptor)
    if large_pages and hasattr(mmap, "MADV_HUGEPAGE"):
        # a wish: it does not matter whether it is granted
        _libc().madvise(address, status.st_size, mmap.MADV_HUGEPAGE)
    mapping = _Mapping(path, status.st_ino, address, status.st_size)
    weakref.finalize(mapping, _libc().munmap, address, status.st_size).atexit = False
    watch()
    with _lock:
        _watched.add(mapping)
    return pa.foreign_buffer(address, status.st_size, base=mapping)


def map_file(path: Path, large_pages: bool = False) -> pa.NativeFile:
    """Map a file into memory: uncompressed values are read in place. One that shrinks reads as
    zeros."""
    # Arrow's own memory_map costs five times as much to open: it reads the footer in a thread of
    # its own.
    return pa.BufferReader(map_whole(path, large_pages))


def _mapped(descriptor: int, size: int, protection: int, *path: str) -> int:
    """Return the address at which a file is mapped now. Raises OSError, with the path of the file
    where that is given."""
    address = _libc().mmap(None, size, protection, mmap.MAP_SHARED, descriptor, 0)
    if address in (None, _FAILED):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), *path)
    return int(address)


class SharedPages:
    """Pages of a file that another process has mapped too, writable, for as long as this object or
    an array of it is there."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Map `size` bytes. Takes no file descriptor beyond this call. Raises OSError."""
        self.address = _mapped(descriptor, size, mmap.PROT_READ | mmap.PROT_WRITE)
        self.size = size
        # What numpy makes an array of, which then keeps this object.
        self.__array_interface__ = {
            "data": (self.address, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }
        weakref.finalize(self, _libc().munmap, self.address, size).atexit = False

    def bytes(self) -> npt.NDArray[np.uint8]:
        """Return a new array (size,) of the bytes."""
        return np.asarray(self)


def resident_pages(path: Path) -> tuple[int, int] | None:
    """Return how many pages a file has, and how many of them are in memory (mincore(2)); None if
    that is unknown."""
    if not hasattr(_libc(), "mincore"):
        return None
    with open(path, "rb", opener=ordinary) as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return 0, 0
        address = _mapped(file.fileno(), size, mmap.PROT_READ)
    found = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    failed = _libc().mincore(address, size, found)
    _libc().munmap(address, size)
    return None if failed else (len(found), sum(byte & 1 for byte in found.raw))


class _Mapping:
    """One mapped file, for as long as some buffer refers to it."""

    def __init__(self, path: Path, inode: int, address: int, size: int) -> None:
        self._path, self._inode, self.address, self._size = path, inode, address, size
        self._good = size

    def __contains__(self, address: int) -> bool:
        return self.address <= address < self.address + self._size

    @property
    def is_mended(self) -> bool:
        """Whether pages have been replaced."""
        return self._good < self._size

    def mend(self, address: int) -> None:
        """Put zeros in place of the pages that the file has lost, and of the one at `address`,
        which could not be read.

        Does nothing where that was done before: another thread may have been faster.
        """
        global _mended
        page = (address - self.address) // mmap.PAGESIZE * mmap.PAGESIZE
        if page >= self._good:
            return
        # A page that is there and cannot be read is a fault of the disk, or the file has grown
        # again: it is lost all the same.
        kept = min(-(-self._bytes_left() // mmap.PAGESIZE) * mmap.PAGESIZE, page)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        # Noted first: as soon as the zeros are there, other threads read them without a fault of
        # their own.
        self._good = kept
        _mended += 1
        _libc().mmap(self.address + kept, self._size - kept, mmap.PROT_READ, flags, -1, 0)

    def _bytes_left(self) -> int:
        """Return how much of the file is there. Nothing of one that is gone: what is left of it may
        be cut short unseen."""
        try:
            status = self._path.stat()
        except OSError:
            return 0
        return status.st_size if status.st_ino == self._inode else 0


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    libc.mmap.restype = ctypes.c_void_p
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    return libc


class _Action(ctypes.Structure):
    """What is done at a signal: C's struct sigaction."""

    _fields_ = (
        [("handler", ctypes.c_void_p), ("mask", ctypes.c_uint32), ("flags", ctypes.c_int)]
        if sys.platform == "darwin"
        else [
            ("handler", ctypes.c_void_p),
            ("mask", ctypes.c_uint64 * 16),
            ("flags", ctypes.c_int),
            ("restorer", ctypes.c_void_p),
        ]
    )


_SA_SIGINFO, _SA_RESTART = (0x40, 0x2) if sys.platform == "darwin" else (0x4, 0x10000000)
_CODE_AT, _ADDRESS_AT = 8, 24 if sys.platform == "darwin" else 16 if sys.maxsize > 2**32 else 12
"""Where siginfo_t says what raised the signal, and which address was read."""

_previous = _Action()
"""What was done at a SIGBUS before shardctl took it over."""

_gave_back = False
"""Whether a signal was left to `_previous`."""


@cache
def _sigaction() -> Any:
    """Return sigaction(2), called without letting other threads run: it is called for every
    batch."""
    function = ctypes.PyDLL(None, use_errno=True).sigaction
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    return function


@cache
def _ours() -> _Action:
    action = _Action()
    action.handler = ctypes.cast(_handler, ctypes.c_void_p).value
    action.flags = _SA_SIGINFO | _SA_RESTART
    return action


def watch() -> None:
    """Take SIGBUS over where it is not ours, or not any more: torch's worker processes and others
    put theirs in its place."""
    global _gave_back
    current = _Action()
    _sigaction()(signal.SIGBUS, None, ctypes.byref(current))
    if current.handler == _ours().handler:
        return
    with _lock:
        ctypes.memmove(ctypes.byref(_previous), ctypes.byref(current), ctypes.sizeof(_Action))
        _gave_back = False
        _sigaction()(signal.SIGBUS, ctypes.byref(_ours()), None)


def _on_signal(number: int, info: int, _context: int) -> None:
    """Repair the mapped file that was read; for any other address, call the handler that was set
    before."""
    global _gave_back
    code = ctypes.c_int.from_address(info + _CODE_AT).value
    address = ctypes.c_size_t.from_address(info + _ADDRESS_AT).value
    with _lock:
        mapping = next((mapping for mapping in _watched if address in mapping), None)
        if mapping is not None and code > 0:
            mapping.mend(address)
            return
        # The reading instruction is repeated, and meets the handler of before. If that one calls
        # ours, the default one ends it.
        _sigaction()(number, ctypes.byref(_Action() if _gave_back else _previous), None)
        _gave_back = True
    if code <= 0:  # sent by a process, not by a reading: nothing would repeat it
        os.kill(os.getpid(), number)


_handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(_on_signal)


def _renew() -> None:
    """Take a fresh lock in a forked child: a thread that is not there may have held the old one."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew)
