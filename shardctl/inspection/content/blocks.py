"""Blocks of a dataset, or of a lone shard, and the records in them: all in order, or some from
everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError, UsageError
from shardctl.format.dataset_location import DatasetLocation
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.manifest import Manifest
from shardctl.format.python_values import python_values
from shardctl.format.roles import Roles
from shardctl.format.shard import BlockFile, ShardReader
from shardctl.format.tables import ShardEntry, ShardTable
from shardctl.system.folders import Folder
from shardctl.system.permutation import evenly_spaced
from shardctl.system.text import lacks

MOST_LISTED = 1 << 20
"""Most tokens of a sample that become Python objects: 8 bytes each, or 36."""

ALL = 1 << 62
"""More blocks and images than there are."""

_MOST_BLOCKS = 64
"""Blocks that samples are chosen from, to be shown."""


@dataclass(frozen=True)
class Piece:
    """A document in a block of packed tokens, or a piece of it: `length` tokens from the place
    `first` of the block on.

    `start` is the place of its first token in its document: over 0, an earlier part is in another
    block. `ends` says whether the document ends here, None if that cannot be told. `text` is its
    decoded beginning, None if it cannot be decoded.
    """

    key: str | None
    first: int
    length: int
    start: int
    ends: bool | None
    text: str | None

    @property
    def cut(self) -> bool:
        """Whether a part of the document is in another block."""
        return self.start > 0 or self.ends is False


@dataclass(frozen=True)
class StoredSample:
    """One sample and its place. `values` are as they are stored; `source` is None for a lone shard.

    `index` counts through the whole dataset, `row` through the shard. `checksum` is the one that
    its block was written with, and `intact` says whether it still holds; None if it was not
    computed. `class_names` has the name of the class of each label by the name of its field, None
    where there is no such name; `images` are the names of the fields of images and masks. `roles`
    are those of all fields, but for objects that are not of the type of objects. `texts` has the
    decoded text of each field of tokens where a Decoder (tokens.py) has seen the sample, None where
    it has none, and `documents` those in a block of tokens.
    """

    shard: str
    block: int
    row: int
    index: int | None
    source: str | None
    intact: bool | None
    values: dict[str, Any]
    checksum: str | None = None
    class_names: Mapping[str, str | None] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    roles: Roles = field(default_factory=Roles)
    texts: Mapping[str, str | None] = field(default_factory=dict)
    documents: tuple[Piece, ...] = ()

    @property
    def label_name(self) -> str | None:
        """The class of `label`, or of the only label; None where there is no such name."""
        (*_, only) = self.class_names.values() if len(self.class_names) == 1 else (None,)
        return self.class_names.get("label", only)

    def named_values(self) -> dict[str, Any]:
        """Return the values; behind each label NAME its class as NAME_name, behind tokens their
        text as NAME_text.

        A column of such a name takes precedence.
        """
        named: dict[str, Any] = {}
        for name, value in self.values.items():
            named[name] = value
            named |= {
                more: beside
                for more, beside in self._beside(name).items()
                if more not in self.values
            }
        return named

    def _beside(self, name: str) -> dict[str, Any]:
        """Return what is said of a field beside its value."""
        beside: dict[str, Any] = (
            {f"{name}_name": self.class_names[name]} if name in self.class_names else {}
        )
        return {**beside, f"{name}_text": self.texts[name]} if name in self.texts else beside

    def chosen_values(self, columns: Sequence[str] | None) -> dict[str, Any]:
        """Return the values of some columns, None for all, with what is said of them. Raises
        UsageError for unknown ones."""
        values = self.named_values()
        if columns is None:
            return values
        wrong = next((name for name in columns if name not in values), None)
        if wrong is not None:
            raise UsageError(lacks("column", wrong, self.values))
        beside = [part for name in columns for part in (name, *self._beside(name))]
        return {name: values[name] for name in beside if name in values}


@dataclass(frozen=True)
class Shard:
    """The file of a shard in a folder, opened when it is first needed. `entry` is None for a lone
    one."""

    folder: Folder
    name: str
    entry: ShardEntry | None

    @cached_property
    def reader(self) -> ShardReader:
        """The open file. Raises DatasetError."""
        return ShardReader(self.folder, self.name)

    @cached_property
    def roles(self) -> Roles:
        """The roles of the fields, without those of objects whose column is of another type."""
        layout = self.reader.layout
        other = {
            name
            for name in layout.roles.objects
            if not holds_objects(layout.columns.field(name).type)
        }
        return (
            Roles({name: role for name, role in layout.roles.by_name.items() if name not in other})
            if other
            else layout.roles
        )


@dataclass(frozen=True)
class StoredBlock:
    """A block, and its shard."""

    shard: Shard
    number: int

    @property
    def entry(self) -> ShardEntry | None:
        """The shard's place in its dataset."""
        return self.shard.entry

    @property
    def reader(self) -> ShardReader:
        """The shard's open file. Raises DatasetError."""
        return self.shard.reader

    @cached_property
    def data(self) -> pa.RecordBatch:
        """The block. Raises DatasetError."""
        return self.reader.block(self.number)

    @cached_property
    def first(self) -> int:
        """The row of the shard that the block begins with."""
        if self.entry is not None:
            return sum(self.entry.block_rows[: self.number])
        return sum(self.reader.block(earlier).num_rows for earlier in range(self.number))

    def record(self, place: int, intact: bool | None = None) -> StoredSample:
        """Return the sample in a row of the block."""
        roles = self.reader.layout.roles
        values = {
            field.name: (_tokens if field.name in roles.tokens else _plain)(
                self.data.column(field.name), place
            )
            for field in self.data.schema
        }
        row = self.first + place
        index = self.entry.first + row if self.entry is not None else None
        classes = {
            name: _class_of(values[name], label.names) for name, label in roles.labels.items()
        }
        place_of_it = (self.shard.name, self.number, row, index)
        images = tuple(roles.images)
        return StoredSample(
            *place_of_it,
            None,
            intact,
            values,
            class_names=classes,
            images=images,
            roles=self.shard.roles,
        )


