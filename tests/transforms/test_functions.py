"""Functions of a person's own: whatever they are and whatever they return works, or is refused by
name."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import examples
from dataset_facts import rejects_of
from dataset_files import shard_in, shards_in
from forged_datasets import write_manifest
from hypothesis import given
from hypothesis import strategies as st
from image_files import images
from json_lines import json_lines

import shardctl
from shardctl.errors import InputError, UsageError
from shardctl.making.convert import ConvertResult
from shardctl.transforms.values import UnfitValue, array_of, check_fit, plain_value

STEPS = """
import functools, operator, sys
import numpy as np

def add(sample, amount=1):
    sample["amount"] = amount
    return sample

class Adder:
    def __init__(self, amount):
        self.amount = amount
    def __call__(self, sample, rng):
        sample["amount"] = self.amount + 0 * rng.random()
        return sample
    def method(self, sample):
        return add(sample, self.amount)

an_object = Adder(2.0)
partial = functools.partial(add, amount=3)
bound = Adder(4).method
with_default = add

BUFFER, NESTED, IMAGE = np.zeros(2, np.int64), [{"n": [0]}], np.zeros((4, 4, 3), np.uint8)
numbers = {}

def buffered(sample):
    number = numbers.setdefault(sample["key"], len(numbers))
    BUFFER[:] = number
    NESTED[0]["n"][0] = number
    IMAGE[:] = number
    image = {"image": IMAGE} if "image" in sample else {}
    return {**sample, **image, "flat": BUFFER, "nested": NESTED}

def wanted(sample, *, rng):
    return add(sample, float(rng.random()))

def draws(sample, generator):
    return add(sample, float(generator.random()))

def three(sample, rng, more):
    return sample

async def later(sample):
    return sample

def sets(name):
    def step(sample):
        sample[name] = VALUES[name]
        return sample
    return step

class Odd(dict):
    pass

def odd_dict(sample):
    return Odd(sample, amount=5)

def draw(sample):
    sample["image"][:5] = 7
    return sample

def leave(sample):
    sys.exit("enough")

def unprintable(sample):
    class Fault(Exception):
        def __str__(self):
            raise ValueError
    raise Fault

def surrogate_fault(sample):
    raise ValueError("a\\ud800b")

def relabel(sample):
    sample["label"] = np.int64(1 - sample["label"])
    return sample

def no_label(sample):
    del sample["label"]
    return sample

def label(value):
    def step(sample):
        if "2" in sample["key"]:
            sample["label"] = value
        return sample
    return step

label_7, label_true = label(7), label(True)

def field(name, value):
    def step(sample):
        if "2" in sample["key"]:
            sample[name] = value() if callable(value) else value
        return sample
    return step

class Own:
    pass

def endless():
    nested = []
    nested.append(nested)
    return nested

set_int_key = field(3, 1)
set_surrogate_name = field("\\ud800", 1)
set_huge = field("x", 2**63 + 5)
set_larger = field("x", 10**5000)
set_surrogate = field("x", "\\ud800")
set_object = field("x", Own)
set_set = field("x", {1, 2})
set_int_keys = field("x", {1: 2})
set_endless = field("x", endless)
set_masked = field("x", lambda: np.ma.array([1, 2], mask=[0, 1]))
set_key = field("key", "other")
set_variant = field("variant", 3)
set_no_image = field("image", None)
set_float_image = field("image", lambda: np.zeros((4, 4, 3)))
set_empty_image = field("image", lambda: np.zeros((0, 4, 3), np.uint8))

GOOD = {
    "tuple": (1, 2),
    "scalar": np.float32(0.5),
    "array": np.arange(3, dtype=">i4"),
    "matrix": np.ones((2, 2)),
    "nan": float("nan"),
    "bytes": b"\\xff",
    "nested": {"a": [{"b": (2.5, None)}], "c": np.zeros((1, 2))},
    "zero_d": np.array(5),
    "bool": np.bool_(True),
    "text": np.array(["ab", "c"]),
    "empty": [],
    "none": None,
    "date": np.datetime64("2020-01-02"),
    "_hidden": 1,
}

