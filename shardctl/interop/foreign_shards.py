"""Shards of other tools, as they are: what is in them (`shardctl inspect`), and whether they are
whole (`shardctl verify`). Nothing is converted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from shardctl.errors import InputError
from shardctl.format.names import Json
from shardctl.format.python_values import python_rows
from shardctl.inspection.verify.result import Finding, VerifyResult, error, result_of, warning
from shardctl.making.convert.discover import Discovery
from shardctl.making.options import INPUT_TIMEOUT
from shardctl.making.plan.list_files import list_sources
from shardctl.making.plan.listing import LabelRule, Listing
from shardctl.making.plan.plan import Units
from shardctl.making.sampling import take
from shardctl.making.shards.engines.local import local_engine
from shardctl.making.shards.inputs import Found, PrePlanTask, read_all
from shardctl.sources.export_description import located
from shardctl.sources.files import SourceRoot
from shardctl.sources.format_table import FORMAT_NAMES
from shardctl.sources.formats import Reading, ending_of, without_compression
from shardctl.sources.kinds import KINDS
from shardctl.sources.sidecars import MISSING
from shardctl.sources.types import Types
from shardctl.system.files import sha256_of
from shardctl.system.processes.pool import Limits
from shardctl.system.scratch import scratch_folder
from shardctl.system.text import counted

LIMITS = Limits(seconds=INPUT_TIMEOUT)


@dataclass(frozen=True)
class Shards:
    """The files of another tool, and their units."""

    discovery: Discovery
    units: Units

    @property
    def listing(self) -> Listing:
        """The list of the files."""
        return self.discovery.listing

    @property
    def formats(self) -> dict[str, int]:
        """How many files there are of each format."""
        names = {
            ending: name for name, endings in reversed(FORMAT_NAMES.items()) for ending in endings
        }
        endings = (without_compression(ending_of(*each)) for each in self.files())
        found = Counter(names.get(ending, ending.removeprefix(".")) for ending in endings)
        return dict(found.most_common())

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield the path of each file, and how it is opened."""
        for batch in self.listing.table.select(["path", "root"]).to_batches():
            for row in batch.to_pylist():
                yield row["path"], self.listing.opened(row)


@contextmanager
def open_shards(path: Path, workers: int | str) -> Iterator[Shards]:
    """List the files at a path, and find their units, in processes that may be used on. Raises
    InputError."""
    with scratch_folder() as scratch:
        reading = Reading()
        engine = local_engine(workers, LIMITS)
        try:
            rule = LabelRule.parse("none")
            listing = list_sources([SourceRoot(str(path))], KINDS["table"], reading, rule, scratch)
            discovery = Discovery(listing, reading, False, engine)
            yield Shards(discovery, discovery.find_units())
        finally:
            engine.close()


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
    first: list[Json]
    notices: tuple[str, ...] = ()


def look(path: Path, first: int = 3, workers: int | str = "auto") -> ForeignOverview:
    """Look at the shards at a path, and at their `first` records. Raises InputError if there are
    none."""
    with open_shards(path, workers) as shards:
        units, listing = shards.units, shards.listing
        types = shards.discovery.find_types(units, all_of_them=False)
        faulty = {unit: fault for unit, fault in units.faults.items() if int(units.records[unit])}
        untyped = shards.discovery.untyped if types is None else {}
        faults = {
            _name_of(shards, unit): fault.message for unit, fault in {**faulty, **untyped}.items()
        }
        schema, classes, records = list[tuple[str, str]](), dict[str, list[str]](), list[Json]()
        if types is not None:
            schema = [(f.name, str(f.type)) for f in types.schema()]
            classes = {name: list(names) for name, names in types.classes.items()}
            records, fault = _first_records(shards, types, first)
            faults |= {} if fault is None else {_name_of(shards, int(units.readable()[0])): fault}
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
    path = _path_of(shards, unit)
    first = int(shards.units.first[unit])
    return f"{path}#{first}" if first else path


