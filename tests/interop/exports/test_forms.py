"""What every form promises: the same bytes for any number of workers and stops, what was chosen, and
nothing that looks whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import made
import pytest
from damage import flip
from dataset_facts import tree
from dataset_files import shard_in
from in_this_process import export
from made import back_from, facts_of, table
from pyarrow import parquet

import shardctl
from shardctl.errors import BusyError, DatasetError
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.manifest import Manifest
from shardctl.interop.exports.job import ExportJob
from shardctl.interop.exports.webdataset import member_header
from shardctl.sources.export_description import DESCRIPTION, Description, loose_names
from shardctl.system import file_lease

FORMS = (*made.FORMS, "files")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.write_photos(tmp_path_factory.mktemp("photos") / "in")


@pytest.mark.thorough(after=3)
@pytest.mark.parametrize("to", FORMS)
def test_any_number_of_workers_writes_the_same_files(photos, tmp_path, to):
    for workers in (0, 1, 2):
        result = shardctl.export(
            photos, tmp_path / str(workers), to, workers=workers, on_loss="json"
        )
        assert result.counts == {"train": {"samples": 9}, "val": {"samples": 5}}
    assert tree(tmp_path / "0") == tree(tmp_path / "1") == tree(tmp_path / "2")
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2"]
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=tmp_path / "0", check=True)
    described = Description.load(tmp_path / "0")
    files = {*described.files, *loose_names(tmp_path / "0", described)}
    assert files | {"SHA256SUMS", DESCRIPTION} == set(tree(tmp_path / "0"))
    assert described.layout.classes == made.CLASSES


def inodes(folder: Path) -> set[tuple[str, int]]:
    return {(path.name, path.stat().st_ino) for path in folder.rglob("*") if path.is_file()}


KILLED = """
import glob, os, signal, sys
import shardctl
def stop(done, samples):
    if len(glob.glob(f"{sys.argv[2]}.partial/*/done/*.json")) >= 2:
        os.kill(os.getpid(), signal.SIGKILL)
shardctl.export(sys.argv[1], sys.argv[2], sys.argv[3], progress=stop, workers=int(sys.argv[4]), on_loss="json")
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("to", "workers"), [("webdataset", 2), ("mds", 0), ("tfds", 0), ("files", 0)]
)
def test_a_killed_export_goes_on_and_gives_the_same_bytes(photos, tmp_path, to, workers):
    out, whole = tmp_path / "out", tmp_path / "whole"
    ran = subprocess.run([sys.executable, "-c", KILLED, photos, out, to, str(workers)])
    assert ran.returncode == -signal.SIGKILL
    assert not out.exists()
    (staging,) = [
        folder for folder in (tmp_path / "out.partial").iterdir() if (folder / "done").exists()
    ]
    done = inodes(staging / "files")
    assert len(list((staging / "done").iterdir())) >= 2
    export(photos, out, to, on_loss="json")
    export(photos, whole, to, on_loss="json")
    assert tree(out) == tree(whole)
    assert sorted(os.listdir(tmp_path)) == ["out", "whole"]
    assert len(done & inodes(out)) >= 2


@pytest.mark.parametrize("to", ["parquet", "files"])
def test_a_damaged_block_is_refused_and_nothing_is_there(tmp_path, out, to):
    dataset = made.write_texts(tmp_path / "in")
    shard = shard_in(dataset, "train-00001")
    flip(shard, shard.read_bytes().index(b"#3"))
    with pytest.raises(DatasetError, match=r"train-00001-\w+\.arrow"):
        export(dataset, out, to)
    assert not out.exists()


@pytest.mark.parametrize("to", FORMS)
def test_a_choice_of_samples_and_columns_is_all_that_is_written(photos, out, to, cli):
    chosen = "--split train --columns image,label,caption --rename caption=said --json --workers 0"
    where = ("--where", "label == 'dog' and score > 0.15")
    ran = cli("export", photos, out, "--to", to, *chosen.split(), *where)
    assert ran.json["counts"] == {"train": {"samples": 2}}
    names = ["key", "image", "label", "caption"]
    described = Description.load(out)
    assert any(field.written.endswith("said") for field in described.fields)
    assert described.layout.columns.names == names
    if to == "files":  # its columns are those of its table
        names[-1] = "said"
    back = table(back_from(out))
    assert back.column_names == names
    assert sorted(back[names[-1]].to_pylist()) == ["caption 4", "caption 7"]


def test_losses_are_told_before_anything_is_written(tmp_path, out, cli):
    dataset = made.write_gaps(tmp_path / "in")
    ran = cli("export", dataset, out, "--to", "mds")
    assert ran.code == 2
    assert "number (int32): MDS has no missing values, and 1 of its values" in ran.err
    assert "--on-loss json writes number, text as JSON text" in ran.err
    planned = cli("export", dataset, out, "--to", "mds", "--dry-run", "--json").json
    assert [field["name"] for field in planned["fields"] if field["loss"]] == ["number", "text"]
    assert os.listdir(tmp_path) == ["in"]
    assert cli("export", dataset, out, "--to", "mds", "--on-loss", "json").code == 0
    assert cli("export", dataset, tmp_path / "drop", "--to", "mds", "--on-loss", "drop").code == 0
    assert table(back_from(tmp_path / "drop")).column_names == ["key", "list"]
    where = "number is not None and text is not None"
    assert cli("export", dataset, tmp_path / "some", "--to", "mds", "--where", where).code == 0
    assert table(back_from(tmp_path / "some"))["key"].to_pylist() == ["a"]


