"""Labels and other columns that lie beside the inputs: a CSV or JSONL with a row per file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from shardctl.errors import InputError, Rejection
from shardctl.sample import RESERVED_FIELDS
from shardctl.sources import jsonl
from shardctl.storage import printable

FILE_COLUMNS = ("file_name", "filename", "file", "path", "image", "image_path")
"""Names of the column that says which file a row is about, the first one found is taken."""

SIDECAR_NAMES = ("metadata.csv", "metadata.jsonl", "labels.csv", "labels.jsonl")
"""Files that `--labels auto` looks for beside the inputs."""


@dataclass(frozen=True)
class SideTable:
    """The rows of the labels files, found by the path of the input that they are about.

    `columns` has every column but the one with the file names, `label` as int64 where there is one; `classes` are the
    names of its values, `files` the paths relative to the source. `hashes` is sorted, `order` says which row each is.
    """

    paths: tuple[Path, ...]
    columns: pa.Table
    classes: tuple[str, ...] | None
    files: list[str]
    hashes: npt.NDArray[np.uint64]
    order: npt.NDArray[np.int64]

    @property
    def shown(self) -> str:
        """The labels files for a message."""
        return some([str(path) for path in self.paths])

    def rows_of(self, wanted: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the row of each input, given by `hash_names`; -1 for those that no row names. (n,) int64."""
        place = np.searchsorted(self.hashes, wanted)
        place[place == len(self.hashes)] = 0
        return np.where(self.hashes[place] == wanted, self.order[place], -1)


