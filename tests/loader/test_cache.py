"""The local cache of datasets on a store: each block once for all processes, never more than the
limit, never a wrong byte."""

from __future__ import annotations

import base64
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from remote_datasets import (
    all_same,
    assert_each_block_once,
    block_reads,
    blocks_of,
    is_shard,
    make,
    upload,
)

import shardctl
from shardctl.errors import StorageError, UsageError
from shardctl.loader.remote import cache as caching
from shardctl.loader.remote.cache import Cache, CacheWarning
from shardctl.loader.remote.open import cache_of
from shardctl.system import file_locks
from shardctl.system.fetching import Fetcher
from shardctl.system.stores import open_store
from shardctl.system.text import size_of


@pytest.fixture(scope="module", params=["none", "zstd"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("local") / "out", request.param)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("plain") / "out", samples=240)


@pytest.fixture
def url(plain: Path, bucket: str) -> str:
    """Where `plain` is on a store."""
    return upload(plain, f"{bucket}/out")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def read(url: str, **options: Any) -> list[Any]:
    return list(shardctl.open(url, **options).loader(8, shuffle="window", threads=2))


def disk_usage(folder: Path) -> int:
    """Return the bytes that a folder takes on the disk, as du counts them."""
    found = [path.lstat() for path in (folder, *folder.rglob("*"))]
    return sum({each.st_ino: each.st_blocks * 512 for each in found}.values())


def test_the_second_time_nothing_comes(root, bucket, folder, object_server):
    url = upload(root, f"{bucket}/out")
    first = read(url, cache=folder)
    object_server.clear()
    assert all_same(read(url, cache=folder), first)
    assert [(r["method"], r["key"]) for r in object_server.log()] == [("HEAD", "out/manifest.json")]
    (entry,) = Cache(folder).entries()
    assert (entry.url, entry.blocks, entry.of_blocks) == (url, blocks_of(root), blocks_of(root))


@pytest.mark.thorough
def test_another_dataset_at_the_same_place(url, tmp_path, folder):
    before = read(url, cache=folder)
    other = make(tmp_path / "other", samples=240, seed=500)
    upload(other, url)
    after = read(url, cache=folder)
    assert all_same(after, read(str(other)))
    assert not all_same(before, after)
    assert len(Cache(folder).entries()) == 2


@pytest.mark.parametrize("in_use", [False, True])
def test_of_the_next_generation_only_new_shards_come(
    tmp_path, bucket, folder, object_server, in_use
):
    """Also where the cache has room for one of them: what both have is there once."""
    source, out = tmp_path / "texts", tmp_path / "out"
    source.mkdir()
    for number in range(60):
        (source / f"{number:02d}.txt").write_text(f"text {number} " * 2000)
    shardctl.convert(source, out, samples_per_shard=10, progress=False)
    url = upload(out, f"{bucket}/out")
    first = shardctl.open(url, cache=folder)
    before = list(first.loader(8))
    old = {path.name for path in (out / "data").iterdir()}
    (source / "00.txt").write_text("another text")
    shardctl.convert(source, out, samples_per_shard=10, update=True, progress=False)
    upload(out, url)
    object_server.clear()
    if not in_use:
        del first
    limit = Cache(folder).entries()[0].bytes + (1_000_000 if in_use else 200_000)
    after = read(url, cache=folder, cache_limit=limit)
    assert all_same(after, list(shardctl.open(out).loader(8, shuffle="window")))
    asked = {request["key"].rpartition("/")[2] for request in object_server.log()}
    new = {path.name for path in (out / "data").iterdir()} - old
    assert asked == {"manifest.json", "shards.arrow", *new}
    assert len(new) == 1
    assert len(Cache(folder).entries()) == 1 + in_use
    assert disk_usage(folder) <= limit
    if in_use:
        assert all_same(first.loader(8), before)


