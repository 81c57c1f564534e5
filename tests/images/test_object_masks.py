"""The pixels inside of polygons and runs."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

from shardctl.images.codecs import rle
from shardctl.images.codecs.rle import inside, object_masks

numbers = st.integers(-6, 24).map(lambda number: number / 2 + 0.25)
"""Never the centre of a pixel, for which inside and outside are a matter of rounding."""


def test_the_pixels_whose_centre_is_in_a_polygon():
    square = inside([[1, 2, 4, 2, 4, 4, 1, 4]], (5, 6))
    assert np.argwhere(square).tolist() == [[y, x] for y in (2, 3) for x in (1, 2, 3)]
    assert not inside([], (5, 6)).any()
    assert not inside([[1, 1, 4, 4]], (5, 6)).any()
    two = inside([[0, 0, 2, 0, 2, 2, 0, 2], [1, 1, 3, 1, 3, 3, 1, 3]], (4, 4))
    assert two.sum() == 7


@examples(60)
@given(st.lists(st.tuples(numbers, numbers), min_size=3, max_size=7))
def test_every_pixel_is_where_a_plain_count_of_crossings_says(points):
    found = inside([[number for point in points for number in point]], (8, 10))
    for row in range(8):
        for column in range(10):
            x, y, crossings, at_an_edge = column + 0.5, row + 0.5, 0, False
            for (x0, y0), (x1, y1) in zip(points, [*points[1:], points[0]], strict=True):
                if (y0 <= y) != (y1 <= y) and x0 + (y - y0) / (y1 - y0) * (x1 - x0) < x:
                    crossings += 1
                at_an_edge |= abs((x1 - x0) * (y - y0) - (x - x0) * (y1 - y0)) < 1e-9
            assert at_an_edge or found[row, column] == (crossings % 2 == 1)


def test_each_object_has_a_mask_of_its_polygons_and_its_runs():
    runs = np.zeros((4, 5), bool)
    runs[1:3, 3:] = True
    objects = {
        "segmentation": [[], [np.array([0, 0, 2, 0, 2, 2, 0, 2])], []],
        "rle": [{"size": np.array([4, 5]), "counts": rle.encode(runs)}, None, None],
    }
    masks = object_masks(objects, (4, 5))
    assert masks.dtype == np.uint8
    assert np.array_equal(masks[0], runs)
    assert masks[1].sum() == 4
    assert not masks[2].any()
    assert object_masks({"rle": []}, (4, 5)).shape == (0, 4, 5)
    with pytest.raises(ValueError, match="a mask of 5x4 is not of the size of its image, 6x4"):
        object_masks(objects, (4, 6))


def test_runs_whose_sum_begins_anew_are_refused():
    """numpy would write all of them into memory for what is left of the sum."""
    longer = b"o" * 7 + b"?"  # each run is 2^39 - 1 pixels longer than the one before the last
    with pytest.raises(ValueError, match="longer than an image can be"):
        rle.decode(longer * 10_000, (64, 48))
