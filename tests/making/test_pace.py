"""How far a conversion is, and how fast: the figures that the command line, the log of a job and
the metrics show."""

from __future__ import annotations

import pytest

from shardctl.making import snapshot as log
from shardctl.making.convert import listener as progress
from shardctl.making.convert.listener import Pace
from shardctl.making.shards.marker import WorkDone


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_rates_and_the_time_left_are_those_of_this_run(clock):
    found = Pace()
    clock.now += 100  # the sources are listed
    found.begin(60)
    assert (found.records_per_s, found.seconds_left) == (0, None)
    found.add(WorkDone(30, 30, 0, 0))
    found.resume()
    assert (found.done.records, found.records_per_s, found.seconds_left) == (30, 0, None)
    clock.now += 2
    found.add(WorkDone(10, 9, 1, 5000))
    assert (found.done, found.records) == (WorkDone(40, 39, 1, 5000), 60)
    assert (found.records_per_s, found.bytes_per_s, found.seconds_left) == (5, 2500, 4)


def test_more_records_than_expected_leave_no_time(clock):
    found = Pace()
    found.begin(10)
    clock.now += 1
    found.add(WorkDone(20, 20, 0, 0))
    assert found.seconds_left == 0


def test_a_log_has_the_rate_of_this_run(clock, capsys):
    teller = log.ProgressLog("out", show=True, clock=clock.monotonic)
    teller.waiting("process 5")  # the next line comes some seconds later
    listener = teller.listener()
    listener.part("1/1", 6, 6000)
    listener.progress(WorkDone(3000, 3000, 0, 0))  # by an earlier run
    listener.resuming(3, 6)
    listener.building()
    clock.now += log.LINE_SECONDS
    listener.progress(WorkDone(20, 20, 0, 0))
    assert capsys.readouterr().err.splitlines()[1:] == [
        "shardctl out: resuming: 3 of 6 shards done",
        "shardctl out: 50 %, 3,020 of 6,000 inputs, 2/s, about 25 min left, 0 rejected",
    ]
