"""What options change in the recipe of a file: an option wins, and a step that it names takes the
option's value."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shardctl.errors import UsageError
from shardctl.sources.format_table import FORMAT_NAMES
from shardctl.system.text import printable
from shardctl.transforms.recipe_files.reading import end_of_value
from shardctl.transforms.recipe_options import RECIPE_OPTIONS, SHORTCUTS, STEP_OPTIONS
from shardctl.transforms.table import TOKEN_STEPS, TRANSFORMS, unknown_step

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def recipe_with_options(
    recipe: Mapping[str, Any] | str | Path | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Join a recipe, or the file of one, and options: those of RECIPE_OPTIONS and STEP_OPTIONS that
    are given, by their names.

    An option wins. Raises UsageError.
    """
    for name, option in STEP_OPTIONS.items():
        option.check(name, given.get(name, option.default))
    recipe = recipe or {}
    if isinstance(recipe, str | Path):
        # with tomllib 7 ms, which only files need
        from shardctl.transforms.recipe_files.reading import load_recipe

        joined = load_recipe(Path(recipe))
    else:
        joined = dict(recipe)
    joined |= {key: given[key] for key in RECIPE_OPTIONS if given.get(key) is not None}
    if joined.get("kind") in FORMAT_NAMES:
        joined |= {"kind": "auto", "format": joined["kind"]}
    tokenizes_chats = _has_step(joined, "tokenize_chat")
    chats = given.get("chat_template") is not None or tokenizes_chats
    steps_of_options = {"tokenizer": "tokenize_chat"} if chats else {}
    named = [
        StepOption(
            name.replace("_", "-"), steps_of_options.get(name, step), shortcut.setting, given[name]
        )
        for name, shortcut in SHORTCUTS.items()
        # 0 is a value
        if (value := given.get(name)) is not None and value is not False and value != ()
        for step in shortcut.steps(given[name])
    ]
    if (
        given.get("chat_template") is not None
        and given.get("tokenizer") is None
        and not tokenizes_chats
    ):
        raise UsageError("--chat-template needs a tokenizer; give --tokenizer too")
    if not joined.get("transform") and given.get("crop") and given.get("random_crop"):
        raise UsageError("--crop and --random-crop contradict each other; use one of them")
    more = []
    if given.get("steps"):
        more = [parse_step_option(text) for text in given["steps"]]
    name = printable(str(recipe)) if isinstance(recipe, str | Path) else "the recipe"
    steps = with_steps(joined.get("transform"), named, more, given.get("transforms", ()), name)
    return {**joined, "transform": steps} if steps else joined


def _has_step(recipe: Mapping[str, Any], name: str) -> bool:
    steps = recipe.get("transform")
    return isinstance(steps, list) and any(
        isinstance(step, dict) and step.get("name") == name for step in steps
    )


class StepOption(NamedTuple):
    """An option that gives one setting of the step `name`: `--crop 224` is the `size` of `crop`.
    With None as its setting it stands for the step alone, as `--lower-case` does."""

    option: str
    name: str
    setting: str | None
    value: Any

    def __str__(self) -> str:
        value = " ".join(self.value) if isinstance(self.value, tuple) else self.value
        return f"--{self.option}" if value is True else f"--{self.option} {printable(str(value))}"

    @property
    def step(self) -> dict[str, Any]:
        """The step as a recipe has it."""
        return (
            {"name": self.name}
            if self.setting is None
            else {"name": self.name, self.setting: self.value}
        )


def with_steps(
    steps: Any,
    options: Sequence[StepOption],
    more: Sequence[dict[str, Any]],
    functions: Sequence[str],
    file: str,
) -> list[dict[str, Any]]:
    """Return the steps of a recipe with those that options name.

    Where the recipe `file` has steps, each of `options` changes the one that it names; without any
    they are the steps. `more` come after them, then the user's `functions`, and then what makes
    tokens and packs them, where the file has no such step: of these, options change those of
    `more`. Raises UsageError.
    """
    own = list(steps) if isinstance(steps, list) else []
    held = set(_names(own))
    new: list[StepOption] = []
    for option in options:
        if own and (option.name in held or option.name not in TOKEN_STEPS):
            own = _replaced(own, option, file)
        else:
            new.append(option)
    made = _steps_of(new)
    own += [step for step in made if step["name"] not in TOKEN_STEPS]
    last = [step for step in more if step["name"] in TOKEN_STEPS]
    for step in made:
        if step["name"] in TOKEN_STEPS:
            same = next((other for other in last if other["name"] == step["name"]), None)
            last = (
                [{**other, **step} if other is same else other for other in last]
                if same
                else [*last, step]
            )
    last.sort(key=lambda step: TOKEN_STEPS.index(step["name"]))
    more = [step for step in more if step["name"] not in TOKEN_STEPS]
    known = [
        step.get("target")
        for step in own
        if isinstance(step, dict) and step.get("name") in ("custom", "model")
    ]
    twice = next((target for target in functions if target in known), None)
    if twice is not None:
        raise UsageError(
            f"--transform {printable(twice)}: {file} has this function already; leave the option "
            "out"
        )
    return [*own, *more, *({"name": "custom", "target": target} for target in functions), *last]


