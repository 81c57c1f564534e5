"""The names that a recipe may use, and what they are: filled by the modules of the steps, see `__init__`."""

from __future__ import annotations

from typing import Any

from shardctl.transforms.base import Transform, settings_of
from shardctl.transforms.settings import Kind, Report, SettingError, raise_it, unknown

TRANSFORMS: dict[str, type[Transform]] = {}
"""The steps by their names."""


def parse_step(given: Any) -> Transform:
    """Return a step from its name and its settings. Raises SettingError, whose key is the setting that is wrong."""
    step = checked_step(given, raise_it)
    assert step is not None, "what is wrong was raised"
    return step


def checked_step(given: Any, report: Report) -> Transform | None:
    """Return a step from its name and its settings; None if something is wrong, after telling `report` of all that is."""
    if not isinstance(given, dict):
        report(SettingError("a step is a table with its name and its settings, each under its own [[transform]]"))
        return None
    name = given.get("name")
    if name is None:
        report(SettingError(f"a step needs its name, one of {', '.join(TRANSFORMS)}"))
    elif not isinstance(name, str) or name not in TRANSFORMS:
        report(SettingError(unknown("transform", name, TRANSFORMS), "name"))
    else:
        return TRANSFORMS[name].checked({key: value for key, value in given.items() if key != "name"}, report)
    return None


class Steps(Kind[tuple[Transform, ...]]):
    """A list of steps, each with its `name` and its settings."""

    def read(self, value: Any) -> tuple[Transform, ...]:
        """Return the steps. Raises SettingError at the first that is wrong."""
        steps = self.checked(value, "steps", raise_it)
        assert steps is not None, "what is wrong was raised"
        return steps

    def checked(self, value: Any, name: str, report: Report) -> tuple[Transform, ...] | None:
        """Return the steps; None if one is wrong, after telling `report` of all that is."""
        if not isinstance(value, list | tuple):
            report(SettingError(f'{name} must be a list of steps, as in [{{name = "hflip"}}, {{name = "vflip"}}]'))
            return None
        steps = []
        for number, given in enumerate(value):
            told: list[SettingError] = []
            step = checked_step(given, told.append)
            for error in told:
                report(error.within(number))
            if step is not None:
                steps.append(step)
        return tuple(steps) if len(steps) == len(value) else None

    def write(self, value: tuple[Transform, ...]) -> list[dict[str, Any]]:
        """Return the steps as a recipe has them."""
        return [settings_of(step) for step in value]

    def schema(self) -> dict[str, Any]:
        """Return the schema of a list of steps, whichever they are: each is as the definition `step` says."""
        return {"type": "array", "items": {"$ref": "#/definitions/step"}}


def definitions() -> dict[str, Any]:
    """Return the JSON schemas of all steps by their names, and of `step`, which is one of them."""
    each = {name: step.json_schema() for name, step in TRANSFORMS.items()}
    return {"step": {"oneOf": [{"$ref": f"#/definitions/{name}"} for name in TRANSFORMS]}, **each}
