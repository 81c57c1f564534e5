"""The tables of a dataset, and its manifest, are made of the markers of its shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

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
from shardctl.making.plan.fingerprint import VERSIONS
from shardctl.making.plan.labels import JOB_ONLY
from shardctl.making.plan.listing import CHUNK_ROWS
from shardctl.making.plan.plan import job_table
from shardctl.making.shards.job import NEW_FOLDER, DatasetJob
from shardctl.making.shards.marker import MARKER_SCHEMA, ShardMarker
from shardctl.system.files import copy_file, replacing, write_atomically
from shardctl.system.text import printable
from shardctl.transforms.pipeline.functions import Shape

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
    parts = dict(job.lineage.parts)
    for name in ("inputs", "settings", VERSIONS):
        parts.pop(name, None)
    layout, recipe = job.layout.to_json(), job.recipe.to_json()
    return Making(layout, fields, recipe, settings, parts, job.records_read)


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
    counted = (counts.shapes, counts.labels, counts.objects, counts.cut_off)
    return ShardMarker(facts, inputs, rejected, *counted, outcomes, jpegs, counts.steps)