TYPED = {
    "u16": np.uint16(3),
    "u64": np.uint64(2**63 + 1),
    "i8": np.int8(-1),
    "f16": np.float16(0.5),
    "f32": np.float32(0.1),
    "f64": np.float64(0.1),
    "flag": np.bool_(False),
    "matrix": np.full((2, 2), 0.1, np.float32),
    "cube": np.full((1, 2, 1), 2**63 + 1, np.uint64),
    "inside": {"a": [np.int16(1), np.int16(2)], "b": (np.float32(0.1),)},
}

def typed(sample):
    return {**sample, **TYPED}

def varying(sample):
    first = "1" in sample["key"]
    sample["wide"] = np.uint8(3) if first else np.int16(-4)
    sample["mixed"] = np.float32(0.1) if first else 0.1
    sample["whole"] = np.uint16(3) if first else -5
    sample["lists"] = [np.ones(2, np.float32)] if first else [np.array([0.1])]
    return sample

def good(sample):
    return {**sample, **GOOD}

def late(sample):
    sample["x"] = 2.7 if sample["n"] == LATE else 2
    return sample

def mixed(sample):
    sample["x"] = "many" if sample["n"] % 2 else 3
    return sample

def untouched(sample):
    sample["m"] = 1
    return sample
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "steps.py").write_text(STEPS)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("steps", "broken", "leaving", "other"):
        sys.modules.pop(name, None)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return images(tmp_path / "in", "a/1.png", "b/2.png", "b/3.png")


PNG = {"store": "png"}


def convert(source: Path, out: Path, function: str, **options: Any) -> ConvertResult:
    recipe = {"transform": [{"name": "custom", "target": function}], **options.pop("recipe", {})}
    return shardctl.convert(source, out, recipe=recipe, workers=0, **options)


def test_numbers_of_numpy_keep_their_type(source, out):
    convert(source, out, "steps:typed", recipe=PNG)
    ds = shardctl.open(out)
    types = dict(ds.manifest.schema)
    names = "u16 u64 i8 f16 f32 f64 flag".split()
    found = "uint16 uint64 int8 halffloat float double bool".split()
    assert [types[name] for name in names] == found
    assert types["matrix"] == "list<item: list<item: float>>"
    assert types["cube"] == "list<item: list<item: list<item: uint64>>>"
    assert types["inside"] == "struct<a: list<item: int16>, b: list<item: float>>"
    row = ds[0]
    assert (row["u16"], row["u64"], row["f32"]) == (3, 2**63 + 1, float(np.float32(0.1)))
    assert np.array(row["cube"]).tolist() == [[[2**63 + 1], [2**63 + 1]]]


def test_numbers_of_different_types_get_a_column_that_holds_them_all(source, out):
    assert convert(source, out, "steps:varying", recipe=PNG).rejected == 0
    ds = shardctl.open(out)
    types = dict(ds.manifest.schema)
    assert [types[name] for name in ("wide", "mixed", "whole")] == ["int64", "double", "int64"]
    assert types["lists"] == "list<item: list<item: double>>"
    assert [(row["wide"], row["mixed"], row["whole"]) for row in ds] == [
        (3, float(np.float32(0.1)), 3)
    ] + [(-4, 0.1, -5)] * 2


@pytest.mark.parametrize(
    ("function", "amount"),
    [
        ("add", 1),
        ("with_default", 1),
        ("an_object", 2),
        ("partial", 3),
        ("bound", 4),
        ("an_object.method", 2),
        ("odd_dict", 5),
    ],
)
def test_whatever_can_be_called_is_called(source, out, function, amount):
    convert(source, out, f"steps:{function}", recipe=PNG)
    assert [sample["amount"] for sample in shardctl.open(out)] == [amount] * 3
    again = convert(source, out, f"steps:{function}", recipe=PNG)
    assert again.status == "up-to-date"


@pytest.mark.parametrize("function", ["steps:wanted", "steps:draws"])
def test_a_second_argument_without_a_default_or_called_rng_gets_the_generator(
    source, out, function
):
    convert(source, out, function, recipe=PNG)
    drawn = [sample["amount"] for sample in shardctl.open(out)]
    assert len(set(drawn)) == 3
    assert all(0 <= number < 1 for number in drawn)


