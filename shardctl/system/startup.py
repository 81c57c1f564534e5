"""What a process of our own does before anything else."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

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
