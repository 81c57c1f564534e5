"""`shardctl verify` of shards of other tools: every record is read, and every checksum that the
format has is compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardctl.build.shards.scan import Found, FullScanTask
from shardctl.errors import InputError, Rejection
from shardctl.inspection.verify.result import Finding, VerifyResult, error, result_of, warning
from shardctl.interop.foreign.shards import Shards, open_shards
from shardctl.sources.export_description import located
from shardctl.sources.sidecars import MISSING
from shardctl.system.files import sha256_of
from shardctl.system.text import counted

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
