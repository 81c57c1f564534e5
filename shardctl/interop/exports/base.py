"""What an export is: it says how each column is written and what is lost, and writes the parts of a
dataset. What forms have in common: the dataset and what was chosen of it, columns, images, and the
samples of a part. Every block that is exported is checked against its checksum."""

from __future__ import annotations

import gzip
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError, InputError, Rejection, UsageError, first_line
from shardctl.format.arrays import is_binary, is_number, is_text, items_of
from shardctl.format.dataset_location import AnyDataset, check_unchanged
from shardctl.format.dataset_tables import DatasetTables, is_path_below
from shardctl.format.generations import WAS_REPLACED
from shardctl.format.layout import ENCODED_IMAGE, Layout
from shardctl.format.manifest import Manifest
from shardctl.format.names import Json
from shardctl.format.python_values import check_type, json_text
from shardctl.format.roles import Mask, Objects, Role, Roles
from shardctl.format.shard import BlockFile, ShardReader
from shardctl.format.tables import REPAIR_ADVICE, ShardEntry
from shardctl.interop.exports.options import EXPORTS, Choice
from shardctl.loader.condition import Condition, kept_rows, parse_condition
from shardctl.sources.export_description import Field
from shardctl.system.files import FileFacts, HashingFile, naming_the_path, write_atomically
from shardctl.system.folders import Folder
from shardctl.system.text import counted, lacks

# --- the dataset that is exported, and what was chosen of it ---

KEY = "key"
"""The column that names each sample. It is always exported."""


