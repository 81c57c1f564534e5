"""Samples of the dataset before that an update takes as they are, where it builds their shard again
for the sake of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.format.arrays import Numbers
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.dataset_tables import DatasetTables
from shardctl.format.shard import exactly
from shardctl.format.shard_copy import Run, RunReader
from shardctl.format.tables import open_table
from shardctl.system.folders import LocalFolder
from shardctl.transforms.picture import Shape

REUSED = "reused.arrow"
"""In the folder of a job: which of its units are made already (REUSED_SCHEMA). Not there if none
is."""

REUSED_SCHEMA = pa.schema(
    (name, pa.int64())
    for name in ("first_unit", "units", "before", "shard", "rows", "height", "width")
)
"""A row for units of a job that follow each other and whose samples do so, too, in the dataset
before.

There they are the units from `before` on, and their samples are `rows` rows of the `shard` with
this number. `height` and `width` are those of all images of that shard; 0 if they differ, or if
there are none. Rows are in the order of `first_unit`; none has units of two shards.
"""


@dataclass(frozen=True)
class PreviousUnits:
    """Units of a job that are made already, from that with the `number` on.

    `samples` has the number of samples of each, and `digests` stand for what was read: (units,).
    `shape` is that of their images where it is known that it is the same. `batches` yields the samples, block by block, given the columns that they
    must have; it raises DatasetError if they are damaged, or have others.
    """

    number: int
    samples: Numbers
    digests: list[int | None]
    shape: Shape | None
    batches: Callable[[pa.Schema], Iterator[pa.RecordBatch]]

    @property
    def end(self) -> int:
        """The unit behind the last one."""
        return self.number + len(self.samples)


class PreviousSamples:
    """What a job takes from the dataset before, which is at `root`. `path` is that of the table."""

    def __init__(self, path: Path, root: Path) -> None:
        self._table = open_table(LocalFolder(path.parent), path.name, REUSED_SCHEMA)
        self._before = DatasetTables(dataset_in(root))
        self._reader = RunReader()
        self._first_units: Numbers = self._table["first_unit"].to_numpy()
        # rows are read where they are, in mapped files
        self._in_place = self._before.manifest.recipe.get("compression") == "none"

    def units(self, first: int, units: int) -> Iterator[PreviousUnits]:
        """Yield the units of a shard that are made already, which has so many units of the job from
        `first` on."""
        start, end = np.searchsorted(self._first_units, [first, first + units]).tolist()
        rows = self._table.slice(start, end - start).to_pylist()
        for shard, of_shard in groupby(rows, itemgetter("shard")):
            entry = self._before.shards[shard]
            part = self._before.plan.slice(entry.first_unit, entry.units)
            first_row, samples = part["first_row"].to_numpy(), part["samples"].to_numpy()
            digests = part["digest"].to_pylist()
            for row in of_shard:
                begin = row["before"] - entry.first_unit
                places = slice(begin, begin + row["units"])
                run = Run(self._before.folder, entry, int(first_row[begin]), row["rows"])
                shape = (row["height"], row["width"], 3) if row["height"] else None
                number, batches = row["first_unit"], partial(self._batches, run)
                yield PreviousUnits(number, samples[places], digests[places], shape, batches)

    def _batches(self, run: Run, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        if not self._reader.shard(run).layout.columns.equals(columns):
            raise DatasetError(
                f"{run.folder.shown(run.entry.path)}: has other columns than the dataset"
            )
        for rows, whole in self._reader.pieces(run):
            # A few rows would keep all of a decompressed block in memory, with as many blocks as
            # there are runs of units.
            yield rows if whole or self._in_place else exactly(rows)
