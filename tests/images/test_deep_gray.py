"""Gray of more than 8 bits in a conversion: by the range of its type, of the image, or of a window;
numpy is the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import saved as image_saved
from in_this_process import convert
from PIL import Image

import shardctl
from shardctl.errors import UsageError

RAMP = np.add.outer(np.arange(40), np.arange(60)) / 98
"""From 0 to 1, (40, 60)."""

IMAGES: dict[str, tuple[Any, str]] = {
    "12 bits in 16": ((RAMP * 4095).astype(np.uint16), ".png"),
    "all of 16 bits": ((RAMP * 65535).astype(np.uint16), ".png"),
    "CT with an offset": ((31768 + RAMP * 2000).astype(np.uint16), ".tif"),
    "CT": ((-1000 + RAMP * 2000).astype(np.int16), ".tif"),
    "32 bits": ((RAMP * 1_000_000).astype(np.int32), ".tif"),
    "heights": ((RAMP * 3000 - 100).astype(np.float32), ".tif"),
    "shares": (RAMP.astype(np.float32), ".tif"),
}


def saved(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        values, ending = IMAGES[name]
        if values.dtype == np.int16:  # as Pillow reads them, and does not write them
            image = Image.frombytes("I;16", values.shape[::-1], values.tobytes())
            image.save(folder / f"{name}{ending}", tiffinfo={339: 2})
        else:
            Image.fromarray(values).save(folder / f"{name}{ending}")
    return folder


def window(values: Any, low: float, high: float) -> Any:
    return np.clip((values.astype(float) - low) / (high - low), 0, 1) * 255


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("given", ["range", "0:4095", "-1000:400.5"])
def test_values_are_scaled_as_it_is_said(tmp_path, out, name, given):
    values = IMAGES[name][0]
    source = saved(tmp_path / "in", name)
    result = convert(source, out, gray16=given, store="png")
    low, high = (values.min(), values.max()) if given == "range" else map(float, given.split(":"))
    (sample,) = shardctl.open(out)
    assert np.abs(sample["image"] - window(values, low, high)[..., None]).max() <= 0.51
    assert result.warnings == ()


@pytest.mark.parametrize(
    ("names", "little"),
    [
        (["12 bits in 16", "all of 16 bits"], "1 of 2 images"),
        (["CT with an offset"], "1 of 1 image"),
        (["CT"], "values -1000 to 1000"),
        (["32 bits"], "values 0 to 1e+06"),
        (["heights"], "values -100 to 2900"),
        (["all of 16 bits", "shares"], None),
    ],
)
@pytest.mark.parametrize("store", ["source", "png"])
def test_images_that_lose_most_of_their_levels_are_named(tmp_path, names, little, store):
    result = convert(saved(tmp_path / "in", *names), tmp_path / "out", store=store)
    assert len(result.warnings) == (little is not None)
    assert all("gray16" in said and str(little) in said for said in result.warnings)


def test_the_range_changes_no_other_images_and_asks_for_pixels_that_are_stored(tmp_path, out):
    pixels = np.random.default_rng(0).integers(0, 60, (20, 30, 3), np.uint8)
    image_saved(Image.fromarray(pixels), tmp_path / "in" / "a.png")
    image_saved(Image.fromarray(pixels[..., 0]), tmp_path / "in" / "b.png")
    convert(tmp_path / "in", out, gray16="range", store="png")
    colour, grey = (sample["image"] for sample in shardctl.open(out))
    assert np.array_equal(colour, pixels)
    assert np.array_equal(grey, pixels[..., :1].repeat(3, -1))
    convert(tmp_path / "in", tmp_path / "by-default", gray16="range")
    assert shardctl.open(tmp_path / "by-default").manifest.recipe["store"] == "jpeg:90"
    for gray16 in ("4095:0", "1", "0:nan", "0:inf", "range"):
        store = "source" if gray16 == "range" else None
        with pytest.raises(UsageError, match="gray16"):
            convert(tmp_path / "in", tmp_path / "no", gray16=gray16, store=store)


def test_look_alikes_are_compared_as_they_are_stored(tmp_path):
    """By the range of the type all of these are black, and the same."""
    for number in range(3):
        coarse = np.random.default_rng(number).integers(0, 256, (8, 8)).astype(np.uint16)
        fine = Image.fromarray(coarse.repeat(8, 0).repeat(8, 1))
        image_saved(fine, tmp_path / "in" / f"{number}.png")
    result = convert(tmp_path / "in", tmp_path / "out", gray16="0:255", duplicates="similar")
    assert result.samples == 3
