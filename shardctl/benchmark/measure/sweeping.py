"""A search for better settings: short measurements with other numbers of threads, orders and batch sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from shardctl.benchmark.measure.result import SweepPoint, best_of
from shardctl.benchmark.measure.subjects import IN_ORDER, OwnDataset, open_loader
from shardctl.benchmark.measure.throughput import Throughput
from shardctl.benchmark.options import BenchOptions
from shardctl.loader.order import MODES
from shardctl.system.machine import usable_cores

SECONDS = 0.7
"""Seconds that each setting is read in a round; the faster of two rounds counts, because noise only slows down."""

ROUNDS = 2
BATCH_SIZES = (32, 128, 512, 2048)

_Setting = tuple[str, int, int]


def sweep(place: str | Path, options: BenchOptions, report: Callable[[int], None]) -> tuple[SweepPoint, ...]:
    """Measure every order with every number of threads, then other batch sizes with the best random order.

    Settings take turns, round after round, so that a slow minute of the machine affects all of them.
    """
    threads = [count for count in _thread_counts() if count >= (options.processes or 0)] or [options.processes or 1]
    first = [(order, count, options.batch_size) for order in (IN_ORDER, *_random_orders()) for count in threads]
    points = _measure(place, options, first, report)
    best = next(point for point in best_of(points) if point.shuffle != IN_ORDER)
    sizes = [(best.shuffle, best.threads, size) for size in BATCH_SIZES if size != options.batch_size]
    return points + _measure(place, options, sizes, report)


def _thread_counts() -> list[int]:
    """Return 1, 2, 4, … up to twice the cores."""
    return [2**power for power in range(12) if 2**power <= 2 * usable_cores()]


def _random_orders() -> list[str]:
    return [mode for mode in MODES if mode]


def _measure(
    place: str | Path, options: BenchOptions, settings: list[_Setting], report: Callable[[int], None]
) -> tuple[SweepPoint, ...]:
    rates: dict[_Setting, float] = dict.fromkeys(settings, 0.0)
    for _ in range(ROUNDS):
        for setting in settings:
            rates[setting] = max(rates[setting], _rate(place, options, setting, report))
    return tuple(SweepPoint(*setting, round(rate, 1)) for setting, rate in rates.items())


def _rate(place: str | Path, options: BenchOptions, setting: _Setting, report: Callable[[int], None]) -> float:
    order, threads, batch_size = setting
    chosen = replace(options, shuffle=False if order == IN_ORDER else order, threads=threads, batch_size=batch_size)
    if options.cold:
        OwnDataset(place, chosen).evict()
    loader, run = open_loader(place, chosen, 1 if options.cold else None), Throughput()
    run.run(loader, SECONDS, report)
    loader.close()
    return run.rate
