"""Arrow values as Python objects, and as JSON.

Python's own times have no nanoseconds, and end with the year 9999: what they cannot hold is numpy's.
JSON comes back without loss, given the type. Numbers, truth values and strings are themselves;
floats are written with the fewest digits that give them back, and NaN and the infinities as
Python's json does (NaN, Infinity, -Infinity). Binary values are Base64, but the counts of an RLE
are its characters, as COCO has them. Decimals are strings. Dates, times and durations are whole
numbers in the unit of their type, since 1970 where they are points in time. A list is a list, a
struct an object, a map a list of [key, value], a tensor the flat list of its numbers. A missing
value is null.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.format.arrays import is_list
from shardctl.format.token_columns import list_offsets

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


_types = pa.types


def to_json(array: pa.Array) -> list[Any]:
    """Return the values of an array as plain JSON values. Raises TypeError for a type that has no
    JSON form."""
    return _writer(array.type)(array)


def from_json(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return the array of which `to_json` gave these values. Raises ValueError or TypeError if they
    are not of the type."""
    try:
        return _read(values, type_)
    except (
        pa.ArrowException,
        OverflowError,
        LookupError,
        AttributeError,
        ArithmeticError,
    ) as error:
        raise ValueError(f"these are no values of type {type_} ({error})") from error


def json_text(array: pa.Array) -> pa.Array:
    """Return the JSON text of each value: an array of strings, none of which is missing."""
    return pa.array([dumps(value) for value in to_json(array)], pa.string())


