"""One writer on an object store: real processes that are killed and stopped, answers that are
lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from object_stores import memory_store

from shardctl.errors import BusyError, PerhapsBusyError, StoreError
from shardctl.system import store_lease as leases
from shardctl.system.file_lease import Owner
from shardctl.system.store_lease import Lease, LeaseTiming, Watch, hold, hold_if_free
from shardctl.system.stores import open_store
from shardctl.system.stores.base import Store

LEASE = ".shardctl/lease.json"

STILL = LeaseTiming(heartbeat=600, stale=600, ask=0.02)
"""No heartbeat in the time of a test: the owner stands still."""

HASTY = LeaseTiming(heartbeat=600, stale=0.0, ask=0.01)
"""A lease that has not changed since the last look counts as left behind."""

USUAL = LeaseTiming(heartbeat=0.05, stale=600, ask=0.02)
"""One that beats, and waits for others as long as it takes."""


@pytest.fixture(params=["memory", "s3", "gs", "az"])
def store(request: pytest.FixtureRequest) -> Store:
    if request.param == "memory":
        return memory_store()
    if request.param == "az":
        return open_store(request.getfixturevalue("container"))
    bucket = request.getfixturevalue("bucket")
    return open_store(bucket.replace("s3:", f"{request.param}:"))


@pytest.fixture
def s3(bucket: str) -> Store:
    return open_store(bucket)


def taken(store: Store, pace: LeaseTiming = HASTY) -> Any:
    """Wait for the lease, or take it over."""
    return hold(store, LEASE, lambda _: None, pace=pace)


@pytest.mark.thorough(after=1)
def test_a_second_one_fails_at_the_next_heartbeat_where_it_is_told_to(store):
    with hold(store, LEASE, None, pace=USUAL) as lease:
        with (
            pytest.raises(BusyError, match=f"writing it .process {os.getpid()} on "),
            hold(store, LEASE, None, pace=USUAL),
        ):
            pass
        lease.check()
    assert store.stat(LEASE) is None
    with hold(store, LEASE, None):
        pass


def test_an_owner_that_ends_at_that_moment_is_in_nobodys_way(store, monkeypatch):
    version, looks = store.create(LEASE, b"a heartbeat"), iter(range(9))
    assert version is not None

    def owner(store: Store, key: str) -> str:
        if next(looks) == 0:
            assert store.replace(key, b"the next one", str(version)) is not None
            return "an owner"
        store.delete([key])
        return ""

    monkeypatch.setattr(leases, "owner_of", owner)
    with hold(store, LEASE, None, pace=USUAL):
        assert next(looks) == 2


@pytest.mark.thorough
def test_of_five_at_once_one_after_the_other_holds_it(store):
    inside: list[int] = []
    told: list[str] = []

    def work(number: int) -> int:
        with hold(store, LEASE, told.append, pace=USUAL) as lease:
            inside.append(number)
            lease.check()
            most = len(inside)
            lease.check()
            inside.remove(number)
        return most

    with ThreadPoolExecutor(5) as threads:
        assert list(threads.map(work, range(5), timeout=60)) == [1] * 5
    assert all(name.startswith(f"process {os.getpid()} on ") for name in told)
    assert store.stat(LEASE) is None


class EnoughError(Exception):
    """Ends a wait."""


def test_a_heartbeat_keeps_it(store):
    looks: list[None] = []

    def looking() -> None:
        lease.check()
        looks.append(None)
        if len(looks) == 5:
            raise EnoughError

    with hold(store, LEASE, None, pace=STILL) as lease:
        with pytest.raises(EnoughError), hold(store, LEASE, lambda _: None, looking, HASTY):
            pass
        lease.check()


@pytest.mark.thorough
def test_the_heart_beats_by_itself(store):
    seen: set[str] = set()
    with hold(store, LEASE, None, pace=USUAL):
        end = time.monotonic() + 60
        while len(seen) < 4 and time.monotonic() < end:
            seen.add(store.stat(LEASE).version)  # type: ignore[union-attr]
    assert len(seen) == 4


def test_an_owner_that_stands_still_is_taken_over_and_finds_out(store):
    with hold(store, LEASE, None, pace=STILL) as first:
        told: list[str] = []
        with hold(store, LEASE, told.append, pace=HASTY) as second:
            assert len(told) == 1
            with pytest.raises(BusyError, match=f"process {os.getpid()} .* took over"):
                first.check()
            first.close()
            second.check()
            assert store.stat(LEASE) is not None, "the first one leaves what is not its own"
    assert store.stat(LEASE) is None
    with hold(store, LEASE, None, pace=STILL) as first:
        with taken(store):
            pass
        with pytest.raises(BusyError, match="another one took over"):
            first.check()
    assert store.stat(LEASE) is None


def test_a_lease_that_cannot_be_read_is_taken_over_too(store):
    store.put(LEASE, b"no JSON")
    told: list[str] = []
    with hold(store, LEASE, told.append, pace=HASTY):
        assert told == ["one that cannot be read"]


HOLDS = """
import sys
from shardctl.system.stores import open_store
from shardctl.system.store_lease import LeaseTiming, hold
from shardctl.errors import BusyError
with hold(open_store(sys.argv[1]), sys.argv[2], None, pace=LeaseTiming(0.05)) as lease:
    print("held", flush=True)
    sys.stdin.readline()
    try:
        lease.check()
        print("mine", flush=True)
    except BusyError as error:
        print(error, flush=True)
