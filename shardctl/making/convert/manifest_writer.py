"""The end of a conversion, once all shards are built: what the manifest says of it, and the dataset
takes its place."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.format.counts import Counts, add_counts
from shardctl.format.manifest import Manifest
from shardctl.format.names import PLANNED
from shardctl.format.tables import ShardTable
from shardctl.format.update_state import NOTHING_PRUNED
from shardctl.images.codecs import backend
from shardctl.making.commit.staging import clear_partial_files
from shardctl.making.convert.conversion import Conversion, Inputs
from shardctl.making.convert.listener import Changes
from shardctl.making.convert.previous import PreviousDataset
from shardctl.making.convert.rejects import still_pruned
from shardctl.making.convert.table_writer import TableWriter
from shardctl.making.convert.targets import Target
from shardctl.making.notices import notice
from shardctl.making.plan.fingerprint import fingerprint
from shardctl.making.plan.listing import Flags, Numbers
from shardctl.making.plan.plan import NOT_KEPT
from shardctl.making.shards.job import NEW_FOLDER, DatasetJob
from shardctl.making.shards.marker import ShardMarker, read_marker, rows_made
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
    if before is not None:
        target.keep(job, before)
    changes = changes_of(job)
    shards = Outcomes.of(job, before, with_empty=changes is not None and not changes.anew)
    if shards.job is not job:
        planned = {split.name: split.shards for split in job.splits}
        closing = replace(closing, settings={**closing.settings, PLANNED: planned})
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
    commit.run(lambda facts: _manifest(shards.job, closing, before, facts))
    if not first_frames:
        return ()
    advice = "" if job.fields is not None else "; --frames all takes all"
    images = counted(first_frames, "image")
    return (notice("several-frames", images=images, advice=advice),)


def leave_out_others(job: DatasetJob, target: Target) -> None:
    """Take away the shards of a job that its dataset, which is complete in its folder, leaves out.

    To be done before that takes its target, and not before it is complete: until then whoever goes
    on needs all of them.
    """
    there = ShardTable(LocalFolder(job.folder / NEW_FOLDER)).names
    if len(there) < job.shards:
        target.leave_out(
            job, sorted({job.planned_shard(shard).name for shard in range(job.shards)} - set(there))
        )


def changes_of(job: DatasetJob) -> Changes | None:
    """Return what a job changes in the dataset that is there; None if there is none."""
    return None if job.lineage.changes is None else Changes(**job.lineage.changes)


def _manifest(
    job: DatasetJob, closing: ManifestFacts, before: PreviousDataset | None, facts: dict[str, Any]
) -> Manifest:
    made = Manifest(
        **facts,
        kind=job.recipe.kind,
        shards=job.shards,
        schema=tuple((f.name, str(f.type)) for f in job.layout.columns),
        recipe=job.recipe.to_json(),
        settings=closing.settings,
        fingerprint=fingerprint(job.lineage.parts),
        fingerprint_parts=job.lineage.parts,
        sources=closing.sources,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        shardctl_version=__version__,
        seconds=closing.seconds,
        environment=closing.environment,
        records=job.records_read,
        keep=closing.keep,
        base=job.base,
    )
    if before is None:
        return made.with_generation(None, "convert", len(job.files), 0, 0)
    changes, what = changes_of(job), "append" if closing.appends else "update"
    numbers = (
        (changes.added, changes.removed, changes.changed) if changes is not None else (0, 0, 0)
    )
    return made.with_generation(before.manifest, what, *numbers)


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
    of_steps = (version.rpartition(" ") for step in recipe.transform for version in step.versions())
    return {**versions, **{name: version for name, _, version in of_steps}}


@dataclass(frozen=True)
class Outcomes:
    """What became of the shards of a job that is done: of those that are kept as the dataset
    `before` records it, else as their markers do.

    Shards of which every input was rejected are left out: the shards beside them take their units,
    and keep their names, and so their bytes. `job` has the others alone. Each stands for the shards
    of `built` from its number in `starts` on, up to that of the next: (shards + 1,) int64. Of these
    it is the one in `chosen`: (shards,) int64.
    """

    job: DatasetJob
    built: DatasetJob
    before: PreviousDataset | None
    starts: Numbers
    chosen: Numbers

    @classmethod
    def of(cls, job: DatasetJob, before: PreviousDataset | None, with_empty: bool) -> Outcomes:
        """Return what became of all shards, or of those with samples; a split without any keeps its
        first one.

        Where models are called with several records of a shard, all stay: other units before these
        would make other calls.
        """
        filled = np.ones(job.shards, bool)
        if not with_empty and not job.recipe.models:
            made = (rows_made(job.marker_path(shard)) > 0 for shard in range(job.shards))
            filled = np.fromiter(made, bool, job.shards)
        if filled.all():
            return cls(job, job, before, np.arange(job.shards + 1), np.arange(job.shards))
        begins, chosen = divided([split.shards for split in job.splits], filled)
        return cls(job.with_shards(begins[:-1], chosen), job, before, begins, chosen)

    def _members(self, shard: int) -> range:
        return range(int(self.starts[shard]), int(self.starts[shard + 1]))

    def _made(self, shard: int) -> ShardMarker:
        """Return what became of a shard that was built, or kept."""
        number = int(self.built.kept[shard])
        if self.before is None or number == NOT_KEPT:
            return read_marker(self.built.marker_path(shard))
        return self.before.done(number)

    def done(self, shard: int) -> ShardMarker:
        """Return what became of a shard, and of the units that it takes over."""
        members, chosen = self._members(shard), int(self.chosen[shard])
        own = self._made(chosen)
        if len(members) == 1:
            return own
        made = [own if member == chosen else self._made(member) for member in members]
        units, steps = [], list[Counts]()
        for member, each in zip(members, made, strict=True):
            rows = np.full(len(each.units), 0 if member < chosen else own.facts.rows)
            place = each.units.schema.field(0)
            units.append(
                each.units if each is own else each.units.set_column(0, place, pa.array(rows))
            )
            steps = add_counts(steps, each.steps)
        return replace(
            own,
            inputs=sum(each.inputs for each in made),
            rejected=sum(each.rejected for each in made),
            units=pa.concat_tables(units),
            steps=tuple(steps),
        )

    def lines(self, shard: int, done: ShardMarker) -> Iterator[bytes]:
        """Yield the lines of the rejects of a shard."""
        members = self._members(shard)
        for member in members:
            number = int(self.built.kept[member])
            if self.before is not None and number != NOT_KEPT:
                yield from self.before.reject_lines(number)
            elif (done if len(members) == 1 else self._made(member)).rejected:
                with open(self.built.rejects_path(member), "rb") as file:
                    yield from file


def divided(planned: Sequence[int], filled: Flags) -> tuple[Numbers, Numbers]:
    """Return `starts` and `chosen` of an Outcomes, of splits with so many shards each, of which some
    are filled: (shards,).

    A shard without samples goes to the one before it, or to the first one of its split that has
    some.
    """
    of_split = np.repeat(np.arange(len(planned)), planned).tolist()
    starts, chosen = list[int](), list[int]()
    for shard, (split, has_samples) in enumerate(zip(of_split, filled.tolist(), strict=True)):
        if not starts or split != of_split[starts[-1]] or (has_samples and filled[chosen[-1]]):
            starts.append(shard)
            chosen.append(shard)
        elif has_samples:
            chosen[-1] = shard
    return np.array([*starts, len(filled)], np.int64), np.array(chosen, np.int64)
