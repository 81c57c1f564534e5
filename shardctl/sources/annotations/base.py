"""What the formats of annotations have in common: where they are read from, by which rule, and what
becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import Rejection, UsageError
from shardctl.format.arrays import Hashes, one_chunk
from shardctl.format.roles import Role
from shardctl.images.defaults import BOXES, FRAMES, TASKS
from shardctl.sources.annotations.inputs import Rows, ToldSplits
from shardctl.system.options import Word

MASK_FILE = "shardctl.mask"
"""The column that tells the worker where the mask of an image is: its path from the source of the
image on, and what it is."""


@dataclass(frozen=True)
class Source:
    """Where annotations are: `coco:instances.json`, `voc+zero-based:Annotations`,
    `masks+ignore=255:masks`.

    `options` are those of the format, each with its value, "" where it has none. `path` is "" where
    none was given.
    """

    format: str
    path: str
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        options = "".join(
            f"+{name}={value}" if value else f"+{name}" for name, value in self.options
        )
        return f"{self.format}{options}:{self.path}"


@dataclass(frozen=True)
class AnnotationRule:
    """How annotations are read: what is done about boxes that are not within their image, which
    frame they are in.

    `task` says what the lines of YOLO files are, None if their data.yaml or the lines say it.
    """

    boxes: str = "keep"
    frame: str = "auto"
    task: str | None = None

    def check(self, sources: Sequence[Source]) -> None:
        """Raise UsageError for what cannot be, and for a task without YOLO files."""
        Word(*BOXES).check("boxes", self.boxes)
        Word(*FRAMES).check("annotation_frame", self.frame)
        if self.task is not None:
            Word(*TASKS).check("task", self.task)
            if not any(source.format == "yolo" for source in sources):
                raise UsageError("--yolo-task is for YOLO labels; add --labels yolo:PATH")

    def record(self) -> dict[str, str]:
        """Return what differs from the defaults, as plain data."""
        rule = (
            ("boxes", self.boxes, "keep"),
            ("annotation_frame", self.frame, "auto"),
            ("task", self.task, None),
        )
        return {name: value for name, value, plain in rule if value is not None and value != plain}


Faults = dict[int, Rejection]
"""What rejects inputs for their annotations, by their numbers."""


@dataclass(frozen=True)
class Annotations:
    """What annotations say of the inputs.

    `columns` has a row for each input that they are about, in the order of the inputs, and may be a
    mapped scratch file; `rows` has the row of each input, -1 for those without: (n,) int64.
    `fields` are the columns that the dataset gets, `roles` those of them; other columns are for the
    worker. `classes` are the names of the values of the column `label`, where there is one.
    `faults` are inputs whose annotations are wrong, each with the reason: they become rejects.
    `digests` are those of what was read, in hex. Where rows of `columns` name files, `stamps` has a
    hash of the size and the time of change of each: (rows,). `frame` is that of all rows where it
    was found out for all of them, None where it is what the rows say. `splits` are those that the
    files tell of, None where they tell of none. `numbers` has the number that each class gets in
    the place of its own in `columns`. `places` are the files and folders that were looked at;
    none: those that were given.
    """

    columns: pa.Table
    rows: Rows
    fields: tuple[pa.Field, ...]
    digests: Sequence[str]
    roles: dict[str, Role] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    faults: Faults = field(default_factory=dict)
    notices: Sequence[str] = ()
    stamps: Hashes | None = None
    frame: str | None = None
    splits: ToldSplits | None = None
    numbers: Rows | None = None
    places: Sequence[str] = ()

    def taken(self, first: int, count: int) -> dict[str, pa.Array]:
        """Return the columns of some inputs, by name; null where they have none. No more than these
        rows is in memory."""
        found = self.rows[first : first + count]
        there = found[found >= 0]
        low, high = (int(there[0]), int(there[-1]) + 1) if len(there) else (0, 0)
        part = self.columns.slice(low, high - low).combine_chunks()
        taken = part.take(pa.array(found - low, mask=found < 0))
        columns = {name: one_chunk(taken[name]) for name in taken.column_names}
        if self.numbers is not None and "label" in columns:
            columns["label"] = pa.array(self.numbers).take(columns["label"])
        for name, array in columns.items():
            parts = (
                {f.name: array.field(f.name) for f in array.type}
                if pa.types.is_struct(array.type)
                else {}
            )
            if self.numbers is not None and "category" in parts:
                lists, new = parts["category"], pa.array(self.numbers)
                parts["category"] = pa.ListArray.from_arrays(
                    lists.offsets, new.take(lists.values), mask=lists.is_null()
                )
            if self.frame is not None and FRAME in parts:
                frames = [self.frame if there else None for there in array.is_valid().to_pylist()]
                parts[FRAME] = pa.array(frames, pa.string())
            if parts:
                columns[name] = pa.StructArray.from_arrays(
                    list(parts.values()), fields=list(array.type), mask=array.is_null()
                )
        return columns


FRAME = "frame"
"""The member of columns for the worker that says in which frame annotations are. No column of a
dataset has it."""


def rows_of(annotated: npt.ArrayLike, count: int) -> Rows:
    """Return the row of each of `count` inputs, -1 for those that are not annotated."""
    rows, there = np.full(count, -1, np.int64), np.asarray(annotated, np.int64)
    rows[there] = np.arange(len(there))
    return rows


BAD = "bad-annotation"
"""The error of rejects of images whose annotations are wrong."""


def fault(message: str) -> Rejection:
    """Return what rejects an image for its annotations."""
    return Rejection("plan", BAD, message)
