"""Values from user functions, on their way into a column: no value is changed, and unfit values are
refused."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.format.arrays import dtype_of, is_list, is_number

PLAIN = frozenset((type(None), bool, int, float, str, bytes))
"""Types that Arrow takes as they are."""

SHOWN_CHARACTERS = 60
SHOWN_BITS = 128


DEEPEST = 60
"""Levels of lists and dicts in a value. Arrow writes and reads files with up to 64."""


class UnfitValue(ValueError):
    """A value that a column cannot hold as it is. The message says what came."""


MOST_EXACT = 2**53
"""Whole numbers up to this one are the same as floats of 64 bits."""


def plain_value(value: Any, deepest: int = DEEPEST) -> Any:
    """Return a value as Arrow takes it: tuples as lists, arrays of two or more dimensions as lists
    of lists of arrays.

    Arrays of one dimension and numpy's numbers stay what they are: their type decides the column's.
    Raises UnfitValue for what no column can hold.
    """
    if type(value) in PLAIN:
        return value
    if deepest == 0:
        raise UnfitValue("a value that is nested too deeply, or contains itself")
    if isinstance(value, np.ndarray):
        return _plain_array(value, deepest)
    if isinstance(value, np.str_ | np.bytes_):
        # not item(), which takes NULs at the end for padding, as arrays of numpy do
        return value[:]
    if isinstance(value, np.datetime64 | np.timedelta64):
        # times in nanoseconds become whole numbers, and stay as they are instead
        item = value.item()
        return value if isinstance(item, int) else item
    if isinstance(value, np.generic):
        return value if value.dtype.kind in "iuf" and value.dtype.itemsize <= 8 else value.item()
    if isinstance(value, list | tuple):
        return (
            list(value)
            if set(map(type, value)) <= PLAIN
            else [plain_value(part, deepest - 1) for part in value]
        )
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise UnfitValue(f"a dict with the key {describe(name)}; keys must be strings")
        return {name: plain_value(part, deepest - 1) for name, part in value.items()}
    if isinstance(value, set | frozenset):
        raise UnfitValue(f"{describe(value)} (it has no order: make it a list)")
    return value


def _plain_array(value: np.ndarray[Any, Any], deepest: int) -> Any:
    if isinstance(value, np.ma.MaskedArray) or value.dtype.names is not None:
        raise UnfitValue(describe(value))
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    if value.ndim == 0:
        return plain_value(value[()], deepest - 1)
    if value.dtype.kind in "OUSTmM":
        return [plain_value(part, deepest - 1) for part in value]
    return value if value.ndim == 1 else [_plain_array(part, deepest - 1) for part in value]


def python_value(value: Any) -> Any:
    """Return a plain value without numpy: numbers of different numpy types have a type in common
    only as Python's numbers."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, list):
        return [python_value(part) for part in value]
    if isinstance(value, dict):
        return {name: python_value(part) for name, part in value.items()}
    return value


