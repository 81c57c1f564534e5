"""What the values of fields are: found in arrays, in types or in parsed JSON, and joined in any
order with the same result."""

from __future__ import annotations

import codecs
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from shardctl.format.arrays import Array
from shardctl.sources.jsonl import EXACT_IN_FLOAT, MOST_NAMES

if TYPE_CHECKING:
    from shardctl.sources.csv_numbers import CellStats

INT64 = (-(2**63), 2**63 - 1)

WHOLE = {
    f"{kind}{bits}": getattr(pa, f"{kind}{bits}")()
    for kind in ("int", "uint")
    for bits in (8, 16, 32, 64)
}
FLOATS = {str(t): t for t in (pa.float16(), pa.float32(), pa.float64())}
STRINGS = {str(t): t for t in (pa.string(), pa.large_string())}

# Kinds of values that are no names of Arrow types. What is equal to itself alone (times, decimals,
# bytes) is its Arrow type.
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
ONE = "one"  # a feature with one value: a list only where others of its field have more
BYTES = pa.binary()
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
        return only.decode() if isinstance(only, bytes) and is_utf8(only) else None


@dataclass(frozen=True)
class InferredTypes:
    """What the values of a field are, all of them: which type holds them is decided only when the
    schema is asked for.

    Joining is a union of sets, so that it gives the same in any order. `low` and `high` are the
    ends of the whole numbers, `items` what is in lists, `fields` what is in objects. `lead` are the
    fields of the leftmost part, in its order. `written` is how the cells of CSV files are written;
    what they are is decided last, too.
    """

    names: frozenset[Any] = frozenset()
    low: int | None = None
    high: int | None = None
    items: InferredTypes | None = None
    fields: Fields = field(default_factory=dict)
    lead: tuple[str, ...] = ()
    written: CellStats | None = None

    def join(self, other: InferredTypes) -> InferredTypes:
        """Return what the values of both are."""
        ends = [end for end in (self.low, self.high, other.low, other.high) if end is not None]
        items = (self.items or InferredTypes()).join(other.items) if other.items else self.items
        written = (
            self.written.join(other.written)
            if self.written and other.written
            else self.written or other.written
        )
        return InferredTypes(
            self.names | other.names,
            min(ends, default=None),
            max(ends, default=None),
            items,
            join_fields(self.fields, other.fields),
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
        whole = types.is_int64(type_)
        names = [str(type_), *([DECIMALS] if types.is_floating(type_) else [])]
        kinds = InferredTypes(frozenset(names), low if whole else None, high if whole else None)
        return replace(self, written=None).join(kinds)

    def parts(self) -> Iterator[InferredTypes]:
        """Yield this and all that is nested in it."""
        yield self
        if self.items:
            yield from self.items.parts()
        for part in self.fields.values():
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


Fields = dict[str, InferredTypes]
"""What the values of fields are, by name."""


def join_fields(one: Fields, other: Fields) -> Fields:
    """Return what the values of the fields of both are."""
    joined = dict(one)
    for name, kinds in other.items():
        joined[name] = joined.get(name, InferredTypes()).join(kinds)
    return joined


def ordered(fields: Fields, lead: tuple[str, ...]) -> list[str]:
    """Return the names of fields: those of the leftmost part first, then the others by name."""
    return [*lead, *sorted(fields.keys() - set(lead))]


def kinds_of(type_: pa.DataType, array: pa.Array | None, levels: int) -> InferredTypes:
    """Return what the values of an array are, lists and objects at most `levels` deep, or what
    those of its type may be."""
    if types.is_dictionary(type_):
        return kinds_of(type_.value_type, None if array is None else array.dictionary, levels)
    if types.is_run_end_encoded(type_):
        return kinds_of(type_.value_type, None if array is None else array.values, levels)
    if not types.is_nested(type_) or types.is_union(type_):
        return _kinds_of_leaf(type_, array)
    if not levels:
        return InferredTypes(frozenset([DEEP]))
    if types.is_map(type_):
        pairs = pa.struct([("key", type_.key_type), ("value", type_.item_type)])
        if array is not None:
            array = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        return InferredTypes(frozenset([LIST]), items=kinds_of(pairs, array, levels - 1))
    # A reader of JSON cannot tell null from a list without items where nothing has a value, the
    # others can.
    if types.is_struct(type_):
        parts = [None] * type_.num_fields if array is None else array.flatten()
        fields = {
            f.name: kinds_of(f.type, part, levels - 1) for f, part in zip(type_, parts, strict=True)
        }
        return InferredTypes(frozenset([STRUCT]), fields=fields, lead=tuple(fields))
    inside = kinds_of(type_.value_type, None if array is None else array.flatten(), levels - 1)
    return InferredTypes(frozenset(_names(type_)), items=inside)


def _kinds_of_leaf(type_: pa.DataType, array: pa.Array | None) -> InferredTypes:
    names, name = frozenset(_names(type_)), str(type_)
    if name not in WHOLE and name not in FLOATS:
        return InferredTypes(names)
    if array is None and name in FLOATS:
        return InferredTypes(names | {TYPED, DECIMALS})
    if array is None:
        limits = np.iinfo(name)
        return InferredTypes(names | {TYPED}, limits.min, limits.max)
    # To drop nulls imports pyarrow.compute, 20 ms in each worker, and most columns of whole numbers
    # have none.
    present = array.drop_null() if array.null_count else array
    values = present.to_numpy(zero_copy_only=False)
    if name in FLOATS and not _are_whole(values):
        return InferredTypes(names | {DECIMALS})
    if not len(values):
        return InferredTypes(names)
    return InferredTypes(names, int(values.min()), int(values.max()))


def _names(type_: pa.DataType) -> list[Any]:
    """Return the kind of a type, none for null."""
    if types.is_null(type_):
        return []
    if types.is_string_view(type_):
        return ["string"]
    if types.is_fixed_size_list(type_):
        return [f"{FIXED_LIST}{type_.list_size}"]
    if types.is_large_list(type_) or types.is_large_list_view(type_):
        return [LARGE_LIST]
    if types.is_list(type_) or types.is_list_view(type_):
        return [LIST]
    name = str(type_)
    if name in WHOLE or name in FLOATS or name in STRINGS or name == "bool":
        return [name]
    return [type_]


def _are_whole(values: Array) -> bool:
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


_SCALARS: dict[type, Any] = {str: "string", bool: "bool", float: "double", bytes: BYTES}


def kinds_of_values(values: list[Any], levels: int) -> InferredTypes:
    """Return what parsed JSON values are, and bytes, arrays and features."""
    classes = set(map(type, values))

    def of(type_: type) -> list[Any]:
        return [value for value in values if type(value) is type_]

    names: set[Any] = {name for type_, name in _SCALARS.items() if type_ in classes}
    if float in classes:
        names.add(DECIMALS)
    low, high = None, None
    if int in classes:
        whole = of(int)
        low, high = min(whole), max(whole)
        names.add("int64" if low >= INT64[0] and high <= INT64[1] else HUGE)
        low, high = (None, None) if HUGE in names else (low, high)
    items, fields = None, {}
    if classes & {list, dict} and not levels:
        names.add(DEEP)
        classes -= {list, dict}
    if list in classes:
        names.add(LIST)
        items = kinds_of_values([item for value in of(list) for item in value], levels - 1)
    if dict in classes:
        columns = columns_of(of(dict))
        names.add(OBJECT)
        if len(columns) > MOST_NAMES:
            names.add(MANY)
            items = kinds_of_values([*chain.from_iterable(columns.values())], levels - 1).join(
                items or InferredTypes()
            )
        else:
            fields = {name: kinds_of_values(inside, levels - 1) for name, inside in columns.items()}
    found = InferredTypes(frozenset(names), low, high, items, fields, tuple(fields))
    by_depth = defaultdict(list)
    for array in of(np.ndarray) if np.ndarray in classes else ():
        by_depth[array.ndim].append(array.reshape(-1))
    for dimensions, arrays in by_depth.items():
        kinds = InferredTypes(frozenset([DEEP]))
        if dimensions <= levels:
            kinds = _kinds_of_items(arrays)
            for _ in range(dimensions):
                kinds = InferredTypes(frozenset([LIST]), items=kinds)
        found = found.join(kinds)
    if Feature in classes:
        features = of(Feature)
        found = found.join(_kinds_of_features(ONE, [f for f in features if len(f.items) == 1]))
        found = found.join(_kinds_of_features(LIST, [f for f in features if len(f.items) > 1]))
    return found


def _kinds_of_features(name: str, features: list[Feature]) -> InferredTypes:
    """Return what features are that all have one value (`name` is ONE), or several (LIST)."""
    if not features:
        return InferredTypes()
    items = _kinds_of_items([each.items for each in features if isinstance(each.items, np.ndarray)])
    texts = [each.items for each in features if not isinstance(each.items, np.ndarray)]
    names = {UTF8 if all(map(is_utf8, values)) else BYTES for values in texts}
    return InferredTypes(frozenset([name]), items=items.join(InferredTypes(frozenset(names))))


def _kinds_of_items(arrays: list[Array]) -> InferredTypes:
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


def is_utf8(data: bytes, final: bool = True) -> bool:
    """Return whether bytes are UTF-8; without `final`, half a character may be at their end."""
    try:
        codecs.utf_8_decode(data, "strict", final)
    except UnicodeDecodeError:
        return False
    return True


def is_time(name: Any) -> bool:
    """Return whether this is the kind of timestamps."""
    return isinstance(name, pa.DataType) and bool(types.is_timestamp(name))