@pytest.mark.thorough
def test_the_limit_holds_where_generations_share_shards(tmp_path, bucket, folder):
    """Whoever fetches the blocks of a shared shard, and whoever ends first."""
    source, out = tmp_path / "texts", tmp_path / "out"
    source.mkdir()
    for number in range(160):
        text = base64.b64encode(random.Random(number).randbytes(60_000))
        (source / f"{number:03d}.txt").write_bytes(text)
    shardctl.convert(source, out, samples_per_shard=40, progress=False)
    total = sum(path.stat().st_size for path in (out / "data").iterdir())
    url, other = upload(out, f"{bucket}/out"), upload(out, f"{bucket}/other")
    (source / "000.txt").write_text("another")
    for share in (1.4, 2.4):
        limit = int(total * share)
        first = shardctl.open(url, generation=1, cache=folder, cache_limit=limit)
        for number in range(0, 160, 40):
            assert first[number]["key"] == f"{number:03d}.txt"
        shardctl.convert(source, out, samples_per_shard=40, update=True, progress=False)
        upload(out, url)
        second = shardctl.open(url, cache=folder, cache_limit=limit)
        list(first.loader(8))
        assert disk_usage(folder) <= limit
        del first
        read(other, cache=folder, cache_limit=limit)
        assert disk_usage(folder) <= limit
        del second
        Cache(folder).clear()


def test_generations_that_are_read_in_turn_both_stay(tmp_path, bucket, folder, object_server):
    source, out = tmp_path / "texts", tmp_path / "out"
    source.mkdir()
    for number in range(40):
        (source / f"{number:02d}.txt").write_text(f"text {number} " * 2000)
    shardctl.convert(source, out, samples_per_shard=10, progress=False)
    first = upload(out, f"{bucket}/out")
    (source / "00.txt").write_text("another text")
    shardctl.convert(source, out, samples_per_shard=10, update=True, progress=False)
    upload(out, first)
    kept = min(path.name for path in (out / "generations").iterdir())
    for url in (f"{first}/generations/{kept}", first):
        read(url, cache=folder)
    object_server.clear()
    for url in (f"{first}/generations/{kept}", first):
        read(url, cache=folder)
    assert not any(is_shard(request["key"]) for request in object_server.log())


PROCESS = """
import sys, shardctl
sys.stdin.readline()
loader = shardctl.open({url!r}, cache={folder!r}).loader(8, shuffle={shuffle!r}, rank={rank}, world_size={world_size})
print(sum(len(batch["key"]) for batch in loader), loader.stats().network_blocks, flush=True)
"""


