"""Files that describe others are no inputs; what img2dataset and Hugging Face write becomes images,
classes and splits."""

from __future__ import annotations

import functools
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterable
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


def found_in(folder: Path) -> list[str]:
    """Return the names of the inputs in a folder."""
    roots = [SourceRoot(str(folder))]
    found = inputs_among(walk(roots, print), roots, print, [])
    return [path for files in found for path in files.paths]


@functools.cache
def jpeg(seed: int) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(np.full((4, 4 + seed, 3), seed, np.uint8)).save(sink, "JPEG")
    return sink.getvalue()


def tar_of(path: Path, names: Iterable[str], others: Iterable[tuple[str, bytes]] = ()) -> Path:
    """Write a tar of images of these names and of other members, by their names."""
    path.parent.mkdir(exist_ok=True)
    images = [(f"{name}.jpg", jpeg(number % 3)) for number, name in enumerate(names)]
    path.write_bytes(tar(sorted([*images, *others]), tarfile.PAX_FORMAT))
    return path


def img2dataset(folder: Path, name: str, failed: list[str | None]) -> None:
    """Write a tar as img2dataset does, with its table and its statistics."""
    keys = [f"{name}{n:04}" for n in range(3)]
    others = [
        (f"{key}.{ending}", data)
        for key in keys
        for ending, data in (("json", b'{"url": "u"}'), ("txt", b"caption"))
    ]
    tar_of(folder / f"{name}.tar", keys, others)
    columns = {
        "key": [*keys, *map(str, range(len(failed)))],
        "status": ["success"] * 3 + ["failed_to_download"] * len(failed),
        "error_message": pa.array([None] * 3 + failed, pa.string()),
    }
    pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    (folder / f"{name}_stats.json").write_text(json.dumps({"count": 3 + len(failed)}))


def test_what_img2dataset_could_not_get_is_told(tmp_path, out):
    img2dataset(tmp_path / "in", "00000", ["HTTP Error 404: Not Found", None, "timed out"])
    img2dataset(tmp_path / "in", "00001", [None])
    result = convert(tmp_path / "in", out)
    assert (result.samples, result.rejected) == (6, 0)
    said = "2 tables of img2dataset.*could not be downloaded"
    assert re.search(said, str(result.notices))
    ds = shardctl.open(out)
    assert ds.schema.names == ["key", "image", "json", "txt"]
    assert [each["image"].shape for each in ds][:3] == [(4, 4, 3), (4, 5, 3), (4, 6, 3)]
    assert ds[0]["json"] == {"url": "u"}


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
            '{"shards": [3, {"raw_data": {"basename": "a.txt"}}], "version": 2}',
            "{",
        ),
    ],
)
def test_a_file_describes_others_by_its_name_and_its_content(name, describes, is_input, tmp_path):
    (tmp_path / "a.txt").write_text("x")
    for text, wanted in ((describes, ["a.txt"]), (is_input, ["a.txt", name])):
        (tmp_path / name).write_text(text)
        assert found_in(tmp_path) == wanted


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
        found = [
            (each["label"], each["coarse"], each["image"].shape[:2], list(each["tags"]))
            for each in shardctl.open(out, split=split)
        ]
        assert found == [
            (None if n % 3 == 0 else n % 3 - 1, n % 3, (5 + n, 4), [*range(n)])
            for n in range(count)
        ]
    assert ds.manifest.fields["coarse"]["names"] == ["animal", "other", "third"]
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


def hugging_face(path: Path, features: dict[str, Any], **columns: Any) -> Path:
    """Write a table as datasets does, with features that name classes."""
    path.parent.mkdir(exist_ok=True)
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)
    return path


def labelled(path: Path, labels: Any, names: object) -> Path:
    features = {"label": {"names": names, "_type": "ClassLabel"}}
    return hugging_face(path, features, label=labels, x=range(len(labels)))


@pytest.mark.parametrize("type_", [pa.int64(), pa.int8(), pa.uint8()])
def test_numbers_of_no_class_are_rejects_and_minus_one_is_no_label(type_, tmp_path, out):
    none = None if pa.types.is_unsigned_integer(type_) else -1
    numbers = pa.array([1, none, 0, 2, None, 100], type_)
    convert(labelled(tmp_path / "a.parquet", numbers, ["b", "a"]), out)
    ds = shardctl.open(out)
    assert ds.classes == ("b", "a")
    assert [each["label"] for each in ds] == [1, None, 0, None]
    assert [(each.key, each.error) for each in rejects_of(out)] == [
        ("a.parquet#4", "unknown-class"),
        ("a.parquet#6", "unknown-class"),
    ]


