"""The objects that are marked in the images of a dataset: by category and split, their sizes,
places and keypoints.

Blocks are read one after the other, only the columns that are needed, and counted in Arrow's flat
arrays: memory does not grow with the dataset, and no Python object is made of an object.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import DatasetError, Rejection
from shardctl.format.dataset_location import DatasetLocation
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.roles import Mask, Objects
from shardctl.images.codecs.image import decode_mask, open_image
from shardctl.inspection.content.blocks import StoredBlock, blocks_and_share, checked_columns
from shardctl.inspection.content.statistics import Distribution, spread_of_counts
from shardctl.sources.annotations.objects import OUTSIDE_PIXELS
from shardctl.system.permutation import evenly_spaced

SMALL, MEDIUM = 32**2, 96**2
"""COCO's limits of small and medium objects, in pixels of the image; here of the area of their
boxes."""

GRID = 16
"""Rows and columns of the map of places."""

SHARE_BINS = 20
_FINE_BINS = 1000
"""Bins from which the median of shares is computed: to a thousandth."""

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
class ObjectStatistics:
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

    def record(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)


@dataclass
class _Tally:
    """What was counted so far in one column of objects."""

    role: Objects
    samples: int = 0
    blocks: int = 0
    not_annotated: int = 0
    flags: dict[str, int] = field(default_factory=dict)
    objects: Counter[tuple[str, int]] = field(default_factory=Counter)
    images: Counter[tuple[str, int]] = field(default_factory=Counter)
    per_image: Counter[int] = field(default_factory=Counter)
    sizes: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, np.int64))
    degenerate: int = 0
    sized_images: int = 0
    outside: int = 0
    shares: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(_FINE_BINS, np.int64))
    least_share: float = np.inf
    most_share: float = 0.0
    centres: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((GRID, GRID), np.int64))
    points: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), np.int64))

    def add(self, split: str, column: pa.StructArray, image_sizes: npt.NDArray[np.float64]) -> None:
        """Count a block: `image_sizes` (n, 2) are width and height, NaN where they were not looked
        up. Raises ValueError."""
        members = dict(zip((part.name for part in column.type), column.flatten(), strict=True))
        counts = pc.list_value_length(members["bbox"]).fill_null(0).to_numpy()
        lengths = {
            name: pc.list_value_length(values).fill_null(0).to_numpy()
            for name, values in members.items()
        }
        if any(not np.array_equal(counts, each) for each in lengths.values()):
            raise ValueError("the lists of a sample's objects have different lengths")
        image_of = np.repeat(np.arange(len(column)), counts)
        there = np.asarray(column.is_valid())
        self.samples += len(column)
        self.blocks += 1
        self.not_annotated += int((~there).sum())
        self.per_image.update(counts[there].tolist())
        self._add_categories(
            split, members["category"].flatten().fill_null(-1).to_numpy(), image_of, len(column)
        )
        self._add_boxes(_rows_of(members["bbox"].flatten()), image_of, image_sizes)
        for name in ("iscrowd", "difficult", "truncated"):
            if name in members:
                self.flags[name] = self.flags.get(name, 0) + (
                    pc.sum(members[name].flatten().cast(pa.int64())).as_py() or 0
                )
        if "keypoints" in members:
            self._add_points(members["keypoints"].flatten())

    def _add_categories(
        self,
        split: str,
        categories: npt.NDArray[np.int64],
        image_of: npt.NDArray[np.int64],
        rows: int,
    ) -> None:
        values, places, counts = np.unique(categories, return_inverse=True, return_counts=True)
        pairs = np.unique(places.reshape(-1) * rows + image_of)
        images = np.bincount(pairs // max(rows, 1), minlength=len(values))
        for value, count, with_it in zip(
            values.tolist(), counts.tolist(), images.tolist(), strict=True
        ):
            self.objects[split, value] += count
            self.images[split, value] += with_it

    def _add_boxes(
        self,
        boxes: npt.NDArray[np.float64],
        image_of: npt.NDArray[np.int64],
        image_sizes: npt.NDArray[np.float64],
    ) -> None:
        proper = np.isfinite(boxes).all(axis=1) & (boxes[:, 2] > 0) & (boxes[:, 3] > 0)
        self.degenerate += int((~proper).sum())
        self.sized_images += int(np.isfinite(image_sizes[:, 0]).sum())
        boxes, size = boxes[proper], image_sizes[image_of[proper]]
        areas = boxes[:, 2] * boxes[:, 3]
        self.sizes += np.bincount(
            np.searchsorted([SMALL, MEDIUM], areas, side="right"), minlength=3
        )
        known = np.isfinite(size[:, 0])
        boxes, size, areas = boxes[known], size[known], areas[known]
        if not len(boxes):
            return
        ends = boxes[:, :2] + boxes[:, 2:]
        self.outside += int(
            ((boxes[:, :2] < -OUTSIDE_PIXELS) | (ends > size + OUTSIDE_PIXELS)).any(axis=1).sum()
        )
        shares = np.sqrt(areas / size.prod(axis=1))
        self.least_share, self.most_share = (
            min(self.least_share, float(shares.min())),
            max(self.most_share, float(shares.max())),
        )
        self.shares += np.bincount(_binned(shares, _FINE_BINS), minlength=_FINE_BINS)
        centres = (boxes[:, :2] + boxes[:, 2:] / 2) / size
        inside = ((centres >= 0) & (centres <= 1)).all(axis=1)
        columns, rows = _binned(centres[inside], GRID).T
        self.centres += np.bincount(rows * GRID + columns, minlength=GRID * GRID).reshape(
            GRID, GRID
        )

    def _add_points(self, of_objects: pa.ListArray) -> None:
        lengths = pc.list_value_length(of_objects).fill_null(0).to_numpy()
        visible = _rows_of(of_objects.flatten())[:, 2]
        number = np.arange(len(visible)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        kept = (number < _MOST_POINTS) & np.isin(visible, (0, 1, 2))
        most = max(len(self.points), int(number[kept].max(initial=-1)) + 1)
        cells = np.bincount(
            number[kept] * 3 + visible[kept].astype(np.int64), minlength=most * 3
        ).reshape(most, 3)
        cells[: len(self.points)] += self.points
        self.points = cells

    def result(self, faults: list[str]) -> ObjectStatistics:
        """Return all of it, with what was wrong with blocks."""
        objects = sum(self.objects.values())
        numbers = set(range(len(self.role.names or ()))) | {
            category for _, category in self.objects
        }
        splits = list(dict.fromkeys(split for split, _ in self.objects))
        categories = [self._category(number, splits) for number in sorted(numbers)]
        ranked = sorted(categories, key=lambda each: (-each.objects, each.category))
        sizes = dict(zip(("small", "medium", "large"), self.sizes.tolist(), strict=True))
        return ObjectStatistics(
            self.samples,
            self.blocks,
            self.not_annotated,
            self.per_image.get(0, 0),
            objects,
            self.flags.get("iscrowd"),
            self.flags.get("difficult"),
            self.flags.get("truncated"),
            tuple(ranked),
            spread_of_counts("objects in an image", self.per_image),
            sizes,
            self.degenerate,
            self.sized_images,
            self.outside,
            self._spread_of_shares(),
            tuple(tuple(row) for row in self.centres.tolist()),
            tuple(self._point(number) for number in range(len(self.points))),
            tuple(faults),
        )

    def _category(self, number: int, splits: list[str]) -> CategoryCount:
        parts = {
            s: {
                "objects": self.objects.get((s, number), 0),
                "images": self.images.get((s, number), 0),
            }
            for s in splits
        }
        of_all = {
            what: sum(part[what] for part in parts.values()) for what in ("objects", "images")
        }
        return CategoryCount(
            number, name_at(number, self.role.names), of_all["objects"], of_all["images"], parts
        )

    def _point(self, number: int) -> PointCount:
        absent, hidden, visible = self.points[number].tolist()
        return PointCount(name_at(number, self.role.keypoints), visible, hidden, absent)

    def _spread_of_shares(self) -> Distribution:
        what, total = "side of a box as a share of the image's", int(self.shares.sum())
        if not total:
            return Distribution(what, 0, 0, 0, (), ())
        middle = int(np.searchsorted(np.cumsum(self.shares), (total + 1) // 2))
        counts = self.shares.reshape(SHARE_BINS, -1).sum(axis=1)
        edges = tuple(np.linspace(0, 1, SHARE_BINS + 1).round(3).tolist())
        low, median, high = (
            round(share, 4)
            for share in (self.least_share, (middle + 0.5) / _FINE_BINS, self.most_share)
        )
        return Distribution(
            what, low, min(max(median, low), high), high, edges, tuple(counts.tolist())
        )


def _binned(shares: npt.NDArray[np.float64], bins: int) -> npt.NDArray[np.int64]:
    """Return in which of so many bins of 0..1 a number is; what is over 1 is in the last."""
    binned: npt.NDArray[np.int64] = np.minimum(shares * bins, bins - 1).astype(np.int64)
    return binned


def name_at(number: int, names: tuple[str, ...] | None) -> str | None:
    """Return the name of a category, class or keypoint; None where it has none."""
    return names[number] if names is not None and 0 <= number < len(names) else None


def _rows_of(values: pa.FixedSizeListArray) -> npt.NDArray[np.float64]:
    """Return lists of a fixed size as rows, (n, size); NaN where a list or a number is missing."""
    size = values.type.list_size
    flat = values.values.slice(values.offset * size, len(values) * size)
    rows: npt.NDArray[np.float64] = (
        flat.to_numpy(zero_copy_only=False).astype(np.float64).reshape(-1, size)
    )
    if values.null_count:
        rows[~np.asarray(values.is_valid())] = np.nan
    return rows


def object_statistics(
    place: DatasetLocation,
    blocks: int | None = None,
    images: int | None = None,
    split: str | None = None,
) -> dict[str, ObjectStatistics]:
    """Count the objects of up to `blocks` blocks of a dataset, of a split, or of a lone shard, by
    the name of the column.

    The sizes of up to `images` images are looked up in their headers, evenly spaced; None stands
    for all. Raises DatasetError if not even the tables can be read, UsageError for a split that
    there is not.
    """
    tallies: dict[str, _Tally] = {}
    faults: list[str] = []
    placed, share = blocks_and_share(place, split, blocks, images)
    for block in placed:
        try:
            if not block.shard.roles.objects:
                break  # all shards have the same columns
            _count_objects(block, share, tallies)
        except DatasetError as error:
            faults.append(str(error))
    return {name: tally.result(faults) for name, tally in tallies.items()}


def _count_objects(block: StoredBlock, share: int | None, tallies: dict[str, _Tally]) -> None:
    """Count the objects of a block, with the sizes of up to `share` images. Raises DatasetError."""
    schema, roles = block.reader.schema, block.shard.roles
    columns = roles.objects
    main = roles.main_image
    encoded = [main] if main is not None and schema.field(main).type.equals(ENCODED_IMAGE) else []
    batch = checked_columns(block, [*columns, *encoded])
    if encoded:
        sizes = _encoded_sizes(batch.column(main).field("bytes"), share)
    else:
        shape = None if main is None else roles.images[main].shape
        sizes = np.tile(
            [np.nan, np.nan] if shape is None else [float(shape[1]), float(shape[0])],
            (batch.num_rows, 1),
        )
    for name, role in columns.items():
        try:
            tallies.setdefault(name, _Tally(role)).add(
                str(block.reader.info["split"]), batch.column(name), sizes
            )
        except ValueError as error:
            raise block.reader.unreadable(block.number, error) from error


def _encoded_sizes(images: pa.BinaryArray, share: int | None) -> npt.NDArray[np.float64]:
    """Return width and height (n, 2) of up to `share` images, NaN of the others and of those that
    cannot be opened."""
    sizes = np.full((len(images), 2), np.nan)
    for place in evenly_spaced(len(images), len(images) if share is None else share):
        data = images[place].as_buffer()
        if data is not None:
            sizes[place] = _encoded_size(data)
    return sizes


def _encoded_size(data: pa.Buffer) -> tuple[float, float]:
    # loads the decoders, which most datasets never need here

    head = data.slice(0, min(HEAD_BYTES, data.size)).to_pybytes()
    parts = [head] if head.startswith(b"\xff\xd8") else []
    for part in (*parts, data):
        try:
            width, height = open_image(
                part if isinstance(part, bytes) else part.to_pybytes(), max_pixels=2**62
            ).size
        except Rejection:
            continue
        return width, height
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
class MaskStatistics:
    """What was found in `masks` masks of a column, evenly spaced. `ignored` pixels are of no class.

    `missing` counts samples without a mask, `unreadable` masks that do not decode.
    """

    masks: int
    missing: int
    unreadable: int
    pixels: int
    ignored: int
    classes: tuple[ClassPixels, ...]

    def record(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)


def mask_statistics(
    place: DatasetLocation, masks: int, split: str | None = None
) -> dict[str, MaskStatistics]:
    """Count the pixels of each class in up to `masks` masks of each column, evenly spaced, by the
    name of the column.

    A mask with numbers above 4095 (depths, instances) has no classes that could be counted: it
    counts as unreadable. Raises as `object_statistics`.
    """
    tallies: dict[str, _MaskTally] = {}
    placed, share = blocks_and_share(place, split, masks, masks)
    for block in placed:
        try:
            if not any(
                isinstance(role, Mask) for role in block.reader.layout.roles.images.values()
            ):
                break
            _count_pixels(block, share, tallies)
        except DatasetError:
            continue  # the statistics of columns say so
    return {name: tally.result() for name, tally in tallies.items() if tally.classes}


def _count_pixels(block: StoredBlock, share: int | None, tallies: dict[str, _MaskTally]) -> None:
    """Count the pixels of up to `share` masks of a block. Raises DatasetError."""
    roles = {
        name: role
        for name, role in block.reader.layout.roles.images.items()
        if isinstance(role, Mask)
    }
    batch = checked_columns(block, list(roles))
    for name, role in roles.items():
        tally = tallies.setdefault(name, _MaskTally(role))
        for place in evenly_spaced(batch.num_rows, batch.num_rows if share is None else share):
            tally.add(batch.column(name).slice(place, 1))


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
