"""Puts finished shards on the object store that a dataset is written to, and brings the job from there."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from shardctl.engines.job import DONE_FOLDER, NEW_FOLDER, Job
from shardctl.lease import PARTS
from shardctl.storage import write_atomically
from shardctl.stores import open_store
from shardctl.stores.base import Store
from shardctl.tables import STAGING


def deliver(job: Job, shard: int) -> None:
    """Put a finished shard on the store, its marker last, and take the shard away here. Raises StoreError.

    A process that is given up for dead and goes on puts the same bytes once more.
    """
    path, rejects, marker = job.shard_path(shard), job.rejects_path(shard), job.marker_path(shard)
    done = done_folder(job.folder)
    try:
        store = _store(job.url)
        store.put(f"{job.base}{path.name}", path)
        if rejects.exists():
            store.put(f"{done}{rejects.name}", rejects)
        store.put(f"{done}{marker.name}", marker)
    except BaseException:
        marker.unlink()  # here, too, a shard counts as finished only when it is there
        raise
    path.unlink()


def bring_job(url: str, folder: Path) -> None:
    """Bring the job with the name of a folder, which is made, from where a dataset's is on a store. Raises StoreError."""
    for made in (NEW_FOLDER, DONE_FOLDER):
        (folder / made).mkdir(parents=True)
    store, state = _store(url), state_folder(folder)
    for page in store.pages(state):
        for entry in page:
            name = entry.key.removeprefix(state)
            if not name.startswith((f"{DONE_FOLDER}/", f"{PARTS}/")):
                write_atomically(folder / name, store.get(entry.key).to_pybytes())


def state_folder(job: Path) -> str:
    """Return where the state of a job, by its folder here, is on the store: a key, with a / at its end."""
    return f"{STAGING}/{job.name}/"


def done_folder(job: Path) -> str:
    """Return where the markers of a job are on the store."""
    return f"{state_folder(job)}{DONE_FOLDER}/"


@lru_cache(maxsize=1)
def _store(url: str) -> Store:
    """Return the store, opened in this process: one that was opened before a fork cannot be used."""
    return open_store(url)
