"""The frame of annotations where their size does not tell it: the other images of the same source do.

EXIF may turn an image by 180°, mirror it, or turn a square one. Its size is then the same in both frames. Some images are
looked at before there is a plan, so that every worker takes the same frame. docs/annotations.md has the rules.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardctl.annotations.base import Annotations, Place
from shardctl.annotations.masks import MASK, MASK_FILE
from shardctl.annotations.objects import ANNOTATED, OBJECTS
from shardctl.codecs.image import Opened, open_image
from shardctl.errors import InputError, Rejection
from shardctl.sources.brought import BEGIN_BYTES, begin_of, begins_ahead, is_brought
from shardctl.spread import spread
from shardctl.storage import counted, printable

LOOKED_AT = 4096
"""Images of a source whose first bytes `convert` looks at. All others follow what these say, or become rejects."""

Size = tuple[int, int]
"""(width, height)."""

_WHOLE = 1 << 26
"""Bytes of a file of which the first ones do not say its size."""

_JPEG = b"\xff\xd8"


@dataclass
class _Evidence:
    """Images that EXIF turns: the paths of those that say a frame, and how many do not, with a size and without."""

    stored: list[str] = field(default_factory=list)
    upright: list[str] = field(default_factory=list)
    unclear: int = 0
    unsized: int = 0


def settled(found: Annotations, frame: str, place_of: Callable[[Sequence[int]], list[Place]]) -> Annotations:
    """Return annotations with the frame that some images tell for all, and with a notice on those that do not tell it.

    `frame` is the user's: only for `auto` are images looked at. Raises InputError where sizes say both frames.
    """
    if frame != "auto" or not {ANNOTATED, MASK_FILE}.intersection(found.columns.column_names):
        return found
    annotated = np.flatnonzero(found.rows >= 0)
    looked_at = annotated[spread(len(annotated), LOOKED_AT)].tolist()
    evidence = _Evidence()
    places = zip(looked_at, place_of(looked_at), strict=True)
    for row, place in begins_ahead(places, lambda each: each[1].opened if is_brought(each[1].opened) else None):
        turn = _turn(place.opened)
        if turn is not None:
            _add(evidence, place, *turn, _annotated_size(found, int(found.rows[row]), place))
    return _decided(found, evidence, len(looked_at), len(annotated))


def _decided(found: Annotations, evidence: _Evidence, looked_at: int, count: int) -> Annotations:
    name = OBJECTS if ANNOTATED in found.columns.column_names else MASK
    stored, upright, unclear = len(evidence.stored), len(evidence.upright), evidence.unclear + evidence.unsized
    if stored and upright:
        raise InputError(
            f"{name}: EXIF turns some images, and the sizes in the annotations disagree. Those of {counted(stored, 'image')}"
            f" are of the image as it is stored ({printable(evidence.stored[0])}), those of {upright:,} of the upright image"
            f" ({printable(evidence.upright[0])}). Convert them apart, or give --annotation-frame stored or upright, which"
            " rejects the others"
        )
    whole = looked_at == count
    among = "" if whole else f" of the {looked_at:,} that were looked at"
    if stored or upright:
        if whole and not unclear:
            return found
        frame, kind = ("stored", "the image as it is stored") if stored else ("upright", "the upright image")
        said = (
            f"{name}: EXIF turns {counted(unclear, 'image')}{among} whose size does not tell the frame; the annotations are"
            f" taken as those of {kind}, as the sizes of {stored or upright:,} other{'' if stored + upright == 1 else 's'} say"
        )
        return replace(found, frame=frame, notices=(*found.notices, said) if unclear else found.notices)
    if not unclear:
        return found
    why = "have the same size in both frames" if evidence.unclear else "have no size in the annotations"
    said = (
        f"{name}: EXIF turns {counted(unclear, 'image')}{among} that {why}, and no other image tells the frame; the annotations"
        " are taken as those of the upright image (--annotation-frame stored changes that)"
    )
    return replace(found, frame="upright" if evidence.unclear else None, notices=(*found.notices, said))


def _add(evidence: _Evidence, place: Place, stored: Size, upright: Size, said: Size | None) -> None:
    if said is None:
        evidence.unsized += 1
    elif stored == upright:
        evidence.unclear += said == stored
    elif said == stored:
        evidence.stored.append(place.opened)
    elif said == upright:
        evidence.upright.append(place.opened)


def _turn(path: str) -> tuple[Size, Size] | None:
    """Return the size of an image that EXIF turns, as it is stored and upright; None for one that it does not turn.

    None also for one whose first bytes do not tell: the worker rejects it if its size does not tell either.
    """
    try:
        data = begin_of(path, BEGIN_BYTES)
        if not _may_be_turned(data):
            return None
        opened = _opened(data) if data.startswith(_JPEG) else None
        opened = opened or open_image(begin_of(path, _WHOLE))
    except (OSError, Rejection):
        return None  # the worker says what is wrong with it
    if opened.orientation == 1:
        return None
    return (opened.size[::-1] if opened.orientation >= 5 else opened.size), opened.size


def _opened(data: bytes) -> Opened | None:
    try:
        return open_image(data)
    except Rejection:
        return None


def _may_be_turned(data: bytes) -> bool:
    """Return whether the first bytes of an image have a place for an orientation."""
    if data.startswith(_JPEG):
        return b"Exif\0\0" in data
    if data.startswith(b"\x89PNG"):
        return any(kind in data for kind in (b"eXIf", b"tEXt", b"zTXt", b"iTXt"))
    return data[:4] == b"RIFF" and data[12:16] == b"VP8X" and bool(data[20] & 0x08)


def _annotated_size(found: Annotations, row: int, place: Place) -> Size | None:
    """Return the size that annotations say an image has, None if they do not; of a mask it is its own."""
    if ANNOTATED in found.columns.column_names:
        how = found.columns[ANNOTATED][row].as_py()
        known = how is not None and not how["relative"] and how["width"] is not None and how["height"] is not None
        return (how["width"], how["height"]) if known else None
    file = found.columns[MASK_FILE][row].as_py()
    try:
        head = begin_of(os.path.normpath(f"{place.folder}/{file['path']}"), 24)
        width, height = struct.unpack(">II", head[16:24])
    except (OSError, struct.error):
        return None
    return width, height
