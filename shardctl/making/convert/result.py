"""The result of a conversion, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from shardctl.format.counts import Counts, jpeg_costs
from shardctl.format.dataset_tables import DatasetTables
from shardctl.format.manifest import Manifest
from shardctl.format.tables import Reject, count_reasons, failures, read_rejects
from shardctl.images.defaults import KEPT_SHARE
from shardctl.making.convert.conversion import Conversion, Inputs
from shardctl.making.convert.decision import Explanation, explain
from shardctl.making.convert.listener import Changes, Estimate
from shardctl.making.convert.rejects import (
    MANY_REJECTS,
    copy_rejects,
    count_rejects,
)
from shardctl.making.notices import notice
from shardctl.making.plan.listing import Listing
from shardctl.sources.label_table import hash_names, some
from shardctl.system.folders import LocalFolder
from shardctl.system.report import WARNING, in_notebook, lines_in_notebook, marked, rows_in_notebook
from shardctl.system.text import counted, format_bytes, printable

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

    `status` is created, resumed, updated, up-to-date, planned (a dry run), or built (a part, whose
    numbers are about its own shards). `samples_per_s` counts only the samples of this run.
    `reasons` counts the rejects by stage and error, `examples` has one of each. Check `warnings`
    before you use the dataset. `jpeg` counts JPEG images with their original bytes, and how many of
    them take longer to decode. `steps` has the counts of each step of text and tables. `changes`
    says how a dataset was brought up to date, `explanation` is the answer to `explain`.
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
    notices: Sequence[str] = (),
    warnings: Sequence[str] = (),
    labelled: bool = False,
    made: bool = True,
) -> ConvertResult:
    """Return the result of a conversion whose dataset is in place. `labelled` says that its records
    have their labels, `made` that it was made now: else nothing is said again of what its rejects
    are and what the recipe has done."""
    manifest = Manifest.load(folder)
    reasons, examples = dict[str, int](), tuple[Reject, ...]()
    if made or has_some_rejects(manifest):
        reasons, examples = count_reasons(read_rejects(folder))
    counts = manifest.class_counts if labelled else None
    if counts is not None and (missing := manifest.samples - sum(map(sum, counts.values()))) > 0:
        samples = counted(manifest.samples, "sample")
        notices = (*notices, notice("without-label", missing=missing, samples=samples))
    if made:
        notices = (*notices, *cut_objects(manifest), *jpeg_costs(manifest.jpeg, manifest.samples))
    return ConvertResult(
        status=status,
        samples=manifest.samples,
        shards=manifest.shards,
        bytes=manifest.bytes,
        rejected=manifest.rejected,
        seconds=seconds,
        samples_per_s=0.0,
        fingerprint=manifest.fingerprint,
        reasons=reasons if made else {},
        examples=examples if made else (),
        notices=tuple(notices),
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


def cut_objects(manifest: Manifest) -> tuple[str, ...]:
    """Say how many objects the recipe has cut off, and the rule for boxes has dropped."""
    if not manifest.objects or not manifest.objects["cut_off"]:
        return ()
    total = manifest.objects["kept"] + manifest.objects["cut_off"]
    rule = f"keep_objects: {manifest.recipe.get('keep_objects', KEPT_SHARE)}"
    if (boxes := manifest.settings.get("boxes")) is not None:
        rule = f"{rule}, boxes: {boxes}"
    cut, objects = manifest.objects["cut_off"], counted(total, "object")
    return (notice("objects-cut-off", cut=cut, objects=objects, rule=rule),)


def has_some_rejects(manifest: Manifest) -> bool:
    """Return whether a dataset has so many rejects that `warnings_of` may have something to say."""
    return manifest.rejected > manifest.inputs * SOME_FAILURES


def warnings_of(
    manifest: Manifest, reasons: dict[str, int], examples: tuple[Reject, ...]
) -> tuple[str, ...]:
    """Return what should be checked before this dataset is used: whether many inputs are missing
    from it, and why."""
    failed = failures(reasons)
    count = sum(failed.values())
    if count > manifest.inputs * SOME_FAILURES:
        of_all = f"{count:,} of {counted(manifest.inputs, 'input')}"
        what = f"{of_all} ({count / manifest.inputs:.1%}) could not be converted"
        reason = next(iter(failed))
    elif manifest.rejected > manifest.inputs * MANY_REJECTS:
        what = f"{count_rejects(manifest.rejected, manifest.inputs)}, more than half"
        reason = next(iter(reasons))
    else:
        return ()
    example = next(each for each in examples if f"{each.stage}: {each.error}" == reason)
    facts = {"count": reasons[reason], "reason": reason, "key": printable(example.key)}
    return (notice("many-rejects", what=what, **facts, message=printable(example.message)),)


def empty_splits(manifest: Manifest) -> tuple[str, ...]:
    """Say which splits have no samples: a loader of one has nothing to give."""
    empty = [split.name for split in manifest.splits if not split.samples]
    if 0 < len(empty) < len(manifest.splits):
        return (notice("empty-split", names=some(empty)),)
    return ()


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
    left, key = int(np.flatnonzero(hashes == again[0])[0]), ""
    for _, _, keys in stored.blocks_of_keys():
        if 0 <= left < len(keys):
            key = str(keys[left].as_py())
        left -= len(keys)
    are = "1 sample has" if len(again) == 1 else f"{len(again):,} samples have"
    return (notice("repeated-keys", are=are, key=printable(key) or '"" (an empty text)'),)


def explained(conversion: Conversion, inputs: Inputs) -> ConvertResult:
    """Return what differs from the dataset that is there; nothing is written. Raises DatasetError
    if there is none."""
    recipe, listing, manifest = conversion.recipe, inputs.listing, Manifest.load(conversion.folder)
    settings = conversion.request.recorded_settings(recipe)
    return ConvertResult(
        "explained",
        manifest.samples,
        manifest.shards,
        manifest.bytes,
        manifest.rejected,
        conversion.seconds,
        0.0,
        manifest.fingerprint,
        notices=tuple(listing.notices),
        explanation=explain(
            conversion.folder, manifest, inputs.parts, recipe.to_json(), settings, listing
        ),
    )


def finished(
    conversion: Conversion,
    inputs: Inputs,
    status: str,
    made: int | None,
    warnings: tuple[str, ...] = (),
    changes: Changes | None = None,
) -> ConvertResult:
    """Return the result of a dataset that is complete now. This call made `made` of its samples,
    None where it was there before."""
    listing, seconds, copies = inputs.listing, conversion.seconds, conversion.options.copy_rejects
    found = result_of(
        conversion.folder,
        status,
        seconds,
        listing.notices,
        (*listing.warnings, *warnings),
        has_own_labels(listing),
        made is not None,
    )
    copied = 0
    if copies is not None:
        bases = tuple(base.path for base in inputs.bases)
        copied = copy_rejects(conversion.folder, bases, Path(copies))
    return replace(found, samples_per_s=(made or 0) / seconds, copied=copied, changes=changes)
