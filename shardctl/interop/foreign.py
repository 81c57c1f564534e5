"""Shards of other tools, as they are: what is in them (`shardctl inspect`), and whether they are
whole (`shardctl verify`). Nothing is converted.

The files of an export that are no shards are compared with its checksums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, Rejection, UsageError
from shardctl.format.names import CHECKSUMS, MANIFEST, SHARDS, STAGING
from shardctl.format.python_values import python_rows
from shardctl.format.shard import INFO_KEY
from shardctl.inspection.verify.result import Finding, VerifyResult, error, result_of, warning
from shardctl.making.convert.discover import Discovery
from shardctl.making.convert.sample_kind import first_file
from shardctl.making.options import INPUT_TIMEOUT
from shardctl.making.plan.list_files import list_files
from shardctl.making.plan.listing import LabelRule, Listing
from shardctl.making.plan.plan import Units
from shardctl.making.sampling import take
from shardctl.making.shards.engines.local import Engine, local_engine
from shardctl.making.shards.scan import Found, FullScanTask
from shardctl.sources.export_description import RESTORED, Description, located, loose_sums
from shardctl.sources.files import SourceRoot
from shardctl.sources.format_table import CONTAINER_SUFFIXES, FORMAT_NAMES, PLAIN_TEXTS
from shardctl.sources.formats import Reading, ending_of, without_compression
from shardctl.sources.formats.arrow import FILE_MAGIC
from shardctl.sources.kinds import KINDS, Form
from shardctl.sources.sidecars import MISSING
from shardctl.sources.types import Types
from shardctl.sources.walk import suffix_of
from shardctl.system.files import check_ordinary, is_file, sha256_of
from shardctl.system.processes.pool import Limits
from shardctl.system.scratch import scratch_folder
from shardctl.system.text import counted, printable

LIMITS = Limits(seconds=INPUT_TIMEOUT)

_ARROW = frozenset(FORMAT_NAMES["arrow"])
_OTHERS = {
    *CONTAINER_SUFFIXES,
    *(ending for endings in FORMAT_NAMES.values() for ending in endings),
} - _ARROW
"""The endings of files that cannot be shards of shardctl."""


def is_foreign(path: Path) -> bool:
    """Return whether a path is that of shards of another tool: a file, or a folder without a
    manifest that has some.

    Shards of shardctl whose manifest is lost are its own.
    """
    try:
        if path.is_file():
            return not (path.parent / MANIFEST).exists() and _is_of_others(path.name, str(path))
        if not path.is_dir() or any((path / name).exists() for name in (MANIFEST, SHARDS, STAGING)):
            return False
        found = first_file([SourceRoot(str(path))], KINDS["table"], Reading(), (Form.MANY,))
        return found is not None and _is_of_others(found.path, found.opened)
    except InputError:  # an index that lists what is not there
        return True
    except OSError:
        return False


def refuse_text(path: Path) -> None:
    """Raise UsageError for a file of text, which is neither a shard nor checked as one. Those of a
    dataset are others."""
    ending = without_compression(suffix_of(path.name))
    if ending in PLAIN_TEXTS and is_file(path) and not (path.parent / MANIFEST).exists():
        shown = printable(str(path))
        raise UsageError(
            f"{shown}: is text ({ending}) and no shard; `shardctl convert` says which of its "
            "records are bad"
        )


def _is_of_others(name: str, opened: str) -> bool:
    ending = without_compression(ending_of(name, opened))
    return ending in _OTHERS or (ending in _ARROW and not _is_own(opened))


def _is_own(path: str) -> bool:
    """Return whether an Arrow file is a shard of shardctl, or is too damaged to tell."""
    try:
        check_ordinary(path)
        with pa.OSFile(path) as file:
            start = file.read(len(FILE_MAGIC))
            file.seek(0)
            with (
                pa.ipc.open_file(file)
                if start == FILE_MAGIC
                else pa.ipc.open_stream(file) as reader
            ):
                return INFO_KEY in (reader.schema.metadata or {})
    except (pa.ArrowException, OSError, ValueError):
        return True


@dataclass(frozen=True)
class Shards:
    """The files of another tool, and their units."""

    listing: Listing
    units: Units
    discovery: Discovery

    @property
    def formats(self) -> dict[str, int]:
        """How many files there are of each format."""
        names = {
            ending: name for name, endings in reversed(FORMAT_NAMES.items()) for ending in endings
        }
        found: Counter[str] = Counter()
        for batch in self.listing.table.select(["path", "root"]).to_batches():
            for row in batch.to_pylist():
                ending = without_compression(ending_of(row["path"], self.listing.opened(row)))
                found[names.get(ending, ending.removeprefix("."))] += 1
        return dict(found.most_common())


@contextmanager
def open_shards(path: Path, workers: int | str) -> Iterator[tuple[Shards, Engine]]:
    """List the files at a path, and find their units, in processes that may be used on. Raises
    InputError."""
    with scratch_folder() as scratch:
        reading = Reading()
        engine = local_engine(workers, LIMITS)
        try:
            rule = LabelRule.parse("none")
            listing = list_files(
                [SourceRoot(str(path))],
                KINDS["table"],
                reading,
                rule,
                scratch / "listing.arrow",
                lambda _: None,
            )
            discovery = Discovery(listing, reading, False, engine)
            yield Shards(listing, discovery.find_units(), discovery), engine
        finally:
            engine.close()


OF_SHARDS = (*RESTORED, "parquet", "megatron")
"""The forms of export whose files are read as shards of other tools are."""


def export_of_files(path: Path) -> Description | None:
    """Return what the export in a folder is whose files are no shards; None for anything else."""
    try:
        export = Description.load(path)
    except (OSError, ValueError):
        return None
    return None if export.to in OF_SHARDS else export


def refuse_export(path: Path) -> None:
    """Raise UsageError for such an export: its files show themselves."""
    export = export_of_files(path)
    if export is not None:
        raise UsageError(
            f"{printable(str(path))}: is an export of shardctl to {export.to}, and its files are "
            "not shards; open them"
            " directly, and check them with `shardctl verify`"
        )


def check_sums(
    folder: Path, export: Description, progress: Callable[[int, int], None]
) -> VerifyResult:
    """Compare all files of the export in a folder with the checksums that it has. `progress` is
    called with (files, all).

    `shards` of the result are files, and `samples` those that were exported.
    """
    total = len(export.files) + (0 if export.loose is None else export.loose.files)
    findings: list[Finding] = []
    done = 0
    try:
        for name, sha256 in chain(
            ((name, facts.sha256) for name, facts in export.files.items()),
            loose_sums(folder, export),
        ):
            findings += _file_findings(folder, name, sha256)
            done += 1
            progress(done, total)
    except (OSError, ValueError):
        message = (
            f"{CHECKSUMS} is lost or changed, so that most files cannot be checked; get it "
            "again, or export again"
        )
        findings.append(error("lost-checksums", message, CHECKSUMS))
    samples = sum(each.samples for each in export.splits.values())
    return VerifyResult(not findings, "full", total, samples, tuple(findings))


def _file_findings(folder: Path, name: str, sha256: str) -> Iterator[Finding]:
    try:
        found = sha256_of(folder / name)
    except FileNotFoundError:
        yield error("missing-file", "it is not there; get it again, or export again", name)
    except OSError as fault:
        yield error("unreadable-file", f"it cannot be read ({fault.strerror or fault})", name)
    else:
        if found != sha256:
            yield error(
                "wrong-checksum",
                f"its SHA-256 is not the one that {CHECKSUMS} has; get it again",
                name,
            )


@dataclass(frozen=True)
class ForeignOverview:
    """What is in shards of another tool.

    `formats` counts the files of each format. `schema` are pairs of field and type, and `classes`
    the names of the classes of fields that have some. `faults` are files, or parts of them, that
    cannot be read, each with the reason. `first` has the first records, each with its `key`.
    """

    formats: dict[str, int]
    files: int
    bytes: int
    records: int
    schema: list[tuple[str, str]]
    classes: dict[str, list[str]]
    faults: dict[str, str]
    first: list[dict[str, Any]]
    notices: tuple[str, ...] = ()


def look(path: Path, first: int = 3, workers: int | str = "auto") -> ForeignOverview:
    """Look at the shards at a path, and at their `first` records. Raises InputError if there are
    none."""
    with open_shards(path, workers) as (shards, engine):
        units, listing = shards.units, shards.listing
        types = shards.discovery.find_types(units, all_of_them=False)
        schema = [(f.name, str(f.type)) for f in types.schema()] if types is not None else []
        classes = (
            {name: list(names) for name, names in types.classes.items()}
            if types is not None
            else {}
        )
        faulty = {unit: fault for unit, fault in units.faults.items() if int(units.records[unit])}
        faults = {_name_of(shards, unit): fault.message for unit, fault in faulty.items()}
        records: list[dict[str, Any]] = []
        if types is not None:
            records, fault = _first_records(shards, engine, types, first)
            faults |= {} if fault is None else {_name_of(shards, int(units.readable()[0])): fault}
        else:
            faults |= {
                _name_of(shards, unit): fault.message
                for unit, fault in shards.discovery.untyped.items()
            }
        return ForeignOverview(
            shards.formats,
            len(listing),
            listing.total_bytes,
            int(units.records.sum()) - len(faulty),
            schema,
            classes,
            faults,
            records,
            tuple(listing.notices),
        )


def _name_of(shards: Shards, unit: int) -> str:
    """Return what a unit that cannot be read is called: its file, and its first record where it is
    not the whole file."""
    [path] = shards.listing.paths_at(shards.units.file[unit : unit + 1])
    first = int(shards.units.first[unit])
    return f"{path}#{first}" if first else path


def _first_records(
    shards: Shards, engine: Engine, types: Types, count: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Return the first records of the first unit that can be read; and if there are none of them,
    why they cannot be."""
    first = shards.units.readable()[:1]
    [path] = shards.listing.paths_at(shards.units.file[first])
    number, records = int(shards.units.first[first[0]]), int(shards.units.records[first[0]])
    wanted = np.arange(number, number + min(count, records))
    with scratch_folder() as scratch:
        ranges = shards.discovery.ranges(shards.units, first)
        taken, fault = take(engine, ranges, Reading(), [wanted], types.found(), scratch)
        found = [
            {"key": f"{path}#{number}", **row}
            for _, numbers, batch in taken
            for number, row in zip(numbers.tolist(), python_rows(batch), strict=True)
        ]
    return found, None if found or fault is None else fault[1]


