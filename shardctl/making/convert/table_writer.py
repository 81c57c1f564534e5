"""The end of a conversion, once all shards are built: the tables of the dataset and its manifest
are made of the markers of the shards."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, TooManyRejectsError
from shardctl.format.arrays import column_of
from shardctl.format.counts import Counts, JpegRecord, add_counts, joined
from shardctl.format.manifest import Manifest, SplitFacts, sum_up
from shardctl.format.names import FILES, MANIFEST, PLAN, PLANNED, REJECTS, SHARDS
from shardctl.format.tables import (
    PLAN_SCHEMA,
    UNIT_FIELDS,
    Making,
    ShardEntry,
    ShardSpool,
    ShardTable,
    read_rejects,
)
from shardctl.format.update_state import NOTHING_PRUNED, Pruned, ShardCounts, writing_update
from shardctl.images.codecs import backend
from shardctl.making.commit.staging import clear_partial_files
from shardctl.making.convert.conversion import Conversion, Inputs
from shardctl.making.convert.listener import Changes
from shardctl.making.convert.previous import PreviousDataset
from shardctl.making.convert.rejects import still_pruned
from shardctl.making.convert.targets import Target
from shardctl.making.notices import notice
from shardctl.making.plan.fingerprint import VERSIONS, fingerprint
from shardctl.making.plan.labels import JOB_ONLY
from shardctl.making.plan.listing import CHUNK_ROWS, Flags, Numbers
from shardctl.making.plan.plan import NOT_KEPT, job_table
from shardctl.making.shards.job import NEW_FOLDER, DatasetJob
from shardctl.making.shards.marker import ShardMarker, read_marker, rows_made
from shardctl.system.files import copy_file, replacing, write_atomically
from shardctl.system.folders import LocalFolder
from shardctl.system.progress import Report
from shardctl.system.text import counted, printable
from shardctl.transforms.pipeline.functions import Shape
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
    recipe, environment = conversion.recipe, {"python": platform.python_version()}
    environment |= {"numpy": np.__version__, "pyarrow": pa.__version__}
    if recipe.kind == "image":
        libraries = ", ".join(backend.libraries())
        environment |= {"imaging": backend.require_one(), "libraries": libraries}
    for version in (each for step in recipe.transform for each in step.versions()):
        name, _, number = version.rpartition(" ")
        environment[name] = number
    return ManifestFacts(
        settings=conversion.request.recorded_settings(recipe),
        sources=tuple(inputs.sources),
        keep=keep if options.keep_generations is None else options.keep_generations,
        appends=options.append,
        environment=environment,
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
    given = {"file_states": job.files, "beside": job.beside, "pruned": pruned}

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
        planned = {job.planned_shard(shard).name for shard in range(job.shards)}
        target.leave_out(job, sorted(planned - set(there)))


def changes_of(job: DatasetJob) -> Changes | None:
    """Return what a job changes in the dataset that is there; None if there is none."""
    return None if job.changes is None else Changes(**job.changes)


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
        fingerprint=fingerprint(job.parts),
        fingerprint_parts=job.parts,
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
    numbers = (0, 0, 0)
    if changes is not None:
        numbers = (changes.added, changes.removed, changes.changed)
    return made.with_generation(before.manifest, what, *numbers)


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
            rows, first = each.units, 0 if member < chosen else own.facts.rows
            if each is not own:
                column = pa.array(np.full(len(rows), first))
                rows = rows.set_column(0, rows.schema.field(0), column)
            units.append(rows)
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


JOINED_SHARDS = 64
"""Shards whose rows of the plan are copied into one table."""


class TableWriter:
    """Joins the markers into the dataset's tables, beside the new shards, and the manifest last."""

    def __init__(
        self,
        job: DatasetJob,
        settings: dict[str, Any],
        done: Callable[[int], ShardMarker],
        lines: Callable[[int, ShardMarker], Iterable[bytes]],
        fields: dict[str, Any] | None = None,
        records_jpegs: bool = True,
        file_states: pa.Table | None = None,
        beside: str = "",
        pruned: Pruned = NOTHING_PRUNED,
    ) -> None:
        """`settings` are those of the manifest; `done` returns the marker of a shard, and `lines`
        those of its rejects.

        Both are called in the order of the dataset. `fields` is what the manifest says of them;
        without it, that is found from the shapes of the images. `records_jpegs` False leaves out
        what the images are as JPEG, as an older shardctl did. `file_states` says when the files
        were changed last (FILE_STATES_SCHEMA); None: no update.arrows is written. `beside` and
        `pruned` are for that file too.
        """
        self._job, self._settings, self._done, self._lines = job, settings, done, lines
        self._fields, self._pruned = fields, pruned
        self._file_states, self._beside = file_states, beside
        self._new = job.folder / NEW_FOLDER
        self._jpegs: list[JpegRecord] | None = [] if job.keeps_sources and records_jpegs else None
        self._objects = 0
        self._cut_off: int | None = 0
        self._steps: list[Counts] | None = []
        self._totals = {split.name: np.zeros(4, np.int64) for split in job.splits}
        classes = job.layout.classes or ()
        self._class_counts = {split.name: [0] * len(classes) for split in job.splits}

    def run(self, describe: Callable[[dict[str, Any]], Manifest]) -> Manifest:
        """Complete the new dataset's folder; `describe` gets what `write_tables` returns. Raises
        TooManyRejectsError if not one input was converted, InputError if there was none."""
        facts = self.write_tables()
        if facts["inputs"] == 0:
            raise InputError("the files hold no records, only blank lines; nothing was committed")
        if facts["samples"] == 0:
            new = self._job.working.below(NEW_FOLDER)
            first = next(read_rejects(new))
            raise TooManyRejectsError(
                f"no input could be converted ({facts['inputs']:,} rejected), for instance "
                f"{printable(first.source)}: {first.message}; nothing was committed, "
                f"{new.shown(REJECTS)} has the reasons"
            )
        manifest = describe(facts)
        write_atomically(self._new / MANIFEST, manifest.to_json().encode())
        return manifest

    def write_tables(self) -> dict[str, Any]:
        """Write everything but the manifest, and return what that says of the markers, by the names
        of its fields."""
        new, job, update = self._new, self._job, None
        write_final_files(new / FILES, job.files)
        with ShardSpool(job.folder) as shards:
            with ExitStack() as stack:
                count: Callable[[ShardCounts], None] = lambda counts: None  # noqa: E731
                if self._file_states is not None:
                    writer, update = stack.enter_context(writing_update(new, self._pruned))
                    writer.write_files(self._file_states, self._beside)
                    count = writer.add
                shapes = self._join(shards, count)
            shape = next(iter(shapes)) if len(shapes) == 1 else None
            fields = self._fields
            if fields is None:
                fields = job.layout.with_shape(shape).fields()
            jpegs = joined(self._jpegs) if self._jpegs is not None else None
            shards.write_table(new / SHARDS, _making(job, fields, self._settings), jpegs)
            tables = job.recipe.tables
            for name in tables:
                copy_file(job.folder / name, new / name)
            files = sum_up(new, shards.sums(), sorted([*job.recipe.files, *tables]))
        inputs, rejected, samples, size = np.sum([*self._totals.values()], axis=0).tolist()
        splits = []
        for split in job.splits:
            of_split = self._totals[split.name].tolist()
            splits.append(SplitFacts(split.name, of_split[2], split.shards, of_split[3]))
        objects = None
        if job.layout.roles.objects and self._cut_off is not None:
            objects = {"kept": self._objects, "cut_off": self._cut_off}
        return {
            "inputs": inputs,
            "samples": samples,
            "rejected": rejected,
            "bytes": size,
            "fields": fields,
            "splits": tuple(splits),
            "files": files,
            "class_counts": self._class_counts if job.layout.classes else None,
            "objects": objects,
            "jpeg": jpegs.counts() if jpegs is not None else None,
            "steps": self._steps or None,
            "update": None if update is None else update.facts,
        }

    def _join(self, shards: ShardSpool, count: Callable[[ShardCounts], None]) -> set[Shape]:
        """Write plan.arrow and rejects.jsonl, a shard at a time, spool the rows of shards.arrow,
        and add up the counts, which `count` gets too. Return the shapes of the images, or two of
        them."""
        job, shapes = self._job, set[Shape]()
        with (
            replacing(self._new / REJECTS) as rejects,
            job_table(self._new / PLAN, PLAN_SCHEMA) as writer,
        ):
            held, held_rows = list[pa.Table](), 0
            for shard in range(job.shards):
                place, done = job.planned_shard(shard), self._done(shard)
                name, facts = place.split_name, done.facts
                units = job.plan.slice(place.first_unit, place.units)
                columns = {name: units[name] for name, _ in UNIT_FIELDS}
                columns["shard"] = column_of(np.full(len(units), shard, np.int32))
                columns |= {name: done.units[name] for name in done.units.column_names}
                rows = [columns[name] for name in PLAN_SCHEMA.names]
                held.append(pa.table(rows, schema=PLAN_SCHEMA))
                held_rows += len(units)
                # a batch for each shard would be slow to open, and a table maps a file
                if held_rows >= CHUNK_ROWS or len(held) == JOINED_SHARDS:
                    held = [pa.concat_tables(held).combine_chunks()]
                if held_rows >= CHUNK_ROWS:
                    writer.write_table(held.pop(), max_chunksize=CHUNK_ROWS)
                    held_rows = 0
                for label, samples in done.labels.items() if job.layout.classes else ():
                    self._class_counts[name][label] += samples
                self._objects += done.objects
                # Where those of one are not known (it was compacted), those of all are not.
                if self._cut_off is not None:
                    self._cut_off = None if done.cut_off is None else self._cut_off + done.cut_off
                if shard and (self._steps is None or bool(self._steps) != bool(done.steps)):
                    self._steps = None
                else:
                    self._steps = add_counts(self._steps or [], done.steps)
                count(counts_of(done))
                if self._jpegs is not None:
                    assert done.jpegs is not None, "it is recorded of every shard, or of none"
                    self._jpegs.append(done.jpegs)
                for line in self._lines(shard, done):
                    rejects.write(line)
                self._totals[name] += (done.inputs, done.rejected, facts.rows, facts.bytes)
                shards.add(
                    ShardEntry(
                        split=name,
                        path=place.name,
                        units=place.units,
                        inputs=done.inputs,
                        rejected=done.rejected,
                        rows=facts.rows,
                        bytes=facts.bytes,
                        raw_bytes=facts.raw_bytes,
                        sha256=facts.sha256,
                        block_rows=facts.block_rows,
                    )
                )
                if len(shapes) < 2:
                    shapes.update(done.shapes[:2])
            if held:
                rows = pa.concat_tables(held).combine_chunks()
                writer.write_table(rows, max_chunksize=CHUNK_ROWS)
        return shapes


