"""Sources on an object store: the same datasets as from a disk, whatever the network does."""

from __future__ import annotations

import bisect
import contextlib
import gzip
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from annotations import making
from conftest import CROP, examples
from dataset_files import content_of, shard_in, tables_in
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import command_line, convert, export, repair
from object_stores import memory_store, new_bucket
from programs import run_python
from pyarrow import parquet

import shardctl
from shardctl.errors import (
    DatasetError,
    InputError,
    SourceGoneError,
    StorageError,
    StoreError,
    UsageError,
)
from shardctl.making.convert.listener import Listener
from shardctl.sources import files
from shardctl.sources.files import LocalCopies, SourceRoot, folder_of_copies
from shardctl.sources.formats.base import Reading
from shardctl.sources.label_table import load
from shardctl.sources.walk import walk
from shardctl.system import object_cache, stores
from shardctl.system.object_cache import Limits, NewFile, ObjectCache
from shardctl.system.stores import objects, open_store
from shardctl.system.stores.base import Entry
from shardctl.system.stores.listing import list_keys


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files that no other test has."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    files.leave()


def put(url: str, folder: Path) -> str:
    """Copy the files in a folder, or one file, to a URL, and return that."""
    store = open_store("/".join(url.split("/")[:3]))
    key = "/".join(url.split("/")[3:])
    for path in [folder] if folder.is_file() else filter(Path.is_file, folder.rglob("*")):
        store.put(
            "/".join(
                filter(None, (key, "" if path == folder else path.relative_to(folder).as_posix()))
            ),
            path.read_bytes(),
        )
    return url


def same(folder: Path, url: str, tmp_path: Path, **options: Any) -> Path:
    """Convert the same files from a disk and from a store, and return the second dataset, which is
    as the first one is."""
    convert(folder, tmp_path / "on-disk", **options)
    convert(put(url, folder), tmp_path / "from-store", **options)
    assert content_of(tmp_path / "on-disk") == content_of(tmp_path / "from-store")
    return tmp_path / "from-store"


def records(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"text": f"a text with the number {number}", "number": number}
        for number in range(first, first + count)
    ]


def lines_of(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def make_jsonl(folder: Path, _: Path) -> dict[str, Any]:
    for number in range(3):
        lines = lines_of(records(50, 50 * number))
        (folder / f"part-{number}.jsonl").write_bytes(lines)
        (folder / f"zipped-{number}.jsonl.gz").write_bytes(gzip.compress(lines, mtime=0))
    (folder / ".hidden.jsonl").write_bytes(b"{")
    return {}


def make_parquet(folder: Path, _: Path) -> dict[str, Any]:
    table = pa.Table.from_pylist(records(100))
    for split in ("train.parquet", "val.parquet", "test"):
        parquet.write_table(table, folder / split, row_group_size=40)
    (folder / "another").write_bytes(b"neither of them")
    return {"recipe": {"kind": "table"}}


def make_labelled(folder: Path, photos: Path) -> dict[str, Any]:
    names = [*(f"{number}.jpg" for number in range(12)), "an image without an ending"]
    for name, path in zip(names, sorted(photos.rglob("*.jpg")), strict=False):
        shutil.copy(path, folder / name)
    rows = "".join(f"{name},{len(name) % 2}\n" for name in names)
    (folder / "labels.csv").write_text(f"file,label\n{rows}")
    return {}


def make_named_images(folder: Path, photos: Path) -> dict[str, Any]:
    (folder / "images").mkdir()
    paths = sorted(photos.rglob("*.jpg"))[:8]
    for path in paths:
        shutil.copy(path, folder / "images")
    rows = [{"image": f"images/{path.name}", "text": path.name} for path in paths]
    (folder / "rows.jsonl").write_bytes(lines_of(rows))
    return {"recipe": {"kind": "image", "image_field": "image"}}


MAKERS = [make_jsonl, make_labelled, make_parquet, make_named_images]


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__.removeprefix("make_"))
def test_files_on_a_store_give_the_same_dataset(make, photos, bucket, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    made = same(folder, f"{bucket}/a/in", tmp_path, **make(folder, photos))
    assert json.loads((made / "manifest.json").read_bytes())["sources"] == [f"{bucket}/a/in"]


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("described", [True, False], ids=["described", "not described"])
@pytest.mark.parametrize(
    "to", ["mds", "tfrecord", "tfds", "webdataset", "array-record", "megatron"]
)
def test_what_formats_read_beside_their_files_comes_along(photos, bucket, tmp_path, to, described):
    """An export has a shardctl.json; without it a folder has what the format itself has: an index,
    features, tokens."""
    if to == "megatron":
        samples = {"train": [{"tokens": [*range(number + 1)]} for number in range(30)]}
        role = {"role": "tokens", "vocabulary": 500, "eos": 7}
        schema = pa.schema([("tokens", pa.list_(pa.uint32()))])
        shardctl.write(tmp_path / "made", samples, schema, roles={"tokens": role})
    else:
        convert(photos, tmp_path / "made")
    export(tmp_path / "made", tmp_path / "in", to=to)
    if not described:
        (tmp_path / "in" / "shardctl.json").unlink()
    same(tmp_path / "in", f"{bucket}/in", tmp_path)


def make_annotated(folder: Path) -> None:
    """Make images with annotations of every kind."""
    making.photos(folder / "images", "a.png", "b.png", "c.png")
    images = [(1, "images/a.png"), (2, "images/b.png")]
    making.coco_file(folder / "coco.json", images, [making.box(1), making.box(2, (0, 0, 2, 2))])
    files = {
        "labels/classes.txt": "cat\n",
        "masks/classes.txt": "ground\nroad\nsky\n",
        # Roboflow writes ../images for what is right beside the file; no object has .. in its key.
        "data.yaml": "path: .\ntrain: ../images\nval: images/none\nnames: [cat]\n",
    }
    for name in ("a", "b"):
        making.mask(folder / "masks" / f"{name}.png", making.values_of((8, 6)))
        files[f"labels/{name}.txt"] = "0 0.5 0.5 0.5 0.5\n"
        files[f"captions/{name}.txt"] = f"the caption of {name}"
        files[f"Annotations/{name}.xml"] = VOC.format(name)
    for path, text in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)


