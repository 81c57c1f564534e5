"""Run a command whose process, and each that it starts, ends where it has written beyond its memory
(glibc's MALLOC_CHECK_).

    python scripts/torture/checked_memory.py COMMAND …

All memory of Python, numpy and Arrow is the C library's then, fresh memory is no zeros, and what
was given back is overwritten: who reads on there reads nonsense. A write is found when its memory
is given back, and a reading is not found: valgrind and pages that belong to nobody find these
(fuzz_headers.py, test_gather.py). Where the C library cannot do it, nothing is looked for.
"""

from __future__ import annotations

import ctypes
import os
import sys

DEBUG = "libc_malloc_debug.so.0"


def environment() -> dict[str, str]:
    """Return the environment of such a process."""
    found = {
        "MALLOC_CHECK_": "3",
        "MALLOC_PERTURB_": "165",
        "PYTHONMALLOC": "malloc",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    }
    try:
        ctypes.CDLL(DEBUG)
    except OSError:  # glibc before 2.34 does it by itself
        return {**os.environ, **found}
    return {**os.environ, **found, "LD_PRELOAD": DEBUG}


if __name__ == "__main__":
    os.execvpe(sys.argv[1], sys.argv[1:], environment())
