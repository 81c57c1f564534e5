"""Batches of samples that a person's functions have changed, one sample after the other."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pyarrow as pa

from shardctl.errors import Rejection, UsageError
from shardctl.format.arrays import Array, Bools, Numbers
from shardctl.format.layout import ENCODED_IMAGE, Layout
from shardctl.format.roles import Mask, Roles, Sample
from shardctl.images.geometry import Size
from shardctl.loader.blocks.batch import VARIANT, BatchReader, columns_of
from shardctl.loader.blocks.column import Column, Spec
from shardctl.loader.blocks.locate import GatherOptions, Samples
from shardctl.loader.blocks.memory import Batch, BatchMemory
from shardctl.loader.blocks.picture_steps import variant_number
from shardctl.loader.blocks.shards import Shards
from shardctl.loader.blocks.stages import STEP
from shardctl.loader.blocks.transforms import Transforms
from shardctl.transforms.pipeline.deferred_objects import Annotated
from shardctl.transforms.pipeline.functions import Applied, Functions, checked_pixels
from shardctl.transforms.pipeline.samples import SampleColumns
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.values import array_type, plain_value, type_for


class FunctionReader:
    """Reads batches of some columns as a BatchReader does, and calls the functions of a recipe
    after its other steps. Threads may share it.

    A function gets the fields of a sample as single samples have them: arrays, masks too, and
    objects as a dict of arrays. What it returns must fit the columns. New fields have the types of
    those that it gives the first sample.
    """

    def __init__(
        self,
        shards: Shards,
        columns: list[Column],
        transforms: Transforms,
        options: GatherOptions,
        recipe: Recipe,
    ) -> None:
        transforms.check_pictures(columns)
        if recipe.models:
            raise UsageError(
                f"{recipe.models[0].settings()['target']} is a class, which gets many samples: only "
                "a conversion calls it; loader.map() calls a function with each batch"
            )
        self._shards, self._skips, layout = shards, options.skips, shards.layout
        named = [each for each in ("key", VARIANT) if each in layout.columns.names]
        known = {column.name for column in columns}
        more = columns_of(shards, [name for name in named if name not in known])
        before = replace(recipe, transform=recipe.image_transforms)
        self._inner = BatchReader(
            shards,
            [*columns, *more],
            Transforms(recipe=before if before.transform else None),
            options,
        )
        self._functions = Functions(recipe, True, traced=True)
        self._annotated = Annotated(layout, recipe.keep_objects)
        self._images = [
            each.name for each in columns if each.picture and not isinstance(each.picture, Mask)
        ]
        number = np.zeros(min(len(shards), 1), np.int64)
        first = self._applied(number, 0)[0]
        made = [self._made_column(column, before, first) for column in columns]
        self.columns = [*made, *_new_columns(first, {*known, *named})]
        self._outer = BatchReader(shards, self.columns, replace(transforms, recipe=None), options)
        schema = pa.schema(
            [pa.field(each.name, each.type) for each in self.columns if each.picture is None]
        )
        roles = {name: role for name, role in layout.roles.by_name.items() if name in schema.names}
        others = Layout(layout.kind, schema, Roles(roles))
        self._values = SampleColumns(others, False, self._functions)
        self.gather(number)  # what does not fit is said now, and not while a training runs
        self._inner.skipped = 0

    def _made_column(self, column: Column, before: Recipe, first: list[Sample]) -> Column:
        """Return a column as the functions make it: of images that have one size before them, and
        in the first sample after them, this is the size of all."""
        if column.picture is None:
            return column
        shape = Transforms(recipe=before).picture_shape(column)
        keeps = bool(first) and first[0][column.name] is not None
        keeps = keeps and first[0][column.name].shape == shape
        role = replace(column.picture, shape=shape if keeps else None)
        made = Column.of(pa.field(column.name, ENCODED_IMAGE), role)
        return replace(made, dtype=column.dtype)

    def counts(self) -> dict[str, float]:
        """Return what a BatchReader counts."""
        return self._inner.counts()

    def specs(self) -> dict[str, Spec]:
        """Return the kind of values of each field of a batch."""
        return self._outer.specs()

    def lengths(self, name: str, numbers: Numbers) -> Numbers:
        """Raise UsageError: the functions may change them."""
        raise UsageError(f"bucket={{{name!r}: …}} and functions cannot be used together")

    def gather(
        self, numbers: Numbers, epoch: int = 0, memory: BatchMemory | None = None
    ) -> tuple[Batch, Bools]:
        """Return the samples with these numbers (n,), in that order, and which of them are present:
        all, unless some were skipped. Raises DatasetError."""
        samples, there = self._applied(numbers, epoch)
        applied = Applied(list(range(len(samples))), samples, [()] * len(samples))
        values = self._values.lay_out(applied)
        places = np.flatnonzero(there)
        for place, rejection in applied.rejects.items():
            self._reject(numbers, int(places[place]), rejection, there)
        kept = [each for place, each in enumerate(samples) if place not in applied.rejects]
        wanted = Samples(self._shards, numbers[there], epoch)
        return self._outer.assembled(kept, values, wanted, memory or BatchMemory()), there

    def _applied(self, numbers: Numbers, epoch: int) -> tuple[list[Sample], Bools]:
        """Return the samples that the functions made, and of which of the numbers there is one.
        Raises DatasetError."""
        batch, there = self._inner.gather(numbers, epoch)
        made = []
        for row, place in enumerate(np.flatnonzero(there).tolist()):
            try:
                made.append(self._one({name: each[row] for name, each in batch.items()}, epoch))
            except Rejection as rejection:
                self._reject(numbers, place, rejection, there)
        return made, there

    def _reject(self, numbers: Numbers, place: int, rejection: Rejection, there: Bools) -> None:
        """Note that there is no sample. Raises DatasetError where none is skipped."""
        if not self._skips:
            wanted = Samples(self._shards, numbers[place : place + 1])
            raise wanted.unreadable(0, rejection.message) from rejection
        there[place] = False
        self._inner.skipped += 1

    def _one(self, sample: Sample, epoch: int) -> Sample:
        """Return what the functions make of one sample. Raises Rejection."""
        given = {**sample, VARIANT: variant_number(epoch, sample.get(VARIANT))}
        given |= {name: np.array(given[name]) for name in self._images}  # they may draw into it
        main = self._shards.layout.roles.main_image
        before = self._annotated.marked(given, _size_of(given.get(main or "")))
        with self._inner.stages.stage(f"{STEP}functions"):
            applied = self._functions.apply([0], [given], lambda records, is_model: None)
        for rejection in applied.rejects.values():
            raise rejection
        if len(applied.samples) != 1:
            several = f"{len(applied.samples)} samples" if applied.samples else "None"
            who = applied.left_out.get(0) or self._functions.setter("", (), {})
            message = f"{who} returned {several}; while reading, it must return the sample"
            raise Rejection("transform", "not-a-sample", message)
        (made,), (trace,) = applied.samples, applied.given

        def setter(field: str) -> str:
            return self._functions.setter(field, trace, made)

        for name in sample.keys() - made.keys():
            message = f"{setter(name)} removed {name}; it must stay"
            raise Rejection("transform", "not-a-sample", message)
        for name in self._images:
            checked_pixels(made[name], name, setter(name))
        self._annotated.check(made, setter)
        if main in self._images:
            size = _size_of(made[main])
            self._annotated.check_moved(before, made, size, setter(main))
        del made[VARIANT]
        return {**made, VARIANT: sample[VARIANT]} if VARIANT in sample else made


def _size_of(image: Array | None) -> Size:
    """Return the (width, height) of an image."""
    return (0, 0) if image is None else (image.shape[1], image.shape[0])


def _new_columns(first: list[Sample], known: Collection[str]) -> list[Column]:
    """Return the columns of fields that functions have added to the first sample. Raises UsageError
    for what no column can hold."""
    columns = []
    for name, value in first[0].items() if first else ():
        if name in known:
            continue
        type_ = array_type([value]) or type_for([plain_value(value)])
        if type_ is None:
            raise UsageError(f"{name}: no column can hold what a function sets it to")
        columns.append(Column.of(pa.field(name, type_)))
    return columns
