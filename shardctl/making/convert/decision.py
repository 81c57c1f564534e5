"""What a conversion does at its target: make a dataset, follow changes, nothing, or refuse; decided
once, from facts. And what `--explain` says."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError, InputError
from shardctl.format.arrays import numbers_of
from shardctl.format.dataset_folder import dataset_of
from shardctl.format.manifest import Manifest
from shardctl.format.names import FILES, PLANNED, UPDATE, Json
from shardctl.format.tables import open_checked_table
from shardctl.format.update_state import UpdateState
from shardctl.making.convert.conversion import Inputs
from shardctl.making.convert.previous import PreviousDataset, refuse_written, rows_before
from shardctl.making.notices import notice
from shardctl.making.plan.fingerprint import (
    VERSIONS,
    difference,
    differing_parts,
    fingerprint,
    version_changes,
    without_folders,
)
from shardctl.sources.files import SourceRoot
from shardctl.system.text import printable
from shardctl.transforms.table import user_functions

UPDATING = "-update"
"""What the name of the folder of a job ends with that brings a dataset up to date."""


class Decision(Enum):
    """What a conversion does. NOTHING: the dataset is there. MAKE: it makes a dataset, which takes
    the place of another one. FOLLOW: it brings the one that is there up to date."""

    NOTHING = auto()
    MAKE = auto()
    FOLLOW = auto()


def decide(inputs: Inputs) -> Decision:
    """Decide what to do with the inputs beside the dataset that is there.

    A dataset that other versions made counts as the same one: it is complete, and can be used.
    Raises the error of a refusal.
    """
    there, options = inputs.manifest, inputs.conversion.options
    if there is None or options.overwrite:
        return Decision.MAKE
    verdict = verdict_on(there.fingerprint_parts, inputs.fingerprint_parts)
    if verdict == "up-to-date" and not (options.update and tuple(inputs.sources) != there.sources):
        return Decision.NOTHING
    if not (options.update or options.append):
        differs = _named(
            difference(there.fingerprint_parts, inputs.fingerprint_parts), there, inputs
        )
        _, why = _why_not_followed(there.fingerprint_parts, inputs.fingerprint_parts) or ("", {})
        if "changes" in why:
            differs = f"{differs}, and was made by other versions ({why['changes']})"
        which = "differs-update" if verdict == "update" else "differs"
        shown = inputs.conversion.folder.shown()
        raise DatasetError(notice(which, dataset=shown, differs=differs))
    _refuse_to_follow(inputs, there)
    return Decision.FOLLOW


def _named(differs: str, there: Manifest, inputs: Inputs) -> str:
    """Return the parts that differ, with some of the settings that do."""
    found = between_settings(there, inputs)
    if not found:
        return differs
    more = f" and {len(found) - SHOWN:,} more" if len(found) > SHOWN else ""
    return f"{differs} ({printable('; '.join(map(str, found[:SHOWN])))}{more})"


def job_name(inputs: Inputs, decision: Decision) -> str:
    """Return the name of the folder of the job: one there that follows the same dataset is resumed."""
    return fingerprint(inputs.fingerprint_parts) + (UPDATING if decision is Decision.FOLLOW else "")


def job_names(inputs: Inputs) -> set[str]:
    """Return the names of the folders of all jobs that make the wanted dataset."""
    return {job_name(inputs, Decision.MAKE), job_name(inputs, Decision.FOLLOW)}


def followed(inputs: Inputs, decision: Decision) -> PreviousDataset | None:
    """Return the dataset that is followed, None if a new one is made. Raises DatasetError if it is
    damaged."""
    if decision is not Decision.FOLLOW:
        return None
    assert inputs.manifest is not None, "there is one"
    return inputs.conversion.previous(inputs.manifest)


FOLLOWED = ("inputs", "labels", VERSIONS)
"""The parts of a fingerprint that an update follows."""

OF_BYTES = ("shardctl", "format", "pyarrow")
"""Versions that may decide how the same values are written, and not the values."""

Verdict = Literal["up-to-date", "update", "anew"]


def verdict_on(before: Mapping[str, str], now: Mapping[str, str]) -> Verdict:
    """Return what becomes of a dataset, by the parts of its fingerprint, where those of a
    conversion are what they are now.

    It is `up-to-date` if only versions differ: it is complete, and can be used. An `update` follows
    other inputs and labels. Where anything else differs, the conversion makes the dataset `anew`.
    """
    if {*differing_parts(before, now)} <= {VERSIONS}:
        return "up-to-date"
    return "update" if _why_not_followed(before, now) is None else "anew"


def _why_not_followed(
    before: Mapping[str, str], now: Mapping[str, str]
) -> tuple[str, dict[str, str]] | None:
    """Return why a dataset cannot be brought up to date, by the parts of its fingerprint: the
    notice, and its values; None if it can."""
    if not all(before.get(name, "lost") for name in now):
        return "fingerprint-lost", {}
    if names := [name for name in differing_parts(before, now) if name not in FOLLOWED]:
        return "other-settings", {"differs": " and ".join(names)}
    versions = [_of_values(parts.get(VERSIONS, "")) for parts in (before, now)]
    if versions[0] != versions[1]:
        return "made-by-other-versions", {"changes": version_changes(*versions)}
    return None


def _refuse_to_follow(inputs: Inputs, there: Manifest) -> None:
    """Raise DatasetError or InputError if the dataset that is there cannot be brought up to
    date."""
    options, shown = inputs.conversion.options, inputs.conversion.folder.shown()
    refuse_written(inputs.conversion.folder.text, there)
    if refused := _why_not_followed(there.fingerprint_parts, inputs.fingerprint_parts):
        which, why = refused
        if "differs" in why:
            why["differs"] = _named(why["differs"], there, inputs)
        raise DatasetError(notice(which, dataset=shown, **why))
    moved = [SourceRoot.of(old).recorded for old in options.moved_from]
    if options.append:
        moved = inputs.sources[: len(there.sources)]
    if tuple(moved or inputs.sources) != there.sources:
        were = "said to have been" if moved else "given"
        made, given = (
            ", ".join(map(printable, each)) for each in (there.sources, moved or inputs.sources)
        )
        raise InputError(notice("other-sources", dataset=shown, made=made, given=given, were=were))


def _of_values(versions: str) -> str:
    """Return those versions that may decide values."""
    return ", ".join(
        each for each in versions.split(", ") if each.partition(" ")[0] not in OF_BYTES
    )


SHOWN = 3
"""How many settings, or inputs, are named."""


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
        if self.before is None and self.now is None:
            return self.name
        return f"{self.name}: {_toml(self.before)} → {_toml(self.now)}"


def without_planned(settings: Json) -> Json:
    """Return settings without the one that nobody gave."""
    return {name: value for name, value in settings.items() if name != PLANNED}


def between_settings(there: Manifest, inputs: Inputs) -> list[Difference]:
    """Return the settings that differ between a dataset and a conversion: those of its recipe, and
    the others."""
    before, now = map(without_folders, (without_planned(there.settings), inputs.settings))
    return [
        *_between("recipe", there.recipe, inputs.recipe.to_json()),
        *_between("settings", before, now),
    ]


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
        if len(settings) < 2:
            return next(iter(settings.values()), "yes")
        return ", ".join(f"{key} = {each}" for key, each in settings.items())
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value)


@dataclass(frozen=True)
class Files:
    """How many files came, went or changed, and some of them."""

    count: int = 0
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """What differs. `parts` are the parts of the fingerprint that differ, none if the dataset is up
    to date.

    `verdict` says what a conversion would do. `update`: --update brings the dataset up to date.
    `anew`: only --overwrite makes it. Changed files are known by their size and time of change.
    """

    verdict: Verdict
    parts: tuple[str, ...]
    differences: tuple[Difference, ...] = ()
    added: Files = Files()
    removed: Files = Files()
    changed: Files = Files()


def explain(inputs: Inputs, manifest: Manifest) -> Explanation:
    """Compare a conversion with the dataset that is there."""
    folder, listing, parts = inputs.conversion.folder, inputs.listing, inputs.fingerprint_parts
    folder = dataset_of(manifest, folder)
    before = manifest.fingerprint_parts
    differ = differing_parts(before, parts)
    found = between_settings(manifest, inputs)
    if "code" in differ:
        own = " or ".join(user_functions(inputs.recipe.to_json())) or "no function of your own"
        found.append(Difference("code", f"{own}, or the format", "other code", "this code"))
    if VERSIONS in differ:
        changed = version_changes(before.get(VERSIONS, ""), parts[VERSIONS])
        found.append(Difference(VERSIONS, changed, None, None))
    if "labels" in differ:
        what = "labels files or annotations"
        found.append(Difference("labels", what, "other content", "this content"))
    files: list[Files] = []
    if "inputs" in differ:
        inputs.conversion.target.fetch_files((FILES, UPDATE))
        table = open_checked_table(folder, FILES)
        rows = rows_before(table, listing.table)
        known = np.flatnonzero(rows >= 0)
        sizes, times = (numbers_of(listing.table[name])[known] for name in ("size", "mtime_ns"))
        same = numbers_of(table["size"])[rows[known]] == sizes
        with contextlib.suppress(DatasetError):  # of an older shardctl: by size alone
            same &= UpdateState(folder, manifest.update).mtime_ns[rows[known]] == times
        gone = np.ones(table.num_rows, bool)
        gone[rows[known]] = False
        now, new = listing.table["path"], np.flatnonzero(rows < 0)
        for paths, at in ((now, new), (table["path"], np.flatnonzero(gone)), (now, known[~same])):
            examples = paths.take(pa.array(at[:SHOWN])).to_pylist()
            files.append(Files(len(at), tuple(examples)))
    return Explanation(verdict_on(before, parts), differ, tuple(found), *files)
