"""Checks of a dataset. They return all damage as findings, print nothing, and do not stop at the first finding.

Arrow files are read and images decoded in child processes: bytes that crash such a process are one more finding.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardctl.errors import DatasetError, UsageError, WorkerError
from shardctl.format.lazy_folder.ahead import bringing_ahead
from shardctl.format.lazy_folder.files import is_file, is_regular_file, list_names, sha256_of, size_of_file
from shardctl.format.lazy_folder.mirror import ENDS, WHOLE
from shardctl.format.lazy_folder.opening import check_unchanged, local_folder
from shardctl.format.manifest import Manifest, refuse_part_of_dataset
from shardctl.format.names import (
    BESIDE_SHARDS,
    CHECKSUMS,
    FILES,
    GENERATIONS,
    PLAN,
    SHARDS,
    STAGING,
    UPDATE,
    is_file_name,
    is_shard_name,
)
from shardctl.format.tables import ShardTable, read_checksums
from shardctl.inspection.verify.finding import MISSING, UNREADABLE, Finding, error, reading, warning
from shardctl.inspection.verify.shards import REBUILD
from shardctl.inspection.verify.tables import MEND, check_manifest
from shardctl.inspection.verify.worker import CHECKS
from shardctl.system.processes.death import FATAL_KILLS, Death
from shardctl.system.processes.pool import Limits, Pool, Task
from shardctl.system.sequences import LazySequence
from shardctl.system.text import printable

LEVELS = ("quick", "full", "deep")
"""`quick` reads the manifest, the tables, the sizes and every shard's footer; `full` every byte; `deep` decodes too."""

LIMITS = Limits(memory=8 << 30, seconds=600.0)
"""The limits of a check: far more than any block or image that was written needs, and less than a decompression bomb."""

WORKER = "shardctl.inspection.verify.worker"
"""The module that checks in worker processes."""

MOST_KILLS = 4 * FATAL_KILLS
"""Deaths of processes that were killed from outside at one shard, wherever in it, after which the check is given up."""

__all__ = ["LEVELS", "Finding", "VerifyResult", "verify"]


@dataclass(frozen=True)
class VerifyResult:
    """The result of a check. `ok` is true if there is no finding of severity `error`."""

    ok: bool
    level: str
    shards: int
    samples: int
    findings: tuple[Finding, ...]


def verify(
    path: str | Path, level: str = "full", progress: Callable[[int, int], None] = lambda done, total: None
) -> VerifyResult:
    """Check a dataset, or one shard without its dataset. `progress` is called with (shards done, shards).

    `path` may be the URL of one on a store: `quick` lists it and reads the end of each shard, the other levels download all.
    Raises DatasetError if there is no dataset at all, UsageError for an unknown level, WorkerError if the processes that
    check are killed from outside again and again, StoreError if a store refuses or does not answer.
    """
    if level not in LEVELS:
        raise UsageError(f"level {level!r} is not known; there are {', '.join(LEVELS)}")
    with local_folder(path, ENDS if level == "quick" else WHOLE, listed=True) as target:
        return _verify(target, level, progress)


def _verify(target: Path, level: str, progress: Callable[[int, int], None]) -> VerifyResult:
    refuse_part_of_dataset(target)
    lone = is_file(target)
    pool = Pool(WORKER, 1 if lone else "auto", LIMITS)
    try:
        check = _Check(target, level, progress, pool)
        return check.lone_shard() if lone else check.dataset()
    finally:
        pool.close()


