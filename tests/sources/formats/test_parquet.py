"""Parquet files: what pyarrow reads serially comes out, in any units; damage is named."""

from __future__ import annotations

import base64
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest
import xxhash
from arrow_columns import columns_of_all_types
from dataset_facts import rejects_of, stored
from in_this_process import convert
from reading import cut, parts_of, read, spoilt_reads, types_of, units_of

import shardctl
from shardctl.errors import InputError, Rejection
from shardctl.sources.formats.base import CHOSEN, Misfit, Reading
from shardctl.sources.formats.columns import plain_schema
from shardctl.sources.formats.numbered import Numbered
from shardctl.sources.formats.parquet import RowGroups

PARQUET = Numbered(RowGroups)


def write(path: Path, table: pa.Table, **options: object) -> Path:
    pq.write_table(table, path, write_page_checksum=True, **options)
    return path


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    table = pa.table({"n": pa.array(range(1000)), "text": [f"row {n}" for n in range(1000)]})
    return write(tmp_path / "a.parquet", table, row_group_size=300)


@pytest.mark.parametrize("name", columns_of_all_types())
def test_values_of_every_type_are_those_of_a_serial_reading(name, tmp_path):
    path = write(
        tmp_path / "a.parquet", pa.table({"column": columns_of_all_types()[name]}), row_group_size=2
    )
    everything = read(PARQUET, path)
    assert everything.numbers == [1, 2, 3]
    expected, found = pq.read_table(path)[0].to_pylist(), everything.table[0].to_pylist()
    if name == "map":
        found = [each and [tuple(pair.values()) for pair in each] for each in found]
    assert found == expected


def test_a_row_group_is_a_unit_and_its_bytes_are_its_digest(numbers):
    cuts = cut(PARQUET, numbers)
    assert [each.records for each in cuts] == [300, 300, 300, 100]
    whole = read(PARQUET, numbers)
    assert whole.table.equals(pq.read_table(numbers))
    data = numbers.read_bytes()
    assert whole.digests == [
        xxhash.xxh3_64(data[each.offset : each.offset + each.size]).hexdigest() for each in cuts
    ]


def test_units_of_one_row_group_give_the_same_rows_in_any_order(numbers):
    [first, *_] = units_of(cut(PARQUET, numbers))
    for parts in parts_of(first, 70):
        found = read(PARQUET, numbers, units=parts)
        assert sorted(found.numbers) == list(range(1, 301))
        assert [row["n"] + 1 for row in found.rows] == found.numbers


def test_only_chosen_rows_come_out(numbers):
    found = read(PARQUET, numbers, choose=lambda rows: rows % 7 == 0)
    assert found.numbers == list(range(7, 1001, 7))
    assert [row["n"] + 1 for row in found.rows] == found.numbers


def test_columns_that_were_not_found_are_a_misfit_unless_a_person_chose(numbers):
    with pytest.raises(Misfit, match="text"):
        read(PARQUET, numbers, schema=pa.schema([("n", pa.int64())]))
    found = read(PARQUET, numbers, schema=pa.schema([("n", pa.int64())], {CHOSEN: b""}))
    assert found.table.column_names == ["n"]
    assert len(found.table) == 1000


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([300], pa.int8()),
        ([1.5], pa.int64()),
        ([2**53 + 1], pa.float64()),
        (["1"], pa.int64()),
        ([{"a": 1}], pa.struct([])),
    ],
)
def test_a_value_that_would_change_is_a_misfit(values, type_, tmp_path):
    path = write(tmp_path / "a.parquet", pa.table({"a": values}))
    with pytest.raises(Misfit, match="the column a"):
        read(PARQUET, path, schema=pa.schema([("a", type_)]))


