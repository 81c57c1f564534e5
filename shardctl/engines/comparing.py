"""What is found out about records of text before there is a plan, so that duplicates are known: hashes or signatures of them.

They are what a step of the recipe gets: all records are read and go through the steps before it. What is found is too much for
messages, and is written into files of the job's folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.duplicates.exact import HASHED, PIECE_BITS
from shardctl.duplicates.near import PERMUTATIONS, shingles_of, signatures_of, sketches_of
from shardctl.duplicates.pieces import DOCUMENT, pieces_of
from shardctl.engines.breadcrumb import Breadcrumb
from shardctl.engines.inputs import read_whole
from shardctl.engines.job import Job, Planned
from shardctl.engines.records import read_unit
from shardctl.errors import Rejection, TypesDifferError
from shardctl.pipeline.batches import BatchPipeline, keyed
from shardctl.sources.formats import Misfit
from shardctl.sources.kinds import KINDS
from shardctl.storage import naming_the_path, printable
from shardctl.transforms import Records
from shardctl.transforms.text.deduplicate import NEAR, Deduplicate

HASHES = "hashes"
"""The folder, in that of the job, of the files that workers write."""

SIGNED = np.dtype([("rank", np.int64), ("size", np.int64), ("signature", np.uint32, (PERMUTATIONS,))])
"""A document by its place among the records of its unit, how many values its sketch has, and its signature."""

SIGNED_TEXTS = 1 << 13
"""Texts whose signatures are made together: those of short ones take a hundred times the memory of the texts."""

FITTED_RECORDS = 1024
"""The most records that are read together where some do not fit the types that were given."""


@dataclass(frozen=True)
class Comparing:
    """Work on `count` units of a job's plan, from `first` on, for the batch step `step` of its recipe.

    Found is, of each unit, {"offset", "rows"}: where its rows are in the file of this `number`, from which byte on; they are of
    HASHED or SIGNED, and count documents within the unit from 0. {"sketches", "values"} are the same of sketches, which are
    in a second file, and {"texts", "bytes"} count what was compared. The files may have more than that: what a process wrote
    that was ended.
    """

    task: ClassVar[str] = "compare"
    folder: str
    number: int
    step: int
    first: int
    count: int

    def __len__(self) -> int:
        return self.count

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Comparing:
        """Build what `to_json` gave."""
        return cls(**record)

    @property
    def path(self) -> Path:
        """The file that the rows are written into."""
        return Path(self.folder, HASHES, str(self.number))

    @property
    def sketches_path(self) -> Path:
        """The file that sketches of documents are written into."""
        return Path(self.folder, HASHES, f"{self.number}.sketches")

    @cached_property
    def _units(self) -> list[Planned]:
        return list(_job(self.folder).units(self.first, self.count))

    def look_at(self, number: int, crumb: Breadcrumb) -> dict[str, Any]:
        """Read a unit, and write the hashes of its records.

        Raises Rejection, OSError, TypesDifferError, SourceGoneError, StorageError.
        """
        job, planned = _job(self.folder), self._units[number]
        if job.fields is None:
            return self._compare(job, planned, _whole(job, planned), crumb)
        try:
            return self._compare(job, planned, _read(job, planned), crumb)
        except Misfit as misfit:
            if job.recipe.fields is None:
                raise TypesDifferError(f"{printable(planned.key())}: {misfit}") from misfit
        return self._compare(job, planned, _fitting(job, planned), crumb)

    def _compare(self, job: Job, planned: Planned, records: Iterator[Records], crumb: Breadcrumb) -> dict[str, Any]:
        step = job.recipe.batch_transforms[self.step]
        assert isinstance(step, Deduplicate), "its place was looked up"
        before = BatchPipeline(job.recipe.batch_transforms[: self.step], job.folder, job.layout.roles.by_name)
        rows, sketches = (_Appended(path) for path in (self.path, self.sketches_path))
        found = {"offset": rows.offset, "sketches": sketches.offset, "rows": 0, "values": 0, "texts": 0, "bytes": 0}
        for given in records:
            # Its time runs anew with each part of the unit: a compressed file is one unit, however large it is.
            crumb.drop(crumb.place, int(given.numbers[-1]), "transform")
            for made in before.apply_named(given, _ignore):
                if step.method == NEAR:
                    _add(found, _write_signatures(rows, sketches, made, planned.unit.first))
                else:
                    _add(found, _write_hashes(rows, made, planned.unit.first, step.unit))
            crumb.enter("read")
        return found


class _Appended:
    """A file to which data is appended. `offset` is where that begins."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = path.stat().st_size if path.exists() else 0

    def write(self, data: bytes) -> None:
        """Append data. Raises StorageError: a full disk is no fault of the input."""
        with naming_the_path(self._path), open(self._path, "ab") as file:
            file.write(data)


