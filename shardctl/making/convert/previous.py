"""The dataset that is at the target, as it was committed last, and how the inputs of now compare with
its own."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.format.arrays import Bools, Numbers, column_of, hash_column, numbers_of, sums_of
from shardctl.format.counts import COUNTS, JpegRecord
from shardctl.format.dataset_folder import dataset_of
from shardctl.format.layout import Layout
from shardctl.format.manifest import Manifest
from shardctl.format.names import FILES, PLAN, REJECTS, SHARDS, TABLES
from shardctl.format.tables import (
    Reject,
    ShardTable,
    is_written,
    new_table,
    open_checked_table,
    open_table,
    read_rejects,
)
from shardctl.format.update_state import PrunedUnit, UpdateState
from shardctl.making.commit.target import Target, files_beside, lost_shards
from shardctl.making.shards.job import Job, RecordReading
from shardctl.making.shards.marker import MARKER_SCHEMA, ShardMarker
from shardctl.sources.walked import CHUNK_ROWS
from shardctl.system.files import naming_the_path
from shardctl.system.folders import Folder, LocalFolder, hash_file
from shardctl.system.text import printable

REPAIR_FIRST = "run `shardctl repair` first"


class DatasetReplacedError(Exception):
    """Another process has put another dataset there meanwhile: all is looked at again."""


def refuse_written(root: str, manifest: Manifest) -> None:
    """Raise DatasetError for a dataset that was written in Python."""
    if is_written(manifest.settings):
        raise DatasetError(f"{printable(root)}: was written by shardctl.write, and has no source")


def refuse_damaged_tables(folder: Folder, manifest: Manifest) -> None:
    """Raise DatasetError if a table of a dataset is not the one that its manifest records."""
    for name in TABLES:
        with contextlib.suppress(OSError):
            if hash_file(folder, name) == manifest.files[name].sha256:
                continue
        raise DatasetError(f"{folder.shown(name)}: is damaged or missing; {REPAIR_FIRST}")


class PreviousDataset:
    """The dataset at a place, with all that is recorded of it. Raises DatasetError if any of that
    is damaged or missing."""

    def __init__(self, dataset: LocalFolder, manifest: Manifest) -> None:
        self.folder = folder = dataset_of(manifest, dataset)
        self.manifest = manifest
        refuse_damaged_tables(folder, manifest)
        try:
            self.state = UpdateState(folder, manifest.update)
        except DatasetError as problem:
            raise DatasetError(
                f"{problem}; nothing else tells which inputs changed; use --overwrite"
            ) from problem
        self.table = ShardTable(folder)
        making = self.table.making
        try:
            self.layout = Layout.loads(making.layout)
            self.reading = RecordReading.from_json(making.records)
        except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
            raise DatasetError(
                f"{folder.shown()}: {SHARDS} does not say how it was made ({error!r})"
            ) from error

    @property
    def digest(self) -> str:
        """What stands for every byte of its samples."""
        return self.manifest.samples_digest

    @cached_property
    def files(self) -> pa.Table:
        """Its table of files, memory-mapped."""
        return open_checked_table(self.folder, FILES)

    @cached_property
    def plan(self) -> pa.Table:
        """Its table of units, memory-mapped."""
        return open_checked_table(self.folder, PLAN)

    def units(self, name: str) -> Numbers:
        """Return a column of its table of units, (units,) int64."""
        column: Numbers = numbers_of(self.plan[name]).astype(np.int64, copy=False)
        return column

    @cached_property
    def samples_of_files(self) -> Numbers:
        """How many samples came of each file, (files,) int64."""
        return sums_of(self.units("samples"), self.units("file"), self.files.num_rows)

    @cached_property
    def pruned(self) -> dict[str, dict[int, PrunedUnit | None]]:
        """The records that were taken out by a person, by the path of their file and their number
        in it."""
        found: dict[str, dict[int, PrunedUnit | None]] = {}
        for (source, record), unit in self.state.pruned.items():
            found.setdefault(source, {})[record] = unit
        return found

    @cached_property
    def rejected_files(self) -> dict[str, Reject]:
        """The files that are one record each and were rejected before they were read, or while they
        were."""
        rejects = (reject for reject in read_rejects(self.folder) if reject.key == reject.source)
        return {reject.source: reject for reject in rejects if reject.stage in ("plan", "read")}

    @cached_property
    def _plain_jpegs(self) -> Bools:
        return self.table.read_jpegs().plain

    def done(self, shard: int) -> ShardMarker:
        """Return what became of a shard, as its marker said it."""
        entry, counts = self.table[shard], self.state.counts(shard)
        jpegs = None
        if counts.jpegs is not None:
            plain = self._plain_jpegs[entry.first : entry.first + entry.rows]
            jpegs = JpegRecord(plain, *dict(zip(COUNTS, counts.jpegs, strict=True)).values())
        units = self.plan.slice(entry.first_unit, entry.units).select(MARKER_SCHEMA.names)
        read = (entry.inputs, entry.rejected)
        return ShardMarker(entry.path, entry.facts, *read, counts, units, jpegs)

    @cached_property
    def _reject_starts(self) -> list[int]:
        """Where the lines of the rejects of each shard begin in rejects.jsonl, and the end."""
        starts = [0]
        with open(self.folder.path(REJECTS), "rb") as file:
            lines = zip(file, read_rejects(self.folder), strict=True)
            for entry in self.table:
                left, end = entry.rejected, starts[-1]
                while left > 0:
                    line, reject = next(lines)
                    left, end = left - reject.records, end + len(line)
                starts.append(end)
        return starts

    def reject_lines(self, shard: int) -> Iterator[bytes]:
        """Yield the lines of the rejects of a shard."""
        path, (start, end) = self.folder.path(REJECTS), self._reject_starts[shard : shard + 2]
        with naming_the_path(path), open(path, "rb") as file:
            file.seek(start)
            while start < end:
                line = file.readline()
                start += len(line)
                yield line


def refuse_lost_shards(target: Target, before: PreviousDataset, shards: list[int]) -> None:
    """Raise DatasetError if one of these shards of the dataset before is gone, or not as large as
    it was."""
    table = before.table
    stay = {table.paths[shard]: int(table.sizes[shard]) for shard in shards}
    for path in lost_shards(stay, files_beside(target, stay)):
        raise DatasetError(f"{before.folder.shown(path)}: is damaged or missing; {REPAIR_FIRST}")


NO_LABEL = np.iinfo(np.int64).min
"""What stands for a missing label where labels are compared."""


@dataclass(frozen=True)
class Matching:
    """The files of a listing beside those of the dataset.

    `old_row` has the row of each listed file in the dataset's table of files, -1 where it is new,
    and `same` says which of them are as they were, with the same labels and annotations: (files,)
    each. The dataset has `files_before`.
    """

    old_row: Numbers
    same: Bools
    files_before: int

    @cached_property
    def new_row(self) -> Numbers:
        """The row in the listing of each of the dataset's files, -1 where it is gone: (files
        before,)."""
        rows = np.full(self.files_before, -1, np.int64)
        known = np.flatnonzero(self.old_row >= 0)
        rows[self.old_row[known]] = known
        return rows

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many files are new, are gone, and are there as before but differ in their content,
        their labels or their annotations."""
        added = int((self.old_row < 0).sum())
        changed = int(((self.old_row >= 0) & ~self.same).sum())
        return added, self.files_before - len(self.old_row) + added, changed


