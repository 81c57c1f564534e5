"""The names that a recipe may use, and what they are: filled by the modules of the steps, see `__init__`."""

from __future__ import annotations

from typing import Any

from shardctl.transforms.base import Transform
from shardctl.transforms.settings import SettingError, unknown

TRANSFORMS: dict[str, type[Transform]] = {}
"""The steps by their names."""


def parse_step(given: Any) -> Transform:
    """Return a step from its name and its settings. Raises SettingError, whose key is the setting that is wrong."""
    if not isinstance(given, dict):
        raise SettingError("a step is a table with its name and its settings, each under its own [[transform]]")
    settings = dict(given)
    name = settings.pop("name", None)
    if name is None:
        raise SettingError("a step has no name", "name")
    if name not in TRANSFORMS:
        raise SettingError(unknown("transform", name, TRANSFORMS), "name")
    step: Transform = TRANSFORMS[name].parse(**settings)
    return step


def schema_of_steps() -> dict[str, Any]:
    """Return a JSON schema of one step, whichever it is: a reference to the definition `step`."""
    return {"$ref": "#/$defs/step"}
