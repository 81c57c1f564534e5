"""Processes that are forked from the caller's: what comes back from them, and how their death is
noticed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shardctl.errors import InputError
from shardctl.system.processes.channel import Ended
from shardctl.system.processes.forked_pool import ForkedPool


@contextmanager
def pool_of(handle: Callable[[Any], Any], count: int = 2) -> Iterator[ForkedPool]:
    pool = ForkedPool(handle, count)
    try:
        yield pool
    finally:
        pool.close()


def test_results_are_in_the_order_of_the_tasks_whoever_is_faster():
    def handle(number: int) -> tuple[int, int]:
        time.sleep(0.02 * (number % 3))
        return number, os.getpid()

    with pool_of(handle, 3) as pool:
        found = pool.run(range(12))
        assert pool.run([]) == []
        again = pool.run([7])
    assert [number for number, _ in found] == list(range(12))
    processes = {process for _, process in found}
    assert len(processes) == 3
    assert os.getpid() not in processes
    assert again[0][1] in processes
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


class Unsendable(Exception):
    """Cannot be made of what it is pickled as."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InputError("no such frame"), InputError),
        (ValueError("no such frame"), ValueError),
        (SystemExit("no such frame"), SystemExit),
        (Unsendable("no such", "frame"), RuntimeError),
    ],
)
def test_an_error_is_raised_with_its_traceback_in_the_process(error, expected):
    def fails_here(_: int) -> None:
        raise error

    with pool_of(fails_here) as pool, pytest.raises(expected, match="no such frame") as raised:
        pool.run(range(5))
    assert "in fails_here" in str(raised.value.__cause__)


def test_a_result_that_cannot_be_sent_is_an_error_and_no_death():
    with (
        pool_of(lambda _: lambda: None) as pool,
        pytest.raises(Exception, match=r"pickle|local object"),
    ):
        pool.run([1])


def test_a_death_is_noticed_though_a_fork_of_the_process_lives_on():
    def ends(_: int) -> None:
        if os.fork() == 0:
            time.sleep(60)
        os.kill(os.getpid(), signal.SIGKILL)

    began = time.monotonic()
    with pool_of(ends) as pool, pytest.raises(Ended):
        pool.run(range(5))
    assert time.monotonic() - began < 30


def test_processes_do_not_stop_at_an_interrupt_which_is_for_their_parent():
    def interrupted(number: int) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return number

    with pool_of(interrupted) as pool:
        assert pool.run(range(4)) == [0, 1, 2, 3]
