"""Files that describe others are no inputs; what img2dataset and Hugging Face write becomes images,
classes and splits."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from containers import INTEROP
from dataset_facts import rejects_of
from in_this_process import convert
from PIL import Image
from tars import tar

import shardctl
from shardctl.errors import DatasetError, InputError
from shardctl.interop.foreign_shards import check
from shardctl.sources.files import SourceRoot
from shardctl.sources.formats import ending_of
from shardctl.sources.sidecars import inputs_among
from shardctl.sources.walk import walk


def found_in(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the inputs in a folder, and the notices."""
    notices: list[str] = []
    return [
        file.path
        for file in inputs_among(
            walk([SourceRoot(str(folder))], notices.append), notices.append, []
        )
    ], notices


def jpeg(seed: int) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(np.full((4, 4 + seed, 3), seed, np.uint8)).save(sink, "JPEG")
    return sink.getvalue()


def img2dataset(folder: Path, name: str, failed: int) -> None:
    """Write a tar as img2dataset does, with its table and its statistics."""
    folder.mkdir(exist_ok=True)
    keys = [f"{name}{n:04}" for n in range(3)]
    members = [
        member
        for n, key in enumerate(keys)
        for member in (
            (f"{key}.jpg", jpeg(n)),
            (f"{key}.json", b'{"url": "u%d"}' % n),
            (f"{key}.txt", b"caption"),
        )
    ]
    (folder / f"{name}.tar").write_bytes(tar(members, tarfile.PAX_FORMAT))
    status = ["success"] * 3 + ["failed_to_download"] * failed
    reasons = [None] * 3 + [
        "HTTP Error 404: Not Found",
        None,
        "timed out",
        "HTTP Error 404: Not Found",
    ][:failed]
    table = pa.table(
        {
            "key": [*keys, *map(str, range(failed))],
            "status": status,
            "error_message": pa.array(reasons, pa.string()),
        }
    )
    pq.write_table(table, folder / f"{name}.parquet")
    (folder / f"{name}_stats.json").write_text(json.dumps({"count": 3 + failed}))


def test_what_img2dataset_could_not_get_is_told(tmp_path, out):
    img2dataset(tmp_path / "in", "00000", 4)
    img2dataset(tmp_path / "in", "00001", 1)
    result = convert(tmp_path / "in", out)
    assert (result.samples, result.rejected) == (6, 0)
    told = "error_message say what could not be downloaded"
    assert [
        notice
        for notice in result.notices
        if told in notice and "2 tables of img2dataset" in notice
    ]
    ds = shardctl.open(out)
    assert ds.schema.names == ["key", "image", "json", "txt"]
    assert [each["image"].shape for each in ds][:3] == [(4, 4, 3), (4, 5, 3), (4, 6, 3)]
    assert ds[0]["json"] == {"url": "u0"}


@pytest.mark.parametrize(
    ("name", "describes", "is_input"),
    [
        ("index.json", '{"shards": [], "version": 2}', '[{"a": 1}]'),
        ("index.json", '{"chunks": [], "config": {}}', '{"shards": 1}'),
        ("features.json", '{"featuresDict": {}}', '{"features": 1}'),
        ("dataset_info.json", '{"features": {}}', '[{"features": 1}]'),
        ("state.json", '{"_data_files": []}', '{"state": "NY"}'),
        ("dataset_dict.json", '{"splits": []}', "3"),
        (
            "index.json",
            '{"shards": [3, {"raw_data": {"basename": "../x"}}], "version": 2}'.replace(
                "../x", "a.txt"
            ),
            "{",
        ),
    ],
)
def test_a_file_describes_others_by_its_name_and_its_content(name, describes, is_input, tmp_path):
    (tmp_path / "a.txt").write_text("x")
    for text, wanted in ((describes, ["a.txt"]), (is_input, ["a.txt", name])):
        (tmp_path / name).write_text(text)
        assert found_in(tmp_path)[0] == wanted


@pytest.mark.parametrize("name", ["../a.txt", "sub/../a.txt", "", "..", "a\0b"])
def test_a_list_of_shards_names_files_beside_it(name, tmp_path):
    (tmp_path / "here.txt").write_text("x")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "index.json").write_text(
        json.dumps({"shards": [{"raw_data": {"basename": name}}], "version": 2})
    )
    with pytest.raises(InputError, match="which is not there"):
        found_in(tmp_path / "in")


