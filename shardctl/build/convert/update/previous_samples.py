"""Which samples an update takes from the dataset before, in shards that it builds again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.build.convert.update.previous import PreviousDataset
from shardctl.build.plan.plan import job_table
from shardctl.build.shards.previous_samples import REUSED, REUSED_SCHEMA
from shardctl.format.arrays import column_of
from shardctl.transforms.recipe import Recipe

Numbers = npt.NDArray[np.int64]


def write_reused(
    folder: Path, before: PreviousDataset, recipe: Recipe, shard: Numbers, of_old: Numbers
) -> None:
    """Write the table of what a job takes from the dataset `before`, if there is anything.

    `shard` has the number of its shard for each row of the job's plan, -1 where that is kept as it
    is, and `of_old` its row in the plan before, -1 where it is new or has changed: (rows,) int64
    each. Only what is counted sample by sample can be taken, and what is made of one record alone,
    in a file of its own.
    """
    if before.manifest.records is not None or recipe.batch_transforms or recipe.models:
        return
    rows = np.flatnonzero((shard >= 0) & (of_old >= 0))
    of_old = of_old[rows]
    shard_before = before.units("shard")[of_old]
    made = (before.units("samples")[of_old] > 0) & (before.units("rejected")[of_old] == 0)
    if before.layout.roles.objects:
        # else it is not known of which samples they were
        made &= before.state.cut_off[shard_before] == 0
    rows, of_old = rows[made], of_old[made]
    if len(rows):
        with job_table(folder / REUSED, REUSED_SCHEMA) as table:
            table.write_batch(_runs(before, rows, of_old, shard[rows]))


def _runs(
    before: PreviousDataset, rows: Numbers, of_old: Numbers, shard: Numbers
) -> pa.RecordBatch:
    """Return units, by their rows of both plans and the shards that they go to, as runs of units
    that follow each other."""
    samples, first_row = before.units("samples")[of_old], before.units("first_row")[of_old]
    shard_before = before.units("shard")[of_old]
    follows = (
        (np.diff(rows) == 1)
        & (np.diff(of_old) == 1)
        & (np.diff(shard) == 0)
        & (np.diff(shard_before) == 0)
    )
    follows &= first_row[1:] == first_row[:-1] + samples[:-1]
    begins = np.flatnonzero(np.concatenate([[True], ~follows]))
    columns = (
        rows[begins],
        np.diff(begins, append=len(rows)),
        of_old[begins],
        shard_before[begins],
        np.add.reduceat(samples, begins),
        *before.state.image_sizes[shard_before[begins]].T,
    )
    arrays = [column_of(column.astype(np.int64, copy=False)) for column in columns]
    return pa.record_batch(arrays, schema=REUSED_SCHEMA)
