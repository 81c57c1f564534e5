"""A recipe file: what it says, and what is wrong with it, each with its place; and the recipe of a
dataset as a file, ready to be used again."""

from __future__ import annotations

import json
import re
import shlex
import sys
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, time
from functools import cached_property
from pathlib import Path
from typing import Any

from shardctl.errors import DatasetError, InputError, InstallError, UsageError
from shardctl.format.manifest import Manifest
from shardctl.images.geometry import Size
from shardctl.sources.format_table import Subject
from shardctl.system.files import near_path, read_named
from shardctl.system.folders import LocalFolder
from shardctl.system.options import without_effect
from shardctl.system.text import did_you_mean, printable, quoted
from shardctl.transforms.base import EVERYTHING, ImageTransform, SampleTransform, Transform
from shardctl.transforms.recipe import KEYS, Recipe
from shardctl.transforms.recipe_files.ready import ready_recipes, recipe_file
from shardctl.transforms.settings import Json, SettingError, each_of, first_line
from shardctl.transforms.table import definitions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

read_toml = tomllib.loads

Key = tuple[str | int, ...]
"""The way to a value: names of keys, and numbers of the items of lists (from 0), from the outermost
in."""

TextPlace = tuple[int, int]
"""A place in a text: line and column, in characters, from 1."""

_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{1,2}(?!"))?'
    r"|'''.*?'''(?:'{1,2}(?!'))?"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*|[\[\]{}=,.\n]"
    r"|[^\s\[\]{}=,.\"'#]+",
    re.DOTALL,
)
"""A string, a comment, a mark, or something else without blanks."""


def places(text: str) -> dict[Key, TextPlace]:
    """Return where every key and every item of a list begins, in a text that tomllib has read
    without an error.

    The place of a table is that of its header, or of the first key that names it.
    """
    found: dict[Key, int] = {}
    tables: dict[Key, int] = {}  # how many tables of a list of tables there are so far
    tokens = [token for token in _TOKEN.finditer(f"{text}\n") if token[0][0] != "#"][::-1]

    def skipped(mark: str) -> bool:
        """Drop the next token if it is this mark, and return whether it was."""
        is_next = tokens[-1][0] == mark
        if is_next:
            tokens.pop()
        return is_next

    def names() -> tuple[str, ...]:
        """Read a key, which may have several parts with dots between them."""
        (name,) = tomllib.loads(f"{tokens.pop()[0]} = 0")
        return (name, *names()) if skipped(".") else (name,)

    def pair(table: Key) -> None:
        start, said = tokens[-1].start(), names()
        for length in range(1, len(said) + 1):
            found.setdefault((*table, *said[:length]), start)
        tokens.pop()  # =
        value((*table, *said))

    def value(key: Key) -> None:
        end = {"[": "]", "{": "}"}.get(tokens[-1][0])
        if end is None:
            while tokens[-1][0] not in (",", "]", "}", "\n"):
                tokens.pop()
            return
        tokens.pop()
        number = 0
        while not skipped(end):
            if skipped("\n") or skipped(","):
                continue
            if end == "}":
                pair(key)
                continue
            item = (*key, number)
            found[item] = tokens[-1].start()
            value(item)
            number += 1

    table: Key = ()
    while tokens:
        if skipped("\n"):
            continue
        start = tokens[-1].start()
        if not skipped("["):
            pair(table)
            continue
        double, table = skipped("["), ()
        said = names()
        for number, name in enumerate(said, 1):
            table = (*table, name)
            found.setdefault(table, start)
            if double and number == len(said):
                tables[table] = tables.get(table, 0) + 1
            if table in tables:
                table = (*table, tables[table] - 1)
                found.setdefault(table, start)
        del tokens[-1 - double :]  # ] or ]]
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    lines = {key: bisect_right(starts, offset) for key, offset in found.items()}
    return {key: (line, found[key] - starts[line - 1] + 1) for key, line in lines.items()}


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


