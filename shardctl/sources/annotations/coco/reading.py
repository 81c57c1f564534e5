"""Reading a COCO file once, from its beginning to its end: a few columns stay in memory, its
annotations in scratch files."""

from __future__ import annotations

import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import InputError
from shardctl.format.arrays import Array, Bools, Numbers, edges_of, one_chunk
from shardctl.format.names import Json
from shardctl.images.codecs import rle
from shardctl.sources.annotations.json_parts import BETWEEN_OBJECTS, Columns, JsonParts
from shardctl.sources.annotations.objects import (
    BOX,
    FLAGS,
    ITEMS,
    POINTS,
    POLYGONS,
    RLE,
    Others,
    TableWriter,
    others_in,
)
from shardctl.system.text import counted, printable


def is_id(number: Any) -> bool:
    """Return whether a value is a whole number of 64 bits."""
    return type(number) is int and -(2**63) < number < 2**63


NO_ID = -(2**63)
"""Stands for an id that there is not."""

OBJECT_COLUMNS = pa.schema(
    {"image": pa.int64(), **{name: ITEMS[name] for name in ITEMS if name not in FLAGS}}
)
"""What a COCO file may know of an object."""

CAPTION_COLUMNS = pa.schema([("image", pa.int64()), ("id", pa.int64()), ("caption", pa.string())])
"""`id` is a hash of the id and the text: where both are the same, it is one caption in two
files."""


class CocoFile:
    """What was read of one file: its images as columns, its categories, and its annotations in
    scratch files."""

    images: Numbers
    names: pa.ChunkedArray
    sizes: npt.NDArray[np.int32]
    rows: Numbers
    objects: Rows
    captions: Rows
    digest: str
    crowds = 0

    def __init__(self, opened: str) -> None:
        self.opened = opened
        self.categories, self.members = list[Json](), set[str]()
        self.others, self.faults = Others(), dict[int, str]()

    @property
    def shown(self) -> str:
        """The path or the URL for a message."""
        return printable(self.opened)

    @cached_property
    def order(self) -> Numbers:
        """The images by their ids."""
        return np.argsort(self.images, kind="stable")

    def inputs_of(self, images: Numbers) -> tuple[Numbers, Bools]:
        """Return the input of each image, by its id, -1 where there is none; and whether the file
        lists the image."""
        places = np.append(self.order, -1)[np.searchsorted(self.images, images, sorter=self.order)]
        listed = np.append(self.images, NO_ID)[places] == images
        return np.where(listed, np.append(self.rows, -1)[places], -1), listed


class Rows:
    """The rows of a mapped scratch file, taken from anywhere, and one of its columns as a whole."""

    def __init__(self, table: pa.Table) -> None:
        self._schema = table.schema
        nothing = [pa.nulls(1, f.type) for f in table.schema]
        self._batches = [*table.to_batches(), pa.record_batch(nothing, schema=table.schema)]
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches[:-1])])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def column(self, name: str) -> Array:
        """Return a column of numbers, null as NO_ID, or the boxes: (n, 4)."""
        parts = [batch.column(name) for batch in self._batches[:-1]]
        if name == "bbox":
            flat = [part.flatten().to_numpy(zero_copy_only=False) for part in parts]
            return np.concatenate([np.zeros(0, np.float32), *flat]).reshape(-1, 4)
        return np.concatenate(
            [np.zeros(0, np.int64), *(part.fill_null(NO_ID).to_numpy() for part in parts)]
        )

    def take(self, rows: Numbers) -> dict[str, pa.Array]:
        """Return the columns of some rows; of null for -1. Batch by batch: a take from the whole
        would first copy it together."""
        rows = np.where(rows < 0, len(self), rows)
        of = np.searchsorted(self._starts, rows, side="right") - 1
        pieces = [
            self._batches[number].take(pa.array(rows[of == number] - self._starts[number]))
            for number in np.unique(of).tolist()
        ]
        together = pa.Table.from_batches(pieces, self._schema)
        places = pa.array(np.argsort(np.argsort(of, kind="stable")))
        return {f.name: together[f.name].combine_chunks().take(places) for f in self._schema}