def column_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of a column for values of this type: string where all that is known is that
    there was no value."""
    if pa.types.is_null(type_):
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(column_type(type_.value_type))
    if pa.types.is_struct(type_) and type_.num_fields:
        return pa.struct([(field.name, column_type(field.type)) for field in type_])
    return type_


def type_for(values: Sequence[Any]) -> pa.DataType | None:
    """Return the type of a column in which all of these plain values come out as they went in; None
    if there is none."""
    for several in (values, list(map(python_value, values))):
        made = _array(several)
        with suppress(ValueError, TypeError):
            if made is not None:
                type_ = column_type(made.type)
                for value in values:
                    check_fit(value, type_)
                return type_
    return None


def _array(values: Sequence[Any], type_: pa.DataType | None = None) -> pa.Array | None:
    """Return values as an array, of a type if it is given; None if Arrow refuses."""
    try:
        return pa.array(values, type_)
    except MemoryError:  # Arrow's own is an ArrowException, too
        raise
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return None


def array_type(values: Sequence[Any]) -> pa.DataType | None:
    """Return the type of a column of arrays of numbers of one shape and type, lists of fixed sizes;
    None for other values.

    A loader reads such a column as one array, and Hugging Face datasets and others know it. None is
    a value that is missing.
    """
    kinds = {
        (value.shape, value.dtype) if type(value) is np.ndarray else None
        for value in values
        if value is not None
    }
    shape, dtype = (kinds.pop() if len(kinds) == 1 else None) or ((), np.dtype(object))
    if dtype.kind not in "iuf" or 0 in shape or not shape:
        return None
    type_: pa.DataType = pa.from_numpy_dtype(dtype.newbyteorder("="))
    for size in reversed(shape):
        type_ = pa.list_(type_, size)
    return type_


def array_of(values: list[Any], type_: pa.DataType) -> pa.Array | None:
    """Return values of common Python types as an array of this type; None where it takes a closer
    look to say that all fit.

    `check_fit` takes 10 microseconds for each of them, this 0.1.
    """
    return _array(values, type_) if _surely_fit(values, type_) else None


def _surely_fit(values: Sequence[Any], type_: pa.DataType) -> bool:
    """Return whether Arrow puts these values into a column of this type as they are, or refuses."""
    kinds = set(map(type, values))
    if kinds <= _plain_types(type_):
        return True
    if not pa.types.is_list(type_) or not kinds <= {list, np.ndarray, type(None)}:
        return False
    inner = type_.value_type
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    lists = (value for value in values if isinstance(value, list))
    if arrays and not is_number(inner):
        return False
    if any(a.ndim != 1 or a.dtype != dtype_of(inner) for a in arrays):
        return False
    return set(map(type, chain.from_iterable(lists))) <= _plain_types(inner)


def _plain_types(type_: pa.DataType) -> frozenset[type]:
    """Return the Python types whose values Arrow puts into a column of this type as they are, or
    refuses."""
    for is_type, python in (
        (pa.types.is_string, str),
        (pa.types.is_integer, int),
        (pa.types.is_float64, float),
        (pa.types.is_boolean, bool),
    ):
        if is_type(type_):
            return frozenset((python, type(None)))
    return frozenset((type(None),))


def is_text(value: str) -> bool:
    """Return whether a string can be written as UTF-8: one with half of a pair of surrogates
    cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def for_column(value: Any, type_: pa.DataType) -> Any:
    """Return a value as a column of this type takes it. Raises UnfitValue if it would not come out
    as it went in."""
    if isinstance(type_, pa.FixedShapeTensorType):
        return _for_tensor(value, type_)
    if isinstance(value, np.datetime64) and pa.types.is_timestamp(type_) and type_.tz:
        # In UTC, as it is read; Arrow takes numpy's times for columns without a time zone only.
        number = value.astype(f"datetime64[{type_.unit}]")
        if np.isnat(value) or number != value:
            check_fit(plain_value(value), pa.timestamp(type_.unit))
            return None
        return int(number.astype(np.int64))
    plain = plain_value(value)
    check_fit(plain, type_)
    return plain


def rounded(value: Any, type_: pa.DataType) -> Any:
    """Return a value with its Python floats rounded to a narrow floating type, where a person chose
    it for the column.

    Python has one width of floats, so that they cannot be written otherwise. A float64 of numpy is
    one of them: sums and means give it. An array stays as it is, because a person chose its type. A
    float beyond the type stays as it is, too: it would become infinite.
    """
    if isinstance(value, list | tuple):
        inner = getattr(type_, "value_type", type_)  # of a tensor that of its numbers
        if _is_wide(inner) or set(map(type, value)) != {float}:
            return [rounded(part, inner) for part in value]
        exact = np.array(value)
        with np.errstate(over="ignore"):
            narrow = exact.astype(dtype_of(inner)).astype(np.float64)
        return np.where(np.isinf(narrow), exact, narrow).tolist()
    if pa.types.is_struct(type_) and isinstance(value, dict):
        types = {field.name: field.type for field in type_}
        return {
            name: rounded(part, types[name]) if name in types else part
            for name, part in value.items()
        }
    if _is_wide(type_) or not isinstance(value, float):
        return value
    return rounded([float(value)], type_)[0]


def holds_narrow_floats(type_: pa.DataType) -> bool:
    """Return whether a type is one of floats that are narrower than Python's, or has one inside."""
    if isinstance(type_, pa.BaseExtensionType):
        return holds_narrow_floats(type_.storage_type)
    return not _is_wide(type_) or any(
        holds_narrow_floats(type_.field(place).type) for place in range(type_.num_fields)
    )


