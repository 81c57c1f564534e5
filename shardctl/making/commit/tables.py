"""The tables of a generation that is made, shard by shard in the order of the dataset."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.format.arrays import Numbers, column_of
from shardctl.format.counts import JpegRecord
from shardctl.format.manifest import SplitFacts, sum_up
from shardctl.format.names import REJECTS, SHARDS, UPDATE, Json
from shardctl.format.tables import PLAN_SCHEMA, Making, ShardEntry, ShardSpool
from shardctl.format.update_state import Pruned, ShardCounts, UpdateWriter
from shardctl.making.plan.plan import plan_table
from shardctl.system.files import replacing

Update = tuple[pa.Table, Pruned]
"""What update.arrows says beside the counts of shards: when the files were changed last
(FILE_STATES_SCHEMA), with what stands for files beside them, and what was pruned."""


@contextmanager
def writing_tables(folder: Path, spool: Path, update: Update | None) -> Iterator[TableWriter]:
    """Yield what writes all tables of a generation into its folder but files.arrow. Without an
    `update` there is no update.arrows. `spool` is a folder for what is kept for a while."""
    with ShardSpool(spool) as shards, ExitStack() as files:
        yield TableWriter(folder, shards, files, update)


class TableWriter:
    """Takes the shards of a generation in the order of the dataset."""

    def __init__(
        self, folder: Path, shards: ShardSpool, files: ExitStack, update: Update | None
    ) -> None:
        self._folder, self._shards, self._files, self._count = folder, shards, files, 0
        self._totals = defaultdict[str, Numbers](lambda: np.zeros(5, np.int64))
        self._rejects = files.enter_context(replacing(folder / REJECTS))
        self._add_units = files.enter_context(plan_table(folder, PLAN_SCHEMA))
        self._update = None
        if update is not None:
            self._sink = files.enter_context(replacing(folder / UPDATE))
            self._update = UpdateWriter(self._sink, *update)

    def add(
        self, entry: ShardEntry, units: Any, lines: Iterable[bytes], counts: ShardCounts
    ) -> None:
        """Add a shard. `units` has the columns of its rows of plan.arrow, by their names, but for
        the number of the shard; `lines` are those of rejects.jsonl."""
        number = column_of(np.full(entry.units, self._count, np.int32))
        columns = [number if name == "shard" else units[name] for name in PLAN_SCHEMA.names]
        self._add_units(pa.table(columns, schema=PLAN_SCHEMA))
        for line in lines:
            self._rejects.write(line)
        if self._update is not None:
            self._update.add(counts)
        self._shards.add(entry)
        self._totals[entry.split] += (entry.inputs, entry.rejected, entry.rows, 1, entry.bytes)
        self._count += 1

    def finish(
        self, splits: Iterable[str], making: Making, jpegs: JpegRecord | None, own: Sequence[str]
    ) -> Json:
        """Complete them, and return what the manifest says of them, by the names of its fields.
        `splits` are all there are. `own` are the names of more files in the folder: those that the
        recipe depends on."""
        if self._update is not None:
            self._update.finish()
        self._files.close()
        self._shards.write_table(self._folder / SHARDS, making, jpegs)
        of_splits = [(name, self._totals[name].tolist()) for name in splits]
        inputs, rejected, *sums = np.sum([*self._totals.values()], axis=0).tolist()
        return {
            "inputs": inputs,
            "rejected": rejected,
            **dict(zip(("samples", "shards", "bytes"), sums, strict=True)),
            "splits": tuple(SplitFacts(name, *totals[2:]) for name, totals in of_splits),
            "files": sum_up(self._folder, self._shards.sums(), own),
            "update": None if self._update is None else self._sink.facts,
        }
