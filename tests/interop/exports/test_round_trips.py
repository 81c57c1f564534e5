"""What was exported and is converted again is the dataset that it was: keys, order, splits,
classes, schema and every value."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from in_this_process import convert, export
from made import tables, write_gaps, write_photos, write_raw, write_texts
from PIL import Image
from round_trips import FORMS, facts_of
from tars import write_tar

import shardctl
from shardctl.errors import InputError
from shardctl.interop.foreign_shards import check


def there_and_back(dataset: Path, form: str, folder: Path, **options: Any) -> dict[str, Any]:
    export(dataset, folder / "out", form, **options)
    made = convert(folder / "out", folder / "back")
    assert made.rejected == 0
    return facts_of(folder / "back")


@pytest.mark.thorough(after=8)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "write", [write_photos, write_texts, write_gaps], ids=["photos", "texts", "gaps"]
)
def test_a_dataset_comes_back_as_it_was(form, write, tmp_path):
    write(tmp_path / "dataset")
    before, after = (
        facts_of(tmp_path / "dataset"),
        there_and_back(tmp_path / "dataset", form, tmp_path, on_loss="json"),
    )
    # shardctl.write calls everything a table that has no images
    assert after == {**before, "kind": after["kind"]}


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize("form", FORMS)
def test_a_converted_folder_of_images_comes_back_as_it_was(form, photos, tmp_path):
    convert(photos, tmp_path / "dataset", split="zulu=0.6,alpha=0.4", samples_per_shard=9)
    assert there_and_back(tmp_path / "dataset", form, tmp_path) == facts_of(tmp_path / "dataset")
    assert shardctl.verify(tmp_path / "back", level="deep").findings == ()


@pytest.mark.thorough(after=2)
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
    before, after = (
        facts_of(tmp_path / "dataset"),
        there_and_back(tmp_path / "dataset", form, tmp_path),
    )
    assert after["rows"] == before["rows"]
    assert after["fields"]["tokens"]["vocabulary"] == before["fields"]["tokens"]["vocabulary"]


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
@examples(10)
@given(tables(nan=True))
def test_any_table_comes_back_as_it_was(form, table):
    schema, rows = table
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shardctl.write(folder / "dataset", rows, schema)
        after = there_and_back(folder / "dataset", form, folder, on_loss="json")
        assert after["rows"] == facts_of(folder / "dataset")["rows"]
        assert after["schema"] == facts_of(folder / "dataset")["schema"]


def test_an_export_that_is_not_whole_is_refused_and_damage_is_found(tmp_path, out):
    write_texts(tmp_path / "dataset")
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


def test_raw_images_come_back_as_png_from_arrays(tmp_path):
    write_raw(tmp_path / "dataset")
    after = there_and_back(tmp_path / "dataset", "mds", tmp_path)
    pixels = [sample["image"] for sample in shardctl.open(tmp_path / "dataset")]
    again = [sample["image"] for sample in shardctl.open(tmp_path / "back")]
    assert all(np.array_equal(one, other) for one, other in zip(pixels, again, strict=True))
    assert after["fields"]["image"]["store"] == "source"


def test_members_that_are_several_images_leave_a_tar_as_they_came(tmp_path, out):
    """Two views of each sample; and images by number, of which not every sample has all."""
    records = {
        f"{number:03}": {
            **{
                f"{side}.png": png_of(number + place)
                for place, side in enumerate(("left", "right"))
            },
            **{f"{image}.jpg": png_of(image) for image in range(number % 3)},
            "json": json.dumps({"n": number}).encode(),
        }
        for number in range(6)
    }
    write_tar(tmp_path / "a.tar", records)
    convert(tmp_path / "a.tar", out)
    shardctl.export(out, tmp_path / "tars", to="webdataset")
    (made,) = (tmp_path / "tars").glob("*.tar")
    with tarfile.open(made) as archive:
        found = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]  # all are files
    wanted = {
        f"{key}.{name}": data for key, members in records.items() for name, data in members.items()
    }
    assert {name: data for name, data in found.items() if not name.endswith(".json")} == {
        name: data for name, data in wanted.items() if not name.endswith(".json")
    }
    convert(tmp_path / "tars", tmp_path / "again")
    before, after = shardctl.open(out), shardctl.open(tmp_path / "again")
    assert [dict(sample) for sample in before] == [dict(sample) for sample in after]


def png_of(number: int) -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (4, 4), (number, 0, 0)).save(sink, "PNG")
    return sink.getvalue()


@pytest.mark.parametrize("form", ["mds", "tfrecord", "tfds", "webdataset"])
def test_a_key_of_another_name_comes_back_as_the_key(form, tmp_path):
    write_photos(tmp_path / "dataset")
    after = there_and_back(
        tmp_path / "dataset", form, tmp_path, rename={"key": "id"}, on_loss="json"
    )
    assert after["rows"] == facts_of(tmp_path / "dataset")["rows"]
