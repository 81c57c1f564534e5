"""The images of samples as pictures of a contact sheet or a page, with what is marked in them drawn
onto them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from shardctl.errors import Rejection
from shardctl.format.arrays import Array
from shardctl.format.roles import Mask, Objects
from shardctl.images.codecs.drawing import (
    Annotations,
    colour_of,
    contact_sheet,
    counted_categories,
    counted_name,
    draw,
    draw_classes,
    enlarge,
    jpeg,
    objects_line,
    overlay,
    shrink,
    size_of,
    within,
)
from shardctl.images.codecs.image import Pixels, decode_mask
from shardctl.inspection.content.blocks import StoredSample, Values, is_encoded_image, is_objects
from shardctl.system.report import Html, image, text

SIDE, MARKED_SIDE = 160, 256
"""The longer side of a picture, and of one in which something is marked, in pixels."""


def picture_sheet(pictures: Iterable[Picture]) -> bytes:
    """Return images as one PNG, each with its class and key. Those that do not decode are crossed
    out.

    There are 8 in a row, or 5 larger ones where something is marked in them.
    """
    listed = list(pictures)
    large = any(picture.has_objects for picture in listed)
    side = MARKED_SIDE if large else SIDE
    return contact_sheet(
        ((thumbnail(picture, side), picture.lines) for picture in listed), 5 if large else 8, side
    )


Content = bytes | Array
MarkedObjects = tuple[tuple[Values | None, Objects], ...]
MarkedMasks = tuple[tuple[Content, Mask], ...]


@dataclass(frozen=True)
class Picture:
    """An image or a mask of a record, encoded or as an array, with what is marked in it and the
    lines below it.

    `objects` has the values of the columns of objects with their roles; `masks` the masks as they
    are stored. `classes` is the role of a mask that is shown by itself, in the colours of its
    classes.
    """

    content: Content
    caption: tuple[str, ...]
    objects: MarkedObjects = ()
    masks: MarkedMasks = ()
    classes: Mask | None = None

    @property
    def has_objects(self) -> bool:
        """Whether there may be something to draw onto it."""
        return bool(self.objects or self.masks)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines below it: how many objects of each category, and the caption, whose last line
        is the key."""
        return (
            *self.caption[:-1],
            *(objects_line(value, role) for value, role in self.objects),
            self.caption[-1],
        )

    def annotations(self) -> Annotations:
        """Return what is marked in the image; masks that do not decode are left out. Raises
        Rejection for the image."""
        masks = ((_numbers(content), role) for content, role in self.masks)
        return Annotations(
            size_of(self.content),
            self.objects,
            tuple((m, role) for m, role in masks if m is not None),
        )


def _numbers(content: Content) -> Array | None:
    try:
        return decode_mask(content) if isinstance(content, bytes) else content
    except Rejection:
        return None


def pictures_of(record: StoredSample, annotated: bool = True) -> list[Picture]:
    """Return the images and masks of a record; with several fields of them, the name of the field
    is below each.

    The main image has the objects and masks of the sample with it, if it is to be `annotated`.
    """
    found = []
    for name in record.images:
        content = _content(record.values[name])
        if content is None:
            continue
        lines = (*([name] if len(record.images) > 1 else []), *caption(record))
        picture, role = Picture(content, lines), record.roles.get(name)
        if annotated and isinstance(role, Mask):
            picture = replace(picture, classes=role)
        elif annotated and name == record.roles.main_image:
            picture = Picture(content, lines, *_marked(record))
        found.append(picture)
    return found


def main_picture(record: StoredSample) -> Picture | None:
    """Return the main image of a record with all that is marked in it; None where there is none."""
    main = record.roles.main_image
    content = _content(record.values[main]) if main is not None else None
    return None if content is None else Picture(content, caption(record), *_marked(record))


def _content(value: Any) -> Content | None:
    content: Content | None = value["bytes"] if is_encoded_image(value) else value
    return content


def _marked(record: StoredSample) -> tuple[MarkedObjects, MarkedMasks]:
    """Return the objects and the masks of a record, with their roles."""
    values, roles = record.values, record.roles
    objects = ((values.get(name), role) for name, role in roles.objects.items())
    masks = (
        (_content(values[name]), role)
        for name, role in roles.images.items()
        if isinstance(role, Mask)
    )
    return (
        tuple((value, role) for value, role in objects if value is None or is_objects(value)),
        tuple((content, role) for content, role in masks if content is not None),
    )


def caption(record: StoredSample) -> tuple[str, ...]:
    """Return the caption of an image: its class or label if it has one, and its key."""
    values, key = record.values, str(record.values["key"])
    said = [
        str(values[name] if class_name is None else class_name)
        for name, class_name in record.class_names.items()
        if values[name] is not None
    ]
    return (", ".join(said), key) if said else (key,)


def thumbnail(picture: Picture, side: int) -> Pixels | None:
    """Return a small picture with what is marked in it; None where it does not decode."""
    try:
        if picture.classes is not None:
            return _coloured(picture.content, picture.classes, side)
        pixels = shrink(picture.content, side)
        return draw(enlarge(pixels, side), picture.annotations()) if picture.has_objects else pixels
    except Rejection:
        return None


def marks(picture: Picture, side: int) -> Pixels | None:
    """Return what is marked in a picture alone, to lie over it, its longer side `side`; None where
    it cannot be drawn."""
    try:
        size = size_of(picture.content)
        width, height = (max(1, round(length * side / max(size))) for length in size)
        return overlay((width, height), picture.annotations())
    except Rejection:
        return None


def _coloured(content: Content, role: Mask, side: int) -> Pixels | None:
    """Return a small picture of a mask in the colours of its classes, in grey or in its own where
    it has none."""
    numbers = _numbers(content)
    if numbers is None:
        return shrink(content, side)
    coloured = draw_classes(numbers, role, within((numbers.shape[1], numbers.shape[0]), side))
    return shrink(content, side) if coloured is None else enlarge(coloured, side)


def figure(picture: Picture, side: int) -> Html:
    """Return a picture no larger than `side` as a part of a page, with its lines below it."""
    pixels, (*before, key) = thumbnail(picture, side), picture.caption
    lines = [*map(text, before), *counted_objects(picture), text(key)]
    shown = Html('<p class="bad">does not decode</p>')
    if pixels is not None:
        shown = image(jpeg(pixels, fine_colours=picture.has_objects), key)
    below = f"<figcaption>{'<br>'.join(lines)}</figcaption>"
    return Html(f'<figure class="one">{shown}{below}</figure>')


def counted_objects(picture: Picture) -> list[Html]:
    """Return a line for each column of objects: how many of each category, behind its colour in the
    picture."""
    lines = []
    for value, role in picture.objects:
        said = []
        for category, count in counted_categories(value):
            colour = f'<i style="background: rgb({",".join(map(str, colour_of(category)))})"></i>'
            name = text(counted_name(category, count, role))
            said.append(f'<span class="category">{colour}{name}</span>')
        lines.append(Html("&ensp;".join(said) or text(objects_line(value, role))))
    return lines