@pytest.mark.parametrize("source", ["disk", "repository", "repository/data"])
def test_what_hugging_face_wrote_has_its_splits_classes_and_images(source, out):
    result = convert(INTEROP / "huggingface" / source, out)
    assert (result.samples, result.rejected) == (6, 0)
    ds = shardctl.open(out)
    assert ds.classes == ("zebra", "ant")
    for split, count in (("train", 4), ("test", 2)):
        samples = list(shardctl.open(out, split=split))
        assert [sample["label"] for sample in samples] == [
            None if n % 3 == 0 else n % 3 - 1 for n in range(count)
        ]
        assert [sample["coarse"] for sample in samples] == [n % 3 for n in range(count)]
        assert [sample["image"].shape[:2] for sample in samples] == [
            (5 + n, 4) for n in range(count)
        ]
        assert [list(sample["tags"]) for sample in samples] == [
            list(range(n)) for n in range(count)
        ]
    fields = json.loads((out / "manifest.json").read_text())["fields"]
    assert fields["coarse"]["names"] == ["animal", "other", "third"]
    assert shardctl.verify(out).findings == ()


def test_files_in_the_only_folder_are_splits_and_those_of_several_datasets_are_refused(
    tmp_path,
):
    data = INTEROP / "huggingface" / "repository" / "data"
    shutil.copytree(data, tmp_path / "in" / "first")
    convert(tmp_path / "in", tmp_path / "one")
    assert len(shardctl.open(tmp_path / "one", split="test")) == 2
    shutil.copytree(data, tmp_path / "in" / "second")
    with pytest.raises(InputError, match="further down are named as splits"):
        convert(tmp_path / "in", tmp_path / "two")
    convert(tmp_path / "in", tmp_path / "two", split="none")
    assert len(shardctl.open(tmp_path / "two")) == 12


def labelled(path: Path, numbers: list[int | None], names: object, type_: pa.DataType) -> Path:
    features = {
        "label": {"names": names, "_type": "ClassLabel"},
        "x": {"dtype": "int64", "_type": "Value"},
    }
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    schema = pa.schema([("label", type_), ("x", pa.int64())], metadata)
    pq.write_table(
        pa.table([pa.array(numbers, type_), pa.array(range(len(numbers)))], schema=schema), path
    )
    return path


@pytest.mark.parametrize("type_", [pa.int64(), pa.int8(), pa.uint8()])
def test_numbers_of_no_class_are_rejects_and_minus_one_is_no_label(type_, tmp_path, out):
    none = None if pa.types.is_unsigned_integer(type_) else -1
    path = labelled(tmp_path / "a.parquet", [1, none, 0, 2, None, 100], ["b", "a"], type_)
    result = convert(path, out)
    assert (result.samples, result.rejected) == (4, 2)
    ds = shardctl.open(out)
    assert ds.classes == ("b", "a")
    assert [each["label"] for each in ds] == [1, None, 0, None]
    rejects = rejects_of(out)
    assert [(each.key, each.error) for each in rejects] == [
        ("a.parquet#4", "unknown-class"),
        ("a.parquet#6", "unknown-class"),
    ]


@pytest.mark.parametrize("names", [["a", "a"], ["a", 3], "ab", {"a": 1}, None, []])
def test_names_that_are_none_name_no_classes(names, tmp_path, out):
    path = labelled(tmp_path / "a.parquet", [0, 5, -1], names, pa.int64())
    convert(path, out)
    ds = shardctl.open(out)
    assert ds.classes is None
    assert [each["label"] for each in ds] == [0, 5, -1]


def test_files_that_say_different_classes_are_refused(tmp_path, out):
    (tmp_path / "in").mkdir()
    labelled(tmp_path / "in" / "a.parquet", [0, 1], ["a", "b"], pa.int64())
    labelled(tmp_path / "in" / "b.parquet", [0, 1], ["b", "a"], pa.int64())
    with pytest.raises(InputError, match="the files give different names to the classes of label"):
        convert(tmp_path / "in", out)
    convert(tmp_path / "in", out, labels="none")
    assert shardctl.open(out).classes is None


LABEL = {"names": ["car", "bus"], "_type": "ClassLabel"}
NESTED: dict[str, Any] = {  # as datasets 5, 3 and 1 write it
    "lists": {
        "tags": {"feature": LABEL, "_type": "List"},
        "objects": {"feature": {"category": LABEL}, "_type": "List"},
    },
    "sequences": {
        "tags": {"feature": LABEL, "length": -1, "_type": "Sequence"},
        "objects": {"category": [LABEL]},
    },
    "JSON lists": {"tags": [LABEL], "objects": [{"category": LABEL}]},
}


