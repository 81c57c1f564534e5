"""One walk over the sources, in columns: a table on disk with a row for each file that may be an
input."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.arrays import (
    Bools,
    Numbers,
    column_of,
    edges_of,
    numbers_of,
    table_rows,
    texts_from,
)
from shardctl.format.tables import FILE_FIELDS, open_table
from shardctl.sources.export_description import DESCRIPTION, may_be_of_export
from shardctl.sources.files import SourceRoot, begins_ahead
from shardctl.sources.formats import Reading
from shardctl.sources.kinds import Form, SampleKind, is_unnamed
from shardctl.sources.sidecars import inputs_among
from shardctl.sources.walk import FolderFiles, FoundFile, suffix_of, together, walk
from shardctl.system.files import naming_the_path
from shardctl.system.folders import LocalFolder
from shardctl.system.locations import name_of

CHUNK_ROWS = 65536
"""Rows of a table that are in memory at a time."""

LOOKED_AT = 256
"""Files that are Python objects at a time."""

LISTED_SCHEMA = pa.schema(
    [*FILE_FIELDS, ("mtime_ns", pa.int64()), ("error", pa.string()), ("message", pa.string())]
)
"""What is known of a file, and why it cannot be read, if it cannot."""

WALKED_SCHEMA = pa.schema([*LISTED_SCHEMA, ("folder", pa.int32()), ("suffix", pa.int32())])

Fault: TypeAlias = "Rejection | None"

Forms = npt.NDArray[np.int8]
"""What files are to a kind of samples, as numbers of `Form`."""


@dataclass(frozen=True)
class Walked:
    """The files under the sources that may be inputs, in the order of a walk.

    `table` has a row for each (WALKED_SCHEMA). `root` is the number of its source, `folder` its
    place in `folders`, `suffix` the place of its ending in `suffixes`. A folder has its path below
    the source, and the text that stands before the names of its files where they are opened.
    `beside` are the files that decide what is read of others. `seen` counts all files of each
    source.
    """

    roots: Sequence[SourceRoot]
    table: pa.Table
    folders: Sequence[tuple[str, str]]
    suffixes: Sequence[str]
    beside: Sequence[FoundFile]
    notices: Sequence[str]
    seen: Sequence[int]

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @cached_property
    def suffix(self) -> Numbers:
        """The place of the ending of each file in `suffixes`, (n,)."""
        return numbers_of(self.table["suffix"])

    def forms(self, kind: SampleKind, reading: Reading) -> Forms:
        """Return what each file is to a kind by its name, (n,)."""
        named = np.array([kind.named(suffix, reading) for suffix in self.suffixes], np.int8)
        if kind.of_exports and not self._may_be_exports:
            named[named == Form.UNNAMED] = Form.NOTHING
        return named[self.suffix]

    @cached_property
    def _may_be_exports(self) -> bool:
        return any(file.name == DESCRIPTION for file in self.beside) or any(
            may_be_of_export(root.folder) for root in self.roots
        )

    def are_called(self, names: tuple[str, ...]) -> Bools:
        """Return which files have names that end with one of these, (n,)."""
        of_names = {*map(suffix_of, names)}
        may_be = np.array([suffix in of_names for suffix in self.suffixes], bool)[self.suffix]
        rows = np.flatnonzero(may_be)
        for start in range(0, len(rows), CHUNK_ROWS):
            some = rows[start : start + CHUNK_ROWS]
            paths = table_rows(self.table.select(["path"]), some)["path"].to_pylist()
            may_be[some] = [path.endswith(names) for path in paths]
        return may_be

    def files(self, rows: Numbers) -> Iterator[FoundFile]:
        """Yield some files, by their numbers in order. The first bytes of objects whose names do
        not say what they are, are fetched ahead."""
        found = self._files(rows)
        if not any(root.is_stored for root in self.roots):
            return found

        return begins_ahead(found, lambda file: file.opened if is_unnamed(file) else "")

    def _files(self, rows: Numbers) -> Iterator[FoundFile]:
        for start in range(0, len(rows), LOOKED_AT):
            for row in table_rows(self.table, rows[start : start + LOOKED_AT]).to_pylist():
                folder, above = self.folders[row["folder"]]
                name = name_of(row["path"])
                fault = Rejection("plan", row["error"], row["message"]) if row["error"] else None
                yield FoundFile(
                    row["root"],
                    row["path"],
                    f"{above}{name}",
                    folder,
                    self.suffixes[row["suffix"]],
                    row["size"],
                    row["mtime_ns"],
                    fault,
                )

    def of_kind(
        self, kind: SampleKind, reading: Reading, wanted: Collection[Form]
    ) -> Iterator[FoundFile]:
        """Yield the files that are one of `wanted` to a kind, in order."""
        forms = self.forms(kind, reading)
        rows = np.flatnonzero(np.isin(forms, [*wanted, Form.UNNAMED]))
        for file in self.files(rows):
            if kind.form(file, reading) in wanted:
                yield file


def walk_sources(roots: Sequence[SourceRoot], path: Path, found: Callable[[int], None]) -> Walked:
    """Walk the sources and write a row for each file that may be an input to `path`, a file for
    scratch; `found` is called with the number of files now and then. Raises InputError."""
    notices, beside, seen = list[str](), list[FoundFile](), [0] * len(roots)
    folders: list[tuple[str, str]] = []
    suffixes: dict[str, int] = {}

    def counted() -> Iterator[FolderFiles]:
        for files in walk(roots, notices.append):
            seen[files.root] += len(files.names)
            yield files

    def batches() -> Iterator[pa.RecordBatch]:
        folders_of_files = filter(
            attrgetter("names"), inputs_among(counted(), roots, notices.append, beside)
        )
        for some in together(folders_of_files, lambda files: len(files.names), LOOKED_AT):
            number, paths, numbers, faults = list[int](), list[str](), list[int](), list[Fault]()
            for files in some:
                at = (files.folder, files.opened)
                if not folders or folders[-1] != at:
                    folders.append(at)
                number.append(len(folders) - 1)
                paths += files.paths
                numbers += [suffixes.setdefault(each, len(suffixes)) for each in files.suffixes]
                faults += map(files.faults.get, range(len(files.names)))
            counts = [len(files.names) for files in some]
            # not pa.array, which imports pandas where it is installed: 0.4 s
            texts = list(map(str.encode, paths))
            lengths = np.fromiter(map(len, texts), np.int64)
            columns = [
                texts_from(np.frombuffer(b"".join(texts), np.uint8), edges_of(lengths)),
                column_of(np.repeat(np.array([files.root for files in some], np.int32), counts)),
                column_of(np.concatenate([files.sizes for files in some])),
                column_of(np.concatenate([files.mtimes_ns for files in some])),
                *why_unread(faults, len(paths)),
                column_of(np.repeat(np.array(number, np.int32), counts)),
                column_of(np.array(numbers, np.int32)),
            ]
            yield pa.record_batch(columns, schema=WALKED_SCHEMA)

    table = write_scratch(path, WALKED_SCHEMA, batches(), found)
    return Walked(roots, table, folders, list(suffixes), beside, notices, seen)


def why_unread(faults: Sequence[Fault], count: int) -> list[pa.Array]:
    """Return `error` and `message` of so many files or units; without `faults`, none has one."""
    return [
        pa.array([getattr(fault, name, None) for fault in faults], pa.string())
        if any(faults)
        else pa.nulls(count, pa.string())
        for name in ("error", "message")
    ]


def roots_and_paths(files: pa.Table) -> Iterator[tuple[int, str]]:
    """Yield the number of the source of each file, and its path there."""
    for batch in files.select(["root", "path"]).to_batches(max_chunksize=CHUNK_ROWS):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def write_scratch(
    path: Path,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    found: Callable[[int], None] = lambda _: None,
) -> pa.Table:
    """Write batches of any length as a table with batches of CHUNK_ROWS rows. Return it, mapped into
    memory. `found` is told how many rows there are. The file need not outlive the process, so it is
    neither synced nor renamed."""
    with (
        naming_the_path(path),
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, schema) as writer,
    ):
        count, held, rows = 0, list[pa.RecordBatch](), 0
        empty = [pa.nulls(0, f.type) for f in schema]

        def write(size: int) -> None:
            nonlocal count, held, rows
            joined = pa.Table.from_batches(held, schema)
            # Joined with nothing each part is copied. Else the file would have bytes behind it that
            # are not of it, and a fingerprint is made of all bytes.
            parts = zip(empty, joined.slice(0, size).columns, strict=True)
            columns = [pa.concat_arrays([nothing, *part.chunks]) for nothing, part in parts]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            count += size
            rows -= size
            held = joined.slice(size).to_batches()
            found(count)

        for batch in batches:
            held.append(batch)
            rows += len(batch)
            while rows >= CHUNK_ROWS:
                write(CHUNK_ROWS)
        if rows:
            write(rows)
    return open_table(LocalFolder(path.parent), path.name, schema)
