"""The dataset that takes the place of one whose shards were written again: its tables, its
manifest, and its commit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.format.arrays import Bools
from shardctl.format.counts import COUNTS, JpegRecord
from shardctl.format.dataset_tables import DatasetTables
from shardctl.format.layout import Layout
from shardctl.format.manifest import Manifest, sum_up
from shardctl.format.names import (
    FILES,
    GENERATIONS,
    MANIFEST,
    PLANNED,
    REJECTS,
    SHARDS,
    STAGING,
    Json,
)
from shardctl.format.shard import Compression
from shardctl.format.shard_copy import Copied, Run, copy_shard
from shardctl.format.tables import (
    PLAN_SCHEMA,
    Reject,
    ShardEntry,
    ShardSpool,
    is_written,
    open_checked_table,
    read_rejects,
    taken,
)
from shardctl.format.update_state import NO_COUNTS, ShardCounts, UpdateState, writing_update
from shardctl.making.commit import publish
from shardctl.making.commit.staging import discard, jobs_in
from shardctl.making.convert.previous import refuse_damaged_tables, without_planned
from shardctl.making.paths import check_writable, refuse_generation
from shardctl.making.plan.fingerprint import WRITTEN_PART, fingerprint
from shardctl.making.plan.plan import job_table, plan_table
from shardctl.making.write.writer import digest_of_shards, new_folder
from shardctl.system import file_lease
from shardctl.system.files import naming_the_path, refuse_link, replacing
from shardctl.system.folders import LocalFolder
from shardctl.system.machine import usable_cores
from shardctl.system.progress import Report


class SourceDataset:
    """The dataset whose shards are written again. Raises DatasetError if a table of it is
    damaged."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, LocalFolder(root)
        self.manifest = Manifest.load(self.folder)
        refuse_damaged_tables(self.folder, self.manifest)
        self.stored = DatasetTables(self.folder)
        self.table = self.stored.shards
        self.layout = Layout.loads(self.table.making.layout)
        self.compression = Compression.parse(str(self.manifest.recipe["compression"]))

    @cached_property
    def files(self) -> pa.Table:
        """Its table of files."""
        return open_checked_table(self.folder, FILES)

    @cached_property
    def rejects(self) -> list[list[list[Reject]]]:
        """Its rejects: of every unit that has some, in order, of every shard."""
        found, reasons = [], read_rejects(self.folder)
        rejected = self.stored.plan["rejected"].to_numpy()
        for entry in self.table:
            counts = rejected[entry.first_unit : entry.first_unit + entry.units]
            found.append([list(taken(reasons, count)) for count in counts[counts > 0].tolist()])
        return found

    @cached_property
    def state(self) -> UpdateState | None:
        """What an update must know; None if that is lost."""
        return UpdateState.find(self.folder, self.manifest.update)

    def counts(self, shard: int) -> ShardCounts:
        """Return what was counted in a shard; nothing, if that is lost."""
        return NO_COUNTS if self.state is None else self.state.counts(shard)

    def plain(self, shard: int) -> Bools | None:
        """Return which images of a shard are plain JPEG, (rows,); None where that is not
        recorded."""
        record, entry = self.table.jpegs, self.table[shard]
        return None if record is None else record.only(entry.first, entry.rows)


@dataclass(frozen=True)
class NewShard:
    """A shard of the new dataset. It is `kept`, with the name that it has, or lies in the new
    folder already.

    `units` are its rows of plan.arrow, but for the number of the shard; `lines` those of
    rejects.jsonl; `plain` which of its images are plain JPEG, None where that is not recorded.
    """

    entry: ShardEntry
    units: pa.Table
    lines: Iterable[bytes]
    counts: ShardCounts
    plain: Bools | None
    kept: bool


Runs = Sequence[tuple[int, int, int]]
"""Rows of the old dataset, one after the other: the number of a shard, the first row, how many."""


@dataclass(frozen=True)
class Rewritten:
    """A shard that is to be written: the name of its file, its number in its split, and the rows
    that it has."""

    split: str
    path: str
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
            path=self.path,
            units=units.num_rows,
            inputs=inputs,
            rejected=int(units["rejected"].to_numpy().sum()),
            **vars(copied.facts),
        )
        plain, jpegs, begins = None, old.table.jpegs, old.table.first
        if jpegs is not None:
            parts = [jpegs.only(int(begins[shard]) + at, rows) for shard, at, rows in self.runs]
            plain = np.concatenate([np.empty(0, bool), *parts])
        counts = replace(counts, labels=dict(copied.labels), objects=copied.objects)
        return NewShard(entry, units, lines, counts, plain, False)


