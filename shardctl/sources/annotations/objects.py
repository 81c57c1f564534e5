"""The columns of marked objects: their types, and how those of all images become a table in a
scratch file.

docs/annotations.md has the rules. Until the worker has seen the image of a row, its objects are
those of the source: the column ANNOTATED says in which frame they are, and is not a column of the
dataset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.format.arrays import Floats, is_list, is_number
from shardctl.format.roles import Objects
from shardctl.images.codecs import rle
from shardctl.sources.annotations.base import AnnotationRule, Annotations
from shardctl.sources.annotations.inputs import Rows
from shardctl.system.files import naming_the_path
from shardctl.system.text import counted, some

OBJECTS = "objects"
ANNOTATED = "shardctl.annotated"
"""The column that tells the worker what it needs to finish the objects of an image."""

POLYGONS = pa.list_(pa.list_(pa.float32()))
RLE = pa.struct([pa.field("size", pa.list_(pa.int32(), 2)), pa.field("counts", pa.binary())])
POINTS = pa.list_(pa.list_(pa.float32(), 3))
BOX = pa.list_(pa.float32(), 4)

ITEMS: Mapping[str, pa.DataType] = {
    "id": pa.int64(),
    "category": pa.int64(),
    "bbox": BOX,
    "area": pa.float32(),
    "iscrowd": pa.bool_(),
    "difficult": pa.bool_(),
    "truncated": pa.bool_(),
    "segmentation": POLYGONS,
    "rle": RLE,
    "keypoints": POINTS,
}
"""What may be known of an object, in the order of the columns."""

ALWAYS = frozenset(("category", "bbox"))

FLAGS = ("difficult", "truncated")
"""What VOC alone says of an object."""

ANNOTATED_TYPE = pa.struct(
    {
        "width": pa.int32(),
        "height": pa.int32(),
        "relative": pa.bool_(),
        "frame": pa.string(),
        "boxes": pa.string(),
    }
)
"""The size that the annotations say the image has, null if they do not; whether places are shares
of the size; the rule."""

Size = tuple[int, int]
"""(width, height)."""

Marked = dict[str, list[Any]]
"""The objects of an image: a list for each member, with an item for each object."""

ROWS_AT_ONCE = 4096
"""Images whose objects are Python objects at a time."""

BEYOND = 2**31
"""Places from here on are in no image; and numbers up to it are finite in float32."""

Others = Counter[tuple[str, str]]
"""How often annotations have members without a column: by their name, and what they are of."""

MOST_NAMED = 20
"""Members that a notice names."""

OUTSIDE_PIXELS = 0.5
"""How far a box may reach over the edge before it counts as outside: annotation tools round."""


def objects_type(members: Collection[str]) -> pa.StructType:
    """Return the type of the column with these members, `category` and `bbox` always among them."""
    known = ALWAYS.union(members)
    return pa.struct({name: pa.list_(type_) for name, type_ in ITEMS.items() if name in known})


class TableWriter:
    """Writes the rows of a table into a scratch file, some at a time."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path, self.schema = path, schema
        with naming_the_path(path):
            self._sink = pa.OSFile(str(path), "wb")
            self._writer = pa.ipc.new_file(self._sink, schema)

    def write(self, columns: Iterable[pa.Array]) -> None:
        """Write some rows."""
        with naming_the_path(self._path):
            self._writer.write_batch(pa.record_batch(list(columns), schema=self.schema))

    def finish(self) -> pa.Table:
        """Return the table, mapped into memory."""
        with naming_the_path(self._path):
            self._writer.close()
            self._sink.close()
            return pa.ipc.open_file(pa.memory_map(str(self._path))).read_all()


