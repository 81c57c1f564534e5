"""Puts finished shards on the object store that a dataset is written to, and fetches the job from
there."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path

from shardctl.format.names import STAGING
from shardctl.making.shards.job import NEW_FOLDER, Job
from shardctl.system.file_lease import PARTS
from shardctl.system.files import PARTIAL, replacing, write_atomically
from shardctl.system.job_folder import DONE_FOLDER, JobFolder
from shardctl.system.store_lease import LeaseToken
from shardctl.system.stores import client_of
from shardctl.system.stores.base import Entry, Store


def upload_shard(job: Job, shard: int) -> None:
    """Put a finished shard on the store, its marker last, and take the shard away here. Raises
    StoreError.

    Raises BusyError where another process has taken over: what it has made of sources that have
    changed since must stay.
    """
    path, rejects, marker = job.shard_path(shard), job.rejects_path(shard), job.marker_path(shard)
    done, coming = done_folder(job.folder), marker.with_name(f"{marker.name}.coming{PARTIAL}")
    # here, too, a shard counts as finished only when it is there, also if this process is killed
    marker.replace(coming)
    try:
        store, sign = client_of(job.url), read_sign(job.folder)
        sign.check(store)
        store.put(f"{job.base}{path.name}", path)
        if rejects.exists():
            store.put(f"{done}{rejects.name}", rejects)
        sign.check(store)
        store.put(f"{done}{marker.name}", coming)
    except BaseException:
        coming.unlink()
        raise
    coming.replace(marker)
    path.unlink()


SIGN = "sign.json"
"""The file in the folder of a job on this machine that tells its workers for whom they work: see
LeaseToken."""


def write_sign(folder: Path, sign: LeaseToken) -> None:
    """Let the workers of the job in a folder know who has the right to write."""
    write_atomically(folder / SIGN, json.dumps(asdict(sign)).encode())


def read_sign(folder: Path) -> LeaseToken:
    """Return what `write_sign` has written."""
    return LeaseToken(**json.loads((folder / SIGN).read_bytes()))


def fetch_job(url: str, folder: Path) -> None:
    """Bring the job with the name of a folder, which is made, from where a dataset's is on a store.
    Raises StoreError."""
    folder.mkdir(parents=True)
    JobFolder(folder).make_folders(NEW_FOLDER)
    store, state = client_of(url), state_folder(folder)
    for page in store.pages(state):
        for entry in page:
            name = entry.name.removeprefix(state)
            if not name.startswith((f"{DONE_FOLDER}/", f"{PARTS}/")):
                fetch_file(store, entry, folder / name)
    trust_no_place(JobFolder(folder), url)


def fetch_file(store: Store, found: Entry, path: Path) -> None:
    """Bring a file, which may be large. Raises StoreError."""
    with replacing(path) as sink:
        for piece in store.pieces(found):
            sink.write(piece)


def trust_no_place(folder: JobFolder, url: str) -> None:
    """Write into job.json where the dataset is that it was fetched from: a copy of it may say
    another place."""
    # whoever reads it says that it is none
    with contextlib.suppress(OSError, ValueError, TypeError):
        folder.save({**folder.record(), "url": url})


def state_folder(job: Path) -> str:
    """Return where the state of a job, by its folder here, is on the store: a key, with a / at its
    end."""
    return f"{STAGING}/{job.name}/"


def done_folder(job: Path) -> str:
    """Return where the markers of a job are on the store."""
    return f"{state_folder(job)}{DONE_FOLDER}/"
