"""The types of fields are found in some records, and in all of them where these do not show all types."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shardctl.errors import InputError, TypesDifferError

Made = TypeVar("Made")


def with_types(make: Callable[[bool], Made], advice: str) -> Made:
    """Return what `make` gives with the types of some records, or, where another record does not fit these, with those of all.

    `make` is told whether to find them in all records. What it gives the second time is what it would have given the first
    time, had all been read. Raises InputError, with `advice` at its end, if a record does not fit the types of all records.
    """
    try:
        return make(False)
    except TypesDifferError:
        pass  # which is known to no process before it reads the record: it may be the last one of all
    try:
        return make(True)
    except TypesDifferError as error:
        raise InputError(f"{error}; it must have changed since its type was found, {advice}") from error
