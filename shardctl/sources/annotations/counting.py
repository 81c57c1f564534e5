"""How much annotations say, for people: the objects, masks and captions of all images, counted in
their table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from shardctl.format.roles import Objects
from shardctl.sources.annotations.base import Annotations
from shardctl.sources.annotations.objects import OBJECTS
from shardctl.system.text import counted

COUNTED = (OBJECTS, "mask", "caption", "captions")
"""The columns of annotations that are counted. Numbers of images and classes come with others."""


def annotated_columns(annotations: Sequence[Annotations]) -> tuple[str, ...]:
    """Return the names of the columns that mark images."""
    names = {f.name for each in annotations for f in each.fields}
    return tuple(name for name in COUNTED if name in names)


def said_of_annotations(annotations: Sequence[Annotations], inputs: int) -> list[str]:
    """Say how much was read, in one notice; in none without annotations. `inputs` is the number of
    all images."""
    parts = []
    for each in annotations:
        for name in annotated_columns([each]):
            parts.append(
                _of_objects(each, inputs)
                if name == OBJECTS
                else f"{name} of {counted(_there(each, name), 'image')}"
            )
    return [f"annotations: {'; '.join(parts)}"] if parts else []


def _there(annotations: Annotations, name: str) -> int:
    """Return how many images have a value. Masks become a column in the worker: until then, a row
    is one that is there."""
    if name not in annotations.columns.column_names:
        return int((annotations.rows >= 0).sum())
    column = annotations.columns[name]
    return len(column) - int(column.null_count)


def _of_objects(annotations: Annotations, inputs: int) -> str:
    import pyarrow.compute as pc  # 40 ms to import, and most conversions have no annotations

    column, there = annotations.columns[OBJECTS], _there(annotations, OBJECTS)
    categories = pc.struct_field(column, "category")
    objects = pc.sum(pc.list_value_length(categories)).as_py() or 0
    used, role = len(pc.unique(pc.list_flatten(categories))), annotations.roles[OBJECTS]
    known = len(role.names) if isinstance(role, Objects) and role.names else used
    of = (
        f"{used:,} of the {known:,} categories"
        if used != known
        else counted(used, "category", "categories")
    )
    # Wrong ones have no objects here, null or an empty list by their format.
    wrong = len(annotations.faults)
    rows = annotations.rows[np.array(sorted(annotations.faults), np.int64)]
    there -= pc.sum(column.is_valid().take(pa.array(rows[rows >= 0]))).as_py() or 0
    missing = inputs - there - wrong
    said = f"{counted(objects, 'object')} of {of} in {counted(there, 'image')}"
    said += f", {counted(missing, 'image')} not annotated" if missing else ""
    return said + (f", {counted(wrong, 'image')} whose annotations are wrong" if wrong else "")
