"""Turning, shearing and bending an image by a matrix. Formulas and settings are those of
torchvision's v2.

Steps take the nearest pixels by default where torchvision's do; with `bilinear`, the resampling is
one with the crops and resizes around it, and images that become smaller are reduced with care
(images/codecs/resampling.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shardctl.images.codecs.resampling import smoothed
from shardctl.images.geometry import (
    BLACK,
    Colour,
    Displacement,
    Matrix,
    Size,
    View,
    Warp,
    apply,
    bounds,
    corners,
    moving,
)
from shardctl.system.options import Flag, Number, Word, setting
from shardctl.transforms.base import ImageTransform, Range, Rng, between, drawn
from shardctl.transforms.picture import Picture
from shardctl.transforms.settings import COLOUR, PROBABILITY, NumberList, Span

NEAREST, BILINEAR = (
    setting(Word("nearest", "bilinear"), how, "How pixels are taken: nearest, or bilinear.")
    for how in ("nearest", "bilinear")
)
FILL = setting(COLOUR, BLACK, "Colour of what lies outside of the image.")
_EXPAND = setting(Flag(), False, "Make the output large enough for all of the image.")
_SHEAR = Span(-89.0, 89.0, alone="around")
_TURN = setting(Span(-360.0, 360.0, alone="around"), help="The angles; n alone is -n to n.")


def rotation(size: Size, angle: float, expand: bool) -> tuple[Matrix, Size]:
    """Return the map from the output to an image turned by `angle` degrees, counter-clockwise, and
    the size of the output.

    As Pillow's `rotate`: `expand` makes the output large enough to hold all of the image.
    """
    width, height = size
    radians = -math.radians(angle % 360.0)
    cos, sin = round(math.cos(radians), 15), round(math.sin(radians), 15)
    turn = np.array([[cos, sin, 0.0], [-sin, cos, 0.0], [0.0, 0.0, 1.0]])
    inverse = moving(width / 2, height / 2) @ turn @ moving(-width / 2, -height / 2)
    if not expand:
        return inverse, size
    if angle % 90.0 == 0:  # whole pixels
        wide, high = size if angle % 180.0 == 0 else (height, width)
    else:
        left, top, right, bottom = bounds(apply(inverse, corners((0, 0, width, height))))
        wide, high = math.ceil(right) - math.floor(left), math.ceil(bottom) - math.floor(top)
    return inverse @ moving(-(wide - width) / 2, -(high - height) / 2), (wide, high)


def affine(
    angle: float,
    translate: Sequence[float],
    scale: float,
    shear: Sequence[float],
    centre: tuple[float, float],
) -> Matrix:
    """Return the map from the output to an image that is sheared, scaled, turned clockwise and
    moved, in this order.

    `angle` and `shear` are in degrees, `translate` in pixels. Source: torchvision's
    `_get_inverse_affine_matrix`.
    """
    turn, (shear_x, shear_y) = math.radians(angle), (math.radians(part) for part in shear)
    a = math.cos(turn - shear_y) / math.cos(shear_y)
    b = -math.cos(turn - shear_y) * math.tan(shear_x) / math.cos(shear_y) - math.sin(turn)
    c = math.sin(turn - shear_y) / math.cos(shear_y)
    d = -math.sin(turn - shear_y) * math.tan(shear_x) / math.cos(shear_y) + math.cos(turn)
    linear = np.array([[d / scale, -b / scale, 0.0], [-c / scale, a / scale, 0.0], [0.0, 0.0, 1.0]])
    inverse: Matrix = (
        moving(*centre) @ linear @ moving(-centre[0] - translate[0], -centre[1] - translate[1])
    )
    return inverse


def sheared(x: float, y: float) -> Matrix:
    """Return the map from the output to an image that is sheared about its top left corner by so
    many pixels per pixel."""
    degrees = math.degrees(math.atan(x)), math.degrees(math.atan(y))
    return affine(0.0, (0.0, 0.0), 1.0, degrees, (0.0, 0.0))


def perspective(start: Matrix, end: Matrix) -> Matrix:
    """Return the map from the output to an image of which the points `start` (4, 2) are to be seen
    at `end` (4, 2)."""
    rows = []
    for (x, y), (u, v) in zip(end, start, strict=True):
        rows.append([x, y, 1, 0, 0, 0, -u * x, -u * y])
        rows.append([0, 0, 0, x, y, 1, -v * x, -v * y])
    solved = np.linalg.solve(np.array(rows, np.float64), start.reshape(-1))
    inverse: Matrix = np.array([*solved, 1.0], np.float64).reshape(3, 3)
    return inverse


def warp_whole(
    picture: Picture, inverse: Matrix, fill: Colour, interpolation: str, size: Size | None = None
) -> None:
    """Warp all of what is seen of a picture by the map from the output to it; `size` is that of the
    output if it changes."""
    seen, nearest = View.whole(picture.size), interpolation == "nearest"
    picture.warp(Warp.of(seen, inverse, size or picture.size, fill, nearest))


class Rotate(ImageTransform, step="rotate"):
    """Turn by an angle, counter-clockwise, about the centre."""

    angle: float = setting(Number(-360.0, 360.0), help="Degrees, counter-clockwise.")
    expand: bool = _EXPAND
    interpolation: str = NEAREST
    fill: Colour = FILL

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Turn."""
        inverse, size = rotation(picture.size, self.angle, self.expand)
        warp_whole(picture, inverse, self.fill, self.interpolation, size)

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size, which stays unless the output is made larger."""
        return None if size is None else rotation(size, self.angle, self.expand)[1]


class RandomRotation(ImageTransform, step="random_rotation"):
    """Turn by a random angle, counter-clockwise, about the centre."""

    degrees: Range = _TURN
    expand: bool = _EXPAND
    interpolation: str = NEAREST
    fill: Colour = FILL

    draws = True

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Draw an angle, and turn."""
        inverse, size = rotation(picture.size, between(self.degrees, rng), self.expand)
        warp_whole(picture, inverse, self.fill, self.interpolation, size)

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size, which stays unless the output is made larger."""
        return None if self.expand else size


class Affine(ImageTransform, step="affine"):
    """Shear, scale, turn clockwise about the centre, and move."""

    angle: float = setting(Number(-360.0, 360.0), 0.0, "Degrees, clockwise.")
    translate: tuple[float, ...] = setting(
        NumberList(2), (0.0, 0.0), "Pixels to the right and down."
    )
    scale: float = setting(Number(0.0, above=True), 1.0, "How much larger things become.")
    shear: tuple[float, ...] = setting(
        NumberList(2, -89.0, 89.0), (0.0, 0.0), "Degrees along x and along y."
    )
    interpolation: str = NEAREST
    fill: Colour = FILL

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Warp."""
        width, height = picture.size
        centre = width * 0.5, height * 0.5
        inverse = affine(self.angle, self.translate, self.scale, self.shear, centre)
        warp_whole(picture, inverse, self.fill, self.interpolation)


