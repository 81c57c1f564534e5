"""Objects with masks are judged, boxed and measured by what is left of them: against their pixels,
moved one by one."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import examples
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from stepped_pictures import TURNING, picture_of

import shardctl
from shardctl.format.layout import Layout
from shardctl.format.roles import Objects, Roles
from shardctl.images.codecs import rle
from shardctl.images.codecs.resampling import resampled_mask
from shardctl.images.codecs.rle import inside, object_masks
from shardctl.images.defaults import CENTRE
from shardctl.images.geometry import View, apply
from shardctl.images.object_geometry import Motion
from shardctl.transforms.pipeline.deferred_objects import Annotated

SIZE = (80, 70)
MEMBERS = pa.struct(
    [("category", pa.list_(pa.int64())), ("bbox", pa.list_(pa.list_(pa.float32(), 4)))]
)

SHAPES = {
    "box": [0, 0, 4, 0, 4, 4, 0, 4],
    "L": [0, 0, 1, 0, 1, 3, 4, 3, 4, 4, 0, 4],
    "U": [0, 0, 1, 0, 1, 3, 3, 3, 3, 0, 4, 0, 4, 4, 0, 4],
    "C": [0, 0, 4, 0, 4, 1, 1, 1, 1, 3, 4, 3, 4, 4, 0, 4],
    "around a corner": [0, 0, 4, 0, 4, 1, 3, 1, 3, 0.5, 0.5, 0.5, 0.5, 3, 1, 3, 1, 4, 0, 4],
}
"""Outlines within 4 x 4, some with parts that are connected only outside of what a crop may
leave."""


def annotated(keep: float | str = 0.0) -> Annotated:
    return Annotated(
        Layout("images", pa.schema([("objects", MEMBERS)]), Roles({"objects": Objects()})),
        keep,
    )


def runs_of(mask: Any) -> dict[str, Any]:
    return {"size": list(mask.shape), "counts": rle.encode(mask)}


def around(mask: Any) -> list[float]:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return [columns[0], rows[0], columns[-1] + 1 - columns[0], rows[-1] + 1 - rows[0]]


def resampled(values: Any, stages: Any) -> Any:
    for stage in stages:
        values = resampled_mask(values, stage, 0)
    return values


def seen_points(outline: Any, size: tuple[int, int], stages: Any) -> tuple[float, Any]:
    """Return which share of many points within an outline is still to be seen, and where these are,
    and many of its edges."""
    tenths = inside([10 * outline.ravel()], (10 * size[1], 10 * size[0]))
    within, ways = np.argwhere(tenths)[:, ::-1] / 10 + 0.05, np.roll(outline, -1, axis=0) - outline
    # a corner may stick in by a hair
    edges = (outline + np.linspace(0, 1, 5000)[:, None, None] * ways).reshape(-1, 2)
    seen = []
    for points in (within, edges):
        for leg in Motion.of(size, stages).legs:
            points = apply(leg.matrix, points)
            points = points[((points > leg.seen[:2]) & (points < leg.seen[2:])).all(axis=1)]
        seen.append(points)
    return len(seen[0]) / len(within), np.concatenate(seen)


@given(
    steps=st.lists(st.sampled_from([*TURNING, {"name": "vflip", "p": 1}]), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
    shape=st.sampled_from(sorted(SHAPES)),
    place=st.tuples(st.integers(0, 40), st.integers(0, 30), st.integers(4, 10), st.integers(4, 10)),
    keep=st.sampled_from([0.0, 0.1, 0.5]),
)
@example(
    steps=[{"name": "random_affine", "degrees": 20, "scale": [0.6, 1.5], "shear": 20}],
    seed=4,
    shape="C",
    place=(2, 0, 4, 4),
    keep=0.0,
)
@examples(90)
def test_boxes_areas_and_what_is_kept_are_those_of_the_moved_pixels(
    steps, seed, shape, place, keep
):
    x, y, across, down = place
    outline = np.array(SHAPES[shape]).reshape(-1, 2) * (across, down) + (x, y)
    mask = inside([outline.ravel()], SIZE[::-1])
    stages = picture_of(Image.new("RGB", SIZE), *steps, seed=seed).stages
    after, (share, points) = resampled(mask, stages), seen_points(outline, SIZE, stages)
    common = {"bbox": [around(mask)], "category": [0], "area": [float(mask.sum())]}

    def moved(**more: Any) -> Any:
        objects = {**common, **more}
        made, _ = annotated(keep).moved({"objects": objects}, SIZE, stages, of_table=False)
        return made.get("objects", objects)

    of_pixels = moved(rle=[runs_of(mask)])
    unclear = 24 / mask.sum()  # pixels that are partly to be seen
    for made in (of_pixels, moved(segmentation=[[outline.ravel().tolist()]])):
        if "rle" in made and not after.any():
            assert not made["bbox"], "nobody can learn from an object without a pixel"
        elif abs(share - keep) > unclear:
            assert len(made["bbox"]) == (share >= keep), "kept by what is to be seen of its pixels"
        if not made["bbox"] or not len(points):
            continue
        (left, top, width, height), near = made["bbox"][0], 1.01 if "rle" in made else 0.6
        expected = [*points.min(axis=0), *points.max(axis=0)]
        if "rle" in made:
            x, y, w, h = around(after)
            expected = [x, y, x + w, y + h]
        assert [left, top, left + width, top + height] == pytest.approx(expected, abs=near)
        edge = (after[1:] != after[:-1]).sum() + (after[:, 1:] != after[:, :-1]).sum()
        assert made["area"][0] == pytest.approx(after.sum(), abs=int(4 + edge))
        assert made["area"][0] > 0
    if of_pixels["bbox"]:
        (left,) = of_pixels["rle"]
        assert np.array_equal(rle.decode(left["counts"], tuple(left["size"])), after)


@pytest.mark.parametrize("keep", [0, 0.1, CENTRE])
def test_the_loader_judges_and_measures_masks_as_a_conversion_does(out, keep):
    width, height = 48, 40
    rng = np.random.default_rng(0)
    samples, given_masks = [], []
    for number in range(6):
        masks = np.zeros((4, height, width), bool)
        places = rng.integers((0, 0, 4, 4), (44, 36, 24, 24), (4, 4)).tolist()
        for mask, (x, y, w, h) in zip(masks, places, strict=True):
            part = mask[y : y + h, x : x + w]
            part[:] = rng.random(part.shape) < 0.7
        objects = {
            # three boxes that say too much
            "bbox": [[0, 0, width, height]] * 3 + [around(masks[3])],
            "category": [0, 1, 2, 3],
            "area": [float(mask.sum()) for mask in masks],
            "rle": [runs_of(mask) for mask in masks],
        }
        given_masks.append(masks)
        image = rng.integers(0, 255, (height, width, 3), np.uint8)
        samples.append({"key": str(number), "image": image, "objects": objects})
    shardctl.write(out, samples, roles={"objects": "objects"})
    ds = shardctl.open(out)
    options: dict[str, Any] = {"crop": (20, 24), "crop_from": "random", "flip": 0.5, "seed": 3}
    options["keep_objects"] = keep
    batches = list(ds.loader(6, **options))
    few = list(ds.loader(6, **options, columns=["objects.bbox"]))
    found = 0
    for batch, other in zip(batches, few, strict=True):
        for place, objects in enumerate(batch["objects"]):
            # whatever members are read
            assert np.array_equal(other["objects"][place]["bbox"], objects["bbox"])
            masks = given_masks[int(batch["key"][place])]
            left = object_masks(objects, (20, 24)).astype(bool)
            assert left.any(axis=(1, 2)).all()
            members = (objects[name] for name in ("bbox", "area", "category"))
            for mask, box, area, number in zip(left, *members, strict=True):
                whole = masks[number].sum()
                if mask.sum() < whole:
                    assert box.tolist() == around(mask)
                assert area == mask.sum()
                assert keep == CENTRE or mask.sum() >= keep * whole
                found += 1
    assert found


def test_a_small_mask_in_a_large_image_takes_little_memory():
    """What is done to the mask of an object is done in its box: an image may have a hundred of
    them."""
    size = (20_000, 20_000)
    counts = rle.compress([20_000 * 5_000 + 7_000, 50, 19_950, 60, 20_000 * 14_998 + 12_940])
    box, mask = [5000.0, 7000.0, 2.0, 60.0], {"size": [*size], "counts": counts}
    objects = {"bbox": [box], "category": [0], "rle": [mask]}
    stages = [View.whole(size).mirrored(), View((0.0, 0.0, 20_000.0, 10_000.0), (20_000, 10_000))]
    tracemalloc.start()
    try:
        made, _ = annotated().moved({"objects": objects}, size, stages, of_table=False)
        # one byte for each pixel would be 400 MB
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    moved = made["objects"]["rle"][0]
    assert moved["size"] == [10_000, 20_000]
    assert rle.decompress(moved["counts"])[1::2].tolist() == [60, 50]
    assert made["objects"]["bbox"][0] == [14_998.0, 7000.0, 2.0, 60.0]
