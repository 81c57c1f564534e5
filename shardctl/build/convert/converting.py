"""The steps of a conversion: list, draft, plan, build the shards, commit, publish. Or resume a stopped run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from shardctl.build.commit import generations, publish
from shardctl.build.commit.staging import begin, go_on, refuse_to_lose, unfinished
from shardctl.build.convert.conversion_plan import Draft, make_draft
from shardctl.build.convert.estimate import SPARE_DISK, Estimate, estimate
from shardctl.build.convert.execute import build, telling_what_is_done
from shardctl.build.convert.explain import explain
from shardctl.build.convert.listener import Listener
from shardctl.build.convert.manifest_writer import Closing, changes_of, environment_of, leave_out_others, write_dataset
from shardctl.build.convert.metrics_listener import metered
from shardctl.build.convert.new_inputs import Checked, NewInputs, check_new
from shardctl.build.convert.options import check_sources, source_path
from shardctl.build.convert.rejects import copy_rejects, refuse_failing, refuse_many_rejects
from shardctl.build.convert.request import Asked
from shardctl.build.convert.result import (
    ConvertResult,
    empty_splits,
    has_own_labels,
    has_some_rejects,
    left_behind,
    missing_labels,
    repeated_keys,
    result_of,
    warnings_of_rejects,
)
from shardctl.build.convert.sample_kind import settle_kind
from shardctl.build.convert.targets.base import Destination, Held
from shardctl.build.convert.update.append import Appending, refuse_anew
from shardctl.build.convert.update.compatibility import FOLLOWED, refuse_other, refuse_written
from shardctl.build.convert.update.known_records import hide_pruned, moved_records, write_known
from shardctl.build.convert.update.match import match_files
from shardctl.build.convert.update.previous import Before
from shardctl.build.convert.update.update_plan import AnewError, Changes, Update, changes_anew, matching_anew, plan_update
from shardctl.build.plan.fingerprint import (
    VERSIONS,
    difference,
    fingerprint,
    fingerprint_parts,
    only_versions_differ,
    version_changes,
)
from shardctl.build.plan.listing import KnownFiles, Listing, list_files
from shardctl.build.plan.splits import warn_of_mixed
from shardctl.build.shards.dataset_job import DatasetJob
from shardctl.build.shards.engines import registry
from shardctl.build.shards.engines.base import Engine
from shardctl.build.shards.job import NEW_FOLDER, Root
from shardctl.errors import BusyError, DatasetError, InputError, StorageError, TooManyRejectsError, TypesDifferError
from shardctl.format.manifest import Manifest
from shardctl.format.names import CHECKSUMS, FILES, MANIFEST, STAGING
from shardctl.images.codecs import backend
from shardctl.sources.kinds import KINDS
from shardctl.sources.remote import remote_files
from shardctl.sources.walk import recorded
from shardctl.system.files import write_atomically
from shardctl.system.scratch import scratch_folder
from shardctl.system.text import format_bytes, printable
from shardctl.transforms.recipe import Recipe

T = TypeVar("T")

UPDATING = "-update"
"""What the name of the folder of a job ends with that brings a dataset up to date."""


def run(asked: Asked, listener: Listener, place: Destination, held: Held | None = None) -> ConvertResult:
    """Convert as asked. `held` is the lease of the destination where the caller has it already. Raises what `convert` does."""
    with remote_files.in_use(), metered(listener, asked.options.metrics) as metering:
        return _run(asked, metering, place, held)


def _run(asked: Asked, listener: Listener, place: Destination, held: Held | None) -> ConvertResult:
    options = asked.options
    engine = registry.start(options.engine, options.workers, options.limits(), listener.on_line)
    try:
        return conversion_of(Conversion, asked, listener, engine, place, held).run()
    except TooManyRejectsError as error:
        if options.copy_rejects is None or options.dry_run:
            raise
        raise TooManyRejectsError(
            f"{error} (no rejected input was copied: --copy-rejects needs a complete conversion)"
        ) from error
    finally:
        engine.close()


class _OvertakenError(Exception):
    """Another process has changed the dataset since the inputs were listed beside it."""


Kind = TypeVar("Kind", bound="Conversion")


def conversion_of(
    made: type[Kind], asked: Asked, listener: Listener, engine: Engine, place: Destination, held: Held | None
) -> Kind:
    """Return the conversion that is asked for, once its sources are known to be there and their kind is settled."""
    started, settings = time.monotonic(), dict(asked.settings)
    check_sources(asked.roots)
    remote_files.list_all(asked.roots, listener.listing)
    notices = settle_kind(settings, list(asked.roots), engine)
    recipe = Recipe.from_settings(settings)
    if recipe.kind == "image":
        backend.require_one()
    return made(asked, recipe, listener, engine, notices, started, place, held)


class Conversion:
    """The state of one conversion."""

    def __init__(
        self,
        asked: Asked,
        recipe: Recipe,
        listener: Listener,
        engine: Engine,
        notices: list[str],
        started: float,
        place: Destination,
        held: Held | None,
    ) -> None:
        self.asked, self.recipe, self.listener, self.started = asked, recipe, listener, started
        self.place, self.held = place, held
        self.roots, self.target, self.options = list(asked.roots), asked.target, asked.options
        self.settings = asked.planning(recipe)
        self.engine, self.notices = engine, notices
        self.staging = self.target / STAGING
        self.before: Before | None = None
        self.there: Before | None = None
        self.changes: Changes | None = None
        self.expected: Estimate | None = None
        self.warnings: list[str] = []
        self.new_inputs: NewInputs | None = None
        bases = (str((root if root.is_dir() else root.parent).resolve()) for root in self.roots)
        self.bases = tuple(map(Root.of if self.options.engine == registry.LOCAL else Root.anywhere, bases))
        self.given = self.roots, self.bases
        self.digest_listed = ""

    def run(self) -> ConvertResult:
        """List the inputs, and convert them unless the same dataset already exists."""
        while True:
            try:
                return self._run()
            except _OvertakenError:
                self.roots, self.bases = self.given  # what is new is to be found once more

    def _run(self) -> ConvertResult:
        engine = self.engine
        options = self.options
        if options.update or options.append or options.explain or options.copy_rejects is not None:
            self.place.bring_dataset()
        self.digest_listed = self._digest_there()
        with scratch_folder() as scratch:
            # A second process imports the modules of the workers while the inputs are listed.
            if self.options.overwrite or not (self.target / MANIFEST).exists():
                engine.prepare()
            path = scratch / "listing.arrow"
            kind = KINDS[self.recipe.kind]
            known = self._known()
            rule, reading = self.settings.labels, self.recipe.reading
            listing = list_files(self.roots, kind, reading, rule, path, self.listener.listing, known)
            listing.notices[:0] = self.notices
            listing.warnings += warn_of_mixed(listing, self.settings.split)
            parts = fingerprint_parts(listing, self.recipe, self.asked.recorded_settings(self.recipe))

            if self.options.explain:
                return self._explained(parts, listing)
            side, notices, warnings = listing.side, tuple(listing.notices), tuple(listing.warnings)

            def drafted(all_types: bool = False) -> Draft:
                # As they were, if this is not the first draft.
                listing.side, listing.notices, listing.warnings = side, list(notices), list(warnings)
                options = self.options
                try:
                    comparing = self.listener.comparing
                    return make_draft(
                        listing, self.recipe, self.settings, options, self.bases, engine, scratch, all_types, comparing
                    )
                except TypesDifferError:
                    if all_types:
                        raise
                    return self._with_all_types(lambda: drafted(True))

            existing = self._existing(parts)
            if existing:
                if not self.options.dry_run:
                    self._complete_replacement()
                if self.options.keep not in (None, existing.keep) and not self.options.dry_run:
                    existing = self._with_keep(engine)
                self._refuse_lost_files(existing)
                return self._up_to_date(existing, parts, listing)
            if not publish.is_broken_off(self.target):
                publish.refuse_to_replace(self.target, self.recipe.files)
            if self.options.dry_run:
                self.place.check_writable()
                return self._planned(parts, drafted, listing, scratch)
            with self._leased(engine) as held:
                try:
                    return self._write(listing, parts, drafted, engine, held)
                except TypesDifferError:
                    # Some records did not show all types. The dataset is the one that it would be if all had been read first.
                    return self._with_all_types(lambda: self._write(listing, parts, lambda: drafted(True), engine, held, True))
                finally:
                    engine.close()  # before the lease is released: two converters' workers must not write side by side

    def _digest_there(self) -> str:
        """Return what stands for the dataset at the target, "" if there is none."""
        return Manifest.load(self.target).files[CHECKSUMS].sha256 if (self.target / MANIFEST).exists() else ""

    def _explained(self, parts: dict[str, str], listing: Listing) -> ConvertResult:
        """Return what differs from the dataset that is there; nothing is written."""
        found = explain(self.target, parts, self.recipe.settings(), self.asked.recorded_settings(self.recipe), listing)
        manifest = Manifest.load(self.target)
        facts = (manifest.samples, manifest.shards, manifest.bytes, manifest.rejected, self._seconds(), 0.0)
        return ConvertResult("explained", *facts, manifest.fingerprint, notices=tuple(listing.notices), explanation=found)

    def _known(self) -> KnownFiles | None:
        """Return the files of the dataset, where inputs are appended to it: these are not looked at; None elsewhere."""
        if not self.options.append or not (self.target / MANIFEST).exists():
            return None
        manifest = Manifest.load(self.target)
        refuse_written(self.target, manifest)
        appending = Appending(self._read(manifest), self.roots, self.settings.labels)
        self.roots, self.bases = appending.roots, appending.bases
        return appending.known()

    def _read(self, manifest: Manifest) -> Before:
        """Return the dataset that is there. Its tables are hashed once: they may be large."""
        if self.there is None or self.there.manifest != manifest:
            try:
                self.there = Before(self.target, manifest)
            except DatasetError:
                if (self.target / MANIFEST).exists() and Manifest.load(self.target) != manifest:
                    raise _OvertakenError from None  # the tables are those of the dataset that has taken its place
                raise
        return self.there

    def _with_all_types(self, call: Callable[[], T]) -> T:
        """Do what begins with finding the types of all records. Raises InputError if one differs even then."""
        try:
            return call()
        except TypesDifferError as error:
            raise InputError(f"{error}; it must have changed since its type was found, run the conversion again") from error

    def _leased(self, engine: Engine) -> contextlib.AbstractContextManager[Held]:
        """Return the lease of the destination, once it is held."""
        return contextlib.nullcontext(self.held) if self.held is not None else self.place.writing(self._waiting(engine))

    def _waiting(self, engine: Engine) -> Callable[[str], None] | None:
        """Return the callback for a lease that another converter holds: no processes are kept while this one waits."""

        def wait(owner: str) -> None:
            engine.close()
            self.listener.waiting(owner)

        return wait if self.options.if_running == "wait" else None

    def _existing(self, parts: dict[str, str]) -> Manifest | None:
        """Return the manifest if the same dataset already exists. Raises DatasetError if another dataset does.

        A dataset that other versions made counts as the same one: it is complete, and can be used. One that is to be brought up
        to date is `before` afterwards.
        """
        self.before = None
        if self.options.overwrite or not (self.target / MANIFEST).exists():
            return None
        manifest = Manifest.load(self.target)
        sources, follows = self._sources(), self.options.update or self.options.append
        if follows and manifest.files[CHECKSUMS].sha256 != self.digest_listed:
            raise _OvertakenError
        same = only_versions_differ(manifest.fingerprint_parts, parts)
        if same and not (self.options.update and tuple(sources) != manifest.sources):
            if follows:
                self._read(manifest)  # raises if a table is damaged
            return manifest
        if follows:
            moved = [recorded(source_path(old)) for old in self.options.moved_from]
            moved = sources[: len(manifest.sources)] if self.options.append else moved
            refuse_other(self.target, manifest, parts, sources, moved)
            self.before = self._read(manifest)
            return None
        differs = difference(manifest.fingerprint_parts, parts)
        if set(differs.split(" and ")) <= set(FOLLOWED):
            raise DatasetError(
                f"{printable(str(self.target))}: holds a dataset that differs in its {differs}; use --update to bring it up to"
                " date, --overwrite to make it anew, or another destination"
            )
        raise DatasetError(
            f"{printable(str(self.target))}: holds a dataset that differs in its {differs}; use --overwrite to"
            " replace it, or another destination"
        )

    def _refuse_lost_files(self, manifest: Manifest) -> None:
        """Raise DatasetError if a file of the dataset is lost."""
        try:
            self.place.refuse_lost_files(manifest)
        except DatasetError:
            if not (self.target / MANIFEST).exists() or Manifest.load(self.target) != manifest:
                raise _OvertakenError from None  # they were files of the dataset before
            raise

    def _with_keep(self, engine: Engine) -> Manifest:
        """Have a dataset that is up to date keep as many generations as was asked for now."""
        with self._leased(engine) as held:
            manifest = replace(Manifest.load(self.target), keep=self._keep())
            held.check()
            write_atomically(self.target / MANIFEST, manifest.to_json().encode())
            generations.settle(self.target)
        return manifest

    def _complete_replacement(self) -> None:
        """Complete what a process has begun that was killed while the dataset took its place, or before it released its lease.

        Nothing else is deleted here: this is a check, and the next command that writes sees to what was left.

        It stays if another process works on it, or if the folder cannot be written. Who holds the lease has seen to it.
        """
        if self.held is None and self.place.is_broken_off():
            with contextlib.suppress(BusyError, StorageError), self.place.writing(None):
                publish.recover(self.target)
                generations.settle(self.target)

    def _write(
        self,
        listing: Listing,
        parts: dict[str, str],
        drafted: Callable[[], Draft],
        engine: Engine,
        held: Held,
        again: bool = False,
    ) -> ConvertResult:
        """Make the dataset, or complete an unfinished one. This process holds the lease: no other process writes.

        `again` begins anew where there is an unfinished one.
        """
        if publish.recover(self.target) in (fingerprint(parts), f"{fingerprint(parts)}{UPDATING}"):
            return self._finished("resumed", 0, listing)
        existing = self._existing(parts)  # checked again: another converter may have finished while this one waited
        if existing:
            self._refuse_lost_files(existing)
            return self._up_to_date(existing, parts, listing)
        folder = self._folder(parts)
        if again:
            held.check()
            self.place.discard(folder)
        elif not self.options.overwrite and self.before is None:
            refuse_to_lose(self.staging, folder, parts, self.recipe)
        job = self._unfinished(folder)
        if job is None:
            job, status = self._begin(folder, listing, parts, drafted, held, again), self._status_of_new()
        else:
            self.changes, status = changes_of(job), "resumed"
            self._warn(job.lineage.warnings)
        return self._complete(job, status, listing, engine, held)

    def _status_of_new(self) -> str:
        return "updated" if (self.target / MANIFEST).exists() else "created"

    def _complete(self, job: DatasetJob, status: str, listing: Listing, engine: Engine, held: Held) -> ConvertResult:
        """Build what is left of a job, and make it the dataset."""
        new, made = job.folder / NEW_FOLDER, 0
        if (new / MANIFEST).exists():
            refuse_many_rejects(self.target, Manifest.load(new), self.options.max_rejects)
        else:
            self.place.entrust(job, held)
            if status == "resumed":
                go_on(job)
                self._announce(job, listing)
            self.place.bring_done(job, np.ones(job.shards, bool))
            with telling_what_is_done(job):
                made = build(job, np.ones(job.shards, bool), self.before, engine, self.options.max_rejects, self.listener)
                held.check()
                closing = self._closing(self._seconds() if status == "created" else None)
                try:
                    write_dataset(job, closing, self.before, self.place)
                except InputError:  # the sources hold no records: there is nothing to go on with
                    self.place.discard(job.folder)
                    raise
        if self.before is not None:
            checked = self._check_new(job, listing, self.before)
            if checked.loses and self.options.max_rejects is None:
                raise TooManyRejectsError(
                    f"{checked.loses}. The dataset is as it was before. To update it anyway: --max-rejects 100%"
                )
            self._warn(checked.warnings)
        held.check()
        leave_out_others(job, self.place)
        self.place.publish(new, updates=self.before is not None)
        return self._finished(status, made, listing)

    def _check_new(self, job: DatasetJob, listing: Listing, before: Before) -> Checked:
        """Return what should be checked of the inputs that an update has added or that have changed, in a job that is done."""
        changes = changes_of(job)
        if not Manifest.load(job.folder / NEW_FOLDER).rejected and changes is not None and not changes.changed:
            return Checked()
        if self.new_inputs is None:  # the job was planned by a process that was stopped
            self.new_inputs = NewInputs.of(match_files(before, listing, job.folder / FILES), before)
        return check_new(job, self.new_inputs, listing)

    def _closing(self, seconds: float | None) -> Closing:
        return Closing(
            settings=self.asked.recorded_settings(self.recipe),
            sources=tuple(self._sources()),
            keep=self._keep(),
            appends=self.options.append,
            environment=environment_of(self.recipe),
            seconds=None if seconds is None else round(seconds, 3),
        )

    def _folder(self, parts: dict[str, str]) -> Path:
        """Return the folder of this conversion's job."""
        return self.staging / f"{fingerprint(parts)}{UPDATING if self.before is not None else ''}"

    def _unfinished(self, folder: Path) -> DatasetJob | None:
        """Return the job that was begun in its folder; None if there is none, or one that updates another dataset."""
        job = unfinished(folder, self.bases, self.recipe)
        same = job is not None and job.lineage.updates == (self.before.digest if self.before is not None else "")
        return job if same else None

    def _begin(
        self, folder: Path, listing: Listing, parts: dict[str, str], drafted: Callable[[], Draft], held: Held, anew: bool
    ) -> DatasetJob:
        """Write the plan of a new job. Raises StorageError if the disk cannot hold the dataset.

        A dataset that is brought up to date is made `anew` where new records have other types.
        """
        plan, job = self._planned_job(folder, listing, parts, drafted, anew)
        self._check_space(self._announce(job, listing))
        held.check()  # a plan takes its time, and what is taken away now must not be the work of one that has taken over
        self.place.make_room(folder)
        job = self.place.prepared(job)
        plan.write(folder)
        if self.before is not None:
            hide_pruned(job, self.before)
            self._warn(write_known(job, self.before, plan.of_old if isinstance(plan, Update) else None))
        job = replace(job, lineage=replace(job.lineage, warnings=tuple(self.warnings)))
        begin(job)
        self.place.begun(job)
        return job

    def _planned_job(
        self, folder: Path, listing: Listing, parts: dict[str, str], drafted: Callable[[], Draft], anew: bool
    ) -> tuple[Draft | Update, DatasetJob]:
        """Plan the conversion: what makes the tables of its job, and the job in its folder."""
        why = "new records have other types" if anew else ""
        if self.before is not None and not anew:
            scratch = listing.path.parent
            try:
                update = plan_update(
                    listing, self.recipe, self.settings, self.options, self.before, self.bases, self.engine, scratch
                )
                self.place.refuse_lost(self.before, update.kept)
                job = update.job(folder, self.bases, parts)
                self._warn(moved_records(job, self.before, listing, update.matching))
                self.new_inputs = NewInputs.of(update.matching, self.before)
                return update, job
            except AnewError as reason:
                why = str(reason)
        if why and self.options.append:
            raise refuse_anew(why, self.target)
        plan = drafted()
        if self.options.max_rejects is None:
            refuse_failing(plan.probe, listing)
        job = plan.job(folder, self.bases, self.recipe, parts, self.settings.shuffle)
        if self.before is not None:
            matching = matching_anew(self.before, plan, listing.path.parent)
            self._warn(moved_records(job, self.before, listing, matching))
            self.new_inputs = NewInputs.of(matching, self.before)
            changes = changes_anew(self.before, matching, job.shards, why)
            job = replace(job, lineage=replace(job.lineage, changes=asdict(changes), updates=self.before.digest))
        return plan, job

    def _warn(self, warnings: Iterable[str]) -> None:
        """Tell of these in the end. A plan may be made twice."""
        self.warnings += [warning for warning in warnings if warning not in self.warnings]

    def _check_space(self, expected: Estimate) -> None:
        if expected.free_bytes is not None and expected.bytes * SPARE_DISK > expected.free_bytes:
            raise StorageError(
                f"{printable(str(self.target))}: the dataset needs about {format_bytes(expected.bytes * SPARE_DISK)} and"
                f" {format_bytes(expected.free_bytes)} are free; free some space, or store less (--store, --compression)"
            )

    def _announce(self, job: DatasetJob, listing: Listing) -> Estimate:
        self.changes = changes_of(job)
        publish.refuse_others(self.target, job)
        self.expected = estimate(job, listing, self.engine.at_once(), self.place.free_bytes(), self.changes)
        self.listener.announce(self.expected)
        return self.expected

    def _planned(self, parts: dict[str, str], drafted: Callable[[], Draft], listing: Listing, scratch: Path) -> ConvertResult:
        """Return what would be done. Raises the same errors as the real conversion before it starts to write."""
        folder = self._folder(parts)
        if not self.options.overwrite and self.before is None:
            refuse_to_lose(self.staging, folder, parts, self.recipe)
        job = self._unfinished(folder)
        if job is None:
            _, planned = self._planned_job(scratch, listing, parts, drafted, False)
            expected = self._announce(planned, listing)
            self._check_space(expected)
        else:
            expected = self._announce(job, listing)
        return self._only_planned(expected, folder.name, listing)

    def _only_planned(self, expected: Estimate, fingerprint: str, listing: Listing) -> ConvertResult:
        facts = (expected.rows, expected.shards, expected.bytes, 0, self._seconds(), 0.0, fingerprint)
        notices, warnings = tuple(listing.notices), self._warnings(listing)
        return ConvertResult("planned", *facts, estimate=expected, notices=notices, warnings=warnings, changes=self.changes)

    def _up_to_date(self, manifest: Manifest, parts: dict[str, str], listing: Listing) -> ConvertResult:
        refuse_many_rejects(self.target, manifest, self.options.max_rejects)
        notices = [*listing.notices, *missing_labels(manifest, has_own_labels(listing))]
        if manifest.fingerprint != fingerprint(parts):
            changes = version_changes(manifest.fingerprint_parts.get(VERSIONS, ""), parts[VERSIONS])
            notices.append(f"the dataset was made by other versions ({changes}); --overwrite converts it again with these")
        facts = (manifest.samples, manifest.shards, manifest.bytes, manifest.rejected)
        if has_some_rejects(manifest):
            self.place.bring_listed_rejects()
        return ConvertResult(
            "up-to-date",
            *facts,
            self._seconds(),
            0.0,
            manifest.fingerprint,
            copied=self._copied(),
            notices=tuple(notices),
            warnings=(
                *warnings_of_rejects(self.target, manifest),
                *empty_splits(manifest),
                *repeated_keys(self.target, manifest),
                *left_behind(manifest, self.recipe),
                *self._warnings(listing),
            ),
            jpeg=manifest.jpeg,
            steps=manifest.steps,
        )

    def _warnings(self, listing: Listing) -> tuple[str, ...]:
        return (*listing.warnings, *self.warnings)

    def _copied(self) -> int:
        if self.options.copy_rejects is None:
            return 0
        return copy_rejects(self.target, tuple(base.folder for base in self.bases), Path(self.options.copy_rejects))

    def _seconds(self) -> float:
        return time.monotonic() - self.started

    def _keep(self) -> int:
        """Return how many generations are kept: as before, if nothing else is said."""
        if self.options.keep is not None:
            return self.options.keep
        return 0 if self.before is None else self.before.manifest.keep

    def _sources(self) -> list[str]:
        """Return the absolute paths of the sources, or their URLs."""
        return [recorded(root) for root in self.roots]

    def _finished(self, status: str, made: int, listing: Listing) -> ConvertResult:
        """Return the result; this run made `made` of the dataset's samples."""
        seconds, labelled = self._seconds(), has_own_labels(listing)
        warnings = self._warnings(listing)
        found = result_of(self.target, status, seconds, tuple(listing.notices), warnings, labelled)
        return replace(found, samples_per_s=made / seconds, copied=self._copied(), changes=self.changes)
