"""What options change in the recipe of a file: an option wins, and a step that it names takes the
option's value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

from shardctl.errors import UsageError
from shardctl.sources.format_table import FORMAT_NAMES
from shardctl.system.arguments import contradiction
from shardctl.system.text import printable
from shardctl.transforms.recipe_files.reading import named_recipe, read_toml
from shardctl.transforms.recipe_options import RECIPE_OPTIONS, SHORTCUTS, STEP_OPTIONS
from shardctl.transforms.settings import Json
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
    functions = [{"name": "custom", "target": each} for each in given.get("transforms") or ()]
    known = [each.get("target") for each in own if isinstance(each, dict)]
    twice = next((each["target"] for each in functions if each["target"] in known), None)
    if twice is not None:
        raise UsageError(f"--transform {printable(twice)}: {file} has this function already")
    on_texts = [step for step in (*made, *more) if step["name"] not in TOKEN_STEPS]
    last = [step for token_step in TOKEN_STEPS for step in made if step["name"] == token_step]
    all_steps = [*own, *on_texts, *functions, *last]
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
