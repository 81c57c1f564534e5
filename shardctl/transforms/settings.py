"""What the settings of a recipe and of its steps may be: how each is read, written, and described
for an editor.

Each field of a step, and of a recipe, is made by `setting(type)` or `setting(type, default)`
(system/options.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from shardctl.errors import UsageError
from shardctl.images.defaults import CENTRE
from shardctl.system.options import Number, ValueType, Whole, declared_in, number_of
from shardctl.system.text import unknown

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    from shardctl.images.geometry import Colour, Size
else:

    def dataclass_transform(**_):
        """Tell type checkers: Python 3.10 does not have this yet, and it does nothing."""
        return lambda made: made


Json = dict[str, Any]
"""An object of JSON: a schema, or settings as a recipe has them."""

MAX_SIDE = 16384
"""Longest side of an output image, in pixels."""


class SettingError(UsageError):
    """A setting of a recipe that is unknown, missing or impossible.

    `key` is its place: names of keys, and numbers of the items of lists (from 0), from the
    outermost in. `problem` is the message without the name of the step, `owner`, that it begins
    with. `others` are the other faults that were found with it.
    """

    def __init__(self, problem: str, *key: str | int, owner: str = "") -> None:
        super().__init__(f"{owner}: {problem}" if owner else problem)
        self.problem, self.key, self.owner = problem, key, owner
        self.others: Sequence[SettingError] = ()

    def within(self, *key: str | int, owner: str = "") -> SettingError:
        """Return this fault alone with its place told from further out. It keeps the owner that it
        has."""
        return SettingError(self.problem, *key, *self.key, owner=self.owner or owner)


def each_of(error: UsageError) -> list[SettingError]:
    """Return the faults that an error tells, one by one."""
    if isinstance(error, SettingError):
        return [error, *error.others]
    return [SettingError(str(error))]


def raise_any(errors: Sequence[SettingError]) -> None:
    """Raise the first of some errors, if there are any, with the others."""
    if errors:
        errors[0].others = errors[1:]
        raise errors[0]


class Checked(ValueType):
    """What `check` returns for a value; it refuses others with ValueError. `form` is their JSON
    schema, and `written` makes what a recipe has."""

    def __init__(
        self,
        check: Callable[[Any], Any],
        form: Json,
        written: Callable[[Any], Any] = lambda value: value,
        python: str = "",
    ) -> None:
        super().__init__(python)
        self._check, self._form, self._written = check, form, written

    def read(self, value: Any) -> Any:
        """Return the checked value."""
        return self._check(value)

    def write(self, value: Any) -> Any:
        """Return it as a recipe has it."""
        return self._written(value)

    def schema(self) -> Json:
        """Return the schema."""
        return self._form


class OrWord(ValueType):
    """A value of a type, or a word that stands for None."""

    def __init__(self, of: ValueType, word: str) -> None:
        super().__init__(of.python)
        self._of, self.absent = of, word

    def read(self, value: Any) -> Any:
        """Return the value, None for the word."""
        try:
            return None if value == self.absent else self._of.read(value)
        except ValueError as error:
            raise ValueError(f"{error}, or {self.absent!r}") from None

    def write(self, value: Any) -> Any:
        """Return the value as a recipe has it."""
        return self._of.write(value)

    def schema(self) -> Json:
        """Return the schema of both."""
        form = self._of.schema()
        return {"anyOf": [*form.get("anyOf", [form]), {"const": self.absent}]}


def list_of(items: Json, least: int | None, most: int | None) -> Json:
    """Return the schema of a list, of any length where there are no limits."""
    length = {} if least is None else {"minItems": least, "maxItems": most}
    return {"type": "array", "items": items, **length}


class NumberList(Number):
    """A list of `count` numbers within limits; None: of any number of them."""

    def __init__(self, count: int | None, low: float = -math.inf, high: float = math.inf) -> None:
        super().__init__(low, high)
        self.count = count

    def read(self, value: Any) -> Any:
        """Return the numbers."""
        listed = isinstance(value, Sequence) and not isinstance(value, str)
        numbers = tuple(map(number_of, value)) if listed else (math.nan,)
        if len(numbers) != (self.count or len(numbers)) or not all(map(self.fits, numbers)):
            count = "" if self.count is None else f"{self.count} "
            raise ValueError(f"must be a list of {count}numbers{self.limits()}")
        return numbers

    def write(self, value: tuple[float, ...]) -> list[float]:
        """Return a list of them."""
        return list(value)

    def schema(self) -> Json:
        """Return the schema of such a list."""
        return list_of(super().schema(), self.count, self.count)


class Span(NumberList):
    """Two rising numbers within limits. One number n alone stands for what `alone` says.

    `fixed`: n to n. `around`: `centre` - n to `centre` + n, not beyond `low`. `none`: it is not
    allowed.
    """

    def __init__(
        self,
        low: float = -math.inf,
        high: float = math.inf,
        above: bool = False,
        alone: str = "none",
        centre: float = 0.0,
    ) -> None:
        super().__init__(2, low, high)
        self.above, self.alone, self.centre = above, alone, centre

    def read(self, value: Any) -> Any:
        """Return the two numbers."""
        one = number_of(value)
        if self.alone == "fixed" and math.isfinite(one):
            value = one, one
        if self.alone == "around" and 0 <= one < math.inf:
            value = max(self.low, self.centre - one), self.centre + one
        pair = [number_of(each) for each in value] if isinstance(value, list | tuple) else []
        if len(pair) != 2 or not all(map(self.fits, pair)) or pair[0] > pair[1]:
            alone = "" if self.alone == "none" else "one number, or "
            raise ValueError(f"must be {alone}two rising numbers{self.limits()}")
        return pair[0], pair[1]

    def schema(self) -> Json:
        """Return the schema of a list of two numbers, and of one number where that is allowed."""
        pair = super().schema()
        one = pair["items"] if self.alone == "fixed" else {"type": "number"}
        return pair if self.alone == "none" else {"anyOf": [one, pair]}


class Sides(ValueType):
    """A size in pixels: 224, or 320x240 for width x height. `pair` makes one number both sides."""

    python = "int | str | tuple[int, int]"

    def __init__(self, pair: bool = False) -> None:
        self.pair = pair

    def take(self, name: str, value: Any) -> Any:
        """Return width and height as a text."""
        return "x".join(map(str, value)) if isinstance(value, tuple | list) else value

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
        return sides[0] if len(sides) == 1 and not self.pair else (sides[0], sides[-1])

    def write(self, value: int | Size) -> int | str:
        """Return 224, or 320x240."""
        return value if isinstance(value, int) else f"{value[0]}x{value[1]}"

    def schema(self) -> Json:
        """Return the schema of a number, a string with both, or a list of both."""
        side = Whole(1, MAX_SIDE).schema()
        text = {"type": "string", "pattern": "^[0-9]+([xX][0-9]+)?$"}
        return {"anyOf": [side, text, list_of(side, 1, 2)]}


def _colour(value: Any) -> Colour:
    parts = [value] * 3 if isinstance(value, int) else value
    whole = isinstance(parts, list | tuple) and len(parts) == 3
    if not whole or not all(type(part) is int and 0 <= part <= 255 for part in parts):
        raise ValueError("must be a whole number from 0 to 255, or three: [red, green, blue]")
    return parts[0], parts[1], parts[2]


_BYTE = Whole(0, 255).schema()

COLOUR = Checked(
    _colour,
    {"anyOf": [_BYTE, list_of(_BYTE, 3, 3)]},
    lambda colour: colour[0] if len(set(colour)) == 1 else list(colour),
)
"""A colour: one number for grey, or [red, green, blue], 0 to 255 each."""


def _names(value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    listed = isinstance(names, list | tuple) and all(
        isinstance(name, str) and name for name in names
    )
    if not listed or len(set(names)) < len(names):
        raise ValueError("must be different names, such as id,text,label")
    return tuple(names)


_NAME = {"type": "string", "minLength": 1}

NAMES = Checked(
    _names,
    {"anyOf": [{"type": "array", "items": _NAME, "uniqueItems": True}, _NAME]},
    list,
    "str | Sequence[str]",
)
"""Different names: a list, or one string with commas between them."""


def _table(value: Any) -> str:
    if not isinstance(value, dict) or not _is_json(value):
        raise ValueError("must be a table of plain values, as in {depth = 18}")
    return json.dumps(value, sort_keys=True)


TABLE = Checked(_table, {"type": "object"}, json.loads)
"""A table of anything that TOML and JSON both have, but no times. It is held as JSON with sorted
keys."""

PROBABILITY = Number(0.0, 1.0)


class KeptShare(ValueType):
    """A share of an area from 0 to 1, or `center`."""

    python = "float | str"

    def of_text(self, given: str) -> float | str:
        """Return a number where the text is one."""
        try:
            return float(given)
        except ValueError:
            return given

    def read(self, value: Any) -> float | str:
        """Return the number, or the word."""
        try:
            return str(value) if value == CENTRE else PROBABILITY.read(value)
        except ValueError:
            raise ValueError(f"must be a number from 0 to 1, or {CENTRE}") from None

    def schema(self) -> dict[str, Any]:
        """Return the schema of both."""
        return {"anyOf": [PROBABILITY.schema(), {"const": CENTRE}]}


C = TypeVar("C", bound="Settings")


@dataclass_transform(frozen_default=True)
class Settings:
    """A frozen dataclass whose fields are settings: read from a recipe by `parse`, written by
    `settings`. A class with a name becomes one: `class Crop(ViewTransform, step="crop")`."""

    name: ClassVar[str] = ""
    what: ClassVar[str] = "setting"
    """What a setting is called in messages."""

    # not called name: before Python 3.11, ABCMeta has an argument of this name
    def __init_subclass__(cls, step: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if step:
            cls.name = step
            dataclass(frozen=True)(cls)

    @classmethod
    def unknown_key(cls, key: str) -> str:
        """Say that there is no setting of this name."""
        return unknown(cls.what, key, declared_in(cls))

    @classmethod
    def parse(cls: type[C], **given: Any) -> C:
        """Build from what a recipe or an option says. Raises SettingError with all that is
        wrong."""
        values, errors = cls.values(given)
        raise_any(errors)
        try:
            return cls(**values)
        except UsageError as error:  # settings that do not fit each other
            raise_any([each.within(owner=cls.name) for each in each_of(error)])
            raise

    @classmethod
    def values(cls, given: Json) -> tuple[Json, list[SettingError]]:
        """Return those of the given settings that are right, and what is wrong or missing."""
        declared = declared_in(cls)
        errors = [SettingError(cls.unknown_key(key), key) for key in given if key not in declared]
        values = {}
        for key, each in declared.items():
            if key in given:
                value = given[key]
                try:
                    values[key] = (
                        None if value is None and each.default is None else each.type.read(value)
                    )
                except ValueError as error:
                    errors.append(SettingError(f"{key} {error}; it is {_shown(value)}", key))
                except UsageError as error:
                    errors += [fault.within(key) for fault in each_of(error)]
            elif each.default is MISSING:
                errors.append(SettingError(f"needs {key}"))
        return values, [error.within(owner=cls.name) for error in errors]

    def settings(self) -> Json:
        """Return the settings as they are written in a recipe."""
        return {name: value for name, value in self.to_json().items() if value is not None}

    def to_json(self) -> Json:
        """Return the settings as they are written in a recipe, None for those that are left out."""
        return {
            name: each.write(getattr(self, name))
            for name, each in declared_in(type(self)).items()
            if not (each.omit_default and getattr(self, name) == each.default)
        }

    @classmethod
    def properties(cls) -> Json:
        """Return JSON schemas of the settings, by their names."""
        found = {}
        for name, each in declared_in(cls).items():
            more = {"description": each.help or None, "default": each.written_default}
            said = {key: value for key, value in more.items() if value is not None}
            found[name] = {**each.type.schema(), **said}
        return found

    @classmethod
    def json_schema(cls) -> Json:
        """Return a JSON schema of the step in a recipe."""
        needed = [name for name, each in declared_in(cls).items() if each.default is MISSING]
        return {
            "type": "object",
            "description": first_line(cls),
            "properties": {"name": {"const": cls.name}, **cls.properties()},
            "required": ["name", *needed],
            "additionalProperties": False,
        }


def first_line(class_: type[Settings]) -> str:
    """Return what a step does, in a sentence: the first paragraph of its docstring."""
    return " ".join((class_.__doc__ or "").strip().split("\n\n")[0].split())


def _is_json(value: Any) -> bool:
    """Return whether JSON and TOML both have this value."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return isinstance(value, str | bool | int) or (
        isinstance(value, float) and math.isfinite(value)
    )


def _shown(value: Any) -> str:
    """Return a value with 60 characters at most."""
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def shown_beside(value: float, limit: float) -> str:
    """Return a number with 4 digits, or as many as show on which side of a limit it is."""
    if isinstance(value, int) or value == limit:
        return f"{value:.15g}" if isinstance(value, float) else str(value)
    texts = (f"{value:.{digits}g}" for digits in range(4, 18))
    return next(
        text
        for text in texts
        if (float(text) < limit) == (value < limit) and (float(text) > limit) == (value > limit)
    )
