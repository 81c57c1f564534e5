"""Datasets of samples that are made in Python: the same shards, tables and commit as those of a conversion, and no source."""

from __future__ import annotations

import contextlib
import copy
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl import lease
from shardctl.conversion import publish
from shardctl.conversion.options import check_destination, check_if_running, check_shards, check_writable
from shardctl.conversion.staging import REPAIR_PREFIX, discard
from shardctl.engines.job import NEW_FOLDER
from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.layout import Layout
from shardctl.manifest import Manifest
from shardctl.pipeline.sizes import row_size
from shardctl.sample import Sample
from shardctl.shard import Compression
from shardctl.sources.splits import is_split_name
from shardctl.storage import naming_the_path, printable
from shardctl.tables import MADE_BY, MANIFEST, STAGING
from shardctl.transforms.values import DEEPEST, PLAIN
from shardctl.writing.fields import Fields, Given
from shardctl.writing.finishing import finish
from shardctl.writing.keys import Keys
from shardctl.writing.marks import roles_of
from shardctl.writing.series import ShardSeries

FIRST_SAMPLES = 1024
"""How many samples are looked at for the types of their fields, where no schema is given."""

SHARD_BYTES = 128 << 20


@dataclass(frozen=True)
class WriteResult:
    """What `write` wrote: how many samples, shards and bytes (of the shards), in how many seconds."""

    samples: int
    shards: int
    bytes: int
    seconds: float
    fingerprint: str


def write(
    dst: str | Path,
    samples: Iterable[Sample] | Mapping[str, Iterable[Sample]],
    schema: pa.Schema | None = None,
    *,
    classes: Sequence[str] | None = None,
    roles: Mapping[str, str | Mapping[str, Any]] | None = None,
    store: str | None = None,
    compression: str = "auto",
    shard_size: int | None = None,
    samples_per_shard: int | None = None,
    overwrite: bool = False,
    if_running: str = "wait",
) -> WriteResult:
    """Write samples that are made in Python as a dataset: the same files and the same commit as those of `convert`.

    `samples` are dicts of field name to value, in the order of the dataset, taken one at a time; or such an iterable for each
    split, by name (else all are in the split `train`). `key` names a sample; without it samples are numbered: 000000000,
    000000001. No two samples have the same key, in whichever splits, unless a field `variant` tells them apart; a repeated one
    is found when all are written. `image` is an encoded image (bytes, which are kept) or pixels, (H, W, 3) uint8, kept as
    `store` says: `raw` (the default; one shape for all), `png`, `jpeg:90`, `webp:80`. With `classes`, their names, `label` is a
    name or a number. `roles` says which fields are marked in the image, so that the loader moves them with it: `"objects"`, a
    dict of lists (bbox as x, y, width, height in pixels, category, …) with an item for each object, or `"mask"`, (H, W) uint8
    or uint16 or the bytes of a PNG; `{"role": "objects", "names": ["cat", "dog"]}` has facts too. Lists of whole numbers can be
    `{"role": "tokens", "vocabulary": 50257, "eos": 50256}`. `schema` gives the Arrow type
    of every field; without it, types are found in the first 1,024 samples. No value is changed, but for places of objects,
    which are float32: one that does not fit its column is an error. A shard has `shard_size` bytes (by default 128 MiB) or
    `samples_per_shard`.

    Nothing is at `dst` before all of it is. Raises InputError for a sample that cannot be written, UsageError, StorageError,
    BusyError, and DatasetError if there is a dataset and `overwrite` is not set; what the iterable raises ends it as well.
    """
    began = time.monotonic()
    limits = _Limits.of(shard_size, samples_per_shard)
    given = Given(schema, tuple(classes) if classes else None, store, compression, roles_of(roles))
    check_if_running(if_running)
    parts = dict(samples) if isinstance(samples, Mapping) else {"train": samples}
    _refuse_bad_names(parts)
    target = check_destination(Path(dst), [])
    check_writable(target)
    _refuse_existing(target, overwrite)
    waiting: Callable[[str], None] | None = (lambda owner: None) if if_running == "wait" else None
    with lease.hold(target / STAGING, waiting) as held:
        publish.recover(target)
        _refuse_existing(target, overwrite)
        folder = target / STAGING / f"{REPAIR_PREFIX}{secrets.token_hex(4)}"
        new = folder / NEW_FOLDER
        try:
            with naming_the_path(new):
                new.mkdir(parents=True)
            manifest = _write_all(new, parts, given, limits)
            held.check()
            publish.publish(new, target)
        finally:
            if folder.exists() and not publish.is_taking_its_place(folder):
                with contextlib.suppress(OSError):  # the next one that writes deletes it
                    discard(folder)
    seconds = round(time.monotonic() - began, 3)
    return WriteResult(manifest.samples, manifest.shards, manifest.bytes, seconds, manifest.fingerprint)


