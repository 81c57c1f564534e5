"""Child processes that end at a write beyond their memory, or at a read beyond it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

CHECKED = {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165", "PYTHONMALLOC": "malloc"}
"""glibc ends the process that has written beyond its memory, when that is freed. Other C libraries take no notice."""


def run_checked(program: str, arguments: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run a Python program in a process that ends if it has written beyond its memory."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env={**os.environ, **CHECKED}, capture_output=True, text=True, check=False)


def astray(values: pa.Array, place: int) -> pa.Array:
    """The same text, but for one of its offsets, which leads out of its memory. The first and the last one are right."""
    _, offsets, data = values.buffers()
    changed = np.frombuffer(offsets, np.int32, len(values) + 1).copy()
    changed[place] = 2**31 - 1000
    return pa.Array.from_buffers(values.type, len(values), [None, pa.py_buffer(changed), data])
