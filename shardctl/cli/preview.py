"""`shardctl preview`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardctl.cli.convert import convert
from shardctl.cli.output import Output, counted, output_options, print_json, print_table, printing_to_stderr
from shardctl.cli.recipes import recipe_of, source_options, transform_options
from shardctl.engines import WORKER
from shardctl.engines.server import forked_early
from shardctl.errors import UsageError
from shardctl.importing import look_in_current_folder
from shardctl.startup import import_without_threads, keep_pandas_out_of_arrow
from shardctl.storage import printable

if TYPE_CHECKING:
    from shardctl.preview import Preview

INPUTS = 8
"""How many inputs are shown where no number is given."""

_CHOICES = ("labels", "boxes", "annotation_frame", "task", "lenient_labels", "drop_columns", "split")
"""Options of convert that decide what is beside an image, as its conversion takes them."""

_SAMPLES = ("store", "seed", "variants", "max_pixels", "truncated")
"""Options of convert that are keys of a recipe."""

_WORK = ("workers", "input_timeout", "worker_memory")
"""Options of convert that say how the work is done."""


def _of_convert(*names: str) -> list[click.Parameter]:
    """Return options of convert: what they mean here is what they mean there."""
    known = {parameter.name: parameter for parameter in convert.params}
    return [known[name] for name in names]


@click.command(params=_of_convert(*_CHOICES, *_SAMPLES, *_WORK))
@click.argument("src", nargs=-1, required=True, metavar="SRC...", type=click.Path())
@click.option("--html", type=click.Path(), metavar="FILE", help="Write an HTML page: each input beside its samples.")
@click.option("--images", type=click.Path(), metavar="FILE", help="Draw the same into one PNG file.")
@click.option(
    "--inputs", type=click.IntRange(1, 1000), metavar="N", help=f"Show N inputs from all over the sources. Default: {INPUTS}."
)
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Show this input. May be given several times.")
@source_options
@transform_options
@output_options
def preview(src: tuple[str, ...], output: Output, **given: Any) -> None:
    """Show what convert would make of a few images, before it does: each before and after, with its annotations.

    A random recipe is shown with 4 variants of each input (--variants). Samples have the bytes that a conversion with the same
    options stores; the first variant is the one that it stores without --variants. Inputs that would be rejected are shown
    with the reason. Nothing is written but the page and the picture that are asked for; with neither, a table is printed.

    \b
      shardctl preview photos --random-crop 224 --flip 0.5 --html p.html
      shardctl preview images --labels coco:instances.json --recipe recipe.toml --html p.html
      shardctl preview photos --recipe recipe.toml --key cat/001.jpg --variants 16 --images p.png
    """
    if given["inputs"] is not None and given["keys"]:
        raise UsageError("--inputs and --key contradict each other; use one of them")
    look_in_current_folder()
    import_without_threads()
    keep_pandas_out_of_arrow()
    from shardctl.preview import make_preview

    options = {name: given[name] for name in ("boxes", "annotation_frame", "task", "lenient_labels", "split", *_WORK)}
    labels = list(given["labels"]) if len(given["labels"]) > 1 else next(iter(given["labels"]), "auto")
    options |= {"labels": labels, "drop_columns": given["drop_columns"] or ()}
    show_lines = (lambda line: click.echo(printable(line), err=True)) if output.verbose else (lambda line: None)
    with _workers_ahead(options), printing_to_stderr():
        made = make_preview(src, recipe_of(given), given["inputs"] or INPUTS, given["keys"], show_lines, **options)
    written = _write(made, src, given)
    if not output.quiet:
        for notice in made.notices:
            click.echo(f"note: {notice}", err=True)
    if output.as_json:
        from shardctl.preview.facts import record_of

        print_json({**record_of(made), **written})
    else:
        _print(made, written)


def _workers_ahead(options: dict[str, Any]) -> AbstractContextManager[None]:
    return nullcontext() if options["workers"] == 0 else forked_early(WORKER, options["worker_memory"] or 0)


def _write(made: Preview, src: tuple[str, ...], given: dict[str, Any]) -> dict[str, str]:
    """Write what is asked for, and return the paths by what they are."""
    written = {}
    if given["html"] is not None or given["images"] is not None:
        from shardctl.preview.page import preview_page, preview_sheet
        from shardctl.report.page import write_file, write_page

        if given["html"] is not None:
            write_page(Path(given["html"]), preview_page(made, src))
            written["page"] = given["html"]
        if given["images"] is not None:
            write_file(Path(given["images"]), preview_sheet(made))
            written["sheet"] = given["images"]
    return written


def _print(made: Preview, written: dict[str, str]) -> None:
    from shardctl.preview.facts import sample_facts, size_in_words

    rejected = f", {made.rejected:,} rejected" if made.rejected else ""
    click.echo(f"{len(made.inputs):,} of {counted(made.total, 'input')}: {counted(made.samples, 'sample')}{rejected}")
    if not written:
        rows = []
        for each in made.inputs:
            for record in each.samples:
                facts = sample_facts(record)
                objects = "" if facts.objects is None else counted(facts.objects, "object")
                rows.append((each.key, f"variant {facts.variant}", size_in_words(facts), objects))
        print_table(rows)
    for each in made.inputs:
        if each.reject is not None:
            reason = f"{each.reject.stage}: {each.reject.error}; {printable(each.reject.message)}"
            click.echo(f"  {printable(each.key)} rejected, {reason}")
    for what, path in written.items():
        click.echo(f"{'page' if what == 'page' else 'pictures'} written to {printable(path)}")
