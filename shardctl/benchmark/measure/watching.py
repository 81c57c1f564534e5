"""A loader that runs until it is stopped, while its figures are told."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from shardctl.benchmark.measure.consumers import feed_paced
from shardctl.benchmark.measure.feeding import FunctionConsumer, find_consumer
from shardctl.benchmark.measure.subjects import open_loader, opened
from shardctl.benchmark.measure.tokens import samples_per_s
from shardctl.benchmark.options import BenchOptions
from shardctl.errors import UsageError
from shardctl.loader.metrics import Sink
from shardctl.loader.watching import watch


def watch_dataset(
    path: str | Path, targets: Sequence[str | Path | Sink], every: float, options: BenchOptions
) -> None:
    """Read a dataset as training does, and tell the figures of the loader every few seconds, for
    `seconds` or without end.

    With a rate or a preset, a consumer takes the batches at that rate. Raises UsageError,
    DatasetError, InstallError.
    """
    options.check()
    consumer = find_consumer(
        options, lambda preset: samples_per_s(opened(path, options), preset, str(path))
    )
    if (
        isinstance(consumer, FunctionConsumer)
        or options.baseline
        or options.sweep
        or options.cold
        or options.epochs
    ):
        raise UsageError(
            "--watch reads as fast as it can, or at a rate: use it alone, with --consumer-rate or "
            "with a preset"
        )
    seconds = math.inf if options.seconds is None else options.seconds
    with closing(open_loader(path, options, None)) as loader:
        batches = iter(watch(loader, *targets, every=every))
        if consumer is not None:
            feed_paced(batches, consumer.rate * options.gpus, seconds, lambda count: None)
        else:
            until = time.monotonic() + seconds
            for _ in batches:
                if time.monotonic() >= until:
                    break
        batches.close()  # type: ignore[attr-defined]  # a generator: it tells the last figures
