"""The descriptors and mappings of all datasets of a process together."""

from __future__ import annotations

import subprocess
import sys
import threading

import pyarrow as pa
import pytest
from handmade import repeat_shard, write_dataset

import shardctl
from shardctl.loader.blocks import shards

COLUMNS = pa.schema({"key": pa.string(), "n": pa.int64()})

READ = """
import collections, os, resource, sys
import shardctl

limit, options = int(sys.argv[2]), eval(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
before = len(os.listdir("/dev/fd"))
datasets = [shardctl.open(sys.argv[1]) for _ in range(24)]


def read():
    for loader in (*(ds.loader(64, shuffle=True, **options) for ds in datasets), shardctl.mix(datasets, [1] * 24).loader(256)):
        counts = collections.Counter(n for batch in loader for n in batch["n"].tolist())
        assert sum(counts.values()) == len(loader.stream) and loader.stats().skipped == 0


read()
used = len(os.listdir("/dev/fd")) - before
assert used <= limit - 32, used
spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(30)]
for each in spare:
    os.close(each)
if os.fork() == 0:
    read()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
print("read")
"""


@pytest.mark.thorough
@pytest.mark.parametrize("limit", [128, 256])
@pytest.mark.parametrize("options", ["{}", "{'mmap': False}", "{'on_error': 'skip'}"])
def test_many_datasets_share_the_descriptors_of_a_process(out, limit, options):
    write_dataset(
        out,
        COLUMNS,
        ((f"k{n}", n) for n in range(4)),
        4,
        "none" if "mmap" in options else "zstd",
    )
    repeat_shard(out, 60)
    command = [sys.executable, "-c", READ, str(out), str(limit), options]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.stdout == "read\n", ran.stderr


@pytest.mark.thorough
def test_only_one_thread_at_a_time_looks_for_descriptors(out, monkeypatch):
    """Else each one that looks is granted as many as all may have together."""
    write_dataset(out, COLUMNS, ((f"k{n}", n) for n in range(4)), 4, "zstd")
    repeat_shard(out, 60)
    two, alone = threading.Barrier(2), []

    def look(more: int) -> bool:
        try:
            two.wait(timeout=1)
        except threading.BrokenBarrierError:
            alone.append(more)
        return True

    monkeypatch.setattr(shards, "allow_open_files", look)
    loader = shardctl.open(out).loader(4, mmap=False, threads=4)
    assert sum(len(batch["n"]) for batch in loader) == 240
    assert len(alone) >= 3, "two looked at the same time"
