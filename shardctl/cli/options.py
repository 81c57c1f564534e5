"""The options of a command, made of a dataclass that declares them (system/options.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import click
from click.core import ParameterSource

from shardctl.cli.command import PATH, Decorator, Function
from shardctl.cli.command import Option as CommandOption
from shardctl.system.options import FilePath, Flag, Many, Number, Option, ValueType, Whole, Word
from shardctl.system.text import did_you_mean


class OneOf(click.Choice[str]):
    """One of some words. The message about another one suggests the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word."""
        if value not in self.choices:
            words = [str(word) for word in self.choices]
            nearest = did_you_mean(str(value), words)
            self.fail(f"{value!r} is not one of {', '.join(words)}{nearest}", param, ctx)
        return str(value)


Callback = Callable[[click.Context, click.Parameter, Any], Any]

MOST_WORDS = 24
"""Characters of the words that `--help` lists behind the name of an option; more of them come after
its text."""


def options_of(declared: Mapping[str, Option], *, hidden: bool = False) -> Decorator:
    """Return a decorator that adds options to a command, which gets their values under their names.

    `hidden` ones are accepted, and not listed: those of another command, to which the help refers.
    """

    def add(command: Function) -> Function:
        for name, each in reversed(list(declared.items())):
            command = _click_option(name, each, hidden)(command)
        return command

    return add


def option_of(name: str, declared: Option) -> Decorator:
    """Return a decorator that adds one option, for a command that has no dataclass of options with
    it."""
    return options_of({name: declared})


def values_of(class_: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options of a dataclass, of all that a command was given: arguments
    for the dataclass."""
    return {field.name: given[field.name] for field in dataclasses.fields(class_)}


def typed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were typed. The others have their defaults."""
    source_of = click.get_current_context().get_parameter_source
    return {name: given[name] for name in given if source_of(name) is not ParameterSource.DEFAULT}


def reading(type_: ValueType, default: Any = None) -> Callback:
    """Return a callback for an option that is read as `type_` says. It is `default` where the
    option is not given."""

    def read(context: click.Context, parameter: click.Parameter, given: Any) -> Any:
        if given is None or given == ():
            return default
        try:
            return type_.of_text(given)
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from None

    return read


def _click_option(name: str, declared: Option, hidden: bool) -> Decorator:
    type_ = declared.type
    more: dict[str, Any] = (
        {"default": type_.shown(declared.default), "show_default": True}
        if declared.shows_default
        else {}
    )
    if type_.bare is not None:
        more |= {"is_flag": False, "flag_value": type_.bare}
    words = _words(type_)
    default = {} if declared.default is dict else declared.default
    spelling = declared.spelled(name)
    return click.option(
        spelling,
        name,
        cls=CommandOption,
        help=_help(declared, words),
        metavar=declared.metavar or (name.upper() if words else None),
        multiple=type_.repeats,
        callback=reading(type_, default),
        hidden=hidden,
        heading=declared.heading,
        brief="" if hidden else declared.brief,
        **_click_type(type_.of if isinstance(type_, Many) else type_, spelling),
        **more,
    )


def _words(type_: ValueType) -> tuple[str, ...]:
    """Return the words that an option takes, if there are too many to stand behind its name."""
    type_ = type_.of if isinstance(type_, Many) else type_
    return (
        type_.words if isinstance(type_, Word) and len("|".join(type_.words)) > MOST_WORDS else ()
    )


def _help(declared: Option, words: tuple[str, ...]) -> str:
    listed = f" One of {', '.join(words)}." if words else ""
    if declared.otherwise in (None, []):
        return f"{declared.help}{listed}"
    value = f"{declared.otherwise:,}" if isinstance(declared.otherwise, int) else declared.otherwise
    return f"{declared.help}{listed} Default: {value}."


def _click_type(type_: ValueType, spelling: str) -> dict[str, Any]:
    """Return what click is told of a type. It reads plain numbers and words itself; of other types
    it hands over the text."""
    if isinstance(type_, Flag):
        return {} if "/" in spelling else {"is_flag": True}
    if isinstance(type_, Word):
        return {"type": OneOf(list(type_.words))}
    if isinstance(type_, FilePath):
        return {"type": PATH}
    if type(type_).of_text is not ValueType.of_text:
        return {}
    if isinstance(type_, Whole):
        bounded = type_.low is not None and type_.high is None
        return {"type": click.IntRange(min=type_.low) if bounded else click.INT}
    return {"type": click.FLOAT} if isinstance(type_, Number) else {}
