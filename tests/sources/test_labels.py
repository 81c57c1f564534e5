"""Labels files and the labels of lines: no value changes on its way in, and nothing is missing
without a word."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dataset_facts import stored
from dataset_files import tables_in
from in_this_process import convert, repair
from PIL import Image
from places import file_at
from pyarrow import parquet

import shardctl
from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.format import arrays
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.tables import open_table
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
    files = open_table(dataset_in(out), "files.arrow")
    return dict(ds.manifest.schema)[name], [row[name] for row in files["columns"].to_pylist()]


def notices_of(source: Path, out: Path, **options: Any) -> tuple[str, ...]:
    return convert(source, out, **options).notices


@pytest.mark.parametrize(
    ("cells", "type_", "values", "odd"),
    [
        (["1", "", "-3"], "int64", [1, None, -3], None),
        (["0.1", "inf", "-inf"], "double", [0.1, math.inf, -math.inf], None),
        (["-0", "1"], "double", [-0.0, 1.0], None),
        (["00042", "00043"], "string", ["00042", "00043"], "00042"),
        (["1e+999", "1"], "string", ["1e+999", "1"], "1e+999"),
        ([" 1", "2"], "string", [" 1", "2"], " 1"),
        (["1.9", "1.10"], "string", ["1.9", "1.10"], "1.10"),
        *(
            (cells, "string", cells, None)
            for cells in (["true", "false"], ["nan"] * 2, [""] * 2, ["a", ""], ["2024-01-02"])
        ),
    ],
)
def test_a_column_of_numbers_as_they_are_printed_is_one_of_numbers(
    tmp_path, out, cells, type_, values, odd
):
    """tests/sources/formats/test_csv.py has more of them: a labels file is read as a CSV file."""
    notices = notices_of(labelled(tmp_path / "in", "label,x", [f"a,{cell}" for cell in cells]), out)
    assert repr(column(out, "x")) == repr((type_, values))
    assert len(notices) == (odd is not None)
    assert odd is None or f"the column x is kept as text: {odd} would change" in notices[0]


def test_words_for_a_missing_value_are_told_and_missing_where_they_are_named(tmp_path, out):
    source = labelled(tmp_path / "in", "label,x", ["cat,1", "NA,NA", "dog,null", "NA,"])
    column_told, label_told = notices_of(source, out)
    assert "null_values='NA,null'" in column_told
    assert "NA is a class (2 of 4 rows); if they are missing labels, use null_values" in label_told
    assert column(out, "x") == ("string", ["1", "NA", "null", ""])
    (told,) = notices_of(source, tmp_path / "named", recipe={"null_values": "NA,null"})
    assert told.endswith(": 2 rows of 4 without a label")
    assert column(tmp_path / "named", "x") == ("int64", [1, None, None, None])
    assert shardctl.open(tmp_path / "named").classes == ("cat", "dog")


def test_what_is_a_number_is_found_over_all_labels_files(tmp_path, out):
    labelled(tmp_path / "in" / "train", "label,x", ["a,1", "b,2"])
    labelled(tmp_path / "in" / "val", "label,x", ["a,007", "b,"])
    notices_of(tmp_path / "in", out)
    assert column(out, "x") == ("string", ["1", "2", "007", ""])


def test_whole_numbers_that_pandas_made_floats_in_one_of_two_tables_are_the_same_labels(
    tmp_path, out
):
    source = images(tmp_path / "in", 4)
    for name, labels in (("a", [0, 3]), ("b", [3.0, None])):
        numbers = range(2) if name == "a" else range(2, 4)
        table = pa.table({"file_name": [f"{number}.png" for number in numbers], "label": labels})
        parquet.write_table(table, source / f"{name}.parquet")
    tables = [source / "a.parquet", source / "b.parquet"]
    convert(source, out, labels=tables)
    assert shardctl.open(out).classes is None
    assert labels_of(out) == [0, 3, 3, None]


def test_file_names_and_class_names_that_look_like_numbers_stay_what_they_are(tmp_path, out):
    source = images(tmp_path / "in", 2)
    for number in range(2):
        (source / f"{number}.png").rename(source / f"0{number}")
    (source / "labels.csv").write_text("filename,label\n00,007\n01,042\n")
    convert(source, out)
    ds = shardctl.open(out)
    assert ds.classes == ("007", "042")
    assert [(sample["key"], sample["label"]) for sample in ds] == [("00", 0), ("01", 1)]


def labels_of(out: Path) -> list[int | None]:
    labels: list[int | None] = open_table(*file_at(tables_in(out) / "files.arrow"))[
        "label"
    ].to_pylist()
    return labels


@pytest.mark.parametrize("name", ["labels.csv", "metadata.jsonl"])
def test_rows_without_a_label_are_counted(tmp_path, out, name):
    source = images(tmp_path / "in", 3)
    rows = {"0.png": "dog", "1.png": "cat", "2.png": ""}
    lines = [f"{file},{label}" for file, label in rows.items()]
    if name.endswith(".jsonl"):
        lines = [json.dumps({"file_name": file, "label": label}) for file, label in rows.items()]
    (source / name).write_text("\n".join(["filename,label"][: name == "labels.csv"] + lines))
    assert "1 row of 3 without a label" in str(notices_of(source, out))
    assert shardctl.open(out).classes == ("cat", "dog")
    assert labels_of(out) == [1, 0, None]


def test_lenient_labels_say_what_is_left_over(tmp_path, out):
    source = images(tmp_path / "in", 3)
    (source / "labels.csv").write_text("filename,label\n0.png,a\nghost.png,b\n")
    for status in ("created", "up-to-date"):
        result = convert(source, out, lenient_labels=True)
        assert result.status == status
        skipped, left_out = result.notices
        assert "no row for 2 of 3 inputs (1.png, 2.png); their columns are empty" in left_out
        assert "no input for 1 of 2 rows (ghost.png): not there, or of another split" in skipped
    assert labels_of(out) == [0, None, None]
    (source / "0.png").rename(source / "0.JPEG")
    (source / "labels.csv").write_text("filename,label\n0,1\nghost,2\n")
    for lenient in (True, False):
        with pytest.raises(InputError, match=r"from the source on, as 0\.JPEG, 1\.png, 2\.png$"):
            convert(source, tmp_path / "new", lenient_labels=lenient)


def test_numbers_to_predict_are_no_labels_and_stay_numbers(tmp_path, out):
    rows = [f"{number + 0.5}" for number in range(3)]
    with pytest.raises(
        InputError,
        match="rename numbers to predict",
    ):
        notices_of(labelled(tmp_path / "one", "label", rows), out)
    source = labelled(tmp_path / "two", "target", rows)
    (notice,) = notices_of(source, out)
    assert "no column is called label" in notice
    assert column(out, "target") == ("double", [0.5, 1.5, 2.5])


NAMED = {"key_field": "who", "label_field": "breed"}


@pytest.mark.parametrize(
    ("header", "recipe", "said"),
    [
        ("img_path,class", {}, "class"),
        ("IMAGE,Label,class", {}, "Label"),
        ("file_name,label,path,class", {}, None),
        ("who,breed,label_of", NAMED, None),
        ("who;breed", {**NAMED, "delimiter": ";"}, None),
    ],
)
def test_the_columns_of_a_labels_file_have_usual_names_or_are_named(
    tmp_path, out, header, recipe, said
):
    source, mark = images(tmp_path / "in", 4), recipe.get("delimiter", ",")
    rows = [
        mark.join([f"{number}.png", "ba"[number % 2], "x", "y"][: header.count(mark) + 1])
        for number in range(4)
    ]
    (tmp_path / "table.csv").write_text("\n".join([header, *rows]))
    given = {"recipe": recipe, "labels": tmp_path / "table.csv", "split": "a=0.5,b=0.5"}
    notices = convert(source, out, **given).notices
    assert (shardctl.open(out).classes, labels_of(out)) == (("a", "b"), [1, 0, 1, 0])
    assert [name for name in notices if "the labels are" in name] == [
        f"{tmp_path / 'table.csv'}: the labels are the column {name}" for name in [said] if name
    ]
    assert not shardctl.verify(out, level="deep").findings
    assert convert(source, out, update=True, **given).status == "up-to-date"


def test_a_column_that_is_named_is_the_label_or_refused(tmp_path, out):
    source = labelled(tmp_path / "in", "label,fine", ["1,7", "2,8"])
    table = {"file_name": ["0.png", "1.png"], "classes": [["a", "b"], ["b"]]}
    for options, said in (
        (
            {"label_field": "coarse"},
            "coarse.: .* has no such column; it has label, fine",
        ),
        ({"label_field": "fine"}, "has a column label, too; leave that out"),
        ({"key_field": "name"}, "name.: .* has no such column; it has filename, label, fine"),
        (
            {"key_field": "filename", "labels": "none"},
            "key_field is about fields of records or labels files",
        ),
    ):
        labels = {"labels": options.pop("labels", "auto")}
        with pytest.raises(UsageError, match=said):
            convert(source, out, recipe=options, **labels)
    convert(source, out, recipe={"label_field": "fine"}, drop_columns="label")
    assert labels_of(out) == [7, 8]
    (source / "labels.csv").unlink()
    parquet.write_table(pa.table(table), source / "metadata.parquet")
    convert(source, tmp_path / "lists")  # several classes of one image are no label
    assert column(tmp_path / "lists", "classes")[1] == table["classes"]


NUMBERS, BYTES, IMAGE = pa.list_(pa.float32()), pa.binary(), ENCODED_IMAGE
ARRAY, RUNS = (
    pa.list_(NUMBERS),
    pa.struct([("size", pa.list_(pa.int64())), ("counts", pa.string())]),
)

FORMS = [
    ("bbox", NUMBERS),
    ("Bounding Boxes", ARRAY),
    ("boxes.npy", BYTES),
    ("segmentation", pa.list_(pa.list_(pa.float64()))),
    ("polygons", pa.list_(pa.list_(pa.struct([("x", pa.int64()), ("y", pa.int64())])))),
    ("bbox", pa.struct([("left", pa.int64())])),
    ("keypoints", pa.fixed_shape_tensor(pa.float32(), (17, 3))),
    ("counts_of", pa.list_(RUNS)),
    ("masks", ARRAY),
    ("mask", pa.fixed_shape_tensor(pa.uint8(), (4, 4))),
    ("conditioning_image", IMAGE),
    ("frames", pa.list_(IMAGE)),
]

OTHERS = [
    ("points", pa.int64()),
    ("mask", NUMBERS),
    ("face_boxes", ARRAY),
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
        ("points", "-1", "wrong"),
        ("points", None, "wrong"),
        ("polygon", "POLYGON ((1 2, 3 4))", "wrong"),
        ("keypoints", '{"nose": [1, 2]}', "wrong"),
        ("segmentation", "labels/0.json", "wrong"),
        ("EncodedPixels", "1 3 10 5", "wrong"),
        ("note", "0 0.5 0.5 0.25 0.25\n1 0.1 0.2 0.3 0.4\n", "wrong"),
        ("note", "4;3;10;6", "unknown"),
        ("note", "a/0.png?size=3", "unknown"),
        ("note", ["a cat", {"points": "1, 2"}], "unknown"),
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


def test_the_pages_on_inputs_name_the_forms_of_places_and_what_is_a_split():
    inputs = Path(__file__).parents[2] / "docs" / "inputs"
    page, splits = (
        (inputs / f"{name}.md").read_text(encoding="utf-8") for name in ("coordinates", "splits")
    )
    plain = " ".join(page.replace("_", "").lower().split())
    for name in PLACE_NAMES:
        assert re.search(rf"\b{name}\b", plain), name
    assert {frozenset(each.split()) for each in re.findall("`([a-z0-9 ]+)`", plain)} >= set(
        NUMBER_NAMES
    )
    for word in (word for words in ROLES for word in words):
        assert f"`{word}`" in splits


def test_strings_in_the_field_label_of_lines_are_classes(tmp_path, out, monkeypatch):
    (tmp_path / "see_labels.py").write_text(
        "def kind(sample):\n    return {**sample, 'seen': type(sample['label']).__name__}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    recipe = {"transform": [{"name": "custom", "target": "see_labels:kind"}]}
    path = tmp_path / "in.jsonl"
    path.write_text('{"label": "pos"}\n{"label": "neg"}\n{"label": ""}\n{"label": null}\n')
    assert convert(path, out, recipe=recipe).rejected == 0
    ds = shardctl.open(out)
    assert ds.classes == ("neg", "pos")
    assert [(row["label"], row["seen"]) for row in ds] == [
        (1, "int"),
        (0, "int"),
        (None, "NoneType"),
        (None, "NoneType"),
    ]
    convert(path, tmp_path / "as-text", labels="none")
    assert stored(tmp_path / "as-text", "label") == ["pos", "neg", "", None]


@pytest.mark.parametrize(
    "options", [{}, {"labels": "folder"}, {"split": "folder"}, {"schema": {"text": "string"}}]
)
def test_columns_that_only_folders_have_are_not_lost(options, tmp_path, out):
    columns = {"text": ["a", "b", "c"], "label": ["x", "y", "x"], "year": [2020, 2020, 2021]}
    source, one = tmp_path / "table", tmp_path / "one.parquet"
    parquet.write_to_dataset(pa.table(columns), source, partition_cols=["label", "year"])
    with pytest.raises(
        InputError, match=r"as label=x/year=2020\) are values of columns .* \(label, year\)"
    ):
        convert(source, out, **options)
    # what the message says, with pyarrow
    parquet.write_table(parquet.read_table(source), one)
    convert(one, out)
    found = {each["text"]: (each["label"], int(each["year"])) for each in shardctl.open(out)}
    assert found == {"a": (0, 2020), "b": (1, 2020), "c": (0, 2021)}


def test_an_update_does_not_lose_columns_of_new_folders(tmp_path):
    source, out = tmp_path / "lines", tmp_path / "out"
    source.mkdir()
    (source / "a.csv").write_text("text,label\na,x\nb,y\n")
    convert(source, out, kind="table")
    (source / "year=2021").mkdir()
    (source / "year=2021" / "a.csv").write_text("text,label\na,x\nb,y\n")
    with pytest.raises(InputError, match=r"\(year\)"):
        convert(source, out, kind="table", update=True)


def test_a_class_folder_of_images_may_be_called_as_a_column(tmp_path, out):
    for name in ("a=b", "a=c"):
        images(tmp_path / "in" / name, 1)
    convert(tmp_path / "in", out)
    assert shardctl.open(out).classes == ("a=b", "a=c")


def test_names_whose_hashes_are_equal_are_compared(tmp_path, out, monkeypatch):
    def one_bit(names: Iterable[str]) -> Any:
        """As hash_names, but nearly all names have the same hash as others."""
        return np.fromiter((len(name) % 2 for name in names), np.uint64)

    for module in (arrays, names):
        monkeypatch.setattr(module, "hash_names", one_bit)
    monkeypatch.setattr(label_table, "ROWS_AT_ONCE", 2)
    source, other = images(tmp_path / "in", 12), images(tmp_path / "other", 2)
    with pytest.raises(InputError, match=r"2 keys appear twice, among them 0.png, 1.png:"):
        convert([source, other], out)
    rows = [f"{n}.png,a,{n}\n" for n in (7, 3, 11, 0, 10, 1, 9, 2, 8, 4, 6, 5)]
    (source / "labels.csv").write_text(f"filename,label,n\n{''.join(rows)}1.png,a,1\n")
    with pytest.raises(InputError, match=r"1.png and 1.png are both of the input 1.png; keep one"):
        convert(source, out)
    (source / "labels.csv").write_text(f"filename,label,n\n{''.join(rows)}")
    convert(source, out)
    found = {sample["key"]: sample["n"] for sample in shardctl.open(out)}
    assert found == {f"{n}.png": n for n in range(12)}


def test_columns_can_be_left_out(tmp_path, out):
    source = labelled(tmp_path / "in", "label,key,note", ["a,1,x", "b,2,y"])
    with pytest.raises(InputError, match="drop_columns key"):
        convert(source, out)
    convert(source, out, drop_columns=["key", "note"])
    ds = shardctl.open(out)
    assert ds.schema.names == ["key", "image", "label"]
    (tables_in(out) / "plan.arrow").write_bytes(b"")
    assert repair(out).ok, "the sources are listed again as they were"
    with pytest.raises(UsageError, match=r"no such column; it has filename, label, key, note"):
        convert(source, tmp_path / "other", drop_columns=["key", "nothing"])
    (source / "labels.csv").unlink()
    with pytest.raises(UsageError, match="drop_columns is about labels files"):
        convert(source, tmp_path / "other", drop_columns=["note"])


def test_fields_of_lines_cannot_be_left_out_and_columns_that_are_both_can(tmp_path, out):
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(UsageError, match="drop_columns is about labels files"):
        convert(source, out, drop_columns="text")
    (source / "labels.csv").write_text("filename,label,text\na.jsonl,x,b\n")
    with pytest.raises(InputError, match=r"text; rename it, .* drop_columns="):
        convert(source, out)
    convert(source, out, drop_columns="text")
    assert [sample["text"] for sample in shardctl.open(out)] == ["a"]


def test_an_absolute_file_name_below_the_source_is_that_input(tmp_path, out):
    source = images(tmp_path / "in", 1)
    (source / "labels.csv").write_text(f"filename,label\n{source}/0.png,b\n")
    notices_of(source, out)
    assert shardctl.open(out).classes == ("b",)


def test_a_labels_file_that_changes_during_a_conversion_does_not_look_up_to_date(
    tmp_path, out, monkeypatch
):
    source = labelled(tmp_path / "in", "label", ["cat", "dog"])
    labels, labels_digest = source / "labels.csv", conversion.labels_digest
    before = labels.read_text()

    def of_a_changed_file(read: list[str]) -> str:
        labels.write_text("filename,label\n0.png,dog\n1.png,cat\n")
        return labels_digest(read)

    with monkeypatch.context() as patched:
        patched.setattr(conversion, "labels_digest", of_a_changed_file)
        convert(source, out)
    assert shardctl.open(out).classes == ("cat", "dog")
    assert labels_of(out) == [0, 1]
    with pytest.raises(DatasetError, match="differs in its labels"):
        convert(source, out)
    labels.write_text(before)
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
        ("img,photo\n0.png,a\n", "may name the files: img, photo; say which with key_field"),
        ("path,Class,category\n0.png,a,b\n", "the labels: Class, category; say which with label_f"),
        (
            "filename,label\n0.png,a\n1.png,b\nghost.png,c\n",
            r"no input for 1 of 3 rows \(ghost.png\): not there",
        ),
        ("filename,label\n0.png,a\n", r"no row for 1 of 2 inputs \(1.png\)"),
        ("name,label\n0.png,a\n", "no column of file names; its columns are called name, label"),
        ("filename,label\n0.png,caf\xe9\n", "not UTF-8|UTF8"),
        ("\xff\xfef\0i\0l\0e\0", "recode it .*iconv"),
        ("filename,key\n0.png,a\n1.png,b\n", "the column 'key' is shardctl's own"),
        ("filename,label,label\n0.png,a,b\n", "two columns have the name label"),
        ("filename,label\n0.png\n", "row 1: has 1 column where the header has 2"),
        ("", "has not even a header"),
        ("filename,label\n", "the labels file has no row"),
        ('filename,label\n0.png,a\n1.png,b\n"",c\n', "a row has no file name"),
        ("filename,label\n0.png,a\nfilename,label\n1.png,b\n", "row 2: is the header once more"),
        ("filename, label\n0.png, 1\n1.png, 2\n", "' label' has a blank beside its name"),
        ('filename,label\n0.png,1\n1.png,"2\n', "row 2: a quote"),
        ("filename,label\n0.png,1.0\n1.png,2.5\n", "the column label holds double"),
    ],
)
def test_a_labels_file_that_does_not_fit_is_refused(text, message, tmp_path, out):
    source = images(tmp_path / "in", 2)
    (source / "labels.csv").write_text(text, "latin-1")
    with pytest.raises(InputError, match=message):
        convert(source, out)
    assert not out.exists()


def test_a_line_of_labels_with_half_a_character_is_named(tmp_path, out):
    source = images(tmp_path / "in", 1)
    (source / "metadata.jsonl").write_text('{"file_name": "0.png", "note": "\\ud800"}')
    with pytest.raises(InputError, match=r"metadata.jsonl, line 1: holds"):
        convert(source, out)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("labels.csv", "filename,label\n0.png,1.0\n1.png,\n"),
        ("labels.jsonl", '{"filename": "0.png", "label": 1.0}\n{"filename": "1.png"}\n'),
        ("a.json", '[{"filename": "0.png", "label": 1.0},\n {"filename": "1.png"}]'),
    ],
)
def test_labels_that_pandas_made_floats_are_whole_numbers(name, text, tmp_path, out):
    source = images(tmp_path / "in", 2)
    labels = source / name
    labels.write_text(text)
    convert(source, out, labels=str(labels) if name == "a.json" else "auto")
    assert [sample["label"] for sample in shardctl.open(out)] == [1, None]


def metadata_parquet(folder: Path, **columns: Any) -> None:
    """Write images and their metadata.parquet, as Hugging Face does, which names classes."""
    images(folder, 2)
    features = {"label": {"names": ["owl", "cat"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"file_name": ["0.png", "1.png"], "label": [1, 0], **columns})
    parquet.write_table(table.replace_schema_metadata(metadata), folder / "metadata.parquet")


def test_metadata_parquet_is_read_as_metadata_csv(tmp_path, out):
    texts = pa.array(["first", "second"]).dictionary_encode()
    for part in ("a", "b"):
        metadata_parquet(tmp_path / "in" / part, text=texts, depth_file_name=["d/0.png"] * 2)
    said = notices_of(tmp_path / "in", out)
    ds = shardctl.open(out)
    assert ds.classes == ("owl", "cat")
    assert [(each["text"], each["label"]) for each in ds] == [("first", 1), ("second", 0)] * 2
    assert "depth_file_name: names of other files are kept as text" in str(said)
    (tmp_path / "in" / "b" / "metadata.parquet").unlink()
    (tmp_path / "in" / "b" / "metadata.csv").write_text("file_name,label\n0.png,1\n1.png,0\n")
    convert(tmp_path / "in", tmp_path / "numbers")
    assert shardctl.open(tmp_path / "numbers").classes is None


def test_a_broken_metadata_parquet_is_refused(tmp_path, out):
    source = images(tmp_path / "in", 1)
    (source / "metadata.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"metadata.parquet: not a Parquet file"):
        convert(source, out)


def test_labels_files_with_names_of_splits_are_one_for_each(tmp_path, out):
    source = images(tmp_path / "in", 5)
    texts = {
        "train": "file_name,label\n0.png,b\n1.png,a\n",
        "val": "file_name,label\n2.png,b\n",
        "test": "file_name\n3.png\n4.png\n",
    }
    files = [source / f"{name}.csv" for name in texts]
    for file, text in zip(files, texts.values(), strict=True):
        file.write_text(text)
    convert(source, out, labels=files)
    found = {split: [x["label"] for x in shardctl.open(out, split=split)] for split in texts}
    assert found == {"train": [1, 0], "val": [1], "test": [None, None]}
    assert convert(source, out, labels=files).status == "up-to-date"
    with pytest.raises(InputError, match=r"no row for 2 of 5 inputs \(3.png, 4.png\)"):
        convert(source, tmp_path / "two", labels=files[:2])
    files[1].write_text("file_name,label\n2.png,b\n0.png,b\n")
    with pytest.raises(InputError, match=r"0.png and 0.png are both of the input 0.png; keep one"):
        convert(source, tmp_path / "two", labels=files)
    with pytest.raises(UsageError, match="contradict each other"):
        convert(source, tmp_path / "two", labels=["folder", files[0]])
