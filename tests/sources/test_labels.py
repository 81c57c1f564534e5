"""Labels files and the labels of lines: no value changes on its way in, and nothing is missing
without a word."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from in_this_process import convert
from PIL import Image
from places import file_at
from pyarrow import parquet

import shardctl
from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.tables import open_table, read_rejects
from shardctl.making.convert import conversion
from shardctl.sources import label_table
from shardctl.sources.annotations import inputs as names
from shardctl.sources.boxes import (
    NUMBER_NAMES,
    PLACE_NAMES,
    Shown,
    beside_images,
    kinds_of,
    known_places,
)
from shardctl.sources.splits import ROLES
from shardctl.sources.types import Types
from shardctl.system.folders import LocalFolder


def images(root: Path, count: int) -> Path:
    root.mkdir(parents=True)
    for number in range(count):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(root / f"{number}.png")
    return root


def labelled(root: Path, header: str, rows: Iterable[str]) -> Path:
    """A folder of images with a labels.csv that has a row for each: its file name, and what is
    given."""
    lines = list(rows)
    images(root, len(lines))
    cells = "".join(f"{number}.png,{row}\n" for number, row in enumerate(lines))
    (root / "labels.csv").write_text(f"filename,{header}\n{cells}")
    return root


def column(out: Path, name: str) -> tuple[str, list[Any]]:
    """The type of a column of the shards, and its values in the order of the inputs."""
    ds = shardctl.open(out)
    files = open_table(LocalFolder(out), "files.arrow")
    return dict(ds.manifest.schema)[name], [row[name] for row in files["columns"].to_pylist()]


def notices_of(source: Path, out: Path, **options: Any) -> tuple[str, ...]:
    return convert(source, out, **options).notices


@pytest.mark.parametrize(
    ("cells", "type_", "values"),
    [
        (["1", "-2", "0"], "int64", [1, -2, 0]),
        (["9223372036854775807", "5"], "int64", [2**63 - 1, 5]),
        (["1", "", "3"], "int64", [1, None, 3]),
        (["0.5", "2", "-0.25"], "double", [0.5, 2.0, -0.25]),
        (["0.50", "0.25", "1.00"], "double", [0.5, 0.25, 1.0]),
        (["1e-05", "2.5e+20"], "double", [1e-05, 2.5e20]),
        (["0.1", "inf", "-inf"], "double", [0.1, math.inf, -math.inf]),
        (["0.30000000000000004", "1.0"], "double", [0.30000000000000004, 1.0]),
    ],
)
def test_a_column_of_numbers_as_they_are_printed_is_one_of_numbers(
    tmp_path, out, cells, type_, values
):
    source = labelled(tmp_path / "in", "label,x", [f"a,{cell}" for cell in cells])
    assert notices_of(source, out) == ()
    assert column(out, "x") == (type_, values)


@pytest.mark.parametrize(
    ("cells", "odd"),
    [
        (["00042", "00043"], "00042"),
        (["1", "+1"], "+1"),
        (["1_000", "2"], "1_000"),
        (["9223372036854775808", "1"], "9223372036854775808"),
        (["123456789012345678901234567890", "1"], "123456789012345678901234567890"),
        (["0.1000000000000000055511151231257827", "1"], "0.1000000000000000055511151231257827"),
        (["9007199254740993.5", "1"], "9007199254740993.5"),
        (["1.9", "1.10"], "1.10"),
        (["12e5", "34e5"], "12e5"),
        (["1e+999", "1"], "1e+999"),
        ([" 1", "2"], " 1"),
        ([".5", "1"], ".5"),
        (["-0", "1"], None),
    ],
)
def test_a_column_that_only_looks_like_numbers_stays_text(tmp_path, out, cells, odd):
    source = labelled(tmp_path / "in", "label,x", [f"a,{cell}" for cell in cells])
    notices = notices_of(source, out)
    type_, values = column(out, "x")
    if odd is None:  # a negative zero is one only as a decimal
        assert (type_, [str(value) for value in values]) == ("double", ["-0.0", "1.0"])
        return
    assert (type_, values) == ("string", cells)
    assert any(f"the column x is kept as text: {odd} would change" in notice for notice in notices)


@pytest.mark.parametrize(
    "cells", [["true", "false"], ["nan", "nan"], ["", ""], ["a", ""], ["2024-01-02", "2024-01-03"]]
)
def test_a_column_of_other_words_stays_text(tmp_path, out, cells):
    source = labelled(tmp_path / "in", "label,x", [f"a,{cell}" for cell in cells])
    assert notices_of(source, out) == ()
    assert column(out, "x") == ("string", cells)


def test_words_for_a_missing_value_are_told_and_missing_where_they_are_named(tmp_path, out, cli):
    source = labelled(tmp_path / "in", "label,x", ["cat,1", "NA,NA", "dog,null", "NA,"])
    column_told, label_told = notices_of(source, out)
    assert (
        "the column x is kept as text: some cells are NA or null, and others numbers; "
        "null_values='NA,null'" in column_told
    )
    assert "NA is a class (2 of 4 rows); if they are missing labels, use null_values" in label_told
    assert column(out, "x") == ("string", ["1", "NA", "null", ""])
    ran = cli(
        "convert",
        source,
        tmp_path / "named",
        "--workers",
        "0",
        "--null-values",
        "NA,null",
        "--json",
    )
    assert [notice.partition(": ")[2] for notice in ran.json["notices"]] == [
        "2 rows of 4 without a label"
    ]
    assert column(tmp_path / "named", "x") == ("int64", [1, None, None, None])
    assert shardctl.open(tmp_path / "named").classes == ("cat", "dog")


def test_what_is_a_number_is_found_over_all_labels_files(tmp_path, out):
    labelled(tmp_path / "in" / "train", "label,x", ["a,1", "b,2"])
    labelled(tmp_path / "in" / "val", "label,x", ["a,007", "b,"])
    notices_of(tmp_path / "in", out)
    assert column(out, "x") == ("string", ["1", "2", "007", ""])


def test_file_names_and_class_names_that_look_like_numbers_stay_what_they_are(
    tmp_path,
    out,
):
    source = images(tmp_path / "in", 2)
    for number in range(2):
        (source / f"{number}.png").rename(source / f"0{number}")
    (source / "labels.csv").write_text("filename,label\n00,007\n01,042\n")
    notices_of(source, out)
    ds = shardctl.open(out)
    assert ds.classes == ("007", "042")
    assert [(sample["key"], sample["label"]) for sample in ds] == [("00", 0), ("01", 1)]


def test_rows_without_a_label_are_counted(tmp_path, out):
    source = labelled(tmp_path / "in", "label", ["a", "b", ""])
    assert any("1 row of 3 without a label" in notice for notice in notices_of(source, out))
    assert open_table(*file_at(out / "files.arrow"))["label"].to_pylist() == [
        0,
        1,
        None,
    ]


def test_lenient_labels_say_what_is_left_over(tmp_path, out, cli):
    source = images(tmp_path / "in", 3)
    (source / "labels.csv").write_text("filename,label\n0.png,a\nghost.png,b\n")
    ran = cli("convert", source, out, "--workers", "0", "--lenient-labels")
    assert "no row for 2 of 3 inputs (1.png, 2.png); their columns are empty" in ran.err
    assert (
        "1 of 2 rows names a file that is not there, or of another split (ghost.png); skipped"
        in ran.err
    )
    again = cli("convert", source, out, "--workers", "0", "--lenient-labels", "--json").json
    assert again["status"] == "up-to-date"
    assert len(again["notices"]) == 2


def test_numbers_to_predict_are_no_labels_and_stay_numbers(tmp_path, out):
    rows = [f"{number + 0.5}" for number in range(3)]
    with pytest.raises(
        InputError,
        match="rename numbers to predict",
    ):
        notices_of(labelled(tmp_path / "one", "label", rows), out)
    source = labelled(tmp_path / "two", "target", rows)
    (notice,) = notices_of(source, out)
    assert notice.endswith("(target is one of numbers to predict)")
    assert column(out, "target") == ("double", [0.5, 1.5, 2.5])


NUMBERS, BYTES, IMAGE = pa.list_(pa.float32()), pa.binary(), ENCODED_IMAGE
ARRAY, RUNS = (
    pa.list_(NUMBERS),
    pa.struct([("size", pa.list_(pa.int64())), ("counts", pa.string())]),
)

FORMS = [
    ("bbox", NUMBERS),
    ("Bounding Boxes", ARRAY),
    ("boxes.npy", BYTES),
    ("key_points", ARRAY),
    ("segmentation", pa.list_(pa.list_(pa.float64()))),
    ("polygons", pa.list_(pa.list_(pa.struct([("x", pa.int64()), ("y", pa.int64())])))),
    ("bbox", pa.struct([("left", pa.int64())])),
    ("keypoints", pa.fixed_shape_tensor(pa.float32(), (17, 3))),
    ("counts_of", pa.list_(RUNS)),
    ("masks", ARRAY),
    ("mask", pa.list_(pa.list_(pa.bool_()))),
    ("mask", pa.fixed_shape_tensor(pa.uint8(), (4, 4))),
    ("conditioning_image", IMAGE),
    ("frames", pa.list_(IMAGE)),
]

OTHERS = [
    ("points", pa.int64()),
    ("mask", NUMBERS),
    ("face_boxes", ARRAY),
    ("attention_mask", ARRAY),
    ("bbox_area", pa.float64()),
    ("joints", ARRAY),
    ("xmin", NUMBERS),
    ("blob", BYTES),
    ("audio", IMAGE),
    ("json", pa.struct([("caption", pa.string()), ("width", pa.int64())])),
]


@pytest.mark.parametrize(("name", "type_"), FORMS, ids=str)
def test_forms_of_tools_are_places(name, type_):
    assert known_places([pa.field(name, type_)]) == [name]
    assert known_places([pa.field("info", pa.list_(pa.struct([(name, type_)])))]) == [
        f"info.{name}"
    ]
    assert beside_images([pa.field(name, type_)], {}, {}) == ([name], [])


@pytest.mark.parametrize(("name", "type_"), OTHERS, ids=str)
def test_other_numbers_and_bytes_may_be_places(name, type_):
    assert beside_images([pa.field(name, type_)], {}, {}) == ([], [name])


@pytest.mark.parametrize("before", ["", "image/object/bbox/"])
@pytest.mark.parametrize(
    "names", [*map(sorted, NUMBER_NAMES), ["x_min", "y_min", "x_max", "y_max"]], ids=" ".join
)
def test_coordinates_are_places_together(before, names):
    fields = [pa.field(before + name, pa.float32()) for name in names]
    assert known_places([*fields, pa.field("other/x1", pa.float32())]) == [f.name for f in fields]
    assert known_places(fields[1:]) == []


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("landmark", "Eiffel Tower", "none"),
        ("points", "n/a", "none"),
        ("points", "-1", "wrong"),
        ("points", None, "wrong"),
        ("bbox", "4;3;10;6", "wrong"),
        ("polygon", "POLYGON ((1 2, 3 4))", "wrong"),
        ("keypoints", '{"nose": [1, 2]}', "wrong"),
        ("segmentation", "labels/0.json", "wrong"),
        ("EncodedPixels", "1 3 10 5", "wrong"),
        ("note", "0 0.5 0.5 0.25 0.25\n1 0.1 0.2 0.3 0.4\n", "wrong"),
        ("note", "<annotation><object><bndbox></bndbox></object></annotation>", "wrong"),
        ("note", "4;3;10;6", "unknown"),
        ("note", "a/0.png?size=3", "unknown"),
        ("note", ["a cat", {"points": "1, 2"}], "unknown"),
        ("note", "-1", "none"),
        ("caption", "2 dogs, and a cat (1889)", "none"),
    ],
)
def test_the_first_values_tell_what_texts_are(name, value, verdict):
    shown: Shown = {name: kinds_of(value)}
    found = {"wrong": ([name], []), "unknown": ([], [name]), "none": ([], [])}
    assert beside_images([pa.field(name, pa.string())], {}, shown) == found[verdict]


def test_a_long_text_of_numbers_takes_no_time():
    text = "0 " + "0.12 " * 20_000
    assert kinds_of([text, text.encode()]) == {"annotation"}
    assert kinds_of([f"{text}x", text.encode() + b"x"]) == {"other"}


def test_the_page_on_inputs_names_the_forms_of_places_and_what_is_a_split():
    page = (Path(__file__).parents[2] / "docs" / "inputs.md").read_text(encoding="utf-8")
    plain = " ".join(page.replace("_", "").lower().split())
    for name in PLACE_NAMES:
        assert re.search(rf"\b{name}\b", plain), name
    assert {frozenset(each.split()) for each in re.findall("`([a-z0-9 ]+)`", plain)} >= set(
        NUMBER_NAMES
    )
    for word in (word for words in ROLES for word in words):
        assert f"`{word}`" in page


def test_strings_of_a_jsonl_labels_file_are_classes(tmp_path, out):
    source = images(tmp_path / "in", 3)
    lines = [
        {"file_name": "0.png", "label": "dog"},
        {"file_name": "1.png", "label": "cat"},
        {"file_name": "2.png"},
    ]
    (source / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert any("1 row of 3 without a label" in notice for notice in notices_of(source, out))
    assert shardctl.open(out).classes == ("cat", "dog")
    assert open_table(*file_at(out / "files.arrow"))["label"].to_pylist() == [
        1,
        0,
        None,
    ]


def test_strings_in_the_field_label_of_lines_are_classes(tmp_path, out):
    lines = [
        {"text": "a", "label": "pos"},
        {"text": "b", "label": "neg"},
        {"text": "c", "label": ""},
        {"text": "d"},
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    result = convert(tmp_path / "in.jsonl", out)
    ds = shardctl.open(out)
    assert ds.classes == ("neg", "pos")
    assert dict(ds.manifest.schema)["label"] == "int64"
    assert (result.samples, result.rejected) == (4, 0)
    assert [sample["label"] for sample in ds] == [1, 0, None, None]
    assert result.estimate is None
    assert shardctl.verify(out).ok
    convert(tmp_path / "in.jsonl", tmp_path / "as-text", labels="none")
    assert [sample["label"] for sample in shardctl.open(tmp_path / "as-text")] == [
        "pos",
        "neg",
        "",
        None,
    ]


def test_a_function_sees_the_empty_label_of_a_line_as_none(tmp_path, out, monkeypatch):
    (tmp_path / "see_labels.py").write_text(
        "def kind(sample):\n    return {**sample, 'seen': type(sample['label']).__name__}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "in.jsonl").write_text('{"label": "pos"}\n{"label": ""}\n')
    recipe = {"transform": [{"name": "custom", "target": "see_labels:kind"}]}
    assert convert(tmp_path / "in.jsonl", out, recipe=recipe).rejected == 0
    assert [(row["label"], row["seen"]) for row in shardctl.open(out)] == [
        (0, "int"),
        (None, "NoneType"),
    ]


@pytest.mark.parametrize(
    "options", [{}, {"labels": "folder"}, {"split": "folder"}, {"schema": {"text": "string"}}]
)
def test_columns_that_only_folders_have_are_not_lost(options, tmp_path):
    table = pa.table(
        {
            "text": list("abcdef"),
            "label": list("xyxyxy"),
            "year": [2020, 2020, 2020, 2021, 2021, 2021],
        }
    )
    source, out = tmp_path / "table", tmp_path / "out"
    parquet.write_to_dataset(table, source, partition_cols=["label", "year"])
    with pytest.raises(
        InputError, match=r"as label=x/year=2020\) are values of columns .* \(label, year\)"
    ):
        convert(source, out, **options)
    # what the message says, with pyarrow
    parquet.write_table(parquet.read_table(source), tmp_path / "one.parquet")
    convert(tmp_path / "one.parquet", out)
    ds = shardctl.open(out)
    found = [(each["text"], ds.classes[each["label"]], int(each["year"])) for each in ds]
    assert sorted(found) == list(zip(*table.to_pydict().values(), strict=True))


def test_an_update_does_not_lose_columns_of_new_folders(tmp_path):
    source, out = tmp_path / "lines", tmp_path / "out"
    source.mkdir()
    (source / "a.csv").write_text("text,label\na,x\nb,y\n")
    convert(source, out, kind="table")
    (source / "year=2021").mkdir()
    (source / "year=2021" / "a.csv").write_text("text,label\na,x\nb,y\n")
    with pytest.raises(InputError, match=r"that the files do not have \(year\)"):
        convert(source, out, kind="table", update=True)


def test_a_class_folder_of_images_may_be_called_as_a_column(tmp_path, out):
    for name in ("a=b", "a=c"):
        images(tmp_path / "in" / name, 1)
    convert(tmp_path / "in", out)
    assert shardctl.open(out).classes == ("a=b", "a=c")


def test_a_labels_file_in_another_encoding_says_how_it_is_recoded(tmp_path):
    source = images(tmp_path / "in", 1)
    (source / "labels.csv").write_text("file_name,label\n0.png,é\n", encoding="utf-16")
    with pytest.raises(InputError, match=r"recode it \(iconv -t UTF-8\)"):
        convert(source, tmp_path / "out")


def one_bit(names: Iterable[str]) -> Any:
    """As hash_names, but nearly all names have the same hash as others."""
    import numpy as np

    return np.fromiter((len(name) % 2 for name in names), np.uint64)


def test_names_whose_hashes_are_equal_are_compared(tmp_path, out, monkeypatch):
    for module in (label_table, names):
        monkeypatch.setattr(module, "hash_names", one_bit)
    source = images(tmp_path / "in", 12)
    order = [7, 3, 11, 0, 10, 1, 9, 2, 8, 4, 6, 5]
    (source / "labels.csv").write_text(
        "filename,label,n\n" + "".join(f"{n}.png,a,{n}\n" for n in order)
    )
    notices_of(source, out)
    found = {sample["key"]: sample["n"] for sample in shardctl.open(out)}
    assert found == {f"{n}.png": n for n in range(12)}


def test_names_that_stand_twice_are_found_where_hashes_are_equal(tmp_path, out, monkeypatch):
    for module in (label_table, names):
        monkeypatch.setattr(module, "hash_names", one_bit)
    monkeypatch.setattr(label_table, "ROWS_AT_ONCE", 2)
    one, other = images(tmp_path / "one", 5), images(tmp_path / "other", 2)
    with pytest.raises(InputError, match=r"2 keys appear twice, among them 0.png, 1.png:"):
        notices_of([one, other], out)  # type: ignore[arg-type]
    (one / "labels.csv").write_text(
        "filename,label\n" + "".join(f"{n}.png,a\n" for n in (0, 1, 2, 1, 3, 4, 1, 4))
    )
    with pytest.raises(
        InputError, match=r"labels.csv: 1.png and 1.png are both of the input 1.png; keep one"
    ):
        notices_of(one, out)


def test_columns_can_be_left_out(tmp_path, out, cli):
    source = labelled(tmp_path / "in", "label,key,note", ["a,1,x", "b,2,y"])
    with pytest.raises(InputError, match="drop_columns key"):
        notices_of(source, out)
    assert cli("convert", source, out, "--workers", "0", "--drop-columns", "key,note").code == 0
    ds = shardctl.open(out)
    assert ds.schema.names == ["key", "image", "label"]
    assert ds.manifest.settings["drop_columns"] == ["key", "note"]
    (out / "plan.arrow").write_bytes(b"")
    assert shardctl.repair(out, workers=0).ok, "the sources are listed again as they were"
    with pytest.raises(
        UsageError, match=r"labels.csv has no such column; it has filename, label, key, note"
    ):
        notices_of(source, tmp_path / "other", drop_columns=["key", "nothing"])
    (source / "labels.csv").unlink()
    with pytest.raises(
        UsageError,
        match=r"drop_columns.*note.*: there is no labels file",
    ):
        notices_of(source, tmp_path / "other", drop_columns=["note"])


def test_fields_of_lines_cannot_be_left_out_and_columns_that_are_both_can(tmp_path, out):
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(UsageError, match="there is no labels file"):
        notices_of(source, out, drop_columns="text")
    (source / "labels.csv").write_text("filename,label,text\na.jsonl,x,b\n")
    with pytest.raises(
        InputError,
        match=r"the labels file and the inputs both have text; .* drop_columns=",
    ):
        notices_of(source, out)
    notices_of(source, out, drop_columns="text")
    assert [sample["text"] for sample in shardctl.open(out)] == ["a"]


def test_a_line_with_half_a_character_is_rejected(tmp_path, out):
    lines = [
        '{"a": "x"}',
        '{"a": "\\ud800"}',
        '{"\\udc00": 1}',
        '{"a": "\\ud83d\\ude00"}',
        '{"a": "C:\\\\users"}',
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    assert convert(tmp_path / "in.jsonl", out).rejected == 2
    assert [sample["a"] for sample in shardctl.open(out)] == [
        "x",
        "\U0001f600",
        "C:\\users",
    ]
    rejects = [
        (reject.key, reject.error, reject.message) for reject in read_rejects(LocalFolder(out))
    ]
    assert [(key, error) for key, error, _ in rejects] == [
        ("in.jsonl#2", "lone-surrogate"),
        ("in.jsonl#3", "lone-surrogate"),
    ]
    assert "\\ud800" in rejects[0][2]
    source = images(tmp_path / "in", 1)
    (source / "metadata.jsonl").write_text('{"file_name": "0.png", "note": "\\ud800"}')
    with pytest.raises(InputError, match=r"metadata.jsonl, line 1: holds"):
        notices_of(source, tmp_path / "other")


def test_an_absolute_file_name_below_the_source_is_that_input(tmp_path, out):
    source = images(tmp_path / "in", 1)
    (source / "labels.csv").write_text(f"filename,label\n{source}/0.png,b\n")
    notices_of(source, out)
    assert shardctl.open(out).classes == ("b",)


@pytest.mark.parametrize(
    "number",
    ["1e400", "-1e400", "1e-400", "1" * 310 + ".0", "0." + "0" * 330 + "1", "1" * 250 + "e99"],
)
def test_a_line_with_a_number_outside_of_float64_is_rejected(tmp_path, out, number):
    lines = [
        '{"x": 1e-300}',
        f'{{"x": [{number}]}}',
        '{"x": -0e-999}',
        '{"x": 1.7976931348623157e308}',
    ]
    lines = [line.replace('"x": [', '"y": [') for line in lines]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    convert(tmp_path / "in.jsonl", out)
    assert [sample["x"] for sample in shardctl.open(out)] == [
        1e-300,
        0.0,
        1.7976931348623157e308,
    ]
    (reject,) = read_rejects(LocalFolder(out))
    assert (reject.key, reject.error) == ("in.jsonl#2", "out-of-range")
    assert f"holds {number[:40]}" in reject.message
    assert "write it as text" in reject.message


@pytest.mark.parametrize("nested", [False, True])
def test_whole_numbers_that_a_decimal_cannot_hold_are_never_rounded(tmp_path, nested):
    """Whichever comes first."""
    for name, values in {
        "first": [2**53 + 1, 0.5],
        "last": [0.5, 2**53 + 1],
        "near": [2**53, 0.5],
    }.items():
        put = [{"a": [{"b": value}] if nested else value} for value in values]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, put)))
        notices = notices_of(tmp_path / f"{name}.jsonl", tmp_path / name)
        got = [sample["a"] for sample in shardctl.open(tmp_path / name)]
        if name == "near":
            assert (got, notices) == ([record["a"] for record in put], ())
        else:
            assert [json.loads(value) for value in got] == [record["a"] for record in put]
            assert any("the field a has values of no one type" in n for n in notices)


@pytest.mark.parametrize("depth", [10, 70, 300, 900])
@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"b":', "}")])
def test_values_of_any_depth_come_back_or_are_rejected(tmp_path, out, depth, begin, end):
    inside = begin * depth + "1" + end * depth
    (tmp_path / "in.jsonl").write_text(f'{{"a": {inside}, "n": 1}}\n{{"a": null, "n": 2}}\n')
    result = convert(tmp_path / "in.jsonl", out)
    assert (result.samples, result.reasons) == (
        (1, {"decode: too-deep": 1}) if depth == 900 else (2, {})
    )
    if depth == 70:
        assert shardctl.open(out)[0]["a"] == inside.replace(":", ": ")


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        (
            "labels.csv",
            "filename,label\n0.png,cat\n1.png,dog\n",
            "filename,label\n0.png,dog\n1.png,cat\n",
        ),
        (
            "labels.jsonl",
            '{"filename": "0.png", "label": "cat"}\n{"filename": "1.png", "label": "dog"}\n',
            '{"filename": "0.png", "label": "dog"}\n{"filename": "1.png", "label": "cat"}\n',
        ),
    ],
)
def test_a_labels_file_that_changes_during_a_conversion_does_not_look_up_to_date(
    tmp_path, monkeypatch, name, before, after
):
    source, out = images(tmp_path / "in", 2), tmp_path / "out"
    (source / name).write_text(before)
    fingerprint_parts = conversion.fingerprint_parts

    def of_a_changed_file(*arguments: Any) -> dict[str, str]:
        (source / name).write_text(after)
        return fingerprint_parts(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(conversion, "fingerprint_parts", of_a_changed_file)
        convert(source, out)
    ds = shardctl.open(out)
    assert [
        ds.classes[label]
        for label in open_table(LocalFolder(out), "files.arrow")["label"].to_pylist()
    ] == ["cat", "dog"]
    with pytest.raises(DatasetError, match="differs in its labels"):
        convert(source, out)
    (source / name).write_text(before)
    assert convert(source, out).status == "up-to-date"


@pytest.mark.parametrize("after", ["cat", 3.5, {"x": 1}, None])
def test_a_labels_file_that_changes_or_goes_between_its_two_readings_is_refused(
    tmp_path, monkeypatch, after
):
    source = images(tmp_path / "in", 1)
    row = {"filename": "0.png", "label": 7}
    (source / "labels.jsonl").write_text(json.dumps(row))
    schema = Types.schema

    def changing(types: Types) -> Any:
        (tmp_path / "new").write_text(json.dumps({**row, "label": after}))
        (tmp_path / "new").replace(source / "labels.jsonl")
        if after is None:
            (source / "labels.jsonl").unlink()
        return schema(types)

    monkeypatch.setattr(Types, "schema", changing)
    with pytest.raises(
        InputError, match=r"labels\.jsonl: (changed while it was read|cannot be read \(No such)"
    ):
        convert(source, tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("filename,label\n0.png,a\nfilename,label\n1.png,b\n", "row 2: is the header once more"),
        (
            "filename, label\n0.png, 1\n1.png, 2\n",
            "the column ' label' has a blank beside its name",
        ),
        ("filename,label\n0.png,1,2\n1.png,2\n", "row 1: has 3 columns where the header has 2"),
        ('filename,label\n0.png,1\n1.png,"2\n', "row 2: a quote"),
        ("filename,label\n0.png,1.0\n1.png,2.5\n", "the column label holds double"),
    ],
)
def test_what_a_labels_file_says_is_read_or_refused(text, message, tmp_path):
    source = labelled(tmp_path / "in", "label", ["cat", "dog"])
    (source / "labels.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        convert(source, tmp_path / "out")


@pytest.mark.parametrize("name", ["labels.csv", "labels.jsonl"])
def test_labels_that_pandas_made_floats_are_whole_numbers(name, tmp_path, out):
    source = labelled(tmp_path / "in", "label", ["1", "2", "3"])
    (source / "labels.csv").unlink()
    csv = "filename,label\n0.png,1.0\n1.png,2.0\n2.png,\n"
    lines = "".join(
        json.dumps({"file_name": f"{n}.png", "label": value}) + "\n"
        for n, value in enumerate([1.0, 2.0, None])
    )
    (source / name).write_text(csv if name == "labels.csv" else lines)
    convert(source, out)
    assert [sample["label"] for sample in shardctl.open(out)] == [1, 2, None]


def test_labels_that_name_no_input_at_all_are_refused_however_lenient(tmp_path):
    source = labelled(tmp_path / "in", "label", ["1", "2"])
    (source / "labels.csv").write_text("filename,label\nx/0.bmp,1\nx/1.bmp,2\n")
    with pytest.raises(InputError, match=": no input would have a label"):
        convert(source, tmp_path / "out", lenient_labels=True)


def test_metadata_parquet_is_read_as_metadata_csv(tmp_path, out):
    for split in ("train", "test"):
        images(tmp_path / "in" / split, 3)
        table = pa.table(
            {
                "file_name": [f"{n}.png" for n in range(3)],
                "text": pa.array([f"{split} {n}" for n in range(3)]).dictionary_encode(),
                "label": pa.array([n % 2 for n in range(3)], pa.int32()),
                "depth_file_name": ["d/0.png"] * 3,
            }
        )
        parquet.write_table(table, tmp_path / "in" / split / "metadata.parquet")
    said = notices_of(tmp_path / "in", out)
    for split in ("train", "test"):
        found = [(sample["text"], sample["label"]) for sample in shardctl.open(out, split=split)]
        assert sorted(found) == [(f"{split} {n}", n % 2) for n in range(3)]
    assert any(
        "depth_file_name: names of other files are kept as text" in notice for notice in said
    )


def test_metadata_parquet_has_the_classes_of_hugging_face(tmp_path, out):
    features = {
        "label": {"names": ["owl", "cat"], "_type": "ClassLabel"},
        "file_name": {"dtype": "string", "_type": "Value"},
    }
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    for part in ("a", "b"):
        images(tmp_path / "in" / part, 2)
        table = pa.table(
            {"file_name": ["0.png", "1.png"], "label": [1, 0]}
        ).replace_schema_metadata(metadata)
        parquet.write_table(table, tmp_path / "in" / part / "metadata.parquet")
    convert(tmp_path / "in", out)
    ds = shardctl.open(out)
    assert ds.classes == ("owl", "cat")
    assert {sample["key"]: int(sample["label"]) for sample in ds} == {
        f"{part}/{number}.png": 1 - number for part in ("a", "b") for number in (0, 1)
    }
    (tmp_path / "in" / "b" / "metadata.parquet").unlink()
    (tmp_path / "in" / "b" / "metadata.csv").write_text("file_name,label\n0.png,1\n1.png,0\n")
    convert(tmp_path / "in", tmp_path / "numbers")
    assert shardctl.open(tmp_path / "numbers").classes is None


def test_metadata_parquet_without_file_names_and_a_broken_one_are_refused(tmp_path, out):
    source = images(tmp_path / "in", 1)
    parquet.write_table(pa.table({"file_names": [["0.png"]]}), source / "metadata.parquet")
    with pytest.raises(InputError, match="no column of file names; it has file_names"):
        notices_of(source, out)
    (source / "metadata.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"metadata.parquet: not a Parquet file"):
        notices_of(source, out)


def test_labels_files_with_names_of_splits_are_one_for_each(tmp_path, out):
    images(tmp_path / "in", 6)
    for name, text in {
        "train.csv": "file_name,label\n0.png,b\n1.png,a\n2.png,b\n",
        "val.csv": "file_name,label\n3.png,b\n",
        "test.csv": "file_name\n4.png\n5.png\n",
    }.items():
        (tmp_path / "in" / name).write_text(text)
    files = [tmp_path / "in" / f"{name}.csv" for name in ("train", "val", "test")]
    convert(tmp_path / "in", out, labels=files)
    found = {s: [x["label"] for x in shardctl.open(out, split=s)] for s in ("train", "val", "test")}
    assert found == {"train": [1, 0, 1], "val": [1], "test": [None, None]}
    assert convert(tmp_path / "in", out, labels=files).status == "up-to-date"
    with pytest.raises(InputError, match=r"no row for 2 of 6 inputs \(4.png, 5.png\)"):
        convert(tmp_path / "in", tmp_path / "two", labels=files[:2])
    files[1].write_text("file_name,label\n3.png,b\n0.png,b\n")
    with pytest.raises(InputError, match=r"0.png and 0.png are both of the input 0.png; keep one"):
        convert(tmp_path / "in", tmp_path / "two", labels=files)
    with pytest.raises(UsageError, match="contradict each other"):
        shardctl.convert(tmp_path / "in", tmp_path / "two", labels=["folder", files[0]])
