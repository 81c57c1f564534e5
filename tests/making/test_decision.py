"""What a conversion does at its target, decided from facts alone: no file is needed to test it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardctl.errors import DatasetError, InputError
from shardctl.format.manifest import Manifest
from shardctl.format.names import CHECKSUMS
from shardctl.making.convert.previous import (
    UPDATING,
    DatasetReplacedError,
    NewDataset,
    decide,
)
from shardctl.making.plan.fingerprint import fingerprint
from shardctl.system.files import FileFacts

PARTS = {
    "inputs": "i",
    "labels": "l",
    "recipe": "r",
    "settings": "s",
    "code": "c",
    "versions": "numpy 2.0, pyarrow 20.0",
}
WANTED = NewDataset("out", PARTS, ["/in"], existing="digest")
NAME = fingerprint(PARTS)


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
        recipe={},
        settings={},
        rejected=0,
        splits=(),
        schema=(),
        fingerprint=fingerprint(then),
        fingerprint_parts=then,
        sources=("/in",),
        files={CHECKSUMS: FileFacts(1, "digest")},
    )


def decided(there: Manifest | None, **wanted: Any) -> str:
    return decide(replace(WANTED, **wanted), there)


def test_a_dataset_is_created_where_there_is_none():
    assert decided(None) == decided(None, updates=True) == NAME


def test_an_update_has_a_job_of_its_own():
    assert decided(manifest(inputs="others"), updates=True) == NAME + UPDATING


@pytest.mark.parametrize("versions", [PARTS["versions"], "numpy 1.0", ""])
def test_the_same_dataset_is_up_to_date_whatever_versions_made_it(versions):
    assert decided(manifest(versions=versions)) == ""


def test_a_dataset_with_a_part_that_is_not_known_is_another_one():
    with pytest.raises(DatasetError):
        decided(manifest(filters="of a later version"))


def test_overwrite_creates_it_anew_also_if_it_is_up_to_date():
    assert decided(manifest(), overwrites=True) == NAME


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
        decided(manifest(**{part: "other", "inputs": "others"}), updates=True)


def test_versions_that_may_give_other_values_are_refused_by_an_update():
    with pytest.raises(DatasetError, match="other versions made it"):
        decided(manifest(inputs="others", versions="numpy 1.0, pyarrow 20.0"), updates=True)
    same = manifest(inputs="others", versions="numpy 2.0, pyarrow 19.0")
    assert decided(same, updates=True) == NAME + UPDATING


def test_sources_that_have_moved_must_be_said():
    moved: dict[str, Any] = {"sources": ["/new"], "updates": True}
    for wrong in ([], ["/elsewhere"]):
        with pytest.raises(InputError):
            decided(manifest(), **moved, moved=wrong)
    assert decided(manifest(), **moved, moved=["/in"]).endswith(UPDATING)


def test_sources_may_be_appended_after_those_that_are_there():
    more: dict[str, Any] = {"parts": {**PARTS, "inputs": "more"}, "appends": True}
    assert decided(manifest(), **more, sources=["/in", "/more"]).endswith(UPDATING)
    with pytest.raises(InputError):
        decided(manifest(), **more, sources=["/more"])


@pytest.mark.parametrize("option", ["updates", "appends"])
def test_all_is_looked_at_again_where_the_dataset_was_replaced_meanwhile(option):
    with pytest.raises(DatasetReplacedError):
        decided(manifest(), existing="the one before", **{option: True})
    assert decided(manifest(), existing="the one before") == ""
