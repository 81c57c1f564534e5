"""The steps of a recipe at work on the images of one batch, and on what is marked in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image

from shardctl.format.arrays import Array, Floats
from shardctl.format.roles import Mask
from shardctl.images.codecs.image import Pixels
from shardctl.images.codecs.resampling import resampled_mask
from shardctl.images.geometry import Size, Stage
from shardctl.transforms.image.views import Cuts, cuts
from shardctl.transforms.image_steps import ImageSteps, SampleRngs
from shardctl.transforms.picture import Picture


class BatchSteps:
    """The steps of images for the samples of one batch in an epoch.

    Their random numbers are those of a conversion with this seed, for the variant of the epoch's
    number. They depend on the `keys` of the samples, and on the `variants` that the dataset has of
    them, if it has some. All images and masks of a sample go through the steps with the same random
    numbers.
    """

    def __init__(
        self,
        steps: ImageSteps,
        seed: int,
        epoch: int,
        keys: Sequence[str],
        variants: Sequence[int | None] | None,
    ) -> None:
        self.steps, self._epoch, self._keys = steps, epoch, keys
        stored = [0] * len(keys) if variants is None else variants
        self._variants = [variant_number(epoch, each) for each in stored]
        self._rngs = SampleRngs(seed)
        self._cuts: dict[Size, Cuts | None] = {}
        self._stages: dict[tuple[int, Size], Sequence[Stage]] = {}
        self._picture = Picture((1, 1))

    def cuts(self, size: Size) -> Cuts | None:
        """Return what is seen of all images if they have this size; None if the steps do more than
        to cut and to mirror them."""
        if size not in self._cuts:
            steps = (*self.steps.lazy, *self.steps.others)
            self._cuts[size] = cuts(steps, size, len(self._keys), self._first)
        return self._cuts[size]

    def _first(self) -> Iterator[Floats]:
        return iter(self._rngs.first(self._keys, self._variants))

    @property
    def step(self) -> str:
        """The name of the step that was begun last, for messages."""
        return self._picture.step

    def begin(self, place: int, size: Size) -> Picture:
        """Return the picture of a sample's image of this size (width, height), without its pixels.
        Call `finish` before you begin the next one."""
        rng = self._rngs.of(self._keys[place], self._variants[place])
        self._picture = self.steps.begin(size, self._epoch, rng)
        return self._picture

    def finish(self, place: int, size: Size, image: Image.Image) -> Pixels:
        """Return the pixels of the picture that was begun, made of the decoded image. Raises
        Rejection."""
        picture = self._picture
        self.steps.finish(picture, image, self._rngs.rng)
        self._stages[place, size] = picture.stages
        return picture.pixels

    def stages(self, place: int, size: Size) -> Sequence[Stage]:
        """Return where the pixels of a sample's image of this size go. Raises Rejection."""
        if (place, size) not in self._stages:
            picture = self.begin(place, size)
            if self.steps.others:  # no step asks what is in the image for where it goes
                self.finish(place, size, Image.new("RGB", size))
            self._stages[place, size] = picture.stages
        return self._stages[place, size]

    def mask(self, values: Array, place: int, role: Mask) -> Array:
        """Return the mask of a sample, (height, width), where the pixels of its image went. Raises
        Rejection."""
        fill, size = role.ignore or 0, (values.shape[1], values.shape[0])
        if (cut := self._cuts.get(size)) is not None:
            return cut.of(values, place)
        if fill > np.iinfo(values.dtype).max:  # a mask of 8 bits among those of 16
            values = values.astype(np.uint16)
        for stage in self.stages(place, size):
            values = resampled_mask(values, stage, fill)
        return values


def variant_number(epoch: int, stored: int | None) -> int:
    """Return the number that the random numbers of a sample depend on, beside its key. It is the
    epoch, where the dataset has one sample of each input."""
    return epoch + (int(stored or 0) << 32)