def nested(path: Path, features: dict[str, Any]) -> Path:
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    table = pa.table({"text": ["a"], "tags": [[0]], "objects": [[{"category": 0}]]})
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


@pytest.mark.parametrize("form", NESTED)
def test_names_of_classes_inside_of_fields_are_told_and_files_that_differ_refused(
    form, tmp_path, out
):
    nested(tmp_path / "in" / "train.parquet", NESTED[form])
    said = convert(tmp_path / "in", out).notices
    assert "left out: the names of the classes of tags (2), objects.category (2)" in said
    assert "tags" not in str(convert(tmp_path / "in", tmp_path / "text", fields="text").notices)
    other = json.loads(json.dumps(NESTED[form]).replace('["car", "bus"]', '["bus", "car"]'))
    nested(tmp_path / "in" / "test.parquet", other)
    with pytest.raises(
        InputError,
        match=r"different names to the classes of objects\.category, tags",
    ):
        convert(tmp_path / "in", tmp_path / "new")
    convert(tmp_path / "in", tmp_path / "new", labels="none")
    nested(tmp_path / "in" / "test.parquet", NESTED[form])
    assert any("of tags (2)" in each for each in convert(tmp_path / "in", out, update=True).notices)


@pytest.mark.parametrize("field", ["label", "objects.label"])
def test_every_folder_is_asked_for_the_names_of_its_classes(field, tmp_path):
    """Types may be found in some of the files, but names of classes never tell that they do not
    fit."""
    for number in range(30):
        folder = tmp_path / "in" / f"m{number:03d}"
        shutil.copytree(INTEROP / "tfds", folder)
    names = tmp_path / "in" / "m017" / f"{field.replace('.', '-')}.labels.txt"
    names.write_text("\n".join(reversed(names.read_text().split())) + "\n")
    with pytest.raises(
        InputError, match=f"the files give different names to the classes of {re.escape(field)}"
    ):
        convert(tmp_path / "in", tmp_path / "out", split="none")


def test_a_label_by_name_and_other_fields_by_number_are_both_checked(tmp_path, out):
    features = {"fine": {"names": ["x", "y"], "_type": "ClassLabel"}}
    schema = pa.schema(
        [("label", pa.string()), ("fine", pa.int64())],
        {b"huggingface": json.dumps({"info": {"features": features}})},
    )
    table = pa.table([pa.array(["b", "a", "b"]), pa.array([0, -1, 7])], schema=schema)
    pq.write_table(table, tmp_path / "a.parquet")
    result = convert(tmp_path / "a.parquet", out)
    ds = shardctl.open(out)
    assert (result.rejected, ds.classes) == (1, ("a", "b"))
    assert [(each["label"], each["fine"]) for each in ds] == [(1, 0), (0, None)]


def test_a_tar_of_images_is_a_dataset_of_images(tmp_path, out):
    (tmp_path / "in").mkdir()
    for split, count in (("train", 3), ("val", 2)):
        members = [
            m for n in range(count) for m in ((f"{n:03}.jpg", jpeg(n)), (f"{n:03}.cls", b"%d" % n))
        ]
        (tmp_path / "in" / f"{split}-000000.tar").write_bytes(tar(members))
    result = convert(tmp_path / "in", out)
    assert (result.samples, result.rejected) == (5, 0)
    ds = shardctl.open(out, split="val")
    assert [(each["image"].shape, each["label"], each["key"]) for each in ds] == [
        ((4, 4, 3), 0, "000"),
        ((4, 5, 3), 1, "001"),
    ]
    assert json.loads((out / "manifest.json").read_text())["kind"] == "image"
    assert convert(tmp_path / "in", out).status == "up-to-date"
    (tmp_path / "in" / "val-000001.tar").write_bytes(tar([("003.jpg", jpeg(1)), ("003.cls", b"1")]))
    assert convert(tmp_path / "in", out, update=True).samples == 6


