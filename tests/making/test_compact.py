"""After many updates, `compact` gives the layout of a fresh conversion, by copying rows alone."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from damage import flip
from dataset_facts import expect_whole, shards_of, sums
from dataset_files import tables_in
from followed_sources import convert, files_of, update, write_lines
from in_this_process import repair
from samples_of import samples_of
from stopping import some_changes, stops
from token_samples import packed_blocks, write_packed

import shardctl
from shardctl.errors import DatasetError, UsageError
from shardctl.making.rewrite import compact


def layout_of(out: Path) -> list[tuple[str, list[str]]]:
    """The shards, each with its keys in their order."""
    opened, first, found = shardctl.open(out), 0, []
    for entry in shards_of(out):
        found.append((entry.name, opened.take(range(first, first + entry.rows), ["key"])["key"]))
        first += entry.rows
    return found


def keys_in_order(out: Path) -> list[str]:
    return [key for _, keys in layout_of(out) for key in keys]


def change(source: Path, out: Path, held: Path, **options: Any) -> None:
    """Take most files away and bring them back in several updates, in a random order; one stays
    away."""
    rng, files = random.Random(7), files_of(source)
    away = [file for number, file in enumerate(files) if number % 6 > 1]
    rng.shuffle(away)
    held.mkdir()
    for number, file in enumerate(away):
        shutil.move(file, held / str(number))
    convert(source, out, **options)
    for number, file in enumerate(away[:-1]):
        shutil.move(held / str(number), file)
        if number % 15 == 14:
            update(source, out, **options)
    update(source, out, **options)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"split": "train=0.6,val=0.4"},
    {"shuffle": 5},
    {"recipe": {"store": "raw", "variants": 2, "transform": [{"name": "random_crop", "size": 16}]}},
    {
        "recipe": {
            "store": "png",
            "compression": "zstd:1",
            "transform": [{"name": "resize", "size": 16}],
        }
    },
]


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("options", OPTIONS)
def test_the_layout_is_that_of_a_fresh_conversion(source, tmp_path, out, cli, options):
    fresh = tmp_path / "fresh"
    change(source, out, tmp_path / "held", **options)
    convert(source, fresh, **options)
    assert layout_of(out) != layout_of(fresh)
    before = samples_of(out)
    dry = cli("compact", out, "--dry-run", "--json").json
    result = shardctl.compact(out)
    assert (result.status, result.samples) == ("compacted", len(before))
    assert result.shards == dry["shards"]
    assert layout_of(out) == layout_of(fresh)
    assert samples_of(out) == before == samples_of(fresh)
    expect_whole(out, level="deep")
    assert shardctl.compact(out).status == "up-to-date"
    assert convert(source, out, **options).status == "up-to-date"
    assert shardctl.open(out).generation.command == "compact"
    one, other = (json.loads((root / "manifest.json").read_text()) for root in (out, fresh))
    for name in ("samples", "inputs", "rejected", "class_counts", "fields", "jpeg", "fingerprint"):
        assert one.get(name) == other.get(name), name


@pytest.mark.thorough
def test_a_compacted_dataset_can_be_repaired_and_follows_its_source(source, tmp_path, out):
    change(source, out, tmp_path / "held")
    shardctl.compact(out)
    before = sums(out)
    for shard in list(shards_of(out))[::2]:
        (out / shard.path).unlink()
    assert repair(out).status == "repaired"
    assert sums(out) == before
    files_of(source)[11].unlink()
    files_of(source)[40].touch()
    update(source, out)
    convert(source, tmp_path / "fresh")
    assert samples_of(out) == samples_of(tmp_path / "fresh")


@pytest.mark.thorough
def test_lines_are_put_into_the_order_of_their_files(tmp_path, out):
    source, fresh = tmp_path / "in", tmp_path / "fresh"
    for number in (5, 2, 8, 1, 9):
        lines: list[Any] = [{"text": f"{number} {n}"} for n in range(25)]
        lines[7] = "no JSON"
        write_lines(source / f"day-{number}.jsonl", [*lines, ""])
        update(source, out, samples_per_shard=10)
    assert len(shards_of(out)) > 13
    before = samples_of(out)
    shardctl.compact(out)
    convert(source, fresh, samples_per_shard=10)
    assert samples_of(out) == before == samples_of(fresh)
    assert keys_in_order(out) == keys_in_order(fresh)
    expect_whole(out)
    assert (tables_in(out) / "rejects.jsonl").read_text() == (
        tables_in(fresh) / "rejects.jsonl"
    ).read_text()
    for shard in shards_of(out):
        (out / shard.path).unlink()
    assert repair(out).status == "repaired"


def test_samples_without_a_source_fill_their_shards_again(out):
    shardctl.write(out, [{"key": f"k{n:03}", "n": n} for n in range(100)], samples_per_shard=10)
    shardctl.prune(out, where="n < 70 and n > 5")
    shardctl.compact(out)
    assert [entry.rows for entry in shards_of(out)] == [9, 9, 9, 9]
    expect_whole(out)
    assert shardctl.open(out).take(range(36), ["n"])["n"].tolist() == [*range(6), *range(70, 100)]


def test_a_dataset_without_samples_is_in_order_after_that(source, out):
    convert(source, out)
    shardctl.prune(out, keys=[sample["key"] for sample in shardctl.open(out)])
    assert [shardctl.compact(out).status for _ in range(2)][1] == "up-to-date"
    expect_whole(out)


def test_damage_is_not_copied(source, tmp_path, out):
    change(source, out, tmp_path / "held")
    flip(out / next(iter(shards_of(out))).path)
    with pytest.raises(DatasetError, match="is damaged; run `shardctl repair` first"):
        shardctl.compact(out)
    assert repair(out).status == "repaired"
    assert shardctl.compact(out).status == "compacted"


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["kill", "interrupt"])
def test_a_compaction_that_is_stopped_anywhere_has_done_all_or_nothing(
    source, tmp_path, monkeypatch, how
):
    before, options = tmp_path / "before", {"samples_per_shard": 3, "labels": "none"}
    for file in files_of(source)[8:]:
        file.unlink()
    first = files_of(source)[0].rename(tmp_path / "first")
    convert(source, before, **options)
    first.rename(source / "0.jpg")
    update(source, before, **options)
    expected = samples_of(before)
    changes, call = some_changes(how == "kill", 4), shardctl.compact
    for out in stops(changes, how, compact, "_written", before, call, monkeypatch):
        assert samples_of(out) == expected
        shardctl.compact(out)
        assert samples_of(out) == expected
    assert keys_in_order(tmp_path / "out")[0] == "0.jpg"


def test_what_cannot_be_moved_is_refused(tmp_path, out, cli):
    convert(write_lines(tmp_path / "in.jsonl", [{"text": "a"}] * 50), out, shuffle=1)
    with pytest.raises(UsageError, match="its records were shuffled in their shards"):
        shardctl.compact(out)
    packed = write_packed(tmp_path / "tokens", packed_blocks({"a": "a document", "b": "another"}))
    with pytest.raises(UsageError, match="its samples are packed shard by shard"):
        shardctl.compact(packed)
    assert cli("compact", tmp_path / "nothing").code == 3
    (tmp_path / "folder").mkdir()
    assert "not a dataset (it has no manifest.json)" in cli("compact", tmp_path / "folder").err
    assert not list((tmp_path / "folder").iterdir())
