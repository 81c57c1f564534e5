"""Conversions whose destination is on an object store: the bytes of a local one, whatever fails, is
killed or comes twice."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import CROP
from dataset_files import tables_in
from followed_sources import files_of, write, write_lines
from format_2 import as_format_2, write_manifest_2
from held_conversions import RECIPE, go_on, held, run_held, started
from held_conversions import here as here
from held_conversions import made as made
from in_this_process import command_line
from object_server import ObjectServer
from programs import run_command
from remote_datasets import upload
from store_contents import (
    done_on,
    keys,
    manifest_on,
    nothing_is_left,
    shards_on,
    sums_on,
    tables_on,
)

import shardctl
from shardctl.errors import (
    BusyError,
    DatasetError,
    ShardctlError,
    StorageError,
    StoreError,
    TooManyRejectsError,
    UnfinishedError,
    UsageError,
)
from shardctl.making.commit import store_target as store
from shardctl.making.convert import Listener, begin, run
from shardctl.making.shards.marker import WorkDone
from shardctl.system.store_lease import LeaseTiming
from shardctl.system.stores import open_store
from shardctl.system.stores.objects import Objects

SMALL: dict[str, Any] = {"samples_per_shard": 4, "workers": 0, "split": "train=0.8,val=0.2"}


@pytest.fixture
def url(bucket: str) -> str:
    return f"{bucket}/data/out"


@pytest.fixture(scope="module")
def whole(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The SHA256SUMS of the same conversion into a folder."""
    out = tmp_path_factory.mktemp("local") / "out"
    shardctl.convert(photos, out, recipe=CROP, **SMALL)
    return (tables_in(out) / "SHA256SUMS").read_bytes()


def convert(src: Path, url: str, **options: Any) -> Any:
    return shardctl.convert(src, url, recipe=options.pop("recipe", CROP), **{**SMALL, **options})


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.thorough), 2])
def test_the_dataset_is_that_of_a_local_conversion(photos, url, whole, workers):
    result = convert(photos, url, workers=workers)
    assert (result.status, result.samples, result.shards) == ("created", 60, 15)
    assert sums_on(url) == whole
    nothing_is_left(url)
    assert convert(photos, url).status == "up-to-date"
    loaded = shardctl.open(url)
    assert len(loaded) == 60
    assert loaded[3]["image"].shape == (32, 32, 3)


@pytest.mark.thorough
def test_objects_of_a_person_stay_and_all_of_ours_goes(tmp_path, url):
    source = write_lines(tmp_path / "in.jsonl", [{"text": "a"}] * 8)
    job = "0123456789abcdef" * 2
    small = partial(shardctl.convert, source, url, workers=0)
    small(samples_per_shard=4)
    mine = {f".shardctl/{job}/notes.txt", f".shardctl/{job}/sub/a.json"}
    mine |= {f".shardctl/{name}" for name in ("probe-notes.txt", "probe-0", "mine/done/a.json")}
    put_all(url, mine)
    assert small(samples_per_shard=4).status == "up-to-date"
    assert mine <= set(keys(url))
    ours = (f"probe-{job[:16]}", f"{job}/plan.arrow", f"{job}/done/0000000.arrow")
    left = [f".shardctl/{name}" for name in ours]
    put_all(url, left)
    for rows in (3, 2, 1):
        beside = {f"{tables_on(url)}mine.txt", "data/mine.arrow", "mine.txt"}
        mine |= beside
        put_all(url, beside)
        small(samples_per_shard=rows, overwrite=True)
    nothing_is_left(url, mine=mine)


def test_a_dataset_with_many_rejects_is_up_to_date(tmp_path, out, url):
    """And what should be checked is said again, as for a dataset in a folder."""
    source = write_lines(tmp_path / "in.jsonl", [{"text": "a"}] * 8 + ["{bad"] * 4)
    made = shardctl.convert(source, url, workers=0)
    assert (made.status, made.rejected, len(made.warnings)) == ("created", 4, 1)
    for name, value in (("dry_run", True), ("update", True), ("max_rejects", "50%")):
        again = shardctl.convert(source, url, workers=0, **{name: value})
        assert (again.status, again.warnings) == ("up-to-date", made.warnings), name
    with pytest.raises(TooManyRejectsError, match="the dataset is complete"):
        shardctl.convert(source, url, workers=0, max_rejects=1)
    assert len(shardctl.snapshot(url, source, workers=0, progress=False)) == 8
    assert shardctl.convert(source, out, workers=0).warnings == made.warnings


