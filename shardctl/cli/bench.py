"""`shardctl bench`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardctl.cli.output import Output, auto_or_number, output_options, print_json, print_table
from shardctl.errors import UsageError
from shardctl.storage import format_bytes, printable

if TYPE_CHECKING:
    from shardctl.benchmark import BaselineResult, BenchResult, ConsumerResult, SweepPoint
    from shardctl.benchmark.comparison import Comparison

STARVES = 1
_ALMOST_NONE = 0.01
"""Share of a dataset below which it counts as dropped from the page cache, and of the threads' time that is not shown."""


@click.command()
@click.argument("dataset", metavar="DST", required=False, type=click.Path())
@click.option("--split", metavar="NAME", help="Read only this split.")
@click.option("--batch-size", type=int, default=256, show_default=True, metavar="N")
@click.option(
    "--threads", callback=auto_or_number, default="auto", show_default=True, metavar="auto|N", help="Threads that make batches."
)
@click.option(
    "--shuffle/--no-shuffle", default=True, show_default=True, help="Read in a random order, or in that of the shards."
)
@click.option(
    "--order",
    type=click.Choice(["global", "window", "block"]),
    help="Which random order. Default: the best that the storage allows. docs/loader.md has what they are.",
)
@click.option("--epochs", type=int, metavar="N", help="Read the dataset so many times in each run.")
@click.option("--seconds", type=float, metavar="S", help="Read for so long in each run.  [default: 2, consumers 5]")
@click.option("--runs", type=int, default=3, show_default=True, metavar="N", help="Runs, of which the median counts.")
@click.option("--cold", is_flag=True, help="Drop the dataset from the page cache before each run of one epoch.")
@click.option("--decode/--no-decode", default=True, show_default=True, help="Give pixels, or the stored bytes.")
@click.option("--consumer-rate", type=float, metavar="R", help="Is it fast enough for a GPU that takes R samples/s?")
@click.option(
    "--consumer",
    metavar="PRESET|MODULE:FUNCTION",
    help="The same for a published training run, or for a function of your own, called with every batch.",
)
@click.option("--gpus", type=int, default=1, show_default=True, metavar="N", help="So many of these GPUs.")
@click.option("--device", metavar="cpu|cuda", help="Give your function tensors on this device, and not numpy arrays.")
@click.option(
    "--consumer-timeout",
    type=float,
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up on a function that does not return from one batch.",
)
@click.option("--list-consumers", is_flag=True, help="Show the presets: rates, sources and dates.")
@click.option("--baseline", is_flag=True, help="Also run the recipe on the raw inputs, as training without shards would.")
@click.option(
    "--transform",
    "transforms",
    multiple=True,
    metavar="MODULE:FUNCTION",
    help="With --baseline: a function of your own that the dataset was made with.",
)
@click.option("--sweep", is_flag=True, help="Also try other numbers of threads, orders and batch sizes.")
@click.option("--html", type=click.Path(), metavar="FILE", help="Write a page with charts to this file.")
@click.option("--compare", type=click.Path(), metavar="FILE", help="Show the difference to what --json printed earlier.")
@output_options
def bench(dataset: str | None, output: Output, list_consumers: bool, **given: Any) -> int:
    """Measure how fast DST can be read on this machine, and whether that keeps a GPU busy.

    The loader is the one that training uses. With a consumer, exit code 1 says that it starves: it is busy for less than
    90 % of the time (accelerator utilisation as MLPerf Storage defines it).

    \b
      shardctl bench out                                    samples/s, latencies, where the time goes
      shardctl bench out --consumer-rate 2500 --gpus 4      does it feed four GPUs of 2,500 samples/s each?
      shardctl bench out --consumer resnet50-a100           the same for a published rate (--list-consumers)
      shardctl bench out --consumer mine:step --device cuda with a training step of your own
      shardctl bench out --baseline                         what did the conversion buy?
      shardctl bench out --sweep                            what to change
    """
    if list_consumers:
        _list_consumers(output.as_json)
        return 0
    if dataset is None:
        raise click.UsageError("Missing argument 'DST'.")
    return _measure(dataset, output, **given)


