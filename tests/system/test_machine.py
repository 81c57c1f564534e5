"""Cores and memory in containers: control groups of both versions, as they look, and a real one
where it may be made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import run_python

from shardctl.system import machine
from shardctl.system.machine import cpu_share, memory_limit

GIB = 1 << 30
NO_LIMIT = 9223372036854771712
"""What version 1 says where memory has no limit."""


def tree(
    root: Path, files: dict[str, object], membership: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    (root / "membership").write_text(membership)
    monkeypatch.setattr(machine, "CGROUPS", root / "cgroup")
    monkeypatch.setattr(machine, "MEMBERSHIP", root / "membership")


FIRST = {
    "cpu,cpuacct/job/cpu.cfs_quota_us": 150000,
    "cpu,cpuacct/job/cpu.cfs_period_us": 100000,
    "cpu,cpuacct/cpu.cfs_quota_us": -1,
    "cpu,cpuacct/cpu.cfs_period_us": 100000,
    "memory/job/memory.limit_in_bytes": 3 * GIB,
    "memory/memory.limit_in_bytes": NO_LIMIT,
}
"""What version 1 has."""


@pytest.mark.parametrize(
    ("files", "membership", "cores", "memory"),
    [
        ({}, "0::/", None, None),
        ({"cpu.max": "max 100000", "memory.max": "max"}, "0::/", None, None),
        ({"cpu.max": "400000 100000", "memory.max": 2 * GIB}, "0::/", 4.0, 2 * GIB),
        (
            {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000", "a/b/memory.max": GIB},
            "0::/a/b",
            0.5,
            GIB,
        ),
        ({"a/cpu.max": "200000 100000", "a/b/cpu.max": "800000 100000"}, "0::/a/b", 2.0, None),
        ({"cpu.max": "250000 100000"}, "0::/docker/0123/of-the-machine-outside", 2.5, None),
        (FIRST, "5:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/\n0::/", 1.5, 3 * GIB),
        ({"unified/job/cpu.max": "100000 100000"}, "1:name=systemd:/\n0::/job", 1.0, None),
        ({"cpu.max": "nonsense", "memory.max": ""}, "no line of this kind", None, None),
    ],
)
def test_the_tightest_limit_of_the_control_groups_counts(
    tmp_path, monkeypatch, files, membership, cores, memory
):
    tree(tmp_path, files, f"{membership}\n", monkeypatch)
    assert (cpu_share(), memory_limit()) == (cores, memory)


@pytest.mark.parametrize(
    ("quota", "cores"), [("50000 100000", 1), ("150000 100000", 2), ("6400000 100000", 3)]
)
def test_workers_and_threads_are_counted_by_the_share_of_the_container(
    tmp_path, monkeypatch, quota, cores
):
    tree(tmp_path, {"cpu.max": quota, "memory.max": GIB}, "0::/\n", monkeypatch)
    monkeypatch.setattr(machine, "usable_core_numbers", lambda: [0, 1, 5])
    assert machine.usable_cores() == cores
    assert machine.memory_bytes() == GIB


@pytest.fixture
def one_core() -> Iterator[Path]:
    """A real control group that grants the time of one core."""
    old = Path(f"/sys/fs/cgroup/cpu/shardctl-test-{os.getpid()}")
    new = Path(f"/sys/fs/cgroup/shardctl-test-{os.getpid()}")
    group = old if old.parent.exists() else new
    try:
        group.mkdir()
        if group == old:
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text("100000")
        else:
            (group / "cpu.max").write_text("100000 100000")
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"may not make a control group here ({error})")
    yield group
    group.rmdir()


def test_a_real_control_group_is_seen(one_core):
    code = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid()))"
    code += "; from shardctl.system.machine import usable_cores; print(usable_cores())"
    ran = run_python(code, one_core / "cgroup.procs")
    assert ran.stdout == "1\n", ran.stderr
