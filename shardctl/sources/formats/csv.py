"""CSV and TSV: rows of cells, which may be in quotes and then hold line ends (RFC 4180).
docs/inputs.md has the rules."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.arrays import bytes_of
from shardctl.sources.formats.base import (
    UNIT_BYTES,
    Choose,
    Head,
    Misfit,
    Numbers,
    Parsed,
    Reading,
    TextFormat,
    is_json,
    json_texts,
    refuse_wide,
)
from shardctl.sources.formats.columns import check_columns
from shardctl.sources.formats.lines import chosen_lines, is_utf8
from shardctl.sources.types import UNNAMED, WRITTEN, Types, separator_in, without_nulls
from shardctl.system.text import first_repeated, printable

HEAD_BYTES = UNIT_BYTES
"""The longest header that is read: a longer one is a quote that is not closed, or no CSV."""

QUOTE, NEWLINE, _RETURN = b'"\n\r'

_SEPARATOR = re.compile(rb"sep=([;,|\t])\r?\n")
"""What spreadsheets write before the header."""


# --- where records end ---


@dataclass
class State:
    """Where in a row a byte is: `opened` and `closed` are the places of the last quote that opened
    or closed a cell, or -1.

    `inside`: within quotes. A quote right after the one that closed is half of a doubled one, and
    opens the cell again.
    """

    inside: bool = False
    opened: int = -1
    closed: int = -1


def line_ends(data: npt.NDArray[np.uint8], size: int) -> Numbers:
    """Return the places after each line end that is in the first `size` bytes: LF, CRLF, or CR
    alone. One more byte is seen."""
    ends = np.flatnonzero(data[:size] == NEWLINE) + 1
    if (found := data[:size] == _RETURN).any():
        returns = np.flatnonzero(found) + 1
        last = returns[returns < len(data)]
        alone = returns[np.append(data[last] != NEWLINE, np.ones(len(returns) - len(last), bool))]
        if len(alone):
            ends = np.sort(np.append(ends, alone))
    return ends


@lru_cache(4)
def _starts_of_cells(delimiter: str) -> npt.NDArray[np.bool_]:
    """Return of each byte whether a quote after it may open a cell, if every quote before it
    counts. (256,) bool."""
    table = np.zeros(256, bool)
    table[list(f'{delimiter}\n\r"'.encode())] = True
    return table


def are_all_counted(before: npt.NDArray[np.uint8], delimiter: str) -> bool:
    """Return whether each of these quotes opens a cell or is half of a doubled one; `before` has
    the byte before each."""
    return bool(_starts_of_cells(delimiter)[before].all())


def counted_quotes(
    quotes: Numbers, before: npt.NDArray[np.uint8], delimiter: str, state: State
) -> Numbers:
    """Return those quotes that open or close a cell, and go on from `state`. The others are text,
    as in 5" pipe.

    `quotes` are places, `before` has the byte before each. It is the rule by which pyarrow reads.
    """
    starts = _starts_of_cells(delimiter) & (np.arange(256) != QUOTE)
    counted = []
    for place, may_open in zip(quotes.tolist(), starts[before].tolist(), strict=True):
        if state.inside:
            state.inside, state.closed = False, place
        elif may_open:
            state.inside, state.opened = True, place
        elif state.closed == place - 1 and state.closed >= 0:
            state.inside = True
        else:
            continue
        counted.append(place)
    return np.array(counted, np.int64)


@dataclass(frozen=True)
class _Records:
    """The places after the end of each record; `opened` is the place of a quote that is never
    closed, or -1.

    `done` says that the last record has its line end.
    """

    ends: Numbers
    opened: int
    done: bool


def find_records(data: bytes, delimiter: str) -> _Records:
    """Find the records of text that begins with one. The line of a quote that is never closed is a
    record, and more follow."""
    found, opened, start = [], -1, 0
    array = np.frombuffer(data, np.uint8)
    while True:
        ends, inside = _ends_from(array[start:], delimiter)
        found.append(ends + start)
        if inside < 0:
            break
        # Only once: what is behind a quote that is never closed has doubled quotes only, which open
        # and close.
        opened = start + inside
        lines = line_ends(array[opened:], len(array) - opened)
        if not len(lines):
            break
        start = opened + int(lines[0])
        found.append(np.array([start]))
    all_ends = np.concatenate(found)
    last = int(all_ends[-1]) if len(all_ends) else 0
    if last < len(data):
        return _Records(np.append(all_ends, len(data)), opened, done=False)
    return _Records(all_ends, opened, done=True)


def _ends_from(array: npt.NDArray[np.uint8], delimiter: str) -> tuple[Numbers, int]:
    """Return the ends of the records, and the place of a quote that is not closed, or -1."""
    ends = line_ends(array, len(array))
    quotes = np.flatnonzero(array == QUOTE)
    if not len(quotes):
        return ends, -1
    before = array[quotes - 1]
    if quotes[0] == 0:
        before[0] = NEWLINE
    if are_all_counted(before[::2], delimiter):
        anew = quotes[::2][before[::2] != QUOTE]  # not the second half of a doubled one
        return ends[np.searchsorted(quotes, ends) % 2 == 0], int(anew[-1]) if len(
            quotes
        ) % 2 else -1
    state = State()
    counted = counted_quotes(quotes, before, delimiter, state)
    return ends[np.searchsorted(counted, ends) % 2 == 0], state.opened if state.inside else -1


# --- what is in records ---


@dataclass(frozen=True)
class Delimited(TextFormat):
    """Rows of cells with a delimiter (one ASCII character) between them: CSV, TSV.

    `delimiter` is used unless the recipe has one. `complete` and `count` do not know the recipe:
    `of(reading)` gives the format that goes by it.
    """

    delimiter: str = ","

    def of(self, reading: Reading) -> Delimited:
        """Return this format with the delimiter of the recipe, if it has one."""
        return replace(self, delimiter=reading.delimiter) if reading.delimiter else self

    def head(self, data: bytes, reading: Reading) -> Head:
        """Look at the beginning of a file, or all of a small one. Raises Rejection if it has no
        header that can be used."""
        mark = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
        refuse_wide(data, reading)
        if (said := _SEPARATOR.match(data, mark)) is not None:
            separator = said[1].decode()
            if separator != self.delimiter:
                shown = {"\t": "tab"}.get(separator, f"'{separator}'")
                raise Rejection(
                    "read",
                    "no-header",
                    f"its first line names another delimiter; use --delimiter {shown}",
                )
            mark = said.end()
        if reading.columns:
            _refuse_header(data[mark:HEAD_BYTES], reading.columns, self.delimiter)
            return Head(mark, reading.columns)
        start = mark + len(data[mark:]) - len(data[mark:].lstrip(b"\r\n"))
        rest = data[start : start + HEAD_BYTES]
        if not rest:
            raise Rejection("read", "empty", "has not even a header; leave the file out")
        ends, inside = _ends_from(np.frombuffer(rest, np.uint8), self.delimiter)
        if not len(ends) and inside >= 0:
            raise Rejection(
                "read",
                "unclosed-quote",
                f'the header has a quote (") at byte {start + inside} that is never closed',
            )
        if not len(ends) and len(rest) == HEAD_BYTES:
            raise Rejection(
                "read",
                "no-header",
                f"its first line is longer than {HEAD_BYTES} bytes; is it a CSV file?",
            )
        size = int(ends[0]) if len(ends) else len(rest)
        return Head(start + size, _names(rest[:size], self.delimiter))

    def complete(self, data: bytes) -> int:
        """Return how many bytes of `data` are records that end in it: 0 if not even the first one
        does."""
        array = np.frombuffer(data, np.uint8)
        ends, _ = _ends_from(array, self.delimiter)
        if len(ends) and ends[-1] == len(data) and data.endswith(b"\r"):
            ends = ends[:-1]  # the second half of CRLF may follow
        return int(ends[-1]) if len(ends) else 0

    def count(self, data: bytes) -> int:
        """Return how many records `data` has; blank lines count."""
        return len(find_records(data, self.delimiter).ends)

    def types_of(self, data: bytes, first: int, head: Head, reading: Reading) -> Types:
        """Return the types of the columns of these records, of which the first has the number
        `first`."""
        rows = self._rows(data, np.arange(0), first, head, reading)
        return Types.of_cells(rows.batch, reading.label)

    def parse(
        self,
        data: bytes,
        first: int,
        head: Head,
        reading: Reading,
        schema: pa.Schema,
        choose: Choose | None,
    ) -> Parsed:
        """Read these records, of which the first has the number `first`, into the columns of
        `schema`.

        A column that the file does not have is null. Raises Misfit: a cell that does not fit its
        column, or a column that `schema` does not have.
        """
        numbers = np.arange(0)
        if choose is not None:
            ends = find_records(data, self.delimiter).ends
            numbers = np.arange(first, first + len(ends))
            wanted = choose(numbers)
            data, numbers = chosen_lines(data, ends, wanted)[0], numbers[wanted]
        rows = self._rows(data, numbers, first, head, reading)
        return replace(rows, batch=_typed(rows.batch, rows.numbers, schema))

    def _rows(
        self, data: bytes, numbers: Numbers, first: int, head: Head, reading: Reading
    ) -> Parsed:
        """Read records as strings. `numbers` has the number of each; if it is empty, they go on
        from `first`."""
        data, rejects = _without_bad_text(data, self.delimiter)
        rows = _parse_rows(data, self.delimiter, head.columns, reading.null_values)
        if _may_be_unclosed(data, rows):
            cleaned, unclosed = _without_unclosed(data, self.delimiter)
            if unclosed:
                data, rejects = cleaned, [*rejects, *unclosed]
                rows = _parse_rows(data, self.delimiter, head.columns, reading.null_values)
        keep = _rows_with_content(data, self.delimiter, rows)
        named = "--columns names" if reading.columns else "the header has"
        blank = {index for index, _ in rejects}
        rejects += [
            (index, _wrong_columns(actual, head.columns, named))
            for index, actual in rows.wrong
            if index not in blank
        ]
        if (headers := _are_headers(rows.batch)) is not None:
            rejects += [(index, _REPEATED) for index in rows.indices[headers].tolist()]
            keep = ~headers if keep is None else keep & ~headers
        places = rows.indices[keep] if keep is not None else rows.indices
        batch = rows.batch.filter(pa.array(keep)) if keep is not None else rows.batch
        if not len(numbers):
            return Parsed(
                places + first, batch, sorted((first + index, why) for index, why in rejects)
            )
        return Parsed(
            numbers[places], batch, sorted((int(numbers[index]), why) for index, why in rejects)
        )


def tab_delimited() -> Delimited:
    """Return the format of rows with tabs between their cells."""
    return Delimited("\t")


def _refuse_header(data: bytes, columns: tuple[str, ...], delimiter: str) -> None:
    """Raise Rejection if the first row has the names that were given for the columns: it is a
    header, and no record."""
    try:
        rows = csv.reader(
            io.StringIO(data.lstrip(b"\r\n").decode(errors="replace"), newline=""),
            delimiter=delimiter,
        )
        first = next(rows, [])
    except csv.Error:  # what is wrong with the row is said where it is read
        return
    if tuple(first) == columns:
        message = "its first row has the names that --columns gives; leave out --columns, so that it is the header"
        raise Rejection(
            "read",
            "header",
            f"{message} (above data, write a row of names)",
        )


RECODE = "give --encoding, or recode the file"


def _names(line: bytes, delimiter: str) -> tuple[str, ...]:
    """Return the names of the columns in a header. Raises Rejection."""
    try:
        names = next(csv.reader(io.StringIO(line.decode(), newline=""), delimiter=delimiter), [])
    except UnicodeDecodeError as error:
        raise Rejection(
            "read", "not-utf8", f"the header is not UTF-8 at byte {error.start}; {RECODE}"
        ) from None
    except csv.Error as error:
        raise Rejection(
            "read", "no-header", f"the header cannot be read ({error}); is it a CSV file?"
        ) from None
    if len(names) > 1 and not names[0]:
        names[0] = UNNAMED
    nameless = next((place for place, name in enumerate(names, 1) if not name), None)
    if nameless is not None:
        raise Rejection(
            "read",
            "nameless-column",
            f"column {nameless} has no name in the header; write one there",
        )
    twice = first_repeated(names)
    if twice is not None:
        raise Rejection(
            "read",
            "repeated-column",
            f"two columns have the name {printable(twice)}; rename one",
        )
    return tuple(names)


_Rejects = list[tuple[int, Rejection]]


def _without_bad_text(data: bytes, delimiter: str) -> tuple[bytes, _Rejects]:
    """Return the data with a blank line in place of each record that is no UTF-8, and these records
    by their index."""
    if data.isascii() or is_utf8(data):
        return data, []
    parts, rejects, start = [], [], 0
    for index, end in enumerate(find_records(data, delimiter).ends.tolist()):
        record = data[start:end]
        try:
            record.decode()
        except UnicodeDecodeError as error:
            rejects.append(
                (
                    index,
                    Rejection(
                        "decode",
                        "not-utf8",
                        f"not UTF-8 at byte {error.start} of the row; {RECODE}",
                    ),
                )
            )
            record = b"\n"
        parts.append(record)
        start = end
    return b"".join(parts), rejects


def _without_unclosed(data: bytes, delimiter: str) -> tuple[bytes, _Rejects]:
    """Return the data with a blank line in place of the one whose quote is never closed, and that
    record by its index."""
    records = find_records(data, delimiter)
    if records.opened < 0:
        return data, []
    index = int(np.searchsorted(records.ends, records.opened, side="right"))
    start = int(records.ends[index - 1]) if index else 0
    return data[:start] + b"\n" + data[int(records.ends[index]) :], [
        (index, unclosed(records.opened - start))
    ]


def unclosed(place: int) -> Rejection:
    """Return why a row is rejected that has a quote, at `place`, which is never closed."""
    return Rejection(
        "decode",
        "unclosed-quote",
        f'a quote (") at byte {place} of the row is never closed, up to the end of the '
        "file; "
        "close it",
    )


_REPEATED = Rejection("decode", "header", "is the header once more; take it out")


def _are_headers(batch: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
    """Return which rows have the names of all columns in their cells; None for none. The only
    column may have any word."""
    # 20 ms to import, which the process that only cuts files does not need
    import pyarrow.compute as pc

    if batch.num_columns < 2:
        return None
    found = np.ones(len(batch), bool)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        found &= np.asarray(pc.fill_null(pc.equal(column, name), False))
        if not found.any():
            return None
    return found


def _wrong_columns(actual: int, names: Sequence[str], named: str) -> Rejection:
    """`named` says where the names come from."""
    columns = "1 column" if actual == 1 else f"{actual} columns"
    message = f"has {columns} where {named} {len(names)}; fix the row, or put quotes around cells that hold the delimiter"
    if separator := separator_in(names):
        message = f"has {columns} where {named} 1; use --delimiter {separator} if it separates them"
    return Rejection("decode", "wrong-columns", message)


@dataclass(frozen=True)
class _Rows:
    """Rows as strings, with the index of each among all records; `wrong` are records with too few
    or many columns.

    Of these, the index and how many columns there are.
    """

    batch: pa.RecordBatch
    indices: Numbers
    wrong: list[tuple[int, int]]


def _parse_rows(data: bytes, delimiter: str, columns: Sequence[str], nulls: Sequence[str]) -> _Rows:
    """Read the rows of valid UTF-8, cells that are one of `nulls` as null. A blank line is a row of
    empty cells."""
    from pyarrow import csv as arrow_csv  # 20 ms to import

    wrong: list[tuple[int, int]] = []

    def skip(row: Any) -> str:
        wrong.append((row.number - 1, row.actual_columns))
        return "skip"

    schema = pa.schema([(name, pa.string()) for name in columns])
    if not data:
        return _Rows(pa.RecordBatch.from_pylist([], schema), np.arange(0), [])
    # pyarrow would take it away, but the file's own mark is not in records
    marked = data.startswith(codecs.BOM_UTF8)
    table = arrow_csv.read_csv(
        pa.BufferReader(b"\n" + data if marked else data),
        # Without threads, or rows have no number. All data is one block.
        read_options=arrow_csv.ReadOptions(
            use_threads=False, column_names=columns, block_size=len(data) + 2
        ),
        parse_options=arrow_csv.ParseOptions(
            delimiter=delimiter,
            newlines_in_values=True,
            ignore_empty_lines=False,
            invalid_row_handler=skip,
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types=schema,
            null_values=list(nulls),
            strings_can_be_null=bool(nulls),
            check_utf8=False,
        ),
    )
    batch = (
        table.combine_chunks().to_batches()[0]
        if len(table)
        else pa.RecordBatch.from_pylist([], schema)
    )
    indices = np.arange(len(table) + len(wrong))
    if wrong:
        kept = np.ones(len(indices), bool)
        kept[[index for index, _ in wrong]] = False
        indices = indices[kept]
    if marked:
        return _Rows(
            batch.slice(1), indices[1:] - 1, [(index - 1, actual) for index, actual in wrong]
        )
    return _Rows(batch, indices, wrong)


def _may_be_unclosed(data: bytes, rows: _Rows) -> bool:
    """Return whether the last row may have a quote that is never closed: pyarrow takes it as closed
    at the end.

    Then its last cell ends with the line end of the data, or the data has none.
    """
    if b'"' not in data:
        return False
    if not data.endswith((b"\n", b"\r")) or not len(rows.batch):
        return True
    if rows.wrong and rows.wrong[-1][0] > rows.indices[-1]:
        return True
    return (rows.batch.columns[-1][-1].as_py() or "").endswith(("\n", "\r"))


def _rows_with_content(data: bytes, delimiter: str, rows: _Rows) -> npt.NDArray[np.bool_] | None:
    """Return which rows are no blank lines, None for all. Rows of nothing but empty cells are
    compared with the data."""
    empty = np.ones(len(rows.batch), bool)
    for column in rows.batch.columns:
        empty &= bytes_of(column).sizes == 0
        if column.null_count:
            empty &= np.asarray(column.is_valid())
        if not empty.any():
            return None
    ends = find_records(data, delimiter).ends
    starts = np.append(0, ends[:-1])[rows.indices]
    first = np.frombuffer(data, np.uint8)[np.minimum(starts, len(data) - 1)]
    blank = empty & ((first == NEWLINE) | (first == _RETURN))
    return ~blank if blank.any() else None


# --- types ---


def _typed(rows: pa.RecordBatch, numbers: Numbers, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of `schema`, string for null. Raises Misfit."""
    check_columns(rows.schema.names, schema)
    whole = without_nulls(schema)
    columns = []
    for field, out in zip(schema, whole, strict=True):
        place = rows.schema.get_field_index(field.name)
        columns.append(
            pa.nulls(len(rows), out.type)
            if place < 0
            else _typed_column(rows.column(place), numbers, field)
        )
    return pa.RecordBatch.from_arrays(columns, schema=whole)