def test_mixed_columns_are_json_text(tmp_path):
    path = write(tmp_path / "a.parquet", pa.table({"a": [[1, 2], None], "b": [1.0, 2.5]}))
    found = read(
        PARQUET, path, schema=pa.schema([("a", pa.string()), ("b", pa.string()), ("c", pa.int8())])
    )
    assert found.rows == [
        {"a": "[1, 2]", "b": "1.0", "c": None},
        {"a": None, "b": "2.5", "c": None},
    ]


@pytest.mark.parametrize("zone", [None, "Europe/Paris"])
@pytest.mark.parametrize(
    ("units", "finest"), [(["ms", "ns"], "ns"), (["us", "s", "ms"], "us"), (["ns", "us"], "ns")]
)
def test_times_of_several_units_have_the_finest(units, finest, zone, tmp_path, out):
    """pandas has written ns, ms and us, by its version and that of the file."""
    times = pa.array([1_600_000_000, None, -1], pa.timestamp("s", zone))
    tables = [pa.table({"t": times.cast(pa.timestamp(unit, zone))}) for unit in units]
    convert(written(tmp_path, tables), out)
    type_ = pa.timestamp(finest, zone)
    assert shardctl.open(out).schema.field("t").type == type_
    assert stored(out, "t") == times.cast(type_).to_pylist() * len(units)


def written(folder: Path, tables: list[pa.Table]) -> list[Path]:
    return [write(folder / f"{number}.parquet", each) for number, each in enumerate(tables)]


def test_times_that_the_finest_unit_does_not_hold_are_refused(tmp_path):
    tables = [
        pa.table({"t": pa.array([value], pa.timestamp(unit))})
        for value, unit in ((253402214400000, "ms"), (1, "ns"))
    ]
    with pytest.raises(InputError, match=r"out of bounds timestamp.*else give all files one type"):
        convert(written(tmp_path, tables), tmp_path / "out")


@pytest.mark.parametrize(
    ("values", "type_"), [([0.0, 1.0, None], pa.int64()), ([0.5, 1.0, None], pa.float64())]
)
def test_a_column_that_pandas_made_float_is_the_one_of_the_other_files(
    values, type_, tmp_path, out
):
    tables = [
        pa.table({"label": [2, 1], "tags": [[1], None]}),
        pa.table({"label": values, "tags": [[3.0, None]] * 3}),
    ]
    convert(written(tmp_path, tables), out)
    assert shardctl.open(out).schema.field("label").type == type_
    assert stored(out, "label") == [2, 1, *values]
    assert stored(out, "tags") == [[1], None, *[[3, None]] * 3]


def test_strings_of_the_label_column_name_classes(tmp_path):
    table = pa.table({"x": range(4), "label": pa.array(["b", "a", "", "b"]).dictionary_encode()})
    path = write(tmp_path / "a.parquet", table, row_group_size=2)
    assert types_of(PARQUET, path).labels() == ["a", "b"]
    assert types_of(PARQUET, path, Reading(label="x")).labels() is None


