"""What an export is: it says how each column is written and what is lost, and writes the parts of a
dataset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from shardctl.errors import InputError, UsageError
from shardctl.format.dataset_tables import is_path_below
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.python_values import check_type
from shardctl.format.roles import Role
from shardctl.interop.exports.arrays import has_gaps
from shardctl.interop.exports.images import Recoding, suffixes_in
from shardctl.interop.exports.options import Choice
from shardctl.interop.exports.source import KEY, Source
from shardctl.sources.export_description import Field
from shardctl.system.files import FileFacts

Progress = Callable[[int], None]
"""Is told how many more samples are done."""


@dataclass(frozen=True)
class ExportPart:
    """What is written at a time, by one worker: a shard, or a split as a whole.

    `name` is its own, for files: `train-00000`. `shards` are the numbers of its shards in the
    dataset. `number` counts the parts of its split, of which there are `of`.
    """

    name: str
    split: str
    shards: tuple[int, ...]
    number: int
    of: int


@dataclass(frozen=True)
class FileList:
    """Files of one image or text each (loose_files.py): `files` of them, of `bytes` bytes, which
    the piece `list` lists."""

    list: str
    files: int
    bytes: int


@dataclass(frozen=True)
class PartResult:
    """What was written of a part: its samples, its files by their path in the export's folder (with
    /), what was counted in it.

    `facts` (plain data) and `pieces` are what `finish` needs: pieces are files that are no part of
    the export. Loose files are not among `files`.
    """

    samples: int
    files: dict[str, FileFacts]
    counts: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    pieces: dict[str, FileFacts] = field(default_factory=dict)
    loose: FileList | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> PartResult:
        """Build what `to_json` gave. Raises KeyError, TypeError or ValueError for anything else."""
        files, pieces = (
            {n: FileFacts(**facts) for n, facts in record[of].items()} for of in ("files", "pieces")
        )
        loose = None if record["loose"] is None else FileList(**record["loose"])
        if not all(map(is_path_below, [*files, *pieces, *([] if loose is None else [loose.list])])):
            raise ValueError("a file of the part is outside of the export")
        return cls(record["samples"], files, record["counts"], record["facts"], pieces, loose)

    @property
    def all_files(self) -> dict[str, FileFacts]:
        """The files and the pieces, without loose files."""
        return {**self.files, **self.pieces}


@dataclass(frozen=True)
class ColumnEncoding:
    """How a form writes a column: under the name `written`, as `form`.

    `form` is `value` (as it is), `json` (JSON text, python_values.py), `image` (an encoded image),
    `png` or `jpeg:Q` (a raw image that is encoded for it), or a word of the form's own. `loss` says
    what the form cannot hold of it, None if it holds all.
    """

    written: str
    form: str = "value"
    loss: str | None = None


class Column:
    """A column that is to be exported: `name` in the dataset, `target` as the user wants it called,
    its type and its role."""

    def __init__(self, source: Source, name: str) -> None:
        self.source = source
        self.name, self.target = name, source.written_names[name]
        self.type: pa.DataType = source.exported.columns.field(name).type
        self.role: Role | None = source.exported.roles.get(name)
        self.store = source.choice.store

    @property
    def is_image(self) -> bool:
        """Whether it has encoded images."""
        return (
            bool(self.type.equals(ENCODED_IMAGE)) and self.name in self.source.exported.roles.images
        )

    @property
    def is_raw_image(self) -> bool:
        """Whether it has raw images or masks: arrays of one shape."""
        return (
            isinstance(self.type, pa.FixedShapeTensorType)
            and self.name in self.source.exported.roles.images
        )

    @property
    def is_main_image(self) -> bool:
        """Whether it is the image of the dataset (Roles.main_image)."""
        return self.name == self.source.exported.roles.main_image

    @property
    def is_main_label(self) -> bool:
        """Whether it is the label of the dataset (Roles.main_label)."""
        return self.name == self.source.exported.roles.main_label

    @cached_property
    def nulls(self) -> int:
        """How many samples have no value here. All blocks are looked at."""
        return sum(array.null_count for array in self.arrays())

    @cached_property
    def has_gaps(self) -> bool:
        """Whether a value is missing inside a list or a tensor of this column. All blocks are
        looked at."""
        return any(has_gaps(array) for array in self.arrays())

    @cached_property
    def missing_images(self) -> int:
        """How many samples have no encoded image here. All blocks are looked at."""
        return sum(array.flatten()[0].null_count for array in self.arrays())

    @cached_property
    def suffixes(self) -> frozenset[str]:
        """The suffixes of its encoded images, by their first bytes. All blocks are looked at."""
        return frozenset(suffix for array in self.arrays() for suffix in suffixes_in(array))

    @cached_property
    def has_own_paths(self) -> bool:
        """Whether the path of an encoded image is not the key of its sample. All blocks are looked
        at."""
        return any(
            not block.column(KEY).equals(block.column(self.name).field("path"))
            for block in self.source.columns((KEY, self.name))
        )

    def arrays(self) -> Iterator[pa.Array]:
        """Yield its values in all chosen samples, block by block."""
        return (block.column(self.name) for block in self.source.columns((self.name,)))


class Export(ABC):
    """A form in which a dataset can be written: a frozen dataclass, whose fields are its settings.

    It is made anew in every worker, from these settings: it keeps nothing between calls.
    """

    name: ClassVar[str]

    @abstractmethod
    def check(self, source: Source) -> None:
        """Raise InputError or UsageError if the dataset does not have what this form needs. Nothing
        is written yet."""

    @abstractmethod
    def place(self, column: Column) -> ColumnEncoding | None:
        """Say how a column is written; None: not at all, which is no loss (`notes` says so)."""

    def place_as_json(self, column: Column) -> ColumnEncoding | None:
        """Say how a column that the form cannot hold is written as JSON text; None: the form has no
        place for such text."""
        return ColumnEncoding(column.target, "json")

    def place_of_rest(self, column: Column) -> ColumnEncoding | None:
        """Say how a column is written without what the form cannot hold of it; None: it is left out
        as a whole."""
        return None

    def parts(self, source: Source) -> Sequence[ExportPart]:
        """Return what is written at a time: every shard."""
        return parts_by_shard(source)

    @abstractmethod
    def write(
        self,
        source: Source,
        fields: Sequence[Field],
        part: ExportPart,
        folder: Path,
        progress: Progress,
    ) -> PartResult:
        """Write the files of a part below `folder`, complete or absent each: see `replacing`. They
        depend on nothing else.

        `fields` are the columns that are written. A file that is not in what is returned is
        removed: one without samples, for instance. Raises DatasetError for a damaged block,
        InputError, StorageError.
        """

    def finish(
        self,
        source: Source,
        fields: Sequence[Field],
        folder: Path,
        written: Sequence[tuple[ExportPart, PartResult]],
    ) -> dict[str, FileFacts]:
        """Write the files that need all parts, such as indexes, and return them."""
        return {}

    def loose_folders(self, split: str) -> tuple[str, ...]:
        """Return the folders in which the loose files of a split are."""
        return ()

    def facts(self, source: Source) -> dict[str, Any]:
        """Return what a reader of the files needs to know beside their fields: plain data for
        shardctl.json."""
        return {}

    def notes(self, source: Source) -> tuple[str, ...]:
        """Return sentences about what the form has no place for. They are told before anything is
        written."""
        return ()

    def notes_of(
        self, source: Source, folder: Path, written: Sequence[tuple[ExportPart, PartResult]]
    ) -> tuple[str, ...]:
        """Return sentences about what was written, known only when all parts are. The pieces are
        still there."""
        return ()


def form_of_raw(column: Column, default: str = "png") -> str:
    """Return the form in which a column of raw images is written: as the user chose, else as
    `default`. Raises UsageError."""
    return (Recoding.parse(column.store) or Recoding(default)).form_of(column.type, column.role)


def check_json(column: Column) -> None:
    """Raise InputError for a column that JSON text cannot hold."""
    try:
        check_type(column.type)
    except TypeError as error:
        raise InputError(f"{column.name}: {error}; leave it out with --columns") from error


def parts_by_shard(source: Source) -> list[ExportPart]:
    """Return a part for every shard."""
    numbers: dict[str, list[tuple[int, str]]] = {split: [] for split in source.splits}
    for number, entry in source.numbered_shards():
        numbers[entry.split].append((number, entry.path.removesuffix(".arrow")))
    return [
        ExportPart(name, split, (number,), place, len(of_split))
        for split, of_split in numbers.items()
        for place, (number, name) in enumerate(of_split)
    ]


def parts_by_split(source: Source) -> list[ExportPart]:
    """Return a part for every split."""
    numbers: dict[str, list[int]] = {split: [] for split in source.splits}
    for number, entry in source.numbered_shards():
        numbers[entry.split].append(number)
    return [ExportPart(split, split, tuple(of_split), 0, 1) for split, of_split in numbers.items()]


def refuse_choices(source: Source, to: str) -> None:
    """Raise UsageError if more than a split was chosen: for a form that has no columns."""
    given: Mapping[str, Any] = {
        "--columns": source.choice.columns,
        "--rename": source.choice.rename,
        "--where": source.choice.where,
        "--store": source.choice.store,
        "--on-loss": source.choice.on_loss != Choice.on_loss,
    }
    odd = next((option for option, value in given.items() if value), None)
    if odd is not None:
        raise UsageError(f"{odd} does not go with {to}, which has bare tokens and no columns")
