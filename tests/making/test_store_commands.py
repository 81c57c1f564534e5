"""verify, inspect, export and repair of a dataset on a store: what they find and show is what they
do of a local folder."""

from __future__ import annotations

import contextlib
import gc
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import CROP
from damage import DAMAGE, SHARD, edit_manifest, file_of, flip
from dataset_facts import expect_whole
from dataset_files import shard_in, shards_in, tables_in
from followed_sources import convert as follow
from followed_sources import files_of, update
from format_2 import as_format_2
from in_this_process import convert, export, repair
from object_server import ObjectServer
from programs import run_command
from store_contents import keys, manifest_on, nothing_is_left, sums_on

import shardctl
from shardctl.errors import DatasetError, ObjectChangedError, StoreError, UsageError
from shardctl.format.dataset_location import open_location
from shardctl.format.names import LEASE_KEY, MANIFEST, STAGING
from shardctl.format.stretches import OpenFile, RemoteFile, footer_bytes, read_tail
from shardctl.making.commit.store_target import StoreTarget
from shardctl.making.repair import Listener
from shardctl.system.folders import hash_file
from shardctl.system.machine import usable_cores
from shardctl.system.scratch import SCRATCH
from shardctl.system.store_lease import hold
from shardctl.system.stores import open_store

BASE = "0123456789ab/"


def put(folder: Path, url: str) -> str:
    """Make what is at a URL what is in a folder. Returns the URL."""
    store = open_store(url)
    there = {
        path.relative_to(folder).as_posix(): path
        for path in filter(Path.is_file, folder.rglob("*"))
    }
    store.delete({entry.name for page in store.pages() for entry in page} - there.keys())
    for key, path in there.items():
        store.put(key, path)
    return url


@pytest.fixture(params=["", BASE], ids=["plain", "format-2"])
def folder(request: pytest.FixtureRequest, dataset: Path, tmp_path: Path) -> Path:
    """A dataset, and one of format 2, all files of which but the manifest are in a folder below."""
    return as_format_2(dataset, tmp_path / "old", request.param) if request.param else dataset


@pytest.fixture
def flat(folder: Path, dataset: Path, tmp_path: Path) -> Path:
    """The same as it is on a disk: there, no dataset of format 2 has such a folder."""
    return folder if folder == dataset else as_format_2(dataset, tmp_path / "flat")


@pytest.fixture
def url(bucket: str, folder: Path) -> str:
    """The dataset on a store."""
    return put(folder, f"{bucket}/data/out")


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder for temporary files: one for all tests, so that they share the processes that
    workers are forked from."""
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield folder


@pytest.fixture(autouse=True)
def nothing_left(temporary: Path) -> Iterator[None]:
    """No command leaves anything in the folder for temporary files."""
    yield
    if _scratch_in(temporary):
        gc.collect()
    assert not _scratch_in(temporary)


def _scratch_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(SCRATCH)]


@pytest.fixture(scope="module")
def many_shards(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 30 shards: more than are brought ahead."""
    out = tmp_path_factory.mktemp("many") / "out"
    convert(photos, out, recipe=CROP, samples_per_shard=2)
    return out


def gets(server: ObjectServer, *endings: str) -> list[dict[str, Any]]:
    return [
        each for each in server.log() if each["method"] == "GET" and each["key"].endswith(endings)
    ]


def told(result: Any, place: object) -> list[Any]:
    """Return findings, without the place of the dataset.

    Of a manifest that cannot be read a store has another advice: what is between may have sent
    something else.
    """
    found = []
    for each in result.findings:
        message = each.message.replace(str(place), "DATASET").replace(f"/{BASE}", "/")
        message = message.partition("; ")[0] if each.kind == "damaged-manifest" else message
        found.append(replace(each, message=message))
    return found


CASES = [(level, damage, "") for level, damage, _, _ in DAMAGE]
CASES += [
    (level, damage, BASE)
    for level, damage, kind, _ in DAMAGE
    if kind in ("damaged-manifest", "missing-shard")
]


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(("level", "damage", "folder"), CASES, indirect=["folder"])
def test_damage_is_found_as_in_a_folder(bucket, folder, flat, level, damage):
    for place in {folder, flat}:
        damage(place)
    here = shardctl.verify(flat, level)
    there = shardctl.verify(put(folder, bucket), level)
    assert told(there, bucket) == told(here, flat)
    assert (there.ok, there.shards, there.samples) == (False, here.shards, here.samples)
    assert SCRATCH not in repr(there)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("level", ["quick", "full", "deep"])
