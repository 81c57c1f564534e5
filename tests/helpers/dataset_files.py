"""The files of a dataset in a folder: where they lie (docs/format.md, section 1)."""

from __future__ import annotations

from pathlib import Path

from shardctl.format.dataset_folder import dataset_in
from shardctl.format.names import MANIFEST, SHARDS, UPDATE
from shardctl.format.tables import ShardTable


def tables_in(dataset: str | Path) -> Path:
    """Return the folder with the tables of the present generation."""
    return dataset_in(Path(dataset)).path(SHARDS).parent


def shards_in(dataset: str | Path, split: str | None = None) -> list[Path]:
    """Return the files of all shards of the present generation, or of those of a split, in their
    order."""
    folder = dataset_in(Path(dataset))
    return [folder.path(each.path) for each in ShardTable(folder) if split in (None, each.split)]


def shard_in(dataset: str | Path, name: str = "train-00000") -> Path:
    """Return the file of the shard that is called so."""
    folder = dataset_in(Path(dataset))
    return next(folder.path(each.path) for each in ShardTable(folder) if each.name == name)


def files_called(dataset: str | Path, pattern: str) -> list[Path]:
    """Return the shards, and the files beside the tables, whose names are of a form such as
    train-*."""
    files = [*tables_in(dataset).iterdir(), *shards_in(dataset)]
    return [path for path in files if path.match(pattern)]


def content_of(dataset: str | Path) -> dict[str, bytes]:
    """Return the bytes of all files that are the same in every conversion of the same inputs, by
    the name of the file, and by what the shard is called."""
    folder = dataset_in(Path(dataset))
    found = {each.name: folder.path(each.path).read_bytes() for each in ShardTable(folder)}
    others = {path.name: path for path in tables_in(dataset).iterdir()}
    names = others.keys() - {MANIFEST, UPDATE}  # these have times
    return found | {name: others[name].read_bytes() for name in names}
