"""Object stores: Amazon S3 and what speaks its protocol, Google Cloud Storage, Azure Blob
Storage."""

from __future__ import annotations

import importlib
import os
import threading
from functools import lru_cache

from shardctl.errors import UsageError
from shardctl.system.locations import SCHEMES, URL
from shardctl.system.packages import needed
from shardctl.system.stores.base import Store
from shardctl.system.text import printable


def refuse_half_url(text: str) -> None:
    """Raise UsageError for a URL of a store that lacks a colon or a slash after its scheme: it would be a path
    here."""
    scheme, colon, rest = text.partition(":")
    if not colon:
        scheme, colon, rest = text.partition("//")
    if colon and scheme in SCHEMES and not rest.startswith("//") and not os.path.lexists(text):
        raise UsageError(
            f"{printable(text)}: is not a URL; write {scheme}://{printable(rest.lstrip('/'))}"
        )


def parts_of(url: str) -> tuple[str, str, str]:
    """Return the scheme of a URL of an object store, its bucket, and its prefix without a / at the
    end. Raises UsageError."""
    # of s3://, where a caller has taken the / at the end away
    url = f"{url}//" if url.endswith(":") else url
    if url.startswith("file://"):
        raise UsageError(f"{printable(url)}: leave out file://")
    match = URL.fullmatch(url)
    schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES)
    if not match or match[1] not in SCHEMES:
        raise UsageError(
            f"{printable(url)}: is not the URL of an object store ({schemes}); for stores that "
            "speak S3 (OSS, COS, OBS, MinIO) write s3://, as `shardctl help stores` says; download "
            "or copy all else to a folder"
        )
    bucket, _, prefix = match[2].partition("/")
    if not bucket:
        raise UsageError(f"{printable(url)}: names no bucket; write {match[1]}://bucket/prefix")
    prefix = prefix.rstrip("/")
    if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
        raise UsageError(f"{printable(url)}: has an empty part, . or .. in its path; leave it out")
    return match[1], bucket, prefix


def open_store(url: str) -> Store:
    """Return the objects below a URL, such as s3://bucket/prefix. No request is made yet.

    Raises UsageError for what is no such URL, InstallError where a package is missing, StoreError
    where no credentials are.
    """
    scheme, bucket, prefix = parts_of(url)
    name = SCHEMES[scheme]
    needed("obstore", name, url)
    module = importlib.import_module(f"shardctl.system.stores.{name}")
    place = "/".join(filter(None, (f"{scheme}://{bucket}", prefix)))
    store: Store = module.connect(place, bucket, prefix)
    return store


def client_of(url: str) -> Store:
    """Return the client of this process for the objects below a URL: made when it is first asked
    for, which takes 14 ms.

    Threads share it. Raises as `open_store` does.
    """
    with _opening:
        return _opened(url, os.getpid())


def forget_clients() -> None:
    """Have stores opened anew when they are asked for next, with the credentials that there are
    then."""
    _opened.cache_clear()


@lru_cache(None)
def _opened(url: str, _process: int) -> Store:
    """Return a new client. One that was made before a fork cannot be used after it."""
    return open_store(url)


_opening = threading.Lock()
"""Held while a client is made: of several threads that want the same one, one makes it."""


def _after_fork() -> None:
    """Take a fresh lock: in a forked child, the old one may be held by a thread that is not
    there."""
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
