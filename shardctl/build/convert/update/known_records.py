"""What an update knows of records without a look at them: those that were rejected, and those that a person has taken out."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

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
from shardctl.sources.formats.streams import split_compression
from shardctl.sources.label_table import some
from shardctl.sources.walk import suffix_of
from shardctl.system.files import naming_the_path, replacing
from shardctl.system.locations.text import is_stored
from shardctl.system.text import counted, printable

Numbers = npt.NDArray[np.int64]

COMPARED_BYTES = 256 << 20
"""Bytes of changed files that are compared, at most, to know which of their records may have moved: less than a second."""

LEAST_COMPARED = 64 << 10
"""A comparison counts as so many bytes at least: to open a file takes its time."""

MOST_GROWN = 1000
"""Of so many files that are gone it is looked for one that begins with them."""

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
        path = self._job.path_of(file)
        with contextlib.suppress(Rejection, OSError):
            copy = local_copy(path, file.mtime_ns)
            copy = copy_to_read(path, ending_of(file.path, copy), file.mtime_ns)
            return _reads_as_before(self._job, self._before, file.path, copy, row)
        return False


def _reads_as_before(job: Job, before: PreviousDataset, path: str, opened: str, row: int) -> bool:
    """Return whether a file still has the unit that is this row of the plan before, where it was. Nothing of it is parsed."""
    (planned,) = before.plan.slice(row, 1).to_pylist()
    return bool(_digest_of(job, path, opened, _unit_of(planned)) == planned["digest"])


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


def moved_records(job: Job, before: PreviousDataset, listing: Listing, matching: Matching) -> list[str]:
    """Warn of records that may be in another split than before: the path of their file and their number decide.

    Those before the first change in a file still have their numbers, as far as `_same_records` compares.
    """
    if job.draw is None or job.draw.by_key or job.draw.group is not None:
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
    renaming = _Renaming(job, before, listing, matching, units)
    after = (
        "may now be in another split, for instance in train and not in val any more. With --key-field each record keeps its"
        " split"
    )
    warnings = []
    if renaming.found:
        count = sum(count for *_, count in renaming.found)
        pairs = [f"{now} (before: {path})" for path, now, _ in renaming.found]
        warnings.append(
            f"{some(pairs)} {'has' if len(pairs) == 1 else 'have'} another name, and names decide the split of"
            f" records: {counted(count, 'record')} {after}"
        )
    if renaming.gone and renaming.new:
        count = sum(int(units.last[units.of(file)[-1]]) for file in renaming.gone)
        are, came = ("is", "another one") if len(renaming.gone) == 1 else ("are", "others")
        came = came if len(renaming.new) == 1 else f"{len(renaming.new):,} others"
        warnings.append(
            f"{counted(len(renaming.gone), 'file')} with {counted(count, 'record')} {are} gone, and {came} came. If the same"
            f" records are in both, they {after}"
        )
    if not paths:
        return warnings
    have, its = ("has", "its") if len(paths) == 1 else ("have", "their")
    said = f"{some(paths)} {have} changed, and the numbers of {its} records decide their split: up to {moved:,} of"
    return [*warnings, f"{said} {counted(records, 'record')} {after}"]


class _Renaming:
    """Which of the files that are gone have another name now, by how they begin: nothing more is compared, and none on a store.

    `found` has the path before, the one now, and how many records it had. `gone` are the other files that are gone and had
    records, as rows of the table of files before, and `new` the other new ones, as rows of the listing.
    """

    def __init__(self, job: Job, before: PreviousDataset, listing: Listing, matching: Matching, units: _UnitsOfFiles) -> None:
        self._job, self._before, self._listing, self._units = job, before, listing, units
        self.found: list[tuple[str, str, int]] = []
        self.gone = {file: None for file in np.flatnonzero(matching.now < 0).tolist() if len(units.of(file))}
        self.new = dict.fromkeys(np.flatnonzero(matching.before < 0).tolist()) if self.gone else {}
        self._left = COMPARED_BYTES
        self._find_same()
        self._find_grown()

    def _find_same(self) -> None:
        """Find files that have the size of one that is gone."""
        sizes = self._listing.table["size"].to_numpy()
        alike: defaultdict[int, _Beginnings] = defaultdict(_Beginnings)
        wanted = set(sizes[list(self.new)].tolist())
        for file in self.gone:
            if (size := self._before.files["size"][file].as_py()) in wanted:
                alike[size].add(self._beginning(file))
        for row in list(self.new):
            if (size := int(sizes[row])) in alike:
                self._find(row, alike[size])

    def _find_grown(self) -> None:
        """Find files that begin with one that is gone, of the same form. Compressed ones begin in another way then."""
        alike: defaultdict[str, _Beginnings] = defaultdict(_Beginnings)
        for file in list(self.gone)[:MOST_GROWN]:
            each = self._beginning(file)
            if split_compression(each.path)[1] is None:
                alike[suffix_of(each.path)].add(each)
        for row, path in zip(list(self.new), self._listing.paths_at(np.array(list(self.new), np.int64)), strict=True):
            if (suffix := suffix_of(path)) in alike:
                self._find(row, alike[suffix])

    def _find(self, row: int, alike: _Beginnings) -> None:
        """Look for the file of this row of the listing among those that are gone."""
        if self._left < 0:
            return
        entry = self._listing.table.slice(row, 1).to_pylist()[0]
        opened, path = self._listing.opened(entry), entry["path"]
        for unit in alike.units(path) if not is_stored(opened) else ():
            if unit.offset + unit.size > entry["size"]:
                continue
            self._left -= max(unit.size, LEAST_COMPARED)
            if self._left < 0:
                return
            each = alike.take(path, unit, _digest_of(self._job, path, opened, unit))
            if each is not None:
                self.found.append((each.path, path, each.records))
                del self.gone[each.file], self.new[row]
                return

    def _beginning(self, file: int) -> _Beginning:
        rows = self._units.of(file)
        (planned,) = self._before.plan.slice(int(rows[0]), 1).to_pylist()
        path = self._before.files["path"][file].as_py()
        return _Beginning(file, path, int(self._units.last[rows[-1]]), _unit_of(planned), planned["digest"])


class _Beginning(NamedTuple):
    """A file of a dataset: its row in the table of files, how many records it had, and its first unit with the digest."""

    file: int
    path: str
    records: int
    unit: Unit
    digest: int


class _Beginnings:
    """Files that a file may be, by how they begin."""

    def __init__(self) -> None:
        self._of: defaultdict[Unit, defaultdict[int, list[_Beginning]]] = defaultdict(lambda: defaultdict(list))

    def add(self, each: _Beginning) -> None:
        """Add a file."""
        self._of[each.unit][each.digest].append(each)

    def units(self, path: str) -> list[Unit]:
        """Return the different beginnings to compare a file with, those of files of the same name in other folders first."""
        name = path.rpartition("/")[2]
        return sorted(self._of, key=lambda unit: not any(_named(each, name) for each in chain(*self._of[unit].values())))

    def take(self, path: str, unit: Unit, digest: int | None) -> _Beginning | None:
        """Return one of the files that begin so, and forget it, None if there is none. One of the same name comes first."""
        alike = [] if digest is None else self._of[unit].get(digest, [])
        if not alike:
            return None
        found = next((each for each in alike if _named(each, path.rpartition("/")[2])), alike[0])
        alike.remove(found)
        return found


def _named(each: _Beginning, name: str) -> bool:
    return each.path.rpartition("/")[2] == name


def _same_records(
    job: Job, before: PreviousDataset, listing: Listing, row: int, units: _UnitsOfFiles, rows: Numbers, most: int
) -> tuple[int, int, int]:
    """Return how many records a file had, how many of these are still at its beginning, and how many bytes were compared.

    `row` is that of the file in the listing, and `rows` are those of its units in the plan before. At most `most` bytes are
    compared, and none of a file on a store.
    """
    ends, sizes = units.last[rows], units.size[rows]
    whole, same, compared = int(ends[-1]) if len(ends) else 0, 0, 0
    path, opened = listing.paths_at(np.array([row]))[0], listing.opened(listing.table.slice(row, 1).to_pylist()[0])
    last = len(rows) - 1
    for place in (last, *range(last)) if len(rows) and not is_stored(opened) else ():  # most files only grow at their end
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

    def __init__(self, before: PreviousDataset) -> None:
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
