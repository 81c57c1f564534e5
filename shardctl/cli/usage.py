"""Wrong usage that click finds, as one sentence: what is wrong, and what to write instead."""

from __future__ import annotations

from collections.abc import Sequence

import click

from shardctl.cli.options import OneOf, option_name

SPLITS = ("train", "training", "val", "valid", "validation", "dev", "test", "eval")
"""Words that name a split."""


def sentence(error: click.ClickException, group: click.Group, arguments: Sequence[str]) -> str:
    """Return one sentence about wrong usage of a command of a group, without a full stop, as all
    other messages are."""
    context = (error.ctx if isinstance(error, click.UsageError) else None) or _context(
        group, arguments
    )
    command = _command(context)
    match error:
        case click.MissingParameter():
            return _missing(error, context, command)
        case click.BadParameter():
            name = option_name(error.param)
            message = error.message.rstrip(".")
            return f"{name}: {message}" if name else message
        case click.BadOptionUsage():
            return _bad_use(error, context)
    said = error.format_message().rstrip(".")
    if said.startswith("Got unexpected extra argument"):
        return _too_many(said, context, command)
    return said


def _context(group: click.Group, arguments: Sequence[str]) -> click.Context:
    """Return the context of the command that the arguments name: click's parser raises some errors
    without it."""
    context = click.Context(group, info_name="shardctl")
    for name in arguments:
        command = context.command
        inner = command.get_command(context, name) if isinstance(command, click.Group) else None
        if inner is None:
            break
        context = click.Context(inner, parent=context, info_name=name)
    return context


def _command(context: click.Context) -> str:
    """Return the name of a command as it is typed after `shardctl`."""
    return context.command_path.partition(" ")[2]


def help_of(command: str) -> str:
    """Return which command prints the options of a command."""
    return f"`{' '.join(filter(None, ('shardctl', command)))} -h` shows the options"


def _missing(error: click.MissingParameter, context: click.Context, command: str) -> str:
    parameter = error.param
    name = option_name(parameter)
    if parameter is None:
        return error.format_message().rstrip(".")
    words = (
        f"; it is one of {', '.join(map(str, parameter.type.choices))}"
        if isinstance(parameter.type, OneOf)
        else ""
    )
    example = _example(context, command)
    if isinstance(parameter, click.Option):
        return f"{name} is missing{words}{example}"
    arguments = [each for each in context.command.params if isinstance(each, click.Argument)]
    missing = (
        arguments[arguments.index(parameter) :]
        if parameter in arguments and parameter.nargs < 0
        else [parameter]
    )
    shown = " ".join(each.make_metavar(context) for each in missing)
    return (
        f"{shown}: an argument is missing{example}"
        if len(missing) > 1
        else f"{shown} is missing{example}"
    )


def _example(context: click.Context, command: str) -> str:
    """Return the end of a message: the first example of a command that is a line of it, else where
    its help is."""
    lines = [line for line, _ in getattr(context.command, "examples", ())]
    line = next((line for line in lines if line.startswith(f"shardctl {command} ")), None)
    return f"; {help_of(command)}" if line is None else f"; for instance: {line}"


def _bad_use(error: click.BadOptionUsage, context: click.Context) -> str:
    name = error.option_name
    if "does not take a value" in error.message:
        return f"{name} takes no value; write it alone"
    if "requires" not in error.message:
        return error.message.rstrip(".")
    parameter = next((each for each in context.command.params if name in each.opts), None)
    if parameter is None:
        return error.message.rstrip(".")
    if isinstance(parameter.type, OneOf):
        return f"{name} needs a value: one of {', '.join(map(str, parameter.type.choices))}"
    return f"{name} needs a value: {parameter.make_metavar(context)}"


def _too_many(said: str, context: click.Context, command: str) -> str:
    """Return the message for arguments that a command does not take."""
    extra = said.partition("(")[2].rstrip(")")
    takes = " ".join(
        each.make_metavar(context)
        for each in context.command.params
        if isinstance(each, click.Argument)
    )
    what = f"takes {takes}" if takes else "takes no argument"
    if extra in SPLITS and any(each.name == "split" for each in context.command.params):
        return f"{extra!r} is too much; for a split, write --split {extra}"
    return (
        f"{extra!r} is too much: `shardctl {command}` {what}; write a path with spaces in "
        f"quotes; {help_of(command)}"
    )
