"""Steps that change the values of pixels, and neither their places nor their number: colours, noise
and blur, and rectangles that are painted over. What is marked in the image stays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from PIL.Image import Image

from shardctl.images import pixels
from shardctl.images.geometry import BLACK, Colour, Size
from shardctl.images.pixels import BACKENDS, Rectangle, adjust
from shardctl.system.options import Number, Whole, Word, declared_in, setting
from shardctl.transforms.base import PixelTransform, Range, Rng, between, drawn, whole
from shardctl.transforms.picture import Picture
from shardctl.transforms.settings import (
    COLOUR,
    PROBABILITY,
    Checked,
    OrWord,
    SettingError,
    Span,
    list_of,
)

TRIES = 10
"""How often a rectangle is drawn until one fits."""


def order(rng: Rng, count: int) -> list[int]:
    """Draw an order of the numbers below `count`, all orders being equally likely."""
    return [int(place) for place in rng.permutation(count)]


def jitter(rng: Rng, spans: Mapping[str, Range]) -> list[tuple[str, float]]:
    """Draw in which order adjustments are made, and the factor of each: (its name, the factor)."""
    names, factors = list(spans), [between(span, rng) for span in spans.values()]
    return [(names[place], factors[place]) for place in order(rng, len(names))]


def rectangle(rng: Rng, size: Size, scale: Range, ratio: Range) -> Rectangle | None:
    """Draw the rectangle of a random erasing in an image of `size`; None if none of ten fits.

    Its share of the area is uniform in `scale`, the logarithm of height / width uniform between
    those of `ratio`, and its place uniform. It is lower and narrower than the image.
    """
    width, height = size
    logarithms = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(TRIES):
        area = width * height * between(scale, rng)
        aspect = math.exp(between(logarithms, rng))
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if h < height and w < width:
            top = whole(rng, 0, height - h)
            return whole(rng, 0, width - w), top, w, h
    return None


class SometimesPixels(PixelTransform):
    """Changes the values of pixels with probability `p`; an image that is left as it is needs no
    pixels."""

    p: float

    change: ClassVar[Callable[..., Image]]
    """What a step does that is one function of the image and the step's other settings."""

    def pixels(self, image: Image, rng: Rng) -> Image:
        """Return the changed image."""
        settings = [getattr(self, name) for name in declared_in(type(self)) if name != "p"]
        return type(self).change(image, *settings)

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Change the pixels, or leave them."""
        if drawn(self.p, rng):
            super().apply(picture, rng)


_FACTOR = Number(0.0, 100.0)
_AROUND_1 = Span(0.0, 100.0, alone="around", centre=1.0)
_TURN = Span(-0.5, 0.5, alone="around")
_BACKEND = setting(
    Word(*BACKENDS),
    "numpy",
    "What computes it: numpy, or pillow (the hue as in torchvision).",
)
_ALWAYS, _HALF = (setting(PROBABILITY, p, "Probability of doing it.") for p in (1.0, 0.5))


@dataclass(frozen=True)
class _Adjust(SometimesPixels):
    """One adjustment by a factor: that of the step's name."""

    factor: float = setting(_FACTOR)
    p: float = _ALWAYS
    backend: str = _BACKEND

    def pixels(self, image: Image, rng: Rng) -> Image:
        """Adjust."""
        what = self.name.removeprefix("adjust_")
        return adjust(image, [(what, self.factor)], self.backend)


class AdjustBrightness(_Adjust, step="adjust_brightness"):
    """Blend with black."""

    factor: float = setting(_FACTOR, help="0: black. 1: the image itself. 2: twice as bright.")


class AdjustContrast(_Adjust, step="adjust_contrast"):
    """Blend with the mean grey of the image."""

    factor: float = setting(_FACTOR, help="0: grey. 1: the image itself. 2: twice the contrast.")


class AdjustSaturation(_Adjust, step="adjust_saturation"):
    """Blend with the grey image."""

    factor: float = setting(_FACTOR, help="0: grey. 1: the image itself. 2: twice as colourful.")


class AdjustHue(_Adjust, step="adjust_hue"):
    """Turn the hue."""

    factor: float = setting(
        Number(-0.5, 0.5),
        help="Part of the circle of colours: 0.5 and -0.5 give the opposite colours.",
    )


class ColorJitter(PixelTransform, step="color_jitter"):
    """Change brightness, contrast, saturation and hue by random factors, in random order."""

    brightness: Range = setting(
        _AROUND_1, (1.0, 1.0), "Factor; n alone is 1 - n, but no less than 0, to 1 + n."
    )
    contrast: Range = setting(_AROUND_1, (1.0, 1.0), "Factor, in the same way.")
    saturation: Range = setting(_AROUND_1, (1.0, 1.0), "Factor, in the same way.")
    hue: Range = setting(_TURN, (0.0, 0.0), "Part of the circle of colours; n alone is -n to n.")
    backend: str = _BACKEND

    draws = True

    def pixels(self, image: Image, rng: Rng) -> Image:
        """Draw the order and the factors, and adjust."""
        used = {
            name: getattr(self, name)
            for name, declared in declared_in(ColorJitter).items()
            if name != "backend" and getattr(self, name) != declared.default
        }
        return adjust(image, jitter(rng, used), self.backend)


