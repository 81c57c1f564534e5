"""Batches of samples that a person's functions have changed, one sample after the other."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pyarrow as pa

from shardctl.errors import Rejection, UsageError
from shardctl.format.arrays import Bools, Numbers, Shape
from shardctl.format.layout import ENCODED_IMAGE, Layout
from shardctl.format.roles import Mask, Roles, Sample
from shardctl.images.codecs.image import ImageEncoding
from shardctl.loader.blocks.batch import VARIANT, BatchReader, columns_of, is_marked
from shardctl.loader.blocks.column import Column, Spec
from shardctl.loader.blocks.locate import GatherOptions, Samples
from shardctl.loader.blocks.memory import Batch, BatchMemory
from shardctl.loader.blocks.picture_steps import variant_number
from shardctl.loader.blocks.shards import Shards
from shardctl.loader.blocks.stages import STEP
from shardctl.loader.blocks.transforms import Transforms
from shardctl.system.arguments import caller_level
from shardctl.transforms.pipeline.deferred_objects import Annotated
from shardctl.transforms.pipeline.functions import Applied, Functions
from shardctl.transforms.pipeline.samples import Prepared, SampleColumns, SamplePipeline
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.values import UnfitValue, array_type, describe, plain_value, type_for

IMAGE = "image"

PROBED = 8
"""Samples that functions are tried with when a loader is made: they say what new fields there are,
and whether images get one size."""


class FunctionReader:
    """Reads batches of some columns as a BatchReader does, and calls the functions of a recipe
    after its other steps. Threads may share it.

    A function gets the fields of a sample as single samples have them: arrays, masks too, and
    objects as a dict of arrays. What it returns must fit the columns. New fields have the types of
    those that it gives the samples that are `tried`.
    """

    def __init__(
        self,
        shards: Shards,
        columns: list[Column],
        transforms: Transforms,
        options: GatherOptions,
        recipe: Recipe,
        tried: Numbers,
    ) -> None:
        transforms.check_pictures(columns)
        if transforms.derive:
            raise UsageError("derive= and functions cannot be used together; leave out one of them")
        if recipe.models:
            raise UsageError(
                f"{recipe.models[0].settings()['target']} is a class, which gets many samples: only "
                "a conversion calls it; loader.map() calls a function with each batch"
            )
        self._shards, self._skips, layout = shards, options.skips, shards.layout
        read = {column.name for column in columns}
        more = {"key", VARIANT}.intersection(layout.columns.names) - read
        self._known = {VARIANT, *read, *more}
        fill = transforms.fill
        if fill is not None:  # new fields are filled when they are there
            fill = {name: value for name, value in fill.items() if name in self._known}
        steps = replace(recipe, transform=recipe.image_transforms)
        plain = Transforms(recipe=steps if steps.transform else None, fill=fill)
        reading = shards, [*columns, *columns_of(shards, [*more])], plain, options
        self._inner = BatchReader(*reading)
        self._pictures = {each.name: each for each in columns if each.picture is not None}
        store = ImageEncoding.parse("raw") if IMAGE in self._pictures else None
        own = replace(recipe, transform=recipe.sample_transforms, store=store)
        of_columns = _layout(columns, layout)
        self._pipeline = SamplePipeline(own, None, lambda stage: None, of_columns)
        self._annotated = Annotated(of_columns, recipe.keep_objects)
        self._values: SampleColumns | None = None
        self._shapes = dict[str, Shape]()
        first = self._made(tried, np.ones(len(tried), bool), 0)
        for name, column in sorted(self._pictures.items(), key=lambda each: is_marked(each[1])):
            before, after = (
                {pair[side][name].shape for pair in first if pair[side][name] is not None}
                for side in (1, 0)
            )
            is_fixed = plain.picture_shape(column) is not None or (
                isinstance(column.picture, Mask) and IMAGE in self._shapes  # of its size
            )
            if len(after) == 1 and (is_fixed or len(before) > 1):
                self._shapes[name] = after.pop()
        if unmoved := self._pipeline.unmoved:
            who, left = next(iter(unmoved.values())), ", ".join(unmoved)
            said = f"{who} changes the image, and leaves {left} where they are"
            warnings.warn(said, UserWarning, caller_level())
        new = _new_columns([made for made, _ in first], self._known)
        self._known |= {column.name for column in new}
        self.columns = [*map(self._made_column, columns), *new]
        self._outer = BatchReader(shards, self.columns, replace(transforms, recipe=None), options)
        others = _layout([each for each in self.columns if each.picture is None], layout)
        self._values = SampleColumns(others, False, Functions(own, True, traced=False))
        self.gather(tried[:1])  # what does not fit is said now, and not while a training runs
        self._inner = BatchReader(*reading)  # which has counted nothing

    def _made_column(self, column: Column) -> Column:
        """Return a column as the functions make it."""
        if column.picture is None:
            return column
        role = replace(column.picture, shape=self._shapes.get(column.name))
        return replace(Column.of(pa.field(column.name, ENCODED_IMAGE), role), dtype=column.dtype)

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
        there = np.ones(len(numbers), bool)
        made = [sample for sample, _ in self._made(numbers, there, epoch)]
        places = np.flatnonzero(there).tolist()
        applied = Applied([(*each, ()) for each in zip(places, made, strict=True)])
        assert self._values is not None, "functions were tried"
        values = self._values.lay_out(applied)
        for place, rejection in applied.rejects.items():
            self._reject(numbers, place, there, rejection)
        applied.drop_rejected()
        wanted = Samples(self._shards, numbers[there], epoch, memory)
        left = [sample for _, sample, _ in applied.made]
        return self._outer.assembled(left, values, wanted), there

    def _made(self, numbers: Numbers, there: Bools, epoch: int) -> list[tuple[Sample, Sample]]:
        """Return what the functions made of samples, each with what it was before. Of those that
        are skipped `there` (n,) becomes False. Raises DatasetError."""
        batch, there[:] = self._inner.gather(numbers, epoch)
        given, prepared = dict[int, Sample](), dict[int, Prepared]()
        for row, place in enumerate(np.flatnonzero(there).tolist()):
            sample = given[place] = {name: each[row] for name, each in batch.items()}
            number = variant_number(epoch, sample.get(VARIANT))
            own = {
                name: np.array(each) if isinstance(each, np.ndarray) else each  # to draw into
                for name, each in sample.items()
            } | {VARIANT: number}
            image = sample.get(IMAGE)
            size = (0, 0) if image is None else image.shape[1::-1]
            looked_at = image if self._values is None else None
            seen = {number: (0, self._annotated.marked(own, size), looked_at)}
            prepared[place] = Prepared([own], "", seen)
        with self._inner.stages.stage(f"{STEP}functions"):
            results = self._pipeline.finish_together([prepared], lambda *_: None, lambda _: None)
        made = []
        for place, result in results.items():
            try:
                if isinstance(result, Rejection):
                    raise result
                before = given[place]
                made.append((self._checked([each.fields for each in result], before), before))
            except Rejection as rejection:
                self._reject(numbers, place, there, rejection)
        return made

    def _reject(self, numbers: Numbers, place: int, there: Bools, rejection: Rejection) -> None:
        """Note that a sample is skipped. Raises DatasetError, which names it, if none is."""
        if not self._skips:
            wanted = Samples(self._shards, numbers[place : place + 1])
            raise wanted.unreadable(0, rejection.message) from rejection
        there[place] = False
        self._inner.skipped += 1

    def _checked(self, made: list[Sample], given: Sample) -> Sample:
        """Return the sample that was made of one that was given, with its variant. Raises Rejection
        for what a batch cannot hold."""
        if len(made) != 1:
            why = f"the functions returned {len(made)} samples; while reading, each stays one"
            raise Rejection("transform", "not-a-sample", why)
        sample = {**dict.fromkeys(self._pictures), **made[0], VARIANT: given.get(VARIANT)}
        wrong = next((name for name in sample if name not in self._known), "")
        if wrong and self._values is not None:
            why = f"the functions added {wrong}, and not to the first samples"
            raise Rejection("transform", "not-a-sample", why)
        for name, column in self._pictures.items():
            if not self._fits(column, sample, given):
                why = (
                    f"the functions made {name} {describe(sample[name])}; it must be an array of "
                    f"type {column.pixel_dtype}, of the size of its image and of the first ones"
                )
                raise Rejection("transform", "not-an-image", why)
        return sample

    def _fits(self, column: Column, sample: Sample, given: Sample) -> bool:
        """Return whether a batch can hold an image or a mask beside the others."""
        name = column.name
        pixels, before = sample[name], given[name]
        image, image_before = sample.get(IMAGE), given.get(IMAGE)
        if before is None or not isinstance(pixels, np.ndarray):
            return before is None and pixels is None
        shape: Shape = pixels.shape
        fits: bool = pixels.dtype == column.pixel_dtype and shape == self._shapes.get(name, shape)
        if isinstance(column.picture, Mask) and image is not None and image_before is not None:
            was_of_image = before.shape == image_before.shape[:2]
            fits = fits and (shape == image.shape[:2] or not was_of_image)
        return fits and shape[2:] == before.shape[2:] and len(shape) == before.ndim


def _layout(columns: list[Column], layout: Layout) -> Layout:
    """Return the layout of some columns."""
    roles = {each.name: role for each in columns if (role := layout.roles.get(each.name))}
    schema = pa.schema([pa.field(each.name, _wanted_type(each)) for each in columns])
    return Layout(layout.kind, schema, Roles(roles))


def _new_columns(first: list[Sample], known: set[str]) -> list[Column]:
    """Return the columns of fields that functions have added to some samples. Raises UsageError for
    what no column can hold."""
    columns = []
    for name in dict.fromkeys(name for sample in first for name in sample):
        if name in known:
            continue
        values = [sample[name] for sample in first if sample.get(name) is not None]
        try:
            type_ = array_type(values) or type_for([plain_value(each) for each in values])
        except UnfitValue as problem:
            raise UsageError(f"a function set {name} to {problem}") from None
        if type_ is None:
            raise UsageError(f"{name}: no column can hold what a function sets it to")
        columns.append(Column.of(pa.field(name, type_)))
    return columns


def _wanted_type(column: Column) -> pa.DataType:
    """Return the type of values: of objects, with the wanted members alone."""
    if column.members is None:
        return column.type
    return pa.struct([each for each in column.type if each.name in column.members])
