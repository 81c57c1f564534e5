"""COCO: instances, keypoints and captions, from one file or several that belong together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.annotations.base import AnnotationRule, Annotations, Source, fault, no_options
from shardctl.annotations.inputs import Inputs
from shardctl.annotations.json_parts import JsonParts
from shardctl.annotations.objects import (
    ALWAYS,
    ANNOTATED,
    ANNOTATED_TYPE,
    ITEMS,
    OBJECTS,
    OUTSIDE_PIXELS,
    POINTS,
    TableWriter,
    objects_field,
    objects_type,
    said_of_boxes,
)
from shardctl.codecs import rle
from shardctl.errors import InputError, Rejection
from shardctl.roles import Objects, Role
from shardctl.sources.labels import some
from shardctl.storage import counted, printable

Numbers = npt.NDArray[np.int64]

IMAGES_AT_ONCE = 4096
"""Images whose annotations are put together at a time."""

NO_ID = -(2**63)

CAPTIONS = "captions"
IMAGE_ID = "image_id"

_MEMBERS = ("id", "category", "bbox", "area", "iscrowd", "segmentation", "rle", "keypoints")
"""What a COCO file may know of an object."""

_STORED = pa.schema([("image", pa.int64()), *((name, ITEMS[name]) for name in _MEMBERS)])
_STORED_CAPTIONS = pa.schema([("image", pa.int64()), ("caption", pa.string())])


@dataclass
class _File:
    """What was read of one file: its images as columns, its categories, and its annotations in scratch files."""

    path: Path
    folder: str | None
    images: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    names: pa.ChunkedArray = field(default_factory=lambda: pa.chunked_array([], pa.large_string()))
    sizes: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 2), np.int32))
    rows: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    categories: list[dict[str, Any]] = field(default_factory=list)
    objects: _Rows | None = None
    captions: _Rows | None = None
    members: set[str] = field(default_factory=set)
    faults: dict[int, str] = field(default_factory=dict)
    crowds: int = 0
    digest: str = ""

    @property
    def shown(self) -> str:
        """The path for a message."""
        return printable(str(self.path))

    @cached_property
    def order(self) -> Numbers:
        """The images by their ids."""
        return np.argsort(self.images, kind="stable")

    def places(self, ids: Numbers) -> Numbers:
        """Return which image each id is, -1 for those that are none."""
        ordered = self.images[self.order]
        place = np.searchsorted(ordered, ids)
        there = place < len(ordered)
        there[there] = ordered[place[there]] == ids[there]
        return np.where(there, self.order[np.minimum(place, max(len(ordered) - 1, 0))] if len(ordered) else -1, -1)


class _Rows:
    """The rows of a mapped scratch file, taken from anywhere, and one of its columns as a whole."""

    def __init__(self, table: pa.Table) -> None:
        self._batches = table.to_batches()
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])
        self._schema = table.schema

    def __len__(self) -> int:
        return int(self._starts[-1])

    def column(self, name: str) -> Numbers:
        """Return a column of numbers, null as NO_ID."""
        parts = [batch.column(name).fill_null(NO_ID).to_numpy() for batch in self._batches]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the number of the first row of each batch, and the batch."""
        yield from zip(self._starts.tolist(), self._batches, strict=False)

    def take(self, rows: Numbers) -> pa.RecordBatch:
        """Return some rows; one of null for -1. Batch by batch: a take from the whole would first copy it together."""
        of = np.searchsorted(self._starts, rows, side="right") - 1
        pieces = [_nulls(self._schema)]
        order = [np.flatnonzero(rows < 0)[:0]]
        for number in np.unique(of[rows >= 0]).tolist():
            here = np.flatnonzero(of == number)
            pieces.append(self._batches[number].take(pa.array(rows[here] - self._starts[number])))
            order.append(here)
        together = pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]
        place = np.zeros(len(rows), np.int64)  # the row of nulls is the first
        place[np.concatenate(order)] = np.arange(1, together.num_rows)
        return together.take(pa.array(place))


def _nulls(schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.nulls(1, f.type) for f in schema], schema=schema)