def dumps(value: Any) -> str:
    """Return plain data as JSON in one line, the same for the same data."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _writer(type_: pa.DataType) -> Callable[[pa.Array], list[Any]]:
    """Return what writes arrays of a type. Raises TypeError."""
    for fits, write in _WRITERS:
        if fits(type_):
            return write
    raise TypeError(f"values of type {type_} have no JSON form")


def check_type(type_: pa.DataType) -> None:
    """Raise TypeError for a type that has no JSON form, or that has such a type inside."""
    to_json(pa.nulls(0, type_))
    if isinstance(type_, pa.BaseExtensionType):
        check_type(type_.storage_type)
    elif _types.is_dictionary(type_):
        check_type(type_.value_type)
    else:
        for place in range(type_.num_fields):
            check_type(type_.field(place).type)


def _plain(array: pa.Array) -> list[Any]:
    return list(array.to_pylist())


def _floats(array: pa.Array) -> list[Any]:
    """Return floats of 16 or 32 bits as the shortest numbers that are nearest to them."""
    narrow = array.to_numpy(zero_copy_only=False).astype(_numpy(array.type))
    exact = narrow.astype(np.float64)
    short = narrow.astype(str).astype(np.float64)
    with np.errstate(over="ignore"):  # the largest float32, written shortly, may round to infinity
        same = short.astype(narrow.dtype) == narrow
    values = np.where(same, short, exact).tolist()
    return _with_nulls(array, values)


def _numpy(type_: pa.DataType) -> Any:
    return np.float16 if _types.is_float16(type_) else np.float32


def _with_nulls(array: pa.Array, values: list[Any]) -> list[Any]:
    if not array.null_count:
        return values
    return [
        value if valid else None
        for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)
    ]


def _base64(array: pa.Array) -> list[Any]:
    return [
        None if value is None else base64.b64encode(value).decode("ascii")
        for value in array.to_pylist()
    ]


def _characters(array: pa.Array) -> list[Any]:
    return [None if value is None else value.decode("latin-1") for value in array.to_pylist()]


def _strings(array: pa.Array) -> list[Any]:
    return [None if value is None else str(value) for value in array.to_pylist()]


def _whole_numbers(array: pa.Array) -> list[Any]:
    return list(array.view(_integer(array.type)).to_pylist())


def _integer(type_: pa.DataType) -> pa.DataType:
    return pa.int32() if type_.bit_width == 32 else pa.int64()


def _intervals(array: pa.Array) -> list[Any]:
    return [None if value is None else list(value) for value in array.to_pylist()]


def _lists(array: pa.Array) -> list[Any]:
    """Return lists of any sort, and maps, of which the values are pairs."""
    if _types.is_fixed_size_list(array.type):
        size = array.type.list_size
        # Missing rows have room among the values: what is there is not theirs.
        values = to_json(array.values.slice(array.offset * size, len(array) * size))
        return _with_nulls(array, [values[at * size : (at + 1) * size] for at in range(len(array))])
    if _types.is_map(array.type):
        offsets = array.offsets.to_pylist()
        first, count = (offsets[0], offsets[-1] - offsets[0]) if offsets else (0, 0)
        keys, items = (to_json(each.slice(first, count)) for each in (array.keys, array.items))
        values = [list(pair) for pair in zip(keys, items, strict=True)]
    else:
        offsets, first = list_offsets(array).tolist(), 0
        values = to_json(array.flatten())  # without what is behind a missing row
    return _with_nulls(
        array, [values[begin - first : end - first] for begin, end in pairwise(offsets)]
    )


def _structs(array: pa.Array) -> list[Any]:
    names = [child.name for child in array.type]
    if len(set(names)) != len(names):
        raise TypeError(
            f"values of type {array.type} have no JSON form: two parts have the same name"
        )
    # Not flatten(): a part keeps its values where the struct is missing, and these are left out
    # below.
    columns = [
        (_characters if _are_counts(array.type, each) else to_json)(array.field(each))
        for each in range(len(names))
    ]
    rows = zip(*columns, strict=True) if columns else [()] * len(array)
    return _with_nulls(array, [dict(zip(names, row, strict=True)) for row in rows])


def _storage(array: pa.Array) -> list[Any]:
    return to_json(array.storage)


def _decoded(array: pa.Array) -> list[Any]:
    return to_json(array.dictionary_decode())


def _is_extension(type_: pa.DataType) -> bool:
    return isinstance(type_, pa.BaseExtensionType)


def _is_narrow_float(type_: pa.DataType) -> bool:
    return bool(_types.is_float16(type_) or _types.is_float32(type_))


def _is_plain(type_: pa.DataType) -> bool:
    return any(
        fits(type_)
        for fits in (
            _types.is_null,
            _types.is_boolean,
            _types.is_integer,
            _types.is_float64,
            _is_text,
        )
    )


def _is_text(type_: pa.DataType) -> bool:
    return bool(
        _types.is_string(type_) or _types.is_large_string(type_) or type_ == pa.string_view()
    )


def _is_binary(type_: pa.DataType) -> bool:
    return any(
        fits(type_)
        for fits in (_types.is_binary, _types.is_large_binary, _types.is_fixed_size_binary)
    ) or (type_ == pa.binary_view())


def _are_counts(type_: pa.StructType, place: int) -> bool:
    """Return whether a part of a struct is the counts of an RLE."""
    return (
        place == 1
        and [part.name for part in type_] == ["size", "counts"]
        and _is_binary(type_.field(1).type)
    )


def _is_temporal(type_: pa.DataType) -> bool:
    return bool(_types.is_temporal(type_)) and not _is_interval(type_)


def _is_interval(type_: pa.DataType) -> bool:
    return bool(type_ == pa.month_day_nano_interval())


def _is_list_or_map(type_: pa.DataType) -> bool:
    return is_list(type_) or bool(_types.is_map(type_))


_WRITERS: tuple[tuple[Callable[[Any], bool], Callable[[pa.Array], list[Any]]], ...] = (
    (_is_extension, _storage),
    (_types.is_dictionary, _decoded),
    (_is_plain, _plain),
    (_is_narrow_float, _floats),
    (_is_binary, _base64),
    (_types.is_decimal, _strings),
    (_is_interval, _intervals),
    (_is_temporal, _whole_numbers),
    (_is_list_or_map, _lists),
    (_types.is_struct, _structs),
)


def _read(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, _read(values, type_.storage_type))
    if _types.is_dictionary(type_):
        return _read(values, type_.value_type).dictionary_encode().cast(type_)
    if _is_plain(type_):
        return pa.array(values, type_)
    if _is_narrow_float(type_):
        missing = np.array([value is None for value in values], np.bool_)
        with np.errstate(over="ignore"):
            narrow = np.array(
                [0.0 if value is None else value for value in values], np.float64
            ).astype(_numpy(type_))
        return pa.array(narrow, type_, mask=missing)
    if _is_binary(type_):
        return pa.array(
            [None if value is None else base64.b64decode(value, validate=True) for value in values],
            type_,
        )
    if _types.is_decimal(type_):
        return pa.array([None if value is None else Decimal(value) for value in values], type_)
    if _is_interval(type_):
        intervals = [
            None if value is None else pa.MonthDayNano([int(part) for part in value])
            for value in values
        ]
        return pa.array(intervals, type_)
    if _is_temporal(type_):
        return pa.array(values, _integer(type_)).view(type_)
    if _is_list_or_map(type_):
        return _read_lists(values, type_)
    if _types.is_struct(type_):
        return _read_structs(values, type_)
    raise TypeError(f"values of type {type_} have no JSON form")


def _read_lists(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    missing = pa.array([value is None for value in values], pa.bool_())
    if any(value is not None and not isinstance(value, list) for value in values):
        raise ValueError("a list was expected")
    if _types.is_fixed_size_list(type_):
        size = type_.list_size
        rows = [[None] * size if value is None else value for value in values]
        if any(len(row) != size for row in rows):
            raise ValueError(f"a list of {size} values was expected")
        inner = _read([item for row in rows for item in row], type_.value_type)
        return pa.FixedSizeListArray.from_arrays(inner, type=type_, mask=missing)
    lengths = [0 if value is None else len(value) for value in values]
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    flat = [item for value in values for item in value or ()]
    # A missing list is marked in the offsets. Not with a mask: for maps there is none.
    marked = pa.array(offsets, mask=np.append(np.asarray(missing.to_pylist(), np.bool_), False))
    if _types.is_map(type_):
        keys, items = ([pair[place] for pair in flat] for place in (0, 1))
        return pa.MapArray.from_arrays(
            marked.cast(pa.int32()),
            _read(keys, type_.key_type),
            _read(items, type_.item_type),
            type=type_,
        )
    class_ = pa.LargeListArray if _types.is_large_list(type_) else pa.ListArray
    width = pa.int64() if _types.is_large_list(type_) else pa.int32()
    return class_.from_arrays(marked.cast(width), _read(flat, type_.value_type), type=type_)


def _read_structs(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    if any(value is not None and not isinstance(value, dict) for value in values):
        raise ValueError("an object was expected")
    missing = pa.array([value is None for value in values], pa.bool_())
    parts = []
    for place, child in enumerate(type_):
        inner = [None if value is None else value[child.name] for value in values]
        if _are_counts(type_, place):
            parts.append(
                pa.array(
                    [None if value is None else value.encode("latin-1") for value in inner],
                    child.type,
                )
            )
        else:
            parts.append(_read(inner, child.type))
    if not parts:
        return pa.array(list(values), type_)
    return pa.StructArray.from_arrays(parts, fields=list(type_), mask=missing)
