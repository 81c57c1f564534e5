"""How many samples the steps of a stored recipe make of a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardctl.transforms.base import BatchTransform, ImageTransform
from shardctl.transforms.settings import SettingError
from shardctl.transforms.table import TRANSFORMS, parse_step


def samples_per_record(recipe: Mapping[str, Any]) -> int:
    """Return how many samples a recipe, as plain data, makes of a record: its variants, and the
    parts of each.

    The functions of a person are left aside, and none is imported: a dataset that someone else made
    may name any module.
    """
    count = int(recipe.get("variants") or 1)
    for given in recipe.get("transform") or ():
        kind = TRANSFORMS.get(str(given.get("name"))) if isinstance(given, dict) else None
        if (
            kind is None
            or not issubclass(kind, ImageTransform)
            or kind.samples is ImageTransform.samples
        ):
            continue
        try:
            step = parse_step(given)
        except SettingError:
            continue
        count *= step.samples if isinstance(step, ImageTransform) else 1
    return count


def splits_records(recipe: Mapping[str, Any]) -> bool:
    """Return whether a step of a recipe, as plain data, may make several samples of a record: any
    number."""
    for given in recipe.get("transform") or ():
        kind = TRANSFORMS.get(str(given.get("name"))) if isinstance(given, dict) else None
        if (
            kind is None
            or not issubclass(kind, BatchTransform)
            or kind.splits is BatchTransform.splits
        ):
            continue
        try:
            step = parse_step(given)
        except SettingError:
            continue
        if isinstance(step, BatchTransform) and step.splits:
            return True
    return False
