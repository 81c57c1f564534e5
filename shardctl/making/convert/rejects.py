"""Rejected inputs: limits, and copies for inspection. And what an update knows of rejects and of
pruned records before it reads them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import (
    InputError,
    Rejection,
    SourceGoneError,
    StorageError,
    TooManyRejectsError,
)
from shardctl.format.arrays import Bools, Numbers, numbers_of, sums_of
from shardctl.format.manifest import Manifest
from shardctl.format.names import FILES, PLAN, REJECTS
from shardctl.format.tables import (
    PLAN_SCHEMA,
    PRUNED,
    PRUNED_BY,
    Reject,
    count_reasons,
    failures,
    new_table,
    of_several,
    open_table,
    read_rejects,
    taken,
)
from shardctl.format.update_state import BY_KEY, Pruned, PrunedUnit
from shardctl.making.convert.previous import Matching, PreviousDataset, match_files, rows_of
from shardctl.making.notices import notice
from shardctl.making.options import reject_limit
from shardctl.making.plan.listing import Listing
from shardctl.making.shards.job import ANY_UNIT, DatasetJob, File, Job, KnownLine, Probe
from shardctl.sources.files import begin_of, local_copy
from shardctl.sources.formats import Misfit, Unit, copy_to_read, ending_of, find_format
from shardctl.sources.kinds import LINES
from shardctl.sources.walk import suffix_of
from shardctl.system.files import (
    PARTIAL,
    READ_CHUNK,
    copy_file,
    make_folder,
    naming_the_path,
    ordinary,
    refuse_link,
    replacing,
    sha256_of,
)
from shardctl.system.folders import LocalFolder
from shardctl.system.locations import is_stored
from shardctl.system.text import counted, printable, some

COPIES = ".shardctl-copies"
"""The file, in the folder of the copies, that tells which ones were made here. No walk over sources
finds a hidden file. It has the SHA-256 of each, so that the same command may replace them again."""

OF_TEXT = frozenset(("not-utf8", "wrong-encoding", "not-json", "no-byte-order-mark"))
"""Errors of texts that may be in another encoding."""


MANY_FAILURES = 0.5
"""A conversion does not begin where a larger share than this cannot be converted of the inputs that
were tried."""

MANY_REJECTS = 0.5
"""Share of rejected inputs, also of those that filters left out, above which there is a warning."""


def count_rejects(rejected: int, inputs: int) -> str:
    """Say how many inputs were rejected."""
    return f"{counted(rejected, 'input')} of {inputs:,} rejected"


def refuse_many_rejects(folder: LocalFolder, manifest: Manifest, most: str | int | None) -> None:
    """Raise TooManyRejectsError if a finished dataset has more rejects than `most` (`N` or `P%` of
    the inputs) allows."""
    if manifest.rejected > reject_limit(most, manifest.inputs):
        rejects = count_rejects(manifest.rejected, manifest.inputs)
        raise TooManyRejectsError(
            f"{folder.shown()}: the dataset is complete, with {rejects}, more than --max-rejects "
            f"allows; {REJECTS} has the reasons"
        )


def too_many(rejected: str) -> TooManyRejectsError:
    """Return why a job does not become the dataset, of whose inputs so many were rejected."""
    return TooManyRejectsError(
        f"{rejected}, more than --max-rejects allows; nothing was committed. Fix or remove them, or "
        "run this again with a higher limit"
    )


def is_failing(probe: Probe) -> bool:
    """Return whether more than half of the inputs that were tried cannot be converted.

    What filters and duplicates leave out does not count: it is as the user wants it.
    """
    return sum(failures(probe.reasons).values()) > probe.records * MANY_FAILURES


def refuse_failing(probe: Probe, listing: Listing) -> None:
    """Raise TooManyRejectsError if more than half of the inputs that were tried beforehand cannot
    be converted."""
    if not is_failing(probe):
        return
    failed = failures(probe.reasons)
    count, reason = sum(failed.values()), next(iter(failed))
    example = dict(zip(probe.reasons, probe.examples, strict=True))[reason]
    most = "" if failed[reason] == count else f" Most frequent ({failed[reason]:,}): {reason}."
    encoding = _advice_on_encoding(example, listing)
    rest = " To convert the rest: --max-rejects 100%" if count < probe.records else ""
    why = example.message.partition(";")[0] if encoding else example.message
    raise TooManyRejectsError(
        f"{count:,} of the {counted(probe.records, 'input')} that were tried cannot be "
        f"converted, and nothing was written.{most} For instance {printable(example.key)}: "
        f"{printable(why)}.{encoding}{rest}"
    )


def _advice_on_encoding(reject: Reject, listing: Listing) -> str:
    """Say which encoding the file of a rejected text seems to be in, "" if that is not why it is
    rejected."""
    if reject.error not in OF_TEXT or listing.kind.name == "image":
        return ""
    place = listing.table["path"].index(pa.scalar(reject.source)).as_py()
    with contextlib.suppress(OSError, Rejection, SourceGoneError):
        path = listing.opened(*listing.rows_at([place]))
        from shardctl.sources.formats.content import compression_of, decompressed
        from shardctl.sources.formats.encodings import SAMPLE_BYTES, guess_encoding

        start = begin_of(path, SAMPLE_BYTES)
        if (way := compression_of(start)) is not None:
            with open(local_copy(path), "rb") as file:
                start = next(decompressed(file, way), b"")[:SAMPLE_BYTES]
        if (found := guess_encoding(start)) is not None:
            return (
                f" The file looks like {found.known}: add --encoding {found.name}. A line reads "
                f"then: '{found.line}'."
            )
    return " Give its encoding with --encoding." if reject.error != "not-json" else ""


def copy_rejects(dataset: LocalFolder, bases: tuple[str, ...], folder: Path) -> int:
    """Copy the inputs that a dataset rejected to `folder`, under their own paths, and return how
    many there are.

    A file that is one record is copied whole; of a file of lines its rejected ones are put together
    in a file of the same name; of other files of many records all is copied. What cannot be read is
    left out. rejects.jsonl goes along. Raises StorageError if `folder` cannot be written, or has a
    file that would be replaced and is no copy from before.
    """
    copied, marks, listed = 0, folder / COPIES, dataset.path(REJECTS)
    begun, rejects = set[Path](), read_rejects(dataset)
    # files of lines that are added to, each with its input, by the places that they take in the end
    joined: dict[Path, tuple[Path, str]] = {}

    def claim(place: Path, sha256: str, source: str) -> None:
        """Note that a copy of `source` with this SHA-256 takes a place.

        Raises StorageError if something is there that is neither the same, nor a copy from before,
        nor a hard link to `source`, which stays under its own name: it may be a person's only copy.
        """
        name, is_other_name = place.relative_to(folder).as_posix(), False
        with contextlib.suppress(OSError):
            is_other_name = (
                not is_stored(source)
                and place.samefile(source)
                and place.resolve() != Path(source).resolve()
                and place.lstat().st_nlink > 1
            )
        if os.path.lexists(place) and not is_other_name:
            there = sha256_of(place)
            if there != sha256 and (name, there) not in known:
                raise StorageError(
                    f"{printable(place)}: not a copy that --copy-rejects made, or changed "
                    "since; move it away, or give another folder"
                )
        if (name, sha256) not in known:
            known.add((name, sha256))
            with naming_the_path(marks), open(marks, "a", opener=_ours) as file:
                file.write(json.dumps({"path": name, "sha256": sha256}) + "\n")

    with naming_the_path(folder):
        folder.mkdir(parents=True, exist_ok=True)
        known = set(_read_marks(marks))
        claim(folder / REJECTS, sha256_of(listed), str(listed))
        try:
            for row in _rejected_units(dataset):
                source, place = f"{bases[row['root']]}/{row['path']}", folder / row["path"]
                records = set[int]()
                for reject in taken(rejects, row["rejected"]):
                    written = reject.key.rpartition("#")[2] if row["first"] else "0"
                    first = int(written) if written.isdecimal() else 0
                    records.update(range(first, first + reject.records))
                if ".." in Path(row["path"]).parts:
                    continue
                make_folder(place.parent, folder)  # a link may lead back to the sources
                with contextlib.suppress(InputError):
                    if suffix_of(place.name) in LINES and row["first"]:
                        lines = b"".join(_chunks(source, row["offset"], row["size"])).split(b"\n")
                        partial = place.with_name(f"{place.name}.{secrets.token_hex(4)}{PARTIAL}")
                        joined.setdefault(place, (partial, source))
                        with open(joined[place][0], "ab") as out:
                            for number, line in enumerate(lines, row["first"] - row["skip"]):
                                if number in records:
                                    out.write(line + b"\n")
                    elif place not in begun:
                        # a copy from before is not written into: it may be a hard link to the source
                        with replacing(place) as sink:
                            for data in _chunks(source, 0, None):
                                sink.write(data)
                            sink.sync()
                            claim(place, sink.sha256, source)
                    begun.add(place)
                    copied += row["rejected"]
            for place, (partial, source) in joined.items():
                claim(place, sha256_of(partial), source)
                partial.replace(place)
        finally:
            for partial, _ in joined.values():
                with contextlib.suppress(OSError):
                    partial.unlink(missing_ok=True)
        copy_file(listed, folder / REJECTS)
    return copied


def _ours(path: str, flags: int) -> int:
    """Open a file that is no link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _read_marks(path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and SHA-256 of the copies of earlier calls. A line that is none is of a call that
    was killed."""
    if not os.path.lexists(path):
        return
    refuse_link(path)
    with open(path, "rb", opener=ordinary) as file:
        for line in file:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                record = json.loads(line)
                yield record["path"], record["sha256"]


def _rejected_units(dataset: LocalFolder) -> Iterator[dict[str, Any]]:
    """Yield the units that have rejected records, with the path and the root of their files."""
    import pyarrow.compute as pc  # 40 ms that only this needs

    files = open_table(dataset, FILES).select(["path", "root"])
    for batch in open_table(dataset, PLAN, PLAN_SCHEMA).to_batches(max_chunksize=65536):
        for row in batch.filter(pc.greater(batch.column("rejected"), 0)).to_pylist():
            yield {**row, **files.slice(row["file"], 1).to_pylist()[0]}


def _chunks(source: str, offset: int, size: int | None) -> Iterator[bytes]:
    """Yield the bytes of a file, or of a part of it. Raises InputError, as it is no fault of the
    folder that its copy goes to."""
    try:
        path = Path(local_copy(source))
        if not path.is_file():  # to open a pipe would wait for a writer
            raise FileNotFoundError
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            while data := file.read(READ_CHUNK if size is None else min(size, READ_CHUNK)):
                yield data
                size = None if size is None else size - len(data)
    except (OSError, Rejection) as error:
        raise InputError(source) from error


def check_new(job: DatasetJob, new: LocalFolder, before: PreviousDataset) -> tuple[list[str], str]:
    """Return warnings on what became of the files that an update has added, or that have changed;
    and why they had better not replace the others. The job is done, and its tables are in `new`.

    There is a warning where most of their records were rejected, or no sample comes of a file that
    gave some before, or may have many records. They had better not replace the others where most
    could not be converted, and changed files give fewer samples than before for it; else "".
    """
    matching = match_files(before, job.folder / FILES)
    is_new, paths = ~matching.same, job.files["path"]
    files = np.flatnonzero(is_new)
    rows, samples = matching.old_row[files], np.zeros(len(files), np.int64)
    samples[rows >= 0] = before.samples_of_files[rows[rows >= 0]]
    plan = open_table(new, PLAN, PLAN_SCHEMA)
    rejected, made, planned = (
        sums_of(numbers_of(plan[name]), numbers_of(plan["file"]), len(is_new))[files]
        for name in ("rejected", "samples", "records")
    )
    if job.draw is not None:  # each split has all units
        planned //= len(job.splits)
    # Blank lines are no records, which a plan counts, unless samples are joined of several records.
    records = planned if job.recipe.joins else np.minimum(planned, made + rejected)
    empty = (rows < 0) & (rejected > 0) & (not job.whole)
    empty = (records <= rejected) & (empty | (samples > 0))
    many = int(rejected.sum()) > int(records.sum()) * MANY_REJECTS
    if not (many or empty.any()):
        return [], ""
    failed = np.zeros(len(is_new), np.int64)
    for file, reject in _rejects(new, is_new):
        failed[file] += reject.records * bool(failures({f"{reject.stage}: {reject.error}": 1}))
    failed = failed[files]
    # a filter may leave out all of a file; one that is empty now has no rejects
    empty &= (failed > 0) | (rejected == 0)
    all_of_them = counted(int(records.sum()), "new or changed input")
    why = ", since there are no records any more"
    if rejected.any():
        counts, examples = count_reasons(reject for _, reject in _rejects(new, is_new))
        reason = next(iter(failures(counts)), next(iter(counts)))
        example = dict(zip(counts, examples, strict=True))[reason]
        key, message = printable(example.key), printable(example.message)
        why = f". Most frequent ({counts[reason]:,}): {reason}, for instance {key}: {message}"
    loses, fewer = "", int(np.maximum(samples - made, 0)[failed > 0].sum())
    if failed.sum() > records.sum() * MANY_REJECTS and fewer:
        loses = (
            f"{int(failed.sum()):,} of {all_of_them} could not be "
            f"converted, and {counted(fewer, 'sample')} of changed files would be lost{why}"
        )
    if not (many or empty.any()):
        return [], loses
    what = f"{int(rejected.sum()):,} of {all_of_them} were rejected"
    if empty.any():
        what += f", and no sample comes of {some([paths[row].as_py() for row in files[empty].tolist()])}"
    return [notice("new-rejected", what=what, why=why)], loses


def _rejects(new: LocalFolder, chosen: Bools) -> Iterator[tuple[int, Reject]]:
    """Yield the rejects of the chosen files of a dataset, (files,), each with the row of its
    file."""
    plan, rejects = open_table(new, PLAN, PLAN_SCHEMA), read_rejects(new)
    counts = numbers_of(plan["rejected"])
    units = np.flatnonzero(counts)
    of_units = zip(numbers_of(plan["file"])[units].tolist(), counts[units].tolist(), strict=True)
    of_all = ((file, reject) for file, count in of_units for reject in taken(rejects, count))
    return ((file, reject) for file, reject in of_all if chosen[file])


UNIT_COLUMNS = [*Unit._fields, "digest"]


def write_known(job: Job, before: PreviousDataset, of_old: Numbers) -> list[str]:
    """Have a job reject what is known to be rejected, and return warnings. Its tables are written.

    The warnings are of records that may be back, though they were pruned. `of_old` has the row of
    the dataset's plan of each row of the job's, -1 for those that are new or have changed, or whose
    shards are kept. What was rejected of an unchanged unit of a file of many records is rejected
    again: the plan does not say what was wrong with it.
    """
    job.write_known(chain(_rejected(job, before, of_old), _pruned(job, before)))
    unknown, gone = _not_told(job, before)
    back = {**unknown, **gone}
    if not back:
        return []
    records = counted(sum(map(len, back.values())), "record")
    return [notice("pruned-may-be-back", records=records, files=some(sorted(back)))]


def _rejected(job: Job, before: PreviousDataset, of_old: Numbers) -> Iterator[KnownLine]:
    """Yield the rejects of unchanged units of files of many records, in the shards that are built
    again."""
    rows = np.flatnonzero(of_old >= 0)
    if not len(rows) or job.whole:
        return
    row_of = dict(zip(of_old[rows].tolist(), rows.tolist(), strict=True))
    samples, counts = before.units("samples"), before.units("rejected")
    all_rejects = read_rejects(before.folder)
    for unit in np.flatnonzero(counts).tolist():
        rejects = list(taken(all_rejects, int(counts[unit])))
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
    for row in np.flatnonzero(np.isin(numbers_of(job.plan["file"]), files)).tolist():
        planned = job.planned_at(row)
        file, unit = planned.file, planned.unit
        of_file = before.pruned[file.path]
        if not unit.first:
            if 0 in of_file:
                yield row, None, *PRUNED_BY
            continue
        if file.path not in have_their_numbers:
            have_their_numbers[file.path] = _has_its_numbers(job, before, file)
        for record in sorted(of_file) if have_their_numbers[file.path] else ():
            if unit.first <= record < unit.first + unit.records:
                yield row, record, *PRUNED_BY


def lines_by_key(pruned: Pruned) -> Iterator[KnownLine]:
    """Yield what has a job reject the records that were pruned by their own keys."""
    yield from ((ANY_UNIT, key, *PRUNED_BY) for source, key in pruned if source == BY_KEY)


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
        numbers_of(plan["first"]) + numbers_of(plan["records"]), list(records), side="right"
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
    digest, reading, fields = xxhash.xxh3_64(), job.recipe.record_reading, job.fields
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
    if job.whole or job.draw is None or job.draw.by_key or job.draw.group is not None:
        return []
    added, removed, changed = matching.counts
    if not changed and not (added and removed):
        return []
    return [notice("splits-may-change", added=added, removed=removed, changed=changed)]


def _not_told(
    job: Job, before: PreviousDataset
) -> tuple[dict[str, list[int]], dict[str, dict[int, PrunedUnit | None]]]:
    """Return the pruned records of files of many records that cannot be told any more, by the path
    of their file, which was written anew; and those of files that have gone now."""
    if not before.pruned or job.whole:
        return {}, {}
    matched = {
        (job.planned_at(unit).file.path, record)
        for unit, reasons in job.known.items()
        for record, reason in reasons.items()
        if unit != ANY_UNIT and reason.error == PRUNED
    }
    there, rows = (rows_of(files, before.pruned) for files in (job.files, before.files))
    unknown = {
        path: left
        for path in there
        if (left := [n for n in before.pruned[path] if n and (path, n) not in matched])
    }
    gone = {path: _units_of(before, path, row) for path, row in rows.items() if path not in there}
    return unknown, gone


def still_pruned(job: Job, before: PreviousDataset) -> Pruned:
    """Return the records that stay out of a dataset that is brought up to date."""
    unknown, gone = _not_told(job, before)
    units = {**before.pruned, **gone}
    return {
        (path, record): units[path][record]
        for path, record in before.state.pruned
        if record not in unknown.get(path, ())
    }


def hide_pruned(path: Path, pruned: Pruned) -> None:
    """Leave out of a job's table of files what labels files and annotations say of files that were
    pruned."""
    hidden = sorted(source for source, record in pruned if not record)
    files = open_table(LocalFolder(path.parent), path.name)
    names = [name for name in ("label", "columns") if name in files.column_names]
    if not hidden or not names:
        return
    import pyarrow.compute as pc

    with new_table(path, files.schema) as writer:
        for batch in files.to_batches():
            gone = np.asarray(pc.is_in(batch.column("path"), value_set=pa.array(hidden)))
            for name in names:
                rows = pa.array(np.arange(batch.num_rows), mask=gone)
                batch = batch.set_column(
                    batch.schema.get_field_index(name), name, batch.column(name).take(rows)
                )
            writer.write_batch(batch)
