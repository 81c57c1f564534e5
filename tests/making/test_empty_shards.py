"""Shards of which every input is rejected are left out: the others keep their names, and take over
their units."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from damage import file_of
from dataset_facts import expect_whole, keys, rejects_of, shards_of, sums
from dataset_files import shard_in
from followed_sources import digests_of, write
from in_this_process import convert, repair
from stopping import some_changes, stopped_at

import shardctl
from shardctl.format.names import CHECKSUMS, MANIFEST, PLAN, PLANNED, REJECTS, SHARDS
from shardctl.format.tables import ShardTable
from shardctl.making.convert import parts, write_tables
from shardctl.system.folders import LocalFolder

GOOD, SHORT = "x" * 60 + "\n", "short\n"
MIN = {"record": "line", "transform": [{"name": "filter_length", "min_chars": 50}]}


def lines(path: Path, pattern: str) -> Path:
    """Write 8 lines, one shard, for each letter: `g` good ones, `.` those that the filter rejects,
    `b` blank ones."""
    return write(path, "".join({"g": GOOD, ".": SHORT, "b": "\n"}[each] * 8 for each in pattern))


def made(source: Path, out: Path, **options: Any) -> Any:
    return convert(source, out, recipe=MIN, samples_per_shard=8, **options)


def numbers(out: Path) -> list[int]:
    """The numbers of all shards, which must be there, and none but those of a generation."""
    generations = (out / "generations").iterdir()
    named = {path for folder in generations for path in ShardTable(LocalFolder(folder)).paths}
    assert {f"data/{path.name}" for path in (out / "data").iterdir()} == named
    return [entry.number for entry in shards_of(out)]


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize(
    ("pattern", "there"),
    [
        ("ggg", [0, 1, 2]),
        ("..g.g..", [2, 4]),
        ("g......", [0]),
        ("g.g", [0, 2]),
        (".....g", [5]),
        ("bg.bg", [1, 4]),
    ],
)
def test_a_dataset_without_them_is_whole(tmp_path, out, pattern, there):
    source = lines(tmp_path / "in.txt", pattern)
    result = made(source, out)
    assert (result.shards, result.samples) == (len(there), 8 * len(there))
    assert numbers(out) == there
    short = [place for place, letter in enumerate(pattern) if letter == "."]
    rejected = [f"in.txt#{8 * place + number}" for place in short for number in range(1, 9)]
    assert [reject.key for reject in rejects_of(out)] == rejected
    expect_whole(out, "deep")
    assert made(source, out).status == "up-to-date"


@pytest.mark.thorough
@pytest.mark.parametrize("pattern", ["..g.g..", "g.g"])
def test_a_dataset_without_them_is_repaired(tmp_path, out, pattern):
    made(lines(tmp_path / "in.txt", pattern), out)
    whole, first = digests_of(out), shards_of(out).names[0]
    for names in (
        *((name,) for name in (PLAN, SHARDS, REJECTS, CHECKSUMS, MANIFEST, first)),
        (CHECKSUMS, REJECTS),
    ):
        damaged = Path(shutil.copytree(out, tmp_path / "-".join(names)))
        for path in [file_of(damaged, name) for name in names]:
            path.unlink()
        assert repair(damaged).status == "repaired"
        assert digests_of(damaged) == whole, names
        expect_whole(damaged)


def test_the_shards_are_those_of_the_conversion_with_them(tmp_path, out, monkeypatch):
    """Which is read and verified, as those are that were made before."""
    source, whole = lines(tmp_path / "in.txt", ".g.g."), tmp_path / "all"
    made(source, out)
    with monkeypatch.context() as patched:
        patched.setattr(write_tables, "rows_made", lambda path: 1)
        assert made(source, whole).shards == 5
    for number in (1, 3):
        name = f"train-{number:05d}"
        assert shard_in(out, name).read_bytes() == shard_in(whole, name).read_bytes()
    assert keys(out) == keys(whole)
    expect_whole(whole, "deep")
    shard_in(whole, "train-00002").unlink()
    assert repair(whole).status == "repaired"
    assert numbers(whole) == [0, 1, 2, 3, 4]


def test_a_split_without_samples_keeps_one(tmp_path, out):
    for name, pattern in (("train", "g."), ("val", "...")):
        lines(tmp_path / "in" / name / "a.txt", pattern)
    result = made(tmp_path / "in", out, split="folder")
    splits = shardctl.open(out).manifest.splits
    found = [(split.name, split.samples, split.shards) for split in splits]
    assert found == [("train", 8, 1), ("val", 0, 1)]
    assert "no sample is in the split val" in result.warnings
    expect_whole(out)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("how", ["update", "append"])
def test_an_update_keeps_their_names_and_goes_on(tmp_path, out, how):
    source = tmp_path / "in"
    lines(source / "b.txt", ".g.g.")
    made(source, out)
    before = shard_in(out, "train-00001").read_bytes()
    lines(source / "c.txt", "gg")
    result = made(source, out, **{how: True})
    assert (result.status, result.samples, result.rejected) == ("updated", 32, 24)
    assert numbers(out)[:2] == [1, 3]
    assert shard_in(out, "train-00001").read_bytes() == before
    changes = result.changes
    assert (changes.new, changes.kept + changes.rebuilt) == (1, 2)
    expect_whole(out, "deep")
    (source / "b.txt").unlink()
    result = made(source, out, update=True)
    assert (result.samples, result.rejected) == (16, 0)
    expect_whole(out, "deep")


def test_parts_are_merged_without_them(tmp_path, out):
    source = lines(tmp_path / "in.txt", "..g.g..")
    made(source, tmp_path / "whole")
    for part in ("1/2", "2/2"):
        made(source, out, part=part)
    shardctl.finish(out)
    assert sums(out) == sums(tmp_path / "whole")
    assert numbers(out) == [2, 4]


def test_a_conversion_that_is_stopped_when_they_are_taken_away_goes_on(tmp_path, out, monkeypatch):
    source = lines(tmp_path / "in.txt", "..g.g..")
    made(source, tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(write_tables, "join_markers", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            made(source, out)
    assert made(source, out).status == "resumed"
    assert sums(out) == sums(tmp_path / "whole")


@pytest.mark.thorough
def test_a_merge_that_is_killed_at_any_moment_goes_on(tmp_path, monkeypatch):
    source, built = lines(tmp_path / "in.txt", "..g.g.."), tmp_path / "built"
    made(source, tmp_path / "whole")
    for part in ("1/2", "2/2"):
        made(source, built, part=part)
    for change in some_changes(first=3, every=3):
        out = tmp_path / f"out{change}"
        shutil.copytree(built, out)
        finish = partial(shardctl.finish, out)
        if not stopped_at(change, "kill", parts, "_finish", finish, monkeypatch):
            break
        finish()
        assert sums(out) == sums(tmp_path / "whole")
        assert numbers(out) == [2, 4]
    assert change > 20


def test_the_first_epoch_of_one_that_arrives_is_that_of_the_whole(tmp_path, out):
    source = lines(tmp_path / "in.txt", "..g.gg..")
    options = {"workers": 0, "samples_per_shard": 8, "progress": False}
    ds = shardctl.snapshot(out, source, MIN, wait=False, **options)
    for shuffle in (False, True):
        read = [key for batch in ds.loader(4, shuffle=shuffle) for key in batch["key"]]
        assert sorted(read) == sorted(sample["key"] for sample in ds.wait())


def test_compact_numbers_them_anew(cli, tmp_path, out):
    source = lines(tmp_path / "in.txt", "..g.g..")
    made(source, out)
    words = "--record line --min-chars 50 --explain".split()
    assert "planned" not in cli("convert", source, out, *words).out
    shardctl.compact(out)
    assert numbers(out) == list(range(len(numbers(out))))
    assert PLANNED not in shardctl.open(out).manifest.settings
    expect_whole(out, "deep")
