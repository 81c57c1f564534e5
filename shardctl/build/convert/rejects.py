"""Rejected inputs: whether there are too many of them, and copies of them for inspection."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.build.convert.conversion_plan import is_failing
from shardctl.build.convert.previous import Matching, PreviousDataset
from shardctl.build.notices import notice
from shardctl.build.options import reject_limit
from shardctl.build.plan.listing import Listing, Numbers
from shardctl.build.shards.job import NEW_FOLDER, Job
from shardctl.build.shards.scan import Probe
from shardctl.errors import Rejection, SourceGoneError, StorageError, TooManyRejectsError
from shardctl.format.manifest import Manifest
from shardctl.format.names import FILES, PLAN, REJECTS
from shardctl.format.tables import (
    PLAN_SCHEMA,
    Reject,
    ShardTable,
    count_reasons,
    failures,
    open_table,
    read_rejects,
    taken,
)
from shardctl.sources.files import begin_of, local_copy
from shardctl.sources.formats.content import compression_of, decompressed
from shardctl.sources.formats.encodings import SAMPLE_BYTES, guess_encoding
from shardctl.sources.kinds import LINES
from shardctl.sources.label_table import some
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
from shardctl.system.text import counted, printable

COPIES = ".shardctl-copies"
"""The file, in the folder of the copies, that tells which ones were made here. No walk over sources
finds a hidden file."""

OF_TEXT = frozenset(("not-utf8", "wrong-encoding", "not-json", "no-byte-order-mark"))
"""Errors of texts that may be in another encoding."""


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
            f"allows; {REJECTS} has"
            " the reasons"
        )


def refuse_failing(probe: Probe, listing: Listing) -> None:
    """Raise TooManyRejectsError if more than half of the inputs that were tried beforehand cannot
    be converted."""
    if not is_failing(probe):
        return
    failed = failures(probe.reasons)
    count, reason = sum(failed.values()), next(iter(failed))
    example = next(each for each in probe.examples if f"{each.stage}: {each.error}" == reason)
    most = "" if failed[reason] == count else f" Most frequent ({failed[reason]:,}): {reason}."
    encoding = _advice_on_encoding(example, listing)
    why = example.message.partition(";")[0] if encoding else example.message
    raise TooManyRejectsError(
        f"{count:,} of the {counted(probe.records, 'input')} that were tried cannot be converted, and "
        f"nothing was written.{most} For instance {printable(example.key)}: {printable(why)}."
        f"{encoding} To convert what is left anyway: --max-rejects 100%"
    )


def _advice_on_encoding(reject: Reject, listing: Listing) -> str:
    """Say which encoding the file of a rejected text seems to be in, "" if that is not why it is
    rejected."""
    if reject.error not in OF_TEXT or listing.kind.name == "image":
        return ""
    place = listing.table["path"].index(pa.scalar(reject.source)).as_py()
    with contextlib.suppress(OSError, Rejection, SourceGoneError):
        path = listing.opened(listing.table.slice(place, 1).to_pylist()[0])
        start = begin_of(path, SAMPLE_BYTES)
        if (way := compression_of(start)) is not None:
            with open(local_copy(path), "rb") as file:
                start = next(decompressed(file, way), b"")[:SAMPLE_BYTES]
        if (found := guess_encoding(start)) is not None:
            return (
                f" The file looks like {found.known}: add --encoding {found.name}. A line reads "
                f"then: '{found.line}'."
            )
    advice = " Give its encoding with --encoding (detect tries to find it)."
    return "" if reject.error == "not-json" else advice


def copy_rejects(dataset: LocalFolder, bases: tuple[str, ...], folder: Path) -> int:
    """Copy the inputs that a dataset rejected to `folder`, under their own paths, and return how
    many there are.

    A file that is one record is copied whole; of a file of lines its rejected ones are put together
    in a file of the same name; of other files of many records all is copied. What cannot be read is
    left out. rejects.jsonl goes along. Raises StorageError if `folder` cannot be written, or has a
    file that would be replaced and is no copy from before.
    """
    copied = 0
    with naming_the_path(folder):
        folder.mkdir(parents=True, exist_ok=True)
        copies = _Copies(folder)
        copies.claim(folder / REJECTS, sha256_of(dataset.path(REJECTS)), str(dataset.path(REJECTS)))
        begun: set[Path] = set()
        rejects = _RejectedRecords(dataset.path(REJECTS))
        with _joining(copies) as joined:
            for row in _rejected_units(dataset):
                source, place = f"{bases[row['root']]}/{row['path']}", folder / row["path"]
                records = rejects.of_unit(row)
                if ".." in Path(row["path"]).parts:
                    continue
                make_folder(place.parent, folder)  # a link may lead back to the sources
                with contextlib.suppress(_UnreadableError):
                    if suffix_of(place.name) in LINES and row["first"]:
                        _append(source, row, records, place, joined)
                    elif place not in begun:
                        _copy(source, place, copies)
                    begun.add(place)
                    copied += row["rejected"]
        copy_file(dataset.path(REJECTS), folder / REJECTS)
    return copied


class _Copies:
    """The folder of the copies. A file in COPIES has the SHA-256 of each, so that the same command
    may replace them again."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._marks = folder, folder / COPIES
        self._known = set(_read_marks(self._marks))

    def claim(self, place: Path, sha256: str, source: str) -> None:
        """Note that a copy of `source` with this SHA-256 takes a place.

        Raises StorageError if something is there that is neither the same, nor a copy from before,
        nor another name of `source`: it may be a person's only copy.
        """
        name = place.relative_to(self._folder).as_posix()
        if os.path.lexists(place) and not _is_other_name(place, source):
            there = sha256_of(place)
            if there != sha256 and (name, there) not in self._known:
                raise StorageError(
                    f"{printable(str(place))}: no copy that --copy-rejects has made, or it was "
                    "changed since, and a copy is to"
                    " go there; move it away, or give another folder"
                )
        if (name, sha256) not in self._known:
            self._known.add((name, sha256))
            with naming_the_path(self._marks), open(self._marks, "a", opener=_ours) as marks:
                marks.write(json.dumps({"path": name, "sha256": sha256}) + "\n")