def test_a_whole_dataset_is_whole(url, level):
    heard: list[tuple[int, int]] = []
    result = shardctl.verify(url, level, lambda *done: heard.append(done))
    assert (result.ok, result.findings, result.samples) == (True, (), 60)
    assert heard == [(number, result.shards) for number in range(1, result.shards + 1)]


@pytest.mark.thorough(after=1)
def test_objects_that_do_not_belong_are_warnings(bucket, folder, flat):
    for place in {folder, flat}:
        tables = tables_in(place)
        (tables / "folder").mkdir()
        for path in (tables / "folder", tables, shard_in(place).parent):
            (path / "notes.txt").write_bytes(b"mine")
    result = shardctl.verify(put(folder, bucket), "quick")
    assert result.ok
    assert told(result, bucket) == told(shardctl.verify(flat, "quick"), flat)
    assert result.findings


@pytest.mark.thorough
def test_a_dataset_that_lost_its_manifest_is_damaged(bucket, dataset):
    (dataset / "manifest.json").unlink()
    assert shardctl.verify(put(dataset, bucket)).findings == shardctl.verify(dataset).findings


@pytest.mark.thorough(after=1)
def test_the_quick_check_reads_ends_and_lists_once(url, folder, object_server):
    object_server.clear()
    expect_whole(url, "quick")
    shards = {path.name: path.stat().st_size for path in shards_in(folder, "train")}
    read = gets(object_server, *shards)
    assert sorted(each["key"].rpartition("/")[2] for each in read) == sorted(shards)
    for each in read:
        first, last = each["range"].removeprefix("bytes=").split("-")
        assert int(last) - int(first) + 1 <= 16 << 10 < min(shards.values())
    log = object_server.log()
    assert [each["method"] for each in log if each["key"] != "manifest.json"].count("LIST") == 1
    assert "HEAD" not in [each["method"] for each in log if each["key"].endswith(".arrow")]


def test_a_long_footer_takes_a_second_request():
    sink = pa.BufferOutputStream()
    table = pa.table({"a": range(1000)}).replace_schema_metadata({"long": "x" * 100_000})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    asked: list[tuple[int, int]] = []

    def get(start: int, length: int) -> pa.Buffer:
        asked.append((start, length))
        return pa.py_buffer(data[start : start + length])

    tail = read_tail(len(data), get)
    assert data.endswith(tail)
    assert len(data) > len(tail) == footer_bytes(data) > 100_000
    assert len(asked) == 2
    file = OpenFile(RemoteFile(len(data), tail, get))
    assert pa.ipc.open_file(pa.PythonFile(file)).read_all().num_rows == 1000


@pytest.mark.thorough
def test_the_full_check_reads_each_shard_once(bucket, dataset, object_server):
    put(dataset, bucket)
    object_server.clear()
    expect_whole(bucket, "full")
    read = sorted(each["key"] for each in gets(object_server, ".arrow"))
    assert read == sorted(path.relative_to(dataset).as_posix() for path in dataset.rglob("*.arrow"))


VIEWS: list[tuple[str, ...]] = [
    (),
    ("--split", "val", "--stats", "--json"),
    ("--shard", "1"),
    ("--shard", "1", "--row", "2"),
    ("--shard", "1", "--head", "2"),
    ("--shard", "1", "--where", "label >= 0", "--json"),
    ("--shard", "1", "--columns", "key"),
    ("--head", "3", "--json"),
    ("--where", "label == 2 and index > 5", "--json"),
    ("--history",),
]


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_inspect_shows_what_it_does_of_a_folder(cli, bucket, raw_dataset, view):
    url = put(raw_dataset, f"{bucket}/out")
    here, there = cli("inspect", raw_dataset, *view), cli("inspect", url, *view)
    assert (there.code, there.out) == (0, here.out.replace(str(raw_dataset), url))
    assert (there.err, here.err) == ("", "")


