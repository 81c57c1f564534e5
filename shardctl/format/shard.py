"""One shard: a plain Arrow IPC file of record batches ("blocks") with a checksum each.
docs/format.md, section 3."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import DamageError, DatasetError, UsageError, first_line, is_of_bytes
from shardctl.format.arrays import column_of, dtype_of
from shardctl.format.layout import ENCODED_IMAGE, Layout
from shardctl.format.names import DATA, path_of_shard, shard_name
from shardctl.system.files import HashingFile, StreamedFile, check_ordinary, replacing
from shardctl.system.folders import Folder
from shardctl.system.machine import MORE_FILES, NO_DESCRIPTORS
from shardctl.system.mmap import map_file
from shardctl.system.text import printable
from shardctl.version import __version__

T = TypeVar("T")

Fields = tuple[int, ...] | None
"""The numbers of the columns that are read, None for all."""

StoredBlock = tuple[pa.RecordBatch, dict[bytes, bytes]]
"""A block with its metadata."""

SHARD_VERSION = 2
"""The version of the form of shards. Raised when a reader of the old version could misread the new
one."""


def refuse_other_version(
    version: Any, writer: Any, shown: str, known: Sequence[int] = (SHARD_VERSION,)
) -> None:
    """Raise DatasetError for a file of another version than these, saying which shardctl reads
    it."""
    if version in known and not isinstance(version, bool):
        return
    by = f", {printable(writer)}," if isinstance(writer, str) else ""
    raise DatasetError(
        f"{shown}: format version {version!r}; shardctl {__version__} reads version "
        f"{' and '.join(map(str, known))}; use the version that wrote it{by} or a later one, or "
        "convert the sources again"
    )


VERIFY_ADVICE = "run `shardctl verify` on the dataset"

CHECKSUM_KEY = b"shardctl.xxh3"
INFO_KEY = b"shardctl"
HUGGINGFACE_KEY = b"huggingface"

COMPRESSED_BLOCK_BYTES = 1 << 20
"""Uncompressed bytes of a block that is stored compressed. Reading one sample costs a whole block;
at 650 kB of text a zstd block already has 96 % of the ratio of one eight times as large
(docs/dev/measurements.md)."""

_WRITTEN_BYTES = 1 << 16
"""Bytes that are handed to a file together: Arrow writes each buffer alone, and a block has one or
more for each column."""

BLOCK_TOLERANCE = 1.1
"""How much larger than the others a block of rows of very different sizes may be."""

PLAIN_BLOCK_BYTES = 4 << 20
"""Bytes of a block that is stored as it is: samples are read in place, so a block costs only its
metadata."""


@dataclass(frozen=True)
class Compression:
    """How the buffers of a block are compressed: `none`, `lz4`, `zstd` or `zstd:LEVEL`."""

    name: str
    level: int | None = None

    @classmethod
    def parse(cls, text: str) -> Compression:
        """Read `none`, `lz4`, `zstd` or `zstd:LEVEL`. Raises UsageError."""
        name, _, level = text.partition(":")
        if text in ("none", "lz4", "zstd"):
            return cls(text, 3 if text == "zstd" else None)
        if name == "zstd" and level.isdecimal() and 1 <= int(level) <= 22:
            return cls(name, int(level))
        raise UsageError(
            f"compression {text!r} is not known; use none, lz4, zstd or zstd:LEVEL with a level of "
            "1 to 22"
        )

    def __str__(self) -> str:
        return f"{self.name}:{self.level}" if self.level else self.name

    @property
    def block_bytes(self) -> int:
        """The uncompressed size at which a block is written out."""
        return PLAIN_BLOCK_BYTES if self.name == "none" else COMPRESSED_BLOCK_BYTES

    def codec(self) -> pa.Codec | None:
        """Return the Arrow codec, None for no compression."""
        if self.name == "none":
            return None
        return pa.Codec("zstd", self.level) if self.name == "zstd" else pa.Codec("lz4")


def shard_schema(layout: Layout, split: str, shard: int) -> pa.Schema:
    """Return the Arrow schema of one shard, with the metadata that makes it readable on its own."""
    info = {
        "format_version": SHARD_VERSION,
        "kind": layout.kind,
        "split": split,
        "shard": shard,
        "fields": layout.fields(),
    }
    metadata = {INFO_KEY: json.dumps(info, sort_keys=True)}
    features = layout.huggingface_features()
    if features is not None:
        metadata[HUGGINGFACE_KEY] = json.dumps({"info": {"features": features}})
    return layout.columns.with_metadata(metadata)


def block_checksum(batch: pa.RecordBatch) -> str:
    """Return the XXH3-64 of a block's uncompressed column buffers, as 16 hex digits.

    For every buffer, in the order of the Arrow IPC record batch message, its length as a 64-bit
    little-endian number and then its bytes; a buffer that is left out has length 0.
    """
    digest = xxhash.xxh3_64()
    for column in batch.columns:
        for buffer in column.buffers():
            size = 0 if buffer is None else buffer.size
            digest.update(size.to_bytes(8, "little"))
            if size:
                digest.update(buffer)
    return digest.hexdigest()


def is_intact(batch: pa.RecordBatch, metadata: dict[bytes, bytes]) -> bool:
    """Return whether the bytes of a block, all of its columns, are those that were written."""
    return metadata.get(CHECKSUM_KEY) == block_checksum(batch).encode()


def check_intact(batch: pa.RecordBatch, metadata: dict[bytes, bytes], where: str) -> None:
    """Raise DamageError for a block that is not: `where` names it."""
    if not is_intact(batch, metadata):
        raise DamageError(f"{where}: damaged, its checksum does not match; {VERIFY_ADVICE}")


@dataclass(frozen=True)
class ShardFacts:
    """What is known about a shard once it is written."""

    rows: int
    bytes: int
    raw_bytes: int
    sha256: str
    block_rows: Sequence[int]


class ShardWriter:
    """Writes samples into one shard, a block at a time. Memory is that of one block, whatever the
    shard's size.

    `columns` of the schema are filled from the values of each sample in the schema's order. A block
    is written when it has the bytes of one; or, where `blocks` are given, when it has as many rows
    as the next of these. `raw_bytes` are those of all blocks so far before compression.
    """

    def __init__(
        self,
        sink: HashingFile | pa.NativeFile,
        schema: pa.Schema,
        compression: Compression,
        blocks: Sequence[int] | None = None,
    ) -> None:
        self._schema = schema
        self._blocks = None if blocks is None else deque(blocks)
        self._block_bytes = compression.block_bytes
        # Workers are the parallelism; threads inside each would only fight for the same cores.
        options = pa.ipc.IpcWriteOptions(compression=compression.codec(), use_threads=False)
        self.sink = sink
        file = sink if isinstance(sink, pa.NativeFile) else pa.PythonFile(sink, mode="w")
        self._buffered = pa.BufferedOutputStream(file, _WRITTEN_BYTES)
        self._writer = pa.ipc.new_file(self._buffered, schema, options=options)
        self._pending: list[pa.RecordBatch | list[tuple[Any, ...]]] = []
        self._pending_bytes = 0
        self.raw_bytes = 0
        self._block_rows: list[int] = []

    def add(self, values: tuple[Any, ...], size: int) -> None:
        """Append one sample: `values` in the schema's order, `size` its approximate bytes."""
        if (
            self._blocks is None
            and self._pending
            and self._pending_bytes + size > self._block_bytes
        ):
            self._write_block()
        if not self._pending or not isinstance(self._pending[-1], list):
            self._pending.append([])
        self._pending[-1].append(values)
        self._pending_bytes += size
        if self.fills_a_block(size) if self._blocks is None else self._rows_of_block():
            self._write_block()

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Append rows that are in Arrow's memory already, with the columns of the schema."""
        if not batch.num_rows:
            return  # a block has rows
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        while (rows := self._rows_of_block()) is not None:
            together = self._taken()
            rows = rows or _rows_of_block(together, self._block_bytes)
            self._write(normalized(together.slice(0, rows)))
            if rest := together.slice(rows):
                self._pending, self._pending_bytes = [rest], rest.nbytes

    def _rows_of_block(self) -> int | None:
        """Return how many rows the next block has, 0 if their bytes decide; None if not all of them
        are there."""
        if self._blocks is None:
            return 0 if self._pending_bytes >= self._block_bytes else None
        there = self._blocks and sum(map(len, self._pending)) >= self._blocks[0]
        return self._blocks.popleft() if there else None

    def add_block(self, batch: pa.RecordBatch) -> None:
        """Write rows as a block of their own, which follows those that were added before. It has
        the columns of the schema."""
        assert not self._pending, "blocks come one after the other"
        self._write(batch)

    def fills_a_block(self, size: int) -> bool:
        """Return whether a sample of this size gets its own block, which `add` writes at once."""
        return size >= self._block_bytes

    def finish(self) -> None:
        """Write the last block and the footer."""
        if self._pending:
            self._write_block()
        self._writer.close()
        self._buffered.detach()

    @property
    def facts(self) -> ShardFacts:
        """What is known of the file so far: complete once it is closed."""
        rows, written = tuple(self._block_rows), self.sink.facts
        return ShardFacts(sum(rows), written.bytes, self.raw_bytes, written.sha256, rows)

    def _write_block(self) -> None:
        alone = len(self._pending) == 1 and isinstance(self._pending[0], list)
        together = self._taken()
        self._write(together if alone else normalized(together))

    def _taken(self) -> pa.RecordBatch:
        """Return the rows that have come as one batch, and forget them."""
        made = self._made_of([part for part in self._pending if isinstance(part, list)])
        parts = [next(made) if isinstance(part, list) else part for part in self._pending]
        self._pending, self._pending_bytes = [], 0
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def _made_of(self, parts: list[list[tuple[Any, ...]]]) -> Iterator[pa.RecordBatch]:
        """Yield lists of rows as batches. They are made together: many small ones would take
        long."""
        if not parts:
            return
        columns = zip(*chain.from_iterable(parts), strict=True)
        arrays = [
            _column(list(values), field.type)
            for values, field in zip(columns, self._schema, strict=True)
        ]
        together, first = pa.record_batch(arrays, schema=self._schema), 0
        for part in parts:
            yield together.slice(first, len(part))
            first += len(part)

    def _write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch, custom_metadata={CHECKSUM_KEY: block_checksum(batch)})
        self._buffered.flush()  # `tell` of the file counts the block
        self._block_rows.append(batch.num_rows)
        self.raw_bytes += batch.nbytes


