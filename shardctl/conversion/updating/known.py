"""What an update knows of records without a look at them: those that were rejected, and those that a person has taken out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from shardctl.conversion.updating.before import Before
from shardctl.conversion.updating.matching import Matching
from shardctl.engines.builder import of_several
from shardctl.engines.job import KNOWN, File, Job, Planned
from shardctl.errors import Rejection
from shardctl.listing import Listing
from shardctl.plan import NOT_KEPT
from shardctl.seen import Pruned
from shardctl.sources.brought import is_brought, local
from shardctl.sources.endings import ending_of
from shardctl.sources.formats import Misfit, Unit, find_format
from shardctl.sources.labels import some
from shardctl.storage import counted, naming_the_path, printable, replacing
from shardctl.tables import FILES, PRUNED, UNIT_FIELDS, Reject

Numbers = npt.NDArray[np.int64]

COMPARED_BYTES = 256 << 20
"""Bytes of changed files that are compared, at most, to know which of their records may have moved: less than a second."""

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
    """Yield what was pruned. Records of a file of many records that was written anew cannot be told any more."""
    if not before.pruned:
        return
    numbers = _Numbers(job, before)
    for row in np.flatnonzero(np.isin(job.plan["file"].to_numpy(), _files_of(job, before))).tolist():
        planned = job.planned_at(row)
        for record, reject in _of_unit(before, planned, numbers):
            yield row, record, reject.stage, reject.error, reject.message


def _files_of(job: Job, before: Before) -> Numbers:
    """Return the rows of the table of files of which something was pruned."""
    paths = job.files["path"].combine_chunks()
    found: Numbers = np.flatnonzero(np.asarray(pc.is_in(paths, value_set=pa.array(sorted(before.pruned), pa.string()))))
    return found


def _of_unit(before: Before, planned: Planned, numbers: _Numbers) -> Iterator[tuple[int | None, Reject]]:
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

    def __init__(self, job: Job, before: Before) -> None:
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
        row = pc.index(self._before.files["path"], path).as_py()
        units = np.flatnonzero(self._before.units("file") == row) if row >= 0 else np.empty(0, np.int64)
        first, count = (self._before.units(name)[units] for name in ("first", "records"))
        records = np.array(sorted(self._before.pruned[path]))
        pruned = np.searchsorted(records, first + count) > np.searchsorted(records, first)
        yield from units[pruned].tolist()

    def _reads_as_before(self, file: File, row: int) -> bool:
        path = self._job.path_of(file)
        with contextlib.suppress(Rejection, OSError):
            local(path, file.mtime_ns)
            return _reads_as_before(self._job, self._before, file.path, path, row)
        return False


def _reads_as_before(job: Job, before: Before, path: str, opened: str, row: int) -> bool:
    """Return whether a file still has the unit that is this row of the plan before, where it was. Nothing of it is parsed."""
    (planned,) = before.plan.slice(row, 1).to_pylist()
    unit, digest = Unit._make(planned[name] for name, _ in UNIT_FIELDS[1:]), xxhash.xxh3_64()
    reading, fields = job.recipe.reading, job.fields
    assert fields is not None, "it is a file of many records"
    try:
        form = find_format(ending_of(path, opened), reading, job.shuffle is not None)
        for _ in form.read(opened, unit, reading, fields, lambda numbers: np.zeros(len(numbers), bool), digest):
            pass
    except (Rejection, Misfit, OSError):
        return False
    return bool(digest.intdigest() == planned["digest"])


def moved_records(job: Job, before: Before, listing: Listing, matching: Matching) -> list[str]:
    """Warn of records that may be in another split than before: the path of their file and their number decide.

    Those before the first change in a file still have their numbers, as far as `_same_records` compares.
    """
    if job.draw is None or job.draw.by_key:
        return []
    rows = np.flatnonzero((matching.before >= 0) & ~matching.same)
    units, left, moved, records = _UnitsOfFiles(before), COMPARED_BYTES, 0, 0
    paths: list[str] = []
    for row, file in zip(rows.tolist(), matching.before[rows].tolist(), strict=True):
        whole, same, compared = _same_records(job, before, listing, row, units, units.of(file), left)
        left -= compared
        if same < whole:
            paths += listing.paths_at(np.array([row]))
            moved, records = moved + whole - same, records + whole
    renamed = _renamed(job, before, listing, matching, units)
    after = (
        "may now be in another split, for instance in train and not in val any more. With --key-field each record keeps its"
        " split"
    )
    warnings = []
    if renamed:
        count = sum(count for *_, count in renamed)
        pairs = [f"{now} (before: {path})" for path, now, _ in renamed]
        warnings.append(
            f"{some(pairs)} {'has' if len(pairs) == 1 else 'have'} another name, and names decide the split of"
            f" records: {counted(count, 'record')} {after}"
        )
    if not paths:
        return warnings
    have, its = ("has", "its") if len(paths) == 1 else ("have", "their")
    said = f"{some(paths)} {have} changed, and the numbers of {its} records decide their split: {moved:,} of"
    return [*warnings, f"{said} {counted(records, 'record')} {after}"]


def _renamed(
    job: Job, before: Before, listing: Listing, matching: Matching, units: _UnitsOfFiles
) -> list[tuple[str, str, int]]:
    """Return files that have another name now: the path before, the one now, and how many records it had.

    They have the size of a file that is gone, and begin as it did. Files on a store are not looked at.
    """
    files = np.flatnonzero(matching.now < 0)
    gone = dict(zip(before.files["size"].to_numpy()[files].tolist(), files.tolist(), strict=True))
    new = (matching.before < 0) & np.isin(listing.table["size"].to_numpy(), list(gone))
    found = []
    for row in np.flatnonzero(new).tolist():
        entry = listing.table.slice(row, 1).to_pylist()[0]
        opened, rows = listing.opened(entry), units.of(gone.get(entry["size"], -1))
        if len(rows) and not is_brought(opened) and _reads_as_before(job, before, entry["path"], opened, int(rows[0])):
            path = before.files["path"][gone[entry["size"]]].as_py()
            found.append((path, entry["path"], int(units.last[rows[-1]])))
    return found


def _same_records(
    job: Job, before: Before, listing: Listing, row: int, units: _UnitsOfFiles, rows: Numbers, most: int
) -> tuple[int, int, int]:
    """Return how many records a file had, how many of these are still at its beginning, and how many bytes were compared.

    `row` is that of the file in the listing, and `rows` are those of its units in the plan before. At most `most` bytes are
    compared, and none of a file on a store.
    """
    ends, sizes = units.last[rows], units.size[rows]
    whole, same, compared = int(ends[-1]) if len(ends) else 0, 0, 0
    path, opened = listing.paths_at(np.array([row]))[0], listing.opened(listing.table.slice(row, 1).to_pylist()[0])
    last = len(rows) - 1
    for place in (last, *range(last)) if len(rows) and not is_brought(opened) else ():  # most files only grow at their end
        compared += int(sizes[place])
        if compared > most:
            break
        if _reads_as_before(job, before, path, opened, int(rows[place])):
            same = int(ends[place])
        elif place < last:
            break
        if same == whole:
            break
    return whole, same, compared


class _UnitsOfFiles:
    """The units of each file in the plan before, in the order of the file. If each split has them, those of one split.

    `last` is the number of the last record of each row of the plan, and `size` its bytes: (rows,) each.
    """

    def __init__(self, before: Before) -> None:
        splits = [entry.split for entry in before.table]
        of = np.array([splits.index(split) for split in splits], np.int64)[before.units("shard")]
        self.last = before.units("first") + before.units("records") - 1
        self.size = before.units("size")
        self._rows = np.flatnonzero(of == of[0]) if len(of) else np.zeros(0, np.int64)
        self._rows = self._rows[np.lexsort((before.units("first")[self._rows], before.units("file")[self._rows]))]
        self._files = before.units("file")[self._rows]

    def of(self, file: int) -> Numbers:
        """Return the rows of the plan that are units of a file."""
        start, end = np.searchsorted(self._files, (file, file + 1))
        return self._rows[start:end]


def _unknown(job: Job, before: Before) -> dict[str, list[int]]:
    """Return the pruned records that cannot be told any more, by the path of their file: it was written anew."""
    if not before.pruned or job.fields is None:
        return {}
    told = {
        (job.planned_at(unit).file.path, record)
        for unit, reasons in job.known.items()
        for record, reason in reasons.items()
        if reason.error == PRUNED
    }
    paths = job.files["path"].take(pa.array(_files_of(job, before))).to_pylist()
    unknown = {path: [record for record in before.pruned[path] if record and (path, record) not in told] for path in paths}
    return {path: records for path, records in unknown.items() if records}


def still_pruned(job: Job, before: Before) -> Pruned:
    """Return the records that stay out of a dataset that is brought up to date."""
    gone = {(path, record) for path, records in _unknown(job, before).items() for record in records}
    return {each for each in before.seen.pruned if each not in gone}


def _warnings(job: Job, before: Before) -> list[str]:
    """Say which records may be back, though they were pruned."""
    unknown = _unknown(job, before)
    if not unknown:
        return []
    first = printable(min(unknown))
    of = f"{first} and others" if len(unknown) > 1 else first
    back = counted(sum(map(len, unknown.values())), "record")
    return [f"{back} of {of} had been pruned, and may be back, since the file was written anew; prune again"]


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