def write_final_files(path: Path, files: pa.Table) -> None:
    """Write the files.arrow of a dataset: that of a job without what differs between copies of the
    same files."""
    names = [name for name in files.column_names if name not in dict(JOB_ONLY)]
    if "label" in names and files["label"].null_count == len(files):
        names.remove("label")
    files = files.select(names)
    with job_table(path, files.schema) as writer:
        for batch in files.to_batches():
            writer.write_batch(batch)


def _making(job: DatasetJob, fields: dict[str, Any], settings: dict[str, Any]) -> Making:
    """Return how a dataset is made, as shards.arrow records it: nothing that differs between
    machines.

    A labels file has its name alone, and versions are left out: others may well write the same
    bytes.
    """
    settings = {**settings, "labels": Path(str(settings["labels"])).name}
    parts = dict(job.parts)
    for name in ("inputs", "settings", VERSIONS):
        parts.pop(name, None)
    layout, recipe = job.layout.to_json(), job.recipe.to_json()
    return Making(layout, fields, recipe, settings, parts, job.records_read)


def counts_of(done: ShardMarker) -> ShardCounts:
    """Return what was counted in a shard."""
    jpegs = None if done.jpegs is None else tuple(done.jpegs.counts().values())
    return ShardCounts(done.labels, done.shapes, done.objects, done.cut_off, jpegs, done.steps)
