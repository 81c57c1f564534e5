"""What an update knows of records without a look at them: those that were rejected, and those that a person has taken out."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.conversion.updating.before import Before
from shardctl.engines.builder import of_several
from shardctl.engines.job import KNOWN, Job, Planned
from shardctl.plan import NOT_KEPT
from shardctl.storage import counted, naming_the_path, printable, replacing
from shardctl.tables import FILES, Reject

Numbers = npt.NDArray[np.int64]

Line = tuple[int, int | None, str, str, str]
"""A line of known.jsonl: the row of the plan, the record (None: all of them), and the reason."""


def write_known(job: Job, before: Before, of_old: Numbers | None) -> list[str]:
    """Have a job reject what is known to be rejected, and return warnings. Its tables are written.

    `of_old` has the row of the dataset's plan of each row of the job's, -1 for those that are new or have changed; None where
    all shards are made anew. What was rejected of an unchanged unit of a file of many records is rejected again: the plan does
    not say what was wrong with it.
    """
    lines = [*_rejected(job, before, of_old), *_pruned(job, before)]
    if lines:
        with naming_the_path(job.folder), replacing(job.folder / KNOWN) as sink:
            for line in lines:
                sink.write(json.dumps(line).encode() + b"\n")
    return _warnings(job, before)


def _rejected(job: Job, before: Before, of_old: Numbers | None) -> Iterator[Line]:
    """Yield the rejects of unchanged units of files of many records, in the shards that are built again."""
    if of_old is None or job.fields is None:
        return
    rows = np.flatnonzero(of_old >= 0)
    shard = np.searchsorted(job.first_units, rows, side="right") - 1
    rows = rows[job.kept[shard] == NOT_KEPT]
    row_of = dict(zip(of_old[rows].tolist(), rows.tolist(), strict=True))
    samples = before.units("samples")
    for unit, rejects in before.rejects_of_units():
        if unit in row_of:
            whole = samples[unit] == 0 and not job.recipe.joins
            for reject in rejects[:1] if whole or rejects[0].records > 1 else rejects:
                record = None if whole or reject.records > 1 else reject.number
                yield row_of[unit], record, reject.stage, reject.error, reject.message.removesuffix(of_several(reject.records))


def _pruned(job: Job, before: Before) -> Iterator[Line]:
    """Yield what was pruned. Records of a file of many records that has changed cannot be told any more."""
    if not before.pruned:
        return
    files = _files_of(job, before)
    for row in np.flatnonzero(np.isin(job.plan["file"].to_numpy(), files)).tolist():
        planned = job.planned_at(row)
        for record, reject in _of_unit(before, planned):
            yield row, record, reject.stage, reject.error, reject.message


def _files_of(job: Job, before: Before) -> Numbers:
    """Return the rows of the table of files of which something was pruned."""
    paths = job.files["path"].combine_chunks()
    found: Numbers = np.flatnonzero(np.asarray(pc.is_in(paths, value_set=pa.array(sorted(before.pruned), pa.string()))))
    return found


def _of_unit(before: Before, planned: Planned) -> Iterator[tuple[int | None, Reject]]:
    """Yield the records of a unit that were pruned; None: the file that is one record."""
    of_file, unit = before.pruned[planned.file.path], planned.unit
    if unit.first == 0:
        if 0 in of_file:
            yield None, of_file[0]
        return
    for record in sorted(of_file) if _is_same(before, planned.file.path, planned.file.size, planned.file.mtime_ns) else ():
        if unit.first <= record < unit.first + unit.records:
            yield record, of_file[record]


def _is_same(before: Before, path: str, size: int, mtime_ns: int) -> bool:
    return before.stat_of(path) == (size, mtime_ns)


def _warnings(job: Job, before: Before) -> list[str]:
    """Say which records may be back, though they were pruned."""
    changed = []
    for row in _files_of(job, before).tolist() if before.pruned else ():
        path, size, mtime_ns = (job.files[name][row].as_py() for name in ("path", "size", "mtime_ns"))
        if 0 not in before.pruned[path] and not _is_same(before, path, size, mtime_ns):
            changed.append(path)
    if not changed:
        return []
    of = f"{printable(changed[0])} and others" if len(changed) > 1 else printable(changed[0])
    back = sum(len(before.pruned[path]) for path in changed)
    return [f"{counted(back, 'record')} of {of} had been pruned, and may be back, since the file has changed; prune again"]


def hide_pruned(job: Job, before: Before) -> None:
    """Leave out of a job's table of files what labels files and annotations say of files that were pruned."""
    hidden = {path for path, records in before.pruned.items() if 0 in records}
    names = [name for name in ("label", "columns") if name in job.files.column_names]
    if not hidden or not names:
        return
    values = pa.array(sorted(hidden), pa.string())
    with replacing(job.folder / FILES) as sink, pa.ipc.new_file(pa.PythonFile(sink, mode="w"), job.files.schema) as writer:
        for batch in job.files.to_batches():
            gone = np.asarray(pc.is_in(batch.column("path"), value_set=values))
            for name in names:
                rows = pa.array(np.arange(batch.num_rows), mask=gone)
                batch = batch.set_column(batch.schema.get_field_index(name), name, batch.column(name).take(rows))
            writer.write_batch(batch)
    del vars(job)["files"]  # it was read before
