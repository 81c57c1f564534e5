"""The inputs of a conversion: found and named, before any of them is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shardctl.build.convert.conversion import Conversion
from shardctl.build.convert.update.append import Appending
from shardctl.build.convert.update.compatibility import why_written
from shardctl.build.plan.fingerprint import fingerprint_parts
from shardctl.build.plan.listing import KnownFiles, Listing, list_files
from shardctl.build.shards.engines import registry
from shardctl.build.shards.planned import Root
from shardctl.sources.kinds import KINDS
from shardctl.sources.roots import SourceRoot


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
    of = Root.of if registry.is_here(conversion.options.engine) else Root.anywhere
    return tuple(of(root.base) for root in conversion.request.roots)


def _listed(
    conversion: Conversion, roots: tuple[SourceRoot, ...], path: Path, known: KnownFiles | None
) -> Listing:
    recipe, rules = conversion.recipe, conversion.rules
    kind, said = KINDS[recipe.kind], conversion.listener.listing
    listing = list_files(roots, kind, recipe.reading, rules.labels, path, said, known)
    listing.notices[:0] = conversion.notices
    return listing
