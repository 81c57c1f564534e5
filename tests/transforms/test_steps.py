"""Steps make none, one or many samples of one, or one of many; whatever the form, every record is
accounted for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_files import images
from in_this_process import convert, repair
from PIL import Image

import shardctl
from shardctl.errors import InputError, UsageError
from shardctl.format.roles import Role
from shardctl.format.tables import read_rejects
from shardctl.images.codecs import image
from shardctl.inspection.content.samples import samples_of_key
from shardctl.system.folders import LocalFolder
from shardctl.system.options import Whole, setting
from shardctl.transforms.base import BatchTransform, Records, RejectRow, settings_of
from shardctl.transforms.table import TRANSFORMS, parse_step

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


def lines(path: Path, texts: Iterable[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def own(name: str, **recipe: Any) -> dict[str, Any]:
    return {**recipe, "transform": [{"name": "custom", "target": f"manysteps:{name}"}]}


@pytest.mark.thorough(after=1)
@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_may_make_several_samples_of_one_and_none(tmp_path, out, workers):
    source = lines(tmp_path / "in.jsonl", ["a b c", " ", "d"])
    result = shardctl.convert(source, out, recipe=own("words"), workers=workers)
    assert (result.samples, result.rejected) == (4, 1)
    found = [(sample["key"], sample["variant"], sample["text"]) for sample in shardctl.open(out)]
    assert found == [
        ("in.jsonl#1", 0, "a"),
        ("in.jsonl#1", 1, "b"),
        ("in.jsonl#1", 2, "c"),
        ("in.jsonl#3", 0, "d"),
    ]
    (reject,) = read_rejects(LocalFolder(out))
    assert (reject.key, reject.error) == ("in.jsonl#2", "left-out")
    assert shardctl.verify(out, level="deep").findings == ()
    assert [found.values["text"] for found in samples_of_key(LocalFolder(out), "in.jsonl#1")] == [
        "a",
        "b",
        "c",
    ]
    (out / "train-00000.arrow").unlink()
    assert repair(out, transforms=["manysteps:words"]).status == "repaired"
    assert shardctl.verify(out).findings == ()


@pytest.mark.usefixtures("functions")
def test_functions_follow_each_other_on_every_variant_of_a_record(tmp_path, out):
    """One that leaves out some variants keeps the numbers of the others; one that refuses a variant
    costs the record."""
    source = lines(tmp_path / "in.jsonl", ["a", "b", "c d"])
    steps = [{"name": "custom", "target": f"manysteps:{name}"} for name in ("odd_texts", "evens")]
    result = convert(source, out, recipe={"variants": 3, "transform": steps})
    assert (result.samples, result.rejected) == (4, 1)
    found = [(sample["text"], sample["variant"]) for sample in shardctl.open(out)]
    assert found == [("a", 0), ("a", 2), ("c d", 0), ("c d", 2)]
    (reject,) = read_rejects(LocalFolder(out))
    assert (reject.key, reject.message) == (
        "in.jsonl#2",
        "manysteps:odd_texts raised ValueError: no b",
    )
    steps = [{"name": "custom", "target": f"manysteps:{name}"} for name in ("evens", "words")]
    convert(source, tmp_path / "several", recipe={"variants": 3, "transform": steps})
    found = [(sample["text"], sample["variant"]) for sample in shardctl.open(tmp_path / "several")]
    assert found == [("a", 0), ("a", 2), ("b", 0), ("b", 2), ("c", 0), ("d", 1), ("c", 2), ("d", 3)]


@pytest.mark.thorough
@pytest.mark.usefixtures("functions")
def test_dropped_records_are_counted_once_however_many_samples_they_gave(tmp_path, out):
    (tmp_path / "in").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        lines(tmp_path / "in" / name, ["x y z", " ", *["x y z"] * 7])
    convert(tmp_path / "in", out, own("words"), samples_per_shard=1000)
    (out / "train-00000.arrow").unlink()
    (tmp_path / "in" / "a.jsonl").unlink()
    result = repair(out, transforms=["manysteps:words"], drop_lost=True)
    assert (result.status, result.lost_samples) == ("dropped", 24)
    manifest = shardctl.open(out).manifest
    assert (manifest.samples, manifest.inputs, manifest.rejected) == (24, 18, 10)
    rejects = [(reject.error, reject.records) for reject in read_rejects(LocalFolder(out))]
    assert rejects == [("left-out", 1), ("lost", 8), ("left-out", 1)]
    assert shardctl.verify(out).findings == ()


@pytest.mark.usefixtures("functions")
def test_functions_are_called_in_turn_on_each_record(tmp_path, out):
    """One may leave something for the next, as a tokenizer leaves its state."""
    source = lines(tmp_path / "in.jsonl", map(str, range(50)))
    steps = [{"name": "custom", "target": f"manysteps:{name}"} for name in ("leaves", "takes")]
    convert(source, out, recipe={"transform": steps})
    assert all(sample["taken"] == sample["text"] for sample in shardctl.open(out))


@pytest.mark.usefixtures("functions")
def test_what_a_function_does_later_changes_no_sample_that_it_returned(tmp_path, out):
    source = lines(tmp_path / "in.jsonl", map(str, range(50)))
    convert(source, out, recipe=own("changes_the_last"))
    assert [sample["text"] for sample in shardctl.open(out)] == list(map(str, range(50)))
    assert shardctl.verify(out).findings == ()


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize("of_file", [False, True])
def test_a_list_that_a_function_changes_in_place_is_that_of_its_sample_alone(
    tmp_path, out, of_file
):
    """Variants have the lists of their record, and the records of a file those of a labels file."""
    items: dict[str, Any] = {} if of_file else {"items": [7]}
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps({"n": n, **items}) + "\n" for n in range(3))
    )
    (tmp_path / "labels.jsonl").write_text('{"file_name": "in.jsonl", "items": [7]}\n')
    labels = {"labels": tmp_path / "labels.jsonl"} if of_file else {}
    convert(
        tmp_path / "in.jsonl",
        out,
        recipe=own("appends", variants=2),
        **labels,
    )
    assert [sample["items"].tolist() for sample in shardctl.open(out)] == [
        [7, 0],
        [7, 1],
    ] * 3


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
    table = pa.ipc.open_file(out / "train-00000.arrow").read_all()
    assert {name: table[name].combine_chunks() for name in columns} == columns


@pytest.mark.thorough
@pytest.mark.usefixtures("functions")
def test_a_function_may_make_several_images_of_one(tmp_path, out):
    source = images(tmp_path / "in", "1.png", "2.png")
    convert(source, out, recipe={"store": "raw", "transform": [
        {"name": "resize", "size": "8x8"}, {"name": "custom", "target": "manysteps:halves"}]})  # fmt: skip
    ds = shardctl.open(out)
    assert [(s["key"], s["variant"], s["side"], s["image"].shape) for s in ds] == [
        (key, side, side, (8, 4, 3)) for key in ("1.png", "2.png") for side in (0, 1)
    ]
    assert shardctl.verify(out).findings == ()


@pytest.mark.usefixtures("functions")
def test_several_samples_that_come_late_are_rejected_by_name(tmp_path, out):
    """The column that tells them apart is made if one of the 1,024 records that are tried gives
    several."""
    source = lines(
        tmp_path / "in.jsonl", [f"line{number}" for number in range(1100)] + ["late one"]
    )
    result = convert(source, out, recipe=own("late"))
    assert (result.samples, result.rejected) == (1100, 1)
    (reject,) = read_rejects(LocalFolder(out))
    assert (reject.key, reject.stage, reject.error) == (
        "in.jsonl#1101",
        "transform",
        "several-samples",
    )


@pytest.mark.usefixtures("functions")
def test_a_sample_that_does_not_fit_costs_all_of_its_record(tmp_path, out):
    source = lines(tmp_path / "in.jsonl", [f"{number}" for number in range(1100)] + ["bad", "good"])
    result = convert(source, out, recipe=own("one_bad"))
    assert (result.samples, result.rejected) == (2202, 1)
    (reject,) = read_rejects(LocalFolder(out))
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
    recipe = {
        "store": "raw",
        "variants": 5,
        "transform": [{"name": "random_resized_crop", "size": 8}],
    }
    convert(source, out, recipe=recipe)
    assert len(shardctl.open(out)) == 5
    assert len(decoded) == 2, "once beforehand, to see what it costs, and once for the shard"


class Joined(BatchTransform, step="joined"):
    """Joins the texts of `size` records, which need not be in the same unit."""

    size: int = setting(Whole(1, 100))

    def schema(self, given: pa.Schema) -> pa.Schema:
        if given.names != ["text"]:
            raise InputError(f"joined takes texts, and the records have {', '.join(given.names)}")
        return given.append(pa.field("joined", pa.int64()))

    @property
    def joins(self) -> bool:
        return True

    def begin(self, folder: Path, roles: Mapping[str, Role]) -> _JoinedRun:
        return _JoinedRun(self.size)


class _JoinedRun:
    def __init__(self, size: int) -> None:
        self._size = size
        self._held: list[tuple[str, str]] = []

    def apply(self, records: Records, reject: RejectRow) -> Iterator[Records]:
        for key, text in zip(
            records.batch["key"].to_pylist(), records.batch["text"].to_pylist(), strict=True
        ):
            self._held.append((key, text))
            if len(self._held) == self._size:
                yield from self.finish()

    def counts(self) -> dict[str, int]:
        return {}

    def finish(self) -> Iterator[Records]:
        if self._held:
            texts = [text for _, text in self._held]
            columns = {"key": [self._held[0][0]], "text": ["+".join(texts)], "joined": [len(texts)]}
            self._held = []
            yield Records(0, np.zeros(1, np.int64), pa.RecordBatch.from_pydict(columns))


def test_a_batch_transform_may_hold_records_back_until_the_shard_ends(tmp_path, monkeypatch):
    """A step is one file and one line in the table of names: here the line is all that is added."""
    monkeypatch.setitem(TRANSFORMS, "joined", Joined)
    (tmp_path / "in").mkdir()
    for number in range(3):
        lines(tmp_path / "in" / f"{number}.jsonl", [f"{number}.{text}" for text in range(3)])
    recipe = {"transform": [{"name": "joined", "size": 4}]}
    for made in ("one", "two"):
        result = convert(tmp_path / "in", tmp_path / made, recipe=recipe, samples_per_shard=100)
        assert (result.samples, result.rejected) == (3, 0)
    ds = shardctl.open(tmp_path / "one")
    assert [sample["text"] for sample in ds] == ["0.0+0.1+0.2+1.0", "1.1+1.2+2.0+2.1", "2.2"]
    assert [sample["joined"] for sample in ds] == [4, 4, 1]
    assert shardctl.verify(tmp_path / "one").findings == ()
    assert (tmp_path / "one" / "SHA256SUMS").read_text() == (
        tmp_path / "two" / "SHA256SUMS"
    ).read_text()


def test_a_batch_transform_refuses_columns_before_anything_is_written(tmp_path, out, monkeypatch):
    monkeypatch.setitem(TRANSFORMS, "joined", Joined)
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(InputError, match="joined takes texts, and the records have a"):
        convert(
            tmp_path / "in.jsonl",
            out,
            recipe={"transform": [{"name": "joined", "size": 4}]},
        )
    assert not (out / "manifest.json").exists()


def test_the_parts_of_an_image_are_samples_of_their_own(tmp_path, out):
    """Two variants of five crops each: ten samples, numbered in `variant`."""
    source = tmp_path / "in"
    source.mkdir()
    for number in (1, 2):
        pixels = np.random.default_rng(number).integers(0, 256, (12, 16, 3), np.uint8)
        Image.fromarray(pixels).save(source / f"{number}.png")
    steps = [{"name": "five_crop", "size": 8}, {"name": "hflip", "p": 0.5}]
    recipe = {"store": "raw", "variants": 2, "transform": steps}
    convert(source, out, recipe=recipe)
    dataset = shardctl.open(out)
    assert [sample["variant"] for sample in dataset] == [*range(10), *range(10)]
    plain = np.asarray(Image.open(source / "1.png"))
    left = [
        sample["image"]
        for sample in dataset
        if sample["key"] == "1.png" and sample["variant"] in (0, 5)
    ]
    assert all(
        np.array_equal(cut, plain[:8, :8]) or np.array_equal(cut, plain[:8, 7::-1]) for cut in left
    )


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (["hflip", "five_crop"], "hflip is random: put it after five_crop"),
        (["ten_crop", "five_crop"], "five_crop: only one step may make several samples"),
        (["sequence"], "sequence: needs steps"),
    ],
)
def test_steps_that_do_not_go_together_are_refused(tmp_path, steps, message):
    source = images(tmp_path / "in", "1.png")
    transform = [{"name": name, **({"size": 8} if "crop" in name else {})} for name in steps]
    with pytest.raises(UsageError, match=re.escape(message)):
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
    assert settings_of(parse_step({"name": "crop", "size": 32})) == {
        "name": "crop",
        "size": "32x32",
    }
