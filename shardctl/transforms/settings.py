"""What the settings of a recipe and of its steps may be: how each is read, written, and described
for an editor.

A step is a frozen dataclass, and so is a recipe. Each of its fields is made by `setting(kind)` or
`setting(kind, default)`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from shardctl.errors import UsageError
from shardctl.images.geometry import Colour, Size
from shardctl.system.options import Option
from shardctl.system.text import unknown

MAX_SIDE = 16384
"""Longest side of an output image, in pixels."""

T = TypeVar("T")


class SettingError(UsageError):
    """A setting of a recipe that is unknown, missing or impossible.

    `key` is its place: names of keys, and numbers of the items of lists (from 0), from the
    outermost in. `problem` is the message without the name of the step, `owner`, that it begins
    with.
    """

    def __init__(self, problem: str, *key: str | int, owner: str = "") -> None:
        super().__init__(f"{owner}: {problem}" if owner else problem)
        self.problem, self.key, self.owner = problem, key, owner

    def within(self, *key: str | int, owner: str = "") -> SettingError:
        """Return the same error with its place told from further out. It keeps the owner that it
        has."""
        return SettingError(self.problem, *key, *self.key, owner=self.owner or owner)


Report = Callable[[SettingError], None]
"""What is told of every setting that is wrong. One that raises ends the reading at the first."""


def raise_it(error: SettingError) -> NoReturn:
    """Raise the error: the report of those who need no more than the first."""
    raise error


class SettingType(ABC, Generic[T]):
    """What a setting may be. `read` takes what a recipe or an option says, `write` gives what a
    recipe has."""

    @abstractmethod
    def read(self, value: Any) -> T:
        """Return the checked value. Raises ValueError, saying what it must be, or UsageError with a
        whole sentence."""

    def checked(self, value: Any, name: str, report: Report) -> T | None:
        """Return the checked value of the setting `name`; None if it is wrong, after telling
        `report` of all that is."""
        try:
            return self.read(value)
        except ValueError as error:
            report(SettingError(f"{name} {error}; it is {_shown(value)}"))
        except UsageError as error:
            report(_as_setting_error(error))
        return None

    def write(self, value: T) -> Any:
        """Return the value as a recipe has it."""
        return value

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """Return a JSON schema of what a recipe may have here."""


@dataclass(frozen=True)
class Number(SettingType[float]):
    """A number within limits, both of which are allowed unless `above` says that the lower one is
    not."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False

    def read(self, value: Any) -> float:
        """Return it as a float."""
        number = _number(value)
        if not (self.low <= number <= self.high and math.isfinite(number)) or (
            self.above and number == self.low
        ):
            raise ValueError(f"must be a number{_limits(self.low, self.high, self.above)}")
        return number

    def schema(self) -> dict[str, Any]:
        """Return the schema of a number."""
        lower = (
            {"exclusiveMinimum" if self.above else "minimum": self.low}
            if math.isfinite(self.low)
            else {}
        )
        return {
            "type": "number",
            **lower,
            **({"maximum": self.high} if math.isfinite(self.high) else {}),
        }


@dataclass(frozen=True)
class Whole(SettingType[int]):
    """A whole number within limits, both of which are allowed."""

    low: int
    high: int

    def read(self, value: Any) -> int:
        """Return it as an int."""
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not self.low <= value <= self.high
        ):
            raise ValueError(f"must be a whole number from {self.low} to {self.high}")
        return value

    def schema(self) -> dict[str, Any]:
        """Return the schema of a whole number."""
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Flag(SettingType[bool]):
    """True or false."""

    def read(self, value: Any) -> bool:
        """Return it."""
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return value

    def schema(self) -> dict[str, Any]:
        """Return the schema of a boolean."""
        return {"type": "boolean"}


@dataclass(frozen=True)
class Word(SettingType[str]):
    """One of some words."""

    words: tuple[str, ...]

    def read(self, value: Any) -> str:
        """Return it."""
        if value not in self.words:
            raise ValueError(f"must be {_either(self.words)}")
        return str(value)

    def schema(self) -> dict[str, Any]:
        """Return the schema of these words."""
        return {"enum": list(self.words)}


