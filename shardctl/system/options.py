"""What is declared of an option, of a key of a recipe, or of a setting of a step: a field of a
dataclass says all of it, for the command line, for Python, for files, and for editors.

The command line makes its options of these fields (cli/options.py), and the dataclass checks its
values by them. Little is imported here: `--help` does not wait for it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from shardctl.errors import UsageError
from shardctl.system.arguments import ELSEWHERE, index_of, truth
from shardctl.system.text import did_you_mean, parse_size

SHOWN = 120
"""Characters of a wrong value in a message."""


class ValueType:
    """What a value may be. Without more it is anything; `python` is its type, as an annotation."""

    python: str = "str"

    repeats: ClassVar[bool] = False
    """Whether the command line takes the option several times. `of_text` gets a tuple then."""

    bare: ClassVar[str | None] = None
    """What the command line reads where the option has no value behind it. None: it must have
    one."""

    absent: str | None = None
    """What a recipe has where the value is None."""

    def __init__(self, python: str = "") -> None:
        self.python = python or self.python

    def of_text(self, given: Any) -> Any:
        """Return the value that the command line means, as Python gives it. Raises ValueError that
        says what is wrong, UsageError."""
        return given

    def shown(self, default: Any) -> Any:
        """Return a default as it is typed on the command line."""
        return default

    def take(self, name: str, value: Any) -> Any:
        """Return a value from Python as the command line would have it, where Python has other
        words for it."""
        return value

    def read(self, value: Any) -> Any:
        """Return the checked value. Raises ValueError, saying what it must be, or UsageError with a
        whole sentence."""
        return value

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for a value that `name` cannot have."""
        try:
            self.read(value)
        except ValueError as error:
            shown = repr(value)
            if len(shown) > SHOWN:  # an array has many lines
                shown = f"{shown[:SHOWN].splitlines()[0]}…"
            raise UsageError(f"{name} {error}; it is {shown}") from None

    def write(self, value: Any) -> Any:
        """Return a checked value as a recipe has it."""
        return value

    def schema(self) -> dict[str, Any]:
        """Return a JSON schema of what a recipe may have here."""
        return {"type": "string"}


class Text(ValueType):
    """A string. `example` is one, for the message."""

    def __init__(self, example: str | None = None) -> None:
        self.example = example

    def read(self, value: Any) -> str:
        """Return it."""
        if callable(value):
            raise ValueError("takes 'module:function': worker processes import it by its name")
        if not isinstance(value, str):
            like = "" if self.example is None else f" such as {self.example!r}"
            raise ValueError(f"must be a string{like}")
        return value


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


class FilePath(ValueType):
    """The path of a file or a folder."""

    python = "str | Path"

    def read(self, value: Any) -> str | Path:
        """Return it."""
        if not isinstance(value, str | Path):
            raise ValueError("must be a path")
        return value


class Whole(ValueType):
    """A whole number within limits, both of which are allowed. Where there is only a lower one,
    `--help` says so."""

    python = "int"

    def __init__(self, low: int | None = None, high: int | None = None) -> None:
        self.low, self.high = low, high

    def read(self, value: Any) -> int:
        """Return it as an int."""
        number = index_of(value)
        low = -math.inf if self.low is None else self.low
        if number is None or not low <= number <= (math.inf if self.high is None else self.high):
            high = "on" if self.high is None else f"to {self.high}"
            between = "" if self.low is None else f" from {self.low} {high}"
            raise ValueError(f"must be a whole number{between}")
        return number

    def schema(self) -> dict[str, Any]:
        """Return the schema of a whole number."""
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


