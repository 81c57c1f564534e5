"""What the first values of a column say on places and images that its name and its type leave
open."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Literal

from shardctl.errors import Rejection
from shardctl.images.codecs.backend import SNIFF_BYTES, is_image
from shardctl.images.codecs.image import open_image
from shardctl.images.defaults import OTHER_SUFFIXES, SUFFIXES

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
_IMAGE_ENDINGS = tuple(SUFFIXES | OTHER_SUFFIXES)

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
    if _is_annotation(start.encode("utf-8", "replace") if isinstance(start, str) else start):
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


def _is_annotation(data: bytes) -> bool:
    """Return whether a text is the labels of YOLO, or an annotation of VOC."""
    return bool(_YOLO.fullmatch(data)) or (b"<annotation" in data and b"<bndbox" in data)


def _kind_of_text(text: str) -> Kind | None:
    """Return what a text is; None where it does not say, as -1 in the place of coordinates."""
    words = [word for word in _SEPARATED.split(text) if word]
    if not words or (len(words) == 1 and _NUMBER.fullmatch(words[0])):
        return None
    is_path = text.partition("?")[0].strip().lower().endswith(_IMAGE_ENDINGS)
    found = (
        is_path
        or all(map(_NUMBER.fullmatch, words))
        or _BRACKETED.match(text)
        or _FILE.fullmatch(text)
    )
    return "numbers" if found else "other"
