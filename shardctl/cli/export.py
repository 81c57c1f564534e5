"""`shardctl export`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardctl.cli.command import WIDTH, command, option, path_argument
from shardctl.cli.options import OneOf, option_of, options_of, values_of
from shardctl.cli.output import (
    Output,
    note,
    progress_options,
    shortened,
    workers_ahead,
)
from shardctl.interop.exports import WORKER
from shardctl.interop.exports.options import EXPORTS, Choice, FormSettings, made_of
from shardctl.making.options import WORKERS
from shardctl.system.files import free_bytes
from shardctl.system.machine import quick_imports
from shardctl.system.options import declared_in
from shardctl.system.report import table_lines
from shardctl.system.text import counted, format_bytes, printable

if TYPE_CHECKING:
    from shardctl.interop.exports.exporting import ExportPlan, ExportResult


_FORMS = "\n".join(
    textwrap.fill(
        f"{name:<12}  {form.writes}",
        WIDTH - 4,
        initial_indent="  ",
        subsequent_indent=" " * 16,
        break_on_hyphens=False,
    )
    for name, form in EXPORTS.items()
)
_OF_TOKENS = " and ".join(made_of("tokens"))
_HELP = f"""Write the dataset DST, a folder or a URL (s3://bucket/out), in another form, into the new folder OUT.

\b
{_FORMS}

{_OF_TOKENS} are made of tokens (convert --tokenizer), packed into blocks or not; padding is left out. In the other forms,
each shard becomes a file. OUT/shardctl.json has the types, classes and names of the columns, and OUT/SHA256SUMS the checksums.
Every block of the dataset is checked during the export. OUT appears only when it is complete. The same command
continues an export that was stopped.

Exit codes: 0 done, 2 wrong usage, or a form that cannot hold a column, 3 it cannot be done, 130 interrupted. Reasons for 3: no
tokens, a damaged dataset, a vocabulary too large for the form, files in OUT, a full disk.
"""


@command(
    help=_HELP,
    examples=(
        "shardctl export out tars --to webdataset",
        "shardctl export out yolo --to yolo --split val",
        "shardctl export out files --to parquet --columns key,text --dry-run",
    ),
)
@path_argument("dataset", "DST")
@path_argument("out", "OUT")
@option(
    "--to",
    "The form to write: one of those above.",
    required=True,
    type=OneOf(EXPORTS),
    metavar="FORM",
)
@options_of(declared_in(Choice))
@options_of(declared_in(FormSettings))
@option_of("workers", WORKERS)
@option("--overwrite", "Replace an earlier export in OUT.")
@option(
    "--dry-run", "Show how each column would be written, and what would be lost. Write nothing."
)
@progress_options
def export(
    dataset: str,
    out: str,
    to: str,
    workers: int | str,
    overwrite: bool,
    dry_run: bool,
    output: Output,
    **given: Any,
) -> None:
    """Write the dataset in another form."""
    with quick_imports():
        from shardctl.interop.exports.exporting import export as export_dataset
        from shardctl.interop.exports.exporting import plan_export

    choice = values_of(Choice, given)
    settings = {
        name: value for name, value in values_of(FormSettings, given).items() if value is not None
    }
    if dry_run:
        _show(plan_export(dataset, to, Choice(**choice), settings), output)
        return
    chosen = {**choice, **settings, "on_note": lambda notice: _tell(notice, output)}
    if output.shows_notes:
        chosen["on_plan"] = partial(_say_plan, Path(out))
    chosen["progress"] = output.shows_progress
    # with "auto" it depends on the dataset whether there are any
    with workers_ahead(WORKER, 0 if workers == "auto" else workers):
        result = export_dataset(dataset, out, to, overwrite=overwrite, workers=workers, **chosen)
    output.show(result, _lines(result))


def _tell(notice: str, output: Output) -> None:
    """Print a note, where notes are wanted."""
    if output.shows_notes:
        note(printable(notice))


def _say_plan(out: Path, plan: ExportPlan) -> None:
    """Say how much there is to do, as convert does; the bar of progress says how long it takes."""
    what = f"{counted(plan.samples, 'sample')}, {format_bytes(plan.bytes)} uncompressed"
    click.echo(
        f"will write {counted(plan.parts, 'part')} from {what} "
        f"({format_bytes(free_bytes(out.absolute()))} free)",
        err=True,
    )


def _show(plan: ExportPlan, output: Output) -> None:
    for notice in plan.notes:
        _tell(notice, output)
    rows = [
        (each.name, shortened(each.type, 40), each.written or "-", each.form, each.loss or "")
        for each in plan.fields
    ]
    losses = sum(field.loss is not None for field in plan.fields)
    lost = f"{counted(losses, 'column')} with a loss (--on-loss)" if losses else "nothing is lost"
    what = f"{counted(plan.samples, 'sample')} in {counted(plan.parts, 'part')} for {plan.to}"
    last = f"dry run: {what}, {counted(len(plan.fields), 'column')}, {lost}; nothing was written"
    output.show(plan, [*table_lines(rows, ("field", "type", "written as", "form", "lost")), last])


def _lines(result: ExportResult) -> Iterator[str]:
    for name, counts in result.counts.items():
        empty = counts.get("empty", 0)
        left_out = f" ({counted(empty, 'empty document')} left out)" if empty else ""
        said = ", ".join(
            counted(number, noun.removesuffix("s"))
            for noun, number in counts.items()
            if noun != "empty"
        )
        yield f"{printable(name)}: {said}{left_out}"
    yield result.sentence
