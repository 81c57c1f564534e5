"""The request for a conversion, who does it and where, and what the sources hold: the inputs, found
and named before any is read."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.format.dataset_folder import dataset_of
from shardctl.format.manifest import Manifest
from shardctl.format.names import FILES, STAGING, UPDATE, Json
from shardctl.format.tables import is_written
from shardctl.format.update_state import UpdateState
from shardctl.images.codecs import backend
from shardctl.making.commit.target import Target, WriteLease
from shardctl.making.convert.discover import settle_kind
from shardctl.making.convert.listener import Listener
from shardctl.making.convert.previous import DatasetReplacedError, PreviousDataset, refuse_written
from shardctl.making.notices import notice
from shardctl.making.options import Options, Paths, chosen_options
from shardctl.making.paths import check_copies_folder, check_sources, destination_of
from shardctl.making.plan.fingerprint import (
    VERSIONS,
    differing_parts,
    inputs_digest,
    labels_digest,
    parts_without_sources,
)
from shardctl.making.plan.labels import read_classes
from shardctl.making.plan.list_files import (
    WALKED,
    Appending,
    check_listing,
    list_files,
    read_labels,
    refuse_repeated,
)
from shardctl.making.plan.listing import LabelRule, Listing, moved_labels
from shardctl.making.plan.splits import PlanRules, SplitRule
from shardctl.making.shards import engines
from shardctl.making.shards.engines.local import Engine
from shardctl.making.shards.job import SourceBase
from shardctl.sources.annotations import AnnotationRule
from shardctl.sources.files import SourceRoot, folder_of, list_all
from shardctl.sources.kinds import KINDS
from shardctl.sources.walked import Walked, walk_sources
from shardctl.system.folders import LocalFolder
from shardctl.system.locations import is_url
from shardctl.system.stores import refuse_half_url
from shardctl.system.text import format_bytes, printable
from shardctl.transforms.base import GroupTransform
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.recipe_files.reading import OPTIONS, options_of

SMALL_SHARD = 1 << 20
"""Bytes of a shard below which the size may be meant as a number of samples."""


@dataclass(frozen=True)
class ConvertRequest:
    """The arguments of a conversion, checked: nothing of the sources is read, and they need not be
    there. `recipe` is as it was given: it may leave to the sources what they hold. `files` is the
    folder of the files that the recipe of a dataset names. `says` that they say what is to be
    in the dataset; else an update takes what the dataset has.

    The dataset goes to `destination`, a URL or an absolute path.
    """

    roots: tuple[SourceRoot, ...]
    destination: str | Path
    recipe: Mapping[str, Any]
    options: Options
    split: SplitRule
    files: Path | None = None
    says: bool = True

    @classmethod
    def of(
        cls,
        src: str | Path | Sequence[str | Path],
        dst: str | Path,
        recipe: Json | str | Path | None,
        options: Mapping[str, Any],
    ) -> ConvertRequest:
        """Check the arguments of `convert`. Raises UsageError, InputError, StorageError."""
        Paths().check("the source", src)
        several = [src] if isinstance(src, str | Path) else src
        if not all(map(str, several)):
            raise UsageError("the source is a path; it is ''")
        if recipe is not None and not isinstance(recipe, dict | str | Path):
            raise UsageError(
                f"the recipe is a dict such as {{'transform': [{{'name': 'hflip'}}]}}, or a "
                f"path; it is {recipe!r}"
            )
        for source in several:
            if not is_url(source):
                refuse_half_url(str(source))  # before it is a path, which has one / for //
        chosen, given = chosen_options("convert", recipe, options)
        chosen.check()
        split = SplitRule.parse(chosen.split)
        roots = [SourceRoot.of(source) for source in several]
        destination = destination_of(dst, roots)
        if chosen.copy_rejects is not None:
            if is_url(chosen.copy_rejects):
                raise UsageError(
                    f"{printable(chosen.copy_rejects)}: rejects can be copied to a folder of "
                    "this machine only"
                )
            check_copies_folder(Path(chosen.copy_rejects), destination, roots)
        says = bool(given) or not options.keys().isdisjoint(OPTIONS.values())
        return cls(tuple(roots), destination, given, chosen, split, says=says)

    @property
    def alone(self) -> bool:
        """Whether a dataset is brought up to date with its own recipe and settings."""
        return (self.options.update or self.options.append) and not self.says

    def as_made(self, target: Target) -> ConvertRequest:
        """Return the request with the recipe and the settings of the dataset at a target, if there
        is one that was converted. Labels within a source that was moved are moved, too."""
        manifest = target.manifest()
        if manifest is None or is_written(manifest.settings):
            return self
        settings = manifest.settings
        options = replace(self.options, **options_of(settings))
        if "classes" in settings and options.classes is None:
            options = replace(options, classes=str(self.destination))
        moved = [SourceRoot.of(old).recorded for old in options.moved_from]
        labels = moved_labels(settings["labels"], moved, [root.recorded for root in self.roots])
        target.fetch_files(manifest.own_files)
        files = dataset_of(manifest, target.folder).path(FILES).parent
        split, made = SplitRule.parse(options.split), replace(options, labels=labels)
        return replace(self, recipe=manifest.recipe, options=made, split=split, files=files)

    def changed(self, **options: Any) -> ConvertRequest:
        """Return the same with other options."""
        return replace(self, options=replace(self.options, **options))

    @cached_property
    def labels(self) -> LabelRule:
        """Where labels come from. Raises UsageError."""
        options = self.options
        annotations = AnnotationRule(
            options.boxes_outside, options.annotation_frame, options.yolo_task
        )
        rule = LabelRule.parse(
            options.labels, options.lenient_labels, options.drop_columns, annotations
        )
        return (
            rule
            if options.classes is None
            else replace(rule, classes=read_classes(str(options.classes)))
        )

    def rules(self, recipe: Recipe) -> PlanRules:
        """Return how the inputs are divided. Raises UsageError."""
        if recipe.group is not None and not self.split.shares:
            raise UsageError(
                f"--group {recipe.group} needs a split by shares; add --split train=0.9,val=0.1"
            )
        by_key = recipe.key_source is not None
        return PlanRules(
            self.split, self.labels, self.options.shuffle, recipe.seed, by_key, recipe.undivided
        )

    def recorded_settings(self, recipe: Recipe) -> Json:
        """Return what the manifest records as settings."""
        sizes = {
            "shard_size": self.options.shard_size,
            "samples_per_shard": self.options.samples_per_shard,
        }
        return {**self.rules(recipe).record(), **sizes}


@dataclass
class Conversion:
    """One call of `convert`: the request, and who does it. `held` is the lease of the target if the
    caller has it. `asks_cost` says that the plan estimates the cost.

    Another process may replace the dataset that is at the target at any time that this one holds no
    lease.
    """

    request: ConvertRequest
    listener: Listener
    engine: Engine
    target: Target
    held: WriteLease | None = None
    asks_cost: bool = True
    started: float = field(default_factory=time.monotonic)
    _previous: PreviousDataset | None = None

    @property
    def options(self) -> Options:
        """What was chosen."""
        return self.request.options

    @property
    def folder(self) -> LocalFolder:
        """That of the dataset; of one on a store, a folder of this machine with the work on it."""
        return self.target.folder

    @property
    def staging(self) -> LocalFolder:
        """The folder of the jobs."""
        return self.folder.below(STAGING)

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

    def previous(self, manifest: Manifest) -> PreviousDataset:
        """Return the dataset of a manifest with its tables, which are hashed once: they may be
        large.

        Raises DatasetReplacedError if another one has taken its place, DatasetError if a table is
        damaged.
        """
        if self._previous is None or self._previous.manifest != manifest:
            self.target.fetch_dataset()
            with self.staying(manifest):
                self._previous = PreviousDataset(self.folder, manifest)
        return self._previous

    @contextlib.contextmanager
    def staying(self, manifest: Manifest) -> Iterator[None]:
        """Raise DatasetReplacedError for what is wrong with the files of a dataset whose place
        another one has taken meanwhile."""
        try:
            yield
        except DatasetError:
            self.refuse_replaced(manifest)
            raise

    def refuse_replaced(self, manifest: Manifest | None) -> None:
        """Raise DatasetReplacedError if another dataset has taken the place of that of a manifest,
        None for none."""
        there = self.target.manifest()
        if (there and there.to_json()) != (manifest and manifest.to_json()):
            raise DatasetReplacedError


@dataclass(frozen=True)
class Inputs:
    """What the sources of a conversion hold. `manifest` is that of the dataset that was at the
    target when they were listed, None for none.

    `recipe` is complete: the sources have decided what it leaves open. `sources` are their absolute
    paths or URLs. `bases` are the folders that paths are relative to. `scratch` is a folder for what
    a plan needs.
    """

    conversion: Conversion
    manifest: Manifest | None
    recipe: Recipe
    rules: PlanRules
    listing: Listing
    sources: list[str]
    bases: tuple[SourceBase, ...]
    fingerprint_parts: dict[str, str]
    scratch: Path

    @property
    def settings(self) -> Json:
        """What the manifest records as settings."""
        return self.conversion.request.recorded_settings(self.recipe)


def list_inputs(conversion: Conversion, scratch: Path) -> Inputs:
    """List the inputs. `scratch` is a folder for the list.

    Raises DatasetReplacedError if another dataset has taken the place of the one that inputs are
    appended to, InputError, UsageError, StoreError, InstallError.
    """
    request, target, options = conversion.request, conversion.target, conversion.options
    check_sources(request.roots, target.folder.shown())
    list_all((root.text for root in request.roots), conversion.listener.listing)
    manifest = target.manifest()
    if options.overwrite or manifest is None:
        # a second process imports the modules of the workers while the inputs are listed; the
        # command line has started it, where it saw early that there is work
        conversion.engine.prepare()
    walked = walk_sources(request.roots, scratch / WALKED, conversion.listener.listing)
    recipe, notices = _complete_recipe(conversion, walked)
    rules, reading = request.rules(recipe), recipe.record_reading
    if (options.update or options.append) and manifest and "label" not in dict(manifest.schema):
        # a column such as `class` is one of its fields, and stays so
        rules = replace(rules, labels=replace(rules.labels, like=frozenset({"label"})))
    listing = list_files(walked, KINDS[recipe.kind], reading, rules.labels, scratch)
    listing.notices[:0] = notices
    sources = [root.recorded for root in request.roots]
    # their devices count where the workers are on this machine
    base_of = SourceBase.of if engines.is_here(options.engine) else SourceBase.anywhere
    bases = tuple(base_of(root.base) for root in request.roots)
    if options.append and manifest is not None:
        listing, sources = _appended(conversion, manifest, walked, listing, scratch)
        # nothing is read of those that were not given
        bases = tuple(map(SourceBase.anywhere, map(folder_of, sources)))
    else:
        check_listing(listing, walked, reading, rules.labels)
    refuse_repeated(listing)
    settings, others = (
        request.recorded_settings(recipe),
        listing.side_files or rules.labels.annotations,
    )
    parts = {
        "inputs": inputs_digest(listing, settings),
        "labels": "",
        **parts_without_sources(recipe, settings),
    }
    known = _labels_before(conversion, manifest, listing, sources, parts) if others else ""
    parts["labels"] = known
    if not known:
        read_labels(listing, rules.labels, reading, scratch)
        parts["labels"] = labels_digest(listing.label_digests)
        if rules.labels.annotations:  # only they say whether lists of splits count
            parts["inputs"] = inputs_digest(listing, settings)
    return Inputs(conversion, manifest, recipe, rules, listing, sources, bases, parts, scratch)


def _appended(
    conversion: Conversion, manifest: Manifest, walked: Walked, listing: Listing, scratch: Path
) -> tuple[Listing, list[str]]:
    """Return the list of the dataset's inputs and the new ones, and the sources of both. Raises
    DatasetError, InputError."""
    request = conversion.request
    refuse_written(conversion.folder.text, manifest)
    before, whole = conversion.previous(manifest), manifest.records is None
    times, given = before.state.mtime_ns, request.roots
    known = Appending(before.files, times, whole, manifest.sources, given, request.labels)
    if listing.side_files:
        raise InputError(
            f"{printable(listing.side_files[0][0])}: labels files name all inputs, and "
            "--append reads new ones alone; use --update"
        )
    known.refuse_idle(walked, listing, request.labels)
    return known.joined(listing, scratch), known.sources


def _labels_before(
    conversion: Conversion,
    manifest: Manifest | None,
    listing: Listing,
    sources: list[str],
    parts: dict[str, str],
) -> str:
    """Return the digest of labels files and annotations that the dataset records, "" if they must
    be read.

    They need not be read if nothing else has changed, and their files have the sizes and times of
    change that they had. Then the notices of the reading are repeated.
    """
    if (
        manifest is None
        or conversion.options.overwrite
        or tuple(sources) != manifest.sources
        or {*differing_parts(manifest.fingerprint_parts, parts)} - {VERSIONS, "labels"}
    ):
        return ""
    conversion.target.fetch_files((UPDATE,))
    state = UpdateState.find(dataset_of(manifest, conversion.folder), manifest.update)
    if state is None or not listing.labels_are(state.labels):
        return ""
    listing.notices += state.labels["notices"]
    return manifest.fingerprint_parts["labels"]


def _complete_recipe(conversion: Conversion, walked: Walked) -> tuple[Recipe, list[str]]:
    """Return the recipe with what the sources decide, and notices of that."""
    request = conversion.request
    given, notices = settle_kind(request.recipe, walked, conversion.engine, request.labels)
    recipe = Recipe.from_json(given, request.files)
    for step in recipe.reading:  # a conversion does none, and only sees that it can be
        if isinstance(step.loaded(), GroupTransform):
            name = step.settings()["target"]
            raise UsageError(f"{name} is a class: put it under [[transform]]")
    if recipe.kind == "image":
        backend.require_one()
    if "store" not in given and recipe.store is not None and recipe.store.name == "jpeg":
        notices = [*notices, notice("encoded-again", store=recipe.store)]
    size = request.options.shard_size
    if size is not None and size < SMALL_SHARD:
        notices = [*notices, notice("small-shards", size=format_bytes(size))]
    return recipe, notices