@dataclass(frozen=True)
class Shard:
    """A shard of the dataset that is exported. `columns` are those that the first shard has: all
    have the same."""

    folder: Folder
    entry: ShardEntry
    columns: pa.Schema

    def blocks(self) -> Iterator[pa.RecordBatch]:
        """Yield every block. Raises DatasetError for a damaged one."""
        reader = self._reader()
        for number, rows in enumerate(self.entry.block_rows):
            block, intact = reader.checked_block(number)
            if not intact or block.num_rows != rows:
                raise self.damaged(f"block {number} is not as it was written")
            yield block

    def blocks_of(self, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Yield some columns of every block, without reading the others. There is no checksum of
        them alone."""
        self._reader()
        numbers = [self.columns.get_field_index(name) for name in names]
        file = BlockFile.of(self.folder, self.entry.path, numbers)
        for number in range(len(file)):
            block, _ = file.fetch(number)
            try:
                block.validate(full=True)
            except (pa.ArrowException, ValueError) as error:
                raise self.damaged(
                    f"block {number} cannot be read ({first_line(error)})"
                ) from error
            yield block

    def _reader(self) -> ShardReader:
        """Open the shard. Raises DatasetError if it is not one of those that the tables
        describe."""
        reader = ShardReader(self.folder, self.entry.path)
        if not reader.schema.remove_metadata().equals(self.columns):
            raise self.damaged("its columns are not those of the other shards")
        if len(reader) != len(self.entry.block_rows):
            raise self.damaged(
                f"it has {counted(len(reader), 'block')}, and the table of shards says "
                f"{len(self.entry.block_rows):,}"
            )
        return reader

    def damaged(self, what: str) -> DatasetError:
        """Return the error for a shard of which something is wrong."""
        return DatasetError(f"{self.folder.shown(self.entry.path)}: {what}; {REPAIR_ADVICE}")


class Source:
    """The dataset that is exported, as far as it was chosen. `turned` counts the images that were
    turned upright.

    Raises DatasetError, and UsageError for a split, a column or a condition that the dataset does
    not have.
    """

    def __init__(self, folder: AnyDataset, choice: Choice) -> None:
        self.folder, self.choice = folder, choice
        self._stored = DatasetTables(folder)
        self.manifest: Manifest = self._stored.manifest
        self.turned = 0
        self._chosen = self.manifest.splits_of(choice.split, self.shown)
        self.splits: tuple[str, ...] = tuple(each.name for each in self._chosen)

    @property
    def shown(self) -> str:
        """The location of the dataset, for messages."""
        return self.folder.shown()

    @property
    def samples(self) -> int:
        """The number of samples that are read. With a condition fewer may be written."""
        return sum(split.samples for split in self._chosen)

    @property
    def bytes(self) -> int:
        """The size of the shards that are read."""
        return sum(split.bytes for split in self._chosen)

    @cached_property
    def state(self) -> str:
        """What names this very state of the dataset: the SHA-256 of its manifest, which has those
        of all files."""
        return hashlib.sha256(self.manifest.to_json().encode()).hexdigest()

    @cached_property
    def layout(self) -> Layout:
        """The types and the roles of all columns. Raises DatasetError."""
        return ShardReader(self.folder, self._stored.shards[0].path).layout

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns that are exported: the key, and those that were chosen, in their order.
        Raises UsageError."""
        there = self.layout.columns.names
        chosen = there if self.choice.columns is None else self.choice.columns
        for name in (*chosen, *self.choice.rename):
            if name not in there:
                raise UsageError(f"{self.shown}: {lacks('column', name, there)}")
        return tuple(dict.fromkeys([KEY, *chosen]))

    @cached_property
    def written_names(self) -> dict[str, str]:
        """The name that each exported column is to have. Raises UsageError if two have the same."""
        names = {name: self.choice.rename.get(name, name) for name in self.names}
        for name in self.choice.rename:
            if name not in names:
                raise UsageError(
                    f"--rename {name}: this column is not among those that are exported"
                )
        if len(set(names.values())) != len(names) or "" in names.values():
            raise UsageError(
                f"--rename: columns need different names, not {', '.join(names.values())}"
            )
        return names

    @cached_property
    def exported(self) -> Layout:
        """The types and the roles of the exported columns, under their names in the dataset."""
        columns = pa.schema([self.layout.columns.field(name) for name in self.names])
        roles = {
            name: role for name in self.names if (role := self.layout.roles.get(name)) is not None
        }
        return replace(self.layout, columns=columns, roles=Roles(roles))

    def type_of(self, name: str) -> pa.DataType:
        """Return the type of an exported column, by its name in the dataset."""
        return self.exported.columns.field(name).type

    @cached_property
    def where(self) -> Condition | None:
        """The condition on samples, None for all. Raises UsageError."""
        if self.choice.where is None:
            return None
        return parse_condition(self.choice.where, self.layout.columns, self.layout.roles.names)

    def numbered_shards(self, split: str | None = None) -> Iterator[tuple[int, ShardEntry]]:
        """Yield the number and the entry of every shard that is exported, or of a split, in order."""
        for number, entry in enumerate(self._stored.shards):
            if entry.split in self.splits and split in (None, entry.split):
                yield number, entry

    def shard(self, number: int) -> Shard:
        """Return a shard by its number in the whole dataset."""
        entry = self._stored.shards[number]
        return Shard(self.folder, entry, self.layout.columns)

    def blocks(self, shard: Shard) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the exported columns and the chosen samples of every block, and how many samples
        were read for them.

        Raises DatasetError, UsageError if the condition does not fit the values.
        """
        for block in shard.blocks():
            yield self._matching(block).select(list(self.names)), block.num_rows

    def columns(self, names: tuple[str, ...], split: str | None = None) -> Iterator[pa.RecordBatch]:
        """Yield some columns of all chosen samples, or of those of a split, block by block, without
        reading the others."""
        needed = tuple(dict.fromkeys([*names, *(self.where.columns if self.where else ())]))
        for number, _ in self.numbered_shards(split):
            for block in self.shard(number).blocks_of(needed):
                yield self._matching(block)

    def _matching(self, block: pa.RecordBatch) -> pa.RecordBatch:
        if self.where is None:
            return block
        try:
            kept = kept_rows(pa.table(block), self.where.expression)
        except pa.ArrowException as error:
            raise UsageError(
                f"--where {self.where.text!r} does not fit the values ({first_line(error)})"
            ) from error
        batches = kept.combine_chunks().to_batches()
        return batches[0] if batches else block.slice(0, 0)

    def check_unchanged(self) -> None:
        """Raise DatasetError if there is another dataset by now: its shards may have been read with
        those of the first."""
        check_unchanged(self.folder)
        if Manifest.load(self.folder) != self.manifest:
            raise DatasetError(f"{self.shown}: {WAS_REPLACED}")


# --- what is written of it, and by whom ---

PIECES = "pieces"
"""The folder of pieces, beside that of the files."""

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
class Work(ExportPart):
    """A part that is being written: the columns `fields` of some samples, below `folder`."""

    source: Source
    fields: Sequence[Field]
    folder: Path
    progress: Progress

    def path(self, name: str) -> Path:
        """Return where a file is written, in a folder that is there. Raises StorageError."""
        return path_below(self.folder, name)

    def piece(self, name: str) -> Path:
        """Return where a piece is written, in a folder that is there. Raises StorageError."""
        return path_below(self.folder.with_name(PIECES), name)

    def batches(self, plain: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the samples, with a column for each of the fields, in their order and under their
        `written` names.

        A column of form `json` has JSON text, unless values are to be `plain`; one of `png` or `jpeg:Q` encoded images; all others
        have the type of the dataset. Encoded images beside objects or masks are upright as they are
        stored: `turned` of the source counts those that EXIF turned. No batch is empty. Raises
        DatasetError for a damaged block, InputError for an image that cannot be encoded.
        """
        fields, roles = self.fields, self.source.exported.roles
        marked = any(isinstance(roles.get(field.name), Objects | Mask) for field in fields)
        converters = [
            self._converter(field, marked and field.name in roles.images, plain) for field in fields
        ]
        for number in self.shards:
            for block, read in self.source.blocks(self.source.shard(number)):
                if block.num_rows:
                    columns = [
                        convert(block.column(field.name))
                        for field, convert in zip(fields, converters, strict=True)
                    ]
                    yield pa.record_batch(columns, names=[field.written for field in fields])
                self.progress(read)

    def _converter(
        self, field: Field, is_turned: bool, plain: bool
    ) -> Callable[[pa.Array], pa.Array]:
        exported = self.source.exported
        is_encoded = self.source.type_of(field.name).equals(ENCODED_IMAGE)
        is_mask = isinstance(exported.roles.get(field.name), Mask)
        encode = encoder(field.form) if field.form.startswith(("png", "jpeg:")) else None

        def convert(array: pa.Array) -> pa.Array:
            if is_turned and is_encoded:
                array, turned = upright(array, is_mask)
                self.source.turned += turned
            if field.form == "json" and not plain:
                return json_text(array)
            return array if encode is None else encode(array)

        return convert


@dataclass(frozen=True)
class FileList:
    """Files of one image or text each: `files` of them, of `bytes` bytes, which
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
    facts: Json = field(default_factory=dict)
    pieces: dict[str, FileFacts] = field(default_factory=dict)
    loose: FileList | None = None

    @classmethod
    def from_json(cls, record: Json) -> PartResult:
        """Build what `asdict` gave. Raises KeyError, TypeError or ValueError for anything else."""
        files, pieces = (
            {n: FileFacts(**facts) for n, facts in record[of].items()} for of in ("files", "pieces")
        )
        loose = None if record["loose"] is None else FileList(**record["loose"])
        if not all(map(is_path_below, [*files, *pieces, *([] if loose is None else [loose.list])])):
            raise ValueError("a file of the part is outside of the export")
        return cls(record["samples"], files, record["counts"], record["facts"], pieces, loose)


Written = Sequence[tuple[ExportPart, PartResult]]
"""All parts in order, and what was written of each."""


@dataclass(frozen=True)
class Done:
    """An export of which all parts are written, below `folder`."""

    source: Source
    fields: Sequence[Field]
    folder: Path
    parts: Written

    def of_splits(self) -> Iterator[tuple[str, list[PartResult]]]:
        """Yield every split, and what was written of it."""
        for split in self.source.splits:
            yield split, [each for part, each in self.parts if part.split == split]

    def pieces(self, parts: Sequence[PartResult], place: int = 0) -> list[Path]:
        """Return where the pieces are that come at this place in each of some parts."""
        return [self.folder.with_name(PIECES) / list(each.pieces)[place] for each in parts]

    def write(self, files: Mapping[str, bytes]) -> dict[str, FileFacts]:
        """Write files, and return what they are. Raises StorageError."""
        return {
            name: FileFacts(len(data), write_atomically(path_below(self.folder, name), data))
            for name, data in files.items()
        }


def path_below(folder: Path, name: str) -> Path:
    """Return where a file is, in a folder that is there. Raises StorageError."""
    path = folder / name
    with naming_the_path(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    return path


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
        self.type: pa.DataType = source.type_of(name)
        self.role: Role | None = source.exported.roles.get(name)

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

    def image_form(self, raw: str = "png") -> str | None:
        """Return the form in which images are written: `image`, or for raw ones what the user
        chose, else `raw`. None: it has no images, or they are written as arrays. Raises
        UsageError."""
        if self.is_image:
            return "image"
        store = store_of(self.source.choice.store) or raw
        if not self.is_raw_image or store == "keep" or self.type.value_type not in _PIXELS:
            return None
        return "png" if isinstance(self.role, Mask) else store

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

    @property
    def name(self) -> str:
        """What it is called in the table of exports."""
        own = f":{type(self).__name__}"
        return next(name for name, form in EXPORTS.items() if form.export.endswith(own))

    def check(self, source: Source) -> None:
        """Raise InputError or UsageError if the dataset does not have what this form needs. Nothing
        is written yet."""
        return

    @abstractmethod
    def encoding_of(self, column: Column) -> ColumnEncoding | None:
        """Say how a column is written; None: not at all, which is no loss (`notes` says so)."""

    def encoding_as_json(self, column: Column) -> ColumnEncoding | None:
        """Say how a column that the form cannot hold is written as JSON text; None: the form has no
        place for such text."""
        return ColumnEncoding(column.target, "json")

    def encoding_of_rest(self, column: Column) -> ColumnEncoding | None:
        """Say how a column is written without what the form cannot hold of it; None: it is left out
        as a whole."""
        return None

    def parts(self, source: Source) -> Sequence[ExportPart]:
        """Return what is written at a time: every shard."""
        return [
            ExportPart(entry.name, split, (number,), place, len(of_split))
            for split in source.splits
            for of_split in [list(source.numbered_shards(split))]
            for place, (number, entry) in enumerate(of_split)
        ]

    @abstractmethod
    def write(self, work: Work) -> PartResult:
        """Write the files of a part, complete or absent each: see `replacing`. They depend on
        nothing else.

        A file that is not in what is returned is removed: one without samples, for instance. Raises
        DatasetError for a damaged block, InputError, StorageError.
        """

    def finish(self, done: Done) -> dict[str, FileFacts]:
        """Write the files that need all parts, such as indexes, and return them."""
        return {}

    def loose_folders(self, split: str) -> tuple[str, ...]:
        """Return the folders in which the loose files of a split are."""
        return (split,)

    def facts(self, source: Source) -> Json:
        """Return what a reader of the files needs to know beside their fields: plain data for
        shardctl.json."""
        return {}

    def notes(self, source: Source) -> Iterable[str]:
        """Return sentences about what the form has no place for. They are told before anything is
        written."""
        return ()

    def notes_of(self, done: Done) -> Iterable[str]:
        """Return sentences about what was written, known only when all parts are. The pieces are
        still there."""
        return ()


def file_form(column: Column) -> str:
    """Return the form in which images are files. Raises InputError where some are missing,
    UsageError where they are no image files."""
    refuse_missing(column, column.missing_images if column.is_image else column.nulls, "image")
    form = column.image_form()
    if form is None:
        raise UsageError(
            f"{column.name}: files do not hold these arrays; use --store png or jpeg:QUALITY"
        )
    return form


def refuse_missing(column: Column, number: int, what: str) -> None:
    """Raise InputError if some samples have nothing to make a file of."""
    if number:
        have = counted(number, "sample has", "samples have")
        raise InputError(
            f"{column.name}: {have} no {what}, and each needs a file; --where '{column.name} is "
            "not None' leaves them out"
        )


def refuse_taken(column: Column, names: Collection[str], what: str) -> None:
    """Raise UsageError if a column is called as something else that is written of this one."""
    for name in column.source.written_names.values():
        if name in names:
            raise UsageError(
                f"{name} is a column, and {what} of {column.target}; --rename gives another name"
            )


def check_json(column: Column) -> None:
    """Raise InputError for a column that JSON text cannot hold."""
    try:
        check_type(column.type)
    except TypeError as error:
        raise InputError(f"{column.name}: {error}; leave it out with --columns") from error


def is_packed(type_: pa.DataType) -> bool:
    """Return whether a type is a tensor, or a list of one length, of numbers."""
    is_fixed = isinstance(type_, pa.FixedShapeTensorType) or pa.types.is_fixed_size_list(type_)
    return is_fixed and is_number(type_.value_type)


def is_bytes(type_: pa.DataType) -> bool:
    """Return whether values of a type are strings or bytes."""
    return is_text(type_) or is_binary(type_)


def stored(array: pa.Array) -> pa.Array:
    """Return a column of tensors as the lists that it is stored as, any other as it is."""
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def has_gaps(array: pa.Array) -> bool:
    """Return whether a value is missing inside a column of lists or tensors."""
    return bool(stored(array).flatten().null_count)


def shape_of(type_: pa.DataType) -> tuple[int, ...]:
    """Return the shape of the values of a tensor, or of a list of one length."""
    return tuple(type_.shape) if isinstance(type_, pa.FixedShapeTensorType) else (type_.list_size,)


def arrays_of(array: pa.Array) -> list[Any]:
    """Return the rows of a column of tensors, or of lists of one length, without a copy; None for a
    missing one."""
    flat = items_of(stored(array))
    if flat.null_count:
        raise InputError("a tensor lacks some of its numbers")
    rows = np.asarray(flat).reshape(len(array), *shape_of(array.type))
    return [
        row if valid else None
        for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)
    ]


_SUFFIXES = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"\0\0\0\x0cjP  ", "jp2"),
    (b"qoif", "qoi"),
    (b"\0\0\1\0", "ico"),
    *((b"P%d" % number, suffix) for number, suffix in enumerate(("pbm", "pgm", "ppm") * 2, 1)),
)
OTHER = "img"
"""The suffix of an image of a format that its first bytes do not tell."""


def suffix_of(data: bytes | memoryview) -> str:
    """Return the suffix of an encoded image by its first bytes, without a dot: jpg, png, webp, …;
    `img` if they do not tell."""
    start = bytes(data[:12])
    for magic, suffix in _SUFFIXES:
        if start.startswith(magic):
            return suffix
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "webp"
    return "avif" if start[4:12] in (b"ftypavif", b"ftypavis") else OTHER


def suffixes_in(array: pa.Array) -> set[str]:
    """Return the suffixes of the images in a column of encoded images."""
    return {suffix_of(memoryview(data.as_buffer())) for data in array.field(0) if data.is_valid}


_PIXELS = (pa.uint8(), pa.uint16())


def store_of(text: str | None) -> str | None:
    """Return how raw images are stored by a choice: `keep`, `png` or `jpeg:Q`. Masks are never
    JPEG, which changes numbers. Raises UsageError."""
    if text is None or text in ("keep", "png"):
        return text
    name, _, quality = text.partition(":")
    if name == "jpeg" and (
        text == name or (quality.isascii() and quality.isdecimal() and 1 <= int(quality) <= 100)
    ):
        return f"jpeg:{int(quality or 90)}"
    raise UsageError(f"--store {text!r} is not keep, png or jpeg:QUALITY, with 1 to 100")


def upright(array: pa.Array, is_mask: bool) -> tuple[pa.Array, int]:
    """Return a column of encoded images without those that EXIF turns, and how many these were:
    their pixels are turned.

    Not every reader looks at EXIF, and what is marked in an image fits it upright. Raises
    InputError for a broken image.
    """
    from shardctl.images.codecs.image import decode_mask, mask_png, without_turn

    made = dict[int, bytes]()
    for row, data in enumerate(array.field("bytes")):
        if (given := data.as_py()) is None:
            continue
        try:
            if (turned := without_turn(given)) is not None:
                made[row] = mask_png(decode_mask(given), given) if is_mask else turned
        except Rejection as fault:
            raise InputError(f"an image {fault.message}") from fault
    if not made:
        return array, 0
    rows = array.to_pylist()
    for row, found in made.items():
        rows[row]["bytes"] = found
    return pa.array(rows, array.type), len(made)


def encoder(form: str) -> Callable[[pa.Array], pa.Array]:
    """Return what encodes a column of raw images: as `png` or `jpeg:Q`."""
    # Pillow, which datasets without images do not need
    from shardctl.images.codecs.image import ImageEncoding

    store = ImageEncoding.parse(form)

    def encode(array: pa.Array) -> pa.Array:
        """Encode every image: struct<bytes, path>, the path missing. Raises InputError for one that
        cannot be."""
        try:
            encoded = [
                None if pixels is None else {"bytes": store.encode(pixels)}
                for pixels in arrays_of(array)
            ]
        except Rejection as fault:
            raise InputError(f"an image {fault.message}") from fault
        return pa.array(encoded, ENCODED_IMAGE)

    return encode


COMPRESSED = {"none": "", "gzip": ".gz"}
"""Compressions of whole files, and what they put behind their names."""

GZIP_LEVEL = 6


@contextmanager
def compressing(sink: HashingFile, path: Path) -> Iterator[Any]:
    """Yield what to write to, by the name of the file. No name and no time get into what gzip
    writes."""
    if path.suffix != COMPRESSED["gzip"]:
        yield sink
        return
    with gzip.GzipFile(
        filename="", mode="wb", compresslevel=GZIP_LEVEL, fileobj=sink, mtime=0
    ) as stream:
        yield stream
