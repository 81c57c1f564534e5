"""Steps make none, one or many samples of one, or one of many; whatever the form, every record is
accounted for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_facts import rejects_of
from dataset_files import shard_in
from image_files import images, saved
from in_this_process import convert, repair
from json_lines import json_lines, texts_in
from pictures import picture

import shardctl
from shardctl.errors import UsageError
from shardctl.format.dataset_folder import dataset_in
from shardctl.images.codecs import image
from shardctl.inspection.content.samples import samples_of_key
from shardctl.transforms.base import settings_of
from shardctl.transforms.table import parse_step

FUNCTIONS = """
def words(sample):
    return [{**sample, "text": word} for word in sample["text"].split()]

def late(sample):
    return words(sample) if sample["text"].startswith("late") else sample

def halves(sample):
    image = sample["image"]
    return [{**sample, "image": image[:, :4].copy(), "side": 0}, {**sample, "image": image[:, 4:].copy(), "side": 1}]

def evens(sample):
    return sample if sample["variant"] % 2 == 0 else None

def odd_texts(sample):
    if sample["text"] == "b" and sample["variant"] == 1:
        raise ValueError("no b")
    return sample

CURRENT, LAST = {}, []

def leaves(sample):
    CURRENT["text"] = sample["text"]
    return sample

def takes(sample):
    return {**sample, "taken": CURRENT["text"]}

def changes_the_last(sample):
    for last in LAST:
        last["text"] = last["key"] = "changed later"
    LAST[:] = [sample]
    return sample

def appends(sample):
    sample["items"].append(sample["variant"])
    return sample

def one_bad(sample):
    return [{**sample, "n": 1}, {**sample, "n": 1 if sample["text"] != "bad" else "x"}]
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "manysteps.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)


def own(*names: str, **recipe: Any) -> dict[str, Any]:
    steps = [{"name": "custom", "target": f"manysteps:{name}"} for name in names]
    return {**recipe, "transform": steps}


def variants_of(out: Path, *fields: str) -> list[tuple[Any, ...]]:
    return [tuple(sample[name] for name in (*fields, "variant")) for sample in shardctl.open(out)]


@pytest.mark.thorough(after=1)
@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_may_make_several_samples_of_one_and_none(tmp_path, out, workers):
    source = texts_in(tmp_path / "in.jsonl", ["a b c", " ", "d"])
    result = shardctl.convert(source, out, recipe=own("words"), workers=workers)
    assert (result.samples, result.rejected) == (4, 1)
    assert variants_of(out, "text") == [("a", 0), ("b", 1), ("c", 2), ("d", 0)]
    (reject,) = rejects_of(out)
    assert (reject.key, reject.error) == ("in.jsonl#2", "left-out")
    assert shardctl.verify(out, level="deep").findings == ()
    of_key = samples_of_key(dataset_in(out), "in.jsonl#1")
    assert [found.values["text"] for found in of_key] == ["a", "b", "c"]
    (shard_in(out, "train-00000")).unlink()
    assert repair(out, transforms=["manysteps:words"]).status == "repaired"
    assert shardctl.verify(out).findings == ()


@pytest.mark.usefixtures("functions")
def test_functions_follow_each_other_on_every_variant_of_a_record(tmp_path, out):
    """One that leaves out some variants keeps the numbers of the others; one that refuses a variant
    costs the record."""
    source = texts_in(tmp_path / "in.jsonl", ["a", "b", "c d"])
    result = convert(source, out, recipe=own("odd_texts", "evens", variants=3))
    assert (result.samples, result.rejected) == (4, 1)
    assert variants_of(out, "text") == [("a", 0), ("a", 2), ("c d", 0), ("c d", 2)]
    (reject,) = rejects_of(out)
    assert (reject.key, reject.error) == ("in.jsonl#2", "ValueError")
    convert(source, tmp_path / "several", recipe=own("evens", "words", variants=3))
    found = variants_of(tmp_path / "several", "text")
    assert found == [("a", 0), ("a", 2), ("b", 0), ("b", 2), ("c", 0), ("d", 1), ("c", 2), ("d", 3)]


@pytest.mark.thorough
@pytest.mark.usefixtures("functions")
def test_dropped_records_are_counted_once_however_many_samples_they_gave(tmp_path, out):
    for name in ("a.jsonl", "b.jsonl"):
        texts_in(tmp_path / "in" / name, ["x y z", " ", *["x y z"] * 7])
    convert(tmp_path / "in", out, own("words"), samples_per_shard=1000)
    (shard_in(out, "train-00000")).unlink()
    (tmp_path / "in" / "a.jsonl").unlink()
    result = repair(out, transforms=["manysteps:words"], drop_lost=True)
    assert (result.status, result.lost_samples) == ("dropped", 24)
    manifest = shardctl.open(out).manifest
    assert (manifest.samples, manifest.inputs, manifest.rejected) == (24, 18, 10)
    rejects = [(reject.error, reject.records) for reject in rejects_of(out)]
    assert rejects == [("left-out", 1), ("lost", 8), ("left-out", 1)]
    assert shardctl.verify(out).findings == ()


@pytest.mark.usefixtures("functions")
def test_functions_are_called_in_turn_on_each_record(tmp_path, out):
    """One may leave something for the next, as a tokenizer leaves its state."""
    source = texts_in(tmp_path / "in.jsonl", map(str, range(20)))
    convert(source, out, recipe=own("leaves", "takes"))
    assert all(sample["taken"] == sample["text"] for sample in shardctl.open(out))


