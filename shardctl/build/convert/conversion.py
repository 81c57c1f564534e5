"""A conversion whose kind of samples is settled: what was requested, and who does it, where, since
when."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from functools import cached_property

from shardctl.build.convert.listener import Listener
from shardctl.build.convert.request import ConvertRequest
from shardctl.build.convert.sample_kind import settle_kind
from shardctl.build.convert.targets.base import Target, WriteLease
from shardctl.build.convert.unchanged import find_changed, find_unchanged
from shardctl.build.convert.update.previous import PreviousDataset
from shardctl.build.options import Options
from shardctl.build.paths import check_sources
from shardctl.build.plan.fingerprint import inputs_digest, parts_without_sources
from shardctl.build.plan.labels import PlanRules
from shardctl.build.plan.listing import Listing
from shardctl.build.shards.engines.base import Engine
from shardctl.errors import DatasetError
from shardctl.format.manifest import Manifest
from shardctl.format.names import CHECKSUMS, MANIFEST, STAGING
from shardctl.images.codecs import backend
from shardctl.sources.files import list_all
from shardctl.system.folders import LocalFolder
from shardctl.transforms.recipe import Recipe


@dataclass(frozen=True)
class Conversion:
    """One call of `convert`. `notices` say how the kind of the samples was found.

    `existing` is the dataset that is at the target already, `held` its lease where the caller has
    that. `known` are the inputs where these are surely those of that dataset.
    """

    request: ConvertRequest
    recipe: Recipe
    target: Target
    existing: ExistingDataset
    engine: Engine
    listener: Listener
    notices: tuple[str, ...]
    started: float
    held: WriteLease | None = None
    known: Known | None = None

    @classmethod
    def of(
        cls,
        request: ConvertRequest,
        listener: Listener,
        engine: Engine,
        target: Target,
        held: WriteLease | None,
    ) -> Conversion:
        """Settle the kind of the samples by a look at the sources. Raises InputError, UsageError,
        StoreError, InstallError."""
        started, given = time.monotonic(), dict(request.recipe)
        check_sources(request.roots, target.folder.shown())
        list_all((root.text for root in request.roots), listener.listing)
        existing = ExistingDataset(request.folder)
        known = None if held is not None else existing.known(request)
        if known is not None:
            listener.listing(len(known.listing))
        notices = (
            [] if known is not None else settle_kind(given, request.roots, engine, request.labels)
        )
        recipe = Recipe.from_json(given) if known is None else known.recipe
        if recipe.kind == "image":
            backend.require_one()
        return cls(
            request,
            recipe,
            target,
            existing,
            engine,
            listener,
            tuple(notices),
            started,
            held,
            known,
        )

    @property
    def options(self) -> Options:
        """The options of the request."""
        return self.request.options

    @property
    def folder(self) -> LocalFolder:
        """The folder of the dataset, or the one with the work on it."""
        return self.request.folder

    @property
    def staging(self) -> LocalFolder:
        """The folder of the jobs."""
        return self.folder.below(STAGING)

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

        return self.target.writing(wait if self.options.if_running == "wait" else None)


# --- the dataset that is at the target of a conversion already ---


@dataclass(frozen=True)
class Known:
    """The inputs of a conversion that are known from the existing dataset. `existing` is its
    digest."""

    recipe: Recipe
    listing: Listing
    parts: dict[str, str]
    existing: str


class ExistingDataset:
    """The dataset in a folder, if there is one. Another process may replace it at any time that
    this one holds no lease."""

    def __init__(self, folder: LocalFolder) -> None:
        self._folder = folder
        self._before: PreviousDataset | None = None

    def manifest(self) -> Manifest | None:
        """Return the manifest as it is now, None if there is no dataset. Raises DatasetError."""
        return Manifest.load(self._folder) if self.is_there() else None

    def is_there(self) -> bool:
        """Return whether there is a dataset now."""
        return self._folder.path(MANIFEST).exists()

    def digest(self) -> str:
        """Return what stands for the dataset as it is now, "" if there is none."""
        manifest = self.manifest()
        return "" if manifest is None else manifest.files[CHECKSUMS].sha256

    def known(self, request: ConvertRequest) -> Known | None:
        """Return the inputs of a conversion if they are surely those of this dataset, told in the
        time of a bare walk.

        None where they must be listed anew. Those of an update are as they are now: some may have
        come, gone or changed.
        """
        options = request.options
        others = (
            options.overwrite
            or options.append
            or options.explain
            or options.moved_from
            or options.part is not None
        )
        if others or options.copy_rejects is not None or self._folder.url:
            return None
        with contextlib.suppress(DatasetError):  # what is wrong with it is said later
            manifest = self.manifest()
            # the inputs are one record each
            of_files = manifest is not None and manifest.records is None
            find = find_changed if options.update else find_unchanged
            inputs = find(request, manifest) if manifest is not None and of_files else None
            listing = None if inputs is None else inputs.listing(request)
            if manifest is not None and inputs is not None and listing is not None:
                settings = request.recorded_settings(inputs.recipe)
                parts = {
                    **manifest.fingerprint_parts,
                    **parts_without_sources(inputs.recipe, settings),
                }
                if inputs.listed.changed:
                    parts["inputs"] = inputs_digest(listing, settings)
                return Known(inputs.recipe, listing, parts, inputs.dataset)
        return None

    def is_replaced(self, manifest: Manifest) -> bool:
        """Return whether the dataset is not the one of this manifest any more."""
        return self.manifest() != manifest

    def before(self, manifest: Manifest) -> PreviousDataset | None:
        """Return the dataset of a manifest with its tables, None if another one has taken its
        place.

        The tables are hashed once: they may be large. Raises DatasetError if one is damaged.
        """
        if self._before is None or self._before.manifest != manifest:
            try:
                self._before = PreviousDataset(self._folder, manifest)
            except DatasetError:
                if (now := self.manifest()) is not None and now != manifest:
                    return None  # the tables are those of the dataset that has taken its place
                raise
        return self._before