def _for_tensor(value: Any, type_: pa.FixedShapeTensorType) -> Any:
    """Return an array, or lists, of a tensor's shape or flat, as a flat array of its type. A tensor
    has no missing numbers."""
    given = value
    if isinstance(value, list | tuple):
        with suppress(ValueError):
            # numbers stay what they are: numpy would make one type of them
            value = np.array(list(map(_without_mask, value)), object)
    shape, fits = tuple(type_.shape), isinstance(_without_mask(value), np.ndarray)
    if (
        not fits
        or value.dtype.kind not in "biufO"
        or value.shape not in (shape, (math.prod(shape),))
    ):
        raise UnfitValue(describe(given))
    flat = value.reshape(-1)
    if given is value:
        flat = flat.astype(flat.dtype.newbyteorder("="), copy=False)
    elif any(each is None for each in flat):
        raise UnfitValue(describe(given))
    else:
        flat = flat.tolist()
    check_fit(flat, type_.storage_type)
    return np.asarray(flat, dtype_of(type_.value_type))


def _without_mask(value: Any) -> Any:
    return None if isinstance(value, np.ma.MaskedArray) else value


def check_fit(value: Any, type_: pa.DataType) -> None:
    """Raise UnfitValue if a plain value would not come out of a column of this type as it went in.

    Arrow itself is not that strict: it cuts 2.7 to 2 in a column of integers, and drops keys that a
    struct does not have.
    """
    _check(value, type_)
    if _array([value], type_) is None:
        raise UnfitValue(describe(value))


def _check(value: Any, type_: pa.DataType) -> None:
    if value is None:
        return
    types = pa.types
    if is_list(type_) or types.is_list_view(type_) or types.is_large_list_view(type_):
        _check_list(value, type_.value_type)
    elif types.is_struct(type_) or types.is_map(type_):
        _check_dict(value, type_)
    elif types.is_dictionary(type_):
        _check(value, type_.value_type)
    elif not _takes(type_, type(value)) or not _is_exact(value, type_):
        raise UnfitValue(describe(value))


def _check_list(value: Any, type_: pa.DataType) -> None:
    if isinstance(value, np.ndarray):
        if not _array_fits(value, type_):
            raise UnfitValue(describe(value))
    elif not isinstance(value, list):
        raise UnfitValue(describe(value))
    elif not set(map(type, value)) <= _plain_types(type_) and not _are_exact(value, type_):
        for part in value:
            if part is not None and not _takes(type_, type(part)):
                raise UnfitValue(f"a {type(value).__name__} with {describe(part)} in it")
            _check(part, type_)


def _is_wide(type_: pa.DataType) -> bool:
    """Return whether a type is not one of floats that are narrower than Python's."""
    return not (pa.types.is_float32(type_) or pa.types.is_float16(type_))


def _are_exact(values: list[Any], type_: pa.DataType) -> bool:
    """Return whether Python's numbers are certainly the same in a narrow floating type. To look at
    each takes 20 us."""
    kinds = set(map(type, values))
    if _is_wide(type_) or not kinds <= {float, int}:
        return False
    if int in kinds and any(abs(value) > MOST_EXACT for value in values if type(value) is int):
        return False
    return _array_fits(np.array(values, np.float64), type_)


def _check_dict(value: Any, type_: pa.DataType) -> None:
    if not isinstance(value, dict):
        raise UnfitValue(describe(value))
    fields = None if pa.types.is_map(type_) else {field.name: field.type for field in type_}
    for name, part in value.items():
        if fields is None:
            _check(name, type_.key_type)
        elif name not in fields:
            raise UnfitValue(f"a dict with the key {describe(name)}, which others do not have")
        _check(part, type_.item_type if fields is None else fields[name])