class ObjectsWriter:
    """Takes the objects of one image after the other, in the order of the inputs.

    The objects of an image are a dict of lists, one item per object in each; what is not there is
    not known of any.
    """

    def __init__(self, path: Path, rule: AnnotationRule, relative: bool) -> None:
        schema = pa.schema([(OBJECTS, objects_type(ITEMS)), (ANNOTATED, ANNOTATED_TYPE)])
        self._writer = TableWriter(path, schema)
        self._rule, self._relative = rule, relative
        self._items: Marked = {name: [] for name in ITEMS}
        self._ends, self._sizes = [0], list[Size | None]()
        self._members: set[str] = set()
        self._outside = self._degenerate = 0

    def add(self, objects: Marked, size: Size | None, counts: Sequence[int] | None = None) -> None:
        """Add the objects of an image, whose size (width, height) the annotations say to be this;
        those of several, if `counts` says how many each has."""
        end = self._ends[-1]
        for name, items in objects.items():
            if items:
                _fill(name, self._items[name], end)
                self._items[name] += items
                self._members.add(name)
        counts = counts or [len(objects["bbox"])]
        self._ends += accumulate(counts, initial=self._ends.pop())
        self._sizes += [size] * len(counts)
        if len(self._sizes) >= ROWS_AT_ONCE:
            self._flush()

    def finish(self, rows: Rows, role: Objects, **more: Any) -> Annotations:
        """Return the annotations, without what is not known of any object. `rows` has the row of
        each input, and `more` has other fields of the annotations."""
        self._flush()
        type_, table = objects_type(self._members), self._writer.finish()
        chunks = [
            pa.StructArray.from_arrays([chunk.field(f.name) for f in type_], fields=list(type_))
            for chunk in table[OBJECTS].chunks
        ]
        field = pa.field(OBJECTS, type_)
        place = table.column_names.index(OBJECTS)
        table = table.set_column(place, field, pa.chunked_array(chunks, type_))
        said = said_of_boxes(self._outside, self._degenerate, self._rule)
        more["notices"] = (*more["notices"], *said)
        return Annotations(table, rows, (field,), roles={OBJECTS: role}, **more)

    def _flush(self) -> None:
        ends, sizes = pa.array(self._ends, pa.int32()), self._sizes
        limits = np.array([(1, 1) if self._relative else size or (0, 0) for size in sizes])
        limits = limits.reshape(-1, 2).repeat(np.diff(self._ends), axis=0)
        odd = odd_boxes(self._items["bbox"], limits, self._relative)
        self._outside += odd[0]
        self._degenerate += odd[1]
        lists = []
        for name, items in self._items.items():
            _fill(name, items, self._ends[-1])
            lists.append(pa.ListArray.from_arrays(ends, pa.array(items, ITEMS[name])))
            items.clear()
        objects = pa.StructArray.from_arrays(lists, fields=list(objects_type(ITEMS)))
        how = [annotated(self._rule, size, self._relative) for size in sizes]
        self._writer.write([objects, pa.array(how, ANNOTATED_TYPE)])
        self._ends, self._sizes = [0], []


def _fill(name: str, items: list[Any], end: int) -> None:
    """Have a member of the objects before `end` of which it is not known be nothing."""
    nothing: Any = [] if name in ("segmentation", "keypoints") else None
    items += [nothing] * (end - len(items))


def fault_of_rle(runs: Mapping[str, Any]) -> str | None:
    """Return what is wrong with an RLE that has a size and counts, in words; None if nothing is."""
    height, width = runs["size"]
    try:
        total = int(rle.decompress(runs["counts"]).sum())
    except ValueError as wrong:
        return f"is {wrong}"
    if total == height * width:
        return None
    return f"has runs of {total} pixels, and {width}x{height} are {width * height}"


def checked_objects(
    objects: Mapping[str, Any], most: float, finite_points: bool = True
) -> dict[str, Any]:
    """Return the objects of an image in a table or a labels file, after checks. Their lists have one
    length, and their places are below `most`. A missing list becomes one of nothing.

    Raises ValueError, the end of a message."""
    count = len(objects["bbox"] or ())
    for member, items in objects.items():
        if items is not None and len(items) != count:
            raise ValueError(f"{OBJECTS} has {count} of bbox and {len(items)} of {member}")
    if not all(_are_numbers(box, most, 4) for box in objects["bbox"] or ()):
        raise ValueError(f"a bbox of {OBJECTS} is not four finite numbers: x, y, width, height")
    for polygon in _parts_in(objects, "segmentation"):
        if not _are_numbers(polygon, most) or len(polygon) % 2:
            raise ValueError(f"a polygon of {OBJECTS} is not a list of numbers: x, y, x, y, …")
    for point in _parts_in(objects, "keypoints"):
        if not _are_numbers(point, most, 3, finite_points):
            raise ValueError(f"a keypoint of {OBJECTS} is not three numbers: x, y, v")
    made = {member: [None] * count if items is None else items for member, items in objects.items()}
    if "keypoints" in made:
        made["keypoints"] = [each or [] for each in made["keypoints"]]
    return made


