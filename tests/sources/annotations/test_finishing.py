"""Objects in the frame of the upright image: the same pixels are in a box, a polygon and an RLE
before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardctl.errors import Rejection
from shardctl.images.codecs import rle
from shardctl.images.codecs.image import turned
from shardctl.sources.annotations import finishing

PLAIN = {"width": None, "height": None, "relative": False, "frame": "auto", "boxes": "keep"}


def filled(box: Any, size: tuple[int, int]) -> Any:
    x, y, width, height = map(round, box)
    mask = np.zeros(size[::-1], np.uint8)
    mask[y : y + height, x : x + width] = 1
    return mask


@pytest.mark.parametrize("orientation", range(2, 9))
@given(box=st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(1, 3), st.integers(1, 3)))
@examples(20)
def test_what_is_marked_in_a_stored_image_is_marked_in_the_upright_one(orientation, box):
    def seen(mask: Any) -> Any:
        return np.asarray(turned(Image.fromarray(mask), orientation))

    x, y, width, height = map(float, box)
    mask = filled(box, (7, 5))
    objects = {
        "category": [0],
        "bbox": [[x, y, width, height]],
        "segmentation": [[[x, y, x + width, y, x + width, y + height, x, y + height]]],
        "keypoints": [[[x + 0.5, y + 0.5, 2.0], [0.0, 0.0, 0.0]]],
        "rle": [{"size": [5, 7], "counts": rle.encode(mask.astype(bool))}],
    }
    expected = seen(mask)
    upright = expected.shape[::-1]
    how = {**PLAIN, "width": 7, "height": 5, "frame": "stored"}
    moved = finishing.finished_objects(objects, how, upright, orientation)
    corners = np.array(moved["segmentation"][0][0]).reshape(-1, 2)
    for around in (moved["bbox"][0], [*corners.min(axis=0), *np.ptp(corners, axis=0)]):
        assert np.array_equal(filled(around, upright), expected)
    (runs,) = moved["rle"]
    assert np.array_equal(rle.decode(runs["counts"], tuple(runs["size"])), expected)
    (across, down, _), absent = moved["keypoints"][0]
    assert seen(filled((x, y, 1, 1), (7, 5)))[int(down), int(across)] == 1
    assert absent == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("said", "frame", "orientation", "turned"),
    [
        ((6, 8), "auto", 6, False),
        ((8, 6), "auto", 6, True),
        (None, "auto", 6, False),
        ((8, 6), "stored", 6, True),
        (None, "stored", 6, True),
        ((6, 8), "upright", 3, False),
        ((6, 8), "stored", 3, True),
    ],
)
def test_the_frame_is_known_by_the_size(said, frame, orientation, turned):
    assert finishing.orientation_of(said, frame, (6, 8), orientation, "annotations") == (
        orientation if turned else 1
    )


@pytest.mark.parametrize(
    ("said", "frame", "orientation"),
    [((5, 5), "auto", 6), ((6, 8), "stored", 6), ((8, 6), "upright", 6), ((8, 6), "auto", 1)],
)
def test_annotations_of_another_size_are_refused_with_both(said, frame, orientation):
    with pytest.raises(
        Rejection, match=f"of an image of {said[0]}x{said[1]}, and it has 6x8"
    ) as caught:
        finishing.orientation_of(said, frame, (6, 8), orientation, "annotations")
    assert caught.value.error == "other-size"


@pytest.mark.parametrize(("size", "orientation"), [((6, 8), 3), ((6, 8), 2), ((6, 6), 6)])
def test_a_size_that_does_not_tell_the_frame_decides_nothing(size, orientation):
    with pytest.raises(Rejection, match="--annotation-frame stored or upright") as caught:
        finishing.orientation_of(size, "auto", size, orientation, "annotations")
    assert caught.value.error == "unknown-frame"


def test_shares_become_pixels_of_the_upright_image():
    objects = {
        "category": [4],
        "bbox": [[0.25, 0.5, 0.5, 0.25]],
        "segmentation": [[[0.0, 0.0, 1.0, 0.0, 1.0, 1.0]]],
        "keypoints": [[[0.5, 0.5, 1.0], [0.0, 0.0, 0.0]]],
    }
    moved = finishing.finished_objects(objects, {**PLAIN, "relative": True}, (8, 4), 6)
    assert moved["bbox"] == [[2, 2, 4, 1]]
    assert moved["segmentation"] == [[[0, 0, 8, 0, 8, 4]]]
    assert moved["keypoints"] == [[[4, 2, 1], [0, 0, 0]]]


BOXES = [[-2, 1, 5, 2], [1, 1, 2, 2], [6, 5, 9, 9], [20, 1, 2, 2], [3, 3, 0, 2], [7.9, 0, 0.4, 1]]


@pytest.mark.parametrize(
    ("rule", "boxes", "ids"),
    [
        ("keep", BOXES, [*range(6)]),
        ("clip", [[0, 1, 3, 2], BOXES[1], [6, 5, 2, 1], [7.9, 0, 0.1, 1]], [0, 1, 2, 5]),
        ("drop", [BOXES[1], BOXES[5]], [1, 5]),
    ],
)
def test_boxes_outside_follow_the_rule(rule, boxes, ids):
    given_objects = {"id": [*range(6)], "category": [0] * 6, "bbox": BOXES}
    fitted = finishing.fitted(given_objects, (8, 6), rule)
    assert (fitted["id"], len(fitted["category"])) == (ids, len(ids))
    assert np.allclose(fitted["bbox"], boxes)


def test_the_area_of_what_is_clipped_is_that_of_what_is_left():
    """Of the polygons, else of the RLE, which lies in the image, else of the box; what has no area
    stays so."""
    outside = [-4, 0, -1, 0, -1, 4, -4, 4, -4, 5, 2, 5, 2, 6, -4, 6]
    runs = {"size": [6, 8], "counts": b""}
    objects: list[tuple[Any, ...]] = [  # box, area, polygons, RLE, area in the end
        ([-2, 0, 4, 4], 16.0, [], None, 8),
        ([-2, 0, 8, 4], 20.0, [[-2, 0, 0, 0, 0, 2, 6, 2, 6, 4, -2, 4]], None, pytest.approx(12)),
        ([-2, 0, 4, 4], 5.0, [], runs, 5),
        ([-4, 0, 6, 6], 18.0, [outside], None, pytest.approx(2)),
        ([-2, 0, 4, 4], None, [], None, None),
        ([-4, 0, 6, 6], 12.0, [outside[:8]], None, "nothing of it is in the image"),
    ]
    *members, areas = (list(each) for each in zip(*objects, strict=True))
    given = dict(zip(("bbox", "area", "segmentation", "rle"), members, strict=True))
    assert finishing.fitted(given, (8, 6), "clip")["area"] == areas[:-1]


@pytest.mark.parametrize(
    ("runs", "error"),
    [
        ({"size": [5, 5], "counts": b"04"}, "other-size"),
        ({"size": [6, 8], "counts": b"04"}, "bad-annotation"),
        ({"size": [6, 8], "counts": b"T"}, "bad-annotation"),
    ],
)
def test_an_rle_that_does_not_fill_the_image_rejects_it(runs, error):
    with pytest.raises(Rejection) as caught:
        finishing.finished_objects(
            {"category": [0], "bbox": [[0, 0, 1, 1]], "rle": [runs]}, PLAIN, (8, 6), 1
        )
    assert caught.value.error == error
