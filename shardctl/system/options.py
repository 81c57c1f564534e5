"""Options as they are declared: a field of a dataclass says all of an option, for the command line and for Python.

The command line makes its options of these fields (cli/options.py), and the dataclass checks its values by them. Little is
imported here: `--help` does not wait for it.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from numbers import Real as RealNumber
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from shardctl.errors import UsageError
from shardctl.system.arguments import truth, whole_number
from shardctl.system.text import parse_size


class OptionType(ABC):
    """What the value of an option may be."""

    repeats: ClassVar[bool] = False
    """Whether the command line takes the option several times. `read` gets a tuple then."""

    def read(self, given: Any) -> Any:
        """Return the value that the command line means. Raises ValueError that says what is wrong, UsageError."""
        return given

    def shown(self, default: Any) -> Any:
        """Return a default as it is typed on the command line."""
        return default

    @abstractmethod
    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for a value of another type, which only Python can give."""


class Anything(OptionType):
    """A text on the command line; in Python, what the option's own check lets through."""

    def check(self, name: str, value: Any) -> None:
        """Raise nothing."""


class Text(OptionType):
    """A string. `example` is one, for the message."""

    def __init__(self, example: str | None = None) -> None:
        self.example = example

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything but a string."""
        if not isinstance(value, str):
            must = "must be a string" if self.example is None else f"is a string such as {self.example!r}"
            raise UsageError(f"{name} {must}; it is {value!r}")


class FilePath(OptionType):
    """The path of a file or a folder."""

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything but a string or a path."""
        if not isinstance(value, str | Path):
            raise UsageError(f"{name} must be a path; it is {value!r}")


class Whole(OptionType):
    """A whole number. Where there is a `least`, the command line takes none below it, and `--help` says so."""

    def __init__(self, least: int | None = None) -> None:
        self.least = least

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything else."""
        whole_number(name, value)


class Real(OptionType):
    """A number."""

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything else."""
        if isinstance(value, bool) or not isinstance(value, RealNumber):
            raise UsageError(f"{name} must be a number; it is {value!r}")


class Flag(OptionType):
    """True or False."""

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

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything else."""
        if value not in self.words:
            listed = f"{', '.join(self.words[:-1])} or {self.words[-1]}"
            raise UsageError(f"{name.replace('_', ' ')} must be {listed}; it is {value!r}")


class ByteSize(Whole):
    """A number of bytes: 128MiB, 64MB or 1000000 on the command line."""

    def read(self, given: str) -> int:
        """Return the number of bytes."""
        size = parse_size(given)
        if size is None:
            raise ValueError(f"{given!r} is not a size; write 128MiB, 64MB or a number of bytes")
        return size


class NumberOrText(Anything):
    """A number where the text is one, else the text, which the reader of the option judges."""

    def read(self, given: str) -> float | str:
        """Return the number or the text."""
        try:
            return float(given)
        except ValueError:
            return given


class AutoOrNumber(OptionType):
    """`auto`, or a whole number from `least` to `most`."""

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def read(self, given: str) -> int | str:
        """Return `auto` or the number."""
        if given != "auto" and not given.isdecimal():
            raise ValueError(f"{given!r} is neither auto nor a whole number")
        return given if given == "auto" else int(given)

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything else."""
        if value != "auto" and not (type(value) is int and self.least <= value <= self.most):
            raise UsageError(f"{name} must be auto or a number from {self.least} to {self.most}; it is {value!r}")


class SecondsOrNone(Real):
    """A number of seconds; None, which is `none` on the command line, for no limit."""

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
    """Several values of a type: an option that is given several times, a list in Python."""

    repeats = True

    def __init__(self, of: OptionType) -> None:
        self.of = of

    def read(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the values."""
        return tuple(self.of.read(each) for each in given)

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for a value alone, and for values of another type."""
        if isinstance(value, str | Path):
            raise UsageError(f"{name} takes a list; write {name}=[{str(value)!r}]")
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
    - `otherwise` is the value that holds where the option is not given and a recipe does not say it either; `default` is None
      then. `--help` names it in a sentence after `help`, unless it is None or empty.
    - `spelling` is how the option is written, where that is not the name of its field: `--source`, `--decode/--no-decode`.
    - `group`: a command adds one group of options at a time, in the order of their fields. `after` names the option that this
      one follows in `--help`, where that is another order.
    - `limit` raises UsageError for a value of the right type that is impossible.
    """

    type: OptionType
    default: Any
    help: str
    metavar: str | None = None
    spelling: str | None = None
    shows_default: bool = False
    group: str = ""
    after: str | None = None
    limit: Check | None = None
    otherwise: Any = None

    def spelled(self, name: str) -> str:
        """Return how the option `name` is written on the command line."""
        return self.spelling or f"--{name.replace('_', '-')}"

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for a value that the option `name` cannot have. Where None is the default, it can be None."""
        if value is None and self.default is None:
            return
        self.type.check(name, value)
        if value is not None and self.limit is not None:
            self.limit(value)


def option(type: OptionType, default: Any, help: str, **more: Any) -> Any:
    """Return a field of a dataclass of options. The arguments are those of Option."""
    return _field(Option(type, default, help, **more))


def option_as(declared: Option, default: Any, group: str = "") -> Any:
    """Return a field for an option that others have too, with the default and the group that it has here."""
    return _field(declared._replace(default=default, group=group))


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


def declared_in(class_: type[Any], *groups: str) -> dict[str, Option]:
    """Return the options that a dataclass declares, by the names of its fields, in the order of `--help`: all, or of groups."""
    found: dict[str, Option] = {field.name: field.metadata["option"] for field in dataclasses.fields(class_)}
    names = [name for name, each in found.items() if each.after is None]
    for name, each in found.items():
        if each.after is not None:
            names.insert(names.index(each.after) + 1, name)
    if not groups:
        return {name: found[name] for name in names}
    return {name: found[name] for group in groups for name in names if found[name].group == group}


def check_options(options: Any) -> None:
    """Raise UsageError for the first option that cannot have the value that it has. `options` is an object of a dataclass."""
    for name, declared in declared_in(type(options)).items():
        declared.check(name, getattr(options, name))