def _parts_in(objects: Mapping[str, Any], member: str) -> Iterator[Any]:
    """Yield the polygons, or the points, of all objects."""
    return chain.from_iterable(each or () for each in objects.get(member) or ())


def _are_numbers(values: Any, most: float, count: int | None = None, finite: bool = True) -> bool:
    fits = isinstance(values, list) and (count is None or len(values) == count)
    return fits and all(
        type(value) in (int, float) and (abs(value) < most or not finite) for value in values
    )


def size_of_runs(objects: Mapping[str, Any]) -> Size | None:
    """Return the size that the first RLE of objects says, None if there is none."""
    sizes = (runs.get("size") for runs in objects.get("rle") or () if isinstance(runs, dict))
    size = next((size for size in sizes if size and len(size) == 2), None)
    return size and (size[1], size[0])


def annotated(rule: AnnotationRule, size: Size | None, relative: bool) -> dict[str, Any]:
    """Return a value of the column ANNOTATED."""
    width, height = size or (None, None)
    return {
        "width": width,
        "height": height,
        "relative": relative,
        "frame": rule.frame,
        "boxes": rule.boxes,
    }


def as_boxes(boxes: npt.ArrayLike) -> Floats:
    """Return the boxes of an image as numbers, (n, 4)."""
    return np.asarray(boxes, np.float64).reshape(-1, 4)


def odd_boxes(
    boxes: npt.ArrayLike, sizes: npt.ArrayLike, relative: bool = False
) -> tuple[int, int]:
    """Return how many boxes (n, 4) reach outside of their image, and how many have no area.

    `sizes` is the (width, height) of the image, (2,), or that of each box, (n, 2): 0, 0 where it is
    not known, so that nothing is outside. `relative` boxes are shares of the size, which is (1, 1).
    """
    given, limit = as_boxes(boxes), np.asarray(sizes, np.float64)
    low, sides = given[:, :2], given[:, 2:]
    margin = 1e-3 if relative else OUTSIDE_PIXELS
    outside = ((low < -margin) | (low + sides > limit + margin)).any(axis=1) & (limit > 0).all(
        axis=-1
    )
    return int(outside.sum()), int((sides <= 0).any(axis=1).sum())


def are_shares(boxes: npt.ArrayLike) -> bool:
    """Return whether boxes (n, 4) are shares of the size of their image: all numbers are from 0 to
    1, and not all are whole."""
    given = as_boxes(boxes)
    return bool(((given >= 0) & (given <= 1)).all() and (given % 1 != 0).any())


def why_shares(shown: str) -> str:
    """Return why boxes that are shares are refused. `shown` is where they are."""
    return f"{shown}: all boxes are shares of the size, 0 to 1; make them pixels"


def others_in(
    record: Mapping[str, Any], known: Collection[str], of: str = "object"
) -> list[tuple[str, str]]:
    """Return the members of a record of annotations that say something and have no column, each
    with what it is `of`."""
    return [
        (name, of)
        for name, value in record.items()
        if name not in known and value not in (None, "", [], {})
    ]


def said_of_others_in(shown: str, others: Others) -> list[str]:
    """Say which members were left out, and of how many objects or images."""
    names = [f"{name} of {counted(number, of)}" for (name, of), number in others.items()]
    return [f"{shown}: left out: {some(names, MOST_NAMED)}"] if names else []


