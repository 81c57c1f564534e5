"""What an update knows of records without a look at them: those that were rejected, and those that a person has taken out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from shardctl.build.convert.update.match import Matching
from shardctl.build.convert.update.previous import PreviousDataset
from shardctl.build.plan.listing import Listing
from shardctl.build.plan.plan import NOT_KEPT
from shardctl.build.shards.job import KNOWN, Job
from shardctl.build.shards.planned import File, PlannedUnit
from shardctl.build.shards.reject_writer import of_several
from shardctl.errors import Rejection
from shardctl.format.names import FILES
from shardctl.format.tables import PRUNED, UNIT_FIELDS, Reject
from shardctl.format.update_state import Pruned
from shardctl.sources.companions import copy_to_read
from shardctl.sources.endings import ending_of
from shardctl.sources.files import local_copy
from shardctl.sources.formats import Misfit, Unit, find_format
from shardctl.sources.label_table import some
from shardctl.system.files import naming_the_path, replacing
from shardctl.system.text import counted, printable

Numbers = npt.NDArray[np.int64]

Line = tuple[int, int | None, str, str, str]
"""A line of known.jsonl: the row of the plan, the record (None: all of them), and the reason."""


def write_known(job: Job, before: PreviousDataset, of_old: Numbers | None) -> list[str]:
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


def _rejected(job: Job, before: PreviousDataset, of_old: Numbers | None) -> Iterator[Line]:
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


def _pruned(job: Job, before: PreviousDataset) -> Iterator[Line]:
    """Yield what was pruned. Records of a file of many records that was written anew cannot be told any more."""
    if not before.pruned:
        return
    numbers = _Numbers(job, before)
    for row in np.flatnonzero(np.isin(job.plan["file"].to_numpy(), _files_of(job, before))).tolist():
        planned = job.planned_at(row)
        for record, reject in _of_unit(before, planned, numbers):
            yield row, record, reject.stage, reject.error, reject.message


def _files_of(job: Job, before: PreviousDataset) -> Numbers:
    """Return the rows of the table of files of which something was pruned."""
    import pyarrow.compute as pc  # 40 ms to import, and most conversions update nothing

    paths = job.files["path"].combine_chunks()
    found: Numbers = np.flatnonzero(np.asarray(pc.is_in(paths, value_set=pa.array(sorted(before.pruned), pa.string()))))
    return found


def _of_unit(before: PreviousDataset, planned: PlannedUnit, numbers: _Numbers) -> Iterator[tuple[int | None, Reject]]:
    """Yield the records of a unit that were pruned; None: the file that is one record."""
    of_file, unit = before.pruned[planned.file.path], planned.unit
    if unit.first == 0:
        if 0 in of_file:
            yield None, of_file[0]
        return
    for record in sorted(of_file) if numbers.hold(planned.file) else ():
        if unit.first <= record < unit.first + unit.records:
            yield record, of_file[record]


class _Numbers:
    """Whether the pruned records of a file still have their numbers: it is as it was, or what is new comes after them."""

    def __init__(self, job: Job, before: PreviousDataset) -> None:
        self._job, self._before = job, before
        self._known: dict[str, bool] = {}

    def hold(self, file: File) -> bool:
        """Return whether they do, as far as a look at the file tells."""
        if file.path not in self._known:
            same = self._before.stat_of(file.path) == (file.size, file.mtime_ns)
            rows = [] if same else list(self._rows_of(file.path))  # none: the file had gone
            self._known[file.path] = same or (bool(rows) and all(self._reads_as_before(file, row) for row in rows))
        return self._known[file.path]

    def _rows_of(self, path: str) -> Iterator[int]:
        """Yield the rows of the plan before of the units in which records of a file were pruned."""
        import pyarrow.compute as pc

        row = pc.index(self._before.files["path"], path).as_py()
        units = np.flatnonzero(self._before.units("file") == row) if row >= 0 else np.empty(0, np.int64)
        first, count = (self._before.units(name)[units] for name in ("first", "records"))
        records = np.array(sorted(self._before.pruned[path]))
        pruned = np.searchsorted(records, first + count) > np.searchsorted(records, first)
        yield from units[pruned].tolist()

    def _reads_as_before(self, file: File, row: int) -> bool:
        """Return whether a file still has the unit that is this row of the plan before, where it was."""
        path = self._job.path_of(file)
        with contextlib.suppress(Rejection, OSError):
            copy = local_copy(path, file.mtime_ns)
            copy = copy_to_read(path, ending_of(file.path, copy), file.mtime_ns)
            (planned,) = self._before.plan.slice(row, 1).to_pylist()
            return bool(_digest_of(self._job, file.path, copy, _unit_of(planned)) == planned["digest"])
        return False


def _unit_of(planned: dict[str, Any]) -> Unit:
    return Unit._make(planned[name] for name, _ in UNIT_FIELDS[1:])


def _digest_of(job: Job, path: str, opened: str, unit: Unit) -> int | None:
    """Return the digest of a unit of a file as it is now, None if it has no such unit. Nothing of it is parsed."""
    digest, reading, fields = xxhash.xxh3_64(), job.recipe.reading, job.fields
    assert fields is not None, "it is a file of many records"
    try:
        form = find_format(ending_of(path, opened), reading, job.shuffle is not None)
        for _ in form.read(opened, unit, reading, fields, lambda numbers: np.zeros(len(numbers), bool), digest):
            pass
    except (Rejection, Misfit, OSError):
        return None
    return digest.intdigest()


def moved_records(job: Job, listing: Listing, matching: Matching) -> list[str]:
    """Warn of records that may be in another split than before: the path of their file and their number decide."""
    if job.fields is None or job.draw is None or job.draw.by_key or job.draw.group is not None:
        return []
    which = []
    if len(rows := np.flatnonzero((matching.before >= 0) & ~matching.same)):
        which.append(f"after the first change in {some(listing.paths_at(rows))}")
    if matching.removed and matching.added:
        which.append(f"of files with another name ({matching.removed:,} gone, {matching.added:,} new)")
    return [
        f"a record's file and number decide its split: those {what} may now be in another split, for instance in train and"
        " not in val any more. With --key-field each record keeps its split"
        for what in which
    ]


def _unknown(job: Job, before: PreviousDataset) -> dict[str, list[int]]:
    """Return the pruned records that cannot be told any more, by the path of their file: it was written anew."""
    if not before.pruned or job.fields is None:
        return {}
    matched = {
        (job.planned_at(unit).file.path, record)
        for unit, reasons in job.known.items()
        for record, reason in reasons.items()
        if reason.error == PRUNED
    }
    paths = job.files["path"].take(pa.array(_files_of(job, before))).to_pylist()
    unknown = {path: [record for record in before.pruned[path] if record and (path, record) not in matched] for path in paths}
    return {path: records for path, records in unknown.items() if records}


def still_pruned(job: Job, before: PreviousDataset) -> Pruned:
    """Return the records that stay out of a dataset that is brought up to date."""
    gone = {(path, record) for path, records in _unknown(job, before).items() for record in records}
    return {each for each in before.state.pruned if each not in gone}


def _warnings(job: Job, before: PreviousDataset) -> list[str]:
    """Say which records may be back, though they were pruned."""
    unknown = _unknown(job, before)
    if not unknown:
        return []
    first = printable(min(unknown))
    of = f"{first} and others" if len(unknown) > 1 else first
    back = counted(sum(map(len, unknown.values())), "record")
    return [f"{back} of {of} had been pruned, and may be back, since the file was written anew; prune again"]


def hide_pruned(job: Job, before: PreviousDataset) -> None:
    """Leave out of a job's table of files what labels files and annotations say of files that were pruned."""
    hidden = {path for path, records in before.pruned.items() if 0 in records}
    names = [name for name in ("label", "columns") if name in job.files.column_names]
    if not hidden or not names:
        return
    import pyarrow.compute as pc

    values = pa.array(sorted(hidden), pa.string())
    with replacing(job.folder / FILES) as sink, pa.ipc.new_file(pa.PythonFile(sink, mode="w"), job.files.schema) as writer:
        for batch in job.files.to_batches():
            gone = np.asarray(pc.is_in(batch.column("path"), value_set=values))
            for name in names:
                rows = pa.array(np.arange(batch.num_rows), mask=gone)
                batch = batch.set_column(batch.schema.get_field_index(name), name, batch.column(name).take(rows))
            writer.write_batch(batch)
    del vars(job)["files"]  # it was read before
