"""Reading a COCO file once, from its beginning to its end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import InputError
from shardctl.sources.annotations.coco.elements import BadError, members_of
from shardctl.sources.annotations.coco.file import (
    CAPTION_COLUMNS,
    MEMBERS,
    NO_ID,
    OBJECT_COLUMNS,
    CocoFile,
    Numbers,
    Rows,
)
from shardctl.sources.annotations.coco.plain import OF_OBJECT, PlainObjects
from shardctl.sources.annotations.json_parts import JsonParts
from shardctl.sources.annotations.objects import TableWriter, others_in


def read_file(opened: str, scratch: Path) -> CocoFile:
    """Read a file once, from its beginning to its end. Raises InputError."""
    file = CocoFile(opened)
    objects = TableWriter(scratch.with_suffix(".objects"), OBJECT_COLUMNS)
    captions = TableWriter(scratch.with_suffix(".captions"), CAPTION_COLUMNS)
    ids: list[Numbers] = []
    names: list[pa.Array] = []
    sizes: list[npt.NDArray[np.int32]] = []
    seen: set[str] = set()
    parts = JsonParts(opened, {"annotations": PlainObjects(file.others)})
    for part in parts:
        seen.add(part.name)
        if part.name == "images":
            _check_images(file, part.first, part.elements)
            ids.append(_of_int64([image["id"] for image in part.elements], file, "an id of images"))
            names.append(_strings([_name_of(image) for image in part.elements], file))
            sizes.append(
                np.array([_size(image) for image in part.elements], np.int32).reshape(-1, 2)
            )
        elif part.columns is not None:
            _add_plain(file, part.columns, objects)
        elif part.name == "annotations":
            _add_annotations(file, part.first, part.elements, objects, captions)
        elif part.name == "categories":
            file.categories += part.elements
    missing = [name for name in ("images", "annotations") if name not in seen]
    if missing:
        raise InputError(
            f"{file.shown}: it has no {' and no '.join(missing)}, as a COCO file with annotations "
            "has"
        )
    if ids:
        file.images, file.sizes = np.concatenate(ids), np.concatenate(sizes)
        file.names = pa.chunked_array(names, pa.large_string())
    file.digest = parts.sha256
    file.objects = Rows(objects.finish())
    found = Rows(captions.finish())
    file.captions = found if len(found) else None
    return file


def _strings(values: list[str], file: CocoFile) -> pa.Array:
    try:
        return pa.array(values, pa.large_string())
    except UnicodeEncodeError:
        raise InputError(
            f"{file.shown}: a file name has an incomplete character (half of a surrogate pair, "
            "such as \\ud83d)"
        ) from None


def _of_int64(values: list[int], file: CocoFile, what: str) -> Numbers:
    try:
        return np.array(values, np.int64)
    except OverflowError:
        raise InputError(f"{file.shown}: {what} is too large: an id has at most 64 bits") from None


OF_CAPTION = frozenset(("id", "image_id", "caption"))
KNOWN = {"id", "file_name", "width", "height", "license", "coco_url", "flickr_url", "date_captured"}
"""What images of COCO say. A dataset has no use for the last four."""


def _check_images(file: CocoFile, first: int, images: list[Any]) -> None:
    for number, image in enumerate(images, first):
        if (
            not isinstance(image, dict)
            or type(image.get("id")) is not int
            or type(_name_of(image)) is not str
        ):
            raise InputError(
                f"{file.shown}: image {number} of images has no id that is a whole number, or no "
                "file_name"
            )
        file.others.update(others_in(image, KNOWN, "image"))


def _name_of(image: dict[str, Any]) -> Any:
    """Return the name of an image. LVIS has its address alone, whose last parts are the name in
    COCO."""
    url = image.get("coco_url")
    return image.get(
        "file_name", url.partition("://")[2].partition("/")[2] if isinstance(url, str) else None
    )


def _size(image: dict[str, Any]) -> tuple[int, int]:
    """Return (width, height); 0, 0 if they are not known. Some tools write 640.0, or "640"."""
    try:
        width, height = (float(image[name]) for name in ("width", "height"))
    except (KeyError, TypeError, ValueError, OverflowError):
        return 0, 0
    fits = width.is_integer() and height.is_integer() and 0 < width < 2**31 and 0 < height < 2**31
    return (int(width), int(height)) if fits else (0, 0)


def _add_annotations(
    file: CocoFile, first: int, elements: list[Any], objects: TableWriter, captions: TableWriter
) -> None:
    marked: list[dict[str, Any]] = []
    said: list[tuple[int, int, str]] = []
    for number, element in enumerate(elements, first):
        image = element.get("image_id") if isinstance(element, dict) else None
        if type(image) is not int or not -(2**63) < image < 2**63:
            raise InputError(
                f"{file.shown}: annotation {number} of annotations has no image_id that is a whole "
                "number of 64 bits"
            )
        caption = element.get("caption")
        is_object = caption is None or (
            element.get("category_id") is not None
            and bool(element.get("bbox") or element.get("segmentation"))
        )
        known, of = (OF_OBJECT, "object") if is_object else (OF_CAPTION, "caption")
        if type(element.get("id", 0)) is not int:
            known = known - {"id"}
        file.others.update(others_in(element, known, of))
        if is_object:
            marked.append(_object(file, number, element))
        if isinstance(caption, str):
            said.append(
                (
                    image,
                    NO_ID if element.get("id") is None else hash(f"{element['id']} {caption}"),
                    caption,
                )
            )
        elif caption is not None:
            file.faults.setdefault(
                element["image_id"],
                f"{file.shown}: the caption of annotation {number} is not a text",
            )
    if marked:
        objects.write(_columns(file, marked))
    if said:
        try:
            captions.write(
                pa.array(each, f.type)
                for each, f in zip(zip(*said, strict=True), CAPTION_COLUMNS, strict=True)
            )
        except UnicodeEncodeError:
            raise InputError(
                f"{file.shown}: a caption has an incomplete character (half of a surrogate pair, "
                "such as \\ud83d)"
            ) from None


def _add_plain(file: CocoFile, columns: pa.RecordBatch, objects: TableWriter) -> None:
    objects.write(columns.columns)
    file.crowds += columns.column("iscrowd").true_count
    for name in MEMBERS:
        column = columns.column(name)
        is_list = pa.types.is_list(column.type)
        if len(column.values if is_list else column.drop_null()):
            file.members.add(name)


def _object(file: CocoFile, number: int, element: dict[str, Any]) -> dict[str, Any]:
    """Return an object with the members of our column. What is wrong with it is noted in the file's
    faults."""
    own = element.get("id")
    record: dict[str, Any] = {
        "image": element["image_id"],
        "number": number,
        "id": own if type(own) is int else None,
    }
    try:
        return record | members_of(element)
    except BadError as error:
        return _bad(file, record, str(error))


def _bad(file: CocoFile, record: dict[str, Any], why: str) -> dict[str, Any]:
    number, own = record["number"], record["id"]
    of_id = f" (id {own})" if own is not None else ""
    file.faults.setdefault(
        record["image"], f"{file.shown}: annotation {number} of annotations{of_id} {why}"
    )
    return {
        "image": record["image"],
        "number": number,
        "category": NO_ID,
        "bbox": [0.0] * 4,
        "segmentation": [],
        "keypoints": [],
    }


def _columns(file: CocoFile, marked: list[dict[str, Any]]) -> list[pa.Array]:
    """Return objects as columns, those with wrong values as faults of their images."""
    try:
        columns = _arrays(marked)
        wrong = _not_finite(columns)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        wrong, columns = np.array([_odd_member(each) is not None for each in marked]), []
    if wrong.any():
        marked = [
            _bad(file, each, f"has something else than finite numbers as its {_odd_member(each)}")
            if bad
            else each
            for each, bad in zip(marked, wrong.tolist(), strict=True)
        ]
        columns = _arrays(marked)
    file.crowds += sum(bool(each.get("iscrowd")) for each in marked)
    for name in MEMBERS:
        if name not in file.members and any(each.get(name) not in (None, []) for each in marked):
            file.members.add(name)
    return columns


def _odd_member(each: dict[str, Any]) -> str | None:
    """Return the member of an object, as COCO calls it, whose values are no numbers, not finite or
    beyond their type."""
    own_names = {"image": "image_id", "category": "category_id", "rle": "segmentation"}
    for f in OBJECT_COLUMNS:
        try:
            values = pa.array([each.get(f.name)], f.type).to_pylist()
            odd = f.name in ("bbox", "segmentation", "keypoints") and not _is_finite(values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            odd = True
        if odd:
            return str(own_names.get(f.name, f.name))
    return None


def _arrays(marked: list[dict[str, Any]]) -> list[pa.Array]:
    return [pa.array([each.get(f.name) for each in marked], f.type) for f in OBJECT_COLUMNS]


def _not_finite(columns: list[pa.Array]) -> npt.NDArray[np.bool_]:
    """Return which objects have places that are no numbers, or beyond float32."""
    by_name = dict(zip(OBJECT_COLUMNS.names, columns, strict=True))
    wrong: npt.NDArray[np.bool_] = ~np.isfinite(
        by_name["bbox"].flatten().to_numpy().reshape(-1, 4)
    ).all(axis=1)
    for name in ("segmentation", "keypoints"):
        if not np.isfinite(by_name[name].flatten().flatten().to_numpy()).all():
            wrong |= [not _is_finite(each) for each in by_name[name].to_pylist()]
    return wrong


def _is_finite(value: Any) -> bool:
    return all(map(_is_finite, value)) if isinstance(value, list) else math.isfinite(value)
