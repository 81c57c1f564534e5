"""Datasets that earlier commits made: they open, or they are refused with the version that reads
them (earlier/README.md)."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_facts import expect_whole, keys, tree
from dataset_files import shard_in, shards_in, tables_in
from followed_sources import write
from format_2 import as_format_2
from in_this_process import convert
from PIL import Image
from stopping import stop_after, stopped_at

import shardctl
from shardctl.errors import DatasetError
from shardctl.images.codecs import backend
from shardctl.making.commit.target import Target
from shardctl.making.convert import Listener

EARLIER = Path(__file__).parent / "earlier"

REFUSED = ("eb0362ab", "cd8e6d4f")
OPENED = ("e7c2c638", "8884cb86", "277d4520", "7ea9dfe6")
WITH_UPDATES = OPENED[1:]


@pytest.fixture
def unpacked(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(EARLIER / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "all"


def test_every_archive_is_tested():
    assert {path.name.partition(".")[0] for path in EARLIER.glob("*.tar.xz")} == {*REFUSED, *OPENED}
    readme = (EARLIER / "README.md").read_text()
    assert all(f"| `{commit}` |" in readme for commit in (*REFUSED, *OPENED))


@pytest.mark.parametrize("unpacked", REFUSED, indirect=True)
def test_version_1_is_refused_with_what_to_do(unpacked):
    said = r"format version 1; .* reads version 2.*convert the sources again"
    for call in (shardctl.open, shardctl.inspect):
        with pytest.raises(DatasetError, match=said):
            call(unpacked / "raw")
    (finding,) = shardctl.verify(unpacked / "raw").findings
    assert re.search(said, finding.message)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("unpacked", OPENED, indirect=True)
def test_version_2_opens_whole_with_the_values_of_its_sources(unpacked):
    sources, photos = unpacked / "sources", unpacked / "sources" / "photos"
    datasets = {path.name for path in unpacked.iterdir()} - {"sources"}
    assert datasets - {"tokens"} == {"jpeg", "lines", "raw", "source", "texts"}
    opened = {name: shardctl.open(unpacked / name) for name in datasets}
    for name, ds in opened.items():
        assert shardctl.verify(unpacked / name, level="deep").findings == ()
        assert shardctl.inspect(unpacked / name).samples == len(ds) > 0
    kept, raw = opened["source"], opened["raw"]
    assert {kept.classes[sample["label"]] for sample in kept} == {"cats", "dogs"}
    assert {split.name for split in raw.manifest.splits} == {"train", "val"}
    for ds, part in ((kept, None), (raw, (2, 0, 18, 16))):
        for sample in ds:
            with Image.open(photos / sample["key"]) as picture:
                pixels = np.asarray(picture.crop(part) if part else picture)
                assert np.array_equal(sample["image"], pixels)
    batch = next(iter(raw.loader(batch_size=6, shuffle=True, seed=0)))
    assert batch["image"].shape == (6, 16, 16, 3)
    texts = {sample["key"]: sample["text"] for sample in opened["texts"]}
    assert texts == {path.name: path.read_text() for path in (sources / "texts").iterdir()}
    lines = [{name: row[name] for name in ("text", "id", "score")} for row in opened["lines"]]
    told = (sources / "lines.jsonl").read_text().splitlines()
    assert lines == [json.loads(line) for line in told]
    if "tokens" in datasets:
        tokens = np.concatenate([sample["tokens"] for sample in opened["tokens"]])
        assert b"line 0" in bytes(tokens.clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("unpacked", OPENED, indirect=True)
def test_damage_in_version_2_is_found_and_repaired_from_its_sources(unpacked):
    dataset = unpacked / "raw"
    shard = shard_in(dataset, "train-00000")
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert not shardctl.verify(dataset).ok
    assert shardctl.repair(dataset, sources=[unpacked / "sources" / "photos"], workers=0).ok
    assert shard.read_bytes() == whole


def inodes(shards: list[Path]) -> dict[Path, int]:
    return {shard: shard.stat().st_ino for shard in shards}


def expect_version_3(dataset: Path, before: dict[Path, int]) -> None:
    """Expect tables of version 3 alone, and no shard of before but in its place."""
    assert json.loads((dataset / "manifest.json").read_text())["format_version"] == 3
    assert tables_in(dataset).parent == dataset / "generations"
    left = {path for path in dataset.iterdir() if path.is_file()} - {dataset / "manifest.json"}
    assert inodes(sorted(left)).items() <= before.items()
    assert not (dataset / ".shardctl").exists()
    expect_whole(dataset, "deep")


@pytest.mark.parametrize("unpacked", WITH_UPDATES, indirect=True)
def test_version_2_follows_its_sources(unpacked):
    dataset, photos = unpacked / "raw", unpacked / "sources" / "photos"
    before, old_keys = inodes(shards_in(dataset)), keys(dataset)
    manifest = json.loads((dataset / "manifest.json").read_text())
    shutil.copy(photos / "cats" / "0.png", photos / "cats" / "9.png")

    def update() -> Any:
        given = {"crop": 16, "store": "raw", "split": "train=0.5,val=0.5", "shuffle": 1}
        moved = {"moved_from": manifest["sources"], "update": True, "workers": 0}
        return shardctl.convert(photos, dataset, **given, **moved)

    made_by = manifest["environment"]
    libraries = ", ".join(backend.libraries())
    if (made_by["imaging"], made_by["libraries"]) == (backend.require_one(), libraries):
        result = update()
        assert (result.status, result.samples) == ("updated", 7)
        expect_version_3(dataset, before)
        assert [each["key"] for each in shardctl.open(dataset, generation=1)] == old_keys
        assert inodes(list(before)) == before, "shards are not copied"
    else:
        with pytest.raises(DatasetError, match="other versions made it"):
            update()
    assert shardctl.verify(dataset).ok


@pytest.mark.parametrize("unpacked", OPENED, indirect=True)
def test_version_2_is_compacted_and_pruned(unpacked):
    """Where a generation was kept, that opens by its path until it is pruned, too."""
    dataset, photo = unpacked / "source", unpacked / "sources" / "photos" / "cats" / "0.png"
    before, old_keys = inodes(shards_in(dataset)), keys(dataset)
    kept = dataset / "generations" / "00001"
    shutil.copytree(dataset, kept, ignore=lambda *_: ["generations"])
    shardctl.compact(dataset)
    expect_version_3(dataset, before)
    assert inodes(shards_in(dataset)) == before, "shards are not copied"
    assert keys(kept) == old_keys
    assert shardctl.prune(dataset, keys=["cats/0.png"]).removed == 1
    expect_version_3(dataset, before)
    assert keys(dataset) == [key for key in old_keys if key != "cats/0.png"]
    assert not any(photo.read_bytes() in data for data in tree(dataset).values())


@pytest.mark.parametrize("unpacked", OPENED[-1:], indirect=True)
def test_an_upgrade_that_is_killed_before_its_commit_loses_nothing(unpacked, monkeypatch):
    dataset = unpacked / "source"
    before = inodes(shards_in(dataset))
    compact = partial(shardctl.compact, dataset)
    assert stopped_at(0, "kill", Target, "replace_manifest", compact, monkeypatch)
    assert shardctl.verify(dataset).ok
    compact()
    expect_version_3(dataset, before)
    assert inodes(shards_in(dataset)) == before


@pytest.mark.parametrize("unpacked", OPENED[-1:], indirect=True)
def test_version_2_needs_no_record_of_updates_and_a_damaged_one_gives_way(unpacked):
    dataset, photos = unpacked / "source", unpacked / "sources" / "photos"
    (dataset / "update.arrows").unlink()
    shardctl.compact(dataset)
    expect_version_3(dataset, inodes(shards_in(dataset)))
    (unpacked / "raw" / "shards.arrow").write_bytes(b"ARROW1")
    assert shardctl.convert(photos, unpacked / "raw", overwrite=True, workers=0).samples == 6
    assert shardctl.verify(unpacked / "raw", "deep").ok


def test_a_job_that_version_2_has_begun_is_none_that_is_done(photos, tmp_path):
    """It has no id, and neither has the dataset that is there."""
    made, out = tmp_path / "made", tmp_path / "out"
    convert(photos, made, resize=8)
    again = partial(convert, photos, resize=16, overwrite=True, samples_per_shard=10)
    with pytest.raises(KeyboardInterrupt):
        again(made, listener=Listener(progress=stop_after(10)))
    (record,) = made.glob(".shardctl/*/job.json")
    job = json.loads(record.read_text())
    del job["id"]
    record.write_text(json.dumps(job))
    shutil.copytree(made / ".shardctl", as_format_2(made, out) / ".shardctl", dirs_exist_ok=True)
    assert again(out).samples == 60
    assert min(shardctl.open(out)[0]["image"].shape[:2]) == 16


@pytest.mark.parametrize("unpacked", OPENED[-1:], indirect=True)
@pytest.mark.parametrize("beside", ["raw", ".raw.shardctl", ".raw.shardctl.old"])
def test_an_unfinished_commit_of_version_2_is_refused_by_name(beside, unpacked, cli):
    dataset, photos = unpacked / "raw", unpacked / "sources" / "photos"
    write(unpacked / beside / ".shardctl" / ("0" * 32) / "replaced.json", "{}")
    before = tree(unpacked)
    for command in (
        ("convert", photos, dataset),
        ("convert", photos, dataset, "--update"),
        ("finish", dataset),
        ("repair", dataset),
        ("compact", dataset),
        ("prune", dataset, "--key", "cats/0.png"),
    ):
        ran = cli(*command)
        assert ran.code == 3
        assert "shardctl 1.0.0rc1 was stopped" in ran.err
        assert "complete it with that version" in ran.err
    assert tree(unpacked) == before
    (dataset / "manifest.json").unlink()
    with pytest.raises(DatasetError, match=r"1\.0\.0rc1 was stopped"):
        shardctl.open(dataset)
