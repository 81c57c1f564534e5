"""Labels files: labels and other columns beside the inputs, in a CSV or JSONL with a row per file."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from shardctl.errors import InputError, Rejection, UsageError
from shardctl.format.sample import RESERVED_FIELDS
from shardctl.sources import jsonl
from shardctl.sources.export_description import Description, described
from shardctl.sources.files import local_copy
from shardctl.sources.formats import PIECE_BYTES, Reading
from shardctl.sources.jsonl import NULL_WORDS, null_label_notice, null_notice
from shardctl.sources.types import UNNAMED, Types, separator_in
from shardctl.sources.walk import suffix_of
from shardctl.system.dataclass import dataclass
from shardctl.system.files import READ_CHUNK, HashingReader, ordinary, sha256_of
from shardctl.system.locations.text import name_of
from shardctl.system.text import counted, printable

FILE_COLUMNS = ("file_name", "filename", "file", "path", "image", "image_path")
"""Names of the column that says which file a row is about, the first one found is taken."""

LABEL_COLUMN = "label"
KEY_COLUMN = "key"
SPLIT_COLUMN = "split"

LIKE_LABELS = frozenset(("labels", "class", "classes", "class_name", "classname", "category", "target", "y"))
"""Common names of label columns, in lower case: shardctl needs the name `label`, and a notice says so."""

DELIMITED_SUFFIXES = (".csv", ".tsv")

SIDECAR_NAMES = ("metadata.csv", "metadata.jsonl", "labels.csv", "labels.jsonl")
"""Files that `--labels auto` looks for beside the inputs."""

_LOOKED_AT = 1000
"""Rows whose values say what a column holds."""

TYPED_AT_ONCE = 4096
"""Lines of a labels file whose types are found together."""

ROWS_AT_ONCE = 65536
"""Rows of a labels file, and names, that are Python objects at a time."""


@dataclass(frozen=True)
class LabelTable:
    """The rows of the labels files, found by the path of the input that they are about.

    `columns` has every column but the one with the file names, `label` as int64 where there is one; `classes` are the
    names of its values, `names` the paths relative to the source (large_string). `hashes` is sorted, `order` says which row
    each is. `digests` are the SHA-256 of the bytes that were read of each file, in hex; `notices` are messages for the user.
    """

    files: tuple[str, ...]
    columns: pa.Table
    classes: tuple[str, ...] | None
    names: pa.Array
    hashes: npt.NDArray[np.uint64]
    order: npt.NDArray[np.int64]
    digests: tuple[str, ...]
    notices: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.names)

    def first_values(self) -> dict[str, pa.Array]:
        """Return the values of the first rows that have one, by column."""
        found = {name: self.columns.column(name).slice(0, _LOOKED_AT).drop_null() for name in self.columns.column_names}
        return {name: pa.concat_arrays(values.chunks) for name, values in found.items() if values.num_chunks}

    @property
    def shown(self) -> str:
        """The labels files for a message."""
        return some(self.files)

    def rows_of(self, wanted: pa.Array, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the row of each input, given by its path and the hash of it; -1 for those that no row names. (n,) int64."""
        import pyarrow.compute as pc  # 40 ms to import, and most conversions have no labels file

        wanted = wanted.cast(pa.large_string())
        rows = np.full(len(wanted), -1, np.int64)
        place = np.searchsorted(self.hashes, hashes)
        left = np.arange(len(wanted))
        while len(left):  # once for nearly all: again for those whose hash is that of another name too
            left = left[place[left] < len(self)]
            left = left[self.hashes[place[left]] == hashes[left]]
            found = self.order[place[left]]
            same = np.asarray(pc.equal(self.names.take(pa.array(found)), wanted.take(pa.array(left))))
            rows[left[same]] = found[same]
            left = left[~same]
            place[left] += 1
        return rows

    def without(self, column: str) -> LabelTable:
        """Return the same table without a column."""
        return replace(self, columns=self.columns.drop_columns([column]))


def hash_names(names: Iterable[str]) -> npt.NDArray[np.uint64]:
    """Return 8 bytes per name, so that ten million names are compared within 80 MB.

    Different names may have the same hash: callers compare the names if hashes are equal.
    """
    return np.fromiter(map(xxhash.xxh3_64_intdigest, map(str.encode, names)), np.uint64)


