"""What every form promises: its values, the same bytes for any number of workers and stops, and
nothing that looks whole."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import made
import numpy as np
import pyarrow as pa
import pytest
from conftest import examples
from hypothesis import given
from in_this_process import export
from made import table
from PIL import Image
from pyarrow import parquet
from restoring import READERS, restored

import shardctl
from shardctl.errors import BusyError, DatasetError, ShardctlError
from shardctl.format.manifest import Manifest
from shardctl.interop.exports.webdataset import member_header
from shardctl.sources.export_description import DESCRIPTION, Description, loose_names
from shardctl.system import file_lease
from shardctl.system.folders import LocalFolder

FORMS = tuple(READERS)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.write_photos(tmp_path_factory.mktemp("photos") / "in")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.thorough(after=3)
@pytest.mark.parametrize("to", FORMS)
def test_every_value_comes_back_from_any_number_of_workers(photos, tmp_path, to):
    for workers in (0, 1, 2):
        result = shardctl.export(
            photos, tmp_path / str(workers), to, workers=workers, on_loss="json"
        )
        assert result.counts == {"train": {"samples": 9}, "val": {"samples": 5}}
    assert contents(tmp_path / "0") == contents(tmp_path / "1") == contents(tmp_path / "2")
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2"]
    for split in ("train", "val"):
        assert restored(tmp_path / "0", split).equals(table(photos, split))
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=tmp_path / "0", check=True)
    described = Description.load(tmp_path / "0")
    files = {*described.files, *loose_names(tmp_path / "0", described)}
    assert files | {"SHA256SUMS", DESCRIPTION} == set(contents(tmp_path / "0"))
    assert described.layout.classes == made.CLASSES


def inodes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_ino
        for path in folder.rglob("*")
        if path.is_file()
    }


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
    assert contents(out) == contents(whole)
    assert sorted(os.listdir(tmp_path)) == ["out", "whole"]
    now = inodes(out)
    assert sum(now.get(name) == inode for name, inode in done.items()) >= 2


@pytest.mark.parametrize("to", FORMS)
def test_a_damaged_block_is_refused_and_nothing_is_there(tmp_path, out, to):
    dataset = made.write_texts(tmp_path / "in")
    shard = dataset / "train-00001.arrow"
    data = shard.read_bytes()
    at = data.index(b"#3") if b"#3" in data else len(data) // 2
    shard.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(DatasetError, match=r"train-00001\.arrow"):
        export(dataset, out, to)
    assert not out.exists()


@pytest.mark.parametrize("to", FORMS)
def test_a_choice_of_samples_and_columns_is_all_that_is_written(photos, out, to, cli):
    ran = cli(
        *(
            "export",
            photos,
            out,
            "--to",
            to,
            "--split",
            "train",
            "--columns",
            "image,label,caption",
            "--json",
        ),
        *(
            "--rename",
            "caption=said",
            "--where",
            "label == 'dog' and score > 0.15",
            "--workers",
            "0",
        ),
    )
    assert ran.code == 0, ran.err
    assert ran.json["counts"] == {"train": {"samples": 2}}
    read = restored(out, "train")
    assert read.column_names == ["key", "image", "label", "caption"]
    assert read["caption"].to_pylist() == ["caption 4", "caption 7"]
    described = Description.load(out)
    assert any(field.written.endswith("said") for field in described.fields)
    assert described.layout.columns.names == read.column_names


@pytest.mark.parametrize("to", FORMS)
def test_raw_images_and_masks_are_png_with_the_same_pixels(tmp_path, out, to):
    dataset = made.write_raw(tmp_path / "in", masks=True)
    export(dataset, out, to, store="png")
    read = restored(out, "train")
    for sample, image, mask in zip(
        shardctl.open(dataset), read["image"].to_pylist(), read["mask"].to_pylist(), strict=True
    ):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(image["bytes"]))), sample["image"])
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(mask["bytes"]))), sample["mask"])


@pytest.mark.parametrize("to", ["parquet", "webdataset", "tfrecord"])
def test_missing_values_come_back_where_the_form_has_them(tmp_path, out, to):
    dataset = made.write_gaps(tmp_path / "in")
    shardctl.export(dataset, out, to)
    assert restored(out, "train").equals(table(dataset, "train"))


def test_losses_are_told_before_anything_is_written(tmp_path, out, cli):
    dataset = made.write_gaps(tmp_path / "in")
    ran = cli("export", dataset, out, "--to", "mds")
    assert ran.code == 2
    assert "number (int32): MDS has no missing values, and 1 of its values" in ran.err
    assert "text (string): MDS has no missing values" in ran.err
    assert (
        "--on-loss json writes number, text as JSON text, and --on-loss drop leaves them out"
        in ran.err
    )
    planned = cli("export", dataset, out, "--to", "mds", "--dry-run", "--json").json
    assert [field["name"] for field in planned["fields"] if field["loss"]] == ["number", "text"]
    shown = cli("export", dataset, out, "--to", "mds", "--dry-run", "--on-loss", "json").out
    assert "2 columns with a loss (--on-loss)" in shown
    assert os.listdir(tmp_path) == ["in"]
    assert cli("export", dataset, out, "--to", "mds", "--on-loss", "json").code == 0
    assert restored(out, "train").equals(table(dataset, "train"))
    assert cli("export", dataset, tmp_path / "drop", "--to", "mds", "--on-loss", "drop").code == 0
    assert restored(tmp_path / "drop", "train").column_names == ["key", "list"]
    where = "number is not None and text is not None"
    assert cli("export", dataset, tmp_path / "some", "--to", "mds", "--where", where).code == 0
    assert restored(tmp_path / "some", "train")["key"].to_pylist() == ["a"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["size"]}, "no column 'size'; it has key, text, year"),
        ({"columns": "text"}, "columns takes a list of names"),
        ({"rename": {"text": "year"}}, "columns need different names"),
        ({"where": "size > 3"}, "no column 'size'"),
        ({"where": "year > 3000"}, "no sample matches 'year > 3000'"),
        ({"store": "webp"}, "keep, png or jpeg:QUALITY"),
        ({"on_loss": "ignore"}, "must be fail, json or drop"),
        ({"compression": "br"}, "compression must be zstd, snappy or none"),
        ({"split": "val"}, "no split 'val'; it has train, test"),
    ],
)
def test_choices_that_cannot_be_are_refused(tmp_path, options, message):
    dataset = made.write_texts(tmp_path / "in")
    with pytest.raises(ShardctlError, match=message):
        shardctl.export(dataset, tmp_path / "out", "parquet", **options)
    assert os.listdir(tmp_path) == ["in"]


def test_only_one_export_at_a_time_and_leftovers_of_others_go(tmp_path):
    dataset, out = made.write_texts(tmp_path / "in"), tmp_path / "out"
    beside = tmp_path / "out.partial"
    with (
        file_lease.hold(beside / ".shardctl", None),
        pytest.raises(BusyError, match="another shardctl is writing it"),
    ):
        shardctl.export(dataset, out, "parquet")
    (beside / "0123456789abcdef" / "files").mkdir(parents=True)
    shardctl.export(dataset, out, "parquet")
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def test_ctrl_c_says_that_the_same_command_goes_on(photos, tmp_path, out, cli, monkeypatch):
    from shardctl.interop.exports.job import ExportJob

    real, times = ExportJob.write, []

    def write(job: ExportJob, *given: Any) -> Any:
        times.append(1)
        if len(times) > 2:
            raise KeyboardInterrupt
        return real(job, *given)

    monkeypatch.setattr(ExportJob, "write", write)
    ran = cli("export", photos, out, "--to", "mds", "--workers", "0")
    assert ran.code == 130
    assert re.search(
        r"2 of 5 parts are done, in .*out.partial; run the same command again to continue", ran.err
    )
    monkeypatch.undo()
    assert cli("export", photos, out, "--to", "mds", "--workers", "0").code == 0
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("to", FORMS)
def test_images_that_are_missing_come_back_or_are_told(tmp_path, out, to):
    mask = made.picture(1, "PNG", "L")
    samples = [
        {"key": f"{n}.jpg", "image": made.picture(n), "mask": mask if n else None} for n in range(2)
    ]
    dataset = tmp_path / "in"
    shardctl.write(dataset, samples, roles={"mask": "mask"})
    if to in ("mds", "tfds"):
        with pytest.raises(ShardctlError, match=r"1 (images )?are missing"):
            shardctl.export(dataset, out, to)
    shardctl.export(dataset, out, to, on_loss="json")
    assert restored(out, "train").equals(table(dataset, "train"))


@pytest.mark.parametrize("to", ["parquet", "webdataset", "tfrecord", "tfds", "mds", "array-record"])
def test_tokens_come_back(tmp_path, out, to):
    large = pa.large_list(pa.struct([("a", pa.large_list(pa.int8()))]))
    packed = ("block", pa.list_(pa.int32(), 3))
    schema = pa.schema(
        [("key", pa.string()), ("tokens", pa.list_(pa.uint16())), packed, ("large", large)]
    )
    samples = [
        {
            "key": str(n),
            "tokens": list(range(300 * n)),
            "block": [n, n + 1, -1],
            "large": [{"a": [n]}],
        }
        for n in range(4)
    ]
    shardctl.write(tmp_path / "in", samples, schema, samples_per_shard=3)
    for where in (None, "len(tokens) > 0"):  # without the empty one they are arrays in MDS
        shardctl.export(tmp_path / "in", out, to, where=where, overwrite=True, on_loss="json")
        rows = [
            row
            for row in table(tmp_path / "in", "train").to_pylist()
            if where is None or row["tokens"]
        ]
        assert restored(out, "train").to_pylist() == rows


@examples(5)
@given(made.tables())
def test_any_table_comes_back_from_every_form(tmp_path, table_of_rows):
    schema, rows = table_of_rows
    shardctl.write(tmp_path / "in", rows, schema, overwrite=True)
    for to in ("parquet", "webdataset", "tfrecord", "tfds", "mds", "array-record"):
        shardctl.export(tmp_path / "in", tmp_path / "out", to, overwrite=True, on_loss="json")
        assert restored(tmp_path / "out", "train").equals(table(tmp_path / "in", "train")), to


@pytest.mark.parametrize(
    ("to", "name"), [("webdataset", "train-00000.tar.gz"), ("tfrecord", "train-00000.tfrecord.gz")]
)
def test_files_of_records_can_be_compressed(photos, out, to, name):
    export(photos, out, to, compression="gzip", on_loss="json")
    assert restored(out, "train").equals(table(photos, "train"))
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
    assert Manifest.load(LocalFolder(tmp_path / "back")).roles.names == {"label": made.CLASSES}
    for split in ("train", "val"):
        before, after = table(photos, split), table(tmp_path / "back", split)
        assert sorted(after["caption"].to_pylist()) == sorted(before["caption"].to_pylist())
        labels = dict(zip(before["caption"].to_pylist(), before["label"].to_pylist(), strict=True))
        assert [labels[caption] for caption in after["caption"].to_pylist()] == after[
            "label"
        ].to_pylist()


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
