"""A step as --step has it: its name and its settings, with values as TOML writes them."""

from __future__ import annotations

import re
import sys
from typing import Any

from shardctl.errors import UsageError
from shardctl.system.text import printable
from shardctl.transforms.recipe_files.places import end_of_value
from shardctl.transforms.table import TRANSFORMS, unknown_step

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