def repeated(hashes: npt.NDArray[np.uint64], names_of: Callable[[npt.NDArray[np.int64]], list[str]]) -> tuple[int, list[str]]:
    """Return how many names of a list appear earlier in it, and the first few of these names.

    `hashes` are those of all names; `names_of` gives the names at some places, and is asked only where hashes are equal.
    """
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    again = np.concatenate([[False], ordered[1:] == ordered[:-1]])
    shared = again | np.append(again[1:], False)
    places, starts = order[shared], np.flatnonzero(~again[shared])
    count, first = 0, 0
    few: list[str] = []
    while first < len(places):
        # Up to the beginning of a run of equal hashes: the same name is never in two of them.
        later = starts[np.searchsorted(starts, first + ROWS_AT_ONCE) :]
        end = int(later[0]) if len(later) else len(places)
        times = Counter(names_of(places[first:end]))
        count += times.total() - len(times)
        few += sorted(name for name, number in times.items() if number > 1)[: 100 - len(few)]
        first = end
    return count, few


def load(found: Sequence[tuple[str, str]], drop: Collection[str], reading: Reading) -> LabelTable:
    """Read labels files, each given with the folder (relative to its source) in which its file names start.

    `drop` names columns that are left out; `reading` has the delimiter of CSV files, and words for a missing value. Raises
    InputError: not UTF-8, not CSV or JSONL, no rows, no column of file names, repeated names. UsageError if there is no column
    to drop.
    """
    files = [file for file, _ in found]
    shown = some(files)
    csv = [(file, folder) for file, folder in found if suffix_of(name_of(file)) in DELIMITED_SUFFIXES]
    json = [(file, folder) for file, folder in found if suffix_of(name_of(file)) not in DELIMITED_SUFFIXES]
    exports = list(map(described, files))
    own = [KEY_COLUMN] if all(each and each.key == KEY_COLUMN for each in exports) and KEY_COLUMN not in drop else []
    left_out = {*drop, *own}
    of_cells = Reading(delimiter=reading.delimiter, null_values=reading.null_values)
    parts = [_read_all_delimited(csv, left_out, of_cells)] if csv else []
    parts += [_read_all_lines(json, left_out)] if json else []
    _check_dropped(drop, (name for part in parts for name in part.held), shown)
    try:
        columns = pa.concat_tables([part.columns for part in parts], promote_options="permissive").combine_chunks()
    except pa.ArrowInvalid as error:
        raise InputError(f"{shown}: the same column has different types in two labels files ({error})") from error
    all_names = pa.concat_arrays([part.names for part in parts])
    hashes = _hashes_of(all_names)
    count, few = repeated(hashes, lambda places: list(all_names.take(pa.array(places)).to_pylist()))
    if count:
        rows = "1 row names a file" if count == 1 else f"{count:,} rows name a file"
        raise InputError(f"{shown}: {rows} that another row names: {some(few)}; keep one row per file")
    columns, classes, said = _encode_label(columns, shown, bool(csv))
    if classes is None and LABEL_COLUMN in columns.column_names:
        classes = _classes_of(exports, columns[LABEL_COLUMN])
    if LABEL_COLUMN in drop:
        said = []  # that there is none was asked for
    said += [f"the column {name} is left out: the path of a file is its key" for name in own]
    if csv and UNNAMED in columns.column_names:
        said.append(f"the first column has no name: it is kept as {UNNAMED}; --drop-columns '{UNNAMED}' leaves it out")
    order = np.argsort(hashes, kind="stable")
    digests = tuple(digest for part in parts for digest in part.digests)
    notices = tuple(f"{shown}: {notice}" for notice in [*(notice for part in parts for notice in part.notices), *said])
    return LabelTable(tuple(files), columns, classes, all_names, hashes[order], order, digests, notices)


def _classes_of(exports: Sequence[Description | None], labels: pa.ChunkedArray) -> tuple[str, ...] | None:
    """Return the names that all of the exports have for the numbers of their labels; None if they differ, or lack some."""
    import pyarrow.compute as pc

    names, *others = {_names_in(export) for export in exports}
    limits = pc.min_max(labels).as_py()
    if others or limits["min"] is None:
        return None
    return names if limits["min"] >= 0 and limits["max"] < len(names) else None


