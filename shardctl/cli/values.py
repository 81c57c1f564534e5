"""The types of values on the command line, with messages that say what was given and what to write
instead."""

from __future__ import annotations

import re
from typing import Any

import click

from shardctl.cli.command import Option
from shardctl.system.text import did_you_mean


def option_name(parameter: click.Parameter | None) -> str:
    """Return the name of an option or an argument as the user types it."""
    if isinstance(parameter, Option):
        return parameter.spelled
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return (parameter.human_readable_name if parameter is not None else "") or ""


class OneOf(click.Choice[str]):
    """One of some words. The message about another one suggests the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word."""
        if value not in self.choices:
            words = [str(word) for word in self.choices]
            self.fail(
                f"{value!r} is not one of {', '.join(words)}{did_you_mean(str(value), words)}",
                param,
                ctx,
            )
        return str(value)


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
            self.fail(f"{value!r} is not a whole number; {_digits(str(value))}", param, ctx)
        if self.min is not None and self.max is not None and not self.min <= number <= self.max:
            self.fail(
                f"must be a whole number from {self.min:,} to {self.max:,}; it is {number:,}",
                param,
                ctx,
            )
        if self.min is not None and number < self.min:
            self.fail(f"must be a whole number from {self.min:,} on; it is {number:,}", param, ctx)
        return number


class Number(click.types.FloatParamType):
    """A number, with a decimal point or without."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number."""
        try:
            return float(value)
        except ValueError:
            self.fail(
                f"{value!r} is not a number; {_in_seconds(str(value)) or _digits(str(value))}",
                param,
                ctx,
            )


def _in_seconds(text: str) -> str:
    """Say how a time is written, "" where the text is none."""
    match = re.fullmatch(r"(\d+) ?(s|sec|m|min|h)", text.casefold())
    return (
        ""
        if match is None
        else f"write {int(match[1]) * {'s': 1, 'm': 60, 'h': 3600}[match[2][0]]} for seconds"
    )


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
