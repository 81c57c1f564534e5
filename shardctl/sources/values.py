"""What the values of fields are: found in arrays, in types or in parsed JSON, and joined in any
order with the same result."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.sources.jsonl import EXACT_IN_FLOAT, MOST_NAMES

if TYPE_CHECKING:
    from shardctl.sources.csv_numbers import CellStats

INT64 = (-(2**63), 2**63 - 1)

WHOLE = {
    str(t): t
    for t in (
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.uint8(),
        pa.uint16(),
        pa.uint32(),
        pa.uint64(),
    )
}
FLOATS = {str(t): t for t in (pa.float16(), pa.float32(), pa.float64())}
STRINGS = {str(t): t for t in (pa.string(), pa.large_string())}

# Kinds of values that are no names of Arrow types.
HUGE = "huge"  # a whole number outside 64 bits
DEEP = "deep"  # a list or an object deeper than a column may have it
# beside floats: not all of them are whole numbers within 2**53 and written as such, or nobody has
# looked
DECIMALS = "decimals"
TYPED = "typed"  # beside numbers of which nothing is known but their type
LIST, LARGE_LIST, FIXED_LIST, STRUCT = "list", "large_list", "fixed_size_list:", "struct"
OBJECT = "object"  # a struct whose names nothing has declared: those that were met
# objects with more than MOST_NAMES names in all: what they hold is in `items`, together
MANY = "many"
ARROW = "arrow:"  # then a type that is equal to itself alone, in base64: times, decimals, bytes
ONE = "one"  # a feature with one value: a list only where others of its field have more
UTF8 = "utf8"  # bytes that are text in UTF-8: a string only where all others of their field are


@dataclass(frozen=True)
class Feature:
    """The values of a feature, as formats have it that know lists alone: a numpy array (n,), or a
    list of bytes.

    Where all features of a field have one value, or none, it is a field of single values.
    """

    items: Any

    def text(self) -> str | None:
        """Return its value where that is one text; None where it is something else."""
        only = self.items[0] if len(self.items) == 1 else None
        return only.decode() if isinstance(only, bytes) and _is_utf8(only) else None


@dataclass(frozen=True)
class InferredTypes:
    """What the values of a field are, all of them: which type holds them is decided only when the
    schema is asked for.

    Joining is a union of sets, so that it gives the same in any order. `low` and `high` are the
    ends of the whole numbers, `items` what is in lists, `fields` what is in objects. `lead` are the
    fields of the leftmost part, in its order. `written` is how the cells of CSV files are written;
    what they are is decided last, too.
    """

    names: frozenset[str] = frozenset()
    low: int | None = None
    high: int | None = None
    items: InferredTypes | None = None
    fields: dict[str, InferredTypes] = field(default_factory=dict)
    lead: tuple[str, ...] = ()
    written: CellStats | None = None

    def join(self, other: InferredTypes) -> InferredTypes:
        """Return what the values of both are."""
        lows = [end for end in (self.low, other.low) if end is not None]
        highs = [end for end in (self.high, other.high) if end is not None]
        items = (self.items or InferredTypes()).join(other.items) if other.items else self.items
        fields = join_fields(self.fields, other.fields)
        names = self.names | other.names
        written = (
            self.written.join(other.written)
            if self.written and other.written
            else self.written or other.written
        )
        return InferredTypes(
            names,
            min(lows, default=None),
            max(highs, default=None),
            items,
            fields,
            self.lead,
            written,
        )._bounded()

    def _bounded(self) -> InferredTypes:
        """Return the same without the names of objects where these are too many."""
        many = MANY in self.names or (OBJECT in self.names and len(self.fields) > MOST_NAMES)
        if not many or not self.fields:
            return self
        inside = reduce(InferredTypes.join, self.fields.values(), self.items or InferredTypes())
        return replace(self, names=self.names | {MANY}, items=inside, fields={}, lead=())

    def decided(self) -> InferredTypes:
        """Return the same with the cells of CSV files as numbers or strings, whichever they are all
        together."""
        if self.written is None or not self.written.cells:
            return replace(self, written=None)
        type_ = self.written.type()
        low, high = INT64 if self.written.inexact else (-EXACT_IN_FLOAT, EXACT_IN_FLOAT)
        whole = pa.types.is_int64(type_)
        names = [str(type_), *([DECIMALS] if pa.types.is_floating(type_) else [])]
        kinds = InferredTypes(frozenset(names), low if whole else None, high if whole else None)
        return replace(self, written=None).join(kinds)

    def parts(self) -> Iterator[InferredTypes]:
        """Yield this and all that is nested in it."""
        yield self
        for part in (*((self.items,) if self.items else ()), *self.fields.values()):
            yield from part.parts()

    def as_json(self) -> InferredTypes:
        """Return what they are that Arrow has made of JSON: timestamps are strings, floats
        decimals, structs objects."""
        names = {
            "string" if is_time(name) else OBJECT if name == STRUCT else name for name in self.names
        }
        if names & FLOATS.keys():
            names.add(DECIMALS)
        items = self.items.as_json() if self.items else None
        fields = {name: part.as_json() for name, part in self.fields.items()}
        return replace(self, names=frozenset(names), items=items, fields=fields)._bounded()


def join_fields(
    one: dict[str, InferredTypes], other: dict[str, InferredTypes]
) -> dict[str, InferredTypes]:
    """Return what the values of the fields of both are."""
    joined = dict(one)
    for name, kinds in other.items():
        joined[name] = joined.get(name, InferredTypes()).join(kinds)
    return joined


def ordered(fields: dict[str, InferredTypes], lead: tuple[str, ...]) -> list[str]:
    """Return the names of fields: those of the leftmost part first, then the others by name."""
    return [*lead, *sorted(fields.keys() - set(lead))]


def kinds_of(type_: pa.DataType, array: pa.Array | None, levels: int) -> InferredTypes:
    """Return what the values of an array are, lists and objects at most `levels` deep, or what
    those of its type may be."""
    if pa.types.is_dictionary(type_):
        return kinds_of(type_.value_type, None if array is None else array.dictionary, levels)
    if pa.types.is_run_end_encoded(type_):
        return kinds_of(type_.value_type, None if array is None else array.values, levels)
    if (
        isinstance(type_, pa.BaseExtensionType)
        or not pa.types.is_nested(type_)
        or pa.types.is_union(type_)
    ):
        return _kinds_of_leaf(type_, array)
    if not levels:
        return InferredTypes(frozenset([DEEP]))
    if pa.types.is_map(type_):
        pairs = pa.struct([("key", type_.key_type), ("value", type_.item_type)])
        if array is not None:
            array = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        return InferredTypes(frozenset([LIST]), items=kinds_of(pairs, array, levels - 1))
    # A reader of JSON cannot tell null from a list without items where nothing has a value, the
    # others can.
    if pa.types.is_struct(type_):
        parts = [None] * type_.num_fields if array is None else array.flatten()
        fields = {
            f.name: kinds_of(f.type, part, levels - 1) for f, part in zip(type_, parts, strict=True)
        }
        return InferredTypes(frozenset([STRUCT]), fields=fields, lead=tuple(fields))
    inside = kinds_of(type_.value_type, None if array is None else array.flatten(), levels - 1)
    return InferredTypes(frozenset(_names(type_)), items=inside)


def _kinds_of_leaf(type_: pa.DataType, array: pa.Array | None) -> InferredTypes:
    names, is_float = _names(type_), str(type_) in FLOATS
    if str(type_) not in WHOLE and not is_float:
        return InferredTypes(frozenset(names))
    if array is None:
        limits = None if is_float else np.iinfo(str(type_))
        ends = (None, None) if limits is None else (int(limits.min), int(limits.max))
        return InferredTypes(frozenset([*names, TYPED, *([DECIMALS] if is_float else [])]), *ends)
    values = _present(array)
    if is_float and not _are_whole(values):
        return InferredTypes(frozenset([*names, DECIMALS]))
    return InferredTypes(
        frozenset(names), *((int(values.min()), int(values.max())) if len(values) else (None, None))
    )


def _names(type_: pa.DataType) -> list[str]:
    """Return the kind of a type, none for null."""
    if pa.types.is_null(type_):
        return []
    if pa.types.is_string_view(type_):
        return ["string"]
    if pa.types.is_fixed_size_list(type_):
        return [f"{FIXED_LIST}{type_.list_size}"]
    if pa.types.is_large_list(type_) or pa.types.is_large_list_view(type_):
        return [LARGE_LIST]
    if pa.types.is_list(type_) or pa.types.is_list_view(type_):
        return [LIST]
    name = str(type_)
    if name in WHOLE or name in FLOATS or name in STRINGS or name == "bool":
        return [name]
    return [ARROW + base64.b64encode(pa.schema([("", type_)]).serialize()).decode()]


def _present(array: pa.Array) -> npt.NDArray[Any]:
    """Return the numbers that are not missing."""
    # To drop nulls imports pyarrow.compute, 20 ms in each worker, and most columns of whole numbers
    # have none.
    present = array.drop_null() if array.null_count else array
    values: npt.NDArray[Any] = present.to_numpy(zero_copy_only=False)
    return values


def _are_whole(values: npt.NDArray[Any]) -> bool:
    """Return whether floats are whole numbers that are exact as such, and as float64. -0.0 is
    none."""
    # the first ones mostly say it
    for part in (values[:100].astype(np.float64), values.astype(np.float64)):
        whole = (
            (np.abs(part) <= EXACT_IN_FLOAT)
            & (np.trunc(part) == part)
            & ((part != 0) | ~np.signbit(part))
        )
        if not whole.all():
            return False
    return True


def columns_of(records: Iterable[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of each field of parsed JSON objects."""
    columns: dict[str, list[Any]] = {}
    for record in records:
        for name, value in record.items():
            columns.setdefault(name, []).append(value)
    return columns


