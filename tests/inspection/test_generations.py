"""The generations of a dataset, and the files that each of them has."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from damage import flip
from dataset_files import shards_in, tables_in
from in_this_process import convert

import shardctl
from shardctl.format.dataset_folder import generation_in
from shardctl.format.tables import ShardTable


@pytest.fixture(scope="module")
def grown(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset that was converted, and brought up to date with a photo less; its first generation
    is kept."""
    folder = tmp_path_factory.mktemp("grown")
    shutil.copytree(photos, folder / "in")
    options: dict[str, Any] = {"split": "train=0.7,val=0.3", "samples_per_shard": 10}
    convert(folder / "in", folder / "out", **options)
    min((folder / "in").rglob("*.jpg")).unlink()
    convert(folder / "in", folder / "out", update=True, **options)
    return folder / "out"


def files_of(cli: Any, *given: object) -> list[str]:
    """Return the files that are listed, which are the same as text and as JSON."""
    printed = cli("inspect", *given, "--files").out.splitlines()
    assert cli("inspect", *given, "--files", "--json").json == {"files": printed}
    return list(printed)


def test_the_files_of_a_dataset_are_all_that_a_copy_needs(grown, cli, tmp_path):
    """In their order: the manifest, which makes it a dataset, is the last one."""
    files = files_of(cli, grown)
    assert files[-1] == "manifest.json"
    assert len({*files}) == len(files)
    copy = tmp_path / "copy"
    for name in files:
        assert not (copy / "manifest.json").exists()
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(grown / name, copy / name)
    assert shardctl.verify(copy, "full").findings == ()
    assert files_of(cli, copy) == files
    (copy / ".shardctl" / "repair-12345678").mkdir(parents=True)
    convert(grown.parent / "in", copy, resize=8, overwrite=True, keep_generations=2)
    assert [each.number for each in shardctl.open(copy).manifest.kept] == [1, 2]
    assert not any((copy / ".shardctl").glob("repair-*")), "what a killed process left is swept"


@pytest.mark.parametrize("number", [1, 2])
def test_the_files_of_a_split_open_with_pyarrow(grown, cli, number):
    files = files_of(cli, grown, "--split", "val", "--generation", number)
    shards = pa.concat_tables(pa.ipc.open_file(grown / name).read_all() for name in files)
    ds = shardctl.open(grown, "val", generation=number)
    assert shards["key"].to_pylist() == ds.take(range(len(ds)), columns=["key"])["key"]
    refused = cli("inspect", grown, "--files", "--split", "vla")
    assert (refused.code, "no split 'vla'; did you mean val?" in refused.err) == (2, True)


def test_the_files_of_an_earlier_generation(grown, cli):
    """By its number, and by the path of its folder."""
    first = generation_in(grown, 1)
    files = files_of(cli, grown, "--generation", 1)
    assert set(ShardTable(first).paths) < set(files) != set(files_of(cli, grown))
    assert first.places.of("plan.arrow") in files
    assert files_of(cli, grown / first.places.tables) == files
    present = {path.relative_to(grown).as_posix() for path in shards_in(grown)}
    assert 0 < len(present & set(files)) < len(present), "shards that did not change"


def test_everything_can_be_asked_of_an_earlier_generation(grown, cli):
    ds = shardctl.open(grown, generation=1)
    assert (len(ds), len(shardctl.open(grown))) == (60, 59)
    for number, samples in ((1, 60), (2, 59)):
        found = cli("inspect", grown, "--generation", number, "--json").json
        assert found["samples"] == samples
    (key,) = set(ds.take(range(60), columns=["key"])["key"]) - {
        sample["key"] for sample in shardctl.open(grown)
    }
    assert cli("inspect", grown, "--key", key).code == 3
    found = cli("inspect", grown, "--generation", 1, "--key", key, "--json").json
    assert found["values"]["key"] == key
    assert ds[found["index"]]["key"] == key


def test_a_generation_that_is_not_there_is_refused(grown, cli):
    refused = cli("inspect", grown, "--generation", 3)
    assert refused.code == 3
    assert "generation 3 is not there, only 1, 2; --keep-generations N keeps more" in refused.err
    (shard, *_) = shards_in(grown)
    refused = cli("inspect", shard, "--generation", 1)
    assert (refused.code, "leave out --generation" in refused.err) == (2, True)


