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
from object_server import ObjectServer

import shardctl
from shardctl.sources import files
from shardctl.system.stores import open_store

LINES = b"".join(b'{"text": "%d"}\n' % number for number in range(8))

SHARD = "train-00001.arrow"

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

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        open_store(self.bucket).put(key, data)

    def delete(self, key: str) -> None:
        """Delete an object."""
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

CASES: dict[str, tuple[str, Change]] = {
    "source: no bucket": ("convert s3://none-such/in FOLDER/out", lambda w: None),
    "source: nothing there": ("convert BUCKET/none FOLDER/out", lambda w: None),
    "source: a part that leads upwards": ("convert BUCKET/in/../x FOLDER/out", lambda w: None),
    "labels: nothing there": (f"{CONVERT} --labels BUCKET/none.csv", lambda w: None),
    "source: no permission to list": (CONVERT, lambda w: w.refuse("403", "LIST")),
    "source: no permission to read": (CONVERT, lambda w: w.refuse("403", "GET")),
    "source: overloaded": (CONVERT, lambda w: w.refuse("503", "GET")),
    "source: no room for the copies": (CONVERT, lambda w: w.fill_disk()),
    "source in the destination": (
        "convert BUCKET/in/a.jsonl BUCKET/in --workers 0",
        lambda w: None,
    ),
    "destination: no permission to write": (WRITE, lambda w: w.refuse("403", "PUT")),
    "destination: no conditions": (WRITE, lambda w: w.refuse("unconditional", "PUT")),
    "destination: something else there": (WRITE, lambda w: w.put("new/notes.txt", b"mine")),
    "destination: another dataset there": (WRITE.replace("new", "out"), lambda w: None),
    "verify: nothing there": ("verify BUCKET/none", lambda w: None),
    "verify: expired credentials": (
        "verify BUCKET/out --level quick",
        lambda w: w.refuse("expired", "GET", f"*{SHARD}"),
    ),
    "verify: missing shard": ("verify BUCKET/out", lambda w: w.delete(f"out/{SHARD}")),
    "verify: short shard": ("verify BUCKET/out --level quick", lambda w: w.cut(f"out/{SHARD}")),
    "verify: damaged table": ("verify BUCKET/out", lambda w: w.put("out/plan.arrow", b"junk")),
    "verify: damaged manifest": ("verify BUCKET/out", lambda w: w.put("out/manifest.json", b"{}")),
    "verify: something else there": (
        "verify BUCKET/out",
        lambda w: w.put("out/notes.txt", b"mine"),
    ),
    "verify: short shard alone": (f"verify BUCKET/out/{SHARD}", lambda w: w.cut(f"out/{SHARD}")),
    "verify: missing shard alone": ("verify BUCKET/out/train-00077.arrow", lambda w: None),
    "verify: table alone": ("verify BUCKET/out/plan.arrow", lambda w: None),
    "verify: wrong limit": (
        "verify BUCKET/out",
        lambda w: w.patch.setenv("SHARDCTL_SCRATCH_LIMIT", "much"),
    ),
    "inspect: damaged table": ("inspect BUCKET/out", lambda w: w.put("out/shards.arrow", b"junk")),
    "inspect: missing shard": (
        "inspect BUCKET/out --shard 1 --head 2",
        lambda w: w.delete(f"out/{SHARD}"),
    ),
    "inspect: short shard alone": (f"inspect BUCKET/out/{SHARD}", lambda w: w.cut(f"out/{SHARD}")),
    "export: missing shard": (
        "export BUCKET/out FOLDER/tars --to webdataset --workers 0",
        lambda w: w.delete(f"out/{SHARD}"),
    ),
    "export: short shard": (
        "export BUCKET/out FOLDER/tars --to webdataset --workers 0",
        lambda w: w.cut(f"out/{SHARD}"),
    ),
    "export to a store": ("export BUCKET/out BUCKET/tars --to webdataset", lambda w: None),
    "repair: tables": (
        "repair BUCKET/out --workers 0",
        lambda w: w.put("out/plan.arrow", b"junk") or w.delete("out/files.arrow"),
    ),
    "repair: what is lost": ("repair BUCKET/out --drop-lost", lambda w: None),
    "compact": ("compact BUCKET/out", lambda w: None),
    "prune": ("prune BUCKET/out --key a", lambda w: None),
    "open: another table": (
        "bench BUCKET/out --json",
        lambda w: w.put("out/shards.arrow", b"another table"),
    ),
    "open: missing table": ("bench BUCKET/out --json", lambda w: w.delete("out/shards.arrow")),
}

CODES = {
    0: ("verify: something else there", "repair: tables"),
    1: (
        "verify: missing shard",
        "verify: short shard",
        "verify: damaged table",
        "verify: damaged manifest",
        "verify: short shard alone",
    ),
    2: (
        "source: a part that leads upwards",
        "source in the destination",
        "verify: wrong limit",
        "export to a store",
        "repair: what is lost",
        "compact",
        "prune",
    ),
}
"""The exit codes of those whose code is not 3."""


@pytest.mark.thorough(after=3)
@pytest.mark.parametrize("case", CASES)
def test_what_is_said(world, cli, case):
    command, change = CASES[case]
    (world.folder / "lines.jsonl").write_bytes(LINES)
    change(world)
    command = command.replace("BUCKET", world.bucket).replace("FOLDER", str(world.folder))
    ran = cli(*command.split())
    assert ran.code == next((code for code, cases in CODES.items() if case in cases), 3)
    said = f"{ran.out}{ran.err}"
    assert "Traceback" not in said
    if ran.code > 1:
        assert '"error"' in ran.out or ran.err.splitlines()[-1].startswith("shardctl: ")
    assert not any(each in said for each in COPIES)
