"""The steps of a conversion: list, draft, plan, build the shards, commit, publish. Or resume a stopped run."""

from __future__ import annotations

import contextlib
import datetime
import platform
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from shardctl import lease
from shardctl.codecs import backend
from shardctl.conversion import generations, publish
from shardctl.conversion.asked import Asked
from shardctl.conversion.commit import Commit, Committed
from shardctl.conversion.draft import Draft, make_draft
from shardctl.conversion.estimating import Estimate, estimate
from shardctl.conversion.explaining import explain
from shardctl.conversion.kinds import settle_kind
from shardctl.conversion.listener import Listener
from shardctl.conversion.metering import metered
from shardctl.conversion.options import check_sources, check_writable
from shardctl.conversion.rejects import copy_rejects, refuse_many_rejects
from shardctl.conversion.result import (
    ConvertResult,
    costly_jpegs,
    cut_objects,
    missing_labels,
    repeated_keys,
    warnings_of,
)
from shardctl.conversion.staging import (
    begin,
    clear_partial_files,
    discard,
    finished_shards,
    go_on,
    make_room,
    refuse_to_lose,
    unfinished,
)
from shardctl.conversion.tally import Tally
from shardctl.conversion.updating.appending import Appending, refuse_anew
from shardctl.conversion.updating.before import Before
from shardctl.conversion.updating.known import hide_pruned, still_pruned, write_known
from shardctl.conversion.updating.outcomes import Outcomes, verify_update
from shardctl.conversion.updating.planning import AnewError, Changes, Update, changes_anew, plan_update
from shardctl.conversion.updating.refusing import FOLLOWED, refuse_other, refuse_written
from shardctl.engines import named
from shardctl.engines.base import Engine
from shardctl.engines.job import NEW_FOLDER, Job, Root
from shardctl.engines.task import Progress
from shardctl.errors import (
    BusyError,
    DatasetError,
    DiskFullError,
    InputError,
    Interrupted,
    SourceGoneError,
    StorageError,
    TooManyRejectsError,
    TypesDifferError,
)
from shardctl.fingerprint import (
    VERSIONS,
    difference,
    fingerprint,
    fingerprint_parts,
    only_versions_differ,
    version_changes,
)
from shardctl.lease import Lease
from shardctl.listing import KnownFiles, Listing, list_files
from shardctl.manifest import Manifest
from shardctl.plan import NOT_KEPT
from shardctl.recipe import Recipe
from shardctl.sources.kinds import KINDS
from shardctl.sources.walk import place_of
from shardctl.storage import format_bytes, naming_the_path, printable, scratch_folder, write_atomically
from shardctl.tables import CHECKSUMS, MANIFEST, REJECTS, STAGING, count_reasons
from shardctl.version import __version__

T = TypeVar("T")

UPDATING = "-update"
"""What the name of the folder of a job ends with that brings a dataset up to date."""

SPARE_DISK = 1.05
"""Free disk space that is required, per byte of the estimate."""


def run(asked: Asked, listener: Listener, held: Lease | None = None) -> ConvertResult:
    """Convert as asked. `held` is the lease of the destination where the caller has it already. Raises what `convert` does."""
    with metered(listener, asked.options.metrics) as metering:
        return _run(asked, metering, held)


