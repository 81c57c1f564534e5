"""Fields of records that are chosen and renamed, and keys that are values of a field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from annotated import png
from dataset_files import shards_in
from in_this_process import convert
from pyarrow import parquet
from written_samples import plain

import shardctl
from shardctl.errors import InputError, UsageError

ROWS = [{"id": f"p{n}", "n": n, "photo": None, "class": "ab"[n % 2]} for n in range(6)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.parquet"
    rows = [{**row, "photo": png(np.full((8, 8, 3), 40 * row["n"], np.uint8))} for row in ROWS]
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_fields_are_chosen_and_renamed(table, out):
    assert convert(table, out, recipe={"fields": "image=photo,label=class,n"}).samples == 6
    dataset = shardctl.open(out)
    assert dataset.schema.names == ["key", "image", "n", "label"]
    assert dataset.classes == ("a", "b")
    assert [sample["label"] for sample in dataset] == [0, 1, 0, 1, 0, 1]
    assert dataset.manifest.recipe["fields"] == "image=photo,label=class,n=n"


def test_a_field_that_is_not_there_and_a_choice_that_is_none_are_named(table, out):
    with pytest.raises(InputError, match="no field odd; they have id, n, photo, class"):
        convert(table, out, recipe={"kind": "table", "fields": "n=odd"})
    for wrong in ("", "a=", "=a", "a=x,a=y", "a=x,b=x"):
        with pytest.raises(UsageError, match="fields"):
            convert(table, out, recipe={"fields": wrong})


@pytest.mark.parametrize("choice", [{"key_field": "id"}, {"fields": "key=id,n,photo"}])
@pytest.mark.parametrize("kind", [{"kind": "table"}, {"kind": "image", "image_field": "photo"}])
def test_keys_are_those_of_the_records(cli, table, out, kind, choice):
    convert(table, out, recipe={**kind, **choice}, samples_per_shard=2, shuffle=3)
    found = list(shardctl.open(out))
    assert {sample["key"]: sample["n"] for sample in found} == {row["id"]: row["n"] for row in ROWS}
    assert len(found) == len(ROWS)
    assert shardctl.verify(out, level="deep").findings == ()
    assert cli("inspect", out, "--key", "p4").code == 0
    shard = min(shards_in(out))
    before = shard.read_bytes()
    shard.unlink()
    assert shardctl.repair(out, workers=0).lost == ()
    assert shard.read_bytes() == before


def test_a_record_without_a_key_is_a_reject_and_numbers_are_keys(tmp_path, out):
    keys = {"in": [7, None, 9], "twice": [*"abcab"], "list": [[1]]}
    for name, ids in keys.items():
        lines = [json.dumps({"id": key, "x": x}) + "\n" for x, key in enumerate(ids, 1)]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    options: dict[str, Any] = {"recipe": {"kind": "table", "key_field": "id"}, "overwrite": True}
    made = convert(tmp_path / "in.jsonl", out, **options)
    assert (made.samples, made.reasons) == (2, {"decode: no-key": 1})
    assert [(sample["key"], sample["x"]) for sample in shardctl.open(out)] == [("7", 1), ("9", 3)]
    with pytest.raises(InputError, match="keys are text, or whole numbers"):
        convert(tmp_path / "list.jsonl", out, **options)
    made = convert(tmp_path / "twice.jsonl", out, **options)
    assert made.samples == 5
    assert made.warnings[0].startswith("2 samples have the key of another one")


def test_a_field_with_a_name_of_ours_is_kept_under_another_one(tmp_path, out):
    line = {"key": "a", "x": 1, "image": [2, 3], "variant": True}
    (tmp_path / "in.jsonl").write_text(json.dumps(line) + "\n")
    made = convert(tmp_path / "in.jsonl", out, recipe={"kind": "table"})
    (notice,) = [notice for notice in made.notices if "are kept as" in notice]
    assert all(f"__{name}__" in notice for name in ("key", "image", "variant"))
    wanted = {"__key__": "a", "__image__": [2, 3], "__variant__": True, "x": 1}
    assert plain(shardctl.open(out)) == [{"key": "in.jsonl#1", **wanted}]


def test_only_files_of_the_format_that_is_named_are_read(cli, table, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    table.rename(folder / table.name)
    (folder / "other.csv").write_text("a\n1\n")
    made = convert(folder, tmp_path / "out", recipe={"format": "parquet", "kind": "table"})
    assert made.samples == 6
    with pytest.raises(InputError, match="holds no mds"):
        convert(folder, tmp_path / "other", recipe={"format": "mds"})
    assert cli("convert", folder, tmp_path / "cli", "--kind", "parquet", "-q").code == 0
