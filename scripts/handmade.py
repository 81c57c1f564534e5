"""Datasets of any columns, written without a conversion: for measurements and tests of reading.

A conversion makes what its inputs give; this makes whatever is to be read, 10,000 shards of it if need be, through the same
writers of shards, tables and manifest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardctl.manifest import (
    CHECKSUMS,
    MANIFEST,
    PLAN,
    REJECTS,
    SHARDS,
    FileFacts,
    Making,
    Manifest,
    ShardEntry,
    SplitFacts,
    write_checksums,
    write_shard_table,
)
from shardctl.shard import Compression, Layout, ShardWriter
from shardctl.storage import sha256_of
from shardctl.version import __version__


def write_dataset(
    root: Path,
    schema: pa.Schema,
    samples: Iterable[tuple[Any, ...]],
    per_shard: int,
    compression: str = "none",
    sample_bytes: int = 100,
    shape: tuple[int, int, int] | None = None,
    classes: tuple[str, ...] | None = None,
) -> None:
    """Write samples (values in the schema's order) as a dataset of one split. `sample_bytes` decides how blocks are cut."""
    root.mkdir(parents=True)
    layout = Layout("text", schema, "raw" if shape else None, shape, classes)
    paths = []
    samples = iter(samples)
    while part := list(islice(samples, per_shard)):
        paths.append((root / f"part-{len(paths):05d}.arrow", len(part)))
        _write_shard(paths[-1][0], layout, len(paths) - 1, part, Compression.parse(compression), sample_bytes)
    entries = []
    for path, rows in paths:
        with pa.ipc.open_file(str(path)) as file:
            blocks = tuple(file.get_batch(number).num_rows for number in range(file.num_record_batches))
        size, first = path.stat().st_size, sum(entry.rows for entry in entries[-1:]) + sum(e.first for e in entries[-1:])
        entries.append(
            ShardEntry("train", path.name, rows, size, rows * sample_bytes, sha256_of(path), first, first, rows, blocks)
        )
    write_manifest(root, layout, entries, compression)


def repeat_shard(root: Path, shards: int) -> None:
    """Make a dataset of one shard look like one of many: the same file under many names. For the times of opening."""
    from shardctl.manifest import ShardTable

    (entry,) = ShardTable(root / SHARDS)
    manifest = Manifest.load(root)
    with pa.ipc.open_file(str(root / entry.path)) as file:
        schema = file.schema
    layout = manifest.layout(schema.remove_metadata())
    entries = []
    for number in range(shards):
        name = f"many-{number:05d}.arrow"
        os.link(root / entry.path, root / name)
        first = number * entry.rows
        entries.append(ShardEntry(**{**vars(entry), "path": name, "first": first, "first_input": first}))
    (root / entry.path).unlink()
    write_manifest(root, layout, entries, manifest.recipe["compression"])


def _write_shard(path: Path, layout: Layout, number: int, part: list[Any], compression: Compression, size: int) -> None:
    with pa.OSFile(str(path), "wb") as sink:
        writer = ShardWriter(sink, layout.schema("train", number, 1), compression)
        for values in part:
            writer.add(values, size)
        writer.finish()


def write_manifest(root: Path, layout: Layout, entries: list[ShardEntry], compression: str) -> None:
    """Write the tables and the manifest of shards that are there."""
    recipe = {"compression": compression, "store": layout.store, "transform": []}
    write_shard_table(root / SHARDS, entries, Making(layout.to_json(), layout.fields(), recipe, {}, {}))
    with pa.ipc.new_file(str(root / PLAN), pa.schema([("row", pa.int64())])):
        pass
    (root / REJECTS).write_text("")
    samples, size = sum(entry.rows for entry in entries), sum(entry.bytes for entry in entries)
    files = dict(_facts(root, entries))
    write_checksums(root / CHECKSUMS, ((name, facts.sha256) for name, facts in files.items()))
    files[CHECKSUMS] = FileFacts((root / CHECKSUMS).stat().st_size, sha256_of(root / CHECKSUMS))
    manifest = Manifest(
        kind=layout.kind,
        samples=samples,
        shards=len(entries),
        bytes=size,
        inputs=samples,
        rejected=0,
        splits=(SplitFacts("train", samples, len(entries), size),),
        schema=tuple((field.name, str(field.type)) for field in layout.columns),
        fields=layout.fields(),
        recipe=recipe,
        settings={},
        fingerprint=f"handmade-{samples}",
        fingerprint_parts={},
        sources=(),
        files=files,
        created=datetime.now(timezone.utc).isoformat(),
        shardctl_version=__version__,
    )
    (root / MANIFEST).write_text(manifest.to_json())


def _facts(root: Path, entries: list[ShardEntry]) -> Iterator[tuple[str, FileFacts]]:
    for entry in entries:
        yield entry.path, FileFacts(entry.bytes, entry.sha256)
    for name in (PLAN, SHARDS, REJECTS):
        yield name, FileFacts((root / name).stat().st_size, sha256_of(root / name))
