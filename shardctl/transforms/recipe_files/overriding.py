"""What options change in the recipe of a file: an option wins, and a step that it names takes the
option's value. And the recipe of a loader, with its arguments: the steps that are done while a dataset
is read, in each epoch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shardctl.errors import UsageError
from shardctl.sources.format_table import FORMAT_NAMES
from shardctl.system.arguments import contradiction, whole_number
from shardctl.system.text import printable, some
from shardctl.transforms.custom import Custom
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.recipe_files.reading import named_recipe, read_toml
from shardctl.transforms.recipe_options import RECIPE_OPTIONS, SHORTCUTS, STEP_OPTIONS, UNDECIDED
from shardctl.transforms.settings import Json, raise_any
from shardctl.transforms.table import TOKEN_STEPS, TRANSFORMS, unknown_step


def recipe_with_options(
    recipe: Mapping[str, Any] | str | Path | None, given: Mapping[str, Any]
) -> Json:
    """Join a recipe, or the file of one, and options: those of RECIPE_OPTIONS and STEP_OPTIONS that
    are given, by their names.

    An option wins. Where the recipe has steps, each option changes the one that it names; without
    any they are the steps. Those of --step come after them, then the user's functions, and then
    what makes tokens and packs them, where the recipe has no such step. Raises UsageError.
    """
    for name, option in STEP_OPTIONS.items():
        option.check(name, given.get(name, option.default))
    joined, file = named_recipe(recipe)
    joined |= {key: given[key] for key in RECIPE_OPTIONS if given.get(key) is not None}
    if joined.get("kind") in FORMAT_NAMES:
        joined |= {"kind": "auto", "format": joined["kind"]}
    steps = joined.get("transform")
    own = deepcopy(steps) if isinstance(steps, list) else []
    names, chats = [step.get("name") for step in _each(own)], given.get("chat_template") is not None
    if chats and given.get("tokenizer") is None and "tokenize_chat" not in names:
        raise UsageError("--chat-template needs a tokenizer; give --tokenizer too")
    if not steps and given.get("crop") and given.get("random_crop"):
        raise contradiction("--crop", "--random-crop")
    more = [parse_step_option(text) for text in given.get("steps") or ()]
    made = [step for step in more if step["name"] in TOKEN_STEPS]
    for name, shortcut in SHORTCUTS.items():
        value = given.get(name)
        if value is None or value is False or value == ():  # 0 is a value
            continue
        settings = {} if shortcut.setting is None else {shortcut.setting: value}
        for step in shortcut.steps(value):
            if name == "tokenizer" and (chats or "tokenize_chat" in names):
                step = "tokenize_chat"
            changes = own and (step in names or step not in TOKEN_STEPS)
            among = _each(own) if changes else made
            same = [each for each in among if each.get("name") == step]
            if changes and len(same) != 1:
                text = " ".join(value) if isinstance(value, tuple) else str(value)
                shown = "" if value is True else f" {printable(text)}"
                who = f"--{name.replace('_', '-')}{shown}: {file} has"
                if same:
                    raise UsageError(f"{who} {len(same)} steps {step}; change it there")
                there = ", ".join(dict.fromkeys(map(str, names)))
                setting = "".join(f" {key}={each}" for key, each in settings.items())
                raise UsageError(
                    f"{who} no step {step} (it has {printable(there)}); add it with --step "
                    f"'{step}{setting}'"
                )
            if same:
                same[0].update(settings)
            else:
                made.append({"name": step, **settings})
    functions = given.get("transforms") or ()
    known = [each.get("target") for each in own if isinstance(each, dict)]
    for target in functions:
        if target in known:
            raise UsageError(f"--transform {printable(target)}: {file} has this function already")
    on_texts = [step for step in (*made, *more) if step["name"] not in TOKEN_STEPS]
    last = [step for token_step in TOKEN_STEPS for step in made if step["name"] == token_step]
    customs = [{"name": "custom", "target": target} for target in functions]
    all_steps = [*own, *on_texts, *customs, *last]
    return {**joined, "transform": all_steps} if all_steps else joined


def _each(steps: list[Any]) -> Iterator[Json]:
    """Yield all steps, those inside of others too."""
    for step in steps:
        if isinstance(step, dict):
            yield step
            for value in step.values():
                if isinstance(value, list):
                    yield from _each(value)


_NAME = re.compile(r"\s*([A-Za-z0-9_]+)\s*")
_ASSIGNMENT = re.compile(r"\s*([A-Za-z0-9_]+)\s*=\s*")
_NEXT = re.compile(r"\s(?=\s*[A-Za-z0-9_]+\s*=)|$")
"""Where a value may end: before another setting."""

_WORD = re.compile(r"[A-Za-z_0-9][\w.:/-]*")
"""A value that needs no quotes: 320x240, bilinear, module:function."""


def parse_step_option(text: str) -> Json:
    """Read a step that is written as `NAME key=value key=value`, each value as in TOML; plain words
    need no quotes.

    Raises UsageError.
    """
    shown = f"--step {printable(text)!r}"
    head = _NAME.match(text)
    if head is None or text[head.end() : head.end() + 1] == "=":
        raise UsageError(
            f"{shown}: write a step and its settings, as in --step 'color_jitter brightness=0.4'"
        )
    if head[1] not in TRANSFORMS:
        raise UsageError(f"{shown}: {unknown_step(head[1])}")
    step, at = {"name": head[1]}, head.end()
    while text[at:].strip():
        match = _ASSIGNMENT.match(text, at)
        if match is None:
            raise UsageError(
                f"{shown}: {text[at:]!r} is not of the form setting=value, as in --step "
                "'color_jitter brightness=0.4'"
            )
        if match[1] in step:
            raise UsageError(f"{shown}: {match[1]} is given twice")
        for end in _NEXT.finditer(text, match.end()):
            with suppress(ValueError):
                step[match[1]] = _value(text[match.end() : end.start()].strip())
                break
        else:
            raise UsageError(
                f"{shown}: the value of {match[1]} is not as TOML writes it: 0.4, true, [0.5, 1], "
                '"two words"'
            )
        at = end.start()
    return step


def _value(text: str) -> Any:
    try:
        found = read_toml(f"value = {text}")
    except (ValueError, RecursionError):
        found = {"value": text} if _WORD.fullmatch(text) else {}
    if list(found) != ["value"]:
        raise ValueError(text)
    return found["value"]


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
    if made.filters:
        raise UsageError(f"{made.filters[0].name} leaves samples out, which only a conversion can")
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