def test_a_kept_generation_is_read_by_its_number_and_by_its_url(source, url):
    convert(source, url, split="none", update=True)
    first, before = tables_on(url), [sample["key"] for sample in shardctl.open(url)]
    files_of(source)[5].unlink()
    convert(source, url, split="none", update=True)
    assert len(shardctl.open(url)) == 59
    for opened in (shardctl.open(url, generation=1), shardctl.open(f"{url}/{first}")):
        assert [sample["key"] for sample in opened] == before
    assert shardctl.verify(f"{url}/{first}", level="deep").ok
    with pytest.raises(DatasetError, match=rf"{url}: generation 3 is not there, only 1, 2; "):
        shardctl.open(url, generation=3)


@pytest.mark.parametrize("kept", [0, 2])
def test_as_many_generations_are_kept_as_was_said(source, url, kept):
    given: dict[str, Any] = {"split": "none", "update": True, "keep_generations": kept}
    for number in range(1, 5):
        convert(source, url, **given)
        nothing_is_left(url, min(kept, number - 1))
        assert sum("path" in each for each in manifest_on(url)["history"]) == min(kept + 1, number)
        files_of(source)[5].unlink()


@pytest.mark.thorough
def test_faults_of_the_store_change_nothing(photos, url, whole, object_server):
    for seed, kind in enumerate(("503", "reset", "lost", "cut")):
        object_server.fault(kind, share=0.02, seed=seed, size=20)
    convert(photos, url, workers=2)
    assert sum(entry["status"] in (None, 503) for entry in object_server.log()) > 2
    object_server.clear()
    assert sums_on(url) == whole
    nothing_is_left(url)


@pytest.mark.thorough
def test_another_recipe_needs_overwrite_and_readers_keep_what_they_opened(photos, url):
    convert(photos, url)
    before = shardctl.open(url)
    with pytest.raises(DatasetError, match=f"{url}: holds a dataset that differs in its recipe"):
        convert(photos, url, recipe={**CROP, "store": "png"})
    # the dataset that was replaced stays for its readers, the one before that goes
    for size in (24, 16):
        assert before[50]["image"].shape == (32, 32, 3)
        assert convert(photos, url, recipe=other(size), overwrite=True).status == "updated"
        assert shardctl.open(url)[0]["image"].shape == (size, size, 3)
        nothing_is_left(url)


def test_an_update_asks_for_no_shard_that_stays_but_lists_them(source, url, out, object_server):
    given: dict[str, Any] = {"split": "none", "update": True}
    convert(source, url, **given)
    convert(source, out, **given)
    changed, other, gone = (sorted(source.rglob("*.jpg"))[number] for number in (5, 6, 30))
    changed.write_bytes(other.read_bytes())
    gone.unlink()
    before = set(shards_on(url).values())
    object_server.clear()
    result = convert(source, url, **given)
    assert (result.status, result.samples) == ("updated", 59)
    log = object_server.log()
    kept = before & set(shards_on(url).values())
    assert len(kept) == result.changes.kept >= 12
    assert not [each for each in log if each["key"].removeprefix("data/out/") in kept]
    assert "COPY" not in {each["method"] for each in log}
    # before the work, and before the commit
    assert [each["prefix"] for each in log].count("data/out/data/") == 2
    convert(source, out, **given)
    assert sums_on(url) == (tables_in(out) / "SHA256SUMS").read_bytes()
    nothing_is_left(url)