def match_files(before: PreviousDataset, files: Path) -> Matching:
    """Compare files with the dataset that is there. `files` is the table that a job has, or would
    have."""
    now = open_table(LocalFolder(files.parent), files.name)
    rows = rows_before(before.files, now)
    same = rows >= 0
    known = np.flatnonzero(same)
    of = rows[known]
    facts = (
        (numbers_of(now["size"]), numbers_of(before.files["size"])),
        (numbers_of(now["mtime_ns"]), before.state.mtime_ns),
        (numbers_of(now["beside"]), before.state.beside),  # the state of its mask, say
    )
    for as_now, as_then in facts:
        same[known] &= as_now[known] == as_then[of]
    as_it_was = same.copy()
    same[known] &= _labels(now)[known] == _labels(before.files)[of]
    if "columns" in now.column_names and "columns" in before.files.column_names:
        _compare_columns(now["columns"], before.files["columns"], rows, same)
    # what was known of these went with their samples
    for path, row in rows_of(now, before.pruned).items():
        if 0 in before.pruned[path]:
            same[row] = as_it_was[row]
    _compare_faults(before, now, rows, same)
    return Matching(rows, same, before.files.num_rows)


def rows_of(files: pa.Table, paths: Collection[str]) -> dict[str, int]:
    """Return the rows of those of these files that are in a table."""
    if not paths:
        return {}
    import pyarrow.compute as pc  # 40 ms to import, and most conversions update nothing

    wanted = pa.array(sorted(paths), pa.string())
    rows = np.flatnonzero(np.asarray(pc.is_in(files["path"], value_set=wanted).combine_chunks()))
    return dict(zip(files["path"].take(pa.array(rows)).to_pylist(), rows.tolist(), strict=True))


PASSING = ("vanished", "io", "changed")
"""Errors of reading a file that may be over: such a file is tried again."""


def _compare_faults(before: PreviousDataset, now: pa.Table, rows: Numbers, same: Bools) -> None:
    """Clear the flags of files that are known to be faulty and were not, or were, and are not any
    more."""
    # to tell which imports pyarrow.compute, and most often none is
    if now["error"].null_count < len(now):
        broken = now["error"].is_valid().to_numpy()
        same[broken & (rows >= 0)] &= before.samples_of_files[rows[broken & (rows >= 0)]] == 0
    for path, row in rows_of(now, before.rejected_files).items():
        reject = before.rejected_files[path]
        if not same[row]:
            continue
        if reject.stage == "plan":
            fault = (now["error"][row].as_py(), now["message"][row].as_py())
            same[row] = fault == (reject.error, reject.message)
        elif reject.stage == "read" and reject.error in PASSING:
            same[row] = False


