"""In which settings a conversion differs from the dataset at its destination."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardctl.format.manifest import Manifest
from shardctl.format.names import PLANNED

SHOWN = 3
"""How many settings the message of a refusal names."""


@dataclass(frozen=True)
class Difference:
    """Something that differs: in which part of the fingerprint, what it is called, how it was, and
    how it is now."""

    part: str
    name: str
    before: Any
    now: Any

    def __str__(self) -> str:
        """Return it as one line, with values as a recipe file has them: resize: none → 640."""
        return (
            self.name
            if self.before is None and self.now is None
            else f"{self.name}: {_toml(self.before)} → {_toml(self.now)}"
        )


def between_settings(
    manifest: Manifest, recipe: Mapping[str, Any], settings: Mapping[str, Any]
) -> list[Difference]:
    """Return the settings that differ between a dataset and a conversion: those of its recipe, and
    the others."""
    # nobody gave that one
    before = {name: value for name, value in manifest.settings.items() if name != PLANNED}
    return [*_between("recipe", manifest.recipe, recipe), *_between("settings", before, settings)]


def shown_differences(differences: Sequence[Difference]) -> str:
    """Return the first differences for a message, "" for none."""
    more = f" and {len(differences) - SHOWN:,} more" if len(differences) > SHOWN else ""
    return f"{'; '.join(map(str, differences[:SHOWN]))}{more}"


def _between(part: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Return the settings that differ. Steps come first."""
    steps = [recipe.get("transform") or [] for recipe in (before, now)]
    if before.get("kind") != now.get("kind"):  # then nearly all others differ too
        return [Difference(part, "kind", before.get("kind"), now.get("kind"))]
    names = dict.fromkeys(name for name in (*before, *now) if name != "transform")
    others = [
        Difference(part, name, before.get(name), now.get(name))
        for name in names
        if before.get(name) != now.get(name)
    ]
    return [*_between_steps(part, *steps), *others]


def _between_steps(part: str, before: list[Any], now: list[Any]) -> list[Difference]:
    """Return the steps that only one of two recipes has, and the settings in which two steps of the
    same name differ."""
    found = []
    names_before, names_now = ([str(step["name"]) for step in steps] for steps in (before, now))
    matcher = difflib.SequenceMatcher(None, names_before, names_now, autojunk=False)
    for what, first, end, other, other_end in matcher.get_opcodes():
        if what == "equal":
            for one, two in zip(before[first:end], now[other:other_end], strict=True):
                names = [name for name in {**one, **two} if one.get(name) != two.get(name)]
                found += [
                    Difference(part, f"{one['name']}.{name}", one.get(name), two.get(name))
                    for name in names
                ]
        else:
            found += [Difference(part, step["name"], step, None) for step in before[first:end]]
            found += [Difference(part, step["name"], None, step) for step in now[other:other_end]]
    return found


def _toml(value: Any) -> str:
    """Return a value much as TOML has it. A step gives its settings alone: its name stands before
    them."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        settings = {key: _toml(each) for key, each in value.items() if key != "name"}
        alone = next(iter(settings.values()), "yes")
        return (
            alone
            if len(settings) < 2
            else ", ".join(f"{key} = {each}" for key, each in settings.items())
        )
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value)
