"""Where the pixels of an output image come from.

Steps only compose views; the pixels are resampled once, when they are needed. All coordinates are
those of the corners of pixels: an image is [0, width] x [0, height], and the centre of its first
pixel is (0.5, 0.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shardctl.format.arrays import Array, Bools, Floats, Numbers

Size = tuple[int, int]
"""(width, height) in pixels, as Pillow orders them."""

Box = tuple[float, float, float, float]
"""(left, top, right, bottom)."""

Colour = tuple[int, int, int]
"""Red, green, blue, 0 to 255."""

Counts = Numbers
Values = Array
"""Arrays of any shape."""

Matrix = Floats
"""(3, 3) float64: maps the column (x, y, 1) to a multiple of (x', y', 1)."""

BLACK: Colour = (0, 0, 0)


def scaling(x: float, y: float) -> Matrix:
    """Return the matrix that multiplies coordinates."""
    return np.diag([x, y, 1.0])


def moving(x: float, y: float) -> Matrix:
    """Return the matrix that adds to coordinates."""
    return np.array([[1.0, 0.0, x], [0.0, 1.0, y], [0.0, 0.0, 1.0]])


def inverted(matrix: Matrix) -> Matrix:
    """Return the map back."""
    return np.linalg.inv(matrix).astype(np.float64, copy=False)


def apply(matrix: Matrix, points: npt.NDArray[np.floating[Any]]) -> Floats:
    """Map points (…, 2) by a matrix. Points that a perspective throws behind the eye become
    infinite."""
    mapped = points @ matrix[:2, :2].T + matrix[:2, 2]
    if matrix[2, 0] or matrix[2, 1] or matrix[2, 2] != 1.0:
        depth = points @ matrix[2, :2] + matrix[2, 2]
        with np.errstate(divide="ignore", invalid="ignore"):
            mapped = np.where(depth[..., None] > 0, mapped / depth[..., None], np.inf)
    result: Floats = mapped
    return result


def corners(boxes: Box | Floats) -> Floats:
    """Return the four corners of boxes (…, 4), in turn: (…, 4, 2)."""
    return np.asarray(boxes, np.float64)[..., [[0, 1], [2, 1], [2, 3], [0, 3]]]


def box_edges(boxes: Floats) -> Floats:
    """Return boxes (n, 4) of x, y, width and height as left, top, right and bottom."""
    return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)


@dataclass(frozen=True)
class View:
    """A rectangle of a source image, resampled to `size`, and mirrored left to right (`flip`) and
    top to bottom (`vflip`).

    `box` is (left, top, right, bottom) in pixels of the upright source image, fractions allowed.
    """

    box: Box
    size: Size
    flip: bool = False
    vflip: bool = False

    @classmethod
    def whole(cls, size: Size) -> View:
        """Return the view that changes nothing of an image of this size."""
        return cls((0.0, 0.0, float(size[0]), float(size[1])), size)

    def is_whole(self, size: Size) -> bool:
        """Return whether the view changes nothing of an image of this size."""
        whole = self.size == size and self.box == (0.0, 0.0, size[0], size[1])
        return whole and not self.flip and not self.vflip

    def scaled(self, size: Size) -> View:
        """Return the same rectangle resampled to another size."""
        return View(self.box, size, self.flip, self.vflip)

    def cropped(self, left: float, top: float, width: int, height: int) -> View:
        """Cut a rectangle out of the output, given in output pixels."""
        x0, y0, x1, y1 = self.box
        dx, dy = (x1 - x0) / self.size[0], (y1 - y0) / self.size[1]
        if self.flip:
            left = self.size[0] - left - width
        if self.vflip:
            top = self.size[1] - top - height
        box = (x0 + left * dx, y0 + top * dy, x0 + (left + width) * dx, y0 + (top + height) * dy)
        inside = (max(box[0], x0), max(box[1], y0), min(box[2], x1), min(box[3], y1))
        return View(inside, (width, height), self.flip, self.vflip)

    @property
    def is_cut(self) -> bool:
        """Whether whole pixels of the source are seen as they are, in their order or mirrored."""
        (left, top, right, bottom), (width, height) = self.box, self.size
        is_whole = left == int(left) and top == int(top)
        return is_whole and right - left == width and bottom - top == height

    def cut_out(self, pixels: Values) -> Values:
        """Return what a cut shows of pixels (height, width, …), without a copy."""
        left, top, right, bottom = map(int, self.box)
        down, across = -1 if self.vflip else 1, -1 if self.flip else 1
        return pixels[top:bottom, left:right][::down, ::across]

    def mirrored(self) -> View:
        """Return the view flipped left to right."""
        return View(self.box, self.size, not self.flip, self.vflip)

    def upside_down(self) -> View:
        """Return the view flipped top to bottom."""
        return View(self.box, self.size, self.flip, not self.vflip)

    @property
    def matrix(self) -> Matrix:
        """The map from the source to the output."""
        x0, y0, x1, y1 = self.box
        sx, sy = self.size[0] / (x1 - x0), self.size[1] / (y1 - y0)
        tx, ty = -x0 * sx, -y0 * sy
        if self.flip:
            sx, tx = -sx, self.size[0] - tx
        if self.vflip:
            sy, ty = -sy, self.size[1] - ty
        return np.array([[sx, 0.0, tx], [0.0, sy, ty], [0.0, 0.0, 1.0]], np.float64)


@dataclass(frozen=True)
class Warp:
    """A view seen through a map that turns, shears or bends it. What lies outside of the view has
    the colour `fill`.

    `inverse` has the nine numbers, row by row, of the matrix that maps the output to the output of
    `view`. `nearest` takes the nearest pixel, as torchvision's steps do by default; else pixels are
    interpolated, and reduced where the map shrinks them.
    """

    view: View
    inverse: tuple[float, ...]
    size: Size
    fill: Colour = BLACK
    nearest: bool = False

    @classmethod
    def of(
        cls, view: View, inverse: Matrix, size: Size, fill: Colour = BLACK, nearest: bool = False
    ) -> Warp:
        """Return the warp of a view by the map from the output to it."""
        return cls(view, tuple(inverse.ravel().tolist()), size, fill, nearest)

    @cached_property
    def inverse_matrix(self) -> Matrix:
        """The map from the output to the output of the view, with a positive depth where the view
        is seen.

        A perspective whose horizon lies between the first pixel of the output and the view has it
        the other way round.
        """
        matrix = np.array(self.inverse, np.float64).reshape(3, 3)
        # of the inverse's sign
        forward = (matrix[0, 0] * matrix[1, 1] - matrix[0, 1] * matrix[1, 0]) * np.linalg.det(
            matrix
        )
        return -matrix if not self.is_affine and forward < 0 else matrix

    @property
    def matrix(self) -> Matrix:
        """The map from the source to the output."""
        matrix: Matrix = inverted(self.inverse_matrix) @ self.view.matrix
        matrix /= matrix[2, 2]
        return matrix

    @property
    def is_affine(self) -> bool:
        """Whether parallel lines stay parallel."""
        return self.inverse[6:] == (0.0, 0.0, 1.0)

    def scaled(self, size: Size) -> Warp:
        """Return the same resampled to another size."""
        return self._before(scaling(self.size[0] / size[0], self.size[1] / size[1]), size)

    def cropped(self, left: float, top: float, width: int, height: int) -> Warp:
        """Cut a rectangle out of the output, given in output pixels."""
        return self._before(moving(left, top), (width, height))

    def mirrored(self) -> Warp:
        """Return the same flipped left to right."""
        return self._before(moving(self.size[0], 0.0) @ scaling(-1.0, 1.0), self.size)

    def upside_down(self) -> Warp:
        """Return the same flipped top to bottom."""
        return self._before(moving(0.0, self.size[1]) @ scaling(1.0, -1.0), self.size)

    def _before(self, map_: Matrix, size: Size) -> Warp:
        return Warp.of(self.view, self.inverse_matrix @ map_, size, self.fill, self.nearest)

    @property
    def density(self) -> float:
        """Pixels of the view per pixel of the output, on a side, where the map is finest."""
        (width, height), m = self.size, self.inverse_matrix
        if self.is_affine:
            return float(np.linalg.svd(m[:2, :2], compute_uv=False)[-1])
        found = []
        for x, y in (*corners((0.0, 0.0, width, height)), (width / 2, height / 2)):
            depth = m[2, 0] * x + m[2, 1] * y + m[2, 2]
            if depth > 0:
                at = m[:2, :2] @ (x, y) + m[:2, 2]
                jacobian = (m[:2, :2] - np.outer(at / depth, m[2, :2])) / depth
                found.append(float(np.linalg.svd(jacobian, compute_uv=False)[-1]))
        return min(found, default=1.0)


@dataclass(frozen=True)
class Pad:
    """An image put onto a larger canvas: `left` and `top` pixels of `fill` before it, `size` is
    that of the canvas."""

    left: int
    top: int
    size: Size
    fill: Colour = BLACK

    @property
    def matrix(self) -> Matrix:
        """The map from the source to the output."""
        return moving(self.left, self.top)


@dataclass(frozen=True, eq=False)
class Displacement:
    """Every pixel taken from a place near by: `x` and `y` (height, width) float32 are added to the
    coordinates of the output.

    There is no matrix for it, so that boxes, points and polygons cannot be moved.
    """

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.float32]
    fill: Colour = BLACK
    nearest: bool = False

    @property
    def size(self) -> Size:
        """(width, height), which stays as it was."""
        return self.x.shape[1], self.x.shape[0]


Look = View | Warp
"""What is still only composed, and can be composed further."""

Stage = View | Warp | Pad | Displacement
"""One resampling of an image."""


def cover(size: Size, target: Size) -> Size:
    """Return `size` enlarged, its shape kept, so that it is no smaller than `target` on either
    side."""
    scale = max(target[0] / size[0], target[1] / size[1])
    if scale <= 1:
        return size
    return max(target[0], round(size[0] * scale)), max(target[1], round(size[1] * scale))


def fit(size: Size, target: Size) -> Size:
    """Return `size` enlarged or reduced, its shape kept, so that it just fits into `target`."""
    scale = min(target[0] / size[0], target[1] / size[1])
    width, height = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
    return min(target[0], width), min(target[1], height)


def bounds(points: Floats) -> Box:
    """Return the smallest box around points (n, 2)."""
    (left, top), (right, bottom) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
    return left, top, right, bottom


@dataclass(frozen=True, eq=False)
class Patch:
    """The `pixels` of a mask of the size `shape`, (height, width), from a row and a column on. No
    other is of the object.

    What is done to it takes as long as the object is large, and not the image: there may be a
    hundred in an image.
    """

    pixels: Bools
    top: int
    left: int
    shape: tuple[int, int]

    @classmethod
    def of(cls, mask: Bools) -> Patch:
        """Return all of a mask."""
        return cls(mask, 0, 0, mask.shape)

    def whole(self) -> Bools:
        """Return the mask with all of its pixels. Its columns lie one after the other."""
        mask = np.zeros(self.shape, bool, order="F")
        height, width = self.pixels.shape
        mask[self.top : self.top + height, self.left : self.left + width] = self.pixels
        return mask

    def taken(self, rows: npt.NDArray[np.intp], columns: npt.NDArray[np.intp]) -> Patch:
        """Return the mask that has these rows and columns of this one, which go up, or down."""
        height, width = self.pixels.shape
        down = np.flatnonzero((rows >= self.top) & (rows < self.top + height))
        across = np.flatnonzero((columns >= self.left) & (columns < self.left + width))
        seen = self.pixels[rows[down, None] - self.top, columns[across] - self.left]
        top, left = (int(each[0]) if len(each) else 0 for each in (down, across))
        return Patch(seen, top, left, (len(rows), len(columns)))

    def gathered(self, rows: Values, columns: Values) -> Patch:
        """Return the mask of the pixels at any rows and columns of this one, (height, width) each;
        -1 stands for none."""
        (height, width), down, across = self.pixels.shape, rows - self.top, columns - self.left
        inside = (down >= 0) & (down < height) & (across >= 0) & (across < width)
        pixels = np.zeros(inside.shape, bool)
        places = down[inside].astype(np.intp), across[inside].astype(np.intp)
        pixels[inside] = self.pixels[places]
        return Patch.of(pixels)

    def padded(self, top: int, left: int, shape: tuple[int, int]) -> Patch:
        """Return the mask on a larger canvas."""
        return Patch(self.pixels, self.top + top, self.left + left, shape)
