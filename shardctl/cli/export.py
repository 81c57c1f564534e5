"""`shardctl export`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardctl.build.shared_options import WORKERS
from shardctl.cli.options import option_of
from shardctl.cli.output import Output, counting, output_options, print_json, print_table, shortened
from shardctl.interop.exports.table import EXPORTS
from shardctl.system.files import free_bytes
from shardctl.system.text import counted, format_bytes, printable

if TYPE_CHECKING:
    from shardctl.interop.exports.exporting import ExportPlan, ExportResult
    from shardctl.interop.exports.losses import PlannedField


def _names(_context: click.Context, _parameter: click.Parameter, value: str | None) -> list[str] | None:
    return None if value is None else [name.strip() for name in value.split(",") if name.strip()]


def _pairs(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    odd = next((value for value, (name, equals, new) in zip(values, pairs, strict=True) if not (name and equals and new)), None)
    if odd is not None:
        raise click.BadParameter(f"{odd!r} is not COLUMN=NAME", context, parameter)
    return {name: new for name, _, new in pairs}


@click.command()
@click.argument("dataset", metavar="DST", type=click.Path())
@click.argument("out", metavar="OUT", type=click.Path())
@click.option("--to", required=True, type=click.Choice(list(EXPORTS)), help="The form to write.")
@click.option("--split", metavar="NAME", help="Export this split only.  [default: all, in files of their own]")
@click.option("--columns", metavar="A,B,…", callback=_names, help="Export these columns only, and the key.  [default: all]")
@click.option("--rename", metavar="A=B", multiple=True, callback=_pairs, help="Call the column A B there; repeatable.")
@click.option("--where", metavar="EXPR", help="Export the samples for which this is true: 'label == \"cat\" and width > 500'.")
@click.option(
    "--store",
    metavar="keep|png|jpeg:Q",
    help="How raw images are written; encoded ones stay as they are.  [default: png where the form has no arrays]",
)
@click.option(
    "--on-loss",
    type=click.Choice(["fail", "json", "drop"]),
    default="fail",
    show_default=True,
    help="Columns that the form cannot hold: an error, JSON text, or left out. coco and yolo have no JSON text, and leave out"
    " of the objects what they cannot hold.",
)
@click.option(
    "--compression",
    metavar="NAME",
    help="parquet: zstd (default), snappy, none. webdataset, tfrecord: none (default), gzip."
    " array-record: none (default), zstd.",
)
@click.option(
    "--no-eos",
    is_flag=True,
    help="megatron, nanogpt: put no end-of-text token behind documents that do not end with it.",
)
@click.option("--task", metavar="NAME", help="yolo: detect (boxes, the default), segment (polygons) or pose (keypoints).")
@option_of("workers", WORKERS)
@click.option("--overwrite", is_flag=True, help="Replace an earlier export in OUT.")
@click.option("--dry-run", is_flag=True, help="Show how each column would be written, and what would be lost; write nothing.")
@output_options
def export(
    dataset: str,
    out: str,
    to: str,
    compression: str | None,
    no_eos: bool,
    task: str | None,
    workers: int | str,
    overwrite: bool,
    dry_run: bool,
    output: Output,
    **choice: Any,
) -> None:
    """Write the dataset DST, a folder or a URL (s3://bucket/out), in another form, into the new folder OUT.

    \b
      parquet     data/SPLIT-00000-of-00007.parquet, as Hugging Face datasets reads it; LitData too
      webdataset  SPLIT-00000.tar, as webdataset and Hugging Face datasets read it
      tfrecord    SPLIT-00000.tfrecord with tf.train.Examples, as TensorFlow reads it
      tfds        a folder of TFRecords with features.json: tensorflow_datasets.builder_from_directory("OUT")
      mds         SPLIT/shard.00000.mds and SPLIT/index.json, as MosaicML Streaming reads them
      array-record  SPLIT-00000-of-00007.array_record with Examples, as Grain and TFDS read it by number
      files       SPLIT/CLASS/NAME.jpg or SPLIT/NAME.txt, and SPLIT/metadata.jsonl (an ImageFolder)
      coco        SPLIT/NAME.jpg, and annotations/instances_SPLIT.json with the objects of all images
      yolo        images/SPLIT/NAME.jpg, labels/SPLIT/NAME.txt, and data.yaml, as Ultralytics reads them
      megatron    SPLIT.bin and SPLIT.idx, as megatron-core reads them: --data-path OUT/train
      nanogpt     SPLIT.bin, bare uint16, as nanoGPT's train.py reads train.bin and val.bin

    megatron and nanogpt are made of tokens (convert --tokenizer), packed into blocks or not; padding is left out. In the others
    each shard becomes a file. OUT/shardctl.json has the types, classes and names of the columns, and OUT/SHA256SUMS the
    checksums. Every block of the dataset is checked on the way. Nothing is in OUT before all of it is; when stopped, the same
    command goes on. Exit codes: 0 done, 2 wrong usage, or a form that cannot hold a column, 3 cannot do it (no tokens,
    a damaged dataset, a vocabulary too large for the form, OUT holds something, disk full), 130 interrupted.
    """
    from shardctl.interop.exports.exporting import export as export_dataset
    from shardctl.interop.exports.exporting import plan_export

    settings: dict[str, Any] = {"eos": False} if no_eos else {}
    settings |= {} if compression is None else {"compression": compression}
    settings |= {} if task is None else {"task": task}
    if dry_run:
        _show(plan_export(dataset, to, **choice, **settings), output)
        return
    chosen = {**choice, **settings, "on_note": lambda note: _tell(note, output)}
    if not (output.as_json or output.quiet):
        chosen["on_plan"] = partial(_say_plan, Path(out))
    with _workers_ahead(workers), counting("samples", output) as draw:
        result = export_dataset(dataset, out, to, overwrite=overwrite, progress=draw, workers=workers, **chosen)
    if output.as_json:
        print_json(result)
    else:
        _print(result)


def _workers_ahead(workers: int | str) -> AbstractContextManager[None]:
    """Start the process that workers are forked from, unless it depends on the dataset whether there are any."""
    if workers in ("auto", 0):
        return nullcontext()
    from shardctl.system.processes.forkserver_client import forked_early

    return forked_early("shardctl.interop.exports.worker", 0)


def _tell(note: str, output: Output) -> None:
    """Print a note, where notes are wanted."""
    if not (output.as_json or output.quiet):
        click.echo(f"note: {printable(note)}", err=True)


def _say_plan(out: Path, plan: ExportPlan) -> None:
    """Say how much there is to do, as convert does; the bar of progress says how long it takes."""
    what = f"{counted(plan.samples, 'sample')}, {format_bytes(plan.bytes)} uncompressed"
    click.echo(
        f"will write {counted(plan.parts, 'part')} from {what} ({format_bytes(free_bytes(out.absolute()))} free)", err=True
    )


def _show(plan: ExportPlan, output: Output) -> None:
    if output.as_json:
        print_json(plan)
        return
    for note in plan.notes:
        _tell(note, output)
    print_table([_row(field) for field in plan.fields], ("field", "type", "written as", "form", "lost"))
    losses = sum(field.loss is not None for field in plan.fields)
    lost = f"{counted(losses, 'column')} with a loss (--on-loss)" if losses else "nothing is lost"
    what = f"{counted(plan.samples, 'sample')} in {counted(plan.parts, 'part')}"
    click.echo(f"dry run: {what} for {plan.to}, {counted(len(plan.fields), 'column')}, {lost}; nothing was written")


def _row(field: PlannedField) -> tuple[str, ...]:
    return (field.name, shortened(field.type, 40), field.written or "-", field.form, field.loss or "")


def _print(result: ExportResult) -> None:
    for name, counts in result.counts.items():
        empty = counts.get("empty", 0)
        left_out = f" ({counted(empty, 'empty document')} left out)" if empty else ""
        click.echo(f"{printable(name)}: {_counted(counts)}{left_out}")
    files = f"{counted(len(result.files) + result.loose_files, 'file')}, {format_bytes(result.bytes)}"
    click.echo(f"{printable(result.out)}: {files}, for {result.to}, in {result.seconds:.1f} s")


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(counted(number, noun.removesuffix("s")) for noun, number in counts.items() if noun != "empty")