class RandomAffine(ImageTransform, step="random_affine"):
    """Shear, scale, turn and move by random amounts, about the centre."""

    degrees: Range = _TURN
    translate: tuple[float, ...] = setting(
        NumberList(2, 0.0, 1.0), (0.0, 0.0), "Most that it moves, by the width and the height."
    )
    scale: Range = setting(Span(0.0, above=True), (1.0, 1.0), "How much larger things become.")
    shear: Range = setting(_SHEAR, (0.0, 0.0), "Degrees along x; n alone is -n to n.")
    shear_y: Range = setting(_SHEAR, (0.0, 0.0), "Degrees along y.")
    interpolation: str = NEAREST
    fill: Colour = FILL

    draws = True

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Draw the amounts, and warp."""
        width, height = picture.size
        angle = between(self.degrees, rng)
        most = self.translate[0] * width, self.translate[1] * height
        translate = [round(between((-each, each), rng)) for each in most]
        scale = between(self.scale, rng)
        shear = between(self.shear, rng), between(self.shear_y, rng)
        inverse = affine(angle, translate, scale, shear, (width * 0.5, height * 0.5))
        warp_whole(picture, inverse, self.fill, self.interpolation)


class Perspective(ImageTransform, step="perspective"):
    """Show the image so that its corners lie at four given points."""

    corners: tuple[float, ...] = setting(
        NumberList(8, -4.0, 5.0),
        help="Where the corners go, from the top left clockwise: x and y as shares of the size.",
    )
    interpolation: str = BILINEAR
    fill: Colour = FILL

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Warp."""
        start = corners((0, 0, *picture.size))
        end = np.array(self.corners, np.float64).reshape(4, 2) * picture.size
        warp_whole(picture, perspective(start, end), self.fill, self.interpolation)


class RandomPerspective(ImageTransform, step="random_perspective"):
    """Move every corner inwards by a random amount, with a probability."""

    distortion_scale: float = setting(
        PROBABILITY, 0.5, "Most that a corner moves, by half of the side."
    )
    p: float = setting(PROBABILITY, 0.5, "Probability of doing it.")
    interpolation: str = BILINEAR
    fill: Colour = FILL

    draws = True

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Draw the corners, and warp."""
        if not drawn(self.p, rng):
            return
        most = [int(self.distortion_scale * (side // 2)) + 1 for side in picture.size]
        # Pixels, and not their corners, as torchvision counts them: 0 to side - 1.
        start = corners((0, 0, picture.size[0] - 1, picture.size[1] - 1))
        inwards = np.array([[rng.integers(each) for each in most] for _ in range(4)], np.float64)
        end = start + inwards * [[1, 1], [-1, 1], [-1, -1], [1, -1]]
        warp_whole(picture, perspective(start, end), self.fill, self.interpolation)


class Shear(ImageTransform, step="shear"):
    """Shear along x and y about the top left corner, as the automatic policies do."""

    x: float = setting(Number(-8.0, 8.0), 0.0, "Pixels to the right per pixel down.")
    y: float = setting(Number(-8.0, 8.0), 0.0, "Pixels down per pixel to the right.")
    interpolation: str = NEAREST
    fill: Colour = FILL

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Shear."""
        warp_whole(picture, sheared(self.x, self.y), self.fill, self.interpolation)


class Elastic(ImageTransform, step="elastic"):
    """Move every pixel by a smooth random field. It cannot move boxes, polygons and keypoints.

    Source: torchvision's ElasticTransform, on a square image: even numbers from -1 to 1, blurred,
    times alpha / 2 pixels.
    """

    alpha: float = setting(Number(0.0), 50.0, "How far pixels move.")
    sigma: float = setting(
        Number(0.0, 1000.0, above=True),
        5.0,
        "How smooth the field is: sigma of its blur, in pixels.",
    )
    interpolation: str = BILINEAR
    fill: Colour = FILL

    draws = True

    moves = frozenset(("masks",))
    """Their numbers go where the pixels go."""

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Draw a field, and move the pixels."""
        width, height = picture.size
        x, y = (
            smoothed(rng.random((height, width), np.float32) * 2 - 1, self.sigma) for _ in range(2)
        )
        for each in (x, y):
            each *= np.float32(self.alpha / 2)
        picture.resample(Displacement(x, y, self.fill, self.interpolation == "nearest"))
