"""`shardctl demo`."""

from __future__ import annotations

import click

from shardctl.cli.command import command, option
from shardctl.cli.output import Output, output_options, print_json
from shardctl.cli.values import WholeNumber
from shardctl.system.text import counted, printable


@command(examples=(("shardctl demo demo", ""),))
@click.argument("folder", metavar="DIR", type=click.Path())
@option("--images", type=WholeNumber(min=1), default=300, show_default=True, metavar="N", help="Images to draw.")
@option(
    "--texts", type=WholeNumber(min=1), default=200, show_default=True, metavar="N", help="Number of lines of text to write."
)
@option(
    "--seed",
    type=WholeNumber(min=0),
    default=0,
    show_default=True,
    metavar="S",
    help="Random seed; the same seed gives the same files.",
)
@output_options
def demo(folder: str, images: int, texts: int, seed: int, output: Output) -> None:
    """Make a small dataset to try things on: DIR/photos with class folders, DIR/texts, DIR/lines.jsonl, DIR/stories.jsonl."""
    from shardctl.sources.demo import make_demo

    made = make_demo(folder, images, texts, seed)
    if output.as_json:
        print_json(made)
    else:
        shown = printable(folder)
        click.echo(f"{shown}/photos: {counted(made['images'], 'image')} in {counted(made['classes'], 'class folder')}")
        files, lines = counted(made["text_files"], "text file"), counted(made["text_lines"], "line")
        click.echo(f"{shown}/texts: {files}; {shown}/lines.jsonl: {lines}")
        click.echo(f"{shown}/stories.jsonl: {made['stories']:,} stories for a language model (`shardctl help text`)")
        click.echo(f"now try: shardctl convert {shown}/photos out --resize 256 --crop 224 --store raw")
