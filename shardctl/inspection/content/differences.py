"""Which samples, fields or settings differ between two datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import DatasetError, UsageError
from shardctl.format.arrays import Hashes, Numbers, hash_names
from shardctl.format.dataset_location import DatasetLocation
from shardctl.format.dataset_tables import DatasetTables, ShardUnits, take
from shardctl.format.manifest import Manifest
from shardctl.format.names import CHECKSUMS, SHARDS
from shardctl.format.shard import BlockFile
from shardctl.format.tables import ShardEntry
from shardctl.loader.dataset import open_dataset
from shardctl.system.folders import Folder
from shardctl.system.permutation import mix64

EXAMPLES = 10
_CHUNK = 256
"""Samples whose values are compared at a time."""

_SETTINGS = ("kind", "recipe", "settings", "fields", "shardctl_version", "sources")


@dataclass(frozen=True)
class Pair:
    """Something that both have, and what each has."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True)
class ChangedSample:
    """A sample that both have, and the fields in which it differs."""

    key: str
    fields: tuple[str, ...]


@dataclass(frozen=True)
class Differences:
    """What differs between datasets A and B; examples are a few of many.

    `fields` are the columns that not both have in the same type, `changed_fields` counts the
    samples that differ in each. A sample is known by its key and its variant.
    """

    settings: tuple[Pair, ...]
    fields: tuple[Pair, ...]
    samples: Pair
    in_both: int
    only_in_a: int
    only_in_b: int
    only_in_a_examples: tuple[str, ...]
    only_in_b_examples: tuple[str, ...]
    changed: int
    changed_fields: dict[str, int]
    changed_examples: tuple[ChangedSample, ...]

    @property
    def same_samples(self) -> bool:
        """Whether both have the same samples with the same values."""
        return not (self.fields or self.only_in_a or self.only_in_b or self.changed)


class _Side:
    """One of the two datasets: which samples it has, in the order of the dataset.

    `hashes` (n,) are those of keys and variants, `checks` (n,) of what each sample was made from, 0
    where that is unknown. The samples of its splits, by their `names`, end before `ends`.
    """

    def __init__(self, place: DatasetLocation) -> None:
        folder = place.folder
        if place.lone:
            raise UsageError(f"{place.shown}: is one shard; two whole datasets can be compared")
        self.manifest, self.dataset = Manifest.load(folder), open_dataset(folder.text)
        stored = DatasetTables(folder)
        nothing = np.empty(0, np.uint64)
        hashes, checks = [nothing], [nothing]
        for number, entry in enumerate(stored.shards):
            hashes += _names(folder, entry)
            checks.append(_checks(stored, stored.units(number)))
        self.hashes, self.checks = np.concatenate(hashes), np.concatenate(checks)
        splits = self.manifest.splits
        self.names = np.array([split.name for split in splits])
        self.ends = np.cumsum([split.samples for split in splits])

    def values(self, which: Numbers, columns: list[str]) -> Mapping[str, Any]:
        """Return the values of some of the samples, as they are stored."""
        return self.dataset.take(which.tolist(), columns, decode=False)

    def keys(self, which: Numbers) -> list[str]:
        """Return the keys of some of the samples."""
        return list(self.values(which, ["key"])["key"])


def _names(folder: Folder, entry: ShardEntry) -> Iterator[Hashes]:
    """Yield a hash of the key and the variant of every row of a shard; only these columns are read.
    Raises DatasetError."""
    schema = BlockFile.of(folder, entry.path).schema
    file = BlockFile.of(
        folder,
        entry.path,
        [at for at, name in enumerate(schema.names) if name in ("key", "variant")],
    )
    if len(file) != len(entry.block_rows) or "key" not in file.schema.names:
        raise DatasetError(
            f"{folder.shown(entry.path)}: is not as {SHARDS} has it; `shardctl verify` tells more"
        )
    for block, rows in enumerate(entry.block_rows):
        batch = file.checked(block)[0]
        try:
            names = hash_names(batch.column("key").to_pylist())
            if batch.num_rows != rows:
                raise ValueError(f"it has {batch.num_rows} rows where {rows} were written")
            if "variant" in batch.schema.names:
                names ^= mix64(
                    np.array(
                        [hash(value) for value in batch.column("variant").to_pylist()], np.int64
                    ).view(np.uint64)
                )
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise file.unreadable(block, error) from error
        yield names


def _checks(stored: DatasetTables, units: ShardUnits) -> Hashes:
    """Return a hash of all that each row of a shard is made from, the recipe apart: bytes, split,
    what labels say. (rows,)

    A record is known by its number in a unit: where units differ, or were mixed, it is 0.
    """
    if not units.apart:
        return np.zeros(units.entry.rows, np.uint64)
    checks = mix64(units.digest ^ np.uint64(xxhash.xxh3_64_intdigest(units.entry.split.encode())))
    for numbers in (units.first, units.skip, units.records):
        checks = mix64(checks ^ mix64(numbers.astype(np.uint64)))
    for column in stored.said.columns if len(units) else ():
        said = [
            xxhash.xxh3_64_intdigest(repr(value).encode())
            for value in take(column, units.file).to_pylist()
        ]
        checks = mix64(checks ^ np.array(said, np.uint64))
    checks[~units.has_digest] = 0
    return np.repeat(checks, units.samples)