VOC = (
    "<annotation><filename>{}.png</filename><size><width>8</width><height>6</height><depth>3</depth></size><object>"
    "<name>cat</name><bndbox><xmin>2</xmin><ymin>2</ymin><xmax>4</xmax><ymax>5</ymax></bndbox></object></annotation>"
)


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize(
    "labels",
    [
        "yolo:{}/data.yaml",
        "coco:{}/coco.json",
        "yolo:{}/labels",
        "voc:{}",
        "masks:{}/masks",
        "captions:{}/captions",
    ],
)
def test_annotations_on_a_store_give_the_same_dataset(bucket, tmp_path, labels):
    folder = tmp_path / "all"
    make_annotated(folder)
    url = put(f"{bucket}/all", folder)
    # The fingerprint of masks is made of their sizes and times, not of their bytes; shards.arrow
    # has it.
    apart = {"shards.arrow", "SHA256SUMS"} if labels.startswith("masks") else set()
    found = []
    for place in (folder, url):
        out = tmp_path / f"out-{len(found)}"
        convert(f"{place}/images", out, labels=labels.format(place))
        found.append({name: data for name, data in content_of(out).items() if name not in apart})
    assert found[0] == found[1]
    assert shardctl.open(out).manifest.settings["labels"] == ["none", labels.format(url)]


@pytest.mark.thorough
@pytest.mark.parametrize("stored", ["images", "masks"])
def test_masks_may_be_on_a_disk_and_their_images_on_a_store(bucket, tmp_path, out, stored):
    folder, name = tmp_path / "all", "train-00000"
    make_annotated(folder)
    images, masks = str(folder / "images"), str(folder / "masks")
    convert(images, tmp_path / "on-disk", labels=f"masks:{masks}")
    url = put(f"{bucket}/{stored}", folder / stored)
    images, masks = (url, masks) if stored == "images" else (images, url)
    convert(images, out, labels=f"masks:{masks}")
    before = content_of(out)
    assert before[name] == content_of(tmp_path / "on-disk")[name]
    shard_in(out, name).unlink()
    assert not repair(out).unrepaired
    assert content_of(out) == before