class Number(ValueType):
    """A number within limits, both of which are allowed unless `above` says that the lower one is
    not."""

    python = "float"

    def __init__(self, low: float = -math.inf, high: float = math.inf, above: bool = False) -> None:
        self.low, self.high, self.above = low, high, above

    def fits(self, number: float) -> bool:
        """Return whether a number is finite, and within the limits."""
        above = number > self.low or (number == self.low and not self.above)
        return math.isfinite(number) and above and number <= self.high

    def limits(self) -> str:
        """Say what the limits are, behind the name of what has them."""
        low, high = f"{self.low:g}", f"{self.high:g}"
        if self.low == -math.inf:
            return "" if self.high == math.inf else f", {high} or less"
        if self.high == math.inf:
            return f", over {low}" if self.above else f", {low} or more"
        return f" over {low} and at most {high}" if self.above else f" from {low} to {high}"

    def read(self, value: Any) -> float:
        """Return it as a float."""
        number = number_of(value)
        if not self.fits(number):
            raise ValueError(f"must be a number{self.limits()}")
        return number

    def schema(self) -> dict[str, Any]:
        """Return the schema of a number."""
        lower = "exclusiveMinimum" if self.above else "minimum"
        limits = {lower: self.low, "maximum": self.high}
        return {"type": "number"} | {key: n for key, n in limits.items() if math.isfinite(n)}


class Flag(ValueType):
    """True or false."""

    python = "bool"

    def read(self, value: Any) -> bool:
        """Return it."""
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return value

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for anything but True and False, 0 and 1."""
        truth(name, value)

    def schema(self) -> dict[str, Any]:
        """Return the schema of a boolean."""
        return {"type": "boolean"}


class Off(Flag):
    """A flag that says no: the value is False where it is given, else the default."""

    def of_text(self, given: bool) -> bool | None:
        """Return False, or None where the flag is not given."""
        return False if given else None


class Word(ValueType):
    """One of some words."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.python = f"Literal[{', '.join(map(repr, words))}]"

    def read(self, value: Any) -> str:
        """Return it."""
        if value not in self.words:
            listed = ", ".join(self.words[:-1])
            raise ValueError(f"must be {f'{listed} or ' if listed else ''}{self.words[-1]}")
        return str(value)

    def schema(self) -> dict[str, Any]:
        """Return the schema of these words."""
        return {"enum": list(self.words)}


class ByteSize(Whole):
    """A number of bytes: 128MiB, 64MB or 1000000 on the command line."""

    python = "int | str"

    def of_text(self, given: str) -> int:
        """Return the number of bytes."""
        size = parse_size(given)
        if size is None:
            raise ValueError(f"{given!r} is not a size; write 128MiB, 64MB or a number of bytes")
        return size

    def take(self, name: str, value: Any) -> Any:
        """Return the number of bytes of a text. Raises UsageError."""
        try:
            return self.of_text(value) if isinstance(value, str) else value
        except ValueError as error:
            raise UsageError(f"{name}: {error}") from None


class AutoOrNumber(ValueType):
    """`auto`, or a whole number from `least` to `most`."""

    python = "int | str"

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def of_text(self, given: str) -> int | str:
        """Return `auto` or the number."""
        if given != "auto" and not given.isdecimal():
            raise ValueError(f"{given!r} is neither auto nor a whole number from {self.least:,} on")
        return given if given == "auto" else int(given)

    def read(self, value: Any) -> int | str:
        """Return it."""
        if value != "auto" and not (type(value) is int and self.least <= value <= self.most):
            raise ValueError(f"must be auto or a number from {self.least} to {self.most}")
        return value  # type: ignore[no-any-return]  # it is one of the two


class SecondsOrNone(Number):
    """A number of seconds; None, which is `none` on the command line, for no limit."""

    python = "float | None"

    def of_text(self, given: str) -> float | None:
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

    def read(self, value: Any) -> Any:
        """Return a number, or None."""
        return value if value is None else super().read(value)


