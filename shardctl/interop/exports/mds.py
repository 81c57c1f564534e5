"""MDS, the format of MosaicML Streaming: SPLIT/shard.00000.mds for each shard, and
SPLIT/index.json.

A shard, little-endian: the number of samples (u32), where each begins and the last one ends (u32,
from the start of the file), the column encodings as JSON, and the samples. A sample: the sizes of
the values whose encoding has no fixed size (u32), and the values of all columns. Columns are sorted
by name. Streaming 0.13 reads version 2.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import InputError
from shardctl.format.arrays import dtype_of, is_list, is_number, is_text
from shardctl.format.python_values import json_text
from shardctl.interop.exports.base import (
    Column,
    ColumnEncoding,
    Done,
    Export,
    PartResult,
    Work,
    arrays_of,
    check_json,
    has_gaps,
    is_bytes,
    is_packed,
    refuse_taken,
    shape_of,
)
from shardctl.sources.export_description import Field
from shardctl.system.files import FileFacts, StreamedFile, naming_the_path, replacing

MOST_BYTES = 2**32 - 1
"""Places in a shard are 32 bits."""

HELD_BYTES = 256 << 20
"""Bytes of samples that are kept in memory until their places are known; more of them go into a
nameless file."""

COPIED_BYTES = 1 << 20

PATHS = ".path"
"""What the name of the column ends with that has the paths of images, where these are not the
keys."""

WITH_PATHS = "+path"
"""What the form of encoded images ends with that have such a column. It begins with `image:` and
their encoding."""

_NUMBERS = "int8,int16,int32,int64,uint8,uint16,uint32,uint64,float16,float32,float64".split(",")
_SCALARS = {pa.from_numpy_dtype(name): np.dtype(name).newbyteorder("<") for name in _NUMBERS}
"""The types of numbers that have an encoding, and how they are written. The encoding is called as
numpy calls the type, but that of int64 `int`."""


@dataclass(frozen=True)
class Mds(Export):
    """A shard of MDS for each shard, not compressed."""

    def encoding_of(self, column: Column) -> ColumnEncoding | None:
        """Say how a column is encoded: in its own encoding where all of its values have one, as
        JSON else."""
        if column.is_image:
            encoding = {frozenset(["jpg"]): "jpeg", frozenset(["png"]): "png"}.get(
                column.suffixes, "bytes"
            )
            encoded = f"image:{encoding}"
            if column.has_own_paths:
                refuse_taken(column, {column.target + PATHS}, "the paths")
                encoded += WITH_PATHS
            return ColumnEncoding(column.target, encoded, _lacking(column.missing_images, "images"))
        if (form := column.image_form("keep")) is not None:
            return ColumnEncoding(column.target, form, _lacking(column.nulls, "images"))
        if column.type in _SCALARS or is_bytes(column.type):
            return ColumnEncoding(column.target, "value", _lacking(column.nulls, "of its values"))
        if _is_array(column):
            return ColumnEncoding(column.target)
        check_json(column)
        return self.encoding_as_json(column)

    def write(self, work: Work) -> PartResult:
        """Write one shard; none if no sample was chosen of it."""
        columns = sorted(
            (*column, place)
            for place, field in enumerate(work.fields)
            for column in _columns(work.source.type_of(field.name), field)
        )
        names, encodings, fixed, encoders, places = zip(*columns, strict=True)
        with (
            naming_the_path(work.folder),
            tempfile.SpooledTemporaryFile(HELD_BYTES, dir=str(work.folder)) as spool,
        ):
            sizes: list[int] = []
            for batch in work.batches():
                values = [
                    encode(batch.column(place))
                    for encode, place in zip(encoders, places, strict=True)
                ]
                sizes += _write_samples(spool, values, fixed)
            if not sizes:
                return PartResult(0, {})
            config = {
                "column_encodings": encodings,
                "column_names": names,
                "column_sizes": fixed,
                "compression": None,
                "format": "mds",
                "hashes": ["sha256", "xxh3_64"],
                "size_limit": None,
                "version": 2,
            }
            header = json.dumps(config, sort_keys=True).encode()
            ends = np.cumsum([4 + 4 * (len(sizes) + 1) + len(header), *sizes])
            name = f"{work.split}/shard.{work.number:05d}.mds"
            if ends[-1] > MOST_BYTES:
                raise InputError(
                    f"{work.source.shown}: {work.name} becomes {ends[-1]:,} bytes, and a shard "
                    f"of MDS holds {MOST_BYTES:,}; convert with a smaller --shard-size"
                )
            facts, hashes = _write_shard(
                work.path(name),
                struct.pack("<I", len(sizes)) + ends.astype("<u4").tobytes() + header,
                spool,
            )
        data = {"basename": Path(name).name, "bytes": facts.bytes, "hashes": hashes}
        entry = {**config, "raw_data": data, "samples": len(sizes), "zip_data": None}
        return PartResult(len(sizes), {name: facts}, facts={"entry": entry})

    def finish(self, done: Done) -> dict[str, FileFacts]:
        """Write SPLIT/index.json."""
        made: dict[str, bytes] = {}
        for split, of_split in done.of_splits():
            if entries := [each.facts["entry"] for each in of_split if each.facts]:
                index = {"shards": entries, "version": 2}
                made[f"{split}/index.json"] = json.dumps(index, sort_keys=True).encode()
        return done.write(made)


def _lacking(number: int, what: str) -> str | None:
    return f"MDS has no missing values, and {number:,} {what} are missing" if number else None


def _is_array(column: Column) -> bool:
    """Return whether all values of a column are arrays that MDS can hold: not empty, and none with
    a gap."""
    type_ = column.type
    if is_packed(type_):
        return 0 not in shape_of(type_) and not column.nulls and not column.has_gaps
    if not is_list(type_) or not is_number(type_.value_type):
        return False
    import pyarrow.compute as pc

    return not any(
        array.null_count
        or has_gaps(array)
        or pc.any(pc.equal(pc.list_value_length(array), 0)).as_py()
        for array in column.arrays()
    )


Values = Sequence[bytes]
"""The encoded values of a column."""

_Column = tuple[str, str, int | None, Callable[[pa.Array], Values]]
"""The name of a column of MDS, and of its encoding, the bytes of a value where all have the same,
and what encodes them."""


def _columns(type_: pa.DataType, field: Field) -> Iterator[_Column]:
    """Yield what becomes of a column: itself, and the paths of its images where it has them."""
    name, form = field.written, field.form
    if form == "json":
        yield name, form, None, _texts
    elif form != "value":
        encoding = form.removeprefix("image:").removesuffix(WITH_PATHS).partition(":")[0]
        yield name, encoding, None, lambda array: array.field("bytes").to_pylist()
        if form.endswith(WITH_PATHS):
            yield name + PATHS, "json", None, lambda array: _texts(json_text(array.field("path")))
    elif type_ in _SCALARS:
        dtype = _SCALARS[type_]
        encoding = "int" if dtype.name == "int64" else dtype.name
        yield name, encoding, dtype.itemsize, partial(_scalars, dtype)
    elif is_packed(type_):
        dtype, shape = dtype_of(type_.value_type), shape_of(type_)
        encoding = f"ndarray:{dtype.name}:{','.join(map(str, shape))}"
        size = int(np.prod(shape)) * dtype.itemsize
        yield name, encoding, size, lambda array: list(map(_little, arrays_of(array)))
    elif is_list(type_):
        encoding = f"ndarray:{dtype_of(type_.value_type).name}"
        yield name, encoding, None, lambda array: [_ragged(np.asarray(row.values)) for row in array]
    elif is_text(type_):
        yield name, "str", None, _texts
    else:
        yield name, "bytes", None, pa.Array.to_pylist


def _scalars(dtype: np.dtype[Any], array: pa.Array) -> Values:
    data, size = np.from_dlpack(array).astype(dtype).tobytes(), dtype.itemsize
    return [data[at : at + size] for at in range(0, len(data), size)]


def _texts(array: pa.Array) -> Values:
    return [text.encode() for text in array.to_pylist()]


def _little(values: Any) -> bytes:
    return bytes(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes())


def _ragged(values: Any) -> bytes:
    """Return a list of numbers as the encoding ndarray has it: axes and width of their lengths in a
    byte, lengths, values."""
    width = next(place for place in range(4) if len(values) < 1 << (8 << place))
    return bytes([1 << 2 | width]) + len(values).to_bytes(1 << width, "little") + _little(values)


def _write_samples(
    sink: IO[bytes], columns: Sequence[Values], fixed: Sequence[int | None]
) -> list[int]:
    """Write the samples of a batch, and return the bytes of each. Columns have values of a `fixed`
    size, or of any (None)."""
    open_ended = [values for values, size in zip(columns, fixed, strict=True) if size is None]
    sizes = []
    for row in range(len(columns[0])):
        head = struct.pack(f"<{len(open_ended)}I", *(len(values[row]) for values in open_ended))
        sizes.append(sink.write(b"".join([head, *(values[row] for values in columns)])))
    return sizes


def _write_shard(path: Path, header: bytes, samples: IO[bytes]) -> tuple[FileFacts, dict[str, str]]:
    """Write a shard, and return what it is, and its checksums by the names that Streaming has for
    them."""
    samples.seek(0)
    digest = xxhash.xxh3_64()
    with replacing(path, StreamedFile) as sink:
        chunk = header
        while chunk:
            sink.write(chunk)
            digest.update(chunk)
            chunk = samples.read(COPIED_BYTES)
    return sink.facts, {"sha256": sink.sha256, "xxh3_64": digest.hexdigest()}
