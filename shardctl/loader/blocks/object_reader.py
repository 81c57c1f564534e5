"""Objects of batches: read, moved with the main image, and given sample by sample or filled up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardctl.errors import DamageError, DatasetError, Rejection, UsageError
from shardctl.format.shard import VERIFY_ADVICE
from shardctl.images.codecs.image import open_image
from shardctl.images.codecs.jpeg import plain_size
from shardctl.images.geometry import Size
from shardctl.images.object_geometry import KeepRule
from shardctl.loader.blocks.block_sources import BlockSources
from shardctl.loader.blocks.column import Column
from shardctl.loader.blocks.gather import Indices, Located
from shardctl.loader.blocks.locate import Wanted
from shardctl.loader.blocks.memory import Batch, BatchMemory
from shardctl.loader.blocks.object_columns import (
    BOX,
    POLYGONS,
    RLE,
    Malformed,
    Marked,
    MemberType,
    Moves,
    Unmovable,
    member_types,
    moves_of,
)
from shardctl.loader.blocks.pictures import encoded_images, limit_of, most_pixels, why_undecoded
from shardctl.loader.blocks.shards import Shards
from shardctl.loader.blocks.transforms import Transforms
from shardctl.loader.blocks.unreadable import unreadable_sample


class ObjectReader:
    """Reads the columns of objects of batches. Threads may share it.

    `hidden` is the column of the main image where it must be read for the sizes of its images, and
    was not asked for.
    """

    def __init__(self, shards: Shards, columns: list[Column], transforms: Transforms) -> None:
        """Raises UsageError for transforms that do not fit, DatasetError for a column that is not
        one of objects."""
        self._shards, self._transforms = shards, transforms
        self._cut = 0
        self._keep_truncated = shards.manifest.recipe.get("truncated") == "keep"
        self._most = most_pixels(shards.manifest.recipe)
        objects = [column for column in columns if column.objects is not None]
        self._types: dict[str, dict[str, MemberType]] = {}
        for column in objects:
            try:
                self._types[column.name] = member_types(column)
            except ValueError as error:
                raise DatasetError(
                    f"{shards.root}: {column.name} is not a column of objects: {error}"
                ) from None
        self._image = self._main_image(objects[0]) if objects and transforms.moves else None
        read = {column.name for column in columns}
        of_any_size = self._image is not None and self._image.picture_shape is None
        self.hidden = (
            [self._image]
            if self._image is not None and of_any_size and self._image.name not in read
            else []
        )

    def counts(self) -> dict[str, int]:
        """Return how many objects were left out because too little of them is inside."""
        return {"objects_cut": self._cut}

    def _main_image(self, column: Column) -> Column:
        """Return the column of the images that the objects are in."""
        roles = self._shards.layout.roles
        if roles.main_image is None:
            raise UsageError(
                f"resize, crop and flip move {column.name} with the main image, and the dataset "
                f"has {len(roles.images)} columns"
                f" of images, none of them called image; leave {column.name} out with columns="
            )
        image = Column.of(
            self._shards.layout.columns.field(roles.main_image), roles.images[roles.main_image]
        )
        self._transforms.check_crop(image)
        return image

    def read(
        self,
        column: Column,
        sources: BlockSources,
        samples: Indices,
        epoch: int,
        memory: BatchMemory,
    ) -> Batch:
        """Return the fields of a column of objects in a batch. Raises DamageError."""
        transforms, wanted = self._transforms, sources.wanted
        assert column.objects is not None
        types, wanted_members = self._types[column.name], column.object_members
        # how many there are, and which of them stay
        needed = {BOX} if self._image is None else {BOX, POLYGONS, RLE}
        read = tuple(name for name in types if name in wanted_members or name in needed)
        try:
            stored = sources.memory_of(column).take(replace(column, members=read), wanted)
            found = Marked.of(stored, {name: types[name] for name in read})
            if column.name in transforms.relabel:
                found = found.with_categories(np.array(transforms.relabel[column.name], np.int64))
            if self._image is not None:
                before = int(found.counts.sum())
                moves = self._moves(self._image, sources, samples, epoch)
                found = found.moved(moves, KeepRule.of(transforms.keep_objects), column.objects)
                self._cut += before - int(found.counts.sum())
        except Malformed as malformed:
            raise self._faulty(
                column, wanted, malformed.place, f"{malformed}; {VERIFY_ADVICE}"
            ) from malformed
        found = found.only(wanted_members)
        if column.name not in transforms.pad:
            return {column.name: found.samples()}
        return found.padded(column.name, transforms.pad[column.name], memory.array)

    def _moves(self, image: Column, sources: BlockSources, samples: Indices, epoch: int) -> Moves:
        try:
            return moves_of(self._transforms, samples, epoch, self._sizes(image, sources))
        except Unmovable as small:
            raise self._faulty(image, sources.wanted, small.place, str(small)) from small

    def _sizes(self, image: Column, sources: BlockSources) -> list[Size]:
        """Return the stored size of each image, upright: (width, height)."""
        if image.picture_shape is not None:
            height, width = image.picture_shape[:2]
            return [(width, height)] * len(sources.wanted)
        found = []
        for place, data in enumerate(self._encoded(image, sources).rows()):
            try:
                limit = limit_of(image, data, self._most)
                size = (
                    plain_size(data) or open_image(data.tobytes(), limit, self._keep_truncated).size
                )
            except Rejection as rejection:
                why = f"{why_undecoded(image, rejection)}; {VERIFY_ADVICE}"
                raise self._faulty(image, sources.wanted, place, why) from rejection
            found.append(size)
        return found

    def _encoded(self, image: Column, sources: BlockSources) -> Located:
        located = sources.locate(image)
        if isinstance(located, Located):
            return located
        return encoded_images(
            image, sources.memory.take(image, sources.wanted), self._shards, sources.wanted
        )

    def _faulty(self, column: Column, wanted: Wanted, place: int, why: str) -> DamageError:
        return unreadable_sample(self._shards, wanted, place, f"{column.name}: {why}")
