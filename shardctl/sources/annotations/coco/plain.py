"""The annotations of a stretch of a COCO file as columns at once, where all of them are as the
format says.

To parse JSON into Python objects and to look at each of these takes five times as long. What is in
any way odd is left to that: this module never decides that something is wrong.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.sources.annotations.base import one_chunk
from shardctl.sources.annotations.coco.file import NO_ID, OBJECT_COLUMNS
from shardctl.sources.annotations.json_parts import BETWEEN_OBJECTS
from shardctl.sources.annotations.objects import POINTS, POLYGONS, RLE, Others, others_in

_NUMBERS = pa.list_(pa.float64())
_PARSED = pa.schema(
    [
        ("id", pa.int64()),
        ("image_id", pa.int64()),
        ("category_id", pa.int64()),
        ("bbox", _NUMBERS),
        ("area", pa.float64()),
        ("iscrowd", pa.int64()),
        ("segmentation", pa.list_(_NUMBERS)),
        ("keypoints", _NUMBERS),
        ("num_keypoints", pa.float64()),
        ("caption", pa.string()),
    ]
)
OF_OBJECT = frozenset(_PARSED.names)

_LISTS = re.compile(r'\[[^][{}"]+\]')
"""Lists of numbers: most of the text."""

MOST = 2**24
"""Whole numbers up to it are exact in float32. Arrow refuses larger ones, and here they look like
other numbers."""

BLOCK_BYTES = 1 << 18
"""What one thread parses at a time."""

TRIES = 3
"""After so many stretches that are not plain, and none that is, no more are tried: the others will
be the same."""


class PlainObjects:
    """Reads stretches of the annotations of one file, as long as that is worth it. Other members
    are counted in `others`."""

    def __init__(self, others: Others) -> None:
        self._odd = 0
        self._others = others

    def __call__(self, text: str) -> pa.RecordBatch | None:
        """Return the columns OBJECT_COLUMNS of JSON objects with commas between them, None where it
        takes a closer look."""
        if self._odd >= TRIES:
            return None
        try:
            parsed = _parsed(text)
            found = _columns(parsed)
            # other members
            if text.count('"') != 2 * sum(
                len(column) - column.null_count for column in parsed.values()
            ):
                for element in json.loads(f"[{_LISTS.sub('0', text)}]"):
                    self._others.update(others_in(element, OF_OBJECT))
        except (ValueError, RecursionError):
            self._odd += 1
            return None
        self._odd = -TRIES
        return found


class _OddError(ValueError):
    """It takes a closer look."""


def _expect(fits: bool) -> None:
    if not fits:
        raise _OddError


def _parsed(text: str) -> dict[str, pa.Array]:
    import pyarrow.json as pj  # 10 ms to import, and most conversions have no COCO files

    # A comma that is within an element, or in a string, leaves no JSON when it is taken out.
    lines, commas = BETWEEN_OBJECTS.subn("}\n", text)
    options = pj.ParseOptions(_PARSED, unexpected_field_behavior="ignore")
    try:
        data = pa.py_buffer(lines.encode())
        table = pj.read_json(pa.BufferReader(data), pj.ReadOptions(block_size=BLOCK_BYTES), options)
        table.validate(full=True)
    except (pa.ArrowException, OverflowError) as error:
        raise _OddError from error
    _expect(table.num_rows == commas + 1)
    return {name: one_chunk(table[name]) for name in table.column_names}


def _columns(parsed: dict[str, pa.Array]) -> pa.RecordBatch:
    count = len(parsed["caption"])
    _expect(parsed["caption"].null_count == count)
    crowd, box = parsed["iscrowd"], parsed["bbox"]
    _expect(bool(np.isin(crowd.drop_null().to_numpy(), (0, 1)).all()))
    _expect(box.null_count == 0 and bool((np.diff(_offsets(box)) == 4).all()))
    made = {
        "image": _ids(parsed["image_id"]),
        "id": parsed["id"],
        "category": _ids(parsed["category_id"]),
        "bbox": pa.FixedSizeListArray.from_arrays(
            _float32(box), type=OBJECT_COLUMNS.field("bbox").type
        ),
        "area": _area(parsed["area"]),
        "iscrowd": crowd.cast(pa.bool_()),
        "segmentation": _polygons(parsed["segmentation"]),
        "rle": pa.nulls(count, RLE),
        "keypoints": _keypoints(parsed["keypoints"]),
    }
    return pa.record_batch([made[name] for name in OBJECT_COLUMNS.names], schema=OBJECT_COLUMNS)


def _ids(numbers: pa.Array) -> pa.Array:
    _expect(numbers.null_count == 0 and bool((numbers.to_numpy() != NO_ID).all()))
    return numbers


def _area(area: pa.Array) -> pa.Array:
    missing = area.is_null().to_numpy(zero_copy_only=False)
    return pa.array(_narrow(area.fill_null(1.0).to_numpy()), pa.float32(), mask=missing)


def _offsets(lists: pa.Array) -> npt.NDArray[np.int32]:
    """Return where each list begins and where the last one ends, from 0; a missing list is one of
    nothing."""
    lengths = np.diff(lists.offsets.to_numpy())
    if lists.null_count:
        lengths = np.where(lists.is_null().to_numpy(zero_copy_only=False), 0, lengths)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def _float32(lists: pa.Array) -> pa.Array:
    """Return the numbers of lists."""
    values = lists.flatten()
    _expect(values.null_count == 0)
    return pa.array(_narrow(values.to_numpy()))


def _narrow(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    # -0 is 0, and -0.0 is not
    _expect(bool((np.abs(values) <= MOST).all()) and not ((values == 0) & np.signbit(values)).any())
    return values.astype(np.float32)


def _polygons(objects: pa.Array) -> pa.Array:
    polygons = objects.flatten()
    _expect(polygons.null_count == 0)
    offsets = _offsets(polygons)
    lengths = np.diff(offsets)
    _expect(bool(((lengths >= 6) & (lengths % 2 == 0)).all()))
    inner = pa.ListArray.from_arrays(pa.array(offsets), _float32(polygons))
    return pa.ListArray.from_arrays(pa.array(_offsets(objects)), inner, type=POLYGONS)


def _keypoints(objects: pa.Array) -> pa.Array:
    offsets = _offsets(objects)
    _expect(bool((np.diff(offsets) % 3 == 0).all()))
    points = pa.FixedSizeListArray.from_arrays(_float32(objects), type=POINTS.value_type)
    return pa.ListArray.from_arrays(pa.array(offsets // 3), points, type=POINTS)
