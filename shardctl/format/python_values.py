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

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.format.arrays import is_list, items_of
from shardctl.format.token_columns import list_offsets


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
            if not _has(values.type, _is_temporal):
                raise
    return _with_exact_times(values)


def python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of a batch as dicts of Python objects, with exact times: see
    `python_values`."""
    names, columns = batch.schema.names, [python_values(column) for column in batch.columns]
    if not names:
        return [{} for _ in range(batch.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _has(type_: pa.DataType, is_such: Callable[[pa.DataType], bool]) -> bool:
    """Return whether a type is such, or one of those that its lists and structs consist of."""
    inner = [type_.value_field] if is_list(type_) else type_ if _types.is_struct(type_) else ()
    return is_such(type_) or any(_has(field.type, is_such) for field in inner)


def _has_nanoseconds(type_: pa.DataType) -> bool:
    return _is_temporal(type_) and not _types.is_date(type_) and type_.unit == "ns"


def _with_exact_times(array: pa.Array) -> list[Any]:
    if _is_temporal(array.type):
        return _each(partial(_time, array.type), _whole_numbers(array))
    if is_list(array.type):
        return _lists(array, _with_exact_times)
    if _types.is_struct(array.type):
        return _structs(array, _with_exact_times)
    return list(array.to_pylist())


def _time(type_: pa.DataType, number: int) -> Any:
    if not _has_nanoseconds(type_):
        with suppress(OverflowError, ValueError):
            return pa.scalar(number, type_).as_py()
    if _types.is_date(type_):
        return np.datetime64(number, "D" if _types.is_date32(type_) else "ms")
    return (np.datetime64 if _types.is_timestamp(type_) else np.timedelta64)(number, type_.unit)


_types = pa.types

Write = Callable[[pa.Array], list[Any]]


def to_json(array: pa.Array) -> list[Any]:
    """Return the values of an array as plain JSON values. Raises TypeError for a type that has no
    JSON form."""
    for fits, write in _WRITERS:
        if fits(array.type):
            return write(array)
    raise TypeError(f"values of type {array.type} have no JSON form")


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


def _each(convert: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """Return values converted one by one; what is missing stays missing."""
    return [None if value is None else convert(value) for value in values]


def _floats(array: pa.Array) -> list[Any]:
    """Return floats of 16 or 32 bits as the shortest numbers that are nearest to them."""
    narrow = array.to_numpy(zero_copy_only=False)
    # Arrow writes float32 six times as fast as numpy, and float16 as if it were float32.
    texts = array.cast(pa.string()) if narrow.itemsize == 4 else pa.array(narrow.astype(str))
    short = texts.cast(pa.float64()).to_numpy(zero_copy_only=False)
    same = short.astype(narrow.dtype) == narrow  # but for 7.038531e-26, alone of all float32
    return _with_nulls(array, np.where(same, short, narrow).tolist())


def _with_nulls(array: pa.Array, values: list[Any]) -> list[Any]:
    if not array.null_count:
        return values
    there = array.is_valid().to_pylist()
    return [value if valid else None for value, valid in zip(values, there, strict=True)]


def _characters(array: pa.Array) -> list[Any]:
    return _each(lambda value: value.decode("latin-1"), array.to_pylist())


def _whole_numbers(array: pa.Array) -> list[Any]:
    whole = pa.int32() if array.type.bit_width == 32 else pa.int64()
    return list(array.view(whole).to_pylist())


def _lists(array: pa.Array, inner: Write) -> list[Any]:
    """Return lists of any sort, and maps, of which the values are pairs."""
    if _types.is_fixed_size_list(array.type):
        size = array.type.list_size
        # Missing rows have room among the values: what is there is not theirs.
        values = inner(items_of(array))
        return _with_nulls(array, [values[at * size : (at + 1) * size] for at in range(len(array))])
    if _types.is_map(array.type):
        offsets = array.offsets.to_pylist()
        first, count = (offsets[0], offsets[-1] - offsets[0]) if offsets else (0, 0)
        keys, items = (inner(each.slice(first, count)) for each in (array.keys, array.items))
        values = [list(pair) for pair in zip(keys, items, strict=True)]
    else:
        offsets, first = list_offsets(array).tolist(), 0
        values = inner(array.flatten())  # without what is behind a missing row
    return _with_nulls(
        array, [values[begin - first : end - first] for begin, end in pairwise(offsets)]
    )


def _structs(array: pa.Array, inner: Write) -> list[Any]:
    names = [child.name for child in array.type]
    if len(set(names)) != len(names):
        raise TypeError(
            f"values of type {array.type} have no JSON form: two parts have the same name"
        )
    # Not flatten(): a part keeps its values where the struct is missing, and these are left out
    # below.
    columns = [
        (_characters if inner is to_json and _are_counts(array.type, each) else inner)(
            array.field(each)
        )
        for each in range(len(names))
    ]
    rows = zip(*columns, strict=True) if columns else [()] * len(array)
    return _with_nulls(array, [dict(zip(names, row, strict=True)) for row in rows])


def _is_extension(type_: pa.DataType) -> bool:
    return isinstance(type_, pa.BaseExtensionType)


def _is_narrow_float(type_: pa.DataType) -> bool:
    return bool(_types.is_float16(type_) or _types.is_float32(type_))


def _is_plain(type_: pa.DataType) -> bool:
    plain = _types.is_null, _types.is_boolean, _types.is_integer, _types.is_float64, _is_text
    return any(fits(type_) for fits in plain)


def _is_text(type_: pa.DataType) -> bool:
    return type_ in (pa.string(), pa.large_string(), pa.string_view())


def _is_binary(type_: pa.DataType) -> bool:
    plain = type_ in (pa.binary(), pa.large_binary(), pa.binary_view())
    return plain or bool(_types.is_fixed_size_binary(type_))


def _are_counts(type_: pa.StructType, place: int) -> bool:
    """Return whether a part of a struct is the counts of an RLE."""
    names = [part.name for part in type_]
    return place == 1 and names == ["size", "counts"] and _is_binary(type_.field(1).type)


def _is_temporal(type_: pa.DataType) -> bool:
    return bool(_types.is_temporal(type_)) and not _is_interval(type_)


def _is_interval(type_: pa.DataType) -> bool:
    return bool(type_ == pa.month_day_nano_interval())


def _is_list_or_map(type_: pa.DataType) -> bool:
    return is_list(type_) or bool(_types.is_map(type_))


_WRITERS: tuple[tuple[Callable[[Any], bool], Write], ...] = (
    (_is_extension, lambda array: to_json(array.storage)),
    (_types.is_dictionary, lambda array: to_json(array.dictionary_decode())),
    (_is_plain, lambda array: list(array.to_pylist())),
    (_is_narrow_float, _floats),
    (_is_binary, lambda array: _each(lambda v: b64encode(v).decode("ascii"), array.to_pylist())),
    (_types.is_decimal, lambda array: _each(str, array.to_pylist())),
    (_is_interval, lambda array: _each(list, array.to_pylist())),
    (_is_temporal, _whole_numbers),
    (_is_list_or_map, lambda array: _lists(array, to_json)),
    (_types.is_struct, lambda array: _structs(array, to_json)),
)


def _read(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, _read(values, type_.storage_type))
    if _types.is_dictionary(type_):
        return _read(values, type_.value_type).dictionary_encode().cast(type_)
    read = _reader_of(type_)
    return pa.array(values if read is None else _each(read, values), _stored(type_)).cast(type_)


def _stored(type_: pa.DataType) -> pa.DataType:
    """Return a type of lists and structs without the extensions in it, which Arrow makes of no
    values."""
    if isinstance(type_, pa.BaseExtensionType):
        return _stored(type_.storage_type)
    if _types.is_struct(type_):
        return pa.struct([(child.name, _stored(child.type)) for child in type_])
    if _types.is_map(type_):
        return pa.map_(type_.key_type, _stored(type_.item_type))
    if _types.is_fixed_size_list(type_):
        return pa.list_(_stored(type_.value_type), type_.list_size)
    if is_list(type_):
        make = pa.large_list if _types.is_large_list(type_) else pa.list_
        return make(_stored(type_.value_type))
    return type_


def _reader_of(type_: pa.DataType) -> Callable[[Any], Any] | None:
    """Return what makes of a JSON value what Arrow takes for a value of this type; None if it takes
    it as it is. Raises TypeError for a type that has no JSON form."""
    if isinstance(type_, pa.BaseExtensionType | pa.DictionaryType):
        of_storage = isinstance(type_, pa.BaseExtensionType)
        return _reader_of(type_.storage_type if of_storage else type_.value_type)
    for fits, read in _READERS:
        if fits(type_):
            return read
    if _is_list_or_map(type_):
        of_pairs = _types.is_map(type_)
        inner = [type_.key_type, type_.item_type] if of_pairs else [type_.value_type]
        readers = [_reader_of(each) or _as_it_is for each in inner]
        if of_pairs:
            return lambda pairs: [
                tuple(map(_called, readers, pair)) for pair in _expected(list, pairs)
            ]
        if readers[0] is _as_it_is:
            return partial(_expected, list)
        return lambda items: _each(readers[0], _expected(list, items))
    if _types.is_struct(type_):
        parts = {child.name: _reader_of(child.type) or _as_it_is for child in type_}
        if len(type_) == 2 and _are_counts(type_, 1):
            parts["counts"] = lambda value: value.encode("latin-1")
        return lambda value: {
            name: _called(read, _expected(dict, value)[name]) for name, read in parts.items()
        }
    raise TypeError(f"values of type {type_} have no JSON form")


def _called(read: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else read(value)


def _as_it_is(value: Any) -> Any:
    return value


def _expected(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"a {kind.__name__} was expected")
    return value


_READERS: tuple[tuple[Callable[[Any], bool], Callable[[Any], Any] | None], ...] = (
    (_is_plain, None),
    (_is_temporal, None),
    (_is_narrow_float, None),
    (_is_binary, partial(b64decode, validate=True)),
    (_types.is_decimal, Decimal),
    (_is_interval, lambda value: pa.MonthDayNano([int(part) for part in value])),
)
