"""The resources that this process may use: cores and memory, or the share of them in a container or
batch job; and what a process of ours does before anything else.

Linux keeps such shares as control groups (cgroups), folders within each other: the tightest limit
on the way up counts.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import math
import os
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
"""Where the groups are mounted."""

MEMBERSHIP = Path("/proc/self/cgroup")
"""Says in which group this process is: a line `0::/group` (version 2), or `5:cpu,cpuacct:/group`
(version 1)."""

UNLIMITED = 1 << 30
"""More files than any process opens."""

NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""Errors of a process, or of the machine, that has as many files open as it may have."""

MORE_FILES = "raise the limit of open files (ulimit -n), or keep fewer open"
"""What helps against NO_DESCRIPTORS."""


def usable_cores() -> int:
    """Return how many cores this process may use. A share of 2.5 cores counts as 3."""
    share = cpu_share()
    cores = len(usable_core_numbers())
    return cores if share is None else max(1, min(cores, math.ceil(share)))


def memory_bytes() -> int:
    """Return how much memory this process may use, together with the others of its container."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = memory_limit()
    return physical if limit is None else min(physical, limit)


def open_files_left() -> int:
    """Return how many more files this process may open once it has raised its own limit as far as
    it may.

    Both limits of RLIMIT_NOFILE count sockets and pipes too.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if hard == resource.RLIM_INFINITY else max(0, hard - _open_files())


def allow_open_files(more: int) -> bool:
    """Make sure that this process can open so many files more than it has now, and return whether
    it can.

    The limit that a process starts with (often 1,024, or 256) is one that it may raise itself, up
    to the hard limit. It is raised only as far as needed, and not lowered again. Processes that are
    started later inherit it. That harms none that opens few files: only select(2) cannot deal with
    descriptors from 1,024 on, and it could not open those before.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _open_files() + more
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return True
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (OSError, ValueError):
        # beyond the hard limit; macOS has another one for all processes, which no call returns
        return False
    return True


def _open_files() -> int:
    """Return how many files this process has open; 0 where the system does not tell."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError as error:  # to look takes a descriptor too: if there is none, all are in use
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0] if error.errno == errno.EMFILE else 0


def usable_core_numbers() -> list[int]:
    """Return the numbers of the cores that this process may run on."""
    return (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )


def cpu_share() -> float | None:
    """Return how many cores' time the control groups grant, 0.5 for half a core; None for no
    limit."""
    shares = []
    for group in _groups("cpu"):
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if not quota:
            quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
        # "max" and -1: no limit
        if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):
            shares.append(int(quota) / int(period))
    return min(shares, default=None)


def memory_limit() -> int | None:
    """Return how many bytes of memory the control groups grant, None for no limit."""
    limits = (
        _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        for group in _groups("memory")
    )
    return min(map(int, filter(str.isdecimal, limits)), default=None)


@cache
def boot() -> str:
    """Return what names one run of this machine's kernel: processes of which it is the same see
    each other's file locks."""
    return _read(Path("/proc/sys/kernel/random/boot_id")) or socket.gethostname()


def _groups(controller: str) -> Iterator[Path]:
    """Yield the groups of a process that could limit it, and their parents.

    In a container the path of its group may be that of the machine outside, and not be there: its
    own is the topmost then.
    """
    for line in _read(MEMBERSHIP).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            tops = [CGROUPS, CGROUPS / "unified"]
        elif controller in controllers.split(","):
            tops = [CGROUPS / controllers, CGROUPS / controller]
        else:
            continue
        inner = Path(path.lstrip("/"))
        for top in tops:
            for folder in (inner, *inner.parents):
                yield top / folder


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Variables that keep numpy's linear algebra, and an unused allocator of Arrow, from starting
threads at import."""


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import numpy and Arrow, and inside the block modules of ours, as fast as it goes. For
    commands, at their beginning.

    The garbage collector waits: it finds nothing while modules are made, and takes 30 ms of 300
    (measured 2026-11-27). What was made counts as old then. As new objects, the collector would
    look at all of them when it goes on, for 20 ms, and in a process that has been forked each page
    that it writes to is copied.
    """
    gc.disable()
    try:
        import_without_threads()
        keep_pandas_out_of_arrow()
        yield
    finally:
        gc.freeze()
        gc.unfreeze()  # into the oldest generation
        gc.enable()


@contextmanager
def collector_waits() -> Iterator[None]:
    """Have the garbage collector wait within the block, which makes many small objects that are in
    no circle."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def import_without_threads() -> None:
    """Import numpy and Arrow without the threads that they would start, unless the environment asks
    for these.

    A process that forks must have none. And numpy starts one per core, of which each spins for 60
    ms on a core that other processes want at that moment (measured 2026-11-21, numpy 2.4), for
    matrices that nothing of ours multiplies.
    """
    added = {name: value for name, value in NO_THREADS.items() if name not in os.environ}
    os.environ.update(added)
    try:
        import numpy  # noqa: F401 - imported for the effect
        import pyarrow  # noqa: F401
    finally:
        for name in added:
            del os.environ[name]


def keep_pandas_out_of_arrow() -> None:
    """Stop Arrow from importing pandas, where it is installed, at the first list that it makes an
    array of.

    Arrow only wants to know whether that list is a pandas object; in a worker it never is, and the
    import costs 0.4 s of every process (measured 2026-11-20, pandas 3.1). Arrow asks once:
    afterwards pandas can be imported as ever.
    """
    import pyarrow as pa

    refusal = _NoPandas()
    sys.meta_path.insert(0, refusal)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(refusal)


ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Variables by which torch and other libraries that a person's code imports compute in one
thread."""


def one_thread_each() -> None:
    """Let libraries that are imported later compute in one thread, unless the environment says
    otherwise.

    There is a worker for each core. And sums are added up in another order with another number of
    threads.
    """
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)


def reuse_memory() -> None:
    """Let the C library keep memory that was freed, up to 64 MB, for the next image. Where it is
    not glibc, nothing changes.

    It would otherwise give the pixels of every image back to the system and ask for them again,
    page by page: at 500 pixels a side, a change of saturation took 5.3 ms, and without the 1,165
    page faults of it 2.3 ms (measured 2026-11-22).
    """
    # another C library, or none that can be asked
    with suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 64 << 20)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt (malloc.h)."""


class _NoPandas:
    """Refuses to find pandas."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "pandas":
            raise ImportError("left out while Arrow starts")
