"""Whether a dataset is what a conversion would make, told by names, sizes and times of change, in the time of a bare walk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardctl.build.convert.request import ConvertRequest
from shardctl.build.convert.update.compatibility import verdict_on
from shardctl.build.plan.fingerprint import differing_parts, labels_digest, parts_without_sources
from shardctl.build.plan.listing import wanted_files
from shardctl.errors import DatasetError, UsageError
from shardctl.format.manifest import Manifest
from shardctl.format.names import FILES
from shardctl.format.tables import open_checked_table
from shardctl.format.update_state import UpdateState
from shardctl.sources.annotations.unused import Unused
from shardctl.sources.export_description import may_be_of_export
from shardctl.sources.kinds import KINDS, Form
from shardctl.sources.rechecking import ChangedError, Listed, unlisted_files
from shardctl.sources.sidecars import depends_on_others, inputs_among
from shardctl.sources.walk import FoundFile, LeftOut
from shardctl.system.files import sha256_of
from shardctl.system.locations.text import is_stored
from shardctl.transforms.recipe import Recipe

SETTLED = ("format", "image_field", "key_field", "fields")
"""Keys of a recipe beside the kind that a conversion may take from its sources."""


def recipe_if_same(request: ConvertRequest, manifest: Manifest) -> Recipe | None:
    """Return the recipe, with what it leaves to the sources as it is recorded; None if it, settings or code are others.

    Versions do not count.
    """
    left = (name for name in ("kind", *SETTLED) if request.recipe.get(name) in (None, "auto"))
    try:
        recipe = Recipe.from_json(
            {**request.recipe, **{name: manifest.recipe[name] for name in left if name in manifest.recipe}}
        )
    except UsageError:  # it does not go with the kind that is recorded
        return None
    parts = {**manifest.fingerprint_parts, **parts_without_sources(recipe, request.recorded_settings(recipe))}
    return recipe if verdict_on(differing_parts(manifest.fingerprint_parts, parts)) == "up-to-date" else None


def is_surely_unchanged(request: ConvertRequest, manifest: Manifest) -> bool:
    """Return whether this is certain without a new list of the inputs: all are as they were, and there are no new ones.

    False says nothing: it may depend on what is in a file, or on annotations.
    """
    if (
        any(root.is_stored for root in request.roots)
        or is_stored(request.labels.file or "")
        or request.labels.annotations
        or _takes_more_from_sources(request.recipe, manifest.recipe)
    ):
        return False
    if tuple(root.name for root in request.roots) != tuple(Path(source).name for source in manifest.sources):
        return False
    recipe = recipe_if_same(request, manifest)
    if recipe is None:
        return False
    try:
        state = UpdateState(request.folder, manifest.update)
        files = open_checked_table(request.folder, FILES)
        if state.digest_beside or len(state.mtime_ns) != files.num_rows:
            return False
        return _labels_if_same(request, recipe, Listed(files, state.mtime_ns)) == manifest.fingerprint_parts.get("labels")
    except (DatasetError, ChangedError, OSError):
        return False


def _takes_more_from_sources(recipe: Mapping[str, Any], recorded: Mapping[str, Any]) -> bool:
    """Return whether the sources have decided, or may decide, more than the kind of the samples."""
    return any(recipe.get(name) != recorded.get(name) for name in SETTLED if recorded.get(name) is not None)


def _labels_if_same(request: ConvertRequest, recipe: Recipe, listed: Listed) -> str:
    """Return what stands for the labels files. Raises ChangedError if the inputs are not certainly the same."""
    if any(may_be_of_export(root.folder) for root in request.roots):
        raise ChangedError
    beside: list[FoundFile] = []
    side_files: list[tuple[str, str]] = []
    others = inputs_among(unlisted_files(request.roots, listed, depends_on_others), None, beside)
    rule, names = request.labels, [recipe.kind]
    if request.recipe.get("kind") in (None, "auto"):  # a file of a kind that is looked for before would be the kind of all
        names = list(KINDS)[: list(KINDS).index(recipe.kind) + 1]
    for file in others:
        for name in names:
            noted = side_files if name == recipe.kind else []
            given = (KINDS[name], recipe.reading, rule, noted, Counter[str](), LeftOut(), Unused())
            if next(wanted_files(iter([file]), *given), (Form.NOTHING,))[0] is not Form.NOTHING:
                raise ChangedError
    if beside or side_files:  # it is not known where labels files were, from which their names begin
        raise ChangedError
    return labels_digest([] if rule.file is None else [sha256_of(Path(rule.file))])
