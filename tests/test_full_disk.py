"""A real small file system, filled up and made read-only."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CROP
from test_conversion import sums

import shardctl
from shardctl.conversion import Listener
from shardctl.errors import DatasetError, DiskFullError, StorageError

MIB = 1 << 20


@pytest.fixture
def disk() -> Iterator[Path]:
    """A file system of 8 MiB, not in pytest's own folder: it could not tidy that up if a killed run left it mounted."""
    place = Path(tempfile.mkdtemp(prefix="shardctl-disk-"))
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={8 * MIB}", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        place.rmdir()
        pytest.skip("may not mount a file system here")
    yield place
    # Lazily: the traceback of an expected error may still hold a mapped file.
    subprocess.run(["umount", "-l", str(place)], check=True)
    place.rmdir()


def fill(disk: Path, leave: int) -> None:
    with open(disk / "ballast", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - leave)


@pytest.mark.parametrize("left", [0, 20_000, 80_000, 150_000])
def test_a_disk_that_fills_up_is_said_and_the_same_command_goes_on(disk: Path, photos: Path, tmp_path: Path, left: int) -> None:
    """Of the 190 kB that it takes: full for the first shard, in the middle, and for the tables at the end."""
    shardctl.convert(photos, tmp_path / "whole", recipe=CROP, workers=0)
    with pytest.raises(
        DiskFullError,
        match=r"/shardctl-disk-.*/out/.*: the disk is full .*; about .* more are needed\. \d of 7 shards are done",
    ):
        shardctl.convert(
            photos, disk / "out", recipe=CROP, workers=1, listener=Listener(announce=lambda _: fill(disk, left + 20_000))
        )
    with pytest.raises(DatasetError):
        shardctl.open(disk / "out")
    (disk / "ballast").unlink()
    shardctl.convert(photos, disk / "out", recipe=CROP, workers=1)
    assert sums(disk / "out") == sums(tmp_path / "whole")


def test_a_disk_that_is_full_from_the_start_is_said(disk: Path, photos: Path) -> None:
    fill(disk, 0)
    with pytest.raises(StorageError, match=r"is full|are free; free some space"):
        shardctl.convert(photos, disk / "out", recipe=CROP, workers=0)


def test_a_dataset_is_whole_after_its_replacement_did_not_fit(disk: Path, photos: Path) -> None:
    shardctl.convert(photos, disk / "out", recipe=CROP, workers=0)
    old = sums(disk / "out")
    with pytest.raises(StorageError, match="is full"):
        shardctl.convert(
            photos,
            disk / "out",
            recipe={**CROP, "seed": 1},
            overwrite=True,
            workers=0,
            listener=Listener(announce=lambda _: fill(disk, 60_000)),
        )
    assert sums(disk / "out") == old
    assert shardctl.verify(disk / "out").ok


def test_a_read_only_file_system_is_said(disk: Path, photos: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(StorageError, match=r"cannot write here \(Read-only file system\)"):
        shardctl.convert(photos, disk / "out", workers=0)


def test_a_dataset_on_a_read_only_file_system_is_up_to_date(disk: Path, photos: Path) -> None:
    """Also where a converter was killed right after it had completed the dataset, and what it left cannot be taken away."""
    made = shardctl.convert(photos, disk / "out", workers=0)
    (disk / "out" / ".shardctl" / made.fingerprint).mkdir(parents=True)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert shardctl.convert(photos, disk / "out").status == "up-to-date"
    with pytest.raises(DatasetError, match="that differs in its recipe"):
        shardctl.convert(photos, disk / "out", recipe=CROP)
    with pytest.raises(StorageError, match=r"cannot write here \(Read-only file system\)"):
        shardctl.convert(photos, disk / "out", recipe=CROP, workers=0, overwrite=True)


def test_a_source_that_is_unmounted_stops_the_job(disk: Path, photos: Path, tmp_path: Path) -> None:
    """Really unmounted, lazily, with the first files read. Mounted again, it goes on."""
    shutil.copytree(photos, disk / "in")

    def unmount(_: object) -> None:
        subprocess.run(["umount", "-l", str(disk)], check=True)

    try:
        with pytest.raises(shardctl.errors.SourceGoneError, match="has gone away; bring it back"):
            shardctl.convert(disk / "in", tmp_path / "out", workers=1, listener=Listener(announce=unmount))
    finally:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(disk)], check=True)
    shutil.copytree(photos, disk / "in", copy_function=shutil.copy2)
    assert shardctl.convert(disk / "in", tmp_path / "out", workers=1).rejected == 0
