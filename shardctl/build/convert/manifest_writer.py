"""The end of a conversion, once all shards are built: what the manifest says of it, and the dataset
takes its place."""

from __future__ import annotations

import datetime
import platform
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.build.commit.staging import clear_partial_files
from shardctl.build.convert.conversion import Conversion
from shardctl.build.convert.filled_shards import Filled, without_empty
from shardctl.build.convert.inputs import Inputs
from shardctl.build.convert.table_writer import TableWriter, WrittenTables
from shardctl.build.convert.targets.base import Target
from shardctl.build.convert.update.changes import Changes
from shardctl.build.convert.update.known_records import still_pruned
from shardctl.build.convert.update.outcomes import Outcomes
from shardctl.build.convert.update.previous import PreviousDataset
from shardctl.build.plan.fingerprint import fingerprint
from shardctl.build.shards.dataset_job import DatasetJob
from shardctl.build.shards.job import NEW_FOLDER
from shardctl.build.shards.marker import ShardMarker
from shardctl.format.manifest import Manifest
from shardctl.format.names import PLANNED
from shardctl.format.tables import ShardTable
from shardctl.format.update_state import NOTHING_PRUNED
from shardctl.images.codecs import backend
from shardctl.system.folders import LocalFolder
from shardctl.system.progress import Report
from shardctl.system.text import counted
from shardctl.transforms.recipe import Recipe
from shardctl.version import __version__


@dataclass(frozen=True)
class ManifestFacts:
    """What the manifest says of a conversion beside what its job knows.

    `settings` are those that are recorded, `sources` the absolute paths. `keep` is the number of
    generations that are kept before this one, `appends` says that an update only adds inputs.
    `environment` are the versions of the libraries on which values may depend. `seconds` is the
    time that all of it took, None if that is not known.
    """

    settings: dict[str, Any]
    sources: tuple[str, ...]
    keep: int
    appends: bool
    environment: dict[str, str]
    seconds: float | None = None


def manifest_facts(
    conversion: Conversion, inputs: Inputs, before: PreviousDataset | None, seconds: float | None
) -> ManifestFacts:
    """Return what the manifest says of a conversion beside what its job knows. `seconds` are those
    that all of it took.

    As many generations are kept as of the dataset `before`, if nothing else is said.
    """
    options, keep = conversion.options, 0 if before is None else before.manifest.keep
    return ManifestFacts(
        settings=conversion.request.recorded_settings(conversion.recipe),
        sources=tuple(inputs.sources),
        keep=keep if options.keep_generations is None else options.keep_generations,
        appends=options.append,
        environment=_environment(conversion.recipe),
        seconds=None if seconds is None else round(seconds, 3),
    )


def write_dataset(
    job: DatasetJob,
    closing: ManifestFacts,
    before: PreviousDataset | None,
    target: Target,
    report: Report = lambda done, total: None,
) -> tuple[str, ...]:
    """Complete the new dataset in the folder of a job, and return notices for the user. All shards
    are built.

    The job brings the dataset `before` up to date, which is at `target`. `report` gets the number
    of joined shards. Raises TooManyRejectsError if not one input was converted, InputError if there
    was none.
    """
    clear_partial_files(job)
    target.fetch_done(job, np.ones(job.shards, bool))
    target.fetch_rejects(job)
    outcomes = Outcomes(job, before)
    target.keep(outcomes)
    changes = changes_of(job)
    shards = without_empty(outcomes) if changes is None or changes.anew else outcomes
    if isinstance(shards, Filled):
        closing = replace(closing, settings={**closing.settings, PLANNED: shards.planned})
    pruned = still_pruned(job, before) if before is not None else NOTHING_PRUNED
    given = {"file_states": job.files, "beside": job.lineage.beside, "pruned": pruned}

    first_frames = 0

    def done(shard: int) -> ShardMarker:
        nonlocal first_frames
        report(shard, shards.job.shards)
        found = shards.done(shard)
        first_frames += found.first_frames
        return found

    commit = TableWriter(shards.job, closing.settings, done, shards.lines, **given)
    commit.run(lambda facts: _manifest(shards.job, closing, before, facts, target.base(job)))
    if not first_frames:
        return ()
    advice = "" if job.fields is not None else "; --frames all takes all"
    return (
        f"{counted(first_frames, 'image')} with several frames or pages: the first is "
        f"taken{advice}",
    )


def leave_out_others(job: DatasetJob, target: Target) -> None:
    """Take away the shards of a job that its dataset, which is complete in its folder, leaves out.

    To be done before that takes its target, and not before it is complete: until then whoever goes
    on needs all of them.
    """
    there = ShardTable(LocalFolder(job.folder / NEW_FOLDER)).names
    if len(there) < job.shards:
        target.leave_out(
            job, sorted({job.place(shard).name for shard in range(job.shards)} - set(there))
        )


def changes_of(job: DatasetJob) -> Changes | None:
    """Return what a job changes in the dataset that is there; None if there is none."""
    return None if job.lineage.changes is None else Changes(**job.lineage.changes)


def _manifest(
    job: DatasetJob,
    closing: ManifestFacts,
    before: PreviousDataset | None,
    facts: WrittenTables,
    base: str,
) -> Manifest:
    made = Manifest(
        kind=job.recipe.kind,
        samples=facts.samples,
        shards=job.shards,
        bytes=facts.bytes,
        inputs=facts.inputs,
        rejected=facts.rejected,
        splits=facts.splits,
        schema=tuple((f.name, str(f.type)) for f in job.layout.columns),
        fields=facts.fields,
        recipe=job.recipe.to_json(),
        settings=closing.settings,
        fingerprint=fingerprint(job.lineage.parts),
        fingerprint_parts=job.lineage.parts,
        sources=closing.sources,
        files=facts.files,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        shardctl_version=__version__,
        seconds=closing.seconds,
        class_counts=facts.class_counts,
        objects=facts.objects,
        jpeg=facts.jpeg,
        steps=facts.steps,
        update=facts.update,
        environment=closing.environment,
        records=job.records_read,
        keep=closing.keep,
        base=base,
    )
    if before is None:
        return made.with_generation(None, "convert", len(job.files), 0, 0)
    changes = changes_of(job)
    numbers = (
        (changes.added, changes.removed, changes.changed) if changes is not None else (0, 0, 0)
    )
    return made.with_generation(
        before.manifest, "append" if closing.appends else "update", *numbers
    )


def _environment(recipe: Recipe) -> dict[str, str]:
    """Return the versions of the libraries that make the dataset and on which its values may
    depend."""
    versions = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pyarrow": pa.__version__,
    }
    if recipe.kind == "image":
        versions |= {"imaging": backend.require_one(), "libraries": ", ".join(backend.libraries())}
    of_steps = (
        version.rpartition(" ") for step in recipe.transforms for version in step.versions()
    )
    return {**versions, **{name: version for name, _, version in of_steps}}
