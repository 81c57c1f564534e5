"""What the columns of a dataset hold, from some blocks all over it: how large values are, the objects
that are marked in images (by category and split, their sizes, places and keypoints), the classes of
masks.

Blocks are read one after the other, of objects only the columns that are needed, and counted in
Arrow's flat arrays: memory does not grow with the dataset, and no Python object is made of an object.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import Rejection
from shardctl.format.arrays import Array, Floats, items_of, owners_of
from shardctl.format.dataset_location import DatasetLocation
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.manifest import Manifest
from shardctl.format.roles import Mask, Objects
from shardctl.format.shard import Compression
from shardctl.format.token_columns import DOCUMENT_COLUMNS, list_lengths, packed_column
from shardctl.images.codecs.image import decode_mask, open_image
from shardctl.inspection.content.blocks import (
    ALL,
    StoredBlock,
    blocks_and_share,
    checked_columns,
    count_blocks,
    name_at,
)
from shardctl.loader.blocks.pictures import facts_of
from shardctl.sources.annotations.objects import OUTSIDE_PIXELS
from shardctl.system.permutation import evenly_spaced
from shardctl.system.report import Table
from shardctl.system.text import format_bytes

BLOCKS = 4
"""Default number of blocks that are read: a few milliseconds each."""

IMAGES = 256
"""Images whose headers are read: 40 microseconds each."""

BINS = 24

WORD_BYTES = 16
"""How long texts of short words are, such as modes of images, is not shown."""


@dataclass(frozen=True)
class Distribution:
    """How some numbers are spread: of what, the least, the median, the most; a histogram of `edges`
    (n + 1), `counts` (n)."""

    what: str
    low: float
    median: float
    high: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @property
    def says_something(self) -> bool:
        """Whether it is worth showing: the numbers differ, and are not lengths of short words, such
        as modes of images."""
        return self.low < self.high and not (
            self.what.endswith(", bytes") and self.high < WORD_BYTES
        )

    def table(self, unit: str) -> Table:
        """Return the bins, each with how many `unit` are in it."""
        share = self.high <= 1 and "share" in self.what
        written = f"{{:{'.1%' if share else ',.0f'}}}".format
        named = format_bytes if self.what.endswith(", bytes") else written
        whole = not share and all(edge == int(edge) for edge in self.edges)
        pairs = [(low, high - whole) for low, high in itertools.pairwise(self.edges)]
        names = [
            named(low) if low == high else f"{named(low)} to {named(high)}" for low, high in pairs
        ]
        exact = share or self.median == int(self.median) or self.median >= 1000
        median = written(self.median) if exact else f"{self.median:.1f}"
        spread = f"{written(self.low)} to {written(self.high)}, {median} at the median"
        return Table(
            list(zip(names, self.counts, strict=True)),
            (self.what, unit),
            bars=(1,),
            line=f"{self.what}: {spread}",
        )


@dataclass(frozen=True)
class ColumnStatistics:
    """What the values of a column take: bytes of one, before and after compression."""

    name: str
    type: str
    raw_bytes: float
    stored_bytes: float


class Recorded:
    """What can be printed as plain data: all that a dataclass has."""

    def record(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # each is a dataclass


@dataclass(frozen=True)
class Statistics(Recorded):
    """What was found in `samples` samples of `blocks` blocks. `formats` counts those of encoded
    images.

    `faults` says of blocks that cannot be read why.
    """

    samples: int
    blocks: int
    columns: tuple[ColumnStatistics, ...]
    distributions: tuple[Distribution, ...]
    formats: dict[str, int]
    faults: tuple[str, ...]


def statistics_of(
    place: DatasetLocation, blocks: int = BLOCKS, split: str | None = None
) -> Statistics:
    """Read up to `blocks` blocks of a dataset, of one of its splits, or of a lone shard. Nothing of
    a block stays in memory, and different lengths are few.

    Raises DatasetError if not even its tables can be read, UsageError for a split that there is
    not.
    """
    codec = Compression.parse(
        "none" if place.lone else str(Manifest.load(place.folder).recipe.get("compression"))
    ).codec()
    found, images = blocks_and_share(place, split, blocks, IMAGES)
    seen, sizes, formats = Counter[str](), Counter[tuple[str, str]](), Counter[str]()
    types: dict[str, pa.DataType] = {}
    spreads: dict[str, Counter[Any]] = {}

    def count(block: StoredBlock) -> None:
        data, roles = block.data, block.reader.layout.roles
        # tokens.py counts documents
        elsewhere = {"key", *(DOCUMENT_COLUMNS if packed_column(roles) is not None else ())}
        seen.update(samples=data.num_rows, blocks=1)
        for part, column in zip(data.schema, data.columns, strict=True):
            name = part.name
            types.setdefault(name, part.type)
            sizes[name, "raw"] += column.nbytes
            sizes[name, "stored"] += _stored(column, codec)
            if name in roles.images and part.type.equals(ENCODED_IMAGE):
                some = column.slice(0, images).field("bytes")
                facts = [facts_of(each.as_py()) for each in some if each.is_valid]
                formats.update(str(fact["format"] or "unreadable") for fact in facts)
                for what, said in _OF_IMAGES.items():
                    numbers = [fact[what] for fact in facts if fact[what] is not None]
                    spreads.setdefault(f"{name}{said}", Counter()).update(numbers)
            elif name not in elsewhere:
                for unit, lengths in _lengths(column):
                    add_numbers(spreads.setdefault(f"{name}, {unit}", Counter()), lengths)

    faults = count_blocks(found, count)
    columns = []
    for name, type_ in types.items():
        each = (round(sizes[name, which] / seen["samples"], 1) for which in ("raw", "stored"))
        columns.append(ColumnStatistics(name, str(type_), *each))
    return Statistics(
        seen["samples"],
        seen["blocks"],
        tuple(columns),
        tuple(distribution(what, counter) for what, counter in spreads.items()),
        dict(formats.most_common()),
        faults,
    )


_OF_IMAGES = {"width": " width", "height": " height", "image_bytes": ", bytes"}
"""What the headers of images say, and how a distribution of it is called behind their column."""


def _stored(column: pa.Array, codec: pa.Codec | None) -> int:
    """Return what a column takes in a file: each of its buffers is compressed by itself, if that
    makes it smaller."""
    if codec is None:
        return int(column.nbytes)
    sizes = [(buffer, buffer.size) for buffer in column.buffers() if buffer is not None]
    return sum(
        min(size, len(codec.compress(buffer, asbytes=True))) for buffer, size in sizes if size
    )


def _lengths(column: pa.Array) -> Iterator[tuple[str, Array]]:
    """Yield in what text, bytes and lists are measured, and how long they are; nothing of other
    columns."""
    there = column.drop_null() if column.null_count else column
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        yield "items", list_lengths(there)
    elif pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        yield "bytes", np.asarray(pc.binary_length(there))


def add_numbers(counter: Counter[Any], numbers: Array) -> None:
    """Count some numbers."""
    values, counts = np.unique(numbers, return_counts=True)
    counter.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))


def distribution(what: str, counter: Counter[Any], edges: Array | None = None) -> Distribution:
    """Return how numbers are spread, given how often there is each; nothing of none.

    `edges` are those of the bins; what is above is in the last one. Without them there are up to
    BINS.
    """
    if not counter:
        return Distribution(what, 0, 0, 0, (), ())
    values, counts = map(np.array, zip(*sorted(counter.items()), strict=True))
    low, high = float(values[0]), float(values[-1])
    if edges is None:
        binned, edges = np.histogram(values, min(BINS, max(1, int(high - low))), weights=counts)
        edges = edges.round(1)
    else:
        binned, _ = np.histogram(np.minimum(values, edges[-1]), edges, weights=counts)
    total = int(counts.sum())
    middle = np.searchsorted(np.cumsum(counts), [(total + 1) // 2, total // 2 + 1])
    median = float(values[middle].mean())
    shown = tuple(map(float, edges))
    return Distribution(what, low, median, high, shown, tuple(binned.astype(np.int64).tolist()))


def spread_of_counts(what: str, counter: Counter[int]) -> Distribution:
    """Return how whole numbers are spread: bins of one number each, or of several where there are
    too many."""
    low, end = min(counter, default=0), max(counter, default=0) + 1
    width = -(-(end - low) // BINS)
    return distribution(what, counter, np.arange(low, end + width, width))


SMALL, MEDIUM = 32**2, 96**2
"""COCO's limits of small and medium objects, in pixels of the image; here of the area of their
boxes."""

GRID = 16
"""Rows and columns of the map of places."""

SHARES = np.linspace(0, 1, 21).round(3)
"""Edges of the bins of shares."""

_MOST_POINTS = 1000
"""Keypoints of an object beyond which nothing is counted."""

HEAD_BYTES = 1 << 16
"""Bytes of a JPEG that its header is looked for in first: the rest need not come from the disk."""


@dataclass(frozen=True)
class CategoryCount:
    """The objects of a category and the images that have one; `splits` has both numbers by
    split."""

    category: int
    name: str | None
    objects: int
    images: int
    splits: dict[str, dict[str, int]]


@dataclass(frozen=True)
class PointCount:
    """How often a keypoint is visible (v = 2), hidden (v = 1) and not there (v = 0)."""

    name: str | None
    visible: int
    hidden: int
    absent: int


@dataclass(frozen=True)
class ObjectStatistics(Recorded):
    """What was found in a column of objects, in `samples` samples of `blocks` blocks.

    `sizes` counts boxes as small, medium and large by COCO's limits. `sized_images` is the number
    of images whose size was looked up; of their boxes are `shares` (the square root of the share of
    the image's area), `outside` (boxes that reach out of it) and `centres` (GRID x GRID numbers of
    boxes, from the top left, row by row). `degenerate` counts boxes without an area. `crowds`,
    `difficult`, `truncated` are None where the column does not say. `faults` says of blocks that
    cannot be read why.
    """

    samples: int
    blocks: int
    not_annotated: int
    without_objects: int
    objects: int
    crowds: int | None
    difficult: int | None
    truncated: int | None
    categories: tuple[CategoryCount, ...]
    per_image: Distribution
    sizes: dict[str, int]
    degenerate: int
    sized_images: int
    outside: int
    shares: Distribution
    centres: tuple[tuple[int, ...], ...]
    keypoints: tuple[PointCount, ...]
    faults: tuple[str, ...]


class _Tally:
    """What was counted so far in one column of objects: `counts` by the names of ObjectStatistics,
    `points` by three times the number of the keypoint, and how well it can be seen."""

    def __init__(self, role: Objects) -> None:
        self.role = role
        self.counts: Counter[str] = Counter()
        self.objects: dict[str, Counter[int]] = {}
        self.images: dict[str, Counter[int]] = {}
        self.per_image, self.shares = Counter[int](), Counter[float]()
        self.centres, self.points = Counter[int](), Counter[int]()

    def add(self, split: str, column: pa.StructArray, image_sizes: Floats) -> None:
        """Count a block: `image_sizes` (n, 2) are width and height, NaN where they were not looked
        up. Raises ValueError."""
        rows = len(column)
        members = dict(zip((part.name for part in column.type), column.flatten(), strict=True))
        lengths = {name: list_lengths(values) for name, values in members.items()}
        counts = lengths["bbox"]
        if any(not np.array_equal(counts, each) for each in lengths.values()):
            raise ValueError("the lists of a sample's objects have different lengths")
        image_of = owners_of(counts)
        there = np.asarray(column.is_valid())
        self.counts.update(
            samples=rows,
            blocks=1,
            not_annotated=int((~there).sum()),
            objects=len(image_of),
            sized_images=int(np.isfinite(image_sizes[:, 0]).sum()),
        )
        add_numbers(self.per_image, counts[there])
        categories = members["category"].flatten().fill_null(-1).to_numpy().astype(np.int64)
        add_numbers(self.objects.setdefault(split, Counter()), categories)
        pairs = np.unique(categories * rows + image_of)
        add_numbers(self.images.setdefault(split, Counter()), pairs // max(1, rows))
        self._add_boxes(rows_of(members["bbox"].flatten()), image_sizes[image_of])
        for name in _FLAGS & members.keys():
            self.counts[name] += pc.sum(members[name].flatten().cast(pa.int64())).as_py() or 0
        if "keypoints" in members:
            self._add_points(members["keypoints"].flatten())

    def _add_boxes(self, boxes: Floats, sizes: Floats) -> None:
        """Count boxes; `sizes` are those of the images of each."""
        proper = np.isfinite(boxes).all(axis=1) & (boxes[:, 2:] > 0).all(axis=1)
        areas = boxes[proper, 2:].prod(axis=1)
        small, medium = (int((areas < limit).sum()) for limit in (SMALL, MEDIUM))
        self.counts.update(
            small=small,
            medium=medium - small,
            large=len(areas) - medium,
            degenerate=len(boxes) - len(areas),
        )
        known = proper & np.isfinite(sizes[:, 0])
        begins, sides, sizes = boxes[known, :2], boxes[known, 2:], sizes[known]
        out = (begins < -OUTSIDE_PIXELS) | (begins + sides > sizes + OUTSIDE_PIXELS)
        self.counts["outside"] += int(out.any(axis=1).sum())
        add_numbers(self.shares, np.sqrt(sides.prod(axis=1) / sizes.prod(axis=1)).round(4))
        centres = (begins + sides / 2) / sizes
        inside = centres[((centres >= 0) & (centres <= 1)).all(axis=1)]
        columns, rows = np.minimum(inside * GRID, GRID - 1).astype(np.int64).T
        add_numbers(self.centres, rows * GRID + columns)

    def _add_points(self, of_objects: pa.ListArray) -> None:
        lengths = list_lengths(of_objects)
        visible = rows_of(of_objects.flatten())[:, 2]
        number = np.arange(len(visible)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        kept = (number < _MOST_POINTS) & np.isin(visible, (0, 1, 2))
        add_numbers(self.points, number[kept] * 3 + visible[kept].astype(np.int64))

    def result(self, faults: tuple[str, ...]) -> ObjectStatistics:
        """Return all of it, with what was wrong with blocks."""
        count, names = self.counts, self.role.keypoints
        numbers = set(range(len(self.role.names or ()))).union(*self.objects.values())
        categories = map(self._category, sorted(numbers))
        points = range(max(self.points, default=-1) // 3 + 1)
        return ObjectStatistics(
            count["samples"],
            count["blocks"],
            count["not_annotated"],
            self.per_image[0],
            count["objects"],
            count.get("iscrowd"),
            count.get("difficult"),
            count.get("truncated"),
            tuple(sorted(categories, key=lambda each: -each.objects)),
            spread_of_counts("objects in an image", self.per_image),
            {name: count[name] for name in ("small", "medium", "large")},
            count["degenerate"],
            count["sized_images"],
            count["outside"],
            distribution("side of a box as a share of the image's", self.shares, SHARES),
            tuple(
                tuple(self.centres[row * GRID + column] for column in range(GRID))
                for row in range(GRID)
            ),
            tuple(
                PointCount(name_at(n, names), *(self.points[3 * n + seen] for seen in (2, 1, 0)))
                for n in points
            ),
            faults,
        )

    def _category(self, number: int) -> CategoryCount:
        parts = {
            split: {"objects": objects[number], "images": self.images[split][number]}
            for split, objects in self.objects.items()
            if objects
        }
        objects, images = (
            sum(part[what] for part in parts.values()) for what in ("objects", "images")
        )
        return CategoryCount(number, name_at(number, self.role.names), objects, images, parts)


_FLAGS = {"iscrowd", "difficult", "truncated"}


def rows_of(values: pa.FixedSizeListArray) -> Floats:
    """Return lists of a fixed size as rows, (n, size); NaN where a list or a number is missing."""
    flat = items_of(values).to_numpy(zero_copy_only=False).astype(np.float64)
    rows: Floats = flat.reshape(-1, values.type.list_size)
    if values.null_count:
        rows[~np.asarray(values.is_valid())] = np.nan
    return rows


def object_statistics(
    place: DatasetLocation, blocks: int = ALL, images: int = ALL, split: str | None = None
) -> dict[str, ObjectStatistics]:
    """Count the objects of up to `blocks` blocks of a dataset, of a split, or of a lone shard, by
    the name of the column.

    The sizes of up to `images` images are looked up in their headers, evenly spaced. Raises
    DatasetError if not even the tables can be read, UsageError for a split that there is not.
    """
    tallies: dict[str, _Tally] = {}
    found, share = blocks_and_share(place, split, blocks, images)

    def count(block: StoredBlock) -> None:
        roles, split = block.shard.roles, str(block.reader.info["split"])
        main, schema = roles.main_image, block.reader.schema
        encoded = [
            name for name in [main] if name and schema.field(name).type.equals(ENCODED_IMAGE)
        ]
        batch = checked_columns(block, [*roles.objects, *encoded])
        sizes = np.full((batch.num_rows, 2), np.nan)
        if encoded:
            data = batch.column(main).field("bytes")
            for row in evenly_spaced(batch.num_rows, share):
                sizes[row] = _encoded_size(data[row].as_buffer())
        elif main is not None and (shape := roles.images[main].shape) is not None:
            sizes[:] = shape[1], shape[0]
        for name, role in roles.objects.items():
            tallies.setdefault(name, _Tally(role)).add(split, batch.column(name), sizes)

    faults = count_blocks(found, count)
    return {name: tally.result(faults) for name, tally in tallies.items()}


def _encoded_size(data: pa.Buffer | None) -> tuple[float, float]:
    """Return width and height of an image, NaN if it is missing or cannot be opened."""
    if data is not None:
        is_jpeg = data.slice(0, min(2, data.size)).to_pybytes() == b"\xff\xd8"
        for size in ([min(HEAD_BYTES, data.size)] if is_jpeg else []) + [data.size]:
            with suppress(Rejection):
                return open_image(data.slice(0, size).to_pybytes(), max_pixels=2**62).size
    return np.nan, np.nan


_MOST_CLASS = 4095
"""The highest number of a class: masks with higher ones are not counted."""


@dataclass(frozen=True)
class ClassPixels:
    """The pixels of a class of masks, and the masks that have any."""

    number: int
    name: str | None
    pixels: int
    masks: int


@dataclass(frozen=True)
class MaskStatistics(Recorded):
    """What was found in `masks` masks of a column, evenly spaced. `ignored` pixels are of no class.

    `missing` counts samples without a mask, `unreadable` masks that do not decode.
    """

    masks: int
    missing: int
    unreadable: int
    pixels: int
    ignored: int
    classes: tuple[ClassPixels, ...]


def mask_statistics(
    place: DatasetLocation, masks: int, split: str | None = None
) -> dict[str, MaskStatistics]:
    """Count the pixels of each class in up to `masks` masks of each column, evenly spaced, by the
    name of the column.

    A mask with numbers above 4095 (depths, instances) has no classes that could be counted: it
    counts as unreadable. Raises as `object_statistics`.
    """
    tallies: dict[str, _MaskTally] = {}
    found, share = blocks_and_share(place, split, masks, masks)

    def count(block: StoredBlock) -> None:
        roles = block.reader.layout.roles.images
        of_masks = {name: role for name, role in roles.items() if isinstance(role, Mask)}
        batch = checked_columns(block, list(of_masks))
        for name, role in of_masks.items():
            tally = tallies.setdefault(name, _MaskTally(role))
            for row in evenly_spaced(batch.num_rows, share):
                tally.add(batch.column(name).slice(row, 1))

    count_blocks(found, count)  # the statistics of columns say what cannot be read
    return {name: tally.result() for name, tally in tallies.items() if tally.classes}


@dataclass
class _MaskTally:
    """What was counted so far in one column of masks."""

    role: Mask
    masks: int = 0
    missing: int = 0
    unreadable: int = 0
    classes: Counter[int] = field(default_factory=Counter)
    with_class: Counter[int] = field(default_factory=Counter)

    def add(self, value: pa.Array) -> None:
        """Count the pixels of a mask: an array of one value."""

        if isinstance(value.type, pa.FixedShapeTensorType):
            numbers = value.to_numpy_ndarray()[0]
        else:
            data = value.field("bytes")[0].as_py()
            if data is None:
                self.missing += 1
                return
            try:
                numbers = decode_mask(data)
            except Rejection:
                self.unreadable += 1
                return
        if numbers.min() < 0 or numbers.max() > _MOST_CLASS:
            self.unreadable += 1
            return
        self.masks += 1
        counts = np.bincount(numbers.reshape(-1))
        there = np.flatnonzero(counts).tolist()
        self.classes.update({number: int(counts[number]) for number in there})
        self.with_class.update(there)

    def result(self) -> MaskStatistics:
        """Return all of it."""
        numbers = set(range(len(self.role.names or ()))) | set(self.classes)
        numbers.discard(-1 if self.role.ignore is None else self.role.ignore)
        classes = [
            ClassPixels(n, name_at(n, self.role.names), self.classes[n], self.with_class[n])
            for n in sorted(numbers)
        ]
        ignored = 0 if self.role.ignore is None else self.classes[self.role.ignore]
        ranked = tuple(sorted(classes, key=lambda each: (-each.pixels, each.number)))
        pixels = sum(self.classes.values())
        return MaskStatistics(self.masks, self.missing, self.unreadable, pixels, ignored, ranked)
