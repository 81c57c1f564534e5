"""Annotations that are read as columns at once are the same as those that are looked at one by
one."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from making import box, coco_file, converted, photos, samples

from shardctl.sources.annotations import json_parts
from shardctl.sources.annotations.coco import reading
from shardctl.sources.annotations.coco.reading import OBJECT_COLUMNS, CocoFile
from shardctl.sources.annotations.objects import Others

NUMBER = st.floats(-100, 700).map(lambda x: round(x, 2) + 0.0) | st.integers(-5, 700)
ODD = st.sampled_from(
    [
        None,
        "1",
        "}, {",
        True,
        -0.0,
        1e-50,
        2**24 + 1,
        10**25,
        [],
        {},
        [[]],
        [None],
        {"size": [2, 2], "counts": [4]},
    ]
)
PLAIN = {
    "id": st.integers(0, 10**12),
    "image_id": st.integers(0, 10**12),
    "category_id": st.integers(0, 90),
    "bbox": st.lists(NUMBER, min_size=4, max_size=4),
    "area": NUMBER,
    "iscrowd": st.integers(0, 1),
    "segmentation": st.lists(
        st.integers(3, 5).flatmap(lambda n: st.lists(NUMBER, min_size=2 * n, max_size=2 * n)),
        max_size=2,
    ),
    "keypoints": st.integers(0, 3).flatmap(
        lambda n: st.lists(NUMBER, min_size=3 * n, max_size=3 * n)
    ),
    "other": st.text('a}é\\":[] ', max_size=3),
    "num_keypoints": st.integers(0, 17),
    "attributes": st.fixed_dictionaries(
        {}, optional={"occluded": st.booleans(), "bbox": st.just([[1, 2], []])}
    ),
    "ignore": st.sampled_from([0, 1, None, 2.5]),
    "tags": st.lists(st.sampled_from(["a", "[1]", "]"]), max_size=2),
}
NEEDED = ("image_id", "category_id", "bbox")
ELEMENTS = st.fixed_dictionaries(
    {name: PLAIN[name] for name in NEEDED},
    optional={name: PLAIN[name] for name in PLAIN if name not in NEEDED},
)


def one_by_one(elements: list[Any]) -> tuple[list[Any], CocoFile]:
    file = CocoFile("x.json")
    marked = [reading._object(file, number, element) for number, element in enumerate(elements)]
    return pa.record_batch(reading._columns(file, marked), schema=OBJECT_COLUMNS).to_pylist(), file


def text_of(elements: list[Any]) -> str:
    return json.dumps(elements)[1:-1]


@examples(12)
@given(st.lists(st.fixed_dictionaries(PLAIN), min_size=1, max_size=6))
def test_plain_annotations_are_read_as_columns_with_the_same_values(elements):
    others = Others()
    found = reading.plain_objects(others)(text_of(elements))
    assert found is not None
    assert repr(found.to_pylist()) == repr(one_by_one(elements)[0])
    said = (
        (name, each[name])
        for each in elements
        for name in ("other", "attributes", "ignore", "tags")
    )
    assert others == Others(
        (name, "object") for name, value in said if value not in (None, "", {}, [])
    )


@examples(50)
@given(st.lists(ELEMENTS, min_size=1, max_size=3), st.data())
def test_an_odd_value_is_never_read_otherwise(elements, data):
    name = data.draw(
        st.sampled_from([*PLAIN, "bbox/0", "segmentation/0", "segmentation/0/1", "keypoints/0"])
    )
    holder: Any = data.draw(st.sampled_from(elements))
    *path, last = [int(part) if part.isdigit() else part for part in name.split("/")]
    for part in path:
        holder = holder.get(part) if isinstance(holder, dict) else holder[part] if holder else None
    if isinstance(holder, dict) or (
        isinstance(holder, list) and isinstance(last, int) and len(holder) > last
    ):
        holder[last] = data.draw(ODD)
    found = reading.plain_objects(Others())(text_of(elements))
    if found is not None:
        rows, file = one_by_one(elements)
        assert not file.faults
        assert repr(found.to_pylist()) == repr(rows)


GOOD = '{"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4]}'


@pytest.mark.parametrize(
    "text",
    [
        f"{GOOD}, 7, {GOOD}",
        GOOD.replace("4", "NaN"),
        GOOD.replace("4", "1e999"),
        GOOD.replace("{", '{"image_id": 2, '),
        GOOD.replace("}", ', "x": [{"a": 1}, {"b": 2}]}'),
        GOOD.replace("}", ', "caption": "a dog"}'),
    ],
)
def test_what_is_not_plain_is_left_to_a_closer_look(text):
    assert reading.plain_objects(Others())(text) is None


def test_after_some_stretches_that_are_not_plain_no_more_are_tried():
    reader = reading.plain_objects(Others())
    assert reader(GOOD) is not None
    for _ in range(2 * reading.TRIES):
        assert reader("{}") is None
    assert reader(GOOD) is None


def test_a_file_with_plain_and_odd_stretches_gives_the_same_objects(tmp_path, monkeypatch):
    source = photos(tmp_path / "in", "a.png", "b.png")
    annotations = [
        box(1 + number % 2, id=number, segmentation=[[1, 1, 3, 1, 3, number + 2.5]])
        for number in range(60)
    ]
    annotations[40]["bbox"], annotations[41]["segmentation"] = [], {"size": [6, 8], "counts": [48]}
    file = coco_file(tmp_path / "coco.json", [(1, "a.png"), (2, "b.png")], annotations)
    converted(source, tmp_path / "whole", f"coco:{file}")
    monkeypatch.setattr(json_parts, "BLOCK_BYTES", 1024)
    monkeypatch.setattr(json_parts, "LEAST_TOGETHER", 256)
    made: list[bool] = []
    plain_objects = reading.plain_objects

    def counting(others: Others) -> Any:
        read = plain_objects(others)
        return lambda text: (found := read(text), made.append(found is None))[0]

    monkeypatch.setattr(reading, "plain_objects", counting)
    converted(source, tmp_path / "parts", f"coco:{file}")
    assert set(made) == {True, False}, "some stretches are plain, and some are not"
    assert samples(tmp_path / "whole") == samples(tmp_path / "parts")
    assert samples(tmp_path / "parts")["a.png"]["objects"]["id"] == list(range(0, 60, 2))