def _first_records(shards: Shards, types: Types, count: int) -> tuple[list[Json], str | None]:
    """Return the first records of the first unit that can be read; and if there are none of them,
    why they cannot be."""
    first = shards.units.readable()[:1]
    [path] = shards.listing.paths_at(shards.units.file[first])
    number, records = int(shards.units.first[first[0]]), int(shards.units.records[first[0]])
    wanted = np.arange(number, number + min(count, records))
    with scratch_folder() as scratch:
        ranges = shards.discovery.ranges(shards.units, first)
        taken, fault = take(
            shards.discovery.engine, ranges, Reading(), [wanted], types.found(), scratch
        )
        found = [
            {"key": f"{path}#{number}", **row}
            for _, numbers, batch in taken
            for number, row in zip(numbers.tolist(), python_rows(batch), strict=True)
        ]
    return found, None if found or fault is None else fault[1]


UNITS_TOGETHER = 32
"""Units that one process reads, one after the other."""


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
        with open_shards(path, workers) as shards:
            findings: dict[int, list[Finding]] = {}
            numbers, total = shards.units.readable(), int(shards.units.records.sum())
            looks = [
                numbers[start : start + UNITS_TOGETHER]
                for start in range(0, len(numbers), UNITS_TOGETHER)
            ]
            lost = done = 0

            def add(unit: int, answer: Json) -> None:
                nonlocal lost
                found, bad = _findings(shards, unit, answer)
                lost += bad
                if found:
                    findings[unit] = found

            def on_found(number: int, found: Found) -> None:
                nonlocal done
                for unit, answer in zip(looks[number].tolist(), found, strict=True):
                    add(unit, answer)
                    done += int(shards.units.records[unit])
                progress(done, total)

            for unit, fault in shards.units.faults.items():
                add(unit, {"fault": (fault.stage, fault.error, fault.message)})
            ranges = partial(shards.discovery.ranges, shards.units)
            tasks = [PrePlanTask(ranges(chosen), read_all) for chosen in looks]
            shards.discovery.engine.examine(tasks, on_found)
            missing = [notice for notice in shards.listing.notices if notice.startswith(MISSING)]
            ordered = [error("missing-shard", notice.removeprefix(MISSING)) for notice in missing]
            ordered += _wrong_checksums(shards)
            ordered += [finding for unit in sorted(findings) for finding in findings[unit]]
            return result_of("full", len(shards.listing), total - lost, ordered)
    except InputError as problem:
        if not path.exists():
            raise
        return result_of("full", 0, 0, [error("unreadable", str(problem))])


def _wrong_checksums(shards: Shards) -> Iterator[Finding]:
    """Yield the files of exports of shardctl whose SHA-256 is not the one that shardctl.json
    has."""
    for path, opened in shards.files():
        found = located(opened)
        facts = None if found is None else found[0].files.get(found[1])
        if facts is not None and sha256_of(Path(opened)) != facts.sha256:
            yield error(
                "wrong-checksum",
                "its SHA-256 is not the one that shardctl.json has; get it again",
                path,
            )


def _findings(shards: Shards, unit: int, answer: Json) -> tuple[list[Finding], int]:
    """Return what was found in a unit, and how many of its records cannot be read."""
    first, records = (int(of[unit]) for of in (shards.units.first, shards.units.records))
    if "fault" in answer:
        return [_finding(shards, unit, first, *answer["fault"][1:])], records
    rejects, more = answer["rejects"], answer["more"]
    found = [_finding(shards, unit, *reject) for reject in rejects]
    if answer["note"] is not None:
        found.append(replace(warning(*answer["note"]), shard=_path_of(shards, unit)))
    if more:
        said = f"{counted(more, 'record')} more cannot be read"
        found.append(_finding(shards, unit, first, "more", said))
    return found, len(rejects) + more


def _path_of(shards: Shards, unit: int) -> str:
    return shards.listing.paths_at(shards.units.file[unit : unit + 1])[0]


def _finding(shards: Shards, unit: int, record: int, kind: str, message: str) -> Finding:
    path = _path_of(shards, unit)
    return error(kind, message, path, key=f"{path}#{record}" if record else None)
