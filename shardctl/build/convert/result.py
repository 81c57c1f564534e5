"""The result of a conversion, and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shardctl.build.convert.conversion import Conversion, Inputs
from shardctl.build.convert.listener import Changes, Estimate
from shardctl.build.convert.rejects import (
    MANY_REJECTS,
    copy_rejects,
    count_rejects,
    refuse_many_rejects,
)
from shardctl.build.plan.fingerprint import VERSIONS, fingerprint, version_changes
from shardctl.build.plan.listing import Listing
from shardctl.format.counts import Counts, jpeg_costs
from shardctl.format.dataset_tables import DatasetTables
from shardctl.format.manifest import Manifest
from shardctl.format.names import REJECTS
from shardctl.format.tables import Reject, count_reasons, failures, read_rejects
from shardctl.images.defaults import KEPT_SHARE
from shardctl.sources.label_table import hash_names, some
from shardctl.system.folders import LocalFolder
from shardctl.system.html import WARNING, in_notebook, lines_in_notebook, marked, rows_in_notebook
from shardctl.system.text import counted, format_bytes, printable

if TYPE_CHECKING:
    from shardctl.build.convert.decision import Explanation


NO_KEYS = np.zeros(0, np.uint64)

SOME_FAILURES = 0.05
"""Share of inputs that could not be converted above which there is a warning."""


@dataclass(frozen=True)
class PartDone:
    """A part of a conversion that is built: which one, how many shards of the whole are done, and
    how many there are."""

    name: str
    shards_done: int
    shards: int


@dataclass(frozen=True)
class ConvertResult:
    """The result of a conversion.

    `status` is created, resumed, updated, up-to-date, planned (a dry run), or built (a part). The
    numbers of a part are about its own shards, and `part` names it.

    `samples`, `shards` and `bytes` are about the whole dataset. `samples_per_s` counts only the
    samples that this run made, without an earlier run that it resumed. `reasons` counts the rejects
    by stage and error, `examples` has one of each; `copied` is the number of rejected inputs that
    were copied. `notices` are decisions and other information; `warnings` should be checked before
    the dataset is used. `estimate` is the estimate of a dry run. `jpeg` counts JPEG images with
    kept original bytes, and how many of them take longer to decode; else it is None. `steps` counts
    the records that each step of text and tables changed or rejected; None without such steps.
    `changes` says how a dataset was brought up to date, None for a new one. `explanation` is the
    answer to `explain`.
    """

    status: str
    samples: int
    shards: int
    bytes: int
    rejected: int
    seconds: float
    samples_per_s: float
    fingerprint: str
    reasons: dict[str, int] = field(default_factory=dict)
    examples: tuple[Reject, ...] = ()
    estimate: Estimate | None = None
    copied: int = 0
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    jpeg: dict[str, int] | None = None
    steps: list[Counts] | None = None
    changes: Changes | None = None
    explanation: Explanation | None = None
    part: PartDone | None = None

    def __repr__(self) -> str:
        """Return what was made, for display."""
        return f"<shardctl.ConvertResult {self._line}>"

    def _repr_html_(self) -> str:
        """Return what was made, warnings and notices, and why inputs were rejected, for a
        notebook."""
        reasons = [
            (count, reason, each.key, each.message)
            for (reason, count), each in zip(self.reasons.items(), self.examples, strict=True)
        ]
        return in_notebook(
            self._line,
            lines_in_notebook(self.warnings, marked("warning", WARNING)),
            lines_in_notebook(self.notices),
            rows_in_notebook("rejected inputs", reasons, ("inputs", "reason", "for instance", "")),
        )

    @property
    def _line(self) -> str:
        size = (
            f"{counted(self.samples, 'sample')} in {counted(self.shards, 'shard')}, "
            f"{format_bytes(self.bytes)}"
        )
        part = f" {self.part.name}" if self.part is not None else ""
        warned = f"; {counted(len(self.warnings), 'warning')} in .warnings" if self.warnings else ""
        return (
            f"{self.status}{part}: {size}, in {self.seconds:.1f} s; "
            f"{counted(self.rejected, 'input')} rejected{warned}"
        )


def result_of(
    folder: LocalFolder,
    status: str,
    seconds: float,
    notices: tuple[str, ...] = (),
    warnings: tuple[str, ...] = (),
    labelled: bool = False,
) -> ConvertResult:
    """Return the result of a conversion whose dataset is in place. `labelled` says that its records
    have their labels."""
    manifest = Manifest.load(folder)
    reasons, examples = count_reasons(read_rejects(folder))
    return ConvertResult(
        status=status,
        samples=manifest.samples,
        shards=manifest.shards,
        bytes=manifest.bytes,
        rejected=manifest.rejected,
        seconds=seconds,
        samples_per_s=0.0,
        fingerprint=manifest.fingerprint,
        reasons=reasons,
        examples=examples,
        notices=(
            *notices,
            *missing_labels(manifest, labelled),
            *cut_objects(manifest),
            *costly_jpegs(manifest),
        ),
        warnings=(
            *warnings_of(manifest, reasons, examples),
            *empty_splits(manifest),
            *repeated_keys(folder, manifest),
            *warnings,
        ),
        jpeg=manifest.jpeg,
        steps=manifest.steps,
    )


def has_own_labels(listing: Listing) -> bool:
    """Return whether the records of the inputs may have labels in themselves."""
    return not listing.whole and listing.side is None


def missing_labels(manifest: Manifest, labelled: bool) -> tuple[str, ...]:
    """Say how many samples have no class, where records have the labels: this is known only when
    all of them were read."""
    if manifest.class_counts is None or not labelled:
        return ()
    missing = manifest.samples - sum(sum(counts) for counts in manifest.class_counts.values())
    return (
        (f"{missing:,} of {counted(manifest.samples, 'sample')} without a label",)
        if missing > 0
        else ()
    )


def cut_objects(manifest: Manifest) -> tuple[str, ...]:
    """Say how many objects the recipe has cut off, and the rule for boxes has dropped."""
    if not manifest.objects or not manifest.objects["cut_off"]:
        return ()
    total = manifest.objects["kept"] + manifest.objects["cut_off"]
    rule = f"keep_objects: {manifest.recipe.get('keep_objects', KEPT_SHARE)}"
    if (boxes := manifest.settings.get("boxes")) is not None:
        rule = f"{rule}, boxes: {boxes}"
    return (f"{manifest.objects['cut_off']:,} of {counted(total, 'object')} were cut off ({rule})",)


def costly_jpegs(manifest: Manifest) -> tuple[str, ...]:
    """Say how many images that are kept as they are take longer to decode than they need."""
    return jpeg_costs(manifest.jpeg, manifest.samples)


def has_some_rejects(manifest: Manifest) -> bool:
    """Return whether a dataset has so many rejects that `warnings_of_rejects` reads them."""
    return manifest.rejected > manifest.inputs * SOME_FAILURES


def warnings_of_rejects(folder: LocalFolder, manifest: Manifest) -> tuple[str, ...]:
    """Return what `warnings_of` does for the dataset in a folder. Its rejects are read only where
    there are many."""
    if not has_some_rejects(manifest):
        return ()
    return warnings_of(manifest, *count_reasons(read_rejects(folder)))


def warnings_of(
    manifest: Manifest, reasons: dict[str, int], examples: tuple[Reject, ...]
) -> tuple[str, ...]:
    """Return what should be checked before this dataset is used: whether many inputs are missing
    from it, and why."""
    failed = failures(reasons)
    count = sum(failed.values())
    if count > manifest.inputs * SOME_FAILURES:
        what = (
            f"{count:,} of {counted(manifest.inputs, 'input')} ({count / manifest.inputs:.1%}) "
            "could not be converted"
        )
        reason = next(iter(failed))
    elif manifest.rejected > manifest.inputs * MANY_REJECTS:
        what, reason = (
            f"{count_rejects(manifest.rejected, manifest.inputs)}, more than half",
            next(iter(reasons)),
        )
    else:
        return ()
    example = next(each for each in examples if f"{each.stage}: {each.error}" == reason)
    return (
        f"{what}. Most frequent ({reasons[reason]:,}): {reason}, for instance "
        f"{printable(example.key)}:"
        f" {printable(example.message)}. {REJECTS} of the dataset lists all of them; --max-rejects "
        "5% makes this an error",
    )


def empty_splits(manifest: Manifest) -> tuple[str, ...]:
    """Say which splits have no samples: a loader of one has nothing to give."""
    empty = [split.name for split in manifest.splits if not split.samples]
    if not empty or len(empty) == len(manifest.splits):
        return ()
    return (f"no sample is in the split {some(empty)}",)


def repeated_keys(folder: LocalFolder, manifest: Manifest) -> tuple[str, ...]:
    """Say how many keys are there more than once, where they are values of a field. Of each 8 bytes
    are in memory.

    Nothing is said of a dataset on an object store: all of it would have to be read again.
    """
    if manifest.base or not manifest.has_own_keys or "variant" in dict(manifest.schema):
        return ()
    stored = DatasetTables(folder)
    hashes = np.concatenate(
        [NO_KEYS, *(hash_names(keys.to_pylist()) for _, _, keys in stored.blocks_of_keys())]
    )
    ordered = np.sort(hashes)
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(again):
        return ()
    key = _key_number(stored, int(np.flatnonzero(hashes == again[0])[0]))
    are = "1 sample has the key" if len(again) == 1 else f"{len(again):,} samples have the key"
    shown = printable(key) or '"" (an empty text)'
    return (
        f"{are} of another one, for instance {shown}; --key-field is to name a field with "
        "different values",
    )


def _key_number(stored: DatasetTables, number: int) -> str:
    """Return the key of a sample, by its number in the dataset."""
    left = number
    for _, _, keys in stored.blocks_of_keys():
        if left < len(keys):
            return str(keys[left].as_py())
        left -= len(keys)
    raise IndexError(f"no sample {number}")


def explained(conversion: Conversion, inputs: Inputs) -> ConvertResult:
    """Return what differs from the dataset that is there; nothing is written. Raises DatasetError
    if there is none."""
    from shardctl.build.convert.decision import explain  # which most conversions never need

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
