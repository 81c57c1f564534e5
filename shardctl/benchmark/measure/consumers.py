"""Consumers of batches: a simulated GPU with a given rate in samples per second, or a user's
function.

Utilisation is the consumer's busy time / the elapsed time, without the first step, and 0.9 is
enough: the definitions of MLPerf Storage (https://github.com/mlcommons/storage,
Submission_guidelines.md).
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shardctl.benchmark.measure.meters import count_of
from shardctl.errors import ConsumerError, ShardctlError, UsageError
from shardctl.loader.blocks.memory import Batch

ENOUGH = 0.9
"""Utilisation from which on a consumer counts as kept busy (MLPerf Storage, `metric: au: 0.90`)."""

OWN_SECONDS = 3.0
"""Seconds that a function is called with the same batch, to measure its own rate."""

_WARM_UP_CALLS = 2


@dataclass(frozen=True)
class Fed:
    """The run of a consumer, after its first step: `steps` and `samples` in `seconds`, of which
    `busy` seconds were work."""

    steps: int
    samples: int
    seconds: float
    busy: float

    @property
    def utilization(self) -> float:
        """Share of the time that the consumer was busy."""
        return min(1.0, self.busy / self.seconds) if self.seconds > 0 else 1.0


def check_patience(
    rate: float, batch_size: int, seconds: float, remedy: str = "give a smaller --batch-size"
) -> None:
    """Raise UsageError if two steps of a consumer take too long to measure. `remedy` says what the
    user can do."""
    step, most = batch_size / rate, max(seconds, 60.0)
    if 2 * step > most:
        raise UsageError(
            f"at {rate:g} samples/s a step of {batch_size} samples takes {step:,.0f} s,"
            f" too long to measure in {most:.0f} s; {remedy}"
        )


def feed_paced(
    batches: Iterator[Batch], rate: float, seconds: float, report: Callable[[int], None]
) -> Fed:
    """Simulate a consumer of `rate` samples/s that takes batches for about `seconds` s, at least
    for two steps.

    The end of each step is computed from the end of the step before, not from the time of waking
    up, so that sleeping a little too long does not add up. Waiting for a batch moves the schedule
    by the time waited.
    """
    first = next(batches, None)
    if first is None:
        return Fed(0, 0, 0.0, 0.0)
    due = time.perf_counter() + count_of(first) / rate
    _sleep_until(due)
    began, steps, samples = due, 0, 0
    while True:
        since = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        waited, count = time.perf_counter() - since, count_of(batch)
        due += waited + count / rate
        steps, samples = steps + 1, samples + count
        report(count)
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
    """A user's function that is called with every batch. `finish` waits until the work that it
    started is done."""

    name: str
    function: Callable[[Any], Any]
    finish: Callable[[], None]

    def __call__(self, batch: Any) -> None:
        """Take a batch. Raises ConsumerError if the function raises."""
        try:
            self.function(batch)
        except ShardctlError:
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.filename}, line {place.lineno}"
            raise ConsumerError(
                f"consumer {self.name} raised {type(error).__name__}: {error} ({where})"
            ) from error


@dataclass
class Pulse:
    """The time of the last progress of watched work, and what it is doing."""

    at: float
    doing: str
    stopped: bool = False

    def beat(self, doing: str) -> None:
        """Record that a new step begins. Raises ConsumerError if the watcher has given up."""
        if self.stopped:
            raise ConsumerError("stopped")
        self.at, self.doing = time.monotonic(), doing


def own_rate(step: Step, batch: Any, samples: int, pulse: Pulse) -> float:
    """Return the rate of a function that never waits, in samples/s: it gets the same batch again
    and again."""
    for _ in range(_WARM_UP_CALLS):
        pulse.beat("its first steps")
        step(batch)
        step.finish()
    calls, began = 0, time.perf_counter()
    while calls < 2 or time.perf_counter() - began < OWN_SECONDS:
        pulse.beat("a step with a repeated batch")
        step(batch)
        calls += 1
    step.finish()
    return calls * samples / (time.perf_counter() - began)


def feed_step(
    batches: Iterator[Any],
    step: Step,
    rate: float,
    seconds: float,
    report: Callable[[int], None],
    pulse: Pulse,
) -> Fed:
    """Call a function with batches for about `seconds` s. Its busy time is computed from its own
    `rate` without waits.

    If the function only starts work on a GPU, the next batch is fetched without waiting for that
    work, as in training.
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
        report(count)
        if steps >= 2 and time.perf_counter() - began >= seconds:
            break
    step.finish()
    return Fed(steps, samples, time.perf_counter() - began, samples / rate)


def watched(name: str, work: Callable[[Pulse], Any], patience: float) -> Any:
    """Do some work in a separate thread, and return its result.

    Raises ConsumerError if there is no progress for `patience` seconds. The thread is then
    abandoned, because a function that does not return cannot be stopped.
    """
    pulse, outcome = Pulse(time.monotonic(), "the beginning"), _Outcome()
    thread = threading.Thread(
        target=outcome.of, args=(work, pulse), name="shardctl-consumer", daemon=True
    )
    thread.start()
    try:
        while not outcome.done.wait(min(0.2, patience / 4)):
            if time.monotonic() - pulse.at > patience:
                raise ConsumerError(
                    f"consumer {name} has not returned from {pulse.doing} after {patience:g} s;"
                    " --consumer-timeout sets the limit"
                )
    except BaseException:  # also for Ctrl-C: the thread ends at its next step
        pulse.stopped = True
        raise
    thread.join()
    if outcome.error is not None:
        raise outcome.error
    return outcome.result


class _Outcome:
    """The result of some work, or its error."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def of(self, work: Callable[[Pulse], Any], pulse: Pulse) -> None:
        try:
            self.result = work(pulse)
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            self.error = error
        finally:
            self.done.set()
