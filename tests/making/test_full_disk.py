"""A real small file system: filled up, made read-only, unmounted, broken."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CROP
from dataset_facts import rejects_of, sums
from dataset_files import shards_in
from in_this_process import convert
from small_disk import MIB
from small_disk import disk as disk

import shardctl
from shardctl.errors import (
    DatasetError,
    DiskFullError,
    SourceGoneError,
    StorageError,
    TooManyRejectsError,
)
from shardctl.making.convert import Listener

RANDOM = {"name": "random_resized_crop", "size": 24}


def fill(disk: Path, leave: int) -> None:
    with open(disk / "ballast", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - leave)


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize("left", [0, 20_000, 80_000, 150_000])
def test_a_disk_that_fills_up_is_said_and_the_same_command_goes_on(disk, photos, tmp_path, left):
    """Of the 190 kB that it takes: full for the first shard, in the middle, and for the tables at
    the end."""
    out = disk / "out"
    convert(photos, tmp_path / "whole", recipe=CROP)
    filling = Listener(announce=lambda _: fill(disk, left + 32_000))
    said = (
        r"/shardctl-disk-.*/out/.*: the disk is full .*; about .* more are needed\. \d of 7 "
        r"shards are done"
    )
    with pytest.raises(DiskFullError, match=said):
        convert(photos, out, recipe=CROP, workers=1, listener=filling)
    with pytest.raises(DatasetError):
        shardctl.open(out)
    (disk / "ballast").unlink()
    convert(photos, out, recipe=CROP, workers=1)
    assert sums(out) == sums(tmp_path / "whole")


@pytest.mark.thorough
def test_a_full_disk_beside_a_store_is_said(disk, photos, bucket, monkeypatch, cli):
    url, options = f"{bucket}/out", ("--store", "raw", "--resize", "160x160", "--workers", "0")
    assert cli("convert", photos, url, *options, "--samples-per-shard", "10").code == 0
    fill(disk, 700_000)  # less than a shard
    monkeypatch.setenv("TMPDIR", str(disk))
    monkeypatch.setattr(tempfile, "tempdir", None)
    for words, said in (
        (("verify", url), "shards are downloaded to it: set TMPDIR .*SHARDCTL_SCRATCH_LIMIT"),
        (("convert", photos, f"{url}2", *options), r"Set TMPDIR .*\. \d of 7 shards are done"),
    ):
        ran = cli(*words)
        assert ran.code == 3
        assert re.search(
            rf"^shardctl: {disk}: the disk is full \(.* free\); .*{said}", ran.err, re.MULTILINE
        )


def read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


def test_a_disk_that_is_full_from_the_start_is_said(disk, photos):
    fill(disk, 0)
    with pytest.raises(StorageError, match=r"is full|are free; free more"):
        convert(photos, disk / "out", recipe=CROP)


def test_a_dataset_is_whole_after_its_replacement_did_not_fit(disk, photos):
    out, other = disk / "out", {**CROP, "seed": 1}
    convert(photos, out, recipe=CROP)
    old = sums(out)
    filling = Listener(announce=lambda _: fill(disk, 60_000))
    with pytest.raises(StorageError, match="is full"):
        convert(photos, out, recipe=other, overwrite=True, listener=filling)
    assert sums(out) == old
    assert shardctl.verify(out).ok


def test_a_dataset_on_a_read_only_file_system_is_up_to_date(disk, photos):
    """Also where a converter was killed right after it had completed the dataset, and what it left
    cannot be taken away."""
    out = disk / "out"
    made = convert(photos, out)
    (out / ".shardctl" / made.fingerprint).mkdir(parents=True)
    read_only(disk)
    assert shardctl.convert(photos, out).status == "up-to-date"
    with pytest.raises(DatasetError, match="that differs in its recipe"):
        convert(photos, out, recipe=CROP)
    with pytest.raises(StorageError, match=r"cannot write here \(Read-only file system\)"):
        convert(photos, out, recipe=CROP, overwrite=True)


def test_a_snapshot_on_a_read_only_file_system_is_opened_and_said_to_be_old(disk, source):
    out = disk / "out"
    assert len(shardctl.snapshot(out, source, CROP, workers=0)) == 60
    read_only(disk)
    assert len(shardctl.snapshot(out, source, CROP)) == 60
    next(source.rglob("*.jpg")).unlink()
    for place, said in ((out, "the dataset is not up to date"), (disk / "other", "is not there")):
        with pytest.raises(StorageError, match=rf"\(Read-only file system\): .*{said}"):
            shardctl.snapshot(place, source, CROP)
    assert len(shardctl.snapshot(out, source, CROP, trust=True)) == 60


def test_a_source_that_is_unmounted_stops_the_job(disk, photos, out):
    """Really unmounted, lazily, with the first files read. Mounted again, it goes on."""
    shutil.copytree(photos, disk / "in")

    def unmount(_: object) -> None:
        subprocess.run(["umount", "-l", str(disk)], check=True)

    try:
        with pytest.raises(SourceGoneError, match="has gone away; bring it back"):
            convert(disk / "in", out, workers=1, listener=Listener(announce=unmount))
    finally:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(disk)], check=True)
    shutil.copytree(photos, disk / "in", copy_function=shutil.copy2)
    assert convert(disk / "in", out, workers=1).rejected == 0


@pytest.fixture
def image(disk: Path, demo: Path, tmp_path: Path) -> Path:
    """The image of a disk with the demo's inputs, a few photos among empty files, and one photo;
    `mounted` mounts it."""
    image, inputs = disk / "image", tmp_path / "inputs"
    shutil.copytree(demo, inputs)
    for folder, photos in (("few", 2), ("one", 1)):
        (inputs / folder).mkdir()
        for path in sorted(demo.glob("photos/*/*.jpg"))[:photos]:
            shutil.copy(path, inputs / folder)
    for number in range(30):
        (inputs / "few" / f"empty-{number}.jpg").touch()
    with open(image, "wb") as file:
        file.truncate(6 * MIB)
    make = ["mkfs.ext4", "-q", "-d", str(inputs), str(image)]
    if not shutil.which("mkfs.ext4") or subprocess.run(make).returncode:
        pytest.skip("cannot make a file system in a file here")
    return image


@pytest.fixture
def mounted(image: Path, tmp_path: Path) -> Iterator[Path]:
    """The inputs on a disk that answers EIO where its image has been cut off."""
    place = tmp_path / "mounted"
    place.mkdir()
    mount = ["mount", "-o", "loop,ro", str(image), str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount an image of a file system here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def destroy(image: Path, files: list[Path]) -> None:
    """Cut all of an image off, of whose disk then no file can be read."""
    os.truncate(image, 0)
    for _ in range(100):
        if not any(map(is_readable, files)):
            return
    raise AssertionError("the system keeps them in memory")


def destroying(image: Path, folder: Path) -> Listener:
    # before: the folders themselves may not be readable any more
    files = [
        path for path in (folder, *folder.rglob("*.*")) if path.is_file() and path.stat().st_size
    ]
    return Listener(announce=lambda _: destroy(image, files))


def is_readable(path: Path) -> bool:
    """Return whether the disk gives the whole of a file, and leave nothing of it in memory."""
    try:
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            try:
                file.readall()
            finally:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        return False
    return True


def test_a_source_whose_disk_breaks_stops_the_job_and_rejects_nothing(image, mounted, out):
    """The folders are still in memory, so that only reads fail. Repaired, the job goes on."""
    whole, source = image.read_bytes(), mounted / "photos"
    said = (
        r"photos: the source does not respond: .* cannot be read \(Input/output error\); "
        r".*\. 0 of 7 shards are done"
    )
    with pytest.raises(SourceGoneError, match=said):
        convert(source, out, recipe=CROP, workers=1, listener=destroying(image, source))
    image.write_bytes(whole)
    result = convert(source, out, recipe=CROP, workers=1)
    assert (result.status, result.samples, result.rejected) == ("resumed", 60, 0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lines.jsonl", "respond: lines.jsonl cannot be read"),
        ("few", "the source does not respond"),
    ],
)
def test_no_other_file_and_empty_ones_do_not_make_a_broken_disk_look_alive(
    image, mounted, out, name, said
):
    """Of a file of lines other parts are tried."""
    source = mounted / name
    options = {"workers": 1, "max_rejects": "100%", "listener": destroying(image, source)}
    with pytest.raises(SourceGoneError, match=said):
        convert(source, out, **options)


def test_the_only_file_of_a_source_is_rejected_where_it_cannot_be_read(image, mounted, out):
    """There is nothing to compare it with."""
    recipe = {"store": "png", "variants": 2, "transform": [RANDOM]}
    listener = destroying(image, mounted / "one")
    said = r"no input could be converted \(1 rejected\), .* \(Input/output error\)"
    with pytest.raises(TooManyRejectsError, match=said):
        convert(mounted / "one", out, recipe=recipe, workers=1, listener=listener)


def test_repair_rebuilds_what_other_sources_still_have(image, mounted, photos, tmp_path, out):
    shutil.copytree(photos, tmp_path / "local" / "more")
    sources = [mounted / "photos", tmp_path / "local"]
    convert(sources, out, recipe=CROP, workers=1, samples_per_shard=60)
    for path in shards_in(out):
        path.unlink()
    # before: the folders themselves may not be readable any more
    files = sorted((mounted / "photos").glob("*/*.*"))
    destroy(image, files)
    result = shardctl.repair(out, workers=2)
    assert (result.status, result.repaired) == ("damaged", ("train-00001",))
    (left,) = result.unrepaired
    assert (left.file, "does not respond" in left.message) == ("train-00000", True)


@pytest.mark.thorough
def test_files_on_a_bad_part_of_a_disk_are_rejected(image, mounted, tmp_path, out):
    lost: list[Path] = []
    source, copies = mounted / "photos", tmp_path / "copies"
    # before: the folders themselves may not be readable any more
    files = sorted(source.glob("*/*.*"))

    def damage(_: object) -> None:
        while not lost:
            os.truncate(image, image.stat().st_size - 16384)
            lost.extend(path for path in files if not is_readable(path))

    options = {"recipe": CROP, "workers": 1, "copy_rejects": copies}
    result = convert(source, out, listener=Listener(announce=damage), **options)
    rejects = rejects_of(out)
    assert [reject.key for reject in rejects] == [str(path.relative_to(source)) for path in lost]
    reasons = {(reject.stage, reject.error, reject.message) for reject in rejects}
    assert reasons == {("read", "unreadable", "cannot be read (Input/output error)")}
    assert (result.samples, result.copied) == (60 - len(lost), 0)
    copied = {path.name for path in copies.rglob("*") if path.is_file()}
    assert copied == {".shardctl-copies", "rejects.jsonl"}
