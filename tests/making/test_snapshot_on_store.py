"""Snapshots whose destination is on an object store: one of all processes makes the dataset, and
all open it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from doc_snippets import snippets_of
from followed_sources import files_of, write
from held_conversions import RECIPE as HELD_RECIPE
from held_conversions import make_held
from object_server import ObjectServer
from programs import run_python
from snapshots import first_file, touched, wait_until
from store_contents import done_on, keys, nothing_is_left, shards_on

import shardctl
from shardctl.errors import DatasetError, InputError, StorageError, UsageError
from shardctl.making.commit import store_target as destination
from shardctl.system import store_lease
from shardctl.system.store_lease import LeaseTiming
from shardctl.system.stores import open_store

RECIPE: dict[str, Any] = {"store": "raw", "transform": [{"name": "resize", "size": "24x24"}]}


@pytest.fixture
def url(bucket: str) -> str:
    return f"{bucket}/data/out"


def snapshot(source: Path, url: str, **options: Any) -> Any:
    return shardctl.snapshot(
        url,
        source,
        **{"recipe": RECIPE, "workers": 0, "samples_per_shard": 6, "progress": False, **options},
    )


def asked_of(server: ObjectServer) -> Counter[str]:
    """Return how many requests of each method there were."""
    return Counter(entry["method"] for entry in server.log())


def test_it_is_made_once_and_then_opened_with_few_requests(source, url, object_server):
    made = snapshot(source, url)
    assert (len(made), made.location) == (60, url)
    nothing_is_left(url)
    object_server.clear()
    again = snapshot(source, url)
    asked = asked_of(object_server)
    assert set(asked) <= {"GET", "HEAD", "LIST"}
    assert asked.total() <= 12
    assert [sample["key"] for sample in again] == [sample["key"] for sample in made]
    source.rename(source.with_name("gone"))
    object_server.clear()
    assert len(snapshot(source, url, trust=True)) == 60
    assert asked_of(object_server).total() <= 8
    with pytest.raises(InputError, match="no such file or folder"):
        snapshot(source, url)


@contextmanager
def started(
    source: Path, url: str, folder: Path, recipe: dict[str, Any]
) -> Iterator[subprocess.Popen[str]]:
    """Start a training script, which begins when its standard input has a line."""
    script = TRAINING.format(url=url, source=str(source), recipe=recipe)
    piped: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    more = {"PYTHONPATH": str(folder), "SHARDCTL_STORE_RETRY": "20", "TMPDIR": "tmp"}
    (folder / "tmp").mkdir(exist_ok=True)
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=folder, env=os.environ | more, text=True, **piped
    ) as process:
        try:
            yield process
        finally:
            process.kill()


TRAINING = """
import json, sys, shardctl
sys.stdin.readline()
ds = shardctl.snapshot({url!r}, {source!r}, {recipe!r}, samples_per_shard=4, workers=1)
keys = sorted(key for batch in ds.loader(batch_size=7) for key in batch["key"])
print(json.dumps([ds.generation.digest, keys]))
"""


def begin(*processes: subprocess.Popen[str]) -> None:
    """Let training scripts begin that have been started."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


@pytest.mark.thorough
def test_of_two_processes_that_begin_at_once_one_makes_it(source, url, tmp_path, object_server):
    given = (source, url, tmp_path, RECIPE)
    with started(*given) as one, started(*given) as other:
        begin(one, other)
        ended = [process.communicate(timeout=60) for process in (one, other)]
    assert (one.returncode, other.returncode) == (0, 0), ended
    assert ended[0][0] == ended[1][0]
    assert len(json.loads(ended[0][0])[1]) == 60
    assert sorted(f"shardctl {url}: making 15 shards" in err for _, err in ended) == [False, True]
    puts = Counter(entry["key"] for entry in object_server.log() if entry["method"] == "PUT")
    assert {puts[f"data/out/{key}"] for key in shards_on(url).values()} == {1}
    nothing_is_left(url)


@pytest.mark.thorough
def test_it_follows_its_source_and_says_what_it_may_not_do(source, url, object_server):
    before = snapshot(source, url)
    files_of(source)[7].unlink()
    with pytest.raises(DatasetError, match=rf"^{url}: .* inputs; update=True brings it up"):
        snapshot(source, url, update=False)
    assert len(snapshot(source, url, trust=True)) == 60
    stay = [f"data/out/{key}" for key in shards_on(url).values()]
    object_server.clear()
    assert len(snapshot(source, url)) == 59
    asked = {entry["key"] for entry in object_server.log()}
    assert sum(key not in asked for key in stay) >= 7, "shards whose inputs stay are left alone"
    assert len(list(before)) == 60, "who reads the dataset of before goes on"
    other = {**RECIPE, "store": "png"}
    with pytest.raises(DatasetError, match=rf"^{url}: .* recipe; overwrite=True makes it again"):
        snapshot(source, url, recipe=other)
    assert snapshot(source, url, recipe=other, overwrite=True).manifest.recipe["store"] == "png"
    nothing_is_left(url)


