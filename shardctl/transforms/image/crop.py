"""Parts of an image: the centre, a random part, or several."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from shardctl.images.geometry import BLACK, Colour, Look, Pad, Size, cover
from shardctl.transforms.base import ImageTransform, Rng, ViewTransform
from shardctl.transforms.picture import Picture
from shardctl.transforms.settings import Fill, Sides, Span, Whole, setting


def _covering(look: Look, size: Size) -> Look:
    """Return what is seen, enlarged where it is smaller than a crop, its shape kept, until it
    covers it."""
    covered = cover(look.size, size)
    return look if covered == look.size else look.scaled(covered)


def _middle(size: Size, part: Size) -> tuple[int, int]:
    """Return where the centre begins, as torchvision rounds it."""
    return round((size[0] - part[0]) / 2), round((size[1] - part[1]) / 2)


@dataclass(frozen=True)
class Crop(ViewTransform):
    """Keep the centre. An image smaller than the crop is enlarged first, its shape kept, until it
    covers it."""

    name: ClassVar[str] = "crop"
    size: Size = setting(Sides(pair=True), doc="WIDTHxHEIGHT, or one number for a square.")

    def view(self, look: Look, rng: Rng) -> Look:
        """Cut out the centre."""
        look = _covering(look, self.size)
        return look.cropped(*_middle(look.size, self.size), *self.size)

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size of the crop."""
        return self.size


@dataclass(frozen=True)
class RandomCrop(ImageTransform):
    """Keep a part at a random place. An image smaller than the crop is enlarged first, as with
    `crop`.

    Source: torchvision's RandomCrop; the place is drawn evenly.
    """

    name: ClassVar[str] = "random_crop"
    size: Size = setting(Sides(pair=True), doc="WIDTHxHEIGHT, or one number for a square.")
    padding: int = setting(Whole(0, 16384), 0, "Pixels that are put around the image first.")
    fill: Colour = setting(Fill(), BLACK, "Colour of what is put around it.")

    @property
    def random(self) -> bool:
        """It is drawn."""
        return True

    @property
    def lazy(self) -> bool:
        """Whether nothing is put around the image, which needs its pixels."""
        return self.padding == 0

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Draw a place."""
        assert rng is not None, "a random step is handed a generator"
        if self.padding:
            width, height = picture.size
            canvas = (width + 2 * self.padding, height + 2 * self.padding)
            picture.pad(Pad(self.padding, self.padding, canvas, self.fill))
        look = _covering(picture.look, self.size)
        left, top = (
            int(rng.random() * (whole - part + 1))
            for whole, part in zip(look.size, self.size, strict=True)
        )
        picture.look = look.cropped(left, top, *self.size)

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size of the crop."""
        return self.size


@dataclass(frozen=True)
class RandomResizedCrop(ViewTransform):
    """A random part of the image (its share of the area and its shape drawn), resized to `size`.

    Source: the "Inception crop", as in torchvision's RandomResizedCrop: ten tries, then the centre.
    """

    name: ClassVar[str] = "random_resized_crop"
    size: Size = setting(Sides(pair=True), doc="WIDTHxHEIGHT, or one number for a square.")
    scale: tuple[float, float] = setting(
        Span(0.0, 1.0, above=True), (0.08, 1.0), "Share of the area."
    )
    ratio: tuple[float, float] = setting(
        Span(0.0, 100.0, above=True), (3 / 4, 4 / 3), "Width by height."
    )

    @property
    def random(self) -> bool:
        """It is drawn."""
        return True

    def view(self, look: Look, rng: Rng) -> Look:
        """Draw a part of what is seen."""
        assert rng is not None, "a random step is handed a generator"
        width, height = look.size
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(10):
            area = width * height * (self.scale[0] + rng.random() * (self.scale[1] - self.scale[0]))
            aspect = math.exp(low + rng.random() * (high - low))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                left, top = (
                    int(rng.random() * (width - w + 1)),
                    int(rng.random() * (height - h + 1)),
                )
                return look.cropped(left, top, w, h).scaled(self.size)
        return self._centre(look).scaled(self.size)

    def _centre(self, look: Look) -> Look:
        """Return the largest central part whose shape is within `ratio`."""
        width, height = look.size
        shape = min(max(width / height, self.ratio[0]), self.ratio[1])
        w, h = (
            (max(1, round(height * shape)), height)
            if shape < width / height
            else (width, max(1, round(width / shape)))
        )
        return look.cropped((width - w) // 2, (height - h) // 2, w, h)

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size that every crop is resized to."""
        return self.size


@dataclass(frozen=True)
class FiveCrop(ViewTransform):
    """Five samples of each: the corners (top left, top right, bottom left, bottom right) and the
    centre."""

    name: ClassVar[str] = "five_crop"
    size: Size = setting(Sides(pair=True), doc="WIDTHxHEIGHT, or one number for a square.")

    @property
    def samples(self) -> int:
        """Five."""
        return 5

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Cut out the part that is meant."""
        picture.look = self._cut(picture.look, picture.part)

    def view(self, look: Look, rng: Rng) -> Look:
        """Cut out the first part."""
        return self._cut(look, 0)

    def _cut(self, look: Look, part: int) -> Look:
        look = _covering(look, self.size)
        right, bottom = look.size[0] - self.size[0], look.size[1] - self.size[1]
        places = ((0, 0), (right, 0), (0, bottom), (right, bottom), _middle(look.size, self.size))
        return look.cropped(*places[part % 5], *self.size)

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size of the crops."""
        return self.size


@dataclass(frozen=True)
class TenCrop(FiveCrop):
    """Ten samples of each: the five of `five_crop`, then the same of the mirrored image."""

    name: ClassVar[str] = "ten_crop"

    @property
    def samples(self) -> int:
        """Ten."""
        return 10

    @property
    def mirrors(self) -> bool:
        """Half of the samples are mirrored."""
        return True

    def _cut(self, look: Look, part: int) -> Look:
        return super()._cut(look if part < 5 else look.mirrored(), part)
