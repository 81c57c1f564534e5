"""The automatic policies: operations that are drawn from a table, and done one after
the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL.Image import Image

from shardctl.images import pixels
from shardctl.images.geometry import Colour, Matrix, Size, moving
from shardctl.images.pixels import mix
from shardctl.system.options import Flag, Number, Whole, Word, setting
from shardctl.transforms.base import ImageTransform, Rng, whole
from shardctl.transforms.image.warp import BILINEAR, FILL, NEAREST, rotation, sheared, warp_whole
from shardctl.transforms.picture import Picture
from shardctl.transforms.settings import SettingError

Operation = tuple[str, float]
"""A name and a magnitude: an offset of x per row (`shear_x`), pixels (`translate_x`), degrees
(`rotate`), what is added to the factor 1 (`brightness`, `contrast`, `saturation`, `sharpness`),
bits (`posterize`), a share of 255 (`solarize`), or 0."""


@dataclass(frozen=True)
class Strengths:
    """The magnitudes of an operation, from weakest to strongest.

    `signed`: half of the drawn ones are negative. `of`: they are shares of the image's width or
    height. `whole`: rounded.
    """

    weakest: float
    strongest: float
    signed: bool = False
    of: str = ""
    whole: bool = False

    def magnitude(self, index: int, bins: int, size: Size) -> float:
        """Return magnitude `index` of `bins` in an image of `size` (width, height)."""
        side = {"": 1, "width": size[0], "height": size[1]}[self.of]
        value = (self.weakest + (self.strongest - self.weakest) * index / max(bins - 1, 1)) * side
        # 15 pixels, and not 14.999…, of which 14 are left
        return float(round(value)) if self.whole else round(value, 9)


Space = Mapping[str, Strengths | None]
"""The operations of a policy. None: the operation has no magnitude."""


def _geometry(
    shear: float, translate: float, rotate: float, relative: bool
) -> dict[str, Strengths]:
    return {
        "shear_x": Strengths(0, shear, True),
        "shear_y": Strengths(0, shear, True),
        "translate_x": Strengths(0, translate, True, "width" if relative else ""),
        "translate_y": Strengths(0, translate, True, "height" if relative else ""),
        "rotate": Strengths(0, rotate, True),
    }


def _values(most_bits: int, fewest_bits: int) -> dict[str, Strengths | None]:
    return {
        "posterize": Strengths(most_bits, fewest_bits, whole=True),
        "solarize": Strengths(1, 0),
        "autocontrast": None,
        "equalize": None,
    }


_ADJUSTED = ("brightness", "saturation", "contrast", "sharpness")
_BY_90 = dict.fromkeys(_ADJUSTED, Strengths(0, 0.9, True))
_LIKE_AUTO: Space = {**_geometry(0.3, 150 / 331, 30, True), **_BY_90, **_values(8, 4)}

RAND_AUGMENT: Space = {"identity": None, **_LIKE_AUTO}
TRIVIAL_AUGMENT: Space = {
    "identity": None,
    **_geometry(0.99, 32, 135, False),
    **dict.fromkeys(_ADJUSTED, Strengths(0, 0.99, True)),
    **_values(8, 2),
}
AUTO_AUGMENT: Space = {**_LIKE_AUTO, "invert": None}
AUG_MIX_PART: Space = {**_geometry(0.3, 1 / 3, 30, True), **_values(4, 0)}
AUG_MIX: Space = {**AUG_MIX_PART, **_BY_90}

AUTO_AUGMENT_BINS = 10
AUG_MIX_BINS = 10

Choice = tuple[str, float, int | None]
"""An operation of AutoAugment, its probability, and the index of its magnitude."""

_PAIRS = {
    "imagenet": """
posterize:0.4:8+rotate:0.6:9
solarize:0.6:5+autocontrast:0.6
equalize:0.8+equalize:0.6
posterize:0.6:7+posterize:0.6:6
equalize:0.4+solarize:0.2:4
equalize:0.4+rotate:0.8:8
solarize:0.6:3+equalize:0.6
posterize:0.8:5+equalize:1
rotate:0.2:3+solarize:0.6:8
equalize:0.6+posterize:0.4:6
rotate:0.8:8+saturation:0.4:0
rotate:0.4:9+equalize:0.6
equalize:0+equalize:0.8
invert:0.6+equalize:1
saturation:0.6:4+contrast:1:8
rotate:0.8:8+saturation:1:2
saturation:0.8:8+solarize:0.8:7
sharpness:0.4:7+invert:0.6
shear_x:0.6:5+equalize:1
saturation:0.4:0+equalize:0.6
equalize:0.4+solarize:0.2:4
solarize:0.6:5+autocontrast:0.6
invert:0.6+equalize:1
saturation:0.6:4+contrast:1:8
equalize:0.8+equalize:0.6
""",
    "cifar10": """
