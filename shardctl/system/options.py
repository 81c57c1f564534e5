"""Options as they are declared: a field of a dataclass says all of an option, for the command line
and for Python.

The command line makes its options of these fields (cli/options.py), and the dataclass checks its
values by them. Little is imported here: `--help` does not wait for it.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from numbers import Real as RealNumber
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from shardctl.errors import UsageError
from shardctl.system.arguments import truth, whole_number
from shardctl.system.text import did_you_mean, parse_size


class OptionType(ABC):
    """What the value of an option may be."""

    python: str = "Any"
    """The type of the value in Python, as an annotation."""

    repeats: ClassVar[bool] = False
    """Whether the command line takes the option several times. `read` gets a tuple then."""

    bare: ClassVar[str | None] = None
    """What the command line reads where the option has no value behind it. None: it must have
    one."""

    def read(self, given: Any) -> Any:
        """Return the value that the command line means. Raises ValueError that says what is wrong,
        UsageError."""
        return given

    def shown(self, default: Any) -> Any:
        """Return a default as it is typed on the command line."""
        return default

    def take(self, name: str, value: Any) -> Any:
        """Return a value from Python as the command line would have it, where Python has other
        words for it."""
        return value

    @abstractmethod
    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for a value of another type, which only Python can give."""


class Anything(OptionType):
    """A text on the command line; in Python, what the option's own check lets through. `python` is
    its type, for editors."""

    def __init__(self, python: str = "str") -> None:
        self.python = python

    def check(self, name: str, value: Any) -> None:
        """Raise nothing."""


class Text(OptionType):
    """A string. `example` is one, for the message."""

    python = "str"

    def __init__(self, example: str | None = None) -> None:
        self.example = example

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything but a string."""
        if callable(value):
            raise UsageError(
                f"{name} takes 'module:function', and not a function: worker processes import it "
                "by its name"
            )
        if not isinstance(value, str):
            must = (
                "must be a string"
                if self.example is None
                else f"is a string such as {self.example!r}"
            )
            raise UsageError(f"{name} {must}; it is {value!r}")


class Written(Text):
    """A text of the command line; in Python also a path, a list or a dict, where `python` says so.

    `between` stands between a key of a dict and its value. `example` is as in Text.
    """

    def __init__(self, python: str, between: str = "=", example: str | None = None) -> None:
        super().__init__(example)
        self.python, self.between = python, between

    def take(self, name: str, value: Any) -> Any:
        """Return the text that the command line has for the value."""
        if isinstance(value, Mapping) and "Mapping" in self.python:
            return ",".join(f"{key}{self.between}{each}" for key, each in value.items())
        if isinstance(value, list | tuple) and "Sequence" in self.python:
            return ",".join(map(str, value))
        return str(value) if isinstance(value, Path) and "Path" in self.python else value


class ImageSize(OptionType):
    """The size of an image: 224, or 320x240 for width x height; in Python also (320, 240). Steps
    check it."""

    python = "int | str | tuple[int, int]"

    def take(self, name: str, value: Any) -> Any:
        """Return width and height as a text."""
        return "x".join(map(str, value)) if isinstance(value, tuple | list) else value

    def check(self, name: str, value: Any) -> None:
        """Raise nothing."""


class FilePath(OptionType):
    """The path of a file or a folder."""

    python = "str | Path"

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything but a string or a path."""
        if not isinstance(value, str | Path):
            raise UsageError(f"{name} must be a path; it is {value!r}")


class Whole(OptionType):
    """A whole number. Where there is a `least`, the command line takes none below it, and `--help`
    says so."""

    python = "int"

    def __init__(self, least: int | None = None) -> None:
        self.least = least

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything else."""
        whole_number(name, value)


class Real(OptionType):
    """A number."""

    python = "float"

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything else."""
        if isinstance(value, bool) or not isinstance(value, RealNumber):
            raise UsageError(f"{name} must be a number; it is {value!r}")


class Flag(OptionType):
    """True or False."""

    python = "bool"

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything else."""
        truth(name, value)


class Off(Flag):
    """A flag that says no: the value is False where it is given, else the default."""

    def read(self, given: bool) -> bool | None:
        """Return False, or None where the flag is not given."""
        return False if given else None


class Word(OptionType):
    """One of some words."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.python = f"Literal[{', '.join(map(repr, words))}]"

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything else."""
        if value not in self.words:
            listed = f"{', '.join(self.words[:-1])} or {self.words[-1]}"
            raise UsageError(f"{name} must be {listed}; it is {value!r}")


class ByteSize(Whole):
    """A number of bytes: 128MiB, 64MB or 1000000 on the command line."""

    python = "int | str"

    def read(self, given: str) -> int:
        """Return the number of bytes."""
        size = parse_size(given)
        if size is None:
            raise ValueError(f"{given!r} is not a size; write 128MiB, 64MB or a number of bytes")
        return size

    def take(self, name: str, value: Any) -> Any:
        """Return the number of bytes of a text. Raises UsageError."""
        try:
            return self.read(value) if isinstance(value, str) else value
        except ValueError as error:
            raise UsageError(f"{name}: {error}") from None


class NumberOrText(Anything):
    """A number where the text is one, else the text, which the reader of the option judges."""

    def __init__(self) -> None:
        super().__init__("float | str")

    def read(self, given: str) -> float | str:
        """Return the number or the text."""
        try:
            return float(given)
        except ValueError:
            return given


class AutoOrNumber(OptionType):
    """`auto`, or a whole number from `least` to `most`."""

    python = "int | str"

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def read(self, given: str) -> int | str:
        """Return `auto` or the number."""
        if given != "auto" and not given.isdecimal():
            raise ValueError(f"{given!r} is neither auto nor a whole number from {self.least:,} on")
        return given if given == "auto" else int(given)

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything else."""
        if value != "auto" and not (type(value) is int and self.least <= value <= self.most):
            raise UsageError(
                f"{name} must be auto or a number from {self.least} to {self.most}; it is {value!r}"
            )


