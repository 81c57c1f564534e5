"""--group: samples that belong together are in one split, and stay there as data grows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from in_this_process import convert
from PIL import Image

import shardctl
from shardctl.errors import InputError, UsageError

SHARES = "train=0.6,val=0.4"


def rows(count: int, groups: int, name: str) -> list[dict[str, Any]]:
    of = [number % groups for number in range(count)]
    return [
        {"id": f"{name}-{g}-{n}", "patient": f"p{g}", "page": g, "text": str(n)}
        for n, g in enumerate(of)
    ]


def write(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))


def photos(folder: Path, count: int, groups: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(
            folder / f"IMG_{number % groups}_jpg.rf.{number:04x}.jpg"
        )


def split_of_groups(out: Path, group_of: Callable[[Any], Any]) -> dict[Any, str]:
    """Return the split of each group, having looked that it has one alone, and that both splits
    have some."""
    found: dict[Any, str] = {}
    for split in ("train", "val"):
        for sample in shardctl.open(out, split=split):
            assert found.setdefault(group_of(sample), split) == split
    assert set(found.values()) == {"train", "val"}
    return found


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize(
    ("group", "options", "group_of"),
    [
        ("patient", {}, lambda sample: sample["patient"]),
        ("patient", {"key_field": "id"}, lambda sample: sample["patient"]),
        ("page", {}, lambda sample: f"p{sample['page']}"),
        (r"^a-(\d+)", {"key_field": "id"}, lambda sample: f"p{sample['page']}"),
        (r"(?:#\d*)([05])$|#\d+", {}, None),
    ],
)
def test_records_of_a_group_are_in_one_split(tmp_path, out, group, options, group_of):
    write(tmp_path / "in" / "a.jsonl", rows(200, 20, "a"))
    given = {"group": group, "split": SHARES, "workers": 0, "max_rejects": "100%", **options}
    result = shardctl.convert(tmp_path / "in", out, **given)
    if group_of is None:  # keys that do not match are rejected, each once
        assert (result.samples, result.rejected) == (40, 160)
        return
    before = split_of_groups(out, group_of)
    assert result.samples == 200
    if not group.startswith("^"):
        write(tmp_path / "in" / "b.jsonl", rows(300, 30, "b"))
        shardctl.convert(tmp_path / "in", out, update=True, **given)
        after = split_of_groups(out, group_of)
        assert after.items() > before.items()


def test_the_number_of_a_record_may_name_its_group(tmp_path, out):
    write(tmp_path / "in" / "a.jsonl", rows(200, 20, "a"))
    convert(tmp_path / "in", out, group=r"#\d*?(\d)$", split=SHARES)
    assert len(split_of_groups(out, lambda sample: sample["key"][-1])) == 10


def test_records_without_a_group_are_rejected_once(tmp_path, out):
    records = rows(40, 10, "a")
    for number in (3, 7):
        records[number]["patient"] = None
    write(tmp_path / "in" / "a.jsonl", records)
    result = convert(tmp_path / "in", out, group="patient", split=SHARES)
    assert (result.samples, result.rejected) == (38, 2)
    rejects = [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]
    assert [(each["key"], each["error"]) for each in rejects] == [
        ("a.jsonl#4", "no-group"),
        ("a.jsonl#8", "no-group"),
    ]


def test_copies_of_a_photo_are_in_one_split(tmp_path, out, cli):
    photos(tmp_path / "in", 60, 12)
    named = ("--split", SHARES, "--group", r"([^/]+)_jpg\.rf\.", "--workers", "0")
    assert cli("convert", tmp_path / "in", out, *named).code == 0
    before = split_of_groups(out, lambda sample: sample["key"].partition("_jpg")[0])
    assert len(before) == 12
    photos(tmp_path / "in" / "more", 60, 20)
    assert cli("convert", tmp_path / "in", out, *named, "--update").code == 0
    after = split_of_groups(
        out, lambda sample: sample["key"].rpartition("/")[2].partition("_jpg")[0]
    )
    assert after.items() > before.items()
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("group = '([^/]+)_jpg[.]rf[.]'\n")
    convert(tmp_path / "in", tmp_path / "again", recipe, split=SHARES)
    assert (
        split_of_groups(
            tmp_path / "again", lambda sample: sample["key"].rpartition("/")[2].partition("_jpg")[0]
        )
        == after
    )


def test_a_column_of_a_labels_file_has_the_groups(tmp_path, out):
    photos(tmp_path / "in", 40, 40)
    names = sorted(path.name for path in (tmp_path / "in").iterdir())
    labels = "".join(f"{name},p{number % 8}\n" for number, name in enumerate(names))
    (tmp_path / "in" / "labels.csv").write_text(f"file_name,patient\n{labels}")
    convert(tmp_path / "in", out, group="patient", split=SHARES)
    assert len(split_of_groups(out, lambda sample: sample["patient"])) == 8
    (tmp_path / "in" / "labels.csv").write_text(f"file_name,patient\n{labels.replace('p3', '')}")
    with pytest.raises(InputError, match=r"5 inputs \(.*\) in no group"):
        convert(tmp_path / "in", tmp_path / "two", group="patient", split=SHARES)


def test_the_label_of_a_labels_file_may_be_the_group(tmp_path, out):
    """By its name: its number changes where classes come."""
    photos(tmp_path / "in", 40, 40)
    names = sorted(path.name for path in (tmp_path / "in").iterdir())
    labels = "".join(f"{name},{'klmnopqr'[number % 8]}\n" for number, name in enumerate(names))
    (tmp_path / "in" / "labels.csv").write_text(f"file_name,label\n{labels}")
    options = {"group": "label", "split": SHARES, "workers": 0}

    def found() -> dict[str, str]:
        classes = shardctl.open(out).classes
        return split_of_groups(out, lambda sample: classes[sample["label"]])

    shardctl.convert(tmp_path / "in", out, **options)
    before = found()
    assert len(before) == 8
    photos(tmp_path / "in" / "more", 4, 4)
    more = "".join(f"more/{path.name},a\n" for path in (tmp_path / "in" / "more").iterdir())
    (tmp_path / "in" / "labels.csv").write_text(f"file_name,label\n{labels}{more}")
    shardctl.convert(tmp_path / "in", out, overwrite=True, **options)
    assert before.items() < found().items()


def test_groups_of_several_types_are_refused_as_3_and_3_0_are_two_texts(tmp_path, out):
    types = {"int": pa.int64(), "float": pa.float64(), "text": pa.string()}

    def convert(*names: str, **more: Any) -> None:
        folder = tmp_path / "-".join(names)
        folder.mkdir(exist_ok=True)
        for name in names:
            values = pa.array(range(30)).cast(types[name])
            pq.write_table(
                pa.table({"doc": values, "x": pa.array(range(30))}), folder / f"{name}.parquet"
            )
        shardctl.convert(folder, out, group="doc", split=SHARES, workers=0, **more)

    for names in (("float", "text"), ("int", "float", "text")):
        with pytest.raises(InputError, match="the field doc has values of several types"):
            convert(*names)
    convert("int")
    (tmp_path / "int").rename(tmp_path / "int-float")
    convert("int", "float", moved_from=[str(tmp_path / "int")], update=True)
    assert len(split_of_groups(out, lambda sample: sample["doc"])) == 30


def test_a_group_that_cannot_be_is_refused(tmp_path, out):
    write(tmp_path / "in" / "a.jsonl", rows(4, 2, "a"))
    photos(tmp_path / "photos", 4, 2)
    for group in ("(a)(b)", "("):
        with pytest.raises(UsageError, match="group"):
            shardctl.convert(tmp_path / "in", out, group=group, split=SHARES)
    with pytest.raises(InputError, match="no field person; they have id, patient"):
        convert(tmp_path / "in", out, group="person", split=SHARES)
    with pytest.raises(InputError, match=r"no labels file has this column"):
        convert(tmp_path / "photos", out, group="person", split=SHARES)
    with pytest.raises(InputError, match=r"2 inputs \(.*\) in no group"):
        convert(tmp_path / "photos", out, group="IMG_(0)_", split=SHARES)
    with pytest.raises(UsageError, match="needs a split by shares"):
        convert(tmp_path / "in", out, group="patient")
