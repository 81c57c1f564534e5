"""The shards of a dataset, opened when they are first needed: which block holds a sample, and is
its file still the same."""

from __future__ import annotations

import hashlib
import os
import threading
import time
import weakref
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardctl.errors import DamageError, DatasetError, UsageError
from shardctl.format.arrays import Bools, Numbers, edges_of
from shardctl.format.dataset_folder import DatasetFolder, dataset_in
from shardctl.format.layout import Layout
from shardctl.format.manifest import Generation, Manifest, places_of
from shardctl.format.names import MANIFEST, SHARDS, content_digits
from shardctl.format.shard import (
    VERIFY_ADVICE,
    BlockFile,
    Fields,
    Opener,
    StoredBlock,
    load_file,
    map_resident_file,
    read_file,
)
from shardctl.format.tables import ShardTable
from shardctl.loader.blocks.stages import NETWORK_COUNTS, Stages
from shardctl.system.folders import LocalFolder
from shardctl.system.machine import allow_open_files, memory_bytes
from shardctl.system.mmap import map_file
from shardctl.system.processes.fork import keep_renewed
from shardctl.system.text import printable

if TYPE_CHECKING:
    from shardctl.system.fetching import Ahead


REPLACED_SECONDS = 60.0
"""How long a dataset is opened again that is replaced between the reading of two of its files: file
servers show what was before for so long."""

MAPPED_AT_A_TIME = 16_384
"""Shards that are mapped at a time in all datasets of a process, which takes no descriptors; Linux
allows 65,530 mappings."""

FILES_AT_A_TIME = 1024
"""Shards that have a descriptor at a time in all datasets of a process, where the system allows so
many."""

SPARE_FILES = 48
"""Descriptors of which two thirds are left to the rest of the program where shards are opened."""


FileIdentity = tuple[int, int, int]


@dataclass
class OpenShard:
    """A shard that is open, the path of its file, what that was then, (inode, bytes, time of
    change), and when it was `checked` and `used` last."""

    file: BlockFile
    path: Path
    identity: FileIdentity
    checked: float = field(default_factory=time.monotonic)
    used: float = 0.0


_Key = tuple[int, Opener, Fields]
"""A shard, how it is opened, and for which fields."""


_OTHER_COLUMNS = "its columns are not those of the dataset"

_NOTHING = nullcontext()


