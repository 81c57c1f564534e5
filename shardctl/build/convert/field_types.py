"""The types of fields are found in some records, and in all of them where these do not show all
types."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shardctl.errors import InputError, TypesDifferError

Made = TypeVar("Made")


def with_types(make: Callable[[bool], Made], advice: str) -> Made:
    """Call `make` and return its result. Its argument says whether it finds the types of fields in
    all records.

    The first time it finds them in some records. If another record does not fit these types, `make`
    is called once more, and finds them in all records. Raises InputError if a record does not fit
    the types of all records; the error ends with `advice`.
    """
    try:
        return make(False)
    except TypesDifferError:
        # which is known to no process before it reads the record: it may be the last one of all
        pass
    try:
        return make(True)
    except TypesDifferError as error:
        raise InputError(
            f"{error}; if it has changed since its type was found, {advice}; else give all files "
            "one type"
        ) from error
