"""A measurement of `shardctl bench` as a page."""

from __future__ import annotations

import itertools
import math
import shlex
import statistics
from collections.abc import Iterator

from shardctl.benchmark.measure.result import (
    ENOUGH,
    KEEPS_UP,
    TIME_OF_THREADS,
    WAITS,
    BenchResult,
    ConsumerResult,
    best_of,
)
from shardctl.inspection.content.overview import recipe_in_words, settings_in_words
from shardctl.inspection.pages.page import (
    absolute,
    bars,
    command,
    command_here,
    data,
    figures,
    number,
    page,
    paragraph,
    percent,
    section,
    tiles,
    told,
)
from shardctl.system.report import Html, table
from shardctl.system.text import counted, format_bytes

STAGE_NAMES = {
    "disk": "waiting for the disk",
    "decompress": "decompressing",
    "decode": "decoding",
    "gather": "copying",
    "cache": "reading from the cache",
    "other": "other",
    **WAITS,
}


_STYLE = Html(
    "<style>.tile:first-child { grid-column: 1 / -1; } .tile:first-child b { font-size: 2rem; }\n"
    "td + td { overflow-wrap: anywhere; }</style>"
)
"""The rate is the largest figure, and no table is wider than a telephone."""

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
        _STYLE,
        paragraph(result.reading, "soft"),
        *_verdict(result),
        tiles(_tile(*each) for each in result.figures() if each[0] != TIME_OF_THREADS),
        *_charts(result, again),
    ]
    if (against := result.against) is not None:
        reader = "as it is" if result.reader is None else result.reader.library
        rates = {"": [result.samples_per_s, against.samples_per_s]}
        chart = bars("Samples per second", [reader, "shardctl"], rates, "samples/s")
        parts.append(told(against.report(result.bytes_per_sample), chart))
    if (found := result.baseline) is not None:
        epochs = {"": [found.raw_epoch_s, found.shards_epoch_s]}
        chart = bars("An epoch", ["raw inputs", "shards"], epochs, "seconds")
        parts.append(told(found.report(), chart))
    if result.sweep:
        parts.append(_sweep(result))
    parts += [_environment(result), data("record", result.record())]
    return page(f"shardctl bench: {_path(result)}", *parts)


def _verdict(result: BenchResult) -> Iterator[Html]:
    found = result.consumer
    if found is None:
        return
    yield paragraph(
        f"{found.verdict_in_words.capitalize()}: GPU busy for {found.accelerator_utilization:.1%} "
        f"of the time, at {found.demand}",
        f"verdict {'good' if found.verdict == KEEPS_UP else 'bad'}",
    )
    yield from map(paragraph, (found.feeds, *found.next_steps))
    for note in found.notes:
        yield paragraph(note, "soft")


def _tile(figure: str, what: str) -> tuple[str, str]:
    """Return a figure of reading as a number, and its unit with what it is."""
    number, _, unit = figure.partition(" ")
    return number, f"{unit}, {what}"


def _charts(result: BenchResult, again: str) -> Iterator[Html]:
    """Yield the charts, and a word in the place of those that so few batches cannot be judged
    by."""
    drawn, few = [], []
    rates = _rates(result)
    if rates is None:
        few.append("throughput over time")
    else:
        seconds, per_s = rates
        names = [f"{each:.2f} s" for each in seconds]
        drawn.append(bars("Throughput over time", names, {"": per_s}, "samples/s"))
    if sum(result.latencies["counts"]) < FEW_BATCHES:
        few.append("the times from batch to batch")
    else:
        edges = map(number, result.latencies["edges_ms"])
        names = [f"{low} to {high}" for low, high in itertools.pairwise(edges)]
        counts = {"": result.latencies["counts"]}
        drawn.append(bars("Time from batch to batch, ms", names, counts, "batches"))
    stacks = {"alone": _named(result.time)} if result.time else {}
    if result.consumer is not None:
        stacks = {"with a GPU": _named(result.consumer.time), **stacks}
        drawn.append(_utilization(result.consumer))
    if any(stacks.values()):
        stages = list(dict.fromkeys(stage for each in stacks.values() for stage in each))
        shares = {name: [each.get(stage, 0.0) for stage in stages] for name, each in stacks.items()}
        title = "Where the loader's threads spend their time"
        drawn.append(bars(title, stages, shares, written=percent))
    if few:
        read = f"{counted(result.batches, 'batch', 'batches')} in {result.seconds:,.1f} s"
        yield paragraph(
            f"Too short to judge {' and '.join(few)}: {read}. Read longer, or in smaller batches:",
            "soft",
        )
        smaller = max(1, result.batch_size // 4)
        yield command_here(f"{again} --seconds {LONG} --batch-size {smaller}")
    yield figures(*drawn)


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
    """Draw what is expected of more and more GPUs at the loader's rate, and what was measured."""
    most = max(4, found.starves_at + 2, found.gpus + 2)
    gpus = sorted({found.gpus, *range(1, most + 1, max(1, most // 40))})
    series: dict[str, list[float | None]] = {
        "expected": [found.utilization_of(count) for count in gpus],
        "measured": [
            found.accelerator_utilization if count == found.gpus else None for count in gpus
        ],
    }
    title = f"Utilisation by number of GPUs ({ENOUGH:.0%} is enough)"
    return bars(title, [counted(count, "GPU") for count in gpus], series, written=percent)


def _sweep(result: BenchResult) -> Html:
    points = result.sweep
    split = f" --split {shlex.quote(result.split)}" if result.split else ""
    top = best_of(points)
    size = points[0].batch_size
    by_order: dict[str, dict[int, float]] = {}
    for point in points:
        if point.batch_size == size:
            by_order.setdefault(point.shuffle, {})[point.threads] = point.samples_per_s
    threads = sorted({count for rates in by_order.values() for count in rates})
    sizes = sorted(
        (
            point
            for point in points
            if (point.shuffle, point.threads) == (points[-1].shuffle, points[-1].threads)
        ),
        key=lambda point: point.batch_size,
    )
    return section(
        "What to change",
        paragraph(f"Best random order: {top.samples_per_s:,.0f} samples/s."),
        command(
            f"shardctl bench {shlex.quote(_path(result))}{split} {top.as_options(result.processes)}"
        ),
        paragraph("The same in Python:"),
        command(f"dataset.{top.as_python(result.processes)}"),
        figures(
            bars(
                "Orders and threads",
                [counted(count, "thread") for count in threads],
                {
                    order: [rates.get(count) for count in threads]
                    for order, rates in by_order.items()
                },
                "samples/s",
            ),
            bars(
                "Batch sizes",
                [f"batches of {point.batch_size}" for point in sizes],
                {"": [point.samples_per_s for point in sizes]},
                "samples/s",
            ),
        ),
    )


def _environment(result: BenchResult) -> Html:
    environment, recipe = result.environment, result.dataset["recipe"]
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
            ", ".join(
                f"{'unknown' if share is None else f'{share:.0%} of the dataset'} "
                f"{name.replace('_', ' ')}"
                for name, share in result.page_cache.items()
            ),
        ),
    ]
    if fingerprint := result.dataset["fingerprint"]:
        rows.append(("dataset", f"fingerprint {fingerprint}"))
    if recipe:
        rows += [("recipe", recipe_in_words(recipe)), ("settings", settings_in_words(recipe))]
    return section("What it was measured on", table(rows))
