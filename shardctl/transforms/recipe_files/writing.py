"""Recipes as TOML text."""

from __future__ import annotations

import json
import re
from datetime import date, time
from typing import Any

from shardctl.transforms.recipe import KEYS

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def recipe_toml(recipe: dict[str, Any]) -> str:
    """Return a recipe in the format of a recipe file; keys whose value is None or an empty list are
    left out."""
    names = [*(key for key in KEYS if key in recipe), *(key for key in recipe if key not in KEYS)]
    lines = [
        f"{_key(name)} = {_toml(recipe[name])}"
        for name in names
        if name != "transform" and recipe[name] not in (None, [])
    ]
    for step in recipe.get("transform") or []:
        lines += ["", "[[transform]]", *_pairs(step)]
    return "\n".join(lines) + "\n"


def _pairs(step: dict[str, Any]) -> list[str]:
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
