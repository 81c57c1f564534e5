"""`shardctl convert`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from shardctl.build.options import Options
from shardctl.build.shards import WORKER
from shardctl.cli.options import options_of, values_of
from shardctl.cli.output import Output, output_options, print_json, printing_to_stderr
from shardctl.cli.step_options import recipe_of, source_options, transform_options
from shardctl.system.importing import look_in_current_folder
from shardctl.system.startup import import_without_threads, keep_pandas_out_of_arrow, reuse_memory
from shardctl.system.text import printable


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
    from shardctl.build.convert.narration import copied_line
    from shardctl.cli.show.conversion import ConversionView, print_result, result_record

    view = ConversionView(dst, output)
    try:
        with _workers_ahead(dst, options), printing_to_stderr():
            result = convert_dataset(list(src), dst, recipe_of(given), view.listener(), **options)
    finally:
        view.close()
    view.tell_rest(result)
    if output.as_json:
        print_json(result_record(result))
    else:
        print_result(result, dst)
        if given["copy_rejects"]:
            click.echo(copied_line(result, given["copy_rejects"]))


def _workers_ahead(dst: str, options: dict[str, Any]) -> AbstractContextManager[None]:
    """Start the process that workers are forked from, unless there seems to be no work for them."""
    complete = Path(dst, "manifest.json").exists() and not any(options[way] for way in ("overwrite", "update", "append"))
    if complete or options["workers"] == 0:
        return nullcontext()
    from shardctl.system.processes.forkserver_client import forked_early

    return forked_early(WORKER, options["worker_memory"] or 0)
