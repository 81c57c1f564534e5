"""Labels files: labels and other columns beside the inputs, in a CSV or JSONL with a row per
file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import InputError, Rejection, UsageError
from shardctl.format.arrays import Hashes, Numbers, begin_runs, is_number
from shardctl.format.roles import RESERVED_FIELDS
from shardctl.sources.export_description import Description, described
from shardctl.sources.files import local_copy
from shardctl.sources.formats import CHOSEN, Misfit, Reading, Unit, find_format
from shardctl.sources.image_columns import PATH_NAMES, the_one
from shardctl.sources.jsonl import NULL_WORDS, null_label_notice
from shardctl.sources.splits import split_word
from shardctl.sources.types import (
    UNNAMED,
    Classes,
    Types,
    disputed,
    in_order,
    join_classes,
    separator_in,
)
from shardctl.sources.walk import suffix_of
from shardctl.system.files import sha256_of
from shardctl.system.locations import name_of
from shardctl.system.text import counted, printable, some

FILE_COLUMN = "file_name"

FILE_COLUMNS = (FILE_COLUMN, *"filename file path image image_path".split())
"""Of several columns that may have the file names, the first of these has them."""

OTHER_FILES = ("file_name", "file_names")
"""How Hugging Face calls columns that name other files of a sample, such as depth_file_name."""

LABEL_COLUMN = "label"
KEY_COLUMN = "key"
SPLIT_COLUMN = "split"

LIKE_LABELS = frozenset("label,labels,class,classes,class_name,classname,category".split(","))
"""Usual names of columns of labels, in lower case. Numbers to predict are often called target and
y."""

DELIMITED_SUFFIXES = (".csv", ".tsv")

LABELS_FILE_NAMES = tuple(
    "metadata.csv,metadata.jsonl,metadata.parquet,labels.csv,labels.jsonl".split(",")
)
"""Files that `--labels auto` looks for beside the inputs."""

ENDINGS = (*DELIMITED_SUFFIXES, ".jsonl", ".ndjson", ".json", ".parquet")
"""The endings of labels files."""

ROWS_AT_ONCE = 65536
"""Rows of a labels file, and names, that are Python objects at a time."""


@dataclass(frozen=True)
class LabelTable:
    """The rows of the labels files.

    `columns` has every column but the one with the file names, `label` as int64 where there is one;
    `classes` are the names of its values, `names` the paths relative to the source (large_string),
    a chunk for each file. `digests` are the SHA-256 of the bytes that were read of each file, in
    hex; `notices` are messages for the user. `named` are the other names of classes that Parquet
    files say, as `class_names` has them.
    """

    files: Sequence[str]
    columns: pa.Table
    classes: tuple[str, ...] | None
    names: pa.ChunkedArray
    digests: Sequence[str]
    notices: Sequence[str]
    named: dict[str, tuple[str, ...]]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.names)

    @property
    def shown(self) -> str:
        """The labels files for a message."""
        return some(self.files)

    def without(self, column: str) -> LabelTable:
        """Return the same table without a column."""
        return replace(self, columns=self.columns.drop_columns([column]))


def repeated(hashes: Hashes, names_of: Callable[[Numbers], list[str]]) -> tuple[int, list[str]]:
    """Return how many names of a list appear earlier in it, and the first few of these names.

    `hashes` are those of all names; `names_of` gives the names at some places, and is asked only
    where hashes are equal.
    """
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    again = ~begin_runs(ordered)
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


def load(
    found: Sequence[tuple[str, str]],
    drop: Collection[str],
    reading: Reading,
    like: Collection[str] = LIKE_LABELS,
) -> LabelTable:
    """Read labels files, each given with the folder (relative to its source) in which its file
    names start.

    `drop` names columns that are left out; `reading` has the delimiter of CSV files, words for a
    missing value, and which columns have the labels and the file names. `like` has the names, in
    small letters, of which a column may have the labels where none is named. Raises InputError: not
    UTF-8, cannot be read, no rows, no column of file names or several. UsageError if there is no
    column to drop.
    """
    wanted, key = reading.label, reading.key
    reading = Reading(delimiter=reading.delimiter, null_values=reading.null_values)
    opened = [_File(file, folder, reading) for file, folder in found]
    if undecided := reduce(Types.join, [file.types for file in opened]).undecided():
        reading = replace(reading, looked=tuple(undecided))
        opened = [_File(file, folder, reading) for file, folder in found]
    opened.sort(key=lambda file: (not file.has_cells, not file.is_text))
    files, has_cells = [file.text for file in opened], opened[0].has_cells
    shown, exports = some(files), list(map(described, files))
    are_keys = all(each and each.key == KEY_COLUMN for each in exports)
    own = [KEY_COLUMN] if are_keys and KEY_COLUMN not in drop else []
    # the split that the name of each file says, where all do and tell several apart: train.csv
    words = {file: word.word for file in files if (word := split_word(name_of(file))) is not None}
    sets = words if len(words) == len(files) and len(set(words.values())) > 1 else {}
    every = reduce(Types.join, [file.types for file in opened])
    try:
        names, schema = every.found().names, every.schema()
    except InputError as error:
        raise InputError(f"{shown}: {error}") from None
    # one file of several that has it is enough
    _refuse_absent("--drop-columns", drop, names, shown)
    columns, file_names = _read(opened, schema, {*drop, *own}, sets, key)
    names_of_labels = {LABEL_COLUMN} if any(exports) else like  # those of an export are known
    label = _label_column(columns.schema, wanted, names_of_labels, shown)
    held = columns.column_names
    columns, classes, said = _encode_label(columns, label, shown, has_cells)
    if label is None and LABEL_COLUMN in drop:
        said = []  # that there is none was asked for
    elif label not in (None, wanted):
        said.append(f"the labels are the column {printable(label)}")
    has_numbers = classes is None and LABEL_COLUMN in columns.column_names
    of_exports = [
        {LABEL_COLUMN: names} for names in map(_names_in, exports) if names and has_numbers
    ]
    said_here: Classes = {
        LABEL_COLUMN if name == label else name: own
        for name, own in every.named.items()
        if name.partition(".")[0] in held
    }
    joined: Classes = reduce(join_classes, of_exports, said_here)
    named = dict(joined)
    if odd := disputed(named):
        raise InputError(
            f"{shown}: different names for the classes of {some(odd)}; use --drop-columns"
        )
    if has_numbers and LABEL_COLUMN in named:
        import pyarrow.compute as pc

        limits = pc.min_max(columns[LABEL_COLUMN]).as_py()
        all_say = of_exports or all(
            label in file.types.named for file in opened if label in file.types.fields
        )
        last = len(named[LABEL_COLUMN]) - 1
        if all_say and limits["min"] is not None and 0 <= limits["min"] <= limits["max"] <= last:
            classes = named.pop(LABEL_COLUMN)
    if others := [name for name in columns.column_names if name.endswith(OTHER_FILES)]:
        said.append(f"{some(others)}: names of other files are kept as text")
    said += [f"the column {name} is left out: the path of a file is its key" for name in own]
    if has_cells and UNNAMED in columns.column_names:
        said.append(
            f"the first column has no name, and is kept as {UNNAMED}; --drop-columns '{UNNAMED}' leaves it out"
        )
    notices = [*every.notices("column", {*drop, *own}), *said]
    return LabelTable(
        files,
        columns,
        classes,
        file_names,
        [file.digest for file in opened],
        [f"{shown}: {notice}" for notice in notices],
        named,
    )


def _names_in(export: Description | None) -> tuple[str, ...]:
    """Return the names of the classes of an export's label, if it is called as in labels files."""
    if export is None:
        return ()
    main = export.layout.roles.main_label
    is_label = any(field.name == main and field.written == LABEL_COLUMN for field in export.fields)
    return export.layout.roles.names.get(main or "", ()) if is_label else ()


