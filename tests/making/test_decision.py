"""What a conversion does at its target, decided from facts alone: no file is needed to test it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardctl.errors import DatasetError, InputError
from shardctl.format.manifest import Manifest
from shardctl.format.names import CHECKSUMS
from shardctl.making.convert.conversion import Conversion, Inputs
from shardctl.making.convert.decision import UPDATING, Decision, decide, job_name
from shardctl.making.options import Options
from shardctl.making.plan.fingerprint import fingerprint
from shardctl.system.files import FileFacts
from shardctl.system.folders import LocalFolder
from shardctl.transforms.recipe import Recipe

PARTS = {
    "inputs": "i",
    "labels": "l",
    "recipe": "r",
    "settings": "s",
    "code": "c",
    "versions": "numpy 2.0, pyarrow 20.0",
}


def manifest(**parts: str) -> Manifest:
    """Return the manifest of a dataset that was made of /in, whose fingerprint differs in some
    parts."""
    words: dict[str, Any] = dict.fromkeys(("created", "shardctl_version"), "")
    words |= dict.fromkeys(("samples", "shards", "bytes", "inputs"), 1)
    then = {**PARTS, **parts}
    return Manifest(
        **words,
        kind="image",
        fields={},
        recipe=Recipe().to_json(),
        settings={},
        rejected=0,
        splits=(),
        schema=(),
        fingerprint=fingerprint(then),
        fingerprint_parts=then,
        sources=("/in",),
        files={CHECKSUMS: FileFacts(1, "digest")},
    )


def inputs(there: Manifest | None, parts=PARTS, sources=("/in",), **options: Any) -> Inputs:
    request: Any = SimpleNamespace(
        options=Options(**options), recorded_settings=lambda recipe: dict[str, Any]()
    )
    target: Any = SimpleNamespace(folder=LocalFolder(Path("out")))
    nothing: Any = None
    return Inputs(
        Conversion(request, nothing, nothing, target),
        there,
        Recipe(),
        nothing,
        nothing,
        list(sources),
        (),
        parts,
        Path(),
    )


def decided(there: Manifest | None, **wanted: Any) -> Decision:
    return decide(inputs(there, **wanted))


def test_a_dataset_is_created_where_there_is_none():
    assert decided(None) is decided(None, update=True) is Decision.MAKE


def test_an_update_has_a_job_of_its_own():
    found = inputs(manifest(inputs="others"), update=True)
    assert decide(found) is Decision.FOLLOW
    assert job_name(found, Decision.FOLLOW) == fingerprint(PARTS) + UPDATING
    assert job_name(found, Decision.MAKE) == fingerprint(PARTS)


@pytest.mark.parametrize("versions", [PARTS["versions"], "numpy 1.0", ""])
def test_the_same_dataset_is_up_to_date_whatever_versions_made_it(versions):
    assert decided(manifest(versions=versions)) is Decision.NOTHING


def test_a_dataset_with_a_part_that_is_not_known_is_another_one():
    with pytest.raises(DatasetError):
        decided(manifest(filters="of a later version"))


def test_overwrite_creates_it_anew_also_if_it_is_up_to_date():
    assert decided(manifest(), overwrite=True) is Decision.MAKE


@pytest.mark.parametrize(
    ("part", "advice"),
    [
        ("inputs", "--update"),
        ("labels", "--update"),
        ("recipe", "--overwrite"),
        ("settings", "--overwrite"),
    ],
)
def test_another_dataset_is_refused_with_what_differs(part, advice):
    with pytest.raises(DatasetError, match=f"differs in its {part}; use {advice}"):
        decided(manifest(**{part: "other"}))


@pytest.mark.parametrize("part", ["recipe", "settings", "code"])
def test_an_update_follows_inputs_and_nothing_else(part):
    with pytest.raises(DatasetError, match=f"differs in its {part}"):
        decided(manifest(**{part: "other", "inputs": "others"}), update=True)


def test_versions_that_may_give_other_values_are_refused_by_an_update():
    with pytest.raises(DatasetError, match="other versions made it"):
        decided(manifest(inputs="others", versions="numpy 1.0, pyarrow 20.0"), update=True)
    with pytest.raises(
        DatasetError, match=r"inputs, and was made by other versions \(numpy 1.0 → 2.0\); use --o"
    ):
        decided(manifest(inputs="others", versions="numpy 1.0, pyarrow 20.0"))
    same = manifest(inputs="others", versions="numpy 2.0, pyarrow 19.0")
    assert decided(same, update=True) is Decision.FOLLOW


def test_sources_that_have_moved_must_be_said():
    moved: dict[str, Any] = {"sources": ["/new"], "update": True}
    for wrong in ([], ["/elsewhere"]):
        with pytest.raises(InputError):
            decided(manifest(), **moved, moved_from=wrong)
    assert decided(manifest(), **moved, moved_from=["/in"]) is Decision.FOLLOW


def test_sources_may_be_appended_after_those_that_are_there():
    more: dict[str, Any] = {"parts": {**PARTS, "inputs": "more"}, "append": True}
    assert decided(manifest(), **more, sources=["/in", "/more"]) is Decision.FOLLOW
    with pytest.raises(InputError):
        decided(manifest(), **more, sources=["/more"])
