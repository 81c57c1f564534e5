"""The automatic policies: operations that are drawn from a table (policies.py), and done one after
the other."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from PIL import Image

from shardctl.images import pixels
from shardctl.images.geometry import BLACK, Colour, Matrix, Size
from shardctl.images.pixels import mix
from shardctl.transforms.base import ImageTransform, Rng
from shardctl.transforms.image.policies import (
    POLICIES,
    Operation,
    draw_aug_mix,
    draw_auto_augment,
    draw_rand_augment,
    draw_trivial_augment,
)
from shardctl.transforms.image.warp import (
    HOW_TAKEN,
    INTERPOLATION,
    OUTSIDE,
    affine,
    rotation,
    warp_whole,
)
from shardctl.transforms.picture import Picture
from shardctl.transforms.settings import Fill, Flag, Number, SettingError, Whole, Word, setting

_BINS = Whole(2, 1000)
_CORNER, _STILL = (0.0, 0.0), (0.0, 0.0)


def _degrees(slope: float) -> float:
    return math.degrees(math.atan(slope))


_MAPS: dict[str, Callable[[Size, float], Matrix]] = {
    "shear_x": lambda size, slope: affine(0.0, _STILL, 1.0, (_degrees(slope), 0.0), _CORNER),
    "shear_y": lambda size, slope: affine(0.0, _STILL, 1.0, (0.0, _degrees(slope)), _CORNER),
    "translate_x": lambda size, shift: affine(0.0, (int(shift), 0.0), 1.0, (0.0, 0.0), _CORNER),
    "translate_y": lambda size, shift: affine(0.0, (0.0, int(shift)), 1.0, (0.0, 0.0), _CORNER),
    "rotate": lambda size, angle: rotation(size, angle, False)[0],
}
"""The operations that move pixels: the map from the output to the image."""

_VALUES: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "brightness": lambda image, more: pixels.brightness(image, 1 + more),
    "saturation": lambda image, more: pixels.saturation(image, 1 + more),
    "contrast": lambda image, more: pixels.contrast(image, 1 + more),
    "sharpness": lambda image, more: pixels.sharpness(image, 1 + more),
    "posterize": lambda image, bits: pixels.posterize(image, int(bits)),
    "solarize": lambda image, share: pixels.solarize(image, 255 * share),
    "autocontrast": lambda image, _: pixels.autocontrast(image),
    "equalize": lambda image, _: pixels.equalize(image),
    "invert": lambda image, _: pixels.invert(image),
}
"""The operations that change the values of pixels."""


def do(operations: Sequence[Operation], picture: Picture, interpolation: str, fill: Colour) -> None:
    """Do operations to a picture, one after the other."""
    for name, magnitude in operations:
        if name in _MAPS:
            warp_whole(picture, _MAPS[name](picture.size, magnitude), fill, interpolation)
        elif name in _VALUES:
            picture.image = _VALUES[name](picture.image, magnitude)


class _Policy(ImageTransform):
    """Operations that are drawn and done. Unlike torchvision's, they move boxes, polygons,
    keypoints and masks too."""

    interpolation: str
    fill: Colour

    @property
    def random(self) -> bool:
        """It is drawn."""
        return True

    @abstractmethod
    def drawn(self, size: Size, rng: Rng) -> list[Operation]:
        """Draw the operations for an image of this size."""

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Draw the operations, and do them."""
        do(self.drawn(picture.size, rng), picture, self.interpolation, self.fill)


@dataclass(frozen=True)
class RandAugment(_Policy):
    """RandAugment: some operations of fourteen, drawn with replacement, all of one strength.

    Source: Cubuk et al. 2019, https://arxiv.org/abs/1909.13719, as in torchvision.
    """

    name: ClassVar[str] = "rand_augment"
    num_ops: int = setting(Whole(0, 100), 2, "How many operations are done.")
    magnitude: int = setting(
        Whole(0, 999), 9, "Their strength, from 0 to one below the number of bins."
    )
    num_magnitude_bins: int = setting(_BINS, 31, "Into how many steps the strengths are divided.")
    interpolation: str = setting(INTERPOLATION, "nearest", HOW_TAKEN)
    fill: Colour = setting(Fill(), BLACK, OUTSIDE)

    def __post_init__(self) -> None:
        if self.magnitude >= self.num_magnitude_bins:
            most = self.num_magnitude_bins - 1
            raise SettingError(
                f"magnitude must be 0 to {most}; it is {self.magnitude}", "magnitude"
            )

    def drawn(self, size: Size, rng: Rng) -> list[Operation]:
        """Draw the operations."""
        assert rng is not None, "a random step is handed a generator"
        return draw_rand_augment(rng, size, self.num_ops, self.magnitude, self.num_magnitude_bins)


