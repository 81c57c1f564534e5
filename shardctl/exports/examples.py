"""Samples as tf.train.Example: bytes, float32 or int64 lists by name. A missing value is a feature that is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shardctl.exports.arrays import arrays_of, is_number, is_packed
from shardctl.exports.base import Column
from shardctl.exports.description import Field
from shardctl.sources.formats.examples import messages

PATH = "/path"
"""What the name of the feature ends with that has the path of an image, where that is not the key."""

WITH_PATHS = "image+path"
"""The form of encoded images that have such a feature."""

MOST_INT64 = 2**63 - 1

Put = Callable[[Any, int], None]
"""Adds the value of a row to the features of an Example."""


def loss_of(column: Column) -> str | None:
    """Return what an Example cannot hold of a column that is no image, None if it holds all."""
    type_ = column.type
    if is_packed(type_):
        return "some of its lists lack numbers" if column.has_gaps else _loss_of_values(column, type_.value_type)
    if pa.types.is_fixed_size_list(type_) or pa.types.is_list(type_) or pa.types.is_large_list(type_):
        lacks = any(bool(array.flatten().null_count) for array in column.arrays())
        return "some of its lists lack values" if lacks else _loss_of_values(column, type_.value_type)
    return _loss_of_values(column, type_)


def _loss_of_values(column: Column, type_: pa.DataType) -> str | None:
    if pa.types.is_float64(type_):
        return "an Example has float32, which rounds float64"
    if pa.types.is_uint64(type_) and any(_largest(array) > MOST_INT64 for array in column.arrays()):
        return "an Example has int64, and a number is larger"
    if pa.types.is_boolean(type_) or is_number(type_) or _is_bytes(type_):
        return None
    return f"an Example has lists of bytes, float32 or int64, and no {type_}"


def _is_bytes(type_: pa.DataType) -> bool:
    return any(
        fits(type_) for fits in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def _largest(array: pa.Array) -> int:
    values = _flat(array)
    return int(pc.max(values).as_py() or 0)


def _flat(array: pa.Array) -> pa.Array:
    storage = array.storage if isinstance(array, pa.ExtensionArray) else array
    return storage.flatten() if hasattr(storage, "flatten") and pa.types.is_nested(storage.type) else storage


def serialized(batch: pa.RecordBatch, fields: Sequence[Field]) -> Iterator[bytes]:
    """Yield an Example for every sample of a batch, whose columns are those of `fields` under their written names."""
    class_ = messages()
    puts = [put for place, field in enumerate(fields) for put in _puts(batch.column(place), field)]
    for row in range(batch.num_rows):
        example = class_()
        features = example.features.feature
        for put in puts:
            put(features, row)
        yield example.SerializeToString(deterministic=True)


def _puts(array: pa.Array, field: Field) -> Iterator[Put]:
    name = field.written
    if pa.types.is_struct(array.type):  # an image
        yield _put_bytes(name, array.field("bytes"), array)
        if field.form == WITH_PATHS:
            yield _put_bytes(name + PATH, array.field("path").cast(pa.binary()), array)
    elif is_packed(array.type):
        yield _put_arrays(name, array)
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        yield _put_lists(name, array)
    elif _is_bytes(array.type):
        yield _put_bytes(name, array.cast(pa.binary()) if not pa.types.is_large_string(array.type) else array, array)
    else:
        yield _put_numbers(name, array)


def _put_bytes(name: str, values: pa.Array, array: pa.Array) -> Put:
    valid = (array.is_valid() if not array.null_count else pc.and_(array.is_valid(), values.is_valid())).to_pylist()

    def put(features: Any, row: int) -> None:
        data = values[row].as_py() if valid[row] else None
        if data is not None:
            features[name].bytes_list.value.append(data.encode() if isinstance(data, str) else data)

    return put


def _put_numbers(name: str, array: pa.Array) -> Put:
    values, of_floats = array.to_pylist(), pa.types.is_floating(array.type)

    def put(features: Any, row: int) -> None:
        value = values[row]
        if value is not None:
            feature = features[name]
            (feature.float_list if of_floats else feature.int64_list).value.append(value)

    return put


def _put_arrays(name: str, array: pa.Array) -> Put:
    valid = array.is_valid().to_pylist()
    rows = arrays_of(array.fill_null(array[valid.index(True)]) if array.null_count and any(valid) else array)
    of_floats = rows and rows[0].dtype.kind == "f"

    def put(features: Any, row: int) -> None:
        if valid[row]:
            feature = features[name]
            (feature.float_list if of_floats else feature.int64_list).value.extend(rows[row].reshape(-1).tolist())

    return put


def _put_lists(name: str, array: pa.Array) -> Put:
    values, type_ = array.to_pylist(), array.type.value_type

    def put(features: Any, row: int) -> None:
        if values[row] is None:
            return
        feature = features[name]
        if _is_bytes(type_):
            feature.bytes_list.SetInParent()
            feature.bytes_list.value.extend(each.encode() if isinstance(each, str) else each for each in values[row])
        else:
            target = feature.float_list if pa.types.is_floating(type_) else feature.int64_list
            target.SetInParent()
            target.value.extend(values[row])

    return put
