"""The state of a dataset's files by SHA-256: which are undamaged, and what the others should be."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from shardctl.errors import DatasetError
from shardctl.format.manifest import Manifest
from shardctl.format.names import CHECKSUMS, MANIFEST, SHARDS, STAGING, are_file_names, is_shard_name, shard_name
from shardctl.format.tables import ShardTable, read_checksums
from shardctl.system.files import copy_file, naming_the_path
from shardctl.system.locations.folder import EditableFolder, Folder, FolderHere, hash_file, is_regular_file
from shardctl.system.locations.local import LocalFolder
from shardctl.system.machine import usable_cores

MISPLACED = ".misplaced"
"""Suffix of a file that was found under the name of another, until its own name is known."""

_ASIDE = re.compile(rf"(.+)\.[0-9a-f]{{8}}{re.escape(MISPLACED)}", re.DOTALL)


UNREAD = ".unreadable"
"""Suffix of a file that could not be read, and whose name another file has got back. It is never deleted."""


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


def restore_misplaced(
    folder: EditableFolder, expected: dict[str, str], hashes: dict[str, str], unreadable: Collection[str], scratch: Path
) -> list[str]:
    """Rename files that were renamed or swapped back to their own names. Returns the restored names.

    No needed file is overwritten: all bytes are in the folder at any moment, and a process that is killed here leaves files
    under other names, which the next repair puts back. What is `unreadable` may be needed, and keeps another name for good.
    """
    placed = {name for name, sha256 in expected.items() if hashes.get(name) == sha256}
    where = {sha256: name for name, sha256 in sorted(hashes.items(), key=lambda entry: entry[0] not in placed)}
    wrong = [name for name, sha256 in expected.items() if name not in placed and sha256 in where]
    needed = {expected[name] for name in wrong}
    with naming_the_path(folder.work):
        for name in wrong:
            held = hashes.get(name, "")
            if held in needed and where[held] == name:
                where[held] = set_aside(folder, name)
        for name in wrong:
            source = where[expected[name]]
            if name in unreadable:
                set_aside(folder, name, UNREAD)
            if source in placed:
                copy_file(folder.path(source), scratch / name)
                (scratch / name).rename(folder.work / name)
            else:
                folder.rename(source, name)
            where[expected[name]] = name
            hashes[name] = expected[name]
            placed.add(name)
    return wrong


def set_aside(folder: EditableFolder, name: str, suffix: str = MISPLACED) -> str:
    """Rename a file to a name that nothing else has, in the same folder, and return that name."""
    aside = name_aside(name, suffix)
    folder.rename(name, aside)
    return aside


def name_aside(name: str, suffix: str = MISPLACED) -> str:
    """Return a name that nothing else has, for a file that is set aside."""
    return f"{name}.{secrets.token_hex(4)}{suffix}"


def delete_misplaced(folder: EditableFolder, names: Collection[str]) -> None:
    """Delete the files that were set aside and that belong to nothing. `names` are those of all files of the dataset."""
    here = LocalFolder(folder.work)
    with naming_the_path(here.root):
        for left in here.names():
            found = _ASIDE.fullmatch(left)
            if found is not None and found[1] in names and is_regular_file(here, left):
                here.path(left).unlink()


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
