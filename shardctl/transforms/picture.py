"""The image of a sample on its way through the steps of a recipe."""

from __future__ import annotations

import math

from PIL.Image import Image

from shardctl.images.codecs.image import Pixels, TooManyPixels
from shardctl.images.codecs.resampling import pixels_of, resampled
from shardctl.images.defaults import MAX_PIXELS
from shardctl.images.geometry import Displacement, Look, Pad, Size, Stage, View, Warp

Shape = tuple[int, int, int]
"""Height, width and channels of an image."""


class Picture:
    """An image of which only is known what is to be seen of it, until its pixels are asked for.

    `look` is what is seen of the pixels that there are now; steps compose it. `stages` are the
    resamplings that were done already, in order: with them, annotations are moved alike. `part` is
    the number of this sample among those that steps make of one. A resampling makes `max_pixels` at
    most. `step` is the name of the step that is done, for messages.
    """

    def __init__(self, size: Size, part: int = 0, max_pixels: int = MAX_PIXELS) -> None:
        self.look: Look = View.whole(size)
        self.part = part
        self.max_pixels = max_pixels
        self.step = ""
        self._stages: list[Stage] = []
        self._base: Image | None = None
        self._base_size = size

    @classmethod
    def of(cls, image: Image) -> Picture:
        """Return the picture of an image that is there."""
        picture = cls(image.size)
        picture._settle(image)
        return picture

    def begin(self, image: Image) -> None:
        """Give the picture what its pixels are taken from: the decoded image, which may be smaller
        than its size."""
        self._base = image

    @property
    def size(self) -> Size:
        """(width, height) of what is seen."""
        return self.look.size

    @property
    def stages(self) -> list[Stage]:
        """All resamplings from the source on, those that are still to be done included. Raises
        Rejection."""
        return self._stages if self._is_settled() else self._stages_with(self.look)

    def _stages_with(self, stage: Stage) -> list[Stage]:
        """Return all resamplings and one more. Raises Rejection for one that makes too many
        pixels."""
        if math.prod(stage.size) > self.max_pixels:
            raise TooManyPixels(stage.size, self.max_pixels, "transform")
        return [*self._stages, stage]

    @property
    def image(self) -> Image:
        """The pixels of what is seen, RGB."""
        assert self._base is not None, "`begin` comes first"
        if not self._is_settled() or self._base.size != self._base_size:
            self._stages = self.stages
            made = resampled(self._base, self.look, self._base_size)
            self._settle(made)
            return made
        return self._base

    @image.setter
    def image(self, image: Image) -> None:
        assert image.size == self.size, "a step that changes pixels keeps the size"
        self._settle(image)

    @property
    def pixels(self) -> Pixels:
        """The pixels of what is seen, (height, width, 3) uint8, RGB. They must not be changed."""
        return pixels_of(self.image)

    def warp(self, warp: Warp) -> None:
        """Turn, shear or bend what is seen: `warp.view` must be a whole image of its size.

        It becomes one resampling with a view before it. A second warp is one of its own, as the
        first one has cut off what lies outside of its canvas; so is one that takes the nearest
        pixels, whose result must not be reduced with it.
        """
        if isinstance(self.look, View) and not warp.nearest:
            self.look = Warp(self.look, warp.inverse, warp.size, warp.fill)
            return
        _ = self.image
        self.look = warp
        if warp.nearest:
            _ = self.image

    def resample(self, stage: Pad | Displacement) -> None:
        """Put what is seen onto a larger canvas, or take every pixel from a place near by."""
        image = self.image
        self._stages = self._stages_with(stage)
        self._settle(resampled(image, stage))

    def _settle(self, image: Image) -> None:
        self._base, self._base_size = image, image.size
        self.look = View.whole(self._base_size)

    def _is_settled(self) -> bool:
        return isinstance(self.look, View) and self.look.is_whole(self._base_size)
