"""Shards that are put in order again after many updates: full ones, with the samples as a
conversion orders them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.errors import CONTINUES, StorageError, UsageError, explaining_interrupts
from shardctl.format.arrays import Numbers
from shardctl.format.counts import COUNTS
from shardctl.format.names import shard_name
from shardctl.format.shard import ShardReader
from shardctl.format.shard_copy import Copied
from shardctl.format.update_state import ShardCounts
from shardctl.making.commit.commit import NewGeneration
from shardctl.making.convert.conversion_plan import shard_count
from shardctl.making.options import Options
from shardctl.making.rewrite.commit import (
    NewShard,
    Rewritten,
    SourceDataset,
    commit,
    copies,
    rewriting,
    with_columns,
)
from shardctl.making.shards.rows import jpegs_in
from shardctl.system.folders import LocalFolder
from shardctl.system.permutation import Permutation
from shardctl.system.progress import Report, counting
from shardctl.system.text import format_bytes

NO_LIMIT = 1 << 60
"""A limit of shards that is none: shardctl.write records 2**62 for one that was not given."""


@dataclass(frozen=True)
class CompactResult:
    """What `compact` did. `status` is `compacted`, or `up-to-date` if the shards were in order
    already.

    `shards_before` became `shards`, of which `kept` stayed as they were.
    """

    status: str
    samples: int
    shards_before: int
    shards: int
    kept: int
    bytes: int


@explaining_interrupts(CONTINUES)
def compact(
    dst: str | Path,
    *,
    dry_run: bool = False,
    if_running: str = "wait",
    progress: bool | Callable[[int, int], None] = True,
) -> CompactResult:
    """Put the shards of a dataset in order, as a conversion makes them: full shards, with the
    samples in their order.

    Rows are copied without decoding, and the sources are not needed. Until it is done, readers see
    the old dataset. `progress` False shows no progress on stderr; a function is called with shards
    done and shards instead. Raises DatasetError if it is damaged, StorageError and BusyError.
    Raises UsageError if each sample is not one record in order (blocks of packed tokens, shuffled
    records of tables).
    """
    with rewriting(dst, if_running, dry_run) as (old, new):
        plan = _planned(old)
        result = _result(old, plan)
        if new is None:
            return result
        if result.status == "up-to-date":
            new.target.refuse_lost_files(old.manifest)  # no shard is read
            return result
        _check_space(old, new, plan)
        with counting(progress, "shards", "compacting") as report:
            shards = list(_written(old, new, plan, report))
        objects = old.manifest.objects
        if objects is not None and objects["cut_off"]:
            objects = None  # how many were cut off is known of whole shards only
        totals = {"objects": objects, "steps": None}
        manifest = commit(old, new, shards, totals, "compact")
        return replace(result, bytes=manifest.bytes)


def _result(old: SourceDataset, plan: list[_Shard]) -> CompactResult:
    kept = sum(1 for shard in plan if shard.kept is not None)
    status = "up-to-date" if kept == len(plan) == len(old.shards) else "compacted"
    return CompactResult(
        status, old.manifest.samples, len(old.shards), len(plan), kept, old.manifest.bytes
    )


def _check_space(old: SourceDataset, new: NewGeneration, plan: list[_Shard]) -> None:
    read = {number for shard in plan if shard.kept is None for number in shard.of}
    need, free = sum(old.shards[number].bytes for number in read), new.target.free_bytes()
    if free is not None and need > free:
        shown = old.folder.shown()
        raise StorageError(
            f"{shown}: compacting needs about {format_bytes(need)}, and {format_bytes(free)} are "
            "free"
        )


@dataclass(frozen=True)
class _Shard(Rewritten):
    """A new shard, its rows of the old plan, in order (none where samples have no source), and the
    shard before that it is, if it is `kept`."""

    units: Numbers
    kept: int | None

    @property
    def of(self) -> set[int]:
        """The shards before that its rows are from."""
        return {shard for shard, _, _ in self.runs}


def _planned(old: SourceDataset) -> list[_Shard]:
    """Return all new shards, in the order of the dataset."""
    if old.joins:
        raise UsageError(
            f"{old.folder.shown()}: its samples are packed shard by shard; convert again "
            "with --overwrite"
        )
    limits = {
        name: old.manifest.settings[name]
        for name in ("shard_size", "samples_per_shard")
        if (old.manifest.settings.get(name) or NO_LIMIT) < NO_LIMIT
    }
    made: list[_Shard] = []
    for split, facts in enumerate(old.manifest.splits):
        atoms = _atoms(old, split, facts.name)
        weights = atoms[:, 3]
        size = facts.bytes / max(1, facts.samples)
        count = shard_count(facts.samples, size, Options(**limits), of_blocks=False)
        ends = np.cumsum(weights)
        of = (ends - weights + 1) * count - 1
        of = np.minimum(of // max(1, int(weights.sum())), count - 1)
        bounds = [*np.flatnonzero(np.diff(of, prepend=-1)).tolist(), len(atoms)]
        for number, (first, end) in enumerate(pairwise(bounds)):
            made.append(_of_atoms(old, facts.name, number, atoms[first:end]))
    return made


def _atoms(old: SourceDataset, split: int, name: str) -> Numbers:
    """Return what is moved as one, in the new order: shard, first row, rows, records, row of the
    plan; (n, 5) int64."""
    parts = [np.empty((0, 5), np.int64)]
    for shard, entry in enumerate(old.shards):
        if entry.split != name:
            continue
        if entry.units:
            units = old.units(shard)
            if not units.in_order:
                raise UsageError(
                    f"{old.folder.shown()}: its records were shuffled in their shards; "
                    "convert again with --overwrite"
                )
            shards = np.full(len(units), shard)
            columns = (shards, units.first_row, units.samples, units.records, units.number)
        else:
            one = np.ones(entry.rows, np.int64)
            columns = (shard * one, np.arange(entry.rows), one, one, -one)
        parts.append(np.stack(columns, axis=1))
    atoms: Numbers = np.concatenate(parts)
    if not old.manifest.sources:
        return atoms
    plan = old.plan
    file, first = (plan[column].to_numpy()[atoms[:, 4]] for column in ("file", "first"))
    atoms = atoms[np.lexsort((first, file))]
    shuffle = old.manifest.settings.get("shuffle")
    if shuffle is not None:
        atoms = atoms[Permutation(len(atoms), shuffle, split)(np.arange(len(atoms)))]
    return atoms


def _of_atoms(old: SourceDataset, split: str, number: int, atoms: Numbers) -> _Shard:
    shard, first, rows = atoms[atoms[:, 2] > 0, :3].T
    goes_on = (shard[1:] == shard[:-1]) & (first[1:] == first[:-1] + rows[:-1])
    begins = np.flatnonzero(np.append(True, ~goes_on)[: len(rows)])
    totals = np.add.reduceat(rows, begins) if len(rows) else rows
    columns = (shard[begins].tolist(), first[begins].tolist(), totals.tolist())
    runs = tuple(zip(*columns, strict=True))
    units = atoms[atoms[:, 4] >= 0, 4]
    # the shard before that has just these rows, of these units, under this name
    kept = old.shards.index_of(shard_name(split, number))
    if kept is not None:
        entry = old.shards[kept]
        in_place = entry.first_unit + np.arange(entry.units)
        whole = ((kept, 0, entry.rows),) if entry.rows else ()
        kept = kept if runs == whole and np.array_equal(units, in_place) else None
    return _Shard(split, number, runs, units, kept)


def _written(
    old: SourceDataset, new: NewGeneration, plan: list[_Shard], progress: Report
) -> Iterator[NewShard]:
    """Write the new shards that are not kept, and yield all of them in order."""
    inputs = _inputs_of_units(old)
    copied = copies(old, new, [shard for shard in plan if shard.kept is None], progress)
    objects = old.manifest.objects
    cut_off = None if old.layout.roles.objects and (objects is None or objects["cut_off"]) else 0
    for shard in plan:
        if shard.kept is not None:
            kept = old.shard(shard.kept)
            yield replace(kept, counts=replace(kept.counts, steps=()))
            continue
        found = next(copied)
        part = old.plan.take(pa.array(shard.units))
        samples = part["samples"].to_numpy()
        units = with_columns(part, {"first_row": pa.array(np.cumsum(samples) - samples)})
        shapes = sorted({shape for number in shard.of for shape in old.counts(number).shapes})
        counts = ShardCounts({}, tuple(shapes[:2]), 0, cut_off, _jpegs(old, new, found), ())
        read = int(inputs[shard.units].sum()) if len(shard.units) else found.facts.rows
        new.put(found.path)
        lines = old.lines(shard.units.tolist())
        yield shard.recorded(old, found, units, read, lines, counts)


def _jpegs(old: SourceDataset, new: NewGeneration, copied: Copied) -> tuple[int, ...] | None:
    """Count the JPEG images of a new shard. They are looked at only where not all of the dataset
    are of the same kinds."""
    counts, image = old.manifest.jpeg, old.layout.roles.main_image
    rows = copied.facts.rows
    if counts is None or image is None:
        return None
    if all(counts[name] in (0, old.manifest.samples) for name in COUNTS):
        return tuple(rows if counts[name] else 0 for name in COUNTS)
    blocks = ShardReader(LocalFolder(new.root), copied.path).blocks()
    return tuple(jpegs_in(blocks, image).counts().values())


def _inputs_of_units(old: SourceDataset) -> Numbers:
    """Return how many of the records of each unit were read for its shard, (units,); blank lines
    are not known of one unit.

    They are taken to be in proportion to its samples, so that the sum is right.
    """
    samples, rejected = (old.plan[name].to_numpy() for name in ("samples", "rejected"))
    inputs: Numbers = rejected.astype(np.int64)
    for entry in old.shards:
        rows = slice(entry.first_unit, entry.first_unit + entry.units)
        made = np.cumsum(samples[rows]) * (entry.inputs - entry.rejected) // max(1, entry.rows)
        inputs[rows] += np.diff(made, prepend=0)
        if entry.units and not entry.rows:
            inputs[rows.stop - 1] += entry.inputs - entry.rejected
    return inputs
