"""A measurement of `shardctl bench` as a page."""

from __future__ import annotations

from collections.abc import Iterator

from shardctl.benchmark.measure import BaselineResult, BenchResult, ConsumerResult, SweepPoint, best_of
from shardctl.benchmark.measure.consumers import ENOUGH
from shardctl.inspection.pages import charts
from shardctl.inspection.pages.page import data, figures, page, paragraph, section, tiles
from shardctl.system.html import Html, table
from shardctl.system.text import format_bytes

STAGE_NAMES = {
    "disk": "waiting for the disk",
    "decompress": "decompressing",
    "decode": "decoding",
    "gather": "copying",
    "network": "waiting for the network",
    "cache": "reading from the cache",
    "waiting": "waiting for each other",
    "room": "waiting for batches to be taken",
    "other": "other",
}


def bench_page(result: BenchResult) -> str:
    """Return a measurement as a page. Raises InstallError without Plotly."""
    charts.require_plotly()
    name = str(result.dataset["path"])
    parts = [_headline(result), *_verdict(result), _tiles(result), _charts(result)]
    if result.baseline is not None:
        parts.append(_baseline(result.baseline))
    if result.sweep:
        parts.append(_sweep(result.sweep))
    parts += [_environment(result), data("record", result.record()), charts.drawing()]
    return page(f"shardctl bench: {name}", *parts)


def _headline(result: BenchResult) -> Html:
    order = "in order" if result.shuffle == "in-order" else f"in random order ({result.shuffle})"
    split = f" of split {result.split}" if result.split else ""
    read = "from the disk" if result.cold else "with the page cache warm"
    processes = f" in {result.processes} worker processes" if result.processes else ""
    return paragraph(
        f"{result.dataset['samples']:,} samples{split}, {format_bytes(result.dataset['bytes'])}, read {order} in batches of"
        f" {result.batch_size} by {result.threads} threads{processes}, {read}{'' if result.decode else ', not decoded'}",
        "soft",
    )


def _verdict(result: BenchResult) -> Iterator[Html]:
    found = result.consumer
    if found is None:
        return
    keeps_up = found.verdict == "keeps-up"
    waiting = f"{found.starves_at:,} or more" if found.starves_at > 1 else "even one"
    gpus = "one GPU" if found.gpus == 1 else f"{found.gpus} GPUs"
    yield paragraph(
        f"{'Keeps up' if keeps_up else 'Starves'}: {gpus} of {found.consumer_rate:,.1f} samples/s"
        f" {'is' if found.gpus == 1 else 'are'} busy for {found.accelerator_utilization:.1%} of the time. The loader can feed"
        f" {found.gpus_fed:,.1f} such GPUs; {waiting} would wait for data.",
        f"verdict {'good' if keeps_up else 'bad'}",
    )
    for note in (() if found.consumer == "rate" else (found.consumer,)) + found.notes:
        yield paragraph(note, "soft")


def _tiles(result: BenchResult) -> Html:
    own = f", {result.own_mb:,.0f} MB without the mapped shards" if result.own_mb is not None else ""
    tokens = [] if result.tokens_per_s is None else [(f"{result.tokens_per_s:,.0f}", "tokens/s, without padding")]
    return tiles(
        [
            (f"{result.samples_per_s:,.0f}", f"samples/s, spread {result.spread:.1%} over {len(result.runs)} runs"),
            *tokens,
            (f"{result.mb_per_s:,.0f} MB/s", f"handed over, {result.stored_mb_per_s:,.0f} as stored"),
            (f"{result.batch_ms_mean:,.2f} ms", f"per batch on average{_longest_wait(result)}"),
            (f"{result.first_batch_s * 1e3:,.0f} ms", "to the first batch"),
            (f"{result.cores_used:.2f}", f"of {result.environment['cores']} cores used"),
            (f"{result.rss_mb:,.0f} MB", f"of memory at the peak{own}"),
        ]
    )


def _longest_wait(result: BenchResult) -> str:
    return "" if result.batch_ms_p99 is None else f"; waits of up to {result.batch_ms_p99:,.2f} ms (99th percentile)"


