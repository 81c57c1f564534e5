"""What is found out about inputs before there is a plan, so that duplicates are known: hashes of files, of
pictures, and of texts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import Rejection, TypesDifferError, WorkerError
from shardctl.format.arrays import bytes_of
from shardctl.images.codecs.deep_gray import GrayRange
from shardctl.images.codecs.image import Opened, check, open_image, upright
from shardctl.images.codecs.measures import HASH_SIDE, phash
from shardctl.making.shards.inputs import NO_ANSWER, read_file, read_whole, requests_of
from shardctl.making.shards.job import Job
from shardctl.making.shards.planned import PlannedUnit
from shardctl.making.shards.prefetch import ReadRequest, take
from shardctl.making.shards.records import read_fitting, read_unit
from shardctl.making.shards.scan import Found, PrePlanTask
from shardctl.sources.files import changed
from shardctl.sources.formats import ColumnMisfit, Misfit, Parsed
from shardctl.sources.kinds import KINDS
from shardctl.system.files import naming_the_path
from shardctl.system.folders import LocalFolder
from shardctl.system.locations import is_stored
from shardctl.system.processes.worker_state import WorkerProgress
from shardctl.system.text import printable
from shardctl.transforms.base import Filter, Records, judge
from shardctl.transforms.duplicates.exact import HASHED, PIECE_BITS
from shardctl.transforms.duplicates.near import (
    PERMUTATIONS,
    shingles_of,
    signatures_of,
    sketches_of,
)
from shardctl.transforms.duplicates.pieces import Numbers, pieces_of
from shardctl.transforms.pipeline.batches import BatchPipeline, keyed, records_of_file
from shardctl.transforms.text.deduplicate import NEAR, Deduplicate

DIGEST_BYTES = 16
"""Bytes of a SHA-256 that are compared. It is no hash for speed: files could be made that have the
same one of those."""

SILENT = "no-answer"
"""The error of a file whose disk or server does not answer."""


class ListedFile(NamedTuple):
    """A file as it was listed: the path or the URL by which it is opened, its size in bytes, when
    it was changed last in ns."""

    opened: str
    size: int
    mtime_ns: int

    @property
    def requests(self) -> Sequence[ReadRequest]:
        """The object that it is, if it is on a store."""
        return (
            (ReadRequest(self.opened, self.size, self.mtime_ns, True),)
            if is_stored(self.opened)
            else ()
        )


@dataclass(frozen=True)
class ImageHashTask(PrePlanTask):
    """Work on some files: `what` is `bytes` (a hash of them), `decodes` (whether the image does) or
    `picture` (a hash of it).

    Images that a filter of the recipe rejects are not compared: what is kept for them would be
    rejected in the end.

    Found is {"hash": number} for each, {"hash": None} for one that cannot be compared, {"fault": …}
    as in scan.py.
    """

    files: tuple[ListedFile, ...]
    what: str
    max_pixels: int
    keep_truncated: bool
    filters: tuple[Filter, ...] = ()
    gray16: GrayRange | None = None

    def __len__(self) -> int:
        return len(self.files)

    def reads(self, number: int) -> Sequence[ReadRequest]:
        """Return the object that a file is."""
        return self.files[number].requests

    def examine(self, number: int, progress: WorkerProgress) -> dict[str, Any]:
        """Read a file and hash it. Raises Rejection, OSError."""
        data = _bytes_of(self.files[number])
        if self.what == "bytes":
            return {"hash": int.from_bytes(hashlib.sha256(data).digest()[:DIGEST_BYTES], "big")}
        progress.enter("decode")
        opened = open_image(data, self.max_pixels, self.keep_truncated, gray16=self.gray16)
        judge(self.filters, opened)
        return {"hash": _HASHES[self.what](opened)}


def _decodes(opened: Opened) -> int:
    check(opened)
    return 1


def _of_picture(opened: Opened) -> int | None:
    return phash(upright(opened, (HASH_SIDE, HASH_SIDE)))


_HASHES: dict[str, Callable[[Opened], int | None]] = {"decodes": _decodes, "picture": _of_picture}


def _bytes_of(file: ListedFile) -> bytes:
    """Return the bytes of a file. Raises Rejection if it is not what was listed, OSError."""
    try:
        if is_stored(file.opened):
            return take(file.opened, file.size, file.mtime_ns)
        data, status = read_file(file.opened, file.size)
    except OSError as error:
        if error.errno in NO_ANSWER:
            raise Rejection("read", SILENT, f"cannot be read ({error.strerror})") from error
        raise
    if status.st_mtime_ns != file.mtime_ns or len(data) != file.size:
        raise changed()
    return data


HASHES = "hashes"
"""The folder, in that of the job, of the files that workers write."""

SIGNED = np.dtype(
    [("rank", np.int64), ("size", np.int64), ("signature", np.uint32, (PERMUTATIONS,))]
)
"""A document by the rank of its record, how many values its sketch has, and its signature."""

HELD_BYTES = 4 << 20
"""Bytes of texts that are compared together."""

SIGNED_TEXTS = 1 << 13
"""Texts whose signatures are made together: those of short ones take a hundred times the memory of
the texts."""


@dataclass(frozen=True)
class TextHashTask(PrePlanTask):
    """Work on `count` units of a job's plan, from `first` on, for the batch step `step` of its
    recipe.

    Found is {"texts", "bytes", "segments"} of each unit: how many texts are compared, their bytes,
    and the rows that have been written by then, which may be those of earlier units; in the end
    once more what is left of these. A segment is where rows begin in the file of this `number`, how
    many they are, and where their sketches begin in a second file. Rows are of HASHED or SIGNED,
    and count records from the first one of the task on. The files may have more than the segments:
    what was read of a unit that could not be read to its end, or what a process wrote that was
    ended.
    """

    folder: str
    number: int
    step: int
    first: int
    count: int

    def __len__(self) -> int:
        return self.count

    @property
    def path(self) -> Path:
        """The file that the rows are written into."""
        return Path(self.folder, HASHES, str(self.number))

    @property
    def sketches_path(self) -> Path:
        """The file that sketches of documents are written into."""
        return Path(self.folder, HASHES, f"{self.number}.sketches")

    @cached_property
    def _units(self) -> list[PlannedUnit]:
        return list(_job(self.folder).units(self.first, self.count))

    def reads(self, number: int) -> Sequence[ReadRequest]:
        """Return the object that a unit is of."""
        return requests_of(_job(self.folder), self._units[number])

    def examine(self, number: int, progress: WorkerProgress) -> dict[str, Any]:
        """Read a unit, and write the hashes of its records.

        Raises Rejection, OSError, TypesDifferError, SourceGoneError, StorageError, WorkerError.
        """
        job, planned = _job(self.folder), self._units[number]
        if job.fields is None:
            return self._compare(number, _whole(job, planned), progress)
        try:
            read = read_unit(job, planned, planned.unit, None, xxhash.xxh3_64())
            return self._compare(number, _records_of(planned, read), progress)
        except Misfit as misfit:
            if job.recipe.typed_fields is None:
                raise TypesDifferError(f"{printable(planned.key())}: {misfit}") from misfit
            # of no record: reading them one by one would read the unit as many times
            if isinstance(misfit, ColumnMisfit):
                raise Rejection("decode", "other-type", str(misfit)) from misfit
        fitting = read_fitting(job, planned, None, lambda record, misfit: None)
        return self._compare(number, _records_of(planned, fitting), progress)

    def finish(self, found: Found) -> None:
        """Write what is held."""
        found.append({"texts": 0, "bytes": 0, "segments": self._written(self._held)})

    @cached_property
    def _held(self) -> _WaitingTexts:
        return _WaitingTexts()

    @cached_property
    def _ranks(self) -> Numbers:
        """The rank of the first record of each unit, from that of the task on, (count,)."""
        records = np.array([planned.unit.records for planned in self._units], np.int64)
        return np.cumsum(records) - records

    @cached_property
    def _step(self) -> Deduplicate:
        step = _job(self.folder).recipe.batch_transforms[self.step]
        assert isinstance(step, Deduplicate), "its place was looked up"
        return step

    def _compare(
        self, number: int, records: Iterator[Records], progress: WorkerProgress
    ) -> dict[str, Any]:
        """Take the texts of a unit's records; those of small units are held until there are more,
        which is much faster."""
        job, first = _job(self.folder), self._ranks[number] - self._units[number].unit.first
        before = BatchPipeline(
            job.recipe.batch_transforms[: self.step], job.folder, job.layout.roles.by_name
        )
        held, segments = _WaitingTexts(), []
        texts = size = 0
        for given in records:
            # Its time runs anew with each part of the unit: a compressed file is one unit, however
            # large it is.
            progress.begin(number, int(given.numbers[-1]), "transform")
            for made in before.apply(given, _ignore):
                here, numbers = _texts(made)
                held.add(here, numbers + first)
                texts += len(here)
            if held.bytes >= HELD_BYTES:
                size += held.bytes
                segments += self._written(held)
            progress.enter("read")
        size += held.bytes
        self._held.join(held)  # now that all of the unit could be read
        if self._held.bytes >= HELD_BYTES:
            try:
                segments += self._written(self._held)
            except MemoryError as error:  # most of these texts are of units that have been told of
                message = "there is too little memory to compare texts (deduplicate)"
                raise WorkerError(
                    f"{message}; use fewer --workers, or a higher --worker-memory"
                ) from error
        return {"texts": texts, "bytes": size, "segments": segments}

    def _written(self, held: _WaitingTexts) -> list[list[int]]:
        """Write the rows of texts that were held, and return the segments that they are."""
        if not held.ranks:
            return []
        return self._segments(*held.take())

    def _segments(self, texts: pa.Array, ranks: Numbers) -> list[list[int]]:
        """Write the rows of texts: fewer and fewer together where memory runs out. Raises
        MemoryError for one alone."""
        try:
            return self._segment(texts, ranks)
        except MemoryError:
            if len(ranks) == 1:
                raise
        half = len(ranks) // 2
        return self._segments(texts[:half], ranks[:half]) + self._segments(
            texts[half:], ranks[half:]
        )

    def _segment(self, texts: pa.Array, ranks: Numbers) -> list[list[int]]:
        rows, sketches = _size(self.path), _size(self.sketches_path)
        if self._step.method == NEAR:
            count = _write_signatures(self.path, self.sketches_path, texts, ranks)
        else:
            count = _write_hashes(self.path, texts, ranks, self._step.unit)
        return [[rows, count, sketches]] if count else []


class _WaitingTexts:
    """Texts that wait for being compared, and the ranks of their records: of so many `bytes`."""

    def __init__(self) -> None:
        self.texts: list[pa.Array] = []
        self.ranks: list[Numbers] = []
        self.bytes = 0

    def add(self, texts: pa.Array, ranks: Numbers) -> None:
        """Add some."""
        if len(ranks):
            self.texts.append(texts)
            self.ranks.append(ranks)
            self.bytes += len(bytes_of(texts).data)

    def join(self, other: _WaitingTexts) -> None:
        """Add those of another one."""
        self.texts += other.texts
        self.ranks += other.ranks
        self.bytes += other.bytes

    def take(self) -> tuple[pa.Array, Numbers]:
        """Return all of them, and hold none."""
        texts, ranks = pa.concat_arrays(self.texts), np.concatenate(self.ranks)
        self.texts, self.ranks, self.bytes = [], [], 0
        return texts, ranks


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _append(path: Path, data: bytes) -> None:
    """Append data. Raises StorageError: a full disk is no fault of the input."""
    with naming_the_path(path), open(path, "ab") as file:
        file.write(data)


@lru_cache(maxsize=1)
def _job(folder: str) -> Job:
    return Job.load(LocalFolder(Path(folder)))


def _ignore(record: int, rejection: Rejection) -> None:
    """A record that a step rejects is not compared: it becomes a reject later, too."""


def _whole(job: Job, planned: PlannedUnit) -> Iterator[Records]:
    """Yield the one record of a file. Raises Rejection, SourceGoneError."""
    fields = KINDS[job.recipe.kind].fields(
        read_whole(job, planned), planned.file.path, job.recipe.reading
    )
    yield records_of_file(planned.file_number, planned.key(), fields)


def _records_of(planned: PlannedUnit, read: Iterator[Parsed]) -> Iterator[Records]:
    """Yield the records of a unit as they are read."""
    for parsed in read:
        if len(parsed.numbers):
            batch = keyed(parsed.batch, planned.file.path, parsed.numbers)
            yield Records(planned.file_number, parsed.numbers, batch)


def _texts(records: Records) -> tuple[pa.Array, Numbers]:
    """Return the texts of records that have one, and the numbers of these."""
    texts = records.batch.column("text")
    if not texts.null_count:
        return texts, records.numbers
    return texts.drop_null(), records.numbers[texts.is_valid().to_numpy(zero_copy_only=False)]


def _write_hashes(path: Path, texts: pa.Array, ranks: Numbers, unit: str) -> int:
    """Write rows of HASHED for texts, or for their lines or paragraphs, and return how many."""
    pieces = pieces_of(texts, unit)
    rows = np.zeros(len(pieces), HASHED)
    hashes = pieces.hashes()
    rows["high"], rows["low"], rows["size"] = hashes[:, 0], hashes[:, 1], pieces.sizes
    rows["place"] = (ranks[pieces.row] << PIECE_BITS) + pieces.number
    _append(path, rows.tobytes())
    return len(rows)


def _write_signatures(path: Path, of_sketches: Path, texts: pa.Array, ranks: Numbers) -> int:
    """Write rows of SIGNED for texts, and their sketches, and return how many."""
    for begin in range(0, len(texts), SIGNED_TEXTS):
        here = texts[begin : begin + SIGNED_TEXTS]
        shingles, starts = shingles_of(here)
        sketches, sizes = sketches_of(shingles, starts)
        rows = np.zeros(len(here), SIGNED)
        rows["rank"], rows["size"] = ranks[begin : begin + SIGNED_TEXTS], sizes
        rows["signature"] = signatures_of(shingles, starts)
        _append(path, rows.tobytes())
        _append(of_sketches, sketches.tobytes())
    return len(texts)
