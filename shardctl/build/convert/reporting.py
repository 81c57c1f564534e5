"""What a conversion reports in the end: that it is explained, planned, up to date, or finished."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shardctl.build.convert.conversion import Conversion
from shardctl.build.convert.estimate import Estimate
from shardctl.build.convert.inputs import Inputs
from shardctl.build.convert.rejects import copy_rejects, refuse_many_rejects
from shardctl.build.convert.result import (
    ConvertResult,
    empty_splits,
    has_own_labels,
    has_some_rejects,
    missing_labels,
    repeated_keys,
    result_of,
    warnings_of_rejects,
)
from shardctl.build.convert.update.changes import Changes
from shardctl.build.plan.fingerprint import VERSIONS, fingerprint, version_changes
from shardctl.format.manifest import Manifest


def explained(conversion: Conversion, inputs: Inputs) -> ConvertResult:
    """Return what differs from the dataset that is there; nothing is written. Raises DatasetError
    if there is none."""
    from shardctl.build.convert.explain import explain  # which most conversions never need

    recipe, listing = conversion.recipe, inputs.listing
    settings = conversion.request.recorded_settings(recipe)
    found = explain(conversion.folder, inputs.parts, recipe.to_json(), settings, listing)
    manifest = Manifest.load(conversion.folder)
    facts = (
        manifest.samples,
        manifest.shards,
        manifest.bytes,
        manifest.rejected,
        conversion.seconds,
        0.0,
    )
    return ConvertResult(
        "explained", *facts, manifest.fingerprint, notices=tuple(listing.notices), explanation=found
    )


def planned(
    conversion: Conversion,
    inputs: Inputs,
    expected: Estimate,
    job: str,
    warnings: tuple[str, ...],
    changes: Changes | None,
) -> ConvertResult:
    """Return what would be done. `job` is the name of its folder."""
    facts = (expected.rows, expected.shards, expected.bytes, 0, conversion.seconds, 0.0, job)
    notices, all_warnings = tuple(inputs.listing.notices), (*inputs.listing.warnings, *warnings)
    return ConvertResult(
        "planned",
        *facts,
        estimate=expected,
        notices=notices,
        warnings=all_warnings,
        changes=changes,
    )


def up_to_date(conversion: Conversion, inputs: Inputs, manifest: Manifest) -> ConvertResult:
    """Return the result where the same dataset is there. Raises TooManyRejectsError, as making it
    would have."""
    refuse_many_rejects(conversion.folder, manifest, conversion.options.max_rejects)
    listing = inputs.listing
    notices = [*listing.notices, *missing_labels(manifest, has_own_labels(listing))]
    if manifest.fingerprint != fingerprint(inputs.parts):
        changes = version_changes(
            manifest.fingerprint_parts.get(VERSIONS, ""), inputs.parts[VERSIONS]
        )
        notices.append(
            f"the dataset was made by other versions ({changes}); --overwrite converts it again "
            "with these"
        )
    facts = (manifest.samples, manifest.shards, manifest.bytes, manifest.rejected)
    if has_some_rejects(manifest):
        conversion.target.fetch_listed_rejects()
    return ConvertResult(
        "up-to-date",
        *facts,
        conversion.seconds,
        0.0,
        manifest.fingerprint,
        copied=_copied(conversion, inputs),
        notices=tuple(notices),
        warnings=(
            *warnings_of_rejects(conversion.folder, manifest),
            *empty_splits(manifest),
            *repeated_keys(conversion.folder, manifest),
            *listing.warnings,
        ),
        jpeg=manifest.jpeg,
        steps=manifest.steps,
    )


def finished(
    conversion: Conversion,
    inputs: Inputs,
    status: str,
    made: int,
    warnings: tuple[str, ...] = (),
    changes: Changes | None = None,
) -> ConvertResult:
    """Return the result of a dataset that is complete now. This call made `made` of its samples."""
    listing, seconds = inputs.listing, conversion.seconds
    all_warnings = (*listing.warnings, *warnings)
    found = result_of(
        conversion.folder,
        status,
        seconds,
        tuple(listing.notices),
        all_warnings,
        has_own_labels(listing),
    )
    return replace(
        found, samples_per_s=made / seconds, copied=_copied(conversion, inputs), changes=changes
    )


def _copied(conversion: Conversion, inputs: Inputs) -> int:
    """Copy the rejected inputs if that was asked for, and return how many."""
    if conversion.options.copy_rejects is None:
        return 0
    folders = tuple(base.path for base in inputs.bases)
    return copy_rejects(conversion.folder, folders, Path(conversion.options.copy_rejects))
