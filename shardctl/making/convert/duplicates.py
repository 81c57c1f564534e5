"""Which image files of a conversion are duplicates of others, found before there is a plan: so
workers do not matter."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from shardctl.errors import SourceGoneError
from shardctl.format.names import FILES
from shardctl.making.commit.staging import begin
from shardctl.making.convert.discover import Discovery, group
from shardctl.making.notices import notice
from shardctl.making.plan.labels import Labelling, write_files
from shardctl.making.plan.listing import Flags, Hashes, Listing, Numbers
from shardctl.making.plan.plan import Planner, Units
from shardctl.making.plan.splits import Splitting
from shardctl.making.shards.engines.local import Engine
from shardctl.making.shards.hashes import HASHES, SIGNED, SILENT, TextHashTask, hash_image
from shardctl.making.shards.inputs import OTHERS, ReadRequest
from shardctl.making.shards.job import Job, Root
from shardctl.making.shards.scan import Found, PrePlanTask
from shardctl.system.files import naming_the_path, remove_tree
from shardctl.system.permutation import LazySequence
from shardctl.system.text import counted, format_bytes, printable
from shardctl.transforms.duplicates.exact import (
    CHUNK_BYTES,
    DROPPED,
    HASHED,
    PIECE_BITS,
    Rows,
    Runs,
    add_hashes,
    repeated,
)
from shardctl.transforms.duplicates.near import (
    BANDED,
    Components,
    Sketches,
    add_bands,
    connect,
    dropped_by,
)
from shardctl.transforms.duplicates.pictures import (
    Places,
    Repeats,
    distances,
    first_of_equal,
    first_of_similar,
)
from shardctl.transforms.duplicates.pieces import DOCUMENT
from shardctl.transforms.duplicates.table import add_dropped, write_table
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.text.deduplicate import NEAR, Deduplicate

IMAGE_FILES, IMAGE_BYTES = 64, 32 << 20
"""The most files that one task looks at, and about how many bytes."""

NO_ANSWERS = frozenset((("read", SILENT), ("read", "timed-out")))
"""Faults of a file that may be those of its source."""


def without_repeats(
    discovery: Discovery,
    units: Units,
    recipe: Recipe,
    roots: Sequence[Root],
    comparing: Callable[[int], None] = lambda inputs: None,
) -> Units:
    """Return the units with those marked that are duplicates of others by the rule of a recipe.

    Files that cannot be read, and images that do not decode, that a filter of the recipe rejects or
    whose annotations are wrong, are not compared: they become rejects later. `comparing` is told
    how many files have been looked at. Raises SourceGoneError if a source has gone away or does not
    answer.
    """
    listing, rule = discovery.listing, recipe.duplicates
    if rule.mode == "keep":
        return units

    def hashed(files: Places, what: str) -> tuple[Places, Hashes]:
        return _hashed(discovery, recipe, roots, comparing, files, what)

    readable: Flags = listing.table["error"].is_null().to_numpy().copy()
    for each in listing.annotations:
        readable[list(each.faults)] = False
    of_all, apart = np.arange(len(listing)), None
    if rule.mode == "exact":
        # only those are read of whose size there are several
        sizes = listing.table["size"].to_numpy()
        rows = np.flatnonzero((sizes > 0) & readable)
        _, size_of, count = np.unique(sizes[rows], return_inverse=True, return_counts=True)
        files, hashes = hashed(rows[count[size_of] > 1], "bytes")
        first = first_of_equal(hashes)
        kept = np.unique(first[first != np.arange(len(first))])
        whole = np.isin(files[first], hashed(files[kept], "decodes")[0])
        of_all[files[whole]] = files[first][whole]
    else:
        files, hashes = hashed(np.flatnonzero(readable), "picture")
        looks = hashes[:, 1]
        first = first_of_similar(looks, rule.distance)
        of_all[files], apart = files[first], np.zeros(len(listing), np.uint8)
        apart[files] = distances(looks, looks[first])
    return replace(units, repeats=Repeats(rule, of_all, apart, discovery.paths))


def _hashed(
    discovery: Discovery,
    recipe: Recipe,
    roots: Sequence[Root],
    comparing: Callable[[int], None],
    files: Places,
    what: str,
) -> tuple[Places, Hashes]:
    """Have files hashed in the engine's processes. Return those that have a hash, by their
    places in the listing, in order: (n,) int64; and the hashes, (n, 2) uint64.

    Raises SourceGoneError if a source is gone, or gave no answer for several files: their
    duplicates would be kept.
    """
    table = discovery.listing.table
    sizes, times = (table[name].to_numpy()[files] for name in ("size", "mtime_ns"))
    starts = group(sizes, IMAGE_FILES, IMAGE_BYTES)
    hashes, has_hash = np.zeros((len(files), 2), np.uint64), np.zeros(len(files), bool)
    silent: list[int] = []
    looked_at = 0

    def hashing(number: int) -> PrePlanTask:
        rows = slice(*starts[number : number + 2].tolist())
        opened = discovery.opened(files[rows])
        listed = zip(opened, sizes[rows].tolist(), times[rows].tolist(), strict=True)
        look = partial(
            hash_image,
            what=what,
            max_pixels=recipe.max_pixels,
            keep_truncated=recipe.keep_truncated,
            filters=recipe.filters,
            gray16=recipe.gray16,
        )
        return PrePlanTask([ReadRequest(*file, whole=True) for file in listed], look)

    def on_found(number: int, found: Found) -> None:
        nonlocal looked_at
        for row, answer in enumerate(found, int(starts[number])):
            if (value := answer.get("hash")) is not None:
                # one by one: an array of both would be one of floats
                hashes[row, 0] = value >> 64
                hashes[row, 1] = value & (1 << 64) - 1
                has_hash[row] = True
            elif "fault" in answer and tuple(answer["fault"][:2]) in NO_ANSWERS:
                silent.append(int(files[row]))
        looked_at += len(found)
        comparing(looked_at)

    discovery.engine.examine(LazySequence(len(starts) - 1, hashing), on_found)
    for root in roots:
        root.check()
    if len(silent) > OTHERS:
        path = printable(discovery.paths(np.array([min(silent)]))[0])
        raise SourceGoneError(
            f"the source does not respond: {counted(len(silent), 'file')} cannot be read, "
            f"among them {path}; check its disk or server"
        )
    return files[has_hash], hashes[has_hash]


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
    def kept(self) -> tuple[float, float]:
        """The share of the texts that are kept, and of the bytes of one."""
        if self.step.unit == DOCUMENT:
            return 1 - self.dropped / max(1, self.count), 1.0
        return 1.0, 1 - self.dropped_bytes / max(1, self.bytes)

    def notices(self) -> list[str]:
        """Say how many duplicates there are, and how many records were not compared."""
        step, what, rule = self.step, "rejected", "deduplicate"
        if step.unit != DOCUMENT:
            sizes = f"{format_bytes(self.dropped_bytes)} of {format_bytes(self.bytes)}"
            what = f"dropped: {sizes}"
        if step.method == NEAR:
            rule = f"deduplicate: {step.method} {step.threshold:g}"
        count = counted(self.count, {DOCUMENT: "text"}.get(step.unit, step.unit))
        said = [notice("duplicates", dropped=self.dropped, count=count, what=what, rule=rule)]
        if self.not_compared:
            records = counted(self.not_compared, "record")
            said.append(notice("not-compared", records=records, why=self.why))
        return said


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
        Planner(units, Splitting(("all",), None, ""), None).write_units(folder)
        begin(job)
        return [_TextSearch(job, place, engine, comparing).run() for place in places]


class _TextSearch:
    """The search for the duplicates of one step, in a folder of its own."""

    def __init__(
        self, job: Job, place: int, engine: Engine, comparing: Callable[[int], None]
    ) -> None:
        step = job.recipe.batch_transforms[place]
        assert isinstance(step, Deduplicate), "its place was looked up"
        self._job, self._place, self._step = job, place, step
        self._engine, self._comparing = engine, comparing
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
        counts = (self._compared, found.rows, self._bytes, dropped_bytes, self._not_compared)
        return Compared(self._step, table, *counts, self._first_fault[1])

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
                    ranks, sizes = rows["rank"] + rank, rows["size"]
                    sketches.add(ranks, np.fromfile(values, np.uint32, int(sizes.sum())), sizes)
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
            ends = self._ranks[[comparing.first, comparing.first + comparing.count]]
            self._looked_at += int(np.diff(ends)[0])
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
