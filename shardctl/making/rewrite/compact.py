"""Shards that are put in order again after many updates: full ones, with the samples as a
conversion orders them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import CONTINUES, StorageError, UsageError, explaining_interrupts
from shardctl.format.counts import COUNTS
from shardctl.format.names import shard_name
from shardctl.format.shard import ShardReader
from shardctl.format.shard_copy import Copied, Run, copy_shard
from shardctl.format.tables import PLAN_SCHEMA, Reject, ShardEntry
from shardctl.format.update_state import ShardCounts
from shardctl.images.codecs.jpeg import jpeg_facts
from shardctl.making.convert.conversion_plan import SMALLEST_SHARD_ROWS, shards_of
from shardctl.making.convert.targets import refuse_lost_files
from shardctl.making.options import Options
from shardctl.making.rewrite.commit import NewShard, SourceDataset, commit, rewriting
from shardctl.making.shards.rows import record_of_jpegs
from shardctl.system.files import free_bytes
from shardctl.system.folders import LocalFolder
from shardctl.system.locations import here_only
from shardctl.system.machine import usable_cores
from shardctl.system.permutation import Permutation
from shardctl.system.progress import counting
from shardctl.system.text import format_bytes, printable

Numbers = npt.NDArray[np.int64]

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
    root = here_only(dst, "compact")
    if dry_run:
        old = SourceDataset(root)
        return _result(old, _Plan(old))
    waiting = (lambda owner: None) if if_running == "wait" else None
    with rewriting(dst, waiting) as (old, new, held):
        plan = _Plan(old)
        result = _result(old, plan)
        if result.status == "up-to-date":
            return result
        _check_space(old, plan)
        with counting(progress, "shards", "compacting") as report:
            shards = list(_written(old, new, plan, report))
        objects = old.manifest.objects
        if objects is not None and objects["cut_off"]:
            objects = None  # how many were cut off is known of whole shards only
        totals = {
            "class_counts": old.manifest.class_counts,
            "objects": objects,
            "jpeg": old.manifest.jpeg,
            "steps": None,
        }
        manifest = commit(old, new, held, shards, old.files, totals, "compact")
        return replace(result, bytes=manifest.bytes)


def _result(old: SourceDataset, plan: _Plan) -> CompactResult:
    kept = sum(1 for shard in plan.shards if shard.kept is not None)
    status = "up-to-date" if kept == len(plan.shards) == len(old.table) else "compacted"
    if status == "up-to-date":
        refuse_lost_files(old.root, old.manifest)  # no shard is read
    return CompactResult(
        status, old.manifest.samples, len(old.table), len(plan.shards), kept, old.manifest.bytes
    )


def _check_space(old: SourceDataset, plan: _Plan) -> None:
    need = sum(
        old.table[shard].bytes
        for shard in {unit for each in plan.shards if each.kept is None for unit in each.of}
    )
    free = free_bytes(old.root)
    if need > free:
        shown = printable(str(old.root))
        raise StorageError(
            f"{shown}: compacting needs about {format_bytes(need)}, and {format_bytes(free)} are "
            "free"
        )


@dataclass(frozen=True)
class _Shard:
    """A new shard: its split, its number, its rows of the old plan, in order (none where samples
    have no source).

    `runs` are the rows that it has, as (shard before, first row, rows); `kept` is the shard before
    that it is.
    """

    split: str
    number: int
    units: Numbers
    runs: tuple[tuple[int, int, int], ...]
    kept: int | None

    @property
    def of(self) -> set[int]:
        """The shards before that its rows are from."""
        return {shard for shard, _, _ in self.runs}


class _Plan:
    """Which rows each new shard has."""

    def __init__(self, old: SourceDataset) -> None:
        self._old = old
        if old.stored.joins:
            raise UsageError(
                f"{printable(str(old.root))}: its samples are packed shard by shard; convert the "
                "sources again with --overwrite"
            )

    @cached_property
    def shards(self) -> list[_Shard]:
        """All new shards, in the order of the dataset."""
        made: list[_Shard] = []
        for split, facts in enumerate(self._old.manifest.splits):
            atoms = self._atoms(split, facts.name)
            weights = atoms[:, 3]
            total = int(weights.sum())
            count = self._count(facts.samples, facts.bytes)
            before = np.cumsum(weights) - weights
            of = (
                np.minimum(((before + 1) * count - 1) // max(1, total), count - 1)
                if len(atoms)
                else np.empty(0, np.int64)
            )
            bounds = np.flatnonzero(np.diff(of, prepend=-1))
            for number, (first, end) in enumerate(pairwise([*bounds.tolist(), len(atoms)])):
                made.append(self._shard(facts.name, number, atoms[first:end]))
        return made

    def _count(self, samples: int, size: int) -> int:
        """Return how many shards a conversion would make of so many samples."""
        settings = self._old.manifest.settings
        limits = {
            name: settings[name]
            for name in ("shard_size", "samples_per_shard")
            if settings.get(name) is not None and settings[name] < NO_LIMIT
        }
        return shards_of(samples, size / max(1, samples), Options(**limits), SMALLEST_SHARD_ROWS)

    def _atoms(self, split: int, name: str) -> Numbers:
        """Return what is moved as one, in the new order: shard, first row, rows, records, row of
        the plan; (n, 5) int64."""
        parts = [np.empty((0, 5), np.int64)]
        for shard, entry in enumerate(self._old.table):
            if entry.split == name:
                parts.append(self._of_shard(shard, entry))
        atoms: Numbers = np.concatenate(parts)
        if not self._old.manifest.sources:
            return atoms
        plan = self._old.stored.plan
        units = atoms[:, 4]
        file, first = (plan[column].to_numpy()[units] for column in ("file", "first"))
        atoms = atoms[np.lexsort((first, file))]
        shuffle = self._old.manifest.settings.get("shuffle")
        if shuffle is not None:
            atoms = atoms[Permutation(len(atoms), shuffle, split)(np.arange(len(atoms)))]
        return atoms

    def _of_shard(self, shard: int, entry: ShardEntry) -> Numbers:
        if not entry.units:
            rows = np.arange(entry.rows)
            one = np.ones_like(rows)
            return np.stack([shard * one, rows, one, one, -one], axis=1)
        units = self._old.stored.units(shard)
        if not units.in_order:
            raise UsageError(
                f"{printable(str(self._old.root))}: its records were shuffled within their shards; "
                "convert the sources again with --overwrite"
            )
        count = len(units)
        return np.stack(
            [np.full(count, shard), units.first_row, units.samples, units.records, units.number],
            axis=1,
        )

    def _shard(self, split: str, number: int, atoms: Numbers) -> _Shard:
        shard, first, rows = atoms[:, 0], atoms[:, 1], atoms[:, 2]
        there = rows > 0
        shard, first, rows = shard[there], first[there], rows[there]
        begins = np.flatnonzero(
            np.concatenate(
                [[True], (shard[1:] != shard[:-1]) | (first[1:] != first[:-1] + rows[:-1])]
            )
        )
        ends = np.append(begins[1:], len(rows))
        runs = tuple(
            (int(shard[begin]), int(first[begin]), int(rows[begin:end].sum()))
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
            if end > begin
        )
        units = atoms[:, 4][atoms[:, 4] >= 0]
        return _Shard(split, number, units, runs, self._kept(split, number, units, runs))

    def _kept(
        self, split: str, number: int, units: Numbers, runs: tuple[tuple[int, int, int], ...]
    ) -> int | None:
        """Return the shard before that has just these rows, of these units, under this name; None
        if there is none."""
        name = shard_name(split, number)
        place = self._old.table.index_of(name) if not runs else runs[0][0]
        if place is None or len(runs) > 1 or any(first for _, first, _ in runs):
            return None
        entry = self._old.table[place]
        same = (
            entry.path == name
            and entry.rows == sum(rows for *_, rows in runs)
            and entry.units == len(units)
        )
        in_place = np.array_equal(units, entry.first_unit + np.arange(entry.units))
        return place if same and in_place else None


def _written(
    old: SourceDataset, new: Path, plan: _Plan, progress: Callable[[int, int], None]
) -> Iterator[NewShard]:
    """Write the new shards that are not kept, and yield all of them in order."""
    inputs = _inputs_of_units(old)
    rejects = _rejects_of_units(old)
    with ThreadPoolExecutor(usable_cores()) as pool:  # copying and hashing let other threads run
        copies = {
            place: pool.submit(_copy, old, new, shard)
            for place, shard in enumerate(plan.shards)
            if shard.kept is None
        }
        done = 0
        for place, shard in enumerate(plan.shards):
            lines = [
                reject.line() for unit in shard.units.tolist() for reject in rejects.get(unit, ())
            ]
            if shard.kept is not None:
                number, entry = shard.kept, old.table[shard.kept]
                units = old.stored.plan.slice(entry.first_unit, entry.units)
                counts = replace(old.counts(number), steps=())
                yield NewShard(entry, units, lines, counts, old.plain(number), True)
                continue
            copied = copies[place].result()
            done += 1
            progress(done, len(copies))
            yield _new_shard(old, new, shard, copied, inputs, lines)


def _runs(old: SourceDataset, shard: _Shard) -> list[Run]:
    # there may be thousands of runs of one
    entries = {number: old.table[number] for number in shard.of}
    return [
        Run(old.stored.folder, entries[number].path, entries[number].block_rows, first, rows)
        for number, first, rows in shard.runs
    ]


def _copy(old: SourceDataset, new: Path, shard: _Shard) -> Copied:
    path = new / shard_name(shard.split, shard.number)
    return copy_shard(
        path, old.layout, shard.split, shard.number, old.compression, _runs(old, shard)
    )


def _new_shard(
    old: SourceDataset,
    new: Path,
    shard: _Shard,
    copied: Copied,
    inputs: Numbers,
    lines: list[bytes],
) -> NewShard:
    """Return what is recorded of a shard that was written."""
    facts = copied.facts
    part = old.stored.plan.take(pa.array(shard.units))
    samples, rejected = part["samples"].to_numpy(), part["rejected"].to_numpy()
    columns = {name: part[name] for name in PLAN_SCHEMA.names} | {
        "first_row": pa.array(np.cumsum(samples) - samples)
    }
    entry = ShardEntry(
        split=shard.split,
        path=shard_name(shard.split, shard.number),
        units=len(shard.units),
        inputs=int(inputs[shard.units].sum()) if len(shard.units) else facts.rows,
        rejected=int(rejected.sum()),
        **vars(facts),
    )
    plain = None
    if old.table.jpegs is not None:
        first = old.table.first
        parts = [
            old.table.jpegs.only(int(first[number]) + start, rows)
            for number, start, rows in shard.runs
        ]
        plain = np.concatenate([np.empty(0, bool), *parts])
    shapes = tuple(sorted({shape for number in shard.of for shape in old.counts(number).shapes}))[
        :2
    ]
    objects = old.manifest.objects
    cut_off = None if old.layout.roles.objects and (objects is None or objects["cut_off"]) else 0
    counts = ShardCounts(
        dict(copied.labels), shapes, copied.objects, cut_off, _jpegs(old, new, entry), ()
    )
    table = pa.table([columns[name] for name in PLAN_SCHEMA.names], schema=PLAN_SCHEMA)
    return NewShard(entry, table, lines, counts, plain, False)


def _jpegs(old: SourceDataset, new: Path, entry: ShardEntry) -> tuple[int, ...] | None:
    """Count the JPEG images of a new shard. They are looked at only where not all of the dataset
    are of the same kinds."""
    counts, image = old.manifest.jpeg, old.layout.roles.main_image
    if counts is None or image is None:
        return None
    if all(counts[name] in (0, old.manifest.samples) for name in COUNTS):
        return tuple(entry.rows if counts[name] else 0 for name in COUNTS)
    data = (
        each.as_py()
        for block in ShardReader(LocalFolder(new), entry.path).blocks()
        for each in block.column(image).field("bytes")
    )
    return tuple(record_of_jpegs([jpeg_facts(each) for each in data]).counts().values())


def _inputs_of_units(old: SourceDataset) -> Numbers:
    """Return how many of the records of each unit were read for its shard, (units,); blank lines
    are not known of one unit.

    They are taken to be in proportion to its samples, so that the sum is right.
    """
    samples, rejected = (old.stored.plan[name].to_numpy() for name in ("samples", "rejected"))
    inputs = rejected.astype(np.int64)
    for entry in old.table:
        rows = slice(entry.first_unit, entry.first_unit + entry.units)
        made = np.cumsum(samples[rows]) * (entry.inputs - entry.rejected) // max(1, entry.rows)
        inputs[rows] += np.diff(made, prepend=0)
        if entry.units and not entry.rows:
            inputs[rows.stop - 1] += entry.inputs - entry.rejected
    counted: Numbers = inputs
    return counted


def _rejects_of_units(old: SourceDataset) -> dict[int, list[Reject]]:
    """Return the rejects of each unit that has some, by its row of the plan."""
    rejected = np.flatnonzero(old.stored.plan["rejected"].to_numpy())
    rejects = (of_unit for of_shard in old.rejects for of_unit in of_shard)
    return dict(zip(rejected.tolist(), rejects, strict=True))