@lru_cache(maxsize=1)
def _job(folder: str) -> Job:
    return Job.load(Path(folder))


def _ignore(record: int, rejection: Rejection) -> None:
    """A record that a step rejects is not compared: it becomes a reject later, too."""


def _add(found: dict[str, int], more: dict[str, int]) -> None:
    for name, count in more.items():
        found[name] += count


def _whole(job: Job, planned: Planned) -> Iterator[Records]:
    """Yield the one record of a file. Raises Rejection, SourceGoneError."""
    fields = KINDS[job.recipe.kind].fields(read_whole(job, planned), planned.file.path, job.recipe.reading)
    columns = {"key": pa.array([planned.key()]), **{name: pa.array([value]) for name, value in fields.items()}}
    yield Records(planned.file_number, np.zeros(1, np.int64), pa.record_batch(columns))


def _read(job: Job, planned: Planned) -> Iterator[Records]:
    """Yield the records of a unit. Raises Misfit, Rejection, SourceGoneError."""
    for parsed in read_unit(job, planned, planned.unit, None, xxhash.xxh3_64()):
        if len(parsed.numbers):
            batch = keyed(parsed.batch, planned.file.path, parsed.numbers)
            yield Records(planned.file_number, parsed.numbers, batch)


def _fitting(job: Job, planned: Planned) -> Iterator[Records]:
    """Yield the records of a unit that fit the types which were given. Raises Rejection, SourceGoneError."""
    unit, done, together = planned.unit, 0, FITTED_RECORDS
    while done < unit.records:
        count = min(together, unit.records - done)
        part = unit._replace(skip=unit.skip + done, first=unit.first + done, records=count)
        try:
            yield from list(_read(job, planned._replace(unit=part)))
        except Misfit:
            if count > 1:
                together = count // 2
                continue
        done += count
        together = min(2 * together, FITTED_RECORDS)


def _texts(records: Records) -> tuple[pa.Array, np.ndarray[Any, np.dtype[np.int64]]]:
    """Return the texts of records that have one, and the numbers of these."""
    texts = records.batch.column("text")
    if not texts.null_count:
        return texts, records.numbers
    return texts.drop_null(), records.numbers[texts.is_valid().to_numpy(zero_copy_only=False)]


def _write_hashes(file: _Appended, records: Records, first: int, unit: str) -> dict[str, int]:
    """Write rows of HASHED for the texts of records, or for their lines or paragraphs."""
    texts, numbers = _texts(records)
    pieces = pieces_of(texts, unit)
    rows = np.zeros(len(pieces), HASHED)
    hashes = pieces.hashes()
    rows["high"], rows["low"], rows["size"] = hashes[:, 0], hashes[:, 1], pieces.sizes
    rows["place"] = (numbers[pieces.row] - first << PIECE_BITS) + pieces.number
    file.write(rows.tobytes())
    size = int(pieces.sizes.sum()) if unit == DOCUMENT else len(pieces.data)
    return {"rows": len(rows), "texts": len(texts), "bytes": size, "values": 0}


def _write_signatures(file: _Appended, of_sketches: _Appended, records: Records, first: int) -> dict[str, int]:
    """Write rows of SIGNED for the texts of records, and their sketches."""
    texts, numbers = _texts(records)
    values = 0
    for begin in range(0, len(texts), SIGNED_TEXTS):
        here = texts[begin : begin + SIGNED_TEXTS]
        shingles, starts = shingles_of(here)
        sketches, sizes = sketches_of(shingles, starts)
        rows = np.zeros(len(here), SIGNED)
        rows["rank"], rows["size"] = numbers[begin : begin + SIGNED_TEXTS] - first, sizes
        rows["signature"] = signatures_of(shingles, starts)
        file.write(rows.tobytes())
        of_sketches.write(sketches.tobytes())
        values += len(sketches)
    return {"rows": len(texts), "texts": len(texts), "bytes": texts.nbytes, "values": values}
