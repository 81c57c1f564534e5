"""The figures of a measurement: medians of its runs."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from shardctl.benchmark.measure.result import AgainstResult, BenchResult, NetworkResult, spread_of
from shardctl.benchmark.measure.throughput import Throughput
from shardctl.benchmark.options import BenchOptions


@dataclass(frozen=True)
class Measured:
    """The shards that were measured: their samples and bytes on disk; `dataset` and `environment`
    as BenchResult has them.

    `tokens_per_sample` is None where samples have no tokens.
    """

    samples: int
    bytes: int
    dataset: dict[str, Any]
    environment: dict[str, Any]
    tokens_per_sample: float | None = None


def summarize(
    measured: Measured,
    options: BenchOptions,
    found: Throughput,
    page_cache: dict[str, float | None],
) -> BenchResult:
    """Return the figures. `page_cache` has the share of the shards that was in memory before."""
    if options.cold:
        page_cache = {**page_cache, "after_drop": found.left_in_cache}
    rates, cpu, tokens = (
        [run.rate for run in found.runs],
        found.cpu.read(),
        measured.tokens_per_sample,
    )
    stored_per_sample = measured.bytes / max(1, measured.samples)
    medians, nineties = (
        [run.latencies.percentile(share) for run in found.runs] for share in (0.5, 0.99)
    )
    return BenchResult(
        samples_per_s=round(found.rate, 1),
        mb_per_s=round(found.rate * found.weights.per_sample / 1e6, 1),
        stored_mb_per_s=round(found.rate * stored_per_sample / 1e6, 1),
        first_batch_s=round(statistics.median(found.first_batches), 4),
        batch_ms_mean=round(statistics.median(run.batch_ms for run in found.runs), 3),
        batch_ms_p50=_median(medians),
        batch_ms_p99=_median(nineties),
        rss_mb=round(found.peak, 1),
        own_mb=round(found.memory, 1) if found.memory is not None else None,
        threads=found.threads,
        processes=options.processes or 0,
        samples=found.samples,
        batches=found.batches,
        seconds=round(found.seconds, 3),
        epochs=round(found.samples / max(1, measured.samples), 3),
        batch_size=options.batch_size,
        shuffle=found.shuffle,
        split=options.split,
        cold=options.cold,
        decode=options.decode,
        runs=tuple(round(rate, 1) for rate in rates),
        spread=round(spread_of(rates), 4),
        by_run={
            "samples_per_s": [round(rate, 1) for rate in rates],
            "mb_per_s": [round(rate * found.weights.per_sample / 1e6, 1) for rate in rates],
            "stored_mb_per_s": [round(rate * stored_per_sample / 1e6, 1) for rate in rates],
            "first_batch_s": [round(seconds, 4) for seconds in found.first_batches],
            "batch_ms_mean": [round(run.batch_ms, 3) for run in found.runs],
            "batch_ms_p50": [round(value, 3) for value in medians if value is not None],
            "batch_ms_p99": [round(value, 3) for value in nineties if value is not None],
            "cores_used": [round(run.cores, 3) for run in found.runs],
        },
        cores_used=cpu.cores,
        core_busy=tuple(cpu.busy),
        other_load=round(cpu.others, 3) if cpu.others is not None else None,
        time=found.time.shares(),
        page_cache=page_cache,
        latencies=found.latencies.histogram(),
        series=found.series.points(found.seconds),
        dataset=measured.dataset,
        environment=measured.environment,
        network=None if found.transfers is None else _network(found.transfers, found.seconds),
        tokens_per_s=None if tokens is None else round(found.rate * tokens, 1),
    )


def _network(transfers: dict[str, int], seconds: float) -> NetworkResult:
    blocks, kept = transfers["network_blocks"], transfers["cached_blocks"]
    return NetworkResult(
        requests=transfers["requests"],
        bytes=transfers["network_bytes"],
        blocks=blocks,
        mb_per_s=round(transfers["network_bytes"] / 1e6 / seconds, 1),
        from_cache=round(kept / (kept + blocks), 4) if blocks else 1.0,
    )


def _median(values: list[float | None]) -> float | None:
    """Return the median of the runs that have a value, or None."""
    there = [value for value in values if value is not None]
    return round(statistics.median(there), 3) if there else None


def compare_readers(
    samples: int, records: int, stored: int, theirs: Throughput, own: Throughput
) -> AgainstResult:
    """Return shardctl's loader beside another reader: it read `samples` of the `records` records,
    in `stored` bytes."""
    ratios = [mine.rate / other.rate for mine, other in zip(own.runs, theirs.runs, strict=True)]
    return AgainstResult(
        samples=samples,
        records=records,
        bytes_per_sample=round(stored / samples, 1),
        samples_per_s=round(own.rate, 1),
        runs=tuple(round(run.rate, 1) for run in own.runs),
        ratio=round(statistics.median(ratios), 3),
        ratios=tuple(round(ratio, 3) for ratio in ratios),
        threads=own.threads,
        cores_used=own.cpu.read().cores,
    )
