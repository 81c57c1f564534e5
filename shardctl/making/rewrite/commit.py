"""The dataset that takes the place of one whose shards were written again: its tables, its
manifest, and its commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.format.arrays import Bools, sums_of
from shardctl.format.counts import COUNTS, JpegRecord
from shardctl.format.dataset_location import open_location
from shardctl.format.dataset_tables import DatasetTables
from shardctl.format.layout import Layout
from shardctl.format.manifest import Manifest
from shardctl.format.names import (
    FILES,
    MANIFEST,
    PLANNED,
    Json,
)
from shardctl.format.shard import Compression
from shardctl.format.shard_copy import Copied, Run, copy_shard
from shardctl.format.tables import (
    PLAN_SCHEMA,
    Reject,
    ShardEntry,
    is_written,
    open_checked_table,
    read_rejects,
    taken,
)
from shardctl.format.update_state import NO_COUNTS, ShardCounts, UpdateState
from shardctl.making.commit import open_target
from shardctl.making.commit.commit import (
    NewGeneration,
    making_generation,
    now,
    sweep,
    upgrade_format_2,
)
from shardctl.making.commit.tables import writing_tables
from shardctl.making.convert.decision import without_planned
from shardctl.making.convert.previous import refuse_damaged_tables
from shardctl.making.convert.rejects import hide_pruned
from shardctl.making.paths import destination_of
from shardctl.making.plan.fingerprint import WRITTEN_PART, fingerprint
from shardctl.making.write.writer import digest_of_shards
from shardctl.system.files import copy_file, naming_the_path, write_atomically
from shardctl.system.folders import Folder
from shardctl.system.machine import usable_cores
from shardctl.system.progress import Report


class SourceDataset(DatasetTables):
    """The dataset whose shards are written again. Raises DatasetError if a table of it is
    damaged."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder)
        refuse_damaged_tables(folder, self.manifest)
        self.layout = Layout.loads(self.shards.making.layout)
        self.compression = Compression.parse(str(self.manifest.recipe["compression"]))

    @cached_property
    def files(self) -> pa.Table:
        """Its table of files."""
        return open_checked_table(self.folder, FILES)

    @cached_property
    def rejects(self) -> dict[int, list[Reject]]:
        """Its rejects, by the rows of the plan that have some."""
        reasons, counts = read_rejects(self.folder), self.plan["rejected"].to_numpy()
        units = np.flatnonzero(counts)
        rejected = zip(units.tolist(), counts[units].tolist(), strict=True)
        return {unit: list(taken(reasons, count)) for unit, count in rejected}

    def lines(self, units: Iterable[int]) -> Iterator[bytes]:
        """Yield the lines of the rejects of some units, by their rows of the plan."""
        return (reject.line() for unit in units for reject in self.rejects.get(unit, ()))

    @cached_property
    def state(self) -> UpdateState | None:
        """What an update must know; None if that is lost."""
        return UpdateState.find(self.folder, self.manifest.update)

    def counts(self, shard: int) -> ShardCounts:
        """Return what was counted in a shard; nothing, if that is lost."""
        return NO_COUNTS if self.state is None else self.state.counts(shard)

    def shard(self, number: int) -> NewShard:
        """Return a shard as it is."""
        entry = self.shards[number]
        units = self.plan.slice(entry.first_unit, entry.units)
        lines = self.lines(range(entry.first_unit, entry.first_unit + entry.units))
        plain = self.plain([(number, 0, entry.rows)])
        return NewShard(entry, units, lines, self.counts(number), plain)

    def plain(self, runs: Runs) -> Bools | None:
        """Return which images of some rows are plain JPEG, None where that is not recorded."""
        jpegs, first = self.shards.jpegs, self.shards.first
        if jpegs is None:
            return None
        parts = [jpegs.only(int(first[shard]) + at, rows) for shard, at, rows in runs]
        return np.concatenate([np.empty(0, bool), *parts])


@dataclass(frozen=True)
class NewShard:
    """A shard of the new dataset, which is there already.

    `units` are its rows of plan.arrow, but for the number of the shard; `lines` those of
    rejects.jsonl; `plain` which of its images are plain JPEG, None where that is not recorded.
    """

    entry: ShardEntry
    units: pa.Table
    lines: Iterable[bytes]
    counts: ShardCounts
    plain: Bools | None


Runs = Sequence[tuple[int, int, int]]
"""Rows of the old dataset, one after the other: the number of a shard, the first row, how many."""


@dataclass(frozen=True)
class Rewritten:
    """A shard that is to be written: its number in its split, and the rows that it has."""

    split: str
    number: int
    runs: Runs

    def recorded(
        self,
        old: SourceDataset,
        copied: Copied,
        units: pa.Table,
        inputs: int,
        lines: Iterable[bytes],
        counts: ShardCounts,
    ) -> NewShard:
        """Return what is recorded of it now. `counts` lacks what copying has counted."""
        entry = ShardEntry(
            split=self.split,
            number=self.number,
            path=copied.path,
            units=units.num_rows,
            inputs=inputs,
            rejected=int(units["rejected"].to_numpy().sum()),
            **vars(copied.facts),
        )
        counts = replace(counts, labels=dict(copied.labels), objects=copied.objects)
        return NewShard(entry, units, lines, counts, old.plain(self.runs))