def _is_other_name(place: Path, source: str) -> bool:
    """Return whether this is a hard link to a file, which stays under its own name."""
    if is_stored(source):
        return False
    with contextlib.suppress(OSError):
        return (
            place.samefile(source)
            and place.resolve() != Path(source).resolve()
            and place.lstat().st_nlink > 1
        )
    return False


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


@contextlib.contextmanager
def _joining(copies: _Copies) -> Iterator[dict[Path, tuple[Path, str]]]:
    """Yield a dict to which files of lines are added, each with its input, by their places, which
    they take in the end."""
    joined: dict[Path, tuple[Path, str]] = {}
    try:
        yield joined
        for place, (partial, source) in joined.items():
            copies.claim(place, sha256_of(partial), source)
            partial.replace(place)
    except BaseException:
        for partial, _ in joined.values():
            with contextlib.suppress(OSError):  # the fault above is the one to tell of
                partial.unlink(missing_ok=True)
        raise


class _RejectedRecords:
    """The numbers of the rejected records of each unit, asked for in the order of the plan."""

    def __init__(self, path: Path) -> None:
        self._rejects = read_rejects(LocalFolder(path.parent), path.name)

    def of_unit(self, row: dict[str, Any]) -> set[int]:
        """Return the numbers of as many rejects as a unit has."""
        records: set[int] = set()
        left = row["rejected"]
        while left > 0 and (reject := next(self._rejects, None)):
            number = reject.key.rpartition("#")[2] if row["first"] else "0"
            first = int(number) if number.isdecimal() else 0
            records.update(range(first, first + reject.records))
            left -= reject.records
        return records


def _rejected_units(dataset: LocalFolder) -> Iterator[dict[str, Any]]:
    """Yield the units that have rejected records, with the path and the root of their files."""
    import pyarrow.compute as pc  # 40 ms that only this needs

    files = open_table(dataset, FILES).select(["path", "root"])
    for batch in open_table(dataset, PLAN, PLAN_SCHEMA).to_batches(max_chunksize=65536):
        for row in batch.filter(pc.greater(batch.column("rejected"), 0)).to_pylist():
            yield {**row, **files.slice(row["file"], 1).to_pylist()[0]}


class _UnreadableError(Exception):
    """An input cannot be read, which is no fault of the folder that its copy goes to."""


def _copy(source: str, place: Path, copies: _Copies) -> None:
    """Copy a file. A copy from before is replaced, not written into: it may be a hard link to the
    source."""
    with replacing(place) as sink:
        for data in _chunks(source, 0, None):
            sink.write(data)
        sink.sync()
        copies.claim(place, sink.sha256, source)


def _append(
    source: str,
    row: dict[str, Any],
    records: set[int],
    place: Path,
    joined: dict[Path, tuple[Path, str]],
) -> None:
    """Add the rejected lines of a unit to the file that takes `place`."""
    lines = b"".join(_chunks(source, row["offset"], row["size"])).split(b"\n")
    if place not in joined:
        joined[place] = place.with_name(f"{place.name}.{secrets.token_hex(4)}{PARTIAL}"), source
    with open(joined[place][0], "ab") as out:
        for number, line in enumerate(lines, row["first"] - row["skip"]):
            if number in records:
                out.write(line + b"\n")