@dataclass(frozen=True)
class Text(SettingType[str]):
    """Any string."""

    def read(self, value: Any) -> str:
        """Return it."""
        if not isinstance(value, str):
            raise ValueError("must be a string")
        return value

    def schema(self) -> dict[str, Any]:
        """Return the schema of a string."""
        return {"type": "string"}


@dataclass(frozen=True)
class Span(SettingType[tuple[float, float]]):
    """Two rising numbers within limits. One number n alone stands for what `alone` says.

    `fixed`: n to n. `around`: `centre` - n to `centre` + n, not beyond `low`. `none`: it is not
    allowed.
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    alone: str = "none"
    centre: float = 0.0

    def read(self, value: Any) -> tuple[float, float]:
        """Return the two numbers."""
        if self.alone != "none" and math.isfinite(_number(value)):
            value = self._of_one(_number(value))
        two = isinstance(value, list | tuple) and len(value) == 2
        first, last = (_number(value[0]), _number(value[1])) if two else (math.nan, math.nan)
        finite = math.isfinite(first) and math.isfinite(last)
        if (
            not finite
            or not self.low <= first <= last <= self.high
            or (self.above and first == self.low)
        ):
            one = "" if self.alone == "none" else "one number, or "
            raise ValueError(
                f"must be {one}two rising numbers{_limits(self.low, self.high, self.above)}"
            )
        return first, last

    def _of_one(self, value: float) -> tuple[float, float]:
        if self.alone == "fixed":
            return value, value
        if not value >= 0:
            return math.nan, math.nan
        return max(self.low, self.centre - value), self.centre + value

    def write(self, value: tuple[float, float]) -> list[float]:
        """Return a list of the two."""
        return list(value)

    def schema(self) -> dict[str, Any]:
        """Return the schema of a list of two numbers, and of one number where that is allowed."""
        number = Number(self.low, self.high, self.above).schema()
        pair = {"type": "array", "items": number, "minItems": 2, "maxItems": 2}
        return (
            pair
            if self.alone == "none"
            else {"anyOf": [number if self.alone == "fixed" else {"type": "number"}, pair]}
        )


@dataclass(frozen=True)
class WholeSpan(SettingType[tuple[int, int]]):
    """Two rising whole numbers within limits, or one number, which is both."""

    low: int
    high: int

    def read(self, value: Any) -> tuple[int, int]:
        """Return the two numbers."""
        parts = value if isinstance(value, list | tuple) else [value] * 2
        if (
            len(parts) != 2
            or any(type(part) is not int for part in parts)
            or not self.low <= parts[0] <= parts[1] <= self.high
        ):
            raise ValueError(
                f"must be one whole number, or two rising ones, from {self.low} to {self.high}"
            )
        return parts[0], parts[1]

    def write(self, value: tuple[int, int]) -> int | list[int]:
        """Return one number where both are the same."""
        return value[0] if value[0] == value[1] else list(value)

    def schema(self) -> dict[str, Any]:
        """Return the schema of a number, or a list of two."""
        number = Whole(self.low, self.high).schema()
        return {"anyOf": [number, {"type": "array", "items": number, "minItems": 2, "maxItems": 2}]}


@dataclass(frozen=True)
class Numbers(SettingType[tuple[float, ...]]):
    """A list of `count` numbers within limits (None: of any). One of them alone stands for all
    where `repeat` says so."""

    count: int | None
    low: float = -math.inf
    high: float = math.inf
    repeat: bool = False

    def read(self, value: Any) -> tuple[float, ...]:
        """Return the numbers."""
        number = Number(self.low, self.high)
        if self.repeat and self.count and math.isfinite(_number(value)):
            value = [value] * self.count
        count = "" if self.count is None else f"{self.count} "
        problem = f"must be a list of {count}numbers{_limits(self.low, self.high, False)}"
        if (
            isinstance(value, str)
            or not isinstance(value, Sequence)
            or (self.count is not None and len(value) != self.count)
        ):
            raise ValueError(problem)
        try:
            return tuple(number.read(part) for part in value)
        except ValueError as error:
            raise ValueError(problem) from error

    def write(self, value: tuple[float, ...]) -> list[float]:
        """Return a list of them."""
        return list(value)

    def schema(self) -> dict[str, Any]:
        """Return the schema of such a list."""
        number = Number(self.low, self.high).schema()
        length = {} if self.count is None else {"minItems": self.count, "maxItems": self.count}
        listed = {"type": "array", "items": number, **length}
        return {"anyOf": [number, listed]} if self.repeat else listed


@dataclass(frozen=True)
class Sides(SettingType["int | Size"]):
    """A size in pixels: 224, or 320x240 for width x height. `pair` makes one number both sides."""

    pair: bool = False

    def read(self, value: Any) -> int | Size:
        """Return one number, or (width, height)."""
        parts = (
            [str(part) for part in value]
            if isinstance(value, list | tuple)
            else str(value).lower().split("x")
        )
        sides = [int(part) if part.isdecimal() and len(part) < 9 else 0 for part in parts]
        if len(sides) not in (1, 2) or any(not 1 <= side <= MAX_SIDE for side in sides):
            raise ValueError(
                f"must be 224, or 320x240 for width x height, with sides of 1 to {MAX_SIDE} pixels"
            )
        if len(sides) == 1:
            return (sides[0], sides[0]) if self.pair else sides[0]
        return sides[0], sides[1]

    def write(self, value: int | Size) -> int | str:
        """Return 224, or 320x240."""
        return value if isinstance(value, int) else f"{value[0]}x{value[1]}"

    def schema(self) -> dict[str, Any]:
        """Return the schema of a number, a string with both, or a list of both."""
        side = {"type": "integer", "minimum": 1, "maximum": MAX_SIDE}
        both = {"type": "array", "items": side, "minItems": 1, "maxItems": 2}
        return {"anyOf": [side, {"type": "string", "pattern": "^[0-9]+([xX][0-9]+)?$"}, both]}


@dataclass(frozen=True)
class Fill(SettingType[Colour]):
    """A colour: one number for grey, or [red, green, blue], 0 to 255 each."""

    def read(self, value: Any) -> Colour:
        """Return (red, green, blue)."""
        parts = [value] * 3 if isinstance(value, int) else value
        whole = isinstance(parts, list | tuple) and len(parts) == 3
        if not whole or not all(type(part) is int and 0 <= part <= 255 for part in parts):
            raise ValueError("must be a whole number from 0 to 255, or three: [red, green, blue]")
        return parts[0], parts[1], parts[2]

    def write(self, value: Colour) -> int | list[int]:
        """Return one number for grey."""
        return value[0] if len(set(value)) == 1 else list(value)

    def schema(self) -> dict[str, Any]:
        """Return the schema of one or three numbers."""
        value = {"type": "integer", "minimum": 0, "maximum": 255}
        return {"anyOf": [value, {"type": "array", "items": value, "minItems": 3, "maxItems": 3}]}


@dataclass(frozen=True)
class Optional(SettingType["T | None"], Generic[T]):
    """What another kind allows, or nothing at all: then it is left out of the recipe."""

    kind: SettingType[T]

    def read(self, value: Any) -> T | None:
        """Return None where there is nothing."""
        return None if value is None else self.kind.read(value)

    def write(self, value: T | None) -> Any:
        """Return None where there is nothing."""
        return None if value is None else self.kind.write(value)

    def schema(self) -> dict[str, Any]:
        """Return the schema of the other kind."""
        return self.kind.schema()


@dataclass(frozen=True)
class Auto(SettingType["T | None"], Generic[T]):
    """What another kind allows, or `auto`: it follows from the other settings, or from the
    sources."""

    kind: SettingType[T]

    def read(self, value: Any) -> T | None:
        """Return None for `auto`."""
        return None if value == "auto" else self.kind.read(value)

    def write(self, value: T | None) -> Any:
        """Return `auto` for None."""
        return "auto" if value is None else self.kind.write(value)

    def schema(self) -> dict[str, Any]:
        """Return the schema of the other kind, and of `auto`."""
        return {"anyOf": [{"const": "auto"}, self.kind.schema()]}


@dataclass(frozen=True)
class Names(SettingType[tuple[str, ...]]):
    """Different names: a list, or one string with commas between them."""

    def read(self, value: Any) -> tuple[str, ...]:
        """Return the names."""
        names = value.split(",") if isinstance(value, str) else value
        listed = isinstance(names, list | tuple) and all(
            isinstance(name, str) and name for name in names
        )
        if not listed or len(set(names)) < len(names):
            raise ValueError("must be different names, such as id,text,label")
        return tuple(names)

    def write(self, value: tuple[str, ...]) -> list[str]:
        """Return a list of them."""
        return list(value)

    def schema(self) -> dict[str, Any]:
        """Return the schema of a list, and of a string."""
        name = {"type": "string", "minLength": 1}
        return {"anyOf": [{"type": "array", "items": name, "uniqueItems": True}, name]}


@dataclass(frozen=True)
class Table(SettingType[str]):
    """A table of anything that TOML and JSON both have, but no times. It is held as JSON with
    sorted keys."""

    def read(self, value: Any) -> str:
        """Return the JSON."""
        if not isinstance(value, dict) or not _is_json(value):
            raise ValueError(
                "must be a table of numbers, strings, true and false, lists and tables, as in "
                "{depth = 18}"
            )
        return json.dumps(value, sort_keys=True)

    def write(self, value: str) -> dict[str, Any]:
        """Return the table."""
        return json.loads(value)  # type: ignore[no-any-return]  # what `read` has written

    def schema(self) -> dict[str, Any]:
        """Return the schema of a table."""
        return {"type": "object"}


@dataclass(frozen=True)
class Parsed(SettingType[T]):
    """A string that `parse` reads, refusing it with a sentence of its own (UsageError), and `str`
    writes.

    `form` is a JSON schema of such strings.
    """

    parse: Callable[[str], T]
    form: dict[str, Any] = dataclasses.field(default_factory=dict)

    def read(self, value: Any) -> T:
        """Return what the string says."""
        return self.parse(Text().read(value))

    def write(self, value: T) -> str:
        """Return the string."""
        return str(value)

    def schema(self) -> dict[str, Any]:
        """Return the schema of the strings."""
        return {"type": "string", **self.form}


PROBABILITY = Number(0.0, 1.0)

C = TypeVar("C", bound="Settings")


class Settings:
    """A dataclass whose fields are settings: read from a recipe by `parse`, written by
    `settings`."""

    name: ClassVar[str]
    what: ClassVar[str] = "setting"
    """What a setting is called in messages."""

    @classmethod
    def unknown_key(cls, key: str) -> str:
        """Say that there is no setting of this name."""
        return unknown(cls.what, key, settings_in(cls))

    @classmethod
    def parse(cls: type[C], **given: Any) -> C:
        """Build from what a recipe or an option says. Raises SettingError, whose key is the one
        that is wrong."""
        made = cls.checked(given, raise_it)
        assert made is not None, "what is wrong was raised"
        return made

    @classmethod
    def checked(cls: type[C], given: dict[str, Any], report: Report) -> C | None:
        """Build from what a recipe says; None if something is wrong, after telling `report` of all
        that is."""
        errors: list[SettingError] = []
        values = cls.values(given, errors.append)
        if not errors:
            try:
                return cls(**values)
            except UsageError as error:  # settings that do not fit each other
                errors.append(_as_setting_error(error).within(owner=cls.name))
        for each in errors:
            report(each)
        return None

    @classmethod
    def values(cls, given: dict[str, Any], report: Report) -> dict[str, Any]:
        """Return those of the given settings that are right, after telling `report` of those that
        are wrong or missing."""
        fields = settings_in(cls)
        for key in given:
            if key not in fields:
                report(SettingError(cls.unknown_key(key), key, owner=cls.name))
        values = {}
        for key, field in fields.items():
            if key in given:
                errors: list[SettingError] = []
                value = field.metadata["kind"].checked(given[key], key, errors.append)
                for error in errors:
                    report(error.within(key, owner=cls.name))
                if not errors:
                    values[key] = value
            elif field.default is dataclasses.MISSING:
                report(SettingError(f"needs {key}", owner=cls.name))
        return values

    def settings(self) -> dict[str, Any]:
        """Return the settings as they are written in a recipe."""
        written = {
            name: field.metadata["kind"].write(getattr(self, name))
            for name, field in settings_in(type(self)).items()
            if not (field.metadata["later"] and getattr(self, name) == field.default)
        }
        return {name: value for name, value in written.items() if value is not None}

    @classmethod
    def properties(cls) -> dict[str, Any]:
        """Return JSON schemas of the settings, by their names."""
        return {name: _schema(field) for name, field in settings_in(cls).items()}

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return a JSON schema of the step in a recipe."""
        needed = [
            name for name, field in settings_in(cls).items() if field.default is dataclasses.MISSING
        ]
        return {
            "type": "object",
            "description": first_line(cls),
            "properties": {"name": {"const": cls.name}, **cls.properties()},
            "required": ["name", *needed],
            "additionalProperties": False,
        }


