"""verify, inspect, export and repair of a dataset on a store: what they find and show is what they do of a local folder."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from object_server import ObjectServer
from test_verification import DAMAGE, SHARD

import shardctl
from shardctl.absent import SCRATCH
from shardctl.stores import open_store

BASE = "0123456789ab/"


def put(folder: Path, url: str, base: str = "") -> str:
    """Make what is at a URL what is in a folder: all but the manifest below `base`. Returns the URL."""
    store = open_store(url)
    here = {entry.key for page in store.pages() for entry in page}
    there = {(name if name == "manifest.json" else base + name): folder / name for name in os.listdir(folder)}
    store.delete(here - there.keys())
    for key, path in there.items():
        store.put(key, path)
    return url


def with_base(folder: Path) -> None:
    """Make the manifest in a folder that of a dataset that lies below a folder of its own."""
    from dataclasses import replace

    from shardctl.manifest import Manifest

    (folder / "manifest.json").write_text(replace(Manifest.load(folder), base=BASE).to_json())


@pytest.fixture(params=["plain", "base"])
def placed(request: pytest.FixtureRequest, bucket: str, dataset: Path) -> tuple[str, str]:
    """A URL for the dataset, and the folder below it that all files but the manifest belong in."""
    if request.param == "plain":
        return f"{bucket}/data/out", ""
    with_base(dataset)
    return f"{bucket}/out", BASE


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder for temporary files: one for all tests, so that they share the processes that workers are forked from."""
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield folder


@pytest.fixture(autouse=True)
def nothing_left(temporary: Path) -> Iterator[None]:
    """No command leaves anything in the folder for temporary files."""
    yield
    gc.collect()
    assert [path.name for path in temporary.iterdir() if path.name.startswith(SCRATCH)] == []


def gets(server: ObjectServer, *endings: str) -> list[dict[str, Any]]:
    return [each for each in server.log() if each["method"] == "GET" and each["key"].endswith(endings)]


def told(result: Any, url: str, base: str, folder: Path) -> list[tuple[Any, ...]]:
    """Return findings, with the places that a store has in the place of local ones."""
    found = []
    for each in result.findings:
        message = each.message.replace(f"{folder}/manifest.json", f"{url}/manifest.json")
        message = message.replace(f"{folder}/", f"{url}/{base}").replace(str(folder), url)
        found.append((each.severity, each.shard, each.block, each.row, each.key, each.kind, message, each.source))
    return found


CASES = [(level, damage, "") for level, damage, _, _ in DAMAGE]
CASES += [(level, damage, BASE) for level, damage, kind, _ in DAMAGE if kind in ("damaged-manifest", "missing-shard")]


@pytest.mark.parametrize(("level", "damage", "base"), CASES)
def test_damage_is_found_as_in_a_folder(
    bucket: str, dataset: Path, level: str, damage: Callable[[Path], object], base: str
) -> None:
    if base:
        with_base(dataset)
    damage(dataset)
    here, there = shardctl.verify(dataset, level), shardctl.verify(put(dataset, bucket, base), level)
    assert told(there, bucket, base, dataset) == told(here, bucket, base, dataset)
    assert (there.ok, there.shards, there.samples) == (False, here.shards, here.samples)
    assert SCRATCH not in repr(there)


@pytest.mark.parametrize("level", ["quick", "full", "deep"])
def test_a_whole_dataset_is_whole(placed: tuple[str, str], dataset: Path, level: str) -> None:
    url, base = placed
    heard: list[tuple[int, int]] = []
    result = shardctl.verify(put(dataset, url, base), level, lambda done, total: heard.append((done, total)))
    assert (result.ok, result.findings, result.samples) == (True, (), 60)
    assert heard == [(number, result.shards) for number in range(1, result.shards + 1)]


def test_objects_that_do_not_belong_are_warnings(placed: tuple[str, str], dataset: Path) -> None:
    url, base = placed
    put(dataset, url, base)
    open_store(url).put(f"{base}notes.txt", b"mine")
    open_store(url).put(f"{base}folder/notes.txt", b"mine")
    result = shardctl.verify(url, "quick")
    assert result.ok
    assert [each.message.partition(" ")[0] for each in result.findings] == ["folder", "notes.txt"]


def test_a_dataset_that_lost_its_manifest_is_damaged(bucket: str, dataset: Path) -> None:
    (dataset / "manifest.json").unlink()
    assert shardctl.verify(put(dataset, bucket)).findings == shardctl.verify(dataset).findings


