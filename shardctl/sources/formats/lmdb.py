"""LMDB: a file of keys and values, in the order of the keys. The package lmdb reads it.

A record has the fields `key` and `value`, or `image` where the first value is one. Both are bytes,
or text where all of a field are. A pickle is a reject: it can run any code. Databases inside of the
file are not read. The file has no checksums, and the library crashes on some that are damaged: its
worker ends then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import lmdb

from shardctl.images.codecs.backend import SNIFF_BYTES, is_image
from shardctl.sources.formats.base import UNIT_BYTES, Digest, check_magic, refused
from shardctl.sources.formats.columns import damaged
from shardctl.sources.formats.found_values import Entries, Entry, Record
from shardctl.sources.values import Feature
from shardctl.system.text import printable

MOST_UNITS = 64
"""Units of a file: to come to a record by its number, the keys of all before it are passed."""

DATABASE_BYTES = 48
"""The bytes of the value that stands for a database inside of the file."""

_PICKLES = (b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5")
"""What a pickle begins with. It ends with a point."""

LOOKED_AT = 64
"""The first entries, of which some are tried for such a database."""


@contextmanager
def opened(path: str) -> Iterator[Entries]:
    """Open a file for the block, cut into units of 1 MiB or more, few of them. Nothing is written,
    not even a lock. Raises OSError, Rejection."""
    check_magic(path, ".lmdb")
    size = os.stat(path).st_size  # noqa: PTH116 - see pyproject.toml
    try:
        with lmdb.open(
            path,
            subdir=False,
            readonly=True,
            lock=False,
            readahead=False,
            create=False,
            max_dbs=LOOKED_AT,
        ) as environment:
            wanted = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
            if wanted > size:
                raise refused(
                    "truncated",
                    f"it is to have {wanted:,} bytes, and has {size:,}; get the whole file",
                )
            with environment.begin(buffers=True) as transaction:
                said = int(transaction.stat()["entries"])
                # values of one key may lie side by side, without a header for each
                if said > size:
                    why = f"it says that it has {said:,} entries, more than fit into it"
                    raise damaged("the file", why)
                _refuse_databases(environment, transaction)
                units = max(1, min(said, MOST_UNITS, size // UNIT_BYTES))
                edges = [said * unit // units for unit in range(units + 1)]
                yield Entries(edges, partial(_records, transaction))
    except lmdb.Error as error:
        # LMDB names the path, which may be that of a copy of an object.
        raise damaged("the file", str(error).removeprefix(f"{path}: ")) from None


def _refuse_databases(environment: Any, transaction: Any) -> None:
    """Raise Rejection if one of the first entries is a database of its own: what is in it would
    be lost."""
    for key, value in islice(transaction.cursor(), LOOKED_AT):
        if len(value) == DATABASE_BYTES:
            name = bytes(key)
            try:
                environment.open_db(name, transaction, create=False)
            except lmdb.Error:  # an entry like others
                continue
            shown = printable(name.decode("utf-8", "backslashreplace"))
            raise refused(
                "databases", f"it has databases inside ({shown}); write each to a file of its own"
            )


def _records(transaction: Any, number: int, digest: Digest) -> Iterator[Entry]:
    """Yield the records from a number on."""
    start = next((bytes(value[:SNIFF_BYTES]) for _, value in transaction.cursor()), b"")
    cursor, value_name = transaction.cursor(), "image" if is_image(start) else "value"
    for key in islice(cursor.iternext(keys=True, values=False), number - 1, None):
        values = {"key": key, value_name: cursor.value()}
        for name, value in values.items():
            digest.update(b"%d %d\n%b" % (len(name), len(value), name.encode()))
            digest.update(value)
        yield sum(map(len, values.values())), partial(_fields, values)
        number += 1
    raise damaged(f"entry {number}", "it is not there, and the file says that it has more")


def _fields(values: dict[str, Any]) -> Record:
    record = {name: bytes(value) for name, value in values.items()}
    for name, data in record.items():
        if data[:2] in _PICKLES and data[-1:] == b".":
            raise refused(
                "pickle",
                f"its {name} is a pickle, which can run any code; write an image, text or JSON",
            )
    return {name: Feature([data]) for name, data in record.items()}
