"""`shardctl bench`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardctl.benchmark.options import (
    COMPARED,
    CONSUMER,
    HEADINGS,
    OUTPUT,
    PRESETS,
    READING,
    RUN,
    BenchOptions,
)
from shardctl.cli.command import PATH, command, option, path_argument, with_same_options
from shardctl.cli.options import OneOf, option_of, options_of
from shardctl.cli.output import (
    Output,
    check_page,
    open_option,
    open_page,
    printing_to_stderr,
    progress_options,
    report_lines,
    write_page,
)
from shardctl.errors import UsageError
from shardctl.loader.options import METRICS
from shardctl.system.arguments import contradiction
from shardctl.system.machine import keep_pandas_out_of_arrow
from shardctl.system.options import declared_in
from shardctl.system.packages import look_in_current_folder
from shardctl.system.report import Section, Table, table_lines
from shardctl.system.text import counted, printable

if TYPE_CHECKING:
    from shardctl.benchmark.measure.comparison import Comparison
    from shardctl.benchmark.measure.result import BenchResult
    from shardctl.loader.metrics import Family

STARVES = 1
"""Below this share, a dataset counts as dropped from the page cache, and a part of the threads'
time is not shown."""


@command(
    examples=(
        "shardctl bench out  # samples/s, time of a batch",
        "shardctl bench out --consumer-rate 2500 --gpus 4  # enough for four GPUs?",
        "shardctl bench out --consumer resnet50-a100  # for a published run?",
        "shardctl bench out --baseline  # how much faster than raw files?",
        "shardctl bench out --consumer mine:step --device cuda  # your own training step",
        "shardctl bench out --sweep  # which settings are fastest?",
        "shardctl bench out --watch  # a line a second, until Ctrl-C",
        "shardctl bench s3://bucket/out --cache /nvme/cache  # a dataset on a store",
        "shardctl bench old.tar --against  # what would a conversion gain?",
    ),
    headings=HEADINGS,
)
@path_argument("dataset", "DST", required=False)
@options_of(declared_in(BenchOptions))
@option(
    "--order",
    "Which random order (`shardctl help loader`). Default: the best one for DST.",
    heading=READING,
    type=OneOf(["global", "window", "block"]),
)
@option(
    "--list-consumers",
    "List the presets for --consumer with rates, sources and dates.",
    heading=CONSUMER,
)
@option(
    "--against",
    "Of another tool's shards: also convert some records, and read both in turn.",
    heading=COMPARED,
)
@option(
    "--python",
    "Of another tool's shards: the Python with their reader. Default: this one.",
    heading=COMPARED,
    type=PATH,
    metavar="PATH",
)
@option(
    "--html",
    "Also write the results with charts to this HTML file.",
    heading=OUTPUT,
    brief="a page with charts",
    type=PATH,
    metavar="FILE",
)
@open_option(OUTPUT)
@option(
    "--compare",
    "Compare with an earlier output of `shardctl bench --json`.",
    heading=COMPARED,
    type=PATH,
    metavar="FILE",
)
@option(
    "--watch",
    "Read DST until Ctrl-C (or for --seconds), and print every second how fast, and how "
    "long training waits.",
    heading=RUN,
)
@option_of("metrics", METRICS)
@progress_options
def bench(dataset: str | None, output: Output, list_consumers: bool, **given: Any) -> int:
    """Measure how fast DST can be read on this machine, and whether that is enough to keep a GPU
    busy.

    The data is read with shardctl's loader, as in training. Shards of other tools (WebDataset,
    TFRecord, TFDS, MDS, Parquet and Arrow of Hugging Face) are read with their own reader, if it is
    installed. With --consumer or --consumer-rate, exit code 1 means that the GPU would wait for
    data. It is then busy for less than 90 % of the time (accelerator utilisation as in MLPerf
    Storage).
    """
    if list_consumers:
        _list_consumers(output)
        return 0
    keep_pandas_out_of_arrow()
    if dataset is None:
        raise UsageError("it needs DST; for instance: shardctl bench out --consumer-rate 2500")
    watch, metrics = given.pop("watch"), given.pop("metrics")
    if watch:
        return _watch(dataset, output, metrics, **given)
    if metrics:
        raise UsageError("--metrics needs --watch; of a measurement, --json has the figures")
    return _measure(dataset, output, **given)


_NOT_AGAIN = (
    "seconds",
    "epochs",
    "runs",
    "batch_size",
    "compare",
)
"""What the command for a longer measurement leaves out of the one that was typed."""

WATCH_SECONDS = 1.0
"""How often --watch prints a line."""


@dataclass(frozen=True)
class _Lines:
    """Prints the figures of a loader: a line each time."""

    as_json: bool

    def write(self, family: Family, values: Mapping[str, float], step: int) -> None:
        """Print the figures."""
        try:
            click.echo(json.dumps(values) if self.as_json else self._line(values))
        except BrokenPipeError as error:  # nobody reads them any more
            raise KeyboardInterrupt from error

    def _line(self, values: Mapping[str, float]) -> str:
        threads = counted(int(values["threads"]), "thread")
        shares = (
            f"training waits {values['stall_share']:6.1%} of the time, and works "
            f"{values['utilization']:6.1%}"
        )
        return (
            f"epoch {values['epoch']}: {values['samples_per_s']:>11,.0f} samples/s; {shares}; "
            f"{threads}"
        )

    def close(self) -> None:
        """Nothing is open."""


def _watch(dataset: str, output: Output, metrics: tuple[str, ...], **given: Any) -> int:
    """Read until Ctrl-C. Figures for --metrics come as often as the lines."""
    from shardctl.benchmark.measure.consumers import watch_dataset

    unfit = next(
        (name for name in ("compare", "html", "open", "against", "python") if given.pop(name)), None
    )
    if unfit is not None:
        raise contradiction("--watch", f"--{unfit}")
    order = given.pop("order")
    look_in_current_folder()
    with suppress(KeyboardInterrupt):
        options = BenchOptions(**{**given, "shuffle": order or given["shuffle"]})
        watch_dataset(dataset, [_Lines(output.as_json), *metrics], WATCH_SECONDS, options)
    return 0


def _measure(
    dataset: str,
    output: Output,
    order: str | None,
    compare: str | None,
    html: str | None,
    against: bool,
    python: str | None,
    **given: Any,
) -> int:
    from shardctl.benchmark.measure import Listener
    from shardctl.benchmark.measure.comparison import compare_records, load_record
    from shardctl.benchmark.measure.result import bench_report
    from shardctl.system.progress import progress_of

    shows_page = given.pop("open")
    if order is not None and not given["shuffle"]:
        raise contradiction("--no-shuffle", "--order")
    check_page(html)
    before = load_record(Path(compare)) if compare is not None else None
    given["shuffle"] = order or given["shuffle"]
    look_in_current_folder()
    measure = _reader_of(dataset, against, python)
    with printing_to_stderr(), progress_of(output.shows_progress) as shown:
        result = measure(dataset, Listener.showing(shown), **given)
    record, sections = result.record(), [*bench_report(result, printable(dataset))]
    if before is not None:
        comparison = compare_records(before, record)
        record["comparison"] = asdict(comparison)
        sections.append(_compared(comparison))
    if html is not None or shows_page:
        from shardctl.benchmark.page import bench_page

        again = with_same_options(("shardctl", "bench", dataset), _NOT_AGAIN)
        content = bench_page(result, again)
        html = record["page"] = write_page(content, html, "bench")
        sections.append(Section(f"page written to {printable(html)}"))
    output.show(record, report_lines(sections))
    if html is not None and shows_page:
        open_page(html)
    return STARVES if result.consumer is not None and result.consumer.verdict == "starves" else 0


def _reader_of(dataset: str, against: bool, python: str | None) -> Callable[..., BenchResult]:
    """Return what measures DST. Raises UsageError for options of shards of other tools where it is
    a dataset of shardctl."""
    from shardctl.interop.foreign import is_foreign
    from shardctl.system.locations import is_url

    if not is_url(dataset) and is_foreign(Path(dataset)):
        from shardctl.benchmark.peers.measuring import bench_shards

        return partial(bench_shards, python=python or sys.executable, beside=against)
    if (against or python) and Path(dataset).exists():  # what is not there is named below
        name = "--against" if against else "--python"
        raise UsageError(
            f"{name} is for shards of other tools, and {printable(dataset)} is not; leave it out"
        )
    from shardctl.benchmark.measure import bench

    return bench


def _list_consumers(output: Output) -> None:
    consumers = [asdict(preset) for preset in PRESETS]
    header = ("name", "per s", "of", "what one GPU takes", "source", "date")
    output.show(
        {"consumers": consumers}, table_lines([[*each.values()] for each in consumers], header)
    )


def _compared(found: Comparison) -> Section:
    rows = [
        (
            c.metric,
            f"{c.before:,g}",
            f"{c.now:,g}",
            f"{c.change:+.1%}",
            "-" if c.noise is None else f"{c.noise:.1%}",
            _VERDICTS.get(c.verdict, c.verdict),
        )
        for c in found.changes
    ]
    table = Table(rows, ("", "before", "now", "change", "noise", ""))
    others = [f"not the same: {difference}" for difference in found.differences]
    noise = "noise: a change up to this may be chance"
    return Section("compared with the earlier measurement:", (table, noise, *others))


_VERDICTS = {"noise": "no change", "unjudged": "not judged: it takes 3 runs or more in both"}