def test_one_sample_costs_one_block(cli, bucket, raw_dataset, object_server):
    url = put(raw_dataset, bucket)
    key = shardctl.open(raw_dataset).take([31], columns=["key"])["key"][0]
    here = cli("inspect", raw_dataset, "--key", key, "--json").json
    object_server.clear()
    assert cli("inspect", url, "--key", key, "--json").json == here
    read = sorted(each["key"].rpartition("/")[2] for each in gets(object_server, ".arrow"))
    shard = shard_in(raw_dataset, here["shard"]).name
    assert read == ["files.arrow", "plan.arrow", "shards.arrow", *[shard] * 2]


def test_inspect_writes_the_same_files(cli, bucket, raw_dataset, tmp_path):
    url, written = put(raw_dataset, f"{bucket}/out"), []
    for number, place in enumerate((raw_dataset, url)):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        for words in (
            ("--head", 4, "--save", folder / "saved", "--images", folder / "sheet.png"),
            ("--html", folder / "page.html"),
        ):
            assert cli("inspect", place, *words).code == 0
        written.append(files_in(folder))
    here, there = written
    there["page.html"] = there["page.html"].replace(url.encode(), str(raw_dataset).encode())
    assert there == here


@pytest.mark.thorough
def test_two_datasets_on_a_store_are_compared(cli, bucket, raw_dataset, dataset):
    one, other = put(raw_dataset, f"{bucket}/a"), put(dataset, f"{bucket}/b")
    here = cli("inspect", raw_dataset, "--diff", dataset, "--json")
    # what it leaves to its end is to be gone, too
    there = run_command("inspect", one, "--diff", other, "--json")
    assert (there.returncode, json.loads(there.stdout)) == (here.code, here.json)


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_shard_on_its_own(cli, url, folder, command):
    """One of format 2 is found below the folder that the manifest names, too."""
    key = shard_in(folder, SHARD).relative_to(folder).as_posix()
    for name in {key, key.removeprefix(BASE)}:
        here, there = cli(command, folder / key), cli(command, f"{url}/{name}")
        shown = [each.out.replace(f"/{BASE}", "/") for each in (here, there)]
        assert (there.code, shown[0].replace(str(folder), url)) == (0, shown[1])
    ran = cli(command, f"{url}/train-00077.arrow")
    assert (ran.code, ran.err.count("\n")) == (3, 1)
    assert "train-00077.arrow: there is no such object" in ran.err
    said = f"a table of a dataset, not a shard; give the folder of the dataset, {url}"
    assert said in cli(command, f"{url}/plan.arrow").err


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("to", "workers", "folder"),
    [("webdataset", 2, ""), ("files", 0, BASE)],
    indirect=["folder"],
)
def test_an_export_is_that_of_a_folder(url, folder, tmp_path, to, workers, object_server):
    here = shardctl.export(folder, tmp_path / "here", to, workers=workers)
    object_server.clear()
    there = shardctl.export(url, tmp_path / "there", to, workers=workers)
    assert files_in(tmp_path / "there") == files_in(tmp_path / "here")
    assert (there.samples, there.bytes, there.counts) == (here.samples, here.bytes, here.counts)
    shards = [path.name for path in shards_in(folder, "train")]
    read = [each["key"] for each in gets(object_server, *shards)]
    assert len(read) == len(set(read)) == 7


@pytest.mark.thorough
def test_an_export_that_was_stopped_goes_on(
    bucket, many_shards, tmp_path, out, object_server, monkeypatch
):
    """There is so little room that shards are brought again for each look that the plan takes, and
    to be written."""
    monkeypatch.setenv("SHARDCTL_SCRATCH_LIMIT", "10kB")
    put(many_shards, bucket)

    def break_off(plan: object) -> None:
        object_server.fault("403", method="GET", key="*/train-00015-*")

    with pytest.raises(StoreError, match=r"train-00015-\w+\.arrow: .* 15 of 30 parts are done"):
        export(bucket, out, "mds", on_plan=break_off)
    object_server.clear()
    export(bucket, out, "mds")
    names = [path.name for path in shards_in(many_shards)]
    early, late = (gets(object_server, names[number]) for number in (3, 18))
    assert len(early) < len(late)
    export(many_shards, tmp_path / "here", "mds")
    assert files_in(out) == files_in(tmp_path / "here")