def differences(
    a: DatasetLocation,
    b: DatasetLocation,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Differences:
    """Compare two datasets. `report` is called with (samples compared, samples). Raises
    DatasetError, UsageError.

    Values are read of every sample that both have, unless both were made in the same way from the
    same input. Memory: about 40 bytes per sample.
    """
    if not (a.lone or b.lone):
        of_a, of_b = Manifest.load(a.folder), Manifest.load(b.folder)
        if of_a.files[CHECKSUMS] == of_b.files[CHECKSUMS]:  # all files had the same bytes
            settings, samples = tuple(_setting_pairs(of_a, of_b)), of_a.samples
            both = Pair("samples", samples, samples)
            return Differences(settings, (), both, samples, 0, 0, (), (), 0, {}, ())
    one, other = _Side(a), _Side(b)
    in_a, in_b = _matched(one.hashes, other.hashes)
    only_a, only_b = (
        np.setdiff1d(np.arange(len(side.hashes)), there)
        for side, there in ((one, in_a), (other, in_b))
    )
    fields = _field_pairs(one.dataset.schema, other.dataset.schema)
    in_question = np.ones(len(in_a), bool)
    if not fields and _made_alike(one.manifest, other.manifest):
        checks = one.checks[in_a], other.checks[in_b]
        in_question = (checks[0] != checks[1]) | (checks[0] == 0)
    left_out = {"key", *(pair.name for pair in fields)}
    columns = [name for name in one.dataset.schema.names if name not in left_out]
    pairs = in_a[in_question], in_b[in_question]
    counts, examples, changed = Counter[str](), list[ChangedSample](), 0
    for first in range(0, len(pairs[0]), _CHUNK):
        places = tuple(each[first : first + _CHUNK] for each in pairs)
        for place, of_sample in enumerate(_differing(one, other, places, columns)):
            if of_sample:
                changed += 1
                counts.update(of_sample)
                if len(examples) < EXAMPLES:
                    (key,) = one.keys(places[0][place : place + 1])
                    examples.append(ChangedSample(key, tuple(of_sample)))
        report(min(first + _CHUNK, len(pairs[0])), len(pairs[0]))
    return Differences(
        settings=tuple(_setting_pairs(one.manifest, other.manifest)),
        fields=tuple(fields),
        samples=Pair("samples", len(one.hashes), len(other.hashes)),
        in_both=len(in_a),
        only_in_a=len(only_a),
        only_in_b=len(only_b),
        only_in_a_examples=tuple(one.keys(only_a[:EXAMPLES])),
        only_in_b_examples=tuple(other.keys(only_b[:EXAMPLES])),
        changed=changed,
        changed_fields=dict(counts.most_common()),
        changed_examples=tuple(examples),
    )


def _matched(a: Hashes, b: Hashes) -> tuple[Numbers, Numbers]:
    """Return where the hashes that both have are in each, in the order of `a`."""
    order = np.argsort(b)
    places = np.searchsorted(b[order], a)
    places[places == len(b)] = 0
    found = np.flatnonzero(b[order][places] == a) if len(b) else np.empty(0, np.int64)
    return found, order[places[found]]


def _made_alike(a: Manifest, b: Manifest) -> bool:
    parts = [
        {n: d for n, d in m.fingerprint_parts.items() if n not in ("inputs", "settings")}
        for m in (a, b)
    ]
    return parts[0] == parts[1] and bool(parts[0]) and a.fields == b.fields


def _field_pairs(a: pa.Schema, b: pa.Schema) -> list[Pair]:
    types = [{field.name: str(field.type) for field in schema} for schema in (a, b)]
    names = dict.fromkeys([*types[0], *types[1]])
    return [pair for name in names for pair in _pairs(name, *(of.get(name) for of in types))]


def _setting_pairs(a: Manifest, b: Manifest) -> Iterator[Pair]:
    for name in _SETTINGS:
        yield from _pairs(name, getattr(a, name), getattr(b, name))
    counts = [{split.name: split.samples for split in manifest.splits} for manifest in (a, b)]
    yield from _pairs("samples of split", *counts)


def _pairs(name: str, a: Any, b: Any) -> Iterator[Pair]:
    """Yield what differs between two values, part by part where both are tables, or lists of tables
    (numbered from 1)."""
    if isinstance(a, dict) and isinstance(b, dict):
        for part in dict.fromkeys([*a, *b]):
            yield from _pairs(f"{name} {part}", a.get(part), b.get(part))
    elif _are_tables(a) and _are_tables(b):
        for number, (one, other) in enumerate(zip_longest(a, b), 1):
            yield from _pairs(f"{name} {number}", one, other)
    elif a != b:
        yield Pair(name, a, b)


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _differing(
    one: _Side, other: _Side, places: tuple[Numbers, ...], columns: list[str]
) -> list[list[str]]:
    """Return the fields in which each pair of samples differs."""
    found: list[list[str]] = [[] for _ in places[0]]
    sides = list(zip((one, other), places, strict=True))
    batches = [side.values(own, columns) for side, own in sides]
    splits = [side.names[np.searchsorted(side.ends, own, side="right")] for side, own in sides]
    pairs = [(name, *(batch[name] for batch in batches)) for name in columns]
    for name, of_one, of_other in [*pairs, ("split", *splits)]:
        for fields, a, b in zip(found, of_one, of_other, strict=True):
            if not _same(a, b):
                fields.append(name)
    return found


def _same(one: Any, other: Any) -> bool:
    """Return whether two values of a field are the same: numbers, arrays, lists and dicts of
    arrays, None for a missing one."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    numbers = (float, np.ndarray, np.floating)
    if isinstance(one, numbers) or isinstance(other, numbers):
        both = np.asarray(one), np.asarray(other)
        return bool(
            np.array_equal(*both, equal_nan=both[0].dtype.kind == both[1].dtype.kind == "f")
        )
    return bool(one == other)
