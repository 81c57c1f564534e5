"""The places of blocks, from the last bytes of a file: those that Arrow finds, and nothing astray
in forged ones."""

from __future__ import annotations

import io
import struct

import pyarrow as pa
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

from shardctl.format.stretches import END_BYTES, extents_of, footer_bytes

ROWS = pa.schema({"key": pa.string(), "numbers": pa.list_(pa.int32())})


def arrow_file(blocks: int, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, ROWS, options=options) as writer:
        for number in range(blocks):
            rows = [
                {"key": f"{number}-{row}", "numbers": [number] * 7} for row in range(1 + number % 3)
            ]
            batch = pa.RecordBatch.from_pylist(rows, schema=ROWS)
            writer.write_batch(batch, custom_metadata={b"number": str(number)})
    return sink.getvalue()


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("blocks", [0, 1, 2, 300])
def test_each_stretch_is_a_block(blocks, compression):
    data = arrow_file(blocks, compression)
    tail = data[-footer_bytes(data[-END_BYTES:]) :]
    extents = extents_of(tail, len(data))
    assert len(extents.starts) == blocks
    reader = pa.ipc.open_file(pa.py_buffer(data))
    for number, (start, length) in enumerate(
        zip(extents.starts.tolist(), extents.lengths.tolist(), strict=True)
    ):
        assert struct.unpack_from("<I", data, start) == (0xFFFFFFFF,), "where a message begins"
        message = pa.ipc.read_message(pa.py_buffer(data[start : start + length]))
        assert pa.ipc.read_record_batch(message, ROWS).equals(reader.get_batch(number))


WHOLE = arrow_file(5)
TAIL = WHOLE[-footer_bytes(WHOLE[-END_BYTES:]) :]


def leads_nowhere(tail: bytes, size: int) -> None:
    """Fail unless what a footer says lies in the file, or it is refused."""
    try:
        extents = extents_of(tail, size)
    except ValueError:
        return
    assert (extents.starts >= 0).all()
    assert (extents.lengths > 0).all()
    assert (extents.starts + extents.lengths <= size).all()


@examples(300)
@given(
    st.lists(st.tuples(st.integers(0, len(TAIL) - 1), st.integers(0, 255)), min_size=1, max_size=6)
)
def test_a_forged_footer_leads_nowhere(changes):
    forged = bytearray(TAIL)
    for place, byte in changes:
        forged[place] = byte
    leads_nowhere(bytes(forged), len(WHOLE))


@given(st.binary(max_size=200))
@examples(100)
def test_what_is_no_footer(data):
    for tail in (data, data + b"ARROW1", data + struct.pack("<i", len(data)) + b"ARROW1"):
        leads_nowhere(tail, 1000)


def test_a_dictionary_is_refused(tmp_path):
    sink = io.BytesIO()
    table = pa.table({"a": pa.array(["x", "y", "x"]).dictionary_encode()})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(ValueError, match="dictionaries"):
        extents_of(sink.getvalue(), len(sink.getvalue()))