class _Check:
    """One check of a dataset or a shard."""

    def __init__(self, root: Path, level: str, progress: Callable[[int, int], None], pool: Pool) -> None:
        self.root, self.level, self.progress, self.pool = root, level, progress, pool
        self.findings: list[Finding] = []

    def lone_shard(self) -> VerifyResult:
        """Check one file."""
        samples = 0

        def on_message(_: Task, answer: Any) -> None:
            nonlocal samples
            samples, findings = answer
            self.findings += [Finding(**finding) for finding in findings]

        self._run([{"check": "lone shard"}], on_message, lambda _, crash: self.findings.append(crash))
        return self._result(1, samples)

    def dataset(self) -> VerifyResult:
        """Check everything in a folder."""
        manifest, found = check_manifest(self.root)
        self.findings += found
        if manifest is None:
            return self._result(self._by_checksums(set()), 0)
        shards, samples = self._check_with(manifest)
        check_unchanged(self.root)
        if not check_manifest(self.root)[0] == manifest:
            raise DatasetError(f"{printable(str(self.root))}: was replaced while it was checked; check it again")
        return self._result(shards, samples)

    def _check_with(self, manifest: Manifest) -> tuple[int, int]:
        names = sorted(manifest.files)
        found = dict(zip(names, self._check_all([_file(name) for name in names]), strict=True))
        broken = {name for name in names if found[name]}
        # Not opened again: the same finding would come twice, and a pipe in the place of a file never answers.
        closed = {name for name in names if any(finding.kind in (UNREADABLE, MISSING) for finding in found[name])}
        wanted = [name for name in CHECKS if self.level != "quick" or name == "table of shards"]
        contents = [name for name in wanted if not CHECKS[name][1] & closed]
        wrong = dict(zip(contents, self._check_all([{"check": name} for name in contents]), strict=True))
        if SHARDS in broken or wrong["table of shards"]:
            return self._by_checksums(broken), 0
        table = ShardTable(self.root / SHARDS)
        self._look_for_extra_files({*table.names, *manifest.own_files})
        self._check_update(manifest)
        use_plan = self.level != "quick" and not {FILES, PLAN} & broken and not wrong["files"] and not wrong["plan"]
        of_shard = lambda number: {"check": "shard", "shard": number, "plan": use_plan}  # noqa: E731 - one line, used once
        with bringing_ahead(self.root, table.names) as note:
            self._check_all(LazySequence(len(table), of_shard), self.progress, note)
        return len(table), int(table.rows.sum())

    def _check_update(self, manifest: Manifest) -> None:
        """Check what only `convert --update` needs: without it, a dataset is whole all the same."""
        facts, path = manifest.update, self.root / UPDATE
        if facts is None:
            return
        what = "cannot be read"
        with contextlib.suppress(OSError):
            if not is_regular_file(path):
                what = "is missing"
            elif self.level == "quick" or size_of_file(path) != facts.bytes:
                what = "is damaged" if size_of_file(path) != facts.bytes else ""
            else:
                what = "is damaged" if sha256_of(path) != facts.sha256 else ""
        if what:
            needs = "the samples are whole, but `convert --update` cannot tell any more which inputs have changed"
            self.findings.append(warning("damaged-update", f"{UPDATE} {what}: {needs}"))

    def _check_all(
        self,
        tasks: Sequence[Task],
        progress: Callable[[int, int], None] = lambda done, total: None,
        note: Callable[[int], None] = lambda number: None,
    ) -> list[list[Finding]]:
        """Run these checks, add their findings in this order, and return those of each. `note` gets the number of each."""
        found: dict[int, list[Finding]] = {}

        def add(task: Task, findings: list[Finding]) -> None:
            found[task["number"]] = findings
            note(task["number"])
            progress(len(found), len(tasks))

        self._run(
            tasks,
            lambda task, answer: add(task, [Finding(**finding) for finding in answer]),
            lambda task, crash: add(task, [crash]),
        )
        ordered = [found.get(number, []) for number in range(len(tasks))]
        self.findings += [finding for of_one in ordered for finding in of_one]
        return ordered

    def _run(
        self, tasks: Sequence[Task], on_message: Callable[[Task, Any], None], crashed: Callable[[Task, Finding], None]
    ) -> None:
        """Do checks in the pool. `on_message` gets what they return, `crashed` the finding that one has died of its check.

        What a process did that was killed from outside is done again. Raises WorkerError if that goes on.
        """
        kills: Counter[tuple[int, int | None]] = Counter()
        all_kills: Counter[int] = Counter()

        def died(task: Task, death: Death) -> Task | None:
            if death.from_outside:
                kills[task["number"], death.place] += 1
                all_kills[task["number"]] += 1
                times = kills[task["number"], death.place]
                if (death.place is None and times >= FATAL_KILLS) or all_kills[task["number"]] >= MOST_KILLS:
                    raise WorkerError(self._kills(task, death, all_kills[task["number"]]))
                if times < FATAL_KILLS:
                    return task
            if death.place is not None and death.place not in dict(task["fatal"]):
                return {**task, "fatal": [*task["fatal"], [death.place, _why_fatal(death)]]}
            crashed(task, self._crash(task, death))
            return None

        start = {"root": str(self.root), "level": self.level, "fatal": []}
        given = LazySequence(len(tasks), lambda number: {**start, "number": number, **tasks[number]})
        self.pool.run(given, lambda task, message: on_message(task, message["done"]), died)

    def _crash(self, task: Task, death: Death) -> Finding:
        what = "needs more memory than any shard should" if death.out_of_memory else f"the process that read it {death}"
        if task["check"] == "shard":
            return error("crashes-reader", f"{what}; {REBUILD}", self._name(task))
        if task["check"] == "lone shard":
            return error("crashes-reader", what, self._name(task))
        return error("crashes-reader", f"{self._name(task)}: {what}; {MEND}")

    def _kills(self, task: Task, death: Death, times: int) -> str:
        return (
            f"{printable(str(self.root))}: the process that checked {printable(self._name(task))} {death}, {times} times,"
            " as systems do when memory runs out; this tells nothing about the dataset; free some memory and check it again"
        )

    def _name(self, task: Task) -> str:
        """Return the name of what a task checks."""
        if task["check"] == "shard":
            return ShardTable(self.root / SHARDS)[task["shard"]].path
        return self.root.name if task["check"] == "lone shard" else str(task.get("name", task["check"]))

    def _by_checksums(self, checked: set[str]) -> int:
        """Check what can still be checked if the manifest or the table of shards cannot be used, and count the shards.

        SHA256SUMS still lists the files and their SHA-256. `checked` are files that already have a finding.
        """
        try:
            sums = read_checksums(self.root / CHECKSUMS) if CHECKSUMS not in checked else {}
        except DatasetError as problem:
            self.findings.append(error("damaged-checksums", f"{problem}; {MEND}"))
            sums = {}
        names = [name for name in sums if is_file_name(name)]
        with bringing_ahead(self.root, names) as note:
            for place, name in enumerate(names):
                if name not in checked:
                    self.findings += self._by_checksum(name, sums[name])
                note(place)
                self.progress(place + 1, len(names))
        shards = set(filter(is_shard_name, names))
        if shards:
            self._look_for_extra_files(set(names))
        return len(shards)

    def _by_checksum(self, name: str, sha256: str) -> list[Finding]:
        shard, remedy = (name, REBUILD) if is_shard_name(name) else (None, MEND)
        missing = error(MISSING if shard is None else "missing-shard", f"{name} is missing; {remedy}", shard)
        if not is_regular_file(self.root / name):
            return [missing]

        def compare() -> Iterator[Finding]:
            if self.level != "quick" and sha256_of(self.root / name) != sha256:
                yield error("wrong-checksum", f"{name}: its SHA-256 differs from {CHECKSUMS}; {remedy}", shard)

        return list(reading(missing, name, remedy, compare()))

    def _look_for_extra_files(self, listed: set[str]) -> None:
        """Find files that do not belong to the dataset, beside those `listed`. Missing files are found by the other checks."""
        known = listed | BESIDE_SHARDS | {STAGING, GENERATIONS}
        try:
            names = list_names(self.root)
        except OSError as fault:  # a folder whose files may be read need not be one that may be listed
            what = f"{printable(str(self.root))} cannot be listed ({fault.strerror or fault})"
            self.findings.append(warning(UNREADABLE, f"{what}; whether it has files that are not part of it is unknown"))
            return
        for name in sorted(set(names) - known):
            self.findings.append(warning("extra-file", f"{printable(name)} is not part of the dataset; it does no harm"))

    def _result(self, shards: int, samples: int) -> VerifyResult:
        ok = not any(finding.severity == "error" for finding in self.findings)
        return VerifyResult(ok, self.level, shards, samples, tuple(self.findings))


def _file(name: str) -> Task:
    return {"check": "file", "name": name}


def _why_fatal(death: Death) -> str:
    """Return what the decoder of an image does to the process that it runs in."""
    if death.overtime:
        return f"its decoder takes longer than {LIMITS.seconds:g} s"
    if death.from_outside:
        return "the process that decodes it is killed every time, as systems do when memory runs out"
    return "its decoder crashes"
