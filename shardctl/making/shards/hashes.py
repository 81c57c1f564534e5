"""What is found out about inputs before there is a plan, so that duplicates are known: hashes of files, of
pictures, and of texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import Rejection, TypesDifferError, WorkerError
from shardctl.format.arrays import Numbers, bytes_of
from shardctl.format.names import Json
from shardctl.images.codecs.deep_gray import GrayRange
from shardctl.images.codecs.image import check, open_image, upright
from shardctl.images.codecs.measures import HASH_SIDE, phash
from shardctl.making.shards.inputs import (
    NO_ANSWER,
    Found,
    PrePlanTask,
    ReadRequest,
    read_listed,
    read_whole,
    requests_of,
)
from shardctl.making.shards.job import PlannedUnit, job_in
from shardctl.making.shards.records import fields_of, read_fitting, read_unit
from shardctl.sources.formats import ColumnMisfit, Misfit, Parsed
from shardctl.system.files import naming_the_path
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
from shardctl.transforms.duplicates.pieces import pieces_of
from shardctl.transforms.pipeline.batches import BatchPipeline, keyed, records_of_file
from shardctl.transforms.text.deduplicate import NEAR, Deduplicate

DIGEST_BYTES = 16
"""Bytes of a SHA-256 that are compared. It is no hash for speed: files could be made that have the
same one of those."""

SILENT = "no-answer"
"""The error of a file whose disk or server does not answer."""


def hash_image(
    file: ReadRequest,
    progress: WorkerProgress,
    what: str,
    max_pixels: int,
    keep_truncated: bool,
    filters: tuple[Filter, ...] = (),
    gray16: GrayRange | None = None,
) -> Json:
    """Read a file as it was listed, and hash it. Raises Rejection, OSError.

    `what` is `bytes` (a hash of them), `decodes` (whether the image does) or `picture` (a hash of
    it). Images that a filter of the recipe rejects are not compared: what is kept for them would
    be rejected in the end. Found is {"hash": number}, or {"hash": None} for one that cannot be
    compared.
    """
    data = _bytes_of(file)
    if what == "bytes":
        return {"hash": int.from_bytes(hashlib.sha256(data).digest()[:DIGEST_BYTES], "big")}
    progress.enter("decode")
    opened = open_image(data, max_pixels, keep_truncated, gray16=gray16)
    judge(filters, opened)
    if what == "picture":
        return {"hash": phash(upright(opened, (HASH_SIDE, HASH_SIDE)))}
    check(opened)
    return {"hash": 1}


def _bytes_of(file: ReadRequest) -> bytes:
    """Return the bytes of a file. Raises Rejection if it is not what was listed, OSError."""
    try:
        return read_listed(file.url, file.size, file.version)
    except OSError as error:
        if error.errno in NO_ANSWER:
            raise Rejection("read", SILENT, f"cannot be read ({error.strerror})") from error
        raise


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


class TextHashTask(PrePlanTask):
    """Work on `count` units of a job's plan, from `first` on, for the batch step `step` of its
    recipe.

    Found is {"bytes", "segments"} of each unit: the bytes of the texts that are compared, and the
    rows that have been written by then, which may be those of earlier units; in the end
    once more what is left of these. A segment is where rows begin in the file of this `number`, how
    many they are, and where their sketches begin in a second file. Rows are of HASHED or SIGNED,
    and count records from the first one of the task on. The files may have more than the segments:
    what was read of a unit that could not be read to its end, or what a process wrote that was
    ended.
    """

    def __init__(self, folder: str, number: int, step: int, first: int, count: int) -> None:
        self.things = range(count)
        self.folder, self.step, self.first, self.count = folder, step, first, count
        self.path = Path(folder, HASHES, str(number))
        self.sketches_path = Path(folder, HASHES, f"{number}.sketches")
        self._held = _WaitingTexts()

    @cached_property
    def _units(self) -> list[PlannedUnit]:
        numbers = range(self.first, self.first + self.count)
        return list(job_in(self.folder).units_at(numbers))

    def requests(self, number: int) -> Sequence[ReadRequest]:
        """Return what a unit is read from."""
        return requests_of(job_in(self.folder), self._units[number])

    def look(self, number: int, progress: WorkerProgress) -> Json:
        """Read a unit, and write the hashes of its records.

        Raises Rejection, OSError, TypesDifferError, SourceGoneError, StorageError, WorkerError.
        """
        job, planned = job_in(self.folder), self._units[number]
        if job.whole:
            fields = fields_of(job, planned, read_whole(job, planned))
            whole = records_of_file(planned.file_number, planned.key(), fields)
            return self._compare(number, [whole], progress)
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
        found.append({"bytes": 0, "segments": self._written(self._held)})

    @cached_property
    def _ranks(self) -> Numbers:
        """The rank of the first record of each unit, from that of the task on, (count,)."""
        records = np.array([planned.unit.records for planned in self._units], np.int64)
        return np.cumsum(records) - records

    @cached_property
    def _step(self) -> Deduplicate:
        step = job_in(self.folder).recipe.batch_transforms[self.step]
        assert isinstance(step, Deduplicate), "its place was looked up"
        return step

    def _compare(self, number: int, records: Iterable[Records], progress: WorkerProgress) -> Json:
        """Take the texts of a unit's records; those of small units are held until there are more,
        which is much faster."""
        job, first = job_in(self.folder), self._ranks[number] - self._units[number].unit.first
        before = BatchPipeline(
            job.recipe.batch_transforms[: self.step], job.folder, job.layout.roles.by_name
        )
        held, segments = _WaitingTexts(), []
        size = 0
        for given in records:
            # Its time runs anew with each part of the unit: a compressed file is one unit, however
            # large it is.
            progress.begin(number, int(given.numbers[-1]), "transform")
            # what a step rejects is not compared: it becomes a reject later, too
            for made in before.apply(given, lambda record, rejection: None):
                column = made.batch.column("text")
                here = column.drop_null() if column.null_count else column
                if len(here):
                    there = column.is_valid().to_numpy(zero_copy_only=False)
                    held.parts.append((here, made.numbers[there] + first))
                    held.bytes += len(bytes_of(here).data)
            if held.bytes >= HELD_BYTES:
                size += held.bytes
                segments += self._written(held)
            progress.enter("read")
        size += held.bytes
        self._held.parts += held.parts  # now that all of the unit could be read
        self._held.bytes += held.bytes
        if self._held.bytes >= HELD_BYTES:
            try:
                segments += self._written(self._held)
            except MemoryError as error:  # most of these texts are of units that have been told of
                message = "there is too little memory to compare texts (deduplicate)"
                raise WorkerError(
                    f"{message}; use fewer --workers, or a higher --worker-memory"
                ) from error
        return {"bytes": size, "segments": segments}

    def _written(self, held: _WaitingTexts) -> list[list[int]]:
        """Write the rows of texts that were held, and return the segments that they are."""
        parts, held.parts, held.bytes = held.parts, [], 0
        if not parts:
            return []
        texts, ranks = zip(*parts, strict=True)
        return self._segments(pa.concat_arrays(texts), np.concatenate(ranks))

    def _segments(self, texts: pa.Array, ranks: Numbers) -> list[list[int]]:
        """Write the rows of texts: fewer and fewer together where memory runs out. Raises
        MemoryError for one alone."""
        rows, sketches = _size(self.path), _size(self.sketches_path)
        try:
            if self._step.method == NEAR:
                count = _write_signatures(self.path, self.sketches_path, texts, ranks)
            else:
                count = _write_hashes(self.path, texts, ranks, self._step.unit)
            return [[rows, count, sketches]] if count else []
        except MemoryError:
            if len(ranks) == 1:
                raise
        half = len(ranks) // 2
        return [
            *self._segments(texts[:half], ranks[:half]),
            *self._segments(texts[half:], ranks[half:]),
        ]


@dataclass
class _WaitingTexts:
    """Texts that wait for being compared, with the ranks of their records: of so many `bytes`."""

    parts: list[tuple[pa.Array, Numbers]] = field(default_factory=list)
    bytes: int = 0


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _append(path: Path, data: bytes) -> None:
    """Append data. Raises StorageError: a full disk is no fault of the input."""
    with naming_the_path(path), open(path, "ab") as file:
        file.write(data)


def _records_of(planned: PlannedUnit, read: Iterator[Parsed]) -> Iterator[Records]:
    """Yield the records of a unit as they are read."""
    for parsed in read:
        if len(parsed.numbers):
            batch = keyed(parsed.batch, planned.file.path, parsed.numbers)
            yield Records(planned.file_number, parsed.numbers, batch)


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
