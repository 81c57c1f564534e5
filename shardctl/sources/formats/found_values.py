"""Values in records of other formats, and the columns that they become: what JSON has, and bytes,
arrays and features."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import types

from shardctl.errors import Rejection
from shardctl.format.arrays import dtype_of, is_list, is_number, is_text, leaf_of
from shardctl.format.python_values import from_json
from shardctl.sources.formats.base import (
    CHOSEN,
    RECORD_BYTES,
    Digest,
    Misfit,
    Parsed,
    Reading,
    is_given,
    is_json,
    json_texts,
    refused,
    without_columns,
)
from shardctl.sources.formats.content import Content
from shardctl.sources.jsonl import EXACT_IN_FLOAT
from shardctl.sources.types import Classes, without_nulls
from shardctl.sources.values import Feature
from shardctl.system.text import format_bytes, printable

Record = dict[str, Any]
"""The fields of a record: None, bool, int, float, str, bytes, lists and dicts of these, numpy
arrays, Feature."""


Records = Sequence[tuple[int, Record]]
"""Records, each with its number."""

Rejects = list[tuple[int, Rejection]]
"""Why records are rejected, each with its number."""


@dataclass(frozen=True)
class JsonForm:
    """A value as python_values.py writes it: with the type of its column it is exact."""

    value: Any


MOST_HOLLOW = 1 << 16
"""The most lists without a value that one array may be: (65536, 65536, 0) would be 4 billion."""


def whole_array(array: Any) -> Any:
    """Return an array that came from a file. Raises ValueError for one of no bytes that would be
    very many empty lists."""
    if not array.size and math.prod(array.shape[: array.shape.index(0)]) > MOST_HOLLOW:
        raise ValueError(f"an array without values of the shape {array.shape}")
    return array


def batch_of_records(records: Records, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of numbered records, with the columns of `without_nulls(schema)`. Raises
    Misfit, also for a field that `schema` does not have, unless a person chose its columns."""
    known = set(schema.names)
    for number, record in records:
        if not record.keys() <= known and not is_chosen(schema):
            name = next(name for name in record if name not in known)
            raise Misfit(f"record {number}: the field {printable(name)} is new")
    if not len(schema):
        return without_columns(len(records))
    whole, given = without_nulls(schema), is_given(schema)
    columns = [_column(records, f, out.type, given) for f, out in zip(schema, whole, strict=True)]
    return pa.record_batch(columns, schema=whole)


def is_chosen(schema: pa.Schema) -> bool:
    """Return whether a person chose the columns of a schema."""
    return CHOSEN in (schema.metadata or {})


def parsed_records(records: Records, rejects: Rejects, schema: pa.Schema) -> Parsed:
    """Return records of a unit, each with its number, with the columns of `schema`. Raises as
    `batch_of_records` does."""
    numbers = np.array([number for number, _ in records], np.int64)
    return Parsed(numbers, batch_of_records(records, schema), rejects)


