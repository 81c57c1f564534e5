from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from places import file_at

from shardctl.errors import DatasetError, UsageError
from shardctl.format import shard
from shardctl.format.arrays import column_of, rows_at
from shardctl.format.layout import ENCODED_IMAGE, Layout, image_tensor
from shardctl.format.roles import Image
from shardctl.format.shard import (
    CHECKSUM_KEY,
    Compression,
    ShardReader,
    ShardWriter,
    block_checksum,
    shard_schema,
)
from shardctl.system.files import HashingFile, StreamedFile, replacing, sha256_of
from shardctl.system.folders import LocalFolder


def write(
    path: Path, rows: list[tuple[Any, ...]], columns: pa.Schema, compression: str, size: int = 100
) -> HashingFile:
    layout = Layout.by_name("image", columns, Image("raw"), ("a", "b"))
    with replacing(path, StreamedFile) as sink:
        writer = ShardWriter(sink, shard_schema(layout, "train", 0), Compression.parse(compression))
        for row in rows:
            writer.add(row, size)
        writer.finish()
    return sink


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("bytes_written", [100, 5000, 3 * 2**20 + 17])
def test_the_sha256_is_that_of_the_file(tmp_path, compression, bytes_written):
    image = {"bytes": np.random.default_rng(0).bytes(bytes_written), "path": "k.jpg"}
    columns = pa.schema({"key": pa.string(), "image": ENCODED_IMAGE})
    sink = write(tmp_path / "s.arrow", [("k", (*image.values(),))], columns, compression)
    assert sink.sha256 == sha256_of(tmp_path / "s.arrow")
    (found,) = ShardReader(LocalFolder(tmp_path), "s.arrow").block(0).column("image").to_pylist()
    assert found == image


def test_blocks_are_cut_by_size_and_a_large_sample_has_one_of_its_own(tmp_path):
    columns = pa.schema({"key": pa.string()})
    for size, rows in ((400_000, [2] * 5), (5_000_000, [1] * 10)):
        write(tmp_path / "s.arrow", [(f"{n}",) for n in range(10)], columns, "zstd", size)
        blocks = ShardReader(LocalFolder(tmp_path), "s.arrow").blocks()
        assert [block.num_rows for block in blocks] == rows


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_no_changed_byte_of_a_block_goes_unnoticed(tmp_path, compression):
    path = tmp_path / "s.arrow"
    pixels = np.arange(18, dtype=np.uint8).reshape(3, 2, 3)
    columns = pa.schema({"key": pa.string(), "image": image_tensor((3, 2, 3))})
    write(path, [(f"key{n}", pixels + n) for n in range(50)], columns, compression)
    data = path.read_bytes()
    written = ShardReader(*file_at(path)).block(0)
    body = data.index(CHECKSUM_KEY) + 300
    footer = len(data) - 10 - int.from_bytes(data[-10:-6], "little")
    noticed = 0
    for place in range(body, footer, 3):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        try:
            reader = ShardReader(*file_at(path))
            intact = reader.checked_block(0)[1]
            assert not intact or reader.block(0).equals(written), f"byte {place}"
        except DatasetError:
            intact = False
        noticed += not intact
    assert noticed > (footer - body) / 3 * 0.7, "only padding may change unnoticed"


def test_a_shard_that_is_not_one_is_named(tmp_path):
    (tmp_path / "text").write_text("no arrow")
    pa.ipc.new_file(str(tmp_path / "other"), pa.schema({"x": pa.int64()})).close()
    for name, said in (
        ("text", "text: not a readable Arrow file"),
        ("absent", "no such shard"),
        ("other", "not one of shardctl's"),
    ):
        with pytest.raises(DatasetError, match=said):
            ShardReader(LocalFolder(tmp_path), name)


@pytest.mark.parametrize("text", ["gzip", "zstd:0", "zstd:23", "lz4:3", "zstd:"])
def test_an_unknown_compression_is_refused(text):
    with pytest.raises(UsageError, match="compression"):
        Compression.parse(text)


def test_a_failed_write_leaves_what_was_there(tmp_path):
    (tmp_path / "file").write_text("old")

    def broken_off() -> None:
        with replacing(tmp_path / "file") as sink:
            sink.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "old"}