@pytest.mark.parametrize("names", [["a", "a"], ["a", 3], "ab", {"a": 1}, None, []])
def test_names_that_are_none_name_no_classes(names, tmp_path, out):
    convert(labelled(tmp_path / "a.parquet", [0, 5, -1], names), out)
    ds = shardctl.open(out)
    assert ds.classes is None
    assert [each["label"] for each in ds] == [0, 5, -1]


def test_files_that_say_different_classes_are_refused(tmp_path, out):
    for names in ("ab", "ba"):
        labelled(tmp_path / "in" / f"{names}.parquet", [0, 1], list(names))
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
    return hugging_face(path, features, text=["a"], tags=[[0]], objects=[[{"category": 0}]])


@pytest.mark.parametrize("form", NESTED)
def test_names_of_classes_inside_of_fields_are_told_and_files_that_differ_refused(
    form, tmp_path, out
):
    source = tmp_path / "in"
    nested(source / "train.parquet", NESTED[form])
    said = convert(source, out).notices
    assert "left out: the names of the classes of tags (2), objects.category (2)" in said
    assert "tags" not in str(convert(source, tmp_path / "text", fields="text").notices)
    other = json.loads(json.dumps(NESTED[form]).replace('["car", "bus"]', '["bus", "car"]'))
    nested(source / "test.parquet", other)
    with pytest.raises(
        InputError, match=r"different names to the classes of objects\.category, tags"
    ):
        convert(source, tmp_path / "new")
    convert(source, tmp_path / "new", labels="none")
    nested(source / "test.parquet", NESTED[form])
    assert "of tags (2)" in str(convert(source, out, update=True).notices)


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
    path = tmp_path / "a.parquet"
    result = convert(hugging_face(path, features, label=["b", "a", "b"], fine=[0, -1, 7]), out)
    ds = shardctl.open(out)
    assert (result.rejected, ds.classes) == (1, ("a", "b"))
    assert [(each["label"], each["fine"]) for each in ds] == [(1, 0), (0, None)]


def test_a_tar_of_images_is_a_dataset_of_images(tmp_path, out):
    source = tmp_path / "in"
    for split, labels in (("train-000000", "012"), ("val-000000", "01"), ("val-000001", "2")):
        if split.endswith("1"):
            assert convert(source, out).rejected == 0
            assert convert(source, out).status == "up-to-date"
        tar_of(source / f"{split}.tar", labels, ((f"{n}.cls", n.encode()) for n in labels))
    assert convert(source, out, update=True).samples == 6
    ds = shardctl.open(out, split="val")
    assert [(each["image"].shape, each["label"], each["key"]) for each in ds] == [
        ((4, 4, 3), 0, "0"),
        ((4, 5, 3), 1, "1"),
        ((4, 4, 3), 2, "2"),
    ]
    assert ds.manifest.kind == "image"


@pytest.mark.parametrize(
    ("top", "others"),
    [
        ("", []),
        ("./", []),
        ("photos/", []),
        ("", ["about.json"]),
        ("", ["cat/001.json", "dog/069.json"]),
        ("", ["cat/notes.txt"]),
    ],
)
def test_a_tar_of_class_folders_has_the_classes_of_its_folders(top, others, tmp_path, out):
    labels = {f"{top}{folder}/{n:03}": folder for folder in ("cat", "dog") for n in range(70)}
    convert(tar_of(tmp_path / "a.tar", labels, ((name, b"{}") for name in others)), out)
    ds = shardctl.open(out)
    assert ds.classes == ("cat", "dog")
    assert others or ds.schema.names == ["key", "image", "label"]
    assert {each["key"]: ds.classes[each["label"]] for each in ds} == labels


