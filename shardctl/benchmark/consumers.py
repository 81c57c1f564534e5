"""Whoever takes the batches: a stand-in for a GPU that takes so many samples per second, or a function of one's own.

Utilisation is the time that the consumer is busy / the time that passes, the first step left out, and 0.9 is enough: the
definitions of MLPerf Storage (https://github.com/mlcommons/storage, Submission_guidelines.md).
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shardctl.benchmark.meters import count_of
from shardctl.errors import ConsumerError, ShardctlError, UsageError
from shardctl.reader import Batch

ENOUGH = 0.9
"""Utilisation from which on a consumer counts as kept busy (MLPerf Storage, `metric: au: 0.90`)."""

OWN_SECONDS = 3.0
"""How long a function is called with one and the same batch, to learn how fast it is by itself."""

_WARM_UP_CALLS = 2


@dataclass(frozen=True)
class Fed:
    """How a consumer fared: after its first step, so many `steps` and `samples` in `seconds`, of which it was `busy`."""

    steps: int
    samples: int
    seconds: float
    busy: float

    @property
    def utilization(self) -> float:
        """Share of the time that the consumer was busy."""
        return min(1.0, self.busy / self.seconds) if self.seconds > 0 else 1.0


def check_rate(rate: float) -> None:
    """Raise UsageError for a rate that nothing can have."""
    if not (math.isfinite(rate) and rate > 0):
        raise UsageError(f"a consumer rate of {rate:g} samples/s is impossible; give a number over 0")


def check_patience(rate: float, batch_size: int, seconds: float, remedy: str = "give a smaller --batch-size") -> None:
    """Raise UsageError where two steps of a consumer take too long to measure. `remedy` says what can be done about it."""
    step, most = batch_size / rate, max(seconds, 60.0)
    if 2 * step > most:
        raise UsageError(
            f"at {rate:g} samples/s a step of {batch_size} samples takes {step:,.0f} s,"
            f" too long to measure in {most:.0f} s; {remedy}"
        )


def feed_paced(batches: Iterator[Batch], rate: float, seconds: float, heard: Callable[[int], None]) -> Fed:
    """Let a consumer of so many samples per second take batches for about so long, two steps at the least.

    It ends each step at a time counted from the end of the one before, not from when it happened to wake up: that it sleeps
    a little too long each time does not add up. What it had to wait for a batch moves its clock on.
    """
    first = next(batches, None)
    if first is None:
        return Fed(0, 0, 0.0, 0.0)
    due = time.perf_counter() + count_of(first) / rate
    _sleep_until(due)
    began, steps, samples = due, 0, 0
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        waited, count = time.perf_counter() - asked, count_of(batch)
        due += waited + count / rate
        steps, samples = steps + 1, samples + count
        heard(count)
        _sleep_until(due)
        if steps >= 2 and due - began >= seconds:
            break
    return Fed(steps, samples, due - began, samples / rate)


def _sleep_until(due: float) -> None:
    left = due - time.perf_counter()
    if left > 0:
        time.sleep(left)


@dataclass(frozen=True)
class Step:
    """A function of somebody's own that is called with every batch. `finish` waits until what it has begun is done."""

    name: str
    function: Callable[[Any], Any]
    finish: Callable[[], None]

    def __call__(self, batch: Any) -> None:
        """Take a batch. Raises ConsumerError where the function raises."""
        try:
            self.function(batch)
        except ShardctlError:
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.filename}, line {place.lineno}"
            raise ConsumerError(f"consumer {self.name} raised {type(error).__name__}: {error} ({where})") from error


@dataclass
class Pulse:
    """When a watched piece of work last showed that it gets on, and what it is at."""

    at: float
    doing: str
    stopped: bool = False

    def beat(self, doing: str) -> None:
        """Say that something new begins. Raises ConsumerError where nobody waits for it any more."""
        if self.stopped:
            raise ConsumerError("stopped")
        self.at, self.doing = time.monotonic(), doing


def own_rate(step: Step, batch: Any, samples: int, pulse: Pulse) -> float:
    """Return how many samples per second a function takes when it never waits: one batch, again and again."""
    for _ in range(_WARM_UP_CALLS):
        pulse.beat("its first steps")
        step(batch)
        step.finish()
    calls, began = 0, time.perf_counter()
    while calls < 2 or time.perf_counter() - began < OWN_SECONDS:
        pulse.beat("a step with a batch that it had before")
        step(batch)
        calls += 1
    step.finish()
    return calls * samples / (time.perf_counter() - began)


def feed_step(
    batches: Iterator[Any], step: Step, rate: float, seconds: float, heard: Callable[[int], None], pulse: Pulse
) -> Fed:
    """Call a function with batches for about so long. `rate` is its own: busy is what it would have taken by itself.

    A function that only begins work on a GPU is not waited for before the next batch is fetched, as in training.
    """
    first = next(batches, None)
    if first is None:
        return Fed(0, 0, 0.0, 0.0)
    pulse.beat("step 1")
    step(first)
    step.finish()
    began, steps, samples = time.perf_counter(), 0, 0
    for batch in batches:
        count = count_of(batch)
        pulse.beat(f"step {steps + 2}")
        step(batch)
        steps, samples = steps + 1, samples + count
        heard(count)
        if steps >= 2 and time.perf_counter() - began >= seconds:
            break
    step.finish()
    return Fed(steps, samples, time.perf_counter() - began, samples / rate)


def watched(name: str, work: Callable[[Pulse], Any], patience: float) -> Any:
    """Do some work in a thread of its own, and return what it returns.

    Raises ConsumerError where it shows no sign of life for `patience` seconds: the thread is then left to itself, for nobody
    can stop a function that does not return.
    """
    pulse, outcome = Pulse(time.monotonic(), "the beginning"), _Outcome()
    thread = threading.Thread(target=outcome.of, args=(work, pulse), name="shardctl-consumer", daemon=True)
    thread.start()
    try:
        while not outcome.done.wait(min(0.2, patience / 4)):
            if time.monotonic() - pulse.at > patience:
                raise ConsumerError(
                    f"consumer {name} has not returned from {pulse.doing} after {patience:g} s;"
                    " --consumer-timeout gives it longer"
                )
    except BaseException:  # Ctrl-C too: the thread ends at its next step
        pulse.stopped = True
        raise
    thread.join()
    if outcome.error is not None:
        raise outcome.error
    return outcome.result


class _Outcome:
    """What became of some work."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def of(self, work: Callable[[Pulse], Any], pulse: Pulse) -> None:
        try:
            self.result = work(pulse)
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            self.error = error
        finally:
            self.done.set()
