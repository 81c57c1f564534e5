"""The types of fields over any number of records: found in parts, joined in any order."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyarrow import types

from shardctl.errors import InputError
from shardctl.format.arrays import is_number, is_text
from shardctl.sources.jsonl import DEEPEST, EXACT_IN_FLOAT, MOST_NAMES, NULL_WORDS
from shardctl.sources.values import (
    BYTES,
    DECIMALS,
    DEEP,
    FIXED_LIST,
    FLOATS,
    HUGE,
    INT64,
    LARGE_LIST,
    LIST,
    MANY,
    OBJECT,
    ONE,
    STRINGS,
    STRUCT,
    TYPED,
    UTF8,
    WHOLE,
    Feature,
    InferredTypes,
    columns_of,
    is_time,
    join_fields,
    kinds_of,
    kinds_of_values,
    ordered,
)
from shardctl.system.text import composed, first_repeated, printable, some

WRITTEN = b"shardctl.written"
"""In the metadata of a field with numbers of CSV files: how many decimal places all of them have,
`any` if they differ. `words`: all cells are `nan`, `inf` or empty, which is text until there is a
number.

It is what a later cell must be like for the column to be one of numbers (csv_numbers.py). Columns
that a person gives a type do not have it, and take every cell that can be read as this type.
"""

UNNAMED = "Unnamed: 0"
"""The name of a first column that has none in a CSV file. pandas writes its index so, and gives it
this name when it reads."""

DELIMITERS = ";\t|"
"""What separates columns where it is no comma: with one of these in its name, one column may be
several."""


def separator_in(columns: Sequence[str]) -> str:
    """Return what may separate the cells of what was read as one column, as --delimiter takes it;
    "" if nothing does."""
    found = next((mark for mark in DELIMITERS if len(columns) == 1 and mark in columns[0]), "")
    return {"": "", "\t": "tab"}.get(found, f"'{found}'")


Classes = Mapping[str, tuple[str, ...]]

MOST_LABELS = 100_000
"""Different labels that are taken for names of classes: beyond that, a label is text of its own."""


@dataclass(frozen=True)
class Types:
    """The types of the fields of some records, and the strings of the field that may name classes.

    Parts are joined in any order and grouping with the same result, but for the order of the
    fields: the fields of the leftmost part come first, in its order, then all others by name. The
    same goes for the fields of nested objects.

    Values of one field: whole numbers and floats are whole numbers where all floats are (pandas
    makes floats of a column with a missing value), else float64 if the whole numbers are within
    2**53; whole numbers of several widths, or floats of several widths, have the narrowest type
    that rounds none; times of one zone have the finest unit; lists and objects are joined by what
    is in them. Values that fit no common type are JSON text in a string column, with everything
    else in the same field; objects with too many names are, too.

    `named` has the names of classes that files say: none where they differ. Those of what is inside
    of fields have its path.
    """

    fields: dict[str, InferredTypes]
    lead: tuple[str, ...]
    label: str
    label_names: frozenset[str] | None = frozenset()
    """The different strings of the field that may name classes, None for too many."""
    named: Classes = field(default_factory=dict)

    @property
    def classes(self) -> Classes:
        """The names of the classes of fields of whole numbers, where all files say the same."""
        return {
            name: self.named[name]
            for name, kinds in self.fields.items()
            if self.named.get(name)
            and (type_ := _common(kinds.decided())) is not None
            and types.is_integer(type_)
        }

    def with_classes(self, classes: Classes) -> Types:
        """Return the same with names of classes."""
        return replace(self, named={name: names for name, names in classes.items() if names})

    @classmethod
    def of(cls, batch: pa.RecordBatch, label: str) -> Types:
        """Return the types of these columns as their values need them; strings of the column
        `label` may name classes.

        Raises InputError if two columns have the same name.
        """
        fields = {
            name: kinds_of(column.type, column, DEEPEST)
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        return cls(fields, _unique_names(batch.schema), label, _label_strings(batch, label))

    @classmethod
    def of_schema(cls, schema: pa.Schema, label: str, looked: Collection[str] = ()) -> Types:
        """Return the types of columns whose values were not looked at: whole numbers may be any of
        their type.

        The types of the values of `looked` columns are joined to it. If `label` is none of them,
        its labels are not known, and so name no classes. Raises InputError if two columns have the
        same name.
        """
        fields = {
            f.name: kinds_of(f.type, pa.nulls(0, f.type) if f.name in looked else None, DEEPEST)
            for f in schema
        }
        is_known = label not in fields or label in looked
        return cls(fields, _unique_names(schema), label, frozenset() if is_known else None)

    @classmethod
    def of_values(cls, records: Iterable[dict[str, Any]], label: str) -> Types:
        """Return the types of parsed JSON objects: str, int, float, bool, None, list and dict.
        Slower than `of`.

        Records of other formats also have bytes, numpy arrays and features.
        """
        columns = columns_of(records)
        fields = {name: kinds_of_values(values, DEEPEST) for name, values in columns.items()}
        texts = (
            value.text() if isinstance(value, Feature) else value
            for value in columns.get(label, ())
        )
        labels = frozenset(value for value in texts if isinstance(value, str) and value)
        return cls(fields, tuple(columns), label, labels if len(labels) <= MOST_LABELS else None)

    @classmethod
    def of_cells(cls, batch: pa.RecordBatch, label: str) -> Types:
        """Return the types of columns of CSV cells, strings as they are written: numbers only if
        all are written as such.

        Raises InputError if two columns have the same name.
        """
        # its parts of Arrow take 40 ms to import, and most have no CSV
        from shardctl.sources.csv_numbers import CellStats

        names = _unique_names(batch.schema)
        fields = {
            name: InferredTypes(written=CellStats.of(column))
            for name, column in zip(names, batch.columns, strict=True)
        }
        return cls(fields, names, label, _label_strings(batch, label))

    def as_json(self) -> Types:
        """Return the types of records of JSON that Arrow has parsed."""
        return replace(self, fields={name: kinds.as_json() for name, kinds in self.fields.items()})

    def join(self, other: Types) -> Types:
        """Return the types of the records of both. The fields of this one come first, see above."""
        labels = None
        if self.label_names is not None and other.label_names is not None:
            labels = self.label_names
            if not other.label_names <= labels:  # mostly the same few names: no copy
                labels |= other.label_names
            labels = labels if len(labels) <= MOST_LABELS else None
        return replace(
            self,
            fields=join_fields(self.fields, other.fields),
            label_names=labels,
            named=join_classes(self.named, other.named),
        )

    def schema(self) -> pa.Schema:
        """Return the columns that hold all values without a change.

        Nothing but nulls, and objects without fields, are strings. Raises InputError if a field
        holds values of several types of which one cannot be JSON text (bytes, decimals, times).
        """
        return without_nulls(self.found())

    @property
    def scattered(self) -> int:
        """How many fields the leftmost part does not have: about all of them where each record has
        names of its own."""
        return len(self.fields) - len(self.lead)

    def _field(self, name: str) -> pa.Field:
        kinds = self.fields[name].decided()
        type_ = _common(kinds)
        if type_ is None:
            rigid = {
                str(each)
                for part in kinds.parts()
                for each in _settled(part).names
                if isinstance(each, pa.DataType)
            }
            if rigid:  # JSON text cannot hold them
                several = next((part for part in kinds.parts() if _is_mixed(part)), kinds)
                both = sorted(rigid | set(_shown(several)))
                raise InputError(
                    f"the field {printable(name)} holds values of several types ({', '.join(both)}), which no column holds; give them one type"
                )
            type_ = pa.string()
        written = self.fields[name].written
        if written is None or not written.cells:
            return pa.field(name, type_)
        if types.is_string(type_) and not written.is_text and not written.digits:
            return pa.field(name, type_, metadata={WRITTEN: b"words"})
        if written.places is None or not is_number(type_):
            return pa.field(name, type_)
        low, high = written.places
        return pa.field(name, type_, metadata={WRITTEN: b"%d" % low if low == high else b"any"})

    def found(self) -> pa.Schema:
        """Return the columns that hold the values seen so far: as `schema`, but null, and objects
        without fields, are kept.

        With it, `read` raises Misfit where a later value needs another type than the string that
        `schema` puts there; its batches have the columns of `without_nulls(types.found())`, which
        are those of `schema`. Raises InputError as `schema`.
        """
        return pa.schema([self._field(name) for name in ordered(self.fields, self.lead)])

    def undecided(self) -> list[str]:
        """Return the fields of numbers whose type depends on values that nobody has looked at."""
        return [
            name for name, kinds in self.fields.items() if any(map(_is_undecided, kinds.parts()))
        ]

    def mixed(self) -> list[str]:
        """Return the fields whose values fit no common type: their column is a string, with JSON
        text in it."""
        return [
            name
            for name in ordered(self.fields, self.lead)
            if _common(self.fields[name].decided()) is None
        ]

    def notices(self, what: str, left_out: Collection[str] = ()) -> Iterator[str]:
        """Say which fields are text though not all their values are, or look so; `what` they are:
        field, column."""
        for name in self.mixed():
            if name not in left_out:
                yield (
                    f"the {what} {printable(name)} has values of no one type: strings, and others as JSON text"
                )
        header = [name for name in self.fields if self._is_of_cells(name)]
        if any(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", name) for name in header):
            yield f"row 1 is taken as the header ({some(header)}); if it is data, use --columns A,B"
        for name, kinds in self.fields.items():
            if kinds.written is None or name in left_out:
                continue
            column = f"the column {printable(name)} is kept as text"
            if (odd := kinds.written.odd()) is not None:
                yield f"{column}: {printable(odd)} would change if it were read as a number"
            if words := kinds.written.hiding_nulls():
                yield (
                    f"{column}: some cells are {' or '.join(map(printable, words))}, and others numbers; --null-values {printable(','.join(words))} makes it numbers"
                )

    def has_unnamed(self) -> bool:
        """Return whether a CSV file has a first column without a name."""
        return self._is_of_cells(UNNAMED)

    def null_labels(self) -> list[str]:
        """Return the words for a missing value that are labels of CSV files, sorted."""
        words = (self.label_names or frozenset()) & NULL_WORDS
        return sorted(words) if self._is_of_cells(self.label) else []

    def only_column(self) -> str | None:
        """Return the name of the only column there is, if it is one of CSV cells."""
        only = next(iter(self.fields), "")
        return only if len(self.fields) == 1 and self._is_of_cells(only) else None

    def _is_of_cells(self, name: str) -> bool:
        return name in self.fields and self.fields[name].written is not None

    def labels(self) -> list[str] | None:
        """Return the different strings of the field that may name classes, in order.

        None: not all of its values are strings, there are none, or more than 100,000 different
        ones. Empty strings and nulls name no class.
        """
        type_ = _common(self.fields.get(self.label, InferredTypes()).decided())
        are_strings = type_ is not None and str(type_) in STRINGS
        return in_order(self.label_names) if self.label_names and are_strings else None


def in_order(classes: Iterable[str]) -> list[str]:
    """Return names of classes in the order of their numbers: by name; by value where all of them
    are whole numbers.

    Two that are one in NFC are one class.
    """
    names = sorted(set(map(composed, classes)))
    return (
        sorted(names, key=int)
        if all(name.isascii() and name.isdecimal() for name in names)
        else names
    )


def without_nulls(schema: pa.Schema) -> pa.Schema:
    """Return a schema with string, nested ones too, where values are only nulls or objects without
    fields."""
    return pa.schema([f.with_type(_without_null(f.type)) for f in schema], schema.metadata)


def _without_null(type_: pa.DataType) -> pa.DataType:
    return pa.string() if says_nothing(type_) else with_parts(type_, _without_null)


def says_nothing(type_: pa.DataType) -> bool:
    """Return whether values of a type are only nulls, or objects without fields."""
    return bool(types.is_null(type_) or (types.is_struct(type_) and not type_.num_fields))


def with_parts(type_: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type of lists or structs with what is in it changed, and without views; others as
    they are."""
    if types.is_struct(type_):
        return pa.struct([(f.name, change(f.type)) for f in type_])
    if types.is_fixed_size_list(type_):
        return pa.list_(change(type_.value_type), type_.list_size)
    if types.is_large_list(type_) or types.is_large_list_view(type_):
        return pa.large_list(change(type_.value_type))
    if types.is_list(type_) or types.is_list_view(type_):
        return pa.list_(change(type_.value_type))
    return type_


