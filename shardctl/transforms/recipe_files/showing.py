"""The recipe of a dataset as a file, ready to be used again."""

from __future__ import annotations

import json
import re
import shlex
from datetime import date, time
from pathlib import Path
from typing import Any

from shardctl.errors import DatasetError
from shardctl.format.manifest import Manifest
from shardctl.system.folders import LocalFolder
from shardctl.system.text import printable
from shardctl.transforms.recipe import KEYS, Recipe
from shardctl.transforms.settings import Json


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
    header = [
        f"The recipe of {shown}, made {printable(manifest.created)} by shardctl "
        f"{printable(manifest.shardctl_version)}.",
        "Again: shardctl convert "
        f"{' '.join(printable(shlex.quote(source)) for source in manifest.sources)} DST --recipe "
        "FILE"
        f"{''.join(f' {printable(option)}' for option in options)}",
    ]
    toml = "".join(f"# {line}\n" for line in header) + "\n" + recipe_toml(recipe)
    return {
        "dataset": shown,
        "created": manifest.created,
        "shardctl_version": manifest.shardctl_version,
        "recipe": recipe,
        "options": options,
        "misfits": [str(error) for error in errors],
        "toml": toml,
    }


def _options(settings: Json) -> list[str]:
    """Return the options of `convert` that gave these settings of a manifest; those that have their
    defaults are left out."""
    labels = settings.get("labels", "auto")
    sources = [labels] if isinstance(labels, str) else list(labels)
    given = [
        f"--labels {shlex.quote(str(source))}"
        for source in sources
        if source != "auto" or len(sources) > 1
    ]
    named = {
        "boxes": "--boxes-outside",
        "annotation_frame": "--annotation-frame",
        "task": "--yolo-task",
        "split": "--split",
        "shuffle": "--shuffle",
        "shard_size": "--shard-size",
        "samples_per_shard": "--samples-per-shard",
    }
    options = given + [
        f"{option} {shlex.quote(str(settings[name]))}"
        for name, option in named.items()
        if settings.get(name) not in (None, "auto")
    ]
    if settings.get("lenient_labels"):
        options.append("--lenient-labels")
    if settings.get("classes"):
        options.append("--classes DATASET")
    if settings.get("drop_columns"):
        options.append(
            f"--drop-columns {shlex.quote(','.join(map(str, settings['drop_columns'])))}"
        )
    return options


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
        text = json.dumps(value, ensure_ascii=False)
        return "".join(
            character if character.isprintable() else _escaped(character) for character in text
        )
    return value.isoformat() if isinstance(value, date | time) else json.dumps(value)


def _escaped(character: str) -> str:
    """Return a character that a terminal or an editor does not show, as TOML spells it."""
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _toml(name)