def said_of_boxes(outside: int, degenerate: int, rule: AnnotationRule) -> list[str]:
    """Say how many boxes are not as they should be, and what is done about them."""
    parts = []
    if outside:
        parts.append(f"{counted(outside, 'box reaches', 'boxes reach')} outside of the image")
    if degenerate:
        parts.append(f"{counted(degenerate, 'box has', 'boxes have')} no area")
    done = {
        "keep": "kept as they are (--boxes-outside clip or drop changes that)",
        "clip": "cut at the edge of the image, dropped if nothing is left",
        "drop": "dropped",
    }
    return [f"{' and '.join(parts)}; {done[rule.boxes]}"] if parts else []


COUNTED = (OBJECTS, "mask", "caption", "captions")
"""The columns of annotations that are counted. Numbers of images and classes come with others."""


def annotated_columns(annotations: Sequence[Annotations]) -> tuple[str, ...]:
    """Return the names of the columns that mark images."""
    names = {f.name for each in annotations for f in each.fields}
    return tuple(name for name in COUNTED if name in names)


def said_of_annotations(annotations: Sequence[Annotations], inputs: int) -> list[str]:
    """Say how much was read, in one notice; in none without annotations. `inputs` is the number of
    all images."""
    parts = [
        _of_objects(each, inputs)
        if name == OBJECTS
        else f"{name} of {counted(_there(each, name), 'image')}"
        for each in annotations
        for name in annotated_columns([each])
    ]
    return [f"annotations: {'; '.join(parts)}"] if parts else []


def _there(annotations: Annotations, name: str) -> int:
    """Return how many images have a value. Masks become a column in the worker: until then, a row
    is one that is there."""
    if name not in annotations.columns.column_names:
        return int((annotations.rows >= 0).sum())
    column = annotations.columns[name]
    return len(column) - int(column.null_count)


def _of_objects(annotations: Annotations, inputs: int) -> str:
    import pyarrow.compute as pc  # 40 ms to import, and most conversions have no annotations

    column, role = annotations.columns[OBJECTS], annotations.roles[OBJECTS]
    categories = pc.list_flatten(pc.struct_field(column, "category"))
    used = len(pc.unique(categories))
    known = len(role.names) if isinstance(role, Objects) and role.names else used
    of = counted(used, "category", "categories")
    of = of if used == known else f"{used:,} of the {known:,} categories"
    # Wrong ones have no objects here, null or an empty list by their format.
    wrong = len(annotations.faults)
    rows = annotations.rows[np.array(sorted(annotations.faults), np.int64)]
    without = column.is_valid().take(pa.array(rows[rows >= 0]))
    there = _there(annotations, OBJECTS) - (pc.sum(without).as_py() or 0)
    missing = inputs - there - wrong
    said = f"{counted(len(categories), 'object')} of {of} in {counted(there, 'image')}"
    said += f", {counted(missing, 'image')} not annotated" if missing else ""
    return said + (f", {counted(wrong, 'image')} whose annotations are wrong" if wrong else "")


# --- the column `objects` of a table, known by its shape ---

CATEGORIES = ("category", "categories", "label", "labels", "category_id")
"""What data sets call the categories of the objects. The first of them that is there is taken."""


def has_objects(schema: pa.Schema) -> bool:
    """Return whether there is the column `objects` with lists of boxes and of `category`."""
    return named_category(schema) == "category"


def named_category(schema: pa.Schema) -> str | None:
    """Return the member of `objects` that has the categories, by any of the usual names; None if
    there is none, or no boxes."""
    items = lists_of_objects(schema)
    types = pa.types
    fits = (types.is_integer, types.is_string, types.is_large_string)
    found = (name for name in CATEGORIES if name in items and any(fit(items[name]) for fit in fits))
    return next(found, None)


def lists_of_objects(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the types of what is in the lists of `objects`, by their names; none without boxes.
    Hugging Face has boxes of a fixed length, and polars has large lists."""
    type_ = schema.field(OBJECTS).type if OBJECTS in schema.names else pa.null()
    members = list(type_) if pa.types.is_struct(type_) else []
    items = {f.name: f.type.value_type for f in members if is_list(f.type)}
    box = items.get("bbox", pa.null())
    # A list without any item has no type, and stands as one of strings.
    place = box.value_type if is_list(box) else pa.null()
    return items if is_number(place) else {}