class PhotometricDistort(PixelTransform, step="photometric_distort"):
    """Change brightness, contrast, saturation, hue and the order of the channels, each with a
    probability, as SSD does."""

    brightness: Range = setting(_AROUND_1, (0.875, 1.125), "Factor; n alone is 1 - n to 1 + n.")
    contrast: Range = setting(_AROUND_1, (0.5, 1.5), "Factor, in the same way.")
    saturation: Range = setting(_AROUND_1, (0.5, 1.5), "Factor, in the same way.")
    hue: Range = setting(_TURN, (-0.05, 0.05), "Part of the circle of colours; n alone is -n to n.")
    p: float = setting(PROBABILITY, 0.5, "Probability of each of the five changes.")
    backend: str = _BACKEND

    draws = True

    def pixels(self, image: Image, rng: Rng) -> Image:
        """Draw what is changed, and change it: the contrast after the brightness or at last, each
        with probability 1/2."""
        if not self.p:
            return image
        adjustments = [
            (name, between(getattr(self, name), rng))
            for name in ("brightness", "saturation", "hue")
            if drawn(self.p, rng)
        ]
        if drawn(self.p, rng):
            first = adjustments[:1] if adjustments and adjustments[0][0] == "brightness" else []
            place = len(first) if drawn(0.5, rng) else len(adjustments)
            adjustments.insert(place, ("contrast", between(self.contrast, rng)))
        image = adjust(image, adjustments, self.backend)
        return pixels.permute_channels(image, order(rng, 3)) if drawn(self.p, rng) else image


class Grayscale(SometimesPixels, step="grayscale"):
    """Make the image grey (ITU-R 601-2 luma), in three equal channels."""

    p: float = _ALWAYS

    change = pixels.grayscale


class ChannelPermutation(SometimesPixels, step="channel_permutation"):
    """Put red, green and blue into a random order."""

    p: float = _ALWAYS

    draws = True

    def pixels(self, image: Image, rng: Rng) -> Image:
        """Draw an order."""
        return pixels.permute_channels(image, order(rng, 3))


class ChannelDropout(SometimesPixels, step="channel_dropout"):
    """Set one of the three channels, drawn evenly, to one value."""

    value: int = setting(Whole(0, 255), 0, "What the channel is set to.")
    p: float = _HALF

    draws = True

    def pixels(self, image: Image, rng: Rng) -> Image:
        """Draw a channel."""
        return pixels.drop_channels(image, (whole(rng, 0, 2),), self.value)


class Autocontrast(SometimesPixels, step="autocontrast"):
    """Stretch each channel so that its lowest value becomes 0 and its highest 255."""

    p: float = _HALF

    change = pixels.autocontrast


class Equalize(SometimesPixels, step="equalize"):
    """Spread the values of each channel evenly over 0 to 255."""

    p: float = _HALF

    change = pixels.equalize


class Posterize(SometimesPixels, step="posterize"):
    """Keep the highest bits of each value."""

    bits: int = setting(Whole(0, 8), help="How many bits are kept.")
    p: float = _HALF

    change = pixels.posterize


class Solarize(SometimesPixels, step="solarize"):
    """Invert the values at and above a threshold."""

    threshold: float = setting(Number(0.0, 256.0), help="The lowest value that is inverted.")
    p: float = _HALF

    change = pixels.solarize


class Invert(SometimesPixels, step="invert"):
    """Replace each value v by 255 - v."""

    p: float = _HALF

    change = pixels.invert


class GaussianNoise(PixelTransform, step="gaussian_noise"):
    """Add normal noise to each value."""

    mean: float = setting(Number(-1.0, 1.0), 0.0, "Mean, as a share of 255.")
    sigma: Range = setting(
        Span(0.0, 10.0, alone="fixed"), (0.1, 0.1), "Standard deviation, as a share of 255."
    )

    draws = True

    def pixels(self, image: Image, rng: Rng) -> Image:
        """Draw the noise."""
        return pixels.gaussian_noise(image, rng, self.mean, between(self.sigma, rng))


class SaltAndPepper(PixelTransform, step="salt_and_pepper"):
    """Make some pixels white or black."""

    amount: Range = setting(Span(0.0, 1.0, alone="fixed"), (0.01, 0.06), "Share of the pixels.")
    salt: float = setting(PROBABILITY, 0.5, "Share of these that become white.")

    draws = True

    def pixels(self, image: Image, rng: Rng) -> Image:
        """Draw the pixels."""
        return pixels.salt_and_pepper(image, rng, between(self.amount, rng), self.salt)


