"""What was read of one COCO file: a few columns in memory, its annotations in scratch files."""

from __future__ import annotations

import re
from collections import Counter
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
    objects: Rows = field(init=False)
    captions: Rows = field(init=False)
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

    def inputs_of(self, images: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
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

    def column(self, name: str) -> npt.NDArray[Any]:
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
                    f"{printable(before['name'])} and {printable(category['name'])}; keep one"
                )
            if "keypoints" in category:
                found[category["id"]] = {**before, **category}
    ids = sorted(found)
    without = next((file for file in files if len(file.objects)), None)
    if not ids and without is not None:
        raise InputError(
            f"{without.shown}: it has annotations of objects, and no categories; add the list"
        )
    of_name = Counter(found[number]["name"] for number in ids)
    names = [
        name if of_name[name := found[number]["name"]] == 1 else f"{name} (id {number})"
        for number in ids
    ]
    said = []
    if twice := [name for name, count in of_name.items() if count > 1]:
        said.append(
            f"several categories are called {some(twice)}; their ids were added to their names"
        )
    above = [found[number].get("supercategory") for number in ids]
    with_points = [found[number] for number in ids if found[number].get("keypoints")]
    points, skeleton = _keypoints_of(with_points[0]) if with_points else (None, None)
    if any(category["keypoints"] != with_points[0]["keypoints"] for category in with_points):
        points = skeleton = None
        said.append("its categories have different keypoints, whose names are left out")
    role = Objects(
        tuple(names) or None,
        tuple(ids) or None,
        tuple(name if isinstance(name, str) else "" for name in above) if any(above) else None,
        points,
        skeleton,
        mirrored_points(points),
    )
    return np.array(ids, np.int64), role, said


def _keypoints_of(
    category: dict[str, Any],
) -> tuple[tuple[str, ...] | None, tuple[tuple[int, int], ...] | None]:
    """Return the names of the keypoints and the lines between them."""
    names, lines = category["keypoints"], category.get("skeleton")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None, None
    known = range(1, len(names) + 1)  # COCO counts from 1
    listed = lines if isinstance(lines, list) else []
    fits = all(
        isinstance(line, list)
        and len(line) == 2
        and all(type(n) is int and n in known for n in line)
        for line in listed
    )
    pairs = tuple((one - 1, other - 1) for one, other in listed) if fits else ()
    return tuple(names), pairs or None


def mirrored_points(names: tuple[str, ...] | None) -> tuple[int, ...] | None:
    """Return which keypoint each becomes in a mirrored image, by `left` and `right` in the names;
    None if none has these, or if one has no partner or says its side in another way."""
    swapped = [_SIDE.sub(lambda found: _OTHER_SIDE[found[0]], name) for name in names or ()]
    in_another_way = any(
        one == other and _SHORT_SIDE.search(one)
        for one, other in zip(names or (), swapped, strict=True)
    )
    if (
        names is None
        or len(set(names)) < len(names)
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
