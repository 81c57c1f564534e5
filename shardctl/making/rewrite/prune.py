"""Samples that are taken out of a dataset for good: no byte of them stays in any of its files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import CONTINUES, InputError, StorageError, UsageError, explaining_interrupts
from shardctl.format.arrays import Numbers, hash_names
from shardctl.format.counts import COUNTS
from shardctl.format.dataset_folder import DatasetFolder
from shardctl.format.dataset_location import open_location
from shardctl.format.dataset_tables import ShardUnits, possible_names
from shardctl.format.names import (
    BESIDE_SHARDS,
    DATA,
    GENERATIONS,
    MANIFEST,
    content_digits,
    is_shard_of_format_2,
)
from shardctl.format.shard import ShardReader
from shardctl.format.shard_copy import Copied
from shardctl.format.tables import ShardEntry, pruned_reject
from shardctl.format.update_state import BY_KEY
from shardctl.loader.blocks.shards import Shards
from shardctl.loader.filtering import matching
from shardctl.loader.remote.open import remote_shards
from shardctl.loader.stream import Selection
from shardctl.making.commit.commit import NewGeneration, sweep
from shardctl.making.commit.jobs import job_of_partial
from shardctl.making.commit.target import Target, WriteLease
from shardctl.making.paths import destination_of
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
from shardctl.system.files import is_file, is_folder
from shardctl.system.folders import LocalFolder
from shardctl.system.progress import Report, counting
from shardctl.system.text import some


@dataclass(frozen=True)
class PruneResult:
    """What `prune` did: how many samples it removed, or would remove; how many there are left in
    how many shards.

    `shards_rewritten` had such samples. `missing` are keys of which there is no sample,
    `generations` the numbers of earlier generations that were deleted, since they had the samples
    too.
    """

    removed: int
    samples: int
    shards: int
    shards_rewritten: int
    missing: tuple[str, ...]
    generations: tuple[int, ...]


@explaining_interrupts(CONTINUES)
def prune(
    dst: str | Path,
    where: str | None = None,
    keys: Iterable[str] | None = None,
    *,
    dry_run: bool = False,
    if_running: str = "wait",
    progress: bool | Callable[[int, int], None] = True,
) -> PruneResult:
    """Remove the samples that match a condition, or that have these keys, from a dataset for good.

    `where` has the syntax of `inspect --where`. If one variant of a record matches, all samples of
    the record are removed. Shards without such samples do not change; kept generations are deleted.
    rejects.jsonl lists the records, and no later update brings a sample with such a key back
    (docs/update.md). `progress` False shows no progress on stderr; a function is called with shards
    done and shards instead. Raises DatasetError, UsageError for a wrong condition, or if samples
    cannot be told apart (blocks of packed tokens), InputError if no key is known, BusyError.
    """
    if where is None and keys is None:
        raise UsageError("prune needs a condition or keys: give --where, --key or --keys")
    if isinstance(keys, str):
        raise UsageError(f"keys takes a list; write keys=[{keys!r}]")
    if where is not None and keys is not None:
        raise UsageError("a condition and keys contradict each other; prune twice, once with each")
    with rewriting(dst, if_running, dry_run) as (old, new):
        chosen = _chosen(old, where, keys)
        if new is None:
            destination_of(dst, ())  # refuses a kept generation
            return _result(old, chosen)
        if chosen.rows:
            with counting(progress, "shards", "pruning") as report:
                shards, totals, pruned = _written(old, new, chosen, report)
            if old.manifest.has_own_keys:
                pruned = {(BY_KEY, key) for key in hash_names(chosen.keys).view(np.int64).tolist()}
            commit(old, new, shards, totals, "prune", chosen.samples, pruned)
        elif chosen.generations:
            alone = replace(old.manifest.keeping(0), keep=old.manifest.keep)
            new.target.replace_manifest(alone.to_json().encode(), new.held)
        again = old.manifest.generation.command == "prune"  # it may have been killed
        if chosen.rows or chosen.generations or again:
            new.held.check()
            _forget(new.target, new.held)
        return _result(old, chosen)


def _forget(target: Target, held: WriteLease) -> None:
    """Delete earlier generations, and unfinished conversions: they may have samples that are gone.
    Raises StorageError for what stays."""
    sweep(target, held, [job.name for job in target.jobs()], listed=target.sizes(f"{DATA}/"))
    for folder in kept_of_format_2(target.folder):
        names = sorted({*target.sizes(folder)}, key=lambda path: path.endswith(MANIFEST))
        ours = {f"{folder}{name}" for name in BESIDE_SHARDS}
        target.delete(
            path
            for path in names
            if path in ours or is_shard_of_format_2(path.removeprefix(folder))
        )
    manifest = target.manifest()
    assert manifest is not None, "it was committed"
    named = set(target.shards_of(manifest.generation.path))
    data = (path for path in target.sizes(f"{DATA}/") if path not in named)
    left = [path for path in data if content_digits(path) or job_of_partial(path)]
    gone = (folder for folder in target.generations() if folder != manifest.generation.path)
    left += [
        path
        for folder in gone
        for path in target.sizes(folder)
        if path.removeprefix(folder) in BESIDE_SHARDS
    ]
    if left:
        raise StorageError(
            f"{target.folder.shown(left[0])}: could not be deleted ({len(left):,} in all), and may "
            "have samples that were pruned; delete it, or run the same command again"
        )


@dataclass(frozen=True)
class _Chosen:
    """The rows that go, by shard, increasing, and their keys; keys that no sample has; and earlier
    generations that go, as they have them."""

    rows: dict[int, Numbers]
    keys: set[str]
    missing: tuple[str, ...]
    generations: tuple[int, ...]

    @property
    def samples(self) -> int:
        return sum(map(len, self.rows.values()))


def _result(old: SourceDataset, chosen: _Chosen) -> PruneResult:
    left = old.manifest.samples - chosen.samples
    return PruneResult(
        chosen.samples, left, len(old.shards), len(chosen.rows), chosen.missing, chosen.generations
    )


def _chosen(old: SourceDataset, where: str | None, keys: Iterable[str] | None) -> _Chosen:
    """Find the rows that go. Raises UsageError, InputError."""
    if old.joins:
        raise UsageError(
            f"{old.folder.shown()}: each sample is made of several records; remove those "
            "from the source, and convert again"
        )
    wanted = set(keys or ())
    if where is None and not wanted:
        raise UsageError("no key was given")

    def found_in(dataset: SourceDataset) -> tuple[dict[int, Numbers], set[str]]:
        if where is None:
            return _rows_with(dataset, wanted)
        return _rows_with(dataset, set(_keys_of(dataset, matching(_selection(dataset), where))))

    rows, found = found_in(old)
    kept = [(each.number, each.path) for each in old.manifest.kept]
    here = old.folder.local
    if here is not None:
        older = kept_of_format_2(LocalFolder(here))
        kept += [(int(folder.strip("/").rpartition("/")[2]), folder) for folder in older]
    has_them = bool(rows)
    for _, folder in kept if not rows else ():
        with open_location(f"{old.folder.text}/{folder}") as place:
            has_them = has_them or bool(found_in(SourceDataset(place.whole))[0])
    pruned = () if old.state is None else old.state.pruned
    before = {pruned_reject(source, record).key for source, record in pruned}
    missing = tuple(sorted(wanted - found - before))
    again = old.manifest.generation.command == "prune"
    if missing and not has_them and not again:
        raise InputError(f"{old.folder.shown()}: no sample has the key {some(missing)}")
    numbers = tuple(sorted(number for number, _ in kept))
    return _Chosen(rows, found, missing, numbers if has_them else ())


def _selection(dataset: SourceDataset) -> Selection:
    if isinstance(dataset.folder, DatasetFolder):
        return Selection(Shards(dataset.folder))
    number = dataset.manifest.generation.number
    return Selection(remote_shards(dataset.folder.text, None, number, False, None))


def kept_of_format_2(dataset: LocalFolder) -> list[str]:
    """Return the folders of generations that were kept before format 3, each a dataset of its own,
    with a / at their ends."""
    names = os.listdir(dataset.root / GENERATIONS) if is_folder(dataset.root / GENERATIONS) else []
    folders = sorted(f"{GENERATIONS}/{name}/" for name in names if name.isdecimal())
    return [folder for folder in folders if is_file(dataset.root / folder / MANIFEST)]


def _keys_of(old: SourceDataset, samples: Numbers) -> Iterator[str]:
    """Yield the keys of samples, by their numbers, increasing."""
    first = 0
    for _, _, keys in old.blocks_of_keys():
        here = samples[(samples >= first) & (samples < first + len(keys))] - first
        if len(here):
            yield from keys.take(pa.array(here)).to_pylist()
        first += len(keys)


def _rows_with(old: SourceDataset, wanted: set[str]) -> tuple[dict[int, Numbers], set[str]]:
    """Return the rows that have one of these keys, by shard; and the keys that were found."""
    rows: dict[int, list[Numbers]] = {}
    found: set[str] = set()
    values = pa.array(sorted(wanted), pa.string())
    for shard, first, keys in old.blocks_of_keys() if wanted else ():
        here = np.flatnonzero(pc.is_in(keys, value_set=values).to_numpy(zero_copy_only=False))
        if len(here):
            rows.setdefault(shard, []).append(first + here)
            found.update(keys.take(pa.array(here)).to_pylist())
    return {shard: np.concatenate(parts) for shard, parts in rows.items()}, found


# --- the new shards ---


def _written(
    old: SourceDataset, new: NewGeneration, chosen: _Chosen, progress: Report
) -> tuple[list[NewShard], dict[str, Any], set[tuple[str, int]]]:
    """Write the shards that have rows which go without these. Return all shards of the dataset,
    what its manifest says of the samples that are left, and the records that go."""
    labels, all_jpegs = Counter[tuple[str, int]](), Counter[str]()
    records, objects = set[tuple[str, int]](), 0
    shards: list[NewShard] = []
    # in the order of the dataset
    without = {shard: _without(old, shard, rows) for shard, rows in chosen.rows.items()}
    copied = copies(old, new, list(without.values()), progress)
    for shard, entry in enumerate(old.shards):
        if shard not in without:
            shards.append(old.shard(shard))
            continue
        rows, found, jpegs = chosen.rows[shard], next(copied), Counter[str]()
        new.put(found.path)
        _count_gone(old, entry, rows, labels, jpegs)
        objects += max(0, old.counts(shard).objects - found.objects)
        all_jpegs.update(jpegs)
        shards.append(_left(old, shard, rows, without[shard], found, jpegs, records))
    return shards, _totals(old, labels, objects, all_jpegs), records


def _without(old: SourceDataset, shard: int, rows: Numbers) -> Rewritten:
    """Return a shard without some rows."""
    entry = old.shards[shard]
    ends = np.concatenate([[-1], rows, [entry.rows]])
    runs = [
        (shard, low + 1, high - low - 1) for low, high in pairwise(ends.tolist()) if high - low > 1
    ]
    return Rewritten(entry.split, entry.number, runs)


def _taken(old: SourceDataset, entry: ShardEntry, rows: Numbers) -> Iterator[pa.RecordBatch]:
    """Yield some rows of a shard, (n,), increasing, those of a block together."""
    reader, first = ShardReader(old.folder, entry.path), 0
    for block, count in enumerate(entry.block_rows):
        here = rows[(rows >= first) & (rows < first + count)] - first
        first += count
        if len(here):
            yield reader.block(block).take(pa.array(here))


def _count_gone(
    old: SourceDataset,
    entry: ShardEntry,
    rows: Numbers,
    labels: Counter[tuple[str, int]],
    jpegs: Counter[str],
) -> None:
    """Count the labels of rows that go, and what their images are as JPEG."""
    label, image = old.layout.roles.main_label, old.layout.roles.main_image
    for batch in _taken(old, entry, rows):
        if label is not None and old.layout.classes is not None:
            values = batch.column(label).drop_null().to_pylist()
            labels.update((entry.split, value) for value in values)
        if old.shards.records_jpegs and image is not None:
            jpegs.update(jpegs_in([batch], image).counts())


def _left(
    old: SourceDataset,
    shard: int,
    rows: Numbers,
    without: Rewritten,
    copied: Copied,
    gone: Counter[str],
    pruned: set[tuple[str, int]],
) -> NewShard:
    """Return a shard without some rows: what becomes of its units and its rejects. `gone` counts the
    JPEG images that go, and the records are added to `pruned`."""
    entry, counts = old.shards[shard], old.counts(shard)
    if counts.jpegs is not None:
        left = zip(COUNTS, counts.jpegs, strict=True)
        counts = replace(counts, jpegs=tuple(count - gone[name] for name, count in left))
    part = old.plan.slice(entry.first_unit, entry.units)
    if not entry.units:  # samples without a source: each counts as a record
        return without.recorded(old, copied, part, copied.facts.rows, (), counts)
    units = old.units(shard)
    by_place = old.manifest.has_own_keys or not units.first.any()
    found = _by_place(old, units, rows) if by_place else _by_key(old, entry, units, rows)
    samples, rejected = units.samples.copy(), units.rejected.copy()
    rejecting = np.flatnonzero(rejected).tolist()
    rejects = {place: [*old.rejects[entry.first_unit + place]] for place in rejecting}
    paths = old.paths_of(units.file).to_pylist()
    for (place, record), count in Counter(found).items():
        samples[place] -= count
        rejected[place] += 1
        pruned.add((paths[place], record))
        rejects.setdefault(place, []).append(pruned_reject(paths[place], record))
    lines = [
        reject.line()
        for _, of_unit in sorted(rejects.items())
        for reject in sorted(of_unit, key=attrgetter("number"))
    ]
    digests = units.has_digest & ((samples > 0) | (samples == units.samples))
    changed = {
        "first_row": units.first_row - np.searchsorted(rows, units.first_row),
        "samples": samples,
        "rejected": rejected,
        "digest": pa.array(units.digest * digests, mask=~digests),
    }
    return without.recorded(old, copied, with_columns(part, changed), entry.inputs, lines, counts)


def _by_place(old: SourceDataset, units: ShardUnits, rows: Numbers) -> Iterator[tuple[int, int]]:
    """Yield the unit and the record of each row, where rows are in the order of the records. Raises
    UsageError if not."""
    if not units.in_order:
        raise _unknown_records(old, "its records were shuffled")
    for row, place in zip(rows.tolist(), units.places_in_order(rows).tolist(), strict=True):
        if not units.first[place]:
            yield place, 0
            continue
        if units.rejected[place] or units.samples[place] != units.records[place]:
            raise _unknown_records(old, "some records near these samples were left out")
        yield place, int(units.first[place] + row - units.first_row[place])


def _unknown_records(old: SourceDataset, why: str) -> UsageError:
    return UsageError(
        f"{old.folder.shown()}: its keys are values of a field, and {why}; remove them "
        "from the source, and convert again"
    )


def _by_key(
    old: SourceDataset, entry: ShardEntry, units: ShardUnits, rows: Numbers
) -> Iterator[tuple[int, int]]:
    """Yield the unit and the record of each row, as its key names them."""
    files = np.unique(units.file)
    paths = dict(zip(old.paths_of(files).to_pylist(), files.tolist(), strict=True))
    for batch in _taken(old, entry, rows):
        for key in batch.column("key").to_pylist():
            path, record = next(each for each in possible_names(key) if each[0] in paths)
            of_file = (
                (units.file == paths[path])
                & (units.first <= record)
                & (record < units.first + units.records)
            )
            yield int(np.flatnonzero(of_file)[0]), record


def _totals(
    old: SourceDataset, labels: Counter[tuple[str, int]], dropped: int, jpegs: Counter[str]
) -> dict[str, Any]:
    """Return what the manifest says of the samples that are left, without these."""
    manifest = old.manifest
    counts = manifest.class_counts
    if counts is not None:
        counts = {
            split: [count - labels[split, label] for label, count in enumerate(of_split)]
            for split, of_split in counts.items()
        }
    objects = manifest.objects
    if objects is not None:
        objects = {**objects, "kept": objects["kept"] - dropped} if old.state is not None else None
    jpeg = manifest.jpeg and {name: count - jpegs[name] for name, count in manifest.jpeg.items()}
    return {"class_counts": counts, "objects": objects, "jpeg": jpeg}