def _read(
    opened: list[_File],
    whole: pa.Schema,
    drop: Collection[str],
    sets: Mapping[str, str],
    key: str | None,
) -> tuple[pa.Table, pa.ChunkedArray]:
    """Read files again once the types of all of them are known, as inputs are, but that one row
    that cannot be read is enough to refuse it. Return their rows and the names of files."""
    fields = {file: [f for f in file.fields() if f.name not in drop] for file in opened}
    columns = {file: _file_column(pa.schema(fields[file]), key, file.shown) for file in opened}
    kept = dict.fromkeys(f.name for file in opened for f in fields[file] if f.name != columns[file])
    tables, all_names = [], []
    for file in opened:
        column = columns[file]
        own = [whole.field(name).remove_metadata() for name in kept if name != column]
        table = file.read(pa.schema([pa.field(column, pa.string()), *own], {CHOSEN: b""}))
        all_names.append(_names_within(table[column], file.folder, file.shown))
        table = table.drop_columns([column])
        if sets and SPLIT_COLUMN not in table.column_names:
            split = pa.array([sets[file.text]] * len(table), pa.string())
            table = table.append_column(SPLIT_COLUMN, split)
        tables.append(table)
    table = pa.concat_tables(tables, promote_options="default")
    table = table.select(kept | dict.fromkeys([SPLIT_COLUMN] if sets else []))
    return table.combine_chunks(), pa.chunked_array(all_names)