def _class_of(label: Any, classes: Sequence[str] | None) -> str | None:
    """Return the name of a label; None if it has none."""
    known = type(label) is int and classes is not None and 0 <= label < len(classes)
    return classes[label] if known and classes is not None else None


def _plain(column: pa.Array, place: int) -> Any:
    """Return one value as it is stored: raw images as (height, width, 3) arrays, encoded ones as
    bytes and path."""
    if isinstance(column.type, pa.FixedShapeTensorType):
        return column.slice(place, 1).to_numpy_ndarray()[0]
    return python_values(column.slice(place, 1))[0]


def _tokens(column: pa.Array, place: int) -> Any:
    """Return the tokens of a sample as they are stored: a list, but an array (n,) where there are
    very many."""
    value = column[place]
    listed = (
        isinstance(value, pa.ListScalar)
        and value.is_valid
        and pa.types.is_integer(value.type.value_type)
    )
    if not listed or len(value.values) <= MOST_LISTED or value.values.null_count:
        return _plain(column, place)
    return np.from_dlpack(value.values)


def holds_objects(type_: pa.DataType) -> bool:
    """Return whether a column of objects is as docs/annotations.md describes it: lists in a struct,
    boxes and categories."""
    if not pa.types.is_struct(type_) or not all(pa.types.is_list(part.type) for part in type_):
        return False
    parts = {part.name: part.type.value_type for part in type_}
    return {"bbox", "category"} <= set(parts) and all(
        check(parts[name]) for name, check in _MEMBERS.items() if name in parts
    )


def _is_row(type_: pa.DataType, size: int) -> bool:
    return bool(
        pa.types.is_fixed_size_list(type_)
        and type_.list_size == size
        and pa.types.is_floating(type_.value_type)
    )


def _is_list_of(type_: pa.DataType, of: Callable[[pa.DataType], bool]) -> bool:
    return bool(pa.types.is_list(type_) and of(type_.value_type))


def _is_rle(type_: pa.DataType) -> bool:
    parts = {part.name: part.type for part in type_} if pa.types.is_struct(type_) else {}
    size = parts.get("size", pa.null())
    sides = (
        pa.types.is_fixed_size_list(size)
        and size.list_size == 2
        and pa.types.is_integer(size.value_type)
    )
    return bool(sides and pa.types.is_binary(parts.get("counts", pa.null())))


_MEMBERS: dict[str, Callable[[pa.DataType], bool]] = {
    "bbox": lambda type_: _is_row(type_, 4),
    "category": pa.types.is_signed_integer,
    "area": pa.types.is_floating,
    "iscrowd": pa.types.is_boolean,
    "difficult": pa.types.is_boolean,
    "truncated": pa.types.is_boolean,
    "segmentation": lambda type_: _is_list_of(
        type_, lambda polygon: _is_list_of(polygon, pa.types.is_floating)
    ),
    "rle": _is_rle,
    "keypoints": lambda type_: _is_list_of(type_, lambda point: _is_row(point, 3)),
}
"""What is known of an object, and the type of it."""


