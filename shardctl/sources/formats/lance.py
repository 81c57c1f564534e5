"""Lance: a folder of columns in versions, of which the newest is read. The package pylance reads
it.

The file that stands for the folder is the manifest of its newest version,
`_versions/NUMBER.manifest`. The files that it names are never changed, so that its bytes tell one
content of the folder from another.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardctl.errors import InputError, first_line
from shardctl.sources.formats.base import Digest, Unit, refused
from shardctl.sources.formats.columns import FAULTS, batch_rows, damaged, plain_schema
from shardctl.sources.formats.numbered import Rows, batch_of
from shardctl.sources.walk import FoundFile
from shardctl.system.locations import is_stored, name_of, parent_of
from shardctl.system.text import printable

VERSIONS = "_versions"
PARTS = {
    VERSIONS: (".manifest", ".json"),
    "data": (".lance",),
    "_transactions": (".txn",),
    "_deletions": (".arrow", ".bin"),
    "_indices": (".lance", ".idx"),
}
"""The folders in a folder of Lance, and the endings of the files in them."""

MANIFEST = ".manifest"
NEWER_FIRST = 2**63
"""Numbers in the names of manifests from here on are counted down from 2^64 - 1, so that the newest
comes first."""


def opened(path: str) -> Table:
    """Return the rows of the newest version of a folder, which a manifest describes. Raises
    OSError, Rejection."""
    import lance

    os.stat(path)  # noqa: PTH116 - what pylance says of a file that is not there has no number
    manifest = Path(path)
    if manifest.parent.name != VERSIONS:
        why = f"it is a part of a dataset of Lance; give the folder that has {VERSIONS}"
        raise refused("part", why)
    with _named_faults("the dataset"):
        version = _version_of(manifest)
        return Table(lance.dataset(str(manifest.parents[1]), version=version), manifest)


class Table(Rows):
    """The rows of an open version."""

    def __init__(self, dataset: Any, manifest: Path) -> None:
        self._dataset, self._manifest = dataset, manifest
        self.schema = plain_schema(dataset.schema)
        self.count = int(dataset.count_rows())
        files = (manifest.parents[1] / "data").glob("*.lance")
        self.row_bytes = max(1, sum(file.stat().st_size for file in files) // max(1, self.count))

    def hash(self, unit: Unit, digest: Digest) -> None:
        """Give the manifest to a digest, and which rows of it the unit has."""
        digest.update(self._manifest.read_bytes() + b"%d %d" % (unit.first, unit.records))

    def batches(self, unit: Unit, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a unit."""
        if not names:
            yield batch_of({}, unit.records)
            return
        with _named_faults(f"row {unit.first} and what follows"):
            yield from self._dataset.to_batches(
                columns=names,
                offset=unit.first - 1,
                limit=unit.records,
                batch_size=batch_rows(1, self.row_bytes),
                scan_in_order=True,
            )


@contextmanager
def _named_faults(what: str) -> Iterator[None]:
    """Raise Rejection for what pylance raises, panics too, which are no Exception."""
    try:
        yield
    except MemoryError:  # one of Arrow is an ArrowException
        raise
    except BaseException as error:
        if (
            not isinstance(error, (*FAULTS, RuntimeError))
            and type(error).__name__ != "PanicException"
        ):
            raise
        raise damaged(what, first_line(error)) from None


def _version_of(manifest: Path) -> int:
    number = int(manifest.name.removesuffix(MANIFEST))
    return 2**64 - 1 - number if number >= NEWER_FIRST else number


def manifest_of(file: FoundFile) -> str | None:
    """Return the manifest that stands for the folder of Lance that a file is in, None for a file
    that is in none.

    Raises InputError for the manifest of a dataset on a store.
    """
    if is_stored(file.opened):
        if file.suffix == MANIFEST and name_of(parent_of(file.opened)) == VERSIONS:
            raise InputError(
                f"{printable(file.opened)}: Lance is not read from a store; copy it to a disk first"
            )
        return None
    found = folder_of(file.opened)
    return None if found is None else str(newest_in(found))


def folder_of(opened: str) -> Path | None:
    """Return the folder of Lance that a file is a part of, by its name and the folder that it is
    in; None for other files."""
    path = Path(opened)
    for folder in (path.parent, path.parent.parent):
        if path.suffix in PARTS.get(folder.name, ()) and newest_in(folder.parent) is not None:
            return folder.parent
    return None


def newest_in(folder: Path) -> Path | None:
    """Return the manifest of the newest version in a folder of Lance, None for another folder."""
    versions = folder / VERSIONS
    try:
        return _newest(versions, versions.stat().st_mtime_ns)
    except OSError:
        return None


@lru_cache(64)
def _newest(versions: Path, _time: int) -> Path | None:
    return max(
        (
            path
            for path in versions.iterdir()
            if path.suffix == MANIFEST and path.stem.isascii() and path.stem.isdigit()
        ),
        key=_version_of,
        default=None,
    )
