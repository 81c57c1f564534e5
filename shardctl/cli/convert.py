"""`shardctl convert`."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardctl.build.options import Options
from shardctl.build.shards import WORKER
from shardctl.cli.options import options_of, values_of
from shardctl.cli.output import Output, output_options, print_json, print_reasons, printing_to_stderr, waiting_line
from shardctl.cli.step_options import recipe_of, source_options, transform_options
from shardctl.format.step_counts import step_lines
from shardctl.system.importing import look_in_current_folder
from shardctl.system.startup import import_without_threads, keep_pandas_out_of_arrow, reuse_memory
from shardctl.system.stores import is_url
from shardctl.system.text import counted, format_bytes, printable

if TYPE_CHECKING:
    from tqdm import tqdm

    from shardctl.build.convert import ConvertResult
    from shardctl.build.convert.estimate import Estimate
    from shardctl.build.convert.explain import Explanation
    from shardctl.build.convert.result import PartDone
    from shardctl.build.convert.update.update_plan import Changes
    from shardctl.build.shards.task import WorkDone


def _sources_and_destination(
    context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[tuple[str, ...], str]:
    """Take the last path as the destination: with a single path, click would report that the source is missing."""
    if len(value) == 1:
        message = f"Missing argument 'DST'. Where is the dataset to be written? For instance: shardctl convert {value[0]} out"
        raise click.UsageError(printable(message), context)
    return value[:-1], value[-1]


def _number_or_word(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | str | None:
    """Return a number where it is one; the recipe knows which words there are."""
    try:
        return None if value is None else float(value)
    except ValueError:
        return value


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="SRC... DST", type=click.Path(), callback=_sources_and_destination)
@source_options
@options_of(Options, "labels")
@transform_options
@click.option(
    "--store",
    metavar="source|jpeg:Q|png|webp:Q|raw|none",
    help="How images are stored. Default: source (the original bytes), or jpeg:90 if a step changes the image.",
)
@click.option(
    "--compression",
    metavar="auto|none|lz4|zstd[:LEVEL]",
    help="Compression of the blocks. auto: zstd for text, none for images.",
)
@options_of(Options, "shards")
@click.option("--seed", type=int, metavar="S", help="Seed of random steps and splits. Default: 0.")
@click.option(
    "--variants", type=int, metavar="K", help="Make K samples of every input, each with other random numbers. Default: 1."
)
@click.option("--max-pixels", type=int, metavar="N", help="Reject images with more pixels. Default: 100 million.")
@options_of(Options, "work")
@click.option(
    "--truncated",
    type=click.Choice(["reject", "keep"]),
    help="Truncated images: reject them, or keep the part that is there and fill the rest with grey. Default: reject.",
)
@click.option(
    "--duplicates",
    metavar="keep|exact|similar[:BITS]|near[:SHARE]|line|paragraph",
    help="Images: keep all, or reject a file of the same bytes as one before it (exact), or one that looks like it (similar:"
    " up to BITS of 64 bits of a hash differ, 7 if not given). Texts: reject one that is the same as one before it (exact), or"
    " nearly (near: SHARE of their 5-word sequences is the same, 0.8 if not given); or drop its lines or paragraphs that were"
    " there before. Default: keep.",
)
@click.option(
    "--resampling",
    type=click.Choice(["pillow", "opencv"]),
    help="What resamples images in crops, resizes and warps: opencv is faster, its pixels differ slightly, and it needs the"
    " extra opencv. Default: pillow.",
)
@click.option(
    "--keep-objects",
    callback=_number_or_word,
    metavar="SHARE|center",
    help="Objects in images that are cut: keep those of which at least this share of the area is visible, or whose centre is."
    " Default: 0.1.",
)
@click.option(
    "--unmoved",
    metavar="A,B,…",
    help="Fields that look like places, masks or other images: keep them as they are where steps move the pixels of the image."
    " Without this option such a conversion is refused.",
)
@click.option(
    "--mask-fields",
    metavar="A,B,…",
    help="Fields of records that are masks: images with one number for each pixel of their image. They move with it, as in"
    " the loader. Default: where steps move pixels, fields whose names and first values show masks.",
)
@options_of(Options, "limits", "update", "target", "part", "run")
@output_options
def convert(paths: tuple[tuple[str, ...], str], output: Output, **given: Any) -> None:
    """Convert the inputs under SRC into a dataset at DST.

    Images in folders (a folder per class or flat); text files, by file, line or paragraph; tables: JSONL, JSON, CSV, TSV,
    Parquet, Arrow. Text forms may be compressed (.gz .bz2 .xz .zst). docs/inputs.md says how each is read.

    Inputs that cannot be converted are listed in DST/rejects.jsonl with the reason. The dataset is complete when
    DST/manifest.json exists. Run the same command again to resume a stopped conversion; a complete one is up to date.

    \b
      shardctl convert photos out                                  keep the original bytes
      shardctl convert photos out --resize 256 --crop 224 --store raw
      shardctl convert photos out --labels photos/labels.csv --split train=0.9,val=0.1 --shuffle 0
      shardctl convert corpus.jsonl out
      shardctl convert s3://bucket/photos out                      or gs://, az://: docs/inputs.md
      shardctl convert table.csv out --text-field body --label-field category
    """
    src, dst = paths
    look_in_current_folder()
    options = values_of(Options, given)
    import_without_threads()
    keep_pandas_out_of_arrow()
    reuse_memory()
    from shardctl.build.convert import convert as convert_dataset

    view = _View(dst, show=not output.hides_progress, verbose=output.verbose)
    try:
        with _workers_ahead(dst, options), printing_to_stderr():
            result = convert_dataset(list(src), dst, recipe_of(given), view.listener(), **options)
    finally:
        view.close()
    view.tell(result)
    if output.as_json:
        print_json(result_record(result))
    else:
        print_result(result, dst)
        if given["copy_rejects"]:
            click.echo(f"{counted(result.copied, 'rejected input')} copied to {printable(given['copy_rejects'])}")


def _workers_ahead(dst: str, options: dict[str, Any]) -> AbstractContextManager[None]:
    """Start the process that workers are forked from, unless there seems to be no work for them."""
    complete = Path(dst, "manifest.json").exists() and not any(options[way] for way in ("overwrite", "update", "append"))
    if complete or options["workers"] == 0:
        return nullcontext()
    from shardctl.system.processes.forkserver_client import forked_early

    return forked_early(WORKER, options["worker_memory"] or 0)


class _View:
    """What a user sees on stderr while a conversion runs."""

    def __init__(self, dst: str, show: bool, verbose: bool) -> None:
        self._dst, self._show, self._verbose = dst, show, verbose
        self._bar: tqdm[Any] | None = None
        self._rows = self._rejected = self._bytes = 0
        self._shown: tuple[str, ...] = ()

    def listener(self) -> Any:
        """Return the callbacks for the conversion."""
        from shardctl.build.convert import Listener

        on_line = self._on_line if self._verbose else Listener.on_line
        if not self._show:
            return Listener(on_line=on_line)
        return Listener(
            self._listing,
            self._waiting,
            self._announce,
            self._resuming,
            self._progress,
            on_line,
            self._comparing,
            self._part,
        )

    def tell(self, result: ConvertResult) -> None:
        """Show the notices that were not shown before the work, and the warnings, even with --quiet."""
        for notice in result.notices:
            if self._show and notice not in self._shown:
                click.echo(f"note: {notice}", err=True)
        for warning in result.warnings:
            if warning not in self._shown:
                click.echo(f"WARNING: {warning}", err=True)

    def close(self) -> None:
        """End the line of the progress bar."""
        if self._bar is not None:
            self._bar.close()

    def _listing(self, inputs: int) -> None:
        if self._verbose:
            click.echo(f"listed {counted(inputs, 'input')}", err=True)

    def _comparing(self, inputs: int) -> None:
        if not sys.stderr.isatty():
            return
        if self._bar is None:
            from tqdm import tqdm  # 20 ms, by now beside the workers

            self._bar = tqdm(unit=" inputs compared", dynamic_ncols=True)
        self._bar.update(inputs - self._bar.n)

    def _end_comparing(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _waiting(self, owner: str) -> None:
        click.echo(waiting_line(owner, self._dst), err=True)

    def _announce(self, estimate: Estimate) -> None:
        self._end_comparing()
        for line in estimate_lines(estimate):
            click.echo(line, err=True)
        self._shown, self._rows = (*estimate.notices, *estimate.warnings), estimate.records

    def _resuming(self, done: int, shards: int) -> None:
        click.echo(f"resuming: {done:,} of {shards:,} shards are done already", err=True)

    def _part(self, name: str, shards: int, records: int) -> None:
        click.echo(f"part {name}: {counted(shards, 'shard')}, {counted(records, 'input')}", err=True)
        self._rows = records

    def _on_line(self, line: str) -> None:
        """Show what a worker has printed, above the bar where there is one."""
        if self._bar is not None:
            self._bar.write(printable(line), file=sys.stderr)
        else:
            click.echo(printable(line), err=True)

    def _progress(self, progress: WorkDone) -> None:
        if not sys.stderr.isatty():
            return
        if self._bar is None:
            from tqdm import tqdm  # 20 ms, by now beside the workers

            self._bar = tqdm(total=self._rows, unit=" inputs", dynamic_ncols=True, smoothing=0.1)
        self._rejected += progress.rejected
        self._bytes += progress.bytes
        rate = self._bytes / max(self._bar.format_dict["elapsed"], 1e-6) / 1e6
        self._bar.set_postfix_str(f"{rate:.1f} MB/s read, {self._rejected} rejected", refresh=False)
        self._bar.update(progress.records)


MOST_SUFFIXES = 6
"""How many kinds of files that are not converted are shown by name."""


def estimate_lines(estimate: Estimate) -> list[str]:
    """Say what a conversion will do."""
    splits = ", ".join(f"{split.name} {split.expected:,}" for split in estimate.splits)
    classes = counted(estimate.classes, "class", "classes") if estimate.classes is not None else "labels"
    labels = "no labels" if estimate.labelled_by == "nothing" else f"{classes} from the {estimate.labelled_by}"
    if estimate.annotated:
        marks = f"annotations: {', '.join(estimate.annotated)}"
        labels = marks if estimate.labelled_by == "nothing" else f"{labels}; {marks}"
    inputs = counted(estimate.inputs, f"{estimate.kind} input")
    changes = estimate.changes
    shards = counted(estimate.shards, "shard")
    if changes is not None and not changes.anew:
        shards = f"{changes.rebuilt + changes.new:,} of {shards}"
    free = f" ({format_bytes(estimate.free_bytes)} free)" if estimate.free_bytes is not None else ""
    lines = [
        f"{inputs}, {format_bytes(estimate.input_bytes)}; {labels}; splits: {splits}",
        f"will write {shards}, about {format_bytes(estimate.bytes)}{free}, in about {_duration(estimate.seconds)}",
    ]
    if changes is not None:
        lines.insert(1, changes_line(changes))
    if estimate.probe_rejects:
        lines.append(f"of {counted(estimate.probed, 'input')} tried beforehand, {estimate.probe_rejects:,} cannot be converted")
    if estimate.ignored:
        total = sum(estimate.ignored.values())
        shown = list(estimate.ignored.items())[:MOST_SUFFIXES]
        counts = ", ".join(f"{count} {printable(suffix)}" for suffix, count in shown)
        more = total - sum(count for _, count in shown)
        lines.append(f"other files, not converted: {counts}{f' and {more:,} more, {total:,} in all' if more else ''}")
    lines += [f"note: {notice}" for notice in estimate.notices]
    return lines + [f"WARNING: {warning}" for warning in estimate.warnings]


def changes_line(changes: Changes) -> str:
    """Say what an update does: inputs that came, went and changed, and how many shards are built."""
    inputs = f"+{changes.added:,} -{changes.removed:,} ~{changes.changed:,} inputs"
    if changes.anew:
        return f"{inputs}; all shards are made anew, since {changes.anew}"
    new = f", {changes.new:,} new" if changes.new else ""
    return f"{inputs}; {changes.rebuilt:,} of {counted(changes.rebuilt + changes.kept, 'shard')} rebuilt{new}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


VERDICTS = {
    "up-to-date": "is up to date",
    "update": "differs in its {}: --update brings it up to date",
    "anew": "differs in its {}: --overwrite makes it anew",
}


def _print_explanation(explanation: Explanation, shown: str) -> None:
    click.echo(f"{shown} {VERDICTS[explanation.verdict].format(' and '.join(explanation.parts))}")
    for each in explanation.differences:
        change = f": {each.before} → {each.now}" if (each.before, each.now) != (None, None) else ""
        click.echo(printable(f"  {each.part}: {each.name}{change}"))
    for what, files in (("new", explanation.added), ("gone", explanation.removed), ("changed", explanation.changed)):
        if files.count:
            examples = ", ".join(map(printable, files.examples))
            click.echo(f"  inputs: {counted(files.count, 'file')} {what}, for instance {examples}")


def result_record(result: ConvertResult) -> dict[str, Any]:
    """Return what --json prints of a conversion."""
    names = ("status", "samples", "shards", "bytes", "rejected", "seconds", "samples_per_s", "fingerprint")
    record = {name: getattr(result, name) for name in names}
    record["reject_reasons"] = result.reasons
    record["reject_examples"] = [asdict(example) for example in result.examples]
    record["copied_rejects"] = result.copied
    record["notices"] = list(result.notices)
    record["warnings"] = list(result.warnings)
    record["jpeg"] = result.jpeg
    record["steps"] = result.steps
    if result.changes is not None:
        record["changes"] = asdict(result.changes)
    if result.explanation is not None:
        record["explanation"] = asdict(result.explanation)
    if result.part is not None:
        record["part"] = asdict(result.part)
    if result.estimate is not None:
        record["inputs"] = result.estimate.inputs
        record["free_bytes"] = result.estimate.free_bytes
        record["estimated_seconds"] = round(result.estimate.seconds, 2)
    return record


def print_result(result: ConvertResult, dst: str) -> None:
    """Print what a conversion has done."""
    shown = printable(dst)
    what = f"{counted(result.samples, 'sample')} in {counted(result.shards, 'shard')}"
    if result.status == "planned":
        click.echo(f"dry run: {shown} would hold {what}; nothing was written")
        if result.changes is not None:
            click.echo(changes_line(result.changes))
        return
    if result.explanation is not None:
        _print_explanation(result.explanation, shown)
        return
    what = f"{what}, {format_bytes(result.bytes)}"
    if result.part is not None:
        _print_part(result, result.part, what, shown)
        return
    if result.status == "up-to-date":
        click.echo(f"{shown} is up to date: {what}")
        return
    rate = f"{result.samples_per_s:,.0f} samples/s"
    rate = f"{rate} in this run" if result.status == "resumed" else rate
    copied = result.samples_per_s == 0 or (result.changes is not None and not result.changes.anew)  # most samples were there
    shown_rate = "" if copied else f" ({rate})"
    click.echo(f"{result.status} {shown}: {what}, in {result.seconds:.1f} s{shown_rate}")
    if result.changes is not None:
        click.echo(changes_line(result.changes))
    if result.rejected:
        listed = "the rejects.jsonl of the dataset" if is_url(dst) else f"{shown}/rejects.jsonl"
        click.echo(f"{counted(result.rejected, 'input')} rejected, listed in {listed}:")
        print_reasons(result.reasons, result.examples)
    for line in step_lines(result.steps or ()):
        click.echo(printable(line))


def _print_part(result: ConvertResult, part: PartDone, what: str, shown: str) -> None:
    rate = f" ({result.samples_per_s:,.0f} samples/s in this run)" if result.samples_per_s else ""
    click.echo(f"built part {part.name} for {shown}: {what}, in {result.seconds:.1f} s{rate}")
    if result.rejected:
        click.echo(f"{counted(result.rejected, 'input')} rejected:")
        print_reasons(result.reasons, result.examples)
    left = part.shards - part.shards_done
    if left > 0:
        click.echo(f"{part.shards_done:,} of all {counted(part.shards, 'shard')} are done; {left:,} are left to other parts")
    else:
        click.echo(f"all {counted(part.shards, 'shard')} are done; `shardctl merge {shown}` makes them the dataset")
