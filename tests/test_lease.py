"""One writer: real processes that want the same dataset, and leases left behind by machines that are gone."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from test_conversion import images

import shardctl
from shardctl import lease
from shardctl.conversion import Listener
from shardctl.errors import BusyError
from shardctl.lease import LEASE, STALE_SECONDS, Owner


def test_a_second_converter_fails_at_once_where_it_is_told_to(tmp_path: Path) -> None:
    source = images(tmp_path / "in", "1.png")
    with lease.hold(tmp_path / "out" / ".shardctl", None), pytest.raises(BusyError, match=f"process {os.getpid()} on "):
        shardctl.convert(source, tmp_path / "out", workers=0, if_running="fail")
    assert not (tmp_path / "out").exists(), "a lease leaves nothing behind"


def test_a_second_converter_waits_and_says_for_whom(tmp_path: Path) -> None:
    source = images(tmp_path / "in", "1.png")
    heard: list[str] = []
    free = threading.Event()

    def first() -> None:
        with lease.hold(tmp_path / "out" / ".shardctl", None):
            held.set()
            free.wait(20)

    def waiting(owner: str) -> None:
        heard.append(owner)
        free.set()

    held = threading.Event()
    thread = threading.Thread(target=first)
    thread.start()
    held.wait(20)
    result = shardctl.convert(source, tmp_path / "out", workers=0, listener=Listener(waiting=waiting))
    thread.join()
    assert result.status == "created"
    assert heard[0].startswith(f"process {os.getpid()} on ")


@pytest.mark.parametrize("count", [2, 5, 10])
def test_of_many_converters_at_once_one_writes_and_all_end_well(tmp_path: Path, count: int) -> None:
    images(tmp_path / "in", *(f"{n}.png" for n in range(20)))
    command = [sys.executable, "-m", "shardctl", "convert", "in", "out", "--workers", "1", "--json"]
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            for _ in range(count)
        ]
        ended = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0] * count, ended
    assert sorted(json.loads(out)["status"] for out, _ in ended) == ["created"] + ["up-to-date"] * (count - 1)
    assert shardctl.verify(tmp_path / "out").findings == ()
    assert not (tmp_path / "out" / ".shardctl").exists()


def left_behind(out: Path, boot: str, age: float) -> None:
    (out / ".shardctl").mkdir(parents=True)
    owner = Owner("node7", boot, 4711, "2026-01-01T00:00:00+00:00", "token")
    path = out / ".shardctl" / LEASE
    path.write_text(json.dumps(vars(owner)))
    then = path.stat().st_mtime - age
    os.utime(path, (then, then))


def test_the_lease_of_a_live_converter_on_another_machine_is_respected(tmp_path: Path) -> None:
    left_behind(tmp_path / "out", "another machine", age=STALE_SECONDS / 2)
    with pytest.raises(BusyError, match="process 4711 on node7"), lease.hold(tmp_path / "out" / ".shardctl", None):
        pass


def test_the_lease_of_another_machine_without_heartbeat_is_taken_over(tmp_path: Path) -> None:
    left_behind(tmp_path / "out", "another machine", age=STALE_SECONDS * 2)
    assert shardctl.convert(images(tmp_path / "in", "1.png"), tmp_path / "out", workers=0, if_running="fail").samples == 1


def test_the_lease_of_a_dead_process_of_this_machine_is_taken_over_at_once(tmp_path: Path) -> None:
    left_behind(tmp_path / "out", Owner.me().boot, age=0)
    assert shardctl.convert(images(tmp_path / "in", "1.png"), tmp_path / "out", workers=0, if_running="fail").samples == 1


def test_a_heartbeat_keeps_a_lease_young_and_sees_that_it_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.01)
    staging = tmp_path / "out" / ".shardctl"
    with lease.hold(staging, None) as held:
        path = staging / LEASE
        os.utime(path, (0, 0))
        while path.stat().st_mtime < STALE_SECONDS:
            held.check()
        path.write_text(json.dumps(vars(Owner("node8", "other", 1, "now", "other"))))
        with pytest.raises(BusyError, match="took over"):
            held.check()


def test_a_conversion_whose_lease_was_taken_over_commits_nothing(tmp_path: Path) -> None:
    source = images(tmp_path / "in", *(f"{n}.png" for n in range(20)))
    path = tmp_path / "out" / ".shardctl" / LEASE

    def stall(_: object) -> None:
        path.write_text(json.dumps(vars(Owner("node8", "other", 1, "now", "other"))))

    with pytest.raises(BusyError, match="process 1 on node8, since now took over"):
        shardctl.convert(source, tmp_path / "out", workers=0, listener=Listener(progress=stall))
    assert not (tmp_path / "out" / "manifest.json").exists()