def test_a_file_that_was_only_touched_changes_no_sample(source, url):
    digest = snapshot(source, url).generation.digest
    touched(first_file(source))
    assert snapshot(source, url).generation.digest == digest


def test_what_was_read_once_comes_from_the_cache(source, url, tmp_path, object_server):
    def read() -> list[str]:
        ds = snapshot(source, url, cache=tmp_path / "cache", cache_limit="64MiB")
        return [key for batch in ds.loader(batch_size=8) for key in batch["key"]]

    before = read()
    object_server.clear()
    assert read() == before
    assert not [entry["key"] for entry in object_server.log() if "/train-" in entry["key"]]


@pytest.mark.thorough
def test_another_process_goes_on_where_the_one_that_makes_it_is_killed(
    tmp_path, url, monkeypatch, capfd
):
    make_held(tmp_path)
    hold = write(tmp_path / "hold", "8")  # the third shard, and all after it
    with started(tmp_path / "in", url, tmp_path, HELD_RECIPE) as builder:
        begin(builder)
        wait_until(lambda: done_on(open_store(url)) >= 2)
    hold.unlink()
    # its lease stands still
    monkeypatch.setattr(destination, "PACE", LeaseTiming(heartbeat=0.1, stale=1, ask=0.05))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    shardctl.snapshot(url, tmp_path / "in", HELD_RECIPE, samples_per_shard=4, workers=0)
    assert len(shardctl.open(url)) == 40
    said = capfd.readouterr().err
    assert f"shardctl {url}: waiting for process {builder.pid} on" in said
    assert f"shardctl {url}: resuming: 2 of 10 shards done" in said
    nothing_is_left(url)


def test_who_waits_goes_on_when_the_dataset_is_there_and_needs_no_lease(
    source, url, bucket, object_server, monkeypatch
):
    """Of a thousand ranks, none waits for its turn to hold the lease."""
    monkeypatch.setattr(destination.StoreTarget, "look_seconds", 0.05)
    snapshot(source, f"{bucket}/elsewhere")
    here, elsewhere = open_store(url), open_store(f"{bucket}/elsewhere")

    def asks() -> bool:
        return any("lease.json" in entry["key"] for entry in object_server.log())

    with (
        store_lease.hold(here, destination.LEASE_KEY, None),
        ThreadPoolExecutor(1) as thread,
    ):
        object_server.clear()
        waiting = thread.submit(snapshot, source, url)
        wait_until(asks)
        # the manifest last
        for key in sorted(keys(f"{bucket}/elsewhere"), key=lambda key: key == "manifest.json"):
            here.put(key, elsewhere.get(key).to_pybytes())
        assert len(waiting.result(30)) == 60, "the lease is still held"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"wait": False}, "a dataset on a store must be complete"),
        ({"cache": "cache", "cache_limit": "much"}, "'much' is not a size"),
    ],
)
def test_what_is_not_possible_there_is_said_before_anything_is_done(
    given, said, source, url, object_server
):
    object_server.clear()
    with pytest.raises(UsageError, match=said):
        snapshot(source, url, **given)
    assert object_server.log() == []


def test_where_nothing_may_be_written_a_dataset_that_is_there_is_opened(source, url, object_server):
    snapshot(source, url)
    object_server.fault("403", method="PUT", times=1000)
    assert len(snapshot(source, url)) == 60
    first_file(source).unlink()
    with pytest.raises(StorageError, match=r"is not up to date with its sources, and cannot be"):
        snapshot(source, url)


@pytest.mark.thorough
def test_the_page_about_it_works_as_it_is_written(photos, bucket, tmp_path):
    (example,) = (each for each in snippets_of("snapshot.md", "python") if "s3://" in each)
    (tmp_path / "photos").symlink_to(photos)
    script = textwrap.dedent(example).replace("s3://bucket", bucket)
    script = script.replace("/nvme/cache", str(tmp_path / "cache"))
    ran = run_python(f"{script}\nprint(len(ds))", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "60\n"), ran.stderr
