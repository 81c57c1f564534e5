"""The state of a dataset's files by SHA-256: which are undamaged, and what the others should be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from shardctl.errors import DatasetError
from shardctl.format.manifest import Manifest
from shardctl.format.names import CHECKSUMS, MANIFEST, SHARDS, STAGING, are_file_names, is_shard_name, shard_name
from shardctl.format.tables import ShardTable, read_checksums
from shardctl.system.locations.folder import Folder, FolderHere, hash_file, is_regular_file
from shardctl.system.machine import usable_cores


def hash_files(folder: FolderHere, progress: Callable[[int, int], None]) -> tuple[dict[str, str], dict[str, OSError]]:
    """Return the SHA-256 of every ordinary file in a dataset's folder, by name, and why others cannot be read.

    A file that is deleted meanwhile is in neither. Raises DatasetError if the folder cannot be listed.
    """
    names = [name for name in list_names(folder) if name != STAGING]
    hashes: dict[str, str] = {}
    unreadable: dict[str, OSError] = {}
    with folder.prefetch(names) as note, ThreadPoolExecutor(usable_cores()) as pool:  # hashing lets other threads run
        for done, (name, found) in enumerate(zip(names, pool.map(partial(_hash, folder), names), strict=True), 1):
            if isinstance(found, str):
                hashes[name] = found
            elif found is not None and not isinstance(found, FileNotFoundError):
                unreadable[name] = found
            note(done - 1)
            progress(done, len(names))
    return hashes, unreadable


def list_names(folder: Folder) -> list[str]:
    """Return the names in a dataset's folder, sorted. Raises DatasetError."""
    try:
        return sorted(folder.names())
    except OSError as error:
        raise DatasetError(f"{folder.shown()}: cannot be listed ({error.strerror or error})") from error


def _hash(folder: Folder, name: str) -> str | OSError | None:
    try:
        return hash_file(folder, name) if is_regular_file(folder, name) else None
    except OSError as fault:
        return fault


def numbered_names(manifest: Manifest) -> list[str]:
    """Return the file names of all shards, in the order of the dataset, as a conversion numbers them."""
    return [shard_name(split.name, number) for split in manifest.splits for number in range(split.shards)]


def shard_names(folder: FolderHere, manifest: Manifest, hashes: dict[str, str]) -> list[str]:
    """Return the file names of all shards, in the order of the dataset, from whatever is intact and knows them."""
    if hashes.get(SHARDS) == manifest.files[SHARDS].sha256:
        return ShardTable(folder).names
    numbered = numbered_names(manifest)
    if hashes.get(CHECKSUMS) == manifest.files[CHECKSUMS].sha256:
        listed = [name for name in read_checksums(folder) if is_shard_name(name)]
        if set(listed) != set(numbered) and are_file_names(listed):
            places = {split.name: number for number, split in enumerate(manifest.splits)}
            return sorted(listed, key=lambda name: (places.get(name.rpartition("-")[0], 0), len(name), name))
    return numbered


def expected_hashes(folder: FolderHere, manifest: Manifest, shards: list[str], hashes: dict[str, str]) -> dict[str, str]:
    """Return what every file but the manifest should hash to, as far as that is still known.

    The manifest has the SHA-256 of the tables, and two of the tables those of the shards. If both tables are damaged, each
    shard is assumed to be undamaged: the table rebuilt from all of them shows whether that was right.
    """
    expected = {name: facts.sha256 for name, facts in manifest.files.items()}
    if hashes.get(SHARDS) == expected[SHARDS]:
        recorded = {entry.path: entry.sha256 for entry in ShardTable(folder)}
    elif hashes.get(CHECKSUMS) == expected[CHECKSUMS]:
        recorded = read_checksums(folder)
    else:
        recorded = hashes
    return expected | {name: recorded[name] for name in shards if name in recorded}


def refuse_folders(folder: Folder, manifest: Manifest) -> None:
    """Raise DatasetError if a folder has the name of a file of the dataset: it may hold anything, and is not deleted."""
    for name in (MANIFEST, *manifest.files, *numbered_names(manifest)):
        found = folder.stat(name)
        if found is not None and found.kind == "folder":
            raise DatasetError(
                f"{folder.shown(name)}: a folder, where a file of the dataset belongs; move it away, then repair again"
            )


def damaged_files(expected: dict[str, str], hashes: dict[str, str], names: Iterable[str]) -> set[str]:
    """Return those of the files with these names that are missing or not what they should be."""
    known = {name for name, sha256 in expected.items() if hashes.get(name) == sha256}
    return {*names} - known
