"""`shardctl convert`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from shardctl.cli.command import command, path_argument
from shardctl.cli.options import options_of, typed
from shardctl.cli.output import (
    Output,
    printing_to_stderr,
    progress_options,
    workers_ahead,
)
from shardctl.format.names import MANIFEST
from shardctl.making.options import convert_options
from shardctl.making.shards import WORKER
from shardctl.system.files import exists
from shardctl.system.machine import quick_imports, reuse_memory
from shardctl.system.packages import look_in_current_folder
from shardctl.system.text import printable
from shardctl.transforms.recipe_options import HEADINGS


def _sources_and_destination(
    context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[tuple[str, ...], str]:
    """Take the last path as the destination: with a single path, click would report that the source
    is missing."""
    if len(value) == 1:
        message = f"it needs DST, where the dataset is to be written; for instance: shardctl convert {value[0]} out"
        raise click.UsageError(printable(message), context)
    return value[:-1], value[-1]


@command(
    examples=(
        "shardctl convert photos out  # class folders; the original bytes",
        "shardctl convert photos out --resize 256 --crop 224 --store raw  # pixels that train at once",
        "shardctl convert images out --labels coco:instances.json  # photos and COCO annotations",
        "shardctl convert chats.jsonl out --text-field text --tokenizer tok.json  # tokens for a language model",
        "shardctl convert photos out --split train=0.9,val=0.1 --shuffle  # splits, in random order",
        "shardctl convert table.csv out --text-field body --label-field topic  # rows of a table",
        "shardctl convert s3://bucket/photos s3://bucket/out  # from a store to a store",
        "shardctl convert photos out --update  # follow what changed in photos",
    ),
    headings=HEADINGS,
)
@path_argument("paths", "SRC... DST", nargs=-1, required=True, callback=_sources_and_destination)
@options_of(convert_options())
@progress_options
def convert(paths: tuple[tuple[str, ...], str], output: Output, **given: Any) -> None:
    """Convert the inputs under SRC into a dataset at DST.

    Inputs are images (a folder for each class, or flat), text files (by file, line or paragraph),
    tables and shards of other tools. Tables are JSONL, JSON, CSV, TSV, Parquet and Arrow. Text
    files and tables may be compressed (.gz .bz2 .xz .zst). `shardctl help inputs` explains how each
    is read.

    Inputs that cannot be converted are listed in rejects.jsonl with the reason. The dataset is
    complete when DST/manifest.json exists. Run the same command again to resume a stopped
    conversion; a complete one is up to date.
    """
    src, dst = paths
    look_in_current_folder()
    reuse_memory()
    with ExitStack() as stack:
        with quick_imports():
            from shardctl.cli.conversion import (
                ConversionView,
                lines_of_result,
                print_notices,
                result_record,
            )
            from shardctl.making.convert import convert as convert_dataset
            from shardctl.making.convert.result import copied_line

            # After the imports, which it has then too: it needs 16 ms for its own, while this
            # process looks for the inputs. It needed 70 ms where both imported everything, and each
            # slowed down the other (measured 2026-11-27).
            again = any(given[way] for way in ("overwrite", "update", "append"))
            seems_complete = exists(Path(dst, MANIFEST)) and not again
            workers = 0 if seems_complete else given["workers"]
            stack.enter_context(workers_ahead(WORKER, workers, given["worker_memory"] or 0))

        view = ConversionView(dst, output)
        stack.callback(view.close)
        with printing_to_stderr():
            result = convert_dataset(list(src), dst, listener=view.listener(), **typed(given))
    print_notices(result, output, view.printed)
    lines = lines_of_result(result, dst)
    if given["copy_rejects"]:
        lines.append(copied_line(result, given["copy_rejects"]))
    output.show(result_record(result), lines)
