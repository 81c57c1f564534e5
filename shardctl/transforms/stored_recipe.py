"""What can be told of the recipe of a dataset as plain data. It is not trusted: what it names is
not imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shardctl.errors import UsageError
from shardctl.system.text import printable
from shardctl.transforms.base import BatchTransform, ImageTransform, Transform
from shardctl.transforms.settings import SettingError
from shardctl.transforms.table import TRANSFORMS, parse_step

OWN = ("custom", "model")
"""The names of the steps that call a person's code."""


def samples_per_record(recipe: Mapping[str, Any]) -> int:
    """Return how many samples a recipe makes of a record: its variants, and the parts of each. The
    functions of a person are left aside."""
    count = int(recipe.get("variants") or 1)
    for step in _steps(recipe, ImageTransform, "samples"):
        count *= step.samples
    return count


def splits_records(recipe: Mapping[str, Any]) -> bool:
    """Return whether a step may make several samples of a record: any number."""
    return any(step.splits for step in _steps(recipe, BatchTransform, "splits"))


def _steps(recipe: Mapping[str, Any], kind: type[Transform], told: str) -> Iterator[Any]:
    """Yield the steps of a kind that say something else than others of what is `told`."""
    for given in recipe.get("transform") or ():
        found = TRANSFORMS.get(str(given.get("name"))) if isinstance(given, dict) else None
        if found and issubclass(found, kind) and getattr(found, told) is not getattr(kind, told):
            try:
                yield parse_step(given)
            except SettingError:
                continue


def user_functions(recipe: Mapping[str, Any]) -> list[str]:
    """Return the names of the user functions in a recipe."""
    steps = recipe.get("transform")
    steps = [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    return [str(step.get("target")) for step in steps if str(step.get("name")) in OWN]


def refuse_unnamed_functions(
    recipe: Mapping[str, Any], named: Iterable[str], shown: str, who: str
) -> None:
    """Raise UsageError if the recipe of a dataset has user functions that the caller did not name.
    `shown` is where it is."""
    unnamed = [target for target in user_functions(recipe) if target not in named]
    if unnamed:
        options = " ".join(f"--transform {printable(target)}" for target in unnamed)
        raise UsageError(
            f"{shown}: was made with user functions; {who} runs those that you name: check the "
            f"code, and add {options}"
        )
