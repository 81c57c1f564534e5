"""The texts of locations: URLs are handled as paths are, and lose no / by it."""

from __future__ import annotations

import os

import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

from shardctl.system.locations import (
    beside,
    common,
    folders_above,
    follow,
    is_stored,
    join,
    name_of,
    normal,
    parent_of,
    path_below,
    relative,
)

PARTS = st.lists(st.sampled_from(("a", "b", "c d", "\N{SNOWMAN}#%3F", "x.y")), max_size=4)


@pytest.mark.parametrize(
    "text", ["s3://bucket", "gs://bucket/a/b c", "az://container/\N{SNOWMAN}#%3F"]
)
def test_urls_of_stores_are_known_and_stay_as_they_are(text):
    assert is_stored(text)
    assert normal(f"{text}/") == normal(text) == text
    assert join(text, "x/./y") == f"{text}/x/y"
    assert folders_above(f"{text}/x")[0] == text


@pytest.mark.parametrize(
    "text",
    ["/s3/bucket", "s3:/bucket/a", "s3://", "s3:///a", "http://host/a", "C:\\a", "a://b", "", "."],
)
def test_all_else_is_a_path(text):
    assert not is_stored(text)


def test_a_bucket_has_no_folder_above_it():
    assert (parent_of("s3://b"), folders_above("s3://b/a/x")) == ("s3://b", ["s3://b/a", "s3://b"])
    assert folders_above("/a/x") == ["/a", "/"]
    assert (name_of("s3://b"), name_of("s3://b/a.png")) == ("b", "a.png")
    assert beside("s3://b/a/x.png", "y.png") == "s3://b/a/y.png"


def test_a_path_in_a_folder_is_written_as_path_does():
    for folder, path, joined in (
        ("/", "a/./x", "/a/x"),
        (".", "a/./x", "a/x"),
        ("b", "a/./x", "b/a/x"),
        ("../b", "a/./x", "../b/a/x"),
        ("/b", "/x", "/x"),
        ("s3://b", "/x", "/x"),
        ("/b", "s3://c/x", "s3://c/x"),
    ):
        assert join(folder, path) == joined


def test_what_lies_below_a_folder():
    for path, folder in (("s3://b/a/x", "s3://b/a"), ("/a/x", "/a"), ("/x", "/")):
        assert path_below(path, folder) == "x"
    assert path_below("s3://b/a", "s3://b/a") == ""
    assert path_below("s3://b/ab", "s3://b/a") is path_below("/b/a", "s3://b") is None


def test_a_path_and_a_url_have_no_way_between_them():
    assert relative("/a/x.png", "s3://b") == follow("s3://b", "/a/x.png") == "/a/x.png"
    assert relative("s3://b/x.png", "/a") == follow("/a", "s3://b/x.png") == "s3://b/x.png"
    for paths in (["/a", "s3://b"], ["s3://a", "gs://a"], ["s3://a", "s3://b"]):
        assert common(paths) == ""
    for folder in ("s3://b/a", "/a"):
        assert common([f"{folder}/x", f"{folder}/y"]) == folder


@given(bucket=st.sampled_from(("b", "c")), other=st.sampled_from(("b", "c")), one=PARTS, two=PARTS)
@examples(200)
def test_ways_between_urls_are_those_between_paths(bucket, other, one, two):
    """Masks are recorded by the way from their source: that of the folders in which copies of
    objects lie."""
    file, folder = "/".join((f"s3://{bucket}", *one)), "/".join((f"s3://{other}", *two))
    way = relative(file, folder)
    assert way == os.path.relpath(
        "/".join(("/copies/s3", bucket, *one)), "/".join(("/copies/s3", other, *two))
    )
    assert follow(folder, way) == file


def test_a_way_that_leads_out_of_all_buckets_is_no_path_of_this_machine():
    for way in ("../../../secret.png", "../../../../x/y"):
        assert follow("s3://b/k", way).startswith("s3://b/k/")
