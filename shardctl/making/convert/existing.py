"""Where the wanted dataset is there already: nothing is built."""

from __future__ import annotations

import contextlib

from shardctl.errors import BusyError, DatasetError, StorageError
from shardctl.format.manifest import Manifest
from shardctl.making.commit.commit import sweep, upgrade_format_2
from shardctl.making.commit.jobs import has_made
from shardctl.making.convert.conversion import Conversion, Inputs
from shardctl.making.convert.rejects import refuse_many_rejects
from shardctl.making.convert.result import ConvertResult, finished, has_some_rejects
from shardctl.making.plan.fingerprint import VERSIONS, fingerprint, version_changes


def use_existing(inputs: Inputs) -> ConvertResult:
    """Return the result where the wanted dataset is there, with all of its files. Raises
    TooManyRejectsError, as making it would have."""
    conversion, manifest = inputs.conversion, inputs.manifest
    assert manifest is not None, "there is nothing to do"
    options, target = conversion.options, conversion.target
    if options.update or options.append:
        conversion.previous(manifest)  # a damaged one is refused
    if not options.dry_run:
        manifest = _keeping_as_asked(conversion, manifest)
    with conversion.staying(manifest):
        target.refuse_lost_files(manifest)
    refuse_many_rejects(conversion.folder, manifest, options.max_rejects)
    if manifest.fingerprint != fingerprint(inputs.fingerprint_parts):
        before, now = (
            of.get(VERSIONS, "") for of in (manifest.fingerprint_parts, inputs.fingerprint_parts)
        )
        inputs.listing.note("other-versions", changes=version_changes(before, now))
    if has_some_rejects(manifest):
        target.fetch_dataset()
    return finished(inputs, "up-to-date", None, inputs.listing)


def _keeping_as_asked(conversion: Conversion, manifest: Manifest) -> Manifest:
    """Have the dataset keep as many generations as was asked for, and sweep what a process has left
    that was killed after its commit. Return its manifest.

    Nothing else is deleted: this is a check. It stays if another process works on the dataset, or
    if that cannot be written.
    """
    keep = conversion.options.keep_generations
    if keep is None or keep == manifest.keep:
        target = conversion.target
        # this user may not read what another one has left there, either
        with contextlib.suppress(BusyError, StorageError, DatasetError):
            left = any(has_made(job, manifest) for job in target.jobs()) or target.is_leased()
            if left and conversion.held is None:
                with target.lease(None) as held:
                    sweep(target, held)
        return manifest
    with conversion.leased() as held:
        upgrade_format_2(conversion.target, held)
        manifest = Manifest.load(conversion.folder).keeping(keep)
        conversion.target.replace_manifest(manifest.to_json().encode(), held)
        sweep(conversion.target, held)
    return manifest
