"""Repair of a damaged dataset: only damaged files are rebuilt, from the sources, and verified by their recorded SHA-256.

No code is run only because a dataset names it: the user must name the user functions when repairing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from shardctl import lease
from shardctl.conversion import publish
from shardctl.conversion.commit import Commit, Committed
from shardctl.conversion.options import INPUT_TIMEOUT, Options, check_sources
from shardctl.conversion.staging import REPAIR_PREFIX, discard
from shardctl.engines import local
from shardctl.engines.job import NEW_FOLDER, Job
from shardctl.engines.pool import Limits
from shardctl.engines.task import Progress, read_finished, read_marker
from shardctl.errors import DatasetError, InputError, SourceGoneError, UsageError
from shardctl.manifest import MANIFEST, PLAN, REJECTS, STAGING, Manifest, open_checked_table
from shardctl.recipe import Recipe, refuse_unnamed_functions
from shardctl.restoration.evidence import (
    MISPLACED,
    damaged_files,
    delete_misplaced,
    expected_hashes,
    hash_files,
    refuse_folders,
    restore_misplaced,
    shard_names,
)
from shardctl.restoration.manifest import (
    begins_like_json,
    find_manifest,
    refuse_other_manifest,
    remake_manifest,
    with_sizes,
)
from shardctl.restoration.rebuild import (
    Lost,
    Outcomes,
    find_layout,
    fresh_job,
    lost_samples,
    recorded_job,
    shards_with_rejects,
)
from shardctl.sources import place_of
from shardctl.storage import copy_file, is_file, is_regular_file, naming_the_path, printable, sync_folder, write_atomically
from shardctl.verification.finding import UNREADABLE
from shardctl.verification.tables import check_manifest

__all__ = ["Listener", "Lost", "RepairResult", "Unrepaired", "repair"]


@dataclass(frozen=True)
class Unrepaired:
    """A file that could not be repaired, and why."""

    file: str
    message: str


@dataclass(frozen=True)
class RepairResult:
    """The result of a repair. `status` is whole (no damage found), repaired, dropped (lost samples removed), damaged (still).

    `repaired` names the repaired files, `lost` the samples that cannot be made again; `notices` are messages for the user.
    """

    status: str
    repaired: tuple[str, ...]
    unrepaired: tuple[Unrepaired, ...]
    lost: tuple[Lost, ...]
    notices: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the dataset is undamaged now."""
        return not self.unrepaired


@dataclass(frozen=True)
class Listener:
    """Callbacks for the progress of a repair: first the files checked, then the inputs read, each as (done, total)."""

    checking: Callable[[int, int], None] = lambda done, total: None
    building: Callable[[int, int], None] = lambda done, total: None
    waiting: Callable[[str], None] = lambda owner: None


def repair(
    path: str | Path,
    sources: Sequence[str | Path] = (),
    transforms: Sequence[str] = (),
    drop_lost: bool = False,
    workers: int | str = "auto",
    listener: Listener | None = None,
) -> RepairResult:
    """Repair a dataset. `sources` are the new paths of its sources, if they have moved, in the order of the conversion.

    `transforms` names the user functions with which it was made; they are run. `drop_lost` removes the samples that neither
    the dataset nor the sources have any more. Raises DatasetError if there is no dataset, or too little of it is left for a
    repair; UsageError, InputError, StorageError, BusyError.
    """
    options = Options(workers=workers)
    options.check()
    given = tuple(str(place_of(root)) for root in check_sources(sources)) if sources else ()
    root = Path(path).resolve()
    if is_file(root):
        raise UsageError(f"{printable(str(path))}: one shard; repair works on a whole dataset")
    if not publish.is_broken_off(root):
        check_manifest(Path(path))  # that there is a dataset at all
    told = listener or Listener()
    with lease.hold(root / STAGING, told.waiting) as held:
        completed = publish.recover(root)
        folder = root / STAGING / f"{REPAIR_PREFIX}{secrets.token_hex(4)}"
        with naming_the_path(folder):
            folder.mkdir()
        try:
            result = _Repair(root, folder, given, tuple(transforms), drop_lost, workers, told, held).run()
        finally:
            if folder.exists() and not publish.is_taking_its_place(folder):  # otherwise it may hold the only copy of some data
                with contextlib.suppress(OSError):  # the next repair deletes it
                    discard(folder)
    if completed is None:
        return result
    return dataclasses.replace(result, notices=("an interrupted replacement of the dataset was completed", *result.notices))


