"""The end of a conversion, once all shards are built: the tables of the dataset and its manifest
are made of the markers of the shards."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, TooManyRejectsError
from shardctl.format.arrays import Bools, Numbers
from shardctl.format.counts import Counts, JpegRecord, add_counts, joined
from shardctl.format.manifest import Manifest
from shardctl.format.names import FILES, MANIFEST, PLANNED, REJECTS, Json
from shardctl.format.tables import (
    UNIT_FIELDS,
    Making,
    ShardEntry,
    new_table,
    read_rejects,
)
from shardctl.format.update_state import NOTHING_PRUNED, Pruned, marked
from shardctl.images.codecs import backend
from shardctl.making.commit.commit import new_generation, new_manifest
from shardctl.making.commit.jobs import clear_partial_files
from shardctl.making.commit.tables import writing_tables
from shardctl.making.commit.target import Target
from shardctl.making.convert.conversion import Inputs
from shardctl.making.convert.previous import PreviousDataset
from shardctl.making.convert.rejects import still_pruned
from shardctl.making.notices import notice
from shardctl.making.plan.fingerprint import VERSIONS, without_folders
from shardctl.making.plan.labels import JOB_ONLY
from shardctl.making.plan.plan import NOT_KEPT
from shardctl.making.shards.job import DatasetJob
from shardctl.making.shards.marker import ShardMarker, read_marker, rows_made
from shardctl.system.files import copy_file, write_atomically
from shardctl.system.folders import LocalFolder
from shardctl.system.progress import Report
from shardctl.system.text import counted, printable
from shardctl.transforms.picture import Shape


@dataclass(frozen=True)
class Provenance:
    """What the manifest says of a conversion beside what its job knows: `what` its generation is,
    how many are to be kept, None: as many as before; and the `seconds` that all of it
    took, None if that is not known."""

    settings: Json
    sources: Sequence[str]
    keep: int | None
    what: str
    environment: dict[str, str]
    seconds: float | None


def provenance_of(
    inputs: Inputs, before: PreviousDataset | None, seconds: float | None
) -> Provenance:
    """Return the provenance of a conversion, which may bring the dataset `before` up to date."""
    options = inputs.conversion.options
    recipe, environment = inputs.recipe, {"python": platform.python_version()}
    environment |= {"numpy": np.__version__, "pyarrow": pa.__version__}
    if recipe.kind == "image":
        libraries = ", ".join(backend.libraries())
        environment |= {"imaging": backend.require_one(), "libraries": libraries}
    for version in (each for step in recipe.transform for each in step.versions()):
        name, _, number = version.rpartition(" ")
        environment[name] = number
    what = "append" if options.append else "update"
    return Provenance(
        settings=inputs.settings,
        sources=inputs.sources,
        keep=options.keep_generations,
        what="convert" if before is None else what,
        environment=environment,
        seconds=None if seconds is None else round(seconds, 3),
    )


def tables_of(job: DatasetJob, target: Target, manifest: Manifest) -> LocalFolder:
    """Return the folder that has the tables and the manifest of a job that is done."""
    url = job.working.url and f"{job.url}/{manifest.generation.path}"
    return LocalFolder(new_generation(target, job.id), url)


def write_generation(
    job: DatasetJob,
    provenance: Provenance,
    before: PreviousDataset | None,
    target: Target,
    report: Report = lambda done, total: None,
) -> Manifest:
    """Write the tables and the manifest of a job, and return that. All shards are built.

    The job brings the dataset `before` up to date, which is at `target`. `report` gets the number
    of joined shards. Raises TooManyRejectsError if not one input was converted, InputError if there
    was none.
    """
    clear_partial_files(job)
    target.fetch_done(job, np.ones(job.shards, bool))
    changes = job.changes
    with_empty = changes is not None and not changes.anew
    of_dataset, outcome_of, lines = _outcomes(job, before, with_empty)
    settings = provenance.settings
    if of_dataset is not job:
        settings = {**settings, PLANNED: {split.name: split.shards for split in job.splits}}
    pruned = still_pruned(job, before) if before is not None else NOTHING_PRUNED
    first_frames = 0

    def done(shard: int) -> ShardMarker:
        nonlocal first_frames
        report(shard, of_dataset.shards)
        found = outcome_of(shard)
        first_frames += found.first_frames
        return found

    new, states = new_generation(target, job.id), marked(job.files, job.beside, job.label_states)
    facts = join_markers(of_dataset, new, settings, done, lines, None, True, states, pruned)
    made = new_manifest(
        of_dataset.layout,
        of_dataset.recipe.to_json(),
        of_dataset.parts,
        settings=settings,
        sources=tuple(provenance.sources),
        environment=provenance.environment,
        seconds=provenance.seconds,
        records=of_dataset.records_read,
        job=job.id,
        **facts,
    )
    numbers = (len(of_dataset.files), 0, 0)
    if changes is not None:
        numbers = (changes.added, changes.removed, changes.changed)
    if first_frames:
        advice = "; --frames all takes all" if job.whole else ""
        said = notice("several-frames", images=counted(first_frames, "image"), advice=advice)
        if said not in job.notices:
            job.notices.append(said)
            job.save()  # before the manifest: who goes on from there says it too
    manifest = made.with_generation(target.manifest(), provenance.what, *numbers, provenance.keep)
    write_manifest(tables_of(job, target, manifest), manifest)
    return manifest


def _outcomes(
    job: DatasetJob, before: PreviousDataset | None, with_empty: bool
) -> tuple[DatasetJob, Callable[[int], ShardMarker], Callable[[int, ShardMarker], Iterator[bytes]]]:
    """Return what became of the shards of a job that is done: the job with the shards of its
    dataset, and functions that return the marker of one of these, and the lines of its rejects.

    That of a shard that is kept is as the dataset `before` records it, else as its marker does.
    Unless `with_empty`, shards of which every input was rejected are left out: the shards beside
    them take their units, and keep their names, and so their bytes; a split without any samples
    keeps its first one. Where models are called with several records of a shard, all stay: other
    units before these would make other calls.
    """
    filled = np.ones(job.shards, bool)
    if not with_empty and not job.recipe.models:
        made = (rows_made(job.marker_path(shard)) > 0 for shard in range(job.shards))
        filled = np.fromiter(made, bool, job.shards)
    # each shard stands for those of the job from its number in `starts` on, and is the chosen one
    starts, chosen = divided([split.shards for split in job.splits], filled)

    def made_in(shard: int) -> ShardMarker:
        number = int(job.kept[shard])
        if before is None or number == NOT_KEPT:
            return read_marker(job.marker_path(shard))
        return before.done(number)

    def done(shard: int) -> ShardMarker:
        """Return what became of a shard, and of the units that it takes over."""
        members, own_number = range(*starts[shard : shard + 2].tolist()), int(chosen[shard])
        own = made_in(own_number)
        if len(members) == 1:
            return own
        made = [own if member == own_number else made_in(member) for member in members]
        units, steps = [], list[Counts]()
        for member, each in zip(members, made, strict=True):
            rows, first = each.units, 0 if member < own_number else own.facts.rows
            if each is not own:
                column = pa.array(np.full(len(rows), first))
                rows = rows.set_column(0, rows.schema.field(0), column)
            units.append(rows)
            steps = add_counts(steps, each.counts.steps)
        return replace(
            own,
            inputs=sum(each.inputs for each in made),
            rejected=sum(each.rejected for each in made),
            units=pa.concat_tables(units),
            counts=replace(own.counts, steps=tuple(steps)),
        )

    def lines(shard: int, found: ShardMarker) -> Iterator[bytes]:
        """Yield the lines of the rejects of a shard."""
        members = range(*starts[shard : shard + 2].tolist())
        for member in members:
            number = int(job.kept[member])
            if before is not None and number != NOT_KEPT:
                yield from before.reject_lines(number)
            elif (found if len(members) == 1 else made_in(member)).rejected:
                with open(job.rejects_path(member), "rb") as file:
                    yield from file

    return job if filled.all() else job.with_shards(starts[:-1], chosen), done, lines


def divided(planned: Sequence[int], filled: Bools) -> tuple[Numbers, Numbers]:
    """Return which shards a dataset has of splits with so many planned shards each, of which some
    are filled: (planned,).

    Each stands for the planned shards from its number in the first array on, up to that of the
    next: (shards + 1,) int64. Of these it is the one in the second: (shards,) int64.

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


