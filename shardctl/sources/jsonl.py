"""Lines of JSON, and the Arrow types that hold them without loss."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.storage import printable

CHUNK_LINES = 4096
"""Lines whose types are inferred together."""

DEEPEST = 60
"""Levels of lists and objects in a column. Arrow writes and reads files with up to 64."""

MOST_LEVELS = 500
"""Levels of lists and objects in a line that is read at all."""

EXACT_IN_FLOAT = 2**53
"""Whole numbers beyond this are rounded where they become float64."""

SHOWN_DIGITS = 40
"""Characters of a number that a message shows."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half of a pair of surrogates, as JSON writes it."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"the name {printable(twice)} appears twice in one object")
    return value


def _decimal(text: str) -> float:
    """Return a decimal as float64. Raises Rejection where float64 has nothing near it: only infinity, or 0."""
    value = float(text)
    if math.isinf(value) or (value == 0 and re.search("[1-9]", re.split("[eE]", text)[0])):
        shown = text if len(text) <= SHOWN_DIGITS else f"{text[:SHOWN_DIGITS]}…"
        message = f"holds {shown}, which is outside the range of float64; write it as text, in quotes"
        raise Rejection("decode", "out-of-range", message)
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object)
_CHECKED_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_decimal)

_ALIKE = bytes.maketrans(b"123456789E+", b"000000000e-")
_MANY_DIGITS = b"0" * 300


def _may_be_out_of_range(line: bytes) -> bool:
    """Return whether a decimal of a line may be outside the range of float64: it has an exponent, or very many digits.

    Only such lines pay for a call per decimal. A regular expression would take longer than parsing the line.
    """
    alike = line.translate(_ALIKE)
    return b"0e0" in alike or b"0e-0" in alike or _MANY_DIGITS in alike


_SMALL = pa.int32()
"""Stands for whole numbers that float64 holds exactly, while types are inferred. As a column they are int64 too."""


def parse_line(line: bytes) -> dict[str, Any]:
    """Parse one line as a JSON object. Raises Rejection (stage `decode`)."""
    try:
        decoder = _CHECKED_DECODER if _may_be_out_of_range(line) else _DECODER
        value = decoder.decode(line.decode())
        if _SURROGATE.search(line):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise Rejection("decode", "not-utf8", f"not UTF-8 at byte {error.start} of the line; recode the file") from None
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        message = f"holds {half}, half of a pair that is one character, without the other half; fix the line"
        raise Rejection("decode", "lone-surrogate", message) from None
    except ValueError as error:
        raise Rejection("decode", "not-json", f"not a line of JSON ({error})") from None
    except RecursionError:
        raise _too_deep() from None
    # Python reads 900 levels or 20,000 by its version, and Arrow's own recursion has no limit but the stack.
    if line.count(b"[") + line.count(b"{") > MOST_LEVELS and _is_deeper(value, MOST_LEVELS):
        raise _too_deep()
    if not isinstance(value, dict):
        raise Rejection("decode", "not-an-object", f"a JSON object is needed, this line is a {type(value).__name__}")
    return value


def _too_deep() -> Rejection:
    return Rejection("decode", "too-deep", f"lists and objects are nested deeper than {MOST_LEVELS} levels; fix the line")


def _is_deeper(value: Any, levels: int) -> bool:
    parts = [value]
    for _ in range(levels + 1):
        nested = [part for part in parts if isinstance(part, dict | list)]
        parts = [part for each in nested for part in (each.values() if isinstance(each, dict) else each)]
    return bool(nested)


class TypeInference:
    """Finds the narrowest Arrow type of every field over any number of objects, a chunk in memory at a time.

    Whole numbers and decimals together are float64, where all the whole numbers are within 2**53, so that none is rounded.
    A field whose values fit no common type becomes a string column that holds the odd ones as JSON text: nothing is lost.
    """

    def __init__(self) -> None:
        self._types: dict[str, pa.DataType | None] = {}
        self._chunk: list[dict[str, Any]] = []

    def add(self, value: dict[str, Any]) -> None:
        """Take one more object into account."""
        self._chunk.append(value)
        if len(self._chunk) == CHUNK_LINES:
            self._flush()

    def schema(self) -> pa.Schema:
        """Return the fields in the order in which they were first seen."""
        self._flush()
        return pa.schema([(name, _storable(type_)) for name, type_ in self._types.items()])

    def mixed(self) -> list[str]:
        """Return the fields whose values fit no common type."""
        self._flush()
        return [name for name, type_ in self._types.items() if type_ is None]

    def _flush(self) -> None:
        values: dict[str, list[Any]] = {}
        for record in self._chunk:
            for name, value in record.items():
                values.setdefault(name, []).append(value)
        self._chunk = []
        for name, seen in values.items():
            known = self._types.get(name, pa.null())
            self._types[name] = None if known is None else _unify(known, _infer(seen))


