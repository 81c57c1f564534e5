"""One batch: from sample numbers to columns of values, each in the cheapest way that its storage
allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import DamageError, DatasetError, UsageError
from shardctl.format.arrays import Array, Bools, Bytes, Numbers, Shape
from shardctl.format.python_values import python_values
from shardctl.format.roles import Mask, Sample
from shardctl.format.shard import VERIFY_ADVICE
from shardctl.loader.blocks.column import Column, Lists, Spec, numbers_of, with_none
from shardctl.loader.blocks.gather import (
    LEAST_ALONE,
    Located,
    adjoining,
    gather,
    gather_fixed,
    gather_into,
    in_array,
)
from shardctl.loader.blocks.locate import BlockSources, GatherOptions, Samples, Storage
from shardctl.loader.blocks.memory import Batch, BatchMemory
from shardctl.loader.blocks.objects import ObjectReader, member_types
from shardctl.loader.blocks.pictures import PictureReader, encoded_images, missing_images
from shardctl.loader.blocks.shards import Shards
from shardctl.loader.blocks.stages import DECODE, GATHER, STAGE, Stages
from shardctl.loader.blocks.token_features import Deriver
from shardctl.loader.blocks.transforms import Converter, Misfit, Transforms
from shardctl.system.mmap import mended
from shardctl.system.text import lacks


def columns_of(shards: Shards, names: Sequence[str] | None) -> list[Column]:
    """Return the chosen columns, all of them for None; `objects.bbox` chooses a member of a column
    of objects.

    Raises UsageError for an unknown one.
    """
    schema, roles = shards.layout.columns, shards.layout.roles
    chosen: dict[str, Column] = {}
    there = set(schema.names)
    for name in schema.names if names is None else names:
        whole, _, member = name.partition(".") if name not in there else (name, "", "")
        column = Column.of(schema.field(whole), roles.get(whole)) if whole in there else None
        if column is None or (
            member and (column.objects is None or member not in column.object_members)
        ):
            members = [
                f"{each}.{member}"
                for each in roles.objects
                for member in Column.of(schema.field(each)).object_members
            ]
            raise UsageError(lacks("column", name, [*schema.names, *members]))
        before = chosen.get(whole)
        if member and (before is None or before.members is not None):
            column = replace(
                column, members=(*(before.object_members if before is not None else ()), member)
            )
        chosen[whole] = column
    return list(chosen.values())


VARIANT = "variant"

_CHUNK = 2 << 20
"""Bytes of small samples that are collected and then converted in one go: with less, threads wait
for each other's Python."""

_MANY = 64
"""Samples in a chunk, at the least, for which collecting them pays; larger ones are converted one
by one, where they lie."""