_SCALARS = {str: "string", bool: "bool", float: "double"}
BYTES = ARROW + base64.b64encode(pa.schema([("", pa.binary())]).serialize()).decode()


def kinds_of_values(values: list[Any], levels: int) -> InferredTypes:
    """Return what parsed JSON values are, and bytes, arrays and features."""
    types = set(map(type, values))
    if types & {bytes, np.ndarray, Feature}:
        return _kinds_of_others(values, levels)
    names = {name for type_, name in _SCALARS.items() if type_ in types}
    if float in types:
        names.add(DECIMALS)
    low, high = None, None
    if int in types:
        whole = [value for value in values if type(value) is int]
        low, high = min(whole), max(whole)
        names.add("int64" if low >= INT64[0] and high <= INT64[1] else HUGE)
        low, high = (None, None) if HUGE in names else (low, high)
    nested = types & {list, dict}
    if nested and not levels:
        return InferredTypes(frozenset({*names, DEEP}), low, high)
    items, fields = None, {}
    if list in nested:
        names.add(LIST)
        items = kinds_of_values(
            [item for value in values if type(value) is list for item in value], levels - 1
        )
    if dict in nested:
        columns = columns_of(value for value in values if type(value) is dict)
        if len(columns) > MOST_NAMES:
            names |= {OBJECT, MANY}
            items = kinds_of_values([*chain.from_iterable(columns.values())], levels - 1).join(
                items or InferredTypes()
            )
        else:
            names.add(OBJECT)
            fields = {name: kinds_of_values(inside, levels - 1) for name, inside in columns.items()}
    return InferredTypes(frozenset(names), low, high, items, fields, tuple(fields))


