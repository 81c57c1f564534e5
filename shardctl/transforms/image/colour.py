"""Colours: brightness, contrast, saturation, hue, grey, and the channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from PIL import Image

from shardctl.images import pixels
from shardctl.images.pixels import BACKENDS, adjust
from shardctl.system.options import Number, Whole, Word, setting
from shardctl.transforms.base import PixelTransform, Rng, between, drawn
from shardctl.transforms.image.draws import SometimesPixels, jitter, order, whole
from shardctl.transforms.settings import PROBABILITY, Span

_FACTOR = Number(0.0, 100.0)
_AROUND_1 = Span(0.0, 100.0, alone="around", centre=1.0)
_TURN = Span(-0.5, 0.5, alone="around")
_BACKEND = Word(*BACKENDS)
_BY = "What computes it: numpy, or pillow (the hue as torchvision does it to Pillow images)."
_CHANCE = "Probability of doing it."


class _Adjusted(SometimesPixels):
    """One adjustment by a factor."""

    factor: float
    backend: str

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Adjust."""
        return adjust(image, [(self.name.removeprefix("adjust_"), self.factor)], self.backend)


@dataclass(frozen=True)
class AdjustBrightness(_Adjusted):
    """Blend with black."""

    name: ClassVar[str] = "adjust_brightness"
    factor: float = setting(_FACTOR, help="0: black. 1: the image itself. 2: twice as bright.")
    p: float = setting(PROBABILITY, 1.0, _CHANCE)
    backend: str = setting(_BACKEND, "numpy", _BY)


@dataclass(frozen=True)
class AdjustContrast(_Adjusted):
    """Blend with the mean grey of the image."""

    name: ClassVar[str] = "adjust_contrast"
    factor: float = setting(_FACTOR, help="0: grey. 1: the image itself. 2: twice the contrast.")
    p: float = setting(PROBABILITY, 1.0, _CHANCE)
    backend: str = setting(_BACKEND, "numpy", _BY)


@dataclass(frozen=True)
class AdjustSaturation(_Adjusted):
    """Blend with the grey image."""

    name: ClassVar[str] = "adjust_saturation"
    factor: float = setting(_FACTOR, help="0: grey. 1: the image itself. 2: twice as colourful.")
    p: float = setting(PROBABILITY, 1.0, _CHANCE)
    backend: str = setting(_BACKEND, "numpy", _BY)


@dataclass(frozen=True)
class AdjustHue(_Adjusted):
    """Turn the hue."""

    name: ClassVar[str] = "adjust_hue"
    factor: float = setting(
        Number(-0.5, 0.5),
        help="Part of the circle of colours: 0.5 and -0.5 give the opposite colours.",
    )
    p: float = setting(PROBABILITY, 1.0, _CHANCE)
    backend: str = setting(_BACKEND, "numpy", _BY)


@dataclass(frozen=True)
class ColorJitter(PixelTransform):
    """Change brightness, contrast, saturation and hue by random factors, in random order."""

    name: ClassVar[str] = "color_jitter"
    brightness: tuple[float, float] = setting(
        _AROUND_1, (1.0, 1.0), "Factor; n alone is 1 - n, but no less than 0, to 1 + n."
    )
    contrast: tuple[float, float] = setting(_AROUND_1, (1.0, 1.0), "Factor, in the same way.")
    saturation: tuple[float, float] = setting(_AROUND_1, (1.0, 1.0), "Factor, in the same way.")
    hue: tuple[float, float] = setting(
        _TURN, (0.0, 0.0), "Part of the circle of colours; n alone is -n to n."
    )
    backend: str = setting(_BACKEND, "numpy", _BY)

    @property
    def random(self) -> bool:
        """It is drawn."""
        return True

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Draw the order and the factors, and adjust."""
        assert rng is not None, "a random step is handed a generator"
        spans = {
            "brightness": (self.brightness, 1.0),
            "contrast": (self.contrast, 1.0),
            "saturation": (self.saturation, 1.0),
            "hue": (self.hue, 0.0),
        }
        used = {name: span for name, (span, nothing) in spans.items() if span != (nothing, nothing)}
        return adjust(image, jitter(rng, used), self.backend)


@dataclass(frozen=True)
class PhotometricDistort(PixelTransform):
    """Change brightness, contrast, saturation, hue and the order of the channels, each with a
    probability, as SSD does."""

    name: ClassVar[str] = "photometric_distort"
    brightness: tuple[float, float] = setting(
        _AROUND_1, (0.875, 1.125), "Factor; n alone is 1 - n to 1 + n."
    )
    contrast: tuple[float, float] = setting(_AROUND_1, (0.5, 1.5), "Factor, in the same way.")
    saturation: tuple[float, float] = setting(_AROUND_1, (0.5, 1.5), "Factor, in the same way.")
    hue: tuple[float, float] = setting(
        _TURN, (-0.05, 0.05), "Part of the circle of colours; n alone is -n to n."
    )
    p: float = setting(PROBABILITY, 0.5, "Probability of each of the five changes.")
    backend: str = setting(_BACKEND, "numpy", _BY)

    @property
    def random(self) -> bool:
        """It is drawn."""
        return self.p > 0

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Draw what is changed, and change it: the contrast after the brightness or at last, each
        with probability 1/2."""
        if not self.p:
            return image
        assert rng is not None, "a random step is handed a generator"
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


