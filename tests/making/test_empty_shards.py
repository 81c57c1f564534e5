"""Shards of which every input is rejected are left out: the others keep their names, and take over
their units."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from dataset_facts import rejects_of, shards_of
from stopping import some_changes, stopped_at

import shardctl
from shardctl.format.names import MANIFEST, PLAN, PLANNED, REJECTS, SHARDS
from shardctl.making.convert import parts, table_writer

GOOD, SHORT = "x" * 60 + "\n", "short\n"
MIN = {"record": "line", "transform": [{"name": "filter_length", "min_chars": 50}]}
OPTIONS: dict[str, Any] = {"recipe": MIN, "workers": 0, "samples_per_shard": 8}


def lines(path: Path, pattern: str) -> Path:
    """Write 8 lines, one shard, for each letter: `g` good ones, `.` those that the filter rejects,
    `b` blank ones."""
    path.write_text("".join({"g": GOOD, ".": SHORT, "b": "\n"}[letter] * 8 for letter in pattern))
    return path


def numbers(out: Path) -> list[int]:
    """The numbers of all shards, which must be there, and no others."""
    names = shards_of(out).names
    assert sorted(names) == sorted(path.name for path in out.glob("*-0*.arrow"))
    return [int(name[-11:-6]) for name in names]


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
def test_a_dataset_without_them_is_whole(cli, tmp_path, out, pattern, there):
    source = lines(tmp_path / "in.txt", pattern)
    result = shardctl.convert(source, out, **OPTIONS)
    assert (result.shards, result.samples, result.rejected) == (
        len(there),
        8 * len(there),
        8 * pattern.count("."),
    )
    assert numbers(out) == there
    assert [reject.key for reject in rejects_of(out)] == [
        f"in.txt#{8 * place + number}"
        for place, letter in enumerate(pattern)
        if letter == "."
        for number in range(1, 9)
    ]
    assert cli("verify", out, "--level", "deep").code == 0
    assert shardctl.convert(source, out, **OPTIONS).status == "up-to-date"


@pytest.mark.thorough
@pytest.mark.parametrize("pattern", ["..g.g..", "g.g"])
def test_a_dataset_without_them_is_repaired(cli, tmp_path, out, pattern):
    shardctl.convert(lines(tmp_path / "in.txt", pattern), out, **OPTIONS)
    whole = {
        path.name: path.read_bytes()
        for path in out.iterdir()
        if path.is_file() and path.name != MANIFEST
    }
    lost = [
        [PLAN],
        [SHARDS],
        [REJECTS],
        ["SHA256SUMS"],
        [MANIFEST],
        [shards_of(out).names[0]],
        ["SHA256SUMS", REJECTS],
    ]
    for names in lost:
        damaged = Path(shutil.copytree(out, tmp_path / "-".join(names).replace(".", "-")))
        for name in names:
            (damaged / name).unlink()
        ran = cli("repair", damaged)
        assert ran.code == 0, ran.err
        assert {
            path.name: path.read_bytes() for path in damaged.iterdir() if path.name in whole
        } == whole, names
        assert cli("verify", damaged).code == 0


def test_the_shards_are_those_of_the_conversion_with_them(tmp_path, out, monkeypatch):
    source = lines(tmp_path / "in.txt", ".g.g.")
    shardctl.convert(source, out, **OPTIONS)
    monkeypatch.setattr(table_writer, "rows_made", lambda path: 1)
    assert shardctl.convert(source, tmp_path / "all", **OPTIONS).shards == 5
    for number in (1, 3):
        name = f"train-{number:05d}.arrow"
        assert (out / name).read_bytes() == (tmp_path / "all" / name).read_bytes()
    both = [shardctl.open(tmp_path / name) for name in ("out", "all")]
    assert [sample["key"] for sample in both[0]] == [sample["key"] for sample in both[1]]


def test_a_dataset_that_has_them_is_read_and_verified(cli, tmp_path, out, monkeypatch):
    """As those are that were made before."""
    with monkeypatch.context() as patched:
        patched.setattr(table_writer, "rows_made", lambda path: 1)
        shardctl.convert(lines(tmp_path / "in.txt", "g.g"), out, **OPTIONS)
    assert numbers(out) == [0, 1, 2]
    assert cli("verify", out, "--level", "deep").code == 0
    (out / "train-00001.arrow").unlink()
    assert cli("repair", out).code == 0
    assert numbers(out) == [0, 1, 2]


def test_a_split_without_samples_keeps_one(cli, tmp_path, out):
    for name, pattern in (("train", "g."), ("val", "...")):
        (tmp_path / "in" / name).mkdir(parents=True)
        lines(tmp_path / "in" / name / "a.txt", pattern)
    result = shardctl.convert(tmp_path / "in", out, **OPTIONS, split="folder")
    manifest = shardctl.open(out).manifest
    assert [(split.name, split.samples, split.shards) for split in manifest.splits] == [
        ("train", 8, 1),
        ("val", 0, 1),
    ]
    assert result.shards == 2
    assert "no sample is in the split val" in result.warnings
    assert cli("verify", out).code == 0


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("append", [False, True])
def test_an_update_keeps_their_names_and_goes_on(cli, tmp_path, out, append):
    (tmp_path / "in").mkdir()
    lines(tmp_path / "in" / "b.txt", ".g.g.")
    shardctl.convert(tmp_path / "in", out, **OPTIONS)
    before = (out / "train-00001.arrow").read_bytes()
    lines(tmp_path / "in" / "c.txt", "gg")
    how = {"append": True} if append else {"update": True}
    result = shardctl.convert(tmp_path / "in", out, **OPTIONS, **how)
    assert (result.status, result.samples, result.rejected) == ("updated", 32, 24)
    assert numbers(out)[:2] == [1, 3]
    assert (out / "train-00001.arrow").read_bytes() == before
    assert result.changes is not None
    assert (result.changes.new, result.changes.kept + result.changes.rebuilt) == (1, 2)
    assert cli("verify", out, "--level", "deep").code == 0
    (tmp_path / "in" / "b.txt").unlink()
    result = shardctl.convert(tmp_path / "in", out, **OPTIONS, update=True)
    assert (result.samples, result.rejected) == (16, 0)
    assert cli("verify", out, "--level", "deep").code == 0


def test_parts_are_merged_without_them(cli, tmp_path, out):
    source = lines(tmp_path / "in.txt", "..g.g..")
    shardctl.convert(source, tmp_path / "whole", **OPTIONS)
    for part in ("1/2", "2/2"):
        shardctl.convert(source, out, **OPTIONS, part=part)
    assert cli("finish", out).code == 0
    sums = [(tmp_path / name / "SHA256SUMS").read_bytes() for name in ("whole", "out")]
    assert sums[0] == sums[1]
    assert numbers(out) == [2, 4]


def test_a_conversion_that_is_stopped_when_they_are_taken_away_goes_on(tmp_path, out, monkeypatch):
    source = lines(tmp_path / "in.txt", "..g.g..")
    shardctl.convert(source, tmp_path / "whole", **OPTIONS)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(table_writer.TableWriter, "run", stop)
        with pytest.raises(KeyboardInterrupt):
            shardctl.convert(source, out, **OPTIONS)
    assert shardctl.convert(source, out, **OPTIONS).status == "resumed"
    sums = [(tmp_path / name / "SHA256SUMS").read_bytes() for name in ("whole", "out")]
    assert sums[0] == sums[1]
    assert numbers(out) == [2, 4]


@pytest.mark.thorough
def test_a_merge_that_is_killed_at_any_moment_goes_on(tmp_path, out, monkeypatch):
    source = lines(tmp_path / "in.txt", "..g.g..")
    shardctl.convert(source, tmp_path / "whole", **OPTIONS)
    for part in ("1/2", "2/2"):
        shardctl.convert(source, tmp_path / "built", **OPTIONS, part=part)
    sums = (tmp_path / "whole" / "SHA256SUMS").read_bytes()
    for change in some_changes(first=3, every=3):
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(tmp_path / "built", out)
        if not stopped_at(
            change, "kill", parts, "_finish", lambda to=out: shardctl.finish(to), monkeypatch
        ):
            break
        shardctl.finish(out)
        assert (out / "SHA256SUMS").read_bytes() == sums
        assert numbers(out) == [2, 4]
    assert change > 20


def test_the_first_epoch_of_one_that_arrives_is_that_of_the_whole(tmp_path, out):
    source = lines(tmp_path / "in.txt", "..g.gg..")
    ds = shardctl.snapshot(
        out, source, MIN, wait=False, workers=0, samples_per_shard=8, progress=False
    )
    for shuffle in (False, True):
        loader = ds.loader(4, shuffle=shuffle)
        keys = sorted(key for batch in loader for key in batch["key"])
        assert keys == sorted(sample["key"] for sample in ds.wait())


def test_compact_numbers_them_anew(cli, tmp_path, out):
    shardctl.convert(lines(tmp_path / "in.txt", "..g.g.."), out, **OPTIONS)
    assert (
        cli(
            "convert", tmp_path / "in.txt", out, "--record", "line", "--min-chars", 50, "--explain"
        ).out.count("planned")
        == 0
    )
    assert cli("compact", out).code == 0
    assert numbers(out) == list(range(len(numbers(out))))
    assert PLANNED not in shardctl.open(out).manifest.settings
    assert cli("verify", out, "--level", "deep").code == 0
