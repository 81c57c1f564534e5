"""What stays as it is beside images whose pixels are moved: one rule for conversions of all sources
and for the loader.

Roles say what moves. A form in which known tools write places, masks or other images is refused.
All else that may be one is named in one notice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal

import pyarrow as pa
from pyarrow import types

from shardctl.errors import Rejection
from shardctl.format.arrays import is_binary, is_number, is_text, leaf_of
from shardctl.format.layout import may_be_pictures
from shardctl.format.roles import PLACES, Image, Role
from shardctl.images.codecs.backend import SNIFF_BYTES, is_image
from shardctl.images.codecs.image import open_image
from shardctl.images.defaults import KNOWN_SUFFIXES
from shardctl.sources.image_columns import is_struct
from shardctl.system.text import some

LOOKED_AT = 32
"""Values of a column that are looked at, and items of lists in one."""

MOST_BYTES = 2**20
"""What is looked at of a text."""

Kind = Literal["image", "annotation", "numbers", "other"]
"""What a text or bytes are: `numbers` are two or more, or the path of a file of them or of an
image."""

_SEPARATED = re.compile(r"[\s,;:|]+")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
_BRACKETED = re.compile(r"\s*([A-Z]+\s*)?[\[({].*\d", re.DOTALL)
"""JSON, tuples of Python, and WKT: POLYGON ((1 2, 3 4))."""

_FILE = re.compile(r".*[^\s.]\.(json|xml|txt|csv|npy|npz|pts|mat|pkl)", re.IGNORECASE | re.DOTALL)

_YOLO = re.compile(rb"\s*(\d+(\s+-?[01]?\.\d+(?=\s|\Z)){4,}\s*)+")
"""Lines with the number of a class, and shares of the width and the height.

A number ends before a space, so that no digit can be of two numbers: else a long text that is none
would take hours.
"""


def kinds_of(value: object) -> set[Kind]:
    """Return what the texts and the bytes are that a value is, or has in lists and structs, where
    they say something."""
    kinds = {_kind(data) for data in islice(leaves_of(value), LOOKED_AT)}
    return {kind for kind in kinds if kind is not None}


def holds_image(value: object) -> bool:
    """Return whether a value is an encoded image, or has one in lists and structs."""
    return any(isinstance(data, bytes) and _opens(data) for data in leaves_of(value))


def leaves_of(value: object) -> Iterator[bytes | str]:
    """Yield the texts and the bytes that a value is, or has in lists and structs."""
    if isinstance(value, bytes | str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from leaves_of(each)


def _kind(data: bytes | str) -> Kind | None:
    if isinstance(data, bytes) and _opens(data):
        return "image"
    start = data[:MOST_BYTES]
    begin = start.encode("utf-8", "replace") if isinstance(start, str) else start
    # the labels of YOLO, or an annotation of VOC
    if _YOLO.fullmatch(begin) or (b"<annotation" in begin and b"<bndbox" in begin):
        return "annotation"
    return "other" if isinstance(start, bytes) else _kind_of_text(start)


def _opens(data: bytes) -> bool:
    if not is_image(data[:SNIFF_BYTES]):
        return False
    try:
        open_image(data, max_pixels=2**62)
    except Rejection:
        return False
    return True


def _kind_of_text(text: str) -> Kind | None:
    """Return what a text is; None where it does not say, as -1 in the place of coordinates."""
    words = [word for word in _SEPARATED.split(text) if word]
    are_numbers = all(map(_NUMBER.fullmatch, words))
    if are_numbers and len(words) <= 1:
        return None
    is_path = text.partition("?")[0].strip().lower().endswith(tuple(KNOWN_SUFFIXES))
    found = is_path or are_numbers or _BRACKETED.match(text) or _FILE.fullmatch(text)
    return "numbers" if found else "other"


PLACE_NAMES = frozenset(
    (
        "bbox,bboxes,box,boxes,boundingbox,boundingboxes,keypoint,keypoints,landmark,landmarks,polygon,polygons,points,segmentation,segmentations,encodedpixels,rle"
    ).split(",")
)
"""Names of columns of places as tools write them, without _ and - and in lower case.

