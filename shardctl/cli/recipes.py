"""The options that say what is done to every sample, for the commands that convert."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from shardctl.errors import UsageError

Command = Callable[..., Any]

_SOURCE = (
    click.option("--recipe", type=click.Path(), help="A recipe file (TOML); options on the command line override it."),
    click.option(
        "--kind",
        type=click.Choice(["auto", "image", "text", "table"]),
        default="auto",
        show_default=True,
        help="Kind of samples: images (files, or in tables); texts (.txt, .jsonl); rows of tables (.csv, .json, .parquet"
        " and the like).",
    ),
    click.option(
        "--record",
        type=click.Choice(["file", "line", "paragraph"]),
        help="What one sample of a text file (.txt, .md) is. Default: file.",
    ),
    click.option("--text-field", metavar="FIELD", help="Field of the records that is the text; it is renamed to text."),
    click.option("--label-field", metavar="FIELD", help="Field of the records that is the label; it is renamed to label."),
    click.option(
        "--image-field",
        metavar="FIELD|none",
        help="Field of a table that has the images: bytes, paths, or structs of both; it is renamed to image. Default: found by"
        " type and name. With --kind table, none keeps structs of bytes and path as they are.",
    ),
    click.option("--columns", metavar="A,B,…", help="Names of the columns of CSV files without a header."),
    click.option(
        "--delimiter", metavar="C|tab", help="What is between the cells of CSV files, for instance ;. Default: a comma."
    ),
    click.option(
        "--encoding",
        metavar="utf-8|NAME|detect",
        help="Encoding of text files, for instance gbk; detect finds that of each file. Default: utf-8.",
    ),
    click.option(
        "--schema",
        metavar="FILE|NAME:TYPE,…",
        help="Types of the fields of records: string, int64, float64 or bool; other fields are left out. Default: all fields, "
        "with the types that are found in the records.",
    ),
)
_TRANSFORMS = (
    click.option("--resize", metavar="N|WxH", help="Images: resize the short side to N, or to exactly WxH."),
    click.option("--crop", metavar="N|WxH", help="Images: cut out the centre."),
    click.option("--random-crop", metavar="N|WxH", help="Images: cut out a random part and resize it (RandomResizedCrop)."),
    click.option("--flip", type=float, metavar="P", help="Images: mirror left to right with probability P."),
    click.option(
        "--transform",
        "transforms",
        multiple=True,
        metavar="MODULE:FUNCTION",
        help="Your own function, called with every sample. May be given several times.",
    ),
)


def source_options(command: Command) -> Command:
    """Add --recipe, --kind and what says how records are read."""
    return _with(command, _SOURCE)


def transform_options(command: Command) -> Command:
    """Add the transforms."""
    return _with(command, _TRANSFORMS)


def _with(command: Command, options: tuple[Callable[[Command], Command], ...]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def recipe_of(given: dict[str, Any]) -> dict[str, Any]:
    """Join the recipe file and the options: an option overrides the file, transforms come from one of the two."""
    from shardctl.recipe import load_recipe

    settings = load_recipe(Path(given["recipe"])) if given["recipe"] else {}
    steps = _steps(given)
    if steps and settings.get("transform"):
        raise UsageError(f"--{steps[0]['name']} and the transforms in {given['recipe']} contradict each other; use one of them")
    if steps:
        settings["transform"] = steps
    reading = ("record", "text_field", "label_field", "image_field", "columns", "delimiter", "encoding", "schema")
    for name in ("store", "compression", "seed", "variants", "max_pixels", "truncated", "duplicates", *reading):
        if given.get(name) is not None:
            settings[name] = given[name]
    if given["kind"] != "auto":
        settings["kind"] = given["kind"]
    return settings


def _steps(given: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the transforms that the options name, in the order in which they apply."""
    if given["crop"] and given["random_crop"]:
        raise UsageError("--crop and --random-crop contradict each other; use one of them")
    steps: list[dict[str, Any]] = []
    for option, name, setting in (
        ("resize", "resize", "size"),
        ("crop", "crop", "size"),
        ("random_crop", "random_resized_crop", "size"),
        ("flip", "hflip", "p"),
    ):
        if given[option] is not None:
            steps.append({"name": name, setting: given[option]})
    return steps + [{"name": "custom", "target": target} for target in given["transforms"]]