def _is_text(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and isinstance(value.item(), str | bytes)
    if isinstance(value, Feature):
        return not len(value.items) or (len(value.items) == 1 and isinstance(value.items[0], bytes))
    return value is None or isinstance(value, str | bytes | JsonForm)


_PLAIN = {pa.string(): str, pa.bool_(): bool, pa.int64(): int, pa.float64(): float}


def _column(records: Records, f: pa.Field, type_: pa.DataType, given: bool) -> pa.Array:
    """Return the values of a field of numbered records as a column of this type: that of `f`, with
    string for null. Raises Misfit."""
    values = [record.get(f.name) for _, record in records]
    kinds = set(map(type, values))
    values = [value.value if type(value) is JsonForm else value for value in values]
    if is_json(f):
        return json_texts(values, _plain_or_text)
    if JsonForm in kinds and f.type == type_:  # another one has objects without fields
        try:
            return from_json(values, f.type)
        except (ValueError, TypeError) as error:
            raise Misfit(
                f"the field {printable(f.name)} is not as shardctl.json describes it ({error})"
            ) from None
    is_plain = kinds <= {_PLAIN.get(f.type), type(None)}
    faults = (Misfit, pa.ArrowException, OverflowError, ValueError, TypeError)

    def fit(value: Any) -> Any:
        if given and types.is_string(f.type) and not _is_text(value):
            raise Misfit(f"holds {_shown(value)}, which does not fit {f.type}")
        return value if is_plain else fitted_value(value, f.type)

    try:
        return pa.array([fit(value) for value in values], type_)
    except faults:
        for (number, _), value in zip(records, values, strict=True):
            try:
                pa.array([fit(value)], type_)
            except faults as error:
                reason = (
                    str(error) if isinstance(error, Misfit) else f"does not fit {f.type} ({error})"
                )
                raise Misfit(f"record {number}: the field {printable(f.name)} {reason}") from None
        raise


def fitted_value(value: Any, type_: pa.DataType) -> Any:
    """Return a value as a column of this type wants it. Raises Misfit."""
    kind = type(value)
    if (
        value is None
        or (kind is bytes and types.is_binary(type_))
        or (kind is str and types.is_string(type_))
    ):
        return value
    if kind is bytes:
        return _fitted_bytes(value, type_)
    if is_text(type_):
        plain = _plain(value)  # what has another type in other records: strings, and JSON of others
        if plain is None or isinstance(plain, str):
            return plain
        return json.dumps(plain, ensure_ascii=False, default=_plain)
    if kind is Feature:
        return _fitted_feature(value, type_)
    if kind is np.ndarray:
        return _fitted_array(value, type_)
    if kind is list and is_list(type_):
        return [fitted_value(item, type_.value_type) for item in value]
    if kind is dict and types.is_struct(type_):
        if not value.keys() <= {f.name for f in type_}:
            raise Misfit("has objects with a new field")
        parts = {f.name: fitted_value(value.get(f.name), f.type) for f in type_}
        return parts if type_.num_fields else "{}"
    if kind is str and not (types.is_nested(type_) or types.is_null(type_)):
        # a date, a time, a decimal: no types of JSON, but a given schema may name them
        if not is_number(type_) and type_ != pa.bool_():
            with suppress(pa.ArrowException):
                return pa.scalar(value).cast(type_)
    elif _is_of(value, type_):
        return float(value) if types.is_floating(type_) else value
    raise Misfit(f"holds {_shown(value)}, which does not fit {type_}")


def _is_of(value: Any, type_: pa.DataType) -> bool:
    if isinstance(value, bool):
        return bool(types.is_boolean(type_))
    if isinstance(value, int):
        if types.is_floating(type_):
            return abs(value) <= EXACT_IN_FLOAT
        limits = np.iinfo(str(type_)) if types.is_integer(type_) else None
        return limits is not None and limits.min <= value <= limits.max
    return isinstance(value, float) and bool(types.is_floating(type_))


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=lambda other: type(other).__name__)
    return printable(text if len(text) <= 40 else f"{text[:40]}…")


def _plain(value: Any) -> Any:
    """Return a value that JSON does not have as it has it. Raises Misfit for bytes that are no
    text."""
    if isinstance(value, Feature):
        items = (
            [*map(_plain, value.items)] if isinstance(value.items, list) else _plain(value.items)
        )
        return items if len(items) > 1 else next(iter(items), None)
    if isinstance(value, np.ndarray):
        return value.tolist()
    return _fitted_bytes(value, pa.string()) if isinstance(value, bytes) else value


def _plain_or_text(value: Any) -> Any:
    plain = _plain(value)
    return str(value) if plain is value else plain


def _fitted_bytes(value: bytes, type_: pa.DataType) -> Any:
    if types.is_large_binary(type_):
        return value
    if not is_text(type_):
        raise Misfit(f"holds bytes, which do not fit {type_}")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Misfit("holds bytes that are no text in UTF-8") from None


def _fitted_feature(value: Feature, type_: pa.DataType) -> Any:
    """Return the values of a feature: a list, or the only one where the column has no lists."""
    if not len(value.items):  # of any kind
        return [] if is_list(type_) else None
    if is_list(type_):
        return _fitted_items(value.items, type_.value_type)
    if len(value.items) > 1:
        raise Misfit(f"holds {len(value.items)} values where others hold one")
    return _fitted_items(value.items, type_)[0]


def _fitted_items(items: Any, type_: pa.DataType) -> Any:
    if not isinstance(items, np.ndarray):
        return [fitted_value(item, type_) for item in items]
    if types.is_boolean(type_) and np.isin(items, (0, 1)).all():
        return items.astype(bool)
    return _fitted_array(items, pa.list_(type_))


