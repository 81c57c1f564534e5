"""MDS: shards as MosaicML Streaming wrote them, with all encodings; indexes that lie; nothing is
unpickled."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from containers import INTEROP, Promises, expected
from in_this_process import convert
from reading import READING, cut, read, types_of

import shardctl
from shardctl.errors import InputError, Rejection
from shardctl.sources.formats import ending_of, find_format
from shardctl.sources.formats.base import Reading
from shardctl.sources.formats.framed import Framed
from shardctl.sources.formats.mds import MdsShard

FORM = Framed(MdsShard)


def shard(
    columns: dict[str, tuple[str, int | None]], samples: list[bytes], **changes: Any
) -> bytes:
    config = {
        "column_names": list(columns),
        "column_encodings": [encoding for encoding, _ in columns.values()],
        "column_sizes": [size for _, size in columns.values()],
        "format": "mds",
        "version": 2,
        **changes,
    }
    text = json.dumps(config).encode()
    ends = 8 + 4 * len(samples) + len(text) + np.cumsum([0, *map(len, samples)])
    return struct.pack("<I", len(samples)) + ends.astype("<u4").tobytes() + text + b"".join(samples)


def value(data: bytes, free: bool = True) -> bytes:
    return struct.pack("<I", len(data)) + data if free else data


def read_one(encoding: str, size: int | None, *values: bytes, path: Path) -> Any:
    path.write_bytes(shard({"x": (encoding, size)}, [value(each, size is None) for each in values]))
    return read(FORM, path)


def sample(number: int) -> bytes:
    return value(bytes([255]) * (50 + 5 * number)) + struct.pack("<q", number)


class TestMds(Promises):
    form = MdsShard
    suffix = ".mds"

    def whole(self, count: int) -> bytes:
        return shard(
            {"data": ("bytes", None), "id": ("int", 8)}, [sample(number) for number in range(count)]
        )

    def starts(self, count: int) -> list[int]:
        data = self.whole(count)
        return [int(place) for place in np.frombuffer(data[4 : 8 + 4 * count], "<u4")]


@pytest.mark.parametrize("name", ["plain", "packed"])
def test_samples_are_those_that_streaming_reads(name):
    wanted = expected("mds")
    for plain, rows in wanted.items():
        path = INTEROP / "mds" / name / (Path(plain).name + (".zstd" if name == "packed" else ""))
        found = read(find_format(ending_of(path.name, str(path)), READING), path)
        assert found.rejects == []
        for row, theirs in zip(found.rows, rows, strict=True):
            json_text = json.dumps(theirs["json"], ensure_ascii=False)
            assert row == {
                **theirs,
                "json": json_text if isinstance(row["json"], str) else theirs["json"],
            }
    assert len(wanted) > 2


def test_columns_have_the_types_of_their_encodings():
    types = types_of(FORM, INTEROP / "mds" / "plain" / "shard.00000.mds").found()
    wanted = {
        **{name: name for name in ("uint8", "uint64", "int8", "int16")},
        "float16": "halffloat",
        "float32": "float",
        "bytes": "binary",
        "png": "binary",
        "jpegs": "list<item: binary>",
        "str": "string",
        "str_int": "int64",
        "str_decimal": "string",
        "fixed": "list<item: list<item: int32>>",
        "matrix": "list<item: list<item: float>>",
    }
    assert {f.name: str(f.type) for f in types if f.name in wanted} == wanted


def test_a_folder_is_read_once_where_its_shards_are_there_compressed_too(tmp_path, out):
    source = Path(shutil.copytree(INTEROP / "mds" / "plain", tmp_path / "in"))
    for path in sorted(source.glob("*.mds")):
        (source / f"{path.name}.zstd").write_bytes(zstandard.compress(path.read_bytes()))
    result = convert(source, out)
    assert (result.samples, result.rejected) == (5, 0)
    assert any("4 files" in each and "uncompressed too" in each for each in result.notices)
    assert len(shardctl.open(out)) == 5


def test_pickles_are_refused(tmp_path):
    with pytest.raises(Rejection, match="pickle holds pickles, which can run any code"):
        cut(FORM, INTEROP / "mds" / "pickles" / "shard.00000.mds")


@pytest.mark.parametrize(
    ("encoding", "size", "stored"),
    [
        ("str", None, b"\xff"),
        ("json", None, b'{"a":1,"a":2}'),
        ("str_int", None, b"1.5"),
        ("str_decimal", None, b"x"),
        ("ndarray", None, b"\x08\x04\x02a"),
        ("ndarray", None, b"\x08\x07" + b"\xff" * 8 + b"a"),
        ("ndarray:int32", None, b"\x04\x01abc"),
        # billions of empty lists, in one and in two dimensions
        ("ndarray:int32", None, b"\x0a" + struct.pack("<2I", 2**32 - 1, 0)),
        ("ndarray:int32", None, b"\x0e" + struct.pack("<3I", 2**16, 2**16, 0)),
        ("ndarray:int32:2,2", 12, bytes(12)),
        ("list[png]", None, bytes(4) + struct.pack("<2I", 1, 9) + b"short"),
        ("jpeg_array", None, struct.pack("<I", 2**32 - 1)),
    ],
)
def test_a_value_that_is_not_as_the_columns_say_is_the_reject_of_its_sample(
    encoding, size, stored, tmp_path
):
    [(number, error, message)] = read_one(encoding, size, stored, path=tmp_path / "a.mds").rejects
    assert (number, error) == (1, "not-json" if encoding == "json" else "bad-value")
    assert "its x" in message


def test_numbers_that_no_integer_holds_stay_exact(tmp_path):
    found = read_one("str_int", None, str(10**30).encode(), b"7", path=tmp_path / "a.mds")
    assert found.rows == [{"x": str(10**30)}, {"x": "7"}]


@pytest.mark.parametrize(
    "changes",
    [
        {"column_names": ["x", "x"], "column_encodings": ["int", "int"], "column_sizes": [8, 8]},
        {"column_names": ["x", "y"]},
        {"column_names": 3},
        {"column_names": [3]},
        {"column_sizes": [4]},
        {"column_sizes": [8.0]},
        {"column_encodings": ["ndarray:int8:a"]},
        {"column_encodings": [["int"]]},
    ],
)
def test_columns_that_cannot_be_read_are_one_sentence(changes, tmp_path):
    path = tmp_path / "a.mds"
    path.write_bytes(shard({"x": ("int", 8)}, [bytes(8)], **changes))
    with pytest.raises(Rejection, match="its columns cannot be read") as caught:
        cut(FORM, path)
    assert caught.value.error == "bad-columns"


@pytest.mark.parametrize("encoding", ["pil", "pkl"])
def test_a_column_that_is_not_read_can_be_left_out(encoding, tmp_path):
    path = tmp_path / "a.mds"
    columns: dict[str, tuple[str, int | None]] = {"x": (encoding, None), "y": ("int", 8)}
    path.write_bytes(shard(columns, [value(b"abc") + struct.pack("<q", 7)]))
    with pytest.raises(Rejection, match=r"leave the column out \(--fields\)") as caught:
        cut(FORM, path)
    assert caught.value.error == "unsupported"
    assert read(FORM, path, Reading(only=("y",))).rows == [{"y": 7}]


@pytest.mark.parametrize(
    "numbers",
    [
        (2**32 - 1, 2**31),
        (2, 20, 19, 40),
        (2, 20, 20, 20),
        (1, 2**31, 2**31 + 1),
        (1, 4, 8),
    ],
)
def test_places_that_no_samples_have_are_no_shard(numbers, tmp_path):
    path = tmp_path / "a.mds"
    path.write_bytes(struct.pack(f"<{len(numbers)}I", *numbers) + bytes(40))
    with pytest.raises(Rejection) as caught:
        cut(FORM, path)
    assert caught.value.error in ("not-mds", "bad-columns")


def test_an_index_that_says_something_else_of_a_shard_rejects_it(tmp_path):
    source = Path(shutil.copytree(INTEROP / "mds" / "plain", tmp_path / "in"))
    text = (source / "index.json").read_text()
    for place in (("samples",), ("raw_data", "bytes")):
        index = json.loads(text)
        described = index["shards"][0]
        for name in place[:-1]:
            described = described[name]
        described[place[-1]] += 1
        (source / "index.json").write_text(json.dumps(index))
        with pytest.raises(Rejection, match=r"index\.json says") as caught:
            cut(FORM, source / "shard.00000.mds")
        assert caught.value.error == "not-as-listed"
        assert cut(FORM, source / "shard.00001.mds")


def test_a_shard_that_is_listed_and_missing_is_an_error_and_one_that_is_not_listed_is_left_out(
    tmp_path, out
):
    source = Path(shutil.copytree(INTEROP / "mds" / "packed", tmp_path / "in"))
    shutil.copy(source / "shard.00000.mds.zstd", source / "shard.00099.mds.zstd")
    result = convert(source, out)
    assert result.samples == 5
    assert "shard.00099.mds.zstd" in str(result.notices)
    (source / "shard.00001.mds.zstd").unlink()
    with pytest.raises(InputError, match=r"shard\.00001\.mds\.zstd, which is not there"):
        convert(source, tmp_path / "again")


def test_a_shard_that_begins_like_compressed_data_is_read(tmp_path):
    """Its number of samples is the beginning of zlib data."""
    path = tmp_path / "a.mds"
    path.write_bytes(shard({"x": ("int8", 1)}, [b"\1"] * 0x9C78))
    assert path.read_bytes()[:2] == b"\x78\x9c"
    assert sum(each.records for each in cut(FORM, path)) == 0x9C78