def test_folders_in_a_tar_are_as_those_of_a_disk(tmp_path):
    def found(names: list[str], **options: Any) -> tuple[Any, bool]:
        convert(tar_of(tmp_path / "a.tar", names), tmp_path / "out", overwrite=True, **options)
        ds = shardctl.open(tmp_path / "out")
        return ds.classes, "label" in ds.schema.names

    assert found(["one/1", "one/2"]) == (None, False)
    assert found(["one/1", "one/2"], labels="folder") == (("one",), True)
    assert found(["a/1", "b/2"], labels="none") == (None, False)
    with pytest.raises(InputError, match="would have no label"):
        found(["a/1", "b/2", "3"])
    splits = ["train/a/1", "train/b/2", "val/a/1"]
    for top in ("", "data/", "data/all/"):
        with pytest.raises(InputError, match=r"folders named as splits \(train, val\)"):
            found([f"{top}{name}" for name in splits])
    assert found(splits, split="none") == (("a", "b"), True)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(("labels", "ending"), [("auto", ""), ("none", "cls"), ("folder", "json")])
def test_folders_of_splits_in_tars_are_asked_about_whatever_labels_are(
    labels, ending, tmp_path, out
):
    """After so many samples of training that none of the others is looked at for the types of
    fields."""
    names = [*(f"train/{number:05}" for number in range(3000)), "val/0", "val/1"]
    others = [(f"{name}.{ending}", b"1") for name in names] if ending else []
    path = tar_of(tmp_path / "train.tar", names, others)
    with pytest.raises(InputError, match=r"folders named as splits \(train, val\)"):
        convert(path, out, labels=labels)
    drawn = convert(path, tmp_path / "drawn", labels=labels, split="train=0.5,val=0.5")
    assert "folders named as splits (train, val), but split='train=0.5,val=0.5' divides" in str(
        drawn.warnings
    )


def test_tars_that_are_a_split_each_may_have_a_folder_of_its_name(tmp_path, out):
    for split in ("train", "val"):
        tar_of(tmp_path / "in" / f"{split}.tar", [f"{split}/1"])
    convert(tmp_path / "in", out, labels="none")
    for split in ("train", "val"):
        assert [each["key"] for each in shardctl.open(out, split=split)] == [f"{split}/1"]


def test_an_update_asks_about_the_folders_of_new_tars(tmp_path, out):
    tar_of(tmp_path / "in" / "0.tar", ["a"])
    convert(tmp_path / "in", out, labels="none")
    tar_of(tmp_path / "in" / "1.tar", ["train/b", "val/c"])
    with pytest.raises(InputError, match=r"folders named as splits \(train, val\)"):
        convert(tmp_path / "in", out, labels="none", update=True)


def test_classes_with_a_word_of_splits_in_their_name_are_no_splits_in_a_tar(tmp_path, out):
    convert(tar_of(tmp_path / "a.tar", ["bullet_train/1", "test_tube/2", "car/3"]), out)
    assert shardctl.open(out).classes == ("bullet_train", "car", "test_tube")
    other = tar_of(tmp_path / "b.tar", ["seg_train/1", "seg_test/2"])
    with pytest.raises(InputError, match=r"folders named as splits \(seg_train, seg_test\)"):
        convert(other, tmp_path / "other", labels="none")


def test_a_format_is_told_by_name_or_by_content(tmp_path):
    copy = tmp_path / "x-without-a-known-ending"
    for name, ending in {
        "webdataset/plain-000000.tar": ".tar",
        "webdataset/packed.tar.gz": ".tar",
        "tfrecord/plain.tfrecord": ".tfrecord",
        "tfrecord/gzip.tfrecord.gz": ".tfrecord",
        "tfrecord/zlib-00000-of-00001": ".tfrecord",
        "recordio/images.rec": ".rec",
    }.items():
        assert ending_of(name, str(INTEROP / name)).startswith(ending), name
        shutil.copy(INTEROP / name, copy)
        assert ending_of(copy.name, str(copy)) == ending, name
    for (
        name
    ) in "a.tgz a.tar.zstd a.tfrecords-00001-of-00002 tfrecord a.tfrecord.gz b.mds.zstd".split():
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


def test_shards_that_are_missing_by_their_names_are_told(tmp_path, out):
    folder = tmp_path / "data"
    folder.mkdir()
    pq.write_table(pa.table({"a": [1]}), folder / "train-00000-of-00002.parquet")
    said = str(convert(folder, out).notices)
    assert "of the 2 files train-…-of-00002.parquet 1 are there" in said
    assert [finding.kind for finding in check(folder, 0).findings] == ["missing-shard"]


def test_a_pipe_in_the_place_of_a_description_does_not_hold_the_command_up(tmp_path):
    folder = tmp_path / "in"
    shutil.copytree(INTEROP / "tfds", folder)
    for name in ("features.json", "dataset_info.json", "label.labels.txt"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
    assert not check(folder, 0).ok
