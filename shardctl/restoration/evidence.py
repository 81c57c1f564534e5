"""What is left of a dataset, by SHA-256: which files are those that were written, and what the others should be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shardctl.machine import usable_cores
from shardctl.manifest import CHECKSUMS, MANIFEST, SHARDS, STAGING, Manifest, ShardTable, read_checksums, shard_name
from shardctl.storage import is_regular_file, sha256_of


def hash_files(root: Path, progress: Callable[[int, int], None]) -> dict[str, str]:
    """Return the SHA-256 of every ordinary file in a dataset's folder, by name."""
    names = [name for name in os.listdir(root) if name != STAGING and is_regular_file(root / name)]
    with ThreadPoolExecutor(usable_cores()) as pool:  # hashing lets other threads run
        hashes: dict[str, str] = {}
        for name, sha256 in zip(names, pool.map(lambda name: sha256_of(root / name), names), strict=True):
            hashes[name] = sha256
            progress(len(hashes), len(names))
    return hashes


def shard_names(manifest: Manifest) -> list[str]:
    """Return the file names of all shards, in the order of the dataset."""
    return [shard_name(split.name, number, split.shards) for split in manifest.splits for number in range(split.shards)]


def expected_hashes(root: Path, manifest: Manifest, hashes: dict[str, str]) -> dict[str, str]:
    """Return what every file but the manifest should hash to, as far as that is still known.

    The manifest vouches for the tables, and two of them for the shards. Where both of those are damaged, a shard is
    taken to be what it is: the table made anew from all of them shows whether that was right.
    """
    expected = {name: facts.sha256 for name, facts in manifest.files.items()}
    shards = shard_names(manifest)
    if hashes.get(SHARDS) == expected[SHARDS]:
        recorded = {entry.path: entry.sha256 for entry in ShardTable(root / SHARDS)}
    elif hashes.get(CHECKSUMS) == expected[CHECKSUMS]:
        recorded = read_checksums(root / CHECKSUMS)
    else:
        recorded = hashes
    return expected | {name: recorded[name] for name in shards if name in recorded}


def restore_misplaced(root: Path, expected: dict[str, str], hashes: dict[str, str], scratch: Path) -> list[str]:
    """Put files back whose bytes are there under another name: renamed, or swapped. Returns the names put right."""
    where = {sha256: name for name, sha256 in hashes.items()}
    wrong = [name for name, sha256 in expected.items() if hashes.get(name) != sha256 and sha256 in where]
    for name in wrong:  # first all copies, since one file may stand in the place of the next
        shutil.copyfile(root / where[expected[name]], scratch / name)
    for name in wrong:
        stranger = where[expected[name]]
        (scratch / name).replace(root / name)
        hashes[name] = expected[name]
        if stranger not in expected and stranger != MANIFEST:
            (root / stranger).unlink(missing_ok=True)
    return wrong


def damaged_files(expected: dict[str, str], hashes: dict[str, str], manifest: Manifest) -> set[str]:
    """Return the names of the files that are missing or not what they should be."""
    known = {name for name, sha256 in expected.items() if hashes.get(name) == sha256}
    return {*manifest.files, *shard_names(manifest)} - known