class SecondsOrNone(Real):
    """A number of seconds; None, which is `none` on the command line, for no limit."""

    python = "float | None"

    def read(self, given: str) -> float | None:
        """Return the number, or None."""
        if given == "none":
            return None
        try:
            return float(given)
        except ValueError:
            raise ValueError(f"{given!r} is neither a number of seconds nor none") from None

    def shown(self, default: float | None) -> str:
        """Return the number without a point where it is whole."""
        return "none" if default is None else f"{default:g}"

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything but a number and None."""
        if value is not None:
            super().check(name, value)


class Many(OptionType):
    """Several values of a type: an option that is given several times, a list in Python. `alone`:
    one is taken too."""

    repeats = True

    def __init__(self, of: OptionType, alone: bool = False) -> None:
        self.of, self.alone = of, alone
        self.python = f"{of.python} | Sequence[{of.python}]" if alone else f"Sequence[{of.python}]"

    def take(self, name: str, value: Any) -> Any:
        """Return a list of the one value."""
        return [value] if self.alone and isinstance(value, str) else value

    def read(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the values."""
        return tuple(self.of.read(each) for each in given)

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for a value alone, and for values of another type."""
        if isinstance(value, str | Path):
            raise UsageError(f"{name} takes a list; write {name}=[{str(value)!r}]")
        if callable(value):
            self.of.check(name, value)
        if not isinstance(value, Sequence):
            raise UsageError(f"{name} takes a list; it is {value!r}")
        for each in value:
            self.of.check(name, each)


Check = Callable[[Any], None]
"""Raises UsageError for a value that cannot be."""


class Option(NamedTuple):
    """All that is declared of an option.

    - `default` is a value, or `dict` for an empty dict. `shows_default` has `--help` show it.
    - `help` is the text in `--help`, and `metavar` stands for the value there.
    - `otherwise` is the value that holds where the option is not given and a recipe does not say it
      either; `default` is None then. `--help` names it in a sentence after `help`, unless it is
      None or empty.
    - `spelling` is how the option is written, where that is not the name of its field: `--step`,
      `--decode/--no-decode`.
    - `heading` is the line in `--help` under which the option is. The short help of `-h` has those
      with a `brief` text, which is one line.
    - `limit` raises UsageError for a value of the right type that is impossible.
    """

    type: OptionType
    default: Any
    help: str
    metavar: str | None = None
    spelling: str | None = None
    shows_default: bool = False
    heading: str = ""
    brief: str = ""
    limit: Check | None = None
    otherwise: Any = None

    def spelled(self, name: str) -> str:
        """Return how the option `name` is written on the command line."""
        return self.spelling or f"--{name.replace('_', '-')}"

    @property
    def python(self) -> str:
        """The type of the argument in Python, as an annotation."""
        return (
            self.type.python
            if self.default is not None or "None" in self.type.python
            else f"{self.type.python} | None"
        )

    @property
    def python_default(self) -> Any:
        """The default of the argument in Python."""
        return {} if self.default is dict else self.default

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for a value that the option `name` cannot have. Where None is the
        default, it can be None."""
        if value is None and self.default is None:
            return
        self.type.check(name, value)
        if value is not None and self.limit is not None:
            self.limit(value)


def option(type: OptionType, default: Any, help: str, **more: Any) -> Any:
    """Return a field of a dataclass of options. The arguments are those of Option."""
    return _field(Option(type, default, help, **more))


def option_as(declared: Option, default: Any, **more: Any) -> Any:
    """Return a field for an option that others have too, with the default that it has here, and
    what else differs."""
    return _field(declared._replace(default=default, **more))


def _field(declared: Option) -> Any:
    if declared.default is dict:
        return dataclasses.field(default_factory=dict, metadata={"option": declared})
    return dataclasses.field(default=declared.default, metadata={"option": declared})


def at_least(least: float, message: str) -> Check:
    """Return the limit of a number that is `least` or more. `message` has {} for the number."""

    def check(value: float) -> None:
        if value < least:
            raise UsageError(message.format(value))

    return check


def more_than(least: float, message: str) -> Check:
    """Return the limit of a number that is more than `least`. `message` has {} for the number."""

    def check(value: float) -> None:
        if not value > least:
            raise UsageError(message.format(value))

    return check


def declared_in(class_: type[Any]) -> dict[str, Option]:
    """Return the options that a dataclass declares, by the names of its fields."""
    return {field.name: field.metadata["option"] for field in dataclasses.fields(class_)}


def check_options(options: Any) -> None:
    """Raise UsageError for the first option that cannot have the value that it has. `options` is an
    object of a dataclass."""
    for name, declared in declared_in(type(options)).items():
        declared.check(name, getattr(options, name))


def taken_arguments(
    function: str, given: Mapping[str, Any], declared: Mapping[str, Option]
) -> dict[str, Any]:
    """Return the keyword arguments of a call from Python under the names of their options, and as
    these want them.

    Raises UsageError for a name that no option has.
    """
    taken = {}
    for name, value in given.items():
        if name not in declared:
            meant = did_you_mean(name, declared) or f"; help(shardctl.{function}) lists all"
            raise UsageError(f"{function} has no argument {name!r}{meant}")
        taken[name] = declared[name].type.take(name, value)
    return taken
