"""How a dataset changes: its files never do. A generation is a folder of tables that name shards, and
a commit replaces one name, that of manifest.json. docs/format.md, section 6.

A process can be killed between any two lines of this file. What the next one that writes finds is
one of three states: the job goes on; the job is committed, and is swept; nothing is left.
"""

from __future__ import annotations

import contextlib
import datetime
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from shardctl.errors import BusyError, DatasetError, StorageError
from shardctl.format.dataset_folder import dataset_of
from shardctl.format.layout import Layout
from shardctl.format.manifest import Manifest, SplitFacts, sum_up
from shardctl.format.names import (
    BESIDE_SHARDS,
    CHECKSUMS,
    DATA,
    MANIFEST,
    SHARDS,
    STAGING,
    TABLES,
    UPDATE,
    Json,
    content_digits,
    generation_folder,
    is_shard_path,
    job_of_generation,
)
from shardctl.format.tables import ShardSpool, ShardTable, read_checksums
from shardctl.making.commit.jobs import (
    REPAIR_PREFIX,
    has_made,
    id_of_job,
    is_resumable,
    job_of_partial,
)
from shardctl.making.commit.target import Target, WriteLease, files_beside, lost_shards
from shardctl.making.plan.fingerprint import fingerprint
from shardctl.system.files import (
    PARTIAL,
    copy_file,
    is_file,
    make_folder,
    naming_the_path,
    write_atomically,
)
from shardctl.system.folders import hash_file
from shardctl.system.text import counted
from shardctl.version import __version__


def new_generation(target: Target, job: str) -> Path:
    """Make the folder for the tables of the generation that a job makes, after the one that is
    there. Some of it may be there already. `job` is its id."""
    there = target.manifest()
    number = 1 if there is None else there.generation.number + 1
    folder = target.folder.path(generation_folder(number, job))
    make_folder(folder, target.folder.root)
    with naming_the_path(folder):
        for left in folder.glob(f"*{PARTIAL}"):  # that a killed process has begun
            left.unlink(missing_ok=True)
    return folder


def commit(
    target: Target, held: WriteLease, tables: Path, job: Path, leaves_out: bool = False
) -> Manifest:
    """Make the generation in the folder `tables` the dataset, and take away the folder of its job,
    and generations that are not kept. Return its manifest.

    All of its shards are there. `leaves_out` says that the job has made others, too. Raises
    StorageError, BusyError, and what the target raises.
    """
    data = (tables / MANIFEST).read_bytes()
    folder = f"{tables.relative_to(target.folder.root).as_posix()}/"
    manifest = Manifest.load(target.folder.below(folder))
    held.check()
    target.put(folder)
    listed = _refuse_lost(target, folder, job)
    target.replace_manifest(data, held)
    # Who has taken over meanwhile completes this. What else is in the way is for the next writer.
    with contextlib.suppress(BusyError, StorageError, DatasetError, OSError):
        held.check()
        target.look_at_manifest()
        there = target.manifest()
        if there is not None and there.job == manifest.job:
            made = {} if leaves_out else {job.name: ()}
            sweep(target, held, made=made, listed=listed)
    return manifest


def _refuse_lost(target: Target, folder: str, job: Path) -> dict[str, int]:
    """Return all files that lie among the shards of a generation. Raises StorageError if a shard is
    not there as it was built; the same command builds it again."""
    shards = target.shards_of(folder)
    there = files_beside(target, shards)
    if lost := lost_shards(shards, there):
        target.unmark(job, lost)
        raise StorageError(
            f"{target.folder.shown(lost[0])}: is missing, or is not the file that was built "
            f"({counted(len(lost), 'such shard')} in all); run the same command again"
        )
    return there


# --- a generation that is made in one go: what was done of it when its process is killed is of no use
# ---


@dataclass(frozen=True)
class NewGeneration:
    """The work on a generation, by the only writer. `folder` is the folder of its job. The names of
    new files have the `id` of the job. `shards` are the paths of the shards that are in the dataset
    by now."""

    target: Target
    held: WriteLease
    folder: Path
    id: str
    shards: list[str] = field(default_factory=list)

    @property
    def root(self) -> Path:
        """The folder that shards are written to, by their paths."""
        return self.target.folder.root

    @property
    def tables(self) -> Path:
        """The folder for its tables, which is made."""
        return new_generation(self.target, self.id)

    def put(self, path: str) -> None:
        """Put a shard that is complete into the dataset."""
        self.shards.append(path)
        self.target.put_shard(path)

    def commit(self) -> Manifest:
        """Make it the dataset: its tables and its manifest are complete."""
        return commit(self.target, self.held, self.tables, self.folder)


