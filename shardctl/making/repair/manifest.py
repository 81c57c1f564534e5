"""A damaged or lost manifest: rebuilt from the tables."""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from shardctl.errors import DatasetError
from shardctl.format.counts import are_step_counts
from shardctl.format.layout import Layout
from shardctl.format.manifest import (
    Generation,
    Manifest,
    are_class_counts,
    are_object_counts,
    are_versions,
    folder_of,
    generations_of,
    is_absolute_place,
    kept_generations,
)
from shardctl.format.names import (
    CHECKSUMS,
    MANIFEST,
    SHARDS,
    STAGING,
    TABLES,
    UPDATE,
    Json,
    are_file_names,
    is_shard_name,
)
from shardctl.format.stretches import MAGIC
from shardctl.format.tables import Reject, ShardEntry, ShardTable, read_checksums, read_rejects
from shardctl.making.commit.publish import manifest_of, numbered_names, splits_of
from shardctl.making.plan.fingerprint import WRITTEN_PART, fingerprint
from shardctl.making.repair.outcomes import LOST
from shardctl.system.files import FileFacts
from shardctl.system.folders import Folder, FolderHere, LocalFolder, hash_file, is_regular_file
from shardctl.system.machine import usable_cores
from shardctl.system.progress import Report
from shardctl.transforms.table import samples_per_record

LOST_PART = ""
"""The digest of a lost part of the fingerprint. It equals no other digest, so that the dataset
never looks up to date."""


def _has_hash(folder: FolderHere, name: str, sha256: str) -> bool:
    """Return whether a file has this hash. Not if it cannot be read."""
    try:
        return is_regular_file(folder, name) and hash_file(folder, name) == sha256
    except OSError:
        return False


def refuse_other_manifest(folder: FolderHere, manifest: Manifest) -> None:
    """Raise DatasetError for an undamaged manifest of another dataset than all other files in the
    folder.

    SHA256SUMS and shards.arrow each have the SHA-256 of all shards, so that they are those of no
    other dataset.
    """
    ours = any(_has_hash(folder, name, manifest.files[name].sha256) for name in (CHECKSUMS, SHARDS))
    if not ours and _proven_sums(folder) is not None:
        raise DatasetError(
            f"{folder.shown()}: {MANIFEST} belongs to another dataset than {SHARDS} and "
            f"{CHECKSUMS}; bring the right one back, or remove it, and repair again"
        )


def refuse_shard(folder: FolderHere) -> None:
    """Raise DatasetError if the manifest has the bytes of an Arrow file: a shard of which they may
    be the only copy."""
    with contextlib.suppress(OSError):
        if folder.read(MANIFEST, 0, len(MAGIC)).to_pybytes() == MAGIC:
            raise DatasetError(
                f"{folder.shown(MANIFEST)}: an Arrow file, not a manifest; rename it, then "
                "repair again"
            )


