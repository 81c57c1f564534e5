"""Wrong usage that click finds, as one sentence: what is wrong, and what to write instead."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from click import (
    BadOptionUsage,
    BadParameter,
    ClickException,
    Context,
    Group,
    MissingParameter,
    Option,
    Parameter,
    UsageError,
)

from shardctl.cli.command import context_of, option_name
from shardctl.cli.options import OneOf


def sentence(error: ClickException, group: Group, arguments: Sequence[str]) -> str:
    """Return one sentence about wrong usage of a command of a group, without a full stop, as all
    other messages are."""
    # click's parser raises some errors without a context
    context = (error.ctx if isinstance(error, UsageError) else None) or context_of(
        Context(group, info_name="shardctl"), arguments
    )
    said = error.format_message().rstrip(".")
    match error:
        case MissingParameter(param=Parameter() as parameter):
            return f"it needs {_missing(parameter, context)}{_example(context)}"
        case BadParameter():
            name = option_name(error.param)
            message = re.sub(
                r"valid integer( range)?$", "whole number, such as 8", error.message.rstrip(".")
            )
            message = re.sub(r"valid float( range)?$", "number, such as 0.5", message)
            return f"{name}: {message}" if name else message
        case BadOptionUsage() if "does not take a value" in error.message:
            return f"{error.option_name} takes no value; write it alone"
        case BadOptionUsage() if "requires" in error.message:
            name = error.option_name
            parameters = [each for each in context.command.params if name in each.opts]
            return (
                f"{name} needs a value: {' '.join(_values(each, context) for each in parameters)}"
            )
    if said.startswith("Got unexpected extra argument"):
        extra, command = said.partition("(")[2].rstrip(")"), context.command
        takes = " ".join([context.command_path, *command.collect_usage_pieces(context)[1:]])
        key = "--key" in (name for each in command.params for name in each.opts)
        return (
            f"{extra!r} is too much for `{takes}`; write a path with spaces in quotes"
            f"{', and a key behind --key' if key else ''}"
        )
    return said


_SIGNS = dict(zip(map(ord, "“”‘’，：；＝（）　—–"), [*"\"\"'',:;=() ", "--", "--"], strict=True))  # noqa: RUF001  # they are meant
"""Signs of other keyboards, and those that shardctl reads."""


def of_keyboard(message: str, arguments: Sequence[str]) -> str:
    """Return the end of a message that quotes signs of a command line which another keyboard writes
    for those that shardctl reads."""
    quoted = _SIGNS.keys() & set(map(ord, message))
    typed = [each for each in arguments if quoted.intersection(map(ord, each))]
    return f"; with the signs of ASCII: {shlex.join(typed).translate(_SIGNS)}" if typed else ""


def _missing(parameter: Parameter, context: Context) -> str:
    if isinstance(parameter, Option):
        return f"{option_name(parameter)} ({_values(parameter, context)})"
    # click gives the last path to what stands last
    return " ".join(context.command.collect_usage_pieces(context)[1:])


def _values(parameter: Parameter, context: Context) -> str:
    if isinstance(parameter.type, OneOf):
        return f"one of {', '.join(map(str, parameter.type.choices))}"
    return parameter.make_metavar(context)


def _example(context: Context) -> str:
    """Return the end of a message: the first example of a command that is a line of it, else where
    its help is."""
    lines = [line for line, _ in getattr(context.command, "examples", ())]
    line = next((line for line in lines if line.startswith(f"{context.command_path} ")), None)
    return (
        f"; `{context.command_path} -h` shows the options"
        if line is None
        else f"; for instance: {line}"
    )