@pytest.mark.thorough
def test_a_dataset_of_format_2_is_read_and_updated_and_its_shards_stay_where_they_lie(
    source, url, out, tmp_path, object_server
):
    given: dict[str, Any] = {"split": "none", "update": True}
    convert(source, out, **given)
    base, before = "0123456789ab/", "ba9876543210/"
    old = as_format_2(out, tmp_path / "old", base)
    as_format_2(out, old, before)  # the one that it has replaced
    record = json.loads((old / "manifest.json").read_text())
    write_manifest_2(old, {**record, "base": base, "replaced": before})
    upload(old, url)
    put_all(url, [f"{before}mine.txt"])
    assert len(shardctl.open(url)) == len(shardctl.open(f"{url}/{base}")) == 60
    assert shardctl.verify(url, level="deep").ok
    files_of(source)[5].unlink()
    object_server.clear()
    result = convert(source, url, **given)
    assert (result.status, result.samples) == ("updated", 59)
    stay = [key for key in shards_on(url).values() if key.startswith(base)]
    assert len(stay) == result.changes.kept >= 12
    log = object_server.log()
    assert not [each for each in log if each["key"].removeprefix("data/out/") in stay]
    assert "COPY" not in {each["method"] for each in log}
    # its tables are gone, and the dataset before it
    left = {f"{base}train-{number:05d}.arrow" for number in range(15)} | {f"{before}mine.txt"}
    assert {key for key in keys(url) if key.startswith((base, before))} == left
    assert len(shardctl.open(url, generation=1)) == 60
    nothing_is_left(url, mine=[f"{before}mine.txt"])
    assert shardctl.verify(url, level="deep").ok
    shardctl.compact(url)
    convert(source, url, **given, keep_generations=0)
    nothing_is_left(url, 0, [f"{before}mine.txt"])
    convert(source, out, **given)
    same = {entry["key"]: entry["image"].tobytes() for entry in shardctl.open(out)}
    assert {entry["key"]: entry["image"].tobytes() for entry in shardctl.open(url)} == same


@pytest.mark.parametrize("there", [False, True])
def test_an_answer_that_is_lost_when_the_manifest_is_put(source, url, object_server, there):
    given: dict[str, Any] = {"split": "none", "update": True}
    if there:
        convert(source, url, **given)
        files_of(source)[5].unlink()
    object_server.clear()
    object_server.fault("lost", method="PUT", key="data/out/manifest.json", times=1)
    convert(source, url, **given)
    assert "lost" in {each["fault"] for each in object_server.log()}
    assert len(shardctl.open(url)) == 60 - there
    sums_on(url)
    nothing_is_left(url)


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["convert", "prune"])
def test_who_cannot_know_that_it_has_committed_deletes_nothing_of_the_dataset(
    source, url, monkeypatch, command
):
    real = Objects.replace

    def replace(self: Objects, key: str, data: bytes, version: str) -> str | None:
        put = real(self, key, data, version)
        if key == "manifest.json":
            raise StoreError("the connection was lost")
        return put

    convert(source, url, split="none", update=True)
    gone = files_of(source)[5]
    call: Any = partial(shardctl.prune, url, keys=[gone.relative_to(source).as_posix()])
    if command == "convert":
        gone.unlink()
        call = partial(convert, source, url, split="none", update=True)
    with monkeypatch.context() as patch:
        patch.setattr(Objects, "replace", replace)
        with pytest.raises(StoreError, match="the connection was lost"):
            call()
    assert len(shardctl.open(url)) == 59
    sums_on(url)
    shardctl.compact(url)
    nothing_is_left(url)
    sums_on(url)


@pytest.mark.thorough
def test_a_kept_shard_that_is_gone_is_named(source, url):
    given: dict[str, Any] = {"split": "none", "update": True}
    convert(source, url, **given)
    tables, gone = tables_on(url), shards_on(url)["train-00014"]
    open_store(url).delete([gone])
    files_of(source)[0].unlink()
    with pytest.raises((DatasetError, StorageError), match=f"{url}/{gone}: "):
        convert(source, url, **given)
    assert tables_on(url) == tables


@pytest.mark.thorough
def test_parts(photos, url, whole):
    assert convert(photos, url, part="2/3").part.shards_done == 5
    said = f"{url}: 10 shards of 15 are missing: 5 of part 1/3; 5 of part 3/3"
    with pytest.raises(UnfinishedError, match=said):
        shardctl.finish(url)
    for part in ("1/3", "2/3", "0/3"):
        assert convert(photos, url, part=part, workers=1).status == "built"
    assert shardctl.finish(url).status == "created"
    assert sums_on(url) == whole
    nothing_is_left(url)
    assert shardctl.finish(url).status == "up-to-date"


@pytest.mark.thorough
def test_rejects_of_parts_are_merged(source, url, out):
    for path in files_of(source)[::9]:
        path.write_bytes(b"no image")
    convert(source, out)
    for part in ("1/2", "2/2"):
        convert(source, url, part=part)
    assert shardctl.finish(url).rejected == 7
    assert sums_on(url) == (tables_in(out) / "SHA256SUMS").read_bytes()


