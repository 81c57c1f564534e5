"""Which inputs came, went or changed since a dataset was made."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.build.convert.update.previous import PreviousDataset
from shardctl.build.plan.listing import CHUNK_ROWS, KnownListing, Listing
from shardctl.format.tables import open_table
from shardctl.sources.label_table import hash_names
from shardctl.system.folders import LocalFolder

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NO_LABEL = np.iinfo(np.int64).min
"""What stands for a missing label where labels are compared."""


@dataclass(frozen=True)
class Matching:
    """The files of a listing beside those of the dataset.

    `before` has the row of each listed file in the dataset's table of files, -1 where it is new,
    and `same` says which of them are as they were, with the same labels and annotations: (files,)
    each. The dataset has `files_before`.
    """

    before: Numbers
    same: Flags
    files_before: int

    @cached_property
    def now(self) -> Numbers:
        """The row in the listing of each of the dataset's files, -1 where it is gone: (files
        before,)."""
        rows = np.full(self.files_before, -1, np.int64)
        known = np.flatnonzero(self.before >= 0)
        rows[self.before[known]] = known
        return rows

    @property
    def added(self) -> int:
        """How many files are new."""
        return int((self.before < 0).sum())

    @property
    def removed(self) -> int:
        """How many files are gone."""
        return self.files_before - len(self.before) + self.added

    @property
    def changed(self) -> int:
        """How many files are there as before, and differ in their content, their labels or their
        annotations."""
        return int(((self.before >= 0) & ~self.same).sum())


def match_files(before: PreviousDataset, listing: Listing, files: Path) -> Matching:
    """Compare a listing with the dataset that is there. `files` is the table that a job would have
    of the listing."""
    if isinstance(listing, KnownListing) and listing.dataset == before.digest:
        rows = listing.before
    else:
        rows = rows_before(before.files, listing)
    now = open_table(LocalFolder(files.parent), files.name)
    same = rows >= 0
    known = np.flatnonzero(same)
    of = rows[known]
    sizes, times, beside = (now[name].to_numpy() for name in ("size", "mtime_ns", "beside"))
    same[known] &= sizes[known] == before.files["size"].to_numpy()[of]
    same[known] &= times[known] == before.state.mtime_ns[of]
    same[known] &= beside[known] == before.state.beside[of]
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


def _compare_faults(before: PreviousDataset, now: pa.Table, rows: Numbers, same: Flags) -> None:
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
            same[row] = (now["error"][row].as_py(), now["message"][row].as_py()) == (
                reject.error,
                reject.message,
            )
        elif reject.stage == "read" and reject.error in PASSING:
            same[row] = False


def rows_before(files: pa.Table, listing: Listing) -> Numbers:
    """Return the row of each listed file in a dataset's table of files, -1 for none: files are
    known by their paths."""
    hashes = np.empty(files.num_rows, np.uint64)
    place = 0
    for batch in files.select(["path"]).to_batches(max_chunksize=CHUNK_ROWS):
        hashes[place : place + batch.num_rows] = hash_names(batch.column(0).to_pylist())
        place += batch.num_rows
    rows = np.full(len(listing), -1, np.int64)
    if not len(hashes):
        return rows
    import pyarrow.compute as pc

    order = np.argsort(hashes, kind="stable")
    found = np.minimum(np.searchsorted(hashes[order], listing.hashes), len(hashes) - 1)
    alike = hashes[order][found] == listing.hashes
    rows[alike] = order[found[alike]]
    # Different paths may have the same hash, once in many million years; such a file counts as a
    # new one.
    paths = files["path"]
    for start in range(0, len(rows), CHUNK_ROWS):
        here = start + np.flatnonzero(rows[start : start + CHUNK_ROWS] >= 0)
        low, high = _range_of(rows[here])
        taken = paths.slice(low, high - low).take(pa.array(rows[here] - low))
        differ = np.asarray(
            pc.not_equal(taken, listing.table["path"].take(pa.array(here))).combine_chunks()
        )
        rows[here[differ]] = -1
    return rows


def _range_of(rows: Numbers) -> tuple[int, int]:
    """Return the first of some rows and the one behind the last: neighbours now were mostly
    neighbours before."""
    return (int(rows.min()), int(rows.max()) + 1) if len(rows) else (0, 0)


def _labels(files: pa.Table) -> Numbers:
    """Return the labels of files, (files,) int64."""
    if "label" not in files.column_names:
        return np.full(files.num_rows, NO_LABEL)
    column = files["label"]
    if column.null_count:  # to fill them imports pyarrow.compute: 25 to 40 ms
        column = column.fill_null(NO_LABEL)
    labels: Numbers = column.to_numpy()
    return labels


def _compare_columns(
    now: pa.ChunkedArray, before: pa.ChunkedArray, rows: Numbers, same: Flags
) -> None:
    """Clear the flags of files of which labels files and annotations say something else than
    before."""
    for start in range(0, len(rows), CHUNK_ROWS):
        here = start + np.flatnonzero(same[start : start + CHUNK_ROWS])
        low, high = _range_of(rows[here])
        then = before.slice(low, high - low).take(pa.array(rows[here] - low))
        these = now.slice(start, CHUNK_ROWS).take(pa.array(here - start))
        # NaN, too, is another value for Arrow, and the same text for Python
        if not then.equals(these):
            differ = [
                str(one) != str(other)
                for one, other in zip(then.to_pylist(), these.to_pylist(), strict=True)
            ]
            same[here[differ]] = False
