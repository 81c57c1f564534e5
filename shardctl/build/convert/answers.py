"""The answers of a conversion that has nothing to build: it is explained, up to date, or
planned."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from shardctl.build.commit import generations, publish
from shardctl.build.commit.staging import refuse_to_lose, unfinished
from shardctl.build.convert.conversion import Conversion
from shardctl.build.convert.decision import Action
from shardctl.build.convert.inputs import Inputs
from shardctl.build.convert.manifest_writer import changes_of
from shardctl.build.convert.planning import announce, check_space, plan
from shardctl.build.convert.reporting import explained, planned, up_to_date
from shardctl.build.convert.result import ConvertResult
from shardctl.build.convert.situation import begun_jobs, find_situation
from shardctl.errors import BusyError, DatasetError, StorageError
from shardctl.format.manifest import Manifest
from shardctl.format.names import MANIFEST
from shardctl.system.files import write_atomically


def answer(conversion: Conversion, inputs: Inputs) -> ConvertResult | Inputs | None:
    """Return the result where nothing is to be built, else the inputs. Raises the error of a
    refusal.

    None: another process has changed the dataset meanwhile, so that all is to be looked at again.
    """
    if conversion.options.explain:
        return explained(conversion, inputs)
    there = conversion.existing.manifest()
    # no job is looked at yet: it may be another user's
    situation = find_situation(conversion, inputs, there, {})
    if situation is None:
        return None
    if situation.up_to_date is not None:
        return _use_existing(conversion, inputs, situation.up_to_date)
    if not publish.needs_recovery(conversion.folder.root):
        publish.refuse_to_replace(conversion.folder.root, conversion.recipe.files)
    return _plan_only(conversion, inputs, there) if conversion.options.dry_run else inputs


def use_as_it_is(
    conversion: Conversion, inputs: Inputs, manifest: Manifest
) -> ConvertResult | None:
    """Return the result where the dataset of a manifest is there, with all of its files. None: see
    `answer`."""
    try:
        conversion.target.refuse_lost_files(manifest)
    except DatasetError:
        if conversion.existing.is_replaced(manifest):
            return None  # they were files of the dataset before
        raise
    return up_to_date(conversion, inputs, manifest)


def _use_existing(
    conversion: Conversion, inputs: Inputs, manifest: Manifest
) -> ConvertResult | None:
    """Return the result where the dataset of a manifest is the wanted one. None: see `answer`."""
    keep = conversion.options.keep_generations
    if not conversion.options.dry_run:
        _complete_replacement(conversion)
        if keep is not None and keep != manifest.keep:
            manifest = _with_keep(conversion, keep)
    return use_as_it_is(conversion, inputs, manifest)


def _complete_replacement(conversion: Conversion) -> None:
    """Complete what a process has begun that was killed while the dataset took its place, or before
    it released its lease.

    Nothing else is deleted here: this is a check, and the next command that writes sees to what was
    left.

    It stays if another process works on it, or if the folder cannot be written. Who holds the lease
    has seen to it.
    """
    if conversion.held is None and conversion.target.needs_recovery():
        with contextlib.suppress(BusyError, StorageError), conversion.target.writing(None):
            publish.recover(conversion.folder.root)
            generations.settle(conversion.folder.root)


def _with_keep(conversion: Conversion, keep: int) -> Manifest:
    """Have a dataset that is up to date keep so many generations from now on, and return its
    manifest."""
    with conversion.leased() as held:
        manifest = replace(Manifest.load(conversion.folder), keep=keep)
        held.check()
        write_atomically(conversion.folder.path(MANIFEST), manifest.to_json().encode())
        generations.settle(conversion.folder.root)
    return manifest


def _plan_only(
    conversion: Conversion, inputs: Inputs, there: Manifest | None
) -> ConvertResult | None:
    """Return what would be done. Raises the errors of the real conversion before it starts to
    write. None: see `answer`."""
    conversion.target.check_writable()
    situation = find_situation(conversion, inputs, there, begun_jobs(conversion, inputs))
    if situation is None:
        return None
    decision, folder = situation.decision, conversion.staging.path(situation.decision.job)
    if not conversion.options.overwrite and not decision.follows:
        refuse_to_lose(conversion.staging, folder, inputs.parts, conversion.recipe)
    job = unfinished(folder, inputs.bases, conversion.recipe)
    if decision.action is Action.RESUME and job is not None:
        return planned(
            conversion,
            inputs,
            announce(conversion, job, inputs.listing),
            decision.job,
            (),
            changes_of(job),
        )
    found = plan(conversion, inputs, situation.before, inputs.scratch, all_types=False)
    expected = announce(conversion, found.job, found.inputs.listing)
    check_space(expected, conversion.folder)
    return planned(
        conversion, found.inputs, expected, decision.job, found.warnings, changes_of(found.job)
    )
