"""Resizing by the short or the long side, to an exact size, or into a size with a margin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardctl.images.geometry import BLACK, Colour, Look, Pad, Size, fit
from shardctl.transforms.base import ImageTransform, Rng, ViewTransform
from shardctl.transforms.picture import Picture
from shardctl.transforms.settings import Fill, Optional, Sides, Whole, Word, setting


@dataclass(frozen=True)
class Resize(ViewTransform):
    """One number: a side becomes that long, the shape is kept. Two: exactly that size, the shape is
    not kept."""

    name: ClassVar[str] = "resize"
    size: int | Size = setting(Sides(), doc="The side in pixels, or WIDTHxHEIGHT.")
    side: str = setting(
        Word(("short", "long")), "short", "Which side one number is meant for.", later=True
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


@dataclass(frozen=True)
class Letterbox(ImageTransform):
    """Resize an image, its shape kept, so that it just fits into a size, and fill what is left on
    both sides of it."""

    name: ClassVar[str] = "letterbox"
    size: Size = setting(Sides(pair=True), doc="WIDTHxHEIGHT, or one number for a square.")
    fill: Colour = setting(Fill(), (114, 114, 114), "Colour of the margin.")

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Scale, and put onto the canvas."""
        inner = fit(picture.size, self.size)
        picture.look = picture.look.scaled(inner)
        if inner != self.size:
            left, top = (self.size[0] - inner[0]) // 2, (self.size[1] - inner[1]) // 2
            picture.pad(Pad(left, top, self.size, self.fill))

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size of the canvas."""
        return self.size


@dataclass(frozen=True)
class Padding(ImageTransform):
    """Put an image onto a larger canvas: a margin on every side, or at its centre a canvas of some
    size."""

    name: ClassVar[str] = "pad"
    margin: int = setting(Whole(0, 16384), 0, "Pixels on each side.")
    size: Size | None = setting(
        Optional(Sides(pair=True)),
        None,
        "WIDTHxHEIGHT that the canvas has at least; the image is at its centre.",
    )
    fill: Colour = setting(Fill(), BLACK, "Colour of the margin.")

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Put it onto the canvas."""
        size = self._canvas(picture.size)
        if size != picture.size:
            left, top = (size[0] - picture.size[0]) // 2, (size[1] - picture.size[1]) // 2
            picture.pad(Pad(left, top, size, self.fill))

    def _canvas(self, size: Size) -> Size:
        width, height = size[0] + 2 * self.margin, size[1] + 2 * self.margin
        return (
            (width, height)
            if self.size is None
            else (max(width, self.size[0]), max(height, self.size[1]))
        )

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size of the canvas, where that of the image is known."""
        return None if size is None else self._canvas(size)