def join_markers(
    job: DatasetJob,
    new: Path,
    settings: Json,
    done_of: Callable[[int], ShardMarker],
    lines: Callable[[int, ShardMarker], Iterable[bytes]],
    fields: Json | None = None,
    records_jpegs: bool = True,
    file_states: pa.Table | None = None,
    pruned: Pruned = NOTHING_PRUNED,
) -> Json:
    """Join the markers into the dataset's tables, in the folder `new`: all but the manifest. Return
    what that says of the markers, by the names of its fields.

    `settings` are those of the manifest; `done_of` returns the marker of a shard, `lines` those of
    its rejects. They are called in the order of the dataset. `fields` is what the manifest says
    of them; without it, that is found from the shapes of the images. `records_jpegs` False leaves
    out what the images are as JPEG, as an older shardctl did. `file_states` says when the files
    were changed last (FILE_STATES_SCHEMA); None: no update.arrows is written. `pruned` is for that
    file too.
    """
    classes, shapes = job.layout.classes, set[Shape]()
    jpegs: list[JpegRecord] | None = [] if job.keeps_sources and records_jpegs else None
    objects, cut_off = 0, 0 if job.layout.roles.objects else None
    steps: list[Counts] | None = []
    class_counts = {split.name: [0] * len(classes or ()) for split in job.splits}
    write_files_of_dataset(new / FILES, job.files)
    update = None if file_states is None else (file_states, pruned)
    with writing_tables(new, job.folder, update) as tables:
        for shard in range(job.shards):
            place, done = job.planned_shard(shard), done_of(shard)
            counts = done.counts
            units = job.plan.slice(place.first_unit, place.units)
            columns = {name: units[name] for name, _ in UNIT_FIELDS}
            columns |= {name: done.units[name] for name in done.units.column_names}
            for label, samples in counts.labels.items() if classes else ():
                class_counts[place.split_name][label] += samples
            objects += counts.objects
            # Where those of one are not known (it was compacted), those of all are not.
            if cut_off is not None:
                cut_off = None if counts.cut_off is None else cut_off + counts.cut_off
            if shard and (steps is None or bool(steps) != bool(counts.steps)):
                steps = None
            else:
                steps = add_counts(steps or [], counts.steps)
            if jpegs is not None:
                assert done.jpegs is not None, "it is recorded of every shard, or of none"
                jpegs.append(done.jpegs)
            entry = ShardEntry(
                split=place.split_name,
                number=place.number,
                path=done.path,
                units=place.units,
                inputs=done.inputs,
                rejected=done.rejected,
                **vars(done.facts),
            )
            tables.add(entry, columns, lines(shard, done), counts)
            if len(shapes) < 2:
                shapes.update(counts.shapes[:2])
        if fields is None:
            shape = next(iter(shapes)) if len(shapes) == 1 else None
            fields = job.layout.with_shape(shape).fields()
        jpeg = joined(jpegs) if jpegs is not None else None
        for name in job.recipe.tables:
            copy_file(job.folder / name, new / name)
        for name, data in job.recipe.files.items():
            write_atomically(new / name, data)
        own = sorted([*job.recipe.files, *job.recipe.tables])
        splits = (split.name for split in job.splits)
        facts = tables.finish(splits, _making(job, fields, settings), jpeg, own)
    return {
        **facts,
        "fields": fields,
        "class_counts": class_counts if classes else None,
        "objects": None if cut_off is None else {"kept": objects, "cut_off": cut_off},
        "jpeg": jpeg.counts() if jpeg is not None else None,
        "steps": steps or None,
    }


