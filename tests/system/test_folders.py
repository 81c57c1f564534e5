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
from shardctl.format.dataset_folder import DatasetFolder
from shardctl.format.dataset_location import from_json, to_json
from shardctl.format.names import Places
from shardctl.format.on_store import LISTED, DatasetOnStore, Form
from shardctl.system.folders import (
    Folder,
    LocalFolder,
    hash_file,
    is_regular_file,
)
from shardctl.system.locations import here_only
from shardctl.system.stores import client_of, forget_clients
from shardctl.system.stores.base import PIECE
from shardctl.system.stores.listing import list_keys

LARGE = os.urandom(PIECE + 1)
FILES = {"a.bin": b"0123456789", "empty": b"", "large": LARGE, "ä ö.txt": b"text", "in/b": b"below"}


@pytest.fixture(params=["local", "whole", "blocks"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    """A folder with FILES, of each kind."""
    kind = request.param
    if kind == "local":
        (tmp_path / "in").mkdir()
        for name, data in FILES.items():
            (tmp_path / name).write_bytes(data)
        yield DatasetFolder(tmp_path)
        return
    url = put_files(request.getfixturevalue("bucket"), FILES)
    with contextlib.closing(on_store(url, tmp_path, kind)) as there:
        yield there
    forget_clients()


def put_files(bucket: str, files: dict[str, bytes]) -> str:
    """Write files to a store, and return the URL of their folder."""
    for name, data in files.items():
        client_of(f"{bucket}/out").put(name, data)
    return f"{bucket}/out"


def on_store(url: str, scratch: Path, form: Form) -> DatasetOnStore:
    """Return the files below a URL as those of a dataset, with copies in a folder."""
    files = scratch / "scratch" / "files"
    files.mkdir(parents=True)
    dataset = DatasetOnStore(url, Places(), form, str(files), 1 << 30, "", (), listed=True)
    dataset.work.mkdir()
    (files / LISTED).mkdir()
    list_keys(client_of(url), "", files / LISTED)
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
        assert (found.name, found.size, found.kind) == (name, len(data), "file")
        assert is_regular_file(folder, name)
    assert folder.stat("none") is None
    assert not is_regular_file(folder, "none")
    assert {"a.bin", "empty", "large", "ä ö.txt", "in"} <= set(folder.names())


def test_what_is_not_there(folder):
    for use in (
        folder.read,
        lambda name: list(folder.chunks(name)),
        folder.open,
        lambda name: hash_file(folder, name),
    ):
        with pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*none'"):
            use("none")


def test_a_folder_is_a_value(folder, tmp_path):
    again = pickle.loads(pickle.dumps(folder))
    assert (again, hash(again)) == (folder, hash(folder))
    assert again.read("a.bin").to_pybytes() == b"0123456789"
    working = LocalFolder(tmp_path, "s3://bucket/out")  # with the work on a dataset on a store
    assert (working.text, working.path("a")) == ("s3://bucket/out", tmp_path / "a")
    for each in (folder, working):
        assert each.shown("a.bin") == f"{each.text}/a.bin"
        assert each.shown() == each.text
    assert (folder.local is None) == folder.text.startswith("s3://")
    assert from_json(to_json(folder)) == folder  # another process is told of it
    assert here_only(str(tmp_path), "prune") == tmp_path
    with pytest.raises(UsageError, match="prune works on no store"):
        here_only("s3://bucket/out", "prune")


@pytest.mark.thorough
def test_a_folder_that_can_be_changed(folder):
    (folder.work / "new").write_bytes(b"new")
    (folder.work / "new").replace(folder.work / "a.bin")
    assert folder.read("a.bin").to_pybytes() == folder.path("a.bin").read_bytes() == b"new"
    assert folder.stat("a.bin").size == 3
    assert "a.bin" in folder.names()
    with folder.prefetch(["empty", "large"]) as note:
        note(0)
        assert folder.path("large").read_bytes() == LARGE


def test_an_object_may_have_any_name(bucket, tmp_path):
    """Names of the cache's own files are of objects too, and of each only one is fetched."""
    files = {name: name.encode() for name in (".bytes", ".new", ".locks", "files", "work")}
    url = put_files(bucket, files)
    with contextlib.closing(on_store(url, tmp_path, "whole")) as folder:
        for name, data in files.items():
            assert folder.path(name).read_bytes() == folder.read(name).to_pybytes() == data
        assert set(files) <= set(folder.names())


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
    (tmp_path / "folder").mkdir()
    for link, target in (("link", "file"), ("nowhere", "nothing"), ("way", "folder")):
        (tmp_path / link).symlink_to(target)
    os.mkfifo(tmp_path / "pipe")
    found = {name: folder.stat(name) for name in folder.names()}
    assert {name: each and (each.kind, each.size) for name, each in found.items()} == {
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
