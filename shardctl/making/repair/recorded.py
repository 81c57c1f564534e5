"""The files of a dataset that is to be repaired: what they are, and what they should be."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.format.dataset_location import AnyDataset
from shardctl.format.generations import generation_folders
from shardctl.format.manifest import Manifest, digest_of, sum_up
from shardctl.format.names import (
    CHECKSUMS,
    DATA,
    GENERATIONS,
    MANIFEST,
    SHARDS,
    STAGING,
    TABLES,
    NamedShard,
    are_paths_inside,
    shard_name,
)
from shardctl.format.stretches import MAGIC
from shardctl.format.tables import ShardTable, new_table, read_checksums
from shardctl.system.files import FileFacts
from shardctl.system.folders import Folder, LocalFolder, hash_file, is_regular_file
from shardctl.system.machine import usable_cores
from shardctl.system.progress import Report


def refuse_not_ours(folder: Folder) -> None:
    """Raise DatasetError if the manifest is a whole one that this version does not know, or has the
    bytes of an Arrow file: a shard of which they may be the only copy."""
    with suppress(OSError, ValueError, RecursionError):
        data = folder.read(MANIFEST).to_pybytes()
        if data.startswith(MAGIC):
            raise DatasetError(
                f"{folder.shown(MANIFEST)}: an Arrow file, not a manifest; rename it, then "
                "repair again"
            )
        record = json.loads(data)
        if isinstance(record, dict) and record.get("digest") == digest_of(record):
            Manifest.from_record(record, folder.shown(MANIFEST))


def refuse_other_manifest(folder: Folder, manifest: Manifest) -> None:
    """Raise DatasetError for an undamaged manifest of another dataset than all other files in the
    folder.

    SHA256SUMS and shards.arrow each have the SHA-256 of all shards, so that they are those of no
    other dataset.
    """
    if manifest.job:
        folders = generation_folders(folder.local) if folder.local else []
        is_other = bool(folders) and manifest.generation.path not in folders
    else:
        found = {name: _hash(folder, name) for name in (SHARDS, CHECKSUMS)}
        is_other = False
        if all(found[name] != manifest.files[name].sha256 for name in found):
            with suppress(DatasetError):
                is_other = read_checksums(folder).get(SHARDS, "") == found[SHARDS]
    if is_other:
        raise DatasetError(
            f"{folder.shown()}: {MANIFEST} belongs to another dataset than {SHARDS} and "
            f"{CHECKSUMS}; bring the right one back, or remove it, and repair again"
        )


def refuse_folders(folder: Folder, names: Iterable[str]) -> None:
    """Raise DatasetError if a folder has the name of a file of the dataset: it may hold anything,
    and is not deleted."""
    for name in names:
        found = folder.stat(name)
        if found is not None and found.kind == "folder":
            raise DatasetError(
                f"{folder.shown(name)}: a folder, not a file; move it away, then repair again"
            )


def hash_files(folder: Folder, progress: Report) -> tuple[dict[str, str], dict[str, str]]:
    """Return the SHA-256 of every ordinary file in a dataset's folder, by name, and why others
    cannot be read.

    A file that is deleted meanwhile is in neither. Raises DatasetError if the folder cannot be
    listed.
    """
    try:
        names = sorted(set(folder.names()) - {STAGING, DATA, GENERATIONS})
    except OSError as error:
        raise DatasetError(
            f"{folder.shown()}: cannot be listed ({error.strerror or error})"
        ) from error
    hashes: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    # hashing lets other threads run
    with folder.prefetch(names) as note, ThreadPoolExecutor(usable_cores()) as pool:
        found = pool.map(partial(_hash, folder), names)
        for done, (name, hashed) in enumerate(zip(names, found, strict=True)):
            if isinstance(hashed, str):
                hashes[name] = hashed
            elif hashed is not None and not isinstance(hashed, FileNotFoundError):
                unreadable[name] = hashed.strerror or str(hashed)
            note(done)
            progress(done + 1, len(names))
    return hashes, unreadable


def _hash(folder: Folder, name: str) -> str | OSError | None:
    try:
        return hash_file(folder, name) if is_regular_file(folder, name) else None
    except OSError as fault:
        return fault


def recorded_shards(
    folder: AnyDataset, manifest: Manifest, hashes: dict[str, str]
) -> tuple[list[NamedShard], dict[str, str]]:
    """Return all shards, in the order of the dataset, and what each of them should hash to.

    shards.arrow has both, and so has SHA256SUMS. If both are damaged, the shards are those whose
    files are there, and each is assumed to be undamaged: the table rebuilt from all of them shows
    whether that was right.
    """
    if hashes.get(SHARDS) == manifest.files[SHARDS].sha256:
        entries = list(ShardTable(folder))
        shards = [NamedShard(each.split, each.number, each.path) for each in entries]
        return shards, {each.path: each.sha256 for each in entries}
    recorded = hashes
    if hashes.get(CHECKSUMS) == manifest.samples_digest:
        recorded = read_checksums(folder)
    elif not manifest.job:  # they are numbered without gaps
        shards = [
            NamedShard(split.name, number, f"{shard_name(split.name, number)}.arrow")
            for split in manifest.splits
            for number in range(split.shards)
        ]
        return shards, hashes
    splits = [split.name for split in manifest.splits]
    found = (NamedShard.of(path, splits) for path in recorded if are_paths_inside([path]))
    earlier = set[str]()  # of two shards with the same number, one may be of another generation
    for other in manifest.kept:
        with suppress(DatasetError, OSError):
            earlier.update(ShardTable(LocalFolder(folder.work / other.path)).paths)
    ordered = sorted(filter(None, found), key=lambda each: each.path not in earlier)
    named = {(each.split, each.number): each for each in ordered}
    return sorted(
        named.values(), key=lambda each: (splits.index(each.split), each.number)
    ), recorded


def as_format_2(folder: Path, files: dict[str, FileFacts]) -> dict[str, FileFacts]:
    """Have tables in a folder as they were before format 3, and return their facts."""
    table = pa.ipc.open_file(pa.memory_map(str(folder / SHARDS))).read_all()
    sums = list(zip(table["path"].to_pylist(), table["sha256"].to_pylist(), strict=True))
    without = table.drop_columns(["number"])
    with new_table(folder / SHARDS, without.schema) as writer:
        writer.write_table(without)
    return sum_up(folder, sums, sorted({*files} - {*TABLES, CHECKSUMS}))
