"""What an export must never do to what is not its own: files of people, and datasets that move
while they are read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from in_this_process import convert, export
from made import comes_back, picture, write_texts
from pyarrow import parquet
from tars import members_of

import shardctl
from shardctl.errors import BusyError, DatasetError, StorageError
from shardctl.format.dataset_folder import dataset_in
from shardctl.interop.exports import exporting, job
from shardctl.interop.exports.base import Source
from shardctl.interop.exports.job import ExportJob
from shardctl.interop.exports.mds import Mds
from shardctl.interop.exports.options import Choice
from shardctl.interop.exports.staging import Staging
from shardctl.system.file_lease import Lease

MINE = "my only copy"


def mine(path: Path) -> Path:
    """Write a file of a person's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MINE)
    return path


def stopped(dataset: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stop an export when its first part is done, and return the folder in which it is made."""
    with monkeypatch.context() as patch:
        real, times = ExportJob.write, []

        def write(job: ExportJob, *given: Any) -> Any:
            times.append(1)
            if len(times) > 1:
                raise StorageError("out of reach")
            return real(job, *given)

        patch.setattr(ExportJob, "write", write)
        with pytest.raises(StorageError, match="out of reach"):
            export(dataset, out, "mds")
    (folder,) = [
        each for each in out.with_name(f"{out.name}.partial").iterdir() if each.name != ".shardctl"
    ]
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "thesis/a.txt",
        "a.txt",
        "0123456789abcdef/a.txt",  # no record of a job
        "0123456789abcdef/files/a.txt",
        "0123456789abcdef/files",
        "fedcba9876543210/job.json",  # a record of something else
        ".shardctl/a.txt",  # a conversion that goes on has more there than a lease
        "old/a.txt",
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_that_name_that_is_a_persons_is_refused_and_stays(tmp_path, name, overwrite):
    dataset, out = write_texts(tmp_path / "in"), tmp_path / "out"
    if overwrite:  # then what is in `old` is taken for the export that had to give way
        export(dataset, out, "mds")
    there = mine(tmp_path / "out.partial" / name)
    with pytest.raises(StorageError, match=r"out\.partial: .*is not of an export"):
        export(dataset, out, "parquet", overwrite=overwrite)
    assert there.read_text() == MINE
    assert [path for path in (tmp_path / "out.partial").rglob("*") if path.is_file()] == [there]
    assert out.exists() == overwrite


def test_what_stopped_exports_have_left_is_still_removed(tmp_path, monkeypatch):
    """Also what one has left that was killed before it could write what it is, or while it removed
    what it had made."""
    dataset, out = write_texts(tmp_path / "in"), tmp_path / "out"
    left = stopped(dataset, out, monkeypatch)
    assert (left / "files").is_dir()
    for name, file in (
        ("0" * 16, "job.json.01234567.partial"),
        ("1" * 16, "files"),
        ("2" * 16, ""),
    ):
        (left.parent / name).mkdir()
        if file == "files":
            (left.parent / name / file).mkdir()
        elif file:
            (left.parent / name / file).write_text("{")
    export(dataset, out, "parquet")
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


@pytest.mark.parametrize("of", ["files", "pieces"])
def test_a_part_that_names_a_file_outside_of_the_export_is_written_again(tmp_path, monkeypatch, of):
    dataset, out = write_texts(tmp_path / "in"), tmp_path / "out"
    left, there = stopped(dataset, out, monkeypatch), mine(tmp_path / "victim.txt")
    (marker,) = (left / "done").iterdir()
    record = json.loads(marker.read_text())
    record[of]["../../../victim.txt"] = {"bytes": len(MINE), "sha256": "0" * 64}
    marker.write_text(json.dumps(record))
    export(dataset, out, "mds")
    assert there.read_text() == MINE
    assert "victim" not in (out / "SHA256SUMS").read_text()
    assert sorted(os.listdir(tmp_path)) == ["in", "out", "victim.txt"]


def at_the_end(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Have something happen when all parts are written, and nothing is in its place yet."""
    real = exporting.write_parts

    def write(*given: Any) -> Any:
        written = real(*given)
        happens()
        return written

    monkeypatch.setattr(exporting, "write_parts", write)


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_comes_to_the_destination_meanwhile_stays_and_so_does_the_work(
    tmp_path, monkeypatch, overwrite
):
    dataset, out = write_texts(tmp_path / "in"), tmp_path / "out"
    with monkeypatch.context() as patch:
        at_the_end(patch, lambda: mine(out / "thesis.txt"))
        with pytest.raises(
            StorageError, match=r"thesis\.txt.* 4 of 4 parts are done, in .*out\.partial"
        ):
            export(dataset, out, "mds", overwrite=overwrite)
    assert (out / "thesis.txt").read_text() == MINE
    out.rename(tmp_path / "mine")
    monkeypatch.setattr(ExportJob, "write", lambda *given: pytest.fail("a part was written again"))
    export(dataset, out, "mds")
    assert sorted(os.listdir(tmp_path)) == ["in", "mine", "out"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_comes_in_the_very_last_moment_stays_too(tmp_path, out, overwrite):
    """The rename itself must refuse it: no check before it can be late enough."""
    staging = Staging(tmp_path / "out.partial" / "0123456789abcdef")
    (tmp_path / "out.partial").mkdir()
    staging.begin({})
    made, there = mine(staging.files / "made"), mine(out / "thesis.txt")
    with pytest.raises(
        StorageError,
        match=r"out: (cannot write here|a file appeared that is not of an export)",
    ):
        staging.publish(out, overwrite)
    assert (made.read_text(), there.read_text()) == (MINE, MINE)


def test_a_worker_writes_nothing_of_another_dataset_than_the_planned_one(tmp_path):
    dataset = write_texts(tmp_path / "in")
    (tmp_path / "out.partial").mkdir()
    staging = Staging(tmp_path / "out.partial" / "0123456789abcdef")
    planned = ExportJob(Source(dataset_in(dataset), Choice()), Mds(), ())
    staging.begin(planned.to_json())
    dataset.rename(tmp_path / "away")
    shardctl.write(dataset, [{"key": "another", "text": "one"}])
    task = {"folder": str(staging.path), "state": planned.source.state, "version": 0, "part": 0}
    with pytest.raises(DatasetError, match="was replaced while it was read; run the same command"):
        job.handle(task, lambda samples: None, None)  # type: ignore[arg-type]
    assert list(staging.path.glob("done/*")) == list(staging.path.glob("files/*")) == []


def test_a_part_is_not_done_if_the_dataset_is_another_one_by_then(tmp_path, monkeypatch):
    """At the end of the export the planned one may be back, so that a look at that time does not
    tell."""
    dataset, other, away = write_texts(tmp_path / "in"), tmp_path / "other", tmp_path / "away"
    shardctl.write(
        other,
        [{"key": str(n), "text": "another", "year": n} for n in range(8)],
        samples_per_shard=2,
    )
    monkeypatch.setattr(Staging, "finish", lambda *given: pytest.fail("it was marked as done"))

    def moved(_done: int, _samples: int) -> None:
        if other.exists():
            dataset.rename(away)
            other.rename(dataset)

    with pytest.raises(DatasetError, match="was replaced while it was read"):
        export(dataset, tmp_path / "out", "mds", progress=moved)


def test_an_export_that_another_process_took_over_touches_nothing_any_more(tmp_path, monkeypatch):
    """This one stood still for so long that another one goes on with the same files: they are not
    to be removed or renamed."""
    dataset, out = write_texts(tmp_path / "in"), tmp_path / "out"

    def taken_over(_lease: Lease) -> None:
        raise BusyError("another one took over")

    at_the_end(monkeypatch, lambda: monkeypatch.setattr(Lease, "check", taken_over))
    with pytest.raises(BusyError, match="another one took over"):
        export(dataset, out, "mds")
    assert not out.exists()
    assert len(list((tmp_path / "out.partial").glob("*/done/*.json"))) == 4


def write_named_images(folder: Path) -> Path:
    """Make a dataset of images with paths that are not the keys, and captions that are objects."""
    columns = {
        "image": [{"bytes": picture(n), "path": f"orig/{n}.jpg"} for n in range(3)],
        "mask": [{"bytes": picture(n, "PNG", "L"), "path": f"masks/{n}.png"} for n in range(3)],
        "caption": [{"a": f"caption {n}"} for n in range(3)],
    }
    parquet.write_table(pa.table(columns), folder.with_suffix(".parquet"))
    convert(folder.with_suffix(".parquet"), folder, recipe={"kind": "image"})
    folder.with_suffix(".parquet").unlink()
    assert set(Source(dataset_in(folder), Choice()).exported.roles.images) == {"image", "mask"}
    return folder


@pytest.mark.thorough(after=4)
@pytest.mark.parametrize("to", ["parquet", "webdataset", "tfrecord", "mds"])
@pytest.mark.parametrize(
    "rename",
    [
        {"image": "picture", "caption": "image"},
        {"mask": "image", "image": "mask"},
        {"mask": "M?", "caption": "mask"},
    ],
)
def test_columns_that_take_the_names_of_images_are_not_lost(tmp_path, to, rename):
    dataset = write_named_images(tmp_path / "in")
    comes_back(dataset, tmp_path / "out", to, rename=rename, on_loss="json")


@pytest.mark.parametrize(
    ("rename", "members"),
    [
        ({}, {"txt": "text", "json": {"caption": "said"}}),
        ({"caption": "txt"}, {"txt": "text", "json": {"txt": "said"}}),
        ({"caption": "txt", "text": "other"}, {"txt": "said", "json": {"other": "text"}}),
        ({"text": "caption", "caption": "text"}, {"txt": "said", "json": {"caption": "text"}}),
    ],
)
def test_the_text_of_a_sample_is_what_is_called_so_in_the_target(tmp_path, out, rename, members):
    shardctl.write(tmp_path / "in", [{"key": "k", "text": "text", "caption": "said"}])
    export(tmp_path / "in", out, "webdataset", rename=rename)
    found = {
        name: json.loads(data) if name == "k.json" else data.decode()
        for name, data in members_of(out / "train-00000.tar").items()
    }
    assert found == {f"k.{name}": value for name, value in members.items()}