def started(count: int, **details: Any) -> list[subprocess.Popen[str]]:
    """Start processes that read a dataset as soon as all of them are there."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    usual = {"world_size": count, "shuffle": "window"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS.format(**{"rank": rank, **usual, **details})], **pipes
        )
        for rank in range(count)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return processes


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [{"world_size": 1, "rank": 0}, {"world_size": 2}])
def test_processes_together_bring_each_block_once(url, plain, folder, object_server, ranks):
    object_server.clear()
    found = [
        process.communicate(timeout=60)[0].split()
        for process in started(2, url=url, folder=str(folder), **ranks)
    ]
    assert sum(int(samples) for samples, _ in found) == 480 // ranks["world_size"]
    assert_each_block_once(object_server, plain)
    got = [request["key"] for request in object_server.log() if request["method"] == "GET"]
    tables = [key for key in got if not is_shard(key)]
    assert sorted(key.rpartition("/")[2] for key in tables) == ["manifest.json", "shards.arrow"]


def test_a_killed_process_leaves_whole_blocks(url, plain, folder, object_server):
    object_server.fault("slow", key="*train-00001*", method="GET", seconds=20)
    (process,) = started(1, url=url, folder=str(folder), shuffle=False)
    while not any("train-00001" in r["key"] for r in object_server.log()) or not block_reads(
        object_server, plain
    ):
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = set(block_reads(object_server, plain))
    object_server.clear()
    loader = shardctl.open(url, cache=folder).loader(8, shuffle="window", threads=2)
    assert all_same(list(loader), read(str(plain)))
    # Not by the log of the server: what the killed process asked for last may come to it now.
    assert blocks_of(plain) - len(before) <= loader.stats().network_blocks <= blocks_of(plain)
    (entry,) = Cache(folder).entries()
    assert entry.blocks == blocks_of(plain)
    object_server.clear()
    read(url, cache=folder)
    assert not block_reads(object_server, plain)


def test_damage_is_noticed_and_mended(root, bucket, folder, object_server):
    """Bytes in the middle of every file of shards in a cache."""
    url = upload(root, f"{bucket}/out")
    whole = read(url, cache=folder)
    files = list(folder.glob("*/shards/*.arrow"))
    for path in files:
        path.write_bytes(flip(path.read_bytes(), path.stat().st_size // 2))
    object_server.clear()
    assert all_same(read(url, cache=folder), whole)
    assert 1 <= len(block_reads(object_server, root)) <= 2 * len(files)
    object_server.clear()
    assert all_same(read(url, cache=folder), whole)
    assert not block_reads(object_server, root), "what was mended is there"


def test_a_mended_block_is_read_in_its_place(plain, bucket, folder):
    url = upload(plain, f"{bucket}/out")
    read(url, cache=folder)
    for path in folder.glob("*/shards/*.arrow"):
        path.write_bytes(flip(path.read_bytes(), path.stat().st_size // 2))
    loader = shardctl.open(url, cache=folder).loader(64, columns=["key", "image"])
    list(loader)
    mended = loader.stats()
    list(loader)
    assert mended.network_blocks > 0
    assert loader.stats().cached_blocks == mended.cached_blocks, "each was looked at once"


def test_what_is_looked_at_is_fetched_once_until_it_is_dropped():
    calls: list[int] = []

    def fetch(block: int) -> int:
        calls.append(block)
        return block

    fetcher = Fetcher(fetch, lambda block: 1, blocks=2)
    assert (fetcher.take(1, True), fetcher.take(1, True), fetcher.take(1)) == (1, 1, 1)
    assert calls == [1]
    fetcher.take(1, stays=True)
    fetcher.drop(1)
    assert fetcher.take(1) == 1
    assert calls == [1, 1, 1]


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "end": lambda data: flip(data, len(data) - 20),
    "footer": lambda data: flip(data, len(data) - 300),
    "begin": lambda data: flip(data, 50),
    "cut": lambda data: data[: len(data) // 2],
    "longer": lambda data: data + b"x",
    "zeros": lambda data: bytes(len(data)),
    "gone": lambda data: None,
    "no footer": lambda data: data[:-40] + bytes(40),
}


@pytest.mark.thorough
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("damaged", DAMAGE)
def test_whatever_is_damaged_comes_again(url, folder, damaged, on_error):
    first = read(url, cache=folder)
    large = [each for each in folder.rglob("*") if each.is_file() and each.stat().st_size > 300]
    for path in sorted(large):
        data = DAMAGE[damaged](path.read_bytes())
        path.unlink() if data is None else path.write_bytes(data)
        loader = shardctl.open(url, cache=folder).loader(
            8, shuffle="window", threads=2, on_error=on_error
        )
        assert all_same(list(loader), first), path
        assert loader.stats().skipped == 0


class Watch:
    """Looks at the size of a folder without pause while the block runs."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.most, self._over = folder, 0, threading.Event()

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._over.is_set():
            try:
                self.most = max(self.most, disk_usage(self._folder))
            except OSError:
                continue

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.thorough
@pytest.mark.parametrize("limit", [0, 100_000, 300_000])
def test_the_limit_holds_at_every_moment(url, plain, folder, limit):
    with Watch(folder) as watch:
        for _ in range(2):
            assert all_same(read(url, cache=folder, cache_limit=limit), read(str(plain)))
    # the folder itself is there before anything is kept
    assert watch.most <= max(limit, folder.stat().st_blocks * 512)
    if limit == 300_000:
        (entry,) = Cache(folder).entries()
        assert entry.blocks > 0


def test_with_a_full_cache_the_rest_passes_by(plain, bucket, folder, object_server):
    url = upload(plain, f"{bucket}/out")
    read(url, cache=folder, cache_limit=260_000)
    (entry,) = Cache(folder).entries()
    assert 0 < entry.blocks < entry.of_blocks
    object_server.clear()
    read(url, cache=folder, cache_limit=260_000)
    reads = block_reads(object_server, plain)
    assert set(reads.values()) == {1}, "what is not kept comes once in an epoch"
    assert len(reads) == entry.of_blocks - entry.blocks
    opened = shardctl.open(url, cache=folder, cache_limit=260_000)
    object_server.clear()
    opened.take(range(len(opened)))  # nothing is looked for ahead
    assert set(block_reads(object_server, plain).values()) == {1}


@pytest.mark.thorough
def test_datasets_that_nobody_uses_make_room(plain, bucket, folder):
    urls = [upload(plain, f"{bucket}/{name}") for name in ("a", "b", "c")]
    limit = 1_000_000
    for number, url in enumerate(urls[:2]):
        read(url, cache=folder)
        (path,) = (each.folder for each in Cache(folder).entries() if each.url == url)
        os.utime(Path(path) / "in-use", (1000 + number, 1000 + number))
    assert {entry.url for entry in Cache(folder).entries()} == {*urls[:2]}
    read(urls[2], cache=folder, cache_limit=limit)
    kept = {entry.url: entry for entry in Cache(folder).entries()}
    assert urls[0] not in kept, "the one that was opened longest ago goes first"
    assert kept[urls[2]].blocks == kept[urls[2]].of_blocks


