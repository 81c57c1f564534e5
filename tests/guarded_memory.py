"""Child processes that end at a write beyond their memory, or at a read beyond it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

CHECKED = {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165", "PYTHONMALLOC": "malloc"}
"""glibc ends the process that has written beyond its memory, when that is freed. Other C libraries take no notice."""


def run_checked(program: str, arguments: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run a Python program in a process that ends if it has written beyond its memory."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env={**os.environ, **CHECKED}, capture_output=True, text=True, check=False)
