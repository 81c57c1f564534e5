"""Values as Python objects, with times that are exact: Python's own have no nanoseconds, and end
with the year 9999."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.format.list_types import is_list

Convert = Callable[[Any], Any]


def python_values(values: pa.Array) -> list[Any]:
    """Return the values of any type as pyarrow converts them, but for times.

    Times in nanoseconds are numpy's, whether pandas is installed or not: datetime64[ns] for
    timestamps (in UTC if they have a time zone), timedelta64[ns] for durations, and for times of
    day, since midnight. So is any other time that Python's types cannot hold, in its own unit.
    """
    if not _has(values.type, _has_nanoseconds):
        try:
            return list(values.to_pylist())
        except (OverflowError, ValueError):
            # a time before the year 1, after 9999, or of an unknown zone
            if not _has(values.type, _is_time):
                raise
    convert = _converter(values.type)
    return [convert(value) for value in values.cast(_as_numbers(values.type)).to_pylist()]


def python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of a batch as dicts of Python objects, with exact times: see
    `python_values`."""
    names, columns = batch.schema.names, [python_values(column) for column in batch.columns]
    return (
        [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        if names
        else [{} for _ in range(batch.num_rows)]
    )


def _is_time(type_: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(type_)) and not pa.types.is_interval(type_)


def _has_nanoseconds(type_: pa.DataType) -> bool:
    return _is_time(type_) and not pa.types.is_date(type_) and type_.unit == "ns"


def _has(type_: pa.DataType, is_such: Callable[[pa.DataType], bool]) -> bool:
    return is_such(type_) or any(_has(field.type, is_such) for field in _parts(type_))


def _parts(type_: pa.DataType) -> list[pa.Field]:
    """Return what lists and structs consist of."""
    if is_list(type_):
        return [type_.value_field]
    return list(type_) if pa.types.is_struct(type_) else []


def _as_numbers(type_: pa.DataType) -> pa.DataType:
    """Return a type with whole numbers for all times, to which it can be cast."""
    if _is_time(type_):
        return pa.int32() if type_.bit_width == 32 else pa.int64()
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(_as_numbers(type_.value_type), type_.list_size)
    if is_list(type_):
        return (pa.large_list if pa.types.is_large_list(type_) else pa.list_)(
            _as_numbers(type_.value_type)
        )
    return (
        pa.struct([(f.name, _as_numbers(f.type)) for f in type_])
        if pa.types.is_struct(type_)
        else type_
    )


def _converter(type_: pa.DataType) -> Convert:
    """Return what makes Python's values of those of `_as_numbers`."""
    if _is_time(type_):
        return lambda number: None if number is None else _time(number, type_)
    if is_list(type_):
        item = _converter(type_.value_type)
        return lambda values: None if values is None else [item(value) for value in values]
    if pa.types.is_struct(type_):
        fields = {f.name: _converter(f.type) for f in type_}
        return lambda values: (
            None
            if values is None
            else {name: fields[name](value) for name, value in values.items()}
        )
    return lambda value: value


def _time(number: int, type_: pa.DataType) -> Any:
    if not _has_nanoseconds(type_):
        try:
            return pa.scalar(number, type_).as_py()
        except (OverflowError, ValueError):
            pass
    if pa.types.is_date(type_):
        return np.datetime64(number, "D" if pa.types.is_date32(type_) else "ms")
    return (np.datetime64 if pa.types.is_timestamp(type_) else np.timedelta64)(number, type_.unit)
