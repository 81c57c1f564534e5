"""Pictures with edges, gradients, noise or one white box, and what is measured of them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image


def scene(width: int, height: int, waves: tuple[int, int] = (9, 13)) -> Image.Image:
    """A picture with edges and gradients and no symmetry."""
    y, x = np.mgrid[0:height, 0:width]
    blue = 127 + 100 * np.sin(x / waves[0]) * np.cos(y / waves[1])
    pixels = np.stack([x * 255 / width, y * 255 / height, blue], axis=-1)
    return Image.fromarray(pixels.astype(np.uint8))


def encoded(picture: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    target = io.BytesIO()
    picture.save(target, form, **options)
    return target.getvalue()


def oriented(orientation: int) -> Image.Exif:
    """Return EXIF data that say how an image is turned."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


Pixels = npt.NDArray[np.uint8]


def scene_pixels(width: int, height: int) -> Pixels:
    return np.asarray(scene(width, height, (5, 7)))


def png(pixels: Any) -> bytes:
    return encoded(Image.fromarray(pixels))


def soft_shapes(seed: int, size: tuple[int, int] = (96, 72)) -> Image.Image:
    """Return a picture of soft shapes: another one for each seed."""
    colours = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    return Image.fromarray(colours).resize(size, Image.Resampling.BICUBIC)


def picture(seed: int, width: int = 41, height: int = 29) -> Image.Image:
    """Smooth colours, with noise in one half: all values, few of them, and flat channels occur."""
    rng = np.random.default_rng(seed)
    low, high = np.sort(rng.integers(0, 256, (2, 3)), axis=0)
    across = np.linspace(0, 1, width)[None, :, None]
    pixels = np.broadcast_to(low + (high - low) * across, (height, width, 3)).astype(np.uint8)
    half = pixels.copy()
    half[height // 2 :] = rng.integers(0, 256, half[height // 2 :].shape)
    return Image.fromarray(half if seed % 3 else pixels)


def values(image: Image.Image) -> Any:
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


def rectangle(size: tuple[int, int], box: tuple[int, int, int, int]) -> Image.Image:
    """Return a black image with a white box (x, y, width, height)."""
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    pixels[box[1] : box[1] + box[3], box[0] : box[0] + box[2]] = 255
    return Image.fromarray(pixels)


def centroid(values: Any) -> tuple[float, float]:
    """Return the centre of gravity of an image, in coordinates of corners."""
    grey = np.asarray(values, np.float64)
    grey = grey[..., 0] if grey.ndim == 3 else grey
    rows, columns = np.indices(grey.shape) + 0.5
    return float((columns * grey).sum() / grey.sum()), float((rows * grey).sum() / grey.sum())