class Shards:
    """The shards of one split, or of all. Threads may share it. They are local files, which are
    read where they are.

    `starts` (blocks + 1,) int64 says at which sample of the split each block begins.
    """

    def __init__(
        self, folder: DatasetFolder, split: str | None = None, table: ShardTable | None = None
    ) -> None:
        """`table` is that of shards.arrow, where it was opened before."""
        root = folder.root.absolute()  # the current folder may change later
        root = root.resolve() if ".." in root.parts else root
        self.folder = replace(folder, root=root)
        self.root, self.split = root, split
        self.manifest = Manifest.load(self.folder)
        table = table or ShardTable(self.folder)
        if sum(facts.shards for facts in self.manifest.splits) != len(table):
            raise DatasetError(
                f"{self.shown}: {MANIFEST} and {SHARDS} are not of the same dataset; "
                f"{VERIFY_ADVICE}"
            )
        self._take(table, self.manifest.shards_of(split, self.shown))

    def _take(self, table: ShardTable, chosen: range) -> None:
        """Begin with these of the shards of a table."""
        self._table = table
        first_block = edges_of(table.block_counts)
        blocks = slice(first_block[chosen.start], first_block[chosen.stop])
        rows = table.block_rows[blocks]
        self.starts: Numbers = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(rows, dtype=np.int64, out=self.starts[1:])  # in place: there may be ten million
        self._first_shard = chosen.start
        self._first_block: Numbers = (
            first_block[chosen.start : chosen.stop + 1] - first_block[chosen.start]
        )
        self.files: dict[_Key, OpenShard] = {}
        """Those that are open and have a descriptor."""
        self.mapped: dict[_Key, OpenShard] = {}
        """Those that are open and have none."""
        self.renew()
        keep_renewed(self)
        _ALIVE.add(weakref.ref(self, _ALIVE.discard))

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(self.starts[-1])

    def in_split(self, split: str) -> Shards:
        """Return the shards of a split of the same generation. Raises UsageError, DatasetError."""
        return open_same(self.root, split, self.manifest.generation)

    def __reduce__(self) -> tuple[Any, ...]:
        """Open the same shards when it is unpickled. Raises DatasetError there if they are gone
        meanwhile."""
        return open_same, (self.root, self.split, self.manifest.generation)

    def renew(self) -> None:
        """Take a fresh lock: in a forked child the old one may be held by a thread that is not
        there."""
        self.opening = threading.Lock()

    @cached_property
    def layout(self) -> Layout:
        """What the fields are, as the first shard has them."""
        if not len(self._first_block) - 1:
            raise DatasetError(f"{self.shown}: no shard in split {self.split!r}")
        schema = self.open(0, map_file).file.schema
        if tuple((field.name, str(field.type)) for field in schema) != self.manifest.schema:
            raise self._other(self.name_of(0), _OTHER_COLUMNS)
        try:
            return self.manifest.layout(schema.remove_metadata())
        except (ValueError, TypeError) as error:
            raise self._other(
                self.folder.shown(MANIFEST), f"its fields are not those of the columns ({error})"
            ) from None

    @cached_property
    def plain_images(self) -> Bools | None:
        """Which of the main images are known to be plain JPEG, (samples,); None if that is not
        recorded."""
        jpegs = self._table.jpegs
        first = int(self._table.first[self._first_shard])
        return None if jpegs is None else jpegs.only(first, len(self))

    @property
    def _chosen(self) -> slice:
        """The rows of the table that these shards are."""
        return slice(self._first_shard, self._first_shard + self.count)

    @property
    def bytes_per_sample(self) -> int:
        """The bytes of a sample before compression, on average."""
        return int(self._table.raw_sizes[self._chosen].sum()) // max(1, len(self))

    @cached_property
    def content(self) -> str:
        """A digest of the samples in their order, and of their blocks: that of every copy, whatever
        it was made of."""
        digest = hashlib.sha256(self.starts.data)
        digest.update("".join(self._table.digests(self._chosen)).encode())
        return digest.hexdigest()[:16]

    def rows_and_digests(self) -> Iterator[tuple[int, str]]:
        """Return the number of samples and the SHA-256 of each shard."""
        rows = np.diff(self.starts[self._first_block]).tolist()
        return zip(rows, self._table.digests(self._chosen), strict=True)

    is_local = True
    """Whether a single sample can be read alone, without the rest of its block."""

    @property
    def location(self) -> str:
        """The folder of the dataset, or its URL."""
        return str(self.root)

    @property
    def shown(self) -> str:
        """The location for messages."""
        return printable(self.location)

    def name_of(self, shard: int) -> str:
        """Return the name of a shard of this split for messages: its path, or its URL."""
        return printable(self._path(shard))

    def _path(self, shard: int) -> str:
        path = self._table.paths[self._first_shard + shard]
        return os.path.join(self.root, self.folder.places.of(path))

    def shard_of(self, blocks: Numbers) -> Numbers:
        """Return the shard that each block is in, (n,)."""
        return np.searchsorted(self._first_block, blocks, side="right") - 1

    def place_of(self, block: int) -> tuple[int, int]:
        """Return the shard of a block and the block's number in it."""
        # a fifth of the time of searchsorted for one number
        shard = bisect_right(self._first_block, block) - 1
        return shard, block - int(self._first_block[shard])

    def split_of(self, sample: int) -> str:
        """Return the name of the split that a sample is in."""
        if self.split is not None:
            return self.split
        shard, _ = self.place_of(bisect_right(self.starts, sample) - 1)
        last_shards = np.cumsum([facts.shards for facts in self.manifest.splits])
        return self.manifest.splits[int(np.searchsorted(last_shards, shard, side="right"))].name

    @property
    def count(self) -> int:
        """The number of shards."""
        return len(self._first_block) - 1

    def blocks_of(self, shard: int) -> range:
        """Return the blocks of a shard."""
        return range(int(self._first_block[shard]), int(self._first_block[shard + 1]))

    def rows_of(self, block: int) -> int:
        """Return the number of samples of a block."""
        return int(self.starts[block + 1] - self.starts[block])

    def where(self, block: int) -> str:
        """Name a block for a message."""
        shard, number = self.place_of(block)
        return f"{self.name_of(shard)}, block {number}"

    def wanted(self, blocks: list[int]) -> AbstractContextManager[None]:
        """Make ready to read these blocks, all at the same time, inside of the `with` block:
        nothing to do for local files."""
        return _NOTHING

    def read(self, block: int, fields: Fields, stages: Stages) -> StoredBlock:
        """Read a block, or some columns of it, into memory. Raises DatasetError."""
        shard, number = self.place_of(block)
        return self.open(shard, read_file, fields).file.fetch(number)

    def glance(self, block: int, fields: tuple[int, ...]) -> pa.RecordBatch:
        """Read some columns of a block for a message, whatever has become of its file. Raises
        DatasetError."""
        shard, number = self.place_of(block)
        return BlockFile.at(Path(self._path(shard)), read_file, fields).fetch(number)[0]

    def settle(self, blocks: list[int], stages: Stages) -> tuple[list[int], dict[int, DamageError]]:
        """Put blocks where `open` shows them. Return those that must be read into memory, and what
        is wrong with others."""
        return [], {}

    @property
    def has_places(self) -> bool:
        """Whether samples can be read in the places where they lie."""
        return True

    def opener(self, preload: bool) -> Opener:
        """Return how files are opened whose samples are read in place."""
        fit_in_memory = int(self._table.sizes[self._chosen].sum()) <= memory_bytes() // 2
        return load_file if preload else map_resident_file if fit_in_memory else map_file

    def ahead(self, keeps: bool) -> Ahead | None:
        """Return what fetches blocks before they are needed, by this process (`keeps`) or others;
        None where they are local."""
        return None

    def missing(self, blocks: Numbers, keeps: bool) -> Numbers:
        """Return those of these blocks that must be fetched, and will be where `ahead(keeps)` is to
        fetch them."""
        return blocks[:0]

    def in_turn(self, samples: Numbers | None) -> AbstractContextManager[None]:
        """Make ready to read these samples in this order (None: all) inside of the `with` block:
        nothing for local files."""
        return _NOTHING

    def blocks_in_turn(self, samples: Numbers) -> Numbers:
        """Return the blocks of these samples in the order of their first use."""
        distinct, first = np.unique(
            np.searchsorted(self.starts, samples, side="right") - 1, return_index=True
        )
        return distinct[np.argsort(first)]

    def counts(self) -> dict[str, int]:
        """Return how many requests, bytes and blocks came over a network, and how many blocks from
        a cache."""
        return dict.fromkeys(NETWORK_COUNTS, 0)

    def fetch_files(self, names: Sequence[str]) -> Path:
        """Return the local folder where these files of the dataset lie, which are neither tables
        nor shards."""
        return self.root / self.folder.places.tables

    def open(self, shard: int, opener: Opener, fields: Fields = None) -> OpenShard:
        """Open a shard, or return it where it is open. Raises DatasetError for one that is not what
        the manifest says."""
        wanted, there = (shard, opener, fields), self.files if opener is read_file else self.mapped
        found = there.get(wanted)
        if found is None:
            _make_room(opener is read_file)
            found = there[wanted] = self._open_now(shard, opener, fields)
        found.used = time.monotonic()
        return found

    def _open_now(self, shard: int, opener: Opener, fields: Fields) -> OpenShard:
        path = Path(self._path(shard))
        try:
            file = BlockFile.at(path, opener, fields)
        except DatasetError as error:
            if (status := identity(path)) is None or isinstance(error, DamageError):
                self._check_size(shard, status)
            raise
        status = self._check_size(shard, identity(path))
        self._check_content(shard, file, fields)
        return OpenShard(file, path, status)

    def _check_size(self, shard: int, status: FileIdentity | None) -> FileIdentity:
        """Return the identity of the file of a shard. Raises DatasetError where there is none, or
        one of another size."""
        size = int(self._table.sizes[self._first_shard + shard])
        if status is None:
            raise self._gone(self.name_of(shard), "no such shard")
        if status[1] != size:
            what = f"{status[1]} bytes where the dataset has {size}"
            raise self._other(self.name_of(shard), what)
        return status

    def _gone(self, name: str, what: str) -> DatasetError:
        """Return the error for a shard that is not there: its generation is gone, or the dataset is
        damaged."""
        number, places = self.manifest.generation.number, None
        with suppress(DatasetError):
            places = places_of(Manifest.load(LocalFolder(self.root)), number, self.shown)
        is_there = places == self.folder.places
        return self._other(name, what) if is_there else _generation_gone(self.root, number)

    def _check_content(self, shard: int, file: BlockFile, fields: Fields) -> None:
        """Raise DatasetError for a file that has other blocks or columns than the dataset says."""
        if len(file) != self._first_block[shard + 1] - self._first_block[shard]:
            raise self._other(self.name_of(shard), "its blocks are not those of the dataset")
        if not shard:
            return  # the others are compared with it
        columns = self.layout.columns
        if fields is not None:
            columns = pa.schema([columns.field(number) for number in fields])
        if not file.schema.equals(columns):
            raise self._other(self.name_of(shard), _OTHER_COLUMNS)

    def check_unchanged(self, shard: int, opened: OpenShard, since: float) -> None:
        """Raise DatasetError for a file that is not what it was when it was opened, unless that was
        made sure `since`."""
        if opened.checked >= since:
            return
        opened.checked = time.monotonic()
        found = identity(self._path(shard))
        if found is None:
            raise self._gone(self.name_of(shard), "gone while it was read")
        # a repair may have put the same bytes there again
        is_new = found[0] != opened.identity[0] and found[1] == opened.identity[1]
        is_same = is_new and content_digits(self._path(shard)) != ""
        if found != opened.identity and not is_same:
            raise self._other(self.name_of(shard), "truncated or rewritten while it was read")

    def _other(self, name: str, what: str) -> DatasetError:
        return DatasetError(f"{name}: {what}; {VERIFY_ADVICE}")