def read_file(opened: str, scratch: Path) -> CocoFile:
    """Read a file once, from its beginning to its end. Raises InputError."""
    file = CocoFile(opened)
    objects = TableWriter(scratch.with_suffix(".objects"), OBJECT_COLUMNS)
    captions = TableWriter(scratch.with_suffix(".captions"), CAPTION_COLUMNS)
    ids, sizes, names = list[Numbers](), list[npt.NDArray[np.int32]](), list[pa.Array]()
    seen = set[str]()
    parts = JsonParts(opened, {"annotations": plain_objects(file.others)})
    for part in parts:
        seen.add(part.name)
        if part.name == "images":
            _check_images(file, part.first, part.elements)
            ids.append(np.array([image["id"] for image in part.elements], np.int64))
            files = [_name_of(image) for image in part.elements]
            names.append(_strings(files, pa.large_string(), file, "file name"))
            own = np.array([_size(image) for image in part.elements], np.int32)
            sizes.append(own.reshape(-1, 2))
        elif part.columns is not None:
            _add_columns(file, part.columns.columns, objects)
        elif part.name == "annotations":
            _add_annotations(file, part.first, part.elements, objects, captions)
        elif part.name == "categories":
            file.categories += part.elements
    if missing := [name for name in ("images", "annotations") if name not in seen]:
        raise InputError(
            f"{file.shown}: it has no {' and no '.join(missing)}, as a COCO file has; --labels none leaves it out"
        )
    file.images, file.sizes = np.concatenate(ids), np.concatenate(sizes)
    file.names = pa.chunked_array(names, pa.large_string())
    file.digest, file.objects = parts.sha256, Rows(objects.finish())
    file.captions = Rows(captions.finish())
    return file


def _strings(values: list[str], type_: pa.DataType, file: CocoFile, what: str) -> pa.Array:
    try:
        return pa.array(values, type_)
    except UnicodeEncodeError:
        raise InputError(
            f"{file.shown}: a {what} has an incomplete character (half of a surrogate pair, such "
            "as \\ud83d)"
        ) from None


OF_CAPTION = frozenset(("id", "image_id", "caption"))
KNOWN = {"id", "file_name", "width", "height", "license", "coco_url", "flickr_url", "date_captured"}
"""What images of COCO say. A dataset has no use for the last four."""


def _check_images(file: CocoFile, first: int, images: list[Any]) -> None:
    for number, image in enumerate(images, first):
        if (
            not isinstance(image, dict)
            or not is_id(image.get("id"))
            or type(_name_of(image)) is not str
        ):
            raise InputError(
                f"{file.shown}: image {number} of images has no id that is a whole number of 64 "
                "bits, or no file_name"
            )
        file.others.update(others_in(image, KNOWN, "image"))


def _name_of(image: Json) -> Any:
    """Return the name of an image. LVIS has its address alone, whose last parts are the name in
    COCO."""
    url = image.get("coco_url")
    return image.get(
        "file_name", url.partition("://")[2].partition("/")[2] if isinstance(url, str) else None
    )


def _size(image: Json) -> tuple[int, int]:
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
    marked: list[Json] = []
    said: list[tuple[int, int, str]] = []
    for number, element in enumerate(elements, first):
        image: Any = element.get("image_id") if isinstance(element, dict) else None
        if not is_id(image):
            raise InputError(
                f"{file.shown}: annotation {number} of annotations has no image_id that is a whole "
                "number of 64 bits"
            )
        caption, own = element.get("caption"), element.get("id")
        is_object = caption is None or (
            element.get("category_id") is not None
            and bool(element.get("bbox") or element.get("segmentation"))
        )
        known, of = (OF_OBJECT, "object") if is_object else (OF_CAPTION, "caption")
        if own is not None and type(own) is not int:
            known = known - {"id"}
        file.others.update(others_in(element, known, of))
        if is_object:
            marked.append(_object(file, number, element))
        if isinstance(caption, str):
            said.append((image, NO_ID if own is None else hash(f"{own} {caption}"), caption))
        elif caption is not None:
            file.faults.setdefault(
                image, f"{file.shown}: the caption of annotation {number} is not a text"
            )
    if marked:
        _add_columns(file, _columns(file, marked), objects)
    if said:
        *numbers, texts = map(list, zip(*said, strict=True))
        captions.write([*map(pa.array, numbers), _strings(texts, pa.string(), file, "caption")])


