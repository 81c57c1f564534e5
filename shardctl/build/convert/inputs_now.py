"""The inputs of a dataset as they are now: those that were listed, without the ones that are gone, and the ones that came."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.build.plan.listing import CHUNK_ROWS
from shardctl.format.arrays import column_of
from shardctl.sources.rechecking import Changed, Listed
from shardctl.sources.walk import FoundFile
from shardctl.system.dataclass import dataclass

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Now:
    """Inputs in the order of a walk. `table` has the `path` and the `root` of each, in batches of CHUNK_ROWS rows.

    `rows` has the row of each in the dataset's table, -1 for one that came: (n,), as `sizes` and `mtime_ns`. They lie in these
    `folders`, so many one after the other in each.
    """

    table: pa.Table
    rows: Numbers
    sizes: Numbers
    mtime_ns: Numbers
    folders: list[tuple[str, int]]

    def __len__(self) -> int:
        return len(self.rows)

    def paths(self, first: int, count: int) -> list[str]:
        """Return the paths of `count` files."""
        return list(self.table["path"].slice(first, count).to_pylist())


def inputs_now(listed: Listed, folders: Sequence[tuple[str, int]]) -> Now:
    """Return the inputs as they are now. `folders` were walked, and so many of the listed files are in each."""
    sizes, times = np.from_dlpack(listed.table["size"].combine_chunks()).astype(np.int64, copy=False), listed.mtime_ns
    changed = listed.changed or Changed()
    if changed.rows:
        sizes, times = sizes.copy(), times.copy()
        sizes[changed.rows], times[changed.rows] = changed.sizes, changed.mtimes_ns
    if not changed.are_others:
        there = [(folder, count) for folder, count in folders if count]
        return Now(listed.table.select(["path", "root"]), np.arange(len(listed)), sizes, times, there)
    order, there = _merged(listed, folders, changed)
    came = order < 0
    rows, files = np.where(came, -1, order), [changed.added[-1 - each] for each in order[came].tolist()]
    sizes, times = sizes[rows], times[rows]
    sizes[came], times[came] = [file.size for file in files], [file.mtime_ns for file in files]
    return Now(_table(listed, order, changed.added), rows, sizes, times, there)


def _merged(listed: Listed, folders: Sequence[tuple[str, int]], changed: Changed) -> tuple[Numbers, list[tuple[str, int]]]:
    """Return the rows of all inputs in the order of a walk, and the folders that have some.

    A row of -1 stands for the first file that came, -2 for the second.
    """
    stays = np.ones(len(listed), bool)
    stays[changed.gone] = False
    added: dict[str, list[int]] = defaultdict(list)
    for number, file in enumerate(changed.added):
        added[file.folder].append(number)
    parts, there, first = [np.empty(0, np.int64)], list[tuple[str, int]](), 0
    paths = listed.table["path"]
    for folder, count in folders:
        rows = first + np.flatnonzero(stays[first : first + count])
        if new := sorted(added.get(folder, ()), key=lambda number: changed.added[number].path):
            places = [bisect_left(rows, changed.added[each].path, key=lambda row: paths[int(row)].as_py()) for each in new]
            rows = np.insert(rows, places, [-1 - each for each in new])
        parts.append(rows)
        if len(rows):
            there.append((folder, len(rows)))
        first += count
    return np.concatenate(parts), there


def _paths_at(listed: Listed, rows: Numbers) -> Iterator[str]:
    """Yield the paths of listed files, given their rows in order: few of many may be wanted, and not all are read at once."""
    for some in np.split(rows, np.flatnonzero(np.diff(rows // CHUNK_ROWS)) + 1):
        if len(some):
            first = int(some[0])
            paths = listed.paths(first, int(some[-1]) + 1 - first)
            yield from (paths[row - first] for row in some.tolist())


def _table(listed: Listed, order: Numbers, added: Sequence[FoundFile]) -> pa.Table:
    schema, batches = pa.schema([("path", pa.string()), ("root", pa.int32())]), []
    roots = np.append(listed.table["root"].to_numpy(), np.int32(0))  # those that came are below the first source
    for start in range(0, len(order), CHUNK_ROWS):
        rows = order[start : start + CHUNK_ROWS]
        known = _paths_at(listed, rows[rows >= 0])
        paths = [next(known) if row >= 0 else added[-1 - row].path for row in rows.tolist()]
        batches.append(pa.record_batch([pa.array(paths, pa.string()), column_of(roots[np.maximum(rows, -1)])], schema=schema))
    return pa.Table.from_batches(batches, schema)