def _measure(dataset: str, output: Output, order: str | None, compare: str | None, html: str | None, **given: Any) -> int:
    from tqdm import tqdm

    from shardctl.benchmark import Listener
    from shardctl.benchmark import bench as measure
    from shardctl.benchmark.comparison import compare_records, load_record

    if order is not None and not given["shuffle"]:
        raise UsageError("--no-shuffle and --order contradict each other; give one of them")
    if html is not None:
        from shardctl.report.charts import require_plotly

        require_plotly()
    before = load_record(Path(compare)) if compare is not None else None
    given["shuffle"] = order or given["shuffle"]
    sys.path.insert(0, "")  # a function of one's own is looked for in the current folder too
    with tqdm(unit=" samples", disable=output.hides_progress, leave=False) as bar:
        result = measure(dataset, Listener(bar.set_description, bar.update), **given)
    comparison = compare_records(before, result.record()) if before is not None else None
    if html is not None:
        from shardctl.report import bench_page
        from shardctl.report.page import write_page

        write_page(Path(html), bench_page(result))
    if output.as_json:
        print_json({**result.record(), **({"comparison": asdict(comparison)} if comparison else {})})
    else:
        _print(result, dataset, comparison)
        if html is not None:
            click.echo(f"page written to {printable(html)}")
    return STARVES if result.consumer is not None and result.consumer.verdict == "starves" else 0


def _list_consumers(as_json: bool) -> None:
    from shardctl.benchmark import PRESETS

    if as_json:
        print_json({"consumers": [asdict(preset) for preset in PRESETS]})
        return
    rows = [(preset.name, preset.rate, preset.unit, preset.what, preset.source, preset.date) for preset in PRESETS]
    print_table(rows, ("name", "per s", "of", "what one GPU takes", "source", "date"))


def _print(result: BenchResult, dataset: str, comparison: Comparison | None) -> None:
    _print_throughput(result, dataset)
    if result.consumer is not None:
        _print_consumer(result.consumer)
    if result.baseline is not None:
        _print_baseline(result.baseline)
    if result.sweep:
        _print_sweep(result.sweep)
    if comparison is not None:
        _print_comparison(comparison)


def _print_throughput(result: BenchResult, dataset: str) -> None:
    order = "in order" if result.shuffle == "in-order" else f"random order ({result.shuffle})"
    click.echo(
        f"{printable(dataset)}: {result.dataset['samples']:,} samples, {format_bytes(result.dataset['bytes'])};"
        f" batches of {result.batch_size}, {order}, {result.threads} threads; {_cache(result)}"
    )
    low, high = min(result.runs), max(result.runs)
    _line(f"{result.samples_per_s:,.0f} samples/s", f"median of {len(result.runs)} runs from {low:,.0f} to {high:,.0f}")
    _line(f"{result.mb_per_s:,.1f} MB/s handed over", f"{result.stored_mb_per_s:,.1f} MB/s as stored")
    _line(f"{result.batch_ms_p50:,.2f} ms per batch", f"at the median, {result.batch_ms_p99:,.2f} at the 99th percentile")
    _line(f"{result.first_batch_s * 1e3:,.1f} ms to the first batch", "from opening the dataset")
    busy = ", ".join(f"{share:.0%}" for share in result.core_busy[:16])
    _line(
        f"{result.cores_used:.2f} cores", f"used by the reading; all cores were busy: {busy}" if busy else "used by the reading"
    )
    own = f"{result.own_mb:,.0f} of it not of mapped files" if result.own_mb is not None else "at the peak"
    _line(f"{result.rss_mb:,.0f} MB of memory", own)
    _line("time of the threads", _shares(result.time))


