"""What a measurement is asked to do, and whether that can be."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardctl.benchmark.consumers import check_rate
from shardctl.errors import UsageError

RUNS = 5
"""Runs where nothing is said: with five, the spread of two measurements of the same dataset covers what chance does."""

RUN_SECONDS = 2.0
"""How long a run takes where nothing is said: below that, starting the threads weighs too much."""

COLD_SECONDS = 20.0
"""Most seconds of a cold run where nothing is said; it ends with its epoch where that takes less."""

CONSUMER_SECONDS = 5.0
CONSUMER_PATIENCE = 300.0
"""Seconds that a function may take for one batch where nothing is said: the first step may compile a model."""


@dataclass(frozen=True)
class BenchOptions:
    """What is measured, and how. `check` refuses what cannot be. The defaults are those of `shardctl bench` too.

    The dataset is read in `runs` runs of `seconds` each, or of so many `epochs`. `shuffle` is True (a random order), False or
    the name of an order. `decode=False` gives the stored bytes of images. `cold` drops the dataset from the page cache before
    every epoch. `consumer_rate` is in samples per second of one GPU, `consumer` a preset or module:function, which is called
    with batches on `device` (numpy arrays for None) and given `consumer_timeout` seconds for each. `baseline` also runs the
    recipe on the raw inputs (`transforms` names the user's functions in it that may be called), `sweep` tries other threads,
    batch sizes and orders.
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

    def check(self) -> None:
        """Raise UsageError for numbers that cannot be and options that contradict each other."""
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
            raise UsageError("a device is for a function of your own; name one: --consumer module:function")
        if self.calls_function and self.gpus > 1:
            raise UsageError("a function stands for one GPU; leave out --gpus")
        if self.gpus > 1 and self.consumer is None and self.consumer_rate is None:
            raise UsageError("how fast is one of the GPUs? Give --consumer or --consumer-rate too")
        if self.consumer_timeout != CONSUMER_PATIENCE and not self.calls_function:
            raise UsageError("a consumer timeout is for a function of your own; name one: --consumer module:function")
        if not self.consumer_timeout > 0:
            raise UsageError(f"a consumer timeout of {self.consumer_timeout:g} s is impossible; give more")
        if self.baseline and not self.decode:
            raise UsageError("a baseline decodes its images, and cannot be compared with stored bytes; leave out --no-decode")
        if self.transforms and not self.baseline:
            raise UsageError("functions of your own are called for the baseline only; add --baseline")

    @property
    def calls_function(self) -> bool:
        """Whether the consumer is a function."""
        return self.consumer is not None and ":" in self.consumer

    @property
    def run_epochs(self) -> int | None:
        """How many epochs a run has, None for as many as there is time for. A cold run has one where nothing is said."""
        return self.epochs or (1 if self.cold and self.seconds is None else None)

    @property
    def run_seconds(self) -> float | None:
        """How long a run takes at the most, None for no bound."""
        if self.seconds is not None or self.epochs is not None:
            return self.seconds
        return COLD_SECONDS if self.cold else RUN_SECONDS

    @property
    def consumer_seconds(self) -> float:
        """How long a consumer is fed."""
        return self.seconds or CONSUMER_SECONDS