class Coco:
    """The JSON files of the COCO datasets and of the many tools that write such."""

    name: ClassVar[str] = "coco"
    needs_path: ClassVar[bool] = True

    def check_option(self, name: str, value: str) -> None:
        """Raise UsageError: it has none."""
        no_options(self, name)

    def read(self, sources: Sequence[Source], inputs: Inputs, rule: AnnotationRule, scratch: Path) -> Annotations:
        """Read all files. Objects of the same id and image in several of them are one object."""
        files = [_read_file(Path(source.path), inputs, scratch / f"coco-{number}") for number, source in enumerate(sources)]
        notices = [notice for file in files for notice in _find_inputs(file, inputs)]
        if not any((file.rows >= 0).any() for file in files):
            example = some(files[0].names.slice(0, 3).to_pylist())
            raise InputError(
                f"{files[0].shown}: none of its images is among the inputs (it names {example}); give their folder"
            )
        marking = [file for file in files if file.objects is not None and (len(file.objects) or file.captions is None)]
        captioning = [file for file in files if file.captions is not None]
        categories, said = _categories(marking)
        table = _Joined(marking, captioning, categories, inputs, rule)
        notices += [*said, *table.notices]
        return table.write(scratch / "coco.arrow", [file.digest for file in files], notices)


# --- reading one file ---


def _read_file(path: Path, inputs: Inputs, scratch: Path) -> _File:
    """Read a file once, from its beginning to its end. Raises InputError."""
    file = _File(path, inputs.below(path.parent))
    objects = TableWriter(scratch.with_suffix(".objects"), _STORED)
    captions = TableWriter(scratch.with_suffix(".captions"), _STORED_CAPTIONS)
    ids: list[Numbers] = []
    names: list[pa.Array] = []
    sizes: list[npt.NDArray[np.int32]] = []
    seen: set[str] = set()
    parts = JsonParts(path)
    for part in parts:
        seen.add(part.name)
        if part.name == "images":
            _check_images(file, part.first, part.elements)
            ids.append(_of_int64([image["id"] for image in part.elements], file, "an id of images"))
            names.append(_strings([image["file_name"] for image in part.elements], file))
            sizes.append(np.array([_size(image) for image in part.elements], np.int32).reshape(-1, 2))
        elif part.name == "annotations":
            _add_annotations(file, part.first, part.elements, objects, captions)
        elif part.name == "categories":
            file.categories += part.elements
    missing = [name for name in ("images", "annotations") if name not in seen]
    if missing:
        raise InputError(f"{file.shown}: it has no {' and no '.join(missing)}, as a COCO file with annotations has")
    if ids:
        file.images, file.sizes = np.concatenate(ids), np.concatenate(sizes)
        file.names = pa.chunked_array(names, pa.large_string())
    file.digest = parts.sha256
    file.objects = _Rows(objects.finish())
    found = _Rows(captions.finish())
    file.captions = found if len(found) else None
    return file


def _strings(values: list[str], file: _File) -> pa.Array:
    try:
        return pa.array(values, pa.large_string())
    except UnicodeEncodeError:
        raise InputError(f"{file.shown}: a file name has half of a surrogate pair, which is no text") from None


def _of_int64(values: list[int], file: _File, what: str) -> Numbers:
    try:
        return np.array(values, np.int64)
    except OverflowError:
        raise InputError(f"{file.shown}: {what} is beyond 64 bits") from None


def _check_images(file: _File, first: int, images: list[Any]) -> None:
    for number, image in enumerate(images, first):
        if not isinstance(image, dict) or type(image.get("id")) is not int or type(image.get("file_name")) is not str:
            raise InputError(f"{file.shown}: image {number} of images has no id that is a whole number, or no file_name")


def _size(image: dict[str, Any]) -> tuple[int, int]:
    """Return (width, height); 0, 0 if they are not known."""
    width, height = image.get("width"), image.get("height")
    fits = type(width) is int and type(height) is int and 0 < width < 2**31 and 0 < height < 2**31
    return (width, height) if fits else (0, 0)  # type: ignore[return-value]  # they were checked


def _add_annotations(file: _File, first: int, elements: list[Any], objects: TableWriter, captions: TableWriter) -> None:
    marked: list[dict[str, Any]] = []
    said: list[tuple[int, str]] = []
    for number, element in enumerate(elements, first):
        if not isinstance(element, dict) or type(element.get("image_id")) is not int:
            raise InputError(f"{file.shown}: annotation {number} of annotations has no image_id that is a whole number")
        caption = element.get("caption")
        if caption is None:
            marked.append(_object(file, number, element))
        elif isinstance(caption, str):
            said.append((element["image_id"], caption))
        else:
            file.faults.setdefault(element["image_id"], f"{file.shown}: the caption of annotation {number} is no text")
    if marked:
        objects.write(_columns(file, marked))
    if said:
        images, texts = zip(*said, strict=True)
        try:
            captions.write([pa.array(_of_int64(list(images), file, "an image_id")), pa.array(texts, pa.string())])
        except UnicodeEncodeError:
            raise InputError(f"{file.shown}: a caption has half of a surrogate pair, which is no text") from None