def test_a_builtin_is_called_with_the_sample(source, tmp_path):
    assert convert(source, tmp_path / "out", "builtins:dict", recipe=PNG).samples == 3
    with pytest.raises(InputError, match=r"builtins:len returned 4 \(int\)"):
        convert(source, tmp_path / "out2", "builtins:len", recipe=PNG)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("steps:Adder", "an ordinary method __call__"),
        ("steps:later", "is async"),
        ("steps:three", r"takes \(sample, rng, more\)"),
        ("steps:STEPS", "steps has no STEPS"),
        ("steps:GOOD", "GOOD is not a function"),
        ("steps:an_object.amount", "an_object.amount is not a function"),
        ("steps:an object", "not of the form module:function"),
        ("broken:step", "importing broken raised NameError: name 'nothing' is not defined"),
        ("leaving:step", "importing leaving raised SystemExit: 4"),
    ],
)
def test_what_cannot_be_called_is_refused_by_name(source, tmp_path, function, message):
    (tmp_path / "broken.py").write_text("nothing\n")
    (tmp_path / "leaving.py").write_text("raise SystemExit(4)\n")
    with pytest.raises(UsageError, match=message):
        convert(source, tmp_path / "out", function)


def test_the_code_of_an_object_is_part_of_the_fingerprint(source, tmp_path):
    """What an object does is decided where its class is written, and where it is made."""
    found = set()
    for amount, more in ((1, ""), (2, ""), (2, "# changed\n")):
        (tmp_path / "other.py").write_text(
            f"import functools, steps\nmine = functools.partial(steps.add, amount={amount})\n"
        )
        (tmp_path / "steps.py").write_text(STEPS + more)
        sys.modules.pop("other", None)
        found.add(convert(source, tmp_path / str(len(found)), "other:mine").fingerprint)
    assert len(found) == 3


@pytest.mark.parametrize("of_images", [True, False])
def test_a_function_may_return_the_same_buffer_at_every_call(source, tmp_path, out, of_images):
    """Samples are stored later than they are made, and keep the values that they had then."""
    inputs = source if of_images else lines(tmp_path / "lines", 5)
    convert(inputs, out, "steps:buffered", recipe={"store": "raw"} if of_images else {})
    for number, sample in enumerate(shardctl.open(out)):
        assert sample["flat"].tolist() == [number, number]
        assert sample["nested"] == [{"n": [number]}]
        assert not of_images or (sample["image"] == number).all()


def test_a_function_may_draw_into_the_image(source, out):
    convert(source, out, "steps:draw", recipe=PNG)
    assert (shardctl.open(out)[0]["image"][:5] == 7).all()


def test_values_come_out_as_they_went_in(source, out):
    convert(source, out, "steps:good", recipe=PNG)
    ds = shardctl.open(out)
    names = ("array", "bytes", "date", "bool", "empty", "none")
    found = "list<item: int32>|binary|date32[day]|bool|list<item: string>|string"
    assert [str(ds.schema.field(name).type) for name in names] == found.split("|")
    table = pa.ipc.open_file(shard_in(out)).read_all()
    (row, *_) = table.to_pylist()
    expected = {
        "tuple": [1, 2],
        "scalar": 0.5,
        "array": [0, 1, 2],
        "matrix": [[1, 1], [1, 1]],
        "bytes": b"\xff",
        "zero_d": 5,
        "bool": True,
        "text": ["ab", "c"],
        "_hidden": 1,
        "empty": [],
        "none": None,
    }
    assert {name: row[name] for name in expected} == expected
    assert np.isnan(row["nan"])


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    ("function", "reason", "says"),
    [
        ("set_int_key", "transform: not-a-name", "called 3 (int)"),
        ("set_surrogate_name", "transform: not-a-name", "UTF-8"),
        ("set_huge", "encode: other-type", "9223372036854775813"),
        ("set_larger", "encode: other-type", "16,610 bits"),
        ("set_surrogate", "encode: other-type", "'\\ud800' (str)"),
        ("set_object", "encode: other-type", "steps.Own"),
        ("set_set", "encode: other-type", "make it a list"),
        ("set_int_keys", "encode: other-type", "the key 1 (int)"),
        ("set_endless", "encode: other-type", "nested too deeply"),
        ("set_masked", "encode: other-type", "a masked numpy array"),
        ("set_key", "transform: key-changed", "'other' (str)"),
        ("set_variant", "transform: variant-changed", "to 3 (int)"),
        ("set_no_image", "transform: not-an-image", "removed the image"),
        ("set_float_image", "transform: not-an-image", "float64"),
        ("set_empty_image", "transform: not-an-image", "(0, 4, 3)"),
        ("label_7", "encode: no-such-class", "to 7 (int)"),
        ("label_true", "encode: other-type", "True (bool)"),
    ],
)
def test_a_value_that_cannot_be_kept_rejects_its_sample_and_names_the_function(
    source, out, function, reason, says
):
    result = convert(source, out, f"steps:{function}", recipe=PNG)
    assert (result.samples, result.reasons) == (2, {reason: 1})
    (reject,) = rejects_of(out)
    assert says in reject.message
    assert f"steps:{function}" in reject.message
    assert shardctl.verify(out).ok


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("leave", "SystemExit: enough"),
        ("unprintable", "Fault: it cannot be shown"),
        ("surrogate_fault", r"ValueError: a\\ud800b"),
    ],
)
def test_an_exception_of_any_kind_is_a_reason(source, out, function, says):
    with pytest.raises(InputError, match=says):
        convert(source, out, f"steps:{function}")


