"""The recipe of a dataset as a file, ready to be used again."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardctl.errors import DatasetError
from shardctl.format.manifest import Manifest
from shardctl.system.folders import LocalFolder
from shardctl.system.text import printable
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.recipe_files.writing import recipe_toml
from shardctl.transforms.settings import SettingError


@dataclass(frozen=True)
class ShownRecipe:
    """What made a dataset. `recipe` has the keys that are given, `toml` is a recipe file with them.

    `options` are those of `convert` that are no part of a recipe. `misfits` says what this version
    of shardctl would refuse.
    """

    dataset: str
    created: str
    shardctl_version: str
    recipe: dict[str, Any]
    options: tuple[str, ...]
    misfits: tuple[str, ...]
    toml: str


def show_recipe(root: Path) -> ShownRecipe:
    """Return the recipe of the dataset in `root`. Raises DatasetError if there is none."""
    shown = printable(str(root))
    manifest = Manifest.load(LocalFolder(root))
    recipe = {
        key: value for key, value in manifest.recipe.items() if value is not None and value != []
    }
    steps = recipe.get("transform", [])
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise DatasetError(
            f"{shown}: its recipe has steps that are not tables; it was not made by shardctl "
            "convert"
        )
    if not manifest.sources:
        raise DatasetError(f"{shown}: was written from Python (shardctl.write), with no recipe")
    errors: list[SettingError] = []
    Recipe.checked(recipe, errors.append)
    options = tuple(_options(manifest.settings))
    header = [
        f"The recipe of {shown}, made {printable(manifest.created)} by shardctl "
        f"{printable(manifest.shardctl_version)}.",
        "Again: shardctl convert "
        f"{' '.join(printable(shlex.quote(source)) for source in manifest.sources)} DST --recipe "
        "FILE"
        f"{''.join(f' {printable(option)}' for option in options)}",
    ]
    toml = "".join(f"# {line}\n" for line in header) + "\n" + recipe_toml(recipe)
    facts = (
        shown,
        manifest.created,
        manifest.shardctl_version,
        recipe,
        options,
        tuple(str(error) for error in errors),
    )
    return ShownRecipe(*facts, toml)


def _options(settings: dict[str, Any]) -> list[str]:
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
        "boxes": ("--boxes-outside", None),
        "annotation_frame": ("--annotation-frame", None),
        "task": ("--yolo-task", None),
        "split": ("--split", "auto"),
        "shuffle": ("--shuffle", None),
        "shard_size": ("--shard-size", None),
        "samples_per_shard": ("--samples-per-shard", None),
    }
    options = given + [
        f"{option} {shlex.quote(str(settings[name]))}"
        for name, (option, default) in named.items()
        if settings.get(name) not in (None, default)
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
