"""A dataset as a notebook shows it: its splits, its columns, and its first samples with small
pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardctl.errors import Rejection
from shardctl.format.manifest import Manifest, SplitFacts
from shardctl.format.roles import Image, Mask, Objects, Roles, Sample
from shardctl.system.report import Html, Section, Table, image, in_a_notebook
from shardctl.system.text import format_bytes

SIDE = 72
"""The longer side of a picture, in pixels."""

MOST_CHARACTERS = 120
MOST_VALUES = 8
MOST_COLUMNS = 12


def dataset_in_notebook(
    line: str,
    splits: Sequence[SplitFacts],
    manifest: Manifest,
    samples: Sequence[Sample],
    roles: Roles,
) -> str:
    """Return the HTML of a dataset: a line about it, its splits, its columns, and samples: a row for
    each, a column for each of their first fields."""
    of_splits = [
        (each.name, each.samples, each.shards, format_bytes(each.bytes)) for each in splits
    ]
    columns = [
        (
            name,
            manifest.type_in_words(name, type_),
            _beginning(manifest.fields.get(name, {}).get("names") or ()),
        )
        for name, type_ in manifest.schema
    ]
    sections = [
        Section(
            line,
            (
                Table(of_splits, ("split", "samples", "shards", "size")),
                Table(columns, ("column", "type", "classes")),
            ),
        )
    ]
    if samples:
        fields = list(samples[0])[:MOST_COLUMNS]
        rows = [[_cell(sample, name, roles) for name in fields] for sample in samples]
        left_out = len(samples[0]) - len(fields)
        more = [f"and {left_out:,} more columns"] if left_out else []
        sections.append(Section("first samples", [Table(rows, fields), *more]))
    return in_a_notebook(sections)


def _cell(sample: Sample, field: str, roles: Roles) -> Any:
    """Return a value as it is shown: pictures small, the main one with its objects; texts and lists
    by their beginning, a label with its name."""
    value, role, names = sample[field], roles.get(field), roles.names.get(field)
    if isinstance(role, Image):
        marked = roles.objects.items() if field == roles.main_image else ()
        values = [(sample.get(name), of_objects) for name, of_objects in marked]
        objects = tuple(each for each in values if isinstance(each[0], dict))
        return "missing" if value is None else _picture(value, role, objects)
    if isinstance(role, Objects) and (value is None or isinstance(value, dict)):
        from shardctl.images.codecs.drawing import objects_line

        return objects_line(value, role)
    if isinstance(value, np.generic):
        value = value.item()
    if names is not None and isinstance(value, int) and 0 <= value < len(names):
        return f"{value} ({names[value]})"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, np.ndarray | list | tuple) and np.ndim(value) == 1:
        return _beginning(value)
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array, {'x'.join(map(str, value.shape))}"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return value if value is None or isinstance(value, bool | int) else _short(str(value))


def _picture(content: Any, role: Image, objects: tuple[tuple[Any, Objects], ...]) -> Any:
    """Return an image or a mask as a small picture. A mask has the colours of its classes."""
    from shardctl.images.codecs.drawing import (
        Annotations,
        draw,
        draw_classes,
        enlarge,
        jpeg,
        shrink,
        within,
    )

    width, height = content.shape[1], content.shape[0]
    try:
        side = within((width, height), SIDE)
        coloured = draw_classes(content, role, side) if isinstance(role, Mask) else None
        pixels = enlarge(shrink(content, SIDE) if coloured is None else coloured, SIDE)
    except Rejection:
        return "does not decode"
    drawn = draw(pixels, Annotations((width, height), objects))
    return Html(f"{image(jpeg(drawn), f'{width}x{height}')}<br>{width}x{height}")


def _beginning(values: Any) -> str:
    first = ", ".join(map(str, np.asarray(values[:MOST_VALUES]).tolist()))
    some = ", …" if len(values) > MOST_VALUES else ""
    return f"{len(values):,}: {_short(first)}{some}" if len(values) else ""


def _short(said: str) -> str:
    return said if len(said) <= MOST_CHARACTERS else f"{said[:MOST_CHARACTERS]}…"