class BatchReader:
    """Reads batches of some columns. Threads may share it."""

    def __init__(
        self,
        shards: Shards,
        columns: list[Column],
        transforms: Transforms | None = None,
        options: GatherOptions | None = None,
    ) -> None:
        self._transforms = transforms = transforms or Transforms()
        self._options = options = options or GatherOptions()
        transforms.check(columns)
        self.shards, self.columns = shards, columns
        self._in_turn = sorted(columns, key=is_marked)
        self.stages = Stages(options.profile)
        self._objects = ObjectReader(shards, columns, transforms)
        self._derived = Deriver(shards, columns, transforms.derive, transforms.pad)
        self._steps = None
        self._named: list[Column] = []
        names = shards.layout.columns.names
        if (recipe := transforms.recipe) is not None:
            # 20 ms
            from shardctl.loader.blocks.picture_steps import BatchSteps
            from shardctl.transforms.image_steps import ImageSteps

            steps = ImageSteps(recipe.image_transforms, recipe.max_pixels, self.stages.step)
            self._steps = partial(BatchSteps, steps, recipe.seed)
            self._named = columns_of(shards, [name for name in ("key", VARIANT) if name in names])
        read = [*columns, *self._objects.hidden, *self._derived.hidden, *self._named]
        # functions add others
        lying = {column.name: column for column in read if column.name in names}
        self._storage = Storage(shards, list(lying.values()), options, self.stages)
        self._pictures = PictureReader(shards, transforms, options.cache)
        self.skipped = 0

    def counts(self) -> dict[str, float]:
        """Return the cache hits and misses of blocks and decoded images, the numbers of skipped
        samples and cut objects, and the seconds of each stage."""
        return {
            **{f"{STAGE}{name}": seconds for name, seconds in self.stages.seconds().items()},
            **self._storage.counts(),
            **self._pictures.counts(),
            "objects_cut": self._objects.cut,
            "skipped": self.skipped,
        }

    def specs(self) -> dict[str, Spec]:
        """Return the kind of values of each field of a batch."""
        specs = specs_of(self.columns, self._transforms)
        return {**specs, **self._derived.specs(specs)}

    def gather(
        self, numbers: Numbers, epoch: int = 0, memory: BatchMemory | None = None
    ) -> tuple[Batch, Bools]:
        """Return the samples with these numbers (n,), in that order, and which of them are present:
        all, unless some were skipped.

        The content of `memory` is overwritten. Raises DatasetError if a shard is damaged.
        """
        there = np.ones(len(numbers), bool)
        while True:
            left = np.flatnonzero(there)
            try:
                with self.stages.stage(GATHER):
                    return self._gather(Samples(self.shards, numbers[left], epoch, memory)), there
            except DamageError as damage:
                if not self._options.skips or not len(damage.places):
                    raise
                there[left[damage.places]] = False
                self.skipped += len(damage.places)

    def _gather(self, wanted: Samples) -> Batch:
        mended_before = mended()
        row = self._storage.row_of(wanted) if len(wanted) == 1 else None
        sources = row or BlockSources(self._storage, wanted)
        found = {each.name: self._values(each, sources) for each in self._named}
        if self._steps is not None:
            keys, variants = found["key"]["key"], found.get(VARIANT, {}).get(VARIANT)
            wanted.steps = self._steps(wanted.epoch, keys, variants)
        # images before what is marked in them, which goes where their pixels went
        for column in self._in_turn:
            if column.name not in found:
                found[column.name] = self._values(column, sources)
        batch: Batch = {}
        for column in self.columns:
            batch.update(found[column.name])
        batch.update(self._derived.read(batch, sources))
        # a mapped file shrank, perhaps one of these
        if mended() != mended_before and self._storage.in_place is not None:
            faults = self._storage.in_place.changed(wanted)
            if faults:
                raise wanted.unreadable_blocks(faults)
        return batch

    def assembled(
        self, samples: Sequence[Sample], values: pa.RecordBatch, wanted: Samples
    ) -> Batch:
        """Return a batch of samples: images and masks are theirs, all else is in `values`."""
        batch: Batch = {}
        for column in self.columns:
            name = column.name
            try:
                if column.picture is not None:
                    pixels = [sample[name] for sample in samples]
                    batch[name] = self._pictures.converted(column, pixels, wanted)
                elif column.objects is not None:
                    batch.update(self._objects.given(column, values[name], wanted))
                else:
                    batch.update(self._taken(column, values[name], wanted))
            except Misfit as misfit:
                raise wanted.unreadable(misfit.place, f"{name}: {misfit}") from None
        return batch

    def lengths(self, name: str, numbers: Numbers) -> Numbers:
        """Return how many items (numbers, bytes) samples have in a ragged column, (n,). Raises
        UsageError, DatasetError."""
        found = [each for each in self.columns if each.name == name and each.kind == "variable"]
        if not found:
            raise UsageError(f"{name} is not a ragged column that is read")
        if not len(numbers):
            return np.empty(0, np.int64)
        try:
            wanted = Samples(self.shards, numbers)
            located = BlockSources(self._storage, wanted, counted=False).locate(found[0])
        except DamageError:
            if not self._options.skips:
                raise
            # the readable ones are found when they are read, in any order
            return np.zeros(len(numbers), np.int64)
        if not isinstance(located, Located):
            raise UsageError(f"{name} has missing values, without lengths for buckets")
        return located.length // found[0].width

    def table(self, numbers: Numbers) -> pa.Table:
        """Return the samples as they are stored, as an Arrow table. Raises DatasetError if a shard
        is damaged."""
        wanted = Samples(self.shards, numbers)
        memory = BlockSources(self._storage, wanted, counted=False).memory
        return pa.table({column.name: memory.take(column) for column in self.columns})

    def _values(self, column: Column, sources: BlockSources) -> Batch:
        if column.objects is not None:
            return self._objects.read(column, sources)
        located, wanted = sources.locate(column), sources.wanted
        try:
            if located is None:
                return self._taken(column, sources.take(column), wanted)
            if isinstance(located, np.ndarray):
                return {column.name: self._numbers(column, located, wanted)}
            return self._located(column, located, wanted)
        except Misfit as misfit:
            raise UsageError(
                f"{wanted.name_of(misfit.place)}: {column.name}: {misfit}; give a dtype that holds "
                "it"
            ) from None

    def _located(self, column: Column, located: Located, wanted: Samples) -> Batch:
        """Return values that are at any places in memory."""
        is_changed = wanted.steps is not None and column.picture is not None
        if self._transforms.decode and (column.is_encoded_picture or is_changed):
            with self.stages.stage(DECODE):
                return {column.name: self._pictures.read(column, located, wanted)}
        if column.kind == "fixed":
            return {column.name: self._fixed(column, located, wanted)}
        if column.dtype is None:
            return {column.name: _strings(column, located, wanted)}
        return _ragged(column, Lists.lying(column, located), self._transforms, wanted.memory)

    def _taken(self, column: Column, values: pa.Array, wanted: Samples) -> Batch:
        """Return values that Arrow has collected: some of their block are missing, or they are of a
        type of many parts."""
        name, fill = column.name, self._transforms.fill
        if column.is_encoded_image:
            return self._encoded(column, values, wanted)
        if column.dtype is None and not column.is_boolean:
            return {name: python_values(values)}
        if column.is_ragged:
            lists = Lists.of(values)
            if fill is not None:
                self._need_fill(column, np.flatnonzero(lists.lacking), wanted, also_floats=True)
                self._need_fill(column, np.flatnonzero(lists.incomplete), wanted)
            return _ragged(column, lists, self._transforms, wanted.memory)
        numbers, missing = numbers_of(values, column)
        lacking: Bools = np.empty(0, bool)
        if missing is not None:
            lacking = np.any(missing.reshape(len(missing), -1), axis=1)
            if wanted.steps is not None and isinstance(column.picture, Mask):
                lost = np.flatnonzero(lacking)
                return self._without_some(column, _lying(numbers, column), lost, wanted)
            if fill is None:
                return {name: with_none(numbers, missing)}
            self._need_fill(column, np.flatnonzero(lacking), wanted)
        if column.is_boolean or not self._transforms.changes(column):
            found = numbers
        elif not column.shape:
            found = self._numbers(column, numbers, wanted)
        else:
            found = self._located(column, _lying(numbers, column), wanted)[name]
        if missing is not None and fill is not None:
            found = np.array(found)
            # a picture that was cut is filled as a whole
            places = missing if found.shape == missing.shape else lacking
            found[places] = fill.get(name, np.nan)
        return {name: found}

    def _encoded(self, column: Column, values: pa.Array, wanted: Samples) -> Batch:
        """Return images or masks of which some may be missing: only masks may be."""
        lost = missing_images(values)
        if not len(lost) or not isinstance(column.picture, Mask):
            return self._located(column, encoded_images(column, values, wanted), wanted)
        if not self._transforms.decode:
            return {column.name: python_values(values.field("bytes"))}
        return self._without_some(column, in_array(values.field("bytes")), lost, wanted)

    def _without_some(
        self, column: Column, located: Located, lost: Numbers, wanted: Samples
    ) -> Batch:
        """Return masks of which some are missing."""
        assert isinstance(column.picture, Mask)
        name, fill = column.name, 0.0
        if self._transforms.fill is not None:
            fill = self._transforms.fill.get(name, column.picture.ignore or 0)
            if column.picture.ignore is None:
                self._need_fill(column, lost, wanted)
        with self.stages.stage(DECODE):
            found = self._pictures.read(column, located, wanted, lost, fill)
        if self._transforms.fill is not None:
            return {name: found}
        listed: list[Any] = list(found)
        for place in lost.tolist():
            listed[place] = None
        return {name: listed}

    def _need_fill(
        self, column: Column, places: Numbers, wanted: Samples, also_floats: bool = False
    ) -> None:
        """Raise UsageError if values of these samples are missing and `fill` has no value for
        them."""
        kind = "" if column.dtype is None else column.dtype.kind
        has_nan = kind == "f" and not also_floats
        if not len(places) or has_nan or column.name in (self._transforms.fill or {}):
            return
        example = False if column.is_boolean else -1 if kind == "i" else 0
        raise UsageError(
            f"{wanted.name_of(int(places[0]))}: {column.name} is missing; give "
            f"fill={{{column.name!r}: {example}}}, or leave the column out with columns="
        )

    def _numbers(self, column: Column, values: Array, wanted: Samples) -> Array:
        """Return numbers (n,), converted and normalised where that is wanted."""
        if not self._transforms.changes(column):
            return values
        if column.name in self._transforms.relabel:
            table: Array = np.array(self._transforms.relabel[column.name], np.int64)
            wrong = np.flatnonzero((values < 0) | (values >= len(table)))
            if len(wrong):
                raise DatasetError(
                    f"{wanted.name_of(int(wrong[0]))}: {column.name} {values[wrong[0]]} is not one "
                    f"of the {len(table)} classes"
                )
            values = table[values]
        converter = Converter(self._transforms, column, values.dtype)
        result = np.empty(values.shape, converter.dtype)
        converter.write(values, result)
        return result

    def _fixed(self, column: Column, located: Located, wanted: Samples) -> Array:
        """Return the values of a fixed column, (n, *shape): without a copy where that is
        possible."""
        assert column.dtype is not None
        memory = wanted.memory
        if not self._transforms.changes(column):
            found = None
            # A view may lose its file after it was handed out, which cannot be skipped then.
            if memory.views and not self._options.skips:
                found = adjoining(located, column.width)
            if found is None and memory.views and column.width < LEAST_ALONE:
                # Arrow's own memory: what is small needs no other copy
                found = gather_fixed(located, column.width)
            if found is not None:
                return _shaped(found, column)
            result = memory.array(column.name, (len(located), *column.shape), column.dtype)
            rows = result.reshape(-1).view(np.uint8).reshape(len(located), column.width)
            gather_into(located, column.width, rows)
            return result
        if not column.shape:
            values = _shaped(gather_fixed(located, column.width), column)
            return self._numbers(column, values, wanted)
        converter = Converter(self._transforms, column, column.dtype)
        shape = (len(located), *fixed_shape(column, self._transforms))
        result = memory.array(column.name, shape, converter.dtype)
        step = _CHUNK // column.width
        if converter.planes or step < _MANY:
            for place, row in enumerate(located.rows()):
                value = row.view(column.dtype).reshape(column.shape)
                converter.write_one(value, place, result[place])
            return result
        for first in range(0, len(located), step):
            part = slice(first, first + step)
            try:
                converter.write(
                    _shaped(gather_fixed(located.at(part), column.width), column), result[part]
                )
            except Misfit as misfit:
                raise misfit.of(
                    first + misfit.place * column.dtype.itemsize // column.width
                ) from None
        return result


