"""What the first values of a column say on places, masks and other images that its name and its type leave open."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.list_types import is_list
from shardctl.images.codecs.image import open_image
from shardctl.images.defaults import OTHER_SUFFIXES, SUFFIXES
from shardctl.images.geometry import Size

_SEPARATED = re.compile(r"[\s,;:|]+")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
_BRACKETED = re.compile(r"\s*([A-Z]+\s*)?[\[({].*\d", re.DOTALL)
"""JSON, tuples of Python, and WKT: POLYGON ((1 2, 3 4))."""

_FILE = re.compile(r".*[^\s.]\.(json|xml|txt|csv|npy|npz|pts|mat|pkl)", re.IGNORECASE | re.DOTALL)
_IMAGE_ENDINGS = tuple(SUFFIXES | OTHER_SUFFIXES)

_YOLO = re.compile(rb"\s*(\d+(\s+-?[01]?\.\d+(?=\s|\Z)){4,}\s*)+")
"""Lines with the number of a class, and shares of the width and the height.

A number ends before a space, so that no digit can be of two numbers: else a long text that is none would take hours.
"""


def tell_places(values: pa.Array) -> bool | None:
    """Return whether texts are coordinates, or paths of files of them or of images; None where they do not say.

    One is enough, since others may say that there is nothing: n/a, or -1.
    """
    verdicts = [_tells_place(text) for text in _texts(values)]
    return True if True in verdicts else False if False in verdicts else None


def _tells_place(text: str) -> bool | None:
    words = [word for word in _SEPARATED.split(text) if word]
    if not words:
        return None
    if all(map(_NUMBER.fullmatch, words)):
        return True if len(words) > 1 else None
    return bool(_BRACKETED.match(text) or _FILE.fullmatch(text)) or _is_image_path(text)


def name_images(values: pa.Array) -> bool:
    """Return whether texts are paths or addresses of images, going by how they end."""
    return any(map(_is_image_path, _texts(values)))


def _is_image_path(text: str) -> bool:
    return text.partition("?")[0].strip().lower().endswith(_IMAGE_ENDINGS)


def show_annotations(values: pa.Array) -> bool:
    """Return whether texts, or bytes, are the labels of YOLO, or annotations of VOC."""
    return any(map(_is_annotation, _leaves(values)))


def _is_annotation(data: bytes) -> bool:
    return bool(_YOLO.fullmatch(data)) or (b"<annotation" in data and b"<bndbox" in data)


def show_images(values: pa.Array) -> bool:
    """Return whether bytes are images in a file format, or annotations as `show_annotations` finds them."""
    return any(_is_image(data) or _is_annotation(data) for data in _leaves(values))


def _is_image(data: bytes) -> bool:
    try:
        open_image(data, max_pixels=2**62)
    except Rejection:
        return False
    return True


def are_of_size(values: pa.Array, sizes: Sequence[Size | None]) -> bool:
    """Return whether arrays have the height and the width of the image beside them, one behind the other in their shapes.

    `sizes` are (width, height) of the images, None where that is not known. Arrays of images of one pixel tell nothing.
    """
    both = zip(map(_shape, values), sizes, strict=False)
    known = [(shape, size[::-1]) for shape, size in both if shape and size and max(size) > 1]
    return bool(known) and all(size in pairwise(shape) for shape, size in known)


def _shape(value: Any) -> tuple[int, ...]:
    """Return the shape of an array of Arrow, going by the first list at each depth; () for none."""
    if isinstance(value.type, pa.FixedShapeTensorType):
        return tuple(value.type.shape) if value.is_valid else ()
    shape: list[int] = []
    while isinstance(value, pa.ListScalar) and value.values is not None:
        shape.append(len(value.values))
        if not shape[-1]:
            break
        value = value.values[0]
    return tuple(shape)


def members_of(values: pa.Array) -> tuple[dict[str, pa.Array], bool]:
    """Return the members of structs, by name, and whether they have a value for each of `values`: those in lists have not."""
    alone = True
    while not pa.types.is_struct(values.type):
        values, alone = values.flatten(), False
    return dict(zip((field.name for field in values.type), values.flatten(), strict=True)), alone


def _texts(values: pa.Array) -> Iterator[str]:
    """Yield texts, which may have bytes that are no text in a damaged dataset."""
    return (data.decode("utf-8", "replace") for data in _leaves(values))


def _leaves(values: pa.Array) -> Iterator[bytes]:
    """Yield the bytes of what is in lists, and in lists in them, without what is missing."""
    while is_list(values.type):
        values = values.flatten()
    return (value for value in values.cast(pa.large_binary()).to_pylist() if value is not None)