def _names_in(export: Description | None) -> tuple[str, ...]:
    """Return the names of the classes of an export's label, if it is called as in labels files."""
    if export is None:
        return ()
    main = export.layout.roles.main_label
    is_label = any(field.name == main and field.written == LABEL_COLUMN for field in export.fields)
    return export.layout.roles.names.get(main or "", ()) if is_label else ()


@dataclass(frozen=True)
class _Read:
    """What labels files of one format hold: their columns but for those left out, and the file names (large_string).

    `held` are the names of all columns, `digests` the SHA-256 of what was read of each file.
    """

    columns: pa.Table
    names: pa.Array
    held: tuple[str, ...]
    digests: tuple[str, ...]
    notices: tuple[str, ...]


def _read_all_delimited(found: Sequence[tuple[str, str]], drop: Collection[str], reading: Reading) -> _Read:
    """Read CSV files. What is a number is found over all of them."""
    tables, names, held, digests = [], [], [], []
    for file, folder in found:
        shown = printable(file)
        table, digest = _read_delimited(file, drop, reading)
        digests.append(digest)
        if not len(table):
            raise InputError(f"{shown}: the labels file has a header and no row")
        held += table.column_names
        table = _without(table, drop)
        column = _file_column(table.schema, shown)
        names.append(_names_within(table[column], folder, shown))
        tables.append(table.drop_columns([column]))
    table, notices = _narrowed(pa.concat_tables(tables, promote_options="default"))
    return _Read(table, pa.concat_arrays(names), tuple(held), tuple(digests), tuple(notices))


def _read_delimited(file: str, drop: Collection[str], reading: Reading) -> tuple[pa.Table, str]:
    """Return the table of a CSV file, every cell as it is written, and its SHA-256 in hex. Raises InputError.

    It is read as CSV files that are inputs are, but that one row that cannot be read is enough to refuse it.
    """
    from shardctl.sources.formats.csv import Delimited, tab_delimited  # 40 ms to import, and most conversions have no CSV

    shown, number, batches = printable(file), 1, []
    form = (tab_delimited() if suffix_of(name_of(file)) == ".tsv" else Delimited()).of(reading)
    try:
        with open(local_copy(file), "rb", buffering=0, opener=ordinary) as opened, HashingReader(opened) as raw:
            more = data = raw.read(PIECE_BYTES)
            head = form.head(data, reading)
            schema = pa.schema([(name, pa.string()) for name in head.columns])
            _file_column(_without(schema.empty_table(), drop).schema, shown)
            data = data[head.size :]
            while more:
                more = raw.read(PIECE_BYTES)
                size = form.complete(data) if more else len(data)
                parsed = form.parse(data[:size], number, head, reading, schema, None)
                for at, fault in parsed.rejects:
                    raise Rejection(fault.stage, fault.error, f"row {at}: {fault.message}")
                batches.append(parsed.batch)
                number, data = number + form.count(data[:size]), data[size:] + more
    except Rejection as fault:
        if fault.error != "not-utf8":
            raise InputError(f"{shown}: {fault.message}") from None
        why = fault.message.partition(";")[0]
        raise InputError(f"{shown}: {why}; recode it, for instance with iconv -t UTF-8") from None
    except OSError as error:
        raise InputError(f"{shown}: cannot be read ({error.strerror or error})") from error
    return pa.Table.from_batches(batches, schema), raw.sha256


def _narrowed(table: pa.Table) -> tuple[pa.Table, list[str]]:
    """Return a table of cells with its columns of numbers as int64 and float64, null where they are empty, and notices."""
    from shardctl.sources.csv_numbers import CellStats, filled  # its parts of Arrow take 40 ms to import

    columns, notices = [], []
    for name, column in zip(table.column_names, table.columns, strict=True):
        written = CellStats.of(column)
        type_ = written.type()
        columns.append(column if pa.types.is_string(type_) else filled(column).cast(type_))
        if (odd := written.odd()) is not None:
            notices.append(
                f"the column {printable(name)} is kept as text: {printable(odd)} would change if it were read as a number"
            )
        if words := written.hiding_nulls():
            notices.append(null_notice(name, words))
    return pa.table(columns, names=table.column_names), notices