@pytest.mark.parametrize("top", ["", "./", "photos/"])
def test_a_tar_of_class_folders_has_the_classes_of_its_folders(top, tmp_path):
    names = [
        f"{top}{folder}/{number:03}.jpg" for folder in ("cat", "dog", "owl") for number in range(70)
    ]
    (tmp_path / "a.tar").write_bytes(
        tar([(name, jpeg(number % 3)) for number, name in enumerate(names)])
    )
    with tarfile.open(tmp_path / "a.tar") as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    convert(tmp_path / "a.tar", tmp_path / "tar")
    convert(tmp_path / "unpacked", tmp_path / "folder")
    of_tar, of_folder = shardctl.open(tmp_path / "tar"), shardctl.open(tmp_path / "folder")
    assert of_tar.classes == of_folder.classes == ("cat", "dog", "owl")
    assert of_tar.schema.names == of_folder.schema.names == ["key", "image", "label"]
    wanted = {each["key"]: int(each["label"]) for each in of_folder}
    assert {
        f"{each['key'].removeprefix('./')}.jpg": int(each["label"]) for each in of_tar
    } == wanted


def test_folders_in_a_tar_are_as_those_of_a_disk(tmp_path):
    def convert(names: list[str], out: str, **options: Any) -> tuple[Any, list[str]]:
        (tmp_path / "a.tar").write_bytes(tar([(f"{name}.jpg", jpeg(1)) for name in names]))
        convert(tmp_path / "a.tar", tmp_path / out, **options)
        ds = shardctl.open(tmp_path / out)
        return ds.classes, ds.schema.names

    assert convert(["one/1", "one/2"], "one") == (None, ["key", "image"])
    assert convert(["one/1", "one/2"], "said", labels="folder") == (
        ("one",),
        ["key", "image", "label"],
    )
    assert convert(["a/1", "b/2"], "none", labels="none") == (None, ["key", "image"])
    with pytest.raises(InputError, match="would have no label"):
        convert(["a/1", "b/2", "3"], "stray")
    splits = ["train/a/1", "train/b/2", "val/a/1"]
    for top in ("", "data/", "data/all/"):
        with pytest.raises(InputError, match=r"folders named as splits \(train, val\)"):
            convert([f"{top}{name}" for name in splits], "splits")
    assert convert(splits, "together", split="none") == (("a", "b"), ["key", "image", "label"])


@pytest.mark.parametrize(
    "others",
    [
        ["about.json"],
        ["cat/001.json", "dog/069.json"],
        ["cat/notes.txt"],
    ],
)
def test_other_members_do_not_take_the_classes_of_a_tar(others, tmp_path):
    images = [
        (f"{name}/{number:03}.jpg", jpeg(number % 3))
        for name in ("cat", "dog")
        for number in range(70)
    ]
    (tmp_path / "a.tar").write_bytes(tar(sorted([*images, *((name, b"{}") for name in others)])))
    with tarfile.open(tmp_path / "a.tar") as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    convert(tmp_path / "unpacked", tmp_path / "folder")
    convert(tmp_path / "a.tar", tmp_path / "tar")
    of_tar, of_folder = shardctl.open(tmp_path / "tar"), shardctl.open(tmp_path / "folder")
    assert of_tar.classes == of_folder.classes == ("cat", "dog")
    wanted = {each["key"]: int(each["label"]) for each in of_folder}
    assert {f"{each['key']}.jpg": int(each["label"]) for each in of_tar} == wanted


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    ("tars", "beside", "labels"),
    [(["a"], {}, "auto"), (["a", "b"], {"cls": b"1"}, "none"), (["a"], {"json": b"{}"}, "folder")],
)
def test_folders_of_splits_in_tars_are_asked_about_whatever_labels_are(
    tars, beside, labels, tmp_path, out
):
    """After so many samples of training that none of the others is looked at for the types of
    fields."""
    members = [
        (f"{split}/{number:05}.{ending}", data)
        for split, count in (("train", 3000), ("val", 2))
        for number in range(count)
        for ending, data in {"jpg": jpeg(1), **beside}.items()
    ]
    (tmp_path / "in").mkdir()
    for place, name in enumerate(tars):
        own = (
            members
            if len(tars) == 1
            else [each for each in members if each[0].startswith(("train", "val")[place])]
        )
        (tmp_path / "in" / f"{name}.tar").write_bytes(tar(own))
    with pytest.raises(InputError, match=r"folders named as splits \(train, val\)"):
        convert(tmp_path / "in", out, labels=labels)
    drawn = convert(tmp_path / "in", tmp_path / "drawn", labels=labels, split="train=0.5,val=0.5")
    assert "folders named as splits (train, val), but split='train=0.5,val=0.5' divides" in str(
        drawn.warnings
    )
    (tmp_path / "in" / f"{tars[0]}.tar").rename(tmp_path / "in" / "train.tar")
    if len(tars) == 1:
        (tmp_path / "in" / "test.tar").write_bytes(
            tar([("c/0.jpg", jpeg(0)), ("d/1.jpg", jpeg(1))])
        )
        with pytest.raises(InputError, match=r"folders named as splits \(train, val\)"):
            convert(tmp_path / "in", out, labels=labels)
    else:  # each in a split of its own
        (tmp_path / "in" / "b.tar").rename(tmp_path / "in" / "val.tar")
        convert(tmp_path / "in", out, labels=labels)
        ds = {split: shardctl.open(out, split=split) for split in ("train", "val")}
        assert {
            name: {each["key"].partition("/")[0] for each in own} for name, own in ds.items()
        } == {
            "train": {"train"},
            "val": {"val"},
        }


