"""Samples that are made in Python, written as a dataset."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xxhash
from conftest import examples
from dataset_facts import shards_of, sums
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert, repair
from PIL import Image
from written_samples import Sample, pixels, plain

import shardctl
from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.format.names import PLAN
from shardctl.format.tables import open_table
from shardctl.system.folders import LocalFolder


def texts(count: int) -> Iterator[Sample]:
    return (
        {"text": f"text {number}", "tokens": list(range(number % 5)), "score": number / 7}
        for number in range(count)
    )


def encoded(number: int, size: int = 4) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(pixels(number, size)).save(sink, "png")
    return sink.getvalue()


def test_samples_come_out_as_they_went_in(out):
    result = shardctl.write(out, texts(2500), samples_per_shard=1000)
    ds = shardctl.open(out)
    assert (result.samples, result.shards, len(ds)) == (2500, 3, 2500)
    assert plain(ds) == [{"key": f"{n:09d}", **sample} for n, sample in enumerate(texts(2500))]
    assert shardctl.verify(out, "deep").findings == ()


values = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
numbers = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))


@examples(15)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"a": values, "b": numbers, "c": st.lists(st.floats(allow_nan=False), max_size=3)}
        ),
        min_size=1,
        max_size=12,
    )
)
def test_any_values_come_out_as_they_went_in(tmp_path_factory, samples):
    out = tmp_path_factory.mktemp("written") / "out"
    schema = pa.schema([("a", pa.string()), ("b", pa.int64()), ("c", pa.list_(pa.float64()))])
    shardctl.write(out, samples, schema, samples_per_shard=5)
    assert [{**sample, "key": None} for sample in plain(shardctl.open(out))] == [
        {**sample, "key": None} for sample in samples
    ]


def test_strings_of_numpy_keep_the_nuls_at_their_end(out):
    shardctl.write(
        out,
        [{"data": np.bytes_(b"ab\0"), "text": np.str_("a\0"), "list": [np.str_("b\0\0")]}],
    )
    sample = shardctl.open(out)[0]
    assert (sample["data"], sample["text"], sample["list"]) == (b"ab\0", "a\0", ["b\0\0"])


def test_the_same_samples_give_the_same_bytes(tmp_path):
    for name in "ab":
        shardctl.write(tmp_path / name, texts(1000), shard_size=20_000)
    assert sums(tmp_path / "a") == sums(tmp_path / "b")
    assert len(shards_of(tmp_path / "a")) > 1


def test_encoded_images_are_kept_and_classes_may_be_named(out):
    samples = [
        {"key": f"{n}.png", "image": encoded(n), "label": "cat" if n % 2 else 0} for n in range(6)
    ]
    shardctl.write(out, samples, classes=["dog", "cat"])
    ds = shardctl.open(out)
    assert (ds.classes, ds.manifest.class_counts) == (("dog", "cat"), {"train": [3, 3]})
    (batch,) = ds.loader(batch_size=6)
    assert batch["label"].tolist() == [0, 1, 0, 1, 0, 1]
    assert np.array_equal(batch["image"], np.stack([pixels(n) for n in range(6)]))
    (stored,) = ds.loader(batch_size=6, decode=False)
    assert [bytes(image) for image in stored["image"]] == [encoded(n) for n in range(6)]


@pytest.mark.parametrize("store", [None, "raw", "png"])
def test_pixels_are_kept_without_a_change(out, store):
    shardctl.write(out, ({"image": pixels(n)} for n in range(5)), store=store)
    (batch,) = shardctl.open(out).loader(batch_size=5)
    assert np.array_equal(batch["image"], np.stack([pixels(n) for n in range(5)]))


def test_splits_are_written_one_after_the_other(out):
    shardctl.write(out, {"train": texts(40), "val": texts(7)})
    ds = shardctl.open(out)
    assert [(split.name, split.samples) for split in ds.manifest.splits] == [
        ("train", 40),
        ("val", 7),
    ]
    assert shardctl.open(out, split="val")[0]["key"] == "000000040"


FIRST: list[Sample] = [{"n": 1}] * 2000


@pytest.mark.parametrize(
    ("samples", "options", "error", "message"),
    [
        ([], {}, InputError, "there is no sample to write"),
        ([7], {}, InputError, r"sample 0 is 7 \(int\), not a dict"),
        (
            [{"n": 1}, {"n": "x"}],
            {},
            InputError,
            r"the field n has values of several types, 1 \(int\) in sample 0 and 'x' .* 1;",
        ),
        (
            [{"n": 1}, {"n": 1j}],
            {},
            InputError,
            "sample 1: the field n is .*, which no column holds",
        ),
        (
            [*FIRST, {"n": 1.5}],
            {},
            InputError,
            r"sample 2,000 \(000002000\): the field n is 1.5 \(float\); its column is of type",
        ),
        (
            [*FIRST, {"m": 1}],
            {},
            InputError,
            "has a field m, which the first samples lack; give a schema",
        ),
        ([{"key": 5}], {}, InputError, r"sample 0: its key is 5 \(int\)"),
        ([{"n": {1, 2}}], {}, InputError, "make it a list"),
        ([{"image": b"no image"}], {}, InputError, "sample 0 .*: not an image"),
        (
            [{"image": np.zeros((2, 2), np.uint8)}],
            {},
            InputError,
            "all are uint8",
        ),
        (
            [{"image": pixels(0)}, {"image": pixels(1, 5)}],
            {},
            InputError,
            "store raw needs one size",
        ),
        (
            [{"image": encoded(0)}],
            {"store": "png"},
            UsageError,
            "encoded images are kept",
        ),
        ([{"label": "bird"}], {"classes": ["dog"]}, InputError, "'bird' .*, and no class"),
        ([{"n": 1}], {"classes": ["dog"]}, UsageError, "the samples have no label"),
        ([{"n": 1}], {"store": "png"}, UsageError, "is for images"),
        ([{"n": 1}], {"compression": "rar"}, UsageError, "compression 'rar' is not known"),
        ([{"n": 1}], {"samples_per_shard": 0}, UsageError, "0 samples per shard"),
        ([{"n": 1}], {"shard_size": 5}, UsageError, "a shard size of 5"),
        ({"../up": [{"n": 1}]}, {}, UsageError, "split name '../up'"),
        ({"train": FIRST, "test": []}, {}, InputError, "the split test has no sample"),
        ({"train": iter([]), "test": FIRST}, {}, InputError, "the split train has no sample"),
        ({"train": [], "test": []}, {}, InputError, "the split train has no sample"),
        (
            [{"key": "a"}, {"key": "b"}, {"key": "a"}],
            {},
            InputError,
            "the samples 0 and 2 have the key a",
        ),
        (
            [*FIRST, {"n": 1, "key": "000001999"}],
            {"samples_per_shard": 100},
            InputError,
            "the samples 1,999 and 2,000 have the key 000001999",
        ),
        (
            {"train": [{"key": "a"}], "val": [{"key": "a"}]},
            {},
            InputError,
            "the samples 0 and 1 have the key a",
        ),
        (
            [{"key": "a", "variant": n} for n in (0, 1, 0)],
            {},
            InputError,
            "the samples 0 and 2 have the key a",
        ),
    ],
)
def test_what_cannot_be_written_is_said_and_nothing_is_left(
    tmp_path, out, samples, options, error, message
):
    with pytest.raises(error, match=message):
        shardctl.write(out, samples, **options)
    assert list(tmp_path.iterdir()) == []


def test_different_keys_are_no_repetition_whatever_their_hashes(tmp_path, out, monkeypatch):
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", len)
    shardctl.write(out, [{"key": f"{n:04}"} for n in range(3000)], samples_per_shard=500)
    assert shardctl.open(out)[2999]["key"] == "2999"
    with pytest.raises(InputError, match="the samples 7 and 3,000 have the key 0007"):
        shardctl.write(
            tmp_path / "more",
            [{"key": f"{n:04}"} for n in [*range(3000), 7]],
            samples_per_shard=500,
        )


def test_variants_of_one_record_have_the_same_key(out):
    shardctl.write(out, [{"key": "a", "variant": n} for n in range(3)])
    assert [sample["variant"] for sample in shardctl.open(out)] == [0, 1, 2]


def test_what_the_callers_own_code_raises_is_named_by_sample(tmp_path, out):
    def failing() -> Iterator[Sample]:
        yield from texts(3000)
        raise OSError("my camera is gone")

    with pytest.raises(
        InputError, match=r"^sample 3,000: making it raised OSError: my camera is gone$"
    ) as raised:
        shardctl.write(out, failing())
    assert isinstance(raised.value.__cause__, OSError)
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_is_replaced_on_request_only(out):
    shardctl.write(out, texts(4))
    (out / "mine.txt").write_text("not part of it")
    with pytest.raises(DatasetError, match="holds a dataset; overwrite=True replaces it"):
        shardctl.write(out, texts(5))
    assert len(shardctl.open(out)) == 4
    shardctl.write(out, texts(5), overwrite=True)
    assert len(shardctl.open(out)) == 5
    assert (out / "mine.txt").exists()


def test_it_has_no_source_and_its_tables_are_made_from_its_shards(out):
    shardctl.write(out, texts(2000), samples_per_shard=500)
    assert open_table(LocalFolder(out), PLAN).num_rows == 0
    before, names = sums(out), sorted(os.listdir(out))
    for name in (
        "files.arrow",
        "plan.arrow",
        "rejects.jsonl",
        "shards.arrow",
        "SHA256SUMS",
        "manifest.json",
    ):
        (out / name).unlink()
        assert repair(out).repaired == (name,)
        assert (sums(out), sorted(os.listdir(out))) == (before, names)
    (out / "train-00001.arrow").unlink()
    (unrepaired,) = repair(out).unrepaired
    assert unrepaired.file == "train-00001.arrow"
    assert "shardctl.write made its samples" in unrepaired.message


def test_one_block_is_in_memory_at_a_time(tmp_path, out):
    """The samples are taken as they are written: a generator has not gone on far beyond what is in
    the file."""
    taken = 0
    ahead = 0

    def many() -> Iterator[Sample]:
        nonlocal taken, ahead
        for number in range(4000):
            taken += 1
            written = sum(path.stat().st_size for path in tmp_path.rglob("*.arrow"))
            ahead = max(ahead, taken * 4000 - written)
            yield {"blob": number.to_bytes(4, "big") * 1000}

    shardctl.write(out, many(), compression="none", shard_size=2 << 20)
    assert ahead < 16 << 20
    assert len(shards_of(out)) >= 4
    assert json.loads((out / "manifest.json").read_text())["samples"] == taken


def test_keys_of_variants_are_told_apart_whatever_they_are(out):
    shardctl.write(out, [{"key": "2 x", "variant": "1"}, {"key": "x", "variant": "1 2"}])
    assert len(shardctl.open(out)) == 2


def test_a_key_that_cannot_be_written_is_refused_by_name(out):
    with pytest.raises(InputError, match="it must be a string of UTF-8"):
        shardctl.write(out, [{"key": "a\ud800", "x": 1}])


def test_times_with_a_zone_are_written_as_they_were_read(tmp_path, out):
    schema = pa.schema([("t", pa.timestamp("ns", "Europe/Berlin"))])
    shardctl.write(out, [{"t": np.datetime64(1, "ns")}], schema)
    (sample,) = shardctl.open(out)
    shardctl.write(tmp_path / "again", [{"t": sample["t"]}], schema)
    assert shardctl.open(tmp_path / "again")[0]["t"] == np.datetime64(1, "ns")


NAIVE = datetime(2020, 1, 2, 3, 4, 5, 678)
AWARE = NAIVE.replace(tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("several", "message"),
    [
        (
            [NAIVE, AWARE],
            r"the field t has values of several types, .*678 \(datetime\) in sample 0 and .*00:00 "
            r".* in sample 1",
        ),
        (
            [AWARE, NAIVE],
            r"the field t has values of several types, .*00:00 \(datetime\) in sample 0 and .*678 "
            r".* in sample 1",
        ),
        (
            [*[NAIVE] * 1100, AWARE],
            r"sample 1,100 \(000001100\): the field t is .*00:00 \(datetime\); its column",
        ),
        ([[NAIVE, AWARE]], "sample 0: the field t is a list of length 2, which no column holds"),
        (
            [NAIVE.time(), AWARE.timetz()],
            r"sample 1: the field t is 03:04:05.000678\+00:00 \(time\), which no column holds",
        ),
        ([np.timedelta64(1, "M")], "sample 0: the field t is 1 months .*, which no column holds"),
        (
            [pd.Timestamp(1)],
            r"sample 0: the field t is .*001 \(Timestamp\), which no column holds without a schema",
        ),
    ],
)
def test_no_time_is_changed_where_its_type_is_found(several, message, out):
    with pytest.raises(InputError, match=message):
        shardctl.write(out, [{"t": value} for value in several])


def test_times_with_and_without_a_zone_come_out_as_they_went_in(out):
    east = AWARE.astimezone(timezone(timedelta(hours=2)))
    sample = {
        "a": NAIVE,
        "b": AWARE,
        "c": NAIVE.time(),
        "d": NAIVE - NAIVE.replace(day=1),
        "e": pd.Timestamp(1),
    }
    types = {
        "a": pa.timestamp("us"),
        "b": pa.timestamp("us", "UTC"),
        "c": pa.time64("us"),
        "d": pa.duration("us"),
    }
    schema = pa.schema({**types, "e": pa.timestamp("ns")})
    shardctl.write(out, [sample, {**sample, "b": east}], schema)
    for row in shardctl.open(out):
        assert {name: row[name] for name in "abcde"} == {**sample, "e": np.datetime64(1, "ns")}


def test_a_declared_float32_takes_python_floats_and_rounds_them(tmp_path):
    narrow = pa.float32()
    schema = pa.schema(
        {
            "a": narrow,
            "b": pa.list_(narrow),
            "c": pa.struct({"d": pa.float16()}),
            "t": pa.fixed_shape_tensor(narrow, (1, 2)),
        }
    )
    near = float(np.float32(0.1))
    # what numpy's means are is a float of Python too
    for number, tenth in enumerate((0.1, np.float64(0.1))):
        sample = {"a": tenth, "b": [tenth, 2.5, 3], "c": {"d": tenth}, "t": [[tenth, float("inf")]]}
        shardctl.write(tmp_path / f"{number}", [sample], schema)
        (row,) = shardctl.open(tmp_path / f"{number}")
        assert (row["a"], list(row["b"]), row["c"]["d"]) == (
            near,
            [near, 2.5, 3],
            float(np.float16(0.1)),
        )
        assert row["t"].tolist() == [[near, float("inf")]]


def test_an_array_of_float64_is_not_rounded(out):
    with pytest.raises(
        InputError, match=r"the field a is a numpy array of shape .* and type float64"
    ):
        shardctl.write(out, [{"a": np.array([0.1])}], pa.schema({"a": pa.list_(pa.float32())}))


@pytest.mark.parametrize("value", [1e300, np.float64(1e300), 2**24 + 1, True, "0.1"])
def test_what_is_no_float_that_a_declared_float32_rounds_is_refused(value, out):
    with pytest.raises(
        InputError, match=r"sample 0 .*: the field a is .*; its column is of type float"
    ):
        shardctl.write(out, [{"a": value}], pa.schema({"a": pa.float32()}))
    # nobody chose float32
    with pytest.raises(InputError, match=r"sample 1,100 .*: the field a is 0\.1"):
        shardctl.write(out, [*[{"a": np.float32(0.5)}] * 1100, {"a": 0.1}])


TENSOR = pa.schema([("t", pa.fixed_shape_tensor(pa.float32(), (2, 3)))])
GRID = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "value", [GRID, GRID.reshape(-1), GRID.tolist(), GRID.reshape(-1).tolist(), GRID.T.copy().T]
)
def test_a_tensor_may_come_as_an_array_or_as_lists(value, out):
    shardctl.write(out, {"train": [{"t": value}]}, schema=TENSOR)
    assert np.array_equal(shardctl.open(out)[0]["t"], GRID)


@pytest.mark.parametrize(
    "value",
    [
        GRID.T,
        GRID[:1],
        [[1, 2, 3], [4, 5]],
        [[1, 2, 3], [4, 5, None]],
        GRID + np.float64(0.1),
        None,
        "x",
    ],
)
def test_what_is_no_tensor_of_the_columns_shape_and_type_is_refused_by_name(value, out):
    with pytest.raises(InputError, match="the field t is"):
        shardctl.write(out, {"train": [{"t": value}]}, schema=TENSOR)


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (np.ma.MaskedArray([1, 2], [True, False]), pa.int64()),
        ([np.ma.masked, 1.0], pa.float64()),
        ([2**53 + 1, 0.5], pa.float64()),
        ([2**64 - 1, 1.0], pa.float64()),
        ([True, 5], pa.int64()),
        ([True, 5.5], pa.float64()),
        (range(2), pa.int64()),
        (bytearray(b"ab"), pa.uint8()),
        ([1e300, 0.5], pa.float32()),
        ([np.float64(1e300), 0.5], pa.float32()),
        ([2**24 + 1, 0.5], pa.float32()),
        ([[1, 2]], pa.int64()),
        ([[1], [2]], pa.int64()),
        ([np.array([1, 2]), np.array([3, 4])], pa.int64()),
    ],
)
def test_a_tensor_takes_the_numbers_that_a_list_takes(value, type_, out):
    for schema in (
        pa.schema([("t", pa.fixed_shape_tensor(type_, (2,)))]),
        pa.schema([("t", pa.list_(type_))]),
    ):
        with pytest.raises(InputError, match="the field t is"):
            shardctl.write(out, {"train": [{"t": value}]}, schema=schema)


@pytest.mark.parametrize(
    "value", [[1, 0.5], [float("nan"), -0.0], [2**24, 1.0], np.array([1, 0.5], ">f4"), (1.0, 2.0)]
)
def test_a_tensor_keeps_the_numbers_that_it_can_hold(value, out):
    schema = pa.schema([("t", pa.fixed_shape_tensor(pa.float32(), (2,)))])
    shardctl.write(out, {"train": [{"t": value}]}, schema=schema)
    assert shardctl.open(out)[0]["t"].tobytes() == np.array(value, np.float32).tobytes()


def test_a_generator_may_use_its_arrays_and_lists_again(out):
    array, image, numbers, sample = (
        np.zeros(2),
        np.zeros((2, 2, 3), np.uint8),
        [0],
        dict[str, Any](),
    )
    data = bytearray(2)

    def samples() -> Any:
        for number in range(1500):  # more than are looked at for their types
            array[:], image[:], numbers[0], data[0] = number, number % 251, number, number % 256
            sample.update(
                tensor=array,
                image=image,
                numbers=numbers,
                nested={"a": [array[0], number]},
                data=data,
            )
            yield sample

    schema = pa.schema(
        {
            "tensor": pa.fixed_shape_tensor(pa.float64(), (2,)),
            "image": pa.fixed_shape_tensor(pa.uint8(), (2, 2, 3)),
            "numbers": pa.list_(pa.int64()),
            "nested": pa.struct({"a": pa.list_(pa.float64())}),
            "data": pa.binary(),
        }
    )
    shardctl.write(out, samples(), schema=schema)
    dataset = shardctl.open(out)
    for number in range(1500):
        row = dataset[number]
        assert row["data"][0] == number % 256
        assert (
            row["tensor"].tolist(),
            row["image"][0, 0, 0],
            list(row["numbers"]),
            list(row["nested"]["a"]),
        ) == (
            [number, number],
            number % 251,
            [number],
            [number, number],
        )


@pytest.mark.parametrize("parts", [None, [1, 2]])
def test_earlier_generations_of_a_dataset_that_is_overwritten_go(tmp_path, out, parts):
    """As where `convert` overwrites it: the new dataset does not remember them."""
    source = tmp_path / "in.jsonl"
    for count in (2, 3):
        source.write_text('{"text": "a"}\n' * count)
        convert(source, out, keep_generations=1, update=count > 2)
    assert (out / "generations" / "00001").exists()
    (out / "generations" / "mine").mkdir()
    shardctl.write(out, two_of if parts else two_of(0), parts=parts, overwrite=True)
    assert [path.name for path in (out / "generations").iterdir()] == ["mine"]
    assert shardctl.verify(out).ok


def two_of(part: int) -> Iterator[dict[str, int]]:
    yield from ({"x": part}, {"x": part + 1})