def _charts(result: BenchResult) -> Html:
    stacks = {"alone": _named(result.time)}
    drawn = [
        charts.lines(
            "Throughput over time",
            {"samples/s": (result.series["seconds"], result.series["samples_per_s"])},
            "seconds of reading",
            "samples/s",
        ),
        charts.histogram(
            "Time from batch to batch", result.latencies["edges_ms"], _counts(result.latencies["counts"]), "ms", log=True
        ),
    ]
    if result.consumer is not None:
        stacks = {"with the consumer": _named(result.consumer.time), **stacks}
        drawn.append(_utilization(result.consumer))
    return figures(*drawn, charts.shares("Where the loader's threads spend their time", stacks))


def _counts(counts: list[float]) -> list[int]:
    return [int(count) for count in counts]


def _named(time: dict[str, float]) -> dict[str, float]:
    return {STAGE_NAMES.get(name, name): share for name, share in time.items()}


def _utilization(found: ConsumerResult) -> Html:
    """Draw what the loader's rate allows more and more GPUs, and what was measured."""
    most = max(4, found.starves_at + 2, found.gpus + 2)
    step = max(1, most // 40)
    gpus = list(range(1, most + 1, step))
    series = {
        "what the loader's rate allows": (gpus, [found.utilization_of(count) for count in gpus]),
        "enough (90 %)": ([gpus[0], gpus[-1]], [ENOUGH, ENOUGH]),
        "measured": ([found.gpus], [found.accelerator_utilization]),
    }
    return charts.lines("Utilisation by number of GPUs", series, "GPUs", "", yaxis_tickformat=".0%", yaxis_range=[0, 1.05])


def _baseline(found: BaselineResult) -> Html:
    paid = (
        "They save no time: the raw inputs are read as fast as the shards."
        if found.pays_after is None
        else f"After {found.pays_after:,} epochs they have saved the time of the conversion ({found.conversion_s:,.1f} s)."
    )
    chart = charts.bars(
        "An epoch", {"seconds": (["raw inputs", "shards"], [found.raw_epoch_s, found.shards_epoch_s])}, "", "seconds"
    )
    return section(
        "Shards compared with raw inputs", paragraph(f"{found.ratio:,.1f} times as fast from shards. {paid}"), figures(chart)
    )


def _sweep(points: tuple[SweepPoint, ...]) -> Html:
    best = best_of(points)
    size = points[0].batch_size
    by_order: dict[str, tuple[list[str], list[float]]] = {}
    for point in points:
        if point.batch_size == size:
            counts, rates = by_order.setdefault(point.shuffle, ([], []))
            counts.append(str(point.threads))
            rates.append(point.samples_per_s)
    top = next(point for point in best if point.shuffle != "in-order")
    sizes = sorted(
        (point for point in points if (point.shuffle, point.threads) == (points[-1].shuffle, points[-1].threads)),
        key=lambda point: point.batch_size,
    )
    by_size = {points[-1].shuffle: ([str(point.batch_size) for point in sizes], [point.samples_per_s for point in sizes])}
    return section(
        "What to change",
        paragraph(
            f"Best random order: --order {top.shuffle} --threads {top.threads} --batch-size {top.batch_size},"
            f" {top.samples_per_s:,.0f} samples/s."
        ),
        figures(
            charts.bars("Orders and threads", dict(by_order), "threads", "samples/s", xaxis_type="category"),
            charts.bars("Batch sizes", dict(by_size), "batch size", "samples/s", xaxis_type="category"),
        ),
    )


def _environment(result: BenchResult) -> Html:
    environment = result.environment
    rows = [
        (
            "processor",
            f"{environment['cpu']}, {environment['cores']} cores, {format_bytes(environment['memory_bytes'])} of memory",
        ),
        ("system", f"{environment['system']}, Python {environment['python']}, file system {environment['file_system']}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in environment["versions"].items())),
        ("page cache", ", ".join(f"{name.replace('_', ' ')} {share}" for name, share in result.page_cache.items())),
        ("dataset", f"fingerprint {result.dataset['fingerprint']}"),
        ("recipe", str(result.dataset["recipe"])),
    ]
    return section("What it was measured on", table(rows))