def running(
    here: Path, url: str, shards: int, *words: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start the conversion, and give it when so many shards are done; the others are held."""

    def is_far() -> bool:
        begun = any(key.endswith("/job.json") for key in keys(url))
        return begun and done_on(open_store(url)) >= shards

    return held(here, 4 * shards, is_far, url, *words)


@pytest.mark.thorough
def test_a_killed_conversion_goes_on(here, url, monkeypatch):
    with running(here, url, 3) as process:
        process.kill()
    assert "manifest.json" not in keys(url)
    (here / "hold").unlink()
    # its lease stands still
    monkeypatch.setattr(store, "PACE", LeaseTiming(heartbeat=0.1, stale=1, ask=0.05))
    waited: list[str] = []
    result = shardctl.convert(
        "in",
        url,
        recipe=RECIPE,
        samples_per_shard=4,
        workers=0,
        listener=Listener(waiting=waited.append),
    )
    assert result.status == "resumed"
    assert [f"process {process.pid} on " in owner for owner in waited] == [True]
    assert sums_on(url) == (tables_in(here / "whole") / "SHA256SUMS").read_bytes()
    nothing_is_left(url)


@pytest.mark.thorough
def test_an_interrupt_leaves_no_lease_and_no_upload(here, url):
    with running(here, url, 2) as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    # the store may have a marker whose upload the worker has not yet heard to be done
    assert re.search("[0-2] of 10 shards are done; run the same command again to continue", err)
    assert ".shardctl/lease.json" not in keys(url)
    assert go_on(here, url, "--if-running", "fail").stdout.startswith("resumed")


@contextmanager
def converting(source: Path, url: str, *words: object) -> Iterator[subprocess.Popen[str]]:
    command = command_line("convert", source, url, *words, "--workers", 2)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        yield process


def wait_for(process: subprocess.Popen[str], server: ObjectServer, **entry: str) -> None:
    """Wait until there is such an entry in the log of the server, or the process has ended."""
    while process.poll() is None and not any(
        all(part in each[name] for name, part in entry.items()) for each in server.log()
    ):
        select.select([], [], [], 0.01)


def test_shards_that_are_on_their_way_are_not_done(photos, url, object_server):
    object_server.fault("slow", method="PUT", key="*train-*", seconds=60)
    with converting(photos, url, "--samples-per-shard", 4) as process:
        wait_for(process, object_server, key="train-")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert "0 of 15 shards are done" in err


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["interrupt", "refusal"])
def test_an_upload_that_is_ended_leaves_no_parts(tmp_path, url, object_server, how):
    """Shards of 48 MB go out in six parts, four of them at the same time: there are more to come
    when it is ended."""
    (tmp_path / "in").mkdir()
    for name in "ab":
        noise = np.random.default_rng(0).integers(0, 256, (6, 8_000_000), np.uint8)
        np.save(tmp_path / "in" / f"{name}.npy", noise)
    object_server.fault("slow", method="PART", key="*train-00000*", seconds=0.5)
    if how == "refusal":
        object_server.fault("403", method="INITIATE", key="*train-00001*")
    words = ("--samples-per-shard", 6, "--compression", "none")
    with converting(tmp_path / "in", url, *words) as process:
        if how == "interrupt":
            wait_for(process, object_server, method="PART")
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == (130 if how == "interrupt" else 3), err
    # Where a worker is refused, the other one may not have begun its upload yet, or may have
    # completed it.
    assert how == "refusal" or "ABORT" in [entry["method"] for entry in object_server.log()]
    with urllib.request.urlopen(f"{object_server.address}/{url.split('/')[2]}?uploads") as answer:
        assert b"<Upload>" not in answer.read()


@pytest.mark.thorough
def test_a_second_converter_waits_or_fails(here, url):
    with running(here, url, 1) as process:
        failing = run_held(here, url, "--if-running", "fail")
        assert failing.returncode == 3
        owner = f"another shardctl is writing it (process {process.pid} on "
        assert f"{url}: {owner}" in failing.stderr
        with started(here, url) as second:
            assert second.stderr is not None
            line = next(line for line in second.stderr if "writing it" in line)
        assert line.startswith(owner)
        assert line.endswith("); waiting until it ends, or gives no sign of life for 30 seconds\n")
        (here / "hold").unlink()
        assert process.wait(60) == 0
    assert sums_on(url) == (tables_in(here / "whole") / "SHA256SUMS").read_bytes()


QUICK = LeaseTiming(heartbeat=0.1, stale=0.5, ask=0.05)
"""So that a lease that was left behind is taken over soon."""


@pytest.mark.thorough
def test_a_part_that_was_killed_is_built_again(here, url, monkeypatch):
    with running(here, url, 1, "--part", "1/2") as process:
        process.kill()
    (here / "hold").unlink()
    monkeypatch.setattr(store, "PACE", QUICK)
    given: dict[str, Any] = {"samples_per_shard": 4, "workers": 0, "if_running": "fail"}
    for part in ("1/2", "2/2"):
        assert shardctl.convert("in", url, recipe=RECIPE, part=part, **given).status == "built"
    assert shardctl.finish(url).status == "created"
    assert sums_on(url) == (tables_in(here / "whole") / "SHA256SUMS").read_bytes()
    nothing_is_left(url)


@contextmanager
def nothing_can_be_deleted(server: ObjectServer, after: int = 0) -> Iterator[None]:
    """The end of a process in the middle of its work on a store: all deletions but the first ones
    are refused. After its commit that is no error."""
    if after:
        server.fault("slow", method="DELETE", times=after, seconds=0)
    server.fault("403", method="DELETE")
    with suppress(StoreError):
        yield
    server.clear()


def other(size: int) -> dict[str, Any]:
    steps = [{"name": "resize", "size": 40}, {"name": "crop", "size": size}]
    return {"store": "raw", "transform": steps}


def put_all(url: str, keys: Iterable[str], data: bytes = b"mine") -> None:
    for key in keys:
        open_store(url).put(key, data)


def break_off(photos: Path, url: str, server: ObjectServer, kind: str = "403") -> None:
    """Convert until the eighth shard is refused."""
    server.fault(kind, method="PUT", key="*train-00007*", times=1000)
    with pytest.raises(StoreError, match=r"train-00007-\w+\.arrow: .* 7 of 15 shards are done"):
        convert(photos, url)
    assert "manifest.json" not in keys(url)
    server.clear()


@pytest.mark.thorough
@pytest.mark.parametrize("overwrites", [False, True])
def test_what_is_left_to_do_after_a_commit_is_done_by_the_next_one(
    photos, url, object_server, monkeypatch, overwrites
):
    monkeypatch.setattr(store, "PACE", QUICK)
    for size in (16, 20):
        convert(photos, url, recipe=other(size), overwrite=True)
    before = shardctl.open(url)
    with nothing_can_be_deleted(object_server):
        convert(photos, url, recipe=other(24), overwrite=True)
    assert len({key.split("/")[1] for key in keys(url) if key.startswith("generations/")}) == 3
    given = {"recipe": other(16), "overwrite": True} if overwrites else {"recipe": other(24)}
    assert convert(photos, url, **given).status == ("updated" if overwrites else "up-to-date")
    nothing_is_left(url)
    sums_on(url)
    # the dataset of before stays for its readers
    assert overwrites or before[50]["image"].shape == (20, 20, 3)


@pytest.mark.thorough
def test_a_merge_that_ended_right_after_its_commit(source, url, object_server, monkeypatch):
    monkeypatch.setattr(store, "PACE", QUICK)
    convert(source, url, split="none")
    sorted(source.rglob("*.jpg"))[5].unlink()
    for part in ("1/2", "2/2"):
        convert(source, url, split="none", update=True, part=part)
    with nothing_can_be_deleted(object_server):
        shardctl.finish(url)
    assert shardctl.finish(url).status == "up-to-date"
    nothing_is_left(url)
    assert len(shardctl.open(url)) == 59


@pytest.mark.thorough
@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_job_that_gives_way_is_never_half_there(photos, url, object_server, monkeypatch, after):
    monkeypatch.setattr(store, "PACE", QUICK)
    break_off(photos, url, object_server)
    with nothing_can_be_deleted(object_server, after):
        convert(photos, url, recipe=other(24), overwrite=True)
    # committed by the first call, if it got that far
    status = convert(photos, url, recipe=other(24), overwrite=True).status
    assert status == ("resumed" if after == 3 else "created")
    nothing_is_left(url)


def test_who_is_taken_over_while_it_plans_takes_no_job_away(
    photos, url, object_server, monkeypatch
):
    real = begin.plan_job

    def draft(*given: Any) -> Any:
        put_all(url, [".shardctl/lease.json"], b"{}")
        return real(*given)

    break_off(photos, url, object_server)
    begun = keys(url)
    monkeypatch.setattr(begin, "plan_job", draft)
    with pytest.raises(BusyError, match="took over; nothing was lost"):
        convert(photos, url, recipe=other(24), overwrite=True)
    assert sorted({*keys(url)} - {".shardctl/lease.json"}) == begun


def test_who_is_taken_over_while_its_tables_are_put_commits_nothing(photos, url, monkeypatch):
    """Another process has begun to take its shards away."""
    real = Objects.put

    def put(self: Objects, key: str, data: bytes | Path) -> str:
        if key.startswith("generations/"):
            real(self, ".shardctl/lease.json", b"{}")
        return real(self, key, data)

    monkeypatch.setattr(Objects, "put", put)
    with pytest.raises(BusyError, match="took over; nothing was lost"):
        convert(photos, url)
    assert "manifest.json" not in keys(url)


@pytest.mark.thorough
def test_a_job_that_another_process_completes_is_not_taken_away_with_its_dataset(
    photos, url, whole, object_server
):
    break_off(photos, url, object_server)
    with store.place_on_store(url) as place:
        place.look_at_jobs()
        (job,) = (path.parent for path in place.folder.root.glob(".shardctl/*/job.json"))
        with nothing_can_be_deleted(object_server):
            convert(photos, url)
        place.discard(job)
    assert sums_on(url) == whole


@pytest.mark.thorough
def test_what_is_left_of_a_killed_look_at_a_store_goes(photos, url, monkeypatch):
    monkeypatch.setattr(store, "PACE", QUICK)
    convert(photos, url)
    left = (f"probe-{'0123' * 4}", "lease.json", f"{'0123' * 8}/done/0000001.arrow")
    put_all(url, [f".shardctl/{key}" for key in left])
    assert convert(photos, url).status == "up-to-date"
    nothing_is_left(url)


def test_a_manifest_that_changes_while_it_is_looked_at(photos, url, object_server):
    convert(photos, url)
    object_server.fault("412", method="GET", key="*/out/manifest.json", times=1)
    assert convert(photos, url).status == "up-to-date"


def test_credentials_that_end_in_the_middle_stop_the_work_and_the_same_command_goes_on(
    photos, url, whole, object_server
):
    object_server.fault("expired", method="PUT", key="*train-00007*", times=1000)
    with pytest.raises(StoreError, match="the credentials have expired"):
        convert(photos, url)
    object_server.clear()
    assert convert(photos, url).status == "resumed"
    assert sums_on(url) == whole


def test_who_is_taken_over_puts_no_more_shards(photos, url):
    there, built = open_store(url), []

    def take_over(progress: WorkDone) -> None:
        built.append(progress)
        there.put(".shardctl/lease.json", b"{}")

    with pytest.raises(BusyError, match="took over; nothing was lost"):
        shardctl.convert(photos, url, recipe=CROP, listener=Listener(progress=take_over), **SMALL)
    assert sum("train-" in key for key in keys(url)) == len(built) == 1


@pytest.mark.thorough
def test_a_copy_of_an_unfinished_conversion_goes_on_where_it_lies(
    photos, bucket, whole, object_server
):
    first, second = f"{bucket}/one", f"{bucket}/two"
    break_off(photos, first, object_server)
    old, before = open_store(first), keys(first)
    for key in before:
        put_all(second, [key], old.get(key).to_pybytes())
    assert convert(photos, second).status == "resumed"
    assert sums_on(second) == whole
    assert keys(first) == before


@pytest.mark.thorough
def test_a_shard_that_is_gone_before_the_commit_is_built_again(photos, url, whole, object_server):
    break_off(photos, url, object_server)
    open_store(url).delete([key for key in keys(url) if "/train-00003-" in key])
    with pytest.raises(
        StorageError, match=r"train-00003-\w+\.arrow: is missing, or is not the file"
    ):
        convert(photos, url)
    assert "manifest.json" not in keys(url)
    assert convert(photos, url).status == "resumed"
    assert sums_on(url) == whole


@pytest.mark.parametrize("folder", ["raw", "data", "generations"])
def test_a_place_that_holds_something_else_is_refused(photos, bucket, folder):
    put_all(bucket, [f"{folder}/x.txt"])
    with pytest.raises(StorageError, match=rf"holds something else \({folder}\)"):
        convert(photos, bucket)
    assert keys(bucket) == [f"{folder}/x.txt"]


@pytest.mark.thorough
def test_a_dataset_that_has_lost_its_manifest_is_not_converted_over(photos, url, monkeypatch):
    convert(photos, url)
    over = partial(convert, photos, url, samples_per_shard=6, overwrite=True)
    with monkeypatch.context() as patch:
        patch.setattr(run, "commit_job", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            over()
    open_store(url).delete(["manifest.json"])
    before = keys(url)
    with pytest.raises(StorageError, match="holds something else"):
        over()
    assert keys(url) == before


def test_datasets_of_others_below_it_stay(photos, url):
    convert(photos, url, recipe=other(8))
    below = f"{url}/data/27838a1c0ffe"  # where shardctl has its own shards
    convert(photos, below)
    theirs = {f"data/27838a1c0ffe/{key}" for key in keys(below)}
    for size in (16, 24):
        convert(photos, url, recipe=other(size), overwrite=True)
    assert len(shardctl.open(below)) == 60
    nothing_is_left(url, mine=theirs)


def test_a_store_that_ignores_conditions_is_refused(photos, url, object_server):
    object_server.fault("unconditional", times=1000)
    with pytest.raises(StoreError, match="this store ignores conditions"):
        convert(photos, url)
    assert keys(url) == []


def test_a_manifest_that_came_from_elsewhere_meanwhile_stays(photos, url):
    listener = Listener(announce=lambda _: put_all(url, ["manifest.json"]))
    with pytest.raises(BusyError, match="another dataset was put there meanwhile"):
        convert(photos, url, listener=listener)
    assert open_store(url).get("manifest.json").to_pybytes() == b"mine"


@pytest.mark.parametrize(
    "bad", ["s3://", "s3://no-such-bucket-here/out", "ftp://host/out", "s3://b/../out"]
)
def test_places_that_cannot_be(photos, object_server, bad):
    with pytest.raises(ShardctlError, match=r"URL|bucket|path"):
        convert(photos, bad)


def test_a_dataset_within_its_source_is_refused(bucket):
    photos = f"{bucket}/photos"
    for source, out, said in (
        (photos, f"{photos}/out", "is inside the source"),
        (photos, photos, "is inside the source"),
        (f"{photos}/in", photos, "is inside the destination"),
    ):
        with pytest.raises(UsageError, match=said):
            shardctl.convert(source, out)


def test_what_is_for_folders_is_no_url(photos, url):
    with pytest.raises(UsageError, match=r"rejects can be copied to a folder of this machine only"):
        convert(photos, f"{url}/x", copy_rejects=url)
    with pytest.raises(UsageError, match=r"shardctl\.write writes to folders"):
        shardctl.write(url, [{"key": "a", "n": 1}])


def test_lines_with_keys_of_their_own(tmp_path, out, url):
    lines = ({"id": f"k{n}", "text": f"line {n}"} for n in range(500))
    source = write_lines(tmp_path / "lines.jsonl", lines)
    for place in (out, url):
        recipe = {"kind": "text", "key_field": "id"}
        shardctl.convert(source, place, recipe=recipe, workers=0, samples_per_shard=50)
    assert sums_on(url) == (tables_in(out) / "SHA256SUMS").read_bytes()


@pytest.mark.thorough
def test_the_command_ends_and_its_folder_that_stands_for_the_place_is_gone(
    photos, bucket, tmp_path
):
    """From a store to a store, in its own process."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    for path in sorted(photos.rglob("*.jpg"))[:8]:
        put_all(f"{bucket}/in", [path.name], path.read_bytes())
    words = ("convert", f"{bucket}/in", f"{bucket}/out", "--workers", 0)
    done = run_command(*words, env={**os.environ, "TMPDIR": str(scratch)})
    assert done.returncode == 0, done.stderr
    assert list(scratch.iterdir()) == []


def test_shards_without_samples_are_left_out_there_too(tmp_path, out, url):
    lines = ("x" * 60 if shard in (2, 4) else "short" for shard in range(6) for _ in "1234")
    source = write(tmp_path / "in.txt", "\n".join(lines))
    recipe = {"record": "line", "transform": [{"name": "filter_length", "min_chars": 50}]}
    for place in (out, url):
        made = shardctl.convert(source, place, recipe=recipe, workers=0, samples_per_shard=4)
        assert made.shards == 2
    assert sums_on(url) == (tables_in(out) / "SHA256SUMS").read_bytes()
    assert sorted(shards_on(url)) == ["train-00002", "train-00004"]
    nothing_is_left(url)
