"""One writer: real processes that want the same dataset, and leases left behind by machines that
are gone."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from image_files import images
from in_this_process import command_line, convert
from programs import run_python

import shardctl
from shardctl.errors import BusyError, DiskFullError, StorageError
from shardctl.making.commit import commit
from shardctl.making.convert import Listener
from shardctl.system import file_lease
from shardctl.system.file_lease import LEASE, STALE_SECONDS, Owner

OTHER = json.dumps(vars(Owner("node8", "other", 1, "now", "other")))
"""What a machine that takes a lease over writes into it."""


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    return tmp_path / "out" / ".shardctl"


def refused(staging: Path, said: str | None, error: type[Exception] = BusyError) -> None:
    """Fail unless the lease cannot be had, which waits for nobody."""
    with pytest.raises(error, match=said), file_lease.hold(staging, None):
        pass


def converted(tmp_path: Path) -> int:
    """Convert one image unless another one does, and return how many samples were made."""
    source = images(tmp_path / "in", "1.png")
    return convert(source, tmp_path / "out", if_running="fail").samples


@contextlib.contextmanager
def busy(tmp_path: Path, staging: Path) -> Iterator[None]:
    """Hold the lease, so that nobody else converts."""
    with file_lease.hold(staging, None):
        with pytest.raises(BusyError, match=f"process {os.getpid()} on "):
            converted(tmp_path)
        yield
    assert not (tmp_path / "out").exists(), "a lease leaves nothing behind"


def test_a_second_converter_waits_and_says_for_whom(tmp_path, staging):
    heard: list[str] = []
    held, free = threading.Event(), threading.Event()

    def first() -> None:
        with file_lease.hold(staging, None):
            held.set()
            free.wait(20)

    def waiting(owner: str) -> None:
        heard.append(owner)
        free.set()

    thread = threading.Thread(target=first)
    thread.start()
    held.wait(20)
    source = images(tmp_path / "in", "1.png")
    result = convert(source, tmp_path / "out", listener=Listener(waiting=waiting))
    thread.join()
    assert result.status == "created"
    assert heard[0].startswith(f"process {os.getpid()} on ")


@pytest.mark.thorough
def test_of_many_converters_at_once_one_writes_and_all_end_well(tmp_path, staging):
    images(tmp_path / "in", *(f"{n}.png" for n in range(20)))
    command = command_line("convert", "in", "out", "--workers", 1)
    start = partial(subprocess.Popen, command, cwd=tmp_path, stdout=PIPE, stderr=PIPE)
    with contextlib.ExitStack() as stack:
        with file_lease.hold(staging, None):
            running = [stack.enter_context(start()) for _ in range(5)]
            assert all(any(b"writing it" in line for line in each.stderr) for each in running)
        said = [each.communicate(timeout=60)[0] for each in running]
    assert [each.returncode for each in running] == [0] * 5
    assert sum(b"up to date" in each for each in said) == 4
    assert shardctl.verify(tmp_path / "out").findings == ()
    assert not staging.exists()


@pytest.mark.thorough
def test_the_lease_is_held_until_all_is_swept(tmp_path, out, monkeypatch):
    """The first is stopped right after the commit, with all still to be swept. A
    second one waits."""
    source = images(tmp_path / "in", "1.png", "2.png")
    convert(source, out)
    begun: list[str] = []
    waits, tried = threading.Event(), threading.Event()

    def overwrite(store: str, listener: Listener) -> None:
        convert(source, out, recipe={"store": store}, overwrite=True, listener=listener)

    def look_away(_: object) -> None:
        waits.set()
        tried.wait(60)

    def start_second(_: object) -> None:
        thread.start()
        assert waits.wait(60)

    real = commit.sweep

    def after_the_commit(*given: Any, **named: Any) -> list[str]:
        if not begun:
            assert shardctl.open(out).manifest.recipe["store"] == "png"
            with pytest.raises(BusyError, match="writing it"):
                convert(source, out, overwrite=True, if_running="fail")
            tried.set()
        return real(*given, **named)

    monkeypatch.setattr(commit, "sweep", after_the_commit)
    second = Listener(waiting=look_away, announce=lambda _: begun.append("second"))
    thread = threading.Thread(target=overwrite, args=("jpeg:90", second))
    overwrite("png", Listener(announce=start_second))
    thread.join(60)
    assert begun == ["second"]
    assert shardctl.open(out).manifest.recipe["store"] == "jpeg:90"
    assert shardctl.verify(out).findings == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


@pytest.fixture(params=[errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def no_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr("fcntl.flock", refuse)
    monkeypatch.setattr(file_lease, "SETTLE_SECONDS", 0.05)


def test_a_second_converter_fails_at_once_where_it_is_told_to(tmp_path, staging):
    with busy(tmp_path, staging):
        pass


def test_without_locks_there_is_one_writer_all_the_same(tmp_path, staging, no_locks):
    with busy(tmp_path, staging):
        pass
    assert converted(tmp_path) == 1
    assert not staging.exists()


def test_without_locks_the_heartbeat_tells_whether_an_owner_lives(tmp_path, staging, no_locks):
    """That of this machine too: nothing else tells whether it is there, seen from inside a
    container."""
    left_behind(staging, Owner.me().boot, age=STALE_SECONDS / 2)
    refused(staging, "process 4711 on node7")
    left_behind(staging, Owner.me().boot, age=STALE_SECONDS * 2)
    assert converted(tmp_path) == 1


def test_without_locks_the_last_of_those_that_take_a_lease_over_has_it(
    staging, no_locks, monkeypatch
):
    """Another machine writes itself into it right after this one has done so."""
    left_behind(staging, "another machine", age=STALE_SECONDS * 2)
    path = staging / LEASE
    monkeypatch.setattr(file_lease.time, "sleep", lambda _: path.write_text(OTHER))
    refused(staging, "another one that has just taken it over")
    assert path.read_text() == OTHER


def test_a_lock_that_hides_its_file_is_waited_for(staging, monkeypatch):
    """As SMB has it: what is locked can be read by its owner's descriptor alone."""
    with file_lease.hold(staging, None) as held:
        opened = map(int, os.listdir("/proc/self/fd"))
        own = {descriptor for descriptor in opened if is_lease(descriptor, staging)}
        real = os.pread

        def hidden(descriptor: int, size: int, offset: int) -> bytes:
            if descriptor not in own:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return real(descriptor, size, offset)

        def refuse(descriptor: int, operation: int) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr(os, "pread", hidden)
        monkeypatch.setattr("fcntl.flock", refuse)
        held.check()
        refused(staging, "one that cannot be read")