def test_a_labels_file_on_a_store_labels_files_on_a_disk(photos, bucket, tmp_path):
    file, names = tmp_path / "rows.csv", [path.relative_to(photos) for path in photos.rglob("*.*")]
    file.write_text("file,label\n" + "".join(f"{name},{name.name[:1]}\n" for name in names))
    convert(photos, tmp_path / "from-store", labels=put(f"{bucket}/elsewhere/rows.csv", file))
    convert(photos, tmp_path / "on-disk", labels=file)
    assert content_of(tmp_path / "on-disk") == content_of(tmp_path / "from-store")


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.thorough), 2])
def test_photos_in_folders_give_the_same_dataset(photos, bucket, tmp_path, workers, own_folder):
    split = "val=0.2,train=0.8"
    made = same(photos, f"{bucket}/photos", tmp_path, workers=workers, recipe=CROP, split=split)
    assert shardctl.verify(made).ok
    assert not list(own_folder.iterdir())


def test_a_labels_file_that_changes_after_the_listing_is_read_as_it_is_now(bucket):
    store = open_store(bucket)
    store.put("in/labels.csv", b"file_name,label\na.txt,cat\n")
    with files.in_use():
        files.keys_of(f"{bucket}/in")
        store.put("in/labels.csv", b"file_name,label\na.txt,dog\n")
        assert load([(f"{bucket}/in/labels.csv", "")], (), Reading()).classes == ("dog",)


@pytest.mark.thorough
def test_labels_are_those_of_now_though_another_process_has_a_copy(bucket, out):
    store, labels = open_store(bucket), f"{bucket}/labels.csv"
    store.put("in/a.txt", b"text")
    store.put("labels.csv", b"file_name,label\na.txt,cat\n")
    with files.in_use():  # as another conversion of this user would have it
        assert Path(files.local_copy(labels)).read_bytes().endswith(b"cat\n")
        store.put("labels.csv", b"file_name,label\na.txt,dog\n")
        words = command_line("convert", f"{bucket}/in", out, "--labels", labels, "--workers=0")
        subprocess.run(words, check=True, capture_output=True)
    assert shardctl.open(out).classes == ("dog",)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_other_clouds(request, object_server, demo, tmp_path, scheme):
    if scheme == "az":
        url = request.getfixturevalue("container")
    else:
        url = f"gs://{new_bucket(object_server)}"
    same(demo / "texts", f"{url}/texts", tmp_path)


def test_a_folder_of_local_copies_that_is_a_persons_is_refused_and_stays(tmp_path):
    folder = tmp_path / "shardctl-sources-0"
    (folder / "s3").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    (folder / "s3" / "notes.txt").write_text("mine")
    for owner in (
        lambda path: None,
        os.mkfifo,
        lambda path: path.symlink_to(tmp_path / "elsewhere"),
    ):
        (folder / ".owner").unlink(missing_ok=True)
        owner(folder / ".owner")
        with pytest.raises(StorageError, match="has something that is not of shardctl"):
            LocalCopies(str(folder))
        assert (folder / "s3" / "notes.txt").read_text() == "mine"
        assert not (tmp_path / "elsewhere").exists()


def test_a_folder_of_local_copies_is_made_and_removed(tmp_path):
    folder = tmp_path / "shardctl-sources-0"
    LocalCopies(str(folder)).leave()
    assert not folder.exists()
    folder.mkdir(mode=0o700)  # a process was killed when it had just made it
    one, other = LocalCopies(str(folder)), LocalCopies(str(folder))
    (folder / "s3").mkdir()
    one.leave()
    assert (folder / "s3").exists()
    other.leave()
    assert not folder.exists()


@pytest.mark.thorough
def test_an_object_is_fetched_once_for_all_processes(object_server, bucket, tmp_path):
    store = open_store(bucket)
    for number in range(2):
        store.put(f"in/{number}.jsonl", lines_of([{"text": "x" * 1000}] * 3000))
    object_server.clear()
    convert(f"{bucket}/in", tmp_path / "out", workers=2)
    methods = [(each["method"], each["key"][-6:] == ".jsonl") for each in object_server.log()]
    assert methods.count(("GET", True)) == 2
    # Once to see that there is something, and once to list all of it.
    assert sum(method == "LIST" for method, _ in methods) == 2


