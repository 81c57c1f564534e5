"""The objects that are marked in the images of a dataset: by category and split, their sizes,
places and keypoints.

Blocks are read one after the other, only the columns that are needed, and counted in Arrow's flat
arrays: memory does not grow with the dataset, and no Python object is made of an object.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import Rejection
from shardctl.format.arrays import Floats, items_of, owners_of
from shardctl.format.dataset_location import DatasetLocation
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.roles import Mask, Objects
from shardctl.format.token_columns import list_lengths
from shardctl.images.codecs.image import decode_mask, open_image
from shardctl.inspection.content.blocks import (
    ALL,
    StoredBlock,
    blocks_and_share,
    checked_columns,
    count_blocks,
    name_at,
)
from shardctl.inspection.content.statistics import (
    Distribution,
    Recorded,
    add_numbers,
    distribution,
    spread_of_counts,
)
from shardctl.sources.annotations.objects import OUTSIDE_PIXELS
from shardctl.system.permutation import evenly_spaced

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
        shares = np.sqrt(sides.prod(axis=1) / sizes.prod(axis=1))
        add_numbers(self.shares, shares.round(4))
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
