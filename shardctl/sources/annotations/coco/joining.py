"""The objects and captions of all COCO files, put together by image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.roles import Objects, Role
from shardctl.sources.annotations.base import AnnotationRule, Annotations, fault, rows_of
from shardctl.sources.annotations.coco.file import NO_ID, CocoFile, Numbers, Rows
from shardctl.sources.annotations.inputs import Inputs
from shardctl.sources.annotations.objects import (
    ALWAYS,
    ANNOTATED,
    ANNOTATED_TYPE,
    ITEMS,
    OBJECTS,
    OUTSIDE_PIXELS,
    POINTS,
    TableWriter,
    objects_field,
    objects_type,
    odd_boxes,
    said_of_boxes,
)
from shardctl.sources.label_table import some
from shardctl.system.text import counted

IMAGES_AT_ONCE = 4096
"""Images whose annotations are put together at a time."""

CAPTIONS = "captions"
IMAGE_ID = "image_id"


class Joined:
    """The annotations of all files, by input."""

    def __init__(
        self,
        marking: list[CocoFile],
        captioning: list[CocoFile],
        categories: Numbers,
        role: Objects,
        inputs: Inputs,
        rule: AnnotationRule,
    ) -> None:
        self._files, self._captioning, self._rule = marking, captioning, rule
        self._categories, self._role = categories, role
        self._count = len(inputs)
        self._paths = inputs.paths_at
        self.notices: list[str] = []
        self._faults: dict[int, Rejection] = {}
        members = set(ALWAYS).union(*(file.members for file in marking))
        self._members = [name for name in ITEMS if name in members]
        self._image_ids, self._sizes = self._facts()
        self._objects = self._sorted_objects()
        self._captions = self._sorted_captions()
        self._outside = self._degenerate = 0
        if any(file.crowds for file in marking) and all(
            file.crowds == len(file.objects or ()) for file in marking
        ):
            self.notices.append(
                "all annotations have iscrowd 1, as some tools write for every RLE; they are kept "
                "as crowds"
            )

    def _facts(self) -> tuple[Numbers, npt.NDArray[np.int32]]:
        """Return the image id of each input, NO_ID where it has none, and the size that is said of
        it (0, 0: none)."""
        ids, sizes = np.full(self._count, NO_ID, np.int64), np.zeros((self._count, 2), np.int32)
        for file in reversed(
            [*self._files, *(file for file in self._captioning if file not in self._files)]
        ):
            there = file.rows >= 0
            ids[file.rows[there]] = file.images[there]
            known = there & (file.sizes[:, 0] > 0)
            sizes[file.rows[known]] = file.sizes[known]
        return ids, sizes

    def _row_of(self, file: CocoFile, images: Numbers, what: str) -> Numbers:
        """Return the input of each annotation, -1 for none."""
        places = file.places(images)
        if len(places) and (places < 0).any():
            lost = np.flatnonzero(places < 0)
            some_ids = some([str(number) for number in np.unique(images[lost])[:3].tolist()])
            self.notices.append(
                f"{file.shown}: {counted(len(lost), what)} of images that the file does not list "
                f"(image_id {some_ids}); skipped"
            )
        rows = (
            np.where(places >= 0, file.rows[places], -1)
            if len(file.rows)
            else np.full(len(places), -1, np.int64)
        )
        for image, message in file.faults.items():
            place = int(file.places(np.array([image]))[0])
            if place >= 0 and file.rows[place] >= 0:
                self._faults.setdefault(int(file.rows[place]), fault(message))
        return rows

    def _found(
        self, files: list[CocoFile], parts: list[Rows], what: str
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Return the input of each annotation (-1: none), its id, and the number of its file."""
        rows = [
            self._row_of(file, part.column("image"), what)
            for file, part in zip(files, parts, strict=True)
        ]
        of_file = [np.full(len(each), number) for number, each in enumerate(rows)]
        row, own, file_of = (
            np.concatenate([np.zeros(0, np.int64), *each])
            for each in (rows, [part.column("id") for part in parts], of_file)
        )
        return row, own, file_of

    def _sorted_objects(self) -> tuple[Numbers, list[Numbers]]:
        """Return the input of each object in increasing order, and for each file the row of the
        object (or -1)."""
        parts = [file.objects for file in self._files if file.objects is not None]
        row, ids, file_of = self._found(self._files, parts, "annotation")
        for number, part in enumerate(parts):
            self._note_categories(
                self._files[number], part.column("category"), row[file_of == number]
            )
        row[np.isin(row, np.array(list(self._faults), np.int64))] = -1
        main = _first_of_same(row, ids, file_of)
        if len(parts) > 1:
            main = self._without_others(main)
        chosen, sources = _sources(row, main, file_of, len(parts))
        self._note_repeated_ids(ids, file_of, chosen)
        return row[chosen], sources

    def _without_others(self, main: Numbers) -> Numbers:
        """Return the main object of each one without those of another category or box: tools count
        from 1 in every file."""
        parts = [file.objects for file in self._files if file.objects is not None]
        categories = np.concatenate([part.column("category") for part in parts])
        boxes = np.concatenate([part.boxes() for part in parts])
        same = (categories == categories[main]) & (
            np.abs(boxes - boxes[main]) <= OUTSIDE_PIXELS
        ).all(axis=1)
        if others := int((~same).sum()):
            one = counted(others, "annotation has", "annotations have")
            self.notices.append(
                f"{one} the id of another one of the same image in an earlier file, but another "
                "category or bbox: all are kept"
            )
        return np.where(same, main, np.arange(len(main)))

    def _note_categories(self, file: CocoFile, categories: Numbers, rows: Numbers) -> None:
        unknown = np.flatnonzero(~np.isin(categories, self._categories) & (rows >= 0))
        ids = file.objects.column("id") if len(unknown) and file.objects is not None else unknown
        for place in unknown.tolist():
            of_id = f" {ids[place]}" if ids[place] != NO_ID else ""
            message = (
                f"{file.shown}: the annotation{of_id} has the category {categories[place]}, "
                "which is not among the categories"
            )
            self._faults.setdefault(int(rows[place]), fault(message))

    def _note_repeated_ids(self, ids: Numbers, file_of: Numbers, chosen: Numbers) -> None:
        for number, file in enumerate(self._files):
            own = ids[chosen[file_of[chosen] == number]]
            own = np.sort(own[own != NO_ID])
            again = np.flatnonzero(own[1:] == own[:-1])
            if len(again):
                count = counted(len(again), "annotation has", "annotations have")
                self.notices.append(
                    f"{file.shown}: {count} the id of another (for instance {own[again[0]]}); all "
                    "are kept"
                )

    def _sorted_captions(self) -> tuple[Numbers, list[Numbers]]:
        """Return the input of each caption in increasing order, and for each file the row of the
        caption (or -1)."""
        parts = [file.captions for file in self._captioning if file.captions is not None]
        row, ids, file_of = self._found(self._captioning, parts, "caption")
        chosen, sources = _sources(row, _first_of_same(row, ids, file_of), file_of, len(parts))
        return row[chosen], sources

    def write(self, path: Path, digests: list[str], notices: list[str]) -> Annotations:
        """Write a row for each input that a file lists, and return the annotations."""
        fields = [pa.field(IMAGE_ID, pa.int64())]
        fields += [objects_field(self._members)] if self._files else []
        fields += [pa.field(CAPTIONS, pa.list_(pa.string()))] if self._captioning else []
        private = [pa.field(ANNOTATED, ANNOTATED_TYPE)] if self._files else []
        writer = TableWriter(path, pa.schema([*fields, *private]))
        listed = np.flatnonzero(self._image_ids != NO_ID)
        marked, said = (
            _listed_by(self._files, self._count),
            _listed_by(self._captioning, self._count),
        )
        for start in range(0, len(listed), IMAGES_AT_ONCE):
            rows = listed[start : start + IMAGES_AT_ONCE]
            columns = [pa.array(self._image_ids[rows])]
            if self._files:
                columns.append(self._objects_of(rows, marked[rows]))
            if self._captioning:
                columns.append(self._captions_of(rows, said[rows]))
            if self._files:
                columns.append(self._annotated_of(rows))
            writer.write(columns)
        table = writer.finish()
        of_input = rows_of(listed, self._count)
        notices = [
            *notices,
            *said_of_boxes(self._outside, self._degenerate, self._rule),
            *self._said_of_unlisted(listed),
        ]
        roles: dict[str, Role] = {OBJECTS: self._role} if self._files else {}
        return Annotations(
            table,
            of_input,
            tuple(fields),
            tuple(digests),
            roles,
            faults=self._faults,
            notices=tuple(notices),
        )

    def _said_of_unlisted(self, listed: Numbers) -> list[str]:
        missing = self._count - len(listed)
        if not missing:
            return []
        there = np.zeros(self._count, bool)
        there[listed] = True
        example = some(self._paths(np.flatnonzero(~there)[:3]))
        return [
            f"{missing:,} of {counted(self._count, 'input')} are not in the COCO files "
            f"({example}): not annotated"
        ]

    def _objects_of(self, rows: Numbers, marked: npt.NDArray[np.bool_]) -> pa.Array:
        """Return the objects of some inputs, null for those that no file with objects lists."""
        offsets, taken = _taken(self._objects, [file.objects for file in self._files], rows)
        values = {name: self._values(name, taken) for name in self._members}
        self._count_boxes(values["bbox"], np.repeat(rows, np.diff(offsets)))
        if "keypoints" in values:
            self._check_points(values["keypoints"], np.repeat(rows, np.diff(offsets)))
        type_ = objects_type(self._members)
        lists = [pa.ListArray.from_arrays(pa.array(offsets), values[f.name]) for f in type_]
        return pa.StructArray.from_arrays(lists, fields=list(type_), mask=pa.array(~marked))

    def _values(self, name: str, taken: dict[str, pa.Array]) -> pa.Array:
        """Return a member of objects as the dataset has it."""
        array = taken[name]
        if name == "category":
            return pa.array(np.searchsorted(self._categories, array.to_numpy()), pa.int64())
        if name == "iscrowd":
            return array.fill_null(False)
        if name == "keypoints":
            return _centred(array)
        return array

    def _count_boxes(self, boxes: pa.Array, rows: Numbers) -> None:
        outside, degenerate = odd_boxes(
            boxes.flatten().to_numpy().reshape(-1, 4), self._sizes[rows]
        )
        self._outside += outside
        self._degenerate += degenerate

    def _check_points(self, points: pa.Array, rows: Numbers) -> None:
        """Note images with an object that has some keypoints, but not as many as have names."""
        names = self._role.keypoints
        if names is None:
            return
        counts = np.diff(points.offsets.to_numpy())
        for place in np.flatnonzero((counts != 0) & (counts != len(names))).tolist():
            message = (
                f"an object has {counted(int(counts[place]), 'keypoint')}, and the "
                f"categories name {len(names)}"
            )
            self._faults.setdefault(int(rows[place]), fault(message))

    def _captions_of(self, rows: Numbers, said: npt.NDArray[np.bool_]) -> pa.Array:
        offsets, taken = _taken(self._captions, [file.captions for file in self._captioning], rows)
        return pa.ListArray.from_arrays(pa.array(offsets), taken["caption"], mask=pa.array(~said))

    def _annotated_of(self, rows: Numbers) -> pa.Array:
        unknown = self._sizes[rows, 0] == 0
        width, height = (pa.array(self._sizes[rows, place], mask=unknown) for place in (0, 1))
        constant = [
            pa.array([value] * len(rows)) for value in (False, self._rule.frame, self._rule.boxes)
        ]
        return pa.StructArray.from_arrays([width, height, *constant], fields=list(ANNOTATED_TYPE))


