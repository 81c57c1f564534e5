"""What was read of one COCO file: a few columns in memory, its annotations in scratch files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import InputError
from shardctl.format.roles import Objects
from shardctl.sources.annotations.objects import ITEMS, Others
from shardctl.sources.label_table import some
from shardctl.system.text import composed, printable

Numbers = npt.NDArray[np.int64]


def is_id(number: Any) -> bool:
    """Return whether a value is a whole number of 64 bits."""
    return type(number) is int and -(2**63) < number < 2**63


NO_ID = -(2**63)
"""Stands for an id that there is not."""

MEMBERS = ("id", "category", "bbox", "area", "iscrowd", "segmentation", "rle", "keypoints")
"""What a COCO file may know of an object."""

OBJECT_COLUMNS = pa.schema([("image", pa.int64()), *((name, ITEMS[name]) for name in MEMBERS)])
CAPTION_COLUMNS = pa.schema([("image", pa.int64()), ("id", pa.int64()), ("caption", pa.string())])
"""`id` is a hash of the id and the text: where both are the same, it is one caption in two
files."""


@dataclass
class CocoFile:
    """What was read of one file: its images as columns, its categories, and its annotations in
    scratch files."""

    opened: str
    images: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    names: pa.ChunkedArray = field(default_factory=lambda: pa.chunked_array([], pa.large_string()))
    sizes: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 2), np.int32))
    rows: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    categories: list[dict[str, Any]] = field(default_factory=list)
    objects: Rows | None = None
    captions: Rows | None = None
    members: set[str] = field(default_factory=set)
    others: Others = field(default_factory=Others)
    faults: dict[int, str] = field(default_factory=dict)
    crowds: int = 0
    digest: str = ""

    @property
    def shown(self) -> str:
        """The path or the URL for a message."""
        return printable(self.opened)

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
        return np.where(
            there,
            self.order[np.minimum(place, max(len(ordered) - 1, 0))] if len(ordered) else -1,
            -1,
        )


class Rows:
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

    def boxes(self) -> npt.NDArray[np.float32]:
        """Return the boxes of all rows, (n, 4)."""
        parts = [
            batch.column("bbox").flatten().to_numpy(zero_copy_only=False).reshape(-1, 4)
            for batch in self._batches
        ]
        return np.concatenate([np.zeros((0, 4), np.float32), *parts])

    def batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the number of the first row of each batch, and the batch."""
        yield from zip(self._starts.tolist(), self._batches, strict=False)

    def take(self, rows: Numbers) -> pa.RecordBatch:
        """Return some rows; one of null for -1. Batch by batch: a take from the whole would first
        copy it together."""
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


def joined_categories(files: list[CocoFile]) -> tuple[Numbers, Objects, list[str]]:
    """Return the ids of the categories of all files, in increasing order, what the role says of
    them, and notices. Raises InputError for one id with two names, and for
    objects without any."""
    found: dict[int, dict[str, Any]] = {}
    for file in files:
        for category in file.categories:
            known = isinstance(category, dict) and type(category.get("name")) is str
            if not known or not is_id(category.get("id")):
                raise InputError(
                    f"{file.shown}: a category has no id that is a whole number of 64 bits, or no "
                    "name"
                )
            category["name"] = composed(category["name"])
            before = found.setdefault(category["id"], category)
            if before["name"] != category["name"]:
                raise InputError(
                    f"{file.shown}: the category {category['id']} has two names, "
                    f"{printable(before['name'])} and {printable(category['name'])}; give the "
                    "files the same categories, or convert each alone"
                )
            if "keypoints" in category:
                found[category["id"]] = {**before, **category}
    ids = sorted(found)
    without = next((file for file in files if file.objects is not None and len(file.objects)), None)
    if not ids and without is not None:
        raise InputError(
            f"{without.shown}: it has annotations of objects, and no categories; add the list of "
            "their names"
        )
    times = Counter(found[number]["name"] for number in ids)
    twice = [name for name, count in times.items() if count > 1]
    names = [
        f"{found[n]['name']} (id {n})" if times[found[n]["name"]] > 1 else found[n]["name"]
        for n in ids
    ]
    said = (
        [f"several categories are called {some(twice)}; their ids were added to their names"]
        if twice
        else []
    )
    above = [found[number].get("supercategory") for number in ids]
    supercategories = (
        tuple(name if isinstance(name, str) else "" for name in above) if any(above) else None
    )
    points, skeleton, odd = _keypoints_of(
        [found[number] for number in ids if found[number].get("keypoints")]
    )
    if odd:
        said.append("its categories have different keypoints, whose names are left out")
    role = Objects(
        tuple(names) or None,
        tuple(ids) if names else None,
        supercategories,
        points,
        skeleton,
        mirrored_points(points),
    )
    return np.array(ids, np.int64), role, said


def _keypoints_of(
    categories: list[dict[str, Any]],
) -> tuple[tuple[str, ...] | None, tuple[tuple[int, int], ...] | None, bool]:
    """Return the names of the keypoints and the lines between them; whether categories differ in
    that."""
    if not categories:
        return None, None, False
    names = categories[0]["keypoints"]
    if any(category["keypoints"] != names for category in categories):
        return None, None, True
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None, None, False
    lines = categories[0].get("skeleton")
    lines = lines if isinstance(lines, list) else []
    pairs = [
        (line[0] - 1, line[1] - 1)  # COCO counts from 1
        for line in lines
        if isinstance(line, list)
        and len(line) == 2
        and all(type(n) is int and 0 < n <= len(names) for n in line)
    ]
    return tuple(names), tuple(pairs) if pairs and len(pairs) == len(lines) else None, False


def mirrored_points(names: tuple[str, ...] | None) -> tuple[int, ...] | None:
    """Return which keypoint each becomes in a mirrored image, by `left` and `right` in the names;
    None if none has these, or if one has no partner or says its side in another way."""
    if names is None:
        return None
    swapped = [_SIDE.sub(lambda found: _OTHER_SIDE[found[0]], name) for name in names]
    in_another_way = any(
        one == other and _SHORT_SIDE.search(one) for one, other in zip(names, swapped, strict=True)
    )
    if (
        len(set(names)) < len(names)
        or swapped == list(names)
        or not set(swapped) <= set(names)
        or in_another_way
    ):
        return None
    return tuple(names.index(name) for name in swapped)


_SIDES = (("left", "right"), ("Left", "Right"), ("LEFT", "RIGHT"))
_OTHER_SIDE = dict([*_SIDES, *((right, left) for left, right in _SIDES)])
_SIDE = re.compile("|".join(_OTHER_SIDE))
_SHORT_SIDE = re.compile(
    r"(?<![A-Za-z])[LRlr][Tt]?(?![A-Za-z])|(?<![A-Za-z])[LRlr](?=[A-Z][a-z])|(?<=[a-z])[LR](?![A-Za-z])"
)
"""l_ear, ear_R, rt ear, LEar, earL."""
