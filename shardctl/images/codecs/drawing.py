"""Annotations drawn onto a picture: boxes, polygons, keypoints and masks, in a colour for each
category.

Everything is drawn on the picture enlarged by a whole factor and averaged back, so that lines are
smooth and a pixel on which nothing was drawn stays exactly as it was.
"""

from __future__ import annotations

import colorsys
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont, features
from PIL.PngImagePlugin import PngInfo

from shardctl.format.arrays import Bools, Floats
from shardctl.format.roles import Mask, Objects
from shardctl.images.codecs import rle
from shardctl.images.codecs.image import Pixels, encoded, nearest, open_image, render
from shardctl.images.defaults import MAX_PIXELS
from shardctl.images.geometry import Colour, Size, Values, View, box_edges, corners, fit
from shardctl.system.files import OutputFileType

SHEET = OutputFileType(
    "sheet", lambda begin: begin.startswith(b"\x89PNG") and b"tEXtSoftware\0shardctl" in begin[:200]
)
"""A contact sheet, as a file."""

_LINE = 14
"""Height of a line below a picture, in pixels."""

_PAPER, _INK, _MISSING = (255, 255, 255), (40, 40, 40), (200, 60, 60)


def shrink(image: bytes | Values, side: int) -> Pixels:
    """Return an image no larger than `side` on either side: an encoded one, pixels (height, width,
    3) uint8, or a raw mask.

    Raises Rejection (stage `decode`) where it does not decode.
    """
    if isinstance(image, bytes):
        opened = open_image(image, MAX_PIXELS)
        return render(opened, View.whole(opened.size).scaled(within(opened.size, side)))
    if (
        image.ndim == 2
    ):  # a raw mask of any integer type: its smallest number black, its largest white
        least, most = int(image.min()), int(image.max())
        image = ((image - float(least)) * (255 / max(1, most - least))).astype(np.uint8)
    picture = Image.fromarray(image)
    return np.asarray(picture.resize(within(picture.size, side), Image.Resampling.BILINEAR))


def size_of(image: bytes | Values) -> Size:
    """Return the width and height of an upright image, or of pixels. Raises Rejection where the
    header cannot be read."""
    return (
        open_image(image, MAX_PIXELS).size
        if isinstance(image, bytes)
        else (image.shape[1], image.shape[0])
    )


def enlarge(pixels: Pixels, side: int) -> Pixels:
    """Return a small picture in its size times a whole number, no larger than `side`, to draw on.
    Others stay."""
    factor = side // max(pixels.shape[:2])
    return pixels if factor < 2 else np.repeat(np.repeat(pixels, factor, axis=0), factor, axis=1)


def within(size: Size, side: int) -> Size:
    """Return a size no larger than `side` on either side, of the same shape."""
    return size if max(size) <= side else fit(size, (side, side))


def jpeg(pixels: Pixels, quality: int = 80, fine_colours: bool = False) -> bytes:
    """Return pixels as JPEG; `fine_colours` keeps thin lines of a colour sharp, and makes it
    larger."""
    picture = Image.fromarray(pixels)
    return encoded(picture, "JPEG", quality=quality, subsampling=0 if fine_colours else 2)


def small_file(pixels: Pixels, quality: int, exact: bool = False) -> tuple[str, bytes]:
    """Return pixels as a small file for a page, and its type: WebP, or what Pillow has if it was
    built without.

    Of four channels the last says how much they hide. `exact` keeps every pixel as it is, and so do
    four channels.
    """
    picture = Image.fromarray(pixels)
    exact = exact or picture.mode != "RGB"
    if features.check("webp"):
        return "webp", encoded(picture, "WEBP", lossless=exact, quality=quality, method=4)
    if exact:
        return "png", encoded(picture, "PNG")
    return "jpeg", jpeg(pixels, quality)