def test_a_dataset_that_is_replaced_while_it_is_exported(bucket, dataset, tmp_path):
    put(dataset, bucket)

    def replace_it(plan: object) -> None:
        record = json.loads((dataset / "manifest.json").read_text())
        open_store(bucket).put("manifest.json", json.dumps(record).encode())

    with pytest.raises(DatasetError, match=f"{bucket}: was replaced while it was read"):
        export(bucket, tmp_path / "tars", "webdataset", on_plan=replace_it)
    assert not (tmp_path / "tars").exists()


def test_what_is_not_done_on_a_store_is_said(cli, bucket, dataset):
    put(dataset, bucket)
    for command in (
        ("export", bucket, f"{bucket}/there", "--to", "webdataset"),
        ("repair", bucket, "--drop-lost"),
    ):
        ran = cli(*command)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert bucket in ran.err


def test_no_byte_of_a_pruned_sample_stays_on_a_store(source, bucket, cli, object_server):
    url, files = f"{bucket}/out", files_of(source)
    one, data = str(files[7].relative_to(source)), files[7].read_bytes()

    def in_objects() -> list[str]:
        return [key for key in keys(url) if data in open_store(url).get(key).to_pybytes()]

    follow(source, url)
    files[20].unlink()
    update(source, url, keep_generations=3)
    object_server.fault("403", method="PUT", key="*/train-00005-*")
    with pytest.raises(StoreError, match="5 of 10 shards are done"):
        follow(source, url, samples_per_shard=6, shuffle=7, overwrite=True)
    object_server.clear()
    assert len(in_objects()) >= 1
    ran = cli("prune", url, "--key", one)
    assert ran.out.splitlines() == [
        f"removed 1 sample from {url}, in 1 of 10 shards; 58 are left",
        "deleted the earlier generations that were kept: 1",
    ]
    assert in_objects() == []
    nothing_is_left(url, kept=0)
    assert shardctl.verify(url, "deep").findings == ()
    update(source, url)
    assert len(shardctl.open(url)) == 58


@pytest.mark.thorough
def test_no_byte_of_a_pruned_sample_stays_where_the_dataset_was_of_format_2(
    source, bucket, out, tmp_path
):
    follow(source, out)
    url = put(as_format_2(out, tmp_path / "old", BASE), f"{bucket}/out")
    gone = files_of(source)[7]
    one, data = str(gone.relative_to(source)), gone.read_bytes()
    shardctl.prune(url, keys=[one])
    assert [key for key in keys(url) if data in open_store(url).get(key).to_pybytes()] == []
    nothing_is_left(url, kept=0)
    assert shardctl.verify(url, "deep").findings == ()
    assert len(shardctl.open(url)) == 59


def test_what_is_pruned_and_compacted_on_a_store_is_what_it_is_in_a_folder(source, bucket, out):
    url, files = f"{bucket}/out", files_of(source)
    for place in (out, url):
        follow(source, place)
    for path in files[3:30]:
        path.unlink()
    for place in (out, url):
        update(source, place)
        shardctl.prune(place, where="label == 2")
        assert shardctl.compact(place).status == "compacted"
    assert sums_on(url) == (tables_in(out) / "SHA256SUMS").read_bytes()
    assert manifest_on(url)["history"][-1]["command"] == "compact"
    nothing_is_left(url)


def lose_several(root: Path) -> None:
    for name in ("plan.arrow", SHARD):
        flip(file_of(root, name))
    (shard_in(root, "train-00004")).unlink()


REPAIRS: list[tuple[Callable[[Path], object], str]] = [
    (lose_several, BASE),
    (lambda d: (d / "manifest.json").unlink(), ""),
    (edit_manifest, ""),
    (lambda d: shard_in(d, SHARD).rename(d / "lost.arrow"), ""),
    (lambda d: (tables_in(d) / "shards.arrow").write_bytes(b"junk"), BASE),
]


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(("damage", "folder"), REPAIRS, indirect=["folder"])
def test_repair_brings_back_the_bytes(bucket, folder, damage):
    before = files_in(folder)
    damage(folder)
    put(folder, bucket)
    result = repair(bucket)
    assert (result.status, result.unrepaired) == ("repaired", ())
    store = open_store(bucket)
    names = [entry.name for page in store.pages() for entry in page]
    after = {name: store.get(name).to_pybytes() for name in names}
    del before["manifest.json"], after["manifest.json"]
    after.pop("lost.arrow", None)
    assert after == before
    assert shardctl.verify(bucket).ok
    assert SCRATCH not in repr(result)
    assert repair(bucket).status == "whole"