def _typed_column(cells: pa.Array, numbers: Numbers, field: pa.Field) -> pa.Array:
    """Return cells with the type of a column. Raises Misfit."""
    # 20 ms to import, which the process that only cuts files does not need
    import pyarrow.compute as pc

    from shardctl.sources.csv_numbers import CellStats, filled, gives_back

    places = (field.metadata or {}).get(WRITTEN)
    if is_json(field):
        return json_texts(cells.to_pylist())
    if pa.types.is_string(field.type):
        if (
            places == b"words"
            and (written := CellStats.of(cells)).cells
            and (written.is_text or written.digits)
        ):
            raise Misfit(f"the column {printable(field.name)} had no numbers but nan and inf")
        return cells
    values = filled(cells)
    if pa.types.is_null(field.type):
        if values.null_count < len(values):
            raise Misfit(f"all cells of the column {printable(field.name)} were empty")
        return cells
    if pa.types.is_large_string(field.type) or pa.types.is_string_view(field.type):
        return cells.cast(field.type)
    try:
        typed = values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        odd = _first_that_fails(values, field.type)
        where = (
            "" if odd is None else f" in record {numbers[odd]} ({printable(values[odd].as_py())})"
        )
        raise Misfit(
            f"the column {printable(field.name)} is {field.type}, which a cell{where} does not fit"
        ) from error
    if places is None:
        if (
            pa.types.is_integer(field.type)
            and pc.any(pc.match_substring(values, "x", ignore_case=True)).as_py()
        ):
            raise Misfit(
                f"the column {printable(field.name)} is {field.type}, and a cell is written as 0x1F"
            )
        return typed
    if pa.types.is_integer(field.type):
        fits = typed.cast(pa.string()).equals(values)
    else:
        fits = gives_back(values, typed, places.decode())
    if not fits:
        raise Misfit(f"the column {printable(field.name)} is {field.type}, and a cell would change")
    return typed


def _first_that_fails(values: pa.Array, type_: pa.DataType) -> int | None:
    """Return the index of the first value that cannot be cast, None if no value has this type."""
    start, end = 0, len(values)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            values[start:middle].cast(type_)
            start = middle
        except pa.ArrowInvalid:
            end = middle
        except pa.ArrowNotImplementedError:
            return None
    return start


# --- files that can be sought ---