def _lying(numbers: Array, column: Column) -> Located:
    """Return where values of a fixed column lie in an array of them."""
    rows = np.arange(len(numbers), dtype=np.int64)
    places = np.zeros_like(rows), rows * column.width, np.full(len(rows), column.width)
    return Located([pa.py_buffer(numbers)], *places)


def is_marked(column: Column) -> bool:
    """Return whether the values are masks or objects, which are marked in images."""
    return column.objects is not None or isinstance(column.picture, Mask)


def _strings(column: Column, located: Located, wanted: Samples) -> list[Any]:
    values = gather(located)
    if not column.is_text:
        return list(values.to_pylist())
    try:
        # cast() imports pyarrow.compute for the same
        return list(values.view(pa.large_string()).to_pylist())
    except UnicodeDecodeError as error:
        wrong = [
            place
            for place, value in enumerate(values.to_pylist())
            if value.decode(errors="ignore").encode() != value
        ]
        raise DamageError(
            f"{wanted.name_of(wrong[0])}: {column.name} is not UTF-8; {VERIFY_ADVICE}", wrong
        ) from error


def _shaped(values: Bytes, column: Column) -> Array:
    assert column.dtype is not None
    if not values.flags.c_contiguous:
        values = np.ascontiguousarray(values)
    return values.view(column.dtype).reshape(len(values), *column.shape)