def is_image(field: pa.Field) -> bool:
    """Return whether a column holds images, encoded or raw, or arrays like them."""
    return isinstance(field.type, pa.FixedShapeTensorType) or bool(field.type.equals(ENCODED_IMAGE))


def all_blocks(place: DatasetLocation, split: str | None) -> Iterator[StoredBlock]:
    """Yield the blocks of a dataset, of one of its splits, or of a lone shard, in order. Raises
    UsageError, DatasetError."""
    folder, lone = place
    if lone:
        shard = Shard(folder, lone, None)
        yield from (StoredBlock(shard, number) for number in range(len(shard.reader)))
        return
    check_split(folder, split)
    for entry in ShardTable(folder):
        if split is None or entry.split == split:
            shard = Shard(folder, entry.path, entry)
            yield from (StoredBlock(shard, number) for number in range(len(shard.reader)))


def check_split(folder: Folder, split: str | None) -> None:
    """Raise UsageError for an unknown split."""
    names = [facts.name for facts in Manifest.load(folder).splits]
    if split is not None and split not in names:
        raise UsageError(f"{folder.shown()}: {lacks('split', split, names)}")


def some_blocks(place: DatasetLocation, split: str | None, count: int) -> Iterator[StoredBlock]:
    """Yield up to `count` blocks, evenly spaced, in order; none is read yet. Raises UsageError,
    DatasetError."""
    folder, lone = place
    if lone:
        only = Shard(folder, lone, None)
        yield from (StoredBlock(only, number) for number in evenly_spaced(len(only.reader), count))
        return
    check_split(folder, split)
    table = ShardTable(folder)
    first, last = shards_of(folder, split)
    ends = np.cumsum(table.block_counts[first:last])
    chosen = evenly_spaced(int(ends[-1]) if len(ends) else 0, count)
    shards = np.searchsorted(ends, chosen, side="right").tolist()
    shard: Shard | None = None
    for of_split, number in zip(shards, chosen, strict=True):
        entry = table[first + of_split]
        if shard is None or shard.name != entry.path:
            shard = Shard(folder, entry.path, entry)
        yield StoredBlock(
            shard, number - int(ends[of_split] - table.block_counts[first + of_split])
        )


def shards_of(folder: Folder, split: str | None) -> tuple[int, int]:
    """Return the numbers of the first shard of a split, and of the first shard after it."""
    start = 0
    for facts in Manifest.load(folder).splits:
        if split == facts.name:
            return start, start + facts.shards
        start += facts.shards
    return 0, start


def some_samples(place: DatasetLocation, split: str | None, count: int) -> Iterator[StoredSample]:
    """Yield up to `count` records, evenly spaced, in order. Raises UsageError, DatasetError."""
    placed = list(some_blocks(place, split, min(_MOST_BLOCKS, count)))
    for number, block in enumerate(placed):
        share = (number + 1) * count // len(placed) - number * count // len(placed)
        yield from (block.record(row) for row in evenly_spaced(block.data.num_rows, share))


def blocks_and_share(
    place: DatasetLocation, split: str | None, blocks: int, images: int
) -> tuple[Iterator[StoredBlock], int]:
    """Return up to so many blocks of a dataset, and how many images of each to look at, so that
    they are `images` together. Raises as `some_blocks`."""
    count = sum(1 for _ in some_blocks(place, split, blocks))
    return some_blocks(place, split, blocks), max(1, images // max(1, count))


def count_blocks(
    blocks: Iterable[StoredBlock], count: Callable[[StoredBlock], None]
) -> tuple[str, ...]:
    """Have all blocks counted, and return why others cannot be read: where `count` raises
    DatasetError or ValueError."""
    faults = []
    for block in blocks:
        try:
            count(block)
        except DatasetError as error:
            faults.append(str(error))
        except ValueError as error:
            faults.append(str(block.reader.unreadable(block.number, error)))
    return tuple(faults)


def checked_columns(block: StoredBlock, columns: list[str]) -> pa.RecordBatch:
    """Return some columns of a block, checked. Raises DatasetError."""
    numbers = [block.reader.schema.get_field_index(name) for name in columns]
    file = BlockFile.of(block.shard.folder, block.shard.name, numbers)
    batch = file.fetch(block.number)[0]
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise file.unreadable(block.number, error) from error
    return batch