def _read_all_lines(found: Sequence[tuple[str, str]], drop: Collection[str]) -> _Read:
    """Read JSONL files, twice. The types are found over all of them first: one may have only empty lists in a column.

    Raises InputError if a file is another one the second time: its values may not be of the types that were found.
    """
    types = Types.of_values([], LABEL_COLUMN)
    digests: list[str] = []
    for file, _ in found:
        records = _records(file, digests)
        for chunk in iter(lambda: list(islice(records, TYPED_AT_ONCE)), []):  # noqa: B023 - called at once
            types = types.join(Types.of_values(chunk, LABEL_COLUMN))
    again: list[str] = []
    tables, names = [], []
    found_schema = types.schema()
    schema = _without(found_schema.empty_table(), drop).schema
    for (file, folder), digest in zip(found, digests, strict=True):
        shown = printable(file)
        column = _file_column(schema, shown)
        records = _records(file, again)
        try:
            batches = [_batch(chunk, schema) for chunk in iter(lambda: list(islice(records, ROWS_AT_ONCE)), [])]  # noqa: B023
        except Exception:  # values of types that were not found the first time end in any of several errors
            if _is_still(file, digest):
                raise
            raise _changed(shown) from None
        table = pa.Table.from_batches(batches, schema)
        names.append(_names_within(table[column], folder, shown))
        tables.append(table.drop_columns([column]))
        if again[-1] != digest:
            raise _changed(shown)
    mixed = [name for name in types.mixed() if name not in drop]
    notices = jsonl.mixed_notices(mixed, "column")
    return _Read(pa.concat_tables(tables), pa.concat_arrays(names), tuple(found_schema.names), tuple(digests), tuple(notices))


def _is_still(file: str, digest: str) -> bool:
    try:
        return sha256_of(Path(local_copy(file))) == digest
    except OSError:
        return False


def _changed(shown: str) -> InputError:
    return InputError(f"{shown}: changed while it was read; run the same command again")


def _batch(records: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([jsonl.fit(r.get(f.name), f.type) for r in records], f.type) for f in schema]
    return pa.record_batch(columns, schema=schema)


