"""A place on an object store that a dataset is written to.

Shards are put there as they are built. The manifest is replaced on the condition that it is still
the one that was there when the work began. The job lies in `URL/.shardctl` for whoever goes on with
it, and is copied into a folder of this machine, which has the paths of the dataset.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path

from shardctl.errors import (
    BusyError,
    DatasetError,
    NoSuchKeyError,
    ObjectChangedError,
    StorageError,
)
from shardctl.format.arrays import Bools
from shardctl.format.dataset_tables import is_path_below
from shardctl.format.generations import in_order
from shardctl.format.manifest import Manifest
from shardctl.format.names import (
    DATA,
    GENERATIONS,
    LEASE_KEY,
    MANIFEST,
    SHARDS,
    STAGING,
    UPDATE,
    job_of_generation,
)
from shardctl.making.commit.jobs import (
    REPAIR_PREFIX,
    discard,
    id_of_job,
    is_job_name,
    jobs_in,
    marked_shards,
    shards_made,
)
from shardctl.making.commit.target import Target, WriteLease
from shardctl.making.shards.job import RECIPE_FOLDER, DatasetJob
from shardctl.making.shards.marker import (
    SIGN,
    done_folder,
    fetch_file,
    make_folders,
    state_folder,
    trust_no_place,
)
from shardctl.system import store_lease
from shardctl.system.file_lease import PARTS, Wait, Waiting, file_of_part, part_of_file
from shardctl.system.files import PARTIAL, make_folder, write_atomically
from shardctl.system.folders import LocalFolder, sha256_in
from shardctl.system.job_folder import DONE_FOLDER, JOB, JobFolder
from shardctl.system.scratch import scratch_folder
from shardctl.system.store_lease import PROBES, Lease, probe, probe_with
from shardctl.system.stores import client_of, forget_clients
from shardctl.system.stores.base import Entry, Store
from shardctl.system.text import printable

AT_ONCE = 32
"""Small objects that are requested at the same time: each costs the latency of the store."""

PACE = store_lease.LeaseTiming()

_LOOSE = re.compile(
    rf"{re.escape(Path(LEASE_KEY).name)}|{re.escape(Path(PROBES).name)}[0-9a-f]{{16}}"
)
"""The names of objects that are beside the states of jobs: the lease, and what a probe has put."""

_OF_JOB = re.compile(
    rf"{DONE_FOLDER}/[0-9]+\.(arrow|jsonl)|{PARTS}/[^/]+\.json|{RECIPE_FOLDER}/[^/]+|[^/]+\.(arrow|json|jsonl)"
)
"""The objects of the state of a job, by their keys within it. Nothing else there is deleted: it is
a person's."""


@contextmanager
def place_on_store(url: str) -> Iterator[StoreTarget]:
    """Yield the place at a URL, with what is known of its dataset. Its jobs, whose plans are large,
    are not fetched, for who may only wait for the dataset: `look_at_jobs` does that, and so do
    `lease` and `lease_beside_parts`. Raises StoreError, InstallError, UsageError.
    """
    url = url.rstrip("/")
    with scratch_folder() as scratch:
        target = scratch / "out"
        try:
            target.mkdir()
            yield StoreTarget(url, target)
        finally:
            forget_clients()


