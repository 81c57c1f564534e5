"""Arrow files, streams and Feather: what pyarrow reads serially comes out, in any units; damage is
named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from arrow_columns import columns_of_all_types
from guarded_memory import astray
from pyarrow import feather
from reading import cut, parts_of, read, spoilt_reads, types_of, units_of

from shardctl.errors import Rejection
from shardctl.sources.formats.arrow import opened
from shardctl.sources.formats.base import CHOSEN
from shardctl.sources.formats.numbered import Numbered

ARROW = Numbered(opened)
TABLE = pa.table(
    {
        "n": pa.array(range(1000)),
        "text": [f"row {n}" for n in range(1000)],
        "label": ["b", "a"] * 500,
    }
)


def write_file(path: Path, table: pa.Table, compression: str | None = None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=300)


def write_stream(path: Path, table: pa.Table) -> None:
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=300)


WRITERS: dict[str, Callable[[Path, pa.Table], None]] = {
    "file": write_file,
    "zstd": lambda path, table: write_file(path, table, "zstd"),
    "stream": write_stream,
    "feather": lambda path, table: feather.write_feather(table, str(path), chunksize=300),
}


WRITERS |= {
    "file": write_file,
    "zstd": lambda path, table: write_file(path, table, "zstd"),
    "stream": write_stream,
    "feather": lambda path, table: feather.write_feather(table, str(path), chunksize=300),
}


@pytest.fixture(params=WRITERS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    WRITERS[request.param](tmp_path / "a.arrow", TABLE)
    return tmp_path / "a.arrow"


def test_all_rows_come_out(path):
    found = read(ARROW, path)
    assert found.numbers == list(range(1, 1001))
    assert found.table.equals(TABLE)


def test_units_of_a_part_give_the_same_rows_in_any_order(path):
    [first, *_] = units_of(cut(ARROW, path))
    assert first.records == 1000  # small record batches are a unit together
    for parts in parts_of(first, 70):
        found = read(ARROW, path, units=parts)
        assert sorted(found.numbers) == list(range(1, 1001))
        assert [row["n"] + 1 for row in found.rows] == found.numbers


@pytest.mark.parametrize("writer", [write_file, write_stream])
@pytest.mark.parametrize("name", columns_of_all_types())
def test_values_of_every_type_are_those_of_a_serial_reading(name, writer, tmp_path):
    column = columns_of_all_types()[name]
    writer(tmp_path / "a.arrow", pa.table({"column": column}))
    found = read(ARROW, tmp_path / "a.arrow").table[0].to_pylist()
    if name == "map":
        found = [each and [tuple(pair.values()) for pair in each] for each in found]
    assert found == column.to_pylist()


def test_strings_of_the_label_column_name_classes(path):
    assert types_of(ARROW, path).labels() == ["a", "b"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not an Arrow file"),
        (b"ARROW1", "not an Arrow file"),
        (b"not an Arrow file", "not an Arrow file"),
        (b"ARROW1" + bytes(40) + b"ARROW1", "not an Arrow file"),
        (b"FEA1" + bytes(100) + b"FEA1", "version 1"),
        (None, "the stream cannot be read"),
    ],
)
def test_a_file_that_is_no_arrow_is_one_sentence(data, says, tmp_path):
    path = tmp_path / "a.arrow"
    write_stream(path, TABLE)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if data is None else data)
    with pytest.raises(Rejection, match=says):
        cut(ARROW, path)


@pytest.mark.parametrize("some", [False, True])
def test_offsets_that_lead_astray_are_looked_at_before_rows_are_chosen(some, tmp_path):
    """The process would end where they are followed."""
    texts = [f"row {n}" for n in range(1, 1001)]
    table = pa.table({"n": range(1000), "text": astray(pa.array(texts), 501)})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    found = read(ARROW, tmp_path / "a.arrow", choose=(lambda rows: rows % 2 == 1) if some else None)
    rejected = [501] if some else [501, 502]
    assert [each[:2] for each in found.rejects] == [(n, "invalid-value") for n in rejected]
    assert found.numbers == [n for n in range(1, 1001, 1 + some) if n not in rejected]
    assert found.table["text"].to_pylist() == [texts[n - 1] for n in found.numbers]


def test_no_damage_ends_in_another_error(path):
    schema = TABLE.schema.with_metadata({CHOSEN: b""})
    assert spoilt_reads(ARROW, path, schema, 100, 20) > 10
