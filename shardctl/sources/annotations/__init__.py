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
from shardctl.sources.files import begin_of, exists, is_folder
from shardctl.system.files import near_path
from shardctl.system.locations import is_stored, join, normal, parent_of
from shardctl.system.machine import collector_waits
from shardctl.system.text import printable, similar

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


_MEMBERS_OF_COCO = re.compile(rb'"(images|annotations)"\s*:\s*\[')

LOOKED_AT = 1 << 20
"""Bytes at the beginning of a file that are looked at to know whether it is a COCO file."""


def hint_of_format(file: str) -> str:
    """Say which format may be meant by what was taken for the path of a labels file, and could not
    be read; "" if none."""
    if is_folder(file):
        return "it is a folder; give a CSV or JSONL file, or name its format: yolo:DIR"
    format_word, equals, path = file.partition("=")
    if equals and format_word in FORMATS:
        return f"write {format_word}:{printable(path)}"
    word, colon, _ = file.partition(":")
    if not is_stored(file) and not exists(file):
        if not colon and word in FORMATS:
            return f"it is a format of annotations: {word}:FILE or {word}:DIR"
        if not colon:
            return near_path(Path(file)).removeprefix("; ")
        word = word.partition("+")[0]
        near = similar(word, FORMATS)
        meant = f", perhaps {near[0]}" if near else ""
        return (
            f"{printable(word)} is no format of annotations{meant}: these are {', '.join(FORMATS)}"
        )
    try:
        begin = begin_of(file, LOOKED_AT)
    except OSError:
        return ""
    if begin.lstrip().startswith(b"{") and _MEMBERS_OF_COCO.search(begin):
        return f"if it is a COCO file, give coco:{printable(file)}"
    return ""


def read_annotations(
    sources: Sequence[Source], inputs: PathTable, rule: AnnotationRule, scratch: Path
) -> list[Annotations]:
    """Read annotations, those of one format together. Raises InputError, UsageError if two give the
    same column."""
    for source in sources:
        if source.path and not is_stored(source.path) and not exists(source.path):
            what = (
                near_path(Path(source.path))
                or f"; write {source.format}:PATH, with the path of the labels"
            )
            raise InputError(f"{printable(source.path)}: no such file or folder{what}")
    found: list[Annotations] = []
    given: dict[str, str] = {}
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
        for field in read.fields:
            if field.name in given:
                raise UsageError(
                    f"{given[field.name]} and {name} annotations both give {field.name}; use one"
                )
            given[field.name] = name
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
