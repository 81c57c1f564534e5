"""A disk that is soon full."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MIB = 1 << 20


@pytest.fixture
def disk() -> Iterator[Path]:
    """A file system of 8 MiB, not in pytest's own folder: it could not tidy that up if a killed run
    left it mounted."""
    place = Path(tempfile.mkdtemp(prefix="shardctl-disk-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={8 * MIB}", "tmpfs", str(place)], capture_output=True
    )
    if mounted.returncode:
        place.rmdir()
        pytest.skip("may not mount a file system here")
    yield place
    # Lazily: the traceback of an expected error may still hold a mapped file.
    subprocess.run(["umount", "-l", str(place)], check=True)
    place.rmdir()
