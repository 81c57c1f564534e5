"""A conversion whose kind of samples is settled: what was requested, who does it, where, since
when; the dataset that is there already, and the inputs, found and named before any is read."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from shardctl.errors import DatasetError, UsageError
from shardctl.format.manifest import Manifest
from shardctl.format.names import CHECKSUMS, MANIFEST, STAGING
from shardctl.images.codecs import backend
from shardctl.making.convert.decision import DatasetReplacedError, refuse_written
from shardctl.making.convert.listener import Listener
from shardctl.making.convert.previous import PreviousDataset
from shardctl.making.convert.request import ConvertRequest
from shardctl.making.convert.sample_kind import settle_kind
from shardctl.making.convert.targets import Target, WriteLease
from shardctl.making.convert.unchanged import UnwalkedInputs, find_unwalked
from shardctl.making.paths import check_sources
from shardctl.making.plan.fingerprint import fingerprint_parts, inputs_digest, parts_without_sources
from shardctl.making.plan.list_files import Appending, list_files
from shardctl.making.plan.listing import Listing
from shardctl.making.plan.splits import PlanRules
from shardctl.making.shards import engines
from shardctl.making.shards.engines.local import Engine
from shardctl.making.shards.job import SourceBase
from shardctl.sources.files import SourceRoot, folder_of, list_all
from shardctl.sources.kinds import KINDS, Form
from shardctl.sources.rechecking import Changed, ChangedError
from shardctl.system.folders import LocalFolder
from shardctl.transforms.base import GroupTransform
from shardctl.transforms.recipe import Recipe


class Conversion:
    """One call of `convert`. `folder` is that of the dataset; of one on a store, a folder of this
    machine with the work on it. `staging` has the jobs. `notices` say how the kind of the samples
    was found; `held` is the lease of the target where the caller has it. `unwalked` is what
    `listed_without_walk` has told.

    Another process may replace the dataset that is at the target at any time that this one holds no
    lease.
    """

    def __init__(
        self,
        request: ConvertRequest,
        listener: Listener,
        engine: Engine,
        target: Target,
        held: WriteLease | None = None,
    ) -> None:
        """Settle the kind of the samples by a look at the sources. Raises InputError, UsageError,
        StoreError, InstallError."""
        self.request, self.listener, self.engine, self.target = request, listener, engine, target
        self.held, self.started = held, time.monotonic()
        self.options, self.folder = request.options, target.folder
        self.staging = self.folder.below(STAGING)
        self._before: PreviousDataset | None = None
        self.notices = list[str]()
        check_sources(request.roots, target.folder.shown())
        list_all((root.text for root in request.roots), listener.listing)
        self.unwalked = listed_without_walk(request, self.folder) if held is None else None
        if self.unwalked is not None:
            self.recipe = self.unwalked.recipe
            listener.listing(len(self.unwalked.listing))
        else:
            given, self.notices = settle_kind(request.recipe, request.roots, engine, request.labels)
            self.recipe = Recipe.from_json(given)
            for step in self.recipe.reading:  # a conversion does none, and only sees that it can be
                if isinstance(step.loaded(), GroupTransform):
                    target = step.settings()["target"]
                    raise UsageError(f"{target} is a class: put it under [[transform]]")
        if self.recipe.kind == "image":
            backend.require_one()

    @cached_property
    def rules(self) -> PlanRules:
        """How the inputs are divided."""
        return self.request.rules(self.recipe)

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self.started

    def leased(self) -> contextlib.AbstractContextManager[WriteLease]:
        """Return the lease of the target, once it is held. No workers are kept while this process
        waits for it."""
        if self.held is not None:
            return contextlib.nullcontext(self.held)

        def wait(owner: str) -> None:
            self.engine.close()
            self.listener.waiting(owner)

        return self.target.lease(wait if self.options.if_running == "wait" else None)

    @property
    def is_there(self) -> bool:
        """Whether there is a dataset now."""
        return self.folder.path(MANIFEST).exists()

    def before(self, manifest: Manifest) -> PreviousDataset:
        """Return the dataset of a manifest with its tables, which are hashed once: they may be
        large.

        Raises DatasetReplacedError if another one has taken its place, DatasetError if a table is
        damaged.
        """
        if self._before is None or self._before.manifest != manifest:
            try:
                self._before = PreviousDataset(self.folder, manifest)
            except DatasetError:
                self.refuse_replaced(manifest)
                raise
        return self._before

    def refuse_replaced(self, manifest: Manifest) -> None:
        """Raise DatasetReplacedError if another dataset has taken the place of that of a
        manifest."""
        if self.target.manifest() != manifest:
            raise DatasetReplacedError


def listed_without_walk(request: ConvertRequest, folder: LocalFolder) -> UnwalkedInputs | None:
    """Return the inputs if they are surely those of the dataset that is there, told in the time of
    a bare walk.

    None where they must be listed anew. Those of an update are as they are now: some may have come,
    gone or changed.
    """
    options = request.options
    others = (
        options.overwrite
        or options.append
        or options.explain
        or options.moved_from
        or options.part is not None
        or options.copy_rejects is not None
    )
    if others or folder.url or not folder.path(MANIFEST).exists():
        return None
    with contextlib.suppress(DatasetError, ChangedError):  # what is wrong with it is said later
        manifest = Manifest.load(folder)
        if manifest.records is None:  # only inputs that are one record each are told so
            found = find_unwalked(request, folder, manifest, Changed() if options.update else None)
            _ = found and found.listing  # made now, or ChangedError is raised
            return found
    return None


@dataclass(frozen=True)
class Inputs:
    """The inputs as they were listed. `sources` are the absolute paths of the sources, or their
    URLs, `bases` the folders that paths are relative to.

    `parts` are those of the fingerprint. `existing` is the digest of the dataset that was at the
    target when the inputs were listed, "" if there was none. `scratch` is a folder for what a plan
    needs.
    """

    listing: Listing
    sources: list[str]
    bases: tuple[SourceBase, ...]
    parts: dict[str, str]
    existing: str
    scratch: Path


def list_inputs(conversion: Conversion, scratch: Path) -> Inputs:
    """List the inputs. `scratch` is a folder for the list.

    Raises DatasetReplacedError if another dataset has taken the place of the one that inputs are
    appended to, InputError, UsageError, StoreError.
    """
    options, recipe, request = conversion.options, conversion.recipe, conversion.request
    if options.update or options.append or options.explain or options.copy_rejects is not None:
        conversion.target.fetch_dataset()
    if options.overwrite or not conversion.is_there:
        # a second process imports the modules of the workers while the inputs are listed; the
        # command line has started it, where it saw early that there is work
        conversion.engine.prepare()
    manifest, roots, known = conversion.target.manifest(), request.roots, None
    existing = "" if manifest is None else manifest.files[CHECKSUMS].sha256
    # their devices count where the workers are on this machine
    base_of = SourceBase.of if engines.is_here(options.engine) else SourceBase.anywhere
    bases = tuple(base_of(root.base) for root in roots)
    if options.append and manifest is not None:
        refuse_written(conversion.folder.text, manifest)
        before = conversion.before(manifest)
        form = Form.ONE if manifest.records is None else Form.MANY
        known = Appending(
            before.files,
            before.state.mtime_ns,
            form,
            manifest.sources,
            roots,
            conversion.rules.labels,
        )
        # some sources may be gone: nothing is read of those that were not given
        roots = tuple(map(SourceRoot, known.sources))
        bases = tuple(map(SourceBase.anywhere, map(folder_of, known.sources)))
    sources = [root.recorded for root in roots]
    found = conversion.unwalked
    if found is not None and manifest is not None and found.dataset == existing:
        settings = request.recorded_settings(recipe)
        parts = {**manifest.fingerprint_parts, **parts_without_sources(recipe, settings)}
        if found.listed.changed:
            parts["inputs"] = inputs_digest(found.listing, settings)
        return Inputs(found.listing.fresh(), sources, bases, parts, existing, scratch)
    listing = list_files(
        roots,
        KINDS[recipe.kind],
        recipe.record_reading,
        conversion.rules.labels,
        scratch / "listing.arrow",
        conversion.listener.listing,
        known,
    )
    listing.notices[:0] = conversion.notices
    parts = fingerprint_parts(listing, recipe, request.recorded_settings(recipe))
    return Inputs(listing, sources, bases, parts, existing, scratch)
