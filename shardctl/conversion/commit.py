"""The end of a conversion: the workers' markers become the dataset's tables and its manifest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.engines.job import NEW_FOLDER, Job
from shardctl.engines.samples import Shape
from shardctl.engines.task import Done
from shardctl.errors import TooManyRejectsError
from shardctl.fingerprint import VERSIONS
from shardctl.listing import CHUNK_ROWS
from shardctl.manifest import (
    CHECKSUMS,
    MANIFEST,
    PLAN,
    REJECTS,
    SHARDS,
    TABLES,
    FileFacts,
    Making,
    Manifest,
    ShardEntry,
    SplitFacts,
    read_rejects,
    write_checksums,
    write_shard_table,
)
from shardctl.storage import printable, replacing, sha256_of, write_atomically


@dataclass(frozen=True)
class Committed:
    """Facts that the commit collects from the markers."""

    inputs: int
    samples: int
    rejected: int
    bytes: int
    fields: dict[str, Any]
    splits: tuple[SplitFacts, ...]
    files: dict[str, FileFacts]
    class_counts: dict[str, list[int]] | None


class Commit:
    """Joins the markers into the dataset's tables, beside the new shards, and the manifest last."""

    def __init__(
        self, job: Job, settings: dict[str, Any], done: Callable[[int], Done], fields: dict[str, Any] | None = None
    ) -> None:
        """`settings` are those of the manifest; `done` returns the marker of a shard; it is called in the order of the dataset.

        `fields` is what the manifest says of them; without it, that is found from the shapes of the images.
        """
        self._job, self._settings, self._done, self._fields = job, settings, done, fields
        self._new = job.folder / NEW_FOLDER
        classes = job.layout.classes
        self._class_counts = {split.name: np.zeros(len(classes), np.int64) for split in job.splits} if classes else None

    def run(self, describe: Callable[[Committed], Manifest]) -> Manifest:
        """Complete the new dataset's folder. Raises TooManyRejectsError if not one input was converted."""
        committed = self.write_tables()
        if committed.samples == 0:
            raise TooManyRejectsError(_all_rejected(self._new, committed.inputs))
        manifest = describe(committed)
        write_atomically(self._new / MANIFEST, manifest.to_json().encode())
        return manifest

    def write_tables(self) -> Committed:
        """Write everything but the manifest."""
        new = self._new
        entries, shapes = self._write_plan_and_rejects()
        shape = next(iter(shapes)) if len(shapes) == 1 else None
        fields = self._fields if self._fields is not None else _final_fields(self._job, shape)
        write_shard_table(new / SHARDS, entries, _making(self._job, fields, self._settings))
        sums = {entry.path: entry.sha256 for entry in entries}
        files = {name: FileFacts((new / name).stat().st_size, sha256_of(new / name)) for name in TABLES}
        sums |= {name: facts.sha256 for name, facts in files.items()}
        checksums = write_checksums(new / CHECKSUMS, sums.items())
        files[CHECKSUMS] = FileFacts((new / CHECKSUMS).stat().st_size, checksums)
        inputs, samples, size = (sum(getattr(entry, name) for entry in entries) for name in ("inputs", "rows", "bytes"))
        counts = {name: found.tolist() for name, found in self._class_counts.items()} if self._class_counts else None
        return Committed(inputs, samples, inputs - samples, size, fields, self._split_facts(entries), files, counts)

    def _write_plan_and_rejects(self) -> tuple[list[ShardEntry], set[Shape]]:
        """Write plan.arrow and rejects.jsonl, a shard at a time."""
        entries: list[ShardEntry] = []
        shapes: set[Shape] = set()
        rows: list[pa.Table] = []
        first = held = 0
        schema = _final_plan_schema(self._job.plan.schema)
        with (
            replacing(self._new / REJECTS) as rejects,
            replacing(self._new / PLAN) as plan,
            pa.ipc.new_file(pa.PythonFile(plan, mode="w"), schema) as writer,
        ):
            for shard in range(self._job.shards):
                place = self._job.place(shard)
                done = self._done(shard)
                planned = self._job.plan.slice(place.first_row, place.rows).combine_chunks()
                rows.append(_final_plan(planned, done, shard, schema))
                held += place.rows
                if held >= CHUNK_ROWS:
                    _write_rows(writer, rows)
                    held = 0
                if self._class_counts is not None:
                    self._class_counts[place.split.name] += _labels_of(planned, done, len(self._class_counts[place.split.name]))
                for line in _reject_lines(planned, done):
                    rejects.write(line)
                facts = done.facts
                entries.append(
                    ShardEntry(
                        split=place.split.name,
                        path=place.name,
                        rows=facts.rows,
                        bytes=facts.bytes,
                        raw_bytes=facts.raw_bytes,
                        sha256=facts.sha256,
                        first=first,
                        first_input=place.first_row,
                        inputs=place.rows,
                        block_rows=facts.block_rows,
                    )
                )
                first += facts.rows
                shapes |= set(done.shapes)
            _write_rows(writer, rows)
        return entries, shapes

    def _split_facts(self, entries: list[ShardEntry]) -> tuple[SplitFacts, ...]:
        facts = []
        for split in self._job.splits:
            own = [entry for entry in entries if entry.split == split.name]
            facts.append(SplitFacts(split.name, sum(e.rows for e in own), split.shards, sum(e.bytes for e in own)))
        return tuple(facts)