class _File:
    """A labels file: its units, and the types of its columns. Raises InputError."""

    def __init__(self, file: str, folder: str, reading: Reading) -> None:
        self.text, self.folder, self.shown = file, folder, printable(file)
        suffix = suffix_of(name_of(file))
        self.is_text = suffix != ".parquet"
        self.has_cells = suffix in DELIMITED_SUFFIXES
        self._reading = reading
        with self._refusing():
            self._path = local_copy(file)
            self.digest = sha256_of(Path(self._path))
            if suffix not in ENDINGS:
                raise InputError(f"{self.shown}: labels files end in {', '.join(ENDINGS)}")
            self._form = find_format(suffix, reading)
            size = Path(self._path).stat().st_size
            cuts = self._form.join([self._form.scan(self._path, 0, size, reading)], size) or []
            firsts = accumulate((cut.records for cut in cuts), initial=1)
            self._units = [
                (Unit(cut.offset, cut.size, 0, first, cut.records), cut.fault)
                for cut, first in zip(cuts, firsts, strict=False)
            ]
            found = [
                self._form.types(self._path, unit, reading) for unit, why in self._units if not why
            ]
        if not found or (self.is_text and not self.has_cells):
            # the fields of JSON are in the order of their names
            found.insert(0, Types.of_values([], LABEL_COLUMN))
        self.types = reduce(Types.join, found)
        if not self.types.found().names:
            self.read(pa.schema([], {CHOSEN: b""}))

    def fields(self) -> list[pa.Field]:
        """Return the columns; those of cells are strings."""
        found = self.types.found()
        return [pa.field(f.name, pa.string()) for f in found] if self.has_cells else list(found)

    def read(self, schema: pa.Schema) -> pa.Table:
        """Return all rows with these columns. Raises InputError for one that cannot be read, and if
        there are none."""
        batches, digest = [], xxhash.xxh3_64()
        with self._refusing():
            self._check()
            for unit, fault in self._units:
                if fault:
                    raise self._refused(unit.first, fault)
                read = self._form.read(self._path, unit, self._reading, schema, None, digest)
                for parsed in read:
                    for number, why in parsed.rejects:
                        raise self._refused(number, why)
                    batches.append(parsed.batch)
            self._check()
        table = pa.Table.from_batches(batches, schema.remove_metadata())
        if not len(table) or not len(schema):
            raise InputError(f"{self.shown}: the labels file has no row")
        return table

    def _check(self) -> None:
        if sha256_of(Path(self._path)) != self.digest:
            raise Misfit

    def _refused(self, number: int, fault: Rejection) -> InputError:
        return _refused(f"{self.shown}, {'row' if self.has_cells else 'line'} {number}", fault)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except Misfit:
            raise InputError(
                f"{self.shown}: changed while it was read; run the same command again"
            ) from None
        except Rejection as fault:
            raise _refused(self.shown, fault) from None
        except (OSError, pa.ArrowException) as error:
            why = getattr(error, "strerror", None) or error
            raise InputError(f"{self.shown}: cannot be read ({why})") from error


def _refused(place: str, fault: Rejection) -> InputError:
    if fault.error != "not-utf8":
        return InputError(f"{place}: {fault.message}")
    return InputError(
        f"{place}: {fault.message.partition(';')[0]}; recode it (iconv -f ENCODING -t UTF-8)"
    )


def _file_column(schema: pa.Schema, key: str | None, shown: str) -> str:
    """Return the column of file names: `key`, or else the one that is called so. Raises InputError:
    there is none, or several, it holds no names, others are called as ours are."""
    known = {*PATH_NAMES, *LIKE_LABELS, SPLIT_COLUMN, key}
    if wide := [name for name in schema.names if name.strip() != name and name.strip() in known]:
        raise InputError(
            f"{shown}: the column {wide[0]!r} has a blank beside its name; remove such blanks"
        )
    like = [name for name in schema.names if name.lower() in PATH_NAMES]
    several, mark = f"{shown}: several columns may name the files", separator_in(schema.names)
    usual = next(filter(schema.names.__contains__, FILE_COLUMNS), FILE_COLUMN)
    column = None if mark else key or the_one(like, usual, several, "--key-field")
    if column is None:
        held = some(schema.names, 8)
        how = f"use --delimiter {mark}" if mark else f"use --key-field, or call one {FILE_COLUMN}"
        raise InputError(f"{shown}: no column of file names; its columns are called {held}; {how}")
    _refuse_absent("--key-field", [column], schema.names, shown)
    if not pa.types.is_string(schema.field(column).type):
        raise InputError(
            f"{shown}: the column {column} holds {schema.field(column).type}, not file names"
        )
    for name in RESERVED_FIELDS:
        if name in schema.names and name != column:
            raise InputError(
                f"{shown}: the column {name!r} is shardctl's own; rename it, or use --drop-columns {name}"
            )
    return column