UNITS_TOGETHER = 32
"""Units that one process reads, one after the other."""

LEVEL = "full"


def check(
    path: Path,
    workers: int | str = "auto",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> VerifyResult:
    """Read all records of the shards at a path. `progress` is called with (records read, records).

    `shards` of the result are files, and `samples` the records that can be read. Raises InputError
    if there are none.
    """
    try:
        with open_shards(path, workers) as (shards, engine):
            findings: dict[int, list[Finding]] = {}
            lost = _faults(shards, findings)
            numbers = shards.units.readable()
            looks = [
                numbers[start : start + UNITS_TOGETHER]
                for start in range(0, len(numbers), UNITS_TOGETHER)
            ]
            total = int(shards.units.records.sum())
            done = 0

            def on_found(number: int, found: Found) -> None:
                nonlocal done, lost
                for unit, answer in zip(looks[number].tolist(), found, strict=True):
                    of_unit, bad = _findings(shards, unit, answer)
                    if of_unit:
                        findings[unit] = of_unit
                    lost += bad
                    done += int(shards.units.records[unit])
                progress(done, total)

            engine.examine(
                [
                    FullScanTask(tuple(shards.discovery.ranges(shards.units, chosen)))
                    for chosen in looks
                ],
                on_found,
            )
            missing = [notice for notice in shards.listing.notices if notice.startswith(MISSING)]
            ordered = [error("missing-shard", notice.removeprefix(MISSING)) for notice in missing]
            ordered += _wrong_checksums(shards)
            ordered += [finding for unit in sorted(findings) for finding in findings[unit]]
            return result_of(LEVEL, len(shards.listing), total - lost, ordered)
    except InputError as problem:
        if not path.exists():
            raise
        return result_of(LEVEL, 0, 0, [error("unreadable", str(problem))])


def _wrong_checksums(shards: Shards) -> Iterator[Finding]:
    """Yield the files of exports of shardctl whose SHA-256 is not the one that shardctl.json
    has."""
    for batch in shards.listing.table.select(["path", "root"]).to_batches():
        for row in batch.to_pylist():
            opened = shards.listing.opened(row)
            found = located(opened)
            facts = None if found is None else found[0].files.get(found[1])
            if facts is not None and sha256_of(Path(opened)) != facts.sha256:
                yield error(
                    "wrong-checksum",
                    "its SHA-256 is not the one that shardctl.json has; get it again",
                    row["path"],
                )


def _faults(shards: Shards, findings: dict[int, list[Finding]]) -> int:
    """Add what was found while the units were looked for, and return how many records are lost by
    it."""
    lost = 0
    for unit, fault in shards.units.faults.items():
        findings[unit] = [_finding(shards, unit, int(shards.units.first[unit]), fault)]
        lost += int(shards.units.records[unit])
    return lost


def _findings(shards: Shards, unit: int, answer: dict[str, Any]) -> tuple[list[Finding], int]:
    """Return what was found in a unit, and how many of its records cannot be read."""
    first = int(shards.units.first[unit])
    if "fault" in answer:
        return [_finding(shards, unit, first, Rejection(*answer["fault"]))], int(
            shards.units.records[unit]
        )
    rejects, more = answer["rejects"], answer["more"]
    found = [
        _finding(shards, unit, number, Rejection("read", kind, message))
        for number, kind, message in rejects
    ]
    if answer["note"] is not None:
        found.append(replace(warning(*answer["note"]), shard=_path_of(shards, unit)))
    if more:
        found.append(
            _finding(
                shards,
                unit,
                first,
                Rejection("read", "more", f"{counted(more, 'record')} more cannot be read"),
            )
        )
    return found, len(rejects) + more


def _path_of(shards: Shards, unit: int) -> str:
    return shards.listing.paths_at(shards.units.file[unit : unit + 1])[0]


def _finding(shards: Shards, unit: int, record: int, fault: Rejection) -> Finding:
    path = _path_of(shards, unit)
    key = f"{path}#{record}" if record else None
    return error(fault.error, fault.message, path, key=key)
