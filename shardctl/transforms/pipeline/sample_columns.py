"""Samples as the columns of a shard hold them: their values in the order of the columns, each of the type of its column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.layout import Layout
from shardctl.format.sample import Sample
from shardctl.images.codecs.image import Pixels
from shardctl.transforms.pipeline.functions import Applied, Functions, Given
from shardctl.transforms.values import UnfitValue, array_of, describe, for_column, quick_check

Fill = Callable[[Sample, Given], Any]
"""Takes the value of one column out of a sample, given too what each of the user's functions was given. Raises Rejection."""


class SampleColumns:
    """The columns of a layout. `has_image` says that the recipe stores an image in `image`.

    If a value does not fit, and one of the user's `functions` has set it, the message names that function.
    """

    def __init__(self, layout: Layout, has_image: bool, functions: Functions) -> None:
        self._classes, self._has_image, self._functions = layout.classes, has_image, functions
        self._schema = layout.columns
        self._fill = {field.name: self._filler(field) for field in layout.columns}

    def values(self, fields: Sample, given: Given) -> Sample:
        """Return the values of a sample by the names of the columns, in their order. Raises Rejection."""
        return {name: fill(fields, given) for name, fill in self._fill.items()}

    def lay_out(self, applied: Applied) -> pa.RecordBatch:
        """Return samples of text or of tables as a block of a shard has them, without those whose record is a reject.

        Values are looked at a column at a time: ten times as fast as one by one. Records with values that do not fit become
        rejects too.
        """
        before = len(applied.rejects)
        arrays = []
        for field in self._schema:
            values = [sample.get(field.name) for sample in applied.samples]
            array = None if field.name == "label" and self._classes is not None else array_of(values, field.type)
            arrays.append(array if array is not None else _column(field.type, self._fill[field.name], applied))
        batch = pa.record_batch(arrays, schema=self._schema)
        if len(applied.rejects) > before:  # a rejection costs all samples of its record
            kept = [place for place, record in enumerate(applied.records) if record not in applied.rejects]
            batch = batch.take(pa.array(kept, pa.int64()))
        return batch

    def _filler(self, field: pa.Field) -> Fill:
        """Return what takes the value of one column out of a sample."""
        name, type_ = field.name, field.type
        if name == "key":
            return lambda fields, given: fields[name]
        if name == "image" and self._has_image:
            shape = tuple(type_.shape) if isinstance(type_, pa.FixedShapeTensorType) else None
            return lambda fields, given: self._of_shape(fields, given, shape) if shape else fields[name]
        if name == "label" and self._classes is not None:
            return self._label
        if self._functions:
            fits = quick_check(type_)
            return lambda fields, given: value if fits(value := fields.get(name)) else self._own_value(fields, given, field)
        if isinstance(type_, pa.FixedShapeTensorType):
            return lambda fields, given: None if (value := fields.get(name)) is None else for_column(value, type_)
        return lambda fields, given: fields.get(name)

    def _of_shape(self, fields: Sample, given: Given, shape: tuple[int, ...]) -> Pixels:
        pixels: Pixels = fields["image"]
        if pixels.shape != shape:
            who = f"{self._functions.setter('image', given, fields)} made" if self._functions else "it is"
            message = f"{who} an image of {pixels.shape[1]}x{pixels.shape[0]}, the others are {shape[1]}x{shape[0]}"
            raise Rejection("encode", "other-size", f"{message}; store raw needs one size")
        return pixels

    def _label(self, fields: Sample, given: Given) -> int | None:
        """Return the number of the class. Raises Rejection for one that has no name."""
        assert self._classes is not None, "labels are checked where classes have names"
        label = fields.get("label")
        if label is None:
            return None
        last = len(self._classes) - 1
        is_number = isinstance(label, int | np.integer) and not isinstance(label, bool)
        if is_number and 0 <= label <= last:
            return int(label)
        what = f"{self._functions.setter('label', given, fields)} set label to" if self._functions else "its label is"
        what = f"{what} {describe(label)}"
        if not is_number:
            raise Rejection("encode", "other-type", f"{what}; it must be the number of a class, 0 to {last}")
        raise Rejection("encode", "no-such-class", f"{what}; the classes have the numbers 0 to {last}")

    def _own_value(self, fields: Sample, given: Given, field: pa.Field) -> Any:
        """Return a value as its column holds it, after the user's functions. Raises Rejection."""
        name = field.name
        value = fields.get(name)
        try:
            return for_column(value, field.type)
        except UnfitValue as problem:
            who = self._functions.setter(name, given, fields)
            message = f"{who} set {name} to {problem}; its column is of type {field.type}"
            raise Rejection("encode", "other-type", message) from problem


def _column(type_: pa.DataType, fill: Fill, applied: Applied) -> pa.Array:
    """Return the values of one column, looking at them one by one. Those that do not fit are null, and rejects."""
    values: list[Any] = [None] * len(applied.samples)
    for place, (record, sample, given) in enumerate(zip(applied.records, applied.samples, applied.given, strict=True)):
        try:
            values[place] = fill(sample, given)
        except Rejection as rejection:
            applied.rejects.setdefault(record, rejection)
    return pa.array(values, type_)