def _steps_of(options: Sequence[StepOption]) -> list[dict[str, Any]]:
    """Return the steps that options name. Options of one step follow each other."""
    steps: list[dict[str, Any]] = []
    for option in options:
        if steps and steps[-1]["name"] == option.name:
            steps[-1].update(option.step)
        else:
            steps.append(option.step)
    return steps


def _replaced(steps: list[Any], option: StepOption, file: str) -> list[Any]:
    """Return the steps with the setting changed in the one step of this name."""
    names = list(_names(steps))
    if option.name not in names:
        setting = "" if option.setting is None else f" {option.setting}={option.value}"
        raise UsageError(
            f"{option}: {file} has no step {option.name} (it has "
            f"{printable(', '.join(dict.fromkeys(names)))}); add it with"
            f" --step '{option.name}{setting}', or in the file"
        )
    if names.count(option.name) > 1:
        raise UsageError(
            f"{option}: {file} has {names.count(option.name)} steps {option.name}; change the one "
            "that is meant in it"
        )
    return [_changed(step, option) for step in steps]


def _changed(step: Any, option: StepOption) -> Any:
    if not isinstance(step, dict):
        return step
    changed = {
        key: [_changed(item, option) for item in value] if isinstance(value, list) else value
        for key, value in step.items()
    }
    return {**changed, **option.step} if step.get("name") == option.name else changed


def _names(steps: list[Any]) -> Iterator[str]:
    """Yield the names of all steps, those inside of others too."""
    for step in steps:
        if isinstance(step, dict):
            if isinstance(step.get("name"), str):
                yield step["name"]
            for value in step.values():
                if isinstance(value, list):
                    yield from _names(value)


_NAME = re.compile(r"\s*([A-Za-z0-9_]+)\s*")
_ASSIGNMENT = re.compile(r"([A-Za-z0-9_]+)\s*=\s*")
_WORD = re.compile(r"[A-Za-z_0-9][\w.:/-]*")
"""A value that needs no quotes: 320x240, bilinear, module:function."""


def parse_step_option(text: str) -> dict[str, Any]:
    """Read a step that is written as `NAME key=value key=value`, each value as in TOML; plain words
    need no quotes.

    Raises UsageError.
    """
    shown = f"--step {printable(text)!r}"
    head = _NAME.match(text)
    if head is None or text[head.end() : head.end() + 1] == "=":
        raise UsageError(
            f"{shown}: write the name of a step, then its settings, as in --step 'color_jitter "
            "brightness=0.4'"
        )
    if head[1] not in TRANSFORMS:
        raise UsageError(f"{shown}: {unknown_step(head[1])}")
    step, at = {"name": head[1]}, head.end()
    while at < len(text):
        match = _ASSIGNMENT.match(text, at)
        if match is None:
            raise UsageError(
                f"{shown}: {text[at:]!r} is not of the form setting=value, as in --step "
                "'color_jitter brightness=0.4'"
            )
        if match[1] in step:
            raise UsageError(f"{shown}: {match[1]} is given twice")
        try:
            end = end_of_value(text, match.end())
            step[match[1]] = _value(text[match.end() : end])
        except (ValueError, RecursionError):
            raise UsageError(
                f"{shown}: the value of {match[1]} is not as TOML writes it: 0.4, true, [0.5, 1], "
                '"two words"'
            ) from None
        at = end + len(text[end:]) - len(text[end:].lstrip())
    return step


def _value(text: str) -> Any:
    try:
        found = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        found = {"value": text} if _WORD.fullmatch(text) else {}
    if list(found) != ["value"]:
        raise ValueError(text)
    return found["value"]