class _Repair:
    """The state of one call of `repair`."""

    def __init__(
        self,
        root: Path,
        folder: Path,
        sources: tuple[str, ...],
        transforms: tuple[str, ...],
        drop_lost: bool,
        workers: int | str,
        listener: Listener,
        held: lease.Lease,
    ) -> None:
        self.root, self.folder, self.sources, self.transforms = root, folder, sources, transforms
        self.drop_lost, self.workers, self.listener, self.held = drop_lost, workers, listener, held
        self.repaired: list[str] = []
        self.unrepaired: list[Unrepaired] = []
        self.lost: list[Lost] = []
        self.notices: list[str] = []

    def run(self) -> RepairResult:
        self.manifest = self._whole_manifest()
        hashes, unreadable = hash_files(self.root, self.listener.checking)
        if self.drop_lost:
            self._refuse_unreadable_shards(unreadable)
        self.expected = expected_hashes(self.root, self.manifest, hashes)
        self.held.check()
        self.repaired += restore_misplaced(self.root, self.expected, hashes, unreadable, self.folder)
        delete_misplaced(self.root)
        self.damaged = damaged_files(self.expected, hashes, self.manifest)
        for name in sorted(self.damaged & set(unreadable)):
            why = unreadable[name].strerror or unreadable[name]
            self.notices.append(f"{printable(name)} could not be read ({why}) and counts as damaged; check its disk or server")
        dropped = False
        if self.damaged:
            try:
                job = self._job()
                self._build(job)
                dropped = bool(self.lost) and self.drop_lost and self._drop(job)
                if not dropped:
                    self._mend_tables(job)
            except (DatasetError, InputError) as problem:
                self.unrepaired += [Unrepaired(name, str(problem)) for name in sorted(self.damaged)]
        self._settle_manifest()
        sync_folder(self.root)
        status = "damaged" if self.unrepaired else "dropped" if dropped else "repaired" if self.repaired else "whole"
        return RepairResult(status, tuple(sorted(self.repaired)), tuple(self.unrepaired), tuple(self.lost), tuple(self.notices))

    def _refuse_unreadable_shards(self, unreadable: dict[str, OSError]) -> None:
        """Raise DatasetError if a shard cannot be read: its samples may all be there once its disk or server is back."""
        for name in sorted(unreadable.keys() & set(shard_names(self.manifest))):
            why = unreadable[name].strerror or unreadable[name]
            raise DatasetError(
                f"{printable(str(self.root / name))}: cannot be read ({why}); --drop-lost does not remove samples that may"
                " still be there: bring back its disk or server, repair without --drop-lost, or move it away if it is lost"
            )

    @property
    def intact(self) -> set[str]:
        """The undamaged files."""
        return {*self.manifest.files, *shard_names(self.manifest)} - self.damaged

    def _whole_manifest(self) -> Manifest:
        """Return the manifest, repaired first if it is damaged."""
        manifest, findings = check_manifest(self.root)
        if manifest is not None:
            refuse_other_manifest(self.root, manifest)
        damaged = manifest is None or bool(findings)
        for finding in findings:
            if finding.kind == UNREADABLE:  # it may be whole, and nothing else has the fingerprint
                raise DatasetError(f"{printable(str(self.root))}: {finding.message}")
        manifest = manifest or find_manifest(self.root) or remake_manifest(self.root, self.sources)
        refuse_folders(self.root, manifest)
        if damaged:
            if is_regular_file(self.root / MANIFEST) and begins_like_json(self.root / MANIFEST) is False:
                # It may be the content of another file. A second name, since there must be a manifest at any moment.
                _link(self.root / MANIFEST, self.root / f"{MANIFEST}{MISPLACED}")
            self._write_manifest(manifest)
            self.repaired.append(MANIFEST)
            if not manifest.sources:
                self.notices.append(f"{MANIFEST} was rebuilt without the paths of the sources; --source records them")
            if not all(manifest.fingerprint_parts.values()):
                self.notices.append(
                    f"{MANIFEST} has lost the fingerprint of the inputs: convert will not report the dataset as up to date"
                )
        return dataclasses.replace(manifest, sources=self.sources or manifest.sources)

    def _settle_manifest(self) -> None:
        """Add to the manifest what is known only now: the sizes of tables, and the paths of the sources."""
        if self.unrepaired:
            return
        on_disk = Manifest.load(self.root)
        settled = dataclasses.replace(
            on_disk, files=with_sizes(self.root, on_disk.files), sources=self.sources or on_disk.sources
        )
        if settled != on_disk:
            self._write_manifest(settled)

    def _write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest elsewhere and rename it: a killed process leaves no half of it in the dataset."""
        self.held.check()
        write_atomically(self.folder / MANIFEST, manifest.to_json().encode())
        with naming_the_path(self.root / MANIFEST):
            (self.folder / MANIFEST).replace(self.root / MANIFEST)

    def _job(self) -> Job:
        """Return the job that makes this dataset: from its own plan, or from the sources if tables are lost."""
        refuse_unnamed_functions(self.manifest.recipe, self.transforms, self.root, "repair")
        needed = {PLAN, REJECTS, *shard_names(self.manifest)} & self.damaged
        if needed and not self.manifest.sources:
            raise DatasetError("the manifest does not say where the sources are; say it with --source SRC, once per source")
        bases = [source if not is_file(Path(source)) else str(Path(source).parent) for source in self.manifest.sources]
        try:
            recipe = Recipe.from_settings(self.manifest.recipe)
            layout = find_layout(self.root, self.manifest, self.intact)
            if {PLAN, REJECTS} & self.damaged:
                check_sources(self.manifest.sources)
                return fresh_job(self.folder, self.manifest, recipe, layout, bases)
            return recorded_job(self.root, self.folder, self.manifest, recipe, layout, bases)
        except (UsageError, KeyError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
            raise DatasetError(f"its record of how it was made cannot be used ({error})") from error

    def _build(self, job: Job) -> None:
        """Rebuild the damaged shards, and those that are needed for tables; put verified files in place."""
        names = shard_names(self.manifest)
        wanted = {number for number, name in enumerate(names) if name in self.damaged}
        if PLAN in self.damaged:
            wanted = set(range(len(names)))
        elif REJECTS in self.damaged:
            wanted |= shards_with_rejects(open_checked_table(self.root / PLAN))
        if not wanted:
            return
        total = sum(job.place(shard).rows for shard in wanted)
        done = 0

        def report(progress: Progress) -> None:
            nonlocal done
            done += progress.inputs
            self.listener.building(done, total)

        engine = local.start(self.workers, Limits(seconds=INPUT_TIMEOUT))
        try:
            engine.run(job, sorted(wanted), report)
        except SourceGoneError:
            self._put_all_in_place(job, list(_built_one_by_one(engine, job, sorted(wanted))))
            raise
        finally:
            engine.close()
        self._put_all_in_place(job, sorted(wanted))

    def _put_all_in_place(self, job: Job, shards: list[int]) -> None:
        self.held.check()
        for shard in shards:
            self._put_in_place(job, shard)

    def _put_in_place(self, job: Job, shard: int) -> None:
        """Move a rebuilt shard to its place, if it is the shard that was there."""
        name = job.place(shard).name
        sha256 = read_marker(job.marker_path(shard)).facts.sha256
        # If its SHA-256 is lost, the table of all shards will show whether it is right.
        proven = self.expected.get(name, sha256) == sha256
        if proven and name in self.damaged:
            with naming_the_path(self.root / name):
                job.shard_path(shard).replace(self.root / name)
            self.damaged.discard(name)
            self.repaired.append(name)
        elif not proven:
            self._tell_why_not(job, shard, name)

    def _tell_why_not(self, job: Job, shard: int, name: str) -> None:
        lost = list(lost_samples(job, shard)) if PLAN not in self.damaged and REJECTS not in self.damaged else []
        self.lost += lost
        if lost:
            first = f"for instance {printable(lost[0].key)}: {printable(lost[0].reason)}"
            what = f"{len(lost)} of its samples cannot be made again, {first}; --drop-lost removes them from the dataset;"
            what += " --source says where the sources are now"
        elif name in self.damaged:
            what = f"the rebuilt file differs from the recorded one: {self._why_different()}; convert again with --overwrite"
        else:
            return  # the shard is undamaged; the state of the sources matters only for tables
        self.unrepaired.append(Unrepaired(name, what))

    def _why_different(self) -> str:
        """Return the possible reasons. Inputs that are read by the recorded plan were verified to be unchanged."""
        versions = f"other versions of shardctl or of the image libraries made it (shardctl {self.manifest.shardctl_version})"
        if {PLAN, REJECTS} & self.damaged:
            return f"its sources changed, or {versions}"
        own = ", or your own function has changed" if self.transforms else ""
        return f"its sources are unchanged, but {versions}{own}"

    def _mend_tables(self, job: Job) -> None:
        """Rebuild the damaged tables, and put the verified ones in place."""
        tables = sorted(self.damaged & set(self.manifest.files))
        if not tables:
            return
        shards = sorted(self.damaged - set(self.manifest.files))
        if shards:
            what = f"it lists all shards, and {shards[0]} is not repaired"
            self.unrepaired += [Unrepaired(name, what) for name in tables]
            return
        facts = self._commit(job).write_tables()
        self.held.check()
        for name in tables:
            if facts.files[name].sha256 == self.manifest.files[name].sha256:
                with naming_the_path(self.root / name):
                    (self.folder / NEW_FOLDER / name).replace(self.root / name)
                self.damaged.discard(name)
                self.repaired.append(name)
            else:
                what = (
                    f"the rebuilt file differs from the recorded one: {self._why_different()}; convert again with --overwrite"
                )
                self.unrepaired.append(Unrepaired(name, what))

    def _commit(self, job: Job) -> Commit:
        outcomes = Outcomes(self.root, job, self.intact)
        return Commit(job, self.manifest.settings, outcomes, self.manifest.fields)

    def _drop(self, job: Job) -> bool:
        """Commit the dataset without the samples that are lost, and return whether that could be done."""
        beyond_repair = [entry for entry in self.unrepaired if entry.file not in {lost.shard for lost in self.lost}]
        if beyond_repair:
            return False
        new = self.folder / NEW_FOLDER
        for name in shard_names(self.manifest):
            if not (new / name).exists():
                _link(self.root / name, new / name)
        self._commit(job).run(self._manifest_without_lost)
        self.held.check()
        publish.publish(new, self.root)
        self.repaired += sorted(self.damaged)
        self.unrepaired, self.damaged = [], set()
        return True

    def _manifest_without_lost(self, facts: Committed) -> Manifest:
        return dataclasses.replace(
            self.manifest,
            samples=facts.samples,
            bytes=facts.bytes,
            rejected=facts.rejected,
            splits=facts.splits,
            files=facts.files,
            dropped=self.manifest.dropped + len(self.lost),
            class_counts=facts.class_counts,
        )


def _link(source: Path, target: Path) -> None:
    """Make a hard link to a file, or a copy if the file system has no links."""
    with naming_the_path(target):
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
        except OSError:
            copy_file(source, target)


def _built_one_by_one(engine: local.Engine, job: Job, shards: list[int]) -> Iterator[int]:
    """Yield the shards that can be built though a source does not answer: those of other sources."""
    for shard in shards:
        if not read_finished(job, shard):
            engine.close()  # of the run before, which has ended in an error
            try:
                engine.run(job, [shard], lambda progress: None)
            except SourceGoneError:
                continue
        yield shard
