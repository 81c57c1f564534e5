"""What a conversion does at its target: create, resume, update, nothing, or refuse. Decided from
facts, with no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from shardctl.build.convert.differences import between_settings, shown_differences
from shardctl.build.convert.update.compatibility import Verdict, verdict_on, why_not_followed
from shardctl.build.plan.fingerprint import difference, differing_parts, fingerprint
from shardctl.errors import DatasetError, ShardctlError
from shardctl.format.manifest import Manifest
from shardctl.format.names import CHECKSUMS
from shardctl.system.text import printable

UPDATING = "-update"
"""What the name of the folder of a job ends with that brings a dataset up to date."""


class Action(Enum):
    """What a conversion does."""

    CREATE = "create"
    RESUME = "resume"
    UPDATE = "update"
    UP_TO_DATE = "up to date"
    REFUSE = "refuse"
    LOOK_AGAIN = "look again"
    """Another process has changed the dataset since the inputs were listed beside it: what is new
    must be found once more."""


@dataclass(frozen=True)
class Wanted:
    """The dataset that a conversion would make."""

    shown: str
    """The path or URL of the dataset, for messages."""

    parts: dict[str, str]
    """The parts of its fingerprint."""

    sources: Sequence[str]
    """The absolute paths of the sources, or their URLs."""

    moved: Sequence[str] = ()
    """The earlier paths of the sources, if the user gave them."""

    updates: bool = False
    """Whether the existing dataset follows its sources: the option --update."""

    appends: bool = False
    """Whether inputs are added to the existing dataset: the option --append."""

    overwrites: bool = False
    """Whether any existing dataset is replaced: the option --overwrite."""

    recipe: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Its recipe and its other settings as the manifest records them, for messages."""

    existing: str = ""
    """The digest of the dataset that existed when the inputs were listed; "" for none."""


@dataclass(frozen=True)
class Decision:
    """What a conversion does."""

    action: Action

    job: str = ""
    """The name of the job's folder."""

    follows: bool = False
    """Whether the job updates the existing dataset. This can be so for RESUME too."""

    refusal: ShardctlError | None = None
    """The error to raise; None unless the action is REFUSE."""


def decide(wanted: Wanted, there: Manifest | None, begun: Mapping[str, str]) -> Decision:
    """Decide what to do where the dataset `there` is, None for none.

    `begun` has the names of unfinished jobs that can be resumed, each with the digest of the
    dataset that it updates ("" for none). A dataset that other versions made counts as the same
    one: it is complete, and can be used.
    """
    name = fingerprint(wanted.parts)
    if there is None or wanted.overwrites:
        return Decision(_resumed(name, "", begun) or Action.CREATE, name)
    digest, follows = there.files[CHECKSUMS].sha256, wanted.updates or wanted.appends
    if follows and digest != wanted.existing:
        return Decision(Action.LOOK_AGAIN)
    verdict = verdict_on(differing_parts(there.fingerprint_parts, wanted.parts))
    if verdict == "up-to-date" and not (wanted.updates and tuple(wanted.sources) != there.sources):
        return Decision(Action.UP_TO_DATE, follows=follows)
    if not follows:
        return Decision(Action.REFUSE, refusal=_refusal(wanted, there, verdict))
    moved = wanted.sources[: len(there.sources)] if wanted.appends else wanted.moved
    refusal = why_not_followed(wanted.shown, there, wanted.parts, wanted.sources, moved)
    if refusal is not None:
        return Decision(Action.REFUSE, refusal=refusal)
    name += UPDATING
    return Decision(_resumed(name, digest, begun) or Action.UPDATE, name, follows=True)


def _resumed(name: str, updates: str, begun: Mapping[str, str]) -> Action | None:
    """Return RESUME if the job of this name was begun, and for the same dataset before; else
    None."""
    return Action.RESUME if begun.get(name) == updates else None


def _refusal(wanted: Wanted, there: Manifest, verdict: Verdict) -> DatasetError:
    """Return the error for a dataset that is another one, and may not be replaced."""
    differs = difference(there.fingerprint_parts, wanted.parts)
    if verdict == "update":
        advice = (
            "use --update to bring it up to date, --overwrite to make it again, or another "
            "destination"
        )
    else:
        advice = "use --overwrite to replace it, or another destination"
    settings = shown_differences(between_settings(there, wanted.recipe, wanted.settings))
    what = f"{differs} ({printable(settings)})" if settings else differs
    return DatasetError(
        f"{printable(wanted.shown)}: holds a dataset that differs in its {what}; {advice}; "
        "--explain says all that differs"
    )
