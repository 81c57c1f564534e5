"""Samples that a person has taken out of a dataset, and that no update brings back."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.conversion.updating.before import Before
from shardctl.engines.job import KNOWN, Job
from shardctl.storage import counted, naming_the_path, printable, replacing
from shardctl.tables import Reject


def write_pruned(job: Job, before: Before) -> list[str]:
    """Have a job reject what was pruned, and return notices. Its tables are written, and its sources may have changed.

    Records of a file that has changed since cannot be told any more.
    """
    if not before.pruned:
        return []
    paths, sizes, times = (job.files[name] for name in ("path", "size", "mtime_ns"))
    files = np.flatnonzero(np.asarray(pc.is_in(paths.combine_chunks(), value_set=pa.array(sorted(before.pruned)))))
    rows = np.flatnonzero(np.isin(job.plan["file"].to_numpy(), files)).tolist()
    then = {str(paths[file].as_py()): (sizes[file].as_py(), times[file].as_py()) for file in files.tolist()}
    same = {path for path, stat in then.items() if before.stat_of(path) == stat}
    with naming_the_path(job.folder), replacing(job.folder / KNOWN) as sink:
        for row in rows:
            planned = job.planned_at(row)
            of_file = before.pruned[planned.file.path]
            for record, reject in _of_unit(of_file, planned.unit.first, planned.unit.records, planned.file.path in same):
                sink.write(json.dumps([row, record, reject.stage, reject.error, reject.message]).encode() + b"\n")
    changed = sorted(path for path in then if path not in same and 0 not in before.pruned[path])
    back = sum(len(before.pruned[path]) for path in changed)
    if not back:
        return []
    of = f"{printable(changed[0])} and others" if len(changed) > 1 else printable(changed[0])
    return [f"{counted(back, 'record')} of {of} had been pruned, and may be back: the file has changed; prune again"]


def _of_unit(of_file: dict[int, Reject], first: int, records: int, same: bool) -> Iterator[tuple[int | None, Reject]]:
    """Yield the records of a unit that were pruned; None: the file that is one record."""
    if first == 0:
        if 0 in of_file:
            yield None, of_file[0]
        return
    for record in sorted(of_file) if same else ():
        if first <= record < first + records:
            yield record, of_file[record]
