"""What an update knows of records without a look at them: those that were rejected, and those that
a person has taken out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.build.convert.previous import Matching, PreviousDataset, rows_of
from shardctl.build.notices import notice
from shardctl.build.plan.listing import Numbers
from shardctl.build.plan.plan import NOT_KEPT
from shardctl.build.shards.job import ANY_UNIT, Job, KnownLine
from shardctl.build.shards.planned import File, PlannedUnit
from shardctl.build.shards.rows import of_several
from shardctl.errors import Rejection
from shardctl.format.tables import PRUNED, PRUNED_BY, open_table
from shardctl.format.update_state import BY_KEY, Pruned, PrunedUnit
from shardctl.sources.files import local_copy
from shardctl.sources.formats import Misfit, Unit, copy_to_read, ending_of, find_format
from shardctl.sources.label_table import some
from shardctl.system.files import replacing
from shardctl.system.folders import LocalFolder
from shardctl.system.text import counted

UNIT_COLUMNS = [*Unit._fields, "digest"]


def write_known(job: Job, before: PreviousDataset, of_old: Numbers | None) -> list[str]:
    """Have a job reject what is known to be rejected, and return warnings. Its tables are written.

    `of_old` has the row of the dataset's plan of each row of the job's, -1 for those that are new
    or have changed; None where all shards are made anew. What was rejected of an unchanged unit of
    a file of many records is rejected again: the plan does not say what was wrong with it.
    """
    job.write_known(chain(_rejected(job, before, of_old), _pruned(job, before)))
    return _warnings(job, before)


def _rejected(job: Job, before: PreviousDataset, of_old: Numbers | None) -> Iterator[KnownLine]:
    """Yield the rejects of unchanged units of files of many records, in the shards that are built
    again."""
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
                yield (
                    row_of[unit],
                    record,
                    reject.stage,
                    reject.error,
                    reject.message.removesuffix(of_several(reject.records)),
                )


def _pruned(job: Job, before: PreviousDataset) -> Iterator[KnownLine]:
    """Yield what was pruned. Records of a file of many records that was written anew cannot be told
    any more."""
    if not before.pruned:
        return
    yield from lines_by_key(before.state.pruned)
    files = [*rows_of(job.files, before.pruned).values()]
    have_their_numbers: dict[str, bool] = {}
    for row in np.flatnonzero(np.isin(job.plan["file"].to_numpy(), files)).tolist():
        planned = job.planned_at(row)
        file = planned.file
        if planned.unit.first and file.path not in have_their_numbers:
            have_their_numbers[file.path] = _has_its_numbers(job, before, file)
        if not planned.unit.first or have_their_numbers[file.path]:
            for record in _of_unit(before, planned):
                yield row, record, *PRUNED_BY


def lines_by_key(pruned: Pruned) -> Iterator[KnownLine]:
    """Yield what has a job reject the records that were pruned by their own keys."""
    yield from ((ANY_UNIT, key, *PRUNED_BY) for source, key in pruned if source == BY_KEY)


def _of_unit(before: PreviousDataset, planned: PlannedUnit) -> Iterator[int | None]:
    """Yield the records of a unit that were pruned; None: the file that is one record."""
    of_file, unit = before.pruned[planned.file.path], planned.unit
    if unit.first == 0:
        yield from [None] if 0 in of_file else []
    else:
        for record in sorted(of_file):
            if unit.first <= record < unit.first + unit.records:
                yield record


def _has_its_numbers(job: Job, before: PreviousDataset, file: File) -> bool:
    """Return whether the pruned records of a file still have their numbers, as far as a look at it
    tells: it is as it was, or what is new comes after them.

    Of a unit of which all is pruned, nothing is known but that.
    """
    row, path = rows_of(before.files, [file.path]).get(file.path), job.path_of(file)
    if row is not None and (file.size, file.mtime_ns) == (
        before.files["size"][row].as_py(),
        before.state.mtime_ns[row],
    ):
        return True
    for unit in filter(None, {*_units_of(before, file.path, row).values()}):
        try:
            copy = local_copy(path, file.mtime_ns)
            copy = copy_to_read(path, ending_of(file.path, copy), file.mtime_ns)
        except (Rejection, OSError):
            return False
        if _digest_of(job, file.path, copy, Unit._make(unit[:-1])) != unit[-1]:
            return False
    return True


def _units_of(before: PreviousDataset, path: str, row: int | None) -> dict[int, PrunedUnit | None]:
    """Return the pruned records of a file, each with its unit, None where that is not known. `row`
    is that of the file, None: it had gone."""
    records = before.pruned[path]
    if row is None:
        return records
    plan = before.plan.take(pa.array(np.flatnonzero(before.units("file") == row)))
    plan = plan.filter(plan["digest"].is_valid()).sort_by("first")
    units = list(zip(*(plan[name].to_pylist() for name in UNIT_COLUMNS), strict=True))
    places = np.searchsorted(
        plan["first"].to_numpy() + plan["records"].to_numpy(), list(records), side="right"
    )
    found = {}
    for (record, known), place in zip(records.items(), places.tolist(), strict=True):
        found[record] = known or next(
            (unit for unit in units[place : place + 1] if unit[3] <= record), None
        )
    return found


def _digest_of(job: Job, path: str, opened: str, unit: Unit) -> int | None:
    """Return the digest of a unit of a file as it is now, None if it has no such unit. Nothing of
    it is parsed."""
    digest, reading, fields = xxhash.xxh3_64(), job.recipe.reading, job.fields
    assert fields is not None, "it is a file of many records"
    try:
        form = find_format(ending_of(path, opened), reading, job.shuffle is not None)
        for _ in form.read(
            opened, unit, reading, fields, lambda numbers: np.zeros(len(numbers), bool), digest
        ):
            pass
    except (Rejection, Misfit, OSError):
        return None
    return digest.intdigest()


def moved_records(job: Job, matching: Matching) -> list[str]:
    """Warn of records that may be in another split than before: the path of their file and their
    number decide."""
    if job.fields is None or job.draw is None or job.draw.by_key or job.draw.group is not None:
        return []
    added, removed, changed = matching.counts
    return [notice("splits-may-change")] if changed or (added and removed) else []


def _unknown(job: Job, before: PreviousDataset) -> dict[str, list[int]]:
    """Return the pruned records that cannot be told any more, by the path of their file: it was
    written anew."""
    if not before.pruned or job.fields is None:
        return {}
    matched = {
        (job.planned_at(unit).file.path, record)
        for unit, reasons in job.known.items()
        for record, reason in reasons.items()
        if unit != ANY_UNIT and reason.error == PRUNED
    }
    paths = rows_of(job.files, before.pruned)
    unknown = {
        path: [record for record in before.pruned[path] if record and (path, record) not in matched]
        for path in paths
    }
    return {path: records for path, records in unknown.items() if records}


def _gone(job: Job, before: PreviousDataset) -> dict[str, dict[int, PrunedUnit | None]]:
    """Return the pruned records of files of many records that have gone now, by the path of the
    file."""
    if job.fields is None:
        return {}
    there, rows = (rows_of(files, before.pruned) for files in (job.files, before.files))
    return {path: _units_of(before, path, row) for path, row in rows.items() if path not in there}


def still_pruned(job: Job, before: PreviousDataset) -> Pruned:
    """Return the records that stay out of a dataset that is brought up to date."""
    unknown = _unknown(job, before)
    gone = {**before.pruned, **_gone(job, before)}
    return {
        (path, record): gone[path][record]
        for path, record in before.state.pruned
        if record not in unknown.get(path, ())
    }


def _warnings(job: Job, before: PreviousDataset) -> list[str]:
    """Say which records may be back, though they were pruned."""
    unknown = {**_unknown(job, before), **_gone(job, before)}
    if not unknown:
        return []
    records = counted(sum(map(len, unknown.values())), "record")
    return [notice("pruned-may-be-back", records=records, files=some(sorted(unknown)))]


def hide_pruned(path: Path, pruned: Pruned) -> None:
    """Leave out of a job's table of files what labels files and annotations say of files that were
    pruned."""
    hidden = pa.array(sorted(source for source, record in pruned if not record), pa.string())
    files = open_table(LocalFolder(path.parent), path.name)
    names = [name for name in ("label", "columns") if name in files.column_names]
    if not len(hidden) or not names:
        return
    import pyarrow.compute as pc

    with (
        replacing(path) as sink,
        pa.ipc.new_file(pa.PythonFile(sink, mode="w"), files.schema) as writer,
    ):
        for batch in files.to_batches():
            gone = np.asarray(pc.is_in(batch.column("path"), value_set=hidden))
            for name in names:
                rows = pa.array(np.arange(batch.num_rows), mask=gone)
                batch = batch.set_column(
                    batch.schema.get_field_index(name), name, batch.column(name).take(rows)
                )
            writer.write_batch(batch)