def rows_before(files: pa.Table, now: pa.Table) -> Numbers:
    """Return the row of each file of now in a dataset's table of files, -1 for none: files are known
    by their paths."""
    if now["path"].equals(files["path"]):
        return np.arange(now.num_rows)
    rows = np.full(now.num_rows, -1, np.int64)
    if not files.num_rows:
        return rows
    hashes = hash_column(files["path"])
    import pyarrow.compute as pc

    order = np.argsort(hashes, kind="stable")
    of_now = hash_column(now["path"])
    found = np.minimum(np.searchsorted(hashes[order], of_now), len(hashes) - 1)
    alike = hashes[order][found] == of_now
    rows[alike] = order[found[alike]]
    # Different paths may have the same hash, once in many million years; such a file counts as a
    # new one.
    paths = files["path"]
    for start in range(0, len(rows), CHUNK_ROWS):
        here = start + np.flatnonzero(rows[start : start + CHUNK_ROWS] >= 0)
        names = now["path"].take(pa.array(here))
        differ = np.asarray(pc.not_equal(_taken(paths, rows[here]), names).combine_chunks())
        rows[here[differ]] = -1
    return rows


def _taken(column: pa.ChunkedArray, rows: Numbers) -> pa.ChunkedArray:
    """Return some rows of a column, from the part of it that they are in: neighbours now were
    mostly neighbours before."""
    low, high = (int(rows.min()), int(rows.max()) + 1) if len(rows) else (0, 0)
    return column.slice(low, high - low).take(pa.array(rows - low))


def _labels(files: pa.Table) -> Numbers:
    """Return the labels of files, (files,) int64."""
    column = files["label"] if "label" in files.column_names else None
    if column is None or column.null_count == len(files):
        return np.full(len(files), NO_LABEL)
    if column.null_count:  # to fill them imports pyarrow.compute: 25 to 40 ms
        column = column.fill_null(NO_LABEL)
    return numbers_of(column)


def _compare_columns(
    now: pa.ChunkedArray, before: pa.ChunkedArray, rows: Numbers, same: Bools
) -> None:
    """Clear the flags of files of which labels files and annotations say something else than
    before."""
    for start in range(0, len(rows), CHUNK_ROWS):
        here = start + np.flatnonzero(same[start : start + CHUNK_ROWS])
        then = _taken(before, rows[here])
        these = now.slice(start, CHUNK_ROWS).take(pa.array(here - start))
        # NaN, too, is another value for Arrow, and the same text for Python
        if not then.equals(these):
            differ = [
                str(one) != str(other)
                for one, other in zip(then.to_pylist(), these.to_pylist(), strict=True)
            ]
            same[here[differ]] = False


def write_reused(job: Job, before: PreviousDataset, of_old: Numbers) -> None:
    """Write the table of what a job takes from the dataset `before`, if there is anything.

    `of_old` has the row in the plan before of each row of the job's, -1 where that is new or has
    changed, or its shard is kept as it is: (rows,) int64. Only what is counted sample by sample can
    be taken, and what is made of one record alone, in a file of its own.
    """
    recipe = job.recipe
    if before.manifest.records is not None or recipe.batch_transforms or recipe.models:
        return
    rows = np.flatnonzero(of_old >= 0)
    of_old = of_old[rows]
    names = ("shard", "samples", "rejected", "first_row")
    shard_before, samples, rejected, first_row = (before.units(name)[of_old] for name in names)
    made = (samples > 0) & (rejected == 0)
    if before.layout.roles.objects:
        # else it is not known of which samples they were
        made &= before.state.cut_off[shard_before] == 0
    if not made.any():
        return
    from shardctl.making.shards.previous_samples import REUSED, REUSED_SCHEMA  # few updates

    columns = (rows, of_old, shard_before, samples, first_row)
    rows, of_old, shard_before, samples, first_row = (column[made] for column in columns)
    shard = np.searchsorted(job.first_units, rows, side="right")
    # runs of units that follow each other in both plans
    steps = ((rows, 1), (of_old, 1), (shard, 0), (shard_before, 0))
    follows = np.all([np.diff(column) == step for column, step in steps], axis=0)
    follows &= first_row[1:] == first_row[:-1] + samples[:-1]
    begins = np.flatnonzero(np.concatenate([[True], ~follows]))
    of_runs = (
        rows[begins],
        np.diff(begins, append=len(rows)),
        of_old[begins],
        shard_before[begins],
        np.add.reduceat(samples, begins),
        *before.state.image_sizes[shard_before[begins]].T,
    )
    arrays = [column_of(column.astype(np.int64, copy=False)) for column in of_runs]
    with new_table(job.folder / REUSED, REUSED_SCHEMA) as table:
        table.write_batch(pa.record_batch(arrays, schema=REUSED_SCHEMA))
