"""What becomes of annotations beside their image: shares of its size become pixels, and all is in
the frame of the upright one.

The image is opened before, and its pixels are not needed: only those of masks are.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardctl.errors import InputError, Rejection
from shardctl.format.arrays import Array, Floats
from shardctl.format.roles import Mask, Role, Sample
from shardctl.images.codecs import rle
from shardctl.images.codecs.image import Opened, decode_mask, mask_png, open_image, turned
from shardctl.images.defaults import MAX_PIXELS
from shardctl.images.object_geometry import cut_to
from shardctl.images.polygons import Polygons
from shardctl.sources.annotations.base import BAD, MASK_FILE, Annotations
from shardctl.sources.annotations.masks import MASK
from shardctl.sources.annotations.objects import (
    ANNOTATED,
    OBJECTS,
    OUTSIDE_PIXELS,
    Size,
    as_boxes,
    fault_of_rle,
)
from shardctl.sources.files import BEGIN_BYTES, begin_of, begins_ahead
from shardctl.system.locations import follow
from shardctl.system.permutation import evenly_spaced
from shardctl.system.text import counted, printable

Fields = dict[str, Any]
"""A value of a column of structs: objects, a mask, how they are annotated."""

Points = Floats
"""Places in an image, (n, 2): x and y, in corner coordinates."""


def finish_annotations(sample: Sample, opened: Opened, role: Role | None) -> int:
    """Make the annotations of a sample those of its upright image. What was for this step only is
    taken out of the sample.

    `role` is that of a mask whose numbers are checked, None where they are not. Returns how many
    objects the rule for boxes has dropped. Raises Rejection (stage `decode`) if they are of an
    image of another size.
    """
    how = sample.pop(ANNOTATED, None)
    file = sample.pop(MASK_FILE, None)
    dropped = 0
    if how is not None and sample.get(OBJECTS) is not None:
        given = sample[OBJECTS]
        sample[OBJECTS] = finished_objects(given, how, opened.size, opened.orientation)
        dropped = len(given["bbox"]) - len(sample[OBJECTS]["bbox"])
    if file is not None and sample.get(MASK) is not None:
        sample[MASK] = _finished_mask(sample[MASK], file["frame"], file["bits"], opened, role)
    return dropped


def finished_objects(objects: Fields, how: Fields, upright: Size, orientation: int) -> Fields:
    """Return objects in the frame of an upright image of this size. `how` is a value of the column
    ANNOTATED.

    Raises Rejection if they are of an image of another size.
    """
    orientation = orientation_of(_size_said(how), how["frame"], upright, orientation, "annotations")
    stored = as_stored(upright, orientation)
    if how["relative"]:  # shares of the size
        scale = np.asarray(stored, np.float64)
        boxes = as_boxes(objects["bbox"]) * np.tile(scale, 2)
        objects = _moved(objects, boxes, lambda points: points * scale)
    for runs in filter(None, objects.get("rle", ())):
        _check_rle(runs, stored)
    if orientation != 1:
        objects = turned_objects(objects, orientation, stored)
    return fitted(objects, upright, how["boxes"])


def _size_said(how: Fields) -> Size | None:
    size = how["width"], how["height"]
    return None if None in size else size


def orientation_of(
    annotated: Size | None, frame: str, upright: Size, orientation: int, what: str
) -> int:
    """Return how annotations must be turned (as EXIF counts it, 1: not at all) to be those of the
    upright image.

    `annotated` is the size that they say, None if they do not. Raises Rejection if that is not the
    size of their frame, and where it does not tell the frame: the images that were looked at for
    the plan have not told it either.
    """
    stored = as_stored(upright, orientation)
    chosen = {"stored": orientation, "upright": 1}.get(frame)
    if chosen is None:
        chosen = orientation if annotated == stored and annotated != upright else 1
    expected = upright if chosen == 1 and frame != "stored" else stored
    if annotated is not None and annotated != expected:
        sizes = f"{upright[0]}x{upright[1]}"
        if stored != upright:
            sizes += f" upright, {stored[0]}x{stored[1]} as stored"
        message = f"its {what} are of an image of {annotated[0]}x{annotated[1]}, and it has {sizes}"
        if frame != "auto":
            message += (
                f"; --annotation-frame or the other images say that the {what} are of the "
                f"image {_FRAMES[frame]}"
            )
        raise Rejection("decode", "other-size", message)
    if frame == "auto" and annotated is not None and orientation != 1 and stored == upright:
        message = f"EXIF turns it, and the stored and the upright image have the size of its {what}"
        raise Rejection(
            "decode", "unknown-frame", f"{message}; give --annotation-frame stored or upright"
        )
    return chosen


_FRAMES = {"stored": "as it is stored", "upright": "upright"}


def as_stored(upright: Size, orientation: int) -> Size:
    """Return the size of an image as it is stored, which EXIF turns to be upright."""
    return upright[::-1] if orientation >= 5 else upright


def turned_objects(objects: Fields, orientation: int, stored: Size) -> Fields:
    """Return objects of an image as it is stored as they are in the upright one."""

    def turn(points: Points) -> Points:
        x, y = points.T
        x = stored[0] - x if orientation in (2, 3, 7, 8) else x
        y = stored[1] - y if orientation in (3, 4, 6, 7) else y
        return np.stack([y, x] if orientation >= 5 else [x, y], axis=1)

    boxes = as_boxes(objects["bbox"])
    one, other = turn(boxes[:, :2]), turn(boxes[:, :2] + boxes[:, 2:])
    corner = np.minimum(one, other)
    boxes = np.concatenate([corner, np.maximum(one, other) - corner], axis=1)
    made = _moved(objects, boxes, turn)
    if "rle" in objects:
        made["rle"] = list(objects["rle"])
    for place, runs in enumerate(objects.get("rle", ())):
        if runs is not None:
            mask = Image.fromarray(rle.decode(runs["counts"], runs["size"]).astype(np.uint8))
            values = np.asarray(turned(mask, orientation)).astype(bool)
            made["rle"][place] = {"size": list(values.shape), "counts": rle.encode(values)}
    return made


def _moved(objects: Fields, boxes: Points, move: Callable[[Points], Points]) -> Fields:
    """Return objects with these boxes, and their polygons and keypoints, as far as they have such,
    where `move` puts them. A keypoint that is not there stays at 0, 0."""
    made = {**objects, "bbox": boxes.tolist()}
    if "segmentation" in objects:
        made["segmentation"] = [
            [
                move(np.asarray(each, np.float64).reshape(-1, 2)).ravel().tolist()
                for each in polygons
            ]
            for polygons in objects["segmentation"]
        ]
    if "keypoints" in objects:
        made["keypoints"] = []
        for points in objects["keypoints"]:
            values = np.asarray(points, np.float64).reshape(-1, 3)
            there = values[:, 2:] > 0
            moved = np.where(there, move(values[:, :2]), 0.0)
            made["keypoints"].append(np.concatenate([moved, values[:, 2:]], axis=1).tolist())
    return made


def _check_rle(runs: Fields, stored: Size) -> None:
    """Raise Rejection if a mask of an object is not of the size of the image."""
    height, width = runs["size"]
    error, wrong = BAD, fault_of_rle(runs)
    if (width, height) != stored:
        error = "other-size"
        wrong = f"is of {width}x{height}, and the image has {stored[0]}x{stored[1]}"
    if wrong:
        raise Rejection("decode", error, f"the RLE of an object {wrong}")


def fitted(objects: Fields, size: Size, rule: str) -> Fields:
    """Return objects whose boxes are within an image of this size, by the rule: `keep`, `clip` or
    `drop`.

    `clip` cuts the boxes, and drops objects whose box has no area then, or of whose polygons
    nothing is in the image. `area` is that of what is left; polygons stay as they are. `drop` drops
    objects whose box reaches over the edge by more than half a pixel, or has no area.
    """
    if rule == "keep" or not objects["bbox"]:
        return objects
    boxes = as_boxes(objects["bbox"])
    low, high = boxes[:, :2], boxes[:, :2] + boxes[:, 2:]
    edges, edge, result = np.hstack([low, high]), np.asarray(size, np.float64), {**objects}
    if rule == "drop":
        kept = (
            (low >= -OUTSIDE_PIXELS) & (high <= edge + OUTSIDE_PIXELS) & (boxes[:, 2:] > 0)
        ).all(axis=1)
    else:
        over = np.asarray(((low < 0) | (high > edge)).any(axis=1))
        low, high = np.clip(low, 0, edge), np.clip(high, 0, edge)
        # others keep each digit
        boxes = np.where(over[:, None], np.hstack([low, high - low]), boxes)
        kept = (boxes[:, 2:] > 0).all(axis=1)
        if over.any():
            polygons = Polygons.of(objects["segmentation"]) if "segmentation" in objects else None
            left = cut_to(edges, polygons, np.zeros(2), edge)[2]
            # an RLE is of the image alone
            left[[runs is not None for runs in objects.get("rle", [None] * len(left))]] = 1.0
            kept &= (left > 0) | ~over
            if "area" in objects:
                pairs = zip(objects["area"], np.where(over, left, 1.0).tolist(), strict=True)
                result["area"] = [None if area is None else area * share for area, share in pairs]
    result["bbox"] = boxes.tolist()
    if kept.all():
        return result
    places = np.flatnonzero(kept).tolist()
    return {name: [items[place] for place in places] for name, items in result.items()}


@lru_cache(maxsize=1)
def mask_values(data: bytes, size: Size) -> npt.NDArray[np.unsignedinteger[Any]]:
    """Return the numbers of the mask of an image of this size, (height, width), not to be changed.
    Raises Rejection.

    The last ones are kept: a mask is looked at when its image is opened, and again for each variant
    that moves it.
    """
    values = decode_mask(data, max(MAX_PIXELS, size[0] * size[1]))
    values.flags.writeable = False
    return values


def _finished_mask(
    mask: Fields, frame: str, bits: int, opened: Opened, role: Role | None
) -> Fields:
    """Return a mask file as it is where it fits the upright image, else turned. Raises
    Rejection."""
    try:
        values = mask_values(mask["bytes"], opened.size)
    except Rejection as rejection:
        raise Rejection("decode", rejection.error, f"its mask: {rejection.message}") from None
    if values.dtype.itemsize * 8 > bits:
        message = (
            "its mask has 16 bits for each pixel, and the others have 8; store all masks "
            "with 16, or this one with 8"
        )
        raise Rejection("decode", "not-a-mask", message)
    if isinstance(role, Mask) and role.names is not None:
        ignored = -1 if role.ignore is None else role.ignore
        beyond = values[(values >= len(role.names)) & (values != ignored)]
        if beyond.size:
            message = (
                f"its mask has the number {beyond[0]}, and there are names for 0 to "
                f"{len(role.names) - 1}; --labels masks+ignore=NUMBER:DIR says which is no class"
            )
            raise Rejection("decode", BAD, message)
    return upright_mask(mask, values.shape[::-1], frame, opened)


def upright_mask(mask: Fields, size: Size, frame: str, opened: Opened) -> Fields:
    """Return a mask, whose pixels are (width, height), as it is where it fits the upright image,
    else turned. Raises Rejection.

    A mask that has an orientation of its own is upright when it is turned by that.
    """
    data, own = mask["bytes"], 1
    if may_be_turned(data):
        own = open_image(data, max(MAX_PIXELS, size[0] * size[1])).orientation
    orientation = orientation_of(
        size, frame if own == 1 else "upright", opened.size, opened.orientation, "mask's pixels"
    )
    if orientation == own == 1:
        return mask
    values: Array = mask_values(data, opened.size)
    with Image.open(io.BytesIO(data)) as image:
        values = values > 0 if image.mode == "1" else values
    made = mask_png(np.asarray(turned(Image.fromarray(values), orientation)), data)
    return {**mask, "bytes": made}


def may_be_turned(data: bytes) -> bool:
    """Return whether the first bytes of an image have a place for an orientation."""
    if data.startswith(b"\xff\xd8"):
        return b"Exif\0\0" in data
    if data.startswith(b"\x89PNG"):
        return any(kind in data for kind in (b"eXIf", b"tEXt", b"zTXt", b"iTXt"))
    return data[:4] == b"RIFF" and data[12:16] == b"VP8X" and bool(data[20] & 0x08)


LOOKED_AT = 4096
"""Images of a source whose first bytes `convert` looks at. All others follow what these say, or
become rejects."""


ITS_OWN = (0, 0)
"""Stands for the size of a mask that has an EXIF orientation of its own, which says nothing of
others."""

_WHOLE = 1 << 26
"""Bytes of a file of which the first ones do not say its size."""


class Evidence:
    """Images that EXIF turns: the paths of those that say a frame, and how many do not, with a size
    and without."""

    unclear = unsized = 0

    def __init__(self) -> None:
        self.stored, self.upright = list[str](), list[str]()

    def add(self, shown: str, opened: Opened, said: Size | None) -> None:
        """Add an image that EXIF turns, and the size that its annotations say, if they do."""
        stored = as_stored(opened.size, opened.orientation)
        if said is None:
            self.unsized += 1
        elif stored == opened.size:
            self.unclear += said == stored
        elif said == stored:
            self.stored.append(shown)
        elif said == opened.size:
            self.upright.append(shown)

    def frame(self) -> str | None:
        """Return the frame that the images tell, None for none; upright where sizes do not tell
        it."""
        if self.stored:
            return "stored"
        return "upright" if self.upright or self.unclear else None

    def notices(self, name: str, among: str) -> Sequence[str]:
        """Say how many images do not tell the frame of the annotations `name`, and which one is
        taken.

        `among` says which images were looked at, "" for all. Raises InputError where sizes say both
        frames.
        """
        stored, upright, unclear = len(self.stored), len(self.upright), self.unclear + self.unsized
        if stored and upright:
            raise InputError(
                f"{name}: EXIF turns some images, and the sizes in the annotations disagree: "
                f"{counted(stored, 'image')} fit the stored image ({printable(self.stored[0])}), "
                f"{upright:,} the upright one ({printable(self.upright[0])}); --annotation-frame "
                "stored or upright rejects the others"
            )
        if not unclear:
            return ()
        why = "as others say" if stored or upright else "--annotation-frame stored changes that"
        return (
            f"{name}: EXIF turns {counted(unclear, 'image')}{among} whose size does not tell the "
            f"frame; annotations are of the {'stored' if stored else 'upright'} image ({why})",
        )


def settled(
    found: Annotations, frame: str, place_of: Callable[[Sequence[int]], list[tuple[str, str]]]
) -> Annotations:
    """Return annotations with the frame that some images tell for all, and with a notice on those
    that do not tell it.

    `frame` is the user's: only for `auto` are images looked at. `place_of` returns by what an input
    is opened, and the folder of its source. Raises InputError where sizes say both frames.
    """
    if frame != "auto" or not {ANNOTATED, MASK_FILE}.intersection(found.columns.column_names):
        return found
    annotated = np.flatnonzero(found.rows >= 0)
    looked_at = annotated[evenly_spaced(len(annotated), LOOKED_AT)].tolist()
    evidence = Evidence()
    places = zip(looked_at, place_of(looked_at), strict=True)
    for row, (path, folder) in begins_ahead(places, lambda each: each[1][0]):
        with suppress(OSError, Rejection):  # the worker says what is wrong with it
            data = begin_of(path, BEGIN_BYTES)
            opened = _opened(path, data) if may_be_turned(data) else None
            if opened is not None and opened.orientation != 1:
                evidence.add(path, opened, _annotated_size(found, int(found.rows[row]), folder))
    is_whole = len(looked_at) == len(annotated)
    among = "" if is_whole else f" of the {len(looked_at):,} that were looked at"
    said_of = evidence.notices(OBJECTS if ANNOTATED in found.columns.column_names else MASK, among)
    if is_whole and not said_of:  # the rows tell all
        return found
    return replace(found, frame=evidence.frame(), notices=(*found.notices, *said_of))


def _opened(path: str, data: bytes) -> Opened:
    """Open an image, a JPEG by its first bytes where they are enough. Raises OSError, Rejection."""
    if data.startswith(b"\xff\xd8"):
        with suppress(Rejection):
            return open_image(data)
    return open_image(begin_of(path, _WHOLE))


def _annotated_size(found: Annotations, row: int, folder: str) -> Size | None:
    """Return the size that annotations say an image has, None if they do not; of a mask it is that
    of its pixels."""
    if ANNOTATED in found.columns.column_names:
        how = found.columns[ANNOTATED][row].as_py() or {"relative": True}
        return None if how["relative"] else _size_said(how)
    file = found.columns[MASK_FILE][row].as_py()
    try:
        mask = open_image(begin_of(follow(folder, file["path"]), _WHOLE))
    except (OSError, Rejection):
        return None
    return mask.size if mask.orientation == 1 else ITS_OWN