def test_what_is_above_the_source_need_not_be_permitted(object_server, photos, bucket, tmp_path):
    put(f"{bucket}/a/photos", photos)
    object_server.fault("403", key="*shardctl.json")
    assert convert(f"{bucket}/a/photos", tmp_path / "out").samples == 60


def test_one_object_is_read_without_the_permission_to_list(object_server, bucket, tmp_path):
    open_store(bucket).put("in/lines.jsonl", lines_of(records(20)))
    object_server.fault("403", method="LIST")
    assert convert(f"{bucket}/in/lines.jsonl", tmp_path / "out").samples == 20


@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=pytest.mark.thorough)])
def test_one_object_is_one_file_that_comes_in_parts(bucket, tmp_path, monkeypatch, count):
    small_pieces(monkeypatch)
    file = tmp_path / "lines.jsonl"
    file.write_bytes(lines_of(records(count)))
    same(file, f"{bucket}/deep/lines.jsonl", tmp_path)


def test_the_sources_of_several_buckets(object_server, tmp_path):
    folders = [tmp_path / name for name in ("alpha", "beta")]
    urls = [f"s3://{new_bucket(object_server)}" for _ in folders]
    for url, folder in zip(urls, folders, strict=True):
        folder.mkdir()
        (folder / f"{folder.name}.jsonl").write_bytes(lines_of(records(10)))
        put(url, folder)
    convert(urls, tmp_path / "from-store")
    convert(folders, tmp_path / "on-disk")
    assert content_of(tmp_path / "from-store") == content_of(tmp_path / "on-disk")


SLOW = pytest.mark.thorough


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind", ["cut", pytest.param("503", marks=SLOW), pytest.param("reset", marks=SLOW)]
)
def test_a_network_that_fails_now_and_then_changes_nothing(
    object_server, photos, bucket, tmp_path, kind
):
    object_server.fault(kind, share=0.05, seed=1, size=700, method="GET")
    same(photos, f"{bucket}/photos", tmp_path)
    assert kind != "503" or any(each["status"] != 200 for each in object_server.log())


def rejects(dataset: Path) -> dict[str, str]:
    found = [
        json.loads(line)
        for line in (tables_in(dataset) / "rejects.jsonl").read_bytes().splitlines()
    ]
    return {reject["source"]: reject["error"] for reject in found}


def test_an_object_that_alone_is_not_permitted_is_a_reject(object_server, photos, bucket, out):
    put(f"{bucket}/photos", photos)
    one = sorted(photos.rglob("*.jpg"))[5].relative_to(photos).as_posix()
    object_server.fault("403", method="GET", key=f"photos/{one}")
    result = convert(f"{bucket}/photos", out)
    assert (result.samples, rejects(out)) == (59, {one: "unreadable"})
    assert "s3:GetObject" in (tables_in(out) / "rejects.jsonl").read_text()


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    ("fault", "method", "message"),
    [
        ("403", "GET", "reading is not permitted (s3:GetObject)"),
        ("403", "LIST", "listing is not permitted (s3:ListBucket)"),
        ("expired", "GET", "the credentials have expired"),
        ("503", "GET", "overloaded or out of order"),
    ],
)
def test_what_befalls_all_objects_stops_the_conversion(
    object_server, photos, bucket, out, cli, monkeypatch, fault, method, message
):
    put(f"{bucket}/photos", photos)
    object_server.fault(fault, method=method)
    monkeypatch.setenv("SHARDCTL_STORE_RETRY", "0.3")
    done = cli("convert", f"{bucket}/photos", out, "--workers", "2")
    assert done.code == 3
    assert message in done.err
    assert bucket in done.err
    assert not (out / "manifest.json").exists()


@pytest.mark.parametrize(
    "fault", ["expired", pytest.param("403", marks=SLOW), pytest.param("503", marks=SLOW)]
)
def test_a_conversion_that_was_stopped_goes_on(
    object_server, photos, bucket, tmp_path, monkeypatch, fault
):
    url, made = put(f"{bucket}/photos", photos), tmp_path / "from-store"
    monkeypatch.setenv("SHARDCTL_STORE_RETRY", "0.3")
    stopped = Listener(progress=lambda _: object_server.fault(fault, method="GET"))
    with pytest.raises(SourceGoneError):
        convert(url, made, listener=stopped)
    object_server.clear()
    assert convert(url, made).status == "resumed"
    assert 0 < len({each["key"] for each in object_server.log() if each["method"] == "GET"}) < 60
    convert(photos, tmp_path / "on-disk")
    assert content_of(made) == content_of(tmp_path / "on-disk")


