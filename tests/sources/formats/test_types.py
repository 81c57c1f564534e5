"""Types of fields are found in parts and joined: the same in any order, and no value is changed by
its column."""

from __future__ import annotations

import datetime
import decimal
import pickle
from functools import reduce
from typing import Any

import pyarrow as pa
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

from shardctl.errors import InputError
from shardctl.sources import jsonl
from shardctl.sources.types import MOST_LABELS, Types

NUMBERS = st.sampled_from(
    [0, 1, -1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63, -(2**63), 10**30, 1.5, -0.0]
)
SCALARS = st.none() | NUMBERS | st.sampled_from(["", "a", "2020-01-01"])


def records_of(scalars: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    values = st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)
        ),
        max_leaves=4,
    )
    return st.lists(st.dictionaries(st.sampled_from("abc"), values, max_size=3), max_size=3)


RECORDS = records_of(SCALARS | st.booleans())


def of(**columns: Any) -> Types:
    return Types.of(
        pa.record_batch({name: pa.array(*column) for name, column in columns.items()}), "label"
    )


def sorted_type(type_: pa.DataType) -> pa.DataType:
    """A type with the fields of its objects by name."""
    if pa.types.is_list(type_):
        return pa.list_(sorted_type(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct(sorted([(f.name, sorted_type(f.type)) for f in type_]))
    return type_


def sorted_schema(schema: pa.Schema) -> dict[str, pa.DataType]:
    return {f.name: sorted_type(f.type) for f in schema}


@examples(150)
@given(st.lists(RECORDS, min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_any_order_and_grouping_gives_the_same_schema(parts, random):
    first, *others = (Types.of_values(records, "a") for records in parts)
    expected = reduce(Types.join, others, first)
    random.shuffle(others)
    while len(others) > 1:
        place = random.randrange(len(others) - 1)
        others[place : place + 2] = [others[place].join(others[place + 1])]
    joined = first.join(others[0])
    assert joined.schema() == expected.schema()
    assert joined.mixed() == expected.mixed()
    assert joined.labels() == expected.labels()


@examples(150)
@given(st.lists(RECORDS, min_size=1, max_size=4))
def test_parts_joined_give_the_types_of_all_records_at_once(
    parts,
):
    together = Types.of_values([record for part in parts for record in part], "a")
    joined = reduce(Types.join, (Types.of_values(part, "a") for part in parts))
    assert sorted_schema(joined.schema()) == sorted_schema(together.schema())
    assert sorted(joined.mixed()) == sorted(together.mixed())


@examples(100)
@given(RECORDS)
def test_types_of_columns_are_those_of_the_values_in_them(records):
    types = Types.of_values(records, "a")
    fitting = [name for name in types.schema().names if name not in types.mixed()]
    arrays = {name: pa.array([record.get(name) for record in records]) for name in fitting}
    columns = Types.of(pa.record_batch(arrays), "a") if arrays else Types.of_values([], "a")
    assert sorted_schema(columns.schema()) == {
        n: t for n, t in sorted_schema(types.schema()).items() if n in fitting
    }


@examples(100)
@given(RECORDS, RECORDS)
def test_types_travel_to_another_process(one, other):
    types = Types.of_values(one, "a")
    again = pickle.loads(pickle.dumps(types))
    more = Types.of_values(other, "a")
    assert again.join(more).schema() == types.join(more).schema()
    assert more.join(again).schema() == more.join(types).schema()
    assert again.join(more).labels() == types.join(more).labels()


def test_fields_of_the_first_part_come_first_then_the_others_by_name():
    first = of(
        m=([1],),
        c=([[{"z": 1, "y": 2}]], pa.list_(pa.struct([("z", pa.int64()), ("y", pa.int64())]))),
    )
    joined = first.join(of(x=([1],))).join(of(a=([1],), c=([[{"b": 1}]],)))
    assert joined.schema().names == ["m", "c", "a", "x"]
    assert [f.name for f in joined.schema().field("c").type.value_type] == ["z", "y", "b"]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("int8", "int32", "int32"),
        ("uint8", "int8", "int16"),
        ("float32", "int64", "int64"),
        ("null", "date32", "date32"),
        (pa.dictionary(pa.int8(), pa.string()), pa.string_view(), "string"),
        (pa.list_(pa.timestamp("s")), pa.list_(pa.timestamp("ns")), pa.list_(pa.timestamp("ns"))),
        (pa.list_(pa.int8()), pa.large_list(pa.int16()), pa.large_list(pa.int16())),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 2)),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3), pa.list_(pa.int8())),
        (pa.map_(pa.string(), pa.int8()),)
        + (pa.list_(pa.struct([("key", pa.string()), ("value", pa.int8())])),) * 2,
    ],
)
def test_widths_join_to_one_that_rounds_nothing(one, other, expected):
    parts = [of(a=([None], type_)) for type_ in (one, other)]
    for joined in (parts[0].join(parts[1]), parts[1].join(parts[0])):
        assert joined.schema() == pa.schema([("a", expected)])


