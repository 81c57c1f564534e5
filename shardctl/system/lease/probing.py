"""Whether a store does what a commit relies on: to write an object only if there is none."""

from __future__ import annotations

import secrets

from shardctl.errors import StoreError
from shardctl.system.lease.store_lease import Lease
from shardctl.system.stores.base import Store
from shardctl.system.text import printable

PROBES = ".shardctl/probe-"
"""How the keys begin of the objects that are written to find out, and deleted at once."""

TRIES = 3
"""How often it is tried: who holds the lease deletes the objects of a process that was killed, and
takes one for that."""


def probe(store: Store) -> None:
    """Raise StoreError if the store ignores conditions: two jobs that write the same dataset would
    not notice each other."""
    if not any(_knows_conditions(store) for _ in range(TRIES)):
        raise unconditional(store)


def _knows_conditions(store: Store) -> bool:
    key = PROBES + secrets.token_hex(8)
    try:
        return (
            store.create(key, b"the first") is not None and store.create(key, b"the second") is None
        )
    finally:
        store.delete([key])


def probe_with(store: Store, lease: Lease, key: str) -> None:
    """Do the same with a lease that is held, at this key: no object is left where this process is
    killed meanwhile."""
    if store.create(key, b"the second") is not None:
        lease.check()  # raises if it was another process that took the lease away
        raise unconditional(store)


def unconditional(store: Store) -> StoreError:
    """Return the error for a store that ignores conditions."""
    return StoreError(
        f"{printable(store.url)}: this store ignores conditions (If-None-Match), so that two jobs "
        "could overwrite each other's"
        " work. Use a store that knows them, or convert to a local folder and upload the folder"
    )