def mixed_notices(fields: Iterable[str], what: str) -> list[str]:
    """Say of the fields whose values fit no common type how they are kept; `what` they are: field, column."""
    return [
        f"the {what} {printable(name)} holds values of several types, or whole numbers beyond 2^53 beside decimals; those that"
        " are no strings are kept as JSON text"
        for name in fields
    ]


def _infer(values: list[Any]) -> pa.DataType | None:
    try:
        type_ = pa.infer_type(values)
        # infer_type looks at shapes only: a whole number may still not fit.
        return _exact(pa.array(values, type_), DEEPEST)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, RecursionError):
        return None


def _exact(array: pa.Array, deepest: int) -> pa.DataType | None:
    """Return the type of an array, whole numbers that float64 holds exactly marked as such. None: nested too deep."""
    import pyarrow.compute as pc  # 40 ms to import, and a worker that reads lines never comes here

    type_ = array.type
    if pa.types.is_int64(type_):
        ends = pc.min_max(array)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        return _SMALL if low is None or (low >= -EXACT_IN_FLOAT and high <= EXACT_IN_FLOAT) else type_
    if not pa.types.is_nested(type_):
        return type_
    if not deepest:
        return None
    if pa.types.is_list(type_):
        inside = _exact(array.flatten(), deepest - 1)
        return None if inside is None else pa.list_(inside)
    fields = [(f.name, _exact(array.field(place), deepest - 1)) for place, f in enumerate(type_)]
    return None if any(inside is None for _, inside in fields) else pa.struct(fields)


def _unify(one: pa.DataType, other: pa.DataType | None) -> pa.DataType | None:
    """Return the type that holds the values of both without a change to any. None: there is none."""
    if other is None or one.equals(other) or pa.types.is_null(other):
        return None if other is None else one
    if pa.types.is_null(one):
        return other
    if pa.types.is_list(one) and pa.types.is_list(other):
        inside = _unify(one.value_type, other.value_type)
        return None if inside is None else pa.list_(inside)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {f.name: f.type for f in one}
        for f in other:
            unified = _unify(fields.get(f.name, pa.null()), f.type)
            if unified is None:
                return None
            fields[f.name] = unified
        return pa.struct(list(fields.items()))
    numbers = {str(one), str(other)}
    if numbers == {"int32", "int64"}:
        return pa.int64()
    return pa.float64() if numbers == {"int32", "double"} else None


def _storable(type_: pa.DataType | None) -> pa.DataType:
    """Replace what cannot be a column by string: no common type, nothing but nulls, objects without fields."""
    if type_ is None or pa.types.is_null(type_):
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(_storable(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([(f.name, _storable(f.type)) for f in type_]) if type_.num_fields else pa.string()
    return pa.int64() if type_.equals(_SMALL) else type_


def fit(value: Any, type_: pa.DataType) -> Any:
    """Return a parsed JSON value as its column wants it: JSON text where the column is a string and the value is not."""
    if value is None:
        return value
    if isinstance(value, str):
        # The one text in a column of another type is the empty label of a line: where labels name classes, it is none.
        return value if pa.types.is_string(type_) else None
    if pa.types.is_string(type_):
        return json.dumps(value, ensure_ascii=False)
    if pa.types.is_list(type_):
        return [fit(item, type_.value_type) for item in value]
    if pa.types.is_struct(type_):
        return {field.name: fit(value.get(field.name), field.type) for field in type_}
    return value


def lines(file: Iterable[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """Yield (number from 1, offset in bytes, line) of every line that is not blank. A byte order mark is skipped."""
    offset = 0
    for number, line in enumerate(file, 1):
        skipped = 3 if number == 1 and line.startswith(b"\xef\xbb\xbf") else 0
        if line.strip():
            yield number, offset + skipped, line[skipped:]
        offset += len(line)
