"""The tables of a dataset, and its manifest, are made of the markers of its shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.build.plan.fingerprint import VERSIONS
from shardctl.build.plan.labels import JOB_ONLY
from shardctl.build.plan.listing import CHUNK_ROWS, Numbers
from shardctl.build.shards.job import NEW_FOLDER, DatasetJob, Job
from shardctl.build.shards.marker import MARKER_SCHEMA, ShardMarker
from shardctl.errors import InputError, TooManyRejectsError
from shardctl.format.arrays import column_of
from shardctl.format.counts import Counts, JpegRecord, add_counts, joined
from shardctl.format.manifest import Manifest, SplitFacts, sum_up
from shardctl.format.names import FILES, MANIFEST, PLAN, REJECTS, SHARDS
from shardctl.format.shard import ShardFacts
from shardctl.format.tables import (
    PLAN_SCHEMA,
    UNIT_FIELDS,
    Making,
    ShardEntry,
    ShardSpool,
    read_rejects,
)
from shardctl.format.update_state import NOTHING_PRUNED, Pruned, ShardCounts, writing_update
from shardctl.system.files import FileFacts, HashingFile, copy_file, replacing, write_atomically
from shardctl.system.folders import LocalFolder
from shardctl.system.text import printable
from shardctl.transforms.pipeline.functions import Shape

JOINED_SHARDS = 64
"""Shards whose rows of the plan are copied into one table."""


@dataclass(frozen=True)
class WrittenTables:
    """Facts that the commit collects from the markers."""

    inputs: int
    samples: int
    rejected: int
    bytes: int
    fields: dict[str, Any]
    splits: tuple[SplitFacts, ...]
    files: dict[str, FileFacts]
    class_counts: dict[str, list[int]] | None
    objects: dict[str, int] | None
    jpeg: dict[str, int] | None
    steps: list[Counts] | None
    update: FileFacts | None


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
        self._job, self._settings, self._done, self._lines, self._fields = (
            job,
            settings,
            done,
            lines,
            fields,
        )
        self._file_states, self._beside, self._pruned = file_states, beside, pruned
        self._new = job.folder / NEW_FOLDER
        self._jpegs: list[JpegRecord] | None = [] if job.keeps_sources and records_jpegs else None
        self._objects = {"kept": 0, "cut_off": 0}
        self._cuts_are_known = True
        self._steps: list[Counts] | None = []
        classes = job.layout.classes
        self._class_counts = (
            {split.name: np.zeros(len(classes), np.int64) for split in job.splits}
            if classes
            else None
        )

    def run(self, describe: Callable[[WrittenTables], Manifest]) -> Manifest:
        """Complete the new dataset's folder. Raises TooManyRejectsError if not one input was
        converted, InputError if there was none."""
        committed = self.write_tables()
        if committed.inputs == 0:
            raise InputError("the files hold no records, only blank lines; nothing was committed")
        if committed.samples == 0:
            raise TooManyRejectsError(
                _all_rejected(self._job.working.below(NEW_FOLDER), committed.inputs)
            )
        manifest = describe(committed)
        write_atomically(self._new / MANIFEST, manifest.to_json().encode())
        return manifest

    def write_tables(self) -> WrittenTables:
        """Write everything but the manifest."""
        new = self._new
        write_final_files(new / FILES, self._job.files)
        with ShardSpool(self._job.folder) as shards:
            with self._writing_update() as (count, sink):
                totals, shapes = self._write_plan_and_rejects(shards, count)
            shape = next(iter(shapes)) if len(shapes) == 1 else None
            fields = self._fields if self._fields is not None else _final_fields(self._job, shape)
            jpegs = joined(self._jpegs) if self._jpegs is not None else None
            shards.write_table(new / SHARDS, _making(self._job, fields, self._settings), jpegs)
            tables = self._job.recipe.tables
            for name in tables:
                copy_file(self._job.folder / name, new / name)
            files = sum_up(new, shards.sums(), sorted([*self._job.recipe.files, *tables]))
        inputs, rejected, samples, size = (
            sum(numbers) for numbers in zip(*totals.values(), strict=True)
        )
        splits = tuple(
            SplitFacts(s.name, totals[s.name][2], s.shards, totals[s.name][3])
            for s in self._job.splits
        )
        counts = (
            {name: found.tolist() for name, found in self._class_counts.items()}
            if self._class_counts
            else None
        )
        objects = (
            dict(self._objects) if self._job.layout.roles.objects and self._cuts_are_known else None
        )
        jpeg = jpegs.counts() if jpegs is not None else None
        steps = self._steps or None
        update = None if sink is None else sink.facts
        return WrittenTables(
            inputs,
            samples,
            rejected,
            size,
            fields,
            splits,
            files,
            counts,
            objects,
            jpeg,
            steps,
            update,
        )

    @contextmanager
    def _writing_update(self) -> Iterator[tuple[Callable[[ShardCounts], None], HashingFile | None]]:
        """Yield what takes the counts of each shard for update.arrows, and that file, None if it is
        not written."""
        if self._file_states is None:
            yield lambda counts: None, None
            return
        with writing_update(self._new, self._pruned) as (writer, sink):
            writer.write_files(self._file_states, self._beside)
            yield writer.add, sink

    def _add_steps(self, done: ShardMarker, first: bool) -> None:
        """Add the counts of a shard in each step. Where those of one are not known (it was
        compacted), those of all are not."""
        known = self._steps is not None and (first or bool(self._steps) == bool(done.steps))
        self._steps = add_counts(self._steps or [], done.steps) if known else None

    def _write_plan_and_rejects(
        self, shards: ShardSpool, count: Callable[[ShardCounts], None]
    ) -> tuple[dict[str, list[int]], set[Shape]]:
        """Write plan.arrow and rejects.jsonl, a shard at a time, and spool the rows of
        shards.arrow. `count` gets the counts.

        Returns the inputs, rejects, rows and bytes of every split, and the shapes of the images, or
        two of them.
        """
        totals = {split.name: np.zeros(4, np.int64) for split in self._job.splits}
        shapes: set[Shape] = set()
        with (
            replacing(self._new / REJECTS) as rejects,
            replacing(self._new / PLAN) as plan,
            pa.ipc.new_file(pa.PythonFile(plan, mode="w"), PLAN_SCHEMA) as writer,
        ):
            rows = _PlanRows(writer)
            for shard in range(self._job.shards):
                place, done = self._job.place(shard), self._done(shard)
                rows.add(
                    _final_plan(self._job.plan.slice(place.first_unit, place.units), done, shard)
                )
                if self._class_counts is not None:
                    self._class_counts[place.split_name] += _counts(
                        done, len(self._class_counts[place.split_name])
                    )
                self._objects["kept"] += done.objects
                if done.cut_off is None:
                    self._cuts_are_known = False
                else:
                    self._objects["cut_off"] += done.cut_off
                self._add_steps(done, first=shard == 0)
                count(counts_of(done))
                if self._jpegs is not None:
                    assert done.jpegs is not None, "it is recorded of every shard, or of none"
                    self._jpegs.append(done.jpegs)
                for line in self._lines(shard, done):
                    rejects.write(line)
                facts = done.facts
                totals[place.split_name] += (done.inputs, done.rejected, facts.rows, facts.bytes)
                shards.add(
                    ShardEntry(
                        split=place.split_name,
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
            rows.write()
        return {name: numbers.tolist() for name, numbers in totals.items()}, shapes


class _PlanRows:
    """Writes the rows of the plan that several shards have given together: a batch for each shard
    would be slow to open."""

    def __init__(self, writer: pa.RecordBatchWriter) -> None:
        self._writer = writer
        self._joined: list[pa.Table] = []
        self._single: list[pa.Table] = []
        self._count = 0

    def add(self, rows: pa.Table) -> None:
        """Add the rows of one shard. Those of small shards are copied together: each table takes
        some kB, and maps a file."""
        self._single.append(rows)
        self._count += rows.num_rows
        if self._count >= CHUNK_ROWS:
            self.write()
        elif len(self._single) == JOINED_SHARDS:
            self._joined.append(pa.concat_tables(self._single).combine_chunks())
            self._single.clear()

    def write(self) -> None:
        """Write what has been added, and forget it."""
        if held := [*self._joined, *self._single]:
            self._writer.write_table(
                pa.concat_tables(held).combine_chunks(), max_chunksize=CHUNK_ROWS
            )
        self._joined.clear()
        self._single.clear()
        self._count = 0


def write_final_files(path: Path, files: pa.Table) -> None:
    """Write the files.arrow of a dataset: that of a job without what differs between copies of the
    same files."""
    names = [name for name in files.column_names if name not in dict(JOB_ONLY)]
    if "label" in names and files["label"].null_count == len(files):
        names.remove("label")
    with (
        replacing(path) as sink,
        pa.ipc.new_file(pa.PythonFile(sink, mode="w"), files.select(names).schema) as writer,
    ):
        for batch in files.select(names).to_batches():
            writer.write_batch(batch)


def _final_fields(job: Job, shape: Shape | None) -> dict[str, Any]:
    """Return what the manifest says of the fields; `shape` is that of all images, where they share
    one."""
    return job.layout.with_shape(shape).fields()


def _making(job: DatasetJob, fields: dict[str, Any], settings: dict[str, Any]) -> Making:
    """Return how a dataset is made, as shards.arrow records it: nothing that differs between
    machines.

    A labels file has its name alone, and versions are left out: others may well write the same
    bytes.
    """
    without_path = {**settings, "labels": Path(str(settings["labels"])).name}
    parts = {
        name: digest
        for name, digest in job.lineage.parts.items()
        if name not in ("inputs", "settings", VERSIONS)
    }
    return Making(
        job.layout.to_json(), fields, job.recipe.to_json(), without_path, parts, job.records_read
    )


def _final_plan(planned: pa.Table, done: ShardMarker, shard: int) -> pa.Table:
    columns = {name: planned[name] for name, _ in UNIT_FIELDS}
    columns["shard"] = column_of(np.full(len(planned), shard, np.int32))
    columns |= {name: done.units[name] for name in done.units.column_names}
    return pa.table([columns[name] for name in PLAN_SCHEMA.names], schema=PLAN_SCHEMA)


def counts_of(done: ShardMarker) -> ShardCounts:
    """Return what was counted in a shard."""
    jpegs = None if done.jpegs is None else tuple(done.jpegs.counts().values())
    return ShardCounts(done.labels, done.shapes, done.objects, done.cut_off, jpegs, done.steps)


def done_of(
    facts: ShardFacts,
    inputs: int,
    rejected: int,
    counts: ShardCounts,
    units: pa.Table,
    jpegs: JpegRecord | None,
) -> ShardMarker:
    """Return what became of a shard of a finished dataset. `units` are its rows of plan.arrow."""
    outcomes = units.select(MARKER_SCHEMA.names)
    numbers = (counts.objects, counts.cut_off)
    return ShardMarker(
        facts,
        inputs,
        rejected,
        counts.shapes,
        counts.labels,
        *numbers,
        outcomes,
        jpegs,
        counts.steps,
    )


def _counts(done: ShardMarker, classes: int) -> Numbers:
    """Count the samples of a shard by class, (classes,)."""
    counts = np.zeros(classes, np.int64)
    counts[list(done.labels)] = list(done.labels.values())
    return counts


def _all_rejected(new: LocalFolder, inputs: int) -> str:
    first = next(read_rejects(new))
    return (
        f"no input could be converted ({inputs:,} rejected), for instance "
        f"{printable(first.source)}: {first.message};"
        f" nothing was committed, {new.shown(REJECTS)} has the reasons"
    )