def _write_rows(writer: pa.RecordBatchWriter, rows: list[pa.Table]) -> None:
    """Write rows of the plan that several shards have given, and forget them: a batch for each shard would be slow to open."""
    if rows:
        writer.write_table(pa.concat_tables(rows).combine_chunks(), max_chunksize=CHUNK_ROWS)
        rows.clear()


def _final_fields(job: Job, shape: Shape | None) -> dict[str, Any]:
    """Return what the manifest says of the fields; `shape` is that of all images, where they share one."""
    return (job.layout.with_shape(shape) if job.layout.store else job.layout).fields()


def _making(job: Job, fields: dict[str, Any], settings: dict[str, Any]) -> Making:
    """Return how a dataset is made, as shards.arrow records it: nothing that differs between machines.

    A labels file has its name alone, and versions are left out: others may well write the same bytes.
    """
    without_path = {**settings, "labels": Path(str(settings["labels"])).name}
    parts = {name: digest for name, digest in job.parts.items() if name not in ("inputs", "settings", VERSIONS)}
    return Making(job.layout.to_json(), fields, job.recipe.settings(), without_path, parts)


OUTCOME_COLUMNS = (("shard", pa.int32()), ("row", pa.int32()), ("outcome", pa.string()), ("digest", pa.uint64()))
"""What the plan of a finished dataset says beyond that of a job."""


def _final_plan_schema(planned: pa.Schema) -> pa.Schema:
    """Return the columns of plan.arrow in a committed dataset. No time of change: copies of the inputs plan alike."""
    left_out = {"mtime_ns", "error", "message", *(name for name, _ in OUTCOME_COLUMNS)}
    return pa.schema([*(f for f in planned if f.name not in left_out), *(pa.field(*column) for column in OUTCOME_COLUMNS)])


def _final_plan(planned: pa.Table, done: Done, shard: int, schema: pa.Schema) -> pa.Table:
    row = done.outcomes["row"].combine_chunks()
    columns = {name: planned[name] for name in planned.column_names if name in schema.names}
    columns["shard"] = pa.array(np.full(len(planned), shard, np.int32))
    columns["row"] = row
    # Not row.is_valid(), which imports pyarrow.compute: 40 ms of a small conversion.
    columns["outcome"] = pa.array(["rejected" if place is None else "ok" for place in row.to_pylist()], pa.string())
    columns["digest"] = done.outcomes["digest"]
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _labels_of(planned: pa.Table, done: Done, classes: int) -> npt.NDArray[np.int64]:
    """Count the samples of a shard by class, (classes,). A function may have given a sample another label than the plan."""
    counts = np.zeros(classes, np.int64)
    if done.labels is not None:
        counts[list(done.labels)] = list(done.labels.values())
        return counts
    labels = planned["label"].filter(done.outcomes["row"].is_valid()).drop_null().to_numpy()
    return np.bincount(labels[(labels >= 0) & (labels < classes)], minlength=classes)


def _reject_lines(planned: pa.Table, done: Done) -> Iterator[bytes]:
    rejected = [place for place, row in enumerate(done.outcomes["row"].to_pylist()) if row is None]
    for place in rejected:
        outcome = done.outcomes.slice(place, 1).to_pylist()[0]
        source, key = planned["source"][place].as_py(), planned["key"][place].as_py()
        line = {"source": source, "key": key, **{name: outcome[name] for name in ("stage", "error", "message")}}
        yield json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _all_rejected(new: Path, inputs: int) -> str:
    first = next(read_rejects(new / REJECTS))
    return (
        f"no input could be converted ({inputs:,} rejected), for instance {printable(first.source)}: {first.message};"
        f" nothing was committed, {printable(str(new / REJECTS))} has the reasons"
    )