def _object(file: _File, number: int, element: dict[str, Any]) -> dict[str, Any]:
    """Return an object with the members of our column. What is wrong with it is noted in the file's faults."""
    own = element.get("id")
    record: dict[str, Any] = {"image": element["image_id"], "number": number, "id": own if type(own) is int else None}
    try:
        return record | _members(element)
    except _BadError as error:
        return _bad(file, record, str(error))


def _bad(file: _File, record: dict[str, Any], why: str) -> dict[str, Any]:
    number, own = record["number"], record["id"]
    of_id = f" (id {own})" if own is not None else ""
    file.faults.setdefault(record["image"], f"{file.shown}: annotation {number} of annotations{of_id} {why}")
    return {
        "image": record["image"],
        "number": number,
        "category": NO_ID,
        "bbox": [0.0] * 4,
        "segmentation": [],
        "keypoints": [],
    }


class _BadError(ValueError):
    """What is wrong with an annotation, as the end of a sentence."""


def _members(element: dict[str, Any]) -> dict[str, Any]:
    """Return what an annotation says of an object. Raises _BadError; numbers are looked at together, later."""
    category, bbox, points = element.get("category_id"), element.get("bbox"), element.get("keypoints")
    if type(category) is not int:
        raise _BadError("has no category_id that is a whole number")
    polygons, runs = _shape(element.get("segmentation"))
    if not bbox and polygons:
        bbox = _box_around(polygons)
    if not isinstance(bbox, list) or len(bbox) != 4:
        raise _BadError("has no bbox of four numbers")
    if points is not None and (not isinstance(points, list) or len(points) % 3):
        raise _BadError("has keypoints that are no triples of x, y and v")
    crowd, area = element.get("iscrowd"), element.get("area")
    return {
        "category": category,
        "bbox": bbox,
        "area": area if type(area) in (int, float) else None,
        "iscrowd": bool(crowd) if crowd is not None else None,
        "segmentation": polygons,
        "rle": runs,
        "keypoints": [points[place : place + 3] for place in range(0, len(points), 3)] if points else [],
    }


def _shape(given: Any) -> tuple[list[list[float]], dict[str, Any] | None]:
    """Return the polygons and the RLE of an object. Raises _BadError."""
    if not given:
        return [], None
    if isinstance(given, dict):
        return [], _runs(given)
    if not isinstance(given, list):
        raise _BadError("has a segmentation that is neither polygons nor RLE")
    polygons = [polygon for polygon in given if polygon != []]
    for polygon in polygons:
        if not isinstance(polygon, list):
            raise _BadError("has a polygon that is no list of numbers")
        if len(polygon) < 6 or len(polygon) % 2:
            raise _BadError(f"has a polygon of {counted(len(polygon), 'number')}; it takes an even number from 6 on")
    return polygons, None


def _runs(given: dict[str, Any]) -> dict[str, Any]:
    """Return an RLE in its compressed form. Raises _BadError."""
    size, counts = given.get("size"), given.get("counts")
    if not isinstance(size, list) or len(size) != 2 or not all(type(n) is int and 0 < n < 2**31 for n in size):
        raise _BadError("has an RLE without a size of two whole numbers")
    if isinstance(counts, str) and counts.isascii():
        return {"size": size, "counts": counts.encode()}
    if not isinstance(counts, list) or not all(type(n) is int and 0 <= n < 2**40 for n in counts):
        raise _BadError("has an RLE whose counts are neither a string nor whole numbers")
    if sum(counts) != size[0] * size[1]:
        raise _BadError(f"has an RLE of {sum(counts)} pixels, and its size {size[1]}x{size[0]} has {size[0] * size[1]}")
    return {"size": size, "counts": rle.compress(counts)}


def _box_around(polygons: list[list[float]]) -> list[float]:
    try:
        x = [number for polygon in polygons for number in polygon[::2]]
        y = [number for polygon in polygons for number in polygon[1::2]]
        return [min(x), min(y), max(x) - min(x), max(y) - min(y)]
    except TypeError:
        raise _BadError("has a polygon with something else than numbers") from None