@dataclass(frozen=True)
class TrivialAugment(_Policy):
    """TrivialAugment (wide): one operation of fourteen, of any strength.

    Source: Müller and Hutter 2021, https://arxiv.org/abs/2103.10158, as torchvision's
    TrivialAugmentWide.
    """

    name: ClassVar[str] = "trivial_augment"
    num_magnitude_bins: int = setting(_BINS, 31, "Into how many steps the strengths are divided.")
    interpolation: str = setting(INTERPOLATION, "nearest", HOW_TAKEN)
    fill: Colour = setting(Fill(), BLACK, OUTSIDE)

    def drawn(self, size: Size, rng: Rng) -> list[Operation]:
        """Draw the operation."""
        assert rng is not None, "a random step is handed a generator"
        return draw_trivial_augment(rng, size, self.num_magnitude_bins)


@dataclass(frozen=True)
class AutoAugment(_Policy):
    """AutoAugment: one of 25 pairs of operations that were found by search on a dataset.

    Source: Cubuk et al. 2018, https://arxiv.org/abs/1805.09501, as in torchvision.
    """

    name: ClassVar[str] = "auto_augment"
    policy: str = setting(
        Word(tuple(POLICIES)), "imagenet", "The dataset that the pairs were found on."
    )
    interpolation: str = setting(INTERPOLATION, "nearest", HOW_TAKEN)
    fill: Colour = setting(Fill(), BLACK, OUTSIDE)

    def drawn(self, size: Size, rng: Rng) -> list[Operation]:
        """Draw a pair."""
        assert rng is not None, "a random step is handed a generator"
        return draw_auto_augment(rng, size, self.policy)


@dataclass(frozen=True)
class AugMix(ImageTransform):
    """AugMix: the weighted sum of the image and of several chains of operations. It cannot move
    annotations.

    Source: Hendrycks et al. 2019, https://arxiv.org/abs/1912.02781, as in torchvision, which works
    on tensors: single values may differ. The parts of a sum lie in different places, so that
    nothing marked in the image can follow.
    """

    name: ClassVar[str] = "aug_mix"
    severity: int = setting(Whole(1, 10), 3, "Strength of the operations: each is drawn below it.")
    mixture_width: int = setting(Whole(1, 100), 3, "How many chains are mixed.")
    chain_depth: int = setting(
        Whole(-1, 100), -1, "How many operations a chain has; -1 and 0: 1 to 3, drawn."
    )
    alpha: float = setting(Number(0.0, 1000.0, above=True), 1.0, "How even the weights are.")
    all_ops: bool = setting(
        Flag(), True, "Also with brightness, contrast, saturation and sharpness."
    )
    interpolation: str = setting(INTERPOLATION, "bilinear", HOW_TAKEN)
    fill: Colour = setting(Fill(), BLACK, OUTSIDE)

    @property
    def random(self) -> bool:
        """It is drawn."""
        return True

    @property
    def moves(self) -> frozenset[str]:
        """Nothing."""
        return frozenset()

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Draw the chains and their weights, and mix."""
        assert rng is not None, "a random step is handed a generator"
        depth = max(self.chain_depth, 0)
        drawn = draw_aug_mix(
            rng, picture.size, self.severity, self.mixture_width, depth, self.alpha, self.all_ops
        )
        images, weights = [picture.image], [drawn.weight]
        for weight, operations in drawn.chains:
            chain = Picture.of(images[0])
            do(operations, chain, self.interpolation, self.fill)
            images.append(chain.image)
            weights.append(weight)
        picture.image = mix(images, weights)