invert:0.1+contrast:0.2:6
rotate:0.7:2+translate_x:0.3:9
sharpness:0.8:1+sharpness:0.9:3
shear_y:0.5:8+translate_y:0.7:9
autocontrast:0.5+equalize:0.9
shear_y:0.2:7+posterize:0.3:7
saturation:0.4:3+brightness:0.6:7
sharpness:0.3:9+brightness:0.7:9
equalize:0.6+equalize:0.5
contrast:0.6:7+sharpness:0.6:5
saturation:0.7:7+translate_x:0.5:8
equalize:0.3+autocontrast:0.4
translate_y:0.4:3+sharpness:0.2:6
brightness:0.9:6+saturation:0.2:8
solarize:0.5:2+invert:0
equalize:0.2+autocontrast:0.6
equalize:0.2+equalize:0.6
saturation:0.9:9+equalize:0.6
autocontrast:0.8+solarize:0.2:8
brightness:0.1:3+saturation:0.7:0
solarize:0.4:5+autocontrast:0.9
translate_y:0.9:9+translate_y:0.7:9
autocontrast:0.9+solarize:0.8:3
equalize:0.8+invert:0.1
translate_y:0.7:9+autocontrast:0.9
""",
    "svhn": """
shear_x:0.9:4+invert:0.2
shear_y:0.9:8+invert:0.7
equalize:0.6+solarize:0.6:6
invert:0.9+equalize:0.6
equalize:0.6+rotate:0.9:3
shear_x:0.9:4+autocontrast:0.8
shear_y:0.9:8+invert:0.4
shear_y:0.9:5+solarize:0.2:6
invert:0.9+autocontrast:0.8
equalize:0.6+rotate:0.9:3
shear_x:0.9:4+solarize:0.3:3
shear_y:0.8:8+invert:0.7
equalize:0.9+translate_y:0.6:6
invert:0.9+equalize:0.6
contrast:0.3:3+rotate:0.8:4
invert:0.8+translate_y:0:2
shear_y:0.7:6+solarize:0.4:8
invert:0.6+rotate:0.8:4
shear_y:0.3:7+translate_x:0.9:3
shear_x:0.1:6+invert:0.6
solarize:0.7:2+translate_y:0.6:7
shear_y:0.8:4+invert:0.8
shear_x:0.7:9+translate_y:0.8:3
shear_y:0.8:5+autocontrast:0.7
shear_x:0.7:2+invert:0.1
""",
}


POLICIES: Mapping[str, Sequence[Sequence[Choice]]] = {
    dataset: [
        tuple(
            (name, float(probability), int(index[0]) if index else None)
            for name, probability, *index in (each.split(":") for each in pair.split("+"))
        )
        for pair in text.split()
    ]
    for dataset, text in _PAIRS.items()
}
"""The pairs of operations of AutoAugment, one of which is drawn, by the dataset that they were
found on."""


def _draw(
    rng: np.random.Generator, space: Space, size: Size, bins: int, low: int, high: int
) -> Operation:
    """Draw an operation of a space, the index of its magnitude from `low` to `high`, and its
    sign."""
    names = tuple(space)
    name = names[whole(rng, 0, len(names) - 1)]
    return name, _signed(rng, space[name], size, bins, whole(rng, low, high))


def _signed(
    rng: np.random.Generator, strengths: Strengths | None, size: Size, bins: int, index: int
) -> float:
    if strengths is None:
        return 0.0
    magnitude = strengths.magnitude(index, bins, size)
    return -magnitude if strengths.signed and rng.random() < 0.5 else magnitude


_BINS = setting(Whole(2, 1000), 31, "Into how many steps the strengths are divided.")
_MAPS: dict[str, Callable[[Size, float], Matrix]] = {
    "shear_x": lambda size, slope: sheared(slope, 0.0),
    "shear_y": lambda size, slope: sheared(0.0, slope),
    "translate_x": lambda size, shift: moving(-int(shift), 0.0),
    "translate_y": lambda size, shift: moving(0.0, -int(shift)),
    "rotate": lambda size, angle: rotation(size, angle, False)[0],
}
"""The operations that move pixels: the map from the output to the image."""

_VALUES: dict[str, Callable[[Image, float], Image]] = {
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

    draws = True

    @abstractmethod
    def drawn(self, size: Size, rng: Rng) -> list[Operation]:
        """Draw the operations for an image of this size."""

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Draw the operations, and do them."""
        do(self.drawn(picture.size, rng), picture, self.interpolation, self.fill)


