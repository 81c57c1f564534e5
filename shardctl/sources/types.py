"""The types of fields over any number of records: found in parts, joined in any order."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError
from shardctl.sources.jsonl import DEEPEST, EXACT_IN_FLOAT
from shardctl.storage import printable

if TYPE_CHECKING:
    from shardctl.sources.written import Written

WRITTEN = b"shardctl.written"
"""In the metadata of a field with numbers of CSV files: how many decimal places all of them have, `any` if they differ.
`words`: all cells are `nan`, `inf` or empty, which is text until there is a number.

It is what a later cell must be like for the column to be one of numbers (shardctl/sources/written.py). Columns that a person
gives a type do not have it, and take every cell that can be read as this type.
"""

MOST_LABELS = 100_000
"""Different labels that are taken for names of classes: beyond that, a label is text of its own."""

_INT64 = (-(2**63), 2**63 - 1)

_WHOLE = {str(t): t for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())}
_FLOATS = {str(t): t for t in (pa.float16(), pa.float32(), pa.float64())}
_STRINGS = {str(t): t for t in (pa.string(), pa.large_string())}

# Kinds of values that are no names of Arrow types.
_HUGE = "huge"  # a whole number outside 64 bits
_DEEP = "deep"  # a list or an object deeper than a column may have it
_LIST, _LARGE_LIST, _FIXED_LIST, _STRUCT = "list", "large_list", "fixed_size_list:", "struct"
_ARROW = "arrow:"  # then a type that is equal to itself alone, in base64: times, decimals, bytes


@dataclass(frozen=True)
class _Kinds:
    """What the values of a field are, all of them: which type holds them is decided only when the schema is asked for.

    Joining is a union of sets, so that it gives the same in any order. `low` and `high` are the ends of the whole numbers,
    `items` what is in lists, `fields` what is in objects. `lead` are the fields of the leftmost part, in its order.
    `written` is how the cells of CSV files are written; what they are is decided last, too.
    """

    names: frozenset[str] = frozenset()
    low: int | None = None
    high: int | None = None
    items: _Kinds | None = None
    fields: dict[str, _Kinds] = field(default_factory=dict)
    lead: tuple[str, ...] = ()
    written: Written | None = None

    def join(self, other: _Kinds) -> _Kinds:
        lows = [end for end in (self.low, other.low) if end is not None]
        highs = [end for end in (self.high, other.high) if end is not None]
        items = (self.items or _Kinds()).join(other.items) if other.items else self.items
        fields = _join(self.fields, other.fields)
        names = self.names | other.names
        written = self.written.join(other.written) if self.written and other.written else self.written or other.written
        return _Kinds(names, min(lows, default=None), max(highs, default=None), items, fields, self.lead, written)

    def decided(self) -> _Kinds:
        """Return the same with the cells of CSV files as numbers or strings, whichever they are all together."""
        if self.written is None or not self.written.cells:
            return replace(self, written=None)
        type_ = self.written.type()
        low, high = _INT64 if self.written.inexact else (-EXACT_IN_FLOAT, EXACT_IN_FLOAT)
        whole = pa.types.is_int64(type_)
        kinds = _Kinds(frozenset([str(type_)]), low if whole else None, high if whole else None)
        return replace(self, written=None).join(kinds)

    def parts(self) -> Iterator[_Kinds]:
        """Yield this and all that is nested in it."""
        yield self
        for part in (*((self.items,) if self.items else ()), *self.fields.values()):
            yield from part.parts()

    def times_as_text(self) -> _Kinds:
        names = frozenset("string" if _is_time(name) else name for name in self.names)
        items = self.items.times_as_text() if self.items else None
        fields = {name: part.times_as_text() for name, part in self.fields.items()}
        return _Kinds(names, self.low, self.high, items, fields, self.lead, self.written)

    def to_json(self) -> dict[str, Any]:
        record: dict[str, Any] = {"kinds": sorted(self.names)}
        if self.low is not None:
            record |= {"low": self.low, "high": self.high}
        if self.items:
            record["items"] = self.items.to_json()
        if _STRUCT in self.names:
            record |= {"fields": _fields_to_json(self.fields), "lead": list(self.lead)}
        if self.written is not None:
            record["written"] = self.written.to_json()
        return record

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> _Kinds:
        items = cls.from_json(record["items"]) if "items" in record else None
        fields = _fields_from_json(record.get("fields", []))
        names = frozenset(record["kinds"])
        written = None
        if "written" in record:
            from shardctl.sources.written import Written  # its parts of Arrow take 40 ms to import, and most have no CSV

            written = Written.from_json(record["written"])
        return cls(names, record.get("low"), record.get("high"), items, fields, tuple(record.get("lead", ())), written)


class Types:
    """The types of the fields of some records, and the strings of the field that may name classes.

    Parts are joined in any order and grouping with the same result, but for the order of the fields: the fields of the
    leftmost part come first, in its order, then all others by name. The same goes for the fields of nested objects.

    Values of one field: whole numbers within 2**53 and decimals are float64 together; whole numbers of several widths, or
    floats of several widths, have the narrowest type that rounds none; lists and objects are joined by what is in them.
    Values that fit no common type are JSON text in a string column, with everything else in the same field.
    """

    def __init__(
        self, fields: dict[str, _Kinds], lead: tuple[str, ...], label: str, labels: frozenset[str] | None = frozenset()
    ) -> None:
        self._fields = fields
        self._lead = lead
        self._label = label
        self._labels = labels  # None: too many

    @classmethod
    def of(cls, batch: pa.RecordBatch, label: str) -> Types:
        """Return the types of these columns as their values need them; strings of the column `label` may name classes.

        Raises InputError if two columns have the same name.
        """
        fields = {name: _of_array(column, DEEPEST) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        labels = _label_strings(batch.column(label)) if batch.schema.names.count(label) == 1 else frozenset()
        return cls(fields, _unique_names(batch.schema), label, labels)

    @classmethod
    def of_schema(cls, schema: pa.Schema, label: str, labels: pa.Array | None = None) -> Types:
        """Return the types of columns whose values were not looked at: whole numbers may be any of their type.

        `labels` are values of the column `label`. Without them its labels are not known, and so name no classes. Raises
        InputError if two columns have the same name.
        """
        fields = {f.name: _of_type(f.type, DEEPEST) for f in schema}
        unknown: frozenset[str] | None = None if label in fields else frozenset()
        return cls(fields, _unique_names(schema), label, unknown if labels is None else _label_strings(labels))

    @classmethod
    def of_values(cls, records: Iterable[dict[str, Any]], label: str) -> Types:
        """Return the types of parsed JSON objects: str, int, float, bool, None, list and dict. Slower than `of`."""
        columns = _columns(records)
        fields = {name: _of_values(values, DEEPEST) for name, values in columns.items()}
        labels = frozenset(value for value in columns.get(label, ()) if isinstance(value, str) and value)
        return cls(fields, tuple(columns), label, labels if len(labels) <= MOST_LABELS else None)

    @classmethod
    def of_cells(cls, batch: pa.RecordBatch, label: str) -> Types:
        """Return the types of columns of CSV cells, strings as they are written: numbers only if all are written as such.

        Raises InputError if two columns have the same name.
        """
        from shardctl.sources.written import Written  # its parts of Arrow take 40 ms to import, and most have no CSV

        names = _unique_names(batch.schema)
        fields = {name: _Kinds(written=Written.of(column)) for name, column in zip(names, batch.columns, strict=True)}
        return cls(fields, names, label, _label_strings(batch.column(label)) if label in names else frozenset())

    def times_as_text(self) -> Types:
        """Return the types with string for timestamps, nested ones too: a parser of text made times of strings."""
        fields = {name: kinds.times_as_text() for name, kinds in self._fields.items()}
        return Types(fields, self._lead, self._label, self._labels)

    def join(self, other: Types) -> Types:
        """Return the types of the records of both. The fields of this one come first, see above."""
        return Types(_join(self._fields, other._fields), self._lead, self._label, _join_labels(self._labels, other._labels))

    def schema(self) -> pa.Schema:
        """Return the columns that hold all values without a change.

        Nothing but nulls, and objects without fields, are strings. Raises InputError if a field holds values of several types
        of which one cannot be JSON text (bytes, decimals, times).
        """
        return without_nulls(self.found())

    def _field(self, name: str) -> pa.Field:
        type_ = self._type(name)
        written = self._fields[name].written
        if written is None or not written.cells:
            return pa.field(name, type_)
        if pa.types.is_string(type_) and not written.text and not written.digits:
            return pa.field(name, type_, metadata={WRITTEN: b"words"})
        if written.places is None or not (pa.types.is_integer(type_) or pa.types.is_floating(type_)):
            return pa.field(name, type_)
        low, high = written.places
        return pa.field(name, type_, metadata={WRITTEN: b"%d" % low if low == high else b"any"})

    def _type(self, name: str) -> pa.DataType:
        kinds = self._fields[name].decided()
        type_ = _common(kinds)
        if type_ is None and (rigid := _rigid_names(kinds)):
            several = next((part for part in kinds.parts() if _is_mixed(part)), kinds)
            both = sorted(rigid | set(_shown(several)))
            raise InputError(
                f"the field {printable(name)} holds values of several types ({', '.join(both)}), which no column can hold"
                " together; give them one type in the files"
            )
        return pa.string() if type_ is None else type_

    def found(self) -> pa.Schema:
        """Return the columns that hold the values seen so far: as `schema`, but null, and objects without fields, are kept.

        With it, `read` raises Misfit where a later value needs another type than the string that `schema` puts there; its
        batches have the columns of `without_nulls(types.found())`, which are those of `schema`. Raises InputError as `schema`.
        """
        return pa.schema([self._field(name) for name in _ordered(self._fields, self._lead)])

    def mixed(self) -> list[str]:
        """Return the fields whose values fit no common type: their column is a string, with JSON text in it."""
        return [name for name in _ordered(self._fields, self._lead) if _common(self._fields[name].decided()) is None]

    def odd_cells(self) -> dict[str, str]:
        """Return the CSV columns that are text though all their cells look like numbers, each with a cell that makes it so."""
        odd = {name: kinds.written.odd() for name, kinds in self._fields.items() if kinds.written is not None}
        return {name: cell for name, cell in odd.items() if cell is not None}

    def only_column(self) -> str | None:
        """Return the name of the only column there is, if it is one of CSV cells."""
        return next((name for name, kinds in self._fields.items() if len(self._fields) == 1 and kinds.written), None)

    def labels(self) -> list[str] | None:
        """Return the different strings of the field that may name classes, sorted.

        None: not all of its values are strings, there are none, or more than 100,000 different ones. Empty strings and nulls
        name no class.
        """
        kinds = self._fields.get(self._label, _Kinds()).decided()
        return sorted(self._labels) if self._labels and kinds.names <= set(_STRINGS) else None

    def to_json(self) -> Any:
        """Return everything as plain data."""
        labels = None if self._labels is None else sorted(self._labels)
        return {"fields": _fields_to_json(self._fields), "lead": list(self._lead), "label": self._label, "labels": labels}

    @classmethod
    def from_json(cls, record: Any) -> Types:
        """Build what `to_json` gave."""
        labels = None if record["labels"] is None else frozenset(record["labels"])
        return cls(_fields_from_json(record["fields"]), tuple(record["lead"]), record["label"], labels)


def without_nulls(schema: pa.Schema) -> pa.Schema:
    """Return a schema with string, nested ones too, where values are only nulls or objects without fields."""
    return pa.schema([f.with_type(_without_null(f.type)) for f in schema], schema.metadata)


def _without_null(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_null(type_):
        return pa.string()
    if pa.types.is_struct(type_):
        return pa.struct([(f.name, _without_null(f.type)) for f in type_]) if type_.num_fields else pa.string()
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(_without_null(type_.value_type), type_.list_size)
    if pa.types.is_large_list(type_):
        return pa.large_list(_without_null(type_.value_type))
    return pa.list_(_without_null(type_.value_type)) if pa.types.is_list(type_) else type_


def _unique_names(schema: pa.Schema) -> tuple[str, ...]:
    twice = [name for name in schema.names if schema.names.count(name) > 1]
    if twice:
        raise InputError(f"two columns have the name {printable(twice[0])}; rename one")
    return tuple(schema.names)


def _join(one: dict[str, _Kinds], other: dict[str, _Kinds]) -> dict[str, _Kinds]:
    joined = dict(one)
    for name, kinds in other.items():
        joined[name] = joined.get(name, _Kinds()).join(kinds)
    return joined


def _join_labels(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return None
    joined = one if other <= one else one | other  # mostly the same few names: no copy
    return joined if len(joined) <= MOST_LABELS else None


def _ordered(fields: dict[str, _Kinds], lead: tuple[str, ...]) -> list[str]:
    return [*lead, *sorted(fields.keys() - set(lead))]


def _fields_to_json(fields: dict[str, _Kinds]) -> list[Any]:
    return [[name, kinds.to_json()] for name, kinds in fields.items()]


def _fields_from_json(record: list[Any]) -> dict[str, _Kinds]:
    return {name: _Kinds.from_json(kinds) for name, kinds in record}


def _label_strings(column: pa.Array) -> frozenset[str] | None:
    import pyarrow.compute as pc  # 40 ms to import, and not all that looks at types has labels

    plain = column.dictionary if pa.types.is_dictionary(column.type) else column
    if not (pa.types.is_string(plain.type) or pa.types.is_large_string(plain.type) or pa.types.is_string_view(plain.type)):
        return frozenset()
    if pa.types.is_string_view(plain.type):
        column = column.cast(pa.string())
    unique = pc.unique(column)
    if len(unique) > MOST_LABELS + 2:  # two may be null and ""
        return None
    found = frozenset(value for value in unique.to_pylist() if value)
    return found if len(found) <= MOST_LABELS else None


# --- what values are ---


def _of_array(array: pa.Array, levels: int) -> _Kinds:
    """Return what the values of an array are, lists and objects at most `levels` deep."""
    type_ = array.type
    if pa.types.is_dictionary(type_):
        return _of_array(array.dictionary, levels)
    if pa.types.is_run_end_encoded(type_):
        return _of_array(array.values, levels)
    if isinstance(type_, pa.BaseExtensionType) or not pa.types.is_nested(type_) or pa.types.is_union(type_):
        low, high = _ends(array) if str(type_) in _WHOLE else (None, None)
        return _Kinds(frozenset(_names(type_)), low, high)
    if array.null_count == len(array):
        # Nothing in it has a value; a reader of JSON cannot tell null from a list without items here, the others can.
        return _of_type(type_, levels, empty=True)
    if not levels:
        return _Kinds(frozenset([_DEEP]))
    if pa.types.is_map(type_):
        pairs = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        return _Kinds(frozenset([_LIST]), items=_of_array(pairs, levels - 1))
    if pa.types.is_struct(type_):
        fields = {f.name: _of_array(part, levels - 1) for f, part in zip(type_, array.flatten(), strict=True)}
        return _Kinds(frozenset([_STRUCT]), fields=fields, lead=tuple(f.name for f in type_))
    return _Kinds(frozenset(_names(type_)), items=_of_array(array.flatten(), levels - 1))


def _of_type(type_: pa.DataType, levels: int, empty: bool = False) -> _Kinds:
    """Return what values of a type may be; `empty`: there are none, so that whole numbers have no ends."""
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return _of_type(type_.value_type, levels, empty)
    if isinstance(type_, pa.BaseExtensionType) or not pa.types.is_nested(type_) or pa.types.is_union(type_):
        whole = None if empty or str(type_) not in _WHOLE else np.iinfo(str(type_))
        return _Kinds(frozenset(_names(type_)), *((int(whole.min), int(whole.max)) if whole else (None, None)))
    if not levels:
        return _Kinds(frozenset([_DEEP]))
    if pa.types.is_map(type_):
        pairs = pa.struct([("key", type_.key_type), ("value", type_.item_type)])
        return _Kinds(frozenset([_LIST]), items=_of_type(pairs, levels - 1, empty))
    if pa.types.is_struct(type_):
        fields = {f.name: _of_type(f.type, levels - 1, empty) for f in type_}
        return _Kinds(frozenset([_STRUCT]), fields=fields, lead=tuple(fields))
    return _Kinds(frozenset(_names(type_)), items=_of_type(type_.value_type, levels - 1, empty))


def _names(type_: pa.DataType) -> list[str]:
    """Return the kind of a type, none for null."""
    if pa.types.is_null(type_):
        return []
    if pa.types.is_string_view(type_):
        return ["string"]
    if pa.types.is_fixed_size_list(type_):
        return [f"{_FIXED_LIST}{type_.list_size}"]
    if pa.types.is_large_list(type_) or pa.types.is_large_list_view(type_):
        return [_LARGE_LIST]
    if pa.types.is_list(type_) or pa.types.is_list_view(type_):
        return [_LIST]
    name = str(type_)
    if name in _WHOLE or name in _FLOATS or name in _STRINGS or name == "bool":
        return [name]
    return [_ARROW + base64.b64encode(pa.schema([("", type_)]).serialize()).decode()]


def _ends(array: pa.Array) -> tuple[int | None, int | None]:
    import pyarrow.compute as pc  # 40 ms to import, and not all that looks at types has whole numbers

    ends = pc.min_max(array)
    return ends["min"].as_py(), ends["max"].as_py()


def _columns(records: Iterable[dict[str, Any]]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for record in records:
        for name, value in record.items():
            columns.setdefault(name, []).append(value)
    return columns


_SCALARS = {str: "string", bool: "bool", float: "double"}


def _of_values(values: list[Any], levels: int) -> _Kinds:
    """Return what parsed JSON values are."""
    types = set(map(type, values))
    names = {name for type_, name in _SCALARS.items() if type_ in types}
    low, high = None, None
    if int in types:
        whole = [value for value in values if type(value) is int]
        low, high = min(whole), max(whole)
        names.add("int64" if low >= _INT64[0] and high <= _INT64[1] else _HUGE)
        low, high = (None, None) if _HUGE in names else (low, high)
    nested = types & {list, dict}
    if nested and not levels:
        return _Kinds(frozenset({*names, _DEEP}), low, high)
    items, fields = None, {}
    if list in nested:
        names.add(_LIST)
        items = _of_values([item for value in values if type(value) is list for item in value], levels - 1)
    if dict in nested:
        names.add(_STRUCT)
        columns = _columns(value for value in values if type(value) is dict)
        fields = {name: _of_values(inside, levels - 1) for name, inside in columns.items()}
    return _Kinds(frozenset(names), low, high, items, fields, tuple(fields))


# --- the type that holds them ---


def _group(name: str) -> str:
    if name in _WHOLE or name in _FLOATS:
        return "number"
    if name in _STRINGS:
        return "string"
    return _LIST if name in (_LIST, _LARGE_LIST) or name.startswith(_FIXED_LIST) else name


def _is_mixed(kinds: _Kinds) -> bool:
    """Return whether values fit no common type, whatever is nested in them."""
    groups = {_group(name) for name in kinds.names}
    return len(groups) > 1 or _DEEP in groups or _HUGE in groups or (groups == {"number"} and _number(kinds) is None)


def _common(kinds: _Kinds) -> pa.DataType | None:
    """Return the type of a column that holds all of these values. None: there is none."""
    if _is_mixed(kinds):
        return None
    if not kinds.names:
        return pa.null()
    group = _group(next(iter(kinds.names)))
    if group == "number":
        return _number(kinds)
    if group == "string":
        return pa.string() if kinds.names == {"string"} else pa.large_string()
    if group == "bool":
        return pa.bool_()
    if group == _LIST:
        return _list(kinds)
    if group == _STRUCT:
        return _struct(kinds)
    return _arrow_type(group)


def _list(kinds: _Kinds) -> pa.DataType | None:
    inside = _common(kinds.items or _Kinds())
    if inside is None:
        return None
    name = next(iter(kinds.names))
    if len(kinds.names) == 1 and name.startswith(_FIXED_LIST):
        return pa.list_(inside, int(name.removeprefix(_FIXED_LIST)))
    return pa.large_list(inside) if _LARGE_LIST in kinds.names else pa.list_(inside)


def _struct(kinds: _Kinds) -> pa.DataType | None:
    inside = [(name, _common(kinds.fields[name])) for name in _ordered(kinds.fields, kinds.lead)]
    return None if any(type_ is None for _, type_ in inside) else pa.struct(inside)


def _number(kinds: _Kinds) -> pa.DataType | None:
    """Return the type of numbers that rounds none of them. None: there is none."""
    whole = [type_ for name, type_ in _WHOLE.items() if name in kinds.names]
    floats = [type_ for name, type_ in _FLOATS.items() if name in kinds.names]
    low, high = (0, 0) if kinds.low is None or kinds.high is None else (kinds.low, kinds.high)
    if whole and floats:
        return pa.float64() if low >= -EXACT_IN_FLOAT and high <= EXACT_IN_FLOAT else None
    if floats:
        return max(floats, key=lambda type_: type_.bit_width)
    if len(whole) == 1:
        return whole[0]
    signed = max((t.bit_width for t in whole if pa.types.is_signed_integer(t)), default=0)
    unsigned = max((t.bit_width for t in whole if pa.types.is_unsigned_integer(t)), default=0)
    if not signed:
        return _WHOLE[f"uint{unsigned}"]
    bits = max(signed, 2 * unsigned)
    if bits <= 64:
        return _WHOLE[f"int{bits}"]
    if high <= _INT64[1]:
        return pa.int64()
    return pa.uint64() if low >= 0 else None


def _arrow_type(name: str) -> pa.DataType:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(name.removeprefix(_ARROW)))).field(0).type


def _is_time(name: str) -> bool:
    return name.startswith(_ARROW) and pa.types.is_timestamp(_arrow_type(name))


def _rigid_names(kinds: _Kinds) -> set[str]:
    """Return the types in a field that JSON text cannot hold."""
    names = {name for part in kinds.parts() for name in part.names if name.startswith(_ARROW)}
    return {str(_arrow_type(name)) for name in names}


def _shown(kinds: _Kinds) -> list[str]:
    """Return what values are, for a message."""
    shown = {_HUGE: "whole numbers outside 64 bits", _DEEP: f"lists and objects deeper than {DEEPEST} levels"}
    return [str(_arrow_type(n)) if n.startswith(_ARROW) else shown.get(n, n.partition(":")[0]) for n in kinds.names]
