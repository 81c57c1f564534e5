"""Whether a store does what a commit relies on: to write an object only if there is none."""

from __future__ import annotations

import secrets

from shardctl.errors import StoreError
from shardctl.storage import printable
from shardctl.stores.base import Store

PROBES = ".shardctl/probe-"
"""How the keys begin of the objects that are written to find out, and deleted at once."""


def probe(store: Store) -> None:
    """Raise StoreError if the store ignores conditions: two jobs that write the same dataset would not notice each other."""
    key = PROBES + secrets.token_hex(8)
    try:
        if store.create(key, b"the first") is None or store.create(key, b"the second") is not None:
            raise StoreError(
                f"{printable(store.url)}: this store ignores conditions (If-None-Match), so that two jobs could overwrite each"
                " other's work; use one that knows them, or convert to a local folder and upload that"
            )
    finally:
        store.delete([key])