def _qualities(value: Any) -> tuple[int, int]:
    parts = value if isinstance(value, list | tuple) else [value] * 2
    try:
        low, high = map(_QUALITY.read, parts)
    except ValueError:
        low, high = 1, 0
    if low > high:
        raise ValueError("must be one whole number, or two rising ones, from 1 to 100")
    return low, high


_QUALITY = Whole(1, 100)
_QUALITIES = Checked(
    _qualities,
    {"anyOf": [_QUALITY.schema(), list_of(_QUALITY.schema(), 2, 2)]},
    lambda pair: pair[0] if pair[0] == pair[1] else list(pair),
)


class Jpeg(PixelTransform, step="jpeg"):
    """Encode as a JPEG (4:2:0) and decode again."""

    quality: tuple[int, int] = setting(_QUALITIES, help="1 to 100, or [lowest, highest].")

    @property
    def random(self) -> bool:
        """Whether the quality is drawn."""
        return self.quality[0] < self.quality[1]

    def pixels(self, image: Image, rng: Rng) -> Image:
        """Encode and decode."""
        low, high = self.quality
        return pixels.jpeg(image, whole(rng, low, high) if low < high else low)


class GaussianBlur(PixelTransform, step="gaussian_blur"):
    """Blur by a Gaussian; at the edges the image is mirrored."""

    kernel_size: int | None = setting(
        Whole(1, 1001), None, "Pixels, odd, that it is cut to. Left out: all that count."
    )
    sigma: Range = setting(
        Span(0.0, 100.0, above=True, alone="fixed"), (0.1, 2.0), "Standard deviation in pixels."
    )
    backend: str = setting(Word("numpy"), "numpy", "What computes it.")

    def __post_init__(self) -> None:
        if self.kernel_size is not None and self.kernel_size % 2 == 0:
            raise SettingError(f"kernel_size must be odd; it is {self.kernel_size}", "kernel_size")

    @property
    def random(self) -> bool:
        """Whether sigma is drawn."""
        return self.sigma[0] < self.sigma[1]

    def pixels(self, image: Image, rng: Rng) -> Image:
        """Blur."""
        return pixels.gaussian_blur(image, between(self.sigma, rng), self.kernel_size)


class AdjustSharpness(SometimesPixels, step="adjust_sharpness"):
    """Blend with a smoothed image."""

    factor: float = setting(_FACTOR, help="0: smoothed. 1: the image itself. 2: sharpened.")
    p: float = _HALF

    change = pixels.sharpness


_VALUE = setting(
    OrWord(COLOUR, "random"),
    BLACK,
    "Colour of the rectangle, or random: each value is drawn evenly from 0 to 255.",
)


def _erased(image: Image, box: Rectangle, value: Colour | None, rng: Rng) -> Image:
    if value is None:
        return pixels.erase_with_noise(image, box, rng)
    return pixels.erase(image, box, value)


class Erase(PixelTransform, step="erase"):
    """Paint over a given rectangle."""

    left: float = setting(PROBABILITY, help="Where it begins, as a share of the width.")
    top: float = setting(PROBABILITY, help="Where it begins, as a share of the height.")
    width: float = setting(PROBABILITY, help="As a share of that of the image.")
    height: float = setting(PROBABILITY, help="As a share of that of the image.")
    value: Colour | None = _VALUE

    @property
    def random(self) -> bool:
        """Whether its values are drawn."""
        return self.value is None

    def pixels(self, image: Image, rng: Rng) -> Image:
        """Paint."""
        (left, right), (top, bottom) = (
            (round(first * side), min(side, round((first + share) * side)))
            for first, share, side in zip(
                (self.left, self.top), (self.width, self.height), image.size, strict=True
            )
        )
        if right == left or bottom == top:
            return image
        return _erased(image, (left, top, right - left, bottom - top), self.value, rng)


class RandomErasing(SometimesPixels, step="random_erasing"):
    """Paint over a random rectangle, with a probability. Objects that it hides stay marked.

    Source: torchvision's RandomErasing: ten tries for a rectangle that is smaller than the image,
    else none. Its random values are those of a normal distribution, which are for images that were
    normalised; here they are even.
    """

    p: float = _HALF
    scale: Range = setting(Span(0.0, 1.0), (0.02, 0.33), "Share of the area.")
    ratio: Range = setting(Span(0.0, 100.0, above=True), (0.3, 3.3), "Height by width.")
    value: Colour | None = _VALUE

    draws = True

    def pixels(self, image: Image, rng: Rng) -> Image:
        """Draw a rectangle, and paint."""
        box = rectangle(rng, image.size, self.scale, self.ratio)
        return image if box is None else _erased(image, box, self.value, rng)
