"""What OpenCV resamples, beside what Pillow makes of the same: docs/recipes.md has the tolerances."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from pictures import scene
from PIL import Image

import shardctl
from shardctl.images.codecs.resampling import resampled
from shardctl.images.geometry import Displacement, Pad, Stage, View, Warp
from shardctl.transforms.image.warp import affine, perspective, rotation
from shardctl.transforms.picture import Picture, resampling_by
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.recipe_options import OPENCV, PILLOW

pytest.importorskip("cv2")

SIZE = (131, 97)
INSIDE = 9
"""How much warps and displacements of noise differ inside of an image: OpenCV 4 counts in 32nds of a pixel. OpenCV 5: by 1."""


def noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(5).integers(0, 256, (SIZE[1], SIZE[0], 3), dtype=np.uint8))


def by_opencv(image: Image.Image, stage: Stage) -> Any:
    return np.asarray(resampling_by(OPENCV).resampled(image, stage))


def by_pillow(image: Image.Image, stage: Stage) -> Any:
    return np.asarray(resampled(image, stage))


def apart(image: Image.Image, stage: Stage) -> Any:
    return np.abs(by_opencv(image, stage).astype(int) - by_pillow(image, stage))


WHOLE = View.whole(SIZE)
CUT = WHOLE.cropped(11, 7, 60, 50)
SHRUNK = Warp.of(WHOLE, affine(33, (5.3, -4), 0.4, (0, 0), (60, 50)), SIZE, (9, 200, 30))


@pytest.mark.parametrize(
    "stage",
    [
        WHOLE,
        CUT,
        *(WHOLE.mirrored(), CUT.mirrored(), CUT.upside_down(), CUT.mirrored().upside_down()),
        *(WHOLE.scaled((60, 80)), CUT.scaled((30, 90)).mirrored()),
        *(View((0.5, 3.0, 100.25, 90.0), (120, 110)), View((0.5, 3.0, 100.25, 90.0), (120, 110), True)),
        Pad(3, 5, (150, 140), (7, 8, 9)),
        Warp.of(WHOLE, rotation(SIZE, 20, False)[0], SIZE, nearest=True),
        Warp.of(CUT, affine(0, (0, 0), 1.0, (10, 0), (0, 0)), (60, 50), nearest=True),
        Warp.of(WHOLE, affine(0, (500, 0), 1.0, (0, 0), (0, 0)), SIZE, (1, 2, 3)),
    ],
)
def test_what_opencv_would_not_do_better_is_pillows(stage: Stage) -> None:
    """Whole pixels, views that shrink by more than 1.5 or take parts of pixels, and the nearest pixels."""
    assert not apart(noise(), stage).any()


@examples(40)
@given(
    st.tuples(st.integers(0, 40), st.integers(0, 30), st.integers(20, 91), st.integers(20, 67)),
    st.floats(1, 4),
    st.floats(1, 4),
    st.booleans(),
)
def test_an_enlarged_part_is_that_of_pillow_but_at_its_edges(part: Any, x: float, y: float, flip: bool) -> None:
    """Pillow reads the pixels beyond the part, OpenCV has none."""
    left, top, width, height = part
    view = WHOLE.cropped(*part).scaled((round(width * x), round(height * y)))
    image = noise()
    difference = apart(image, view.mirrored() if flip else view)
    edge = int(max(x, y)) + 1
    assert difference[edge:-edge, edge:-edge].max(initial=0) <= 1
    cut = image.crop((left, top, left + width, top + height)).resize(view.size, Image.Resampling.BILINEAR)
    assert np.abs(by_opencv(image, view).astype(int) - np.asarray(cut)).max() <= 1, "as torchvision, which crops first"


@pytest.mark.parametrize("scale", [1.1, 1.3, 1.49])
def test_a_part_that_shrinks_a_little_is_interpolated_between_four_pixels(scale: float) -> None:
    """Sharper than Pillow's: on smooth images the two are close."""
    view = CUT.scaled((round(60 / scale), round(50 / scale)))
    difference = apart(scene(*SIZE), view)
    assert difference.max() <= 3
    assert difference.mean() < 0.5


def _perspective(size: tuple[int, int]) -> Warp:
    width, height = size
    start = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)
    inwards = [[0.1, 0.05], [-0.12, 0.1], [-0.02, -0.2], [0.2, -0.1]] * np.array(size)
    return Warp.of(View.whole(size), perspective(start, start + inwards), size)


@pytest.mark.parametrize(
    "warp",
    [
        Warp.of(WHOLE, rotation(SIZE, 20, False)[0], SIZE),
        Warp.of(WHOLE, affine(33, (5.3, -4), 1.4, (10, 3), (60, 50)), SIZE, (9, 200, 30)),
        SHRUNK,
        Warp.of(CUT, rotation((60, 50), -50, False)[0], (60, 50), (255, 255, 255)),
        _perspective(SIZE),
    ],
)
def test_warps_are_those_of_pillow_inside_and_mixed_with_the_fill_at_the_edge(warp: Warp) -> None:
    image = noise()
    difference = apart(image, warp)
    white = Image.new("RGB", SIZE, (255, 255, 255))
    black = Warp(warp.view, warp.inverse, warp.size)
    inside = (by_opencv(white, black) == 255).all(axis=-1) & (by_pillow(white, black) == 255).all(axis=-1)
    outside = (by_opencv(white, black) == 0).all(axis=-1) & (by_pillow(white, black) == 0).all(axis=-1)
    assert inside.mean() > 0.1
    assert difference[inside].max() <= INSIDE
    assert difference[inside].mean() < 1.5
    assert not difference[outside].any()
    # Half a pixel inside and half a pixel outside of each edge of what is seen, which is no longer than the canvas.
    assert (~inside & ~outside).sum() < 2 * 2 * sum(warp.size)


