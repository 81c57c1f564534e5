"""One repair of a dataset, from the first look at its files to the last table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import DatasetError, InputError, SourceGoneError, TypesDifferError, UsageError
from shardctl.format.dataset_folder import dataset_of
from shardctl.format.dataset_location import AnyDataset
from shardctl.format.generations import instead_of_manifest
from shardctl.format.layout import Layout
from shardctl.format.manifest import Manifest
from shardctl.format.names import (
    CHECKSUMS,
    FILES,
    MANIFEST,
    PLAN,
    REJECTS,
    SHARDS,
    Json,
    is_duplicates_table,
)
from shardctl.format.tables import (
    BRING_BACK,
    Making,
    ShardEntry,
    is_written,
    open_checked_table,
    open_table,
    pruned_reject,
    read_rejects,
)
from shardctl.format.update_state import NOTHING_PRUNED, Pruned, UpdateState
from shardctl.inspection.content.overview import count_labels
from shardctl.inspection.verify.result import UNREADABLE
from shardctl.inspection.verify.tables import check_manifest
from shardctl.making.commit.commit import NewGeneration, now
from shardctl.making.commit.jobs import begin
from shardctl.making.commit.target import WriteLease
from shardctl.making.convert.rejects import hide_pruned, lines_by_key
from shardctl.making.convert.write_tables import (
    join_markers,
    write_files_of_dataset,
    write_manifest,
)
from shardctl.making.options import INPUT_TIMEOUT
from shardctl.making.paths import check_sources
from shardctl.making.plan.labels import write_files_table
from shardctl.making.plan.listing import moved_labels
from shardctl.making.repair.outcomes import (
    Listener,
    Lost,
    Made,
    Outcomes,
    RepairResult,
    Unrepaired,
    find_layout,
    known_lines,
    lost_samples,
    shard_facts,
)
from shardctl.making.repair.recorded import (
    as_format_2,
    hash_files,
    recorded_shards,
    refuse_folders,
    refuse_not_ours,
    refuse_other_manifest,
)
from shardctl.making.shards.engines.local import Engine, local_engine
from shardctl.making.shards.job import DatasetJob, Job
from shardctl.making.shards.marker import ShardMarker, WorkDone, read_finished, read_marker
from shardctl.making.write.writer import write_tables
from shardctl.system.files import (
    make_folder,
    naming_the_path,
    sha256_of,
    sync_folder,
    write_atomically,
)
from shardctl.system.folders import LocalFolder
from shardctl.system.processes.pool import Limits
from shardctl.system.text import counted, printable
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.table import refuse_unnamed_functions

ANEW = "convert again with --overwrite"

SAY_WHERE = "say where they are with --source SRC, once per source"

SOURCE_TABLES = frozenset((FILES, PLAN, REJECTS))
"""The tables that are made from the sources; the others are made from the shards and these."""


OF_SHARDS = ("samples", "bytes", "rejected", "splits", "files", "jpeg", "update")
"""What the manifest takes of the shards that are left, where some samples are lost."""


@dataclass
class Repair:
    """The state of one call of `repair`."""

    dataset: AnyDataset
    new: NewGeneration
    sources: tuple[str, ...]
    transforms: tuple[str, ...]
    drop_lost: bool
    workers: int | str
    listener: Listener
    repaired: list[str] = field(default_factory=list)
    unrepaired: list[Unrepaired] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The folder of the job that makes what is lost."""
        return self.new.folder

    @property
    def held(self) -> WriteLease:
        """The right to write."""
        return self.new.held

    def run(self) -> RepairResult:
        """Repair what can be. Raises DatasetError, UsageError, InputError, StorageError,
        BusyError."""
        found = self._whole_manifest()
        settings = {
            name: moved_labels(value, found.sources, self.sources) if name == "labels" else value
            for name, value in found.settings.items()
        }
        self.manifest = replace(found, sources=self.sources or found.sources, settings=settings)
        hashes, unreadable = hash_files(self.dataset, self.listener.checking)
        self.shards, recorded = recorded_shards(self.dataset, self.manifest, hashes)
        self.names = [shard.path for shard in self.shards]
        refuse_folders(self.dataset, self.names)
        self.called = {shard.path: shard.name for shard in self.shards}
        name = min(unreadable.keys() & set(self.names), default="")
        if self.drop_lost and name:
            # its samples may all be there once its disk or server is back
            raise DatasetError(
                f"{self.dataset.shown(name)}: cannot be read ({unreadable[name]}), and may still be whole, so "
                "that --drop-lost keeps it; bring back its disk, or move it away"
            )
        of_tables = {name: facts.sha256 for name, facts in self.manifest.files.items()}
        self.expected = recorded | of_tables
        self.held.check()
        self.damaged = {
            name
            for name in (*self.manifest.files, *self.names)
            if hashes.get(name, "") != self.expected.get(name)
        }
        self.notices += [
            f"{printable(self.called.get(name, name))} cannot be read ({unreadable[name]}) and counts as damaged; check its disk"
            for name in sorted(self.damaged & set(unreadable))
        ]
        dropped = False
        # only a person can bring back what the recipe depends on
        for name in sorted(set(self.manifest.given_files) & self.damaged):
            sha256 = self.manifest.files[name].sha256
            self._give_up([name], f"the file with the SHA-256 {sha256} is lost; {BRING_BACK}")
            self.damaged.discard(name)
        if self.damaged:
            try:
                dropped = self._mend()
            except (DatasetError, InputError, TypesDifferError) as problem:
                changed = isinstance(problem, TypesDifferError)
                what = f"its sources have changed ({problem}); {ANEW}" if changed else str(problem)
                self._give_up(self.damaged, what)
        if self.unrepaired and self.pruned:
            self.notices.append("--overwrite brings pruned samples back; prune them again")
        if self.manifest != found and not dropped and not self.unrepaired:
            self._write_manifest(self.manifest)
        places = map(self._place, self.repaired)
        for folder in {self.dataset.work, *(place.parent for place in places)}:
            sync_folder(folder)
        done = "dropped" if dropped else "repaired" if self.repaired else "whole"
        return RepairResult(
            "damaged" if self.unrepaired else done,
            tuple(sorted(self.called.get(name, name) for name in self.repaired)),
            tuple(self.unrepaired),
            tuple(self.lost),
            tuple(self.notices),
        )

    def _give_up(self, names: Iterable[str], why: str) -> None:
        """Note why files are not repaired."""
        self.unrepaired += [Unrepaired(self.called.get(name, name), why) for name in sorted(names)]

    def _mend(self) -> bool:
        """Repair what is damaged, and return whether that was done by leaving lost samples out."""
        if is_written(self.manifest.settings):
            self._mend_written()
            return False
        engine = local_engine(self.workers, Limits(seconds=INPUT_TIMEOUT))
        try:
            job = self._job(engine)
            self._build(job, engine)
        finally:
            engine.close()
        dropped = bool(self.lost) and self.drop_lost and self._drop(job)
        if not dropped:
            as_before = lambda shard, done: replace(done, path=self.names[shard])  # noqa: E731 - one line, used once
            self._mend_tables(lambda: self._write_tables(job, self._remade, as_before))
        return dropped

    def _mend_written(self) -> None:
        """Repair a dataset of samples that had no source: its tables can be made from its
        shards."""
        what = "shardctl.write made its samples; write the dataset again"
        self._give_up(self.damaged & set(self.names), what)

        def write() -> Json:
            manifest = self.manifest
            layout = find_layout(self.dataset, manifest, self.intact).to_json()
            made = (manifest.recipe, manifest.settings, manifest.fingerprint_parts)
            entries = [
                ShardEntry.of_written(*shard, shard_facts(self.dataset, shard.path)[0])
                for shard in self.shards
            ]
            return write_tables(self._remade, entries, Making(layout, manifest.fields, *made))

        self._mend_tables(write)

    @cached_property
    def state(self) -> UpdateState | None:
        """What an update must know; None if that is lost."""
        return UpdateState.find(self.dataset, self.manifest.update)

    @property
    def pruned(self) -> Pruned:
        """The records that a person has taken out."""
        return self.state.pruned if self.state else NOTHING_PRUNED

    @property
    def intact(self) -> set[str]:
        """The undamaged files."""
        return {*self.manifest.files, *self.names} - self.damaged

    def _whole_manifest(self) -> Manifest:
        """Return the manifest, brought back first by its copy if it is damaged."""
        manifest, findings = check_manifest(self.dataset)
        if manifest is not None:
            refuse_other_manifest(self.dataset, manifest)
        for finding in findings:
            if finding.kind == UNREADABLE:  # it may be whole
                raise DatasetError(f"{self.dataset.shown()}: {finding.message}")
        if findings:
            refuse_not_ours(LocalFolder(self.dataset.work))
        if manifest is None:
            instead = instead_of_manifest(self.dataset.places.tables)
            raise DatasetError(f"{self.dataset.shown()}: {MANIFEST} is lost or damaged; {instead}")
        refuse_folders(self.dataset, (MANIFEST, *manifest.files))
        if findings:
            # its copy does not know which generations went since
            gone = [each.path for each in manifest.kept if not self._is_there(each.path)]
            history = (
                replace(each, path="") if each.path in gone else each for each in manifest.history
            )
            manifest = replace(manifest, history=tuple(history))
            self._write_manifest(manifest)
            self.repaired.append(MANIFEST)
        return manifest

    def _is_there(self, folder: str) -> bool:
        """Return whether anything is left of the generation in a folder."""
        names = (MANIFEST, SHARDS, CHECKSUMS)
        return any(self.dataset.stat(f"{folder}{name}") is not None for name in names)

    def _write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest elsewhere and rename it: a killed process leaves no half of it in the
        dataset."""
        self.held.check()
        data = manifest.to_json().encode()
        if manifest.job:
            copy = self._place(f"{self.dataset.places.tables}{MANIFEST}")
            make_folder(copy.parent, self.dataset.work)
            write_atomically(copy, data)
        write_atomically(self.dataset.work / MANIFEST, data)

    def _job(self, engine: Engine) -> DatasetJob:
        """Return the job that makes this dataset: from its own plan, or from the sources if tables
        are lost."""
        manifest = self.manifest
        refuse_unnamed_functions(manifest.recipe, self.transforms, self.dataset.shown(), "repair")
        of_duplicates = set(filter(is_duplicates_table, manifest.own_files)) & self.damaged
        needed = {*SOURCE_TABLES, *self.names, *of_duplicates} & self.damaged
        if needed:
            self._settle_sources()
        try:
            recipe = Recipe.from_json(manifest.recipe, self._place(FILES).parent)
            layout = find_layout(self.dataset, manifest, self.intact)
            sources = manifest.sources if needed else ()
            dataset, folder = self.dataset, self.folder
            made = Made(dataset, folder, manifest, recipe, layout, sources, self.shards)
            if SOURCE_TABLES & self.damaged:
                check_sources(manifest.sources)
            if FILES in self.damaged:
                self._mend_files(made)
            if of_duplicates:
                self._mend_duplicates(made, of_duplicates, engine)
            if PLAN not in self.damaged and (REJECTS not in self.damaged or self._is_changed):
                job = made.recorded_job(self.intact)
                plan = open_table(self.dataset, PLAN)
            else:
                job, plan = made.fresh_job(engine), None
                if job.draw is None and job.records != manifest.inputs and job.whole:
                    raise DatasetError(
                        f"the sources have {job.records} inputs now, and had {manifest.inputs}; "
                        f"{ANEW}"
                    )
            if REJECTS not in self.damaged:
                job.write_known(known_lines(job, read_rejects(self.dataset), plan))
            else:
                rejects = [pruned_reject(*each) for each in self.pruned]
                job.write_known(chain(lines_by_key(self.pruned), known_lines(job, rejects, None)))
            begin(job)
            return job
        except (
            UsageError,
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            pa.ArrowException,
        ) as error:
            raise DatasetError(f"its record of how it was made cannot be used ({error})") from error

    def _settle_sources(self) -> None:
        """Tell where the sources are read that the manifest names. Raises DatasetError where it
        cannot be relied on.

        A dataset may come from anybody: only a place is believed that a conversion may record.
        """
        if self.sources:
            return
        if not self.manifest.sources:
            raise DatasetError(f"the manifest does not say where the sources are; {SAY_WHERE}")
        if strange := self.manifest.strange_sources():
            listed = ", ".join(map(printable, strange))
            raise DatasetError(f"the manifest has impossible sources: {listed}; {SAY_WHERE}")
        self.listener.reading(self.manifest.sources)

    def _mend_files(self, made: Made) -> None:
        """Make files.arrow again from a listing of the sources. Raises DatasetError if it does not
        come out as it was."""
        files = self.folder / FILES
        listing, labelling, _ = made.list_again()
        write_files_table(files, listing, labelling)
        hide_pruned(files, self.pruned)
        final = self.folder / f"final-{FILES}"
        write_files_of_dataset(final, open_table(LocalFolder(self.folder), FILES))
        if sha256_of(final) != self.manifest.files[FILES].sha256:
            found = open_table(LocalFolder(self.folder), FILES).num_rows
            what = f"{counted(found, 'file')} now, {counted(self.manifest.inputs, 'record')} then"
            raise DatasetError(
                f"{FILES} is lost, and the sources give another one ({what}); {ANEW}"
            )
        self.held.check()
        self._put(final, FILES)
        files.unlink()

    def _mend_duplicates(self, made: Made, names: set[str], engine: Engine) -> None:
        """Find the duplicates in the sources again. Raises DatasetError if others are found."""
        for each in made.duplicates_again(engine):
            name = each.table.name
            if name in names:
                if sha256_of(each.table) != self.manifest.files[name].sha256:
                    raise DatasetError(
                        f"{name} is lost, and the sources give other duplicates: "
                        f"{self._why_different()}; {ANEW}"
                    )
                self.held.check()
                self._put(each.table, name)

    def _build(self, job: Job, engine: Engine) -> None:
        """Rebuild the damaged shards, and those that are needed for tables; put verified files in
        place."""
        wanted = {number for number, name in enumerate(self.names) if name in self.damaged}
        if PLAN in self.damaged:
            wanted = set(range(len(self.names)))
        elif REJECTS in self.damaged:
            plan = open_checked_table(self.dataset, PLAN)
            rejected = pc.greater(plan["rejected"], 0)
            wanted |= set(pc.unique(plan.filter(rejected)["shard"]).to_pylist())
        if not wanted:
            return
        total = sum(job.planned_shard(shard).records for shard in wanted)
        done = 0

        def report(progress: WorkDone) -> None:
            nonlocal done
            done += progress.records
            self.listener.building(done, total)

        try:
            engine.run(job, sorted(wanted), report)
        except SourceGoneError:
            self._put_all_in_place(job, list(_built_one_by_one(engine, job, sorted(wanted))))
            raise
        self._put_all_in_place(job, sorted(wanted))

    def _put_all_in_place(self, job: Job, shards: list[int]) -> None:
        """Move the rebuilt shards to their places, if they are those that were there."""
        self.held.check()
        for shard in shards:
            name = self.names[shard]
            made = read_marker(job.marker_path(shard))
            # If its SHA-256 is lost, the table of all shards will show whether it is right.
            if self.expected.get(name, made.facts.sha256) != made.facts.sha256:
                self._tell_why_not(job, shard, name)
            elif name in self.damaged:
                self._put(job.shards_root / made.path, name)

    def _put(self, made: Path, name: str) -> None:
        """Put a verified file in its place."""
        place = self._place(name)
        with naming_the_path(place):
            make_folder(place.parent, self.dataset.work)
            made.replace(place)
        self.damaged.discard(name)
        self.repaired.append(name)

    def _tell_why_not(self, job: Job, shard: int, name: str) -> None:
        known = not {PLAN, REJECTS} & self.damaged
        lost = list(lost_samples(job, shard, open_table(self.dataset, PLAN))) if known else []
        self.lost += lost
        if lost:
            count = sum(entry.samples for entry in lost)
            what = (
                f"{count} of its samples cannot be made again, for instance "
                f"{printable(lost[0].key)}: {printable(lost[0].reason)}; --drop-lost removes "
                "them, --source says where sources are now"
            )
        elif name in self.damaged:
            what = self._differs()
        else:
            return  # the shard is undamaged; the state of the sources matters only for tables
        self._give_up([name], what)

    @property
    def _is_changed(self) -> bool:
        """Whether commands such as `convert --update` have changed the dataset: then its plan is
        not that of the sources."""
        return self.manifest.generation.number > 1

    def _differs(self) -> str:
        return f"the rebuilt file differs from the recorded one: {self._why_different()}; {ANEW}"

    def _why_different(self) -> str:
        """Return the possible reasons. Inputs that are read by the recorded plan were verified to
        be unchanged."""
        versions = (
            "other versions of shardctl or of image libraries made it (shardctl "
            f"{self.manifest.shardctl_version})"
        )
        if {PLAN, REJECTS} & self.damaged:
            update = "an update has ordered it, " if self._is_changed else ""
            return f"{update}its sources changed, or {versions}"
        own = ", or your own function has changed" if self.transforms else ""
        return f"its sources are unchanged, but {versions}{own}"

    def _mend_tables(self, write: Callable[[], Json]) -> None:
        """Have the damaged tables written into the folder of the repair, and put the verified ones
        in place."""
        tables = self.damaged & set(self.manifest.files)
        if not tables:
            return
        if shards := self.damaged - tables:
            self._give_up(
                tables, f"it lists all shards, and {self.called[min(shards)]} is not repaired"
            )
            return
        files = write()["files"]
        if not self.manifest.job:
            files = as_format_2(self._remade, files)
        self.held.check()
        for name in sorted(tables):
            if files[name].sha256 == self.manifest.files[name].sha256:
                self._put(self._remade / name, name)
            else:
                self._give_up([name], self._differs())

    @cached_property
    def _remade(self) -> Path:
        """The folder for tables that are made again, before they are known to be right."""
        folder = self.folder / "tables"
        with naming_the_path(folder):
            folder.mkdir(exist_ok=True)
        return folder

    def _place(self, name: str) -> Path:
        """Return where a file of the dataset is on this machine."""
        dataset = self.dataset
        return dataset.path(name) if isinstance(dataset, LocalFolder) else dataset.work / name

    def _write_tables(
        self, job: DatasetJob, new: Path, placed: Callable[[int, ShardMarker], ShardMarker]
    ) -> Json:
        state, manifest = self.state, self.manifest
        outcomes = Outcomes(self.dataset, job, self.shards, self.intact, state)
        of_update = (state.files, state.pruned) if state else ()
        has_jpegs = manifest.jpeg is not None
        done_of = lambda shard: placed(shard, outcomes.done(shard))  # noqa: E731 - one line, used once
        given = (manifest.settings, done_of, outcomes.lines, manifest.fields, has_jpegs)
        return join_markers(job, new, *given, *of_update)

    def _drop(self, job: DatasetJob) -> bool:
        """Commit the dataset without the samples that are lost, and return whether that could be
        done."""
        lost = {each.shard for each in self.lost}
        if {each.file for each in self.unrepaired} - lost:
            return False
        new, before = self.new, self.manifest.places

        def placed(shard: int, done: ShardMarker) -> ShardMarker:
            if self.names[shard] not in self.damaged:
                return replace(done, path=before.of(self.names[shard]))
            with naming_the_path(new.root / done.path):
                (job.shards_root / done.path).replace(new.root / done.path)
            new.shards.append(done.path)
            return done

        facts = self._write_tables(job, new.tables, placed)
        without = self._manifest_without_lost(facts, job.layout)
        write_manifest(LocalFolder(new.tables), without)
        self.held.check()
        new.commit()
        if not self.manifest.job:  # nothing else names what is left of format 2
            new.target.delete(self.damaged & set(self.names))
        self.repaired += sorted(self.damaged)
        self.unrepaired, self.damaged = [], set()
        return True

    def _manifest_without_lost(self, facts: Json, layout: Layout) -> Manifest:
        lost = sum(lost.samples for lost in self.lost)
        without = replace(
            self.manifest,
            created=now(),
            dropped=self.manifest.dropped + lost,
            steps=None,  # they count samples that are no longer there
            keep=self.manifest.keep if self.manifest.job else 1,
            job=self.new.id,
            base="",
            replaced="",
            **{name: facts[name] for name in OF_SHARDS},
        ).with_generation(self.manifest, "repair --drop-lost", 0, lost, 0)
        counts, classes = None, len(layout.classes or ())
        if classes:
            new = dataset_of(without, self.new.target.folder)
            found = count_labels(new, str(layout.roles.main_label), classes)
            names = (split.name for split in self.manifest.splits)
            counts = {name: found.get(name, [0] * classes) for name in names}
        return replace(without, class_counts=counts)


def _built_one_by_one(engine: Engine, job: Job, shards: list[int]) -> Iterator[int]:
    """Yield the shards that can be built though a source does not answer: those of other
    sources."""
    for shard in shards:
        if not read_finished(job, shard):
            engine.close()  # of the run before, which has ended in an error
            try:
                engine.run(job, [shard], lambda progress: None)
            except SourceGoneError:
                continue
        yield shard