class Many(ValueType):
    """Several values of a type: an option that is given several times, a list in Python. `alone`:
    one is taken too."""

    repeats = True

    def __init__(self, of: ValueType, alone: bool = False) -> None:
        self.of, self.alone = of, alone
        self.python = f"{of.python} | Sequence[{of.python}]" if alone else f"Sequence[{of.python}]"

    def take(self, name: str, value: Any) -> Any:
        """Return a list of the one value."""
        return [value] if self.alone and isinstance(value, str) else value

    def of_text(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the values."""
        return tuple(self.of.of_text(each) for each in given)

    def read(self, value: Any) -> list[Any]:
        """Return the values."""
        if callable(value):
            self.of.read(value)
        if isinstance(value, str | Path) or not isinstance(value, Sequence):
            raise ValueError("takes a list")
        return [self.of.read(each) for each in value]


Check = Callable[[Any], None]
"""Raises UsageError for a value that cannot be."""


class Option(NamedTuple):
    """All that is declared of an option, a key of a recipe, or a setting of a step.

    - `default` is a value, or `dict` for an empty dict; MISSING where a setting has none.
      `shows_default` has `--help` show it.
    - `help` is the text in `--help` and of pages, and `metavar` stands for the value there.
    - `otherwise` is the value that holds where the option is not given and a recipe does not say it
      either; `default` is None then. `--help` names it in a sentence after `help`, unless it is
      None or empty.
    - `spelling` is how the option is written, where that is not the name of its field: `--step`,
      `--decode/--no-decode`.
    - `heading` is the line in `--help` under which the option is. The short help of `-h` has those
      with a `brief` text, which is one line.
    - `limit` raises UsageError for a value of the right type that is impossible.
    - `omit_default` is for what recipes did not have from the start: a recipe has it only where it
      is not the default, and so recipes of older datasets stay the same.
    - `about` is what the inputs of a conversion must have, one of these, for the option to have an
      effect; empty: it has one on all inputs.
    """

    type: ValueType
    default: Any
    help: str
    metavar: str | None = None
    spelling: str | None = None
    shows_default: bool = False
    heading: str = ""
    brief: str = ""
    limit: Check | None = None
    otherwise: Any = None
    omit_default: bool = False
    about: tuple[Enum, ...] = ()

    def spelled(self, name: str) -> str:
        """Return how the option `name` is written on the command line."""
        return self.spelling or f"--{name.replace('_', '-')}"

    @property
    def python(self) -> str:
        """The type of the argument in Python, as an annotation."""
        python = self.type.python
        return python if self.default is not None or "None" in python else f"{python} | None"

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for a value that the option `name` cannot have. Where None is the
        default, it can be None."""
        if value is None and self.default is None:
            return
        self.type.check(name, value)
        if value is not None and self.limit is not None:
            self.limit(value)

    def write(self, value: Any) -> Any:
        """Return a value as a recipe has it; None for what it leaves out."""
        return self.type.absent if value is None else self.type.write(value)

    @property
    def written_default(self) -> Any:
        """The default as a recipe has it; None where there is none."""
        return None if self.default is dataclasses.MISSING else self.write(self.default)


def setting(
    type: ValueType, default: Any = dataclasses.MISSING, help: str = "", **more: Any
) -> Any:
    """Return a field of a dataclass of options, of a step, or of a recipe. The arguments are those
    of Option; `default` is what `type.read` would return."""
    return _field(Option(type, default, help, **more))


option = setting


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


def number_of(value: Any) -> float:
    """Return a number as a float, NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def declared_in(class_: type[Any]) -> dict[str, Option]:
    """Return the options that a dataclass declares, by the names of its fields."""
    return {field.name: field.metadata["option"] for field in dataclasses.fields(class_)}


def check_options(options: Any) -> None:
    """Raise UsageError for the first option that cannot have the value that it has. `options` is an
    object of a dataclass."""
    for name, declared in declared_in(type(options)).items():
        declared.check(name, getattr(options, name))


def without_effect(options: Any, there: Collection[Enum]) -> Iterator[tuple[str, str]]:
    """Yield the options that are about nothing that is `there`, each with a sentence about it.
    `options` is an object of a dataclass."""
    for name, declared in declared_in(type(options)).items():
        is_given = getattr(options, name) not in (declared.default, [])
        if is_given and declared.about and not {*declared.about}.intersection(there):
            what = " or ".join(subject.value for subject in declared.about)
            yield name, f"is about {what}, and the inputs have none; leave it out"


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
            meant = f"; {ELSEWHERE[name]}" if name in ELSEWHERE else meant
            raise UsageError(f"{function} has no argument {name!r}{meant}")
        taken[name] = declared[name].type.take(name, value)
    return taken
