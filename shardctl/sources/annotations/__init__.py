"""Annotations of images from the files of other tools: docs/annotations.md. A module for each
format, named in FORMATS."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from shardctl.errors import InputError, UsageError
from shardctl.sources.annotations.base import AnnotationRule, Annotations, Source
from shardctl.sources.annotations.inputs import NAMES, PathTable
from shardctl.sources.files import exists, is_folder
from shardctl.system.files import near_path
from shardctl.system.locations import is_stored, join, normal, parent_of
from shardctl.system.machine import collector_waits
from shardctl.system.text import did_you_mean, printable, unknown

FORMATS = ("coco", "yolo", "voc", "masks", "captions", "imagenet")
"""The formats that `--labels` may name. The module of this name has the function `read`; it is
imported when it is needed, as most conversions have no annotations."""

_SEVERAL = ("coco", "voc")
"""Formats of which several paths may be given."""

_OPTIONS = {
    "voc": {"zero-based": ""},
    "masks": {"ignore": ".*", "suffix": ".+", "image-suffix": ".+"},
}
"""The options of formats, and the regular expressions of their values."""

_SOURCE = re.compile(
    r"(?P<format>[a-z]+)(?P<options>(?:\+[a-z-]+(?:=[^+:]*)?)*):(?P<path>.*)", re.DOTALL
)


def parse_source(text: str) -> Source | None:
    """Read what `--labels` says; None if it does not begin with the name of a format. Raises
    UsageError."""
    found = _SOURCE.fullmatch(text)
    if found is None or found["format"] not in FORMATS:
        return None
    form = found["format"]
    options = [part.partition("=")[::2] for part in found["options"].split("+")[1:]]
    for name, value in options:
        values = _OPTIONS.get(form, {}).get(name)
        if values is None or not re.fullmatch(values, value):
            raise UsageError(
                f"{form} annotations have no option {name!r}; use --labels {form}:PATH"
            )
        if name == "ignore" and not (value.isdecimal() and int(value) <= 65535):
            raise UsageError(f"masks+ignore={value}: it is 0 to 65535, as in masks+ignore=255:DIR")
    if not found["path"] and form != "captions":  # they may be beside the images
        raise UsageError(f"--labels {text}: it needs a path, {form}:PATH")
    return Source(form, normal(found["path"]) if found["path"] else "", tuple(options))


def hint_of_format(file: str) -> str:
    """Say which format may be meant by what was taken for the path of a labels file, and could not
    be read; "" if none."""
    if is_folder(file):
        return "it is a folder; give a CSV or JSONL file, or name its format: yolo:DIR"
    if not is_stored(file) and not exists(file):
        word = re.split("[:=+]", file)[0]
        if word in FORMATS:
            return f"annotations are {word}:FILE or {word}:DIR"
        if ":" in file:
            return unknown("format of annotations", word, FORMATS)
        near = did_you_mean(file, ("folder", "none", "auto")) or near_path(Path(file))
        return near.removeprefix("; ")
    return f"if it is a COCO file, give coco:{printable(file)}" if file.endswith(".json") else ""


def read_annotations(
    sources: Sequence[Source], inputs: PathTable, rule: AnnotationRule, scratch: Path
) -> list[Annotations]:
    """Read annotations, those of one format together. Raises InputError, UsageError if one is given
    twice."""
    for source in sources:
        if source.path and not is_stored(source.path) and not exists(source.path):
            near = near_path(Path(source.path)) or "; write the path from the current folder on"
            raise InputError(f"{printable(source.path)}: no such file or folder{near}")
    found: list[Annotations] = []
    for name in FORMATS:
        of_format = [source for source in sources if source.format == name]
        if not of_format:
            continue
        if len(of_format) > 1 and name not in _SEVERAL:
            raise UsageError(
                f"give --labels {name}:PATH once, with the folder that has all of them"
            )
        module: Any = import_module(f"shardctl.sources.annotations.{name}")
        with collector_waits():
            read: Annotations = module.read(of_format, inputs, rule, scratch)
        found.append(replace(read, places=_places_of(read, of_format, inputs)))
    return found


def _places_of(read: Annotations, sources: Sequence[Source], inputs: PathTable) -> tuple[str, ...]:
    """Return the files and folders that annotations were read of, with lists of splits, and of
    classes that may be beside them. Without a path the sources are those of the inputs."""
    given = [source.path for source in sources if source.path] or inputs.bases
    places = read.places or given
    lists = [] if read.splits is None else read.splits.lists
    return (*places, *lists, *(join(parent_of(each), name) for each in places for name in NAMES))


__all__ = [
    "FORMATS",
    "AnnotationRule",
    "Annotations",
    "PathTable",
    "Source",
    "hint_of_format",
    "parse_source",
    "read_annotations",
]