@pytest.mark.thorough
@pytest.mark.parametrize("folder", [BASE], indirect=True)
def test_a_manifest_of_format_2_is_not_rebuilt(bucket, folder):
    edit_manifest(folder)
    put(folder, bucket)
    before = files_in(folder)
    with pytest.raises(DatasetError, match=r"is of format 2; shardctl 1\.0\.0rc1 can rebuild"):
        repair(bucket)
    store = open_store(bucket)
    left = [entry.name for page in store.pages() for entry in page]
    assert {name: store.get(name).to_pybytes() for name in left} == before


def test_an_update_that_was_killed_after_its_commit_survives_the_loss_of_its_manifest(
    source, bucket, monkeypatch
):
    url = f"{bucket}/out"
    convert(source, url, recipe=CROP)
    min(source.rglob("*.jpg")).unlink()

    def killed(target: StoreTarget, job: Path) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(StoreTarget, "discard", killed)
        with pytest.raises(SystemExit):
            convert(source, url, recipe=CROP, update=True, keep_generations=0)
    there = keys(url)
    assert any(key.startswith(STAGING) for key in there)
    open_store(url).delete([MANIFEST])
    assert repair(url).ok
    assert set(keys(url)) == {key for key in there if not key.startswith(STAGING)}


def test_a_tokenizer_goes_with_the_generation_that_has_it(tmp_path, bucket):
    source, url = tmp_path / "in", f"{bucket}/out"
    source.mkdir()
    (source / "0.txt").write_text("some words " * 50)
    shardctl.train_tokenizer(source, tmp_path / "tokenizer.json", vocab_size=300, progress=False)
    steps = [{"name": "tokenize", "tokenizer": str(tmp_path / "tokenizer.json")}]
    options: dict[str, Any] = {"recipe": {"kind": "text", "transform": steps}, "update": True}
    for number in range(1, 5):
        (source / f"{number}.txt").write_text(f"the text {number}")
        convert(source, url, **options)
    there = [each["path"] for each in manifest_on(url)["history"] if each.get("path")]
    assert len(there) == 2
    of_generations = [key for key in keys(url) if key.startswith("generations/")]
    assert sum(key.endswith("/tokenizer.json") for key in of_generations) == 2
    assert all(key.startswith(tuple(there)) for key in of_generations)


def test_a_repair_that_is_not_needed_writes_nothing(bucket, dataset, object_server):
    put(dataset, bucket)
    object_server.clear()
    assert shardctl.repair(bucket).status == "whole"
    written = {each["key"] for each in object_server.log() if each["method"] in ("PUT", "DELETE")}
    assert {key for key in written if key and not key.startswith(".shardctl/")} == set()


@pytest.mark.thorough
def test_repair_waits_for_who_writes(bucket, dataset):
    flip(shard_in(dataset, SHARD))
    store = open_store(put(dataset, bucket))
    heard: list[str] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold(store, LEASE_KEY, None))

        def waiting(owner: str) -> None:
            heard.append(owner)
            stack.close()

        assert repair(bucket, listener=Listener(waiting=waiting)).status == "repaired"
    assert len(heard) == 1


@pytest.mark.thorough
def test_what_is_lost_is_told_and_nothing_is_put(bucket, dataset, cli, source):
    victim = shardctl.open(dataset).take([17], columns=["key"])["key"][0]
    (source / victim).unlink()
    flip(shard_in(dataset, SHARD))
    put(dataset, bucket)
    ran = cli("repair", bucket, "--source", source)
    assert ran.code == 1
    assert f"not repaired: {SHARD}" in ran.out
    assert f"{bucket} is still DAMAGED: 1 file could not be repaired\n" in ran.out
    shard = shard_in(dataset, SHARD)
    stored = open_store(bucket).get(shard.relative_to(dataset).as_posix())
    assert stored.to_pybytes() == shard.read_bytes()


def test_what_is_no_dataset_is_said(cli, bucket):
    for command in ("verify", "inspect", "repair", "export"):
        rest = ["out", "--to", "webdataset"] if command == "export" else []
        for url, code, said in (
            (f"{bucket}/none", 3, f"{bucket}/none: no dataset (there is no manifest.json)"),
            ("s3://no-such-bucket-here/out", 3, "there is no such bucket"),
            ("s3://", 2, "s3://: names no bucket"),
        ):
            ran = cli(command, url, *rest)
            assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1)
            assert said in ran.err
    open_store(bucket).put("begun/.shardctl/job/job.json", b"{}")
    assert "an unfinished conversion" in cli("verify", f"{bucket}/begun").err