@contextmanager
def new_shard(
    root: Path,
    job: str,
    layout: Layout,
    split: str,
    number: int,
    compression: Compression,
    blocks: Sequence[int] | None = None,
) -> Iterator[ShardWriter]:
    """Yield what writes a shard of the dataset at `root`, which is there when the block ends without
    an error, by its `facts`. `job` is the id of what writes it."""
    unfinished, path = f"{shard_name(split, number)}.{job}", partial(path_of_shard, split, number)
    with replacing(
        root / DATA / unfinished, StreamedFile, lambda sha256: root / path(sha256)
    ) as sink:
        writer = ShardWriter(sink, shard_schema(layout, split, number), compression, blocks)
        yield writer
        writer.finish()


def _rows_of_block(batch: pa.RecordBatch, block_bytes: int) -> int:
    """Return how many of the first rows make a block: as many as fit, and one at least."""
    rows: int = max(1, min(batch.num_rows, batch.num_rows * block_bytes // batch.nbytes))
    while rows > 1 and batch.slice(0, rows).nbytes > block_bytes * BLOCK_TOLERANCE:
        rows = max(1, rows * 3 // 4)
    return rows


def normalized(*batches: pa.RecordBatch) -> pa.RecordBatch:
    """Return batches as one, with the very buffers that a reader of the file will see, and nothing
    in them but their rows."""
    return pa.ipc.read_record_batch(exactly(*batches).serialize(), batches[0].schema)


def exactly(*batches: pa.RecordBatch) -> pa.RecordBatch:
    """Return a copy of batches as one, whose buffers end with their own rows.

    A slice has the buffers of all rows. Arrow's writer cuts them at multiples of 64 bytes: some of
    what comes next would be in the file, and the file would not be that of the same rows made one
    by one.
    """
    return pa.concat_batches(batches)


def _column(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Build one column of a block. Images come as uint8 arrays (raw), or as pairs or dicts of bytes
    and path (encoded)."""
    if isinstance(type_, pa.FixedShapeTensorType):
        count, dtype = type_.storage_type.list_size, dtype_of(type_.value_type)
        pixels = np.concatenate(
            [np.zeros(count, dtype) if value is None else value.reshape(-1) for value in values]
        )
        is_missing = [value is None for value in values]
        missing = pa.array(is_missing) if any(is_missing) else None
        numbers = pa.array(pixels) if pixels.dtype == bool else column_of(pixels)
        storage = pa.FixedSizeListArray.from_arrays(numbers, count, mask=missing)
        return pa.ExtensionArray.from_storage(type_, storage)
    if type_.equals(ENCODED_IMAGE):
        pairs = [
            (None, None) if v is None else (v["bytes"], v["path"]) if isinstance(v, dict) else v
            for v in values
        ]
        encoded, paths = zip(*pairs, strict=True)
        children = [pa.array(encoded, pa.binary()), pa.array(paths, pa.string())]
        missing = pa.array([value is None for value in values]) if None in values else None
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=missing)
    return pa.array(values, type_)


Opener = Callable[[Path], pa.NativeFile]
"""A way to open a file of this machine."""


def map_resident_file(path: Path) -> pa.NativeFile:
    """As `map_file`, for a file of a dataset that fits in memory: the system reads ahead."""
    return map_file(path, large_pages=True)


def read_file(path: Path) -> pa.NativeFile:
    """Open a file whose blocks are read when they are requested."""
    check_ordinary(path)
    return pa.OSFile(str(path))


def load_file(path: Path) -> pa.NativeFile:
    """Read a whole file into memory."""
    with read_file(path) as file:
        return pa.BufferReader(file.read_buffer())


class BlockFile:
    """The blocks of one Arrow file, unchecked: the caller must check their values before using
    them.

    `open_file` opens it, `shown` is its location as messages have it. `fields` are the numbers of
    the columns to read, None for all. Raises DatasetError if the file is missing or is not an Arrow
    IPC file.
    """

    def __init__(
        self,
        shown: str,
        open_file: Callable[[], pa.NativeFile],
        fields: Iterable[int] | None = None,
    ) -> None:
        self.shown = shown
        """The location of the file, as it is printed."""
        try:
            self._file = open_file()
            # Now, since only one thread has the file: it has one position for all.
            self.contents = (
                self._file.read_buffer()
                if isinstance(self._file, pa.BufferReader)
                else pa.py_buffer(b"")
            )
            """All bytes of a file that is mapped or loaded; none of one that is read when its
            blocks are requested."""
            # The callers have their own threads; Arrow's would only compete for the same cores.
            options = pa.ipc.IpcReadOptions(
                use_threads=False, included_fields=None if fields is None else list(fields)
            )
            self._reader = pa.ipc.open_file(self._file, options=options)
        except FileNotFoundError:
            raise DatasetError(
                f"{self.shown}: no such shard; `shardctl repair` rebuilds it"
            ) from None
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._fault("not a readable Arrow file", error) from error
        self.schema: pa.Schema = self._reader.schema
        self.bytes = int(self._file.size())
        """The size of the file in bytes."""

    @staticmethod
    def of(folder: Folder, name: str, fields: Iterable[int] | None = None) -> BlockFile:
        """Open a file of a folder, wherever that is."""
        return BlockFile(folder.shown(name), partial(folder.open, name), fields)

    @staticmethod
    def at(path: Path, opener: Opener, fields: Iterable[int] | None = None) -> BlockFile:
        """Open a file of this machine in one of the ways above."""
        return BlockFile(printable(path), partial(opener, path), fields)

    def __len__(self) -> int:
        """Return the number of blocks."""
        return int(self._reader.num_record_batches)

    def fetch(self, index: int) -> StoredBlock:
        """Return block `index` with its metadata, unchecked. Raises DatasetError if Arrow cannot
        make it out."""
        try:
            batch, metadata = self._reader.get_batch_with_custom_metadata(index)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise self.unreadable(index, error) from error
        return batch, dict(metadata or {})

    def checked(self, index: int) -> StoredBlock:
        """Return block `index` with its metadata. None of its values leads outside of its buffers.
        Raises DatasetError."""
        batch, metadata = self.fetch(index)
        try:
            batch.validate(full=True)
        except (pa.ArrowException, ValueError) as error:
            raise self.unreadable(index, error) from error
        return batch, metadata

    def unreadable(self, index: int, error: BaseException | str) -> DatasetError:
        """Return the error for a block that cannot be read."""
        return self._fault(f"block {index} cannot be read", error)

    def _fault(self, what: str, error: BaseException | str) -> DatasetError:
        number = getattr(error, "errno", None)
        if number in NO_DESCRIPTORS:
            return DatasetError(
                f"{self.shown}: cannot be read ({os.strerror(number)}); {MORE_FILES}"
            )
        why = (
            error
            if isinstance(error, str)
            else getattr(error, "strerror", None) or first_line(error)
        )
        kind = DamageError if isinstance(error, str) or is_of_bytes(error) else DatasetError
        return kind(f"{self.shown}: {what} ({why})")


def once_more(ask: Callable[[], T], forget: Callable[[], object]) -> T:
    """Return what `ask` returns. Where that is no readable dataset, what is kept of it is forgotten
    and asked for once more, unless `forget` returns False: a proxy may have sent it."""
    try:
        return ask()
    except DatasetError:
        if forget() is False:
            raise
    return ask()


class ShardReader(BlockFile):
    """Reads one shard, with or without its manifest. One of this machine is mapped; uncompressed
    blocks are never copied.

    What a store sends, and is not as it was written, is asked for once more: a proxy may have sent
    it. Raises DatasetError if the file is missing, is not an Arrow IPC file or was not written by
    shardctl.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        self.folder, self.name = folder, name
        once_more(self._open, lambda: folder.forget(name))

    def _open(self) -> None:
        super().__init__(self.folder.shown(self.name), partial(self.folder.open, self.name))
        self.info = self._read_info()

    def _read_info(self) -> dict[str, Any]:
        shown = self.shown
        try:
            info = dict(json.loads((self.schema.metadata or {})[INFO_KEY]))
            version, names = info["format_version"], field_names(self.schema)
        except (KeyError, TypeError, ValueError, RecursionError):
            raise DatasetError(f"{shown}: an Arrow file, but not one of shardctl's") from None
        refuse_other_version(version, None, shown)
        try:
            columns = self.schema.remove_metadata()
            self.layout = Layout.from_json(info["kind"], info["fields"], columns)
            number = info["shard"]
            fits = "key" in names and type(number) is int and type(info["split"]) is str
            if not fits or number < 0:
                raise ValueError("it has a key, a split and a number")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DatasetError(
                f"{shown}: not as `shardctl help format` describes a shard ({error!r})"
            ) from error
        return info

    def block(self, index: int) -> pa.RecordBatch:
        """Return block `index`. Raises DatasetError if it cannot be read."""
        return self.checked(index)[0]

    def stored_checksum(self, index: int) -> str | None:
        """Return the checksum that block `index` was written with."""
        metadata = self.checked(index)[1]
        checksum = metadata.get(CHECKSUM_KEY)
        return checksum.decode("ascii", "replace") if checksum else None

    def blocks(self) -> Iterator[pa.RecordBatch]:
        """Yield every block in order."""
        for index in range(len(self)):
            yield self.block(index)

    def checked_block(self, index: int) -> tuple[pa.RecordBatch, bool]:
        """Return block `index`, and whether its bytes are those that were written. Raises
        DatasetError as `block` does."""
        with suppress(DatasetError):
            batch, metadata = self.checked(index)
            if is_intact(batch, metadata):
                return batch, True
        if self.folder.forget(self.name):
            self._open()
        batch, metadata = self.checked(index)
        return batch, is_intact(batch, metadata)


def field_names(schema: pa.Schema) -> list[str]:
    """Return the names of the fields. Raises ValueError if one, of a field inside a field too, is
    not UTF-8."""
    for type_ in schema.types:
        _read_names(type_)
    return list(schema.names)


def _read_names(type_: pa.DataType) -> None:
    """Have Arrow decode the names inside a type: it does so only where they are used, far away from
    any reader."""
    if isinstance(type_, pa.StructType):
        for place in range(type_.num_fields):
            _read_names(type_.field(place).type)
            type_.field(place).name  # noqa: B018 - read for its fault
    elif isinstance(type_, pa.BaseExtensionType):
        _read_names(type_.storage_type)
    elif hasattr(type_, "value_type"):
        _read_names(type_.value_type)
