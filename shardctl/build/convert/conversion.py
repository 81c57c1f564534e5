"""A conversion whose kind of samples is settled: what was requested, and who does it, where, since
when."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from shardctl.build.convert.decision import why_written
from shardctl.build.convert.listener import Listener
from shardctl.build.convert.previous import PreviousDataset
from shardctl.build.convert.request import ConvertRequest
from shardctl.build.convert.sample_kind import settle_kind
from shardctl.build.convert.targets import Target, WriteLease
from shardctl.build.convert.unchanged import find_changed, find_unchanged
from shardctl.build.options import Options
from shardctl.build.paths import check_sources
from shardctl.build.plan.fingerprint import fingerprint_parts, inputs_digest, parts_without_sources
from shardctl.build.plan.labels import PlanRules
from shardctl.build.plan.listing import CHUNK_ROWS, KnownFiles, LabelRule, Listing, list_files
from shardctl.build.shards import engines
from shardctl.build.shards.engines.local import Engine
from shardctl.build.shards.planned import Root
from shardctl.errors import DatasetError, InputError
from shardctl.format.manifest import Manifest
from shardctl.format.names import CHECKSUMS, MANIFEST, STAGING
from shardctl.images.codecs import backend
from shardctl.sources.files import list_all
from shardctl.sources.kinds import KINDS, Form
from shardctl.sources.roots import SourceRoot, folder_of
from shardctl.sources.walk import FoundFile, is_hidden, suffix_of, walk
from shardctl.system.folders import LocalFolder
from shardctl.system.locations import path_below, within
from shardctl.system.text import printable
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

        return self.target.lease(wait if self.options.if_running == "wait" else None)


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


@dataclass(frozen=True)
class Inputs:
    """The inputs as they were listed. `roots` are the sources, `bases` the folders that paths are
    relative to.

    `parts` are those of the fingerprint. `existing` is the digest of the dataset that was at the
    target when the inputs were listed, "" if there was none. `scratch` is a folder for what a plan
    needs.
    """

    listing: Listing
    roots: tuple[SourceRoot, ...]
    bases: tuple[Root, ...]
    parts: dict[str, str]
    existing: str
    scratch: Path

    @property
    def sources(self) -> list[str]:
        """The absolute paths of the sources, or their URLs."""
        return [root.recorded for root in self.roots]


def discover(conversion: Conversion, scratch: Path) -> Inputs | None:
    """List the inputs; None if another dataset has taken the place of the one that inputs are
    appended to.

    `scratch` is a folder for the list. Raises InputError, UsageError, StoreError.
    """
    options = conversion.options
    if options.update or options.append or options.explain or options.copy_rejects is not None:
        conversion.target.fetch_dataset()
    if options.overwrite or not conversion.existing.is_there():
        # a second process imports the modules of the workers while the inputs are listed
        conversion.engine.prepare()
    existing, roots, known = conversion.existing.digest(), conversion.request.roots, None
    bases = _bases(conversion)
    if options.append and (manifest := conversion.existing.manifest()) is not None:
        if (written := why_written(conversion.folder.text, manifest)) is not None:
            raise written
        before = conversion.existing.before(manifest)
        if before is None:
            return None
        appending = Appending(before, roots, conversion.rules.labels)
        roots, bases, known = tuple(appending.roots), appending.bases, appending.known()
    as_before = conversion.known
    if as_before is not None and as_before.existing == existing:
        return Inputs(as_before.listing.fresh(), roots, bases, as_before.parts, existing, scratch)
    listing = _listed(conversion, roots, scratch / "listing.arrow", known)
    parts = fingerprint_parts(
        listing, conversion.recipe, conversion.request.recorded_settings(conversion.recipe)
    )
    return Inputs(listing, roots, bases, parts, existing, scratch)


def _bases(conversion: Conversion) -> tuple[Root, ...]:
    """Return the folders of the sources. Their devices count where the workers are on this
    machine."""
    of = Root.of if engines.is_here(conversion.options.engine) else Root.anywhere
    return tuple(of(root.base) for root in conversion.request.roots)


def _listed(
    conversion: Conversion, roots: tuple[SourceRoot, ...], path: Path, known: KnownFiles | None
) -> Listing:
    recipe, rules = conversion.recipe, conversion.rules
    kind, said = KINDS[recipe.kind], conversion.listener.listing
    listing = list_files(roots, kind, recipe.reading, rules.labels, path, said, known)
    listing.notices[:0] = conversion.notices
    return listing


Place = tuple[int, str]
"""Where a source lies in the sources of the dataset: the number of one of these, and the path below
it, "" for all of it."""


class Appending:
    """Sources of which the inputs are added to a dataset. Raises InputError for one whose labels
    are in files."""

    def __init__(
        self, before: PreviousDataset, given: Sequence[SourceRoot], rule: LabelRule
    ) -> None:
        self._before, self._given = before, given
        if rule.mode == "file" or rule.annotations or "columns" in before.files.column_names:
            raise InputError(
                "--append cannot tell what labels files and annotations say of inputs that it does "
                "not look at; use --update"
            )
        recorded = list(before.manifest.sources)
        self._places: list[Place] = []
        for root in given:
            place = root.recorded
            lies = ((number, path_below(place, source)) for number, source in enumerate(recorded))
            found, below = next(
                ((number, path) for number, path in lies if path is not None), (len(recorded), "")
            )
            if found == len(recorded):
                recorded.append(place)
            if any(map(is_hidden, filter(None, below.split("/")))):
                raise InputError(
                    f"{printable(root.text)}: is in a hidden folder of "
                    f"{printable(recorded[found])}; give it another name"
                )
            self._places.append((found, below))
        self.sources = recorded
        """The sources of the dataset afterwards: those that it has, and the given ones that are in
        none of these."""

    @property
    def roots(self) -> tuple[SourceRoot, ...]:
        """The same sources. Some may be gone: nothing is read of those that were not given."""
        return tuple(map(SourceRoot, self.sources))

    @property
    def bases(self) -> tuple[Root, ...]:
        """The folders that paths of files are relative to."""
        return tuple(map(Root.anywhere, map(folder_of, self.sources)))

    def known(self) -> KnownFiles:
        """Return the files of the dataset, and the walk that finds new ones."""
        form = Form.ONE if self._before.manifest.records is None else Form.MANY
        return KnownFiles(form, self._recorded, self._walk)

    def _recorded(self) -> Iterator[FoundFile]:
        table, times, first = self._before.files, self._before.state.mtime_ns, 0
        begins = list(map(within, self.sources))
        for batch in table.select(["path", "root", "size"]).to_batches(max_chunksize=CHUNK_ROWS):
            columns = (batch.column(name).to_pylist() for name in ("path", "root", "size"))
            for number, (path, root, size) in enumerate(zip(*columns, strict=True), first):
                folder, _, name = path.rpartition("/")
                opened = f"{begins[root]}{path}"
                yield FoundFile(
                    root, path, opened, folder, suffix_of(name), size, int(times[number]), None
                )
            first += batch.num_rows

    def _walk(self, notice: Callable[[str], None]) -> Iterator[FoundFile]:
        """Yield the files in the given sources, by their paths in the sources of the dataset, in
        the order of these."""
        for place, root in sorted(zip(self._places, self._given, strict=True)):
            number, below = place
            if not root.is_folder and below:
                folder, _, _ = below.rpartition("/")
                yield from (
                    file._replace(root=number, path=below, folder=folder)
                    for file in walk([root], notice)
                )
                continue
            for file in walk([root], notice):
                folder = "/".join(part for part in (below, file.folder) if part)
                path = f"{below}/{file.path}" if below else file.path
                yield file._replace(root=number, path=path, folder=folder)


def refuse_anew(why: str, folder: LocalFolder) -> InputError:
    """Return the error where an addition would change all shards."""
    return InputError(
        f"{folder.shown()}: --append only adds shards, but these inputs would change all shards, "
        f"since {why}; use --update"
    )