@contextlib.contextmanager
def making_generation(target: Target, held: WriteLease) -> Iterator[NewGeneration]:
    """Yield the work on a new generation. Nothing is left of it in the end unless it was
    committed."""
    name = secrets.token_hex(4)
    folder = target.folder.path(STAGING) / f"{REPAIR_PREFIX}{name}"
    with naming_the_path(folder):
        folder.mkdir(parents=True)
    make_folder(target.folder.path(DATA), target.folder.root)
    made = NewGeneration(target, held, folder, name)
    try:
        yield made
    finally:
        if folder.exists():
            with contextlib.suppress(BusyError, StorageError, DatasetError, OSError):
                target.look_at_manifest()  # it may be committed: an answer can be lost
                sweep(target, held, made={folder.name: made.shards})
        if folder.exists():  # what else there is could not be told
            with contextlib.suppress(StorageError, OSError):
                target.discard(folder)
                target.tidy()


# --- what no generation and no job needs any more ---


def sweep(
    target: Target,
    held: WriteLease,
    given_up: Collection[str] = (),
    made: Mapping[str, Collection[str]] | None = None,
    listed: Iterable[str] = (),
) -> list[str]:
    """Delete generations that the manifest does not name, jobs that cannot go on, and their shards;
    and return the names of the jobs that were committed. The jobs `given_up`, by their names, go
    too.

    The caller holds the lease, and no part is being built. A shard goes because the table of such a
    generation, or the marker of such a job, names it, and no other one does. `made` are the shards
    of some jobs, by their names: their markers are not read. Of the `listed` files those go, too,
    that are called as shards, that nothing names, and whose content is that of their names.
    """
    _delete_format_2(target)
    manifest = target.manifest()
    named = {each.path for each in manifest.history if each.path} if manifest else set[str]()
    stay, go, committed = list[Path](), list[Path](), list[str]()
    for job in target.jobs():
        if has_made(job, manifest):
            committed.append(job.name)
            go.append(job)
        else:
            stays = job.name not in given_up and is_resumable(job, manifest)
            (stay if stays else go).append(job)
    begun, ended = set(map(id_of_job, stay)), set(map(id_of_job, go))
    generations = target.generations()
    if manifest is None and any(
        job_of_generation(folder) not in begun | ended
        or f"{folder}{MANIFEST}" in target.sizes(folder)
        for folder in generations
    ):
        return committed  # the manifest may be lost: what the dataset needs is not known
    gone = [
        folder
        for folder in generations
        if folder not in named and job_of_generation(folder) not in begun
    ]
    if go and not listed:
        listed = target.sizes(f"{DATA}/")
    ours = {path for path in listed if content_digits(path) or job_of_partial(path)}
    if not (gone or go or ours):
        return committed
    try:
        needed = _needed(target, manifest, stay)
    except DatasetError:  # what is needed is not known: nothing of the dataset goes
        gone = []
        needed = {*target.sizes(""), *target.sizes(f"{DATA}/")}
    for folder in gone:
        with contextlib.suppress(DatasetError):  # its shards are among those that nothing names
            shards = target.shards_of(folder)
            held.check()
            target.delete(path for path in shards if path not in needed and is_shard_path(path))
        held.check()
        target.delete(_tables_of(target, folder))
    for job in go:
        known = (made or {}).get(job.name)
        own = target.shards_made(job) if known is None else list(known)
        held.check()
        target.delete(path for path in own if path not in needed and is_shard_path(path))
        target.discard(job)
    unnamed = list(_unnamed(target, ours - needed, begun))  # hashing takes its time
    held.check()
    target.delete(unnamed)
    target.tidy()
    return committed


def _needed(target: Target, manifest: Manifest | None, jobs: Iterable[Path]) -> set[str]:
    """Return the paths of the shards that the generations of a dataset and these jobs have. Raises
    DatasetError where the table of one cannot be read, or is damaged. A copy need not have the
    earlier generations."""
    needed = set[str]()
    if manifest is not None:
        kept = (each.path for each in manifest.kept if target.sizes(each.path))
        for each in chain([manifest], map(target.manifest_of, kept)):
            places = each.places
            needed.update(map(places.of, target.shards_of(places.tables)))
            table = target.folder.below(places.tables)
            if hash_file(table, SHARDS) != each.files[SHARDS].sha256:
                raise DatasetError(f"{table.shown(SHARDS)}: damaged")
    for job in jobs:
        needed.update(target.shards_made(job))
    return needed


def _tables_of(target: Target, folder: str) -> list[str]:
    """Return the files of a generation in its folder, the manifest last."""
    own = set(BESIDE_SHARDS)
    with contextlib.suppress(DatasetError):
        own |= set(target.manifest_of(folder).files)
    names = (path.removeprefix(folder) for path in target.sizes(folder))
    ours = (name for name in names if name in own or name.endswith(PARTIAL))
    return [f"{folder}{name}" for name in sorted(ours, key=lambda name: (name == MANIFEST, name))]


