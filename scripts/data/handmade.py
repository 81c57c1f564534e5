"""Datasets of any columns, with blocks of any size, and 100,000 shards if need be: for measurements
and tests of reading.

`shardctl.write` writes samples as they should be; this also lies about their sizes, so that a few
make many blocks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardctl.format.layout import ENCODED_IMAGE, Layout
from shardctl.format.manifest import Manifest
from shardctl.format.names import shard_name
from shardctl.format.roles import Image, Label, Role, Roles
from shardctl.format.shard import Compression
from shardctl.format.tables import MADE_BY, ShardTable
from shardctl.making.write.fields import ShardLimits
from shardctl.making.write.writer import ShardSeries, finish
from shardctl.system.folders import LocalFolder

LINKS = 50_000
"""Names that a file gets: ext4 allows 65,000."""


def write_dataset(
    root: Path,
    schema: pa.Schema,
    samples: Iterable[tuple[Any, ...]],
    per_shard: int,
    compression: str = "none",
    sample_bytes: int = 100,
    shape: tuple[int, int, int] | None = None,
    classes: tuple[str, ...] | None = None,
    roles: Mapping[str, Role] | None = None,
) -> None:
    """Write samples (values in the schema's order) as a dataset of one split. `sample_bytes`
    decides how blocks are cut.

    `roles` are those of fields whose names and types do not tell them.
    """
    root.mkdir(parents=True)
    layout = Layout(
        "text", schema, Roles({**_usual_roles(schema, shape, classes), **(roles or {})})
    )
    series = ShardSeries(
        root, layout, "train", Compression.parse(compression), ShardLimits(1 << 62, per_shard)
    )
    for values in samples:
        series.add(values, sample_bytes)
    series.close()
    finish(root, layout, series.entries, Compression.parse(compression), {"made_by": MADE_BY})


def _usual_roles(
    schema: pa.Schema, shape: tuple[int, int, int] | None, classes: tuple[str, ...] | None
) -> dict[str, Role]:
    roles: dict[str, Role] = {}
    for field in schema:
        if field.type.equals(ENCODED_IMAGE):
            roles[field.name] = Image("source", shape)
        elif field.name == "image":
            roles[field.name] = Image("raw", tuple(field.type.shape))
        elif field.name == "label":
            roles[field.name] = Label(classes)
    return roles


def repeat_shard(root: Path, shards: int) -> None:
    """Make a dataset of one shard look like one of many: the same file under many names. For the
    times of opening."""
    (entry,) = ShardTable(LocalFolder(root))
    manifest = Manifest.load(LocalFolder(root))
    with pa.ipc.open_file(str(root / entry.path)) as file:
        layout = manifest.layout(file.schema.remove_metadata())
    entries = [
        replace(entry, path=shard_name("many", number), split="many") for number in range(shards)
    ]
    for number, each in enumerate(entries):
        if number % LINKS == LINKS - 1:
            shutil.copy(root / entry.path, root / "new")
            (root / "new").replace(root / entry.path)
        os.link(root / entry.path, root / each.path)
    (root / entry.path).unlink()
    finish(
        root, layout, entries, Compression.parse(manifest.recipe["compression"]), manifest.settings
    )