def _ragged(column: Column, lists: Lists, transforms: Transforms, memory: BatchMemory) -> Batch:
    """Return lists of numbers as arrays of their own, or padded to the longest, with their
    lengths."""
    assert column.dtype is not None
    name = column.name
    converter = Converter(transforms, column, column.dtype)
    numbers = lists.numbers
    if transforms.changes(column) or lists.missing is not None:
        numbers = np.empty(numbers.shape, converter.dtype)
        try:
            converter.write(lists.numbers, numbers)
        except Misfit as misfit:
            raise misfit.of(int(lists.owners(np.array([misfit.place]))[0])) from None
    if transforms.fill is None:
        return {name: replace(lists, numbers=numbers).arrays_or_none()}
    if lists.missing is not None:
        numbers[lists.missing] = transforms.fill.get(name, np.nan)
    converted = replace(lists, numbers=numbers)
    if name not in transforms.pad:
        return {name: converted.arrays()}
    padded = converted.padded(
        transforms.pad[name], lambda shape: memory.array(name, shape, converter.dtype)
    )
    return {name: padded, f"{name}_length": converted.sizes()}


def specs_of(columns: Sequence[Column], transforms: Transforms) -> dict[str, Spec]:
    """Return the kind of values of each field of a batch of these columns."""
    specs = {}
    for column in columns:
        if column.objects is not None and column.name in transforms.pad:
            specs.update(_padded_objects(column, transforms.pad[column.name]))
            continue
        specs[column.name] = _spec(column, transforms)
        if column.name in transforms.pad:
            specs[f"{column.name}_length"] = Spec(
                "fixed", (column.ndim,) if column.ndim > 1 else ()
            )
    return specs


