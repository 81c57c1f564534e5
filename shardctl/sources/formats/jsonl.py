"""Lines of JSON: parsed by Arrow, and line by line where Arrow cannot or would change a value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from shardctl.errors import Rejection
from shardctl.format.arrays import Array, Numbers, is_list, is_number
from shardctl.sources.formats.base import (
    OTHER_ENCODING,
    Choose,
    Head,
    Parsed,
    Reading,
    TextFormat,
    TextPart,
    count_byte,
    is_json,
    refused,
)
from shardctl.sources.formats.found_values import Rejects, is_chosen, parsed_records
from shardctl.sources.formats.lines import chosen_lines, is_utf8, line_ends
from shardctl.sources.jsonl import ALIKE, EXACT_IN_FLOAT, MOST_LEVELS, parse_line
from shardctl.sources.types import Types, says_nothing, without_nulls

BOM = b"\xef\xbb\xbf"

_OPEN, _CLOSE, _OPEN_LIST, _CARRIAGE_RETURN = b"{}[\r"

_NULL_AFTER_OBJECT = re.compile(rb"\}[ \t\r]*null")
"""pyarrow.json crashes at a null that is no value of an object or a list. After a line's first
object it is the only token that gets so far."""

_LONG_WHOLE = re.compile(rb"[:,\[\s]-?[0-9]{16,}(?![0-9.eE])")
"""A whole number that may be beyond 2**53."""

_NOT_PYTHON = re.compile(rb"-NaN|Inf(?!inity)")
"""What Arrow reads as a number and Python does not."""

_MINUS_ZERO = re.compile(rb"[:,\[\s]-0(?![0-9.eE])")
"""A whole number to Python, so 0.0 as float64. Arrow makes -0.0 of it."""

_MANY_ZEROS = b"0" * 200
_LONG_EXPONENT = b"0e-000"
"""With one of these, its digits taken as zeros, a decimal may be nearer to 0 than float64 can be: Arrow makes 0.0 of it."""


FEW_LINES, TYPED_LINES = 512, 4096
"""The first lines, and how many at a time of all others, whose types Arrow finds. It makes a value
of each name for each line: where each object has names of its own, that grows with the square of
the lines."""

SPARSE = 32
"""Lines that take so many times their bytes in Arrow have names of their own: Python looks at those
that follow."""


class JsonLines(TextFormat):
    """A text format: one JSON object on each line. Blank lines are no records, but they have
    numbers.

    The result is that of `parse_line` for each line: Arrow's parser is used where it gives the
    same, 20 times as fast.
    """

    def head(self, data: bytes, reading: Reading) -> Head:
        """Pass over a byte order mark. Raises Rejection for an array on several lines."""
        head = super().head(data, reading)
        first, newline, _ = data[head.size :].lstrip().partition(b"\n")
        if newline and first.startswith(b"[") and not first.rstrip().endswith(b"]"):
            raise refused(
                "not-json-lines",
                "is one array of JSON on several lines; give its name the ending .json",
            )
        return head

    def types_of(self, part: TextPart, reading: Reading) -> Types:
        """Return the types of the fields of all lines that can be read."""
        data, ends, label = part.data, line_ends(part.data), reading.label
        found, sparse = list[Types](), False
        for start, stop in pairwise([0, *range(FEW_LINES, len(ends), TYPED_LINES), len(ends)]):
            offset = int(ends[start - 1]) if start else 0
            lines = data[offset : ends[stop - 1] if stop else 0]
            own_ends = ends[start:stop] - offset
            table = None if sparse else self._infer(lines, own_ends, label)
            if table is None:
                objects = _objects(lines, own_ends, np.arange(start, stop), [], reading.list_field)
                found.append(Types.of_values((value for _, value in objects), label))
            else:
                found.append(Types.of(table, label).as_json())
                sparse = table.nbytes > SPARSE * len(lines)
        return reduce(Types.join, found)

    def _infer(self, data: bytes, ends: Numbers, label: str) -> pa.RecordBatch | None:
        """Parse lines into the types that Arrow finds. None: they must be looked at one by one."""
        if not _is_shallow(data, ends):
            return None
        batch = _parse_fast(data, ends, None)
        if (
            batch is None
            or label not in batch.schema.names
            or not types.is_timestamp(batch.schema.field(label).type)
        ):
            return batch
        # The strings of labels are wanted as they are.
        text = _parse_fast(data, ends, pa.schema([(label, pa.string())]), unexpected="ignore")
        place = batch.schema.names.index(label)
        return None if text is None else batch.set_column(place, label, text.column(0))

    def parse(
        self, part: TextPart, reading: Reading, schema: pa.Schema, choose: Choose | None
    ) -> Parsed:
        """Read lines into the columns of `schema`, string where it has null or objects without
        fields (see `Types.found`).

        Values that are no strings are JSON text in a column of strings. Raises Misfit where a value
        fits no other column, and where an object has a field that `schema` has not, unless a person
        chose its columns.
        """
        data, ends = part.data, line_ends(part.data)
        numbers = part.first + np.arange(len(ends))
        if choose is not None:
            wanted = choose(numbers)
            data, ends = chosen_lines(data, ends, wanted)
            numbers = numbers[wanted]
        batch = _parse_fast(data, ends, schema, "ignore" if is_chosen(schema) else "error")
        if batch is None:
            rejects: Rejects = []
            records = list(_objects(data, ends, numbers, rejects, reading.list_field))
            return parsed_records(records, rejects, schema)
        if batch.num_rows < len(numbers):
            numbers = numbers[[bool(line.strip()) for line in _lines(data, ends)]]
        return Parsed(numbers, batch, [])


# --- by Arrow ---


def _parse_fast(
    data: bytes, ends: Numbers, schema: pa.Schema | None, unexpected: str = "error"
) -> pa.RecordBatch | None:
    """Parse lines by Arrow, into the types that it finds where there is no schema. None: the result
    is not sure to be right.

    With a schema Arrow stops at the first value that does not fit, so that no value is deeper than
    the schema.
    """
    import pyarrow.json as pj  # 20 ms to import, which a worker that reads images does not need

    if schema is not None and (not len(schema) or any(map(is_json, schema))):
        # a table without columns does not know its number of rows, and what is parsed is no text
        return None
    objects = _objects_on_lines(data, ends)
    if objects is None or not is_utf8(data):
        return None
    # With one closing brace on each line there is nothing after an object; searching for the null
    # takes longer.
    if count_byte(data, _CLOSE) != objects and _NULL_AFTER_OBJECT.search(data):
        return None
    columns = (
        None if schema is None else pa.schema([(f.name, _parsed_type(f.type)) for f in schema])
    )
    options = pj.ParseOptions(
        columns, unexpected_field_behavior="infer" if schema is None else unexpected
    )
    try:
        table = pj.read_json(
            pa.BufferReader(data),
            pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
            options,
        )
        # pyarrow.json has built lists of nulls of a wrong length. Strings are UTF-8, because the
        # text is.
        table.validate(full=any(types.is_nested(type_) for type_ in table.schema.types))
    except (pa.ArrowException, OverflowError):
        return None
    if table.num_rows != objects:
        return None
    batches = table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    there = set(batch.schema.names)
    if schema is not None and not all(
        _only_nulls(batch.column(f.name), f.type) for f in schema if f.name in there
    ):
        return None
    if not _is_exact(batch, data, ends):
        return None
    return batch if schema is None else _cast(batch, without_nulls(schema))


def _parsed_type(type_: pa.DataType) -> pa.DataType:
    """Return what Arrow's parser is to make of values of a type: strings of all that JSON has no
    values for.

    The parser itself takes numbers for dates, for instance.
    """
    if types.is_struct(type_) and type_.num_fields:
        return pa.struct([(f.name, _parsed_type(f.type)) for f in type_])
    if is_list(type_):
        return pa.list_(_parsed_type(type_.value_type))
    known = types.is_boolean(type_) or is_number(type_)
    return type_ if known or types.is_large_string(type_) else pa.string()


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch | None:
    """Return the columns of a schema. None: a value does not fit, and must be looked at alone."""
    if batch.schema.equals(schema):
        return batch
    try:
        columns = [column.cast(f.type) for column, f in zip(batch.columns, schema, strict=True)]
    except pa.ArrowException:
        return None
    return pa.record_batch(columns, schema=schema)


def _objects_on_lines(data: bytes, ends: Numbers) -> int | None:
    """Return how many lines there are that are not blank. None: one of them does not begin with {
    and end with }.

    No line end within a valid object has } before it and { after it: with as many rows as lines,
    each line is one object.
    """
    if not len(ends):
        return 0
    array = np.frombuffer(data, np.uint8)
    starts = np.concatenate(([0], ends[:-1]))
    last = ends - 1
    last = last - (array[last] == b"\n"[0])  # only the last line may have no line end
    last = np.maximum(last, starts)
    last = np.maximum(last - (array[last] == _CARRIAGE_RETURN), starts)
    others = np.flatnonzero((array[starts] != _OPEN) | (array[last] != _CLOSE))
    blank = 0
    for start, end in zip(starts[others].tolist(), ends[others].tolist(), strict=True):
        line = data[start:end].strip()
        if line and not (line.startswith(b"{") and line.endswith(b"}")):
            return None
        blank += not line
    return len(ends) - blank


def _is_shallow(data: bytes, ends: Numbers) -> bool:
    """Return whether no line is nested deeper than it may be. Arrow's recursion has no limit but
    the stack: it crashes."""
    array = np.frombuffer(data, np.uint8)
    opened = np.flatnonzero((array == _OPEN) | (array == _OPEN_LIST))
    counts = np.diff(np.searchsorted(opened, ends), prepend=0)
    for place in np.flatnonzero(counts > MOST_LEVELS).tolist():
        try:
            parse_line(data[ends[place - 1] if place else 0 : ends[place]])
        except Rejection:
            return False
    return True


def _only_nulls(array: pa.Array, type_: pa.DataType) -> bool:
    """Return whether an array has no values where a type found none: null, nested ones too, and
    objects without fields."""
    if says_nothing(type_):
        return bool(array.null_count == len(array))
    if types.is_struct(type_):
        return all(_only_nulls(array.field(place), f.type) for place, f in enumerate(type_))
    return _only_nulls(array.flatten(), type_.value_type) if types.is_list(type_) else True


def _float_arrays(array: pa.Array) -> Iterator[pa.Array]:
    if types.is_floating(array.type):
        yield array
    elif types.is_struct(array.type):
        for place in range(array.type.num_fields):
            yield from _float_arrays(array.field(place))
    elif types.is_list(array.type):
        yield from _float_arrays(array.flatten())


def _is_exact(batch: pa.RecordBatch, data: bytes, ends: Numbers) -> bool:
    """Return whether all decimals are what Python reads. Only the lines are searched in which a
    value makes it worth it."""
    columns = [
        (
            column,
            [part.fill_null(1.0).to_numpy(zero_copy_only=False) for part in _float_arrays(column)],
        )
        for column in batch.columns
    ]
    if all(map(_are_ordinary, (values for _, parts in columns for values in parts))):
        return True
    for is_odd, may_be_wrong in _TRAPS:
        rows = np.zeros(batch.num_rows, np.bool_)
        for column, parts in columns:
            for values in parts:
                odd = is_odd(values)
                # The rows of nested values are not known.
                rows |= odd if types.is_floating(column.type) else odd.any()
        if rows.any() and may_be_wrong(
            data if len(rows) < len(ends) else chosen_lines(data, ends, rows)[0]
        ):
            return False
    return True


def _are_ordinary(values: Array) -> bool:
    """Return whether no value is odd in any of the ways of _TRAPS. With a NaN, no comparison
    holds."""
    sizes = np.abs(values)
    return not len(sizes) or bool(sizes.min() > 0 and sizes.max() < EXACT_IN_FLOAT)


def _may_be_tiny(data: bytes) -> bool:
    # a regular expression takes ten times as long
    return _MANY_ZEROS in data or _LONG_EXPONENT in data.translate(ALIKE)


_TRAPS: list[tuple[Callable[[Any], Any], Callable[[bytes], Any]]] = [
    (lambda values: ~np.isfinite(values), _NOT_PYTHON.search),
    (lambda values: np.abs(values) >= EXACT_IN_FLOAT, _LONG_WHOLE.search),
    (lambda values: (values == 0) & np.signbit(values), _MINUS_ZERO.search),
    (lambda values: values == 0, _may_be_tiny),
]
"""Which values a wrong number may have become, and what to search the text for."""


# --- line by line ---


def _lines(data: bytes, ends: Numbers) -> Iterator[bytes]:
    start = 0
    for end in ends.tolist():
        yield data[start:end]
        start = end


def _objects(
    data: bytes, ends: Numbers, numbers: Numbers, rejects: Rejects, list_field: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the object of every line that has one, and add the other lines to
    `rejects`.

    A list is an object with one field, if `list_field` names it.
    """
    for number, line in zip(numbers.tolist(), _lines(data, ends), strict=True):
        if not line.strip():
            continue
        try:
            value = parse_line(line, list_field)
        except Rejection as error:
            if error.error == "not-utf8":
                error = error.saying(error.message.replace("recode the file", OTHER_ENCODING))
            rejects.append((number, error))
        else:
            yield number, value
