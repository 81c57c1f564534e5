"""Blocks of a dataset, or of a lone shard, and the records in them: all in order, or some from
everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError, UsageError
from shardctl.format.dataset_location import DatasetLocation
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.manifest import Manifest
from shardctl.format.python_values import python_values
from shardctl.format.roles import Objects, Roles
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

Values = dict[str, Any]
"""The values of a sample by the names of its fields, or of its objects by what they say."""


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

    `shard` is what its shard is called, of a lone one the file's name. `index` counts through the whole dataset, `row` through the shard. `checksum` is the one that
    its block was written with, and `intact` says whether it still holds; None if it was not
    computed. `roles` are those of all fields, but for objects that are not of the type of objects.
    `texts` has the decoded text of each field of tokens where a Decoder (tokens.py) has seen the
    sample, None where it has none, and `documents` those in a block of tokens.
    """

    shard: str
    block: int
    row: int
    index: int | None
    source: str | None
    intact: bool | None
    values: Values
    checksum: str | None = None
    roles: Roles = field(default_factory=Roles)
    texts: Mapping[str, str | None] = field(default_factory=dict)
    documents: tuple[Piece, ...] = ()

    @property
    def images(self) -> tuple[str, ...]:
        """The names of the fields of images and masks."""
        return tuple(self.roles.images)

    @property
    def class_names(self) -> dict[str, str | None]:
        """The class of each label by the name of its field, None where it has no name."""
        return {
            name: name_at(self.values[name], role.names) for name, role in self.roles.labels.items()
        }

    @property
    def label_name(self) -> str | None:
        """The class of `label`, or of the only label; None where there is no such name."""
        found = self.class_names
        (*_, only) = found.values() if len(found) == 1 else (None,)
        return found.get("label", only)

    def named_values(self) -> Values:
        """Return the values; behind each label NAME its class as NAME_name, behind tokens their
        text as NAME_text.

        A column of such a name takes precedence.
        """
        return {
            more: value
            for name in self.values
            for more, value in self._beside(name).items()
            if more == name or more not in self.values
        }

    def _beside(self, name: str) -> Values:
        """Return the value of a field, and what is said of it."""
        beside, classes = {name: self.values.get(name)}, self.class_names
        if name in classes:
            beside[f"{name}_name"] = classes[name]
        if name in self.texts:
            beside[f"{name}_text"] = self.texts[name]
        return beside

    def chosen_values(self, columns: Sequence[str] | None) -> Values:
        """Return the values of some columns, None for all, with what is said of them. Raises
        UsageError for unknown ones."""
        values = self.named_values()
        if columns is None:
            return values
        for name in columns:
            if name not in values:
                raise UsageError(lacks("column", name, self.values))
        return {
            part: values[part] for name in columns for part in self._beside(name) if part in values
        }


@dataclass(frozen=True)
class Shard:
    """The file of a shard in a folder by its path, opened when it is first needed. `entry` is None
    for a lone one."""

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
        kept = {
            name: role
            for name, role in layout.roles.by_name.items()
            if not isinstance(role, Objects) or holds_objects(layout.columns.field(name).type)
        }
        return Roles(kept)


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
        roles = self.shard.roles
        values = {
            field.name: (_tokens if field.name in roles.tokens else _plain)(
                self.data.column(field.name), place
            )
            for field in self.data.schema
        }
        row = self.first + place
        name, index = self.shard.name, None
        if self.entry is not None:
            name, index = self.entry.name, self.entry.first + row
        return StoredSample(name, self.number, row, index, None, intact, values, roles=roles)


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


def name_at(number: Any, names: Sequence[str] | None) -> str | None:
    """Return the name of a category, class or keypoint by its number; None where it has none."""
    is_number = type(number) is int and 0 <= number < len(names or ())
    return names[number] if names is not None and is_number else None


def holds_objects(type_: pa.DataType) -> bool:
    """Return whether a column of objects is as docs/annotations.md describes it: lists in a struct,
    boxes and categories."""
    if not pa.types.is_struct(type_) or not all(pa.types.is_list(part.type) for part in type_):
        return False
    parts = {part.name: part.type.value_type for part in type_}
    return {"bbox", "category"} <= set(parts) and all(
        check(parts[name]) for name, check in _MEMBERS.items() if name in parts
    )


Form = Callable[[pa.DataType], bool]


def _row(size: int, of: Form) -> Form:
    return lambda type_: bool(
        pa.types.is_fixed_size_list(type_) and type_.list_size == size and of(type_.value_type)
    )


def _list(of: Form) -> Form:
    return lambda type_: bool(pa.types.is_list(type_) and of(type_.value_type))


_IS_SIZE = _row(2, pa.types.is_integer)


def _is_rle(type_: pa.DataType) -> bool:
    parts = {part.name: part.type for part in type_} if pa.types.is_struct(type_) else {}
    size, counts = (parts.get(name, pa.null()) for name in ("size", "counts"))
    return _IS_SIZE(size) and bool(pa.types.is_binary(counts))


_MEMBERS: dict[str, Form] = {
    "bbox": _row(4, pa.types.is_floating),
    "category": pa.types.is_signed_integer,
    "area": pa.types.is_floating,
    "iscrowd": pa.types.is_boolean,
    "difficult": pa.types.is_boolean,
    "truncated": pa.types.is_boolean,
    "segmentation": _list(_list(pa.types.is_floating)),
    "rle": _is_rle,
    "keypoints": _list(_row(3, pa.types.is_floating)),
}
"""What is known of an object, and the type of it."""


def is_image(field: pa.Field) -> bool:
    """Return whether a column holds images, encoded or raw, or arrays like them."""
    return isinstance(field.type, pa.FixedShapeTensorType) or bool(field.type.equals(ENCODED_IMAGE))


def is_encoded_image(value: Any) -> bool:
    """Return whether a stored value is an image in a file format."""
    return isinstance(value, dict) and set(value) == {f.name for f in ENCODED_IMAGE}


def is_objects(value: Any) -> bool:
    """Return whether a stored value is the objects of a sample: a dict of lists, with a box and a
    category for each."""
    return isinstance(value, dict) and all(
        isinstance(value.get(name), list) for name in ("bbox", "category")
    )


def some_blocks(
    place: DatasetLocation, split: str | None, count: int = ALL
) -> Iterator[StoredBlock]:
    """Yield up to `count` blocks of a dataset, of one of its splits, or of a lone shard: evenly
    spaced, in order; none is read yet. Raises UsageError, DatasetError."""
    folder, lone = place
    if lone:
        counts = np.array([len(ShardReader(folder, lone))])
    else:
        table = ShardTable(folder)
        numbers = Manifest.load(folder).shards_of(split, folder.shown())
        counts = table.block_counts[numbers.start : numbers.stop]
    ends = np.cumsum(counts)
    total = int(counts.sum())
    chosen = list(range(total)) if total <= count else evenly_spaced(total, count)
    shards = np.searchsorted(ends, chosen, side="right").tolist()
    for number, blocks in groupby(zip(shards, chosen, strict=True), itemgetter(0)):
        entry = None if lone else table[numbers[number]]
        shard = Shard(folder, lone if entry is None else entry.path, entry)
        first = int(ends[number] - counts[number])
        yield from (StoredBlock(shard, block - first) for _, block in blocks)


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
    return BlockFile.of(block.shard.folder, block.shard.name, numbers).checked(block.number)[0]
