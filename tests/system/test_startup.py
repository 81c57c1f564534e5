"""What a process of our own does before anything else."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import numpy as np
from shardctl.system.machine import reuse_memory

reuse_memory()
def images():
    return [np.zeros(750_000, np.uint8) + 1 for _ in range(5)]
images()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    images()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_memory_of_images_is_used_again():
    """5 images of 750 kB are 915 pages: without the setting, 50 times of them bring tens of
    thousands of page faults."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 2000