def copies(
    old: SourceDataset,
    new: Path,
    shards: Sequence[Rewritten],
    progress: Report,
) -> Iterator[Copied]:
    """Write shards into the new folder, and yield what is in each. `progress` is called with shards
    done and shards."""

    def copy(shard: Rewritten) -> Copied:
        # there may be thousands of runs of one
        entries = {number: old.table[number] for number, _, _ in shard.runs}
        runs = [
            Run(old.folder, entries[number].path, entries[number].block_rows, first, rows)
            for number, first, rows in shard.runs
        ]
        path = new / shard.path
        return copy_shard(path, old.layout, shard.split, shard.number, old.compression, runs)

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
    dst: str | Path, if_running: str
) -> Iterator[tuple[SourceDataset, Path, file_lease.Lease]]:
    """Hold the lease of a dataset, and yield it with a folder for the new one. What is left of that
    in the end is deleted."""
    with naming_the_path(Path(dst)):
        # a link to it, or `..` in its path, would not be its name beside itself
        root = Path(os.path.realpath(dst))
    if not publish.needs_recovery(root):
        # says what this is instead, before anything is written into it
        Manifest.load(LocalFolder(root))
    refuse_generation(root)
    check_writable(root)
    waiting = (lambda owner: None) if if_running == "wait" else None
    with file_lease.hold(root / STAGING, waiting) as held:
        publish.recover(root)
        with new_folder(root) as new:
            yield SourceDataset(root), new, held


def commit(
    old: SourceDataset,
    new: Path,
    held: file_lease.Lease,
    shards: Sequence[NewShard],
    files: pa.Table,
    totals: Json,
    command: str,
    removed: int = 0,
    pruned: Iterable[tuple[str, int]] = (),
) -> Manifest:
    """Write the tables and the manifest beside the new shards, and put them in the place of the
    dataset. Returns the manifest.

    `files` is the new files.arrow, `totals` what the manifest says that is not the sum of its
    shards. `removed` samples of the records `pruned` are no longer there:
    then earlier generations go too, as they have them.
    """
    making, settings = old.table.making, old.manifest.settings
    if command == "compact" and PLANNED in settings:  # the shards have new numbers
        settings = without_planned(settings)
        making = replace(making, settings=without_planned(making.settings))
    entries = [shard.entry for shard in shards]
    parts = old.manifest.fingerprint_parts
    if is_written(old.manifest.settings):
        parts = {WRITTEN_PART: digest_of_shards(entries)}
        making = replace(making, parts=parts)
    for shard in shards:
        if shard.kept:
            with naming_the_path(new / shard.entry.path):
                publish.link_or_copy(old.root / shard.entry.path, new / shard.entry.path)
    with job_table(new / FILES, files.schema) as table:
        table.write_table(files)
    for name in old.manifest.own_files:
        with naming_the_path(new / name):
            publish.link_or_copy(old.root / name, new / name)
    update = None
    with ShardSpool(new.parent) as spool:
        _write_plan_and_rejects(new, shards, spool)
        if old.state is not None:
            with writing_update(new, {**dict.fromkeys(pruned), **old.state.pruned}) as (
                record,
                file,
            ):
                record.write_files(old.state.files, old.state.digest_beside)
                for shard in shards:
                    record.add(shard.counts)
            update = file.facts
        plain = [shard.plain for shard in shards if shard.plain is not None]
        jpegs = None
        if old.table.records_jpegs and totals["jpeg"] is not None:
            bits = np.concatenate([np.empty(0, bool), *plain])
            jpegs = JpegRecord(bits, *(totals["jpeg"][name] for name in COUNTS))
        spool.write_table(new / SHARDS, making, jpegs)
        facts = sum_up(new, spool.sums(), old.manifest.own_files)
    splits = publish.splits_of(entries, (split.name for split in old.manifest.splits))
    changed = replace(
        old.manifest,
        created=publish.now(),
        samples=sum(split.samples for split in splits),
        shards=len(entries),
        bytes=sum(split.bytes for split in splits),
        inputs=sum(entry.inputs for entry in entries),
        rejected=sum(entry.rejected for entry in entries),
        splits=splits,
        settings=settings,
        fingerprint=fingerprint(parts),
        fingerprint_parts=parts,
        files=facts,
        update=update,
        **totals,
    )
    manifest = changed.with_generation(old.manifest, command, 0, removed, 0)
    with replacing(new / MANIFEST) as sink:
        sink.write(manifest.to_json().encode())
    held.check()
    if removed:
        forget(old.root, new.parent)
    elif manifest.keep:
        publish.keep_generation(old.root)
    publish.publish(new, old.root)
    publish.settle_generations(old.root)
    return manifest


def forget(root: Path, but: Path | None = None) -> None:
    """Delete earlier generations, and unfinished conversions: they may have samples that go. The
    caller holds the lease.

    `but` is the folder of the job that takes them away.
    """
    refuse_link(root / GENERATIONS)  # they would stay, with what is to go
    publish.settle_generations(root, 0)
    with naming_the_path(root / STAGING):
        for job in jobs_in(root / STAGING):
            if job != but:
                discard(job)


def _write_plan_and_rejects(new: Path, shards: Sequence[NewShard], spool: ShardSpool) -> None:
    with replacing(new / REJECTS) as rejects, plan_table(new, PLAN_SCHEMA) as add_units:
        for number, shard in enumerate(shards):
            numbers = pa.array(np.full(shard.units.num_rows, number, np.int32))
            place = PLAN_SCHEMA.get_field_index("shard")
            add_units(shard.units.set_column(place, PLAN_SCHEMA.field(place), numbers))
            for line in shard.lines:
                rejects.write(line)
            spool.add(shard.entry)