def test_flipped_bytes_of_pages_are_named(numbers):
    data = bytearray(numbers.read_bytes())
    second = cut(PARQUET, numbers)[1]
    data[second.offset + second.size // 2] ^= 0xFF
    numbers.write_bytes(data)
    units = units_of(cut(PARQUET, numbers))
    schema = plain_schema(pq.read_schema(numbers))
    with pytest.raises(Rejection, match="row 301 and what") as caught:
        read(PARQUET, numbers, schema=schema, units=units[1:2])
    assert caught.value.error == "damaged"
    assert read(PARQUET, numbers, schema=schema, units=units[2:]).numbers == list(range(601, 1001))


def test_text_that_is_no_utf8_is_the_reject_of_its_row(tmp_path):
    broken = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xff", b"c"]).buffers())
    path = write(tmp_path / "a.parquet", pa.table({"t": broken}), use_dictionary=False)
    found = read(PARQUET, path)
    assert found.numbers == [1, 3]
    assert [row["t"] for row in found.rows] == ["a", "c"]
    assert [(number, error) for number, error, _ in found.rejects] == [(2, "not-utf8")]


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"not at all a Parquet file", b"PAR1" + bytes(100) + b"PAR1"]
)
def test_a_file_that_is_no_parquet_is_one_sentence(data, tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(data)
    with pytest.raises(Rejection, match="not a Parquet file") as caught:
        cut(PARQUET, path)
    assert caught.value.error == "not-parquet"


@pytest.mark.parametrize("put", [os.replace, shutil.copyfile])  # of its time, or in its place
def test_a_file_that_another_one_of_its_size_replaced_is_read_anew(tmp_path, put):
    """A process reads units one after the other, and keeps what it read of the file before."""
    one, other = (tmp_path / name for name in ("a.parquet", "b.parquet"))
    for path, start in ((one, 0), (other, 10**6)):
        numbers = pa.table({"n": np.arange(start, start + 20_000)})
        write(path, numbers, compression="none", use_dictionary=False, write_statistics=False)
        os.utime(path, (1, 1))
    assert one.stat().st_size == other.stat().st_size
    [unit] = units_of(cut(PARQUET, one))
    schema, found = pa.schema([("n", pa.int64())]), []
    for skip in (0, 10_000):
        part = unit._replace(skip=skip, first=1 + skip, records=10_000)
        found.append(read(PARQUET, one, schema=schema, units=[part]).table["n"][0].as_py())
        if not skip:
            put(other, one)
    assert found == [0, 1_010_000]


def test_no_damage_ends_in_another_error(numbers):
    schema = pa.schema(pq.read_schema(numbers), {CHOSEN: b""})
    assert spoilt_reads(PARQUET, numbers, schema, 150, 3) > 100


@pytest.mark.corpus
def test_real_files_are_read_as_pyarrow_reads_them(corpus):
    compared, rejected = 0, 0
    for path in (corpus / "interop/parquet").rglob("*.parquet"):
        try:
            found = read(PARQUET, path)
        except Rejection:
            rejected += 1
            continue
        expected = pq.read_table(path, partitioning=None)
        assert len(found.numbers) + len(found.rejects) == len(expected), path
        compared += 1
    assert compared > 15
    assert rejected < 10


STRINGS, VIEW = pa.string_view(), pa.list_view(pa.int32())
PAIRS, PLACES = pa.array([2, 2, 2], pa.int32()), pa.array([2, 0, 1], pa.int32())
STRINGS, VIEW = pa.string_view(), pa.list_view(pa.int32())
PAIRS, PLACES = pa.array([2, 2, 2], pa.int32()), pa.array([2, 0, 1], pa.int32())
WORDS = pa.array(["a", "b"], STRINGS)
VIEWS: dict[str, tuple[pa.Array, list[Any]]] = {
    "views": (pa.array([[1, 2], None, [], [3]], VIEW), [[1, 2], None, [], [3]]),
    "large": (pa.array([[1], None, []], pa.large_list_view(pa.int64())), [[1], None, []]),
    "shared": (
        pa.ListViewArray.from_arrays(PLACES, PAIRS, [1, 2, 3, 4]),
        [[3, 4], [1, 2], [2, 3]],
    ),
    "in views": (pa.array([[[1], [2, 3]], []], pa.list_view(VIEW)), [[[1], [2, 3]], []]),
    "in a struct": (pa.array([{"a": [1]}], pa.struct({"a": VIEW})), [{"a": [1]}]),
    "text": (pa.array([None, "more than twelve bytes"], STRINGS), [None, "more than twelve bytes"]),
    "words": (pa.DictionaryArray.from_arrays([1, 0], WORDS), ["b", "a"]),
    "runs": (pa.RunEndEncodedArray.from_arrays([2, 3], WORDS), ["a", "a", "b"]),
}


def write_arrow(path: Path, table: pa.Table, form: str = "file") -> Path:
    new = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
    with new(str(path), table.schema) as writer:
        writer.write_table(table)
    return path


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("form", ["file", "stream"])
def test_views_and_run_ends_of_arrow_come_out_as_what_they_stand_for(form, tmp_path, out):
    for name, (array, values) in VIEWS.items():
        table = pa.table({"x": array, "n": range(len(array))})
        path = write_arrow(tmp_path / f"{name}.arrow", table, form)
        convert(path, out, overwrite=True)
        assert stored(out, "x") == values, name
        if name in ("views", "runs"):
            drawn = convert(path, out, split="train=0.5,val=0.5", overwrite=True)
            assert drawn.samples == len(values), name


@pytest.mark.parametrize("writer", [write, write_arrow])
def test_a_row_that_is_too_large_is_a_reject_and_costs_no_other(writer, tmp_path, out, monkeypatch):
    monkeypatch.setattr("shardctl.sources.formats.columns.RECORD_BYTES", 1000)
    texts = ["a" * 400, "b" * 400, "c" * 2000, "d" * 900, "e" * 1001, "f"]
    words = pa.array(["x", "y" * 900] * 3).dictionary_encode()
    table = pa.table({"text": pa.array(texts, pa.large_string()), "word": words})
    ending = "parquet" if writer is write else "arrow"
    convert(writer(tmp_path / f"in.{ending}", table), out, max_rejects="100%")
    rows = [(row["text"], row["word"]) for row in shardctl.open(out)]
    assert rows == [("a" * 400, "x"), ("f", "y" * 900)]
    assert [reject.error for reject in rejects_of(out)] == ["too-large"] * 4


@pytest.mark.parametrize("permutation", [None, [2, 0, 1]])
@pytest.mark.parametrize("writer", [write, write_arrow])
def test_tensors_keep_their_shape(writer, permutation, tmp_path, out):
    type_ = pa.fixed_shape_tensor(pa.float32(), (2, 3, 4), permutation=permutation)
    numbers = pa.array(np.arange(120, dtype=np.float32))
    holes = pa.array([False, True, False, True, True])
    tensors, some = (
        type_.wrap_array(pa.FixedSizeListArray.from_arrays(numbers, 24, mask=mask))
        for mask in (None, holes)
    )
    table = pa.table({"x": tensors.slice(1), "n": some.slice(0, 4)})
    ending = "parquet" if writer is write else "arrow"
    convert(writer(tmp_path / f"a.{ending}", table), out)
    # By the text of Arrow's format: for three dimensions, to_numpy_ndarray of pyarrow 26 gives
    # numbers twice.
    order = [0, *(1 + place for place in permutation or range(3))]
    truth = np.arange(120).reshape(5, 2, 3, 4).transpose(order)
    found = list(shardctl.open(out))
    assert np.array_equal([sample["x"] for sample in found], truth[1:])
    assert [sample["n"] is None for sample in found] == [False, True, False, True]
    assert np.array_equal([found[0]["n"], found[2]["n"]], truth[[0, 2]])


class OwnKeys(encryption.KmsClient):  # type: ignore[misc]  # pyarrow is untyped
    """Keys that protect nothing: they are written as they are."""

    def __init__(self, _: object) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64decode(key)


@pytest.mark.parametrize("plain_footer", [False, True])
def test_an_encrypted_file_is_no_damaged_one(plain_footer, tmp_path):
    """With a plain footer, pyarrow aborts where it is asked for the place of an encrypted
    column."""
    how = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["n"]}, plaintext_footer=plain_footer
    )
    factory = encryption.CryptoFactory(OwnKeys)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), how)
    path = write(
        tmp_path / "a.parquet",
        pa.table({"n": [1], "text": ["a"]}),
        encryption_properties=properties,
    )
    with pytest.raises(Rejection, match="an encrypted Parquet file; decrypt it first"):
        cut(PARQUET, path)
