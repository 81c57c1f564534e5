"""Colours: brightness, contrast, saturation, hue, grey, and the channels."""

from __future__ import annotations

from typing import Any

from PIL.Image import Image

from shardctl.images import pixels
from shardctl.images.pixels import BACKENDS, adjust
from shardctl.system.options import Number, Whole, Word, setting
from shardctl.transforms.base import PixelTransform, Range, Rng, between, drawn
from shardctl.transforms.image.draws import SometimesPixels, jitter, order, whole
from shardctl.transforms.settings import PROBABILITY, Span

_FACTOR = Number(0.0, 100.0)
_AROUND_1 = Span(0.0, 100.0, alone="around", centre=1.0)
_TURN = Span(-0.5, 0.5, alone="around")
_BACKEND = setting(
    Word(*BACKENDS),
    "numpy",
    "What computes it: numpy, or pillow (the hue as in torchvision).",
)
_ALWAYS, _HALF = (setting(PROBABILITY, p, "Probability of doing it.") for p in (1.0, 0.5))


def _adjusted(name: str) -> Any:
    """Return what does one adjustment by a factor."""
    return staticmethod(lambda image, factor, backend: adjust(image, [(name, factor)], backend))


class AdjustBrightness(SometimesPixels, step="adjust_brightness"):
    """Blend with black."""

    factor: float = setting(_FACTOR, help="0: black. 1: the image itself. 2: twice as bright.")
    p: float = _ALWAYS
    backend: str = _BACKEND

    change = _adjusted("brightness")


class AdjustContrast(SometimesPixels, step="adjust_contrast"):
    """Blend with the mean grey of the image."""

    factor: float = setting(_FACTOR, help="0: grey. 1: the image itself. 2: twice the contrast.")
    p: float = _ALWAYS
    backend: str = _BACKEND

    change = _adjusted("contrast")


class AdjustSaturation(SometimesPixels, step="adjust_saturation"):
    """Blend with the grey image."""

    factor: float = setting(_FACTOR, help="0: grey. 1: the image itself. 2: twice as colourful.")
    p: float = _ALWAYS
    backend: str = _BACKEND

    change = _adjusted("saturation")


class AdjustHue(SometimesPixels, step="adjust_hue"):
    """Turn the hue."""

    factor: float = setting(
        Number(-0.5, 0.5),
        help="Part of the circle of colours: 0.5 and -0.5 give the opposite colours.",
    )
    p: float = _ALWAYS
    backend: str = _BACKEND

    change = _adjusted("hue")


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
        spans = {
            "brightness": (self.brightness, 1.0),
            "contrast": (self.contrast, 1.0),
            "saturation": (self.saturation, 1.0),
            "hue": (self.hue, 0.0),
        }
        used = {name: span for name, (span, nothing) in spans.items() if span != (nothing, nothing)}
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
        middle = (
            ("brightness", self.brightness),
            ("saturation", self.saturation),
            ("hue", self.hue),
        )
        adjustments = [(name, between(span, rng)) for name, span in middle if drawn(self.p, rng)]
        if drawn(self.p, rng):
            first = adjustments[:1] if adjustments and adjustments[0][0] == "brightness" else []
            place = len(first) if drawn(0.5, rng) else len(adjustments)
            adjustments.insert(place, ("contrast", between(self.contrast, rng)))
        image = adjust(image, adjustments, self.backend)
        return pixels.permute_channels(image, order(rng, 3)) if drawn(self.p, rng) else image


class Grayscale(SometimesPixels, step="grayscale"):
    """Make the image grey (ITU-R 601-2 luma), in three equal channels."""

    p: float = _ALWAYS

    change = staticmethod(pixels.grayscale)


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

    change = staticmethod(pixels.autocontrast)


class Equalize(SometimesPixels, step="equalize"):
    """Spread the values of each channel evenly over 0 to 255."""

    p: float = _HALF

    change = staticmethod(pixels.equalize)


class Posterize(SometimesPixels, step="posterize"):
    """Keep the highest bits of each value."""

    bits: int = setting(Whole(0, 8), help="How many bits are kept.")
    p: float = _HALF

    change = staticmethod(pixels.posterize)


class Solarize(SometimesPixels, step="solarize"):
    """Invert the values at and above a threshold."""

    threshold: float = setting(Number(0.0, 256.0), help="The lowest value that is inverted.")
    p: float = _HALF

    change = staticmethod(pixels.solarize)


class Invert(SometimesPixels, step="invert"):
    """Replace each value v by 255 - v."""

    p: float = _HALF

    change = staticmethod(pixels.invert)
