"""Any Arrow value becomes JSON and comes back, and so do keys as names in archives."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import examples
from hypothesis import example, given
from hypothesis import strategies as st

from shardctl.format.names import distinct_name, extension_part, key_of_member, member_key
from shardctl.format.python_values import check_type, from_json, to_json

WIDE = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def floats(bits: int) -> Any:
    return st.floats(width=bits, allow_nan=False)  # type: ignore[call-overload]  # 16, 32 or 64


LEAVES: list[tuple[pa.DataType, Any]] = [
    (pa.bool_(), st.booleans()),
    (pa.null(), st.none()),
    *((type_, st.integers(-128, 127)) for type_ in (pa.int8(), pa.int16(), pa.int32())),
    (pa.int64(), WIDE),
    *((type_, st.integers(0, 255)) for type_ in (pa.uint8(), pa.uint16(), pa.uint32())),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float16(), floats(16).map(np.float16)),
    (pa.float32(), floats(32)),
    (pa.float64(), floats(64)),
    *((type_, TEXT) for type_ in (pa.string(), pa.large_string(), pa.string_view())),
    *(
        (type_, st.binary(max_size=4))
        for type_ in (pa.binary(), pa.large_binary(), pa.binary_view())
    ),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.decimal128(38, 4), st.decimals(-(10**20), 10**20, places=4)),
    (pa.date32(), st.dates()),
    (pa.date64(), st.dates()),
    (pa.time32("s"), st.times().map(lambda time: time.replace(microsecond=0))),
    (pa.time64("us"), st.times()),
    *(
        (type_, WIDE.map(lambda number: number >> 20))
        for type_ in (pa.timestamp("ns", "UTC"), pa.timestamp("s"))
    ),
    (pa.duration("ms"), WIDE.map(lambda number: number >> 20)),
    (
        pa.struct([("size", pa.list_(pa.int32(), 2)), ("counts", pa.binary())]),
        st.fixed_dictionaries(
            {"size": st.just([2, 3]), "counts": st.binary(max_size=4) | st.none()}
        ),
    ),
    (pa.month_day_nano_interval(), st.tuples(st.integers(-99, 99), st.integers(-99, 99), WIDE)),
]


def nested(inner: Any) -> Any:
    """Return strategies of types with their values, made of others."""
    lists = inner.map(lambda pair: (pa.list_(pair[0]), st.lists(pair[1] | st.none(), max_size=3)))
    large = inner.map(lambda pair: (pa.large_list(pair[0]), st.lists(pair[1], max_size=3)))
    fixed = inner.map(
        lambda pair: (pa.list_(pair[0], 2), st.lists(pair[1] | st.none(), min_size=2, max_size=2))
    )
    maps = inner.map(
        lambda pair: (
            pa.map_(pa.string(), pair[0]),
            st.lists(st.tuples(TEXT, pair[1] | st.none()), max_size=2),
        )
    )
    structs = st.lists(inner, max_size=3).map(
        lambda pairs: (
            pa.struct([(f"part {place}", type_) for place, (type_, _) in enumerate(pairs)]),
            st.fixed_dictionaries(
                {f"part {place}": values | st.none() for place, (_, values) in enumerate(pairs)}
            ),
        )
    )
    return lists | large | fixed | maps | structs


TYPES = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=4)


@examples(60)
@given(data=st.data())
def test_any_value_comes_back_from_json(data):
    type_, values = data.draw(TYPES)
    array = pa.array(data.draw(st.lists(values | st.none(), max_size=5)), type_)
    first = data.draw(st.integers(0, len(array)))
    part = array.slice(first, data.draw(st.integers(0, len(array) - first)))
    check_type(type_)
    back = from_json(json.loads(json.dumps(to_json(part))), type_)
    back.validate(full=True)
    assert back.equals(part)


def test_tensors_dictionaries_and_the_oddest_float_come_back():
    tensors = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.uint8(), [2]),
        pa.array([[1, 2], [3, 4]], pa.list_(pa.uint8(), 2)),
    )
    words = pa.array(["a", None, "a"]).dictionary_encode()
    odd = pa.array([7.038530691851209e-26], pa.float32())  # its digits round twice
    for array in (tensors, words, odd):
        assert from_json(to_json(array), array.type).equals(array)


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (["x"], pa.int8()),
        ([300], pa.int8()),
        ([[1]], pa.list_(pa.int8(), 2)),
        ([1], pa.list_(pa.int8())),
        ([{"b": 1}], pa.struct([("a", pa.int8())])),
        ([[1]], pa.struct([("a", pa.int8())])),
        (["???"], pa.binary()),
        (["x"], pa.decimal128(5, 2)),
        ([[["a"]]], pa.map_(pa.string(), pa.int8())),
    ],
)
def test_values_of_another_type_are_refused(values, type_):
    with pytest.raises((ValueError, TypeError)):
        from_json(values, type_)


@examples(100)
@example("0./")
@example("")
@given(
    st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("/._%~\\\n"), max_size=12)
)
def test_any_key_is_a_safe_path_and_comes_back(key):
    path = member_key(key)
    assert key_of_member(path) == key
    assert key_of_member(f"{path}%~1") == key
    assert re.fullmatch(r"(?:.*/|)[^.]+", path, re.DOTALL), (
        "what readers take for the key is all of it"
    )
    parts = path.split("/")
    assert not {"", ".", ".."} & set(parts)
    assert not any(part.startswith("__") for part in parts)
    assert not re.search(r"[\x00-\x1f\x7f\\]", path)


def test_repeated_names_get_a_number_and_columns_are_parts_of_extensions():
    names = Counter[str]()
    assert [distinct_name(name, names) for name in ("a", "b", "a", "a")] == [
        "a",
        "b",
        "a%~1",
        "a%~2",
    ]
    assert [extension_part(name) for name in ("box_2", "Box", "a.b/c", "ü")] == [
        "box_2",
        "%42ox",
        "a%2eb%2fc",
        "%c3%bc",
    ]
