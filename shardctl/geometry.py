"""Where the pixels of an output image come from. Transforms only compose views; the pixels are resampled once."""

from __future__ import annotations

from dataclasses import dataclass

Size = tuple[int, int]
"""(width, height) in pixels, as Pillow orders them."""


@dataclass(frozen=True)
class View:
    """A rectangle of a source image, resampled to `size` and mirrored where `flip` says so.

    `box` is (left, top, right, bottom) in pixels of the upright source image, fractions allowed.
    """

    box: tuple[float, float, float, float]
    size: Size
    flip: bool = False

    @classmethod
    def whole(cls, size: Size) -> View:
        """Return the view that changes nothing of an image of this size."""
        return cls((0.0, 0.0, float(size[0]), float(size[1])), size)

    def scaled(self, size: Size) -> View:
        """Return the same rectangle resampled to another size."""
        return View(self.box, size, self.flip)

    def cropped(self, left: float, top: float, width: int, height: int) -> View:
        """Cut a rectangle out of the output, given in output pixels."""
        x0, y0, x1, y1 = self.box
        dx, dy = (x1 - x0) / self.size[0], (y1 - y0) / self.size[1]
        if self.flip:
            left = self.size[0] - left - width
        box = (x0 + left * dx, y0 + top * dy, x0 + (left + width) * dx, y0 + (top + height) * dy)
        inside = (max(box[0], x0), max(box[1], y0), min(box[2], x1), min(box[3], y1))
        return View(inside, (width, height), self.flip)

    def mirrored(self) -> View:
        """Return the view flipped left to right."""
        return View(self.box, self.size, not self.flip)


def cover(size: Size, target: Size) -> Size:
    """Return `size` enlarged, its shape kept, so that it is no smaller than `target` on either side."""
    scale = max(target[0] / size[0], target[1] / size[1])
    return size if scale <= 1 else (max(target[0], round(size[0] * scale)), max(target[1], round(size[1] * scale)))
