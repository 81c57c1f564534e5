"""Fields of records that are chosen and renamed, and keys that are values of a field."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from in_this_process import convert
from PIL import Image
from pyarrow import parquet

import shardctl
from shardctl.cli import run
from shardctl.errors import InputError, UsageError

ROWS = [{"id": f"p{n}", "n": n, "photo": None, "class": "ab"[n % 2]} for n in range(6)]


def jpeg(shade: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, shade, shade)).save(stream, "JPEG")
    return stream.getvalue()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [{**row, "photo": jpeg(40 * row["n"])} for row in ROWS]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "table.parquet")
    return tmp_path / "table.parquet"


def samples(root: Path, **options: Any) -> list[dict[str, Any]]:
    dataset = shardctl.open(root, **options)
    return [dict(sample) for sample in dataset]


def keyed(folder: Path, lines: list[dict[str, Any]]) -> Any:
    """Convert lines whose keys are their id, and return what the conversion says."""
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe = {"kind": "table", "key_field": "id"}
    return convert(folder / "in.jsonl", folder / "out", recipe=recipe)


def test_fields_are_chosen_and_renamed(table, out):
    made = convert(table, out, recipe={"fields": "image=photo,label=class,n"})
    assert made.samples == 6
    dataset = shardctl.open(out)
    assert dataset.schema.names == ["key", "image", "n", "label"]
    assert dataset.classes == ("a", "b")
    assert [sample["label"] for sample in dataset] == [0, 1, 0, 1, 0, 1]
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["recipe"]["fields"] == "image=photo,label=class,n=n"


def test_a_field_that_is_not_there_and_a_choice_that_is_none_are_named(table, out):
    with pytest.raises(InputError, match="no field odd; they have id, n, photo, class"):
        convert(table, out, recipe={"kind": "table", "fields": "n=odd"})
    for wrong in ("", "a=", "=a", "a=x,a=y", "a=x,b=x"):
        with pytest.raises(UsageError, match="fields"):
            convert(table, out, recipe={"fields": wrong})


@pytest.mark.parametrize("choice", [{"key_field": "id"}, {"fields": "key=id,n,photo"}])
@pytest.mark.parametrize("kind", ["table", "image"])
def test_keys_are_those_of_the_records(table, out, kind, choice):
    recipe = {"kind": kind, **choice, **({"image_field": "photo"} if kind == "image" else {})}
    convert(table, out, recipe=recipe, samples_per_shard=2, shuffle=3)
    found = samples(out)
    assert sorted(sample["key"] for sample in found) == [row["id"] for row in ROWS]
    assert {sample["key"]: sample["n"] for sample in found} == {row["id"]: row["n"] for row in ROWS}
    assert shardctl.verify(out, level="deep").findings == ()
    assert run(["inspect", str(out), "--key", "p4"]) == 0
    shard = min(out.glob("train-*.arrow"))
    before = shard.read_bytes()
    shard.unlink()
    assert shardctl.repair(out, workers=0).lost == ()
    assert shard.read_bytes() == before


def test_a_record_without_a_key_is_a_reject_and_numbers_are_keys(tmp_path):
    lines = [{"id": 7, "x": 1}, {"id": None, "x": 2}, {"id": 9, "x": 3}]
    made = keyed(tmp_path, lines)
    assert (made.samples, made.reasons) == (2, {"decode: no-key": 1})
    assert [(sample["key"], sample["x"]) for sample in samples(tmp_path / "out")] == [
        ("7", 1),
        ("9", 3),
    ]


def test_lists_are_no_keys(tmp_path):
    with pytest.raises(InputError, match="keys are text, or whole numbers"):
        keyed(tmp_path, [{"id": [1]}])


def test_a_field_with_a_name_of_ours_is_kept_under_another_one(tmp_path, out):
    (tmp_path / "in.jsonl").write_text('{"key": "a", "x": 1, "image": [2, 3], "variant": true}\n')
    made = convert(tmp_path / "in.jsonl", out, recipe={"kind": "table"})
    (notice,) = [notice for notice in made.notices if "are kept as" in notice]
    for name in ("key", "image", "variant"):
        assert f"__{name}__" in notice
    (sample,) = samples(out)
    assert {name: sample[name] for name in ("key", "__key__", "x", "__variant__")} == {
        "key": "in.jsonl#1",
        "__key__": "a",
        "x": 1,
        "__variant__": True,
    }
    assert list(sample["__image__"]) == [2, 3]


def test_only_files_of_the_format_that_is_named_are_read(table, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    table.rename(folder / table.name)
    (folder / "other.csv").write_text("a\n1\n")
    made = convert(folder, tmp_path / "out", recipe={"format": "parquet", "kind": "table"})
    assert made.samples == 6
    with pytest.raises(InputError, match="holds no mds"):
        convert(folder, tmp_path / "other", recipe={"format": "mds"})
    assert run(["convert", str(folder), str(tmp_path / "cli"), "--kind", "parquet", "-q"]) == 0


def test_keys_that_are_there_twice_are_told(tmp_path):
    lines = [{"id": name, "x": n} for n, name in enumerate("abcab")]
    made = keyed(tmp_path, lines)
    assert made.samples == 5
    (warning,) = made.warnings
    assert warning.startswith("2 samples have the key of another one, for instance ")