def test_labels_that_a_function_changed_are_counted_without_the_counts_of_the_manifest(
    source, out, cli
):
    """The plan still has the labels of the sources, so that the shards must be read."""
    convert(source, out, "steps:relabel", recipe=PNG, samples_per_shard=2)
    before = cli("inspect", out, "--json").json["classes"]
    record = json.loads((out / "manifest.json").read_text())
    write_manifest(out, {**record, "class_counts": None})
    assert cli("inspect", out, "--json").json["classes"] == before == {"a": 2, "b": 1}
    next(iter(shards_in(out))).unlink()
    ran = cli("inspect", out, "--json")
    assert (ran.code, ran.json["classes"]) == (0, None), "all the rest is shown without that shard"


def test_samples_that_repair_drops_leave_the_counts_of_what_was_written(source, out):
    convert(source, out, "steps:relabel", recipe=PNG, samples_per_shard=1)
    (shard_in(out, "train-00001")).unlink()
    (source / "b" / "2.png").unlink()
    shardctl.repair(out, transforms=["steps:relabel"], drop_lost=True, workers=0)
    assert json.loads((out / "manifest.json").read_text())["class_counts"] == {"train": [1, 1]}


def test_where_a_function_drops_all_labels_there_are_no_classes(source, out):
    convert(source, out, "steps:no_label", recipe=PNG)
    manifest = json.loads((out / "manifest.json").read_text())
    assert "label" not in manifest["fields"]
    assert manifest["class_counts"] is None


def lines(folder: Path, count: int, **more: Any) -> Path:
    json_lines(folder / "a.jsonl", ({"n": n, **more} for n in range(count)))
    return folder


def test_a_number_that_comes_late_is_not_cut_to_an_integer(tmp_path, out):
    """The type of a column is found on 1,024 lines; Arrow would make 2 of a 2.7 that comes
    later."""
    (tmp_path / "steps.py").write_text(f"{STEPS}\nLATE = 1050\n")
    assert convert(lines(tmp_path / "in", 1100), out, "steps:late").samples == 1099
    (reject,) = rejects_of(out)
    assert (reject.key, reject.error) == ("a.jsonl#1051", "other-type")
    assert "2.7 (float); its column is of type int64" in reject.message


def test_values_without_a_common_type_are_refused_with_examples_of_both(tmp_path):
    with pytest.raises(InputError, match=r"several types, such as .*3 \(int\)"):
        convert(lines(tmp_path / "in", 4), tmp_path / "out", "steps:mixed")


def test_fields_that_a_function_does_not_touch_keep_their_type_and_value(tmp_path, out):
    source = lines(tmp_path / "in", 3, _id=1, few=2)
    (source / "b.jsonl").write_text(
        '{"n": 3, "few": 2.5, "mixed": "a"}\n{"n": 4, "mixed": 7, "_id": 2}\n'
    )
    convert(source, out, "steps:untouched")
    ds = shardctl.open(out)
    assert [(s["_id"], s["few"], s["mixed"]) for s in (ds[2], ds[3], ds[4])] == [
        (1, 2, None),
        (None, 2.5, "a"),
        (2, None, "7"),
    ]