@dataclass(frozen=True)
class RecipeFile:
    """A recipe file that was read. `recipe` is plain data, not yet checked."""

    shown: str
    text: str
    recipe: Json

    @classmethod
    def read(cls, path: Path) -> RecipeFile | Problem:
        """Read a file, or a ready recipe by its @NAME; a Problem if it is no TOML, or no text in
        UTF-8. Raises UsageError, InputError if it cannot be read."""
        shown = printable(path)
        try:
            data = read_named(recipe_file(path))
            text = data.decode("utf-8-sig")
            return cls(shown, text, tomllib.loads(text))
        except FileNotFoundError:
            near = near_path(path) or did_you_mean(shown, ready_recipes())
            near = near or "; `shardctl recipe list` lists those that are ready"
            raise InputError(f"{shown}: no such recipe file{near}") from None
        except OSError as error:
            raise InputError(f"{shown}: cannot be read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            why = "not a TOML file: there are bytes that are not UTF-8"
            return Problem(shown, line, None, "", why)
        except tomllib.TOMLDecodeError as error:
            return _toml_problem(shown, text, str(error))
        except RecursionError:
            why = "not a recipe: there are lists in lists, too deep to be read"
            return Problem(shown, None, None, "", why)

    def problem(self, error: SettingError) -> Problem:
        """Return what a wrong setting of the file is to people: where it is, and in which step."""
        # its own, or that of the innermost table or list around it that has one
        ways = (error.key[:length] for length in range(len(error.key), 0, -1))
        line, column = next(
            (self._places[way] for way in ways if way in self._places), (None, None)
        )
        at: Any = self.recipe
        steps, way = [], ""  # "step 2 (choice)", "step 1 (hflip)"; transform[1].brightness
        for part in error.key:
            try:
                at = at[part]
            except (LookupError, TypeError):
                at = None
            if isinstance(part, str):
                way += f".{part}" if way else part
                continue
            way += f"[{part}]"
            if at is not None and error.key[0] in ("transform", "reading"):
                name = at.get("name") if isinstance(at, dict) else None
                steps.append(f"step {part + 1}{f' ({name})' if isinstance(name, str) else ''}")
        message = ": ".join((*filter(None, [", ".join(steps)]), error.problem))
        return Problem(self.shown, line, column, printable(way), printable(message))

    @cached_property
    def _places(self) -> dict[Key, TextPlace]:
        try:
            return places(self.text)
        except (ValueError, LookupError, RecursionError):
            # TOML that this module does not know: problems have no lines
            return {}


def load_recipe(path: Path) -> Json:
    """Read a recipe file, or a ready recipe by its @NAME, as plain data.

    Raises UsageError, naming the line, if a value is wrong, and InputError if there is no such
    file.

    Whether the values fit each other is not looked at: options may still change some.
    """
    file = RecipeFile.read(path)
    if isinstance(file, Problem):
        raise UsageError(str(file))
    _, errors = Recipe.values(file.recipe)
    if errors:
        more = f" (and {len(errors) - 1} more: shardctl recipe check {file.shown})"
        raise UsageError(f"{file.problem(errors[0])}{more if len(errors) > 1 else ''}")
    return file.recipe


def named_recipe(named: Mapping[str, Any] | str | Path | None) -> tuple[Json, str]:
    """Return a recipe, or that of the file that is named, as plain data, and what messages call it.
    Raises what `load_recipe` does."""
    if isinstance(named, str | Path):
        return load_recipe(Path(named)), printable(named)
    return dict(named or {}), "the recipe"


def _toml_problem(shown: str, text: str, message: str) -> Problem:
    found = _PLACE_IN_MESSAGE.search(message)
    line = column = None
    if found and found[1]:
        line, column = int(found[1]), int(found[2])
    elif found:
        line = text.rstrip("\n").count("\n") + 1
    hint = '; a line is as in store = "raw", and `shardctl recipe show @imagenet` prints a file'
    return Problem(shown, line, column, "", printable(f"not a TOML file: {message}{hint}"))


# --- what is wrong with a file, and what it does ---


@dataclass(frozen=True)
class StepSummary:
    """A step of a recipe. `settings` has all of them, defaults too; `does` is a sentence.

    `moves` are the annotations that stay right beside an image that it has changed, None for what
    is not a step of images. `size` is the (width, height) of every image after it, where the recipe
    fixes it.
    """

    name: str
    settings: Json
    does: str
    random: bool
    samples: int
    moves: tuple[str, ...] | None
    size: Size | None


@dataclass(frozen=True)
class Check:
    """A recipe file that was checked. `recipe` is None if there are problems."""

    file: str
    problems: tuple[Problem, ...]
    recipe: Recipe | None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @property
    def steps(self) -> tuple[StepSummary, ...]:
        """What the recipe does, step by step."""
        return summaries(self.recipe.transform) if self.recipe else ()

    @property
    def reading(self) -> tuple[StepSummary, ...]:
        """What a loader does, step by step."""
        return summaries(self.recipe.reading) if self.recipe else ()

    @property
    def moves(self) -> tuple[str, ...]:
        """The annotations that all steps of images can move."""
        moved = [step.moves for step in self.steps if step.moves is not None]
        return tuple(sorted(EVERYTHING.intersection(*moved)))


_OF_IMAGES = {*Subject} - {Subject.FIELDS, Subject.LABELS_FILES, Subject.CSV, Subject.TEXT}

_LACKED: dict[str, set[Subject]] = {"image": set(), "text": _OF_IMAGES, "table": _OF_IMAGES}
"""What no inputs of a kind have."""


def check_recipe(path: Path, imports: bool = False) -> Check:
    """Find everything that is wrong with a recipe file. `imports` says whether to import the
    functions that it names.

    Raises InputError if there is no such file, or it cannot be read.
    """
    file = RecipeFile.read(path)
    if isinstance(file, Problem):
        return Check(file.file, (file,), None)
    recipe, errors = Recipe.examined(file.recipe)
    if recipe is not None:
        there = {*Subject} - _LACKED.get(recipe.kind, set())
        for key, problem in without_effect(recipe, there):
            errors.append(SettingError(f"{key} {problem}", key))
    if recipe is not None and imports:
        for place, step in enumerate(recipe.transform):
            try:
                step.loaded()
            except InstallError as error:
                errors.append(SettingError(str(error), "transform", place))
            except UsageError as error:
                errors += [each.within("transform", place) for each in each_of(error)]
    problems = sorted(
        (file.problem(error) for error in errors),
        key=lambda problem: (problem.line or 0, problem.column or 0),
    )
    return Check(file.shown, tuple(problems), recipe if not problems else None)


def summaries(steps: tuple[Transform, ...]) -> tuple[StepSummary, ...]:
    """Return what each step does."""
    found: list[StepSummary] = []
    size: Size | None = None
    for step in steps:
        moves = None
        if isinstance(step, ImageTransform):
            size, moves = step.output_size(size), tuple(sorted(step.moves))
        elif isinstance(step, SampleTransform):
            size = None  # a person's function may change it
        found.append(
            StepSummary(
                step.name,
                step.settings(),
                first_line(type(step)),
                step.random,
                step.samples,
                moves,
                size,
            )
        )
    return tuple(found)


def recipe_schema() -> Json:
    """Return the JSON schema: draft 7, which the TOML plugins of editors know."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "shardctl recipe",
        "description": "What is done to each input of a dataset, and how it is stored.",
        "type": "object",
        "properties": Recipe.properties(),
        "additionalProperties": False,
        "definitions": definitions(),
    }


# --- the recipe of a dataset as a file ---


def show_recipe(root: Path) -> Json:
    """Return what made the dataset in `root`. Raises DatasetError if it has no recipe.

    `recipe` has the keys that are given, `toml` is a recipe file with them. `options` are those of
    `convert` that are no part of a recipe. `misfits` says what this version of shardctl would
    refuse.
    """
    shown = printable(root)
    manifest = Manifest.load(LocalFolder(root))
    recipe = {
        key: value for key, value in manifest.recipe.items() if value is not None and value != []
    }
    steps = recipe.get("transform", [])
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise DatasetError(f"{shown}: its recipe has steps that are not tables")
    if not manifest.sources:
        raise DatasetError(f"{shown}: was written from Python (shardctl.write), with no recipe")
    _, errors = Recipe.examined(recipe)
    options = _options(manifest.settings)
    again = ["convert", shlex.join(manifest.sources), "DST --recipe FILE", *options]
    header = (
        f"# The recipe of {shown}, made {printable(manifest.created)} by shardctl "
        f"{printable(manifest.shardctl_version)}.\n"
        f"# Again: shardctl {printable(' '.join(again))}\n\n"
    )
    return {
        "dataset": shown,
        "created": manifest.created,
        "shardctl_version": manifest.shardctl_version,
        "recipe": recipe,
        "options": options,
        "misfits": [str(error) for error in errors],
        "toml": header + recipe_toml(recipe),
    }


OPTIONS = {
    "boxes": "boxes_outside",
    "task": "yolo_task",
    **{
        name: name
        for name in "labels lenient_labels drop_columns annotation_frame split shuffle shard_size "
        "samples_per_shard".split()
    },
}
"""Options of `convert` that say what is in a dataset and are not of its recipe, by the settings of
its manifest. `classes` is another one, of which a manifest has the digest."""


def options_of(settings: Json) -> Json:
    """Return the options of `convert` that gave these settings of a manifest, by their names in
    Python. Left out are `classes`, and those that have their defaults."""
    given = {option: settings.get(name) for name, option in OPTIONS.items()}
    return {
        option: value
        for option, value in given.items()
        if value is not None and value is not False and value != "auto"
    }


def _options(settings: Json) -> list[str]:
    """Return the same as the command line has it."""
    words = []
    for name, value in options_of(settings).items():
        values = value if name == "labels" and isinstance(value, list) else [value]
        for each in values:
            text = ",".join(map(str, each)) if isinstance(each, list) else str(each)
            shown = "" if each is True else f" {shlex.quote(text)}"
            words.append(f"--{name.replace('_', '-')}{shown}")
    return words + (["--classes DATASET"] if settings.get("classes") else [])


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def recipe_toml(recipe: Json) -> str:
    """Return a recipe in the format of a recipe file; keys whose value is None or an empty list are
    left out."""
    names = [*(key for key in KEYS if key in recipe), *(key for key in recipe if key not in KEYS)]
    lines = [
        f"{_key(name)} = {_toml(recipe[name])}"
        for name in names
        if name not in ("transform", "reading") and recipe[name] not in (None, [])
    ]
    for name in ("transform", "reading"):
        for step in recipe.get(name) or []:
            lines += ["", f"[[{name}]]", *_pairs(step)]
    return "\n".join(lines) + "\n"


def _pairs(step: Json) -> list[str]:
    """Return a line for each setting of a step; steps inside it have a line each."""
    lines = []
    for name, value in step.items():
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            lines += [f"{_key(name)} = [", *(f"    {_toml(item)}," for item in value), "]"]
        elif value is not None:
            lines.append(f"{_key(name)} = {_toml(value)}")
    return lines


def _toml(value: Any) -> str:
    """Return a value as TOML writes it: strings and numbers as JSON does."""
    if isinstance(value, dict):
        pairs = (
            f"{_key(name)} = {_toml(item)}" for name, item in value.items() if item is not None
        )
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, str):
        return quoted(value)
    return value.isoformat() if isinstance(value, date | time) else json.dumps(value)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _toml(name)