def _names_within(column: pa.ChunkedArray, folder: str, shown: str) -> pa.Array:
    """Return the file names relative to the source, (n,) large_string."""
    chunks = []
    for start in range(0, len(column), ROWS_AT_ONCE):
        names = column.slice(start, ROWS_AT_ONCE).to_pylist()
        if not all(names):
            raise InputError(f"{shown}: a row has no file name")
        names = [f"{folder}/{name}" if folder and name[0] != "/" else name for name in names]
        chunks.append(pa.array(names, pa.large_string()))
    return pa.concat_arrays(chunks)


def _label_column(schema: pa.Schema, wanted: str, names: Collection[str], shown: str) -> str | None:
    """Return the column of labels: `wanted`, or else the one that has one of these names; None
    without one. Raises InputError if there are several, UsageError if `wanted` is not there."""
    if wanted == LABEL_COLUMN:
        like = [
            f.name
            for f in schema
            if f.name.lower() in names
            and (
                f.name == LABEL_COLUMN or pa.types.is_string(f.type) or pa.types.is_integer(f.type)
            )
        ]
        several = f"{shown}: several columns may be the labels"
        return the_one(like, LABEL_COLUMN, several, "--label-field")
    _refuse_absent("--label-field", [wanted], schema.names, shown)
    if LABEL_COLUMN in schema.names:
        raise UsageError(
            f"--label-field {printable(wanted)}: {shown} has a column label, too; leave "
            "that out with --drop-columns"
        )
    return wanted


def _refuse_absent(option: str, columns: Iterable[str], held: Sequence[str], shown: str) -> None:
    if absent := [name for name in columns if name not in held]:
        names = ",".join(map(printable, absent))
        raise UsageError(
            f"{option} {names}: {shown} has no such column; it has {', '.join(map(printable, held))}"
        )


def _encode_label(
    table: pa.Table, column: str | None, shown: str, has_cells: bool
) -> tuple[pa.Table, tuple[str, ...] | None, list[str]]:
    """Make a column `label`, of int64: class names become their place in the sorted list of names.
    The last is notices.

    `has_cells`: some of the rows are of CSV files.
    """
    if column is None:
        return (
            table,
            None,
            [
                "no column is called label: there are no labels; --label-field names one of "
                + some(table.column_names)
            ],
        )
    import pyarrow.compute as pc

    label, encoded, classes = table[column], None, None
    if is_number(label.type):
        with suppress(pa.ArrowInvalid):  # pandas makes floats of numbers where one is missing
            encoded = label.cast(pa.int64())
    elif pa.types.is_string(label.type):
        label = pc.utf8_normalize(label, "NFC")
        classes = tuple(in_order(name for name in pc.unique(label).to_pylist() if name))
        encoded = pc.index_in(label, value_set=pa.array(classes, pa.string())).cast(pa.int64())
    if encoded is None:
        raise InputError(
            f"{shown}: the column {printable(column)} holds {label.type}, not class names or whole numbers; rename numbers to predict, as to target"
        )
    table = table.set_column(table.column_names.index(column), LABEL_COLUMN, encoded)
    empty = encoded.null_count
    notices = [f"{counted(empty, 'row')} of {len(table):,} without a label"] if empty else []
    words = [name for name in classes or () if name in NULL_WORDS]
    if words and has_cells:
        rows = pc.sum(pc.is_in(label, value_set=pa.array(words))).as_py()
        notices.append(null_label_notice(words, f" ({rows:,} of {len(table):,} rows)"))
    return table, classes, notices


def said_of_names(named: Classes) -> list[str]:
    """Say which names of classes are left out."""
    lost = [f"{name} ({len(names):,})" for name, names in named.items()]
    return [f"left out: the names of the classes of {some(lost)}"] if lost else []