def _unnamed(target: Target, paths: Iterable[str], begun: set[str]) -> Iterator[str]:
    """Of paths that nothing names, yield those of files that shardctl has made. These are shards
    that have the content of their names, and unfinished shards of jobs that have ended."""
    for path in paths:
        if job := job_of_partial(path):
            goes = job not in begun
        else:
            goes = target.has_content(path, content_digits(path))
        if goes:
            yield path


def kept_bytes(target: Target) -> int:
    """Return how many bytes of shards are there for readers of earlier generations alone; 0 where
    one of them cannot be read: without the lease, it may be gone."""
    with contextlib.suppress(DatasetError):
        manifest = target.manifest()
        if manifest is not None and manifest.kept:
            present, earlier = target.shards_of(manifest.places.tables), dict[str, int]()
            for each in manifest.kept:
                earlier |= target.shards_of(each.path)
            return sum(size for path, size in earlier.items() if path not in present)
    return 0


# --- a dataset of format 2 becomes one of format 3 ---


def upgrade_format_2(target: Target, held: WriteLease) -> bool:
    """Write the tables of a dataset of format 2 as format 3 has them, beside its shards, which stay
    where they are: it is the same generation. Return whether it was one."""
    there = target.manifest()
    if there is None or there.job:
        return False
    target.fetch_dataset()
    job, old = secrets.token_hex(4), dataset_of(there, target.folder)
    folder = generation_folder(there.generation.number, job)
    new = target.folder.path(folder)
    make_folder(new, target.folder.root)
    table = ShardTable(old)
    update = there.update if is_file(old.path(UPDATE)) else None  # it may be lost
    with naming_the_path(new):
        for name in {*there.files, *([UPDATE] if update else [])} - {SHARDS, CHECKSUMS}:
            copy_file(old.path(name), new / name)
    with ShardSpool(new) as spool:
        for entry in table:
            spool.add(replace(entry, path=there.places.of(entry.path)))
        spool.write_table(new / SHARDS, table.making, table.jpegs)
        files = sum_up(new, spool.sums(), there.own_files)
    *earlier, last = there.history or (there.generation,)
    last = replace(last, digest=files[CHECKSUMS].sha256, path=folder)
    made = replace(
        there,
        files=files,
        update=update,
        history=(*earlier, last),
        keep=there.keep or 1,
        job=job,
        base="",
        replaced="",
    )
    data = made.to_json().encode()
    write_atomically(new / MANIFEST, data)
    target.put(folder)
    held.check()
    if there.replaced:  # while the manifest names it
        shards = list[str]()
        with contextlib.suppress(DatasetError):
            shards = [f"{there.replaced}{name}" for name in target.shards_of(there.replaced)]
        target.delete([*shards, *_tables_of(target, there.replaced)])
    target.replace_manifest(data, held)
    held.check()
    if there.base:
        target.delete(f"{there.base}{name}" for name in (*there.files, UPDATE, MANIFEST))
    _delete_format_2(target)
    return True


def _delete_format_2(target: Target) -> None:
    """Delete the tables that a dataset of this machine had in format 2, if it is one of format 3
    now: those that its list names, as they were."""
    folder, there = target.folder, target.manifest()
    if there is None or not there.job or not is_file(folder.path(CHECKSUMS)):
        return
    with contextlib.suppress(DatasetError, OSError):
        sums = read_checksums(folder)
        own = [name for name in (*TABLES, *there.own_files) if is_file(folder.path(name))]
        if sums.keys() >= {*TABLES} and all(hash_file(folder, each) == sums[each] for each in own):
            target.delete([*own, UPDATE, CHECKSUMS])


# --- what a manifest says of a dataset ---


def new_manifest(
    layout: Layout,
    recipe: Json,
    parts: dict[str, str],
    splits: tuple[SplitFacts, ...],
    **others: Any,
) -> Manifest:
    """Return the manifest of a dataset that is made now, with these parts of its fingerprint;
    `others` are its other fields. Without these, its samples have no source, and each of them was an
    input."""
    samples = sum(each.samples for each in splits)
    facts = {
        "kind": layout.kind,
        "samples": samples,
        "shards": sum(each.shards for each in splits),
        "bytes": sum(each.bytes for each in splits),
        "inputs": samples,
        "rejected": 0,
        "splits": splits,
        "schema": tuple((f.name, str(f.type)) for f in layout.columns),
        "fields": layout.fields(),
        "recipe": recipe,
        "settings": {},
        "fingerprint": fingerprint(parts),
        "fingerprint_parts": parts,
        "files": {},
        "sources": (),
        "created": now(),
        "shardctl_version": __version__,
    }
    return Manifest(**{**facts, **others})


def now() -> str:
    """Return the time as a manifest has it."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