def copies(
    old: SourceDataset,
    new: NewGeneration,
    shards: Sequence[Rewritten],
    progress: Report,
) -> Iterator[Copied]:
    """Write shards beside those of the dataset, and yield what is in each: the caller puts it into
    the dataset. `progress` is called with shards done and shards."""

    def copy(shard: Rewritten) -> Copied:
        # there may be thousands of runs of one
        entries = {number: old.shards[number] for number, _, _ in shard.runs}
        runs = [Run(old.folder, entries[number], first, rows) for number, first, rows in shard.runs]
        to = new.root, new.id, old.layout, shard.split, shard.number, old.compression
        return copy_shard(*to, runs)

    with ThreadPoolExecutor(usable_cores()) as pool:  # copying and hashing let other threads run
        for done, copied in enumerate(pool.map(copy, shards), 1):
            progress(done, len(shards))
            yield copied


def with_columns(units: pa.Table, changed: Json) -> pa.Table:
    """Return rows of plan.arrow with some columns changed."""
    columns = [changed.get(name, units[name]) for name in PLAN_SCHEMA.names]
    return pa.table(columns, schema=PLAN_SCHEMA)


@contextmanager
def rewriting(
    dst: str | Path, if_running: str, dry_run: bool
) -> Iterator[tuple[SourceDataset, NewGeneration | None]]:
    """Hold the lease of a dataset, and yield it with the work on its next generation; without both
    for a `dry_run`."""
    with open_location(dst) as place:
        Manifest.load(place.whole)  # says what this is instead, before anything is written into it
        if dry_run:
            yield SourceDataset(place.whole), None
            return
    waiting = (lambda owner: None) if if_running == "wait" else None
    with open_target(destination_of(dst, ())) as target, target.lease(waiting) as held:
        sweep(target, held)
        upgrade_format_2(target, held)
        with open_location(dst) as place, making_generation(target, held) as new:
            yield SourceDataset(place.whole), new


def commit(
    old: SourceDataset,
    new: NewGeneration,
    shards: Sequence[NewShard],
    totals: Json,
    command: str,
    removed: int = 0,
    pruned: Iterable[tuple[str, int]] = (),
) -> Manifest:
    """Write the tables and the manifest of the next generation, and commit it. Returns the
    manifest.

    `totals` is what the manifest says otherwise that is not the sum of its shards. `removed` samples
    of the records `pruned` are no longer there: then earlier generations go too, as they have them,
    and what labels files and annotations say of files of which all samples are gone.
    """
    making, settings, tables = old.shards.making, old.manifest.settings, new.tables
    if command == "compact" and PLANNED in settings:  # the shards have new numbers
        settings = without_planned(settings)
        making = replace(making, settings=without_planned(making.settings))
    parts = old.manifest.fingerprint_parts
    if is_written(old.manifest.settings):
        parts = {WRITTEN_PART: digest_of_shards(shard.entry for shard in shards)}
        making = replace(making, parts=parts)
    for name in (FILES, *old.manifest.own_files):
        with naming_the_path(tables / name):
            copy_file(old.folder.path(name), tables / name)
    if removed:
        hide_pruned(tables / FILES, dict.fromkeys((path, 0) for path in _emptied(old, shards)))
    update = None
    if old.state is not None:
        update = old.state.files, {**dict.fromkeys(pruned), **old.state.pruned}
    with writing_tables(tables, new.folder, update) as writer:
        for shard in shards:
            writer.add(shard.entry, shard.units, shard.lines, shard.counts)
        jpegs, counts = None, totals.get("jpeg", old.manifest.jpeg)
        if old.shards.records_jpegs and counts is not None:
            plain = [shard.plain for shard in shards if shard.plain is not None]
            bits = np.concatenate([np.empty(0, bool), *plain])
            jpegs = JpegRecord(bits, *(counts[name] for name in COUNTS))
        splits = (split.name for split in old.manifest.splits)
        facts = writer.finish(splits, making, jpegs, old.manifest.own_files)
    manifest = replace(
        old.manifest,
        created=now(),
        settings=settings,
        fingerprint=fingerprint(parts),
        fingerprint_parts=parts,
        job=new.id,
        **facts,
        **totals,
    ).with_generation(old.manifest, command, 0, removed, 0)
    if removed:
        manifest = replace(manifest.keeping(0), keep=manifest.keep)
    write_atomically(tables / MANIFEST, manifest.to_json().encode())
    return new.commit()


def _emptied(old: SourceDataset, shards: Sequence[NewShard]) -> list[str]:
    """Return the paths of the files of which all samples are gone."""
    plans, files = (old.plan, pa.concat_tables(shard.units for shard in shards)), len(old.files)
    before, after = (
        sums_of(plan["samples"].to_numpy(), plan["file"].to_numpy(), files) for plan in plans
    )
    return list(old.paths_of(np.flatnonzero((before > 0) & (after == 0))).to_pylist())
