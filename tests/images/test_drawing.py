"""Annotations as they are drawn onto pictures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from annotated import CLASSES, DOG, OBJECTS, PERSON, together
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

from shardctl.format.roles import Mask, Objects
from shardctl.images.codecs.drawing import (
    Annotations,
    colour_of,
    draw,
    draw_mask,
    draw_objects,
    objects_line,
    overlay,
)
from shardctl.images.codecs.rle import compress

SIZE = (200, 100)


def grey(width: int = 200, height: int = 100, level: int = 90) -> Any:
    return np.full((height, width, 3), level, np.uint8)


def changed(before: Any, after: Any) -> Any:
    """Return which pixels (height, width) differ."""
    return (before != after).any(axis=2)


def is_like(pixels: Any, colour: tuple[int, int, int], tolerance: int = 60) -> Any:
    return (np.abs(pixels.astype(int) - colour) <= tolerance).all(axis=-1)


def boxes(*given: Any, **more: Any) -> dict[str, Any]:
    return {"bbox": list(given), "category": [0] * len(given), **more}


def noise() -> Any:
    return np.random.default_rng(0).integers(0, 256, (100, 200, 3)).astype(np.uint8)


def test_a_picture_without_annotations_stays_as_it_is():
    picture = noise()
    for objects in (None, together([])):
        assert draw(picture, Annotations(SIZE, ((objects, OBJECTS),))) is picture
    assert draw(picture, Annotations(SIZE)) is picture
    assert overlay(SIZE, Annotations(SIZE)) is None


def test_only_the_edge_of_a_box_is_drawn_and_all_other_pixels_stay():
    drawn = draw_objects(noise(), boxes([60, 30, 100, 50]), Objects(), SIZE)
    different = changed(noise(), drawn)
    assert different[[30, 79], 70:150].all()
    assert not different[35:75, 65:155].any(), "inside"
    assert not different[:, 165:].any()
    assert not different[85:].any()
    assert is_like(drawn[50, 60], colour_of(0), 90), "the left edge has the colour of the category"


@pytest.mark.parametrize("scale", [0.5, 1, 2.5])
def test_places_are_those_of_the_image_whatever_the_size_of_the_picture(scale):
    before = grey(round(200 * scale), round(100 * scale))
    drawn = draw_objects(before, boxes([60, 30, 100, 50]), Objects(), SIZE)
    rows, columns = np.nonzero(is_like(drawn, colour_of(0), 70))
    assert abs(columns.max() - 160 * scale) <= 2
    assert abs(rows.max() - 80 * scale) <= 2
    assert abs(columns.min() - 60 * scale) <= 2


def test_colours_differ_and_are_always_the_same():
    assert len({colour_of(number) for number in range(256)}) == 256


def test_a_polygon_is_outlined_and_lightly_filled():
    triangle = [20, 20, 180, 20, 20, 90]
    objects = boxes([20, 20, 160, 70], segmentation=[[triangle]])
    drawn = draw_objects(grey(), objects, Objects(("x",)), SIZE)
    inside, outside = drawn[60, 45], drawn[75, 160]
    mixed = np.array(colour_of(0)) * 60 / 255 + 90 * 195 / 255
    assert np.abs(inside - mixed).max() <= 2
    assert outside.tolist() == [90, 90, 90]


def test_run_lengths_are_filled():
    runs = [0, 100 * 50, 100 * 150]  # the left quarter: runs go down the columns
    rle = {"size": [100, 200], "counts": compress(runs)}
    drawn = draw_objects(grey(), boxes([2, 2, 190, 90], rle=[rle]), Objects(), SIZE)
    assert (drawn[50, 30] != 90).any()
    assert drawn[50, 80].tolist() == [90, 90, 90]


def test_keypoints_that_are_there_are_drawn_with_the_lines_between_them():
    role = Objects(("x",), keypoints=("a", "b", "c"), skeleton=((0, 1), (1, 2)), flip=(0, 1, 2))
    points = [[40, 50, 2], [100, 50, 1], [160, 50, 0]]
    objects = boxes([10, 10, 180, 80], keypoints=[points])
    without = draw_objects(grey(), boxes([10, 10, 180, 80]), role, SIZE)
    drawn = draw_objects(grey(), objects, role, SIZE)
    different = changed(without, drawn)
    assert is_like(drawn[50, 40], colour_of(0), 40), "visible: a dot in the colour of the category"
    assert is_like(drawn[50, 100], (255, 255, 255), 40), "hidden: white inside"
    assert different[50, 45:95].all(), "the line between them"
    assert not different[:, 110:].any(), "a point that is not there has no dot and no line"


def test_the_box_of_a_crowd_is_dashed():
    def on_the_edge(is_crowd: bool) -> int:
        drawn = draw_objects(grey(), boxes([20, 20, 160, 60], iscrowd=[is_crowd]), Objects(), SIZE)
        return int(changed(grey(), drawn)[79, 20:180].sum())

    assert on_the_edge(False) == 160
    assert 60 < on_the_edge(True) < 130


coordinate = st.floats(-300, 500) | st.sampled_from([math.nan, math.inf, -math.inf, 1e38, -1e38])


@examples(40)
@given(
    st.lists(st.tuples(*[coordinate] * 4), max_size=6),
    st.lists(coordinate, max_size=9),
    st.lists(st.tuples(coordinate, coordinate, st.sampled_from([0, 1, 2, math.nan])), max_size=4),
)
def test_whatever_is_marked_is_drawn_or_left_out(given_boxes, polygon, points):
    count = len(given_boxes)
    objects = boxes(*given_boxes, segmentation=[[polygon]] * count, keypoints=[points] * count)
    role = Objects(("a",), keypoints=("a", "b"), skeleton=((0, 1),), flip=(0, 1))
    drawn = draw_objects(grey(), objects, role, SIZE)
    assert (drawn.shape, drawn.dtype) == ((100, 200, 3), np.uint8)


def test_a_mask_has_a_colour_for_each_class_and_its_void_is_hatched():
    mask = np.zeros((50, 100), np.uint8)
    mask[:, 50:] = 1
    mask[:10] = 255
    drawn = draw_mask(grey(), mask, CLASSES)
    assert drawn[60, 50].tolist() == [90, 90, 90], "background"
    mixed = 90 + (np.array(colour_of(1)) - 90) * 0.45
    assert np.abs(drawn[60, 150] - mixed).max() <= 1
    void = changed(grey(), drawn)[:18, :100]
    assert 0.15 < void.mean() < 0.35, "some lines of it"
    for role, is_seen in ((Mask("source"), False), (Mask("source", None, ("sky", "road")), True)):
        unlike = changed(grey(), draw_mask(grey(), mask, role))
        assert unlike[60, 50] == is_seen, "0 is a class where classes have names"


def test_what_is_drawn_alone_makes_the_same_picture_over_the_image():
    polygons = [[[20.0, 10.0, 90.0, 10.0, 60.0, 60.0]], None]
    value = boxes([10, 10, 60, 50], [100, 20, 80, 70], segmentation=polygons, iscrowd=[False, True])
    numbers = np.zeros((100, 200), np.uint8)
    numbers[60:, 120:] = 3
    marked = Annotations(SIZE, ((value, Objects(("cat",))),), ((numbers, Mask("source")),))
    image = noise()
    layer = overlay(SIZE, marked)
    assert layer.shape == (100, 200, 4)
    hides = layer[:, :, 3:] / 255
    together = image * (1 - hides) + layer[:, :, :3] * hides
    assert np.abs(together - draw(image, marked)).max() <= 2.5
    clear = hides[:, :, 0] == 0
    assert (together[clear] == image[clear]).all(), "pixels without a mark stay"


def test_objects_in_a_line():
    assert objects_line(None, OBJECTS) == "not annotated"
    assert objects_line(together([]), OBJECTS) == "no objects"
    assert objects_line(together([DOG, PERSON, DOG]), OBJECTS) == "2 dog, 1 person"
    assert objects_line({"bbox": [], "category": [7, 7, 0]}, OBJECTS) == "2 of category 7, 1 person"
    assert objects_line({"bbox": [], "category": [7]}, Objects()) == "1 of category 7"
