"""What exactly differs between a conversion and the dataset that is at its destination: `convert
--explain`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.build.convert.differences import Difference, between_settings
from shardctl.build.convert.update.compatibility import Verdict, verdict_on
from shardctl.build.convert.update.match import rows_before
from shardctl.build.plan.fingerprint import VERSIONS, differing_parts, version_changes
from shardctl.build.plan.listing import Listing
from shardctl.errors import DatasetError
from shardctl.format.manifest import Manifest
from shardctl.format.names import FILES
from shardctl.format.tables import open_checked_table
from shardctl.format.update_state import UpdateState
from shardctl.system.folders import LocalFolder
from shardctl.transforms.recipe import user_functions

EXAMPLES = 3
"""Inputs that are named of those that came, went or changed."""


@dataclass(frozen=True)
class Files:
    """How many files came, went or changed, and some of them."""

    count: int = 0
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """What differs. `parts` are the parts of the fingerprint that do, none if the dataset is up to
    date.

    `verdict` says what a conversion would do: `up-to-date`, `update` (--update brings it up to
    date), or `anew` (only --overwrite makes it). Changed files are known by their size and time of
    change.
    """

    verdict: Verdict
    parts: tuple[str, ...]
    differences: tuple[Difference, ...] = ()
    added: Files = field(default_factory=Files)
    removed: Files = field(default_factory=Files)
    changed: Files = field(default_factory=Files)


def explain(
    folder: LocalFolder,
    parts: dict[str, str],
    recipe: dict[str, Any],
    settings: dict[str, Any],
    listing: Listing,
) -> Explanation:
    """Compare a conversion with the dataset in a folder. Raises DatasetError if there is none."""
    manifest = Manifest.load(folder)
    before = manifest.fingerprint_parts
    differ = differing_parts(before, parts)
    found = between_settings(manifest, recipe, settings)
    if "code" in differ:
        own = " or ".join(user_functions(recipe)) or "no function of your own"
        found.append(Difference("code", f"{own}, or the format", "other code", "this code"))
    if VERSIONS in differ:
        found.append(
            Difference(
                VERSIONS, version_changes(before.get(VERSIONS, ""), parts[VERSIONS]), None, None
            )
        )
    if "labels" in differ:
        found.append(
            Difference("labels", "labels files or annotations", "other content", "this content")
        )
    files = _files(folder, manifest, listing) if "inputs" in differ else (Files(), Files(), Files())
    return Explanation(verdict_on(differ), differ, tuple(found), *files)


def _files(folder: LocalFolder, manifest: Manifest, listing: Listing) -> tuple[Files, Files, Files]:
    """Return the files that came, went, and changed."""
    table = open_checked_table(folder, FILES)
    rows = rows_before(table, listing)
    known = np.flatnonzero(rows >= 0)
    same = table["size"].to_numpy()[rows[known]] == listing.table["size"].to_numpy()[known]
    with contextlib.suppress(DatasetError):  # of an older shardctl: by size alone
        same &= (
            UpdateState(folder, manifest.update).mtime_ns[rows[known]]
            == listing.table["mtime_ns"].to_numpy()[known]
        )
    gone = np.ones(table.num_rows, bool)
    gone[rows[known]] = False
    of = (
        (listing.table, np.flatnonzero(rows < 0)),
        (table, np.flatnonzero(gone)),
        (listing.table, known[~same]),
    )
    added, removed, changed = (
        Files(len(found), tuple(paths["path"].take(pa.array(found[:EXAMPLES])).to_pylist()))
        for paths, found in of
    )
    return added, removed, changed
