"""Which texts of a conversion, or lines or paragraphs of them, are duplicates of others: found
before there is a plan of the shards, in an order that does not depend on the workers, and kept in
tables on disk."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from shardctl.build.commit.staging import begin
from shardctl.build.convert.discover import group
from shardctl.build.plan.labels import Labelling, write_files
from shardctl.build.plan.listing import Listing
from shardctl.build.plan.plan import Order, Planner
from shardctl.build.plan.units import Units
from shardctl.build.shards.engines.base import Engine
from shardctl.build.shards.job import Job
from shardctl.build.shards.scan import Found
from shardctl.build.shards.text_hashes import HASHES, SIGNED, TextHashTask
from shardctl.format.names import FILES
from shardctl.system.files import naming_the_path, remove_tree
from shardctl.system.sequences import LazySequence
from shardctl.system.text import counted, format_bytes
from shardctl.transforms.duplicates.exact import DROPPED, HASHED, PIECE_BITS, add_hashes, repeated
from shardctl.transforms.duplicates.near import (
    BANDED,
    Components,
    Sketches,
    add_bands,
    connect,
    dropped_by,
)
from shardctl.transforms.duplicates.pieces import DOCUMENT
from shardctl.transforms.duplicates.runs import CHUNK_BYTES, Rows, Runs
from shardctl.transforms.duplicates.table import Numbers, add_dropped, write_table
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.text.deduplicate import NEAR, Deduplicate

UNITS, UNIT_BYTES = 256, 8 << 20
"""The most units that one task looks at, and about how many bytes."""


@dataclass(frozen=True)
class Compared:
    """What a step `deduplicate` will drop, and where the table of it is: `dropped` of `count`
    texts, lines or paragraphs, which have `dropped_bytes` of the `bytes` of the texts.
    `not_compared` records were not: those of some units, and `why` is the reason of the first of
    these."""

    step: Deduplicate
    table: Path
    count: int
    dropped: int
    bytes: int
    dropped_bytes: int
    not_compared: int
    why: str

    @property
    def kept_texts(self) -> float:
        """The share of the texts that are kept."""
        return 1 - self.dropped / max(1, self.count) if self.step.unit == DOCUMENT else 1.0

    @property
    def kept_bytes(self) -> float:
        """The share of the bytes of a text that are kept."""
        return 1 - self.dropped_bytes / max(1, self.bytes) if self.step.unit != DOCUMENT else 1.0

    def notices(self) -> list[str]:
        """Say how many duplicates there are, and how many records were not compared."""
        if not self.not_compared:
            return [self._notice()]
        records = counted(self.not_compared, "record")
        return [
            self._notice(),
            f"{records} could not be compared with others (deduplicate): {self.why}",
        ]

    def _notice(self) -> str:
        what = {DOCUMENT: "text"}.get(self.step.unit, self.step.unit)
        how = (
            f"deduplicate: {self.step.method} {self.step.threshold:g}"
            if self.step.method == NEAR
            else "deduplicate"
        )
        of_all = counted(self.count, what)
        if not self.dropped:
            return f"none of {of_all} is a duplicate of another ({how})"
        are = "is a duplicate" if self.dropped == 1 else "are duplicates"
        if self.step.unit == DOCUMENT:
            return f"{self.dropped:,} of {of_all} {are} of others, and rejected ({how})"
        sizes = f"{format_bytes(self.dropped_bytes)} of {format_bytes(self.bytes)}"
        return f"{self.dropped:,} of {of_all} {are} of others, and dropped: {sizes} ({how})"


def without_comparing(recipe: Recipe) -> Recipe:
    """Return the recipe without the steps that need to know the duplicates."""
    return replace(
        recipe,
        transform=tuple(step for step in recipe.transform if not isinstance(step, Deduplicate)),
    )


def compare_texts(
    job: Job,
    listing: Listing,
    labelling: Labelling,
    units: Units,
    engine: Engine,
    comparing: Callable[[int], None] = lambda inputs: None,
) -> list[Compared]:
    """Find what the steps `deduplicate` of a job's recipe drop. `job` says how records are read;
    its folder is for scratch.

    Records that cannot be read, or that end a process, are not compared: they become rejects later.
    `comparing` is told how many records have been looked at. Raises SourceGoneError,
    TypesDifferError, StorageError.
    """
    steps = job.recipe.batch_transforms
    places = [place for place, step in enumerate(steps) if isinstance(step, Deduplicate)]
    if not places:
        return []
    with naming_the_path(job.folder):
        folder = Path(tempfile.mkdtemp(prefix="texts-", dir=job.folder))
        job = replace(job, folder=folder, draw=None)
        write_files(folder / FILES, listing, labelling)
        Planner(units, Order(("all",), (np.arange(len(units)),), None)).write_units(folder)
        begin(job)
        return [_Search(job, place, engine, comparing).run() for place in places]


class _Search:
    """The search for the duplicates of one step, in a folder of its own."""

    def __init__(
        self, job: Job, place: int, engine: Engine, comparing: Callable[[int], None]
    ) -> None:
        step = job.recipe.batch_transforms[place]
        assert isinstance(step, Deduplicate), "its place was looked up"
        self._job, self._place, self._step, self._engine, self._comparing = (
            job,
            place,
            step,
            engine,
            comparing,
        )
        self._folder = job.folder / HASHES
        self._folder.mkdir()
        self._file, self._first = (job.plan[name].to_numpy() for name in ("file", "first"))
        # of the first record of each unit, and the end
        self._ranks = np.zeros(len(self._file) + 1, np.int64)
        np.cumsum(job.plan["records"].to_numpy(), out=self._ranks[1:])
        self._count = int(self._ranks[-1])
        self._looked_at = self._compared = self._not_compared = self._bytes = 0
        self._first_fault = (len(self._file), "")

    def run(self) -> Compared:
        """Find them, and write the table. Raises OSError, SourceGoneError, TypesDifferError."""
        found = Runs(self._folder / "dropped", DROPPED)
        dropped_bytes = 0
        for rows, size in self._near() if self._step.method == NEAR else self._exact():
            add_dropped(found, rows, self._count)
            dropped_bytes += size
        found.flush()
        table = self._job.folder / self._step.table
        write_table(table, found, self._locate)
        remove_tree(self._folder, self._job.folder)
        sizes = (self._bytes, dropped_bytes)
        return Compared(
            self._step,
            table,
            self._compared,
            found.rows,
            *sizes,
            self._not_compared,
            self._first_fault[1],
        )

    def _exact(self) -> Iterator[tuple[Rows, int]]:
        runs = Runs(self._folder / "runs", HASHED)

        def take(comparing: TextHashTask, rank: int, offset: int, count: int, _: int) -> None:
            with open(comparing.path, "rb") as file:
                file.seek(offset)
                for rows in _rows_in(file, HASHED, count):
                    rows["place"] += rank << PIECE_BITS
                    add_hashes(runs, rows)

        self._look_at_all(take)
        runs.flush()
        yield from repeated(runs)

    def _near(self) -> Iterator[tuple[Rows, int]]:
        sketches = Sketches(self._folder / "sketches", self._count)
        bands = Runs(self._folder / "runs", BANDED)

        def take(
            comparing: TextHashTask, rank: int, offset: int, count: int, of_sketches: int
        ) -> None:
            with open(comparing.path, "rb") as file, open(comparing.sketches_path, "rb") as values:
                file.seek(offset)
                values.seek(of_sketches)
                for rows in _rows_in(file, SIGNED, count):
                    ranks = rows["rank"] + rank
                    sketches.add(
                        ranks, np.fromfile(values, np.uint32, int(rows["size"].sum())), rows["size"]
                    )
                    add_bands(bands, rows["signature"], ranks, self._step.threshold)

        self._look_at_all(take)
        bands.flush()
        sketches.finish()
        components = Components(self._count)
        connect(bands, sketches, components, self._step.threshold)
        for rows in dropped_by(components, sketches):
            yield rows, 0

    def _look_at_all(self, take: Callable[[TextHashTask, int, int, int, int], None]) -> None:
        """Have all units looked at, and give the segments of what was found to `take`, with the
        rank of their first record."""
        starts = group(self._job.plan["size"].to_numpy(), UNITS, UNIT_BYTES)

        def task(number: int) -> TextHashTask:
            first, end = starts[number : number + 2].tolist()
            return TextHashTask(str(self._job.folder), number, self._place, first, end - first)

        def on_found(number: int, found: Found) -> None:
            comparing = task(number)
            for unit, answer in enumerate(found, comparing.first):
                if "fault" in answer:
                    self._not_compared += int(self._ranks[unit + 1] - self._ranks[unit])
                    self._first_fault = min(self._first_fault, (unit, answer["fault"][2]))
                    continue
                self._bytes += answer["bytes"]
                for offset, count, of_sketches in answer["segments"]:
                    self._compared += count
                    take(comparing, int(self._ranks[comparing.first]), offset, count, of_sketches)
            for path in (comparing.path, comparing.sketches_path):
                path.unlink(missing_ok=True)
            self._looked_at += int(
                self._ranks[comparing.first + comparing.count] - self._ranks[comparing.first]
            )
            self._comparing(self._looked_at)

        self._engine.examine(LazySequence(len(starts) - 1, task), on_found)

    def _locate(self, ranks: Numbers) -> tuple[Numbers, Numbers]:
        """Return the files of records, by their ranks, and their numbers."""
        unit = np.searchsorted(self._ranks, ranks, side="right") - 1
        first = self._first[unit]
        return self._file[unit], np.where(first > 0, first + ranks - self._ranks[unit], 0)


def _rows_in(file: BinaryIO, dtype: np.dtype[np.void], count: int) -> Iterator[Rows]:
    """Yield the next rows of a file, some of them at a time."""
    most = CHUNK_BYTES // dtype.itemsize
    while count:
        rows = np.fromfile(file, dtype, min(count, most))
        if not len(rows):
            raise OSError(errno.EIO, "a file for scratch has lost its end")
        count -= len(rows)
        yield rows