def test_only_one_export_is_made_at_a_time(tmp_path, out):
    dataset = made.write_texts(tmp_path / "in")
    with file_lease.hold(tmp_path / "out.partial" / ".shardctl", None), pytest.raises(BusyError):
        shardctl.export(dataset, out, "parquet")


def test_ctrl_c_says_that_the_same_command_goes_on(photos, tmp_path, out, cli, monkeypatch):
    real, times = ExportJob.write, iter((True, True))

    def write(job: ExportJob, *given: Any) -> Any:
        if not next(times, False):
            raise KeyboardInterrupt
        return real(job, *given)

    command = ("export", photos, out, "--to", "mds", "--workers", "0")
    with monkeypatch.context() as patch:
        patch.setattr(ExportJob, "write", write)
        ran = cli(*command)
    assert (ran.code, "2 of 5 parts are done, in " in ran.err) == (130, True)
    assert cli(*command).code == 0
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("to", "name"), [("webdataset", "train-00000.tar.gz"), ("tfrecord", "train-00000.tfrecord.gz")]
)
def test_files_of_records_can_be_compressed(photos, out, to, name):
    export(photos, out, to, compression="gzip", on_loss="json")
    assert facts_of(back_from(out)) == facts_of(photos)
    data = (out / name).read_bytes()
    assert (data[:4], data[4:8]) == (b"\x1f\x8b\x08\0", bytes(4))  # no name, and no time


@pytest.mark.parametrize(
    "name", ["a.jpg", "é/" * 40 + "b", "c" * 99, "c" * 100, "c" * 101, "d/" * 200]
)
@pytest.mark.parametrize("size", [0, 1, 511, 8**11 - 1, 8**11])
def test_headers_of_members_are_those_of_tarfile(name, size):
    info = tarfile.TarInfo(name)
    info.size = size
    assert member_header(name, size) == info.tobuf(tarfile.GNU_FORMAT)


def test_row_groups_are_small_and_images_are_not_compressed(photos, out, monkeypatch):
    monkeypatch.setattr("shardctl.interop.exports.parquet.GROUP_IMAGES", 3)
    export(photos, out, "parquet")
    file = parquet.ParquetFile(out / "data" / "train-00000-of-00003.parquet")
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    assert [group.num_rows for group in groups] == [2, 2]
    columns = [groups[0].column(number) for number in range(groups[0].num_columns)]
    codecs = {column.path_in_schema: column.compression for column in columns}
    assert (codecs["image.bytes"], codecs["caption"]) == ("UNCOMPRESSED", "ZSTD")
    assert columns[0].has_offset_index
    assert columns[0].has_column_index


def test_names_of_files_stay_inside_and_are_told_apart(photos, out):
    shardctl.export(photos, out, "files", columns=["image"])
    names = [path.relative_to(out).as_posix() for path in out.rglob("*.jpg")]
    assert len({name.casefold() for name in names}) == len(made.KEYS)
    assert all(
        len(part.encode()) <= 255 and part not in (".", "..")
        for name in names
        for part in name.split("/")
    )
    assert "val/_con.jpg" in names
    assert {"val/A~~0-1.jpg", "val/a~~0-2.jpg"} <= set(names)


def test_an_export_to_files_comes_back_with_its_labels_and_their_names(photos, tmp_path, out, cli):
    export(photos, out, "files")
    ran = cli("convert", out, tmp_path / "back", "--workers", "0")
    assert ran.code == 0, ran.err
    assert "the column key is left out: the path of a file is its key" in ran.err
    assert Manifest.load(dataset_in(tmp_path / "back")).roles.names == {"label": made.CLASSES}
    for split in ("train", "val"):
        before, after = (
            sorted((row["caption"], row["label"]) for row in table(dataset, split).to_pylist())
            for dataset in (photos, tmp_path / "back")
        )
        assert before == after


def test_a_record_that_is_none_is_refused(photos, tmp_path, out):
    export(photos, out, "webdataset")
    good = json.loads((out / DESCRIPTION).read_text())
    assert json.loads(json.dumps(Description.from_json(good).to_json())) == good
    spoilt: list[dict[str, Any]] = [
        {"format": "other"},
        {"version": 3},
        {"version": 0},
        {"key": 3},
        {"fields": [{"name": "none", "written": "none", "form": "value"}]},
        {"fields": None},
        {"layout": {"kind": "image", "fields": {}, "schema": "AAAA"}},
        {"splits": {"../x": {"samples": 1, "files": []}}},
        {"splits": {"train": {"samples": -1, "files": []}}},
        {"splits": {"train": {"samples": 1, "files": ["other"]}}},
        {"files": {"../../etc/passwd": {"bytes": 1, "sha256": "0" * 64}}},
        {"files": {"a": {"bytes": 1, "sha256": "short"}}},
    ]
    for change in spoilt:
        (tmp_path / DESCRIPTION).write_text(json.dumps({**good, **change}))
        with pytest.raises(ValueError, match=r".+"):
            Description.load(tmp_path)