@pytest.mark.usefixtures("functions")
def test_what_a_function_does_later_changes_no_sample_that_it_returned(tmp_path, out):
    source = texts_in(tmp_path / "in.jsonl", map(str, range(20)))
    convert(source, out, recipe=own("changes_the_last"))
    assert [sample["text"] for sample in shardctl.open(out)] == list(map(str, range(20)))
    assert shardctl.verify(out).findings == ()


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize("of_file", [False, True])
def test_a_list_that_a_function_changes_in_place_is_that_of_its_sample_alone(
    tmp_path, out, of_file
):
    """Variants have the lists of their record, and the records of a file those of a labels file."""
    items: dict[str, Any] = {} if of_file else {"items": [7]}
    source = json_lines(tmp_path / "in.jsonl", [{"n": n, **items} for n in range(3)])
    labels = json_lines(tmp_path / "labels.jsonl", [{"file_name": "in.jsonl", "items": [7]}])
    options = {"labels": labels} if of_file else {}
    convert(source, out, recipe=own("appends", variants=2), **options)
    assert [list(sample["items"]) for sample in shardctl.open(out)] == [[7, 0], [7, 1]] * 3


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_times_go_through_functions_without_a_change(tmp_path, out, zone):
    """Nanoseconds and the year 33658 are more than Python's own times hold."""
    columns = {
        "fine": pa.array([1, None], pa.timestamp("ns", zone)),
        "far": pa.array([10**18, 0], pa.timestamp("us", zone)),
        "of_day": pa.array([1, 2], pa.time64("ns")),
        "text": pa.array(["a", "b"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    assert convert(tmp_path / "in.parquet", out, recipe=own("late")).samples == 2
    table = pa.ipc.open_file(shard_in(out, "train-00000")).read_all()
    assert {name: table[name].combine_chunks() for name in columns} == columns


@pytest.mark.usefixtures("functions")
def test_several_samples_that_come_late_are_rejected_by_name(tmp_path, out):
    """The column that tells them apart is made if one of the 1,024 records that are tried gives
    several."""
    source = texts_in(tmp_path / "in.jsonl", [*map(str, range(1100)), "late one"])
    result = convert(source, out, recipe=own("late"))
    assert (result.samples, result.rejected) == (1100, 1)
    (reject,) = rejects_of(out)
    assert (reject.key, reject.error) == ("in.jsonl#1101", "several-samples")


@pytest.mark.usefixtures("functions")
def test_a_sample_that_does_not_fit_costs_all_of_its_record(tmp_path, out):
    source = texts_in(tmp_path / "in.jsonl", [*map(str, range(1100)), "bad", "good"])
    result = convert(source, out, recipe=own("one_bad"))
    assert (result.samples, result.rejected) == (2202, 1)
    (reject,) = rejects_of(out)
    assert (reject.key, reject.error) == ("in.jsonl#1101", "other-type")
    assert "in.jsonl#1101" not in {sample["key"] for sample in shardctl.open(out)}


def test_an_image_is_decoded_once_for_all_its_variants(tmp_path, out, monkeypatch):
    source = images(tmp_path / "in", "1.png")
    decoded: list[Any] = []
    load = image.Opened.load
    monkeypatch.setattr(
        image.Opened,
        "load",
        lambda opened, least=None: (decoded.append(least), load(opened, least))[1],
    )
    steps = [{"name": "random_resized_crop", "size": 8}]
    convert(source, out, recipe={"store": "raw", "variants": 5, "transform": steps})
    assert len(shardctl.open(out)) == 5
    assert len(decoded) == 2, "once beforehand, to see what it costs, and once for the shard"


def test_the_parts_of_an_image_are_samples_of_their_own(tmp_path, out):
    """Two variants of five crops each: ten samples, numbered in `variant`."""
    pictures = {f"{number}.png": picture(number, 16, 12) for number in (1, 2)}
    for name, each in pictures.items():
        saved(each, tmp_path / "in" / name)
    steps = [{"name": "five_crop", "size": 8}, {"name": "hflip", "p": 0.5}]
    convert(tmp_path / "in", out, recipe={"store": "raw", "variants": 2, "transform": steps})
    assert variants_of(out) == [(number,) for _ in pictures for number in range(10)]
    for sample in shardctl.open(out):
        if sample["variant"] in (0, 5):
            cut = np.asarray(pictures[sample["key"]])[:8, :8]
            assert any(np.array_equal(sample["image"], each) for each in (cut, cut[:, ::-1]))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (["hflip", "five_crop"], "after five_crop"),
        (["ten_crop", "five_crop"], "only one step"),
        (["sequence"], "needs steps"),
    ],
)
def test_steps_that_do_not_go_together_are_refused(tmp_path, steps, message):
    source = images(tmp_path / "in", "1.png")
    transform = [{"name": name, **({"size": 8} if "crop" in name else {})} for name in steps]
    with pytest.raises(UsageError, match=message):
        convert(source, tmp_path / "out", recipe={"transform": transform})


def test_a_step_is_written_as_it_was_in_the_recipes_of_older_datasets():
    """Another way to write the same would be another fingerprint: such datasets would have to be
    made again."""
    given = [
        {"name": "resize", "size": 40},
        {"name": "resize", "size": "32x32"},
        {"name": "crop", "size": "32x32"},
        {
            "name": "random_resized_crop",
            "size": "32x32",
            "scale": [0.08, 1.0],
            "ratio": [0.75, 1.3333333333333333],
        },
        {"name": "hflip", "p": 0.5},
    ]
    assert [settings_of(parse_step(step)) for step in given] == given
    assert settings_of(parse_step({"name": "crop", "size": 32})) == given[2]