def _unique_names(schema: pa.Schema) -> tuple[str, ...]:
    names = tuple(schema.names)
    twice = first_repeated(names)
    if twice is not None:
        raise InputError(f"two columns have the name {printable(twice)}; rename one")
    return names


def disputed(classes: Classes) -> list[str]:
    """Return the fields for which joined parts had different names."""
    return sorted(name for name, names in classes.items() if not names)


def join_classes(one: Classes, other: Classes) -> Classes:
    """Return the names of the classes of both parts, none where they differ."""
    joined = {**other, **one}
    return {
        name: names if other.get(name, names) == names else () for name, names in joined.items()
    }


def _label_strings(batch: pa.RecordBatch, label: str) -> frozenset[str] | None:
    if label not in batch.schema.names:
        return frozenset()
    import pyarrow.compute as pc  # 40 ms to import, and not all that looks at types has labels

    column = batch.column(label)
    plain = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_string_view(plain):
        column = column.cast(pa.string())
    elif not is_text(plain):
        return frozenset()
    unique = pc.unique(column)
    if len(unique) > MOST_LABELS + 2:  # two may be null and ""
        return None
    found = frozenset(value for value in unique.to_pylist() if value)
    return found if len(found) <= MOST_LABELS else None


# --- the type that holds them ---