def test_the_quick_check_reads_ends_and_lists_once(placed: tuple[str, str], dataset: Path, object_server: ObjectServer) -> None:
    url, base = placed
    put(dataset, url, base)
    object_server.clear()
    assert shardctl.verify(url, "quick").ok
    shards = {path.name for path in dataset.glob("train-*")}
    read = gets(object_server, *shards)
    assert {each["key"].rpartition("/")[2] for each in read} == shards
    assert len(read) == len(shards)
    smallest = min((dataset / name).stat().st_size for name in shards)
    for each in read:
        first, last = each["range"].removeprefix("bytes=").split("-")
        assert int(last) - int(first) + 1 <= 16 << 10 < smallest
    methods = [each["method"] for each in object_server.log() if each["key"] != "manifest.json"]
    assert methods.count("LIST") == 1
    assert "HEAD" not in [each["method"] for each in object_server.log() if each["key"].endswith(".arrow")]


def test_the_full_check_reads_each_shard_once(bucket: str, dataset: Path, object_server: ObjectServer) -> None:
    put(dataset, bucket)
    object_server.clear()
    assert shardctl.verify(bucket, "full").ok
    read = sorted(each["key"] for each in gets(object_server, ".arrow"))
    assert read == sorted(path.name for path in dataset.glob("*.arrow"))


VIEWS: list[tuple[str, ...]] = [
    (),
    ("--split", "val", "--stats", "--json"),
    ("--shard", "1"),
    ("--shard", "1", "--block", "0", "--json"),
    ("--shard", "1", "--row", "2"),
    ("--head", "3", "--json"),
    ("--where", "label == 2 and index > 5", "--json"),
    ("--columns", "key,label"),
    ("--history",),
]


@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_inspect_shows_what_it_does_of_a_folder(cli: Any, bucket: str, raw_dataset: Path, view: tuple[str, ...]) -> None:
    put(raw_dataset, f"{bucket}/out")
    here, there = cli("inspect", raw_dataset, *view), cli("inspect", f"{bucket}/out", *view)
    assert (there.code, there.out) == (here.code, here.out.replace(str(raw_dataset), f"{bucket}/out")) == (0, there.out)
    assert (there.err, here.err) == ("", "")


def test_one_sample_costs_one_block(cli: Any, bucket: str, raw_dataset: Path, object_server: ObjectServer) -> None:
    put(raw_dataset, f"{bucket}/out")
    key = shardctl.open(raw_dataset).take([31], columns=["key"])["key"][0]
    here = cli("inspect", raw_dataset, "--key", key, "--json").json
    object_server.clear()
    there = cli("inspect", f"{bucket}/out", "--key", key, "--json").json
    assert there == here
    read = [each["key"] for each in gets(object_server, ".arrow")]
    assert sorted(read) == sorted(["out/shards.arrow", "out/files.arrow", "out/plan.arrow", *[f"out/{here['shard']}"] * 2])


def test_inspect_writes_the_same_files(cli: Any, bucket: str, raw_dataset: Path, tmp_path: Path) -> None:
    put(raw_dataset, f"{bucket}/out")
    written = {}
    for place, name in ((raw_dataset, "here"), (f"{bucket}/out", "there")):
        folder = tmp_path / name
        folder.mkdir()
        assert cli("inspect", place, "--head", "4", "--save", folder / "saved", "--images", folder / "sheet.png").code == 0
        assert cli("inspect", place, "--html", folder / "page.html").code == 0
        written[name] = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    here, there = written["here"], written["there"]
    there["page.html"] = there["page.html"].replace(f"{bucket}/out".encode(), str(raw_dataset).encode())
    assert there == here


def test_two_datasets_on_a_store_are_compared(cli: Any, bucket: str, raw_dataset: Path, dataset: Path) -> None:
    put(raw_dataset, f"{bucket}/a")
    put(dataset, f"{bucket}/b")
    here = cli("inspect", raw_dataset, "--diff", dataset, "--json")
    command = [sys.executable, "-m", "shardctl", "inspect", f"{bucket}/a", "--diff", f"{bucket}/b", "--json"]
    there = subprocess.run(command, capture_output=True, text=True)  # what it leaves to its end is to be gone, too
    assert (there.returncode, json.loads(there.stdout)) == (here.code, here.json)


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_shard_on_its_own(cli: Any, bucket: str, dataset: Path, command: str) -> None:
    put(dataset, f"{bucket}/out")
    here, there = cli(command, dataset / SHARD), cli(command, f"{bucket}/out/{SHARD}")
    assert (there.code, there.out) == (0, here.out.replace(str(dataset), f"{bucket}/out"))
    ran = cli(command, f"{bucket}/out/train-00077.arrow")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert f"{bucket}/out/train-00077.arrow: there is no such object" in ran.err
    ran = cli(command, f"{bucket}/out/plan.arrow")
    assert (
        f"{bucket}/out/plan.arrow: a table of a dataset, not a shard; give the folder of the dataset, {bucket}/out" in ran.err
    )