def _add_columns(file: CocoFile, columns: list[pa.Array], objects: TableWriter) -> None:
    objects.write(columns)
    for name, column in zip(OBJECT_COLUMNS.names, columns, strict=True):
        if name == "iscrowd":
            file.crowds += column.true_count
        if len(column.flatten() if pa.types.is_list(column.type) else column.drop_null()):
            file.members.add(name)


def _object(file: CocoFile, number: int, element: Json) -> Json:
    """Return an object with the members of our column. What is wrong with it is noted in the file's
    faults."""
    own = element.get("id")
    record = {
        "image": element["image_id"],
        "number": number,
        "id": own if type(own) is int else None,
    }
    try:
        return record | members_of(element)
    except ValueError as error:
        return _bad(file, record, str(error))


def _bad(file: CocoFile, record: Json, why: str) -> Json:
    of_id = f" (id {record['id']})" if record["id"] is not None else ""
    file.faults.setdefault(
        record["image"], f"{file.shown}: annotation {record['number']} of annotations{of_id} {why}"
    )
    nothing = {"category": NO_ID, "bbox": [0.0] * 4, "segmentation": [], "keypoints": []}
    return {"image": record["image"], **nothing}


def _columns(file: CocoFile, marked: list[Json]) -> list[pa.Array]:
    """Return objects as columns, those with wrong values as faults of their images."""
    columns = [_array(marked, f) for f in OBJECT_COLUMNS]
    if None in columns:
        for place, each in enumerate(marked):
            odd = next((f.name for f in OBJECT_COLUMNS if _array([each], f) is None), None)
            if odd is not None:
                own = _OWN_NAMES.get(odd, odd)
                why = f"has something else than finite numbers as its {own}"
                marked[place] = _bad(file, each, why)
        columns = [_array(marked, f) for f in OBJECT_COLUMNS]
    return columns


_OWN_NAMES = {"image": "image_id", "category": "category_id", "rle": "segmentation"}
"""What COCO calls members of objects."""