def _records(file: str, digests: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSONL file, and at its end add its SHA-256 to `digests`.

    Raises InputError if a line is none, and where there is no line.
    """
    shown, number = printable(file), 0
    try:
        with (
            open(local_copy(file), "rb", buffering=0, opener=ordinary) as opened,
            HashingReader(opened) as raw,
            io.BufferedReader(raw, READ_CHUNK) as buffered,
        ):
            for number, _, line in jsonl.lines(buffered):  # noqa: B007 - used in the messages below
                yield jsonl.parse_line(line)
    except Rejection as rejection:
        raise InputError(f"{shown}, line {number}: {rejection.message}") from None
    except OSError as error:
        raise InputError(f"{shown}: cannot be read ({error.strerror or error})") from error
    if not number:
        raise InputError(f"{shown}: the labels file is empty")
    digests.append(raw.sha256)


def _without(table: pa.Table, drop: Collection[str]) -> pa.Table:
    return table.drop_columns([name for name in drop if name in table.column_names])


def _check_dropped(drop: Collection[str], held: Iterable[str], shown: str) -> None:
    """Raise UsageError if none of the labels files has a column that was to be left out: one of several is enough."""
    names = dict.fromkeys(held)
    missing = [name for name in drop if name not in names]
    if missing:
        columns = ", ".join(map(printable, names))
        raise UsageError(f"--drop-columns {','.join(missing)}: {shown} has no such column; it has {columns}")


def _file_column(schema: pa.Schema, shown: str) -> str:
    """Return the column of file names. Raises InputError: there is none, it holds no names, others are called as ours are."""
    for name in (*FILE_COLUMNS, LABEL_COLUMN, SPLIT_COLUMN):
        if wide := [each for each in schema.names if each.strip() == name != each]:
            raise InputError(
                f"{shown}: the column {wide[0]!r} has a blank beside its name; take it out, and those of its cells"
            )
    column = next((name for name in FILE_COLUMNS if name in schema.names), None)
    if column is None:
        held = ", ".join(printable(name) for name in schema.names)
        if mark := separator_in(schema.names):
            raise InputError(f"{shown}: no column of file names; it has {held}; separate its columns with --delimiter {mark}")
        how = f"call one {' or '.join(FILE_COLUMNS)}"
        how += ", in a first line with the names of the columns" if shown.endswith((".csv", ".tsv")) else ""
        raise InputError(f"{shown}: no column of file names; it has {held}; {how}")
    if not pa.types.is_string(schema.field(column).type):
        raise InputError(f"{shown}: the column {column} holds {schema.field(column).type}, not file names")
    for name in RESERVED_FIELDS:
        if name in schema.names and name != column:
            raise InputError(
                f"{shown}: the column {name!r} is one that shardctl makes itself; rename it, or use --drop-columns {name}"
            )
    return column


def _names_within(column: pa.ChunkedArray, folder: str, shown: str) -> pa.Array:
    """Return the file names relative to the source, (n,) large_string."""
    chunks = []
    for start in range(0, len(column), ROWS_AT_ONCE):
        names = [_within(folder, name, shown) for name in column.slice(start, ROWS_AT_ONCE).to_pylist()]
        chunks.append(pa.array(names, pa.large_string()))
    return pa.concat_arrays(chunks)


def _within(folder: str, name: str | None, shown: str) -> str:
    if not name:
        raise InputError(f"{shown}: a row has no file name")
    if name.startswith("/"):
        return name  # an absolute path names no input; messages show it as it is written
    parts = [part for part in f"{folder}/{name}".split("/") if part not in ("", ".")]
    return "/".join(parts)


def _hashes_of(names: pa.Array) -> npt.NDArray[np.uint64]:
    starts = range(0, len(names), ROWS_AT_ONCE)
    return np.concatenate([hash_names(names.slice(start, ROWS_AT_ONCE).to_pylist()) for start in starts])


def _encode_label(table: pa.Table, shown: str, has_cells: bool) -> tuple[pa.Table, tuple[str, ...] | None, list[str]]:
    """Make `label` int64: class names become their place in the sorted list of names. The last is notices.

    `has_cells`: some of the rows are of CSV files.
    """
    if LABEL_COLUMN not in table.column_names:
        like = [name for name in table.column_names if name.lower() in LIKE_LABELS or name.lower() == LABEL_COLUMN]
        return (
            table,
            None,
            [f"no column is called label, so there are no labels; all columns are kept{_advice_on(like, table)}"],
        )
    import pyarrow.compute as pc

    label = table[LABEL_COLUMN]
    place = table.column_names.index(LABEL_COLUMN)
    if pa.types.is_integer(label.type):
        encoded, classes = label.cast(pa.int64()), None
    elif pa.types.is_floating(label.type) and (whole := _as_whole(label)) is not None:
        encoded, classes = whole, None
    elif pa.types.is_string(label.type):
        names = sorted(name for name in pc.unique(label).to_pylist() if name)
        encoded = pc.index_in(label, value_set=pa.array(names, pa.string())).cast(pa.int64())
        classes = tuple(names)
    else:
        raise InputError(
            f"{shown}: the column label holds {label.type}, and labels are class names or whole numbers. If these are numbers"
            " to predict, rename the column, for instance to target: shardctl then keeps it as a column of numbers"
        )
    table = table.set_column(place, LABEL_COLUMN, encoded)
    empty = encoded.null_count
    notices = [f"{counted(empty, 'row')} of {len(table):,} without a label"] if empty else []
    words = [name for name in classes or () if name in NULL_WORDS]
    if words and has_cells:
        rows = pc.sum(pc.is_in(label, value_set=pa.array(words))).as_py()
        notices.append(null_label_notice(words, f" ({rows:,} of {len(table):,} rows)"))
    return table, classes, notices


def _as_whole(numbers: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return floats as whole numbers, which pandas makes floats of where one is missing; None if one is none."""
    try:
        return numbers.cast(pa.int64())
    except pa.ArrowInvalid:
        return None


def _advice_on(like: Sequence[str], table: pa.Table) -> str:
    """Say what to do about a column that is called as labels often are, "" if there is none."""
    if not like:
        return ""
    name = printable(like[0])
    if pa.types.is_floating(table.schema.field(like[0]).type):
        return f" ({name} is one of numbers, as a regression predicts them)"
    return f" (rename {name} to label if that is what it is)"


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first few names for a message: a, b, c and 17 more."""
    shown = ", ".join(printable(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