@pytest.mark.thorough
def test_a_dataset_in_use_stays(plain, bucket, folder):
    first, second = (upload(plain, f"{bucket}/{name}") for name in ("a", "b"))
    used = shardctl.open(first, cache=folder)
    before = list(used.loader(8))
    (entry,) = Cache(folder).entries()
    limit = entry.bytes + 50_000
    assert all_same(read(second, cache=folder, cache_limit=limit), read(str(plain)))
    assert (
        next(each for each in Cache(folder).entries() if each.url == first).blocks == entry.blocks
    )
    assert all_same(used.loader(8), before)


def test_a_cache_that_is_removed_while_it_is_read(url, folder):
    opened = shardctl.open(url, cache=folder)
    first = opened[0]["key"]
    shutil.rmtree(folder)
    with pytest.raises((StorageError, shardctl.errors.DatasetError), match=str(folder)):
        list(opened.loader(8))
    assert shardctl.open(url, cache=folder)[0]["key"] == first


def test_a_local_dataset_is_not_a_cache_and_keeps_its_files(plain, folder, out):
    """Whatever the limit is: it may be the only copy (mosaicml/streaming#988)."""
    shutil.copytree(plain, out)
    before = {path: path.read_bytes() for path in out.rglob("*.*") if path.is_file()}
    for limit in (0, "1 MB"):
        for _ in range(2):
            assert all_same(read(str(out), cache=folder, cache_limit=limit), read(str(plain)))
    assert {path: path.read_bytes() for path in out.rglob("*.*") if path.is_file()} == before
    assert not folder.exists()


def test_where_the_cache_is(folder, cli, monkeypatch):
    monkeypatch.delenv("SHARDCTL_CACHE", raising=False)
    assert cache_of(None, None) is None
    assert cache_of(False, "2GB") is None  # switched off on purpose
    with pytest.raises(UsageError, match="--cache-limit needs --cache"):
        cache_of(None, "2GB")
    ran = cli("bench", "s3://bucket/out", "--cache-limit", "2GB")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    monkeypatch.setenv("SHARDCTL_CACHE_LIMIT", "2GB")  # of a shell: other commands have a cache
    assert cache_of(None, None) is None
    monkeypatch.setenv("SHARDCTL_CACHE", str(folder))
    found, other = cache_of(None, None), cache_of(folder / "other", "1MiB")
    assert (found.folder, found.limit) == (folder, 2_000_000_000)
    assert (other.folder, other.limit) == (folder / "other", 1 << 20)
    assert cache_of(False, None) is None
    with pytest.raises(UsageError, match="takes a folder"):
        cache_of(True, None)
    monkeypatch.setenv("SHARDCTL_CACHE_LIMIT", "lots")
    with pytest.raises(UsageError, match="SHARDCTL_CACHE_LIMIT: 'lots'"):
        cache_of(None, None)


def test_sizes():
    given = {"500GB": 500 * 10**9, "64 MiB": 64 << 20, "1.5k": 1500, 7: 7, "0": 0}
    assert {text: size_of(text, "limit") for text in given} == given
    for wrong in ("", "1XB", "-3", 2.5, True):
        with pytest.raises(UsageError, match=r"^limit: "):
            size_of(wrong, "limit")


def test_the_command_lists_and_clears(cli, plain, bucket, folder):
    used, unused = (upload(plain, f"{bucket}/{name}") for name in ("used", "unused"))
    opened = shardctl.open(used, cache=folder)
    read(unused, cache=folder)
    assert cli("cache", "ls", folder).code == 0
    record = cli("cache", "ls", folder, "--json").json
    assert {entry["url"]: (entry["in_use"], entry["blocks"]) for entry in record["datasets"]} == {
        used: (True, 0),
        unused: (False, blocks_of(plain)),
    }
    whole = sum(entry["bytes"] for entry in record["datasets"])
    assert record["bytes"] == whole >= disk_usage(folder) - 8192
    cleared = cli("cache", "clear", folder)
    assert cleared.code == 0
    assert f"{used} stays: a process uses it" in cleared.out
    assert [entry.url for entry in Cache(folder).entries()] == [used]
    assert opened[0]["key"] == "k000"
    del opened
    assert cli("cache", "clear", folder, used, "--json").json["removed"] == [used]
    assert Cache(folder).entries() == []
    assert open_store(used).stat("manifest.json") is not None


