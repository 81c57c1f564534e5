"""`shardctl export`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardctl.cli.output import Output, counted, counting, output_options, print_json
from shardctl.exports.table import EXPORTS
from shardctl.storage import format_bytes, printable

if TYPE_CHECKING:
    from shardctl.exports.exporting import ExportResult


@click.command()
@click.argument("dataset", metavar="DST", type=click.Path())
@click.argument("out", metavar="OUT", type=click.Path())
@click.option("--to", required=True, type=click.Choice(list(EXPORTS)), help="The form to write.")
@click.option("--split", metavar="NAME", help="Export this split only.  [default: all, in files of their own]")
@click.option(
    "--no-eos",
    is_flag=True,
    help="megatron, nanogpt: put no end-of-text token behind documents that do not end with it.",
)
@click.option("--overwrite", is_flag=True, help="Replace an earlier export in OUT.")
@output_options
def export(dataset: str, out: str, to: str, split: str | None, no_eos: bool, overwrite: bool, output: Output) -> None:
    """Write the dataset DST in another form, into the new folder OUT.

    \b
      megatron   SPLIT.bin and SPLIT.idx, as megatron-core reads them: --data-path OUT/train
      nanogpt    SPLIT.bin, bare uint16, as nanoGPT's train.py reads train.bin and val.bin

    Both are made of tokens (convert --tokenizer), packed into blocks or not; padding is left out. OUT/meta.json has the
    vocabulary, the end-of-text token, and the sizes and SHA-256 of the files. Every block of the dataset is checked on the
    way. Nothing is in OUT before all of it is. Exit codes: 0 done, 2 wrong usage, 3 cannot do it (no tokens, a damaged
    dataset, a vocabulary too large for the form, OUT holds something, disk full), 130 interrupted.
    """
    from shardctl.exports.exporting import export as export_dataset

    settings: dict[str, Any] = {"eos": False} if no_eos else {}
    with counting("samples", output) as draw:
        result = export_dataset(dataset, out, to, split, overwrite, draw, **settings)
    if output.as_json:
        print_json(result)
    else:
        for note in result.notes:
            click.echo(f"note: {note}", err=True)
        _print(result)


def _print(result: ExportResult) -> None:
    for name, counts in result.counts.items():
        empty = counts.get("empty", 0)
        left_out = f" ({counted(empty, 'empty document')} left out)" if empty else ""
        click.echo(f"{printable(name)}: {_counted(counts)}{left_out}")
    files = f"{counted(len(result.files), 'file')}, {format_bytes(result.bytes)}"
    click.echo(f"{printable(result.out)}: {files}, for {result.to}, in {result.seconds:.1f} s")


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(counted(number, noun.removesuffix("s")) for noun, number in counts.items() if noun != "empty")