def identity(path: str | Path) -> FileIdentity | None:
    """Return what tells one file at this path from the next; None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - hundreds of times per batch, and a Path costs more than the call
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def open_shards(path: Path, split: str | None) -> Shards:
    """Open a split of the dataset at a path, and read its columns from the first shard. If it is
    replaced meanwhile, open the new one. Raises DatasetError, UsageError."""
    until = time.monotonic() + REPLACED_SECONDS
    while True:
        here = dataset_in(path)
        try:
            shards = Shards(here, split)
            _ = shards.layout  # kept
            return shards
        except (DatasetError, UsageError):
            if dataset_in(path) == here or time.monotonic() > until:
                raise


def open_same(root: Path, split: str | None, generation: Generation) -> Shards:
    """Open a split of a generation of the dataset in a folder. Raises DatasetError if it is
    gone."""
    if identity(root / MANIFEST) is None:
        raise _generation_gone(root, generation.number)
    manifest = Manifest.load(LocalFolder(root))
    number = generation.number
    if not any(_is_same(each, generation) for each in (*manifest.kept, manifest.generation)):
        raise _generation_gone(root, number)
    return Shards(DatasetFolder(root, "", places_of(manifest, number, "")), split)


def _is_same(one: Generation, other: Generation) -> bool:
    """Return whether these are one generation, which may have got its folder, or have lost it."""
    folders = {one.path, other.path} - {""}
    return (one.number, one.created, len(folders) < 2) == (other.number, other.created, True)


def _generation_gone(root: Path, number: int) -> DatasetError:
    """Return the error for a generation that is no longer in a folder."""
    if identity(root / MANIFEST) is None:
        what = "moved, renamed or removed while it was read; open it where it is now"
        return DatasetError(f"{printable(root)}: {what}")
    return DatasetError(
        f"{printable(root)}: generation {number} was swept while it was read; open the dataset again, "
        "or keep more generations (--keep-generations)"
    )


def _make_room(descriptors: bool) -> None:
    """Before a shard is opened: where too many are open in this process, close a quarter, those
    that were used longest ago.

    Shards of all datasets count, those with descriptors and those without by themselves. One that a
    thread is reading is closed when it has done so.
    """
    alive = [shards for shards in (found() for found in _ALIVE.copy()) if shards is not None]
    every = [shards.files if descriptors else shards.mapped for shards in alive]
    count = sum(map(len, every))
    if count < MAPPED_AT_A_TIME and (
        not descriptors or (count < FILES_AT_A_TIME and _DESCRIPTORS.take())
    ):
        return
    opened = [
        (each.used, there, wanted) for there in every for wanted, each in there.copy().items()
    ]
    for _, there, wanted in sorted(opened, key=itemgetter(0))[: 1 + count // 4]:
        there.pop(wanted, None)


class _Descriptors:
    """The descriptors that shards may take: `allowed` more before the next look, as to count them
    takes long."""

    def __init__(self) -> None:
        self.allowed = 0
        self.renew()
        keep_renewed(self)

    def renew(self) -> None:
        self.lock = threading.Lock()

    def take(self) -> bool:
        """Return whether this process may open another file, and leaves some to the rest of the
        program."""
        with self.lock:
            if not self.allowed and allow_open_files(SPARE_FILES):
                self.allowed = SPARE_FILES // 3
            self.allowed -= (there := self.allowed > 0)
            return there


_DESCRIPTORS = _Descriptors()

_ALIVE: set[weakref.ref[Shards]] = set()
"""Not a WeakSet: threads may add to this one while others look through it."""
