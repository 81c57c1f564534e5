"""`shardctl demo`."""

from __future__ import annotations

import click

from shardctl.cli.command import PATH, command, option
from shardctl.cli.output import Output, output_options
from shardctl.system.text import counted, printable


@command(examples=(("shardctl demo demo", ""),))
@click.argument("folder", metavar="DIR", type=PATH)
@option(
    "--images",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    metavar="N",
    help="Images to draw.",
)
@option(
    "--scenes",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Images of shapes, with their boxes and polygons in a COCO file.",
)
@option(
    "--texts",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    metavar="N",
    help="Number of lines of text to write.",
)
@option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="S",
    help="Random seed; the same seed gives the same files.",
)
@output_options
def demo(folder: str, images: int, scenes: int, texts: int, seed: int, output: Output) -> None:
    """Make a small dataset to try things on: photos in class folders, scenes with boxes, texts,
    stories."""
    from shardctl.sources.demo import make_demo

    made = make_demo(folder, images, texts, seed, scenes)
    shown, photos = printable(folder), counted(made["images"], "image")
    marked = f"{counted(made['scenes'], 'image')} with {counted(made['scene_objects'], 'object')}"
    files, lines = counted(made["text_files"], "text file"), counted(made["text_lines"], "line")
    said = (
        f"{shown}/photos: {photos} in {counted(made['classes'], 'class folder')}",
        f"{shown}/scenes: {marked} in instances.json (COCO)",
        f"{shown}/texts: {files}; {shown}/lines.jsonl: {lines}",
        f"{shown}/stories.jsonl: {made['stories']:,} stories for a language model (`shardctl help "
        "text`)",
        f"now try: shardctl convert {shown}/photos out --resize 256 --crop 224 --store raw",
    )
    output.show(made, said)