def _taken(
    found: tuple[Numbers, list[Numbers]], parts: Sequence[Rows | None], rows: Numbers
) -> tuple[npt.NDArray[np.int32], dict[str, pa.Array]]:
    """Return where the annotations of each of some inputs begin and the last ones end, and their
    columns."""
    of, sources = found
    starts, ends = (np.searchsorted(of, rows, side) for side in ("left", "right"))
    chosen = np.concatenate(
        [np.zeros(0, np.int64), *(np.arange(a, b) for a, b in zip(starts, ends, strict=True))]
    )
    offsets = np.concatenate([[0], np.cumsum(ends - starts)]).astype(np.int32)
    return offsets, _joined(parts, [source[chosen] for source in sources])


def _listed_by(files: list[CocoFile], count: int) -> npt.NDArray[np.bool_]:
    listed = np.zeros(count, bool)
    for file in files:
        listed[file.rows[file.rows >= 0]] = True
    return listed


def _first_of_same(rows: Numbers, ids: Numbers, files: Numbers) -> Numbers:
    """Return for each object the first one of the same image and id in an earlier file, else
    itself."""
    main = np.arange(len(rows))
    if not files.any():
        return main
    order = np.lexsort((main, files, ids, rows))
    same = np.zeros(len(rows), bool)
    one, two = order[:-1], order[1:]
    same[1:] = (
        (rows[one] == rows[two]) & (ids[one] == ids[two]) & (rows[two] >= 0) & (ids[two] != NO_ID)
    )
    group = np.cumsum(~same) - 1
    first = order[np.flatnonzero(~same)][group] if len(order) else order
    other_file = files[first] != files[order]
    main[order] = np.where(other_file, first, order)
    return main


