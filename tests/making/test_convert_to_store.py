"""Conversions whose destination is on an object store: the bytes of a local one, whatever fails, is
killed or comes twice."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CROP
from custom_steps import HELD
from image_files import images
from object_server import ObjectServer
from store_contents import done_on, keys, nothing_is_left

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
from shardctl.making.convert import Listener, run
from shardctl.making.convert.targets import store
from shardctl.making.shards.marker import WorkDone
from shardctl.system.store_lease import LeaseTiming
from shardctl.system.stores import open_store
from shardctl.system.stores.base import Store
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
    return (out / "SHA256SUMS").read_bytes()


def manifest_of(store: Store) -> dict[str, Any]:
    return dict(json.loads(store.get("manifest.json").to_pybytes()))


def sums(url: str) -> bytes:
    """Return SHA256SUMS, having made sure that every file is what it says."""
    store = open_store(url)
    base = manifest_of(store)["base"]
    data = store.get(f"{base}SHA256SUMS").to_pybytes()
    for line in data.decode().splitlines():
        digest, name = line.split("  ", 1)
        assert hashlib.sha256(store.get(base + name)).hexdigest() == digest, name
    return bytes(data)


def convert(src: Path, url: str, **options: Any) -> Any:
    return shardctl.convert(src, url, recipe=options.pop("recipe", CROP), **{**SMALL, **options})


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.thorough), 2])
def test_the_dataset_is_that_of_a_local_conversion(photos, url, whole, workers):
    result = convert(photos, url, workers=workers)
    assert (result.status, result.samples, result.shards) == ("created", 60, 15)
    assert sums(url) == whole
    nothing_is_left(url)
    assert convert(photos, url).status == "up-to-date"
    loaded = shardctl.open(url)
    assert len(loaded) == 60
    assert loaded[3]["image"].shape == (32, 32, 3)


def test_objects_of_a_person_stay_and_all_of_ours_goes(tmp_path, url):
    source, note = tmp_path / "in.jsonl", tmp_path / "note"
    source.write_text('{"text": "a"}\n' * 8)
    note.write_text("mine")
    job = "0123456789abcdef" * 2
    shardctl.convert(source, url, workers=0, samples_per_shard=4)
    store = open_store(url)
    mine = {
        f".shardctl/{name}"
        for name in (
            "probe-notes.txt",
            "probe-0",
            "mine.txt",
            f"{job}/notes.txt",
            f"{job}/sub/a.json",
        )
    }
    for key in mine:
        store.put(key, note)
    left = [
        f".shardctl/probe-{job[:16]}",
        f".shardctl/{job}/plan.arrow",
        f".shardctl/{job}/done/0000000.arrow",
    ]
    assert shardctl.convert(source, url, workers=0, samples_per_shard=4).status == "up-to-date"
    assert mine <= set(keys(url))
    for key in left:
        store.put(key, note)
    bases = [manifest_of(store)["base"]]
    for rows in (3, 2, 5):
        mine.add(f"{bases[-1]}mine.txt")
        store.put(f"{bases[-1]}mine.txt", note)
        shardctl.convert(source, url, workers=0, samples_per_shard=rows, overwrite=True)
        bases.append(manifest_of(store)["base"])
    there = set(keys(url))
    assert {key for key in there if not key.startswith((*bases[-2:], "manifest.json"))} == {
        key for key in mine if not key.startswith(bases[-2])
    }
    assert mine <= there
    assert not there & set(left)


def test_a_dataset_with_many_rejects_is_up_to_date(tmp_path, out, url, cli):
    """And what should be checked is said again, as for a dataset in a folder."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a"}\n' * 8 + "{bad\n" * 4)
    made = shardctl.convert(source, url, workers=0)
    assert (made.status, made.rejected, len(made.warnings)) == ("created", 4, 1)
    for options in (
        {},
        {"dry_run": True},
        {"update": True},
        {"append": True},
        {"max_rejects": "50%"},
    ):
        again = shardctl.convert(source, url, workers=0, **options)
        assert (again.status, again.warnings) == ("up-to-date", made.warnings), options
    with pytest.raises(TooManyRejectsError, match="the dataset is complete"):
        shardctl.convert(source, url, workers=0, max_rejects=1)
    assert len(shardctl.snapshot(url, source, workers=0, progress=False)) == 8
    assert cli("convert", source, url, "--workers", 0).code == 0
    assert shardctl.convert(source, out, workers=0).warnings == made.warnings


