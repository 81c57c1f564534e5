"""The options of a measurement, and their checks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from shardctl.benchmark.measure.consumers import check_rate
from shardctl.errors import UsageError

RUNS = 5
"""Default number of runs: with five, the spread covers chance differences between measurements of one dataset."""

RUN_SECONDS = 2.0
"""Default seconds of a run: in a shorter one, the start of the threads counts too much."""

COLD_SECONDS = 20.0
"""Default limit of a cold run, in seconds; it ends earlier with its epoch."""

CONSUMER_SECONDS = 5.0
CONSUMER_PATIENCE = 300.0
"""Default seconds that a function may take for one batch: the first step may compile a model."""


@dataclass(frozen=True)
class BenchOptions:
    """Options of `bench`. `check` validates them. `shardctl bench` has the same defaults.

    The dataset is read in `runs` runs of `seconds` s or of `epochs` epochs each. `shuffle` is True (a random order), False
    or the name of an order. `decode=False` returns the stored bytes of images. `cold` drops the dataset from the page cache
    before every epoch. `consumer_rate` is in samples per second of one GPU, `consumer` a preset or module:function. Such a
    function is called with batches on `device` (numpy arrays for None), with a limit of `consumer_timeout` seconds for each.
    With `processes` that many worker processes make the batches, together in `threads` threads.
    `baseline` also runs the recipe on the raw inputs (`transforms` names the user's functions in it that may be called),
    `sweep` tries other threads, batch sizes and orders. `cache` and `cache_limit` are those of `shardctl.open`, for a
    dataset on a store.
    """

    split: str | None = None
    batch_size: int = 256
    threads: int | str = "auto"
    shuffle: bool | str = True
    decode: bool = True
    epochs: int | None = None
    seconds: float | None = None
    runs: int = RUNS
    cold: bool = False
    consumer_rate: float | None = None
    consumer: str | None = None
    gpus: int = 1
    device: str | None = None
    consumer_timeout: float = CONSUMER_PATIENCE
    baseline: bool = False
    transforms: tuple[str, ...] = ()
    sweep: bool = False
    processes: int | None = None
    cache: str | Path | bool | None = None
    cache_limit: int | str | None = None

    def check(self) -> None:
        """Raise UsageError for impossible numbers and for options that contradict each other."""
        if self.epochs is not None and self.seconds is not None:
            raise UsageError("epochs and seconds contradict each other; give one of them")
        if self.epochs is not None and self.epochs < 1:
            raise UsageError(f"there is nothing to measure in {self.epochs} epochs; give at least 1")
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds > 0):
            raise UsageError(f"there is nothing to measure in {self.seconds:g} seconds; give more than 0")
        if self.runs < 1:
            raise UsageError(f"{self.runs} runs are impossible; give at least 1")
        if self.consumer is not None and self.consumer_rate is not None:
            raise UsageError("a consumer and a consumer rate contradict each other; give one of them")
        if self.consumer_rate is not None:
            check_rate(self.consumer_rate)
        if self.gpus < 1:
            raise UsageError(f"{self.gpus} GPUs are impossible; give at least 1")
        if self.device is not None and not self.calls_function:
            raise UsageError("a device is for your own function; name one: --consumer module:function")
        if self.calls_function and self.gpus > 1:
            raise UsageError("a function stands for one GPU; leave out --gpus")
        if self.gpus > 1 and self.consumer is None and self.consumer_rate is None:
            raise UsageError("how fast is one of the GPUs? Give --consumer or --consumer-rate too")
        if self.consumer_timeout != CONSUMER_PATIENCE and not self.calls_function:
            raise UsageError("a consumer timeout is for your own function; name one: --consumer module:function")
        if not self.consumer_timeout > 0:
            raise UsageError(f"a consumer timeout of {self.consumer_timeout:g} s is impossible; give more")
        if self.baseline and not self.decode:
            raise UsageError("a baseline decodes its images, and cannot be compared with stored bytes; leave out --no-decode")
        if self.transforms and not self.baseline:
            raise UsageError("your own functions are called only for the baseline; add --baseline")

    @property
    def calls_function(self) -> bool:
        """Whether the consumer is a function."""
        return self.consumer is not None and ":" in self.consumer

    @property
    def run_epochs(self) -> int | None:
        """Number of epochs of a run, None for a run limited by time. The default of a cold run is one."""
        return self.epochs or (1 if self.cold and self.seconds is None else None)

    @property
    def run_seconds(self) -> float | None:
        """Maximum seconds of a run, None for no limit."""
        if self.seconds is not None or self.epochs is not None:
            return self.seconds
        return COLD_SECONDS if self.cold else RUN_SECONDS

    @property
    def consumer_seconds(self) -> float:
        """Seconds that a consumer is fed."""
        return self.seconds or CONSUMER_SECONDS
