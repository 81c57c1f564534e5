"""The results of a measurement, as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from shardctl.system.report import Figures, Section, Table, Verdict, in_a_notebook
from shardctl.system.text import counted, format_bytes, printable

KEEPS_UP, STARVES = "keeps-up", "starves"

ENOUGH = 0.9
"""Utilisation from which on a consumer counts as kept busy (MLPerf Storage, `metric: au: 0.90`)."""

IN_ORDER = "in-order"
"""The name of the order that is not random."""

TIME_OF_THREADS = "time of the threads"
"""The name of this figure, which has no number."""

WAITS = {
    "waiting": "waiting for each other",
    "network": "waiting for the network",
    "room": "waiting while enough batches are ready",
}
"""What the loader's threads wait for, by the names of the stages of their time."""

_ALMOST_NONE = 0.01
"""A share that is not worth a word."""


_CURES = {
    "decode": "convert with the same steps and --store raw, which needs no decoding; ",
    "decompress": "convert with --compression none; ",
}
"""What to do where the loader's threads do most of the time one thing."""


@dataclass(frozen=True)
class ConsumerResult:
    """The utilisation of a consumer. `consumer_rate` is the rate of one GPU in samples/s, `limit`
    that of the loader alone.

    `gpus_fed` is the number of such GPUs that the loader can feed, `starves_at` the smallest number
    that would wait for data. `time` is the time of the loader's threads by stage, as shares.
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

    @property
    def demand(self) -> str:
        """What the consumer takes, in words."""
        gpus = f"{self.gpus} GPUs of " if self.gpus > 1 else ""
        name = "" if self.consumer == "rate" else f" ({self.consumer})"
        return f"{gpus}{self.consumer_rate:,.1f} samples/s{' each' if self.gpus > 1 else ''}{name}"

    @property
    def verdict_in_words(self) -> str:
        """The verdict, for people."""
        return "keeps up" if self.verdict == KEEPS_UP else "STARVES"

    @property
    def feeds(self) -> str:
        """How many such GPUs the loader can feed, in words."""
        many = f"{self.starves_at:,} or more" if self.starves_at > 1 else "even one"
        busy = f"would be busy for less than {ENOUGH:.0%} of the time"
        return f"the loader can feed {self.gpus_fed:,.1f} such GPUs; {many} {busy}"

    @property
    def next_steps(self) -> list[str]:
        """What to do where the consumer waits, as a line."""
        if self.verdict == KEEPS_UP:
            return []
        cure = _CURES.get(max(self.time, key=self.time.__getitem__, default=""), "")
        return [
            f"hint: {cure}`shardctl advise SRC --consumer-rate {self.consumer_rate:.9g}` and the steps "
            "find the smallest way to store the data that is fast enough; `shardctl help slow-training`"
        ]

    def _repr_html_(self) -> str:
        """Return the verdict and the figures, for a notebook."""
        return in_a_notebook([self.report()])

    def report(self) -> Section:
        """Return what is told of it."""
        busy = (
            f"the GPU was busy for this share of {self.seconds:.1f} s, and waited for data for "
            f"{self.stall_fraction:.1%}"
        )
        figures = [(f"{self.accelerator_utilization:.1%} utilisation", busy)]
        if self.time:
            figures.append((TIME_OF_THREADS, _shares(self.time)))
        keeps_up = self.verdict == KEEPS_UP
        verdict = Verdict(self.verdict_in_words, keeps_up, self.feeds)
        return Section(
            f"consumer: {self.demand}", (*self.notes, Figures(figures), verdict, *self.next_steps)
        )

    def utilization_of(self, gpus: int) -> float:
        """Return the utilisation of this number of GPUs at the loader's rate."""
        return min(1.0, self.limit / (gpus * self.consumer_rate))

    def record(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        derived = ("verdict", "gpus_fed", "starves_at")
        return asdict(self) | {name: getattr(self, name) for name in derived}


@dataclass(frozen=True)
class BaselineResult:
    """An epoch from the raw inputs beside one from the shards. Rates in samples/s, times in s.

    `pays_after` is the number of epochs after which converting and reading shards has taken less
    time than reading raw inputs, None if it never does. `conversion_measured` is False if the
    dataset does not record how long its conversion took; the time of one epoch from raw inputs is
    used then.
    """

    raw_samples_per_s: float
    raw_epoch_s: float
    shards_epoch_s: float
    ratio: float
    conversion_s: float
    conversion_measured: bool
    pays_after: int | None
    rejected: int

    def report(self) -> Section:
        """Return what is told of it."""
        epochs = f"from shards {self.shards_epoch_s:,.1f} s"
        figures = [
            (
                f"{self.raw_samples_per_s:,.0f} samples/s",
                f"an epoch takes {self.raw_epoch_s:,.1f} s, {epochs}",
            ),
            (f"{self.ratio:,.1f} times", "as fast from shards"),
        ]
        if self.pays_after is None:
            figures.append(("no time saved", "the raw inputs are read as fast as the shards"))
        else:
            assumed = "" if self.conversion_measured else ", assumed: one epoch from raw inputs"
            saved = (
                "the shards have saved as much time as the conversion took "
                f"({self.conversion_s:,.1f} s{assumed})"
            )
            figures.append((f"after {counted(self.pays_after, 'epoch')}", saved))
        if self.rejected:
            left_out = "were left out: changed since the conversion, or not decodable"
            figures.append((counted(self.rejected, "input"), left_out))
        return Section(
            "baseline: the recipe on the raw inputs, with the same threads", (Figures(figures),)
        )


@dataclass(frozen=True)
class NetworkResult:
    """What came over the network in all runs together: requests, bytes, and blocks; `mb_per_s` is
    in 10^6 bytes.

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

    def as_options(self, processes: int | None) -> str:
        """Return the options of `shardctl bench` that mean this setting."""
        of_processes = f" --processes {processes}" if processes else ""
        return (
            f"--order {self.shuffle} --threads {self.threads} --batch-size "
            f"{self.batch_size}{of_processes}"
        )

    def as_python(self, processes: int | None) -> str:
        """Return the call of a dataset's method that means this setting."""
        of_processes = f", processes={processes}" if processes else ""
        return (
            f'loader(batch_size={self.batch_size}, shuffle="{self.shuffle}", '
            f"threads={self.threads}{of_processes})"
        )


@dataclass(frozen=True)
class ReaderFacts:
    """The reader of another tool that was measured: its name and version, in what it reads, and its
    Python."""

    library: str
    how: str
    python: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class AgainstResult:
    """shardctl's loader, which read `samples` of the `records` records, converted, in turn with the
    other reader.

    `ratio` is its rate / that of the other reader, at the median of `ratios`, one for each pair of
    runs. A sample takes `bytes_per_sample` on disk.
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

    @property
    def reading(self) -> str:
        """What was read and how, in words."""
        some = (
            "all of them"
            if self.samples >= self.records
            else f"{self.samples:,} of the {self.records:,} records"
        )
        return f"{some}, converted, read in turn with the above; {counted(self.threads, 'thread')}"

    def report(self, before: float) -> Section:
        """Return what is told of it. A sample took `before` bytes in the other shards."""
        low, high = min(self.ratios), max(self.ratios)
        figures = [
            (
                f"{self.samples_per_s:,.0f} samples/s",
                f"from {min(self.runs):,.0f} to {max(self.runs):,.0f}",
            ),
            (
                f"{self.ratio:,.2f} times",
                f"as fast; median of the pairs of runs ({low:,.2f} to {high:,.2f})",
            ),
            (
                f"{format_bytes(self.bytes_per_sample)} per sample",
                f"on disk; {format_bytes(before)} as it is",
            ),
            (f"{self.cores_used:.2f} cores", "used by the reading"),
        ]
        return Section(f"against shardctl: {self.reading}", (Figures(figures),))


@dataclass(frozen=True)
class BenchResult:
    """One measurement. Rates and times are medians of the runs; MB are 10^6 bytes.

    docs/json.schema.json (`bench`) says what each figure is. `batch_ms_p50` and `batch_ms_p99` are
    None if no run had two batches, `tokens_per_s` if samples have no tokens. `network` is of a
    dataset on a store, `reader` and `against` are of shards of other tools, else None.
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

    @property
    def reading(self) -> str:
        """What was read, and how, in words."""
        order = "in order" if self.shuffle == IN_ORDER else f"random order ({self.shuffle})"
        split = f" of split {self.split}" if self.split else ""
        stored = "" if self.decode else ", stored bytes (not decoded)"
        processes = (
            f" in {counted(self.processes, 'process', 'processes')}" if self.processes else ""
        )
        readers = (
            counted(self.threads, "thread") + processes if self.reader is None else self.reader.how
        )
        size = (
            f"{counted(self.dataset['samples'], 'sample')}{split}, "
            f"{format_bytes(self.dataset['bytes'])}"
        )
        return f"{size}; batches of {self.batch_size}, {order}, {readers}{stored}; {self._cache}"

    @property
    def _cache(self) -> str:
        before, after = self.page_cache.get("before"), self.page_cache.get("after_drop")
        if self.network is not None:
            return "on a store"
        if not self.cold:
            return (
                "page cache unknown"
                if before is None
                else f"{before:.0%} of it in the page cache before"
            )
        if after is None:
            return "dropped from the page cache (this system cannot report whether)"
        if after > _ALMOST_NONE:
            why = "another process uses it, or the file system is in memory"
            return f"NOT COLD: {after:.0%} of it stayed in the page cache ({why})"
        return "dropped from the page cache before every epoch"

    @property
    def bytes_per_sample(self) -> float:
        """The bytes of a sample on disk."""
        stored, samples = int(self.dataset["bytes"]), int(self.dataset["samples"])
        return stored / max(1, samples)

    def figures(self) -> list[tuple[str, str]]:
        """Return the figures of reading, each with its meaning, for people."""
        return list(self._figures())

    def _figures(self) -> Iterator[tuple[str, str]]:
        low, high = min(self.runs), max(self.runs)
        several = f"median of {len(self.runs)} runs from {low:,.0f} to {high:,.0f}"
        yield f"{self.samples_per_s:,.0f} samples/s", several if len(self.runs) > 1 else "one run"
        if self.tokens_per_s is not None:
            yield f"{self.tokens_per_s:,.0f} tokens/s", "without padding"
        as_stored = f"{self.stored_mb_per_s:,.1f} MB/s as stored"
        yield f"{self.mb_per_s:,.1f} MB/s handed over", as_stored
        if self.network is not None:
            kept = (
                f"{self.network.requests:,} requests; {self.network.from_cache:.0%} of the "
                "blocks from the cache"
            )
            yield f"{self.network.mb_per_s:,.1f} MB/s over the network", kept
        yield f"{self.batch_ms_mean:,.2f} ms per batch", f"on average; {self._waits}"
        yield f"{self.first_batch_s * 1e3:,.1f} ms to the first batch", "from opening it"
        cores = self.environment["cores"]
        others = (
            f"; other programs used {self.other_load * cores:.2f}"
            if self.other_load is not None
            else ""
        )
        yield f"{self.cores_used:.2f} cores", f"used by the reading, of {cores}{others}"
        own = (
            f"; {self.own_mb:,.0f} MB without the mapped shards" if self.own_mb is not None else ""
        )
        yield f"{self.rss_mb:,.0f} MB of memory", f"at the peak{own}"
        if self.reader is None:
            yield TIME_OF_THREADS, _shares(self.time)
        else:
            yield printable(self.reader.library), f"read them, in {printable(self.reader.python)}"

    @property
    def _waits(self) -> str:
        """The times between batches: batches come in groups, so that most of these times are almost
        0."""
        if self.batch_ms_p50 is None or self.batch_ms_p99 is None:
            return "a run had a single batch"
        return (
            f"waits between batches: {self.batch_ms_p50:,.2f} ms median, "
            f"{self.batch_ms_p99:,.2f} ms 99th percentile"
        )

    def __repr__(self) -> str:
        """Return the rate, and the verdict if there is a consumer, for display."""
        verdict = (
            f"; {self.consumer.verdict_in_words}: {self.consumer.feeds}"
            if self.consumer is not None
            else ""
        )
        return (
            f"<shardctl.BenchResult {self.dataset['path']!r}: {self.samples_per_s:,.0f} "
            f"samples/s{verdict}>"
        )

    def _repr_html_(self) -> str:
        """Return what `shardctl bench` prints, for a notebook."""
        return in_a_notebook(bench_report(self, printable(self.dataset["path"])))

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


def bench_report(found: BenchResult, shown: str) -> Iterator[Section]:
    """Yield what is told of a measurement; `shown` names the shards."""
    notes = found.reader.notes if found.reader is not None else ()
    yield Section(f"{shown}: {found.reading}", (Figures(found.figures()), *notes))
    if found.against is not None:
        yield found.against.report(found.bytes_per_sample)
    if found.consumer is not None:
        yield found.consumer.report()
    if found.baseline is not None:
        yield found.baseline.report()
    if found.sweep:
        rows = [(p.shuffle, p.threads, p.batch_size, round(p.samples_per_s)) for p in found.sweep]
        best = best_of(found.sweep)
        options = f"{best.as_options(found.processes)}, {best.samples_per_s:,.0f} samples/s"
        yield Section(
            "sweep:",
            (
                Table(rows, ("order", "threads", "batch size", "samples/s")),
                f"best random order: {options}",
                f"in Python: dataset.{best.as_python(found.processes)}",
            ),
        )


def _shares(shares: dict[str, float]) -> str:
    """Return shares of time in words, the largest first."""
    there = sorted(
        ((share, name) for name, share in shares.items() if share >= _ALMOST_NONE), reverse=True
    )
    return ", ".join(f"{WAITS.get(name, name)} {share:.0%}" for share, name in there)


def best_of(points: Sequence[SweepPoint]) -> SweepPoint:
    """Return the fastest setting of a random order."""
    random = (point for point in points if point.shuffle != IN_ORDER)
    return max(random, key=lambda point: point.samples_per_s)