def test_the_command_is_told_which_cache(cli, tmp_path, monkeypatch):
    monkeypatch.delenv("SHARDCTL_CACHE", raising=False)
    assert "Give its folder" in cli("cache", "ls").err
    assert cli("cache", "ls", tmp_path / "none").code == 3
    monkeypatch.setenv("SHARDCTL_CACHE", str(tmp_path))
    assert "0 datasets" in cli("cache", "ls").out
    assert cli("cache", "clear", "s3://b/a", "s3://b/b").code == 2
    (tmp_path / "mine").mkdir()
    assert "removed 0 datasets" in cli("cache", "clear", tmp_path).out
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("room", [0, 6])
def test_a_full_disk_is_as_a_full_cache(url, plain, folder, monkeypatch, room):
    """Nearly full: nothing is kept. Full after the footers and six blocks, in any order: these are."""
    shards = shardctl.open(plain).manifest.shards
    real, left = os.posix_fallocate, iter(range(shards + room))

    def allocate(*given: int) -> None:
        if next(left, None) is None:
            raise OSError(28, "No space left on device")
        real(*given)

    if room:
        monkeypatch.setattr(os, "posix_fallocate", allocate)
    else:
        monkeypatch.setattr(caching, "KEPT_FREE", 2.0)
    with pytest.warns(CacheWarning, match="the disk of the cache is full") as said:
        assert all_same(read(url, cache=folder), read(str(plain)))
    assert len(said) == 1
    most = room and shards + room
    assert room <= sum(entry.blocks for entry in Cache(folder).entries()) <= most


@pytest.mark.thorough
@pytest.mark.parametrize("name", [".DS_Store", ".nfs0000000000deadbeef", "mine.partial"])
def test_a_strange_file_in_the_folder_of_a_dataset_stays_and_is_in_nobodys_way(
    cli, plain, bucket, folder, object_server, name
):
    one, other = (upload(plain, f"{bucket}/{place}") for place in ("one", "other"))
    read(one, cache=folder)
    (entry,) = Cache(folder).entries()
    there = Path(entry.folder) / name
    there.write_text("mine")
    object_server.clear()
    read(one, cache=folder)
    assert len(object_server.log()) == 1  # what is manifest.json now?
    read(other, cache=folder, cache_limit=entry.bytes + 16384)  # the first one makes room
    assert [each.url for each in Cache(folder).entries()] == [other]
    read(one, cache=folder)
    cleared = cli("cache", "clear", folder)
    assert "removed 2 datasets" in cleared.out
    assert f"{there.parent}: has files that are of no cache; these stay" in cleared.out
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if not path.name.endswith("lock")] == [there]
    assert there.read_text() == "mine"


def test_a_process_that_stands_still_holds_up_no_other(url, plain, folder, monkeypatch):
    monkeypatch.setattr(file_locks, "PATIENCE", 0.02)
    opened = shardctl.open(url, cache=folder)
    (have,) = folder.glob(f"*/{caching.BLOCKS}")
    with open(have, "r+b") as file, contextlib.ExitStack() as stopped:
        held = file_locks.ByteLocks(have, file.fileno())
        assert all(stopped.enter_context(held.held(byte)) for byte in range(have.stat().st_size))
        assert all_same(list(opened.loader(8, shuffle="window", threads=2)), read(str(plain)))
    (entry,) = Cache(folder).entries()
    assert entry.blocks == 0


@pytest.mark.thorough
def test_a_process_that_stands_still_while_it_opens_holds_up_no_other(
    url, plain, folder, monkeypatch
):
    monkeypatch.setattr(file_locks, "OPENING_PATIENCE", 0.02)
    cache = Cache(folder)
    with cache.looking_up(url):
        assert all_same(read(url, cache=folder), read(str(plain)))
        assert cache.entries() == []
    read(url, cache=folder)
    assert len(cache.entries()) == 1


@pytest.mark.thorough
def test_a_dataset_that_is_being_removed_comes_again(url, folder, monkeypatch):
    """Another process has removed what says that it is there, and goes on, right after this one has
    seen that."""
    expected = read(url, cache=folder)
    real, removed = caching.Use, []

    def use(path: Path) -> caching.Use:
        if not removed:
            removed.append(path)
            for name in (caching.ABOUT, caching.IN_USE, f"{caching.TABLES_FOLDER}/manifest.json"):
                (path.parent / name).unlink()
        return real(path)

    monkeypatch.setattr(caching, "Use", use)
    assert all_same(read(url, cache=folder), expected)
    assert removed
