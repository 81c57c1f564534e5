"""What the settings of a step may be: how each is read from a recipe, written into one, and described for an editor.

A step is a frozen dataclass. Each of its fields is made by `setting(kind)` or `setting(kind, default)`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from shardctl.errors import UsageError
from shardctl.geometry import Colour, Size

MAX_SIDE = 16384
"""Longest side of an output image, in pixels."""

T = TypeVar("T")


class SettingError(UsageError):
    """A setting of a recipe that is unknown, missing or impossible.

    `key` is its place: names of keys, and numbers of the items of lists (from 0), from the outermost in.
    """

    def __init__(self, message: str, *key: str | int) -> None:
        super().__init__(message)
        self.key = key

    def within(self, *key: str | int) -> SettingError:
        """Return the same error with its place told from further out."""
        return SettingError(str(self), *key, *self.key)


class Kind(ABC, Generic[T]):
    """What a setting may be. `read` takes what a recipe or an option says, `write` gives what a recipe has."""

    @abstractmethod
    def read(self, value: Any) -> T:
        """Return the checked value. Raises ValueError, saying what it must be."""

    def write(self, value: T) -> Any:
        """Return the value as a recipe has it."""
        return value

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """Return a JSON schema of what a recipe may have here."""


@dataclasses.dataclass(frozen=True)
class Number(Kind[float]):
    """A number within limits, both of which are allowed unless `above` says that the lower one is not."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False

    def read(self, value: Any) -> float:
        """Return it as a float."""
        try:
            number = float(value) if not isinstance(value, bool) else math.nan
        except (TypeError, ValueError):
            number = math.nan
        if not (self.low <= number <= self.high and math.isfinite(number)) or (self.above and number == self.low):
            raise ValueError(f"must be a number{_limits(self.low, self.high, self.above)}")
        return number

    def schema(self) -> dict[str, Any]:
        """Return the schema of a number."""
        lower = {"exclusiveMinimum" if self.above else "minimum": self.low} if math.isfinite(self.low) else {}
        return {"type": "number", **lower, **({"maximum": self.high} if math.isfinite(self.high) else {})}


@dataclasses.dataclass(frozen=True)
class Whole(Kind[int]):
    """A whole number within limits, both of which are allowed."""

    low: int
    high: int

    def read(self, value: Any) -> int:
        """Return it as an int."""
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise ValueError(f"must be a whole number from {self.low} to {self.high}")
        return value

    def schema(self) -> dict[str, Any]:
        """Return the schema of a whole number."""
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclasses.dataclass(frozen=True)
class Flag(Kind[bool]):
    """True or false."""

    def read(self, value: Any) -> bool:
        """Return it."""
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return value

    def schema(self) -> dict[str, Any]:
        """Return the schema of a boolean."""
        return {"type": "boolean"}


@dataclasses.dataclass(frozen=True)
class Word(Kind[str]):
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


@dataclasses.dataclass(frozen=True)
class Text(Kind[str]):
    """Any string."""

    def read(self, value: Any) -> str:
        """Return it."""
        if not isinstance(value, str):
            raise ValueError("must be a string")
        return value

    def schema(self) -> dict[str, Any]:
        """Return the schema of a string."""
        return {"type": "string"}