class RandAugment(_Policy, step="rand_augment"):
    """RandAugment: some operations of fourteen, drawn with replacement, all of one strength.

    Source: Cubuk et al. 2019, https://arxiv.org/abs/1909.13719, as in torchvision.
    """

    num_ops: int = setting(Whole(0, 100), 2, "How many operations are done.")
    magnitude: int = setting(
        Whole(0, 999), 9, "Their strength, from 0 to one below the number of bins."
    )
    num_magnitude_bins: int = _BINS
    interpolation: str = NEAREST
    fill: Colour = FILL

    def __post_init__(self) -> None:
        if self.magnitude >= self.num_magnitude_bins:
            most = self.num_magnitude_bins - 1
            raise SettingError(
                f"magnitude must be 0 to {most}; it is {self.magnitude}", "magnitude"
            )

    def drawn(self, size: Size, rng: Rng) -> list[Operation]:
        """Draw the operations."""
        index, bins = self.magnitude, self.num_magnitude_bins
        return [_draw(rng, RAND_AUGMENT, size, bins, index, index) for _ in range(self.num_ops)]


class TrivialAugment(_Policy, step="trivial_augment"):
    """TrivialAugment (wide): one operation of fourteen, of any strength.

    Source: Müller and Hutter 2021, https://arxiv.org/abs/2103.10158, as torchvision's
    TrivialAugmentWide.
    """

    num_magnitude_bins: int = _BINS
    interpolation: str = NEAREST
    fill: Colour = FILL

    def drawn(self, size: Size, rng: Rng) -> list[Operation]:
        """Draw the operation, and its magnitude."""
        bins = self.num_magnitude_bins
        return [_draw(rng, TRIVIAL_AUGMENT, size, bins, 0, bins - 1)]


class AutoAugment(_Policy, step="auto_augment"):
    """AutoAugment: one of 25 pairs of operations that were found by search on a dataset.

    Source: Cubuk et al. 2018, https://arxiv.org/abs/1805.09501, as in torchvision.
    """

    policy: str = setting(Word(*POLICIES), "imagenet", "The dataset that the pairs were found on.")
    interpolation: str = NEAREST
    fill: Colour = FILL

    def drawn(self, size: Size, rng: Rng) -> list[Operation]:
        """Draw a pair, and which of the two are made."""
        pairs = POLICIES[self.policy]
        return [
            (name, _signed(rng, AUTO_AUGMENT[name], size, AUTO_AUGMENT_BINS, index or 0))
            for name, probability, index in pairs[whole(rng, 0, len(pairs) - 1)]
            if rng.random() < probability
        ]


class AugMix(ImageTransform, step="aug_mix"):
    """AugMix: the weighted sum of the image and of several chains of operations. It cannot move
    annotations.

    Source: Hendrycks et al. 2019, https://arxiv.org/abs/1912.02781, as in torchvision, which works
    on tensors: single values may differ. The parts of a sum lie in different places, so that
    nothing marked in the image can follow.
    """

    severity: int = setting(Whole(1, 10), 3, "Strength of the operations: each is drawn below it.")
    mixture_width: int = setting(Whole(1, 100), 3, "How many chains are mixed.")
    chain_depth: int = setting(
        Whole(-1, 100), -1, "How many operations a chain has; -1 and 0: 1 to 3, drawn."
    )
    alpha: float = setting(Number(0.0, 1000.0, above=True), 1.0, "How even the weights are.")
    all_ops: bool = setting(
        Flag(), True, "Also with brightness, contrast, saturation and sharpness."
    )
    interpolation: str = BILINEAR
    fill: Colour = FILL

    draws = True
    moves = frozenset[str]()

    def drawn(self, size: Size, rng: Rng) -> tuple[float, list[tuple[float, list[Operation]]]]:
        """Draw the weight of the image, and chains of operations, each with its own.

        The weights are drawn from two Dirichlet distributions, both with parameters `alpha`.
        """
        space = AUG_MIX if self.all_ops else AUG_MIX_PART
        original, augmented = rng.dirichlet([self.alpha] * 2)
        chains, last = [], self.severity - 1
        for weight in rng.dirichlet([self.alpha] * self.mixture_width):
            length = self.chain_depth if self.chain_depth > 0 else whole(rng, 1, 3)
            chain = [_draw(rng, space, size, AUG_MIX_BINS, 0, last) for _ in range(length)]
            chains.append((float(weight * augmented), chain))
        return float(original), chains

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Draw the chains and their weights, and mix."""
        weight, chains = self.drawn(picture.size, rng)
        images = [picture.image]
        for _, operations in chains:
            chain = Picture.of(images[0])
            do(operations, chain, self.interpolation, self.fill)
            images.append(chain.image)
        picture.image = mix(images, [weight, *(weight for weight, _ in chains)])
