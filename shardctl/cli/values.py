"""The types of values on the command line, with messages that say what was given and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import click

from shardctl.cli.command import Option
from shardctl.system.text import FEW, did_you_mean

_ELSEWHERE = {
    ("--kind", "jsonl"): "JSON lines are --kind text (the field text is the sample) or --kind table",
    ("--kind", "json"): "files with the ending .json are read as --kind table",
    ("--kind", "csv"): "CSV files are --kind table",
    ("--kind", "tsv"): "TSV files are --kind table",
    ("--kind", "images"): "write --kind image",
    ("--kind", "coco"): "COCO is a format of annotations: --labels coco:FILE.json",
    ("--kind", "yolo"): "YOLO is a format of annotations: --labels yolo:data.yaml",
    ("--kind", "voc"): "Pascal VOC is a format of annotations: --labels voc:DIR",
    ("--kind", "imagefolder"): "folders of images are --kind image, with --labels folder",
    ("--kind", "hf"): "datasets of Hugging Face are --kind huggingface",
    ("--kind", "tar"): "tars are --kind webdataset",
    ("--kind", "wds"): "tars are --kind webdataset",
    ("--kind", "streaming"): "shards of MosaicML Streaming are --kind mds",
    ("--format", "jsonl"): "JSON lines and CSV files need no --format",
    ("--format", "csv"): "JSON lines and CSV files need no --format",
    ("--format", "streaming"): "shards of MosaicML Streaming are --format mds",
    ("--format", "wds"): "tars are --format webdataset",
}
"""What is meant by words of other tools."""


def example_of(parameter: click.Parameter | None) -> str:
    """Return the end of a message: an option with a value, "" where none is known."""
    values = parameter.alike.values() if isinstance(parameter, Option) else ()
    value = next(filter(None, values), None)
    return f", for instance {option_name(parameter)} {value}" if value is not None else ""


def option_name(parameter: click.Parameter | None) -> str:
    """Return the name of an option or an argument as the user types it."""
    if isinstance(parameter, Option):
        return parameter.spelled
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return (parameter.human_readable_name if parameter is not None else "") or ""


class OneOf(click.Choice[str]):
    """One of some words. The message about another one suggests the nearest, or the one that `elsewhere` has for it."""

    def __init__(self, words: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> None:
        super().__init__(list(words))
        self._elsewhere = elsewhere or {}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word."""
        if value not in self.choices:
            self.fail(self._not_one_of(option_name(param), str(value)), param, ctx)
        return str(value)

    def _not_one_of(self, option: str, given: str) -> str:
        """Say that an option has no such word, and what may be meant. Where something is, a long list is left out."""
        words = [str(word) for word in self.choices]
        meant = _ELSEWHERE.get((option, given.casefold()))
        if option == "--filter-quality" and "," in given:
            meant = f"give it for each: {' '.join(f'{option} {word}' for word in given.split(','))}"
        if option == "--filter-quality" and given.isdecimal():
            meant = f"for the quality of JPEG write --store jpeg:{given}"
        if meant is not None and len(words) > FEW:
            return f"{given!r} is not known; {meant}"
        instead = f"; {meant}" if meant is not None else did_you_mean(given, words, elsewhere=self._elsewhere)
        return f"{given!r} is not one of {', '.join(words)}{instead}"


class WholeNumber(click.IntRange):
    """A whole number, from a least one on."""

    def _describe_range(self) -> str:
        """Return what `--help` says of the limits: nothing where there are none."""
        return "" if self.min is None and self.max is None else super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number; {_digits(str(value))}{example_of(param)}", param, ctx)
        if self.min is not None and self.max is not None and not self.min <= number <= self.max:
            self.fail(f"must be a whole number from {self.min:,} to {self.max:,}; it is {number:,}", param, ctx)
        if self.min is not None and number < self.min:
            self.fail(f"must be a whole number from {self.min:,} on; it is {number:,}", param, ctx)
        return number


class Number(click.types.FloatParamType):
    """A number, with a decimal point or without."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        try:
            return float(value)
        except ValueError:
            self.fail(
                f"{value!r} is not a number; {_in_seconds(str(value)) or _digits(str(value))}{example_of(param)}", param, ctx
            )


def _in_seconds(text: str) -> str:
    """Say how a time is written, "" where the text is none."""
    match = re.fullmatch(r"(\d+) ?(s|sec|m|min|h)", text.casefold())
    return "" if match is None else f"write {int(match[1]) * {'s': 1, 'm': 60, 'h': 3600}[match[2][0]]} for seconds"


_PREFIXES = {"k": (1000, 1024), "m": (1000**2, 1024**2), "g": (1000**3, 1024**3)}


def _digits(text: str) -> str:
    """Say how a number is written."""
    if match := re.fullmatch(r"(\d+)([kmg])", text.casefold()):
        decimal, binary = (int(match[1]) * factor for factor in _PREFIXES[match[2]])
        return f"write {decimal} or {binary}"
    if re.fullmatch(r"\d{1,3}([,.']\d{3})+", text):
        return f"write {re.sub('[^0-9]', '', text)}"
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)(?:\s*(?:/s|s|x|%|[a-z/]+))", text):
        return f"write {match[1]}"
    return "write it in digits"