SCALARS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int": (pa.int8(), st.integers(-100, 100)),
    "token": (pa.uint16(), st.integers(0, 65_535)),
    "float": (pa.float64(), st.floats(allow_nan=False)),
    "string": (pa.string(), st.text("aé", max_size=20)),
    "large_string": (pa.large_string(), st.text("aé", max_size=20)),
    "binary": (pa.binary(), st.binary(max_size=20)),
    "fixed": (pa.binary(4), st.just(b"abcd")),
    "null": (pa.null(), st.none()),
}


@st.composite
def types(draw: st.DrawFn, depth: int = 2) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """A type of a column, and its values, with or without missing ones."""
    missing = st.none() if draw(st.booleans()) else st.nothing()
    shape = (
        draw(st.sampled_from(("plain", "plain", "list", "large_list", "fixed_list", "struct")))
        if depth
        else "plain"
    )
    if shape == "plain":
        type_, values = SCALARS[draw(st.sampled_from(sorted(SCALARS)))]
        return type_, values if type_ == pa.null() else missing | values
    inner, values = draw(types(depth - 1))
    if shape == "struct":
        return pa.struct({"a": inner, "b": pa.int32()}), missing | st.fixed_dictionaries(
            {"a": values, "b": st.just(1)}
        )
    if shape == "fixed_list":
        return pa.list_(inner, 2), missing | st.lists(values, min_size=2, max_size=2)
    made = pa.large_list(inner) if shape == "large_list" else pa.list_(inner)
    return made, missing | st.lists(values, max_size=3)


@given(st.data())
@examples(40)
def test_rows_and_batches_of_any_types_come_out_with_the_checksums_of_a_reader(data):
    chosen = data.draw(st.lists(types(), min_size=1, max_size=3))
    schema = pa.schema([(f"c{place}", type_) for place, (type_, _) in enumerate(chosen)])
    rows = st.tuples(*(values for _, values in chosen))
    batches = []
    for drawn in data.draw(st.lists(st.lists(rows, max_size=25), min_size=1, max_size=4)):
        columns = [
            pa.array([row[place] for row in drawn], f.type) for place, f in enumerate(schema)
        ]
        part = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 25))
        batches.append(pa.record_batch(columns, schema=schema).slice(*part))
    expected = pa.Table.from_batches(batches, schema).to_pylist()
    compression = data.draw(st.sampled_from(("none", "lz4", "zstd", "zstd:19")))
    for by_rows in (False, True):
        sink = pa.BufferOutputStream()
        with pytest.MonkeyPatch.context() as patch:  # blocks of a few rows
            patch.setattr(shard, "PLAIN_BLOCK_BYTES", 200)
            patch.setattr(shard, "COMPRESSED_BLOCK_BYTES", 200)
            writer = ShardWriter(sink, schema, Compression.parse(compression))
        for batch in batches:
            if not by_rows:
                writer.add_batch(batch)
        for row in expected if by_rows else ():
            writer.add(tuple(row.values()), 50)
        writer.finish()
        reader = pa.ipc.open_file(sink.getvalue())
        assert reader.read_all().to_pylist() == expected
        for block in range(reader.num_record_batches):
            read, metadata = reader.get_batch_with_custom_metadata(block)
            assert read.num_rows
            assert metadata[CHECKSUM_KEY].decode() == block_checksum(read)


@pytest.mark.parametrize(
    "dtype", ["int8", "uint16", "int32", "int64", "uint64", "float32", "float64"]
)
def test_numbers_become_the_same_column(dtype):
    numbers = np.arange(40).astype(dtype)
    for each in (numbers, numbers[::3], numbers[:0]):
        column = column_of(each)
        assert column.equals(pa.array(each))
        column.validate(full=True)


@given(st.lists(st.integers(0, 199), max_size=150))
def test_rows_are_those_of_take(rows):
    texts = [str(n) if n % 3 else None for n in range(200)]
    batch = pa.record_batch({"n": pa.array(range(200)), "text": texts})
    for wanted in (np.array(rows, np.int64), np.array(sorted(rows), np.int64)):
        assert rows_at(batch, wanted).equals(batch.take(pa.array(wanted)))