@dataclasses.dataclass(frozen=True)
class Span(Kind[tuple[float, float]]):
    """Two rising numbers within limits. One number n alone stands for what `alone` says.

    `fixed`: n to n. `around`: `centre` - n to `centre` + n, not beyond `low`. `none`: it is not allowed.
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    alone: str = "none"
    centre: float = 0.0

    def read(self, value: Any) -> tuple[float, float]:
        """Return the two numbers."""
        if self.alone != "none" and isinstance(value, int | float) and not isinstance(value, bool):
            value = self._of_one(float(value))
        try:
            first, last = (float(part) for part in value) if not isinstance(value, str) else (math.nan, math.nan)
        except (TypeError, ValueError):
            first = last = math.nan
        finite = math.isfinite(first) and math.isfinite(last)
        if not finite or not self.low <= first <= last <= self.high or (self.above and first == self.low):
            one = "" if self.alone == "none" else "one number, or "
            raise ValueError(f"must be {one}two rising numbers{_limits(self.low, self.high, self.above)}")
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
        return pair if self.alone == "none" else {"anyOf": [number if self.alone == "fixed" else {"type": "number"}, pair]}


@dataclasses.dataclass(frozen=True)
class WholeSpan(Kind[tuple[int, int]]):
    """Two rising whole numbers within limits, or one number, which is both."""

    low: int
    high: int

    def read(self, value: Any) -> tuple[int, int]:
        """Return the two numbers."""
        parts = value if isinstance(value, list | tuple) else [value] * 2
        if len(parts) != 2 or any(type(part) is not int for part in parts) or not self.low <= parts[0] <= parts[1] <= self.high:
            raise ValueError(f"must be one whole number, or two rising ones, from {self.low} to {self.high}")
        return parts[0], parts[1]

    def write(self, value: tuple[int, int]) -> int | list[int]:
        """Return one number where both are the same."""
        return value[0] if value[0] == value[1] else list(value)

    def schema(self) -> dict[str, Any]:
        """Return the schema of a number, or a list of two."""
        number = Whole(self.low, self.high).schema()
        return {"anyOf": [number, {"type": "array", "items": number, "minItems": 2, "maxItems": 2}]}


@dataclasses.dataclass(frozen=True)
class Numbers(Kind[tuple[float, ...]]):
    """A list of `count` numbers within limits (None: of any). One of them alone stands for all where `repeat` says so."""

    count: int | None
    low: float = -math.inf
    high: float = math.inf
    repeat: bool = False

    def read(self, value: Any) -> tuple[float, ...]:
        """Return the numbers."""
        number = Number(self.low, self.high)
        if self.repeat and self.count and isinstance(value, int | float):
            value = [value] * self.count
        count = "" if self.count is None else f"{self.count} "
        problem = f"must be a list of {count}numbers{_limits(self.low, self.high, False)}"
        if isinstance(value, str) or not isinstance(value, Sequence) or (self.count is not None and len(value) != self.count):
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


@dataclasses.dataclass(frozen=True)
class Sides(Kind["int | Size"]):
    """A size in pixels: 224, or 320x240 for width x height. `pair` makes one number both sides."""

    pair: bool = False

    def read(self, value: Any) -> int | Size:
        """Return one number, or (width, height)."""
        parts = str(value).lower().split("x") if not isinstance(value, list | tuple) else [str(part) for part in value]
        sides = [int(part) if part.isdecimal() and len(part) < 9 else 0 for part in parts]
        if len(sides) not in (1, 2) or any(not 1 <= side <= MAX_SIDE for side in sides):
            raise ValueError(f"must be 224, or 320x240 for width x height, with sides of 1 to {MAX_SIDE} pixels")
        if len(sides) == 1:
            return (sides[0], sides[0]) if self.pair else sides[0]
        return sides[0], sides[1]

    def write(self, value: int | Size) -> int | str:
        """Return 224, or 320x240."""
        if not isinstance(value, int):
            return value[0] if self.pair and value[0] == value[1] else f"{value[0]}x{value[1]}"
        return value

    def schema(self) -> dict[str, Any]:
        """Return the schema of a number, or a string with both."""
        side = {"type": "integer", "minimum": 1, "maximum": MAX_SIDE}
        return {"anyOf": [side, {"type": "string", "pattern": "^[0-9]+(x[0-9]+)?$"}]}


@dataclasses.dataclass(frozen=True)
class Fill(Kind[Colour]):
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


@dataclasses.dataclass(frozen=True)
class Optional(Kind["T | None"], Generic[T]):
    """What another kind allows, or nothing at all: then it is left out of the recipe."""

    kind: Kind[T]

    def read(self, value: Any) -> T | None:
        """Return None where there is nothing."""
        return None if value is None else self.kind.read(value)

    def write(self, value: T | None) -> Any:
        """Return None where there is nothing."""
        return None if value is None else self.kind.write(value)

    def schema(self) -> dict[str, Any]:
        """Return the schema of the other kind."""
        return self.kind.schema()


PROBABILITY = Number(0.0, 1.0)


class Settings:
    """A dataclass whose fields are settings: read from a recipe by `parse`, written by `settings`."""

    name: ClassVar[str]

    @classmethod
    def parse(cls, **given: Any) -> Any:
        """Build from what a recipe or an option says. Raises SettingError, whose key is the one that is wrong."""
        fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # each step is a dataclass
        for key in given:
            if key not in fields:
                raise SettingError(f"{cls.name}: {unknown('setting', key, fields)}", key)
        values = {}
        for key, field in fields.items():
            if key not in given:
                if field.default is dataclasses.MISSING:
                    raise SettingError(f"{cls.name} needs {key}", key)
                continue
            try:
                values[key] = field.metadata["kind"].read(given[key])
            except SettingError as error:
                raise error.within(key) from None
            except ValueError as error:
                raise SettingError(f"{cls.name}: {key} {error}; it is {given[key]!r}", key) from None
        return cls(**values)

    def settings(self) -> dict[str, Any]:
        """Return the settings as they are written in a recipe."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # each step is a dataclass
        values = {field: getattr(self, field.name) for field in fields}
        written = {
            field.name: field.metadata["kind"].write(value)
            for field, value in values.items()
            if not (field.metadata["later"] and value == field.default)
        }
        return {name: value for name, value in written.items() if value is not None}

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return a JSON schema of the step in a recipe."""
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # each step is a dataclass
        properties = {field.name: field.metadata["kind"].schema() | {"description": field.metadata["doc"]} for field in fields}
        needed = [field.name for field in fields if field.default is dataclasses.MISSING]
        return {
            "type": "object",
            "description": (cls.__doc__ or "").strip().splitlines()[0],
            "properties": {"name": {"const": cls.name}, **properties},
            "required": ["name", *needed],
            "additionalProperties": False,
        }


def setting(kind: Kind[Any], default: Any = dataclasses.MISSING, doc: str = "", later: bool = False) -> Any:
    """Return a field of a step. `default` is what `kind.read` would return; `doc` is a short description of it.

    One that a step got `later` is written only where it is not the default: so the recipes of older datasets stay the same.
    """
    return dataclasses.field(default=default, metadata={"kind": kind, "doc": doc, "later": later})


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Say that there is no such name, which one is nearest, and which there are."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{what} {str(name)!r} is not known; {hint}there {'is' if len(names) == 1 else 'are'} {', '.join(names) or 'none'}"


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _limits(low: float, high: float, above: bool) -> str:
    lower = "" if low == -math.inf else f"over {low:g}" if above else f"{low:g} or more"
    if high == math.inf:
        return f", {lower}" if lower else ""
    if not lower:
        return f", {high:g} or less"
    return f" over {low:g} and at most {high:g}" if above else f" from {low:g} to {high:g}"
