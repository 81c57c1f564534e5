"""The masks of a dataset: how many of their pixels are of each class."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, field
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError, Rejection
from shardctl.format.dataset_location import DatasetLocation
from shardctl.format.roles import Mask
from shardctl.inspection.content.blocks import Placed, blocks_and_share, checked_columns
from shardctl.inspection.content.objects import name_at
from shardctl.system.dataclass import dataclass
from shardctl.system.sequences import evenly_spaced

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


def _count_pixels(block: Placed, share: int | None, tallies: dict[str, _MaskTally]) -> None:
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
        from shardctl.images.codecs.image import decode_mask

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