def hash_names(names: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return 8 bytes per name, so that ten million names are compared within 80 MB."""
    return np.fromiter((xxhash.xxh3_64_intdigest(name.encode()) for name in names), np.uint64, len(names))


def load(found: Sequence[tuple[Path, str]]) -> SideTable:
    """Read labels files, each given with the folder (relative to its source) in which its file names start.

    Raises InputError: not UTF-8, not CSV or JSONL, no column of file names, names that stand twice.
    """
    tables, files = [], []
    for (path, folder), table in zip(found, _read_tables([path for path, _ in found]), strict=True):
        columns, names = _without_names(table, printable(str(path)), folder)
        tables.append(columns)
        files += names
    shown = some([str(path) for path, _ in found])
    try:
        columns = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    except pa.ArrowInvalid as error:
        raise InputError(f"{shown}: the same column has different types in two labels files ({error})") from error
    hashes = hash_names(files)
    order = np.argsort(hashes, kind="stable")
    _refuse_duplicates(shown, files, hashes[order], order)
    columns, classes = _encode_label(columns, shown)
    return SideTable(tuple(path for path, _ in found), columns, classes, files, hashes[order], order)


def _read_tables(paths: Sequence[Path]) -> list[pa.Table]:
    """Read labels files. The types of JSONL are found over all of them: one alone may have only empty lists in a column."""
    inference = jsonl.TypeInference()
    records = {path: _read_jsonl(path, inference) for path in paths if path.suffix.lower() not in (".csv", ".tsv")}
    schema = inference.schema()
    return [_table_of(records[path], schema) if path in records else _read_csv(path) for path in paths]


def _without_names(table: pa.Table, shown: str, folder: str) -> tuple[pa.Table, list[str]]:
    """Return the columns of one labels file without the file names, and the file names relative to the source."""
    column = next((name for name in FILE_COLUMNS if name in table.column_names), None)
    if column is None:
        raise InputError(
            f"{shown}: no column of file names; it has {', '.join(table.column_names)}, one must be called"
            f" {' or '.join(FILE_COLUMNS)}"
        )
    if not pa.types.is_string(table[column].type):
        raise InputError(f"{shown}: the column {column} holds {table[column].type}, not file names")
    for name in RESERVED_FIELDS:
        if name in table.column_names and name != column:
            raise InputError(f"{shown}: the column {name!r} is one that shardctl makes itself; rename it")
    return table.drop_columns([column]), [_within(folder, name, shown) for name in table[column].to_pylist()]


def _within(folder: str, name: str | None, shown: str) -> str:
    if not name:
        raise InputError(f"{shown}: a row has no file name")
    parts = [part for part in f"{folder}/{name}".split("/") if part not in ("", ".")]
    return "/".join(parts)


def _refuse_duplicates(shown: str, files: list[str], hashes: npt.NDArray[np.uint64], order: npt.NDArray[np.int64]) -> None:
    twice = np.flatnonzero(hashes[1:] == hashes[:-1])
    if len(twice):
        names = sorted({files[order[place]] for place in twice[:1000]})
        raise InputError(f"{shown}: {len(twice)} rows name a file that another row names: {some(names)}; keep one row per file")


def _encode_label(table: pa.Table, shown: str) -> tuple[pa.Table, tuple[str, ...] | None]:
    """Make `label` int64: class names become their place in the sorted list of names."""
    if "label" not in table.column_names:
        return table, None
    label = table["label"]
    if pa.types.is_integer(label.type):
        return table.set_column(table.column_names.index("label"), "label", label.cast(pa.int64())), None
    if not pa.types.is_string(label.type):
        raise InputError(f"{shown}: the column label holds {label.type}; it must hold class names or whole numbers")
    classes = sorted(name for name in pc.unique(label).to_pylist() if name)
    numbers = pc.index_in(label, value_set=pa.array(classes, pa.string())).cast(pa.int64())
    return table.set_column(table.column_names.index("label"), "label", numbers), tuple(classes)


def _read_csv(path: Path) -> pa.Table:
    shown = printable(str(path))
    from pyarrow import csv as arrow_csv  # 20 ms to import, and most conversions have no CSV

    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            names = next(csv.reader(file, delimiter=delimiter), [])
        if not names:
            raise InputError(f"{shown}: the labels file is empty")
        if len(set(names)) < len(names):
            raise InputError(f"{shown}: two columns have the same name ({', '.join(names)})")
        table = arrow_csv.read_csv(
            path,
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types={name: pa.string() for name in names}, strings_can_be_null=False
            ),
        )
    except UnicodeDecodeError as error:
        raise InputError(f"{shown}: not UTF-8 at byte {error.start}; recode it, for instance with iconv -t UTF-8") from None
    except OSError as error:
        raise InputError(f"{shown}: cannot be read ({error.strerror or error})") from error
    except (pa.ArrowInvalid, csv.Error) as error:
        reason = str(error).splitlines()[0]
        advice = "recode it to UTF-8" if "UTF8" in reason.upper().replace("-", "") else "mend the file"
        raise InputError(f"{shown}: not a CSV file that can be read ({reason}); {advice}") from error
    return pa.table([_narrowest(column) for column in table.columns], names=table.column_names)


def _narrowest(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of strings as int64 or float64 where every value is a number; an empty cell is then null."""
    blank = pc.equal(column, "")
    if pc.all(blank).as_py() or not len(column):
        return column
    filled = pc.if_else(blank, pa.scalar(None, pa.string()), column)
    for type_ in (pa.int64(), pa.float64()):
        try:
            return filled.cast(type_)
        except pa.ArrowInvalid:
            continue
    return column


def _read_jsonl(path: Path, inference: jsonl.TypeInference) -> list[dict[str, Any]]:
    shown, records = printable(str(path)), []
    try:
        with open(path, "rb") as file:
            for number, _, line in jsonl.lines(file):
                try:
                    record = jsonl.parse_line(line)
                except Rejection as rejection:
                    raise InputError(f"{shown}, line {number}: {rejection.message}") from None
                inference.add(record)
                records.append(record)
    except OSError as error:
        raise InputError(f"{shown}: cannot be read ({error.strerror or error})") from error
    if not records:
        raise InputError(f"{shown}: the labels file is empty")
    return records


def _table_of(records: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.table({f.name: pa.array([jsonl.fit(r.get(f.name), f.type) for r in records], f.type) for f in schema})


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first few names for a message: a, b, c and 17 more."""
    shown = ", ".join(printable(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