def _fitted_array(value: Any, type_: pa.DataType) -> Any:
    """Return an array of any number of dimensions as nested lists; numbers keep their value, or do
    not fit."""
    if value.ndim == 0:
        return fitted_value(value.item(), type_)
    inner, depth = leaf_of(type_)
    if depth != value.ndim:
        raise Misfit(f"holds an array of {value.ndim} dimensions, which does not fit {type_}")
    if not value.size:
        return value.tolist()
    if types.is_null(inner):
        raise Misfit("holds an array with values where the others have none")
    try:
        wanted = dtype_of(inner)
    except NotImplementedError:
        raise Misfit(f"holds an array of {value.dtype}, which does not fit {type_}") from None
    if value.dtype != wanted:
        with np.errstate(invalid="ignore", over="ignore"):  # such a value is another one then
            made = value.astype(wanted)
        same = np.array_equal(made, value, equal_nan=value.dtype.kind == "f")
        if value.dtype.kind not in "iufb" or wanted.kind not in "iufb" or not same:
            raise Misfit(f"holds an array of {value.dtype}, which does not fit {type_}")
        value = made
    return value if value.ndim == 1 else _nested(value)


def _nested(value: Any) -> Any:
    return list(value) if value.ndim == 2 else [_nested(part) for part in value]


Entry = tuple[int, Callable[[], Record]]
"""The size of a record, and what gives its fields or raises Rejection."""


class Entries(NamedTuple):
    """The records of an open file that a package gives one by one.

    `edges` are the numbers of records, from 0, at which units begin, and how many there are.
    `records` yields those from a number on, counted from 1, and gives what they are made of to a
    digest. Raises Rejection, also where there are no more.
    """

    edges: Sequence[int]
    records: Callable[[int, Digest], Iterator[Entry]]


class Frame(NamedTuple):
    """Where a record begins and ends in the content of its file, and why it is rejected, if it is.

    `last`: from here on nothing of the file can be read; then the record is what is left of it.
    `folder` is that of its name.
    """

    offset: int
    end: int
    fault: Rejection | None = None
    last: bool = False
    folder: str = ""


class Declared(NamedTuple):
    """What is known of the fields of records without a look at them: their types, and the names of
    the classes of labels."""

    types: pa.Schema
    classes: Classes


NOTHING_DECLARED = Declared(pa.schema([]), {})


class Container(ABC):
    """An open file of records, and its content. The class is the format of such files.

    The next record begins at `offset`, and `passed` are before that. `key` tells the file from
    others that are kept open.
    """

    key: tuple[Any, ...] = ()
    declared = NOTHING_DECLARED
    """What the file itself, or one beside it, says of the fields of its records."""
    offset = passed = 0
    _at_end = False

    def __init__(self, content: Content, path: str, reading: Reading) -> None:
        self.content, self.path, self.reading = content, path, reading
        self.close = content.close

    @staticmethod
    def is_plain(_start: bytes) -> bool:
        """Tell of the beginning of a file that looks compressed whether it is not."""
        return False

    def begin(self) -> int:
        """Return where the first record begins: called once, before all else. Raises Rejection if no record of the file can be
        read."""
        return 0

    def broken(self, offset: int, end: int, error: str, message: str) -> Frame:
        """Return what is left of a file that cannot be read from a place on."""
        fault = self.content.fault or refused(error, message)
        return Frame(offset, end, fault, last=True)

    def next_frame(self) -> Frame | None:
        """Return the next record, and pass it. The end is not looked for twice: a compressed file
        has released it."""
        if self._at_end:
            return None
        self.content.release(self.offset)
        frame = self.frame(self.offset)
        if frame is None:
            self._at_end = True
        else:
            self.offset = frame.end
            self.passed += 1
        return frame

    @abstractmethod
    def frame(self, offset: int) -> Frame | None:
        """Return the record that begins at `offset`, None at the end of the file."""

    @abstractmethod
    def fields(self, frame: Frame, data: bytes) -> Record:
        """Return the fields of the record that `frame` gave last, all its bytes given. Raises
        Rejection."""


def too_large(size: int, limit: int = RECORD_BYTES) -> Rejection:
    """Return why a record is not read that is larger than records may be."""
    return refused(
        "too-large",
        f"a record of {format_bytes(size)}, but at most {format_bytes(limit)} are read; divide it",
    )