"""


@contextlib.contextmanager
def another_process(url: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lease, and looks after a line whether it still does."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLDS, url, LEASE], **pipes) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("waits", [True, False])
def test_an_owner_that_is_killed_is_taken_over(bucket, s3, waits):
    with another_process(bucket) as process:
        process.kill()
        process.wait()
        told: list[str] = []
        with hold(s3, LEASE, told.append if waits else None, pace=HASTY) as lease:
            lease.check()
    assert all(name.startswith(f"process {process.pid} on ") for name in told)


def test_tries_that_wait_for_nothing(store):
    watch, hasty = Watch(USUAL), Watch(HASTY)
    with hold(store, LEASE, None, pace=STILL) as lease:
        for each, error in (
            (watch, PerhapsBusyError),
            (watch, PerhapsBusyError),
            (watch, BusyError),  # its heart has beaten
            (hasty, PerhapsBusyError),
        ):
            if error is BusyError:
                lease.check()
            with pytest.raises(BusyError) as caught, hold_if_free(store, LEASE, each):
                pass
            assert type(caught.value) is error
        with hold_if_free(store, LEASE, hasty), pytest.raises(BusyError, match="took over"):
            lease.check()


@pytest.mark.thorough
def test_an_owner_that_was_stopped_and_goes_on_finds_out(bucket, s3):
    with another_process(bucket) as process:
        process.send_signal(signal.SIGSTOP)
        with taken(s3) as lease:
            process.send_signal(signal.SIGCONT)
            said, _ = process.communicate("go on\n", timeout=60)
            assert f"process {os.getpid()} on" in said
            lease.check()


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("kind", ["lost", "reset", "503", "conflict"])
def test_an_answer_that_is_lost_loses_no_lease(object_server, s3, kind):
    object_server.fault(kind, method="PUT", key=LEASE, share=0.5, seed=2)
    with hold(s3, LEASE, None, pace=STILL) as lease:
        for _ in range(10):
            lease.check()
    assert s3.stat(LEASE) is None


def test_a_heartbeat_that_arrived_after_all_is_known(object_server, bucket, monkeypatch):
    """The store writes it and answers nothing more, not even to reading: this process does not know
    what became of it."""
    monkeypatch.setenv("SHARDCTL_STORE_RETRY", "0")
    s3 = open_store(bucket)
    with hold(s3, LEASE, None, pace=STILL) as lease:
        object_server.fault("lost", method="PUT", times=1)
        object_server.fault("503", method="GET", times=1)
        with pytest.raises(StoreError, match=r"lease\.json: reading failed"):
            lease.check()
        lease.check()


@pytest.mark.thorough
def test_an_end_that_takes_long_takes_nothing_from_the_next_owner(object_server, s3):
    """The store deletes the lease so late that it would have grown old."""
    object_server.fault("slow", method="DELETE", times=1, seconds=1.5)
    pace = LeaseTiming(heartbeat=0.1, stale=0.5, ask=0.05)

    def hold_shortly() -> None:
        with hold(s3, LEASE, None, pace=pace):
            begun.set()

    begun = threading.Event()
    first = threading.Thread(target=hold_shortly)
    first.start()
    assert begun.wait(60)
    with taken(s3, pace) as lease:
        first.join(60)
        lease.check()


def test_what_a_store_refuses_is_not_taken_for_another_owner(object_server, s3):
    object_server.fault("403", key=LEASE)
    with pytest.raises(StoreError, match="is not permitted"), taken(s3):
        pass


@pytest.mark.parametrize("year", [1999, 2999])
def test_the_dates_of_owners_do_not_count(year):
    """A clock that is wrong takes no lease away, and keeps none."""
    store = memory_store()
    owner = Owner("elsewhere", "boot", 1, f"{year}-01-01T12:00:00+00:00", "1")
    lease = Lease(store, LEASE, owner, str(store.create(LEASE, b"{}")), STILL)
    looks: list[None] = []

    def looking() -> None:
        if len(looks) < 5:
            lease.check()
        looks.append(None)

    with hold(store, LEASE, lambda _: None, looking, HASTY):
        assert len(looks) > 5
    lease.close()