NOON = datetime.datetime(2020, 1, 1, 12, 30, 5, 678)


WHOLE = pa.list_(pa.int64())


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (1, pa.float64()),
        ([1, None], WHOLE),
        (np.array([1, 2], np.int64), pa.list_(pa.uint8())),
        (np.array([0.5, np.nan]), pa.list_(pa.float32())),
        (np.array([2**53], np.uint64), pa.list_(pa.float64())),
        (NOON, pa.timestamp("ns")),
        (NOON.replace(microsecond=0), pa.timestamp("s")),
        (NOON.replace(tzinfo=datetime.timezone.utc), pa.timestamp("us", "Europe/Berlin")),
        (np.timedelta64("NaT", "ns"), pa.duration("ns")),
        ({"a": 1}, pa.map_(pa.string(), pa.int64())),
        ({"a": 1}, pa.struct({"a": pa.int64(), "b": pa.string()})),
    ],
)
def test_what_fits_a_column(value, type_):
    check_fit(value, type_)


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (2.0, pa.int64()),
        (True, pa.float64()),
        (0.1, pa.float32()),
        (2**53 + 1, pa.float64()),
        (b"a", pa.string()),
        ("aaa", pa.binary(3)),
        ("ab", pa.list_(pa.string())),
        ([[1], [2.5]], pa.list_(WHOLE)),
        (np.array([300]), pa.list_(pa.uint8())),
        (np.array([0.1]), pa.list_(pa.float32())),
        (np.array([True]), WHOLE),
        (np.array([2**64 - 1], np.uint64), WHOLE),
        (NOON, pa.date32()),
        (NOON, pa.timestamp("ms")),
        (NOON, pa.timestamp("us", "UTC")),
        (NOON.replace(tzinfo=datetime.timezone.utc), pa.timestamp("us")),
        (NOON.time(), pa.time32("ms")),
        (datetime.timedelta(microseconds=1), pa.duration("ms")),
        (np.timedelta64(5, "ns"), pa.float64()),
        (5, pa.timestamp("s")),
        ({"a": 2.7}, pa.map_(pa.string(), pa.int64())),
        (2.7, pa.dictionary(pa.int32(), pa.int64())),
        ([{"b": 2}], pa.large_list(pa.struct({"a": pa.int64()}))),
        ({"a": 1}, WHOLE),
    ],
)
def test_what_does_not_fit_a_column_is_refused(value, type_):
    with pytest.raises(UnfitValue):
        check_fit(plain_value(value), type_)


TYPES = [pa.int64(), pa.uint8(), pa.float64(), pa.float32(), pa.bool_(), pa.string(), pa.binary()]
TYPES += [pa.date32(), *(pa.list_(type_) for type_ in TYPES[:4]), pa.list_(pa.string())]
NUMBERS = st.sampled_from([0, 1, -1, 300, 2**31, 2**53 + 1, 2**63, 0.5, 0.1, 1e300, True])
SCALARS = st.none() | NUMBERS | st.sampled_from(["", "a", "\ud800", b"a"])
ARRAYS = st.builds(
    np.array,
    st.lists(st.integers(0, 9), max_size=3) | st.just([[1, 2]]),
    st.sampled_from([np.int64, np.uint8, np.float32, np.float64, np.bool_]),
)
ANYTHING = (
    SCALARS
    | st.lists(SCALARS, max_size=3)
    | ARRAYS
    | st.just((1, 2))
    | st.just(datetime.datetime(2020, 1, 1, 13, 30))
)


@given(st.lists(ANYTHING, max_size=4) | st.lists(ARRAYS, max_size=4), st.sampled_from(TYPES))
@examples(200)
def test_values_that_are_taken_together_are_those_that_fit_one_by_one(values, type_):
    """A column is made at once where that is safe: with the same result as after a look at each
    value."""
    array = array_of(values, type_)
    if array is not None:
        for value in values:
            check_fit(plain_value(value), type_)
        assert array.equals(pa.array([plain_value(value) for value in values], type_))
