"""`shardctl preview`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardctl.cli.command import PATH, SRC, command, option, with_same_options
from shardctl.cli.options import options_of
from shardctl.cli.output import (
    Output,
    check_outputs,
    note,
    open_option,
    open_page,
    printing_to_stderr,
    progress_options,
    workers_ahead,
    write_page,
)
from shardctl.errors import UsageError
from shardctl.format.names import MANIFEST
from shardctl.making.options import convert_options
from shardctl.making.shards import WORKER
from shardctl.system.arguments import contradiction
from shardctl.system.machine import quick_imports
from shardctl.system.packages import look_in_current_folder
from shardctl.system.report import table_lines
from shardctl.system.text import counted, printable

if TYPE_CHECKING:
    from shardctl.making.preview import Preview, Tried

INPUTS = 8
"""How many inputs are shown where no number is given."""

_OTHERS = {
    "variants",
    "compression",
    "shard_size",
    "samples_per_shard",
    "shuffle",
    "max_rejects",
    "copy_rejects",
    "engine",
    "overwrite",
    "if_running",
    "dry_run",
}
"""Options of convert that preview has in another way, or not at all."""

_WITHOUT_EFFECT = {
    "update",
    "append",
    "moved_from",
    "keep_generations",
    "explain",
    "metrics",
    "part",
}
"""Options that are accepted, so that a line of convert can become one of preview. They are about
the dataset."""

_OF_PREVIEW = {"images", "inputs", "keys", *_WITHOUT_EFFECT}
"""Options that convert does not have, or has no use for."""

BORROWED = {name: each for name, each in convert_options().items() if name not in _OTHERS}
"""The options of convert that are options of preview too."""


@command(
    examples=(
        "shardctl preview photos --random-crop 224 --flip 0.5 --html p.html",
        "shardctl preview images --labels coco:instances.json --html p.html",
        "shardctl preview photos --recipe recipe.toml --key cat/001.jpg",
        "shardctl preview out --recipe @randaugment --html p.html  # out is a dataset",
    ),
    takes_options_of_convert=True,
)
@SRC
@option("--html", "Write an HTML page: each input beside its samples.", type=PATH, metavar="FILE")
@option("--images", "Draw the same images into one PNG file.", type=PATH, metavar="FILE")
@open_option()
@option(
    "--inputs",
    f"Show N inputs from all over SRC. Default: {INPUTS}.",
    type=click.IntRange(1, 1000),
    metavar="N",
)
@option(
    "--key",
    "Show this input. May be given several times.",
    name="keys",
    multiple=True,
    metavar="KEY",
)
@option(
    "--variants",
    "Show K variants of every input. Default: as in the recipe, else 4 if it is random.",
    type=click.INT,
    metavar="K",
)
@options_of(BORROWED, hidden=True)
@progress_options
def preview(src: tuple[str, ...], output: Output, **given: Any) -> None:
    """Show what a conversion would make of a few images: each before and after, with its
    annotations. Of a dataset, show what a loader makes of its images in each epoch.

    The samples have exactly the bytes that a conversion with the same options stores. If the recipe
    is random, you see 4 variants of each input; a conversion without --variants stores the first
    one. Inputs that would be rejected are shown with the reason. Give --html for a page, or
    --images for a picture. Without them, the command prints a table and writes no files.
    """
    if given["inputs"] is not None and given["keys"]:
        raise contradiction("--inputs", "--key")
    look_in_current_folder()
    with quick_imports():
        from shardctl.making.preview import make_preview

    check_outputs(given["html"], given["images"])
    if len(src) == 1 and (Path(src[0]) / MANIFEST).is_file():
        made = _of_dataset(src[0], given)
        _show(made, src, output, given, "")
        return
    options = {name: given[name] for name in BORROWED.keys() - _WITHOUT_EFFECT - {"recipe"}} | {
        "variants": given["variants"]
    }
    show_lines = (
        (lambda line: click.echo(printable(line), err=True))
        if output.verbose
        else (lambda line: None)
    )
    memory = options["worker_memory"] or 0
    with workers_ahead(WORKER, options["workers"], memory), printing_to_stderr():
        made = make_preview(
            src,
            given["recipe"],
            given["inputs"] or INPUTS,
            given["keys"],
            show_lines,
            output.shows_progress,
            **options,
        )
    convert = with_same_options(("shardctl", "convert", *src, "out"), _OF_PREVIEW)
    _show(made, src, output, given, convert)


_WHILE_READING = ("recipe", "steps", "transforms", "seed")
"""Options of convert that say what a loader does."""


def _of_dataset(dst: str, given: dict[str, Any]) -> Preview:
    """Return what a loader makes of some samples of a dataset. Raises UsageError for options that
    are about a conversion."""
    from shardctl.making.preview import preview_reading

    ours = {name: each for name, each in BORROWED.items() if name not in _WHILE_READING}
    other = next(
        (name for name, each in ours.items() if given[name] not in (each.default, ())), None
    )
    if other is not None:
        raise UsageError(
            f"{printable(dst)} is a dataset: --{other.replace('_', '-')} is for a conversion; give "
            "--recipe, --step or --transform"
        )
    steps = {
        "recipe": given["recipe"],
        "step": given["steps"],
        "transform": given["transforms"],
        "seed": given["seed"] or 0,
    }
    if not (given["recipe"] or given["steps"] or given["transforms"]):
        steps["recipe"] = "dataset"
    return preview_reading(dst, given["inputs"] or INPUTS, given["keys"], given["variants"], steps)


def _show(
    made: Preview, src: tuple[str, ...], output: Output, given: dict[str, Any], convert: str
) -> None:
    """Write and print a preview."""
    from shardctl.making.preview.page import preview_page, preview_sheet, record_of

    written = {}
    if given["html"] is not None or given["open"]:
        written["page"] = write_page(preview_page(made, src, convert), given["html"], "preview")
    if given["images"] is not None:
        from shardctl.images.codecs.drawing import SHEET

        SHEET.write(Path(given["images"]), preview_sheet(made))
        written["sheet"] = given["images"]
    if not output.quiet:
        for notice in made.notices:
            note(notice)
    output.show({**record_of(made), **written}, _lines(made, written))
    if given["open"]:
        open_page(written["page"])


def _lines(made: Preview, written: dict[str, str]) -> Iterator[str]:
    from shardctl.making.preview.page import reject_in_words

    rejected = f", {made.rejected:,} rejected" if made.rejected else ""
    yield (
        f"{len(made.inputs):,} of {counted(made.total, 'input')}: "
        f"{counted(made.samples, 'sample')}{rejected}"
    )
    if not written:
        yield from table_lines([row for each in made.inputs for row in _rows(each)])
    for each in made.inputs:
        if each.reject is not None:
            yield (
                f"  {printable(each.key)} {reject_in_words(each)}: {printable(each.reject.message)}"
            )
    for what, path in written.items():
        yield f"{'page' if what == 'page' else 'pictures'} written to {printable(path)}"


def _rows(tried: Tried) -> Iterator[tuple[str, ...]]:
    """Yield a line for an input, and one for each of its samples: what it is, its size, its
    objects."""
    from shardctl.making.preview.page import sample_facts, size_in_words

    for record in (tried.source, *tried.samples):
        if record is not None:
            facts = sample_facts(record)
            is_source = record is tried.source
            size = f"{facts.width}x{facts.height}" if is_source else size_in_words(facts)
            objects = "" if facts.objects is None else counted(facts.objects, "object")
            yield tried.key if is_source else f"  variant {facts.variant}", size, objects