def test_what_becomes_of_objects_that_change_or_go(photos, bucket, out):
    put(f"{bucket}/photos", photos)
    store = open_store(f"{bucket}/photos")
    gone, other = (
        path.relative_to(photos).as_posix() for path in sorted(photos.rglob("*.jpg"))[3:5]
    )

    def change(_: object) -> None:
        store.delete([gone])
        store.put(other, (photos / gone).read_bytes())

    convert(f"{bucket}/photos", out, listener=Listener(announce=change))
    assert rejects(out) == {gone: "vanished", other: "changed"}


def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have objects of more than 1 KiB come by several requests."""
    for module in (objects, files):
        monkeypatch.setattr(module, "PIECE", 1 << 10)


@pytest.mark.parametrize("when", ["between pieces", "after it was looked at"])
def test_a_large_object_that_changes_while_it_is_read(bucket, out, monkeypatch, when):
    small_pieces(monkeypatch)
    store, write = open_store(bucket), NewFile.write
    for name in ("lines", "others"):
        store.put(f"in/{name}.jsonl", lines_of(records(50, 100)))

    def change() -> None:
        store.put("in/lines.jsonl", lines_of(records(50, 200)))

    listener = Listener(announce=lambda _: (change(), files.leave()))
    if when == "between pieces":
        monkeypatch.setattr(NewFile, "write", lambda *given: (change(), write(*given)))
        listener = Listener()
    convert(f"{bucket}/in", out, listener=listener)
    assert rejects(out) == {"lines.jsonl": "changed"}


@pytest.mark.thorough
def test_an_update_follows_the_versions_of_objects(object_server, demo, bucket, tmp_path, out):
    source = Path(shutil.copytree(demo / "texts", tmp_path / "texts"))
    url = put(f"{bucket}/texts", source)
    convert(url, out)
    assert convert(url, out).status == "up-to-date"
    first, second, third = sorted(source.rglob("*.txt"))[:3]
    first.write_bytes(third.read_bytes())
    second.rename(second.with_name("new.txt"))
    put(url, source)
    open_store(url).delete([second.relative_to(source).as_posix()])
    with pytest.raises(DatasetError, match="update=True"):
        convert(url, out)
    object_server.clear()
    assert convert(url, out, update=True).status == "updated"
    assert sum(request["method"] == "GET" for request in object_server.log()) < 20
    convert(source, tmp_path / "on-disk")
    updated, fresh = (
        {row["key"]: row["text"] for row in shardctl.open(each)}
        for each in (out, tmp_path / "on-disk")
    )
    assert updated == fresh


@pytest.mark.thorough
def test_inputs_are_appended(bucket, out):
    store = open_store(bucket)
    store.put("in/a.jsonl", lines_of(records(10)))
    convert(f"{bucket}/in", out)
    store.put("in/b.jsonl", lines_of(records(10, 10)))
    result = convert(f"{bucket}/in", out, append=True)
    assert (result.status, result.samples) == ("updated", 20)


@pytest.mark.thorough
def test_a_lost_shard_is_made_again_from_a_store(photos, bucket, out):
    convert(put(f"{bucket}/photos", photos), out)
    before = content_of(out)
    for path in (shard_in(out, "train-00002"), tables_in(out) / "files.arrow"):
        path.unlink()
    assert not repair(out).unrepaired
    assert content_of(out) == before


@pytest.mark.thorough
def test_parts_of_a_conversion_and_snapshots_read_from_a_store(photos, bucket, tmp_path):
    url = put(f"{bucket}/photos", photos)
    for part in ("1/2", "2/2"):
        convert(url, tmp_path / "from-store", part=part)
    shardctl.finish(tmp_path / "from-store")
    convert(photos, tmp_path / "on-disk")
    assert content_of(tmp_path / "from-store") == content_of(tmp_path / "on-disk")
    for _ in range(2):
        assert len(shardctl.snapshot(tmp_path / "snapshot", source=url, workers=0)) == 60


@pytest.mark.thorough
def test_objects_make_room_for_others(bucket, tmp_path, monkeypatch, own_folder):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number}.jsonl").write_bytes(lines_of(records(200, number)))
    size = (folder / "11.jsonl").stat().st_size
    monkeypatch.setenv(files.LIMIT, str(3 * size))
    monkeypatch.setattr(files, "LEAST_HELD", 1)
    monkeypatch.setattr(files, "HELD_BYTES", size)
    monkeypatch.setattr("shardctl.making.shards.inputs.AHEAD_BYTES", size)
    held = []

    def measure(_: object) -> None:
        copies = Path(folder_of_copies(), "s3").rglob("*.jsonl")
        held.append(sum(path.stat().st_size for path in copies))

    listener = Listener(progress=measure)
    same(folder, f"{bucket}/in", tmp_path, samples_per_shard=100, listener=listener)
    assert 0 < max(held) <= 4 * size


def copy_of(url: str) -> str:
    """Return where the copy of an object lies."""
    return f"{folder_of_copies()}/{url.replace('://', '/')}"


KILLED = """
import os, signal, sys
from shardctl.sources import files
for url in sys.argv[1:]:
    files.local_copy(url)
