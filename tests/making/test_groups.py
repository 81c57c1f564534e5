"""--group: samples that belong together are in one split, and stay there as data grows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_facts import rejects_of
from followed_sources import files_of, write, write_lines
from image_files import image
from in_this_process import convert

import shardctl
from shardctl.errors import InputError, UsageError

SHARES = "train=0.6,val=0.4"


def rows(count: int, groups: int, name: str) -> list[dict[str, Any]]:
    of = [number % groups for number in range(count)]
    return [
        {"id": f"{name}-{g}-{n}", "patient": f"p{g}", "page": g, "text": str(n)}
        for n, g in enumerate(of)
    ]


def photos(folder: Path, count: int, groups: int) -> Path:
    for number in range(count):
        name = f"IMG_{number % groups}_jpg.rf.{number:04x}.jpg"
        image(folder / name, (8, 8), (number, 0, 0))
    return folder


def of_key(sample: Any) -> str:
    """Return the group of a photo by its name."""
    return str(sample["key"]).rpartition("/")[2].partition("_jpg")[0]


def grouped(source: Path, out: Path, group: str, **options: Any) -> Any:
    return convert(source, out, group=group, split=SHARES, **options)


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """200 records of 20 patients."""
    return write_lines(tmp_path / "in" / "a.jsonl", rows(200, 20, "a")).parent


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
    ("group", "options"),
    [
        ("patient", {}),
        ("page", {}),
        ("patient", {"key_field": "id"}),
        (r"^\w-(\d+)", {"key_field": "id"}),
    ],
)
def test_records_of_a_group_are_in_one_split(records, out, group, options):
    assert grouped(records, out, group, **options).samples == 200
    before = split_of_groups(out, lambda sample: sample["page"])
    write_lines(records / "b.jsonl", rows(300, 30, "b"))
    grouped(records, out, group, update=True, **options)
    after = split_of_groups(out, lambda sample: sample["page"])
    assert after.items() > before.items()


def test_the_number_of_a_record_may_name_its_group(records, tmp_path, out):
    grouped(records, out, r"#\d*?(\d)$")
    assert len(split_of_groups(out, lambda sample: sample["key"][-1])) == 10
    # keys that do not match are rejected, each once
    some = grouped(records, tmp_path / "some", r"(?:#\d*)([05])$|#\d+", max_rejects="100%")
    assert (some.samples, some.rejected) == (40, 160)


def test_records_without_a_group_are_rejected_once(tmp_path, out):
    records = rows(40, 10, "a")
    for number in (3, 7):
        records[number]["patient"] = None
    result = grouped(write_lines(tmp_path / "a.jsonl", records), out, "patient")
    assert (result.samples, result.rejected) == (38, 2)
    found = [(each.key, each.error) for each in rejects_of(out)]
    assert found == [("a.jsonl#4", "no-group"), ("a.jsonl#8", "no-group")]


def test_copies_of_a_photo_are_in_one_split(tmp_path, out, cli):
    source, group = photos(tmp_path / "in", 60, 12), r"([^/]+)_jpg\.rf\."
    words = ("convert", source, out, "--split", SHARES, "--group", group, "--workers", "0")
    assert cli(*words).code == 0
    before = split_of_groups(out, of_key)
    assert len(before) == 12
    photos(source / "more", 60, 20)
    assert cli(*words, "--update").code == 0
    after = split_of_groups(out, of_key)
    assert after.items() > before.items()
    recipe = write(tmp_path / "recipe.toml", "group = '([^/]+)_jpg[.]rf[.]'\n")
    convert(source, tmp_path / "again", recipe, split=SHARES)
    assert split_of_groups(tmp_path / "again", of_key) == after


def test_a_column_of_a_labels_file_has_the_groups(tmp_path, out):
    """And its label may be the group, by its name: its number changes where classes come."""
    source = photos(tmp_path / "in", 40, 40)
    names = "klmnopqr"

    def labelled(column: str, group: dict[str, str], *more: str) -> None:
        lines = [f"{each.name},{group[names[n % 8]]}" for n, each in enumerate(photo_files)]
        write(source / "labels.csv", "\n".join([f"file_name,{column}", *lines, *more, ""]))

    photo_files = files_of(source)
    known = dict(zip(names, names, strict=True))
    labelled("patient", known)
    grouped(source, out, "patient")
    assert len(split_of_groups(out, lambda sample: sample["patient"])) == 8
    labelled("patient", {**known, "n": ""})
    with pytest.raises(InputError, match=r"5 inputs \(.*\) in no group"):
        grouped(source, tmp_path / "two", "patient")

    def of_classes() -> dict[str, str]:
        grouped(source, out, "label", overwrite=True)
        classes = shardctl.open(out).classes
        return split_of_groups(out, lambda sample: classes[sample["label"]])

    labelled("label", known)
    before = of_classes()
    assert len(before) == 8
    labelled(
        "label", known, *(f"more/{path.name},a" for path in files_of(photos(source / "more", 4, 4)))
    )
    assert before.items() < of_classes().items()


def test_groups_of_several_types_are_refused_as_3_and_3_0_are_two_texts(tmp_path, out):
    source = tmp_path / "in"
    source.mkdir()

    def write_groups(type_: pa.DataType) -> Path:
        doc = pa.array(range(30)).cast(type_)
        path = source / f"{type_}.parquet"
        pq.write_table(pa.table({"doc": doc, "x": range(30)}), path)
        return path

    for type_ in (pa.float64(), pa.string()):
        write_groups(type_)
    with pytest.raises(InputError, match="the field doc has values of several types"):
        grouped(source, out, "doc")
    double, text = files_of(source)
    write_groups(pa.int64())
    with pytest.raises(InputError, match="the field doc has values of several types"):
        grouped(source, out, "doc")
    text.unlink()
    double.rename(tmp_path / "double.parquet")
    grouped(source, out, "doc")
    (tmp_path / "double.parquet").rename(double)
    grouped(source, out, "doc", update=True)
    assert len(split_of_groups(out, lambda sample: sample["doc"])) == 30


def test_a_group_that_cannot_be_is_refused(records, tmp_path, out):
    pictures = photos(tmp_path / "photos", 4, 2)
    for group in ("(a)(b)", "("):
        with pytest.raises(UsageError, match="group"):
            grouped(records, out, group)
    for source, group, said in (
        (records, "person", "no field person; they have id, patient"),
        (pictures, "person", "no labels file has this column"),
        (pictures, "IMG_(0)_", r"2 inputs \(.*\) in no group"),
    ):
        with pytest.raises(InputError, match=said):
            grouped(source, out, group)
    with pytest.raises(UsageError, match="needs a split by shares"):
        convert(records, out, group="patient")
