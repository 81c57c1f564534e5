"""COCO: instances, keypoints and captions, from one file or several that belong together. Those of
all files are put together by image."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError
from shardctl.format.arrays import Numbers, edges_of
from shardctl.format.roles import Objects, Role
from shardctl.sources.annotations.base import (
    AnnotationRule,
    Annotations,
    Faults,
    Source,
    fault,
    rows_of,
)
from shardctl.sources.annotations.coco.reading import NO_ID, CocoFile, Rows, is_id, read_file
from shardctl.sources.annotations.inputs import (
    PathTable,
    Place,
    ToldSplits,
    joined,
    none_among_inputs,
    said_of_absent,
    stem,
)
from shardctl.sources.annotations.objects import (
    ANNOTATED,
    ANNOTATED_TYPE,
    OBJECTS,
    OUTSIDE_PIXELS,
    POINTS,
    TableWriter,
    are_shares,
    objects_type,
    odd_boxes,
    said_of_boxes,
    said_of_others_in,
    why_shares,
)
from shardctl.sources.splits import split_word
from shardctl.system.locations import name_of
from shardctl.system.text import composed, counted, printable, some

IMAGES_AT_ONCE = 4096
"""Images whose annotations are put together at a time."""

CAPTIONS = "captions"
IMAGE_ID = "image_id"


def read(
    sources: Sequence[Source], inputs: PathTable, rule: AnnotationRule, scratch: Path
) -> Annotations:
    """Read all files. Objects of the same id and image in several of them are one object."""
    files = [
        read_file(source.path, scratch / f"coco-{number}") for number, source in enumerate(sources)
    ]
    notices = [notice for file in files for notice in _find_inputs(file, inputs)]
    if not any((file.rows >= 0).any() for file in files):
        raise none_among_inputs(files[0].shown, files[0].names)
    marking = [file for file in files if len(file.objects) or not len(file.captions)]
    captioning = [file for file in files if len(file.captions)]
    categories, role, said = joined_categories(marking)
    notices += said
    faults: Faults = {}
    marks = _Merged(marking, [file.objects for file in marking])
    marks.join("annotation", notices, faults, categories)
    texts = _Merged(captioning, [file.captions for file in captioning])
    texts.join("caption", notices, faults)
    if any(file.crowds for file in marking) and all(
        file.crowds == len(file.objects) for file in marking
    ):
        notices.append(
            "all annotations have iscrowd 1, as some tools write; they are kept as crowds"
        )

    ids, sizes = np.full(len(inputs), NO_ID, np.int64), np.zeros((len(inputs), 2), np.int32)
    for file in reversed([*marking, *captioning]):  # what the first one says counts
        there = file.rows >= 0
        ids[file.rows[there]] = file.images[there]
        known = there & (file.sizes[:, 0] > 0)
        sizes[file.rows[known]] = file.sizes[known]
    listed, (marked, captioned) = np.flatnonzero(ids != NO_ID), np.zeros((2, len(inputs)), bool)
    for flags, own in ((marked, marking), (captioned, captioning)):
        for file in own:
            flags[file.rows[file.rows >= 0]] = True
    type_ = objects_type([name for file in marking for name in file.members])
    fields = [pa.field(IMAGE_ID, pa.int64())]
    fields += [pa.field(OBJECTS, type_)] if marking else []
    fields += [pa.field(CAPTIONS, pa.list_(pa.string()))] if captioning else []
    private = [pa.field(ANNOTATED, ANNOTATED_TYPE)] if marking else []
    writer = TableWriter(scratch / "coco.arrow", pa.schema([*fields, *private]))
    outside = degenerate = shares = with_boxes = 0
    for start in range(0, len(listed), IMAGES_AT_ONCE):
        rows = listed[start : start + IMAGES_AT_ONCE]
        columns = {IMAGE_ID: pa.array(ids[rows])}
        if marking:
            offsets, values = marks.of(rows)
            values["category"] = pa.array(
                np.searchsorted(categories, values["category"].to_numpy())
            )
            values["iscrowd"] = values["iscrowd"].fill_null(False)
            values["keypoints"] = _centred(values["keypoints"])
            of_object = np.repeat(rows, np.diff(offsets))
            boxes = values["bbox"].flatten().to_numpy().reshape(-1, 4)
            odd = odd_boxes(boxes, sizes[of_object])
            outside, degenerate = outside + odd[0], degenerate + odd[1]
            shares, with_boxes = shares + are_shares(boxes), with_boxes + bool(len(boxes))
            _check_points(values["keypoints"], of_object, role, faults)
            lists = [pa.ListArray.from_arrays(offsets, values[f.name]) for f in type_]
            columns[OBJECTS] = pa.StructArray.from_arrays(
                lists, fields=list(type_), mask=pa.array(~marked[rows])
            )
            unknown, count = sizes[rows, 0] == 0, len(rows)
            parts = [pa.array(sizes[rows, side], mask=unknown) for side in (0, 1)]
            parts += [pa.array([value] * count) for value in (False, rule.frame, rule.boxes)]
            columns[ANNOTATED] = pa.StructArray.from_arrays(parts, fields=list(ANNOTATED_TYPE))
        if captioning:
            offsets, values = texts.of(rows)
            columns[CAPTIONS] = pa.ListArray.from_arrays(
                offsets, values["caption"], mask=pa.array(~captioned[rows])
            )
        writer.write(columns[name] for name in writer.schema.names)
    if shares and shares == with_boxes:
        raise InputError(why_shares(some([file.shown for file in marking])))
    notices += said_of_boxes(outside, degenerate, rule)
    if len(listed) < len(inputs):
        missing = np.flatnonzero(ids == NO_ID)
        notices.append(
            f"{len(missing):,} of {counted(len(inputs), 'input')} are not in the COCO files "
            f"({some(inputs.paths_at(missing[:3]))}): not annotated"
        )
    roles: dict[str, Role] = {OBJECTS: role} if marking else {}
    return Annotations(
        writer.finish(),
        rows_of(listed, len(inputs)),
        tuple(fields),
        [file.digest for file in files],
        roles,
        faults=faults,
        notices=notices,
        splits=_splits_of(files),
    )


def _splits_of(files: Sequence[CocoFile]) -> ToldSplits | None:
    """Return the splits that names of files tell of, instances_train.json and instances_val.json;
    None where it is one."""
    places: dict[str, list[Place]] = {}
    for file in files:
        if (word := split_word(stem(name_of(file.opened)))) is not None:
            places.setdefault(word.word, []).append(file.rows[file.rows >= 0])
    return ToldSplits(some([file.shown for file in files]), places) if len(places) > 1 else None


def _find_inputs(file: CocoFile, inputs: PathTable) -> list[str]:
    """Find the input of each image of a file. Raises InputError for images of one id, and for two
    of one input."""
    ordered = file.images[file.order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(again):
        one, other = (file.names[int(file.order[again[0] + more])].as_py() for more in (0, 1))
        raise InputError(
            f"{file.shown}: the images {printable(one)} and {printable(other)} have the same id "
            f"{int(ordered[again[0]])}"
        )
    file.rows = inputs.by_path.of_file(file.names, file.opened)
    return [
        *said_of_others_in(file.shown, file.others),
        *said_of_absent(file.shown, file.names, file.rows),
    ]


@dataclass
class _Merged:
    """The objects, or the captions, of some files, by input."""

    files: list[CocoFile]
    parts: list[Rows]

    def join(
        self, what: str, notices: list[str], faults: Faults, categories: Numbers | None = None
    ) -> None:
        """Find out which annotations are of which input. `categories` are the known ones of
        objects."""
        found = []
        for file, part in zip(self.files, self.parts, strict=True):
            images = part.column("image")
            rows, listed = file.inputs_of(images)
            if not listed.all():
                lost = some([str(number) for number in np.unique(images[~listed])[:3].tolist()])
                notices.append(
                    f"{file.shown}: {counted(int((~listed).sum()), what)} of images that it does "
                    f"not list (image_id {lost}); skipped"
                )
            wrong, _ = file.inputs_of(np.array(list(file.faults), np.int64))
            for row, why in zip(wrong.tolist(), file.faults.values(), strict=True):
                if row >= 0:
                    faults.setdefault(row, fault(why))
            found.append(rows)
        row, ids = joined(found), joined([part.column("id") for part in self.parts])
        file_of = np.repeat(np.arange(len(found)), list(map(len, found)))
        if categories is not None:
            own = joined([part.column("category") for part in self.parts])
            for place in np.flatnonzero(~np.isin(own, categories) & (row >= 0)).tolist():
                of_id = f" {ids[place]}" if ids[place] != NO_ID else ""
                message = (
                    f"{self.files[file_of[place]].shown}: the annotation{of_id} has the category "
                    f"{own[place]}, which is not among the categories"
                )
                faults.setdefault(int(row[place]), fault(message))
            row[np.isin(row, list(faults))] = -1
        main = _first_of_same(row, ids, file_of)
        if categories is not None and len(found) > 1:  # tools count from 1 in every file
            boxes = np.concatenate([part.column("bbox") for part in self.parts])
            same = (own == own[main]) & (np.abs(boxes - boxes[main]) <= OUTSIDE_PIXELS).all(axis=1)
            main = np.where(same, main, np.arange(len(main)))
            if others := int((~same).sum()):
                one = counted(others, "annotation has", "annotations have")
                notices.append(
                    f"{one} the id of another one of the image in an earlier file, with another "
                    "category or bbox: all are kept"
                )
        chosen = np.flatnonzero((main == np.arange(len(row))) & (row >= 0))
        chosen = chosen[np.argsort(row[chosen], kind="stable")]
        order = np.full(len(row), -1, np.int64)
        order[chosen] = np.arange(len(chosen))
        self._rows, self._sources = row[chosen], []
        for number, each in enumerate(found):
            source, mine = np.full(len(chosen), -1, np.int64), file_of == number
            there = order[main[mine]] >= 0
            source[order[main[mine]][there]] = np.arange(len(each))[there]
            self._sources.append(source)
            own_ids = np.sort(ids[chosen[mine[chosen]]])
            again = own_ids[1:][(own_ids[1:] == own_ids[:-1]) & (own_ids[1:] != NO_ID)]
            if categories is not None and len(again):
                count = counted(len(again), "annotation has", "annotations have")
                notices.append(
                    f"{self.files[number].shown}: {count} the id of another (for instance "
                    f"{again[0]}); all are kept"
                )

    def of(self, rows: Numbers) -> tuple[pa.Array, dict[str, pa.Array]]:
        """Return where the annotations of each of some inputs begin and the last ones end, and
        their columns. Of those that are in several files, what the first ones know counts."""
        import pyarrow.compute as pc  # 40 ms to import, and most conversions have no COCO files

        starts, ends = (np.searchsorted(self._rows, rows, side) for side in ("left", "right"))
        chosen = joined([np.arange(a, b) for a, b in zip(starts, ends, strict=True)])
        offsets = edges_of(ends - starts).astype(np.int32)
        columns: dict[str, pa.Array] = {}
        for part, source in zip(self.parts, self._sources, strict=True):
            for name, array in part.take(source[chosen]).items():
                before = columns.setdefault(name, array)
                known = before.is_valid()
                if name in ("segmentation", "keypoints"):
                    known = pc.greater(pc.fill_null(pc.list_value_length(before), 0), 0)
                    known = pc.or_(known, array.is_null())
                columns[name] = pc.if_else(known, before, array)
        return pa.array(offsets), columns


def _first_of_same(rows: Numbers, ids: Numbers, files: Numbers) -> Numbers:
    """Return for each object the first one of the same image and id in an earlier file, else
    itself."""
    main = np.arange(len(rows))
    if not files.any():
        return main
    pairs = np.stack([rows, ids], axis=1)
    _, firsts, group = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    first = firsts[group.reshape(-1)]
    is_known = (rows >= 0) & (ids != NO_ID)
    return np.where(is_known & (files[first] != files), first, main)


def _check_points(points: pa.Array, rows: Numbers, role: Objects, faults: Faults) -> None:
    """Note images with an object that has some keypoints, but not as many as have names."""
    counts, named = np.diff(points.offsets.to_numpy()), len(role.keypoints or ())
    for place in np.flatnonzero(counts).tolist() if named else ():
        if counts[place] != named:
            message = (
                f"an object has {counted(int(counts[place]), 'keypoint')}, and the "
                f"categories name {named}"
            )
            faults.setdefault(int(rows[place]), fault(message))


def _centred(points: pa.Array) -> pa.Array:
    """Return COCO's keypoints, which are numbers of pixels, in corner coordinates: the middle of a
    pixel is half of one on."""
    values = points.values.flatten().to_numpy().reshape(-1, 3).copy()
    there = values[:, 2] > 0
    values[there, :2] += 0.5
    values[~there] = 0
    moved = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), type=POINTS.value_type)
    return pa.ListArray.from_arrays(points.offsets, moved)


# --- categories ---


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
        raise InputError(f"{without.shown}: it has objects and no categories; add the list")
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
