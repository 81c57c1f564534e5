"""Lines of JSON, and the Arrow types that hold them without loss."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from shardctl.errors import Rejection

CHUNK_LINES = 4096
"""Lines whose types are inferred together."""


def parse_line(line: bytes) -> dict[str, Any]:
    """Parse one line as a JSON object. Raises Rejection (stage `decode`)."""
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        raise Rejection("decode", "not-utf8", f"not UTF-8 at byte {error.start} of the line; recode the file") from None
    except (ValueError, RecursionError) as error:
        raise Rejection("decode", "not-json", f"not a line of JSON ({error})") from None
    if not isinstance(value, dict):
        raise Rejection("decode", "not-an-object", f"a JSON object is needed, this line is a {type(value).__name__}")
    return value


class TypeInference:
    """Finds the narrowest Arrow type of every field over any number of objects, a chunk in memory at a time.

    Integers and floats together are float64. A field whose values fit no common type becomes a string column that holds
    the odd ones as JSON text, so that nothing is lost.
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
            inferred = _infer(seen)
            known = self._types.get(name, pa.null())
            self._types[name] = None if known is None or inferred is None else _unify(known, inferred)


def _infer(values: list[Any]) -> pa.DataType | None:
    try:
        type_ = pa.infer_type(values)
        pa.array(values, type_)  # infer_type looks at shapes only: an integer may still not fit
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return None
    return type_


def _unify(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    try:
        schemas = [pa.schema([("x", one)]), pa.schema([("x", other)])]
        unified = pa.unify_schemas(schemas, promote_options="permissive").field("x").type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None
    # "Permissive" would also turn numbers into strings and the like: those stay as they are, in JSON text.
    return unified if _family(unified) == _family(one) or pa.types.is_null(one) or pa.types.is_null(other) else None


def _family(type_: pa.DataType) -> str:
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return "number"
    return "nested" if pa.types.is_nested(type_) else str(type_)


def _storable(type_: pa.DataType | None) -> pa.DataType:
    """Replace what cannot be a column by string: no common type, nothing but nulls, objects without fields."""
    if type_ is None or pa.types.is_null(type_):
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(_storable(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([(f.name, _storable(f.type)) for f in type_]) if type_.num_fields else pa.string()
    return type_


def fit(value: Any, type_: pa.DataType) -> Any:
    """Return a parsed JSON value as its column wants it: JSON text where the column is a string and the value is not."""
    if value is None or isinstance(value, str):
        return value
    if pa.types.is_string(type_):
        return json.dumps(value, ensure_ascii=False)
    if pa.types.is_list(type_):
        return [fit(item, type_.value_type) for item in value]
    if pa.types.is_struct(type_):
        return {field.name: fit(value.get(field.name), field.type) for field in type_}
    return value


def lines(file: Iterable[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """Give (number from 1, offset in bytes, line) of every line that is not blank. A byte order mark is passed over."""
    offset = 0
    for number, line in enumerate(file, 1):
        skipped = 3 if number == 1 and line.startswith(b"\xef\xbb\xbf") else 0
        if line.strip():
            yield number, offset + skipped, line[skipped:]
        offset += len(line)
