"""A measurement of `shardctl bench` as a page."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Iterator
from typing import Any

from shardctl.benchmark.measure import (
    AgainstResult,
    BaselineResult,
    BenchResult,
    ConsumerResult,
    best_of,
)
from shardctl.benchmark.measure.result import ENOUGH, TIME_OF_THREADS, WAITS
from shardctl.inspection.content.overview import recipe_in_words, settings_in_words
from shardctl.inspection.pages import charts
from shardctl.inspection.pages.page import (
    absolute,
    command,
    data,
    figures,
    page,
    paragraph,
    section,
    tiles,
)
from shardctl.system.html import Html, table
from shardctl.system.text import counted, format_bytes

RATE, SECONDS = charts.counts("samples/s"), charts.Axis("seconds")

STAGE_NAMES = {
    "disk": "waiting for the disk",
    "decompress": "decompressing",
    "decode": "decoding",
    "gather": "copying",
    "cache": "reading from the cache",
    "other": "other",
    **WAITS,
}


FEW_BATCHES = 30
"""From this many batches on their times are worth a chart."""

A_POINT, LEAST_POINTS = 4, 5
"""Batches in each point of the rate over time, on average at least, and so many points at least."""

LONG = 20
"""Seconds of reading that most loaders can be judged by."""


def bench_page(result: BenchResult, again: str) -> str:
    """Return a measurement as a page. `again` is the command line of the same measurement, of no
    length and batch size."""
    parts = [
        paragraph(result.reading, "soft"),
        *_verdict(result),
        _tiles(result),
        *_charts(result, again),
    ]
    if result.against is not None:
        parts.append(_against(result.against, result))
    if result.baseline is not None:
        parts.append(_baseline(result.baseline))
    if result.sweep:
        parts.append(_sweep(result))
    parts += [_environment(result), data("record", result.record())]
    return page(f"shardctl bench: {_path(result)}", *parts)


def _verdict(result: BenchResult) -> Iterator[Html]:
    found = result.consumer
    if found is None:
        return
    keeps_up = found.verdict == "keeps-up"
    gpus = "one GPU" if found.gpus == 1 else f"{found.gpus} GPUs"
    yield paragraph(
        f"{'Keeps up' if keeps_up else 'Starves'}: {gpus} of {found.consumer_rate:,.1f} samples/s"
        f" {'is' if found.gpus == 1 else 'are'} busy for {found.accelerator_utilization:.1%} of "
        "the time:"
        f" {found.feeds}.",
        f"verdict {'good' if keeps_up else 'bad'}",
    )
    for note in (() if found.consumer == "rate" else (found.consumer,)) + found.notes:
        yield paragraph(note, "soft")


def _tiles(result: BenchResult) -> Html:
    return tiles((figure, what) for figure, what in result.figures() if figure != TIME_OF_THREADS)


def _charts(result: BenchResult, again: str) -> Iterator[Html]:
    """Yield the charts, and a word in the place of those that so few batches cannot be judged
    by."""
    drawn, few = [], []
    rates = _rates(result)
    if rates is None:
        few.append("throughput over time")
    else:
        seconds = charts.Axis("seconds of reading")
        drawn.append(
            charts.lines(
                "Throughput over time", {"samples/s": rates}, seconds, charts.counts("samples/s")
            )
        )
    if sum(result.latencies["counts"]) < FEW_BATCHES:
        few.append("the times from batch to batch")
    else:
        edges, counts = (
            result.latencies["edges_ms"],
            [int(count) for count in result.latencies["counts"]],
        )
        drawn.append(
            charts.histogram(
                "Time from batch to batch", edges, counts, charts.Axis("ms"), "batches", log=True
            )
        )
    stacks = {"alone": _named(result.time)} if result.time else {}
    if result.consumer is not None:
        stacks = {"with the consumer": _named(result.consumer.time), **stacks}
        drawn.append(_utilization(result.consumer))
    if any(stacks.values()):
        drawn.append(charts.shares("Where the loader's threads spend their time", stacks))
    if few:
        read = f"{counted(result.batches, 'batch', 'batches')} in {result.seconds:,.1f} s"
        yield paragraph(
            f"Too short to judge {' and '.join(few)}: {read}. Read longer, or in smaller batches:",
            "soft",
        )
        yield command(f"{again} --seconds {LONG} --batch-size {_smaller(result)}")
    yield figures(*drawn)


def _smaller(result: BenchResult) -> int:
    return max(1, result.batch_size // 4)


def _path(result: BenchResult) -> str:
    return absolute(str(result.dataset["path"]))


def _rates(result: BenchResult) -> tuple[list[float], list[float]] | None:
    """Return the rate over time, of as many batches at once as it takes to say something; None of
    too few."""
    seconds, rates = result.series["seconds"], result.series["samples_per_s"]
    together = max(1, math.ceil(A_POINT * len(seconds) / max(1, result.batches)))
    starts = range(0, len(seconds) - together + 1, together)
    if len(starts) < LEAST_POINTS:
        return None
    return [seconds[start] for start in starts], [
        statistics.mean(rates[start : start + together]) for start in starts
    ]


def _named(time: dict[str, float]) -> dict[str, float]:
    return {STAGE_NAMES.get(name, name): share for name, share in time.items()}


def _utilization(found: ConsumerResult) -> Html:
    """Draw what the loader's rate allows more and more GPUs, and what was measured."""
    most = max(4, found.starves_at + 2, found.gpus + 2)
    step = max(1, most // 40)
    gpus = list(range(1, most + 1, step))
    series = {
        "what the loader's rate allows": (gpus, [found.utilization_of(count) for count in gpus]),
        f"enough ({ENOUGH:.0%})": ([gpus[0], gpus[-1]], [ENOUGH, ENOUGH]),
        "measured": ([found.gpus], [found.accelerator_utilization]),
    }
    gpus_axis = charts.counts("GPUs")
    return charts.lines("Utilisation by number of GPUs", series, gpus_axis, charts.SHARES, top=1.0)


def _against(found: AgainstResult, result: BenchResult) -> Html:
    reader = "as it is" if result.reader is None else result.reader.library
    chart = charts.bars(
        "Samples per second",
        {"": ([reader, "shardctl"], [result.samples_per_s, found.samples_per_s])},
        RATE,
    )
    return section(
        "The same samples with shardctl",
        paragraph(found.reading, "soft"),
        tiles(found.figures(result.bytes_per_sample)),
        figures(chart),
    )


def _baseline(found: BaselineResult) -> Html:
    paid = (
        "They save no time: the raw inputs are read as fast as the shards."
        if found.pays_after is None
        else f"After {counted(found.pays_after, 'epoch')} they have saved the time of the "
        "conversion"
        f" ({found.conversion_s:,.1f} s)."
    )
    chart = charts.bars(
        "An epoch",
        {"": (["raw inputs", "shards"], [found.raw_epoch_s, found.shards_epoch_s])},
        SECONDS,
    )
    return section(
        "Shards compared with raw inputs",
        paragraph(f"{found.ratio:,.1f} times as fast from shards. {paid}"),
        figures(chart),
    )


def _sweep(result: BenchResult) -> Html:
    points = result.sweep
    split = f" --split {shlex.quote(result.split)}" if result.split else ""
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
        (
            point
            for point in points
            if (point.shuffle, point.threads) == (points[-1].shuffle, points[-1].threads)
        ),
        key=lambda point: point.batch_size,
    )
    by_size = {
        points[-1].shuffle: (
            [str(point.batch_size) for point in sizes],
            [point.samples_per_s for point in sizes],
        )
    }
    return section(
        "What to change",
        paragraph(f"Best random order: {top.samples_per_s:,.0f} samples/s."),
        command(
            f"shardctl bench {shlex.quote(_path(result))}{split} {top.as_options(result.processes)}"
        ),
        paragraph("The same in Python:"),
        command(f"dataset.{top.as_python(result.processes)}"),
        figures(
            charts.columns("Orders and threads", dict(by_order), "threads", RATE),
            charts.columns("Batch sizes", dict(by_size), "samples of a batch", RATE),
        ),
    )


def _environment(result: BenchResult) -> Html:
    environment = result.environment
    rows = [
        (
            "processor",
            f"{environment['cpu']}, {environment['cores']} cores, "
            f"{format_bytes(environment['memory_bytes'])} of memory",
        ),
        (
            "system",
            f"{environment['system']}, Python {environment['python']}, file system "
            f"{environment['file_system']}",
        ),
        (
            "versions",
            ", ".join(f"{name} {version}" for name, version in environment["versions"].items()),
        ),
        (
            "page cache",
            ", ".join(_in_cache(name, share) for name, share in result.page_cache.items()),
        ),
        *(
            [("dataset", f"fingerprint {found}")]
            if (found := result.dataset["fingerprint"])
            else []
        ),
        *_recipe(result.dataset["recipe"]),
    ]
    return section("What it was measured on", table(rows))


def _in_cache(name: str, share: float | None) -> str:
    return (
        f"{'unknown' if share is None else f'{share:.0%} of the dataset'} {name.replace('_', ' ')}"
    )


def _recipe(recipe: Any) -> list[tuple[str, str]]:
    """Return the recipe in words; shards of other tools have none."""
    if not recipe:
        return []
    return [("recipe", recipe_in_words(recipe)), ("settings", settings_in_words(recipe))]
