"""What lies in the folder of a dataset on a store: one listing, kept in a file that all processes
map."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.format.names import is_file_name
from shardctl.system.stores.base import Entry, Store

LISTING = "listing.arrow"

_SCHEMA = pa.schema([("name", pa.string()), ("size", pa.int64()), ("version", pa.string())])


def write_listing(files: Path, store: Store, base: str) -> None:
    """List the objects below `base`, a folder with a / at its end or nothing, into a file. Raises
    StoreError."""
    with pa.OSFile(str(files / LISTING), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
        last = ""
        for page in store.pages(base):
            rows = []
            for found in page:
                name, inside, _ = found.name[len(base) :].partition("/")
                if is_file_name(name) and (not inside or name != last):  # a folder is one name
                    rows.append(
                        {
                            "name": name,
                            "size": -1 if inside else found.size,
                            "version": found.version,
                        }
                    )
                last = name if inside else last
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=_SCHEMA))


class Listing:
    """The list in a file. Names are in the order of the store; a folder has the size -1."""

    def __init__(self, files: Path) -> None:
        table = (
            pa.ipc.open_file(pa.memory_map(str(files / LISTING)))
            .read_all()
            .sort_by("name")
            .combine_chunks()
        )
        self._names, self._sizes, self._versions = (
            table[name].combine_chunks() for name in _SCHEMA.names
        )

    @property
    def mean_size(self) -> int:
        """The bytes of an object, on average; 1 at least."""
        return max(1, int(np.from_dlpack(self._sizes).sum()) // max(1, len(self._sizes)))

    def __iter__(self) -> Iterator[str]:
        """Yield all names."""
        return iter(self._names.to_pylist())

    def find(self, name: str) -> Entry | None:
        """Return the size and version of an object, None if there is none. Its name is that within
        the folder."""
        place = bisect_left(
            range(len(self._names)), name, key=lambda number: self._names[number].as_py()
        )
        if (
            place == len(self._names)
            or self._names[place].as_py() != name
            or self._sizes[place].as_py() < 0
        ):
            return None
        return Entry(name, self._sizes[place].as_py(), self._versions[place].as_py())
