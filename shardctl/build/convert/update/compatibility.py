"""Whether a dataset is up to date, can be brought up to date, or must be made anew, and for what
reason."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from shardctl.build.plan.fingerprint import VERSIONS, differing_parts, version_changes
from shardctl.errors import DatasetError, InputError, ShardctlError
from shardctl.format.manifest import Manifest
from shardctl.format.tables import is_written
from shardctl.system.text import printable

FOLLOWED = ("inputs", "labels", VERSIONS)
"""The parts of a fingerprint that an update follows."""

OF_BYTES = ("shardctl", "format", "pyarrow")
"""Versions that may decide how the same values are written, and not the values."""

Verdict = Literal["up-to-date", "update", "anew"]


def verdict_on(differing: Collection[str]) -> Verdict:
    """Return what becomes of a dataset where a conversion differs from it in these parts of the
    fingerprint.

    It is `up-to-date` if only versions differ: it is complete, and can be used. An `update` follows
    other inputs and labels. Where anything else differs, the conversion makes the dataset `anew`.
    """
    if set(differing) <= {VERSIONS}:
        return "up-to-date"
    return "update" if set(differing) <= set(FOLLOWED) else "anew"


def why_written(root: str, manifest: Manifest) -> DatasetError | None:
    """Return the error for a dataset that was written in Python; None for others."""
    if not is_written(manifest.settings):
        return None
    return DatasetError(
        f"{printable(root)}: was written by shardctl.write, and has no source that it could follow"
    )


def why_not_followed(
    root: str,
    manifest: Manifest,
    parts: dict[str, str],
    sources: Sequence[str],
    moved: Sequence[str],
) -> ShardctlError | None:
    """Return the error if a dataset cannot be brought up to date with sources, by a fingerprint's
    `parts`; None if it can.

    `sources` are where they are now, and `moved` where they were, if that was said.
    """
    shown, before = printable(root), manifest.fingerprint_parts
    if (written := why_written(root, manifest)) is not None:
        return written
    if not all(before.get(name, "lost") for name in parts):
        return DatasetError(
            f"{shown}: repair has rebuilt its manifest without the fingerprint of its inputs and "
            "options; use --overwrite to"
            " make the dataset again"
        )
    names = [name for name in differing_parts(before, parts) if name not in FOLLOWED]
    if names:
        return DatasetError(
            f"{shown}: cannot be brought up to date, since this conversion differs in its "
            f"{' and '.join(names)}. Use the same"
            " options and code (`shardctl convert --explain` names what differs), or --overwrite "
            "to make the dataset again"
        )
    made_by, now = _of_values(before.get(VERSIONS, "")), _of_values(parts[VERSIONS])
    if made_by != now:
        return DatasetError(
            f"{shown}: cannot be brought up to date, since other versions made it, and their "
            "values may differ"
            f" ({version_changes(made_by, now)}). Use those versions, or --overwrite to make the "
            "dataset again"
        )
    if tuple(moved or sources) != manifest.sources:
        were = "said to have been" if moved else "given"
        return InputError(
            f"{shown}: was made from {_listed(manifest.sources)}, and {_listed(moved or sources)} "
            f"is {were}; give the same"
            " sources in the same order, or if they have moved, say where each was with "
            "--moved-from"
        )
    return None


def _listed(sources: Sequence[str]) -> str:
    return ", ".join(map(printable, sources))


def _of_values(versions: str) -> str:
    """Return those versions that may decide values."""
    return ", ".join(
        each for each in versions.split(", ") if each.partition(" ")[0] not in OF_BYTES
    )