def _run(asked: Asked, listener: Listener, held: Lease | None) -> ConvertResult:
    started = time.monotonic()
    check_sources(asked.roots)
    options, settings = asked.options, dict(asked.settings)
    engine = named.start(options.engine, options.workers, options.limits(), listener.on_line)
    try:
        notices = settle_kind(settings, list(asked.roots), engine)
        recipe = Recipe.from_settings(settings)
        if recipe.kind == "image":
            backend.require_one()
        return Conversion(asked, recipe, listener, engine, notices, started, held).run()
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
        held: Lease | None,
    ) -> None:
        self.asked, self.recipe, self.listener, self.started, self.held = asked, recipe, listener, started, held
        self.roots, self.target, self.options = list(asked.roots), asked.target, asked.options
        self.settings = asked.planning(recipe)
        self.engine, self.notices = engine, notices
        self.staging = self.target / STAGING
        self.before: Before | None = None
        self.there: Before | None = None
        self.changes: Changes | None = None
        self.warnings: list[str] = []
        bases = (str((root if root.is_dir() else root.parent).resolve()) for root in self.roots)
        self.bases = tuple(map(Root.of if self.options.engine == named.LOCAL else Root.anywhere, bases))
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
            parts = fingerprint_parts(listing, self.recipe, self.asked.recorded_settings(self.recipe))

            if self.options.explain:
                return self._explained(parts, listing)
            side, notices = listing.side, tuple(listing.notices)

            def drafted(all_types: bool = False) -> Draft:
                listing.side, listing.notices = side, list(notices)  # as they were, if this is not the first draft
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
                self._clear_up(existing)
                if self.options.keep not in (None, existing.keep) and not self.options.dry_run:
                    existing = self._with_keep(engine)
                return self._up_to_date(existing, parts, listing)
            check_writable(self.target)
            if not publish.is_broken_off(self.target):
                publish.refuse_to_replace(self.target, self.recipe.files)
            if self.options.dry_run:
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

    def _leased(self, engine: Engine) -> contextlib.AbstractContextManager[Lease]:
        """Return the lease of the destination, once it is held."""
        return contextlib.nullcontext(self.held) if self.held is not None else lease.hold(self.staging, self._waiting(engine))

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
            moved = [str(place_of(Path(old))) for old in self.options.moved_from]
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

    def _with_keep(self, engine: Engine) -> Manifest:
        """Have a dataset that is up to date keep as many generations as was asked for now."""
        check_writable(self.target)
        with self._leased(engine) as held:
            manifest = replace(Manifest.load(self.target), keep=self._keep())
            held.check()
            write_atomically(self.target / MANIFEST, manifest.to_json().encode())
            generations.settle(self.target)
        return manifest

    def _clear_up(self, existing: Manifest) -> None:
        """Delete the leftovers of a conversion that was killed right after its dataset was in place.

        They stay if another process works on them, or if the folder cannot be written.
        """
        if self.staging.exists() or publish.is_broken_off(self.target) or generations.unsettled(self.target):
            with contextlib.suppress(BusyError, StorageError), lease.hold(self.staging, None):
                publish.recover(self.target)
                generations.settle(self.target)
                for folder in (self.staging / f"{existing.fingerprint}{kind}" for kind in ("", UPDATING)):
                    if existing.fingerprint and folder.exists():
                        with naming_the_path(folder):
                            discard(folder)

    def _write(
        self,
        listing: Listing,
        parts: dict[str, str],
        drafted: Callable[[], Draft],
        engine: Engine,
        held: lease.Lease,
        again: bool = False,
    ) -> ConvertResult:
        """Make the dataset, or complete an unfinished one. This process holds the lease: no other process writes.

        `again` begins anew where there is an unfinished one.
        """
        if publish.recover(self.target) in (fingerprint(parts), f"{fingerprint(parts)}{UPDATING}"):
            return self._finished("resumed", 0, listing)
        existing = self._existing(parts)  # checked again: another converter may have finished while this one waited
        if existing:
            return self._up_to_date(existing, parts, listing)
        folder = self._folder(parts)
        if again:
            discard(folder)
        elif not self.options.overwrite and self.before is None:
            refuse_to_lose(self.staging, folder, parts, self.recipe)
        job = self._unfinished(folder)
        self.changes = self._changes_of(job) if job is not None else None
        status = "resumed" if job else "updated" if (self.target / MANIFEST).exists() else "created"
        made = 0
        if job is not None and (folder / NEW_FOLDER / MANIFEST).exists():
            refuse_many_rejects(self.target, Manifest.load(folder / NEW_FOLDER), self.options.max_rejects)
        else:
            if job is None:
                job = self._begin(folder, listing, parts, drafted, again)
            else:
                go_on(job)
                self._announce(job, listing)
            with self._telling_what_is_done(job):
                made = self._build(job, engine)
                held.check()
                clear_partial_files(job)
                outcomes = Outcomes(job, self.before)
                outcomes.link_kept()
                pruned = still_pruned(job, self.before) if self.before is not None else ()
                given = {"seen": job.files, "beside": job.beside, "pruned": pruned}
                commit = Commit(job, self.asked.recorded_settings(self.recipe), outcomes.done, outcomes.lines, **given)
                commit.run(lambda facts: self._manifest(job, parts, facts, whole=status == "created"))
        held.check()
        self._publish(folder / NEW_FOLDER)
        return self._finished(status, made, listing)

    def _publish(self, new: Path) -> None:
        """Make the new dataset the one at the target, and keep as many generations before it as its manifest says."""
        if self.before is not None:
            verify_update(new)
            if Manifest.load(new).keep:
                generations.keep(self.target)
        publish.publish(new, self.target)
        generations.settle(self.target)

    def _folder(self, parts: dict[str, str]) -> Path:
        """Return the folder of this conversion's job."""
        return self.staging / f"{fingerprint(parts)}{UPDATING if self.before is not None else ''}"

    def _unfinished(self, folder: Path) -> Job | None:
        """Return the job that was begun in its folder; None if there is none, or one that updates another dataset."""
        job = unfinished(folder, self.bases, self.recipe)
        same = job is not None and job.updates == (self.before.digest if self.before is not None else "")
        return job if same else None

    def _begin(
        self, folder: Path, listing: Listing, parts: dict[str, str], drafted: Callable[[], Draft], anew: bool = False
    ) -> Job:
        """Write the plan of a new job. Raises StorageError if the disk cannot hold the dataset.

        A dataset that is brought up to date is made `anew` where new records have other types.
        """
        plan, job = self._planned_job(folder, listing, parts, drafted, anew)
        self._check_space(self._announce(job, listing))
        make_room(self.staging, folder)
        plan.write(folder)
        if self.before is not None:
            hide_pruned(job, self.before)
            self.warnings += write_known(job, self.before, plan.of_old if isinstance(plan, Update) else None)
        begin(job)
        return job

    def _planned_job(
        self, folder: Path, listing: Listing, parts: dict[str, str], drafted: Callable[[], Draft], anew: bool
    ) -> tuple[Draft | Update, Job]:
        """Plan the conversion: what makes the tables of its job, and the job in its folder."""
        why = "new records have other types" if anew else ""
        if self.before is not None and not anew:
            scratch = listing.path.parent
            try:
                update = plan_update(
                    listing, self.recipe, self.settings, self.options, self.before, self.bases, self.engine, scratch
                )
                update.refuse_lost_shards()
                return update, update.job(folder, self.bases, parts)
            except AnewError as reason:
                why = str(reason)
        if why and self.options.append:
            raise refuse_anew(why, self.target)
        plan = drafted()
        job = plan.job(folder, self.bases, self.recipe, parts, self.settings.shuffle)
        if self.before is not None:
            changes = changes_anew(self.before, plan, job.shards, listing.path.parent, why)
            job = replace(job, changes=asdict(changes), updates=self.before.digest)
        return plan, job

    def _check_space(self, expected: Estimate) -> None:
        if expected.bytes * SPARE_DISK > expected.free_bytes:
            raise StorageError(
                f"{printable(str(self.target))}: the dataset needs about {format_bytes(expected.bytes * SPARE_DISK)} and"
                f" {format_bytes(expected.free_bytes)} are free; free some space, or store less (--store, --compression)"
            )

    def _build(self, job: Job, engine: Engine) -> int:
        """Build the unfinished shards, and return the number of samples made."""
        done = np.zeros(job.shards, bool)
        tally = Tally(self.options.max_rejects, job.inputs, self.listener.progress)
        for shard, finished in finished_shards(job):
            done[shard] = True
            tally.add(Progress(job.place(shard).records, finished.facts.rows, finished.rejected, 0))
        if done.any():
            self.listener.resuming(int(done.sum()), job.shards)
        for shard in np.flatnonzero(job.kept != NOT_KEPT).tolist():
            assert self.before is not None, "only then is a shard kept"
            done[shard] = True
            entry = self.before.table[int(job.kept[shard])]
            tally.add(Progress(job.place(shard).records, entry.rows, entry.rejected, 0))
        before = tally.samples
        engine.run(job, array("q", np.flatnonzero(~done).tobytes()), tally.add)
        return tally.samples - before

    @contextmanager
    def _telling_what_is_done(self, job: Job) -> Iterator[None]:
        """Add to an error or an interrupt how much is done, and that the same command continues from there."""
        try:
            yield
        except (KeyboardInterrupt, StorageError, SourceGoneError) as error:
            state, done = _what_is_done(job)
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted(f"interrupted; {state}") from error
            if isinstance(error, DiskFullError):
                need = format_bytes((1 - done) * job.inputs * job.samples_per_record * job.sample_bytes * SPARE_DISK)
                raise DiskFullError(f"{error}; about {need} more are needed. {state}") from error
            raise type(error)(f"{error}. {state}") from error

    def _announce(self, job: Job, listing: Listing) -> Estimate:
        self.changes = self._changes_of(job)
        expected = estimate(job, listing, self.engine.at_once(), self.target, self.changes)
        self.listener.announce(expected)
        return expected

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
        facts = (expected.rows, expected.shards, expected.bytes, 0, self._seconds(), 0.0, folder.name)
        return ConvertResult("planned", *facts, estimate=expected, notices=tuple(listing.notices), changes=self.changes)

    def _up_to_date(self, manifest: Manifest, parts: dict[str, str], listing: Listing) -> ConvertResult:
        refuse_many_rejects(self.target, manifest, self.options.max_rejects)
        notices = [*listing.notices, *missing_labels(manifest, listing)]
        if manifest.fingerprint != fingerprint(parts):
            changes = version_changes(manifest.fingerprint_parts.get(VERSIONS, ""), parts[VERSIONS])
            notices.append(f"the dataset was made by other versions ({changes}); --overwrite converts it again with these")
        facts = (manifest.samples, manifest.shards, manifest.bytes, manifest.rejected)
        return ConvertResult(
            "up-to-date",
            *facts,
            self._seconds(),
            0.0,
            manifest.fingerprint,
            copied=self._copied(),
            notices=tuple(notices),
            warnings=(*warnings_of(manifest), *repeated_keys(self.target, manifest)),
            jpeg=manifest.jpeg,
            steps=manifest.steps,
        )

    def _copied(self) -> int:
        if self.options.copy_rejects is None:
            return 0
        return copy_rejects(self.target, tuple(base.path for base in self.bases), Path(self.options.copy_rejects))

    def _seconds(self) -> float:
        return time.monotonic() - self.started

    def _manifest(self, job: Job, parts: dict[str, str], facts: Committed, whole: bool) -> Manifest:
        """Return the manifest; `whole` means that this run made all of the dataset, and so knows how long that took."""
        made = Manifest(
            kind=self.recipe.kind,
            samples=facts.samples,
            shards=job.shards,
            bytes=facts.bytes,
            inputs=facts.inputs,
            rejected=facts.rejected,
            splits=facts.splits,
            schema=tuple((f.name, str(f.type)) for f in job.layout.columns),
            fields=facts.fields,
            recipe=self.recipe.settings(),
            settings=self.asked.recorded_settings(self.recipe),
            fingerprint=fingerprint(parts),
            fingerprint_parts=parts,
            sources=tuple(self._sources()),
            files=facts.files,
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            shardctl_version=__version__,
            seconds=round(self._seconds(), 3) if whole else None,
            class_counts=facts.class_counts,
            objects=facts.objects,
            jpeg=facts.jpeg,
            steps=facts.steps,
            update=facts.update,
            environment=_environment(self.recipe),
            records=job.records_read,
            keep=self._keep(),
        )
        if self.before is None:
            return made.with_generation(None, "convert", len(job.files), 0, 0)
        changes = self._changes_of(job)
        numbers = (changes.added, changes.removed, changes.changed) if changes is not None else (0, 0, 0)
        return made.with_generation(self.before.manifest, "append" if self.options.append else "update", *numbers)

    def _changes_of(self, job: Job) -> Changes | None:
        """Return what a job changes in the dataset that is there; None if there is none."""
        return None if job.changes is None else Changes(**job.changes)

    def _keep(self) -> int:
        """Return how many generations are kept: as before, if nothing else is said."""
        if self.options.keep is not None:
            return self.options.keep
        return 0 if self.before is None else self.before.manifest.keep

    def _sources(self) -> list[str]:
        """Return the absolute paths of the sources."""
        return [str(place_of(root)) for root in self.roots]

    def _finished(self, status: str, made: int, listing: Listing) -> ConvertResult:
        """Return the result; this run made `made` of the dataset's samples."""
        manifest = Manifest.load(self.target)
        reasons, examples = count_reasons(self.target / REJECTS)
        seconds = self._seconds()
        return ConvertResult(
            status=status,
            samples=manifest.samples,
            shards=manifest.shards,
            bytes=manifest.bytes,
            rejected=manifest.rejected,
            seconds=seconds,
            samples_per_s=made / seconds,
            fingerprint=manifest.fingerprint,
            reasons=reasons,
            examples=examples,
            copied=self._copied(),
            notices=(*listing.notices, *missing_labels(manifest, listing), *cut_objects(manifest), *costly_jpegs(manifest)),
            warnings=(*warnings_of(manifest), *repeated_keys(self.target, manifest), *self.warnings),
            jpeg=manifest.jpeg,
            steps=manifest.steps,
            changes=self.changes,
        )


def _what_is_done(job: Job) -> tuple[str, float]:
    """Return how much of an unfinished job is done, as a sentence and as a share of its records."""
    try:
        done = [job.place(shard).records for shard, _ in finished_shards(job)]
    except OSError as error:
        return f"shardctl cannot read what is done ({printable(str(job.folder))}: {error.strerror})", 0.0
    sentence = f"{len(done)} of {job.shards} shards are done; run the same command again to continue"
    return sentence, sum(done) / max(1, job.records)


def _environment(recipe: Recipe) -> dict[str, str]:
    """Return the versions of the libraries that make the dataset and on which its values may depend."""
    versions = {"python": platform.python_version(), "numpy": np.__version__, "pyarrow": pa.__version__}
    if recipe.kind == "image":
        versions |= {"imaging": backend.require_one(), "libraries": ", ".join(backend.libraries())}
    if recipe.uses_opencv:
        from shardctl.codecs import opencv  # an extra

        versions["opencv"] = opencv.VERSION
    of_steps = (version.rpartition(" ") for step in recipe.transforms for version in step.versions())
    return {**versions, **{name: version for name, _, version in of_steps}}
