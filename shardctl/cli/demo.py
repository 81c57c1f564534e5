"""`shardctl demo`."""

from __future__ import annotations

import click

from shardctl.cli.command import command, option, path_argument
from shardctl.cli.output import Output, output_options
from shardctl.system.text import counted, printable


@command(examples=("shardctl demo demo",))
@path_argument("folder", "DIR")
@option("--images", "Images to draw.", type=click.IntRange(min=1), default=300, metavar="N")
@option(
    "--scenes",
    "Images of shapes, with their boxes and polygons in a COCO file.",
    type=click.IntRange(min=1),
    default=100,
    metavar="N",
)
@option(
    "--texts",
    "Number of lines of text to write.",
    type=click.IntRange(min=1),
    default=200,
    metavar="N",
)
@option(
    "--seed",
    "Random seed; the same seed gives the same files.",
    type=click.IntRange(min=0),
    default=0,
    metavar="S",
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
