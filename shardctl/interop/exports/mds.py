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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

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
)
from shardctl.interop.exports.source import Source
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

_SCALARS = {
    pa.int8(): ("int8", "<i1"),
    pa.int16(): ("int16", "<i2"),
    pa.int32(): ("int32", "<i4"),
    pa.int64(): ("int", "<i8"),
    pa.uint8(): ("uint8", "<u1"),
    pa.uint16(): ("uint16", "<u2"),
    pa.uint32(): ("uint32", "<u4"),
    pa.uint64(): ("uint64", "<u8"),
    pa.float16(): ("float16", "<f2"),
    pa.float32(): ("float32", "<f4"),
    pa.float64(): ("float64", "<f8"),
}
"""The encodings of numbers, and how numpy calls the same."""


@dataclass(frozen=True)
class Mds(Export):
    """A shard of MDS for each shard, not compressed."""

    name: ClassVar[str] = "mds"

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
        encodings = _encodings(work.source, work.fields)
        columns = sorted(encodings)
        with (
            naming_the_path(work.folder),
            tempfile.SpooledTemporaryFile(HELD_BYTES, dir=str(work.folder)) as spool,
        ):
            sizes: list[int] = []
            for batch in work.batches():
                values = {
                    name: value
                    for place, each in enumerate(work.fields)
                    for name, value in _encoded(batch, place, each)
                }
                sizes += _write_samples(
                    spool, [values[name] for name in columns], [encodings[name] for name in columns]
                )
            if not sizes:
                return PartResult(0, {})
            config = {
                "column_encodings": [encodings[name][0] for name in columns],
                "column_names": columns,
                "column_sizes": [encodings[name][1] for name in columns],
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


_Encoding = tuple[str, int | None]
"""The name of an encoding of MDS, and the bytes of a value where all have the same."""


def _lacking(number: int, what: str) -> str | None:
    return f"MDS has no missing values, and {number:,} {what} are missing" if number else None


def _is_array(column: Column) -> bool:
    """Return whether all values of a column are arrays that MDS can hold: not empty, and none with
    a gap."""
    type_ = column.type
    if is_packed(type_):
        return 0 not in _shape(type_) and not column.nulls and not column.has_gaps
    if not is_list(type_) or not is_number(type_.value_type):
        return False
    import pyarrow.compute as pc

    return not any(
        array.null_count
        or has_gaps(array)
        or pc.any(pc.equal(pc.list_value_length(array), 0)).as_py()
        for array in column.arrays()
    )


def _shape(type_: pa.DataType) -> tuple[int, ...]:
    return tuple(type_.shape) if isinstance(type_, pa.FixedShapeTensorType) else (type_.list_size,)


def _encodings(source: Source, fields: Sequence[Field]) -> dict[str, _Encoding]:
    """Return the encoding of each column of the shards, by its name."""
    made: dict[str, _Encoding] = {}
    for field in fields:
        made[field.written] = _encoding(source, field)
        if field.form.endswith(WITH_PATHS):
            made[field.written + PATHS] = ("json", None)
    return made


def _encoding(source: Source, field: Field) -> _Encoding:
    type_ = source.exported.columns.field(field.name).type
    if field.form in ("json", "png"):
        return (field.form, None)
    if field.form.startswith("jpeg"):
        return ("jpeg", None)
    if field.form.startswith("image:"):
        return (field.form.removeprefix("image:").removesuffix(WITH_PATHS), None)
    if type_ in _SCALARS:
        name, code = _SCALARS[type_]
        return name, np.dtype(code).itemsize
    if is_packed(type_):
        dtype = dtype_of(type_.value_type)
        shape = _shape(type_)
        size = int(np.prod(shape)) * dtype.itemsize
        return f"ndarray:{dtype.name}:{','.join(map(str, shape))}", size
    if is_list(type_):
        return (f"ndarray:{dtype_of(type_.value_type).name}", None)
    return "str" if is_text(type_) else "bytes", None


Values = Sequence[bytes]
"""The encoded values of a column."""


def _encoded(batch: pa.RecordBatch, place: int, field: Field) -> Iterable[tuple[str, Values]]:
    """Yield the encoded values of a column of a batch, and those of its paths where it has them,
    with their names."""
    array = batch.column(place)
    if is_text(array.type):
        yield field.written, _texts(array)
    elif field.form != "value":
        yield field.written, array.field("bytes").to_pylist()
        if field.form.endswith(WITH_PATHS):
            yield field.written + PATHS, _texts(json_text(array.field("path")))
    elif array.type in _SCALARS:
        data = np.from_dlpack(array).astype(_SCALARS[array.type][1]).tobytes()
        size = len(data) // len(array)
        yield field.written, [data[at : at + size] for at in range(0, len(data), size)]
    elif is_packed(array.type):
        yield field.written, [_little(values) for values in arrays_of(array)]
    elif is_list(array.type):
        yield field.written, [_ragged(np.asarray(row.values)) for row in array]
    else:
        yield field.written, array.to_pylist()


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
    sink: IO[bytes], columns: Sequence[Values], encodings: Sequence[_Encoding]
) -> list[int]:
    """Write the samples of a batch, and return the bytes of each."""
    open_ended = [
        values for values, encoding in zip(columns, encodings, strict=True) if encoding[1] is None
    ]
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