def _array(marked: list[Json], f: pa.Field) -> pa.Array | None:
    """Return a member of objects as a column; None if values are no numbers, beyond their type, or
    places that are not finite."""
    try:
        array = numbers = pa.array([each.get(f.name) for each in marked], f.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    if f.name in ("bbox", "segmentation", "keypoints"):
        while pa.types.is_nested(numbers.type):
            numbers = numbers.flatten()
        if not np.isfinite(numbers.to_numpy(zero_copy_only=False)).all():
            return None
    return array


def members_of(element: Json) -> Json:
    """Return what an annotation says of an object. Raises ValueError; numbers are looked at together,
    later."""
    category, bbox, points, crowd, area = map(
        element.get, ("category_id", "bbox", "keypoints", "iscrowd", "area")
    )
    if type(category) is not int:
        raise ValueError("has no category_id that is a whole number")
    polygons, runs = _shape(element.get("segmentation"))
    if not bbox and runs:
        try:
            bbox = rle.box(runs["counts"], runs["size"][0])
        except ValueError as error:
            raise ValueError(f"has an RLE that is {error}") from None
    if not bbox and polygons:
        try:
            x, y = ([n for polygon in polygons for n in polygon[side::2]] for side in (0, 1))
            bbox = [min(x), min(y), max(x) - min(x), max(y) - min(y)]
        except TypeError:
            raise ValueError("has a polygon with something else than numbers") from None
    if not isinstance(bbox, list) or len(bbox) != 4:
        raise ValueError("has no bbox of four numbers")
    if points is not None and (not isinstance(points, list) or len(points) % 3):
        raise ValueError("has keypoints that are no triples of x, y and v")
    if crowd not in (None, 0, 1):
        raise ValueError("has an iscrowd that is neither 0 nor 1")
    if area is not None and type(area) not in (int, float):
        raise ValueError("has an area that is not a number")
    return {
        "category": category,
        "bbox": bbox,
        "area": area if area == area else None,  # not NaN
        "iscrowd": None if crowd is None else bool(crowd),
        "segmentation": polygons,
        "rle": runs,
        "keypoints": [points[at : at + 3] for at in range(0, len(points), 3)] if points else [],
    }


def _shape(given: Any) -> tuple[list[list[float]], Json | None]:
    """Return the polygons and the RLE of an object, in its compressed form. Raises ValueError."""
    if not given:
        return [], None
    if isinstance(given, list):
        polygons = [polygon for polygon in given if polygon != []]
        for polygon in polygons:
            if not isinstance(polygon, list):
                raise ValueError("has a polygon that is not a list of numbers")
            if len(polygon) < 6 or len(polygon) % 2:
                raise ValueError(
                    f"has a polygon of {counted(len(polygon), 'number')}; it takes an even number "
                    "from 6 on"
                )
        return polygons, None
    if not isinstance(given, dict):
        raise ValueError("has a segmentation that is neither polygons nor RLE")
    size, counts = given.get("size"), given.get("counts")
    if (
        not isinstance(size, list)
        or len(size) != 2
        or not all(type(n) is int and 0 < n < 2**31 for n in size)
    ):
        raise ValueError("has an RLE without a size of two whole numbers")
    if isinstance(counts, str) and counts.isascii():
        return [], {"size": size, "counts": counts.encode()}
    if not isinstance(counts, list) or not all(type(n) is int and 0 <= n < 2**40 for n in counts):
        raise ValueError("has an RLE whose counts are neither a string nor whole numbers")
    if sum(counts) != size[0] * size[1]:
        raise ValueError(
            f"has an RLE of {sum(counts)} pixels, and its size {size[1]}x{size[0]} has "
            f"{size[0] * size[1]}"
        )
    return [], {"size": size, "counts": rle.compress(counts)}


_NUMBERS = pa.list_(pa.float64())
_PARSED = pa.schema(
    [
        ("id", pa.int64()),
        ("image_id", pa.int64()),
        ("category_id", pa.int64()),
        ("bbox", _NUMBERS),
        ("area", pa.float64()),
        ("iscrowd", pa.int64()),
        ("segmentation", pa.list_(_NUMBERS)),
        ("keypoints", _NUMBERS),
        ("num_keypoints", pa.float64()),
        ("caption", pa.string()),
    ]
)
OF_OBJECT = frozenset(_PARSED.names)

_LISTS = re.compile(r'\[[^][{}"]+\]')
"""Lists of numbers: most of the text."""

MOST = 2**24
"""Whole numbers up to it are exact in float32. Arrow refuses larger ones, and here they look like
other numbers."""

BLOCK_BYTES = 1 << 18
"""What one thread parses at a time."""

TRIES = 3
"""After so many stretches that are not plain, and none that is, no more are tried: the others will
be the same."""


def plain_objects(others: Others) -> Columns:
    """Return what reads stretches of the annotations of one file, as long as that is worth it. Other
    members are counted in `others`.

    It returns the columns OBJECT_COLUMNS of JSON objects with commas between them, None where it
    takes a closer look.
    """
    odd = 0

    def read(text: str) -> pa.RecordBatch | None:
        nonlocal odd
        if odd >= TRIES:
            return None
        try:
            parsed = _parsed(text)
            found = _plain_columns(parsed)
            # other members
            known = sum(len(column) - column.null_count for column in parsed.values())
            if text.count('"') != 2 * known:
                for element in json.loads(f"[{_LISTS.sub('0', text)}]"):
                    others.update(others_in(element, OF_OBJECT))
        except (ValueError, RecursionError):
            odd += 1
            return None
        odd = -TRIES
        return found

    return read


def _expect(fits: Any) -> None:
    if not fits:
        raise ValueError


def _parsed(text: str) -> dict[str, pa.Array]:
    import pyarrow.json as pj  # 10 ms to import, and most conversions have no COCO files

    # A comma that is within an element, or in a string, leaves no JSON when it is taken out.
    lines, commas = BETWEEN_OBJECTS.subn("}\n", text)
    options = pj.ParseOptions(_PARSED, unexpected_field_behavior="ignore")
    try:
        data = pa.py_buffer(lines.encode())
        table = pj.read_json(pa.BufferReader(data), pj.ReadOptions(block_size=BLOCK_BYTES), options)
        table.validate(full=True)
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError from error
    _expect(table.num_rows == commas + 1)
    return {name: one_chunk(table[name]) for name in table.column_names}


def _plain_columns(parsed: dict[str, pa.Array]) -> pa.RecordBatch:
    count, crowd, area = len(parsed["caption"]), parsed["iscrowd"], parsed["area"]
    _expect(parsed["caption"].null_count == count)
    _expect(np.isin(crowd.drop_null().to_numpy(), (0, 1)).all())
    for name in ("image_id", "category_id"):
        _expect(parsed[name].null_count == 0 and (parsed[name].to_numpy() != NO_ID).all())
    sides, boxes = _in_lists(parsed["bbox"])
    of_polygons, polygons = _in_lists(parsed["segmentation"])
    lengths, places = _in_lists(polygons)
    of_points, points = _in_lists(parsed["keypoints"])
    _expect((sides == 4).all() and (of_points % 3 == 0).all() and polygons.null_count == 0)
    _expect(((lengths >= 6) & (lengths % 2 == 0)).all())
    outlines = pa.ListArray.from_arrays(_offsets(lengths), _float32(places))
    triples = pa.FixedSizeListArray.from_arrays(_float32(points), type=POINTS.value_type)
    made = {
        "image": parsed["image_id"],
        "id": parsed["id"],
        "category": parsed["category_id"],
        "bbox": pa.FixedSizeListArray.from_arrays(_float32(boxes), type=BOX),
        "area": pa.array(_float32(area.fill_null(1.0)).to_numpy(), mask=np.asarray(area.is_null())),
        "iscrowd": crowd.cast(pa.bool_()),
        "segmentation": pa.ListArray.from_arrays(_offsets(of_polygons), outlines, type=POLYGONS),
        "rle": pa.nulls(count, RLE),
        "keypoints": pa.ListArray.from_arrays(_offsets(of_points // 3), triples, type=POINTS),
    }
    return pa.record_batch([made[name] for name in OBJECT_COLUMNS.names], schema=OBJECT_COLUMNS)


def _in_lists(lists: pa.Array) -> tuple[npt.NDArray[np.int32], pa.Array]:
    """Return the length of each list, 0 of a missing one, and what is in them."""
    lengths = np.diff(lists.offsets.to_numpy())
    return np.where(np.asarray(lists.is_null()), 0, lengths), lists.flatten()


def _offsets(lengths: npt.NDArray[np.int32]) -> pa.Array:
    return pa.array(edges_of(lengths), pa.int32())


def _float32(numbers: pa.Array) -> pa.Array:
    _expect(numbers.null_count == 0)
    values = numbers.to_numpy()
    # -0 is 0, and -0.0 is not
    _expect((np.abs(values) <= MOST).all() and not ((values == 0) & np.signbit(values)).any())
    return pa.array(values.astype(np.float32))
