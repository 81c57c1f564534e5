"""Columns of all types of Arrow."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa


def columns_of_all_types() -> dict[str, pa.Array]:
    day = datetime.date(2026, 11, 21)
    text, binary = ["a", None, "é"], [b"a", None, b"\xff"]
    typed: list[tuple[list[Any], tuple[Any, ...]]] = [
        ([0, None, 1], (pa.int8, pa.int16, pa.int32, pa.int64)),
        ([0, None, 1], (pa.uint8, pa.uint16, pa.uint32, pa.uint64)),
        ([0.5, None, float("inf")], (pa.float32, pa.float64)),
        (text, (pa.string, pa.large_string, pa.string_view)),
        (binary, (pa.binary, pa.large_binary, pa.binary_view)),
    ]
    columns = {str(type_()): pa.array(each, type_()) for each, types in typed for type_ in types}
    return columns | {
        "half": pa.array(np.array([0.5, 1, 2], np.float16)),
        "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
        "bool": pa.array([True, None, False]),
        "null": pa.nulls(3),
        "date32": pa.array([day, None, day], pa.date32()),
        "time": pa.array([datetime.time(1), None, datetime.time(2)], pa.time64("us")),
        "stamp": pa.array([1, None, 2], pa.timestamp("us", "UTC")),
        "decimal": pa.array([decimal.Decimal("1.10"), None, decimal.Decimal("2.25")]),
        "list": pa.array([[1, None], None, []]),
        "large_list": pa.array([["a"], None, []], pa.large_list(pa.large_string())),
        "fixed_list": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
        "struct": pa.array([{"x": 1, "y": ["a"]}, None, {"x": None, "y": None}]),
        "chat": pa.array([[{"role": "user", "content": "hi"}], [], None]),
        "map": pa.array([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int64())),
        "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
        "list_of_dictionary": pa.ListArray.from_arrays(
            [0, 1, 1, 2], pa.array(["a", "b"]).dictionary_encode()
        ),
    }