def _sources(
    row: Numbers, main: Numbers, file_of: Numbers, files: int
) -> tuple[Numbers, list[Numbers]]:
    """Return which annotations are the main ones of an input, by it, and for each file their rows
    in it (-1: not in it)."""
    place = np.arange(len(row)) - np.searchsorted(file_of, file_of)
    chosen = np.flatnonzero((main == np.arange(len(row))) & (row >= 0))
    chosen = chosen[np.argsort(row[chosen], kind="stable")]
    order = np.full(len(row), -1, np.int64)
    order[chosen] = np.arange(len(chosen))
    sources = [np.full(len(chosen), -1, np.int64) for _ in range(files)]
    there = np.flatnonzero(order[main] >= 0)
    for number, source in enumerate(sources):
        mine = there[file_of[there] == number]
        source[order[main[mine]]] = place[mine]
    return chosen, sources


def _joined(parts: Sequence[Rows | None], sources: Sequence[Numbers]) -> dict[str, pa.Array]:
    """Return rows that are each in one or several of the parts (-1: not in it); of several, what
    the first ones know counts."""
    import pyarrow.compute as pc  # 40 ms to import, and most conversions have no COCO files

    columns: dict[str, pa.Array] = {}
    for part, rows in zip(parts, sources, strict=True):
        assert part is not None, "parts that were read"
        batch = part.take(rows)
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            if name not in columns:
                columns[name] = array
            else:
                before = columns[name]
                known = before.is_valid()
                if name in ("segmentation", "keypoints"):
                    known = pc.and_(
                        known, pc.greater(pc.fill_null(pc.list_value_length(before), 0), 0)
                    )
                    known = pc.or_(known, array.is_null())
                place = np.arange(len(before)) + np.where(np.asarray(known), 0, len(before))
                columns[name] = pa.concat_arrays([before, array]).take(pa.array(place))
    return columns


def _centred(points: pa.Array) -> pa.Array:
    """Return COCO's keypoints, which are numbers of pixels, in corner coordinates: the middle of a
    pixel is half of one on."""
    inner = points.values
    values = inner.flatten().to_numpy().reshape(-1, 3).copy()
    there = values[:, 2] > 0
    values[there, :2] += 0.5
    values[~there] = 0
    moved = pa.FixedSizeListArray.from_arrays(
        pa.array(values.ravel(), pa.float32()), type=POINTS.value_type
    )
    return pa.ListArray.from_arrays(points.offsets, moved)
