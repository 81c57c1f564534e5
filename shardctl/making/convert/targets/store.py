"""A dataset on an object store: `URL/manifest.json` names the folder below `URL` that has all else.

Nothing is renamed there. Shards are put into the folder of the new dataset as they are built, and
the manifest last, on the condition that it is still the one that was there when the work began: a
reader finds the old dataset or the new one. The job lies in `URL/.shardctl` for whoever goes on
with it, and is copied into a folder of this machine.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
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
from shardctl.format.manifest import Manifest
from shardctl.format.names import BESIDE_SHARDS, LEASE_KEY, MANIFEST, STAGING, is_shard_name
from shardctl.format.tables import ShardTable
from shardctl.making.commit import staging
from shardctl.making.convert.previous import PreviousDataset
from shardctl.making.convert.targets import Target, WriteLease, kept_shards
from shardctl.making.shards.job import NEW_FOLDER, DatasetJob
from shardctl.making.shards.marker import (
    done_folder,
    fetch_file,
    state_folder,
    trust_no_place,
    write_sign,
)
from shardctl.system import store_lease
from shardctl.system.file_lease import PARTS, Waiting, file_of_part, part_of_file
from shardctl.system.files import PARTIAL, write_atomically
from shardctl.system.folders import LocalFolder
from shardctl.system.job_folder import DONE_FOLDER, JOB, JobFolder
from shardctl.system.processes.pool import Pool
from shardctl.system.scratch import scratch_folder
from shardctl.system.store_lease import PROBES, Lease, probe, probe_with
from shardctl.system.stores import client_of, forget_clients
from shardctl.system.stores.base import Entry, Store
from shardctl.system.text import printable

AT_ONCE = 32
"""Small objects that are requested at the same time: each costs the latency of the store."""

PACE = store_lease.LeaseTiming()

REPLACES = "replaces.json"
"""The object in the state of a job, put right before its dataset takes its place, that names the
folder of the one before."""

_BASE = re.compile(r"[0-9a-f]{12}(-[0-9a-f]+)?")
"""The names of the folders that have datasets."""

_LOOSE = re.compile(
    rf"{re.escape(Path(LEASE_KEY).name)}|{re.escape(Path(PROBES).name)}[0-9a-f]{{16}}"
)
"""The names of objects that are beside the states of jobs: the lease, and what a probe has put."""

_OF_JOB = re.compile(
    rf"{DONE_FOLDER}/[0-9]+\.(arrow|jsonl)|{PARTS}/[^/]+\.json|{NEW_FOLDER}/[^/]+|[^/]+\.(arrow|json|jsonl)"
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
    """The place at a URL, and the folder of this machine that has the work on it."""

    def __init__(self, url: str, target: Path) -> None:
        self.url, self.folder = url, LocalFolder(target, url)
        self._store: Store = client_of(url)
        self._version: str | None = None
        self._jobs: set[str] = set()
        self._loose: set[str] = set()
        self._parts = store_lease.Watch(PACE)
        self._held: Lease | None = None
        self._is_probed = self._has_tables = False
        self.look_at_dataset()

    def look_at_dataset(self) -> None:
        """Bring the manifest that is there now, and nothing of jobs."""
        shutil.rmtree(self.folder.root)
        self.folder.root.mkdir()
        self._version = None
        self._fetch_manifest()
        if self._has_tables:
            self.fetch_dataset()

    @property
    def _base_there(self) -> str:
        return "" if (there := self.manifest()) is None else there.base

    def look_at_jobs(self) -> None:
        """Bring which jobs were begun, and how far they are."""
        self._jobs.clear()
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
        return self._store.stat(LEASE_KEY) is not None

    def how_far(self) -> tuple[int, int] | None:
        """Return how many shards of the job that is being built are done, and how many it has; None
        if there is none."""
        for job in self._store.children(STAGING)[0]:
            # it may end meanwhile
            with contextlib.suppress(NoSuchKeyError, ValueError, KeyError, TypeError):
                record = json.loads(self._store.get(f"{STAGING}/{job}/{JOB}").to_pybytes())
                keys = (
                    entry.name
                    for page in self._store.pages(f"{STAGING}/{job}/{DONE_FOLDER}/")
                    for entry in page
                )
                return sum(key.endswith(".arrow") for key in keys), sum(
                    split["shards"] for split in record["splits"]
                )
        return None

    def _fetch_manifest(self) -> bool:
        """Bring the manifest, and return whether it is another one than before: without the lease,
        it may change meanwhile."""
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
            staging.is_job_name(job) and _OF_JOB.fullmatch("/".join(inner))
            if inner
            else _LOOSE.fullmatch(job)
        )
        if not is_path_below(entry.name) or not ours:
            return
        # also where there is nothing but the lease of one that was killed
        self._staging.mkdir(exist_ok=True)
        (self._jobs if inner else self._loose).add(job)
        if not inner or inner[0] == PARTS:
            return
        path = self._staging / job / "/".join(inner)
        JobFolder(self._staging / job).make_folders(NEW_FOLDER)
        if inner[0] == DONE_FOLDER:
            path.touch()
        elif path.suffix == ".json" or inner[0] == NEW_FOLDER:
            # tables are large: who builds the job fetches them
            with contextlib.suppress(NoSuchKeyError, ObjectChangedError):  # it has ended meanwhile
                fetch_file(self._store, entry, path)
            if path.name == JOB:
                trust_no_place(JobFolder(path.parent), self.url)

    def check_writable(self) -> None:
        """Raise StoreError if nothing can be written there, or the store ignores conditions."""
        probe(self._store)

    def needs_recovery(self) -> bool:
        """Return whether there is anything of a job: who writes finds out, and takes away what has
        become a dataset."""
        return bool(self._jobs or self._loose)

    def free_bytes(self) -> int | None:
        """Return that there is no limit."""
        return None

    @contextmanager
    def lease(
        self, waiting: Waiting | None, looking: Callable[[], None] = lambda: None
    ) -> Iterator[Lease]:
        """Hold the lease, once no part is being built. While this process waits for it, `looking`
        is called now and then."""
        with self.lease_beside_parts(waiting, looking) as held:
            self.await_parts(waiting)
            yield held

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
            self._held = held
            self.look_at_dataset()
            self.look_at_jobs()
            self._tidy()
            self._refuse_what_is_there()
            yield held

    def _refuse_what_is_there(self) -> None:
        """Raise StorageError if something else is there than a dataset, or what becomes one: it
        would be mixed with that."""
        if self._version is not None:
            return
        for entry in next(self._store.pages(), []):
            folder = entry.name.partition("/")[0]
            if folder != STAGING and not _BASE.fullmatch(folder):
                raise StorageError(
                    f"{printable(self.url)}: holds something else ({printable(folder)}); give a "
                    "new prefix, or a dataset"
                )

    def _tidy(self) -> None:
        """Complete what killed processes have begun: a dataset has taken its place, or a job is
        half deleted."""
        loose = [f"{STAGING}/{name}" for name in sorted(self._loose)]
        self._store.delete([key for key in loose if key != LEASE_KEY])
        base = self._base_there
        for job in (self._staging / name for name in sorted(self._jobs)):
            if not JobFolder(job).is_begun():
                self._delete_state(job)
            elif base and _base_of(job) == base:
                with contextlib.suppress(OSError, ValueError):
                    old = str(json.loads((job / REPLACES).read_bytes()))
                    self._forget_dataset(old, {base, Manifest.load(self.folder).replaced})
                self._forget_job(job)
            else:
                continue
            shutil.rmtree(job, ignore_errors=True)

    def part_lease(self, job: Path, part: str) -> AbstractContextManager[Lease]:
        """Hold the lease of a part."""
        key = f"{state_folder(job)}{PARTS}/{file_of_part(part)}.json"
        return store_lease.hold_if_free(self._store, key, self._parts)

    def parts_being_built(self) -> dict[str, str]:
        """Return who builds which part: also one that has gone a moment ago, which only time
        shows."""
        found = ((key, store_lease.owner_of(self._store, key)) for key in self._leases_of_parts())
        return {part_of_file(Path(key).stem): owner for key, owner in found if owner}

    def await_parts(self, waiting: Waiting | None) -> None:
        """Wait until the leases of all parts are gone, or stand still. These are deleted."""
        watch, announced = store_lease.Watch(PACE), ""
        while leases := self._leases_of_parts():
            self._store.delete(
                [key for key, version in leases.items() if watch.is_left(key, version)]
            )
            part, owner = next(iter(self.parts_being_built().items()), ("", ""))
            if owner and waiting is None and any(map(watch.beats, leases)):
                raise BusyError(
                    f"{printable(self.url)}: another shardctl is writing it (part {part}: {owner})"
                )
            if owner and waiting is not None and owner != announced:
                waiting(f"part {part}: {owner}")
                announced = owner
            watch.wait()

    def _leases_of_parts(self) -> dict[str, str]:
        """Return the keys of the leases of parts, and their versions."""
        return {
            each.name: each.version
            for job in self._store.children(STAGING)[0]
            for each in self._store.children(f"{STAGING}/{job}/{PARTS}")[1]
        }

    def prepared(self, job: DatasetJob) -> DatasetJob:
        """Take away the jobs of before, here and there. Return the job with the folder on the store
        that its shards are put into: one of its own, whatever was there."""
        for begun in filter(staging.is_job_name, self._store.children(STAGING)[0]):
            self.discard(self._staging / begun)
        job.folder.mkdir(parents=True)
        name = job.folder.name[:12]
        if self._version is not None or name in self._store.children()[0]:
            # A name that no other dataset has had: a process that stood still may be about to
            # delete that one.
            name = f"{name}-{secrets.token_hex(4)}"
        return replace(job, url=self.url, base=f"{name}/")

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
        if (
            job.url != self.url
            or not _is_base(job.base)
            or not job.base.startswith(job.folder.name[:12])
        ):
            raise DatasetError(
                f"{printable(self.url)}/{state_folder(job.folder)}{JOB}: this job is of another "
                "dataset; delete all objects beside it, and run the same command again"
            )
        for entry in self._store.children(state_folder(job.folder))[1]:
            path = job.folder / entry.name.rpartition("/")[2]
            if not path.exists():
                fetch_file(self._store, entry, path)
        write_sign(job.folder, held.sign)

    def fetch_done(self, job: DatasetJob, chosen: Bools) -> None:
        """Bring the markers of the chosen shards that have one, and all rejects: also of those that
        were built on other machines meanwhile."""
        for page in self._store.pages(done_folder(job.folder)):
            for entry in page:
                (job.folder / DONE_FOLDER / entry.name.rpartition("/")[2]).touch()
        paths = [job.marker_path(shard) for shard in staging.marked_shards(job) if chosen[shard]]
        paths += sorted((job.folder / DONE_FOLDER).glob("*.jsonl"))

        def fetch(path: Path) -> None:
            found = self._store.get(f"{done_folder(job.folder)}{path.name}")
            write_atomically(path, found.to_pybytes())

        with ThreadPoolExecutor(AT_ONCE) as threads:  # those that have only been noted
            list(threads.map(fetch, [path for path in paths if path.stat().st_size == 0]))

    def fetch_dataset(self) -> None:
        """Bring the tables of the dataset that is there, if there is one."""
        self._has_tables = True
        while (there := self.manifest()) is not None:
            complete = self.fetch_files(sorted({*BESIDE_SHARDS, *there.files} - {MANIFEST}))
            # Without the lease, the dataset may be replaced meanwhile, and that one too, and then
            # its files are deleted.
            if complete or not self._fetch_manifest():
                return

    def fetch_files(self, names: Iterable[str]) -> bool:
        """Bring some files of the dataset that is there, and return whether all are there.

        Not every dataset has all of them: who needs one says that it is missing.
        """
        base, complete = self._base_there, True
        for name in names:
            try:
                found = self._store.stat(base + name)
                if found is not None:
                    fetch_file(self._store, found, self.folder.root / name)
                    continue
            except (NoSuchKeyError, ObjectChangedError):
                pass
            (self.folder.root / name).unlink(missing_ok=True)
            complete = False
        return complete

    def refuse_lost(self, before: PreviousDataset, shards: list[int]) -> None:
        """Look at the sizes that a listing of the dataset gives."""
        base = self._base_there
        sizes = self._sizes(base) if shards else {}
        for shard in shards:
            entry = before.table[shard]
            if sizes.get(entry.path) != entry.bytes:
                key = printable(f"{self.url}/{base}{entry.path}")
                raise DatasetError(
                    f"{key}: gone, or of another size than the dataset has; run `shardctl repair` "
                    "first"
                )

    def refuse_lost_files(self, manifest: Manifest) -> None:
        """Nothing is looked at: it would take the table of shards, and a listing of one request for
        each 1,000 of them."""

    def keep(self, job: DatasetJob, before: PreviousDataset) -> None:
        """Have the store copy the shards."""
        base = self._base_there

        def copy(kept: tuple[int, int]) -> None:
            path, name = before.table[kept[1]].path, job.planned_shard(kept[0]).name
            self._store.copy(base + path, job.base + name)

        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(copy, kept_shards(job)))

    def leave_out(self, job: DatasetJob, shards: list[str]) -> None:
        """Delete the objects."""
        self._store.delete([job.base + name for name in shards])

    def publish(self, new: Path, updates: bool, checks: Pool | None = None) -> None:
        """Put the tables, then the manifest. The dataset of before stays for those who read it; the
        one before that goes."""
        there = self.manifest()
        # What is deleted in the end is decided now, by what the manifests say: no other folder is
        # ours.
        before, old = (there.base, there.replaced) if there is not None else ("", "")
        manifest = replace(Manifest.load(LocalFolder(new)), replaced=before)
        data = manifest.to_json().encode()
        write_atomically(new / MANIFEST, data)
        for path in sorted(new.iterdir()):
            if path.is_file() and path.name != MANIFEST and not path.name.endswith(PARTIAL):
                self._store.put(manifest.base + path.name, path)
        self._store.put(
            manifest.base + MANIFEST, replace(manifest, base="", replaced="").to_json().encode()
        )
        self._store.put(state_folder(new.parent) + REPLACES, json.dumps(old).encode())
        self._check_lease()
        self._refuse_missing_shards(new)
        # once more, as late as can be: who has taken over may be taking the shards away
        self._check_lease()
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
        # who has taken over meanwhile completes this, and may have begun another job
        with contextlib.suppress(BusyError):
            self._check_lease()
            self._forget_dataset(old, {manifest.base, before})
            self._forget_job(new.parent)  # the job last: whoever finds it completes this
        for path in new.iterdir():
            path.replace(self.folder.root / path.name)
        shutil.rmtree(self._staging)

    def _check_lease(self) -> None:
        assert self._held is not None, "only its owner gets here"
        self._held.check()

    def _refuse_missing_shards(self, new: Path) -> None:
        """Raise StorageError if a shard is not there as it was built; the same command builds it
        again."""
        table, base = ShardTable(LocalFolder(new)), Manifest.load(LocalFolder(new)).base
        there, named = self._sizes(base), enumerate(table.names)
        lost = [number for number, name in named if there.get(name) != int(table.sizes[number])]
        if lost:
            self._store.delete([f"{done_folder(new.parent)}{number:07d}.arrow" for number in lost])
            raise StorageError(
                f"{printable(self.url)}/{base}{table.names[lost[0]]}: is missing, or is not the "
                "file that was built"
                f" ({len(lost):,} such shards in all); run the same command again"
            )

    def _sizes(self, base: str) -> dict[str, int]:
        """Return the sizes of the files in a folder, by their names there."""
        entries = (entry for page in self._store.pages(base) for entry in page)
        return {entry.name.removeprefix(base): entry.size for entry in entries}

    def _forget_dataset(self, base: str, kept: set[str]) -> None:
        """Delete a dataset that was replaced earlier. What says that it is one goes last: another
        process can go on."""
        if _is_base(base) and base not in kept:
            self._delete_dataset(base, set())

    def _forget_job(self, job: Path) -> None:
        """Delete the state of a job: what says that there is one goes first."""
        self._store.delete([state_folder(job) + JOB])
        self._delete_state(job)

    def _delete_state(self, job: Path) -> None:
        """Delete the state of a job, and nothing that a person has put beside it."""
        self._delete_below(state_folder(job), lambda name: bool(_OF_JOB.fullmatch(name)))

    def _delete_dataset(self, base: str, names: set[str]) -> None:
        """Delete the files of the dataset in a folder, and those with these names, and nothing of a
        person beside them.

        What says that it is one, and which files it has, goes last: another process can go on.
        """
        own = {*BESIDE_SHARDS, *names}
        # it was not complete
        with contextlib.suppress(NoSuchKeyError, ValueError, KeyError, TypeError):
            own |= set(json.loads(self._store.get(f"{base}{MANIFEST}").to_pybytes())["files"])
        self._delete_below(
            base, lambda name: name != MANIFEST and (name in own or is_shard_name(name))
        )
        self._store.delete([f"{base}{MANIFEST}"])

    def _delete_below(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        """Delete the objects of a folder that are ours by their keys within it."""
        for page in self._store.pages(prefix):
            self._store.delete(
                [entry.name for entry in page if is_ours(entry.name.removeprefix(prefix))]
            )

    def discard(self, job: Path) -> None:
        """Take away a job, with the shards that it has put: at each moment, another process can go
        on with it, or with this."""
        base, state = _base_of(job), state_folder(job)
        self._delete_below(
            state,
            lambda name: name.startswith(f"{DONE_FOLDER}/") and _OF_JOB.fullmatch(name) is not None,
        )
        current = b""
        with contextlib.suppress(NoSuchKeyError):
            # the manifest that is there now: another process may have completed this job
            current = self._store.get(MANIFEST).to_pybytes()
        if base is not None and f'"{base}"'.encode() not in current:
            files = self._store.children(f"{state}{NEW_FOLDER}")[1]  # those of the recipe
            self._delete_dataset(base, {entry.name.rpartition("/")[2] for entry in files})
        self._forget_job(job)
        if job.exists():
            staging.discard(job)


def _base_of(job: Path) -> str | None:
    """Return the folder on the store that a job puts its shards into; None if it does not say."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        base = JobFolder(job).record()["base"]
        return base if _is_base(base) else None
    return None


def _is_base(name: str) -> bool:
    """Return whether this is the folder of a dataset on a store, with the / at its end."""
    return name.endswith("/") and _BASE.fullmatch(name[:-1]) is not None
