"""A conversion whose kind of samples is settled: what was requested, and who does it, where, since when."""

from __future__ import annotations

import contextlib
import time
from functools import cached_property

from shardctl.build.convert.existing import ExistingDataset, Known
from shardctl.build.convert.listener import Listener
from shardctl.build.convert.request import ConvertRequest
from shardctl.build.convert.sample_kind import settle_kind
from shardctl.build.convert.targets.base import Target, WriteLease
from shardctl.build.options import Options
from shardctl.build.paths import check_sources
from shardctl.build.plan.labels import PlanRules
from shardctl.build.shards.engines.base import Engine
from shardctl.format.names import STAGING
from shardctl.images.codecs import backend
from shardctl.sources.files import list_all
from shardctl.system.dataclass import dataclass
from shardctl.system.locations.local import LocalFolder
from shardctl.transforms.recipe import Recipe


@dataclass(frozen=True)
class Conversion:
    """One call of `convert`. `notices` say how the kind of the samples was found.

    `existing` is the dataset that is at the target already, `held` its lease where the caller has that. `known` are the inputs
    where these are surely those of that dataset.
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
        cls, request: ConvertRequest, listener: Listener, engine: Engine, target: Target, held: WriteLease | None
    ) -> Conversion:
        """Settle the kind of the samples by a look at the sources. Raises InputError, UsageError, StoreError, InstallError."""
        started, given = time.monotonic(), dict(request.recipe)
        check_sources(request.roots, target.folder.shown())
        list_all((root.text for root in request.roots), listener.listing)
        existing = ExistingDataset(request.folder)
        known = None if held is not None else existing.known(request)
        if known is not None:
            listener.listing(len(known.listing))
        notices = [] if known is not None else settle_kind(given, request.roots, engine, request.labels.mode)
        recipe = Recipe.from_json(given) if known is None else known.recipe
        if recipe.kind == "image":
            backend.require_one()
        return cls(request, recipe, target, existing, engine, listener, tuple(notices), started, held, known)

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
        """Return the lease of the target, once it is held. No workers are kept while this process waits for it."""
        if self.held is not None:
            return contextlib.nullcontext(self.held)

        def wait(owner: str) -> None:
            self.engine.close()
            self.listener.waiting(owner)

        return self.target.writing(wait if self.options.if_running == "wait" else None)
