"""Every folder of files keeps the same promises, wherever it is: on this machine, on a store, on a
store behind a cache."""

import contextlib
import fcntl
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardctl.errors import UsageError
from shardctl.format.dataset_location import from_json, to_json
from shardctl.format.on_store import DatasetOnStore, Form
from shardctl.system.folders import (
    Folder,
    FolderHere,
    LocalFolder,
    StoreFolder,
    hash_file,
    is_regular_file,
)
from shardctl.system.locations import here_only
from shardctl.system.stores import client_of, forget_clients
from shardctl.system.stores.base import PIECE

LARGE = os.urandom(PIECE + 1)
FILES = {"a.bin": b"0123456789", "empty": b"", "large": LARGE, "ä ö.txt": b"text", "in/b": b"below"}

KINDS = ["local", "on a store", "whole", "blocks"]


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    """A folder with FILES, of each kind."""
    kind = str(request.param)
    if kind == "local":
        for name, data in FILES.items():
            (tmp_path / "in").mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(data)
        yield LocalFolder(tmp_path)
        return
    url = f"{request.getfixturevalue('bucket')}/out"
    for name, data in FILES.items():
        client_of(url).put(name, data)
    with contextlib.closing(
        on_store(url, tmp_path, "blocks" if kind == "blocks" else "whole")
    ) as there:
        yield StoreFolder(url) if kind == "on a store" else there
    forget_clients()


def on_store(url: str, scratch: Path, form: Form) -> DatasetOnStore:
    """Return the files below a URL as those of a dataset, with copies in a folder."""
    files = scratch / "scratch" / "files"
    files.mkdir(parents=True)
    dataset = DatasetOnStore(url, "", form, str(files), 1 << 30, "", (), listed=False)
    dataset.work.mkdir()
    return dataset


def test_a_file_is_read_as_it_was_written(folder):
    for name, data in FILES.items():
        assert folder.read(name).to_pybytes() == data
        assert b"".join(chunk.to_pybytes() for chunk in folder.chunks(name)) == data
        with folder.open(name) as file:
            assert (file.size(), file.read()) == (len(data), data)
    for stretch, data in (((3,), b"3456789"), ((3, 4), b"3456"), ((8, 100), b"89")):
        assert folder.read("a.bin", *stretch).to_pybytes() == data
    with folder.open("a.bin") as file:
        file.seek(5)
        assert (file.read(2), file.tell()) == (b"56", 7)


def test_what_is_known_of_a_file(folder):
    for name, data in FILES.items():
        found = folder.stat(name)
        assert found is not None
        assert (found.name, found.size, found.kind) == (name, len(data), "file")
        assert is_regular_file(folder, name)
    assert folder.stat("none") is None
    assert not is_regular_file(folder, "none")
    assert {"a.bin", "empty", "large", "ä ö.txt", "in"} <= set(folder.names())


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    "use",
    [
        lambda folder: folder.read("none"),
        lambda folder: list(folder.chunks("none")),
        lambda folder: folder.open("none"),
        lambda folder: hash_file(folder, "none"),
    ],
)
def test_what_is_not_there(folder, use):
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*none'"):
        use(folder)


def test_a_folder_is_a_value(folder):
    again = pickle.loads(pickle.dumps(folder))
    assert (again, hash(again)) == (folder, hash(folder))
    assert again.read("a.bin").to_pybytes() == b"0123456789"
    assert folder.shown("a.bin") == f"{folder.text}/a.bin"
    assert folder.shown() == folder.text
    assert (folder.local is None) == folder.text.startswith("s3://")


@pytest.mark.thorough
def test_a_folder_that_can_be_changed(folder):
    if isinstance(folder, StoreFolder):
        pytest.skip("it is changed by the calls of its store")
    changed: FolderHere = folder  # type: ignore[assignment]  # all but the one above
    (changed.work / "new").write_bytes(b"new")
    (changed.work / "new").replace(changed.work / "a.bin")
    assert changed.read("a.bin").to_pybytes() == changed.path("a.bin").read_bytes() == b"new"
    found = changed.stat("a.bin")
    assert found is not None
    assert found.size == 3
    assert {"a.bin"} <= set(changed.names())
    with changed.prefetch(["empty", "large"]) as note:
        note(0)
        assert changed.path("large").read_bytes() == LARGE


@pytest.mark.thorough
def test_another_process_of_the_command_is_told_the_folder(folder):
    if isinstance(folder, LocalFolder | DatasetOnStore):
        assert from_json(to_json(folder)) == folder


def test_an_object_may_have_any_name(bucket, tmp_path):
    """Names of the cache's own files are of objects too, and of each only one is fetched."""
    names = [".space", ".new", ".locks", "files", "work"]
    for name in names:
        client_of(f"{bucket}/out").put(name, name.encode())
    with contextlib.closing(on_store(f"{bucket}/out", tmp_path, "whole")) as folder:
        for name in names:
            assert folder.path(name).read_bytes() == folder.read(name).to_pybytes() == name.encode()
        assert set(names) <= set(folder.names())


def test_one_dataset_is_closed_and_the_other_one_goes_on(bucket, tmp_path):
    client_of(bucket).put("one/a", b"1")
    client_of(bucket).put("two/a", b"2")
    one, two = (on_store(f"{bucket}/{name}", tmp_path / name, "whole") for name in ("one", "two"))
    kept = one.path("a")
    two.path("a")
    two.close()
    # who would remove it needs this lock
    with open(kept, "rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    one.close()
    with open(kept, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_a_file_system_has_that_a_store_has_not(tmp_path):
    folder = LocalFolder(tmp_path)
    (tmp_path / "file").write_bytes(b"123")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "nowhere").symlink_to("nothing")
    (tmp_path / "folder").mkdir()
    (tmp_path / "way").symlink_to("folder")
    os.mkfifo(tmp_path / "pipe")
    kinds = {
        name: found and (found.kind, found.size)
        for name in sorted(folder.names())
        for found in [folder.stat(name)]
    }
    assert kinds == {
        "file": ("file", 3),
        "folder": ("folder", 0),
        "link": ("link", 3),
        "nowhere": None,
        "pipe": ("other", 0),
        "way": ("other", 0),
    }
    assert not is_regular_file(folder, "link")
    for use in (folder.read, folder.open, lambda name: list(folder.chunks(name))):
        with pytest.raises(OSError, match="not an ordinary file"):
            use("pipe")


def test_a_folder_with_the_work_on_a_dataset_on_a_store_has_its_url(tmp_path):
    folder = LocalFolder(tmp_path, "s3://bucket/out")
    assert folder.shown() == folder.text == "s3://bucket/out"
    assert folder.shown("a") == "s3://bucket/out/a"
    assert folder.path("a") == tmp_path / "a"


def test_a_command_for_file_systems_refuses_a_url(tmp_path):
    assert here_only(str(tmp_path), "prune") == tmp_path
    with pytest.raises(
        UsageError,
        match="s3://bucket/out: prune works on no store; copy the dataset to a local",
    ):
        here_only("s3://bucket/out", "prune")
