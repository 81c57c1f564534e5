"""Samples as tf.train.Example: bytes, float32 or int64 lists by name. A missing value is a feature
that is not there.

The messages (tensorflow/core/example/example.proto and feature.proto) are so plain that they are
written here, byte by byte: each implementation of protobuf has features in an order of its own, and
the same samples are to give the same bytes. They lie in TFRecords (no TensorFlow is needed), or in
files of Google's package array_record.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import StorageError, first_line
from shardctl.format.arrays import is_list, is_number, leaf_of
from shardctl.format.token_columns import list_offsets
from shardctl.interop.exports.base import (
    COMPRESSED,
    Column,
    ColumnEncoding,
    Export,
    PartResult,
    Source,
    Work,
    compressing,
    is_bytes,
    is_packed,
    refuse_taken,
    stored,
)
from shardctl.sources.export_description import Field
from shardctl.sources.formats.tfrecord import HEAD, TAIL, crc32c, masked
from shardctl.system.files import FileFacts, StreamedFile, naming_the_path, replacing, sha256_of
from shardctl.system.packages import needed
from shardctl.system.text import printable

PATH = "/path"
"""What the name of the feature ends with that has the path of an image, where that is not the
key."""

WITH_PATHS = "image+path"
"""The form of encoded images that have such a feature."""

STRUCT = "struct"
"""The form of a struct whose members are features of their own, NAME/MEMBER, as TFDS has dicts."""

MOST_INT64 = 2**63 - 1

BYTES, FLOATS, INTEGERS = (bytes([number << 3 | 2]) for number in (1, 2, 3))
"""What the lists begin with that a Feature can have: the number of the field, and that its length
follows."""

FIRST, SECOND = BYTES, FLOATS
"""What the first and the second field of any message begins with, where its length follows."""

Content = Callable[[int], bytes]
"""Returns the content of the list of a row that has a value."""

Feature = tuple[bytes, bytes, list[bool], Content]
"""The feature of a column: its name, the kind of its lists, which rows have a value, and their
lists."""


class ExampleExport(Export):
    """An export whose records are Examples."""

    def encoding_of(self, column: Column) -> ColumnEncoding | None:
        """Say which feature a column becomes. Raises UsageError if another one has the name of the
        paths of its images."""
        if (form := form_of_images(column)) is not None:
            return ColumnEncoding(column.target, form)
        return ColumnEncoding(column.target, form_of(column), loss_of(column))


def form_of(column: Column) -> str:
    """Return the form of a column that is no image. Raises UsageError if another column has the
    name of a member."""
    if not pa.types.is_struct(column.type):
        return "value"
    members = {f"{column.target}/{member.name}" for member in column.type}
    refuse_taken(column, members, "a member")
    return STRUCT


def loss_of(column: Column) -> str | None:
    """Return what an Example cannot hold of a column that is no image, None if it holds all."""
    type_ = column.type
    if pa.types.is_struct(type_) and type_.num_fields:
        return _loss_of_members(column)
    if not is_packed(type_) and not is_list(type_):
        return _loss_of_values(column, type_)
    lost = _loss_of_values(column, type_.value_type)
    return lost or ("some of its lists lack values" if column.has_gaps else None)


def _loss_of_values(column: Column, type_: pa.DataType) -> str | None:
    if pa.types.is_float64(type_):
        return "an Example has float32, which rounds float64"
    if pa.types.is_uint64(type_) and any(
        (pc.max(array.flatten() if is_list(array.type) else array).as_py() or 0) > MOST_INT64
        for array in map(stored, column.arrays())
    ):
        return "an Example has int64, and a number is larger"
    if pa.types.is_boolean(type_) or is_number(type_) or is_bytes(type_):
        return None
    return f"an Example has lists of bytes, float32 or int64, and no {type_}"


def _loss_of_members(column: Column) -> str | None:
    """Return what an Example cannot hold of a struct: a member that is no list of plain values, a
    value that is missing."""
    for member in column.type:
        if "/" in member.name or not member.name:
            return f"a member is called {member.name!r}, and NAME/MEMBER is the name of a feature"
        type_, depth = leaf_of(member.type)
        if pa.types.is_float64(type_):
            return f"{member.name} is float64, and an Example has float32"
        plain = (
            pa.types.is_boolean(type_)
            or (is_number(type_) and type_ != pa.uint64())
            or is_bytes(type_)
        )
        if not plain or depth > 2 or (depth == 2 and not is_packed(member.type.value_type)):
            return (
                f"an Example has lists of bytes, float32 or int64, and {member.name} is "
                f"{member.type}"
            )
    if any(
        _lacks_values(part) for array in column.arrays() for part in array.drop_null().flatten()
    ):
        return "some of its members lack values"
    return None


def _lacks_values(array: pa.Array) -> bool:
    """Return whether a value is missing, or one in a list."""
    return bool(array.null_count) or (is_list(array.type) and _lacks_values(array.flatten()))


def form_of_images(column: Column) -> str | None:
    """Return the form of a column of images, None for any other. Raises UsageError if another
    column has the name of their paths."""
    if not column.is_image or not column.has_own_paths:
        return column.image_form()
    refuse_taken(column, {column.target + PATH}, "the paths")
    return WITH_PATHS


def serialized(batch: pa.RecordBatch, fields: Sequence[Field]) -> Iterator[bytes]:
    """Yield an Example for every sample of a batch, whose columns are those of `fields` under their
    written names.

    Features are in the order of the bytes of their names.
    """
    columns = [
        column
        for field, array in zip(fields, batch.columns, strict=True)
        for column in _features(array, field)
    ]
    named = [
        (FIRST + varint(len(name)) + name, kind, valid, content)
        for name, kind, valid, content in sorted(columns, key=itemgetter(0))
    ]
    for row in range(batch.num_rows):
        parts: list[bytes] = []
        for name, kind, valid, content in named:
            if valid[row]:
                data = content(row)
                of_list = kind + varint(len(data))
                feature = SECOND + varint(len(of_list) + len(data)) + of_list
                parts += (FIRST, varint(len(name) + len(feature) + len(data)), name, feature, data)
        yield b"".join((FIRST, varint(sum(map(len, parts))), *parts))


def varint(number: int) -> bytes:
    """Return a number, which is not negative, as protobuf writes it: 7 bits in each byte, the
    lowest ones first."""
    if number < 128:
        return _SMALL[number]
    made = bytearray()
    while number >= 128:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


_SMALL = [bytes([number]) for number in range(128)]


def _features(array: pa.Array, field: Field) -> Iterator[Feature]:
    """Yield the features of a column."""
    name = field.written
    if field.form == STRUCT:
        for member, part in zip(array.type, array.flatten(), strict=True):
            yield _feature(f"{name}/{member.name}", part)
    elif pa.types.is_struct(array.type):  # an image
        data, path = array.flatten()
        yield _feature(name, data)
        if field.form == WITH_PATHS:
            yield _feature(name + PATH, path)
    else:
        yield _feature(name, stored(array))


def _feature(name: str, array: pa.Array) -> Feature:
    """Return the feature of a column of plain values or of lists of them."""
    of_lists = is_list(array.type)
    if is_bytes(array.type.value_type if of_lists else array.type):
        kind, content = BYTES, _lists_of_strings(array) if of_lists else _strings(array)
    elif of_lists:
        flat, offsets = array.flatten(), list_offsets(array)
        if is_packed(flat.type):  # a list of lists of one length: all their numbers
            flat, offsets = flat.flatten(), offsets * flat.type.list_size
        kind, content = _packed(flat, offsets)
    else:
        kind, content = _packed(array, np.arange(len(array) + 1))
    return name.encode(), kind, array.is_valid().to_pylist(), content


def _strings(array: pa.Array) -> Content:
    """Return the strings of a column, one by one: all images of a block at once would need its
    memory again."""
    strings = _binary(array)

    def content(row: int) -> bytes:
        data: bytes = strings[row].as_py()
        return FIRST + varint(len(data)) + data

    return content


def _binary(array: pa.Array) -> pa.Array:
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    return array.cast(pa.large_binary() if large else pa.binary())


def _lists_of_strings(array: pa.Array) -> Content:
    items, offsets = _binary(array.flatten()).to_pylist(), list_offsets(array).tolist()
    return lambda row: b"".join(
        FIRST + varint(len(item)) + item for item in items[offsets[row] : offsets[row + 1]]
    )


def _packed(values: pa.Array, offsets: Any) -> tuple[bytes, Content]:
    """Return the kind of the lists that numbers go into, and their content: those of a row lie
    between two offsets."""
    values = values.cast(pa.uint8()) if pa.types.is_boolean(values.type) else values
    # Not asarray: Arrow would ask pandas whether it is there, which takes 0.3 s where it is.
    filled = np.from_dlpack(values.fill_null(0) if values.null_count else values)
    if pa.types.is_floating(values.type):
        kind, data, places = FLOATS, filled.astype("<f4").tobytes(), 4 * np.arange(len(filled) + 1)
    else:
        kind, (data, places) = INTEGERS, varints(filled.astype(np.int64))
    begins = places[offsets].tolist()

    def content(row: int) -> bytes:
        begin, end = begins[row], begins[row + 1]
        return FIRST + varint(end - begin) + data[begin:end] if end > begin else b""

    return kind, content


def varints(numbers: Any) -> tuple[bytes, Any]:
    """Return 64-bit integers one behind the other as protobuf writes them, where each begins, and
    where the last one ends.

    Negative ones have ten bytes: they are written as if they had no sign.
    """
    unsigned = numbers.view(np.uint64)
    most = len(varint(int(unsigned.max(initial=0))))
    sizes = np.ones(len(numbers), np.uint8)
    for byte in range(1, most):
        sizes += unsigned >= np.uint64(1 << 7 * byte)
    rows = np.empty((len(numbers), most), np.uint8)  # each number has room for the longest one
    for byte in range(most):
        rows[:, byte] = (unsigned >> np.uint64(7 * byte)).astype(np.uint8) & 127 | (
            sizes > byte + 1
        ).view(np.uint8) << 7
    kept = np.arange(most, dtype=np.uint8) < sizes[:, None]
    return rows[kept].tobytes(), np.append(0, np.cumsum(sizes, dtype=np.int64))


@dataclass(frozen=True)
class TfRecord(ExampleExport):
    """A TFRecord file for each shard, plain or gzip."""

    compression: str = "none"

    def check(self, source: Source) -> None:
        """Raise InstallError if a package is missing."""
        crc32c()

    def write(self, work: Work) -> PartResult:
        """Write one file; none if no sample was chosen of the shard."""
        name = f"{work.name}.tfrecord{COMPRESSED[self.compression]}"
        samples, facts = write_records(work.batches(), work.fields, work.folder / name)
        return PartResult(samples, {name: facts} if samples else {})


def write_records(
    given: Iterator[pa.RecordBatch], fields: Sequence[Field], path: Path
) -> tuple[int, FileFacts]:
    """Write samples into a file, which may have none, and return how many they are and what the
    file is."""
    checksum = crc32c()
    samples = 0
    with replacing(path, StreamedFile) as sink, compressing(sink, path) as stream:
        for batch in given:
            for data in serialized(batch, fields):
                length = len(data).to_bytes(8, "little")
                head = HEAD.pack(len(data), masked(checksum(length)))
                stream.write(b"".join((head, data, TAIL.pack(masked(checksum(data))))))
            samples += batch.num_rows
    return samples, sink.facts


OPTIONS = {"none": "group_size:1,uncompressed", "zstd": "group_size:1,zstd:3"}
"""What each compression is to the package."""


@dataclass(frozen=True)
class ArrayRecord(ExampleExport):
    """An ArrayRecord file for each shard. Encoded images do not get smaller by compression, and are
    read faster without."""

    compression: str = "none"

    def check(self, source: Source) -> None:
        """Raise InstallError if the package is missing."""
        _module()

    def write(self, work: Work) -> PartResult:
        """Write one file, which has no records if no sample was chosen of the shard."""
        name = f"{work.split}-{work.number:05d}-of-{work.of:05d}.array_record"
        unfinished = work.folder / f"{name}.unfinished"
        samples = 0
        with naming_the_path(work.folder / name):
            try:
                writer = _module().ArrayRecordWriter(str(unfinished), OPTIONS[self.compression])
                for batch in work.batches():
                    for data in serialized(batch, work.fields):
                        writer.write(data)
                    samples += batch.num_rows
                writer.close()
            except RuntimeError as error:  # the package's own
                raise StorageError(
                    f"{printable(work.folder / name)}: cannot be written ({first_line(error)})"
                ) from error
            with open(unfinished, "rb+") as file:
                os.fsync(file.fileno())
            facts = FileFacts(unfinished.stat().st_size, sha256_of(unfinished))
            unfinished.rename(work.folder / name)
        return PartResult(samples, {name: facts})


def _module() -> Any:
    return needed("array_record.python.array_record_module", "array-record", "ArrayRecord")