def _group(name: Any) -> Any:
    if isinstance(name, pa.DataType):
        return f"times:{name.tz}" if is_time(name) else name
    if name in WHOLE or name in FLOATS or name in (DECIMALS, TYPED):
        return "number"
    if name in STRINGS:
        return "string"
    if name in (LIST, LARGE_LIST, ONE) or name.startswith(FIXED_LIST):
        return LIST
    return STRUCT if name == OBJECT else name


def _is_undecided(kinds: InferredTypes) -> bool:
    """Return whether numbers have another type together if their values are not all that their
    types allow."""
    several = kinds.names & WHOLE.keys() and (kinds.names & FLOATS.keys() or _number(kinds) is None)
    return TYPED in kinds.names and bool(several)


def _is_mixed(kinds: InferredTypes) -> bool:
    """Return whether values fit no common type, whatever is nested in them."""
    groups = {_group(name) for name in _settled(kinds).names}
    return (
        len(groups) > 1
        or not groups.isdisjoint((DEEP, HUGE, MANY))
        or (groups == {"number"} and _number(kinds) is None)
    )


def _settled(kinds: InferredTypes) -> InferredTypes:
    """Return the same with bytes that are text as what they are beside the others: bytes, or
    strings."""
    if UTF8 not in kinds.names:
        return kinds
    names = kinds.names - {UTF8}
    return replace(kinds, names=names if BYTES in names else names | {"string"})