def _chunks(source: str, offset: int, size: int | None) -> Iterator[bytes]:
    """Yield the bytes of a file, or of a part of it."""
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
        raise _UnreadableError from error


def check_new(
    job: Job, matching: Matching, before: PreviousDataset, listing: Listing
) -> tuple[list[str], str]:
    """Return warnings on what became of the files that an update has added, or that have changed;
    and why they had better not replace the others. The job is done.

    There is a warning where most of their records were rejected, or no sample comes of a file that
    gave some before, or may have many records. They had better not replace the others where most
    could not be converted, and changed files give fewer samples than before for it; else "".
    """
    files = np.flatnonzero(~matching.same)
    rows = matching.before[files]
    samples, places = np.zeros(len(files), np.int64), np.full(len(listing), -1, np.int64)
    samples[rows >= 0] = before.samples_of_files[rows[rows >= 0]]
    places[files] = np.arange(len(files))
    new = LocalFolder(job.folder / NEW_FOLDER)
    records, rejected, made = _counts(job, new, places, len(files))
    empty = (rows < 0) & (rejected > 0) & (not listing.whole)
    empty = (records <= rejected) & (empty | (samples > 0))
    many = int(rejected.sum()) > int(records.sum()) * MANY_REJECTS
    if not (many or empty.any()):
        return [], ""
    failed = np.zeros(len(files), np.int64)
    for place, reject in _rejects(new, places):
        failed[place] += reject.records * bool(failures({f"{reject.stage}: {reject.error}": 1}))
    # a filter may leave out all of a file; one that is empty now has no rejects
    empty &= (failed > 0) | (rejected == 0)
    all_of_them = counted(int(records.sum()), "new or changed input")
    why = ", since there are no records any more"
    if rejected.any():
        why = _why(reject for _, reject in _rejects(new, places))
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
        what += f", and no sample comes of {some(listing.paths_at(files[empty]))}"
    return [notice("new-rejected", what=what, why=why)], loses


def _counts(
    job: Job, new: LocalFolder, places: Numbers, count: int
) -> tuple[Numbers, Numbers, Numbers]:
    """Return how many records the chosen files of a job have, how many were rejected, and how many
    samples came of the others.

    Each is (count,). `places` has the place of each file among those that are chosen, -1 for
    another one: (files,). Blank lines are no records, which a plan counts, unless samples are
    joined of several records.
    """
    plan = open_table(new, PLAN, PLAN_SCHEMA)
    place = places[plan["file"].to_numpy()]
    rows = np.flatnonzero(place >= 0)
    rejected, planned, made = np.zeros((3, count), np.int64)
    np.add.at(rejected, place[rows], plan["rejected"].to_numpy()[rows])
    np.add.at(made, place[rows], plan["samples"].to_numpy()[rows])
    if job.draw is not None:  # each split has all units
        entries = ShardTable(new)
        of_first = np.array([entry.split == entries[0].split for entry in entries])
        rows = rows[of_first[plan["shard"].to_numpy()[rows]]]
    np.add.at(planned, place[rows], plan["records"].to_numpy()[rows])
    return (planned if job.recipe.joins else np.minimum(planned, made + rejected)), rejected, made


def _rejects(new: LocalFolder, places: Numbers) -> Iterator[tuple[int, Reject]]:
    """Yield the rejects of the chosen files of a dataset, each with the place of its file; `places`
    is that of `_counts`."""
    plan, rejects = open_table(new, PLAN, PLAN_SCHEMA), read_rejects(new)
    counts = plan["rejected"].to_numpy()
    units = np.flatnonzero(counts)
    place_of = places[plan["file"].to_numpy()[units]].tolist()
    for place, count in zip(place_of, counts[units].tolist(), strict=True):
        for reject in taken(rejects, count):
            if place >= 0:
                yield place, reject


def _why(rejects: Iterable[Reject]) -> str:
    """Return why records were rejected, with the main reason and an example, as the end of a
    sentence."""
    counts, examples = count_reasons(rejects)
    reason = next(iter(failures(counts)), next(iter(counts)))
    example = dict(zip(counts, examples, strict=True))[reason]
    key, message = printable(example.key), printable(example.message)
    return f". Most frequent ({counts[reason]:,}): {reason}, for instance {key}: {message}"