def is_lease(descriptor: int, staging: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), (staging / LEASE).stat())
    except OSError:
        return False


def test_a_lease_that_was_taken_over_stays_with_the_new_owner(staging):
    with file_lease.hold(staging, None):
        (staging / LEASE).write_text(OTHER)
    assert (staging / LEASE).read_text() == OTHER


@pytest.mark.skipif(
    sys.platform != "linux",
    reason="/proc is a folder in which nothing can be made, and says ENOENT",
)
def test_a_folder_that_cannot_be_made_is_no_sign_of_another_converter(tmp_path):
    source = images(tmp_path / "in", "1.png")
    waiting = Listener(waiting=lambda owner: pytest.fail(f"it waits for {owner}"))
    for place in ("/proc/shardctl-test", "/proc/shardctl-test/below"):
        for mode in ("wait", "fail"):
            with pytest.raises(StorageError, match=r"^/proc/shardctl-test\S*: cannot write here"):
                convert(source, place, if_running=mode, listener=waiting)


def test_one_that_is_just_ending_is_not_waited_for_without_end(staging, monkeypatch):
    monkeypatch.setattr(file_lease, "ENDING_SECONDS", 0.0)
    monkeypatch.setattr(file_lease, "LOOK_SECONDS", 0.001)
    real = os.open

    def open_nothing(path: Any, *given: Any, **more: Any) -> int:
        if Path(path).name == LEASE:
            raise FileNotFoundError(errno.ENOENT, "gone")
        return real(path, *given, **more)

    monkeypatch.setattr(os, "open", open_nothing)
    with (
        pytest.raises(StorageError, match="could not be made for 0 seconds"),
        file_lease.hold(staging, lambda _: None),
    ):
        pass


def test_a_lease_that_cannot_be_written_leaves_nothing(staging, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    refused(staging, None, DiskFullError)
    assert not staging.parent.exists()


def left_behind(staging: Path, boot: str, age: float) -> None:
    staging.mkdir(parents=True, exist_ok=True)
    owner = Owner("node7", boot, 4711, "2026-01-01T00:00:00+00:00", "token")
    path = staging / LEASE
    path.write_text(json.dumps(vars(owner)))
    then = path.stat().st_mtime - age
    os.utime(path, (then, then))


def test_the_lease_of_a_live_converter_on_another_machine_is_respected(staging):
    left_behind(staging, "another machine", age=STALE_SECONDS / 2)
    refused(staging, "process 4711 on node7")


@pytest.mark.parametrize(("boot", "age"), [("another machine", STALE_SECONDS * 2), (None, 0)])
def test_a_lease_without_heartbeat_or_of_a_dead_process_of_this_machine_is_taken_over(
    tmp_path, staging, monkeypatch, boot, age
):
    monkeypatch.setattr(file_lease, "SETTLE_SECONDS", 0.05)
    left_behind(staging, boot or Owner.me().boot, age)
    assert converted(tmp_path) == 1


def test_a_heartbeat_keeps_a_lease_young_and_sees_that_it_was_lost(staging, monkeypatch):
    monkeypatch.setattr(file_lease, "HEARTBEAT_SECONDS", 0.01)
    with file_lease.hold(staging, None) as held:
        path = staging / LEASE
        os.utime(path, (0, 0))
        while path.stat().st_mtime < STALE_SECONDS:
            held.check()
        for lose in (lambda: path.write_text(OTHER), path.unlink):
            lose()
            with pytest.raises(BusyError, match="took over"):
                held.check()


def test_a_conversion_whose_lease_was_taken_over_commits_nothing(tmp_path, out, staging):
    source = images(tmp_path / "in", *(f"{n}.png" for n in range(20)))
    stall = Listener(progress=lambda _: (staging / LEASE).write_text(OTHER))
    with pytest.raises(BusyError, match="process 1 on node8, since now took over"):
        convert(source, out, listener=stall)
    assert not (out / "manifest.json").exists()


FORKS = """
import os, signal, sys, time
from pathlib import Path
from shardctl.system import file_lease
with file_lease.hold(Path(sys.argv[1]), None):
    child = os.fork()
    if not child:
        os.close(1)
        os.close(2)
        time.sleep(60)
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_the_owner_has_forked_does_not_hold_its_lease(staging):
    ran = run_python(FORKS, staging)
    try:
        with file_lease.hold(staging, None) as held:
            held.check()
    finally:
        os.kill(int(ran.stdout), signal.SIGKILL)