def _padded_objects(column: Column, value: float) -> dict[str, Spec]:
    """Return what `Marked.padded` returns."""
    name, specs = column.name, {}
    for member, kind in member_types(column).items():
        if member not in column.object_members:
            continue
        padded = kind.dtype is not None and Spec(
            "padded", (-1, *kind.shape), kind.dtype, kind.fill(value)
        )
        specs[f"{name}.{member}"] = padded or Spec("other")
    there, annotated = Spec("padded", (-1,), np.dtype(bool)), Spec("fixed", (), np.dtype(bool))
    return {
        **specs,
        f"{name}_length": Spec("fixed"),
        f"{name}_mask": there,
        f"{name}_annotated": annotated,
    }


def _spec(column: Column, transforms: Transforms) -> Spec:
    if column.is_encoded_picture and transforms.decode:
        shape, channels = transforms.picture_shape(column), column.picture_channels
        of_any_size = (
            (*channels, -1, -1) if transforms.puts_channels_first(column) else (-1, -1, *channels)
        )
        return Spec(
            "fixed" if shape else "ragged",
            shape or of_any_size,
            transforms.dtype_of(column.name, column.pixel_dtype),
        )
    if column.is_boolean:
        return Spec("fixed", (), np.dtype(bool))
    if column.dtype is None:
        return Spec("text" if column.is_text else "bytes" if column.kind == "variable" else "other")
    dtype = transforms.dtype_of(column.name, column.dtype)
    if column.is_ragged:
        fill, shape = transforms.pad.get(column.name), (-1,) * column.ndim
        return Spec("ragged", shape, dtype) if fill is None else Spec("padded", shape, dtype, fill)
    return Spec("fixed", fixed_shape(column, transforms), dtype)


def fixed_shape(column: Column, transforms: Transforms) -> Shape:
    """Return the shape of a value of a "fixed" column in a batch."""
    changed = transforms.picture_shape(column) if column.picture is not None else None
    return changed or column.shape
