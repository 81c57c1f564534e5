"""A damaged or lost manifest: rebuilt from the tables."""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.format.counts import are_step_counts
from shardctl.format.dataset_location import AnyDataset
from shardctl.format.generations import generation_folders
from shardctl.format.layout import Layout
from shardctl.format.manifest import (
    Generation,
    Manifest,
    are_class_counts,
    are_object_counts,
    are_versions,
    digest_of,
    generations_of,
    is_absolute_place,
    sum_up,
)
from shardctl.format.names import (
    CHECKSUMS,
    DATA,
    GENERATIONS,
    MANIFEST,
    SHARDS,
    STAGING,
    TABLES,
    UPDATE,
    Json,
    NamedShard,
    are_paths_inside,
    job_of_generation,
    shard_name,
)
from shardctl.format.stretches import MAGIC
from shardctl.format.tables import Reject, ShardEntry, ShardTable, read_checksums, read_rejects
from shardctl.making.commit.commit import manifest_of, splits_of
from shardctl.making.plan.fingerprint import WRITTEN_PART, fingerprint
from shardctl.making.repair.outcomes import LOST
from shardctl.system.files import FileFacts, replacing
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
    others = generation_folders(folder.local) if manifest.job and folder.local else []
    is_gone = bool(others) and manifest.generation.path not in others
    if not ours and (is_gone or _proven_sums(folder) is not None):
        raise DatasetError(
            f"{folder.shown()}: {MANIFEST} belongs to another dataset than {SHARDS} and "
            f"{CHECKSUMS}; bring the right one back, or remove it, and repair again"
        )


def refuse_not_ours(folder: FolderHere) -> None:
    """Raise DatasetError if the manifest is a whole one that this version does not know, or has the
    bytes of an Arrow file: a shard of which they may be the only copy."""
    left = _what_is_left(folder)
    if left.get("digest") == digest_of(left):
        Manifest.from_record(left, folder.shown(MANIFEST))
    with contextlib.suppress(OSError):
        if folder.read(MANIFEST, 0, len(MAGIC)).to_pybytes() == MAGIC:
            raise DatasetError(
                f"{folder.shown(MANIFEST)}: an Arrow file, not a manifest; rename it, then "
                "repair again"
            )


def remake_manifest(folder: AnyDataset, sources: tuple[str, ...]) -> Manifest:
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
    tables = folder.places.tables

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
    own = sorted({*sums} - {*TABLES, CHECKSUMS} - {*table.paths})
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
        keep=old("keep", lambda value: type(value) is int and value >= 0, 1),
        job=job_of_generation(tables),
        base=folder.places.shards,
    )
    if not made.job or (made.history and made.generation.path == tables):
        return made
    earlier, number = _earlier(folder), int(tables.split("/")[1].partition("-")[0])
    last = replace(made.generation, number=number, command="repair", added=0, path=tables)
    made = replace(made, history=(*(each for each in earlier if each.number < number), last))
    return replace(made, keep=max(made.keep, len(made.kept)))


def _earlier(folder: AnyDataset) -> tuple[Generation, ...]:
    """Return the generations before, as one that is kept tells them."""
    here = folder.local
    if here is None:
        return ()
    for other in reversed(generation_folders(here)):
        with contextlib.suppress(DatasetError):
            if other != folder.places.tables:
                found = Manifest.load(LocalFolder(here / other)).history
                there = set(generation_folders(here))
                return tuple(
                    each if each.path in there else replace(each, path="") for each in found
                )
    return ()


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
        names = sorted(set(folder.names()) - {STAGING, DATA, GENERATIONS})
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


def named_shards(
    folder: AnyDataset, manifest: Manifest, hashes: dict[str, str]
) -> list[NamedShard]:
    """Return all shards, in the order of the dataset, from whatever is intact and knows them."""
    if hashes.get(SHARDS) == manifest.files[SHARDS].sha256:
        return [NamedShard(each.split, each.number, each.path) for each in ShardTable(folder)]
    splits = [split.name for split in manifest.splits]
    paths: Iterable[str] = hashes
    if hashes.get(CHECKSUMS) == manifest.files[CHECKSUMS].sha256:
        paths = read_checksums(folder)
    elif not manifest.job:
        return [
            NamedShard(split.name, number, f"{shard_name(split.name, number)}.arrow")
            for split in manifest.splits
            for number in range(split.shards)
        ]
    found = filter(None, (NamedShard.of(path, splits) for path in paths if inside(path)))
    earlier = set[str]()  # of two shards with the same number, one may be of another generation
    for other in manifest.kept:
        with contextlib.suppress(DatasetError, OSError):
            earlier.update(ShardTable(LocalFolder(folder.work / other.path)).paths)
    ordered = sorted(found, key=lambda each: each.path not in earlier)
    named = {(each.split, each.number): each for each in ordered}
    return sorted(named.values(), key=lambda each: (splits.index(each.split), each.number))


def inside(path: str) -> bool:
    """Return whether this is a path inside the dataset's folder."""
    return are_paths_inside([path])


def expected_hashes(
    folder: AnyDataset, manifest: Manifest, shards: list[str], hashes: dict[str, str]
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


def refuse_folders(folder: Folder, names: Iterable[str]) -> None:
    """Raise DatasetError if a folder has the name of a file of the dataset: it may hold anything,
    and is not deleted."""
    for name in names:
        found = folder.stat(name)
        if found is not None and found.kind == "folder":
            raise DatasetError(
                f"{folder.shown(name)}: a folder, not a file; move it away, then repair again"
            )


def as_format_2(folder: Path, files: dict[str, FileFacts]) -> dict[str, FileFacts]:
    """Have tables in a folder as they were before format 3, and return their facts."""
    table = pa.ipc.open_file(pa.memory_map(str(folder / SHARDS))).read_all()
    sums = list(zip(table["path"].to_pylist(), table["sha256"].to_pylist(), strict=True))
    without = table.drop_columns(["number"])
    with replacing(folder / SHARDS) as sink:
        file = pa.PythonFile(sink, mode="w")
        with pa.ipc.new_file(file, without.schema) as writer:
            writer.write_table(without)
    return sum_up(folder, sums, sorted({*files} - {*TABLES, CHECKSUMS}))