def test_the_history_says_which_generations_are_there(grown, cli):
    listed = cli("inspect", grown, "--history", "--json").json["generations"]
    assert [(each["number"], each["command"], each["there"]) for each in listed] == [
        (1, "convert", True),
        (2, "update", True),
    ]
    assert [grown / each["path"] for each in listed] == [
        tables_in(grown / listed[0]["path"]),
        tables_in(grown),
    ]
    _, *rows = cli("inspect", grown, "--history").out.splitlines()
    assert [(row.split()[0], row.split()[-1]) for row in rows] == [("1", "kept"), ("2", "present")]


def test_only_the_manifest_says_which_generations_are_there(grown, cli, tmp_path):
    """Its copy beside the tables does not know that no earlier one is kept by now."""
    copy, options = tmp_path / "copy", {"split": "train=0.7,val=0.3", "samples_per_shard": 10}
    shutil.copytree(grown, copy)
    convert(grown.parent / "in", copy, update=True, keep_generations=0, **options)
    assert shardctl.open(copy).manifest.kept == ()
    listed = cli("inspect", copy, "--history", "--json").json["generations"]
    assert [each["there"] for each in listed] == [False, True]
    key = "no such key"
    for command in (["prune", copy, "--key", key, "--dry-run"], ["prune", copy, "--key", key]):
        assert cli(*command).err.count("no sample has the key") == 1
    shardctl.compact(copy)
    manifest = shardctl.open(copy).manifest
    assert (manifest.keep, manifest.kept) == (0, ())
    shards_in(copy)[0].unlink()
    assert shardctl.repair(copy, sources=[grown.parent / "in"]).ok
    assert shardctl.open(copy).manifest.keep == 0
    flip(tables_in(copy) / "manifest.json")
    assert len(shardctl.open(copy)) == 59, "a damaged copy stops no reader"
    assert not shardctl.verify(copy, "quick").ok
    assert shardctl.repair(copy).ok


def test_a_repair_does_not_name_generations_that_are_gone(grown, tmp_path):
    copy, options = tmp_path / "copy", {"split": "train=0.7,val=0.3", "samples_per_shard": 10}
    shutil.copytree(grown, copy)
    convert(grown.parent / "in", copy, update=True, keep_generations=0, **options)
    (copy / "manifest.json").unlink()
    assert shardctl.repair(copy).ok
    assert shardctl.open(copy).manifest.kept == ()


@pytest.mark.parametrize("lost", ["all of it", "shards.arrow"])
def test_a_repair_leaves_other_generations_and_the_setting_as_they_are(photos, tmp_path, lost):
    """Also those that are older than one that a person has deleted."""
    source, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(photos, source)
    convert(source, out, samples_per_shard=10, keep_generations=3)
    for _ in range(3):
        min(source.rglob("*.jpg")).unlink()
        convert(source, out, update=True, samples_per_shard=10, keep_generations=3)
    shards = {path.name for path in (out / "data").iterdir()}
    second = sorted((out / "generations").iterdir())[1]
    shutil.rmtree(second) if lost == "all of it" else (second / lost).unlink()
    (out / "manifest.json").unlink()
    assert shardctl.repair(out).ok
    manifest = shardctl.open(out).manifest
    there = [1, 3] if lost == "all of it" else [1, 2, 3]
    assert (manifest.keep, [each.number for each in manifest.kept]) == (3, there)
    assert len(shardctl.open(out, generation=1)) == len(shardctl.open(out)) + 3
    if lost != "all of it":  # which shards it has is not known: none goes
        assert {path.name for path in (out / "data").iterdir()} == shards


def test_no_shard_of_an_earlier_generation_goes_while_its_table_is_damaged(photos, tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(photos, source)
    for update in (False, True):
        convert(source, out, update=update, samples_per_shard=10, keep_generations=2)
        min(source.rglob("*.jpg")).unlink()
    first = generation_in(out, 1)
    present = {path.relative_to(out).as_posix() for path in shards_in(out)}
    left = next(path for path in ShardTable(first).paths if path not in present)
    table = first.path("shards.arrow")
    other = f"{left.removesuffix('.arrow')[:-1]}{'1' if left[-7] == '0' else '0'}.arrow"
    table.write_bytes(table.read_bytes().replace(left.encode(), other.encode()))
    convert(source, out, update=True, samples_per_shard=10, keep_generations=2)
    assert (out / left).exists()


@pytest.mark.parametrize("name", ["data", "generations"])
@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_folder_of_a_dataset_is_told_from_data_of_another_tool(grown, cli, command, name):
    ran = cli(command, grown / name)
    assert ran.code == 3
    assert ran.err.endswith(f"{name}: no such dataset or shard; {grown} is a dataset\n")