def remake_manifest(folder: FolderHere, sources: tuple[str, ...]) -> Manifest:
    """Rebuild the manifest. SHA256SUMS verifies shards.arrow, which says how the dataset was made
    and what is in it.

    The fingerprint of the inputs is taken from the rest of the old manifest if it can be verified,
    and the paths of the sources if all are absolute; else they are unknown. If tables are damaged
    too, their sizes are those of the damaged files, and are corrected once the tables are repaired.
    Where its history is lost, it follows the last generation that is kept. Raises DatasetError if
    too little is left.
    """
    sums = _proven_sums(folder)
    if sums is None:
        raise DatasetError(
            f"{folder.shown()}: {MANIFEST} is lost, and {SHARDS} or {CHECKSUMS} is damaged as "
            "well; convert the sources again with --overwrite"
        )
    table = ShardTable(folder)
    making, entries, left = table.making, list(table), _what_is_left(folder)
    layout = Layout.loads(making.layout)
    parts = _parts(left, making.parts)
    kept = kept_generations(folder.work)

    def old(name: str, fits: Callable[[Any], bool], other: Any = None) -> Any:
        value = left.get(name)
        return value if fits(value) else other

    def is_update(facts: Any) -> bool:
        sha256 = facts.get("sha256") if isinstance(facts, dict) else None
        return isinstance(sha256, str) and _has_hash(folder, UPDATE, sha256)

    def same_settings(settings: Any) -> bool:
        if not isinstance(settings, dict):
            return False
        return {**settings, "labels": Path(str(settings.get("labels"))).name} == making.settings

    named = _sources(left)
    own = sorted(name for name in {*sums} - {*TABLES, CHECKSUMS} if not is_shard_name(name))
    files = {name: FileFacts(0, sums[name]) for name in (*TABLES, *own, CHECKSUMS)}
    update = old("update", is_update)
    lost = (reject.records for reject in _rejects(folder) if reject.error == LOST)
    then = datetime.datetime.fromtimestamp(
        folder.path(CHECKSUMS).stat().st_mtime, datetime.timezone.utc
    )
    made = manifest_of(
        layout,
        making.recipe,
        parts,
        splits_of(entries),
        inputs=sum(entry.inputs for entry in entries),
        rejected=sum(entry.rejected for entry in entries),
        fields=making.fields,
        settings=old("settings", same_settings, making.settings),
        # a URL that was never recorded would be asked for by the next repair
        sources=sources or (named if all(map(is_absolute_place, named)) else ()),
        files=with_sizes(folder, files),
        created=old("created", _is_text, then.isoformat(timespec="seconds")),
        dropped=sum(lost) * samples_per_record(making.recipe),
        seconds=old("seconds", lambda value: isinstance(value, float)),
        class_counts=old("class_counts", lambda value: are_class_counts(value, layout.classes)),
        environment=old("environment", are_versions),
        records=making.records,
        objects=old("objects", are_object_counts),
        jpeg=table.jpegs.counts() if table.jpegs is not None else None,
        steps=old("steps", are_step_counts),
        update=update and with_sizes(folder, {UPDATE: FileFacts(0, update["sha256"])})[UPDATE],
        history=_history(left, entries, sums[CHECKSUMS]),
        keep=old("keep", lambda value: type(value) is int and value > 0, len(kept)),
    )
    if made.history or not kept:
        return made
    return made.with_generation(
        Manifest.load(LocalFolder(folder_of(folder.work, kept[-1]))), "repair", 0, 0, 0
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _history(left: Json, entries: list[ShardEntry], digest: str) -> tuple[Generation, ...]:
    """Return the generations that the old manifest has, the last one with what is known of it; none
    if they are damaged."""
    try:
        *earlier, last = generations_of(left.get("history"))
    except (TypeError, ValueError):
        return ()
    samples = sum(entry.rows for entry in entries)
    return (*earlier, replace(last, samples=samples, shards=len(entries), digest=digest))


def _proven_sums(folder: FolderHere) -> dict[str, str] | None:
    """Return what all tables should hash to, SHA256SUMS itself included; None if it does not prove
    shards.arrow."""
    try:
        sums = read_checksums(folder)
        proven = set(TABLES) <= set(sums) and sums[SHARDS] == hash_file(folder, SHARDS)
        return {**sums, CHECKSUMS: hash_file(folder, CHECKSUMS)} if proven else None
    except (DatasetError, OSError):
        return None


def with_sizes(folder: FolderHere, files: dict[str, FileFacts]) -> dict[str, FileFacts]:
    """Return the same facts with the sizes of the files that are there."""
    found = {name: folder.stat(name) for name in files}
    return {
        name: FileFacts(entry.size if entry and entry.kind == "file" else 0, files[name].sha256)
        for name, entry in found.items()
    }


def _rejects(folder: FolderHere) -> list[Reject]:
    try:
        return list(read_rejects(folder))
    except DatasetError:
        return []


def _what_is_left(folder: FolderHere) -> Json:
    try:
        record = json.loads(folder.read(MANIFEST).to_pybytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _parts(left: Json, known: dict[str, str]) -> dict[str, str]:
    """Return the parts of the fingerprint: all of them if the old ones still give the old
    fingerprint."""
    old = left.get("fingerprint_parts")
    if (
        isinstance(old, dict)
        and fingerprint(old) == left.get("fingerprint")
        and known.items() <= old.items()
    ):
        return old
    lost = {} if WRITTEN_PART in known else {"inputs": LOST_PART, "settings": LOST_PART}
    return {**lost, **known}


def _sources(left: Json) -> tuple[str, ...]:
    old = left.get("sources")
    return tuple(old) if isinstance(old, list) and all(map(_is_text, old)) else ()


def named_sources(folder: FolderHere) -> tuple[str, ...]:
    """Return the sources that a damaged manifest names, if it is JSON: they may be anything."""
    return _sources(_what_is_left(folder))


# --- the state of a dataset's files by SHA-256: which are undamaged, and what the others should be
# ---


def hash_files(folder: FolderHere, progress: Report) -> tuple[dict[str, str], dict[str, OSError]]:
    """Return the SHA-256 of every ordinary file in a dataset's folder, by name, and why others
    cannot be read.

    A file that is deleted meanwhile is in neither. Raises DatasetError if the folder cannot be
    listed.
    """
    try:
        names = sorted(set(folder.names()) - {STAGING})
    except OSError as error:
        raise DatasetError(
            f"{folder.shown()}: cannot be listed ({error.strerror or error})"
        ) from error
    hashes: dict[str, str] = {}
    unreadable: dict[str, OSError] = {}
    # hashing lets other threads run
    with folder.prefetch(names) as note, ThreadPoolExecutor(usable_cores()) as pool:
        found = pool.map(partial(_hash, folder), names)
        for done, (name, hashed) in enumerate(zip(names, found, strict=True)):
            if isinstance(hashed, str):
                hashes[name] = hashed
            elif hashed is not None and not isinstance(hashed, FileNotFoundError):
                unreadable[name] = hashed
            note(done)
            progress(done + 1, len(names))
    return hashes, unreadable


def _hash(folder: Folder, name: str) -> str | OSError | None:
    try:
        return hash_file(folder, name) if is_regular_file(folder, name) else None
    except OSError as fault:
        return fault


def shard_names(folder: FolderHere, manifest: Manifest, hashes: dict[str, str]) -> list[str]:
    """Return the file names of all shards, in the order of the dataset, from whatever is intact and
    knows them."""
    if hashes.get(SHARDS) == manifest.files[SHARDS].sha256:
        return ShardTable(folder).names
    numbered = numbered_names(manifest.splits)
    if hashes.get(CHECKSUMS) == manifest.files[CHECKSUMS].sha256:
        listed = [name for name in read_checksums(folder) if is_shard_name(name)]
        if set(listed) != set(numbered) and are_file_names(listed):
            places = {split.name: number for number, split in enumerate(manifest.splits)}
            return sorted(
                listed, key=lambda name: (places.get(name.rpartition("-")[0], 0), len(name), name)
            )
    return numbered


def expected_hashes(
    folder: FolderHere, manifest: Manifest, shards: list[str], hashes: dict[str, str]
) -> dict[str, str]:
    """Return what every file but the manifest should hash to, as far as that is still known.

    The manifest has the SHA-256 of the tables, and two of the tables those of the shards. If both
    tables are damaged, each shard is assumed to be undamaged: the table rebuilt from all of them
    shows whether that was right.
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
    """Raise DatasetError if a folder has the name of a file of the dataset: it may hold anything,
    and is not deleted."""
    for name in (MANIFEST, *manifest.files, *numbered_names(manifest.splits)):
        found = folder.stat(name)
        if found is not None and found.kind == "folder":
            raise DatasetError(
                f"{folder.shown(name)}: a folder, not a file; move it away, then repair again"
            )
