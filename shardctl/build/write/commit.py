"""The tables and the manifest of a dataset without a source, whose shards are there."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardctl.build.plan.fingerprint import WRITTEN_PART, fingerprint
from shardctl.format.layout import Layout
from shardctl.format.manifest import Manifest, SplitFacts, sum_up
from shardctl.format.names import FILES, MANIFEST, PLAN, REJECTS, SHARDS
from shardctl.format.shard import Compression
from shardctl.format.tables import FILE_FIELDS, PLAN_SCHEMA, Making, ShardEntry, ShardSpool
from shardctl.system.files import FileFacts, replacing, write_atomically
from shardctl.version import __version__


def digest_of_shards(entries: Iterable[ShardEntry]) -> str:
    """Return what stands for the samples of a dataset without a source in its fingerprint."""
    return hashlib.sha256(
        json.dumps([[entry.path, entry.sha256] for entry in entries]).encode()
    ).hexdigest()[:32]


def making_of(
    layout: Layout,
    fields: dict[str, Any],
    recipe: dict[str, Any],
    settings: dict[str, Any],
    parts: dict[str, str],
) -> Making:
    """Return how a dataset without a source was made."""
    return Making(layout.to_json(), fields, recipe, settings, parts)


def write_tables(
    folder: Path, entries: Sequence[ShardEntry], making: Making
) -> dict[str, FileFacts]:
    """Write all tables of a dataset without a source, of whose shards are the `entries`, and return
    what they are."""
    empty = ((FILES, pa.schema(FILE_FIELDS)), (PLAN, PLAN_SCHEMA))
    for name, schema in empty:
        with (
            replacing(folder / name) as sink,
            pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema),
        ):
            pass
    write_atomically(folder / REJECTS, b"")
    with ShardSpool(folder.parent) as shards:
        for entry in entries:
            shards.add(entry)
        shards.write_table(folder / SHARDS, making)
        return sum_up(folder, shards.sums())


def finish(
    folder: Path,
    layout: Layout,
    entries: Sequence[ShardEntry],
    compression: Compression,
    settings: dict[str, Any],
    class_counts: dict[str, list[int]] | None = None,
) -> Manifest:
    """Complete the folder of a dataset whose shards are there: write its tables, and its manifest
    last."""
    recipe: dict[str, Any] = {
        "kind": layout.kind,
        "store": layout.image.store if layout.image else None,
        "compression": str(compression),
        "transform": [],
    }
    parts = {WRITTEN_PART: digest_of_shards(entries)}
    files = write_tables(
        folder, entries, making_of(layout, layout.fields(), recipe, settings, parts)
    )
    samples = sum(entry.rows for entry in entries)
    manifest = Manifest(
        kind=layout.kind,
        samples=samples,
        shards=len(entries),
        bytes=sum(entry.bytes for entry in entries),
        inputs=samples,
        rejected=0,
        splits=tuple(_splits(entries)),
        schema=tuple((f.name, str(f.type)) for f in layout.columns),
        fields=layout.fields(),
        recipe=recipe,
        settings=settings,
        fingerprint=fingerprint(parts),
        fingerprint_parts=parts,
        sources=(),
        files=files,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        shardctl_version=__version__,
        class_counts=class_counts,
    )
    write_atomically(folder / MANIFEST, manifest.to_json().encode())
    return manifest


def _splits(entries: Sequence[ShardEntry]) -> Iterator[SplitFacts]:
    for name in dict.fromkeys(entry.split for entry in entries):
        own = [entry for entry in entries if entry.split == name]
        yield SplitFacts(
            name, sum(entry.rows for entry in own), len(own), sum(entry.bytes for entry in own)
        )