def settings_in(class_: type[Settings]) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields of a step that are settings, by their names."""
    fields = dataclasses.fields(class_)  # type: ignore[arg-type]  # each step is a dataclass
    return {field.name: field for field in fields}


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a setting as a recipe has it; None where it has none."""
    return (
        None
        if field.default is dataclasses.MISSING
        else field.metadata["kind"].write(field.default)
    )


def first_line(class_: type[Settings]) -> str:
    """Return what a step does, in a sentence: the first paragraph of its docstring."""
    return " ".join((class_.__doc__ or "").strip().split("\n\n")[0].split())


def _schema(field: dataclasses.Field[Any]) -> dict[str, Any]:
    default = default_of(field)
    described = {"description": field.metadata["doc"]} if field.metadata["doc"] else {}
    return {
        **field.metadata["kind"].schema(),
        **described,
        **({} if default is None else {"default": default}),
    }


def setting(
    kind: SettingType[Any], default: Any = dataclasses.MISSING, doc: str = "", later: bool = False
) -> Any:
    """Return a field of a step. `default` is what `kind.read` would return; `doc` is a short
    description of it.

    One that a step got `later` is written only where it is not the default: so the recipes of older
    datasets stay the same.
    """
    return dataclasses.field(default=default, metadata={"kind": kind, "doc": doc, "later": later})


def setting_as(declared: Option, kind: SettingType[Any], later: bool = False) -> Any:
    """Return a field for a setting that has an option too, where its default (`otherwise`) and its
    description are declared."""
    return setting(kind, kind.read(declared.otherwise), declared.help, later)


def _number(value: Any) -> float:
    """Return a number as a float, NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _as_setting_error(error: UsageError) -> SettingError:
    return error if isinstance(error, SettingError) else SettingError(str(error))


def _is_json(value: Any) -> bool:
    """Return whether JSON and TOML both have this value."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return isinstance(value, str | bool | int) or (
        isinstance(value, float) and math.isfinite(value)
    )


SHOWN = 60
"""Most characters of a value in a message."""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _limits(low: float, high: float, above: bool) -> str:
    lower = "" if low == -math.inf else f"over {low:g}" if above else f"{low:g} or more"
    if high == math.inf:
        return f", {lower}" if lower else ""
    if not lower:
        return f", {high:g} or less"
    return f" over {low:g} and at most {high:g}" if above else f" from {low:g} to {high:g}"
