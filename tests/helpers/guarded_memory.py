"""Child processes that end at a write beyond their memory, or at a read beyond it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from checked_memory import environment
from programs import run_python


def run_checked(program: str, arguments: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run a Python program in a process that ends if it has written beyond its memory."""
    return run_python(program, *arguments, env=environment())


def astray(values: pa.Array, place: int) -> pa.Array:
    """The same text, but for one of its offsets, which leads out of its memory. The first and the
    last one are right."""
    _, offsets, data = values.buffers()
    changed = np.frombuffer(offsets, np.int32, len(values) + 1).copy()
    changed[place] = 2**31 - 1000
    return pa.Array.from_buffers(values.type, len(values), [None, pa.py_buffer(changed), data])