def test_displacements_are_our_own_but_for_what_opencv_rounds() -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.normal(0, 4, (SIZE[1], SIZE[0])).astype(np.float32) for _ in range(2))
    difference = apart(noise(), Displacement(x, y, (9, 200, 30)))
    assert difference.max() <= INSIDE
    assert difference.mean() < 1.5


def test_an_image_that_is_too_long_for_opencv_is_warped_by_pillow() -> None:
    image = scene(40_000, 3)
    warp = Warp.of(View.whole(image.size), affine(0, (1.5, 0), 1.0, (0, 0), (0, 0)), image.size)
    assert not apart(image, warp).any()


@pytest.mark.parametrize("size", [(31, 17), (3000, 1700)])
def test_the_pixels_of_an_image_are_copied_right_and_are_its_own(size: tuple[int, int]) -> None:
    """The second image is larger than the parts in which Pillow has its memory."""
    from shardctl.images.codecs.opencv import pixels_of

    image = Image.merge("RGB", [Image.linear_gradient("L").rotate(angle).resize(size) for angle in (0, 90, 180)])
    before = image.tobytes()
    pixels = pixels_of(image)
    image.paste((1, 2, 3), (0, 0, *size))
    assert pixels.tobytes() == before


def test_a_picture_goes_between_both_forms_and_keeps_its_pixels() -> None:
    image = noise()
    picture = Picture(SIZE, 0, resampling_by(OPENCV))
    picture.begin(image)
    picture.look = picture.look.cropped(10, 5, 60, 40).mirrored()
    pixels = np.asarray(image)[5:45, 10:70][:, ::-1]
    assert np.array_equal(picture.pixels, pixels)
    assert np.array_equal(np.asarray(picture.image), pixels)
    assert np.array_equal(picture.pixels, pixels)
    copied = Picture.of(picture.image, picture.by)
    copied.pad(Pad(1, 1, (62, 42)))
    assert np.array_equal(copied.pixels[1:-1, 1:-1], pixels)
    assert picture.size == (60, 40)


@pytest.mark.parametrize("store", ["raw", "png"])
def test_a_recipe_that_names_opencv_makes_another_dataset_with_its_pixels(store: str, photos: Path, tmp_path: Path) -> None:
    steps = [{"name": "crop", "size": 24}, {"name": "resize", "size": "40x30"}, {"name": "rotate", "angle": 10}]
    recipe = {"store": store, "transform": [*steps[:2], {**steps[2], "interpolation": "bilinear"}]}
    made = {}
    for resampling in ("pillow", "opencv"):
        shardctl.convert(photos, tmp_path / resampling, recipe={**recipe, "resampling": resampling}, workers=0)
        manifest = json.loads((tmp_path / resampling / "manifest.json").read_text())
        made[resampling] = (manifest, [sample["image"] for sample in shardctl.open(tmp_path / resampling)])
    (of_pillow, ours), (of_opencv, theirs) = made["pillow"], made["opencv"]
    assert of_opencv["recipe"]["resampling"] == "opencv"
    assert "resampling" not in of_pillow["recipe"], "a recipe that does not name it is what it was"
    assert of_opencv["environment"]["opencv"]
    assert "opencv" not in of_pillow["environment"]
    assert of_opencv["fingerprint"] != of_pillow["fingerprint"]
    for first, second in zip(ours, theirs, strict=True):
        assert 0 < np.abs(np.asarray(first).astype(int) - np.asarray(second)).mean() < 8


def test_steps_by_opencv_are_found_wherever_they_are() -> None:
    blur = {"name": "gaussian_blur", "backend": "opencv"}
    nested = [{"name": "maybe", "steps": [{"name": "sequence", "steps": [blur]}]}]
    assert Recipe.from_json({"transform": nested}).uses_opencv
    assert Recipe.from_json({"resampling": "opencv"}).uses_opencv
    assert not Recipe.from_json({"transform": [{"name": "gaussian_blur"}]}).uses_opencv


@pytest.mark.parametrize("size", [(40, 30), (3, 5), (1, 7), (1, 1)])
def test_fields_are_blurred_alike(size: tuple[int, int]) -> None:
    field = np.random.default_rng(2).random(size, np.float32)
    for sigma in (0.05, 1.0, 5.0):
        ours, theirs = (resampling_by(name).smoothed(field, sigma) for name in (PILLOW, OPENCV))
        assert theirs == pytest.approx(ours, abs=1e-5)