def test_whole_numbers_beyond_those_with_a_sign_have_a_type_of_their_own():
    unsigned = of(a=([2**63], pa.uint64()))
    assert unsigned.join(of(a=([1],))).schema().field("a").type == pa.uint64()
    assert unsigned.join(of(a=([-1],))).mixed() == ["a"]


def test_types_of_columns_that_were_not_read_allow_any_number_of_their_type():
    unread = Types.of_schema(
        pa.schema([("a", pa.int64()), ("b", pa.int32()), ("label", pa.string())]), "label"
    )
    decimals = of(a=([1.5],), b=([1.5],))
    assert decimals.join(unread).mixed() == ["a"]
    assert decimals.join(unread).schema().field("b").type == pa.float64()
    assert unread.join(of(label=(["cat"],))).labels() is None


@examples(150)
@given(
    st.lists(st.integers(-(2**53), 2**53) | st.none(), max_size=4),
    st.lists(
        st.sampled_from([0.0, -0.0, 3.0, -7.0, float(2**53), float(2**54), 0.5, float("nan")])
        | st.none(),
        max_size=4,
    ),
)
def test_floats_that_are_whole_numbers_are_so_beside_whole_numbers(whole, floats):
    """pandas makes floats of a column in which a value is missing."""
    parts = [of(a=(whole, pa.int64())), of(a=(floats, pa.float64()))]
    values = [value for value in floats if value is not None]
    exact = all(
        value.is_integer() and abs(value) <= 2**53 and str(value) != "-0.0" for value in values
    )
    for joined in (parts[0].join(parts[1]), parts[1].join(parts[0])):
        assert joined.schema().field("a").type == (pa.int64() if exact else pa.float64())
    assert parts[1].schema().field("a").type == pa.float64()  # alone they stay what they are


def named(names: range) -> list[dict[str, Any]]:
    return [{"id": number, "of": {"each": [{f"name {number}": number}]}} for number in names]


@pytest.mark.parametrize("by_arrow", [False, True])
def test_objects_with_names_of_their_own_are_text_once_they_are_too_many(by_arrow):
    def found(names: range) -> Types:
        records = named(names)
        if not by_arrow:
            return Types.of_values(records, "")
        return Types.of(pa.RecordBatch.from_pylist(records), "").as_json()

    parts = [found(range(start, start + 200)) for start in range(0, jsonl.MOST_NAMES + 200, 200)]
    few = reduce(Types.join, parts[:-1])
    assert few.mixed() == []
    each = few.schema().field("of").type.field("each").type
    assert each.value_type.num_fields == jsonl.MOST_NAMES
    for order in (parts, parts[::-1], [few, found(range(5000, 5001))]):
        joined = reduce(Types.join, order)
        assert joined.mixed() == ["of"]
        assert joined.schema().field("of").type == pa.string()
        assert pickle.loads(pickle.dumps(joined)).mixed() == ["of"]
    names = [(f"name {number}", pa.int64()) for number in range(jsonl.MOST_NAMES + 1)]
    declared = Types.of_schema(pa.schema([("of", pa.struct(names))]), "")
    assert declared.join(declared).mixed() == []


@pytest.mark.parametrize(
    "value",
    [b"bytes", decimal.Decimal("1.5"), datetime.datetime(2020, 1, 1), datetime.date(2020, 1, 1)],
)
def test_types_that_json_cannot_hold_and_others_are_one_sentence(value):
    rigid = of(a=([value],))
    type_ = rigid.schema().field("a").type
    for other in ([1], ["x"], [[value]]):
        joined = rigid.join(of(a=(other,)))
        with pytest.raises(InputError, match="the field a holds values of several types") as raised:
            joined.schema()
        assert str(type_) in str(raised.value)
        assert joined.mixed() == ["a"]
    assert rigid.join(of(a=([None],))).schema().field("a").type == type_


def test_labels_are_the_strings_of_one_field():
    types = of(label=(["cat", "dog", "", None, "cat"],)).join(
        of(label=(pa.array(["ant"]).dictionary_encode(),))
    )
    assert types.labels() == ["ant", "cat", "dog"]
    assert types.join(of(label=([1],))).labels() is None
    assert of(label=([None],)).labels() is None
    assert of(other=(["a"],)).labels() is None


def test_too_many_different_labels_name_no_classes():
    half = [f"{number}" for number in range(MOST_LABELS)]
    types = of(label=([*half, "", None],))
    assert len(types.labels() or []) == MOST_LABELS
    assert types.join(types).labels() == half
    assert types.join(of(label=(["one more"],))).labels() is None
    assert of(label=([*half, "one more"],)).labels() is None


def test_two_columns_of_one_name_are_refused():
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(InputError, match="two columns have the name a"):
        Types.of(batch, "label")