print("brought", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.thorough
def test_what_a_killed_process_has_left_is_removed(bucket, own_folder):
    urls = [f"{bucket}/{name}" for name in "ab"]
    paths = [Path(copy_of(url)) for url in urls]
    for name in "ab":
        open_store(bucket).put(name, b"something")
    killed = run_python(KILLED, *urls)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "brought\n"), killed.stderr
    assert all(path.exists() for path in paths)
    with files.in_use():
        assert Path(files.local_copy(urls[0])).read_bytes() == b"something"
        assert not paths[1].exists()
    assert not list(own_folder.iterdir())


@pytest.mark.thorough
@pytest.mark.parametrize("told", [0, 20])
def test_who_fetches_an_object_and_stands_still_holds_up_no_other(
    bucket, own_folder, monkeypatch, told
):
    """Who waits looks again after 0.6 of its patience, in which the other one has got a bit more
    `told` times."""
    open_store(bucket).put("a", b"something")
    path = copy_of(f"{bucket}/a")
    looks = 0

    def look_again(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks <= told:
            object_cache.tell_progress(lock, "a", looks)

    clock = SimpleNamespace(
        monotonic=lambda: 0.6 * looks * object_cache.PATIENCE,
        sleep=look_again,
        time_ns=time.time_ns,
    )
    with files.in_use():
        files.local_copy(f"{bucket}/a")
        Path(path).unlink()
        other = ObjectCache(
            folder_of_copies(), Limits(None, 1, 0, 1), lambda _: contextlib.nullcontext()
        )
        with other.locked(path) as lock:
            monkeypatch.setattr(object_cache, "time", clock)
            files.local_copy(f"{bucket}/a")
        assert Path(path).read_bytes() == b"something"
    assert looks == told + 2


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("ftp://host/in", UsageError, "is not the URL of an object store"),
        ("s3://", UsageError, "names no bucket"),
        ("s3://there-is-no-such-bucket/in", StoreError, "there is no such bucket"),
        ("{bucket}/nothing", InputError, "no object has this key, or one that begins with it"),
    ],
)
def test_a_source_that_leads_nowhere(bucket, tmp_path, url, error, message):
    with pytest.raises(error, match=message):
        convert(url.format(bucket=bucket), tmp_path / "out")


def test_a_url_that_was_made_a_path_is_told(tmp_path):
    with pytest.raises(UsageError, match="give the URL as a string"):
        shardctl.convert(Path("s3://bucket/in"), tmp_path / "out")


# --- the walk ---


NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="/", exclude_categories=("Cc", "Cs")),
    min_size=1,
    max_size=6,
)


KEYS = st.lists(
    st.lists(NAMES.filter(lambda name: name not in (".", "..")), min_size=1, max_size=4).map(
        "/".join
    ),
    unique=True,
    min_size=1,
    max_size=40,
)