_KINDS: tuple[tuple[tuple[Callable[[pa.DataType], bool], ...], tuple[type, ...], Any], ...] = (
    ((pa.types.is_boolean,), (bool,), ()),
    ((pa.types.is_integer,), (int, np.integer), (bool, np.timedelta64)),
    ((pa.types.is_floating,), (float, int, np.integer, np.floating), (bool, np.timedelta64)),
    ((pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view), (str,), ()),
    (
        (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
        (bytes, bytearray, memoryview),
        (),
    ),
    ((pa.types.is_fixed_size_binary,), (object,), (str,)),  # a UUID is one, too
    # its time is lost
    ((pa.types.is_date,), (datetime.date, np.datetime64), (datetime.datetime,)),
    # whole numbers would come out as times
    ((pa.types.is_timestamp,), (datetime.datetime, np.datetime64), ()),
    ((pa.types.is_time,), (datetime.time, np.timedelta64), ()),
    ((pa.types.is_duration,), (datetime.timedelta, np.timedelta64), ()),
)
"""Checks of the type of a column, and the Python types whose values it holds, and does not."""


def _takes(type_: pa.DataType, kind: type) -> bool:
    """Return whether a column of this type holds values of a Python type. Arrow decides of the
    types that are not listed."""
    for checks, held, others in _KINDS:
        if any(check(type_) for check in checks):
            return issubclass(kind, held) and not issubclass(kind, others)
    return True


def _is_exact(value: Any, type_: pa.DataType) -> bool:
    """Return whether a number is the same in a narrow floating type, and a time in its unit, with
    or without a time zone: Arrow leaves out what is below the unit, and time zones.

    Times with a time zone are the same at the same moment, whichever zone the column has.
    """
    if isinstance(value, np.datetime64 | np.timedelta64):
        unit = "D" if pa.types.is_date32(type_) else "ms" if pa.types.is_date(type_) else type_.unit
        kind = "datetime64" if isinstance(value, np.datetime64) else "timedelta64"
        return bool(np.isnat(value) or value.dtype == np.dtype(f"{kind}[{unit}]"))
    if pa.types.is_interval(type_) or (_is_wide(type_) and not pa.types.is_temporal(type_)):
        return True
    with suppress(pa.ArrowException, OverflowError, ValueError):
        return bool(pa.scalar(value, type_).as_py() == value or value != value)
    return True  # who makes an array of it finds what is wrong


def _array_fits(value: np.ndarray[Any, Any], type_: pa.DataType) -> bool:
    """Return whether a list of this type of elements holds an array of one dimension as it is."""
    if pa.types.is_boolean(type_) or value.dtype.kind == "b":
        return bool(pa.types.is_boolean(type_)) and value.dtype.kind == "b"
    if not is_number(type_) or value.dtype.kind not in "iuf":
        return False
    target = dtype_of(type_)
    # of 64 bits numpy says so, and rounds
    if value.dtype.itemsize < 8 and np.can_cast(value.dtype, target, "safe"):
        return True
    if value.dtype.kind == "f" and target.kind in "iu":
        return len(value) == 0
    if value.dtype.kind == "f":
        with np.errstate(all="ignore"):  # what overflows does not come back as it was
            return np.array_equal(value.astype(target).astype(value.dtype), value, equal_nan=True)
    # Not there and back: a whole number that wraps around on the way there does so on the way back.
    # Into floats Arrow takes what their mantissa holds, and reads numbers of 64 bits without a sign
    # as negative ones before it looks.
    most = np.iinfo(target).max if target.kind in "iu" else 2 ** (np.finfo(target).nmant + 1)
    least = np.iinfo(target).min if target.kind in "iu" else -most
    return len(value) == 0 or (int(value.min()) >= least and int(value.max()) <= most)


def describe(value: Any) -> str:
    """Say what a value is, in the same words in every run: no addresses, and nothing whose order
    may change."""
    kind = type(value)
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        masked = "masked " if isinstance(value, np.ma.MaskedArray) else ""
        return f"a {masked}numpy array of shape {value.shape} and type {value.dtype}"
    if kind is int and value.bit_length() > SHOWN_BITS:
        return f"an int of {value.bit_length():,} bits"
    if kind in PLAIN:
        shown = repr(value)
        shown = shown if len(shown) <= SHOWN_CHARACTERS else f"{shown[:SHOWN_CHARACTERS]}…"
        return f"{shown} ({kind.__name__})"
    if isinstance(value, list | tuple | dict | set | frozenset):
        return f"a {kind.__name__} of length {len(value)}"
    if isinstance(value, np.generic):
        return f"{value} (numpy {kind.__name__})"
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta | decimal.Decimal):
        unseen = isinstance(value, datetime.time) and value.tzinfo and value.utcoffset() is None
        return f"{value}{' with a time zone' if unseen else ''} ({kind.__name__})"
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"an object of type {module}{kind.__qualname__}"


ROW_OVERHEAD = 32
"""Bytes that a row costs beside its values: offsets, validity."""


def row_size(values: Iterable[Any]) -> int:
    """Return about how many bytes a row takes in a block."""
    return ROW_OVERHEAD + sum(map(value_size, values))


def value_size(value: Any) -> int:
    """Return about how many bytes a value takes in a block."""
    kind = type(value)
    # a union in isinstance takes three times as long, and this is done for every value
    if kind is str or kind is bytes:
        return len(value)
    if kind is int or kind is float or value is None:
        return 8
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list | tuple):
        # all of them are, or none fits a column; polygons have many
        if value and type(value[0]) in (float, int, bool):
            return 4 + 8 * len(value)
        return 4 + sum(map(value_size, value))
    if isinstance(value, dict):
        return sum(map(value_size, value.values()))
    return 8
