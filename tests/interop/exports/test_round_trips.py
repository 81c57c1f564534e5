"""What was exported and is converted again is the dataset that it was: keys, order, splits,
classes, schema and every value."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import made
import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from in_this_process import convert, export
from made import FORMS, back_from, comes_back, facts_of, tables
from pictures import encoded
from PIL import Image
from tars import members_of, write_tar

import shardctl
from shardctl.errors import InputError
from shardctl.interop.foreign_shards import check

DATASETS = {
    made.write_photos: ("tfrecord", "tfds", "array-record"),
    made.write_features: (),
    made.write_objects: (),
    made.write_holes: ("tfds", "mds"),
    made.write_gaps: ("tfds", "mds"),
    made.write_tokens: ("tfrecord", "tfds", "array-record"),
    made.write_texts: (),
}
"""What writes them, and the forms that do not have all of it as it is, but as JSON text."""


@pytest.mark.thorough(after=24)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("write", DATASETS, ids=lambda write: write.__name__)
def test_a_dataset_comes_back_as_it_was(form, write, tmp_path, out):
    if (write, form) == (made.write_features, "parquet"):
        pytest.skip("a large list comes back as a list")
    result = comes_back(write(tmp_path / "dataset"), out, form, on_loss="json")
    assert any(field.loss for field in result.fields) == (form in DATASETS[write])


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("form", FORMS)
def test_a_converted_folder_of_images_comes_back_as_it_was(form, photos, tmp_path):
    convert(photos, tmp_path / "dataset", split="zulu=0.6,alpha=0.4", samples_per_shard=9)
    comes_back(tmp_path / "dataset", tmp_path / "out", form)
    assert shardctl.verify(tmp_path / "out-back", level="deep").findings == ()


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("form", FORMS)
def test_tokens_stay_tokens(form, tmp_path):
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps({"text": "word " * n}) + "\n" for n in range(1, 30))
    )
    recipe = {
        "transform": [
            {"name": "tokenize", "tokenizer": "bytes"},
            {"name": "pack", "length": 32, "method": "bfd"},
        ]
    }
    convert(tmp_path / "in.jsonl", tmp_path / "dataset", recipe=recipe)
    export(tmp_path / "dataset", tmp_path / "out", form)
    before, after = facts_of(tmp_path / "dataset"), facts_of(back_from(tmp_path / "out"))
    assert after["rows"] == before["rows"]
    assert after["fields"]["tokens"]["vocabulary"] == before["fields"]["tokens"]["vocabulary"]


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("form", FORMS)
@examples(10)
@given(tables())
def test_any_table_comes_back_as_it_was(form, table):
    schema, rows = table
    with tempfile.TemporaryDirectory() as name:
        shardctl.write(Path(name, "dataset"), rows, schema)
        comes_back(Path(name, "dataset"), Path(name, "out"), form, on_loss="json")


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("form", FORMS)
def test_objects_without_fields_come_back_as_text(form, tmp_path):
    shardctl.write(tmp_path / "dataset", [{"a": {}}])
    export(tmp_path / "dataset", tmp_path / "out", form, on_loss="json")
    assert [sample["a"] for sample in shardctl.open(back_from(tmp_path / "out"))] == ["{}"]


def test_an_export_that_is_not_whole_is_refused_and_damage_is_found(tmp_path, out):
    made.write_texts(tmp_path / "dataset")
    export(tmp_path / "dataset", out, "webdataset")
    assert check(out, 0).ok
    shard = out / "train-00001.tar"
    data = shard.read_bytes()
    shard.write_bytes(data.replace(b"text 3", b"text 4"))
    assert [finding.kind for finding in check(out, 0).findings] == ["wrong-checksum"]
    for damage, message in (
        (data[:-512], "has 9,728 bytes, but shardctl.json says 10,240"),
        (None, "which is not there; get it"),
    ):
        shard.unlink()
        if damage is not None:
            shard.write_bytes(damage)
        with pytest.raises(InputError, match=message):
            convert(out, tmp_path / "back")
        assert [finding.kind for finding in check(out, 0).findings] == ["unreadable"]


@pytest.mark.parametrize("form", FORMS)
def test_an_export_of_which_a_shard_and_a_split_have_no_samples_is_whole(form, tmp_path, out):
    samples = {name: [{"key": f"{name}{n}", "text": "t"} for n in range(4)] for name in "ab"}
    shardctl.write(tmp_path / "in", samples, samples_per_shard=2)
    export(tmp_path / "in", out, form, where="key == 'b3'")
    assert check(out, 0).ok
    assert [path for path in out.rglob("*") if re.search(r"\ba-0", path.name)] == []
    assert [sample["key"] for sample in shardctl.open(back_from(out))] == ["b3"]


@pytest.mark.parametrize("form", FORMS)
def test_raw_images_and_masks_come_back_as_png_with_the_same_pixels(tmp_path, out, form):
    made.write_masks(tmp_path / "dataset")
    export(tmp_path / "dataset", out, form, store="png")
    back = shardctl.open(back_from(out))
    for before, after in zip(shardctl.open(tmp_path / "dataset"), back, strict=True):
        for name in ("image", "mask"):
            assert np.array_equal(before[name], after[name])
    assert back.manifest.roles.to_json()["image"]["store"] == "source"


def test_members_that_are_several_images_leave_a_tar_as_they_came(tmp_path, out):
    """Two views of each sample; and images by number, of which not every sample has all."""
    records = {
        f"{number:03}": {
            "left.png": png_of(number),
            "right.png": png_of(number + 1),
            **{f"{image}.jpg": png_of(image) for image in range(number % 3)},
            "json": json.dumps({"n": number}).encode(),
        }
        for number in range(6)
    }
    write_tar(tmp_path / "a.tar", records)
    convert(tmp_path / "a.tar", out)
    shardctl.export(out, tmp_path / "tars", to="webdataset")
    (written,) = (tmp_path / "tars").glob("*.tar")
    found = members_of(written)
    wanted = {
        f"{key}.{name}": data for key, members in records.items() for name, data in members.items()
    }
    assert all(data == found.get(name) for name, data in wanted.items() if "json" not in name)
    assert len(found) == len(wanted)
    convert(tmp_path / "tars", tmp_path / "again")
    before, after = shardctl.open(out), shardctl.open(tmp_path / "again")
    assert [dict(sample) for sample in before] == [dict(sample) for sample in after]


def png_of(number: int) -> bytes:
    return encoded(Image.new("RGB", (4, 4), (number, 0, 0)))


@pytest.mark.parametrize("form", ["mds", "tfrecord", "tfds", "webdataset"])
def test_a_key_of_another_name_comes_back_as_the_key(form, tmp_path, out):
    made.write_photos(tmp_path / "dataset")
    comes_back(tmp_path / "dataset", out, form, rename={"key": "id"}, on_loss="json")