def _common(kinds: InferredTypes) -> pa.DataType | None:
    """Return the type of a column that holds all of these values. None: there is none."""
    kinds = _settled(kinds)
    if _is_mixed(kinds):
        return None
    if not kinds.names:
        return pa.null()
    name = next(iter(kinds.names))
    group = _group(name)
    if isinstance(group, pa.DataType):
        return group
    if group == "number":
        return _number(kinds)
    if group == "string":
        return pa.string() if kinds.names == {"string"} else pa.large_string()
    if group == "bool":
        return pa.bool_()
    if group == LIST:
        inside = _common(kinds.items or InferredTypes())
        if inside is None or kinds.names == {ONE}:
            return inside
        if len(kinds.names) == 1 and name.startswith(FIXED_LIST):
            return pa.list_(inside, int(name.removeprefix(FIXED_LIST)))
        return pa.large_list(inside) if LARGE_LIST in kinds.names else pa.list_(inside)
    if group == STRUCT:
        parts = [(name, _common(kinds.fields[name])) for name in ordered(kinds.fields, kinds.lead)]
        return None if any(type_ is None for _, type_ in parts) else pa.struct(parts)
    return max(kinds.names, key=lambda type_: ("s", "ms", "us", "ns").index(type_.unit))


def _number(kinds: InferredTypes) -> pa.DataType | None:
    """Return the type of numbers that rounds none of them. None: there is none."""
    whole = [type_ for name, type_ in WHOLE.items() if name in kinds.names]
    floats = [type_ for name, type_ in FLOATS.items() if name in kinds.names]
    low, high = kinds.low or 0, kinds.high or 0
    if whole and floats:
        if DECIMALS in kinds.names:
            return pa.float64() if low >= -EXACT_IN_FLOAT and high <= EXACT_IN_FLOAT else None
        whole.append(pa.int64())  # which holds all floats that are whole numbers
    if floats and not whole:
        return max(floats, key=lambda type_: type_.bit_width)
    signed = max((t.bit_width for t in whole if types.is_signed_integer(t)), default=0)
    unsigned = max((t.bit_width for t in whole if types.is_unsigned_integer(t)), default=0)
    if not signed:
        return WHOLE[f"uint{unsigned}"]
    bits = max(signed, 2 * unsigned)
    if bits <= 64:
        return WHOLE[f"int{bits}"]
    if high <= INT64[1]:
        return pa.int64()
    return pa.uint64() if low >= 0 else None


def _shown(kinds: InferredTypes) -> list[str]:
    """Return what values are, for a message."""
    shown = {
        HUGE: "whole numbers outside 64 bits",
        DEEP: f"lists and objects deeper than {DEEPEST} levels",
        ONE: LIST,
        MANY: f"objects with more than {MOST_NAMES:,} names in all",
    }
    names = _settled(kinds).names - {DECIMALS, TYPED}
    return [
        shown.get(name, name.partition(":")[0]) if isinstance(name, str) else str(name)
        for name in names
    ]
