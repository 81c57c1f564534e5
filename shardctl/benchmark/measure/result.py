"""The results of a measurement, as plain data."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from shardctl.benchmark.measure.consumers import ENOUGH

KEEPS_UP, STARVES = "keeps-up", "starves"


@dataclass(frozen=True)
class ConsumerResult:
    """The utilisation of a consumer. `consumer_rate` is the rate of one GPU in samples/s, `limit` that of the loader alone.

    `gpus_fed` is the number of such GPUs that the loader can feed, `starves_at` the smallest number that would wait for
    data. `time` is the time of the loader's threads by stage, as shares.
    """

    consumer: str
    consumer_rate: float
    gpus: int
    accelerator_utilization: float
    stall_fraction: float
    steps: int
    seconds: float
    limit: float
    time: dict[str, float]
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Whether the consumer is kept busy."""
        return KEEPS_UP if self.accelerator_utilization >= ENOUGH else STARVES

    @property
    def gpus_fed(self) -> float:
        """The number of such GPUs that the loader can feed."""
        return round(self.limit / self.consumer_rate, 2)

    @property
    def starves_at(self) -> int:
        """The smallest number of such GPUs that are no longer kept busy."""
        return int(self.limit / (ENOUGH * self.consumer_rate)) + 1

    def utilization_of(self, gpus: int) -> float:
        """Return the utilisation of this number of GPUs at the loader's rate."""
        return min(1.0, self.limit / (gpus * self.consumer_rate))

    def record(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        derived = {"verdict": self.verdict, "gpus_fed": self.gpus_fed, "starves_at": self.starves_at}
        return {**asdict(self), **derived}


@dataclass(frozen=True)
class BaselineResult:
    """An epoch from the raw inputs beside one from the shards. Rates in samples/s, times in s.

    `pays_after` is the number of epochs after which converting and reading shards has taken less time than reading raw
    inputs, None if it never does. `conversion_measured` is False if the dataset does not record how long its conversion
    took; the time of one epoch from raw inputs is used then.
    """

    raw_samples_per_s: float
    raw_epoch_s: float
    shards_epoch_s: float
    ratio: float
    conversion_s: float
    conversion_measured: bool
    pays_after: int | None
    rejected: int


@dataclass(frozen=True)
class NetworkResult:
    """What came over the network in all runs together: requests, bytes, and blocks; `mb_per_s` is in 10^6 bytes.

    `from_cache` is the share of the blocks that were in the local cache (0 to 1).
    """

    requests: int
    bytes: int
    blocks: int
    mb_per_s: float
    from_cache: float


@dataclass(frozen=True)
class SweepPoint:
    """The rate of one setting, in samples/s."""

    shuffle: str
    threads: int
    batch_size: int
    samples_per_s: float


@dataclass(frozen=True)
class ReaderFacts:
    """The reader of another tool that was measured: its name and version, in what it reads, and its Python."""

    library: str
    how: str
    python: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class AgainstResult:
    """shardctl's loader, which read `samples` of the `records` records, converted, in turn with the other reader.

    `ratio` is its rate / that of the other reader, at the median of `ratios`, one for each pair of runs.
    """

    samples: int
    records: int
    bytes_per_sample: float
    samples_per_s: float
    runs: tuple[float, ...]
    ratio: float
    ratios: tuple[float, ...]
    threads: int
    cores_used: float


@dataclass(frozen=True)
class BenchResult:
    """One measurement. Rates and times are medians of the runs.

    `mb_per_s` counts the bytes of the returned batches, `stored_mb_per_s` their bytes on disk, in units of 10^6, as do
    `rss_mb` (peak memory) and `own_mb` (without mapped files), of all processes together. `processes` is the number of the
    loader's worker processes, 0 for threads in this one. `batch_ms_mean` is the time of a run / its batches, in ms;
    `batch_ms_p50` and `batch_ms_p99` are times from one batch to the next, None if no run had two batches. `first_batch_s`
    is in s from opening the dataset. `by_run` has the values of each run behind a median, `runs` those of samples/s, and
    `spread` is (fastest - slowest) / median of them. `time` is the time of the loader's threads by stage, as shares.
    `core_busy` is the busy share of each core by all processes, `other_load` the share of all cores that other processes
    used. `page_cache` is the share of the dataset that was in memory (0 to 1): `before`, and for a cold measurement
    `after_drop`, the largest share that stayed after dropping it. `tokens_per_s` is the rate in tokens, those of padding left
    out; None where samples have no tokens. `network` is of a dataset on a store, `reader`
    and `against` are of shards of other tools, else None.
    """

    samples_per_s: float
    mb_per_s: float
    stored_mb_per_s: float
    first_batch_s: float
    batch_ms_mean: float
    batch_ms_p50: float | None
    batch_ms_p99: float | None
    rss_mb: float
    own_mb: float | None
    threads: int
    processes: int
    samples: int
    batches: int
    seconds: float
    epochs: float
    batch_size: int
    shuffle: str
    split: str | None
    cold: bool
    decode: bool
    runs: tuple[float, ...]
    spread: float
    by_run: dict[str, list[float]]
    cores_used: float
    core_busy: tuple[float, ...]
    other_load: float | None
    time: dict[str, float]
    page_cache: dict[str, float | None]
    latencies: dict[str, list[float]]
    series: dict[str, list[float]]
    dataset: dict[str, Any]
    environment: dict[str, Any]
    tokens_per_s: float | None = None
    network: NetworkResult | None = None
    consumer: ConsumerResult | None = None
    baseline: BaselineResult | None = None
    sweep: tuple[SweepPoint, ...] = field(default=())
    reader: ReaderFacts | None = None
    against: AgainstResult | None = None

    def record(self) -> dict[str, Any]:
        """Return all fields as plain data, the consumer's figures beside the loader's."""
        record = asdict(self)
        consumer = record.pop("consumer")
        if self.consumer is not None:
            consumer = self.consumer.record()
            record |= {"consumer": consumer.pop("consumer"), "consumer_time": consumer.pop("time")}
            record |= {"consumer_seconds": consumer.pop("seconds"), **consumer}
        for name in ("network", "baseline", "sweep", "reader", "against"):
            if not record[name]:
                record.pop(name)
        return record


def spread_of(values: Sequence[float]) -> float:
    """Return the relative spread of values: (largest - smallest) / median; 0 for fewer than two."""
    middle = statistics.median(values) if values else 0.0
    return (max(values) - min(values)) / middle if middle else 0.0


def best_of(points: tuple[SweepPoint, ...]) -> list[SweepPoint]:
    """Return the fastest setting of each order, the fastest first."""
    best: dict[str, SweepPoint] = {}
    for point in points:
        if point.shuffle not in best or best[point.shuffle].samples_per_s < point.samples_per_s:
            best[point.shuffle] = point
    return sorted(best.values(), key=lambda point: -point.samples_per_s)
