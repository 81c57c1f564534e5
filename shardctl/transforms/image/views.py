"""Resizing by the short or the long side, to an exact size, or into a size with a margin."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardctl.format.arrays import Floats
from shardctl.images.geometry import BLACK, Colour, Look, Pad, Size, Values, cover, fit
from shardctl.system.options import Whole, Word, setting
from shardctl.transforms.base import (
    ImageTransform,
    Range,
    Rng,
    Transform,
    ViewTransform,
    drawn,
    whole,
)
from shardctl.transforms.picture import Picture
from shardctl.transforms.settings import COLOUR, PROBABILITY, Sides, Span

_SIZE = setting(Sides(pair=True), help="WIDTHxHEIGHT, or one number for a square.")


class _ToSize(ImageTransform):
    """Every output has the size that is given."""

    size: Size

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size."""
        return self.size


class Resize(ViewTransform, step="resize"):
    """One number: a side becomes that long, the shape is kept. Two: exactly that size, the shape is
    not kept."""

    size: int | Size = setting(Sides(), help="The side in pixels, or WIDTHxHEIGHT.")
    side: str = setting(
        Word("short", "long"), "short", "Which side one number is meant for.", omit_default=True
    )

    def view(self, look: Look, rng: Rng) -> Look:
        """Scale."""
        return look.scaled(self.resized(look.size))

    def resized(self, size: Size) -> Size:
        """Return the size that an image of this size gets."""
        if not isinstance(self.size, int):
            return self.size
        width, height = size
        if (width <= height) == (self.side == "short"):
            return self.size, max(1, int(self.size * height / width))
        return max(1, int(self.size * width / height)), self.size

    def output_size(self, size: Size | None) -> Size | None:
        """Return the exact size, or None if it depends on the image's shape."""
        if size is not None:
            return self.resized(size)
        return None if isinstance(self.size, int) else self.size


