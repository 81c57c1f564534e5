"""`shardctl bench`."""

from __future__ import annotations

from typing import Any

import click
from tqdm import tqdm

from shardctl.cli.output import Output, auto_or_number, output_options, print_json
from shardctl.storage import printable


@click.command()
@click.argument("dataset", metavar="DST", type=click.Path())
@click.option("--split", metavar="NAME", help="Read only this split.")
@click.option("--batch-size", type=int, default=256, show_default=True, metavar="N")
@click.option(
    "--threads", callback=auto_or_number, default="auto", show_default=True, metavar="auto|N", help="Threads that make batches."
)
@click.option(
    "--shuffle/--no-shuffle", default=True, show_default=True, help="Read in a random order, or in that of the shards."
)
@click.option("--epochs", type=int, metavar="N", help="Read the dataset so many times. Default: whole epochs for 2 s or more.")
@click.option("--seconds", type=float, metavar="S", help="Read for so long instead.")
@click.option("--cold", is_flag=True, help="Drop the dataset from the page cache first.")
@click.option("--decode/--no-decode", default=True, show_default=True, help="Give pixels, or the stored bytes.")
@output_options
def bench(dataset: str, output: Output, **given: Any) -> None:
    """Measure how fast DST can be read on this machine, through the loader that training uses.

    The rate is that of all batches together; the first one is timed from opening the dataset.
    """
    from shardctl.benchmark import bench as measure

    with tqdm(unit=" samples", disable=output.hides_progress, leave=False) as bar:
        result = measure(dataset, progress=bar.update, **given)
    if output.as_json:
        print_json(result)
        return
    order = "random order" if result.shuffle else "in order"
    click.echo(
        f"{printable(dataset)}: {result.samples:,} samples in {result.batches:,} batches of {result.batch_size}, {order},"
        f" {result.threads} threads{', cold cache' if result.cold else ''}"
    )
    click.echo(f"  {result.samples_per_s:>12,.0f} samples/s")
    click.echo(f"  {result.mb_per_s:>12,.1f} MB/s handed over")
    click.echo(f"  {result.first_batch_s * 1e3:>12,.1f} ms to the first batch")
    click.echo(f"  {result.batch_ms_p50:>12,.2f} ms per batch at the median, {result.batch_ms_p99:,.2f} at the 99th percentile")
    click.echo(f"  {result.rss_mb:>12,.1f} MB of memory at the peak")
