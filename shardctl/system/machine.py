"""The resources that this process may use: cores and memory, or the share of them in a container or
batch job.

Linux keeps such shares as control groups (cgroups), folders within each other: the tightest limit
on the way up counts.
"""

from __future__ import annotations

import errno
import math
import os
import resource
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
"""Says in which group this process is: a line `0::/group` (version 2), or `5:cpu,cpuacct:/group`
(version 1)."""

UNLIMITED = 1 << 30
"""More files than any process opens."""

NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""Errors of a process, or of the machine, that has as many files open as it may have."""

MORE_FILES = (
    "raise the limit of open files (ulimit -n) of the program, or let it keep fewer files open"
)
"""What helps against NO_DESCRIPTORS."""


def usable_cores() -> int:
    """Return how many cores this process may use. A share of 2.5 cores counts as 3."""
    share = cpu_share(CGROUPS, MEMBERSHIP)
    cores = len(usable_core_numbers())
    return cores if share is None else max(1, min(cores, math.ceil(share)))


def memory_bytes() -> int:
    """Return how much memory this process may use, together with the others of its container."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = memory_limit(CGROUPS, MEMBERSHIP)
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


def cpu_share(cgroups: Path, membership: Path) -> float | None:
    """Return how many cores' time the control groups grant, 0.5 for half a core; None for no limit.

    `cgroups` is where the groups are mounted, `membership` the file that names the one of a
    process.
    """
    shares = []
    for group in _groups(cgroups, membership, "cpu"):
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if not quota:
            quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
        # "max" and -1: no limit
        if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):
            shares.append(int(quota) / int(period))
    return min(shares, default=None)


def memory_limit(cgroups: Path, membership: Path) -> int | None:
    """Return how many bytes of memory the control groups grant, None for no limit."""
    limits = []
    for group in _groups(cgroups, membership, "memory"):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        if limit.isdecimal():
            limits.append(int(limit))
    return min(limits, default=None)


@cache
def boot() -> str:
    """Return what names one run of this machine's kernel: processes of which it is the same see
    each other's file locks."""
    return _read(Path("/proc/sys/kernel/random/boot_id")) or socket.gethostname()


def _groups(cgroups: Path, membership: Path, controller: str) -> Iterator[Path]:
    """Yield the groups of a process that could limit it, and their parents.

    In a container the path of its group may be that of the machine outside, and not be there: its
    own is the topmost then.
    """
    for line in _read(membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            tops = [cgroups, cgroups / "unified"]
        elif controller in controllers.split(","):
            tops = [cgroups / controllers, cgroups / controller]
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