def test_the_folder_of_a_dataset_is_a_dataset_of_its_own(photos, url):
    convert(photos, url)
    base = manifest_of(open_store(url))["base"]
    whole, within = shardctl.open(url), shardctl.open(f"{url}/{base}")
    assert [sample["key"] for sample in whole] == [sample["key"] for sample in within]


def test_faults_of_the_store_change_nothing(photos, url, whole, object_server):
    for seed, kind in enumerate(("503", "reset", "lost", "cut")):
        object_server.fault(kind, share=0.02, seed=seed, size=20)
    convert(photos, url, workers=2)
    assert sum(entry["status"] in (None, 503) for entry in object_server.log()) > 2
    object_server.clear()
    assert sums(url) == whole
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
        recipe = {
            "store": "raw",
            "transform": [{"name": "resize", "size": 40}, {"name": "crop", "size": size}],
        }
        assert convert(photos, url, recipe=recipe, overwrite=True).status == "updated"
        assert shardctl.open(url)[0]["image"].shape == (size, size, 3)
        nothing_is_left(url)


def test_an_update_copies_the_shards_that_stay(source, url, out, object_server):
    given: dict[str, Any] = {"split": "none", "update": True}
    convert(source, url, **given)
    shardctl.convert(source, out, recipe=CROP, **{**SMALL, **given})
    changed = sorted(source.rglob("*.jpg"))[5]
    changed.write_bytes(changed.read_bytes() + b"\0")
    sorted(source.rglob("*.jpg"))[30].unlink()
    object_server.clear()
    result = convert(source, url, **given)
    assert (result.status, result.samples) == ("updated", 59)
    assert result.changes.kept >= 12
    assert sum(entry["method"] == "COPY" for entry in object_server.log()) == result.changes.kept
    shardctl.convert(source, out, recipe=CROP, **{**SMALL, **given})
    assert sums(url) == (out / "SHA256SUMS").read_bytes()
    nothing_is_left(url)


def test_a_kept_shard_that_is_gone_is_named(source, url):
    given: dict[str, Any] = {"split": "none", "update": True}
    convert(source, url, **given)
    store = open_store(url)
    base = manifest_of(store)["base"]
    store.delete([f"{base}train-00014.arrow"])
    sorted(source.rglob("*.jpg"))[0].unlink()
    with pytest.raises(DatasetError, match=f"{url}/{base}train-00014.arrow: gone"):
        convert(source, url, **given)
    assert manifest_of(store)["base"] == base


@pytest.mark.thorough
def test_parts(photos, url, whole):
    assert convert(photos, url, part="2/3").part.shards_done == 5
    with pytest.raises(
        UnfinishedError, match=f"{url}: 10 shards of 15 are missing: 5 of part 1/3; 5 of part 3/3"
    ):
        shardctl.finish(url)
    for part in ("1/3", "2/3", "0/3"):
        assert convert(photos, url, part=part, workers=1).status == "built"
    assert shardctl.finish(url).status == "created"
    assert sums(url) == whole
    nothing_is_left(url)
    assert shardctl.finish(url).status == "up-to-date"


def test_rejects_of_parts_are_merged(source, url, out):
    for path in sorted(path for path in source.rglob("*.*") if path.is_file())[::9]:
        path.write_bytes(b"no image")
    shardctl.convert(source, out, recipe=CROP, **SMALL)
    for part in ("1/2", "2/2"):
        convert(source, url, part=part)
    assert shardctl.finish(url).rejected == 7
    assert sums(url) == (out / "SHA256SUMS").read_bytes()