def test_an_update_asks_about_the_folders_of_new_tars(tmp_path, out):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.tar").write_bytes(tar([("a.jpg", jpeg(1))]))
    convert(tmp_path / "in", out, labels="none")
    (tmp_path / "in" / "1.tar").write_bytes(tar([("train/b.jpg", jpeg(1)), ("val/c.jpg", jpeg(1))]))
    with pytest.raises(InputError, match=r"folders named as splits \(train, val\)"):
        convert(tmp_path / "in", out, labels="none", update=True)


def test_classes_with_a_word_of_splits_in_their_name_are_no_splits_in_a_tar(tmp_path, out):
    names = ["bullet_train/1", "test_tube/2", "car/3"]
    (tmp_path / "a.tar").write_bytes(tar([(f"{name}.jpg", jpeg(1)) for name in names]))
    convert(tmp_path / "a.tar", out)
    assert shardctl.open(out).classes == ("bullet_train", "car", "test_tube")
    (tmp_path / "b.tar").write_bytes(
        tar([(f"seg_{name}.jpg", jpeg(1)) for name in ("train/1", "test/2")])
    )
    with pytest.raises(InputError, match=r"folders named as splits \(seg_train, seg_test\)"):
        convert(tmp_path / "b.tar", tmp_path / "other", labels="none")


def test_a_format_is_told_by_name_or_by_content(tmp_path):
    interop = {
        "webdataset/plain-000000.tar": ".tar",
        "webdataset/packed.tar.gz": ".tar",
        "tfrecord/plain.tfrecord": ".tfrecord",
        "tfrecord/gzip.tfrecord.gz": ".tfrecord",
        "tfrecord/zlib-00000-of-00001": ".tfrecord",
        "recordio/images.rec": ".rec",
    }
    for name, ending in interop.items():
        assert ending_of(name, str(INTEROP / name)).startswith(ending), name
        copy = tmp_path / "x-without-a-known-ending"
        shutil.copy(INTEROP / name, copy)
        assert ending_of(copy.name, str(copy)) == ending, name
        copy.unlink()
    for name in (
        "a.tgz",
        "a.tar.zstd",
        "a.tfrecords-00001-of-00002",
        "tfrecord",
        "a.tfrecord.gz",
        "b.mds.zstd",
    ):
        assert ending_of(name, "/nowhere").split(".")[1] in ("tar", "tfrecord", "mds"), name
    for name in ("photo.jpg", "tfrecords.py", "a.rec.txt", "mytfrecord"):
        assert ending_of(name, "/nowhere") not in (".tar", ".tfrecord", ".mds", ".rec"), name


def test_what_decides_the_values_of_others_is_in_the_fingerprint(tmp_path, out):
    folder = tmp_path / "in"
    shutil.copytree(INTEROP / "tfds", folder)
    assert convert(folder, out).status == "created"
    assert convert(folder, out).status == "up-to-date"
    names = folder / "label.labels.txt"
    names.write_text("\n".join(reversed(names.read_text().split())) + "\n")
    with pytest.raises(DatasetError, match="differs in its inputs"):
        convert(folder, out)


def test_shards_that_are_missing_by_their_names_are_told(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    pq.write_table(pa.table({"a": [1]}), folder / "train-00000-of-00002.parquet")
    made = convert(folder, tmp_path / "out")
    assert "of the 2 files train-…-of-00002.parquet 1 are there" in str(made.notices)
    assert [finding.kind for finding in check(folder, 0).findings] == ["missing-shard"]


def test_a_pipe_in_the_place_of_a_description_does_not_hold_the_command_up(tmp_path):
    folder = tmp_path / "in"
    shutil.copytree(INTEROP / "tfds", folder)
    for name in ("features.json", "dataset_info.json", "label.labels.txt"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
    assert not check(folder, 0).ok
