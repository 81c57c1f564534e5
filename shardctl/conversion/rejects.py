"""Copies of the rejected inputs, for inspection."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardctl.manifest import PLAN, REJECTS, open_table
from shardctl.storage import READ_CHUNK, naming_the_path


def copy_rejects(dataset: Path, bases: tuple[str, ...], folder: Path) -> int:
    """Copy the inputs that a dataset rejected to `folder`, under their own paths, and return how many there are.

    A file is copied whole; of a file of many inputs its rejected ones are put together in a file of the same name. What
    cannot be read is left out. rejects.jsonl goes along. Raises StorageError if `folder` cannot be written.
    """
    copied = 0
    with naming_the_path(folder):
        folder.mkdir(parents=True, exist_ok=True)
        begun: set[Path] = set()
        for row in _rejected_rows(dataset):
            source, place = Path(bases[row["root"]]) / row["source"], folder / row["source"]
            if row["variant"] or ".." in Path(row["source"]).parts:
                continue
            with contextlib.suppress(_UnreadableError):
                _check_file(source)
                place.parent.mkdir(parents=True, exist_ok=True)
                if row["key"] == row["source"]:
                    _copy(source, place)
                else:
                    _append(source, row, place, place not in begun)
                    begun.add(place)
                copied += 1
        shutil.copyfile(dataset / REJECTS, folder / REJECTS)
    return copied


def _rejected_rows(dataset: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.compute as pc  # 40 ms that only this needs

    columns = ["key", "source", "root", "offset", "size", "variant", "outcome"]
    for batch in open_table(dataset / PLAN).select(columns).to_batches(max_chunksize=65536):
        yield from batch.filter(pc.equal(batch.column("outcome"), "rejected")).to_pylist()


class _UnreadableError(Exception):
    """An input cannot be read, which is no fault of the folder that its copy goes to."""


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _UnreadableError from error


def _check_file(source: Path) -> None:
    with _reading():
        if not source.is_file():  # to open a pipe would wait for a writer
            raise FileNotFoundError


def _copy(source: Path, place: Path) -> None:
    try:
        with open(place, "wb") as out:
            for data in _chunks(source):
                out.write(data)
    except _UnreadableError:
        place.unlink()
        raise


def _chunks(source: Path) -> Iterator[bytes]:
    with _reading(), open(source, "rb", buffering=0) as file:
        while data := file.read(READ_CHUNK):
            yield data


def _append(source: Path, row: dict[str, Any], place: Path, first: bool) -> None:
    with _reading(), open(source, "rb") as file:
        file.seek(row["offset"])
        data = file.read(row["size"])
    with open(place, "wb" if first else "ab") as out:
        out.write(data.rstrip(b"\n") + b"\n")