def _kinds_of_others(values: list[Any], levels: int) -> InferredTypes:
    """Return what values are of which some are no JSON."""
    found = kinds_of_values(
        [value for value in values if type(value) not in (bytes, np.ndarray, Feature)], levels
    )
    if any(type(value) is bytes for value in values):
        found = found.join(InferredTypes(frozenset([BYTES])))
    for dimensions in {value.ndim for value in values if type(value) is np.ndarray}:
        alike = [
            value for value in values if type(value) is np.ndarray and value.ndim == dimensions
        ]
        found = found.join(_kinds_of_shapes(alike, dimensions, levels))
    features = [value for value in values if type(value) is Feature]
    found = found.join(_kinds_of_features(ONE, [each for each in features if len(each.items) == 1]))
    return found.join(_kinds_of_features(LIST, [each for each in features if len(each.items) > 1]))


def _kinds_of_shapes(arrays: list[npt.NDArray[Any]], dimensions: int, levels: int) -> InferredTypes:
    """Return what arrays of so many dimensions are."""
    if dimensions > levels:
        return InferredTypes(frozenset([DEEP]))
    kinds = _kinds_of_items([array.reshape(-1) for array in arrays])
    for _ in range(dimensions):
        kinds = InferredTypes(frozenset([LIST]), items=kinds)
    return kinds


def _kinds_of_features(name: str, features: list[Feature]) -> InferredTypes:
    """Return what features are that all have one value (`name` is ONE), or several (LIST)."""
    if not features:
        return InferredTypes()
    items = _kinds_of_items([each.items for each in features if isinstance(each.items, np.ndarray)])
    texts = [each.items for each in features if not isinstance(each.items, np.ndarray)]
    names = {UTF8 if all(map(_is_utf8, values)) else BYTES for values in texts}
    return InferredTypes(frozenset([name]), items=items.join(InferredTypes(frozenset(names))))


def _kinds_of_items(arrays: list[npt.NDArray[Any]]) -> InferredTypes:
    """Return what the values in arrays of one dimension are: all of a type are looked at together,
    as each look takes 20 µs."""
    by_type = defaultdict(list)
    for array in arrays:
        if array.size:
            by_type[array.dtype].append(array)
    found = InferredTypes()
    for alike in by_type.values():
        values = pa.array(np.concatenate(alike))
        found = found.join(_kinds_of_leaf(values.type, values))
    return found


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def arrow_type(name: str) -> pa.DataType:
    """Return the type that stands in a name that begins with ARROW."""
    return (
        pa.ipc.read_schema(pa.py_buffer(base64.b64decode(name.removeprefix(ARROW)))).field(0).type
    )


def is_time(name: str) -> bool:
    """Return whether this is the name of timestamps."""
    return name.startswith(ARROW) and pa.types.is_timestamp(arrow_type(name))
