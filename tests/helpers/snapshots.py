"""Snapshots of a small source, and the processes of a training job that make one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from custom_steps import SLOW

import shardctl

SMALL = {"store": "jpeg:80", "transform": [{"name": "resize", "size": 24}]}

TRAINING = """
import json, shardctl
ds = shardctl.snapshot({out!r}, {source!r}, {recipe!r}, samples_per_shard=4, workers=2)
keys = sorted(key for batch in ds.loader(batch_size=7) for key in batch["key"])
print(json.dumps([ds.generation.digest, keys]))
"""


def snapshot(source: Path, out: Path, **options: Any) -> Any:
    return shardctl.snapshot(
        out,
        source,
        **{"recipe": SMALL, "workers": 0, "samples_per_shard": 6, "progress": False, **options},
    )


def slow_recipe() -> dict[str, Any]:
    return {
        "store": "jpeg:80",
        "transform": [
            {"name": "resize", "size": 24},
            {"name": "custom", "target": "slow_step:slow"},
        ],
    }


@contextmanager
def ranks(
    count: int, source: Path, out: Path, folder: Path
) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of a training job, each in a group of its own, as a launcher starts them."""
    (folder / "slow_step.py").write_text(SLOW)
    script = TRAINING.format(out=str(out), source=str(source), recipe=slow_recipe())
    environment = {**os.environ, "PYTHONPATH": str(folder), "WORLD_SIZE": str(count)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for rank in range(count)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def shards_done(out: Path) -> int:
    return sum(1 for _ in out.glob(".shardctl/*/done/*.arrow"))


def first_file(source: Path) -> Path:
    return min(path for path in source.rglob("*") if path.is_file())


def touched(path: Path) -> None:
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait for something that another process does."""
    due = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < due, "it does not happen"
        time.sleep(0.01)