def _columns(file: _File, marked: list[dict[str, Any]]) -> list[pa.Array]:
    """Return objects as columns, those with wrong values as faults of their images."""
    try:
        columns = _arrays(marked)
        wrong = _not_finite(columns)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        wrong, columns = np.array([_odd_member(each) is not None for each in marked]), []
    if wrong.any():
        marked = [
            _bad(file, each, f"has something else than finite numbers as its {_odd_member(each)}") if bad else each
            for each, bad in zip(marked, wrong.tolist(), strict=True)
        ]
        columns = _arrays(marked)
    file.crowds += sum(bool(each.get("iscrowd")) for each in marked)
    for name in _MEMBERS:
        if name not in file.members and any(each.get(name) not in (None, []) for each in marked):
            file.members.add(name)
    return columns


def _odd_member(each: dict[str, Any]) -> str | None:
    """Return the member of an object, as COCO calls it, whose values are no numbers, not finite or beyond their type."""
    own_names = {"image": "image_id", "category": "category_id", "rle": "segmentation"}
    for f in _STORED:
        try:
            values = pa.array([each.get(f.name)], f.type).to_pylist()
            odd = f.name in ("bbox", "segmentation", "keypoints") and not _is_finite(values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            odd = True
        if odd:
            return str(own_names.get(f.name, f.name))
    return None


def _arrays(marked: list[dict[str, Any]]) -> list[pa.Array]:
    return [pa.array([each.get(f.name) for each in marked], f.type) for f in _STORED]


def _not_finite(columns: list[pa.Array]) -> npt.NDArray[np.bool_]:
    """Return which objects have places that are no numbers, or beyond float32."""
    by_name = dict(zip(_STORED.names, columns, strict=True))
    wrong: npt.NDArray[np.bool_] = ~np.isfinite(by_name["bbox"].flatten().to_numpy().reshape(-1, 4)).all(axis=1)
    for name in ("segmentation", "keypoints"):
        if not np.isfinite(by_name[name].flatten().flatten().to_numpy()).all():
            wrong |= [not _is_finite(each) for each in by_name[name].to_pylist()]
    return wrong


def _is_finite(value: Any) -> bool:
    return all(map(_is_finite, value)) if isinstance(value, list) else math.isfinite(value)


# --- images and inputs ---


def _find_inputs(file: _File, inputs: Inputs) -> list[str]:
    """Find the input of each image of a file. Raises InputError for images of one id, and for two of one input."""
    ordered = file.images[file.order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(again):
        one, other = (file.names[int(file.order[again[0] + more])].as_py() for more in (0, 1))
        raise InputError(
            f"{file.shown}: the images {printable(one)} and {printable(other)} have the same id {int(ordered[again[0]])};"
            " give each image an id of its own"
        )
    rows, exact = [], []
    for chunk in file.names.chunks:
        names = [_normal(name, inputs) for name in chunk.to_pylist()]
        found = np.full(len(names), -1, np.int64)
        if file.folder:
            found = inputs.by_path.exact([f"{file.folder}/{name}" for name in names])
        sure = found >= 0
        left = np.flatnonzero(~sure)
        match = inputs.by_path.find([names[place] for place in left.tolist()])
        found[left], sure[left] = match
        rows.append(found)
        exact.append(sure)
    if rows:
        file.rows = np.concatenate(rows)
        _refuse_two_of_one(file, np.concatenate(exact), inputs)
    absent = int((file.rows < 0).sum())
    if not absent:
        return []
    example = some([file.names[int(place)].as_py() for place in np.flatnonzero(file.rows < 0)[:3]])
    return [f"{file.shown}: {absent:,} of {counted(len(file.rows), 'image')} are not among the inputs ({example}); skipped"]


def _normal(name: str, inputs: Inputs) -> str:
    """Return a file name as paths of inputs are written."""
    if name.startswith("/"):
        return inputs.below(Path(name)) or name
    return "/".join(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))


def _refuse_two_of_one(file: _File, exact: npt.NDArray[np.bool_], inputs: Inputs) -> None:
    """Raise InputError if two images are one input. One that only its last part fits steps back for one of the whole path."""
    meant = np.unique(file.rows[exact & (file.rows >= 0)])
    file.rows[~exact & np.isin(file.rows, meant)] = -1
    order = np.argsort(file.rows, kind="stable")
    ordered = file.rows[order]
    again = np.flatnonzero((ordered[1:] == ordered[:-1]) & (ordered[1:] >= 0))
    if len(again):
        ids = [int(file.images[order[again[0] + more]]) for more in (0, 1)]
        names = [printable(file.names[int(order[again[0] + more])].as_py()) for more in (0, 1)]
        of = printable(inputs.paths_at([int(ordered[again[0]])])[0])
        raise InputError(
            f"{file.shown}: two images are the input {of}: {names[0]} (id {ids[0]}) and {names[1]} (id {ids[1]}); remove one"
        )


# --- categories ---


@dataclass(frozen=True)
class _Categories:
    """The categories of all files by their ids, in increasing order, and what the role says of them."""

    ids: Numbers
    role: Objects


def _categories(files: list[_File]) -> tuple[_Categories, list[str]]:
    """Join the categories of all files. Raises InputError for one id with two names."""
    found: dict[int, dict[str, Any]] = {}
    for file in files:
        for category in file.categories:
            if not isinstance(category, dict) or type(category.get("id")) is not int or type(category.get("name")) is not str:
                raise InputError(f"{file.shown}: a category has no id that is a whole number, or no name")
            before = found.setdefault(category["id"], category)
            if before["name"] != category["name"]:
                raise InputError(
                    f"{file.shown}: the category {category['id']} has two names, {printable(before['name'])} and"
                    f" {printable(category['name'])}; convert the files into two datasets, or give them the same categories"
                )
            if "keypoints" in category:
                found[category["id"]] = {**before, **category}
    ids = sorted(found)
    without = next((file for file in files if file.objects is not None and len(file.objects)), None)
    if not ids and without is not None:
        raise InputError(f"{without.shown}: it has annotations of objects, and no categories; add the list of their names")
    times = Counter(found[number]["name"] for number in ids)
    twice = [name for name, count in times.items() if count > 1]
    names = [f"{found[n]['name']} (id {n})" if times[found[n]["name"]] > 1 else found[n]["name"] for n in ids]
    said = [f"several categories are called {some(twice)}; their ids were added to their names"] if twice else []
    above = [found[number].get("supercategory") for number in ids]
    supercategories = tuple(name if isinstance(name, str) else "" for name in above) if any(above) else None
    points, skeleton, odd = _keypoints_of([found[number] for number in ids if found[number].get("keypoints")])
    if odd:
        said.append("its categories have different keypoints, whose names are left out")
    role = Objects(
        tuple(names) or None, tuple(ids) if names else None, supercategories, points, skeleton, mirrored_points(points)
    )
    return _Categories(np.array(ids, np.int64), role), said


def _keypoints_of(
    categories: list[dict[str, Any]],
) -> tuple[tuple[str, ...] | None, tuple[tuple[int, int], ...] | None, bool]:
    """Return the names of the keypoints and the lines between them; whether categories differ in that."""
    if not categories:
        return None, None, False
    names = categories[0]["keypoints"]
    if any(category["keypoints"] != names for category in categories):
        return None, None, True
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None, None, False
    lines = categories[0].get("skeleton") or []
    pairs = [
        (line[0] - 1, line[1] - 1)  # COCO counts from 1
        for line in lines
        if isinstance(line, list) and len(line) == 2 and all(type(n) is int and 0 < n <= len(names) for n in line)
    ]
    return tuple(names), tuple(pairs) if pairs and len(pairs) == len(lines) else None, False


def mirrored_points(names: tuple[str, ...] | None) -> tuple[int, ...] | None:
    """Return which keypoint each becomes in a mirrored image, by `left` and `right` in the names; None if none has these."""
    if names is None:
        return None
    swapped = [_swapped(name) for name in names]
    if len(set(names)) < len(names) or swapped == list(names) or not set(swapped) <= set(names):
        return None
    return tuple(names.index(name) for name in swapped)


def _swapped(name: str) -> str:
    for one, other in (("left", "right"), ("right", "left"), ("Left", "Right"), ("Right", "Left")):
        if one in name:
            return name.replace(one, other)
    return name


# --- objects and captions by image ---


class _Joined:
    """The annotations of all files, by input."""

    def __init__(
        self, marking: list[_File], captioning: list[_File], categories: _Categories, inputs: Inputs, rule: AnnotationRule
    ) -> None:
        self._files, self._captioning, self._categories, self._rule = marking, captioning, categories, rule
        self._count = len(inputs)
        self._paths = inputs.paths_at
        self.notices: list[str] = []
        self._faults: dict[int, Rejection] = {}
        members = set(ALWAYS).union(*(file.members for file in marking))
        self._members = [name for name in ITEMS if name in members]
        self._image_ids, self._sizes = self._facts(inputs)
        self._objects = self._sorted_objects()
        self._captions = self._sorted_captions()
        self._outside = self._degenerate = 0
        if any(file.crowds for file in marking) and all(file.crowds == len(file.objects or ()) for file in marking):
            self.notices.append("all annotations have iscrowd 1, as some tools write for every RLE; they are kept as crowds")

    def _facts(self, inputs: Inputs) -> tuple[Numbers, npt.NDArray[np.int32]]:
        """Return the image id of each input, NO_ID where it has none, and the size that is said of it (0, 0: none)."""
        ids, sizes = np.full(self._count, NO_ID, np.int64), np.zeros((self._count, 2), np.int32)
        for file in reversed([*self._files, *(file for file in self._captioning if file not in self._files)]):
            there = file.rows >= 0
            ids[file.rows[there]] = file.images[there]
            known = there & (file.sizes[:, 0] > 0)
            sizes[file.rows[known]] = file.sizes[known]
        return ids, sizes

    def _row_of(self, file: _File, images: Numbers, what: str) -> Numbers:
        """Return the input of each annotation, -1 for none."""
        places = file.places(images)
        if len(places) and (places < 0).any():
            lost = np.flatnonzero(places < 0)
            some_ids = some([str(number) for number in np.unique(images[lost])[:3].tolist()])
            self.notices.append(
                f"{file.shown}: {counted(len(lost), what)} of images that the file does not list (image_id {some_ids}); skipped"
            )
        rows = np.where(places >= 0, file.rows[places], -1) if len(file.rows) else np.full(len(places), -1, np.int64)
        for image, message in file.faults.items():
            place = int(file.places(np.array([image]))[0])
            if place >= 0 and file.rows[place] >= 0:
                self._faults.setdefault(int(file.rows[place]), fault(message))
        return rows

    def _sorted_objects(self) -> tuple[Numbers, Numbers, list[Numbers]]:
        """Return the input of each object in increasing order, its number, and for each file the row of the object (or -1)."""
        rows, own, of_file = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], []
        for number, file in enumerate(self._files):
            assert file.objects is not None, "files with objects"
            found = self._row_of(file, file.objects.column("image"), "annotation")
            self._note_categories(file, file.objects.column("category"), found)
            rows.append(found)
            own.append(file.objects.column("id"))
            of_file.append(np.full(len(found), number))
        row, ids, file_of = np.concatenate(rows), np.concatenate(own), np.concatenate([np.zeros(0, np.int64), *of_file])
        starts = np.cumsum([0, *(len(each) for each in of_file)])
        place = np.arange(len(row)) - starts[file_of]
        row[np.isin(row, np.array(list(self._faults), np.int64))] = -1
        main = np.arange(len(row))
        if len(self._files) > 1:
            main = _first_of_same(row, ids, file_of)
        chosen = np.flatnonzero((main == np.arange(len(row))) & (row >= 0))
        chosen = chosen[np.argsort(row[chosen], kind="stable")]
        self._note_repeated_ids(ids, file_of, chosen)
        order = np.full(len(row), -1, np.int64)
        order[chosen] = np.arange(len(chosen))
        sources = [np.full(len(chosen), -1, np.int64) for _ in self._files]
        there = np.flatnonzero(order[main] >= 0)
        for number, source in enumerate(sources):
            mine = there[file_of[there] == number]
            source[order[main[mine]]] = place[mine]
        return row[chosen], np.arange(len(chosen)), sources

    def _note_categories(self, file: _File, categories: Numbers, rows: Numbers) -> None:
        unknown = np.flatnonzero(~np.isin(categories, self._categories.ids) & (rows >= 0))
        ids = file.objects.column("id") if len(unknown) and file.objects is not None else unknown
        for place in unknown.tolist():
            of_id = f" {ids[place]}" if ids[place] != NO_ID else ""
            message = (
                f"{file.shown}: the annotation{of_id} has the category {categories[place]}, which is not among the categories"
            )
            self._faults.setdefault(int(rows[place]), fault(message))

    def _note_repeated_ids(self, ids: Numbers, file_of: Numbers, chosen: Numbers) -> None:
        for number, file in enumerate(self._files):
            own = ids[chosen[file_of[chosen] == number]]
            own = np.sort(own[own != NO_ID])
            again = np.flatnonzero(own[1:] == own[:-1])
            if len(again):
                count = counted(len(again), "annotation has", "annotations have")
                self.notices.append(f"{file.shown}: {count} the id of another (for instance {own[again[0]]}); all are kept")

    def _sorted_captions(self) -> tuple[Numbers, list[Numbers]]:
        """Return the input of each caption in increasing order, and for each file the row of the caption (or -1)."""
        rows, places, of_file = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for number, file in enumerate(self._captioning):
            assert file.captions is not None, "files with captions"
            found = self._row_of(file, file.captions.column("image"), "caption")
            rows.append(found)
            places.append(np.arange(len(found)))
            of_file.append(np.full(len(found), number))
        row, place, file_of = map(np.concatenate, (rows, places, of_file))
        chosen = np.flatnonzero(row >= 0)
        chosen = chosen[np.argsort(row[chosen], kind="stable")]
        sources = [np.where(file_of[chosen] == number, place[chosen], -1) for number in range(len(self._captioning))]
        return row[chosen], sources

    def write(self, path: Path, digests: list[str], notices: list[str]) -> Annotations:
        """Write a row for each input that a file lists, and return the annotations."""
        fields = [pa.field(IMAGE_ID, pa.int64())]
        fields += [objects_field(self._members)] if self._files else []
        fields += [pa.field(CAPTIONS, pa.list_(pa.string()))] if self._captioning else []
        private = [pa.field(ANNOTATED, ANNOTATED_TYPE)] if self._files else []
        writer = TableWriter(path, pa.schema([*fields, *private]))
        listed = np.flatnonzero(self._image_ids != NO_ID)
        marked, said = _listed_by(self._files, self._count), _listed_by(self._captioning, self._count)
        for start in range(0, len(listed), IMAGES_AT_ONCE):
            rows = listed[start : start + IMAGES_AT_ONCE]
            columns = [pa.array(self._image_ids[rows])]
            if self._files:
                columns.append(self._objects_of(rows, marked[rows]))
            if self._captioning:
                columns.append(self._captions_of(rows, said[rows]))
            if self._files:
                columns.append(self._annotated_of(rows))
            writer.write(columns)
        table = writer.finish()
        of_input = np.full(self._count, -1, np.int64)
        of_input[listed] = np.arange(len(listed))
        notices = [*notices, *said_of_boxes(self._outside, self._degenerate, self._rule), *self._said_of_unlisted(listed)]
        roles: dict[str, Role] = {OBJECTS: self._categories.role} if self._files else {}
        return Annotations(table, of_input, tuple(fields), tuple(digests), roles, faults=self._faults, notices=tuple(notices))

    def _said_of_unlisted(self, listed: Numbers) -> list[str]:
        missing = self._count - len(listed)
        if not missing:
            return []
        there = np.zeros(self._count, bool)
        there[listed] = True
        example = some(self._paths(np.flatnonzero(~there)[:3]))
        return [f"{missing:,} of {counted(self._count, 'input')} are not in the COCO files ({example}): not annotated"]

    def _objects_of(self, rows: Numbers, marked: npt.NDArray[np.bool_]) -> pa.Array:
        """Return the objects of some inputs, null for those that no file with objects lists."""
        of_object, _, sources = self._objects
        ends = np.searchsorted(of_object, rows, side="right")
        starts = np.searchsorted(of_object, rows, side="left")
        chosen = np.concatenate([np.zeros(0, np.int64), *(np.arange(a, b) for a, b in zip(starts, ends, strict=True))])
        taken = _joined([file.objects for file in self._files], [source[chosen] for source in sources])
        offsets = pa.array(np.concatenate([[0], np.cumsum(ends - starts)]).astype(np.int32))
        values = {name: self._values(name, taken) for name in self._members}
        self._count_boxes(values["bbox"], np.repeat(rows, ends - starts))
        type_ = objects_type(self._members)
        lists = [pa.ListArray.from_arrays(offsets, values[f.name]) for f in type_]
        return pa.StructArray.from_arrays(lists, fields=list(type_), mask=pa.array(~marked))

    def _values(self, name: str, taken: dict[str, pa.Array]) -> pa.Array:
        """Return a member of objects as the dataset has it."""
        array = taken[name]
        if name == "category":
            return pa.array(np.searchsorted(self._categories.ids, array.to_numpy()), pa.int64())
        if name == "iscrowd":
            return array.fill_null(False)
        if name == "keypoints":
            return _centred(array)
        return array

    def _count_boxes(self, boxes: pa.Array, rows: Numbers) -> None:
        x, y, width, height = boxes.flatten().to_numpy().astype(np.float64).reshape(-1, 4).T
        right, bottom = self._sizes[rows].astype(np.float64).T + OUTSIDE_PIXELS
        outside = (x < -OUTSIDE_PIXELS) | (y < -OUTSIDE_PIXELS) | (x + width > right) | (y + height > bottom)
        self._outside += int((outside & (self._sizes[rows, 0] > 0)).sum())
        self._degenerate += int(((width <= 0) | (height <= 0)).sum())

    def _captions_of(self, rows: Numbers, said: npt.NDArray[np.bool_]) -> pa.Array:
        of_caption, sources = self._captions
        starts, ends = (np.searchsorted(of_caption, rows, side) for side in ("left", "right"))
        chosen = np.concatenate([np.zeros(0, np.int64), *(np.arange(a, b) for a, b in zip(starts, ends, strict=True))])
        parts = [file.captions for file in self._captioning]
        taken = _joined(parts, [source[chosen] for source in sources])
        offsets = np.concatenate([[0], np.cumsum(ends - starts)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), taken["caption"], mask=pa.array(~said))

    def _annotated_of(self, rows: Numbers) -> pa.Array:
        unknown = self._sizes[rows, 0] == 0
        width, height = (pa.array(self._sizes[rows, place], mask=unknown) for place in (0, 1))
        constant = [pa.array([value] * len(rows)) for value in (False, self._rule.frame, self._rule.boxes)]
        return pa.StructArray.from_arrays([width, height, *constant], fields=list(ANNOTATED_TYPE))


