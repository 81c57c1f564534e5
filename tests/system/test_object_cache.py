"""The folder with copies of objects: what stays, what makes room, and who brings what."""

from __future__ import annotations

import contextlib
import fcntl
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shardctl.errors import StoreError
from shardctl.system.object_cache import Limits, NewFile, ObjectCache

NO_LIMITS = Limits(None, 1, 0, 1)


def cache_in(folder: Path, limits: Limits = NO_LIMITS) -> ObjectCache:
    return ObjectCache(str(folder), limits, lambda size: contextlib.nullcontext())


def bytes_of(count: int, stamp: int = 0) -> Callable[[NewFile], int]:
    """Return what fills a file with so many bytes."""

    def fill(new: NewFile) -> int:
        new.expect(count)
        new.write(b"x" * count)
        return stamp

    return fill


def names_in(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not path.relative_to(folder).parts[0].startswith(".")
    )


def test_those_used_least_lately_make_room(tmp_path):
    cache = cache_in(tmp_path, Limits(4000, 1, 0, 1))
    for name in ("a", "b/c", "d"):
        cache.hold(name, 0, bytes_of(1000))
    assert cache.is_held("a")
    assert cache.hold("e", 0, bytes_of(1500)) == str(tmp_path / "e")
    assert names_in(tmp_path) == ["a", "d", "e"]
    assert not cache.is_held("b/c")


def test_a_file_that_is_gone_is_not_held_though_it_has_another_name(tmp_path, monkeypatch):
    """Another process removes it after this one has opened it, and before the lock."""
    (tmp_path / "cache").mkdir()
    cache, flock = cache_in(tmp_path / "cache"), fcntl.flock
    path = Path(cache.hold("a", 0, bytes_of(10)))
    (tmp_path / "other name").hardlink_to(path)
    cache.close()

    def removed_first(descriptor: int, how: int) -> None:
        path.unlink(missing_ok=True)
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    assert not cache.is_held("a")


def test_what_is_forgotten_holds_nothing(tmp_path):
    cache = cache_in(tmp_path)
    for number in range(25):
        cache.hold(f"{number:02}", 0, bytes_of(1))
    del cache
    cache_in(tmp_path, Limits(10, 1, 0, 1)).hold("b", 0, bytes_of(1000))
    assert names_in(tmp_path) == ["b"]


def test_files_that_are_held_stay_whatever_the_limit_is(tmp_path):
    limits = Limits(10, 2, 0, 2)
    one, other = cache_in(tmp_path, limits), cache_in(tmp_path, limits)
    for name in ("a", "b"):
        one.hold(name, 0, bytes_of(1000))
    for name in ("c", "d", "e", "f"):
        other.hold(name, 0, bytes_of(1000))
    assert names_in(tmp_path) == ["a", "b", "d", "e", "f"], "room is made before a file is there"
    one.close()
    other.hold_at_least(3)
    other.hold("g", 0, bytes_of(1000))
    assert names_in(tmp_path) == ["e", "f", "g"]


def test_another_stamp_is_brought_anew(tmp_path):
    cache, old, new = cache_in(tmp_path), 10**17, 2 * 10**17
    cache.hold("a", old, bytes_of(5, old))
    assert cache.is_held("a", old)
    assert cache.is_held("a")
    assert not cache.is_held("a", new)
    assert Path(cache.hold("a", new, bytes_of(7, new))).stat().st_size == 7
    assert Path(cache.hold("a", 0, bytes_of(9))).stat().st_size == 7, "any will do"


def test_what_is_left_out_takes_no_room(tmp_path):
    cache = cache_in(tmp_path, Limits(1 << 20, 1, 0, 1))

    def fill(new: NewFile) -> int:
        new.expect(10)
        new.skip(1 << 30)
        new.write(b"at the end")
        return 0

    for name in "abc":
        cache.hold(name, 0, fill)
    cache.hold("d", 0, bytes_of(1 << 19))
    assert names_in(tmp_path) == ["a", "b", "c", "d"]
    assert (tmp_path / "a").stat().st_size == (1 << 30) + 10


def test_what_cannot_be_brought_leaves_nothing(tmp_path):
    def fill(new: NewFile) -> int:
        new.expect(10)
        new.write(b"half")
        raise StoreError("gone")

    cache = cache_in(tmp_path)
    with pytest.raises(StoreError, match="gone"):
        cache.hold("a", 0, fill)
    assert names_in(tmp_path) == []
    assert list((tmp_path / ".new").iterdir()) == []
    assert Path(cache.hold("a", 0, bytes_of(3))).stat().st_size == 3


def test_of_many_that_want_an_object_one_brings_it(tmp_path):
    calls: list[None] = []

    def fill(new: NewFile) -> int:
        calls.append(None)
        return bytes_of(100)(new)

    caches = [cache_in(tmp_path) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda cache: cache.hold("a", 0, fill), caches))
    assert len(calls) == 1


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from test_object_cache import bytes_of, cache_in
from pathlib import Path
def fill(new):
    bytes_of(100)(new)
    os.kill(os.getpid(), signal.SIGKILL)
cache_in(Path(sys.argv[1])).hold("a", 0, fill)
"""


def test_a_killed_process_is_in_nobodys_way(tmp_path):
    ran = subprocess.run([sys.executable, "-c", KILLED, tmp_path, Path(__file__).parent])
    assert ran.returncode == -signal.SIGKILL
    assert names_in(tmp_path) == []
    assert Path(cache_in(tmp_path).hold("a", 0, bytes_of(3))).stat().st_size == 3
