"""`verify`: all damage of a dataset, or of one shard without its dataset, as findings.

It prints nothing, and does not stop at the first finding. Arrow files are read and images decoded
in child processes: bytes that crash such a process are one more finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shardctl.errors import DatasetError, UsageError, WorkerError, explaining_interrupts
from shardctl.format.dataset_location import (
    AnyDataset,
    DatasetLocation,
    check_unchanged,
    from_json,
    open_location,
    refuse_part_of_dataset,
    to_json,
)
from shardctl.format.manifest import Generation, Manifest
from shardctl.format.names import (
    BESIDE_SHARDS,
    CHECKSUMS,
    DATA,
    FILES,
    GENERATIONS,
    PLAN,
    SHARDS,
    STAGING,
    UPDATE,
    Places,
    are_paths_inside,
    content_digits,
    is_shard_of_format_2,
    name_of_path,
)
from shardctl.format.tables import ShardTable, read_checksums
from shardctl.inspection.verify.result import (
    LEVELS,
    MEND,
    MISSING,
    REBUILD,
    UNREADABLE,
    Finding,
    VerifyResult,
    error,
    reading,
    result_of,
    warning,
)
from shardctl.inspection.verify.tables import OF_SHARDS, TABLE_CHECKS, check_file, check_manifest
from shardctl.system.files import PARTIAL
from shardctl.system.folders import hash_file
from shardctl.system.permutation import LazySequence
from shardctl.system.processes.pool import Limits, Pool, Task
from shardctl.system.processes.worker_state import FATAL_KILLS, Death, Deaths
from shardctl.system.progress import Report, counting
from shardctl.system.text import counted, printable, unknown

LIMITS = Limits(memory=8 << 30, seconds=600.0)
"""The limits of a check: far more than any block or image that was written needs, and less than a
decompression bomb."""

WORKER = "shardctl.inspection.verify.worker"
"""The module that checks in worker processes."""


def pool_of_checks(workers: int | str = "auto") -> Pool:
    """Return the processes of checks. None starts before there is one to do; `prepare` imports
    their modules ahead of that."""
    return Pool(WORKER, workers, LIMITS)


@contextmanager
def checks_ahead(needed: bool) -> Iterator[Pool | None]:
    """Start the process that checks are forked from, before there is something to check. It imports
    what they need meanwhile.

    `verify` takes 0.2 s less with it. So does an update, which checks its result (2026-11-27).
    Yields None if it is not needed.
    """
    if not needed:
        yield None
        return
    with closing(pool_of_checks()) as processes:
        processes.prepare()
        yield processes


def verify(
    path: str | Path, level: str = "full", progress: bool | Callable[[int, int], None] = True
) -> VerifyResult:
    """Check a dataset, or one shard without its dataset.

    `progress` False shows no progress on stderr; a function is called with (shards done, shards)
    instead. `path` may be the URL of one on a store: `quick` lists it and reads the end of each
    shard, the other levels download all. Raises DatasetError if there is no dataset at all,
    UsageError for an unknown level, and StoreError if a store refuses or does not answer. Raises
    WorkerError if the processes that check are killed from outside again and again.
    """
    return verify_with(None, path, level, progress)


def verify_with(
    processes: Pool | None,
    path: str | Path,
    level: str,
    progress: bool | Report,
    chosen: Sequence[int] | None = None,
) -> VerifyResult:
    """Check as `verify` does, with the processes of `pool_of_checks`, which end afterwards; None:
    with new ones. `chosen` are the shards that are checked, by their numbers; None: all."""
    if level not in LEVELS:
        raise UsageError(unknown("level", level, LEVELS))
    checked = "no shard was checked yet"
    with (
        explaining_interrupts(lambda: f"interrupted; {checked}, and nothing is changed by a check"),
        open_location(path, "ends" if level == "quick" else "whole", listed=True) as place,
    ):
        refuse_part_of_dataset(place)
        pool = processes or pool_of_checks(1 if place.lone else "auto")
        with closing(pool):
            if place.lone:
                return _Verification(place, level, lambda done, total: None, pool).result(None)
            with counting(progress, "shards", "verifying") as report:

                def on_shard(done: int, total: int) -> None:
                    nonlocal checked
                    checked = f"{done:,} of {counted(total, 'shard')} were checked"
                    report(done, total)

                return _Verification(place, level, on_shard, pool).result(chosen)


MOST_KILLS = 4 * FATAL_KILLS
"""Deaths of processes that were killed from outside at one shard, wherever in it, after which the
check is given up."""


@dataclass
class _Verification:
    """One check of a lone shard, or of everything in the folder of a dataset: its manifest, the
    files beside the shards, every shard, and what does not belong to it.

    `progress` is called with (shards done, shards). The processes of `pool` read the files: one
    that dies of what it reads is a finding.
    """

    place: DatasetLocation
    level: str
    progress: Report
    pool: Pool
    samples: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def folder(self) -> AnyDataset:
        """The dataset, or what the lone shard lies in."""
        return self.place.folder

    def result(self, chosen: Sequence[int] | None) -> VerifyResult:
        """Check the lone shard, or the dataset, or of its shards the chosen ones.

        Raises DatasetError if there is no dataset at all, or another one at the end; WorkerError as
        `_check_all`.
        """
        if self.place.lone:
            self._check_all([{"check": "lone shard"}])
            return result_of(self.level, 1, self.samples, self.findings)
        manifest, found = check_manifest(self.folder)
        self.findings += found
        opened: Manifest | None = None
        with suppress(DatasetError):  # the processes open it with the tables
            opened = Manifest.load(from_json(to_json(self.folder)))
        if manifest is None or opened is None:
            return result_of(self.level, self._by_checksums(set()), 0, self.findings)
        shards, samples = self._check_with(manifest, chosen)
        check_unchanged(self.folder)
        if not check_manifest(self.folder)[0] == manifest:
            raise DatasetError(
                f"{self.folder.shown()}: was replaced while it was checked; check it again"
            )
        return result_of(self.level, shards, samples, self.findings)

    def _check_with(self, manifest: Manifest, chosen: Sequence[int] | None) -> tuple[int, int]:
        names = sorted(manifest.files)
        of_files = self._check_all([{"check": "file", "name": name} for name in names])
        found = dict(zip(names, of_files, strict=True))
        broken = {name for name in names if found[name]}
        # Not opened again: the same finding would come twice, and a pipe in the place of a file
        # never answers.
        closed = {
            name for name in names if {each.kind for each in found[name]} & {UNREADABLE, MISSING}
        }
        contents = [
            name
            for name, check in TABLE_CHECKS.items()
            if (self.level != "quick" or check.level == "quick") and not check.reads & closed
        ]
        of_tables = self._check_all([{"check": name} for name in contents])
        wrong = dict(zip(contents, of_tables, strict=True))
        if SHARDS in broken or wrong[OF_SHARDS]:
            return self._by_checksums(broken), 0
        table = ShardTable(self.folder)
        self._look_for_extra_files({*table.paths, *manifest.own_files}, manifest.kept)
        self._check_update(manifest)
        use_plan = self.level != "quick" and not (
            {FILES, PLAN} & broken or wrong["files"] or wrong["plan"]
        )
        shards = range(len(table)) if chosen is None else chosen
        of_shard = lambda at: {"check": "shard", "shard": shards[at], "plan": use_plan}  # noqa: E731 - one line, used once
        with self.folder.prefetch(table.paths if chosen is None else ()) as note:
            self._check_all(LazySequence(len(shards), of_shard), self.progress, note)
        return len(table), int(table.rows.sum())

    def _check_update(self, manifest: Manifest) -> None:
        """Check what only `convert --update` needs: without it, a dataset is whole all the same."""
        words = {MISSING: "is missing", UNREADABLE: "cannot be read"}
        for found in check_file(self.folder, manifest, UPDATE, self.level):
            what = f"{UPDATE} {words.get(found.kind, 'is damaged')}: the samples are whole, but "
            needs = "`convert --update` cannot tell which inputs have changed"
            self.findings.append(warning("damaged-update", f"{what}{needs}"))

    def _check_all(
        self,
        tasks: Sequence[Task],
        progress: Report = lambda done, total: None,
        note: Callable[[int], None] = lambda number: None,
    ) -> list[list[Finding]]:
        """Do these checks, add their findings in this order, and return those of each. `note` gets
        the number of each.

        What a process did that was killed from outside is done again. Raises WorkerError if that
        goes on.
        """
        found: dict[int, list[Finding]] = {}
        deaths, kills = Deaths(), Counter[int]()

        def add(task: Task, findings: list[Finding]) -> None:
            found[task["number"]] = findings
            note(task["number"])
            progress(len(found), len(tasks))

        def answered(task: Task, message: dict[str, Any]) -> None:
            self.samples, findings = message["done"]
            add(task, findings)

        def died(task: Task, death: Death) -> Task | None:
            number = task["number"]
            is_fatal = deaths.is_fatal((number, death.place), death)
            kills[number] += death.from_outside
            if death.from_outside and (
                (death.place is None and is_fatal) or kills[number] >= MOST_KILLS
            ):
                name = printable(self._name(task))
                raise WorkerError(
                    f"{self.place.shown}: the process that checked {name} {death}, "
                    f"{kills[number]} times, as when memory runs out; free some and check again"
                )
            if not is_fatal:
                return task
            if death.place is not None and death.place not in dict(task["fatal"]):
                return {**task, "fatal": [*task["fatal"], [death.place, _why_fatal(death)]]}
            add(task, [self._crash(task, death)])
            return None

        start = {
            "folder": to_json(self.folder),
            "lone": self.place.lone,
            "level": self.level,
            "fatal": [],
        }
        given = LazySequence(
            len(tasks), lambda number: {**start, "number": number, **tasks[number]}
        )
        self.pool.run(given, answered, died)
        ordered = [found.get(number, []) for number in range(len(tasks))]
        self.findings += [finding for of_one in ordered for finding in of_one]
        return ordered

    def _crash(self, task: Task, death: Death) -> Finding:
        name = self._name(task)
        what = (
            "needs more memory than any shard should"
            if death.out_of_memory
            else f"the process that read it {death}"
        )
        if task["check"] == "shard":
            return error("crashes-reader", f"{what}; {REBUILD}", name)
        if task["check"] == "lone shard":
            return error("crashes-reader", what, name)
        return error("crashes-reader", f"{name}: {what}; {MEND}")

    def _name(self, task: Task) -> str:
        """Return the name of what a task checks."""
        if task["check"] == "shard":
            return ShardTable(self.folder)[task["shard"]].name
        return self.place.lone or str(task.get("name", task["check"]))

    def _by_checksums(self, checked: set[str]) -> int:
        """Check what can still be checked if the manifest or the table of shards cannot be used,
        and count the shards.

        SHA256SUMS still lists the files and their SHA-256. `checked` are files that already have a
        finding.
        """
        try:
            sums = read_checksums(self.folder) if CHECKSUMS not in checked else {}
        except DatasetError as problem:
            self.findings.append(error("damaged-checksums", f"{problem}; {MEND}"))
            sums = {}
        names = [name for name in sums if are_paths_inside([name])]
        with self.folder.prefetch(names) as note:
            for place, name in enumerate(names):
                if name not in checked:
                    self.findings += self._by_checksum(name, sums[name])
                note(place)
                self.progress(place + 1, len(names))
        shards = sum(map(_is_shard, names))
        if shards:
            self._look_for_extra_files(set(names))
        return shards

    def _by_checksum(self, name: str, sha256: str) -> list[Finding]:
        shard, remedy = (name_of_path(name), REBUILD) if _is_shard(name) else (None, MEND)

        def compare() -> Iterator[Finding]:
            if self.level != "quick" and hash_file(self.folder, name) != sha256:
                what = f"{name}: its SHA-256 differs from {CHECKSUMS}"
                yield error("wrong-checksum", f"{what}; {remedy}", shard)

        return reading(self.folder, name, remedy, compare, shard)

    def _look_for_extra_files(self, listed: set[str], kept: Iterable[Generation] = ()) -> None:
        """Find files that do not belong to the dataset, beside those `listed` and those of the
        generations that are kept. Missing files are found by the other checks."""
        # the folder of shards of format 2 on a store is one of those above the listed
        above = {name.partition("/")[0] for name in listed}
        known = listed | above | BESIDE_SHARDS | {STAGING, GENERATIONS, DATA}
        try:
            names = self.folder.names()
        except OSError as fault:
            # a folder whose files may be read need not be one that may be listed
            what = f"{self.folder.shown()} cannot be listed ({fault.strerror or fault})"
            self.findings.append(
                warning(UNREADABLE, f"{what}; whether it has other files is unknown")
            )
            return
        # shards of other generations, and of a job that goes on
        others = {name for name in names if name not in known and not _may_be_shard(name)}
        for each in kept if others else ():  # made before format 3, they lie elsewhere
            with suppress(DatasetError):
                others -= {*ShardTable(replace(self.folder, places=Places(each.path))).paths}
        for name in sorted(others):
            self.findings.append(
                warning(
                    "extra-file", f"{printable(name)} is not part of the dataset; it does no harm"
                )
            )


def _is_shard(name: str) -> bool:
    """Return whether a file in the list of checksums is a shard."""
    return "/" in name or is_shard_of_format_2(name)


def _may_be_shard(path: str) -> bool:
    return path.startswith(f"{DATA}/") and bool(content_digits(path) or path.endswith(PARTIAL))


def _why_fatal(death: Death) -> str:
    """Return what the decoder of an image does to the process that it runs in."""
    if death.overtime:
        return f"its decoder takes longer than {LIMITS.seconds:g} s"
    if death.from_outside:
        return "the process that decodes it is killed every time, as when memory runs out"
    return "its decoder crashes"