FAULTS = [
    ("quick", "403", "LIST", "*", "listing is not permitted (s3:ListBucket)"),
    ("full", "403", "GET", "*train-00003-*", ".arrow: reading is not permitted"),
    ("quick", "expired", "GET", "*train-00003-*", "the credentials have expired"),
]


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(("level", "kind", "method", "key", "said"), FAULTS)
def test_a_store_that_refuses_ends_the_check(
    cli, bucket, dataset, object_server, level, kind, method, key, said
):
    url = put(dataset, f"{bucket}/out")
    object_server.fault(kind, method=method, key=key)
    ran = cli("verify", url, "--level", level)
    assert (ran.code, ran.out, ran.err.count("\n")) == (3, "", 1)
    assert said in ran.err
    assert url in ran.err


@pytest.mark.thorough
def test_faults_that_pass_change_nothing(bucket, dataset, tmp_path, object_server):
    flip(shard_in(dataset, SHARD))
    put(dataset, bucket)
    for kind in ("503", "cut", "reset"):
        object_server.fault(kind, method="GET", share=0.1, size=100)
    assert [each.kind for each in shardctl.verify(bucket, "full").findings] == ["wrong-checksum"]
    assert repair(bucket).status == "repaired"
    expect_whole(bucket, "quick")
    assert export(bucket, tmp_path / "tars", "webdataset").samples == 60


def test_a_shard_that_is_written_anew_after_it_was_listed(bucket, dataset):
    shard = shard_in(dataset, SHARD)
    key = shard.relative_to(dataset).as_posix()
    with open_location(put(dataset, bucket), listed=True) as place:
        flip(shard, -5)
        put(dataset, bucket)
        with pytest.raises(ObjectChangedError, match=f"{bucket}/{key}: has changed since"):
            hash_file(place.folder, key)


@pytest.mark.thorough
def test_the_disk_that_is_used_is_bounded(bucket, many_shards, temporary, monkeypatch):
    put(many_shards, bucket)
    monkeypatch.setenv("SHARDCTL_SCRATCH_LIMIT", "10kB")
    found = []

    def look(done: int, total: int) -> None:
        found.append(len(list(temporary.glob("*/files/cache/files/**/train-*"))))

    assert shardctl.verify(bucket, "full", look).ok
    assert 0 < max(found) <= 8 * usable_cores()
    monkeypatch.setenv("SHARDCTL_SCRATCH_LIMIT", "much")
    with pytest.raises(UsageError, match="SHARDCTL_SCRATCH_LIMIT: 'much' is not a size"):
        shardctl.verify(bucket)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "what", ["*/train-00001-*", "*/shards.arrow", "*/plan.arrow", "*/manifest.json"]
)
@pytest.mark.parametrize("kind", ["garbled", "page", "short", "cut"])
def test_a_wrong_answer_is_asked_for_once_more(
    object_server, bucket, dataset, tmp_path, kind, what
):
    url = put(dataset, f"{bucket}/out")

    def once(call: Any, *given: Any) -> Any:
        object_server.clear()
        object_server.fault(kind, method="GET", key=what, times=1, size=7)
        return call(*given)

    for level in ("quick", "full", "deep"):
        assert not once(shardctl.verify, url, level).findings
    once(shardctl.export, url, tmp_path / "exported", "parquet")
    shardctl.export(dataset, tmp_path / "expected", "parquet")
    here, there = (
        {path.name: path.read_bytes() for path in (tmp_path / name).rglob("*.parquet")}
        for name in ("expected", "exported")
    )
    assert here == there
    once(shardctl.inspect, url)


@pytest.mark.thorough
def test_a_shard_that_is_damaged_on_the_store_is_fetched_twice(object_server, bucket, dataset):
    flip(shard_in(dataset, SHARD))
    url = put(dataset, bucket)
    object_server.clear()
    assert not shardctl.verify(url).ok
    assert len(gets(object_server, shard_in(dataset, SHARD).name)) <= 4
