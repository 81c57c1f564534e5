"""Datasets of any columns, with blocks of any size, and 100,000 shards if need be: for measurements
and tests of reading.

`shardctl.write` writes samples as they should be; this also lies about their sizes, so that a few
make many blocks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardctl.format.dataset_folder import dataset_in
from shardctl.format.layout import ENCODED_IMAGE, Layout
from shardctl.format.manifest import Manifest
from shardctl.format.names import path_of_shard
from shardctl.format.roles import Image, Label, Role, Roles
from shardctl.format.shard import Compression
from shardctl.format.tables import MADE_BY, ShardTable
from shardctl.making.commit.commit import NewGeneration, making_generation
from shardctl.making.commit.target import Target
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
    layout = Layout(
        "text", schema, Roles({**_usual_roles(schema, shape, classes), **(roles or {})})
    )
    how, limits = Compression.parse(compression), ShardLimits(1 << 62, per_shard)
    with generation_of(root) as new:
        series = ShardSeries(new.root, new.id, layout, "train", how, limits)
        for values in samples:
            series.add(values, sample_bytes)
        series.close()
        finish(new, layout, series.entries, how, {"made_by": MADE_BY})


@contextmanager
def generation_of(root: Path) -> Iterator[NewGeneration]:
    """Yield the work on a new generation of the dataset at `root`, for its only writer."""
    root.mkdir(parents=True, exist_ok=True)
    target = Target(LocalFolder(root))
    with target.lease(None) as held, making_generation(target, held) as new:
        yield new


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
    folder = dataset_in(root)
    (entry,) = ShardTable(folder)
    manifest = Manifest.load(folder)
    with pa.ipc.open_file(str(root / entry.path)) as file:
        layout = manifest.layout(file.schema.remove_metadata())
    entries = [
        replace(
            entry, path=path_of_shard("many", number, entry.sha256), number=number, split="many"
        )
        for number in range(shards)
    ]
    for number, each in enumerate(entries):
        if number % LINKS == LINKS - 1:
            shutil.copy(root / entry.path, root / "new")
            (root / "new").replace(root / entry.path)
        os.link(root / entry.path, root / each.path)
    compression = Compression.parse(manifest.recipe["compression"])
    with generation_of(root) as new:
        finish(new, layout, entries, compression, manifest.settings)