def _listed_by(files: list[_File], count: int) -> npt.NDArray[np.bool_]:
    listed = np.zeros(count, bool)
    for file in files:
        listed[file.rows[file.rows >= 0]] = True
    return listed


def _first_of_same(rows: Numbers, ids: Numbers, files: Numbers) -> Numbers:
    """Return for each object the first one of the same image and id in an earlier file, else itself."""
    main = np.arange(len(rows))
    order = np.lexsort((main, files, ids, rows))
    same = np.zeros(len(rows), bool)
    one, two = order[:-1], order[1:]
    same[1:] = (rows[one] == rows[two]) & (ids[one] == ids[two]) & (rows[two] >= 0) & (ids[two] != NO_ID)
    group = np.cumsum(~same) - 1
    first = order[np.flatnonzero(~same)][group] if len(order) else order
    other_file = files[first] != files[order]
    main[order] = np.where(other_file, first, order)
    return main


def _joined(parts: Sequence[_Rows | None], sources: Sequence[Numbers]) -> dict[str, pa.Array]:
    """Return rows that are each in one or several of the parts (-1: not in it); of several, what the first ones know counts."""
    import pyarrow.compute as pc  # 40 ms to import, and most conversions have no COCO files

    columns: dict[str, pa.Array] = {}
    for part, rows in zip(parts, sources, strict=True):
        assert part is not None, "parts that were read"
        batch = part.take(rows)
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            if name not in columns:
                columns[name] = array
            else:
                before = columns[name]
                known = before.is_valid()
                if name in ("segmentation", "keypoints"):
                    known = pc.and_(known, pc.greater(pc.fill_null(pc.list_value_length(before), 0), 0))
                    known = pc.or_(known, array.is_null())
                place = np.arange(len(before)) + np.where(np.asarray(known), 0, len(before))
                columns[name] = pa.concat_arrays([before, array]).take(pa.array(place))
    return columns


def _centred(points: pa.Array) -> pa.Array:
    """Return COCO's keypoints, which are numbers of pixels, in corner coordinates: the middle of a pixel is half of one on."""
    inner = points.values
    values = inner.flatten().to_numpy().reshape(-1, 3).copy()
    there = values[:, 2] > 0
    values[there, :2] += 0.5
    values[~there] = 0
    moved = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel(), pa.float32()), type=POINTS.value_type)
    return pa.ListArray.from_arrays(points.offsets, moved)