@given(keys=KEYS)
@examples(60)
def test_objects_are_walked_as_files_are(keys):
    inside = memory_store()
    for key in keys:
        inside.put(f"in/{key}", b"data")
    with pytest.MonkeyPatch.context() as patched, files.in_use():
        patched.setattr(stores, "open_store", lambda url: inside)
        stores.forget_clients()
        assert files.is_folder("s3://bucket/in")
        notices: list[str] = []
        walked = walk([SourceRoot("s3://bucket/in")], notices.append)
        found = [file for of_folder in walked for file in of_folder]
    visible = [key for key in keys if not any(part.startswith(".") for part in key.split("/"))]

    def place(key: str) -> list[tuple[bool, str]]:
        """The files of a folder by name, then its folders by name."""
        *above, name = key.split("/")
        return [*((True, folder) for folder in above), (False, name)]

    assert [(file.path, file.folder, file.size) for file in found] == [
        (key, key.rpartition("/")[0], 4) for key in sorted(visible, key=place)
    ]
    assert all(file.mtime_ns > 0 for file in found)
    folders = {str(folder) for key in keys for folder in PurePosixPath(key).parents}
    assert {file.path for file in found if file.fault} == {key for key in visible if key in folders}
    assert bool(notices) == (len(visible) < len(keys))


class Generated:
    """A store of many keys that are made when they are asked for."""

    url = "s3://generated"
    seeks = True
    requests = 0

    def __init__(self, names: Callable[[int], str], count: int) -> None:
        self._names, self._numbers = names, range(count)

    def pages(self, prefix: str = "", after: str = "") -> Iterator[list[Entry]]:
        numbers = self._numbers[bisect.bisect(self._numbers, after, key=self._names) :]
        for first in range(0, len(numbers), 1000):
            self.requests += 1
            names = map(self._names, numbers[first : first + 1000])
            yield [Entry(name, 10, f'"{name}"') for name in names]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    ["in/img_{:08}.jpg", "in/{0:05x}/{0:08}", "in/part-{:08}/of/data.txt"],
    ids=["numbers", "hashes", "folders"],
)
def test_many_keys_are_listed_by_few_requests(tmp_path, name):
    store: Any = Generated(name.format, 60_000)
    counts: list[int] = []
    keys = list_keys(store, "in/", tmp_path, counts.append)
    assert len(keys) == counts[-1] == 60_000
    for number in (0, 31_234, 59_999):
        key = name.format(number)
        assert keys.get(key) == Entry(key, 10, f'"{key}"')
    assert keys.get("in/") is keys.get("z") is None
    names: list[str] = []
    while len(names) < len(keys):
        names += keys.rows(len(names), len(keys))[0]
    assert names == sorted({name.format(number) for number in range(60_000)})
    assert store.requests < 1_000


# --- how a job and a dataset name their sources ---


@pytest.mark.parametrize(
    ("given", "recorded", "root"),
    [
        ("{url}/", "{url}", "{url}"),
        ("{url}/in/", "{url}/in", "{url}/in"),
        ("{url}/in/a.jsonl", "{url}/in/a.jsonl", "{url}/in"),
        ("{here}/other/../in/", "{here}/in", "{here}/in"),
        ("{here}/link", "{here}/link", "{here}/in"),
        ("{here}/above/in", "{here}/in", "{here}/in"),
        ("{here}/in/a.jsonl", "{here}/in/a.jsonl", "{here}/in"),
    ],
)
def test_a_job_and_a_dataset_name_sources_as_people_do(
    bucket, tmp_path, out, given, recorded, root
):
    folder = tmp_path / "here"
    for name in ("other", "in"):
        (folder / name).mkdir(parents=True)
    (folder / "in" / "a.jsonl").write_bytes(lines_of(records(8)))
    put(bucket, folder)
    (folder / "link").symlink_to("in")
    (folder / "above").symlink_to(folder)
    source, recorded, root = (
        text.format(url=bucket, here=folder) for text in (given, recorded, root)
    )
    bases = set()

    def look(_: object) -> None:
        for path in tmp_path.rglob("job.json"):
            bases.update(each["path"] for each in json.loads(path.read_bytes())["bases"])

    convert(source, out, samples_per_shard=4, listener=Listener(progress=look))
    assert bases == {root}
    assert json.loads((out / "manifest.json").read_bytes())["sources"] == [recorded]
