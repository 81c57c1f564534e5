"""The steps of a recipe that change images, for all samples that are made of one of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import takewhile

from shardctl.images.codecs import image
from shardctl.images.codecs.image import Opened
from shardctl.transforms.base import Rng
from shardctl.transforms.picture import Picture
from shardctl.transforms.recipe import Recipe


class ImageSteps:
    """The steps of images of a recipe.

    Those that come first and only say what is to be seen are done before the image is decoded, for
    all of its samples: it is decoded once, no larger than they need.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe, self._parts, self._samples = recipe, recipe.parts, recipe.samples_per_record
        steps = recipe.image_transforms
        self._first = tuple(takewhile(lambda step: step.lazy, steps))
        self._rest = steps[len(self._first) :]
        self._random = any(step.random for step in steps)

    def pictures(self, opened: Opened, key: str, enter: Callable[[str], None]) -> Iterator[Picture]:
        """Yield the picture of each sample of an image, in the order of `variant`. Raises
        Rejection.

        `enter` is called with the name of a stage when it begins.
        """
        begun = deque[tuple[Picture, Rng]]()
        for number in range(self._samples):
            picture = Picture(opened.size, number % self._parts, self._recipe.max_pixels)
            rng = self._recipe.rng(key, number) if self._random else None
            for step in self._first:
                step.apply(picture, rng)
            begun.append((picture, rng))
        decoded = image.decoded(opened, [picture.look for picture, _ in begun])
        enter("transform")
        while begun:  # each is let go before the next one has pixels: there may be thousands
            picture, rng = begun.popleft()
            picture.begin(decoded)
            for step in self._rest:
                step.apply(picture, rng)
            yield picture
