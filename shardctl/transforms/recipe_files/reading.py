"""A recipe file: what it says, and what is wrong with it, each with its place."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from shardctl.errors import InputError, UsageError
from shardctl.system.files import near_path, read_named
from shardctl.system.text import printable, similar
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.recipe_files.places import Key, TextPlace, nearest_place, places
from shardctl.transforms.recipe_files.ready import MARK, ready_recipes, recipe_file
from shardctl.transforms.settings import SettingError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PLACE_IN_MESSAGE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with a recipe file. `line` and `column` count from 1; None where they
    are not known.

    `key` is the way to the setting, such as `transform[1].brightness`; empty for faults of TOML.
    """

    file: str
    line: int | None
    column: int | None
    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}{f':{self.line}' if self.line else ''}: {self.message}"


class TomlError(UsageError):
    """A file that is no TOML, or no text in UTF-8."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(frozen=True)
class RecipeFile:
    """A recipe file that was read. `recipe` is plain data, not yet checked."""

    shown: str
    text: str
    recipe: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> RecipeFile:
        """Read a file, or a ready recipe by its @NAME. Raises TomlError, UsageError, and OSError if
        it cannot be read."""
        shown, data = printable(str(path)), read_named(recipe_file(path))
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise TomlError(
                Problem(
                    shown, line, None, "", "not a TOML file: there are bytes that are not UTF-8"
                )
            ) from None
        try:
            return cls(shown, text, tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise TomlError(_toml_problem(shown, text, str(error))) from None
        except RecursionError:
            raise TomlError(
                Problem(
                    shown,
                    None,
                    None,
                    "",
                    "not a recipe: there are lists in lists, too deep to be read",
                )
            ) from None

    def problem(self, error: SettingError) -> Problem:
        """Return what a wrong setting of the file is to people: where it is, and in which step."""
        place = nearest_place(self._places, error.key)
        step = ", ".join(steps_to(self.recipe, error.key))
        message = f"{step}: {error.problem}" if step else error.problem
        line, column = (place.line, place.column) if place else (None, None)
        return Problem(self.shown, line, column, shown_key(error.key), printable(message))

    @cached_property
    def _places(self) -> dict[Key, TextPlace]:
        try:
            return places(self.text)
        except (ValueError, RecursionError):
            # TOML that this module does not know: problems have no lines
            return {}


def load_recipe(path: Path) -> dict[str, Any]:
    """Read a recipe file, or a ready recipe by its @NAME, as plain data.

    Raises UsageError, naming the line, if a value is wrong, and InputError if there is no such
    file.

    Whether the values fit each other is not looked at: options may still change some.
    """
    shown = printable(str(path))
    try:
        file = RecipeFile.read(path)
    except FileNotFoundError:
        raise no_such_recipe(path) from None
    except OSError as error:
        raise InputError(f"{shown}: cannot be read ({error.strerror})") from error
    errors: list[SettingError] = []
    Recipe.values(file.recipe, errors.append)
    if errors:
        more = (
            f" (and {len(errors) - 1} more: shardctl recipe check {shown})"
            if len(errors) > 1
            else ""
        )
        raise UsageError(f"{file.problem(errors[0])}{more}")
    return file.recipe


def no_such_recipe(path: Path) -> InputError:
    """Return the error for a recipe file that does not exist. It suggests one beside it with a
    similar name."""
    ready = similar(path.stem, ready_recipes())
    near = near_path(path) or (f"; did you mean @{ready[0].removeprefix(MARK)}?" if ready else "")
    listed = "; `shardctl recipe list` lists those that are ready"
    return InputError(f"{printable(str(path))}: no such recipe file{near or listed}")


def steps_to(recipe: Any, key: Key) -> Iterator[str]:
    """Yield the steps on the way to a setting, from the outermost in: "step 2 (choice)", "step 1
    (hflip)"."""
    at = recipe
    for part in key if key[:1] == ("transform",) else ():
        try:
            at = at[part]
        except (LookupError, TypeError):
            return
        if isinstance(part, int):
            name = at.get("name") if isinstance(at, dict) else None
            yield f"step {part + 1}{f' ({name})' if isinstance(name, str) else ''}"


def shown_key(key: Iterable[str | int]) -> str:
    """Return the way to a setting as people write it: transform[1].brightness, with numbers from
    0."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return printable(text)


def _toml_problem(shown: str, text: str, message: str) -> Problem:
    found = _PLACE_IN_MESSAGE.search(message)
    line = column = None
    if found and found[1]:
        line, column = int(found[1]), int(found[2])
    elif found:
        line = text.rstrip("\n").count("\n") + 1
    hint = _unquoted(text.split("\n")[line - 1]) if line else ""
    if shown.endswith((".yaml", ".yml", ".json")):
        hint = "; recipes are TOML files: `shardctl recipe show @imagenet` prints one"
    return Problem(shown, line, column, "", printable(f"not a TOML file: {message}{hint}"))


_UNQUOTED = re.compile(r"\s*([\w-]+)\s*=\s*([A-Za-z][^\s\"'\[\]{}#,]*)\s*(#.*)?")


def _unquoted(line: str) -> str:
    """Return how a line is written whose value is a text without quotes; "" for other lines."""
    match = _UNQUOTED.fullmatch(line)
    return (
        f'; texts need quotes: {match[1]} = "{match[2]}"'
        if match and match[2] not in ("true", "false")
        else ""
    )