def _centred(picture: Picture, size: Size, fill: Colour) -> None:
    """Put what is seen at the centre of a canvas."""
    if size != picture.size:
        width, height = picture.size
        picture.resample(Pad((size[0] - width) // 2, (size[1] - height) // 2, size, fill))


class Letterbox(_ToSize, step="letterbox"):
    """Resize an image, its shape kept, so that it just fits into a size, and fill what is left on
    both sides of it."""

    size: Size = _SIZE
    fill: Colour = setting(COLOUR, (114, 114, 114), "Colour of the margin.")

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Scale, and put onto the canvas."""
        picture.look = picture.look.scaled(fit(picture.size, self.size))
        _centred(picture, self.size, self.fill)


class Padding(ImageTransform, step="pad"):
    """Put an image onto a larger canvas: a margin on every side, or at its centre a canvas of some
    size."""

    margin: int = setting(Whole(0, 16384), 0, "Pixels on each side.")
    size: Size | None = setting(
        Sides(pair=True),
        None,
        "Least WIDTHxHEIGHT of the canvas; the image is at its centre.",
    )
    fill: Colour = setting(COLOUR, BLACK, "Colour of the margin.")

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Put it onto the canvas."""
        _centred(picture, self._canvas(picture.size), self.fill)

    def _canvas(self, size: Size) -> Size:
        least = self.size or (0, 0)
        width, height = (
            max(side + 2 * self.margin, low) for side, low in zip(size, least, strict=True)
        )
        return width, height

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size of the canvas, where that of the image is known."""
        return None if size is None else self._canvas(size)


def _covering(look: Look, size: Size) -> Look:
    """Return what is seen, enlarged where it is smaller than a crop, its shape kept, until it
    covers it."""
    covered = cover(look.size, size)
    return look if covered == look.size else look.scaled(covered)


def _middle(size: Size, part: Size) -> tuple[int, int]:
    """Return where the centre begins, as torchvision rounds it."""
    return round((size[0] - part[0]) / 2), round((size[1] - part[1]) / 2)


class Crop(_ToSize, ViewTransform, step="crop"):
    """Keep the centre. An image smaller than the crop is enlarged first, its shape kept, until it
    covers it."""

    size: Size = _SIZE

    def notices(self, before: Sequence[Transform]) -> tuple[str, ...]:
        """Say that it enlarges what a resize makes smaller."""
        last = before[-1] if before else None
        if not isinstance(last, Resize) or last.side == "long":
            return ()
        side = last.size if isinstance(last.size, int) else min(last.size)
        if side >= min(self.size):
            return ()
        return (f"crop enlarges each image again: resize makes its short side {side} pixels",)

    def view(self, look: Look, rng: Rng) -> Look:
        """Cut out the centre."""
        look = _covering(look, self.size)
        return look.cropped(*_middle(look.size, self.size), *self.size)


class RandomCrop(_ToSize, step="random_crop"):
    """Keep a part at a random place. An image smaller than the crop is enlarged first, as with
    `crop`.

    Source: torchvision's RandomCrop; the place is drawn evenly.
    """

    size: Size = _SIZE
    padding: int = setting(Whole(0, 16384), 0, "Pixels that are put around the image first.")
    fill: Colour = setting(COLOUR, BLACK, "Colour of what is put around it.")

    draws = True

    @property
    def lazy(self) -> bool:
        """Whether nothing is put around the image, which needs its pixels."""
        return self.padding == 0

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Draw a place."""
        if self.padding:
            width, height = picture.size
            canvas = (width + 2 * self.padding, height + 2 * self.padding)
            picture.resample(Pad(self.padding, self.padding, canvas, self.fill))
        look = _covering(picture.look, self.size)
        left, top = (
            whole(rng, 0, side - part) for side, part in zip(look.size, self.size, strict=True)
        )
        picture.look = look.cropped(left, top, *self.size)


@dataclass(frozen=True)
class Cuts:
    """What is seen of n images of one size that are only cut, and mirrored left to right.

    `left`, `top` and `mirrored` have a value for each image.
    """

    size: Size
    left: list[int]
    top: list[int]
    mirrored: list[bool]

    def of(self, pixels: Values, place: int) -> Values:
        """Return what is seen of an image, without a copy."""
        top, left = self.top[place], self.left[place]
        seen = pixels[top : top + self.size[1], left : left + self.size[0]]
        return seen[:, ::-1] if self.mirrored[place] else seen


def cuts(
    steps: Sequence[ImageTransform], size: Size, count: int, draw: Callable[[], Iterator[Floats]]
) -> Cuts | None:
    """Return what steps show of `count` images of one size, all at once; None if they do more than
    to cut, then mirror.

    `draw` gives the first random numbers of each image, (n,), one after the other.
    """
    crop = next((step for step in steps if isinstance(step, Crop | RandomCrop)), None)
    flip = next((step for step in steps if isinstance(step, HorizontalFlip)), None)
    wanted = size if crop is None else crop.size
    if list(steps) != [each for each in (crop, flip) if each is not None]:
        return None
    if wanted[0] > size[0] or wanted[1] > size[1] or not all(step.lazy for step in steps):
        return None
    drawn_numbers = draw() if any(step.random for step in steps) else iter(())
    left, top = ([part] * count for part in _middle(size, wanted))
    if isinstance(crop, RandomCrop):
        left, top = (
            (next(drawn_numbers) * (side - part + 1)).astype(np.int64).tolist()
            for side, part in zip(size, wanted, strict=True)
        )
    mirrored = [flip is not None and flip.p >= 1] * count
    if flip is not None and flip.random:
        mirrored = (next(drawn_numbers) < flip.p).tolist()
    return Cuts(wanted, left, top, mirrored)


class RandomResizedCrop(_ToSize, ViewTransform, step="random_resized_crop"):
    """A random part of the image (its share of the area and its shape drawn), resized to `size`.

    Source: the "Inception crop", as in torchvision's RandomResizedCrop: ten tries, then the centre.
    """

    size: Size = _SIZE
    scale: Range = setting(Span(0.0, 1.0, above=True), (0.08, 1.0), "Share of the area.")
    ratio: Range = setting(Span(0.0, 100.0, above=True), (3 / 4, 4 / 3), "Width by height.")

    draws = True

    def view(self, look: Look, rng: Rng) -> Look:
        """Draw a part of what is seen."""
        width, height = look.size
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(10):
            area = width * height * (self.scale[0] + rng.random() * (self.scale[1] - self.scale[0]))
            aspect = math.exp(low + rng.random() * (high - low))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                left, top = whole(rng, 0, width - w), whole(rng, 0, height - h)
                return look.cropped(left, top, w, h).scaled(self.size)
        # the largest central part whose shape is within `ratio`
        shape = min(max(width / height, self.ratio[0]), self.ratio[1])
        w, h = (
            (max(1, round(height * shape)), height)
            if shape < width / height
            else (width, max(1, round(width / shape)))
        )
        return look.cropped((width - w) // 2, (height - h) // 2, w, h).scaled(self.size)


class FiveCrop(_ToSize, step="five_crop"):
    """Five samples of each: the corners (top left, top right, bottom left, bottom right) and the
    centre."""

    size: Size = _SIZE

    samples = 5
    lazy = True

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Cut out the part that is meant."""
        look, part = picture.look, picture.part
        look = _covering(look if part < 5 else look.mirrored(), self.size)
        right, bottom = look.size[0] - self.size[0], look.size[1] - self.size[1]
        places = ((0, 0), (right, 0), (0, bottom), (right, bottom), _middle(look.size, self.size))
        picture.look = look.cropped(*places[part % 5], *self.size)


class TenCrop(FiveCrop, step="ten_crop"):
    """Ten samples of each: the five of `five_crop`, then the same of the mirrored image."""

    samples = 10
    mirrors = True


@dataclass(frozen=True)
class _Flip(ViewTransform):
    p: float = setting(PROBABILITY, 0.5, "Probability of mirroring.")

    @property
    def mirrors(self) -> bool:
        """Left and right change places, as seen from the thing itself."""
        return self.p > 0


class HorizontalFlip(_Flip, step="hflip"):
    """Mirror left to right, with a probability."""

    def view(self, look: Look, rng: Rng) -> Look:
        """Mirror, or leave it."""
        return look.mirrored() if drawn(self.p, rng) else look


class VerticalFlip(_Flip, step="vflip"):
    """Turn upside down as a mirror does, with a probability."""

    def view(self, look: Look, rng: Rng) -> Look:
        """Mirror, or leave it."""
        return look.upside_down() if drawn(self.p, rng) else look