def _refuse_bad_names(parts: Mapping[str, object]) -> None:
    bad = [name for name in parts if not isinstance(name, str) or not is_split_name(name)]
    if bad:
        raise UsageError(f"split name {bad[0]!r} must be made of letters, digits, _ and .")
    if not parts:
        raise UsageError("no split was given; give an iterable of samples, or one for each split by name")


def _refuse_existing(target: Path, overwrite: bool) -> None:
    if not overwrite and (target / MANIFEST).exists():
        raise DatasetError(f"{printable(str(target))}: holds a dataset; overwrite=True replaces it")


@dataclass(frozen=True)
class _Limits:
    """When a shard is full."""

    bytes: int
    samples: int

    @classmethod
    def of(cls, shard_size: int | None, samples_per_shard: int | None) -> _Limits:
        check_shards(shard_size, samples_per_shard)
        if samples_per_shard is not None:
            return cls(1 << 62, samples_per_shard)
        return cls(shard_size or SHARD_BYTES, 1 << 62)


def _own(value: Any, deepest: int = DEEPEST) -> Any:
    """Return a value of which a generator may change its own copy afterwards: arrays, lists and dicts are copied."""
    if isinstance(value, np.ndarray):
        return copy.deepcopy(value) if value.dtype.hasobject else value.copy()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if deepest and isinstance(value, list | tuple):
        made = (_own(part, deepest - 1) for part in value)
        return value[:] if set(map(type, value)) <= PLAIN else tuple(made) if isinstance(value, tuple) else list(made)
    if deepest and isinstance(value, dict):
        return {name: _own(part, deepest - 1) for name, part in value.items()}
    return value


def _write_all(new: Path, parts: Mapping[str, Iterable[Sample]], given: Given, limits: _Limits) -> Manifest:
    """Write the shards, the tables and the manifest."""
    stream = ((name, _own(sample)) for name, sample in _stream(parts))
    first = list(islice(stream, FIRST_SAMPLES))
    if not first:
        raise InputError("there is no sample to write")
    fields = Fields([sample for _, sample in first], given)
    keys = Keys(fields.layout.columns.get_field_index("variant"))
    compression = _compression(given.compression, fields.layout)
    series: dict[str, ShardSeries] = {}
    counts = {name: np.zeros(len(given.classes or ()), np.int64) for name in parts}
    try:
        for number, (name, sample) in enumerate(chain(first, stream)):
            if name not in series:
                _finish_last(series)
                series[name] = ShardSeries(new, fields.layout, name, compression, limits.bytes, limits.samples)
            values = fields.values(sample, number)
            keys.add(values)
            series[name].add(values, row_size(values))
            if given.classes and (label := values[fields.label]) is not None:
                counts[name][label] += 1
        _finish_last(series)
    except BaseException:
        for each in series.values():
            each.abandon()
        raise
    entries = [entry for each in series.values() for entry in each.entries]
    keys.refuse_repeated([new / entry.path for entry in entries])
    class_counts = {name: counts[name].tolist() for name in series} if given.classes else None
    settings = {"made_by": MADE_BY, "shard_size": limits.bytes, "samples_per_shard": limits.samples}
    return finish(new, fields.final_layout, entries, compression, settings, class_counts)


def _stream(parts: Mapping[str, Iterable[Sample]]) -> Iterator[tuple[str, Sample]]:
    """Yield the samples of all splits, each with the name of its split. Raises InputError if one of several has none."""
    for name, part in parts.items():
        is_empty = True
        for sample in part:
            is_empty = False
            yield name, sample
        if is_empty and len(parts) > 1:
            raise InputError(f"the split {name} has no sample; leave it out, or give it some")


def _finish_last(series: Mapping[str, ShardSeries]) -> None:
    if series:
        list(series.values())[-1].close()


def _compression(text: str, layout: Layout) -> Compression:
    if text != "auto":
        return Compression.parse(text)
    return Compression.parse("none" if layout.image else "zstd:3")  # as for a conversion: recipe.py