@dataclass(frozen=True)
class Grayscale(SometimesPixels):
    """Make the image grey (ITU-R 601-2 luma), in three equal channels."""

    name: ClassVar[str] = "grayscale"
    p: float = setting(PROBABILITY, 1.0, _CHANCE)

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Make it grey."""
        return pixels.grayscale(image)


@dataclass(frozen=True)
class ChannelPermutation(SometimesPixels):
    """Put red, green and blue into a random order."""

    name: ClassVar[str] = "channel_permutation"
    p: float = setting(PROBABILITY, 1.0, _CHANCE)

    @property
    def random(self) -> bool:
        """It is drawn."""
        return self.p > 0

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Draw an order."""
        assert rng is not None, "a random step is handed a generator"
        return pixels.permute_channels(image, order(rng, 3))


@dataclass(frozen=True)
class ChannelDropout(SometimesPixels):
    """Set one of the three channels, drawn evenly, to one value."""

    name: ClassVar[str] = "channel_dropout"
    value: int = setting(Whole(0, 255), 0, "What the channel is set to.")
    p: float = setting(PROBABILITY, 0.5, _CHANCE)

    @property
    def random(self) -> bool:
        """It is drawn."""
        return self.p > 0

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Draw a channel."""
        assert rng is not None, "a random step is handed a generator"
        return pixels.drop_channels(image, (whole(rng, 0, 2),), self.value)


@dataclass(frozen=True)
class Autocontrast(SometimesPixels):
    """Stretch each channel so that its lowest value becomes 0 and its highest 255."""

    name: ClassVar[str] = "autocontrast"
    p: float = setting(PROBABILITY, 0.5, _CHANCE)

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Stretch."""
        return pixels.autocontrast(image)


@dataclass(frozen=True)
class Equalize(SometimesPixels):
    """Spread the values of each channel evenly over 0 to 255."""

    name: ClassVar[str] = "equalize"
    p: float = setting(PROBABILITY, 0.5, _CHANCE)

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Spread."""
        return pixels.equalize(image)


@dataclass(frozen=True)
class Posterize(SometimesPixels):
    """Keep the highest bits of each value."""

    name: ClassVar[str] = "posterize"
    bits: int = setting(Whole(0, 8), help="How many bits are kept.")
    p: float = setting(PROBABILITY, 0.5, _CHANCE)

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Cut the lower bits off."""
        return pixels.posterize(image, self.bits)


@dataclass(frozen=True)
class Solarize(SometimesPixels):
    """Invert the values at and above a threshold."""

    name: ClassVar[str] = "solarize"
    threshold: float = setting(Number(0.0, 256.0), help="The lowest value that is inverted.")
    p: float = setting(PROBABILITY, 0.5, _CHANCE)

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Invert the brighter values."""
        return pixels.solarize(image, self.threshold)


@dataclass(frozen=True)
class Invert(SometimesPixels):
    """Replace each value v by 255 - v."""

    name: ClassVar[str] = "invert"
    p: float = setting(PROBABILITY, 0.5, _CHANCE)

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Invert."""
        return pixels.invert(image)
