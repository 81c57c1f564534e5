"""The recipe of a loader: the steps that are done while a dataset is read, in each epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shardctl.errors import UsageError
from shardctl.system.arguments import whole_number
from shardctl.system.text import some
from shardctl.transforms.base import Filter
from shardctl.transforms.custom import Custom
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.recipe_files.overriding import parse_step_option
from shardctl.transforms.recipe_files.reading import named_recipe
from shardctl.transforms.recipe_options import UNDECIDED
from shardctl.transforms.settings import Json, raise_any

DATASET = "dataset"
"""In the place of a recipe: the steps under [[reading]] in that of the dataset."""

KEYS = ("transform", "keep_objects", "max_pixels")
"""The keys of a recipe that make sense while reading."""


def recipe_while_reading(given: Mapping[str, Any], dataset: Json, most_pixels: int) -> Recipe:
    """Return the recipe of the steps among the arguments of a loader, by their names.

    Those that it has short forms for come first, then those of `recipe`, then each `step`. The
    functions of `transform` come at the end. `dataset` is the recipe of the dataset. `most_pixels`
    are those that steps may make if a recipe says no number. Raises UsageError, InputError.
    """
    recipe = given.get("recipe")
    if not isinstance(recipe, str | Path | Mapping | None):
        raise UsageError(f"recipe is a file, @NAME or a dict, not {recipe!r}")
    if recipe == DATASET:
        joined, shown = dict(dataset), DATASET
        if not joined.get("reading"):
            raise UsageError(
                "the recipe of the dataset has no [[reading]]; give a recipe, or steps"
            )
    else:
        joined, shown = named_recipe(recipe)
        raise_any(Recipe.values(joined)[1])
    if steps := joined.pop("reading", ()):  # all else was for the conversion
        joined = {key: joined[key] for key in KEYS if key in joined} | {"transform": steps}
    if joined.get("kind") in ("image", UNDECIDED):
        del joined["kind"]
    others = [key for key in joined if key not in KEYS]
    if others:
        raise UsageError(
            f"{shown}: {some(others)} {'make' if len(others) > 1 else 'makes'} no sense while a "
            f"dataset is read; keys there are {', '.join(KEYS)}"
        )
    last = map(parse_step_option, given.get("step", ()))
    steps = [*_short_steps(given), *joined.get("transform", ()), *last]
    keys = {name: given[name] for name in ("seed", "keep_objects") if given.get(name) is not None}
    fixed = {"transform": steps, "store": "png", "kind": "image"}
    made = Recipe.from_json({"max_pixels": most_pixels, **joined, **keys, **fixed})
    unfit = next((step for step in made.transform if isinstance(step, Filter)), None)
    if unfit is not None:
        raise UsageError(f"{unfit.name} leaves samples out, which only a conversion can")
    functions = given.get("transform", ())
    own = [
        Custom(target=each).loaded() if isinstance(each, str) else Custom.of(each)
        for each in (functions if isinstance(functions, list | tuple) else [functions])
    ]
    return replace(made, transform=(*made.transform, *own))


def _short_steps(given: Mapping[str, Any]) -> list[Json]:
    """Return the steps that arguments of a loader are short for. Raises UsageError."""
    resize, crop, flip = given.get("resize"), given.get("crop"), given.get("flip", False)
    crop_from = given.get("crop_from", "center")
    if crop_from not in ("center", "random"):
        raise UsageError(f"a crop is from 'center' or 'random' places, not {crop_from!r}")
    if crop_from == "random" and crop is None:
        raise UsageError("crop_from='random' needs a crop; give crop= too")
    steps: list[Json] = []
    if resize is not None:
        steps.append({"name": "resize", "size": _size("resize", resize)})
    if crop is not None:
        name = "random_crop" if crop_from == "random" else "crop"
        steps.append({"name": name, "size": _size("crop", crop)})
    share = 0.5 * flip if isinstance(flip, bool | np.bool_) else flip
    if not (np.isscalar(share) and share == 0):
        steps.append({"name": "hflip", "p": share})
    return steps


def _size(name: str, value: Any) -> Any:
    """Return a size as steps take it: two numbers are (height, width) here, and the other way
    round there."""
    if not isinstance(value, list | tuple | np.ndarray):
        return value
    if len(value) != 2:
        raise UsageError(f"{name} takes one number or (height, width); it is {value!r}")
    height, width = (whole_number(name, side, 1) for side in value)
    return f"{width}x{height}"
