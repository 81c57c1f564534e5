"""What commands say where something is wrong on a store: whole sentences, with the places that a
person has named."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from damage import file_of
from object_server import ObjectServer

import shardctl
from shardctl.sources import files
from shardctl.system.stores import open_store

LINES = b"".join(b'{"text": "%d"}\n' % number for number in range(8))

SHARD = "train-00001"

COPIES = ("shardctl-sources-", "shardctl-scratch-")
"""How the folders begin in which local copies are: no message speaks of them."""


@pytest.fixture(scope="module", autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder for temporary files: one for all tests, so that they share the processes that
    workers are forked from."""
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder
        files.leave()


@dataclass(frozen=True)
class World:
    """A bucket with two files of lines, in/, and a dataset of them, out/, as they are in `built`;
    and what may befall them."""

    bucket: str
    server: ObjectServer
    built: Path
    folder: Path
    patch: pytest.MonkeyPatch

    def key(self, name: str) -> str:
        """Return the key of a file of the dataset by what it is called."""
        return file_of(self.built / "out", name).relative_to(self.built).as_posix()

    def put(self, key: str, data: bytes) -> None:
        open_store(self.bucket).put(key, data)

    def delete(self, key: str) -> None:
        open_store(self.bucket).delete([key])

    def cut(self, key: str) -> None:
        """Leave out the last bytes of an object."""
        self.put(key, open_store(self.bucket).get(key).to_pybytes()[:-8])

    def refuse(self, kind: str, method: str = "*", key: str = "*") -> None:
        """Have the server refuse some requests."""
        self.patch.setenv("SHARDCTL_STORE_RETRY", "0.3")
        self.server.fault(kind, method=method, key=key)

    def fill_disk(self) -> None:
        """Have the disk with temporary files say that it has 100 bytes left."""
        usage, full = shutil.disk_usage, SimpleNamespace(total=1000, used=900, free=100)
        self.patch.setattr(
            shutil,
            "disk_usage",
            lambda place: full if tempfile.tempdir in str(place) else usage(place),
        )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    for name in "ab":
        (folder / f"in/{name}.jsonl").parent.mkdir(exist_ok=True)
        (folder / f"in/{name}.jsonl").write_bytes(LINES)
    shardctl.convert(folder / "in", folder / "out", workers=0, samples_per_shard=4)
    return folder


@pytest.fixture
def world(
    bucket: str,
    object_server: ObjectServer,
    built: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    store = open_store(bucket)
    for path in filter(Path.is_file, built.rglob("*")):
        store.put(path.relative_to(built).as_posix(), path)
    return World(bucket, object_server, built, tmp_path, monkeypatch)


Change = Callable[[World], object]

CONVERT = "convert BUCKET/in FOLDER/out --workers 0"
WRITE = "convert FOLDER/lines.jsonl BUCKET/new --workers 0"
VERIFY = "verify BUCKET/out --level quick"
EXPORT = "export BUCKET/out FOLDER/tars --to webdataset --workers 0"


def nothing(_: World) -> None:
    """What befalls a store mostly."""


CASES: list[tuple[int, str, Change]] = [
    (3, "convert s3://none-such/in FOLDER/out", nothing),
    (3, "convert BUCKET/none FOLDER/out", nothing),
    (2, "convert BUCKET/in/../x FOLDER/out", nothing),
    (3, f"{CONVERT} --labels BUCKET/none.csv", nothing),
    (3, CONVERT, lambda w: w.refuse("403", "LIST")),
    (3, CONVERT, lambda w: w.refuse("403", "GET")),
    (3, CONVERT, lambda w: w.refuse("503", "GET")),
    (3, CONVERT, lambda w: w.fill_disk()),
    (2, "convert BUCKET/in/a.jsonl BUCKET/in --workers 0", nothing),
    (3, WRITE, lambda w: w.refuse("403", "PUT")),
    (3, WRITE, lambda w: w.refuse("unconditional", "PUT")),
    (3, WRITE, lambda w: w.put("new/notes.txt", b"mine")),
    (3, WRITE.replace("new", "out"), nothing),
    (3, "verify BUCKET/none", nothing),
    (3, VERIFY, lambda w: w.refuse("expired", "GET", f"*{SHARD}*")),
    (1, VERIFY, lambda w: w.delete(w.key(SHARD))),
    (1, VERIFY, lambda w: w.cut(w.key(SHARD))),
    (1, VERIFY, lambda w: w.put(w.key("shards.arrow"), b"junk")),
    (1, VERIFY, lambda w: w.put("out/manifest.json", b"{}")),
    (0, VERIFY, lambda w: w.put("out/notes.txt", b"mine")),
    (2, VERIFY, lambda w: w.patch.setenv("SHARDCTL_SCRATCH_LIMIT", "much")),
    (1, "verify BUCKET/SHARD", lambda w: w.cut(w.key(SHARD))),
    (3, "verify BUCKET/out/train-00077.arrow", nothing),
    (3, "inspect BUCKET/out", lambda w: w.put(w.key("shards.arrow"), b"junk")),
    (3, "inspect BUCKET/out --shard 1 --head 2", lambda w: w.delete(w.key(SHARD))),
    (3, EXPORT, lambda w: w.delete(w.key(SHARD))),
    (2, "export BUCKET/out BUCKET/tars --to webdataset", nothing),
    (0, "repair BUCKET/out --workers 0", lambda w: w.put(w.key("plan.arrow"), b"junk")),
    (2, "repair BUCKET/out --drop-lost", nothing),
    (0, "compact BUCKET/out", nothing),
    (3, "compact BUCKET/out", lambda w: w.refuse("403", "PUT")),
    (3, "prune BUCKET/out --key a.jsonl#1", lambda w: w.refuse("403", "DELETE")),
    (3, "bench BUCKET/out --json", lambda w: w.put(w.key("shards.arrow"), b"another table")),
]
"""The exit code, the command, and what befalls the store before."""


@pytest.mark.thorough(after=3)
@pytest.mark.parametrize(("code", "command", "change"), CASES)
def test_what_is_said(world, cli, code, command, change):
    (world.folder / "lines.jsonl").write_bytes(LINES)
    change(world)
    command = command.replace("SHARD", world.key(SHARD))
    command = command.replace("BUCKET", world.bucket).replace("FOLDER", str(world.folder))
    ran = cli(*command.split())
    assert ran.code == code
    said = f"{ran.out}{ran.err}"
    assert "Traceback" not in said
    if ran.code > 1:
        assert '"error"' in ran.out or ran.err.splitlines()[-1].startswith("shardctl: ")
    assert not any(each in said for each in COPIES)
