"""Samples that are made in Python, written as a dataset."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xxhash
from conftest import examples
from dataset_facts import expect_whole, sums
from dataset_files import shard_in, tables_in
from followed_sources import write_lines
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert, repair
from PIL import Image
from written_samples import Sample, pixels, plain

import shardctl
from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.names import PLAN
from shardctl.format.tables import open_table


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
    shardctl.write(out.with_name("again"), texts(2500), samples_per_shard=1000)
    assert sums(out) == sums(out.with_name("again"))
    assert plain(ds) == [{"key": f"{n:09d}", **sample} for n, sample in enumerate(texts(2500))]
    expect_whole(out, "deep")


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


UNFIT: dict[str, Any] = {
    "there is no sample to write": [],
    r"sample 0 is 7 \(int\), not a dict": [7],
    r"n has values of several types, 1 \(int\) in sample 0 .* 1;": [{"n": 1}, {"n": "x"}],
    "sample 1: the field n is .*, which no column holds": [{"n": 1}, {"n": 1j}],
    r"sample 2,000 \(000002000\): the field n is 1.5 \(float\)": [*FIRST, {"n": 1.5}],
    "has a field m, which is not in the first samples; give a schema": [*FIRST, {"m": 1}],
    r"sample 0: its key is 5 \(int\)": [{"key": 5}],
    "its key .* must be a string of UTF-8": [{"key": "a\ud800", "x": 1}],
    "make it a list": [{"n": {1, 2}}],
    "sample 0 .*: not an image": [{"image": b"no image"}],
    "all are uint8": [{"image": np.zeros((2, 2), np.uint8)}],
    "store raw needs one size": [{"image": pixels(0)}, {"image": pixels(1, 5)}],
    "the split test has no sample": {"train": FIRST, "test": []},
    "the split train has no sample": {"train": iter([]), "test": FIRST},
    "the samples 0 and 2 have the key a": [{"key": "a"}, {"key": "b"}, {"key": "a"}],
    "the samples 1,999 and 2,000 have": [*FIRST, {"n": 1, "key": "000001999"}],
    "the samples 0 and 1 have the key a": {"train": [{"key": "a"}], "val": [{"key": "a"}]},
    "samples 0 and 2 have the key a": [{"key": "a", "variant": n} for n in (0, 1, 0)],
}


MISUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "encoded images are kept": ([{"image": encoded(0)}], {"store": "png"}),
    "the samples have no label": (FIRST, {"classes": ["dog"]}),
    "is for images": (FIRST, {"store": "png"}),
    "compression 'rar' is not known": (FIRST, {"compression": "rar"}),
    "samples_per_shard must be a whole number from 1 on": (FIRST, {"samples_per_shard": 0}),
    "a shard size of 5": (FIRST, {"shard_size": 5}),
    "split name '../up'": ({"../up": FIRST}, {}),
}


@pytest.mark.parametrize("message", [*UNFIT, *MISUSED])
def test_what_cannot_be_written_is_said_and_nothing_is_left(tmp_path, out, message):
    samples, options = MISUSED.get(message) or (UNFIT[message], {})
    with pytest.raises(UsageError if message in MISUSED else InputError, match=message):
        shardctl.write(out, samples, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_label_that_is_no_class_is_refused(out):
    with pytest.raises(InputError, match="and no class"):
        shardctl.write(out, [{"label": "bird"}], classes=["dog"])


def test_different_keys_are_no_repetition_whatever_their_hashes(tmp_path, out, monkeypatch):
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", len)
    samples = [{"key": f"{n:04}"} for n in range(3000)]
    shardctl.write(out, samples, samples_per_shard=500)
    assert shardctl.open(out)[2999]["key"] == "2999"
    with pytest.raises(InputError, match="the samples 7 and 3,000 have the key 0007"):
        shardctl.write(tmp_path / "more", [*samples, samples[7]], samples_per_shard=500)


def test_what_the_callers_own_code_raises_is_named_by_sample(tmp_path, out):
    def failing() -> Iterator[Sample]:
        yield from texts(3000)
        raise OSError("my camera is gone")

    said = r"^sample 3,000: making it raised OSError: my camera is gone$"
    with pytest.raises(InputError, match=said) as raised:
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
    assert open_table(dataset_in(out), PLAN).num_rows == 0
    before, paths = sums(out), sorted(out.rglob("*"))
    for path in [out / "manifest.json", *tables_in(out).iterdir()]:
        path.unlink()
        assert repair(out).repaired == (path.name,)
        assert (sums(out), sorted(out.rglob("*"))) == (before, paths)
    (shard_in(out, "train-00001")).unlink()
    (unrepaired,) = repair(out).unrepaired
    assert unrepaired.file == "train-00001"
    assert "shardctl.write made its samples" in unrepaired.message


def test_one_block_is_in_memory_at_a_time(tmp_path, out):
    """The samples are taken as they are written: a generator has not gone on far beyond what is in
    the file."""
    ahead = []

    def many() -> Iterator[Sample]:
        for number in range(4000):
            written = sum(path.stat().st_size for path in tmp_path.rglob("*.arrow"))
            ahead.append((number + 1) * 4000 - written)
            yield {"blob": number.to_bytes(4, "big") * 1000}

    result = shardctl.write(out, many(), compression="none", shard_size=2 << 20)
    assert max(ahead) < 16 << 20
    assert result.shards >= 4
    assert result.samples == len(ahead)


def test_keys_of_variants_are_told_apart_whatever_they_are(tmp_path, out):
    shardctl.write(out, [{"key": "2 x", "variant": "1"}, {"key": "x", "variant": "1 2"}])
    assert len(shardctl.open(out)) == 2
    shardctl.write(tmp_path / "one", [{"key": "a", "variant": n} for n in range(3)])
    assert [sample["variant"] for sample in shardctl.open(tmp_path / "one")] == [0, 1, 2]


NAIVE = datetime(2020, 1, 2, 3, 4, 5, 678)


AWARE = NAIVE.replace(tzinfo=timezone.utc)


NO_TIMES: dict[str, list[Any]] = {
    r"several types, .*678 \(datetime\) in sample 0 and .*00:00 .* in sample 1": [NAIVE, AWARE],
    r"several types, .*00:00 \(datetime\) in sample 0 and .*678 .* in sample 1": [AWARE, NAIVE],
    r"sample 1,100 \(000001100\): the field t is .*00:00 \(datetime\)": [*[NAIVE] * 1100, AWARE],
    "sample 0: .* is a list of length 2, which no column holds": [[NAIVE, AWARE]],
    r"sample 1: .* is 03:04:05.000678\+00:00 \(time\)": [NAIVE.time(), AWARE.timetz()],
    "sample 0: .* is 1 months .*, which no column holds": [np.timedelta64(1, "M")],
    r"sample 0: .* \(Timestamp\), .* without a schema": [pd.Timestamp(1)],
}


@pytest.mark.parametrize("message", NO_TIMES)
def test_no_time_is_changed_where_its_type_is_found(message, out):
    with pytest.raises(InputError, match=message):
        shardctl.write(out, [{"t": value} for value in NO_TIMES[message]])


def test_times_with_and_without_a_zone_come_out_as_they_went_in(tmp_path, out):
    east = AWARE.astimezone(timezone(timedelta(hours=2)))
    schema = pa.schema(
        {
            "a": pa.timestamp("us"),
            "b": pa.timestamp("us", "UTC"),
            "c": pa.time64("us"),
            "d": pa.duration("us"),
            "e": pa.timestamp("ns"),
            "f": pa.timestamp("ns", "Europe/Berlin"),
        }
    )
    values = (
        NAIVE,
        AWARE,
        NAIVE.time(),
        NAIVE - NAIVE.replace(day=1),
        *[np.datetime64(1, "ns")] * 2,
    )
    sample = dict(zip("abcdef", values, strict=True))
    shardctl.write(out, [{**sample, "e": pd.Timestamp(1)}, {**sample, "b": east}], schema)
    read = list(shardctl.open(out))
    shardctl.write(tmp_path / "again", read, schema)
    for row in (*read, *shardctl.open(tmp_path / "again")):
        assert {name: row[name] for name in sample} == sample


def test_a_declared_float32_takes_python_floats_and_rounds_them(out):
    narrow = pa.float32()
    schema = pa.schema(
        {
            "a": narrow,
            "b": pa.list_(narrow),
            "c": pa.struct({"d": pa.float16()}),
            "t": pa.fixed_shape_tensor(narrow, (1, 2)),
        }
    )
    # what numpy's means are is a float of Python too
    samples = [
        {"a": tenth, "b": [tenth, 2.5, 3], "c": {"d": tenth}, "t": [[tenth, float("inf")]]}
        for tenth in (0.1, np.float64(0.1))
    ]
    shardctl.write(out, samples, schema)
    near = float(np.float32(0.1))
    for row in shardctl.open(out):
        assert (row["a"], row["c"]["d"]) == (near, float(np.float16(0.1)))
        assert list(row["b"]) == [near, 2.5, 3]
        assert row["t"].tolist() == [[near, float("inf")]]


@pytest.mark.parametrize(
    "value", [1e300, np.float64(1e300), 2**24 + 1, True, "0.1", np.array([0.1])]
)
def test_what_is_no_float_that_a_declared_float32_rounds_is_refused(value, out):
    type_ = pa.list_(pa.float32()) if isinstance(value, np.ndarray) else pa.float32()
    with pytest.raises(InputError, match=r"the field a is .*; its column is of type"):
        shardctl.write(out, [{"a": value}], pa.schema({"a": type_}))


def test_a_float32_that_nobody_chose_does_not_round(out):
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
    [GRID.T, GRID[:1], [[1, 2, 3], [4, 5]], [[1, 2, 3], [4, 5, None]], GRID + np.float64(0.1), "x"],
)
def test_what_is_no_tensor_of_the_columns_shape_and_type_is_refused_by_name(value, out):
    with pytest.raises(InputError, match="the field t is"):
        shardctl.write(out, {"train": [{"t": value}]}, schema=TENSOR)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("int64", np.ma.MaskedArray([1, 2], [True, False])),
        ("double", [np.ma.masked, 1.0]),
        ("double", [2**53 + 1, 0.5]),
        ("double", [2**64 - 1, 1.0]),
        ("int64", [True, 5]),
        ("double", [True, 5.5]),
        ("int64", range(2)),
        ("uint8", bytearray(b"ab")),
        ("float", [1e300, 0.5]),
        ("float", [2**24 + 1, 0.5]),
        ("int64", [[1, 2]]),
        ("int64", [[1], [2]]),
        ("int64", [np.array([1, 2]), np.array([3, 4])]),
    ],
)
def test_a_tensor_takes_the_numbers_that_a_list_takes(type_, value, out):
    plain = pa.type_for_alias(type_)
    for column in (pa.fixed_shape_tensor(plain, (2,)), pa.list_(plain)):
        with pytest.raises(InputError, match="the field t is"):
            shardctl.write(out, {"train": [{"t": value}]}, schema=pa.schema({"t": column}))


@pytest.mark.parametrize(
    "value", [[1, 0.5], [float("nan"), -0.0], [2**24, 1.0], np.array([1, 0.5], ">f4"), (1.0, 2.0)]
)
def test_a_tensor_keeps_the_numbers_that_it_can_hold(value, out):
    schema = pa.schema([("t", pa.fixed_shape_tensor(pa.float32(), (2,)))])
    shardctl.write(out, {"train": [{"t": value}]}, schema=schema)
    assert shardctl.open(out)[0]["t"].tobytes() == np.array(value, np.float32).tobytes()


def test_a_generator_may_use_its_arrays_and_lists_again(out):
    array, numbers, data, sample = np.zeros(2), [0], bytearray(2), dict[str, Any]()

    def samples() -> Any:
        for number in range(1500):  # more than are looked at for their types
            array[:], numbers[0], data[0] = number, number, number % 256
            nested = {"a": [array[0], number]}
            sample.update(tensor=array, numbers=numbers, nested=nested, data=data)
            yield sample

    schema = pa.schema(
        {
            "tensor": pa.fixed_shape_tensor(pa.float64(), (2,)),
            "numbers": pa.list_(pa.int64()),
            "nested": pa.struct({"a": pa.list_(pa.float64())}),
            "data": pa.binary(),
        }
    )
    shardctl.write(out, samples(), schema=schema)
    for number, row in enumerate(shardctl.open(out)):
        assert (row["data"][0], list(row["numbers"])) == (number % 256, [number])
        assert row["tensor"].tolist() == list(row["nested"]["a"]) == [number, number]
    assert number == 1499


@pytest.mark.parametrize("parts", [None, [1, 2]])
def test_earlier_generations_of_a_dataset_that_is_overwritten_go(tmp_path, out, parts):
    """As where `convert` overwrites it: the new dataset is the next generation, and as many stay as
    are kept."""
    for count in (2, 3):
        source = write_lines(tmp_path / "in.jsonl", [{"text": "a"}] * count)
        convert(source, out, keep_generations=1, update=count > 2)
    (out / "generations" / "mine").mkdir()
    shardctl.write(out, two_of if parts else two_of(0), parts=parts, overwrite=True)
    there = sorted(path.name[:5] for path in (out / "generations").iterdir())
    assert there == ["00002", "00003", "mine"]
    assert [each.number for each in shardctl.open(out).manifest.history] == [1, 2, 3]
    assert len(shardctl.open(out, generation=2)) == 3
    expect_whole(out)


def two_of(part: int) -> Iterator[dict[str, int]]:
    yield from ({"x": part}, {"x": part + 1})
