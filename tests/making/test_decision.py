"""What a conversion does at its target, decided from facts alone: no file is needed to test it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardctl.errors import DatasetError, InputError
from shardctl.format.manifest import Manifest
from shardctl.format.names import CHECKSUMS
from shardctl.making.convert.decision import (
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
    empty: dict[str, Any] = {
        "kind": "image",
        "samples": 1,
        "shards": 1,
        "bytes": 1,
        "inputs": 1,
        "rejected": 0,
        "splits": (),
        "schema": (),
        "fields": {},
        "recipe": {},
        "settings": {},
        "created": "",
        "shardctl_version": "",
    }
    then = {**PARTS, **parts}
    files = {CHECKSUMS: FileFacts(1, "digest")}
    return Manifest(
        **empty,
        fingerprint=fingerprint(then),
        fingerprint_parts=then,
        sources=("/in",),
        files=files,
    )


def test_a_dataset_is_created_where_there_is_none():
    assert decide(WANTED, None, {}) == decide(replace(WANTED, updates=True), None, {})
    decision = decide(WANTED, None, {})
    assert decision == (NAME, False, False)


def test_its_own_unfinished_job_is_resumed_and_no_other():
    assert decide(WANTED, None, {NAME: ""}) == (NAME, True, False)
    assert decide(WANTED, None, {"other": ""}) == (NAME, False, False)
    assert decide(WANTED, None, {NAME: "of another dataset"}) == (NAME, False, False)


def test_an_update_that_was_begun_is_resumed_only_for_the_same_dataset():
    wanted, there = replace(WANTED, updates=True), manifest(inputs="others")
    assert decide(wanted, there, {}).follows
    resumed = decide(wanted, there, {NAME + UPDATING: "digest"})
    assert resumed == (NAME + UPDATING, True, True)
    assert decide(wanted, there, {NAME + UPDATING: "the one before"}).follows


@pytest.mark.parametrize("versions", [PARTS["versions"], "numpy 1.0", ""])
def test_the_same_dataset_is_up_to_date_whatever_versions_made_it(versions):
    assert decide(WANTED, manifest(versions=versions), {}).job == ""


def test_a_dataset_with_a_part_that_is_not_known_is_another_one():
    with pytest.raises(DatasetError):
        decide(WANTED, manifest(filters="of a later version"), {})


def test_overwrite_creates_it_anew_also_if_it_is_up_to_date():
    assert decide(replace(WANTED, overwrites=True), manifest(), {}) == (NAME, False, False)


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
        decide(WANTED, manifest(**{part: "other"}), {})


@pytest.mark.parametrize("part", ["recipe", "settings", "code"])
def test_an_update_follows_inputs_and_nothing_else(part):
    there = manifest(**{part: "other", "inputs": "others"})
    with pytest.raises(DatasetError, match=f"differs in its {part}"):
        decide(replace(WANTED, updates=True), there, {})


def test_versions_that_may_give_other_values_are_refused_by_an_update():
    there = manifest(inputs="others", versions="numpy 1.0, pyarrow 20.0")
    with pytest.raises(DatasetError, match="other versions made it"):
        decide(replace(WANTED, updates=True), there, {})
    same = decide(
        replace(WANTED, updates=True),
        manifest(inputs="others", versions="numpy 2.0, pyarrow 19.0"),
        {},
    )
    assert same.follows


def test_sources_that_have_moved_must_be_said():
    wanted = replace(WANTED, sources=["/new"], updates=True)
    with pytest.raises(InputError):
        decide(wanted, manifest(), {})
    assert decide(replace(wanted, moved=["/in"]), manifest(), {}).follows
    with pytest.raises(InputError):
        decide(replace(wanted, moved=["/elsewhere"]), manifest(), {})


def test_sources_may_be_appended_after_those_that_are_there():
    wanted = replace(
        WANTED, parts={**PARTS, "inputs": "more"}, sources=["/in", "/more"], appends=True
    )
    assert decide(wanted, manifest(), {}).follows
    with pytest.raises(InputError):
        decide(replace(wanted, sources=["/more"]), manifest(), {})


@pytest.mark.parametrize("option", ["updates", "appends"])
def test_all_is_looked_at_again_where_the_dataset_was_replaced_meanwhile(option):
    wanted = replace(WANTED, existing="the one before", **{option: True})
    with pytest.raises(DatasetReplacedError):
        decide(wanted, manifest(), {})
    assert decide(replace(WANTED, existing="the one before"), manifest(), {}).job == ""