def contact_sheet(
    pictures: Iterable[tuple[Pixels | None, Sequence[str]]], columns: int, side: int
) -> bytes:
    """Return pictures, no larger than `side`, in rows of `columns` with lines below each, as PNG.
    None is drawn as a cross."""
    cells = list(pictures)
    rows = max(1, -(-len(cells) // columns))
    lines = max((len(caption) for _, caption in cells), default=0)
    height = side + 6 + lines * _LINE
    sheet = Image.new("RGB", (columns * (side + 4), rows * height), _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    for number, (pixels, caption) in enumerate(cells):
        left, top = number % columns * (side + 4) + 2, number // columns * height + 2
        if pixels is None:
            draw.line((left, top, left + side, top + side), fill=_MISSING)
            draw.line((left, top + side, left + side, top), fill=_MISSING)
        else:
            high, wide = pixels.shape[:2]
            place = left + (side - wide) // 2, top + (side - high) // 2
            sheet.paste(Image.fromarray(pixels), place)
        for line, text in enumerate(caption):
            shown = text.encode("latin-1", "replace").decode("latin-1")  # all that the font knows
            while shown and font.getlength(shown) > side:
                # of a key the end is shown: keys begin alike
                shown = shown[1:] if line == len(caption) - 1 else shown[:-1]
            draw.text((left, top + side + 2 + line * _LINE), shown, fill=_INK, font=font)
    made_by = PngInfo()
    made_by.add_text("Software", "shardctl")
    return encoded(sheet, "PNG", pnginfo=made_by)


Marked = Mapping[str, Any]
"""The objects of an image: a list for each member, with an item for each object; or the RLE of one."""

MOST_OBJECTS = 1000
"""Objects that are drawn: the largest ones. More cannot be told apart."""

MOST_NUMBERS = 256
"""Different numbers in a mask that is drawn: one with more (depth, heights) has no classes."""

BACKGROUND = frozenset(("background", "_background_", "__background__", "bg"))
"""Names of a class of a mask that is left as it is."""

_FILL, _SHADE, _COVER = 60, 110, 0.45
"""How much a filled polygon hides of the picture and the dark edge of a line (0 to 255), and a mask
(0 to 1)."""

_LABEL_COVERS = 0.1
"""The largest share of any box that the name of a category may hide."""

_HATCH, _HATCHED, _DARK = 8, (128, 128, 128), (30, 30, 30)
"""Pixels from line to line where a mask is void, their colour, and that behind them where there is
no picture."""

_FONT_SIDE, _LEAST_FONT, _MOST_FONT = 25, 9, 20
"""The longer side of a picture in heights of its letters, and the limits of that height in
pixels."""

_NOWHERE = (math.nan,) * 4
"""What stands for a place that is missing."""

_OUTSIDE = 4.0
"""How many times its own size from the picture a place is drawn at most: what is farther looks the
same."""


@dataclass(frozen=True)
class Annotations:
    """What is marked in an image of `size` (width, height), in whose pixels all places are.

    `objects` has the value of each column of objects (a dict of lists as docs/annotations.md
    describes it, None for an image that was not annotated) with its role; `masks` has masks
    (height, width) of whole numbers with their roles.
    """

    size: Size
    objects: tuple[tuple[Marked | None, Objects], ...] = ()
    masks: tuple[tuple[Values, Mask], ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """A line of text for each column of objects."""
        return tuple(objects_line(value, role) for value, role in self.objects)


def draw(pixels: Pixels, annotations: Annotations) -> Pixels:
    """Return a picture (height, width, 3) uint8 of an image, of any size, with its annotations
    drawn onto it.

    The picture itself is returned where nothing is marked. Objects with places that are no numbers
    are left out.
    """
    for numbers, mask in annotations.masks:
        pixels = draw_mask(pixels, numbers, mask)
    for objects, role in annotations.objects:
        if objects is not None:
            pixels = draw_objects(pixels, objects, role, annotations.size)
    return pixels


def overlay(size: Size, annotations: Annotations) -> Pixels | None:
    """Return what `draw` puts over a picture of this size: red, green, blue and how much it hides,
    (height, width, 4) uint8.

    None where nothing is marked. What is drawn depends on no pixel below it: black and white
    pictures tell how much it hides.
    """
    shape = (size[1], size[0], 3)
    on_black, on_white = (
        draw(np.full(shape, value, np.uint8), annotations).astype(np.int32) for value in (0, 255)
    )
    hides = 255 - (on_white - on_black).mean(axis=2).round()
    if not hides.any():
        return None
    colours = on_black * 255 / np.maximum(hides, 1)[:, :, None]
    return np.dstack([colours.round(), hides]).clip(0, 255).astype(np.uint8)


@cache
def colour_of(number: int) -> Colour:
    """Return the colour of a category, or of a class of a mask: always the same one. Those of the
    first few numbers are easy to tell apart."""
    hue = number % 256 * _GOLDEN % 1
    red, green, blue = colorsys.hsv_to_rgb(hue, 1 - number % 3 * 0.22, 1 - number // 3 % 2 * 0.3)
    return round(red * 255), round(green * 255), round(blue * 255)


_GOLDEN = (math.sqrt(5) - 1) / 2
"""The part of the circle from hue to hue: by it, new ones fall between those before them."""


def name_of(category: Any, names: Sequence[str] | None) -> str:
    """Return the name of a category, its number where it has none."""
    is_number = isinstance(category, int | np.integer)
    return names[category] if names and is_number and 0 <= category < len(names) else str(category)


def counted_categories(objects: Marked | None) -> list[tuple[int, int]]:
    """Return the categories of the objects of an image and how many there are of each, the most
    frequent first."""
    given = (objects or {}).get("category", ())
    counts = Counter(int(category) for category in given if category is not None)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def objects_line(objects: Marked | None, role: Objects) -> str:
    """Return the objects of an image in a line: `2 person, 1 dog`; `no objects`; `not annotated`
    for None."""
    if objects is None:
        return "not annotated"
    counts = counted_categories(objects)
    return ", ".join(counted_name(*each, role) for each in counts) or "no objects"


def counted_name(category: int, count: int, role: Objects) -> str:
    """Return how many objects there are of a category: `2 person`, or `2 of category 7` where that
    has no name."""
    has_name = 0 <= category < len(role.names or ())
    return f"{count:,} {'' if has_name else 'of category '}{name_of(category, role.names)}"


def draw_mask(pixels: Pixels, numbers: Values, role: Mask) -> Pixels:
    """Return a picture with a mask (height, width) over it: a colour for each class, with an edge
    around each region.

    Pixels of no class (`ignore`) are hatched. The background is left as it is: a class of that
    name, or 0 where the classes have no names. A mask of more than MOST_NUMBERS different numbers
    has no classes, and is not drawn.
    """
    fitted = nearest(numbers, (pixels.shape[1], pixels.shape[0]))
    shown = _classes(fitted, role)
    if shown is None:
        return pixels
    colours, drawn = shown
    cover = np.where(drawn, np.where(_edges(fitted), 0.9, _COVER), 0.0).astype(np.float32)
    cover[hatched := _hatched(fitted, role)] = 0.85
    if not cover.any():
        return pixels
    layer = colours.astype(np.float32)
    layer[hatched] = _HATCHED
    mixed = pixels + (layer - pixels) * cover[:, :, None]
    return np.where(cover[:, :, None] > 0, np.round(mixed), pixels).astype(np.uint8)


def _classes(numbers: Values, role: Mask) -> tuple[Pixels, Bools] | None:
    """Return the colour of each pixel of a mask (height, width, 3), and whether it is of a class
    that is no background; None for a mask that has no classes."""
    values, places = np.unique(numbers, return_inverse=True)
    if len(values) > MOST_NUMBERS:
        return None
    classes, places = values.tolist(), places.reshape(numbers.shape)
    background = [
        number == 0 if role.names is None else name_of(number, role.names).lower() in BACKGROUND
        for number in classes
    ]
    drawn = np.array(values != role.ignore) & ~np.array(background)
    colours = np.array([colour_of(number) for number in classes], np.uint8)
    return colours[places], drawn[places]


def draw_classes(numbers: Values, role: Mask, size: Size) -> Pixels | None:
    """Return a mask (height, width) as a picture of `size` in the colours that it has over an
    image, its background dark.

    None for a mask that has no classes.
    """
    fitted = nearest(numbers, size)
    shown = _classes(fitted, role)
    if shown is None:
        return None
    picture, drawn = shown
    picture[~drawn] = _DARK
    picture[_hatched(fitted, role)] = _HATCHED
    return picture


def _hatched(numbers: Values, role: Mask) -> Bools:
    """Return which pixels of a mask are lines of the hatching of what is of no class."""
    rows, columns = np.ogrid[: numbers.shape[0], : numbers.shape[1]]
    void = [] if role.ignore is None else [role.ignore]
    return np.isin(numbers, void) & ((rows + columns) % _HATCH < 2)


def _edges(numbers: Values) -> Bools:
    """Return which pixels (height, width) differ from the one to the right or below."""
    edges = np.zeros(numbers.shape, bool)
    edges[:, :-1] |= numbers[:, :-1] != numbers[:, 1:]
    edges[:-1] |= numbers[:-1] != numbers[1:]
    return edges


def draw_objects(pixels: Pixels, objects: Marked, role: Objects, size: Size) -> Pixels:
    """Return a picture with the objects of an image of `size` (width, height): `objects` is a dict
    of lists.

    Boxes have the name of their category where it hides little, those of crowds are dashed;
    polygons and RLE are filled lightly; keypoints are dots, hollow where the point is hidden (v =
    1), with the lines of the skeleton.
    """
    height, width = pixels.shape[:2]
    members = [name for name, values in objects.items() if values is not None]
    every = zip_longest(*(objects[name] for name in members))
    marked = [dict(zip(members, values, strict=True)) for values in every]
    given = [_NOWHERE if each.get("bbox") is None else each["bbox"] for each in marked]
    boxes = np.array(given, np.float64).reshape(-1, 4)
    shown = _shown(boxes, size)
    if not shown:
        return pixels
    factor = 3 if width * height <= 300_000 else 2 if width * height <= 1_200_000 else 1
    canvas = Image.fromarray(pixels).resize(
        (width * factor, height * factor), Image.Resampling.NEAREST
    )
    pen = _Pen(canvas, size, max(1.0, max(width, height) / 200) * factor)
    categories = [-1 if (of := each.get("category")) is None else int(of) for each in marked]
    for number in shown:
        each, colour = marked[number], colour_of(categories[number])
        pen.fill_runs(each.get("rle"), colour)
        for polygon in each.get("segmentation") or ():
            pen.polygon(polygon, colour)
        pen.box(boxes[number], colour, dashed=bool(each.get("iscrowd")))
    for number in shown:
        points = marked[number].get("keypoints")
        pen.points(points, role.skeleton or (), colour_of(categories[number]))
    smooth = canvas.reduce(factor) if factor > 1 else canvas
    _write_names(smooth, boxes[shown], [categories[number] for number in shown], role, size)
    return np.asarray(smooth)


def _shown(boxes: Floats, size: Size) -> list[int]:
    """Return the numbers of the objects that are in the image, the large ones before the small ones
    that they could hide."""
    finite = np.asarray(np.isfinite(boxes).all(axis=1))
    starts, sides = np.hsplit(np.where(finite[:, None], boxes, 0), 2)
    inside = np.flatnonzero(finite & (starts < size).all(axis=1) & (starts + sides > 0).all(axis=1))
    areas = sides[inside].prod(axis=1)
    ordered: list[int] = inside[np.argsort(-areas, kind="stable")].tolist()
    return ordered[:MOST_OBJECTS]


class _Pen:
    """Draws in the coordinates of an image of `size` onto a canvas; `line` is the width of lines in
    pixels of the canvas. Points on it are x, y, x, y, …"""

    def __init__(self, canvas: Image.Image, size: Size, line: float) -> None:
        self._canvas, self._line = canvas, line
        self._size: Values = np.array(canvas.size)
        self._scale = self._size / size
        # colours with a fourth number are mixed with what is there
        self._draw = ImageDraw.Draw(canvas, "RGBA")

    def _placed(self, points: Any) -> list[float]:
        """Return points (n, 2) as the canvas has them; none if one of them is no number."""
        placed = np.asarray(points, np.float64).reshape(-1, 2) * self._scale
        low, high = -_OUTSIDE * self._size, (1 + _OUTSIDE) * self._size
        places: list[float] = np.clip(placed, low, high).ravel().tolist()
        return places if np.isfinite(placed).all() else []

    def _stroke(self, points: list[float], colour: Colour) -> None:
        """Draw a line with a dark edge, so that it can be seen on any picture."""
        self._draw.line(points, (0, 0, 0, _SHADE), round(self._line * 1.8), joint="curve")
        self._draw.line(points, colour, max(1, round(self._line)), joint="curve")

    def box(self, box: Floats, colour: Colour, dashed: bool) -> None:
        """Draw a box (x, y, width, height). What is outside of the picture is drawn along its
        edge."""
        half, ends = self._line / 2, np.array([box[:2], box[:2] + box[2:]]) * self._scale
        around = corners(np.clip(ends, half, self._size - half).ravel())[[0, 1, 2, 3, 0]]
        if not dashed:
            self._stroke(around.ravel().tolist(), colour)
        for start, end in pairwise(around) if dashed else ():
            whole = math.hypot(*(end - start))
            steps = max(
                1, round(whole / self._line / 8) * 2 + 1
            )  # an odd number: corners are drawn
            places = start + (end - start) * np.linspace(0, 1, steps + 1)[:, None]
            for step in range(0, steps, 2):  # the gaps are as long
                self._stroke(places[step : step + 2].ravel().tolist(), colour)

    def polygon(self, polygon: Any, colour: Colour) -> None:
        """Draw a polygon [x0, y0, x1, y1, …], lightly filled. Less than three points, or half a
        one, are left out."""
        if polygon is None or len(polygon) % 2 or len(polygon) < 6:
            return
        if points := self._placed(polygon):
            self._draw.polygon(points, fill=(*colour, _FILL))
            width = max(1, round(self._line * 0.75))
            self._draw.line([*points, *points[:2]], colour, width, joint="curve")

    def fill_runs(self, runs: Marked | None, colour: Colour) -> None:
        """Fill what the runs of COCO (`size` as height and width, `counts`) cover; what is no mask
        is left out."""
        if (
            runs is None
            or runs["counts"] is None
            or runs["size"] is None
            or None in tuple(runs["size"])
        ):
            return
        height, width = map(int, runs["size"])
        if height < 1 or width < 1 or height * width > MAX_PIXELS:
            return
        with suppress(ValueError):
            inside = rle.decode(runs["counts"], (height, width)).astype(np.uint8) * _FILL
            area = Image.fromarray(inside).resize(self._canvas.size, Image.Resampling.NEAREST)
            self._canvas.paste(colour, (0, 0), area)

    def points(self, points: Any, skeleton: Sequence[tuple[int, int]], colour: Colour) -> None:
        """Draw keypoints (n, 3) as x, y, v, and the lines between those that are there (v > 0)."""
        listed = () if points is None else points
        given = np.array(
            [_NOWHERE[:3] if point is None else point for point in listed], np.float64
        ).reshape(-1, 3)
        there = np.isfinite(given).all(axis=1) & (given[:, 2] > 0)
        places = [
            self._placed(point) if is_there else []
            for point, is_there in zip(given[:, :2], there, strict=True)
        ]
        for first, second in skeleton:
            if max(first, second) < len(places) and places[first] and places[second]:
                self._stroke(places[first] + places[second], colour)
        radius, width = self._line * 2, max(1, round(self._line * 0.6))
        for place, (_, _, visible) in zip(places, given, strict=True):
            if place:
                x, y = place
                around = (x - radius, y - radius, x + radius, y + radius)
                inner, rim = (colour, (0, 0, 0)) if visible > 1 else ((255, 255, 255), colour)
                self._draw.ellipse(around, fill=inner, outline=rim, width=width)


@cache
def _font(height: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    """Return Pillow's own font; a build without FreeType has it in one size only."""
    return ImageFont.load_default(height if features.check("freetype2") else None)


def _write_names(
    picture: Image.Image, given: Floats, categories: list[int], role: Objects, size: Size
) -> None:
    """Write the names of categories beside their boxes, above if possible, where they hide no name
    and little of any box."""
    font = _font(min(_MOST_FONT, max(_LEAST_FONT, max(picture.size) // _FONT_SIDE)))
    high = math.ceil(font.getbbox("Ag")[3]) + 4
    pen, whole = ImageDraw.Draw(picture), np.array(picture.size * 2)
    boxes = np.clip(box_edges(given) * (whole / (size * 2)), 0, whole)
    free = _LABEL_COVERS * (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    written = np.zeros((0, 4))
    for (left, top, right, bottom), category in zip(boxes.tolist(), categories, strict=True):
        # all that the font knows
        name = name_of(category, role.names).encode("latin-1", "replace").decode("latin-1")
        wide = math.ceil(font.getlength(name)) + 4
        at = min(left, picture.width - wide)
        for x, y in ((at, top - high), (at, bottom), (left, top), (right - wide, bottom - high)):
            place = np.array([round(x), round(y), round(x) + wide, round(y) + high])
            inside = (place >= 0).all() and (place[2:] <= picture.size).all()
            little = (_common(place, boxes) <= free).all() and not _common(place, written).any()
            if inside and little:
                red, green, blue = colour = colour_of(category)
                pen.rectangle((*place[:2], *(place[2:] - 1)), fill=colour)
                # whichever is easier to read
                is_light = 0.299 * red + 0.587 * green + 0.114 * blue > 130
                ink = (0, 0, 0) if is_light else (255, 255, 255)
                pen.text((place[0] + 2, place[1] + 1), name, fill=ink, font=font)
                written = np.append(written, [place], axis=0)
                break


def _common(place: Values, others: Values) -> Values:
    """Return the area that a rectangle (left, top, right, bottom) has in common with each of others
    (n, 4), (n,)."""
    sides = np.minimum(place[2:], others[:, 2:]) - np.maximum(place[:2], others[:, :2])
    area: Values = sides.clip(0).prod(axis=1)
    return area