def _line(figure: str, what: str) -> None:
    """Print a figure and what it is."""
    click.echo(f"  {figure:<28} {what}")


def _cache(result: BenchResult) -> str:
    before, after = result.page_cache.get("before"), result.page_cache.get("after_drop")
    if not result.cold:
        return "page cache unknown" if before is None else f"{before:.0%} of it in the page cache before"
    if after is None:
        return "dropped from the page cache (nobody tells whether it went)"
    if after > _ALMOST_NONE:
        return f"NOT COLD: {after:.0%} of it stayed in the page cache (mapped by somebody, or a file system in memory)"
    return "cold page cache"


def _shares(shares: dict[str, float]) -> str:
    names = {"waiting": "waiting for each other", "room": "waiting for batches to be taken"}
    there = sorted(((share, name) for name, share in shares.items() if share >= _ALMOST_NONE), reverse=True)
    return ", ".join(f"{names.get(name, name)} {share:.0%}" for share, name in there)


def _print_consumer(found: ConsumerResult) -> None:
    gpus = f"{found.gpus} GPUs of " if found.gpus > 1 else ""
    name = "" if found.consumer == "rate" else f" ({found.consumer})"
    click.echo(f"consumer: {gpus}{found.consumer_rate:,.1f} samples/s{' each' if found.gpus > 1 else ''}{name}")
    for note in found.notes:
        click.echo(f"  {note}")
    _line(
        f"{found.accelerator_utilization:.1%} utilisation", f"stalled for {found.stall_fraction:.1%} of {found.seconds:.1f} s"
    )
    _line("time of the threads", _shares(found.time))
    verdict = "keeps up" if found.verdict == "keeps-up" else "STARVES"
    click.echo(f"  {verdict}: feeds {found.gpus_fed:,.1f} such GPUs; starves at {found.starves_at:,}")


def _print_baseline(found: BaselineResult) -> None:
    click.echo("baseline: the recipe on the raw inputs, with the same threads")
    _line(
        f"{found.raw_samples_per_s:,.0f} samples/s",
        f"an epoch takes {found.raw_epoch_s:,.1f} s, from shards {found.shards_epoch_s:,.1f} s",
    )
    _line(f"{found.ratio:,.1f} times", "as fast from shards")
    how = "took" if found.conversion_measured else "is taken to have cost one epoch from raw,"
    if found.pays_after is None:
        _line("never", "does the conversion pay for itself in time: raw inputs are as fast")
    else:
        _line(
            f"after {found.pays_after:,} epochs",
            f"the conversion, which {how} {found.conversion_s:,.1f} s, has paid for itself",
        )
    if found.rejected:
        _line(f"{found.rejected:,} inputs", "were not what they were, or could not be decoded")


def _print_sweep(points: tuple[SweepPoint, ...]) -> None:
    from shardctl.benchmark import best_of

    click.echo("sweep:")
    rows = [(p.shuffle, p.threads, p.batch_size, round(p.samples_per_s)) for p in points]
    print_table(rows, ("order", "threads", "batch size", "samples/s"))
    best = next(point for point in best_of(points) if point.shuffle != "in-order")
    click.echo(
        f"  best random order: --order {best.shuffle} --threads {best.threads} --batch-size {best.batch_size},"
        f" {best.samples_per_s:,.0f} samples/s"
    )


def _print_comparison(found: Comparison) -> None:
    click.echo("compared with the earlier measurement:")
    rows = [
        (
            c.metric,
            f"{c.before:,g}",
            f"{c.now:,g}",
            f"{c.change:+.1%}",
            "within the noise" if c.verdict == "noise" else c.verdict,
        )
        for c in found.changes
    ]
    print_table(rows, ("", "before", "now", "change", ""))
    if found.changes:
        click.echo(f"  noise: {found.changes[0].noise:.1%}, from the fastest to the slowest run")
    for difference in found.differences:
        click.echo(f"  not the same: {difference}")
