"""Noise."""

from __future__ import annotations

import numpy as np
from PIL import Image


def gaussian_noise(
    image: Image.Image, rng: np.random.Generator, mean: float = 0.0, sigma: float = 0.1
) -> Image.Image:
    """Add normal noise to every value; `mean` and `sigma` are shares of 255, and the result is cut
    to 0..255."""
    pixels = np.asarray(image)
    noise = rng.standard_normal(pixels.shape, np.float32)
    noise *= np.float32(sigma * 255)
    noise += np.float32(mean * 255)
    # as torchvision does: the noise is cut to whole numbers, and not the sum
    np.trunc(noise, out=noise)
    noise += pixels
    np.clip(noise, 0, 255, out=noise)
    return Image.fromarray(noise.astype(np.uint8))


def salt_and_pepper(
    image: Image.Image, rng: np.random.Generator, amount: float = 0.01, salt: float = 0.5
) -> Image.Image:
    """Make a share `amount` of the pixels white (a share `salt` of these) or black, drawn for each
    pixel."""
    pixels = np.array(image)
    drawn = rng.random(pixels.shape[:2], np.float32)
    pixels[drawn < amount] = 0
    pixels[drawn < amount * salt] = 255
    return Image.fromarray(pixels)
