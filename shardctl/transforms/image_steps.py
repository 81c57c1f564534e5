"""The steps of images, done to one image after another: in a conversion, and while a dataset is
read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile

import numpy as np
import xxhash
from PIL.Image import Image

from shardctl.errors import UsageError
from shardctl.format.arrays import Floats
from shardctl.format.roles import Mask, Objects, Role
from shardctl.images.defaults import MAX_PIXELS
from shardctl.images.geometry import Size, Values
from shardctl.system.text import printable
from shardctl.transforms.base import ImageTransform, Rng
from shardctl.transforms.picture import Picture


class ImageSteps:
    """The steps of images of a recipe.

    Those that come first and only say what is to be seen are done before an image is decoded: it is
    decoded no larger than they need. `timed` is called with the name of each step and the seconds
    that it took.
    """

    def __init__(
        self,
        steps: Sequence[ImageTransform],
        max_pixels: int = MAX_PIXELS,
        timed: Callable[[str, float], None] = lambda name, seconds: None,
    ) -> None:
        self.max_pixels, self._timed = max_pixels, timed
        self.lazy = tuple(takewhile(lambda step: step.lazy, steps))
        self.others = tuple(steps[len(self.lazy) :])
        self.random = any(step.random for step in steps)
        self.parts = math.prod(step.samples for step in steps)

    def begin(self, size: Size, variant: int, rng: Rng) -> Picture:
        """Return the picture of an image of this size (width, height), of which only is known what
        is to be seen of it: `finish` must follow."""
        picture = Picture(size, variant % self.parts, self.max_pixels)
        self._do(self.lazy, picture, rng)
        return picture

    def finish(self, picture: Picture, image: Image, rng: Rng) -> None:
        """Do the other steps to the image that was decoded. Raises Rejection."""
        picture.begin(image)
        self._do(self.others, picture, rng)

    def _do(self, steps: Sequence[ImageTransform], picture: Picture, rng: Rng) -> None:
        for step in steps:
            picture.step, began = step.name, time.perf_counter()
            step.apply(picture, rng)
            self._timed(step.name, time.perf_counter() - began)


def _name(seed: int, key: str, variant: int) -> bytes:
    return f"{seed}\0{variant}\0{key}".encode()


_LOW = 2**64 - 1


class SampleRngs:
    """The generators of samples, keyed by (seed, key, variant): the same in any process and any
    order. Each is of use only until the next one is asked for: to make one takes eight times as
    long."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._bits = np.random.Philox(key=np.zeros(2, np.uint64))
        self.rng = np.random.Generator(self._bits)
        self._begin = self._bits.state
        self._key = self._begin["state"]["key"]

    def of(self, key: str, variant: int) -> Rng:
        """Return the generator of one sample."""
        digest = xxhash.xxh3_128_intdigest(_name(self._seed, key, variant))
        self._key[0], self._key[1] = digest & _LOW, digest >> 64
        self._bits.state = self._begin
        return self.rng

    def first(self, keys: Sequence[str], variants: Sequence[int]) -> Floats:
        """Return the first numbers of `random()` of many samples' generators, (4, n) float64."""
        data = b"".join(
            xxhash.xxh3_128_digest(_name(self._seed, key, variant))
            for key, variant in zip(keys, variants, strict=True)
        )
        # xxhash writes the upper half first
        halves = np.frombuffer(data, ">u8").reshape(-1, 2).T[::-1].astype(np.uint64, order="C")
        numbers: Floats = (_philox(halves) >> np.uint64(11)) * 2.0**-53
        return numbers


def _philox(keys: Values) -> Values:
    """Return the first four numbers (4, n) uint64 of Philox 4x64 with 10 rounds for keys (2, n).

    Source: Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", 2011. The counter
    begins at 1, as numpy's.
    """
    even, odd = np.zeros_like(keys), np.zeros_like(keys)  # words 0 and 2, words 1 and 3
    even[0] = 1
    for _ in range(10):
        upper, lower = _products(even)
        even, odd = upper[::-1] ^ odd ^ keys, lower[::-1]
        keys = keys + _WEYL
    return np.stack([even[0], odd[0], even[1], odd[1]])


_FACTORS = np.array([[0xD2E7470EE14C6C93], [0xCA5A826395121157]], np.uint64)
_WEYL = np.array([[0x9E3779B97F4A7C15], [0xBB67AE8584CAA73B]], np.uint64)
_HALF, _MASK = np.uint64(32), np.uint64(0xFFFFFFFF)
_LOWER, _UPPER = _FACTORS & _MASK, _FACTORS >> _HALF


def _products(numbers: Values) -> tuple[Values, Values]:
    """Return the upper and the lower 64 bits of numbers (2, n) uint64 times their factors."""
    lower, upper = numbers & _MASK, numbers >> _HALF
    middle = upper * _LOWER + (lower * _LOWER >> _HALF)
    other = lower * _UPPER + (middle & _MASK)
    return upper * _UPPER + (middle >> _HALF) + (other >> _HALF), numbers * _FACTORS


Marked = Mapping[str, tuple[Role | None, Collection[str]]]
"""The role of each field, and of objects their members."""


def refuse_immovable(steps: Sequence[ImageTransform], fields: Marked) -> None:
    """Raise UsageError for a step that cannot move what is marked in the images."""
    for step in steps:
        for name, (role, members) in fields.items():
            of_field = _annotation_kinds(role, members)
            if fixed := sorted(of_field - step.moves):
                raise UsageError(
                    f"{_named_step(step, of_field)} cannot move {' and '.join(fixed)}, which the "
                    f"images have ({printable(name)}); leave out the step or these annotations"
                )
            if (
                step.mirrors
                and "keypoints" in of_field
                and isinstance(role, Objects)
                and role.flip is None
            ):
                raise UsageError(
                    f"{step.name} mirrors the images, and nothing says which keypoints change "
                    f"places ({printable(name)}). Leave out the step, or add flip_idx (YOLO) or "
                    "names such as left_eye and right_eye"
                )


def _named_step(step: ImageTransform, kinds: frozenset[str]) -> str:
    """Return the name of a step that cannot move something, with that of the step inside of it that
    is why."""
    inside = next((each for each in getattr(step, "steps", ()) if kinds - each.moves), None)
    return step.name if inside is None else f"{_named_step(inside, kinds)} in {step.name}"


def _annotation_kinds(role: Role | None, members: Collection[str]) -> frozenset[str]:
    """Return what has to be moved with the images: as `ImageTransform.moves` names it."""
    if isinstance(role, Mask):
        return frozenset(("masks",))
    named = {"bbox": "boxes", "segmentation": "polygons", "keypoints": "keypoints", "rle": "masks"}
    there = members if isinstance(role, Objects) else ()
    return frozenset(kind for member, kind in named.items() if member in there)
