"""Messages for callers from Python: they name arguments where the same message of the command line
names options."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from shardctl.errors import ShardctlError, UsageError
from shardctl.system.arguments import ELSEWHERE
from shardctl.system.options import Option
from shardctl.system.text import FEW, did_you_mean


def no_attribute(self: Any, name: str) -> Any:
    """Raise AttributeError once more, with what to write for a name of other libraries: the
    `__getattr__` of a class."""
    try:
        return object.__getattribute__(self, name)  # a property may raise its own
    except AttributeError as error:
        if name in ELSEWHERE:
            error.args = (f"{error}; {ELSEWHERE[name]}",)
        raise


def not_in_module(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """Return the error for a name that a module lacks. `names` are those that it has."""
    meant = ""
    if name in ELSEWHERE:
        meant = f"; {ELSEWHERE[name]}"
    elif name[0] != "_":
        meant = did_you_mean(name, names)
    return AttributeError(f"module {module!r} has no attribute {name!r}{meant}", name=name)


F = TypeVar("F", bound=Callable[..., Any])

_WORDS = (
    "none|all|folder|source|lists|column|image|table|text|line|paragraph|local|keep|clip|stored"
    "|pose|segment|obb|png|raw|json|drop|detect|gbk|chatml|cuda"
)
"""Words that messages give options as values. Any other word behind an option is no value."""

_OPTION = re.compile(
    r"(?<![\w./-])--([a-z][a-z0-9]*(?:-[a-z0-9]+)*)"
    r"(?:[ =]("
    r"'[^']*'|\"[^\"]*\"|(?!\()(?=\S*(?:[0-9:=/']|[.,]\w))(?:[^\s,;)]|,(?=\S))*[^\s,;.:)]"
    rf"|[A-Z]+\b|(?:{_WORDS})\b"
    r"))?"
)
"""An option, and a value behind it: in quotes, not an ordinary word, in capitals, or in _WORDS."""


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
                default={} if each.default is dict else each.default,
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


def named_arguments(
    called: str,
    write: str = "",
    first: type | tuple[type, ...] = object,
    elsewhere: Mapping[str, str] = ELSEWHERE,
) -> Callable[[F], F]:
    """Return a decorator of a function: a call that it cannot take raises UsageError, which says
    the name that was meant.

    `called` is the name of the function in messages, `write` a call of it that is right, `first`
    the types of its first argument. `elsewhere` has what to write for names that it does not take.
    """

    def add(function: F) -> F:
        signature = inspect.signature(function)
        names = [name for name in signature.parameters if name != "self"]
        before = len(signature.parameters) - len(names)
        # a function with options answers wrong names itself
        answers_names = hasattr(function, "__signature__") or "options" in names
        needed = [name for name in names if signature.parameters[name].default is _MISSING]
        right = write or f"{called}({', '.join([*needed, '…'])})"

        @functools.wraps(function)
        def call(*arguments: Any, **given: Any) -> Any:
            wrong = [name for name in given if name not in names]
            if wrong and not answers_names:
                answer = did_you_mean(wrong[0], names)
                if wrong[0] in elsewhere:
                    answer = f"; {elsewhere[wrong[0]]}"
                elif not answer and len(names) > FEW:
                    answer = f"; `shardctl help {called}` lists all"
                answer = answer or f"; there are {', '.join(names)}"
                raise UsageError(f"{called} has no argument {wrong[0]!r}{answer}")
            for value in [*arguments[before:], *(given[n] for n in names[:1] if n in given)][:1]:
                if not isinstance(value, first):
                    raise UsageError(f"{called} takes no {type(value).__name__}; write {right}")
            try:
                signature.bind(*arguments, **{n: v for n, v in given.items() if n in names})
            except TypeError as error:
                raise UsageError(f"{called}: {error}; write {right}") from None
            return function(*arguments, **given)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return add


_MISSING = inspect.Parameter.empty


def for_python(function: F, name: str) -> F:
    """Return a public function of the package, `shardctl.name`, whose messages name arguments in
    place of options."""
    if isinstance(function, type):
        return function
    parameters = inspect.signature(function).parameters
    paths = [each for each in parameters if parameters[each].annotation == "str | Path"]
    checked = named_arguments(name)(function)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        given = {**dict(zip(parameters, arguments, strict=False)), **options}
        for each in paths:
            if each in given and not isinstance(given[each], str | Path):
                where = getattr(given[each], "location", None)  # of a dataset
                hint = f"; write {name}({where!r})" if isinstance(where, str) else ""
                raise UsageError(
                    f"{each} must be a path or a URL; it has the type "
                    f"{type(given[each]).__name__}{hint}"
                )
            if str(given.get(each)).startswith("~"):
                raise UsageError(
                    f"{each}: Python expands no ~; write Path({given[each]!r}).expanduser()"
                )
        try:
            result = checked(*arguments, **options)
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
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if field.name not in ("notices", "warnings", "notes"):
            told = _told_in_python(value, function)  # the estimate of a conversion has its own
            if told is not value:
                changes[field.name] = told
        elif (lines := tuple(in_python(line, function) for line in value)) != value:
            changes[field.name] = lines
    return dataclasses.replace(result, **changes) if changes else result  # type: ignore[type-var]  # it is not a class


def in_python(message: str, function: Callable[..., Any]) -> str:
    """Return a message with the options that are arguments of a function written as such.

    What stands between backquotes is a command line, and stays as it is.
    """
    parameters = inspect.signature(function).parameters

    def argument(found: re.Match[str]) -> str:
        name, value = found[1].replace("-", "_"), found[2]
        names = (name, f"{name}s", name.removeprefix("no_"))
        name = next((each for each in names if each in parameters), "")
        if not name:
            return found[0]
        if found[1].startswith("no-") or parameters[name].default is False:
            behind = f" {value}" if value else ""
            return f"{name}={not found[1].startswith('no-')}{behind}"
        if value is None:
            return name
        # what stands for a value (FIELD, K) stays, and NA is one
        if not re.fullmatch(r"\d+(\.\d+)?|'.*'|\".*\"|[A-Z]|[A-Z]{3,}", value):
            value = repr(value)
        in_list = str(parameters[name].annotation).startswith("Sequence[")
        return f"{name}=[{value}]" if in_list else f"{name}={value}"

    pieces = message.split("`")
    return "`".join(
        piece if place % 2 else _OPTION.sub(argument, piece) for place, piece in enumerate(pieces)
    )
