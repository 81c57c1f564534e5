"""Messages for callers from Python: they name arguments where the same message of the command line
names options."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from shardctl.errors import ShardctlError, UsageError
from shardctl.system.options import Option
from shardctl.system.text import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])

_AFTER = (
    "or|to|for|is|does|changes|accepts|helps|sets|records|removes|keeps|takes|makes|writes|reads|leaves|converts|needs|decides"
    "|divides"
)
"""Words behind a value: `--split none makes one split`."""

_NO_VALUES = "option|options|too|allows|gives|says|names|takes|makes|is"
"""Words behind an option that are not its value, even at the end of a clause: `more than
--max-rejects allows`."""

_OPTION = re.compile(
    r"(?<![\w./-])--([a-z][a-z0-9]*(?:-[a-z0-9]+)*)"
    r"(?: ("
    r"'[^']*'|\"[^\"]*\""
    r"|(?!\()(?=\S*(?:[0-9:=/']|,\S))(?:[^\s,;)]|,(?=\S))*[^\s,;.:)]"
    rf"|[A-Z]+\b|(?!(?:{_NO_VALUES})\b)\w(?:[\w.-]*\w)?(?=[,;:)]|\.?$|\.\s| \(| (?:{_AFTER})\b)"
    r"))?"
)
"""An option, and a value behind it: in quotes, not an ordinary word, in capitals, or the last word
of its clause."""


def with_options(declared: Mapping[str, Option]) -> Callable[[F], F]:
    """Return a decorator of a function that takes options as `**options`: `help()` lists each with
    its type and its text."""

    def add(function: F) -> F:
        signature = inspect.signature(function)
        own = [
            each
            for each in signature.parameters.values()
            if each.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        named = {each.name for each in own}
        options = {name: each for name, each in declared.items() if name not in named}
        more = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=each.python_default,
                annotation=each.python,
            )
            for name, each in options.items()
        ]
        function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        texts = "\n".join(
            f"        {name}: {in_python(each.help, function)}" for name, each in options.items()
        )
        function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n    Options:\n{texts}\n    "
        return function

    return add


def named_arguments(called: str) -> Callable[[F], F]:
    """Return a decorator of a function that takes no `**options`: a call that it cannot take raises
    UsageError.

    For a name that it has not, the message says the one meant. `called` is the name of the function
    in messages.
    """

    def add(function: F) -> F:
        signature = inspect.signature(function)
        names = [name for name in signature.parameters if name != "self"]

        @functools.wraps(function)
        def call(*arguments: Any, **given: Any) -> Any:
            check_names(called, given, names)
            _check_places(called, signature, arguments, given)
            return function(*arguments, **given)

        call.__signature__ = signature  # type: ignore[attr-defined]  # for_python sees that names are answered here
        return call  # type: ignore[return-value]

    return add


def check_names(called: str, given: Iterable[str], names: Collection[str]) -> None:
    """Raise UsageError for a name that is none of `names`; it says which one was meant."""
    for typed in given:
        if typed not in names:
            answer = did_you_mean(typed, names) or f"; there are {', '.join(names)}"
            raise UsageError(f"{called} has no argument {typed!r}{answer}")


def _check_places(
    called: str, signature: inspect.Signature, arguments: Sequence[Any], given: Mapping[str, Any]
) -> None:
    """Raise UsageError for a call with too few arguments, or with too many that have no name."""
    try:
        signature.bind(
            *arguments,
            **{name: value for name, value in given.items() if name in signature.parameters},
        )
    except TypeError as error:
        names = [name for name in signature.parameters if name != "self"]
        raise UsageError(f"{called}: {error}; its arguments are {', '.join(names)}") from None


def for_python(function: F, name: str) -> F:
    """Return a public function of the package, `shardctl.name`, whose messages name arguments in
    place of options."""
    signature = inspect.signature(function)
    parameters = signature.parameters
    paths = [each for each in parameters if parameters[each].annotation == "str | Path"]
    answers_names = hasattr(function, "__signature__")

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        _check_places(name, signature, arguments, options)
        if not answers_names:
            check_names(name, options, parameters)
        given = {**dict(zip(parameters, arguments, strict=False)), **options}
        for each in paths:
            if each in given and not isinstance(given[each], str | Path):
                raise UsageError(
                    f"{each} must be a path or a URL; it has the type {type(given[each]).__name__}"
                )
        try:
            result = function(*arguments, **options)
        except ShardctlError as error:
            error.args = (in_python(str(error), function), *error.args[1:])
            raise
        return _told_in_python(result, function)

    call.__module__, call.__qualname__ = "shardctl", name  # where pickle finds it
    return call  # type: ignore[return-value]


def _told_in_python(result: Any, function: Callable[..., Any]) -> Any:
    """Return the result of a function, with arguments named in what it tells: its notices, warnings
    and notes."""
    if not dataclasses.is_dataclass(result):
        return result
    changes = {}
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if field.name not in ("notices", "warnings", "notes"):
            told = _told_in_python(value, function)  # the estimate of a conversion has its own
        elif (lines := tuple(in_python(line, function) for line in value)) != value:
            told = lines
        else:
            told = value
        if told is not value:
            changes[field.name] = told
    return dataclasses.replace(result, **changes) if changes else result  # type: ignore[type-var]  # it is not a class


def in_python(message: str, function: Callable[..., Any]) -> str:
    """Return a message with the options that are arguments of a function written as such.

    What stands between backquotes is a command line, and stays as it is.
    """
    parameters = inspect.signature(function).parameters

    def argument(found: re.Match[str]) -> str:
        name, behind = found[1].replace("-", "_"), f" {found[2]}" if found[2] else ""
        name = next(
            (each for each in (name, f"{name}s", name.removeprefix("no_")) if each in parameters),
            "",
        )
        if not name:
            return found[0]
        if found[1].startswith("no-"):
            return f"{name}=False{behind}"
        if parameters[name].default is False:
            return f"{name}=True{behind}"
        if found[2] is None:
            return name
        value = _literal(found[2])
        return (
            f"{name}=[{value}]"
            if str(parameters[name].annotation).startswith("Sequence[")
            else f"{name}={value}"
        )

    pieces = message.split("`")
    return "`".join(
        _OPTION.sub(argument, piece) if place % 2 == 0 else piece
        for place, piece in enumerate(pieces)
    )


def _literal(value: str) -> str:
    """Return a value of the command line as Python writes it. What stands for a value (FIELD, K)
    stays, and NA is one."""
    return value if re.fullmatch(r"\d+(\.\d+)?|'.*'|\".*\"|[A-Z]|[A-Z]{3,}", value) else repr(value)
