"""Copies of the rejected inputs, for inspection."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardctl.errors import StorageError
from shardctl.manifest import PLAN, REJECTS, open_table
from shardctl.storage import READ_CHUNK, copy_file, naming_the_path, printable, replacing


def copy_rejects(dataset: Path, bases: tuple[str, ...], folder: Path) -> int:
    """Copy the inputs that a dataset rejected to `folder`, under their own paths, and return how many there are.

    A file is copied whole; of a file of many inputs its rejected ones are put together in a file of the same name. What
    cannot be read is left out. rejects.jsonl goes along. Raises StorageError if `folder` cannot be written.
    """
    copied = 0
    with naming_the_path(folder):
        folder.mkdir(parents=True, exist_ok=True)
        resolved = folder.resolve()
        begun: set[Path] = set()
        for row in _rejected_rows(dataset):
            source, place = Path(bases[row["root"]]) / row["source"], folder / row["source"]
            if row["variant"] or ".." in Path(row["source"]).parts:
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            _refuse_links(place.parent, resolved)
            with contextlib.suppress(_UnreadableError):
                if row["key"] == row["source"]:
                    _copy(source, place)
                else:
                    _append(source, row, place, place not in begun)
                    begun.add(place)
                copied += 1
        copy_file(dataset / REJECTS, folder / REJECTS)
    return copied


def _rejected_rows(dataset: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.compute as pc  # 40 ms that only this needs

    columns = ["key", "source", "root", "offset", "size", "variant", "outcome"]
    for batch in open_table(dataset / PLAN).select(columns).to_batches(max_chunksize=65536):
        yield from batch.filter(pc.equal(batch.column("outcome"), "rejected")).to_pylist()


class _UnreadableError(Exception):
    """An input cannot be read, which is no fault of the folder that its copy goes to."""


def _refuse_links(parent: Path, folder: Path) -> None:
    """Raise StorageError if a folder for copies is not below `folder`: a link may lead back to the sources."""
    if not parent.resolve().is_relative_to(folder):
        raise StorageError(f"{printable(str(parent))}: a link that leads out of {printable(str(folder))}; remove it")


def _copy(source: Path, place: Path) -> None:
    """Copy a file. A copy from before is replaced, not written into: it may be a hard link to the source."""
    with replacing(place) as sink:
        for data in _chunks(source, 0, None):
            sink.write(data)


def _append(source: Path, row: dict[str, Any], place: Path, first: bool) -> None:
    data = b"".join(_chunks(source, row["offset"], row["size"]))
    if first:
        place.unlink(missing_ok=True)
    with open(place, "ab") as out:
        out.write(data.rstrip(b"\n") + b"\n")


def _chunks(source: Path, offset: int, size: int | None) -> Iterator[bytes]:
    """Yield the bytes of a file, or of a part of it."""
    try:
        if not source.is_file():  # to open a pipe would wait for a writer
            raise FileNotFoundError
        with open(source, "rb", buffering=0) as file:
            file.seek(offset)
            while data := file.read(READ_CHUNK if size is None else min(size, READ_CHUNK)):
                yield data
                size = None if size is None else size - len(data)
    except OSError as error:
        raise _UnreadableError from error