They are lists, structs, bytes, or texts that are no words. A single number is none: the points of a
game.
"""

MASK_NAMES = frozenset(("mask", "masks"))
"""Names of arrays that have a value for each pixel."""

NUMBER_NAMES = tuple(
    frozenset(names.split())
    for names in (
        "xmin ymin xmax ymax,minx miny maxx maxy,x1 y1 x2 y2,x0 y0 x1 y1,left top right bottom,"
        "left top width height,x y w h,x y width height,x1 y1 width height,"
        "xcenter ycenter width height,cx cy w h"
    ).split(",")
)
"""Names of numbers, or of lists of them, that together are boxes: in records of TensorFlow with the
same path before them."""

_MASK_WORDS = frozenset("mask,masks,seg,segmentation,segmentations".split(","))
"""Words of names of images that are masks where their values are: one number for each pixel of the
main image."""

_BETWEEN = re.compile(r"[\W_]+|(?<=[a-z0-9])(?=[A-Z])")

Shown = Mapping[str, Collection[Kind]]
"""What the first values of columns with texts or bytes are, by name; nothing for columns without a
value."""


def beside_images(
    fields: Sequence[pa.Field], roles: Mapping[str, Role], shown: Shown
) -> tuple[list[str], list[str]]:
    """Return what is wrong and what may be so in columns that stay as they are while the pixels of
    images move."""
    wrong = [
        f.name
        for f in fields
        if isinstance(role := roles.get(f.name), Image) or (role and role.name in PLACES)
    ]
    # COCO's own number of an image
    plain = [f for f in fields if f.name not in roles and f.name != "image_id"]
    wrong += known_places(plain)
    wrong += [f.name for f in plain if _is_shown(f, shown.get(f.name, ()))]
    columns = {column_of(place, [f.name for f in fields]) for place in wrong}
    unknown = [
        f.name
        for f in plain
        if f.name not in columns and ("numbers" in shown.get(f.name, ()) or _may_be_places(f.type))
    ]
    return list(dict.fromkeys(wrong)), unknown


def known_places(fields: Sequence[pa.Field], within: str = "") -> list[str]:
    """Return the columns whose names and types are those of places, those inside others with a dot:
    objects.bbox."""
    numbers, found = dict[str, dict[str, str]](), list[str]()
    for f in fields:
        if _is_number(_leaf(f.type)[0]):
            path, _, name = f.name.rpartition("/")
            numbers.setdefault(path, {})[_plain(name)] = f.name
    pairs = ((same, names) for same in numbers.values() for names in NUMBER_NAMES)
    boxes = {same[name] for same, names in pairs if names <= same.keys() for name in names}
    for f in fields:
        leaf, _ = _leaf(f.type)
        if f.name in boxes or _is_place(f):
            found.append(within + f.name)
        elif types.is_struct(leaf):
            found += known_places(leaf, f"{within}{f.name}.")
    return found


def column_of(place: str, names: Collection[str]) -> str | None:
    """Return the one of these columns that a place is, or is in: objects of objects.bbox; None if
    it is of none."""
    while place not in names:
        place, dot, _ = place.rpartition(".")
        if not dot:
            return None
    return place


def has_values_to_see(type_: pa.DataType) -> bool:
    """Return whether values are texts or bytes, or have some in lists and structs: only their
    values tell what they are."""
    leaf, _ = _leaf(type_)
    if types.is_struct(leaf):
        return any(has_values_to_see(f.type) for f in leaf)
    return is_text(leaf) or is_bytes(leaf)


def why_wrong(step: str, places: Sequence[str]) -> str:
    """Return why a step is refused beside columns that are wrong then."""
    why = "is a place in the image, a mask or another image by its form, and no mask or objects by role"
    return _not_moved(step, places, f"{why} (`shardctl help annotations`)")


def _not_moved(step: str, names: Sequence[str], why: str) -> str:
    """Return that a step of a recipe leaves columns where they are, and `why` not: what one of them
    is."""
    it = "it" if len(names) == 1 else "each"
    return f"{step} moves the content of the images, but not {some(names)}: {it} {why}"


def said_of_unknown(step: str, names: Sequence[str], option: str) -> str:
    """Return a notice on columns that a step leaves as they are; `option` says that this is
    right."""
    return f"{step} moves the content of the images, but not {some(names)}: places and masks there are wrong then (`shardctl help annotations`); {option} names what is right as it is"


def ways_out(step: str, of_records: list[str], of_labels: list[str]) -> str:
    """Return what can be done about columns of records and of labels files that a step of a recipe
    does not move."""
    ways = []
    if of_records:
        ways.append("those of records with --fields, which names those to keep")
    if of_labels:
        ways.append(f"those of labels with --drop-columns {','.join(of_labels)}")
    unmoved = ",".join([*of_records, *of_labels])
    return f"Leave out {step}; or keep them with --unmoved {unmoved}; or leave them out, {' and '.join(ways)}"


def is_named_mask(field: pa.Field) -> bool:
    """Return whether the name of a column says that it is a mask, and its type can hold one encoded
    image in each value."""
    fits = is_binary(field.type) or is_struct(field.type)
    return fits and bool(_MASK_WORDS & {word.lower() for word in _BETWEEN.split(field.name)})


def why_no_masks(step: str, columns: list[str]) -> str:
    """Return why a step is refused beside columns that are called masks and are none, and what to
    do."""
    why = "is a mask by its name, but its first values are no images of one number for each pixel"
    return f"{_not_moved(step, columns, why)}. {ways_out(step, columns, [])}"


def why_not_as_said(columns: list[str]) -> str:
    """Return why columns cannot be masks although a person says so."""
    return f"{some(columns)} of --mask-fields: no images of one number for each pixel of the main image"


def _is_place(field: pa.Field) -> bool:
    leaf, depth = _leaf(field.type)
    if is_struct(leaf):
        return may_be_pictures(field.name)
    if types.is_struct(leaf) and {"size", "counts"} <= {f.name for f in leaf}:  # RLE of COCO
        return True
    names = _names(field)
    if names & PLACE_NAMES and (depth or is_bytes(leaf) or types.is_struct(leaf)):
        return not is_text(leaf)
    return bool(names & MASK_NAMES) and depth > 1 and _may_be_places(pa.list_(leaf))


def _is_shown(field: pa.Field, kinds: Collection[Kind]) -> bool:
    """Return whether the first values of a column are images or annotations, or it has the name of
    places and texts of them."""
    is_place = is_text(_leaf(field.type)[0]) and bool(_names(field) & PLACE_NAMES)
    may_be = "numbers" in kinds or not kinds
    return "image" in kinds or "annotation" in kinds or (is_place and may_be)


def _may_be_places(type_: pa.DataType) -> bool:
    """Return whether values are numbers or bytes, or have some in lists and structs."""
    leaf, depth = _leaf(type_)
    if types.is_struct(leaf):
        return any(_may_be_places(f.type) for f in leaf)
    return _is_number(leaf) or is_bytes(leaf) or (depth > 0 and types.is_boolean(leaf))


def _names(field: pa.Field) -> set[str]:
    """Return what a name may say of the values: `boxes` of `boxes.npy`, `bbox` of
    `image/object/bbox`."""
    return {_plain(part) for part in field.name.rpartition("/")[2].split(".")}


def _plain(name: str) -> str:
    return re.sub("[-_ ]", "", name).lower()


def _is_number(type_: pa.DataType) -> bool:
    return is_number(type_) or bool(types.is_decimal(type_))


def is_bytes(type_: pa.DataType) -> bool:
    """Return whether values are bytes."""
    return is_binary(type_) or bool(types.is_fixed_size_binary(type_))


def _leaf(type_: pa.DataType) -> tuple[pa.DataType, int]:
    """Return the type of the values in lists and tensors, and in how many lists they are."""
    leaf, depth = leaf_of(type_)
    if isinstance(leaf, pa.FixedShapeTensorType):
        return leaf.value_type, depth + len(leaf.shape)
    return leaf, depth
