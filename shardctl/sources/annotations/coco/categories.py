"""The categories and keypoints of COCO files that belong together."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardctl.errors import InputError
from shardctl.format.roles import Objects
from shardctl.sources.annotations.coco.file import CocoFile, Numbers
from shardctl.sources.label_table import some
from shardctl.system.text import composed, printable


@dataclass(frozen=True)
class Categories:
    """The categories of all files by their ids, in increasing order, and what the role says of
    them."""

    ids: Numbers
    role: Objects


def joined_categories(files: list[CocoFile]) -> tuple[Categories, list[str]]:
    """Join the categories of all files. Raises InputError for one id with two names, and for
    objects without any."""
    found: dict[int, dict[str, Any]] = {}
    for file in files:
        for category in file.categories:
            if (
                not isinstance(category, dict)
                or type(category.get("id")) is not int
                or type(category.get("name")) is not str
            ):
                raise InputError(
                    f"{file.shown}: a category has no id that is a whole number, or no name"
                )
            if not -(2**63) < category["id"] < 2**63:
                raise InputError(
                    f"{file.shown}: the id of the category {printable(category['name'])} is too "
                    "large:"
                    " an id has at most 64 bits"
                )
            category["name"] = composed(category["name"])
            before = found.setdefault(category["id"], category)
            if before["name"] != category["name"]:
                raise InputError(
                    f"{file.shown}: the category {category['id']} has two names, "
                    f"{printable(before['name'])} and"
                    f" {printable(category['name'])}; convert the files into two datasets, or give "
                    "them the same categories"
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
    return Categories(np.array(ids, np.int64), role), said


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