def write_manifest(new: LocalFolder, manifest: Manifest) -> None:
    """Complete the folder of a generation, which has the tables. Raises TooManyRejectsError if not
    one input was converted, InputError if there was none."""
    if manifest.inputs == 0:
        raise InputError("the files hold no records, only blank lines; nothing was committed")
    if manifest.samples == 0:
        first = next(read_rejects(new))
        raise TooManyRejectsError(
            f"no input could be converted ({manifest.inputs:,} rejected), for instance "
            f"{printable(first.source)}: {first.message}; nothing was committed, "
            f"{new.shown(REJECTS)} has the reasons"
        )
    write_atomically(new.path(MANIFEST), manifest.to_json().encode())


def write_files_of_dataset(path: Path, files: pa.Table) -> None:
    """Write the files.arrow of a dataset: that of a job without what differs between copies of the
    same files."""
    names = [name for name in files.column_names if name not in dict(JOB_ONLY)]
    if "label" in names and files["label"].null_count == len(files):
        names.remove("label")
    files = files.select(names)
    with new_table(path, files.schema) as writer:
        writer.write_table(files)


def _making(job: DatasetJob, fields: Json, settings: Json) -> Making:
    """Return how a dataset is made, as shards.arrow records it: nothing that differs between
    machines.

    Labels files have their names alone, and versions are left out: others may well write the same
    bytes.
    """
    settings = without_folders(settings)
    parts = dict(job.parts)
    for name in ("inputs", "settings", VERSIONS):
        parts.pop(name, None)
    layout, recipe = job.layout.to_json(), job.recipe.to_json()
    return Making(layout, fields, recipe, settings, parts, job.records_read)