HELD_COMMAND = [
    "convert",
    "in",
    "--transform",
    "steps:held",
    "--store",
    "png",
    "--workers",
    "1",
    "--samples-per-shard",
    "4",
]


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """in/ with 40 images, the function steps:held, which waits for the file `hold` to go, and the
    bytes of it all in whole/."""
    root = tmp_path_factory.mktemp("held")
    images(root / "in", *(f"{n:02d}.png" for n in range(40)))
    # The job of a conversion to a store lies in a scratch folder.
    (root / "steps.py").write_text(HELD.replace("out/.shardctl", "tmp/*/files/out/.shardctl"))
    (root / "tmp").mkdir()
    command = [sys.executable, "-m", "shardctl", *HELD_COMMAND, "whole"]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    return root


@pytest.fixture
def here(held: Path) -> Iterator[Path]:
    yield held
    (held / "hold").unlink(missing_ok=True)


@contextmanager
def running(here: Path, url: str, shards: int, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command, and give it when so many shards are done; the others are held."""
    (here / "hold").write_text(str(4 * shards))
    command = [sys.executable, "-m", "shardctl", *HELD_COMMAND, url, *words]
    store = open_store(url)
    given: dict[str, Any] = {"cwd": here, "env": {**os.environ, "TMPDIR": "tmp"}, "text": True}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **given
    ) as process:
        try:
            while done_on(store) < shards or not any(
                key.endswith("/job.json") for key in keys(url)
            ):
                assert process.poll() is None, process.communicate()
                select.select([], [], [], 0.01)
            yield process
        finally:
            process.kill()


def go_on(here: Path, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    (here / "hold").unlink(missing_ok=True)
    command = [sys.executable, "-m", "shardctl", *HELD_COMMAND, url, *words]
    return subprocess.run(command, cwd=here, text=True, capture_output=True, timeout=120)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("shards", [pytest.param(0, marks=pytest.mark.thorough), 3])
def test_a_killed_conversion_goes_on(here, url, shards, monkeypatch):
    with running(here, url, shards) as process:
        process.kill()
        process.wait()
    assert "manifest.json" not in keys(url)
    (here / "hold").unlink()
    # its lease stands still
    monkeypatch.setattr(store, "PACE", LeaseTiming(heartbeat=0.1, stale=1, ask=0.05))
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(here)
    waited: list[str] = []
    listener = Listener(waiting=waited.append)
    recipe = {"transform": [{"name": "custom", "target": "steps:held"}], "store": "png"}
    result = shardctl.convert(
        "in", url, recipe=recipe, samples_per_shard=4, workers=0, listener=listener
    )
    assert result.status == "resumed"
    assert [f"process {process.pid} on " in owner for owner in waited] == [True]
    assert sums(url) == (here / "whole" / "SHA256SUMS").read_bytes()
    nothing_is_left(url)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)]
)
def test_an_interrupt_leaves_no_lease_and_no_upload(here, url, object_server, sent):
    with running(here, url, 2) as process:
        process.send_signal(sent)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "2 of 10 shards are done; run the same command again to continue" in err
    assert ".shardctl/lease.json" not in keys(url)
    assert go_on(here, url, "--if-running", "fail").stdout.startswith("resumed")


def test_shards_that_are_on_their_way_are_not_done(photos, url, object_server):
    object_server.fault("slow", method="PUT", key="*train-*", seconds=60)
    command = [
        sys.executable,
        "-m",
        "shardctl",
        "convert",
        str(photos),
        url,
        "--samples-per-shard",
        "4",
        "--workers",
        "2",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None and not any(
            "train-" in entry["key"] for entry in object_server.log()
        ):
            select.select([], [], [], 0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert "0 of 15 shards are done" in err


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["interrupt", pytest.param("refusal", marks=pytest.mark.thorough)])
def test_an_upload_that_is_ended_leaves_no_parts(tmp_path, url, object_server, how):
    """Shards of 48 MB go out in six parts, four of them at the same time: there are more to come
    when it is ended."""
    (tmp_path / "in").mkdir()
    for name in "ab":
        np.save(
            tmp_path / "in" / f"{name}.npy",
            np.random.default_rng(0).integers(0, 256, (6, 8_000_000), np.uint8),
        )
    object_server.fault("slow", method="PART", key="*train-00000*", seconds=0.5)
    if how == "refusal":
        object_server.fault("403", method="INITIATE", key="*train-00001*")
    command = [
        sys.executable,
        "-m",
        "shardctl",
        "convert",
        str(tmp_path / "in"),
        url,
        "--samples-per-shard",
        "6",
        "--workers",
        "2",
    ]
    with subprocess.Popen(
        [*command, "--compression", "none"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        if how == "interrupt":
            while process.poll() is None and not any(
                entry["method"] == "PART" for entry in object_server.log()
            ):
                select.select([], [], [], 0.01)
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
        failing = go_on_while_held(here, url, "--if-running", "fail")
        assert failing.returncode == 3
        assert f"{url}: another shardctl is writing it (process {process.pid} on " in failing.stderr
        waiting = [sys.executable, "-m", "shardctl", *HELD_COMMAND, url]
        with subprocess.Popen(waiting, cwd=here, text=True, stderr=subprocess.PIPE) as second:
            assert second.stderr is not None
            line = next(line for line in second.stderr if "writing it" in line)
            second.kill()
        assert line.startswith(f"another shardctl is writing it (process {process.pid} on ")
        assert line.endswith("); waiting until it ends, or gives no sign of life for 30 seconds\n")
        (here / "hold").unlink()
        assert process.wait(60) == 0
    assert sums(url) == (here / "whole" / "SHA256SUMS").read_bytes()


def go_on_while_held(here: Path, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shardctl", *HELD_COMMAND, url, *words]
    return subprocess.run(command, cwd=here, text=True, capture_output=True, timeout=120)


QUICK = LeaseTiming(heartbeat=0.1, stale=0.5, ask=0.05)
"""So that a lease that was left behind is taken over soon."""


@pytest.mark.thorough
def test_a_part_that_was_killed_is_built_again(here, url, monkeypatch):
    with running(here, url, 1, "--part", "1/2") as process:
        process.kill()
        process.wait()
    (here / "hold").unlink()
    monkeypatch.setattr(store, "PACE", QUICK)
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(here)
    recipe = {"transform": [{"name": "custom", "target": "steps:held"}], "store": "png"}
    for part in ("1/2", "2/2"):
        given: dict[str, Any] = {
            "samples_per_shard": 4,
            "workers": 0,
            "part": part,
            "if_running": "fail",
        }
        assert shardctl.convert("in", url, recipe=recipe, **given).status == "built"
    assert shardctl.finish(url).status == "created"
    assert sums(url) == (here / "whole" / "SHA256SUMS").read_bytes()
    nothing_is_left(url)


@pytest.mark.thorough
def test_who_waits_for_the_same_part_does_not_tell_of_others_who_wait(here, url, object_server):
    command = [sys.executable, "-m", "shardctl", *HELD_COMMAND, url, "--part", "1/2"]
    with running(here, url, 1, "--part", "1/2") as process, ExitStack() as stack:
        given: dict[str, Any] = {
            "cwd": here,
            "env": {**os.environ, "TMPDIR": "tmp"},
            "text": True,
            "stderr": subprocess.PIPE,
        }
        waiting = [stack.enter_context(subprocess.Popen(command, **given)) for _ in range(2)]
        object_server.fault("slow", seconds=0.15)
        time.sleep(20)
        object_server.clear()
        (here / "hold").unlink()
        assert process.wait(60) == 0
        told = [
            [line for line in each.communicate(timeout=60)[1].splitlines() if "writing it" in line]
            for each in waiting
        ]
    for lines in told:
        of_part = [line for line in lines if f"(part 1/2: process {process.pid} on " in line]
        assert len(of_part) == 1
        # before and after that, of one that holds the lease of the dataset, or builds; not every
        # second
        assert len(lines) <= 7


@contextmanager
def nothing_can_be_deleted(server: ObjectServer, after: int = 0) -> Iterator[None]:
    """The end of a process in the middle of its work on a store: all deletions but the first ones
    are refused."""
    if after:
        server.fault("slow", method="DELETE", times=after, seconds=0)
    server.fault("403", method="DELETE")
    with pytest.raises(StoreError, match="deleting is not permitted"):
        yield
    server.clear()


def other(size: int) -> dict[str, Any]:
    return {
        "store": "raw",
        "transform": [{"name": "resize", "size": 40}, {"name": "crop", "size": size}],
    }


@pytest.mark.thorough
@pytest.mark.parametrize("overwrites", [False, True])
def test_what_is_left_to_do_after_a_commit_is_done_by_the_next_one(
    photos,
    url,
    object_server,
    monkeypatch,
    overwrites,
):
    monkeypatch.setattr(store, "PACE", QUICK)
    for size in (16, 20):
        convert(photos, url, recipe=other(size), overwrite=True)
    before = shardctl.open(url)
    with nothing_can_be_deleted(object_server):
        convert(photos, url, recipe=other(24), overwrite=True)
    assert len({key.split("/")[0] for key in keys(url)} - {".shardctl", "manifest.json"}) == 3
    expected = "updated" if overwrites else "up-to-date"
    assert convert(photos, url, recipe=other(24), overwrite=overwrites).status == expected
    nothing_is_left(url)
    sums(url)
    if not overwrites:
        assert before[50]["image"].shape == (20, 20, 3), (
            "the dataset of before stays for its readers"
        )


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
    object_server.fault("403", method="PUT", key="*train-00007*")
    with pytest.raises(StoreError, match="7 of 15 shards are done"):
        convert(photos, url)
    object_server.clear()
    with nothing_can_be_deleted(object_server, after):
        convert(photos, url, recipe=other(24), overwrite=True)
    assert convert(photos, url, recipe=other(24), overwrite=True).status == "created"
    nothing_is_left(url)
    assert {key.split("/")[0] for key in keys(url)} == {
        "manifest.json",
        manifest_of(open_store(url))["base"].rstrip("/"),
    }


@pytest.fixture
def begun(photos: Path, url: str, object_server: ObjectServer) -> list[str]:
    """A conversion that was stopped after 7 shards: its keys."""
    object_server.fault("403", method="PUT", key="*train-00007*")
    with pytest.raises(StoreError, match="7 of 15 shards are done"):
        convert(photos, url)
    object_server.clear()
    return keys(url)


def test_who_is_taken_over_while_it_plans_takes_no_job_away(photos, url, begun, monkeypatch):
    real = run.plan_conversion

    def draft(*given: Any) -> Any:
        open_store(url).put(".shardctl/lease.json", b"{}")
        return real(*given)

    monkeypatch.setattr(run, "plan_conversion", draft)
    with pytest.raises(BusyError, match="took over; nothing was lost"):
        convert(photos, url, recipe=other(24), overwrite=True)
    assert sorted({*keys(url)} - {".shardctl/lease.json"}) == begun


def test_who_is_taken_over_while_its_tables_are_put_commits_nothing(photos, url, monkeypatch):
    """Another process has begun to take its shards away."""
    real = Objects.put

    def put(self: Objects, key: str, data: bytes | Path) -> str:
        if key.endswith("/replaces.json"):
            real(self, ".shardctl/lease.json", b"{}")
        return real(self, key, data)

    monkeypatch.setattr(Objects, "put", put)
    with pytest.raises(BusyError, match="took over; nothing was lost"):
        convert(photos, url)
    assert "manifest.json" not in keys(url)


@pytest.mark.usefixtures("begun")
def test_a_job_that_another_process_completes_is_not_taken_away_with_its_dataset(
    photos, url, whole, object_server
):
    with store.place_on_store(url) as place:
        place.look_at_jobs()
        (job,) = (path.parent for path in place.folder.root.glob(".shardctl/*/job.json"))
        with nothing_can_be_deleted(object_server):
            convert(photos, url)
        place.discard(job)
    assert sums(url) == whole


@pytest.mark.thorough
def test_what_is_left_of_a_killed_look_at_a_store_goes(photos, url, monkeypatch):
    monkeypatch.setattr(store, "PACE", QUICK)
    convert(photos, url)
    for key in (f"probe-{'0123' * 4}", "lease.json", f"{'0123' * 8}/done/0000001.arrow"):
        open_store(url).put(f".shardctl/{key}", b"left")
    assert convert(photos, url).status == "up-to-date"
    nothing_is_left(url)


def test_what_a_person_has_beside_the_jobs_is_not_deleted(photos, url):
    open_store(url).put(".shardctl/mine/done/a.json", b"{}")
    convert(photos, url)
    assert convert(photos, url).status == "up-to-date"
    assert convert(photos, url, recipe=CROP, overwrite=True).status == "updated"
    assert ".shardctl/mine/done/a.json" in keys(url)


def test_a_manifest_that_changes_while_it_is_looked_at(photos, url, object_server):
    convert(photos, url)
    object_server.fault("412", method="GET", key="*/out/manifest.json", times=1)
    assert convert(photos, url).status == "up-to-date"


def refuse(server: ObjectServer, kind: str) -> Callable[[], None]:
    return lambda: server.fault(kind, method="PUT", key="train-*", times=1000)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("expired", "the credentials have expired"),
        pytest.param("403", "writing is not permitted", marks=pytest.mark.thorough),
    ],
)
def test_credentials_that_end_in_the_middle_stop_the_work_and_the_same_command_goes_on(
    photos, url, whole, object_server, kind, said
):
    object_server.fault(kind, method="PUT", key="*train-00007*", times=1000)
    with pytest.raises(StoreError, match=f"train-00007.arrow: .*{said}.* 7 of 15 shards are done"):
        convert(photos, url)
    assert "manifest.json" not in keys(url)
    object_server.clear()
    assert convert(photos, url).status == "resumed"
    assert sums(url) == whole


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
    object_server.fault("403", method="PUT", key="*train-00007*", times=1000)
    with pytest.raises(StoreError, match="not permitted"):
        convert(photos, first)
    object_server.clear()
    old, new, before = open_store(first), open_store(second), keys(first)
    for key in before:
        new.put(key, old.get(key).to_pybytes())
    assert convert(photos, second).status == "resumed"
    assert sums(second) == whole
    assert keys(first) == before


def test_a_shard_that_is_gone_before_the_commit_is_built_again(photos, url, whole, object_server):
    object_server.fault("403", method="PUT", key="*train-00007*", times=1000)
    with pytest.raises(StoreError, match="not permitted"):
        convert(photos, url)
    object_server.clear()
    open_store(url).delete([key for key in keys(url) if key.endswith("/train-00003.arrow")])
    with pytest.raises(
        StorageError, match=r"train-00003\.arrow: is missing, or is not the file that was built"
    ):
        convert(photos, url)
    assert "manifest.json" not in keys(url)
    assert convert(photos, url).status == "resumed"
    assert sums(url) == whole


def test_a_place_that_holds_something_else_is_refused(photos, bucket):
    open_store(bucket).put("raw/x.txt", b"mine")
    with pytest.raises(StorageError, match=r"holds something else \(raw\)"):
        convert(photos, bucket)
    assert keys(bucket) == ["raw/x.txt"]
    for typed in ("s3:/data/out", "s3:data/out", "s3//data/out"):
        with pytest.raises(
            UsageError,
            match=f"{typed}: is not a URL; write s3://data/out",
        ):
            convert(photos, typed)


@pytest.mark.thorough
def test_datasets_of_others_below_it_stay(photos, url):
    other = f"{url}/27838a1c0ffe"  # named as shardctl names its folders
    convert(photos, other)
    for size in (8, 16, 24):
        recipe = {
            "store": "raw",
            "transform": [{"name": "resize", "size": "40x40"}, {"name": "crop", "size": size}],
        }
        convert(photos, url, recipe=recipe, overwrite=True)
    assert len(shardctl.open(other)) == 60
    assert len([name for name in open_store(url).children()[0] if name != "27838a1c0ffe"]) == 2


def test_the_command_ends_where_it_works_in_its_own_process(photos, bucket):
    store = open_store(f"{bucket}/in")
    for path in sorted(photos.rglob("*.jpg"))[:8]:
        store.put(path.name, path)
    command = [
        sys.executable,
        "-m",
        "shardctl",
        "convert",
        f"{bucket}/in",
        f"{bucket}/out",
        "--workers",
        "0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_store_that_ignores_conditions_is_refused(photos, url, object_server):
    object_server.fault("unconditional", times=1000)
    with pytest.raises(StoreError, match="this store ignores conditions"):
        convert(photos, url)
    assert keys(url) == []


def test_a_manifest_that_came_from_elsewhere_meanwhile_stays(photos, url):
    there = open_store(url)
    listener = Listener(announce=lambda _: put_foreign(there))
    with pytest.raises(BusyError, match="another dataset was put there meanwhile"):
        shardctl.convert(photos, url, recipe=CROP, listener=listener, **SMALL)
    assert there.get("manifest.json").to_pybytes() == b"foreign"


def put_foreign(store: Store) -> None:
    store.put("manifest.json", b"foreign")


@pytest.mark.parametrize(
    "bad", ["s3://", "s3://no-such-bucket-here/out", "ftp://host/out", "s3://b/../out"]
)
def test_places_that_cannot_be(photos, object_server, bad):
    with pytest.raises(ShardctlError, match=r"URL|bucket|path"):
        convert(photos, bad)


def test_generations_are_kept_in_folders_only(photos, url):
    with pytest.raises(UsageError, match=f"{url}: a store keeps no generations"):
        convert(photos, url, update=True, keep_generations=2)


@pytest.mark.parametrize(
    ("below", "said"), [("/out", "is inside the source"), ("", "is inside the source")]
)
def test_a_dataset_within_its_source_is_refused(bucket, below, said):
    with pytest.raises(UsageError, match=said):
        shardctl.convert(f"{bucket}/photos", f"{bucket}/photos{below}")
    with pytest.raises(UsageError, match="is inside the destination"):
        shardctl.convert(f"{bucket}/photos/in", f"{bucket}/photos")


def test_what_is_for_folders_is_no_url(photos, url):
    with pytest.raises(UsageError, match=r"rejects can be copied to a folder of this machine only"):
        convert(photos, f"{url}/x", copy_rejects=url)
    with pytest.raises(UsageError, match=r"shardctl\.write writes to folders"):
        shardctl.write(url, [{"key": "a", "n": 1}])


def test_lines_with_keys_of_their_own(tmp_path, out, url):
    lines = [json.dumps({"id": f"k{n}", "text": f"line {n}"}) for n in range(500)]
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    given: dict[str, Any] = {
        "recipe": {"kind": "text", "key_field": "id"},
        "workers": 0,
        "samples_per_shard": 50,
    }
    shardctl.convert(tmp_path / "lines.jsonl", out, **given)
    assert shardctl.convert(tmp_path / "lines.jsonl", url, **given).samples == 500
    assert sums(url) == (out / "SHA256SUMS").read_bytes()


def test_the_folder_that_stands_for_the_place_is_gone_at_the_end(photos, url, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "shardctl", "convert", str(photos), url, "--store", "source"]
    done = subprocess.run(
        command,
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert list(scratch.iterdir()) == []


def test_shards_without_samples_are_left_out_there_too(tmp_path, url):
    (tmp_path / "in.txt").write_text(
        "".join(
            ("x" * 60 if shard in (2, 4) else "short") + "\n" for shard in range(6) for _ in "1234"
        )
    )
    recipe = {"record": "line", "transform": [{"name": "filter_length", "min_chars": 50}]}
    options: dict[str, Any] = {"recipe": recipe, "workers": 0, "samples_per_shard": 4}
    for out in (tmp_path / "out", url):
        assert shardctl.convert(tmp_path / "in.txt", out, **options).shards == 2
    assert sums(url) == (tmp_path / "out" / "SHA256SUMS").read_bytes()
    shards = [key.rpartition("/")[2] for key in keys(url) if "train-" in key]
    assert sorted(shards) == ["train-00002.arrow", "train-00004.arrow"]
    nothing_is_left(url)
