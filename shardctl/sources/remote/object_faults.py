"""What the stores that sources are on answer, as faults of files."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import NamedTuple

import xxhash

from shardctl.errors import (
    NoSuchKeyError,
    NotPermittedError,
    ObjectChangedError,
    Rejection,
    SourceGoneError,
    StoreError,
)
from shardctl.system.locations import split_bucket
from shardctl.system.sequences import evenly_spaced
from shardctl.system.stores import client_of

OTHERS = 3
"""How many other objects are tried before all of them count as not permitted."""

NUMBER_BITS = 60
"""Bits of the number that stands for a version. It is the time of change of a file in nanoseconds:
one before 2007."""


class Object(NamedTuple):
    """Where an object is, or would be: the URL of its bucket, and its key there, "" for the bucket
    itself."""

    bucket: str
    key: str

    @property
    def url(self) -> str:
        """The whole URL."""
        return f"{self.bucket}/{self.key}" if self.key else self.bucket


def object_at(text: str) -> Object | None:
    """Return the object, or the folder of objects, that a URL is of; None for a path."""
    found = split_bucket(text)
    return None if found is None else Object(*found)


def number_of(version: str) -> int:
    """Return a number that stands for the version of an object, in the place of a time of change:
    it is never 0."""
    return xxhash.xxh3_64_intdigest(version.encode()) >> (64 - NUMBER_BITS) or 1


@contextlib.contextmanager
def asking(what: Object) -> Iterator[None]:
    """Turn what a store says of an object into what the system says of files.

    Raises FileNotFoundError, PermissionError for one that alone may not be read, Rejection for one
    that has changed, and SourceGoneError for all that is not about this object: then every other
    one would fail as well.
    """
    try:
        yield
    except NoSuchKeyError as error:
        raise FileNotFoundError(errno.ENOENT, "there is no such object", what.url) from error
    except ObjectChangedError as error:
        raise changed() from error
    except NotPermittedError as error:
        if _others_can_be_read(what):
            raise PermissionError(errno.EACCES, str(error).removeprefix(f"{what.url}: ")) from error
        raise SourceGoneError(f"{error}; no other object beside it can be read either") from error
    except StoreError as error:
        raise SourceGoneError(f"{error}; the same command goes on from here") from error


def changed() -> Rejection:
    """Return the reason for a file, or an object, that is not as it was when it was listed."""
    return Rejection(
        "read", "changed", "it changed after the files were listed; run the conversion again"
    )


def _others_can_be_read(what: Object) -> bool:
    """Return whether another object in the folder of one can be read. Raises SourceGoneError."""
    folder, slash, _ = what.key.rpartition("/")
    store = client_of(what.bucket)
    try:
        page = next(store.pages(folder + slash), [])
        others = [entry.name for entry in page if entry.name != what.key and entry.size]
        for place in evenly_spaced(len(others), OTHERS):
            with contextlib.suppress(NoSuchKeyError, NotPermittedError):
                store.fetch(others[place], 1)
                return True
    except StoreError as error:
        raise SourceGoneError(str(error)) from error
    return False
