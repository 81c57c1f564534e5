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
from shardctl.format.arrays import Bools, Hashes, Numbers, numbers_of
from shardctl.format.names import FILES
from shardctl.making.commit.jobs import begin
from shardctl.making.convert.discover import Discovery, group
from shardctl.making.notices import notice
from shardctl.making.plan.labels import Labelling, write_files_table
from shardctl.making.plan.listing import Listing
from shardctl.making.plan.plan import Planner, Units
from shardctl.making.plan.splits import Splitting
from shardctl.making.shards.engines.local import Engine
from shardctl.making.shards.hashes import HASHES, SIGNED, SILENT, TextHashTask, hash_image
from shardctl.making.shards.inputs import OTHERS, Found, PrePlanTask, ReadRequest
from shardctl.making.shards.job import Job, SourceBase
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
    add_dropped,
    add_hashes,
    repeated,
    write_table,
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
    roots: Sequence[SourceBase],
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

    hashed = partial(_hashed, discovery, recipe, roots, comparing)
    readable: Bools = listing.table["error"].is_null().to_numpy().copy()
    for each in listing.annotations:
        readable[list(each.faults)] = False
    of_all, apart = np.arange(len(listing)), None
    if rule.mode == "exact":
        # only those are read of whose size there are several
        sizes = numbers_of(listing.table["size"])
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
    return replace(units, repeats=Repeats(rule, of_all, apart, listing.paths_at))


def _hashed(
    discovery: Discovery,
    recipe: Recipe,
    roots: Sequence[SourceBase],
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
    sizes, times = (numbers_of(table[name])[files] for name in ("size", "mtime_ns"))
    starts = group(sizes, IMAGE_FILES, IMAGE_BYTES)
    hashes, has_hash = np.zeros((len(files), 2), np.uint64), np.zeros(len(files), bool)
    silent: list[int] = []
    looked_at = 0

    def hashing(number: int) -> PrePlanTask:
        rows = slice(*starts[number : number + 2].tolist())
        opened = map(discovery.listing.opened, discovery.listing.rows_at(files[rows]))
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
        path = printable(discovery.listing.paths_at(np.array([min(silent)]))[0])
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
    with naming_the_path(job.folder):
        folder = Path(tempfile.mkdtemp(prefix="texts-", dir=job.folder))
        job = replace(job, folder=folder, draw=None)
        write_files_table(folder / FILES, listing, labelling)
        Planner(units, Splitting(("all",), None, ""), None).write_units(folder)
        begin(job)
        return [_dropped_by(job, place, engine, comparing) for place in places]


def _dropped_by(job: Job, place: int, engine: Engine, comparing: Callable[[int], None]) -> Compared:
    """Find the duplicates of the step at `place`, and write their table. Raises OSError,
    SourceGoneError, TypesDifferError."""
    step = job.recipe.batch_transforms[place]
    assert isinstance(step, Deduplicate), "its place was looked up"
    folder = job.folder / HASHES
    folder.mkdir()
    file, first_of, records = (numbers_of(job.plan[name]) for name in ("file", "first", "records"))
    # of the first record of each unit, and the end
    ranks = np.zeros(len(file) + 1, np.int64)
    np.cumsum(records, out=ranks[1:])
    count = int(ranks[-1])
    starts = group(numbers_of(job.plan["size"]), UNITS, UNIT_BYTES)
    looked_at = compared = not_compared = size = 0
    first_fault = (len(file), "")
    is_near = step.method == NEAR
    runs = Runs(folder / "runs", BANDED if is_near else HASHED)
    sketches = Sketches(folder / "sketches", count) if is_near else None

    def take(look: TextHashTask, offset: int, segment: int, of_sketches: int) -> None:
        """Take a segment of what was found."""
        rank = int(ranks[look.first])
        with open(look.path, "rb") as hashes:
            hashes.seek(offset)
            if sketches is None:
                for rows in _rows_in(hashes, HASHED, segment):
                    rows["place"] += rank << PIECE_BITS
                    add_hashes(runs, rows)
                return
            with open(look.sketches_path, "rb") as values:
                values.seek(of_sketches)
                for rows in _rows_in(hashes, SIGNED, segment):
                    of, sizes = rows["rank"] + rank, rows["size"]
                    sketches.add(of, np.fromfile(values, np.uint32, int(sizes.sum())), sizes)
                    add_bands(runs, rows["signature"], of, step.threshold)

    def task(number: int) -> TextHashTask:
        first, end = starts[number : number + 2].tolist()
        return TextHashTask(str(job.folder), number, place, first, end - first)

    def on_found(number: int, found: Found) -> None:
        nonlocal looked_at, compared, not_compared, size, first_fault
        look = task(number)
        for unit, answer in enumerate(found, look.first):
            if "fault" in answer:
                not_compared += int(records[unit])
                first_fault = min(first_fault, (unit, answer["fault"][2]))
                continue
            size += answer["bytes"]
            for offset, segment, of_sketches in answer["segments"]:
                compared += segment
                take(look, offset, segment, of_sketches)
        for path in (look.path, look.sketches_path):
            path.unlink(missing_ok=True)
        looked_at += int(ranks[look.first + look.count] - ranks[look.first])
        comparing(looked_at)

    engine.examine(LazySequence(len(starts) - 1, task), on_found)
    runs.flush()
    repeats = repeated(runs) if sketches is None else _near(runs, sketches, count, step)
    dropped, dropped_bytes = Runs(folder / "dropped", DROPPED), 0
    for rows, of_rows in repeats:
        add_dropped(dropped, rows, count)
        dropped_bytes += of_rows
    dropped.flush()

    def locate(of: Numbers) -> tuple[Numbers, Numbers]:
        """Return the files of records, by their ranks, and their numbers."""
        unit = np.searchsorted(ranks, of, side="right") - 1
        first = first_of[unit]
        return file[unit], np.where(first > 0, first + of - ranks[unit], 0)

    table = job.folder / step.table
    write_table(table, dropped, locate)
    remove_tree(folder, job.folder)
    counts = (compared, dropped.rows, size, dropped_bytes, not_compared)
    return Compared(step, table, *counts, first_fault[1])


def _near(
    bands: Runs, sketches: Sketches, count: int, step: Deduplicate
) -> Iterator[tuple[Rows, int]]:
    """Yield the records that are like others, and how many bytes of them are dropped beside
    them."""
    sketches.finish()
    components = Components(count)
    connect(bands, sketches, components, step.threshold)
    for rows in dropped_by(components, sketches):
        yield rows, 0


def _rows_in(file: BinaryIO, dtype: np.dtype[np.void], count: int) -> Iterator[Rows]:
    """Yield the next rows of a file, some of them at a time."""
    most = CHUNK_BYTES // dtype.itemsize
    while count:
        rows = np.fromfile(file, dtype, min(count, most))
        if not len(rows):
            raise OSError(errno.EIO, "a file for scratch has lost its end")
        count -= len(rows)
        yield rows