class StoreTarget(Target):
    """The place at a URL, and the folder of this machine that has the work on it. Many processes on
    many machines may wait for it: they ask for little, and not often."""

    look_seconds = 1.0

    def __init__(self, url: str, target: Path) -> None:
        self.url, self.folder = url, LocalFolder(target, url)
        self._store: Store = client_of(url)
        self._version: str | None = None
        self._loose: set[str] = set()
        self._parts = store_lease.Watch(PACE)
        self._is_probed = self._has_tables = False
        self.look_at_dataset()

    def look_at_dataset(self) -> None:
        """Bring the manifest that is there now, and nothing of jobs."""
        shutil.rmtree(self.folder.root)
        self.folder.root.mkdir()
        self._version = None
        self.look_at_manifest()
        if self._has_tables:
            self.fetch_dataset()

    def look_at_jobs(self) -> None:
        """Bring which jobs were begun, and how far they are."""
        self._loose.clear()
        for page in self._store.pages(f"{STAGING}/"):
            for entry in page:
                self._note(entry)

    def is_replaced(self) -> bool:
        """Return whether another dataset is there than when it was looked at last."""
        found = self._store.stat(MANIFEST)
        return (None if found is None else found.version) != self._version

    def is_leased(self) -> bool:
        """Return whether a process holds the lease, or one that was killed has left it."""
        return bool(self._loose) or self._store.stat(LEASE_KEY) is not None

    def how_far(self) -> tuple[int, int] | None:
        """Return how many shards of the job that is being built are done, and how many it has; None
        if there is none."""
        shutil.rmtree(self._staging, ignore_errors=True)  # one that was there may have ended
        self.look_at_jobs()
        return super().how_far()

    def look_at_manifest(self) -> bool:
        """Have the manifest that is there now in `folder`, and return whether it is another one
        than before: without the lease, it may change meanwhile."""
        while True:
            found = self._store.stat(MANIFEST)
            version = None if found is None else found.version
            if version == self._version:
                return False
            with contextlib.suppress(NoSuchKeyError, ObjectChangedError):
                if version is None:
                    (self.folder.root / MANIFEST).unlink()
                else:
                    found_now = self._store.get(MANIFEST, version=version).to_pybytes()
                    write_atomically(self.folder.root / MANIFEST, found_now)
                self._version = version
                return True

    def _note(self, entry: Entry) -> None:
        """Bring a file of a job; of a marker only note that it is there. What is no job of ours is
        left alone.

        A key may have any parts: one that leads upwards would be written elsewhere on this machine.
        """
        _, job, *inner = entry.name.split("/")
        ours = (
            is_job_name(job) and _OF_JOB.fullmatch("/".join(inner))
            if inner
            else _LOOSE.fullmatch(job)
        )
        if not is_path_below(entry.name) or not ours:
            return
        # also where there is nothing but the lease of one that was killed
        self._staging.mkdir(exist_ok=True)
        if not inner:
            self._loose.add(job)
        if not inner or inner[0] == PARTS:
            return
        path = self._staging / job / "/".join(inner)
        make_folders(self._staging / job)
        if inner[0] == DONE_FOLDER:
            path.touch()
        elif path.suffix == ".json" or inner[0] == RECIPE_FOLDER:
            # tables are large: who builds the job fetches them
            with contextlib.suppress(NoSuchKeyError, ObjectChangedError):  # it has ended meanwhile
                fetch_file(self._store, entry, path)
            if path.name == JOB:
                trust_no_place(JobFolder(path.parent), self.url)

    def check_writable(self) -> None:
        """Raise StoreError if nothing can be written there, or the store ignores conditions."""
        probe(self._store)

    def free_bytes(self) -> int | None:
        """Return that there is no limit."""
        return None

    @contextmanager
    def lease_beside_parts(
        self, waiting: Waiting | None, looking: Callable[[], None] = lambda: None
    ) -> Iterator[Lease]:
        """Hold the lease, and see what is there now. Raises StoreError if the store ignores
        conditions."""
        with store_lease.hold(self._store, LEASE_KEY, waiting, looking, PACE) as held:
            if not self._is_probed:
                probe_with(self._store, held, LEASE_KEY)
                self._is_probed = True
            self.look_at_dataset()
            self.look_at_jobs()
            loose = [f"{STAGING}/{name}" for name in sorted(self._loose)]
            self._store.delete([key for key in loose if key != LEASE_KEY])
            self._refuse_what_is_there()
            yield held

    def _refuse_what_is_there(self) -> None:
        """Raise StorageError if something else is there than a dataset, or what becomes one: it
        would be mixed with that."""
        if self._version is not None or self.may_lack_manifest:
            return
        jobs, made = self.jobs(), set(map(job_of_generation, self.generations()))
        is_begun = jobs and made.issubset(map(id_of_job, jobs))
        ours = (STAGING, DATA, GENERATIONS) if is_begun else (STAGING,)
        for entry in next(self._store.pages(), []):
            folder = entry.name.partition("/")[0]
            if folder not in ours:
                raise StorageError(
                    f"{printable(self.url)}: holds something else ({printable(folder)}); give a "
                    "new prefix, or a dataset"
                )

    def part_lease(self, job: Path, part: str) -> AbstractContextManager[Lease]:
        """Hold the lease of a part."""
        key = f"{state_folder(job)}{PARTS}/{file_of_part(part)}.json"
        return store_lease.hold_if_free(self._store, key, self._parts)

    def parts_being_built(self) -> dict[str, str]:
        """Return who builds which part: also one that has gone a moment ago, which only time
        shows."""
        found = ((key, store_lease.owner_of(self._store, key)) for key in self._leases_of_parts())
        return {part_of_file(Path(key).stem): owner for key, owner in found if owner}

    def await_parts(
        self, waiting: Waiting | None, looking: Callable[[], None] = lambda: None
    ) -> None:
        """Wait until the leases of all parts are gone, or stand still. These are deleted."""
        watch, wait = store_lease.Watch(PACE), Wait(printable(self.url), waiting, looking)
        while leases := self._leases_of_parts():
            self._store.delete(
                [key for key, version in leases.items() if watch.is_left(key, version)]
            )
            part, owner = next(iter(self.parts_being_built().items()), ("", ""))
            if owner and (waiting is not None or any(map(watch.beats, leases))):
                wait.tell(f"part {part}: {owner}")
            wait.pause(PACE.ask)

    def _leases_of_parts(self) -> dict[str, str]:
        """Return the keys of the leases of parts, and their versions."""
        return {
            each.name: each.version
            for job in self._store.children(STAGING)[0]
            for each in self._store.children(f"{STAGING}/{job}/{PARTS}")[1]
        }

    def jobs(self) -> list[Path]:
        """Return the folders of all jobs, here."""
        names = {*filter(is_job_name, self._store.children(STAGING)[0])}
        if self._staging.exists():  # one that is made in one go is only here
            here = (job.name for job in jobs_in(self._staging))
            names |= {name for name in here if name.startswith(REPAIR_PREFIX)}
        return [self._staging / name for name in sorted(names)]

    def begun(self, job: DatasetJob) -> None:
        """Put the files of the job on the store, job.json last."""
        for path in sorted(job.folder.rglob("*"), key=lambda path: (path.name == JOB, path)):
            if path.is_file():
                name = path.relative_to(job.folder).as_posix()
                self._store.put(state_folder(job.folder) + name, path)

    def entrust(self, job: DatasetJob, held: WriteLease) -> None:
        """Bring the tables of a job that was begun elsewhere, and write down whose lease counts.

        Raises DatasetError for a job that puts its shards elsewhere.
        """
        assert isinstance(held, Lease), "the lease of this place"
        if job.url != self.url:
            raise DatasetError(
                f"{printable(self.url)}/{state_folder(job.folder)}{JOB}: this job is of another "
                "dataset; delete all objects beside it, and run the same command again"
            )
        make_folder(job.folder / DATA, job.folder)
        for entry in self._store.children(state_folder(job.folder))[1]:
            path = job.folder / entry.name.rpartition("/")[2]
            if not path.exists():
                fetch_file(self._store, entry, path)
        write_atomically(job.folder / SIGN, json.dumps(asdict(held.sign)).encode())

    def fetch_done(self, job: DatasetJob, chosen: Bools) -> None:
        """Bring the markers of the chosen shards that have one, and all rejects: also of those that
        were built on other machines meanwhile."""
        self._note_markers(job.folder)
        paths = [job.marker_path(shard) for shard in marked_shards(job) if chosen[shard]]
        paths += sorted((job.folder / DONE_FOLDER).glob("*.jsonl"))
        self._fetch_markers(job.folder, paths)

    def _note_markers(self, job: Path) -> None:
        for page in self._store.pages(done_folder(job)):
            for entry in page:
                (job / DONE_FOLDER / entry.name.rpartition("/")[2]).touch()

    def _fetch_markers(self, job: Path, paths: Iterable[Path]) -> None:
        """Bring those that have only been noted."""

        def fetch(path: Path) -> None:
            found = self._store.get(f"{done_folder(job)}{path.name}")
            write_atomically(path, found.to_pybytes())

        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(fetch, [path for path in paths if path.stat().st_size == 0]))

    def unmark(self, job: Path, paths: list[str]) -> None:
        """Delete their markers."""
        lost = set(paths)
        for marker in sorted((job / DONE_FOLDER).glob("*.arrow")):
            if not lost.isdisjoint(shards_made(job, [marker.name])):
                self._store.delete([f"{done_folder(job)}{marker.name}"])

    def shards_made(self, job: Path) -> list[str]:
        """Return the paths of the shards that a job has finished, as its markers name them."""
        self._staging.mkdir(exist_ok=True)
        make_folders(job)
        with contextlib.suppress(NoSuchKeyError):
            self._note_markers(job)
            self._fetch_markers(job, sorted((job / DONE_FOLDER).glob("*.arrow")))
        return shards_made(job)

    def discard(self, job: Path) -> None:
        """Delete the state of a job, and nothing that a person has put beside it: what says that
        there is one goes first."""
        state = state_folder(job)
        self._store.delete([f"{state}{JOB}"])
        for page in self._store.pages(state):
            names = (entry.name.removeprefix(state) for entry in page)
            self._store.delete([f"{state}{name}" for name in names if _OF_JOB.fullmatch(name)])
        if job.exists():
            discard(job)

    def fetch_dataset(self) -> None:
        """Bring the tables of the dataset that is there, if there is one."""
        self._has_tables = True
        while (there := self.manifest()) is not None:
            complete = self.fetch_files([*there.files, UPDATE])
            # Without the lease, the dataset may be replaced meanwhile, and that one too, and then
            # its files are deleted.
            if complete or not self.look_at_manifest():
                return

    def fetch_files(self, names: Iterable[str]) -> bool:
        """Bring some files of the dataset that is there, and return whether all are there.

        Not every dataset has all of them: who needs one says that it is missing.
        """
        there, complete = self.manifest(), True
        for name in names if there is not None else ():
            assert there is not None, "it has files"
            if name != UPDATE or there.update is not None:
                complete &= self._fetch(there.places.of(name))
        return complete

    def _fetch(self, path: str) -> bool:
        """Bring a file of the dataset, and return whether it is there."""
        here = self.folder.root / path
        with contextlib.suppress(NoSuchKeyError, ObjectChangedError):
            found = self._store.stat(path)
            if found is not None:
                make_folder(here.parent, self.folder.root)
                fetch_file(self._store, found, here)
                return True
        here.unlink(missing_ok=True)
        return False

    def refuse_lost_files(self, manifest: Manifest) -> None:
        """Nothing is looked at: it would take the table of shards, and a listing of one request for
        each 1,000 of them."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of the objects right in a folder, by their keys."""
        return {each.name: each.size for each in self._store.children(folder.rstrip("/"))[1]}

    def generations(self) -> list[str]:
        """Return the folders of all generations, whole or not."""
        return in_order(self._store.children(GENERATIONS)[0])

    def manifest_of(self, generation: str) -> Manifest:
        """Return the copy of a manifest that is beside the tables of a generation, in their folder.
        Raises DatasetError."""
        self._fetch(f"{generation}{MANIFEST}")
        return super().manifest_of(generation)

    def shards_of(self, folder: str) -> dict[str, int]:
        """Return the sizes of the shards of a generation, by their paths. Raises DatasetError where
        its table cannot be read."""
        if not self.folder.path(f"{folder}{SHARDS}").exists():
            self._fetch(f"{folder}{SHARDS}")
        return super().shards_of(folder)

    def put_shard(self, path: str) -> None:
        """Put a shard on the store, and take it away here."""
        self._store.put(path, self.folder.root / path)
        (self.folder.root / path).unlink()

    def put(self, folder: str) -> None:
        """Put the files of a generation, the manifest last."""
        files = (path for path in self.folder.path(folder).iterdir() if path.is_file())
        for path in sorted(files, key=lambda path: (path.name == MANIFEST, path)):
            if not path.name.endswith(PARTIAL):
                self._store.put(f"{folder}{path.name}", path)

    def replace_manifest(self, data: bytes, held: WriteLease) -> None:
        """Put the manifest, on the condition that the one of before is still there."""
        held.check()
        if self._version is None:
            version = self._store.create(MANIFEST, data)
        else:
            version = self._store.replace(MANIFEST, data, self._version)
        if version is None:
            raise BusyError(
                f"{printable(self.url)}: another dataset was put there meanwhile; run the same "
                "command again"
            )
        self._version = version
        write_atomically(self.folder.root / MANIFEST, data)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects."""
        paths = list(paths)
        self._store.delete(paths)
        for path in paths:
            self.folder.path(path).unlink(missing_ok=True)

    def tidy(self) -> None:
        """A store has no folders."""

    def has_content(self, path: str, digits: str) -> bool:
        """Return whether the SHA-256 of an object begins so."""
        with contextlib.suppress(NoSuchKeyError):
            found = self._store.stat(path)
            return found is not None and sha256_in(self._store.pieces(found)).startswith(digits)
        return False
