"""Megatron's indexed datasets: sequences come out as they are, exports of shardctl too; indexes
that lie are refused."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from in_this_process import convert
from reading import cut, damaged_reads, read, read_apart, types_of

import shardctl
from shardctl.errors import Rejection
from shardctl.sources.formats import Reading, Unit, find_format

MEGATRON = find_format(".megatron", Reading())
CODES = {"<u1": 1, "<i1": 2, "<i2": 3, "<i4": 4, "<i8": 5, "<f8": 6, "<f4": 7, "<u2": 8}


def write(
    folder: Path, sequences: list[list[int]], dtype: str = "<u2", places: list[int] | None = None
) -> Path:
    item, lengths = np.dtype(dtype).itemsize, [len(each) for each in sequences]
    if places is None:
        places = ((np.cumsum(lengths, dtype=int) - lengths) * item).tolist()
    (folder / "a.bin").write_bytes(b"".join(np.array(each, dtype).tobytes() for each in sequences))
    head = b"MMIDIDX\0\0" + struct.pack(
        "<QBQQ", 1, CODES[dtype], len(sequences), len(sequences) + 1
    )
    index = (
        np.array(lengths, "<i4").tobytes()
        + np.array(places, "<i8").tobytes()
        + np.arange(len(sequences) + 1).tobytes()
    )
    (folder / "a.idx").write_bytes(head + index)
    return folder / "a.idx"


@pytest.mark.parametrize("dtype", CODES)
def test_sequences_of_every_type_come_out(dtype, tmp_path):
    path = write(tmp_path, [[1, 2, 3], [], [100]], dtype)
    found = read(MEGATRON, path)
    assert [row["tokens"] for row in found.rows] == [[1, 2, 3], [], [100]]
    assert found.table.schema.field("tokens").type == pa.list_(pa.from_numpy_dtype(np.dtype(dtype)))


def test_sequences_may_lie_in_any_order(tmp_path):
    path = write(tmp_path, [[1, 2], [3], [4, 5, 6]], places=[8, 0, 2])
    (tmp_path / "a.bin").write_bytes(np.arange(6, dtype="<u2").tobytes())
    assert [row["tokens"] for row in read(MEGATRON, path).rows] == [[4, 5], [0], [1, 2, 3]]


def test_units_are_read_apart_and_their_digest_is_of_lengths_and_tokens(tmp_path):
    lengths = np.random.default_rng(0).integers(0, 3000, 900).tolist()
    sequences = [list(range(length)) for length in lengths]
    path = write(tmp_path, sequences)
    assert [row["tokens"] for row in read_apart(MEGATRON, path).rows] == sequences
    [last] = read(MEGATRON, path, units=[Unit(0, 0, 0, 900, 1)]).digests
    data = np.int64(lengths[-1]).tobytes() + np.array(sequences[-1], "<u2").tobytes()
    assert last == xxhash.xxh3_64(data).hexdigest()


def test_the_tokens_must_be_beside(tmp_path):
    path = write(tmp_path, [[1]])
    (tmp_path / "a.bin").unlink()
    with pytest.raises(Rejection, match=r"put a\.bin beside it"):
        types_of(MEGATRON, path)


def test_an_index_of_no_sequences_has_no_units(tmp_path):
    assert cut(MEGATRON, write(tmp_path, [])) == []


@pytest.mark.parametrize("vocabulary", [500, 200_000])
def test_an_export_comes_back(vocabulary, tmp_path, out):
    splits = {"train": [[1, 2, 3, 7], [vocabulary - 1, 7]], "val": [[4, 7]]}
    samples = {split: [{"tokens": each} for each in of] for split, of in splits.items()}
    role = {"role": "tokens", "vocabulary": vocabulary, "eos": 7}
    schema = pa.schema([("tokens", pa.list_(pa.uint32()))])
    shardctl.write(tmp_path / "in", samples, schema, roles={"tokens": role})
    shardctl.export(tmp_path / "in", out, "megatron")
    convert(out, tmp_path / "back")
    for split, documents in splits.items():
        back = shardctl.open(tmp_path / "back", split=split)
        assert [sample["tokens"].tolist() for sample in back] == documents


@pytest.mark.parametrize("places", [[-2, 0], [0, 3], [2**62, 0]])
def test_sequences_outside_of_the_tokens_are_refused(places, tmp_path):
    with pytest.raises(Rejection, match="is not in the file"):
        read(MEGATRON, write(tmp_path, [[1], [2]], places=places))


def test_damage_is_rejected(tmp_path):
    path = write(tmp_path, [[1, 2], [3], [4, 5, 6]])
    size = path.stat().st_size
    # all that were cut, and those with another head
    assert damaged_reads(MEGATRON, path, range(size)) > size + 34
    (tmp_path / "a.bin").write_bytes(b"\1\0\2\0\3\0\4\0\5\0")
    with pytest.raises(Rejection, match="sequence 3 is not in the file"):
        read(MEGATRON, path)
