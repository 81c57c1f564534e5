"""CSV and TSV: rows of cells, which may be in quotes and then hold line ends (RFC 4180).
docs/inputs/tables.md has the rules."""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from shardctl.errors import Rejection
from shardctl.format.arrays import Bools, Bytes, Numbers, bytes_of
from shardctl.sources.files import Version, changed, fill, local_version
from shardctl.sources.formats.base import (
    UNIT_BYTES,
    Choose,
    Cut,
    Digest,
    Head,
    Misfit,
    Parsed,
    Reading,
    TextFormat,
    TextPart,
    Unit,
    is_json,
    json_texts,
    refused,
)
from shardctl.sources.formats.columns import check_columns, check_names, with_columns
from shardctl.sources.formats.found_values import Rejects
from shardctl.sources.formats.lines import GridFile, chosen_lines, is_utf8, range_of
from shardctl.sources.types import UNNAMED, WRITTEN, Types, separator_in
from shardctl.system.files import open_ordinary
from shardctl.system.text import printable

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


def line_ends(data: Bytes, size: int) -> Numbers:
    """Return the places after each line end that is in the first `size` bytes: LF, CRLF, or CR
    alone. One more byte is seen."""
    ends = np.flatnonzero(data[:size] == NEWLINE) + 1
    if (found := data[:size] == _RETURN).any():
        returns = np.flatnonzero(found) + 1
        alone = returns[data.take(returns, mode="clip") != NEWLINE]
        if len(alone):
            ends = np.sort(np.append(ends, alone))
    return ends


@lru_cache(4)
def _starts_of_cells(delimiter: str) -> Bools:
    """Return of each byte whether a quote after it may open a cell, if every quote before it
    counts. (256,) bool."""
    table = np.zeros(256, bool)
    table[list(f'{delimiter}\n\r"'.encode())] = True
    return table


def are_all_counted(before: Bytes, delimiter: str) -> bool:
    """Return whether each of these quotes opens a cell or is half of a doubled one; `before` has
    the byte before each."""
    return bool(_starts_of_cells(delimiter)[before].all())


def counted_quotes(quotes: Numbers, before: Bytes, delimiter: str, state: State) -> Numbers:
    """Return those quotes that open or close a cell, and go on from `state`. The others are text,
    as in 5" pipe.

    `quotes` are places, `before` has the byte before each. It is the rule by which pyarrow reads.
    """
    if not len(quotes):
        return quotes
    opening = int(state.inside)
    half = not state.inside and before[0] == QUOTE and state.closed != quotes[0] - 1
    if not half and are_all_counted(before[opening::2], delimiter):
        opens, closes = quotes[opening::2], quotes[1 - opening :: 2]
        anew = opens[before[opening::2] != QUOTE]  # not the second half of a doubled one
        if len(anew):
            state.opened = int(anew[-1])
        if len(closes):
            state.closed = int(closes[-1])
        state.inside ^= len(quotes) % 2 == 1
        return quotes
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


def find_records(data: bytes, delimiter: str) -> tuple[Numbers, int]:
    """Return the places after the end of each record of text that begins with one, and that of a
    quote that is never closed, or -1. The line of such a quote is a record, and more follow."""
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
    is_done = (all_ends[-1] if len(all_ends) else 0) == len(data)
    return all_ends if is_done else np.append(all_ends, len(data)), opened


def _ends_from(array: Bytes, delimiter: str) -> tuple[Numbers, int]:
    """Return the ends of the records, and the place of a quote that is not closed, or -1."""
    ends = line_ends(array, len(array))
    quotes = np.flatnonzero(array == QUOTE)
    before = array[quotes - 1]
    if len(quotes) and quotes[0] == 0:
        before[0] = NEWLINE
    state = State()
    counted = counted_quotes(quotes, before, delimiter, state)
    return ends[np.searchsorted(counted, ends) % 2 == 0], state.opened if state.inside else -1


# --- what is in records ---


@dataclass(frozen=True)
class Delimited(TextFormat):
    """Rows of cells with a delimiter (one ASCII character) between them: CSV, TSV.

    `delimiter` is used unless the recipe has one: `of(reading)` gives the format that goes by it.
    """

    delimiter: str = ","

    def of(self, reading: Reading) -> Delimited:
        """Return this format with the delimiter of the recipe, if it has one."""
        return replace(self, delimiter=reading.delimiter) if reading.delimiter else self

    def head(self, data: bytes, reading: Reading) -> Head:
        """Look at the beginning of a file, or all of a small one. Raises Rejection if it has no
        header that can be used."""
        mark = super().head(data, reading).size
        if (said := _SEPARATOR.match(data, mark)) is not None:
            separator = said[1].decode()
            if separator != self.delimiter:
                shown = {"\t": "tab"}.get(separator, f"'{separator}'")
                raise refused(
                    "no-header", f"its first line names another delimiter; use --delimiter {shown}"
                )
            mark = said.end()
        if reading.columns:
            with suppress(csv.Error):  # what is wrong with the row is said where it is read
                text = data[mark:HEAD_BYTES].lstrip(b"\r\n").decode(errors="replace")
                if tuple(_first_row(text, self.delimiter)) == reading.columns:
                    raise refused(
                        "header",
                        "its first row has the names that --columns gives; leave out --columns (above data, write a row of names)",
                    )
            return Head(mark, reading.columns)
        start = len(data) - len(data[mark:].lstrip(b"\r\n"))
        rest = data[start : start + HEAD_BYTES]
        if not rest:
            raise refused("empty", "has not even a header; leave the file out")
        ends, inside = _ends_from(np.frombuffer(rest, np.uint8), self.delimiter)
        if not len(ends) and inside >= 0:
            raise refused(
                "unclosed-quote",
                f'the header has a quote (") at byte {start + inside} that is never closed',
            )
        if not len(ends) and len(rest) == HEAD_BYTES:
            raise refused(
                "no-header", f"its first line is longer than {HEAD_BYTES} bytes; is it a CSV file?"
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
        return len(find_records(data, self.delimiter)[0])

    def types_of(self, part: TextPart, reading: Reading) -> Types:
        """Return the types of the columns of these records."""
        return Types.of_cells(self._rows(part, reading, None).batch, reading.label)

    def parse(
        self, part: TextPart, reading: Reading, schema: pa.Schema, choose: Choose | None
    ) -> Parsed:
        """Read these records into the columns of `schema`.

        A column that the file does not have is null. Raises Misfit: a cell that does not fit its
        column, or a column that `schema` does not have.
        """
        numbers = None
        if choose is not None:
            ends = find_records(part.data, self.delimiter)[0]
            numbers = part.first + np.arange(len(ends))
            wanted = choose(numbers)
            data, numbers = chosen_lines(part.data, ends, wanted)[0], numbers[wanted]
            part = part._replace(data=data)
        rows = self._rows(part, reading, numbers)
        if part.most is not None:  # those from here on are another unit's
            end = part.first + part.most
            own = int(np.searchsorted(rows.numbers, end))
            rejects = [reject for reject in rows.rejects if reject[0] < end]
            rows = Parsed(rows.numbers[:own], rows.batch.slice(0, own), rejects)
        check_columns(list(part.columns), schema)
        batch = with_columns(
            rows.batch, schema, lambda cells, field, _: _typed_column(cells, rows.numbers, field)
        )
        return replace(rows, batch=batch)

    def _rows(self, part: TextPart, reading: Reading, numbers: Numbers | None) -> Parsed:
        """Read records as strings. `numbers` has the number of each; without, they go on from that
        of the part."""
        data, rejects = _without_bad_text(part.data, self.delimiter)
        rows = _parse_rows(data, self.delimiter, part.columns, reading)
        if _may_be_unclosed(data, rows):
            cleaned, unclosed = _without_unclosed(data, self.delimiter)
            if unclosed:
                data, rejects = cleaned, [*rejects, *unclosed]
                rows = _parse_rows(data, self.delimiter, part.columns, reading)
        keep = _rows_with_content(data, self.delimiter, rows)
        blank = {index for index, _ in rejects}
        rejects += [reject for reject in rows.rejects if reject[0] not in blank]
        headers = _are_headers(rows.batch)
        rejects += [(index, _REPEATED) for index in rows.numbers[headers].tolist()]
        if numbers is None:
            numbers = part.first + np.arange(len(rows.numbers) + len(rows.rejects))
        rejects = sorted(((int(numbers[i]), why) for i, why in rejects), key=itemgetter(0))
        places, batch, keep = rows.numbers, rows.batch, keep & ~headers
        if not keep.all():
            places, batch = places[keep], batch.filter(pa.array(keep))
        return Parsed(numbers[places], batch, rejects)


tab_delimited = partial(Delimited, "\t")
"""Makes the format of rows with tabs between their cells."""


def _first_row(text: str, delimiter: str) -> list[str]:
    return next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])


RECODE = "give --encoding, or recode the file"


def _names(line: bytes, delimiter: str) -> tuple[str, ...]:
    """Return the names of the columns in a header. Raises Rejection."""
    try:
        names = _first_row(line.decode(), delimiter)
    except UnicodeDecodeError as error:
        raise refused(
            "not-utf8", f"the header is not UTF-8 at byte {error.start}; {RECODE}"
        ) from None
    except csv.Error as error:
        raise refused(
            "no-header", f"the header cannot be read ({error}); is it a CSV file?"
        ) from None
    if len(names) > 1 and not names[0]:
        names[0] = UNNAMED
    if "" in names:
        raise refused(
            "nameless-column",
            f"column {names.index('') + 1} has no name in the header; write one there",
        )
    check_names(names)
    return tuple(names)


def _without_bad_text(data: bytes, delimiter: str) -> tuple[bytes, Rejects]:
    """Return the data with a blank line in place of each record that is no UTF-8, and these records
    by their index."""
    if data.isascii() or is_utf8(data):
        return data, []
    parts, rejects, start = [], [], 0
    for index, end in enumerate(find_records(data, delimiter)[0].tolist()):
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


def _without_unclosed(data: bytes, delimiter: str) -> tuple[bytes, Rejects]:
    """Return the data with a blank line in place of the one whose quote is never closed, and that
    record by its index."""
    ends, opened = find_records(data, delimiter)
    if opened < 0:
        return data, []
    index = int(np.searchsorted(ends, opened, side="right"))
    start = int(ends[index - 1]) if index else 0
    without = data[:start] + b"\n" + data[int(ends[index]) :]
    return without, [(index, unclosed(opened - start))]


def unclosed(place: int) -> Rejection:
    """Return why a row is rejected that has a quote, at `place`, which is never closed."""
    return Rejection(
        "decode",
        "unclosed-quote",
        f'a quote (") at byte {place} of the row is never closed, up to the end of the file; '
        "close it",
    )


_REPEATED = Rejection("decode", "header", "is the header once more; take it out")


def _are_headers(batch: pa.RecordBatch) -> Bools:
    """Return which rows have the names of all columns in their cells. The only column may have any
    word."""
    # 20 ms to import, which the process that only cuts files does not need
    import pyarrow.compute as pc

    found = np.full(len(batch), batch.num_columns > 1)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not found.any():
            break
        found &= np.asarray(pc.fill_null(pc.equal(column, name), False))
    return found


def _wrong_columns(actual: int, names: Sequence[str], named: str) -> Rejection:
    """`named` says where the names come from."""
    columns = "1 column" if actual == 1 else f"{actual} columns"
    message = f"has {columns} where {named} {len(names)}; fix the row, or put quotes around cells that hold the delimiter"
    if separator := separator_in(names):
        message = f"has {columns} where {named} 1; use --delimiter {separator} if it separates them"
    return Rejection("decode", "wrong-columns", message)


def _parse_rows(data: bytes, delimiter: str, columns: Sequence[str], reading: Reading) -> Parsed:
    """Read the rows of valid UTF-8 as strings, by their index among all records. A blank line is a
    row of empty cells."""
    from pyarrow import csv as arrow_csv  # 20 ms to import

    wrong: Rejects = []
    named = "--columns names" if reading.columns else "the header has"

    def skip(row: Any) -> str:
        wrong.append((row.number - 1, _wrong_columns(row.actual_columns, columns, named)))
        return "skip"

    schema = pa.schema([(name, pa.string()) for name in columns])
    batch, rows = pa.RecordBatch.from_pylist([], schema), 0
    # pyarrow would take it away, but the file's own mark is not in records
    marked = data.startswith(codecs.BOM_UTF8)
    if data:
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
                null_values=list(reading.null_values),
                strings_can_be_null=bool(reading.null_values),
                check_utf8=False,
            ),
        )
        rows = len(table) + len(wrong)
        batch = table.combine_chunks().to_batches()[0] if len(table) else batch
    indices = np.delete(np.arange(rows), [index for index, _ in wrong])
    if not marked:
        return Parsed(indices, batch, wrong)
    return Parsed(indices[1:] - 1, batch.slice(1), [(index - 1, why) for index, why in wrong])


def _may_be_unclosed(data: bytes, rows: Parsed) -> bool:
    """Return whether the last row may have a quote that is never closed: pyarrow takes it as closed
    at the end.

    Then its last cell ends with the line end of the data, or the data has none.
    """
    if b'"' not in data:
        return False
    if not data.endswith((b"\n", b"\r")) or not len(rows.batch):
        return True
    if rows.rejects and rows.rejects[-1][0] > rows.numbers[-1]:
        return True
    return (rows.batch.columns[-1][-1].as_py() or "").endswith(("\n", "\r"))


def _rows_with_content(data: bytes, delimiter: str, rows: Parsed) -> Bools:
    """Return which rows are no blank lines. Rows of nothing but empty cells are compared with the
    data."""
    empty = np.ones(len(rows.batch), bool)
    for column in rows.batch.columns:
        empty &= bytes_of(column).sizes == 0
        if column.null_count:
            empty &= np.asarray(column.is_valid())
        if not empty.any():
            return ~empty
    starts = np.append(0, find_records(data, delimiter)[0][:-1])[rows.numbers]
    first = np.frombuffer(data, np.uint8)[np.minimum(starts, len(data) - 1)]
    empty &= (first == NEWLINE) | (first == _RETURN)
    return ~empty


# --- types ---


def _typed_column(cells: pa.Array, numbers: Numbers, field: pa.Field) -> pa.Array:
    """Return cells with the type of a column. Raises Misfit."""
    # 20 ms to import, which the process that only cuts files does not need
    import pyarrow.compute as pc

    from shardctl.sources.csv_numbers import CellStats, filled, gives_back

    places = (field.metadata or {}).get(WRITTEN)
    if is_json(field):
        return json_texts(cells.to_pylist())
    if types.is_string(field.type):
        if (
            places == b"words"
            and (written := CellStats.of(cells)).cells
            and (written.is_text or written.digits)
        ):
            raise Misfit(f"the column {printable(field.name)} had no numbers but nan and inf")
        return cells
    values = filled(cells)
    if types.is_null(field.type):
        if values.null_count < len(values):
            raise Misfit(f"all cells of the column {printable(field.name)} were empty")
        return cells
    if types.is_large_string(field.type) or types.is_string_view(field.type):
        return cells.cast(field.type)
    try:
        typed = values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        where = ""
        if isinstance(error, pa.ArrowInvalid):  # or no value has this type
            odd = bisect_left(range(len(values)), True, key=partial(_fails, values, field.type))
            where = f" in record {numbers[odd]} ({printable(values[odd].as_py())})"
        raise Misfit(
            f"the column {printable(field.name)} is {field.type}, which a cell{where} does not fit"
        ) from error
    if places is None:
        if (
            types.is_integer(field.type)
            and pc.any(pc.match_substring(values, "x", ignore_case=True)).as_py()
        ):
            raise Misfit(
                f"the column {printable(field.name)} is {field.type}, and a cell is written as 0x1F"
            )
        return typed
    if types.is_integer(field.type):
        fits = typed.cast(pa.string()).equals(values)
    else:
        fits = gives_back(values, typed, places.decode())
    if not fits:
        raise Misfit(f"the column {printable(field.name)} is {field.type}, and a cell would change")
    return typed


def _fails(values: pa.Array, type_: pa.DataType, last: int) -> bool:
    """Return whether one of the values up to an index cannot be cast."""
    try:
        values[: last + 1].cast(type_)
    except pa.ArrowInvalid:
        return True
    return False


# --- files in UTF-8 that can be sought: cut in parallel pieces, exactly ---


@lru_cache(64)
def _head_of(path: str, _version: Version, form: TextFormat, reading: Reading) -> Head:
    """Return the head of a file; it is read again when it is another one."""
    with open_ordinary(path) as file:
        return form.head(file.read(HEAD_BYTES + 4), reading)


class DelimitedFile(GridFile):
    """CSV files in UTF-8 that can be sought.

    A piece is scanned without knowing whether it begins inside quotes, for both cases: an even or
    an odd number of quotes before it. Counting is enough where every quote opens or closes a cell;
    else the file is scanned from its start to its end.
    """

    text: Delimited

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Look at a piece of a file, or at all of it: then what cannot be counted in pieces is read
        from start to end."""
        delimiter = self.text.delimiter
        head = _head_of(path, local_version(path), self.text, reading).size
        with open_ordinary(path) as file:
            end = os.fstat(file.fileno()).st_size
            if offset + size > end:
                raise changed()
            cells = partial(_cells, file.fileno(), self.cell, head, end)
            if size <= self.piece:
                both = [
                    _both_ways(*cell, delimiter) for cell in cells(max(offset, head), offset + size)
                ]
                if offset or size < end or _chained(both) is not None:
                    return {"head": head, "both": both}
            return {"head": head, "found": _serial(cells, delimiter, head, end)}

    def join(self, scans: list[Any], size: int) -> list[Cut] | None:
        """Return the units of a file; None if quotes that do not open or close a cell make counting
        in pieces impossible."""
        if not scans:
            return []
        found = scans[0].get("found")
        if found is None:
            found = _chained([cell for scan in scans for cell in scan["both"]])
            if found is None:
                return None
        ends = (
            (first, last, 1, unclosed(count - first)) if is_unclosed else (first, last, count)
            for first, last, count, *is_unclosed in found
        )
        return list(self.cuts(ends, scans[0]["head"], size, begun=False))

    def too_large(self, size: int) -> Rejection:
        """Return why a row is rejected."""
        return refused(
            "too-large",
            f"the row has {size} bytes, more than the {self.longest} that are read; is a quote missing?",
        )

    def parts(
        self, path: str, unit: Unit, reading: Reading, digest: Digest | None
    ) -> Generator[TextPart]:
        """Yield the records of a unit at once: it is about as large as it was cut. To look for the
        end of a part of a unit would take as long as parsing."""
        data, text = range_of(path, unit), self.text
        if digest is not None:
            digest.update(data)
        if unit.skip:
            ends = find_records(data, text.delimiter)[0]
            last = min(unit.skip + unit.records, len(ends)) - 1
            data = data[int(ends[unit.skip - 1]) : int(ends[last])]
        head = _head_of(path, local_version(path), text, reading)
        yield TextPart(data, unit.first, head.columns, unit.records)


def _cells(
    file: int, cell: int, head: int, last: int, start: int, end: int
) -> Iterator[tuple[Bytes, Numbers, Numbers]]:
    """Yield of each stretch of a cell between two places the bytes before its quotes, its quotes,
    and its line ends, by their places in the file.

    It takes flat memory. The records of the file begin at `head` and end at `last`.
    """
    buffer = np.empty(cell + 2, np.uint8)
    while start < end:
        size = min(cell - start % cell, end - start)
        array = buffer[: size + 2]
        array[0] = array[-1] = NEWLINE
        # a byte mark before the first record is not before a quote
        before, after = int(start > head), int(start + size < last)
        fill(file, start - before, array[1 - before : 1 + size + after].data)
        quotes = np.flatnonzero(array[1 : size + 1] == QUOTE)
        ends = line_ends(array[1 : size + 1 + after], size)
        yield array[quotes], quotes + start, ends + start
        start += size


def _serial(cells: Any, delimiter: str, start: int, end: int) -> list[list[int]]:
    """Return [first end, last end, records] of each cell in which records end, and [start, end,
    quote, 1] of each record whose quote is never closed: its line."""
    found, state, last = [], State(), start
    for before, quotes, ends in cells(start, end):
        counted = counted_quotes(quotes, before, delimiter, state)
        inside = state.inside ^ (len(counted) % 2 == 1)  # what it was before
        own = ends[(np.searchsorted(counted, ends) + inside) % 2 == 0]
        if len(own):
            last = int(own[-1])
            found.append([int(own[0]), last, len(own)])
    if not state.inside:
        return found
    line = next((int(ends[0]) for *_, ends in cells(state.opened, end) if len(ends)), end)
    return [*found, [last, line, state.opened, 1], *_serial(cells, delimiter, line, end)]


def _both_ways(before: Bytes, quotes: Numbers, ends: Numbers, delimiter: str) -> list[list[int]]:
    """Return for a cell that begins outside and inside quotes: whether all its quotes count,
    whether it ends inside quotes, the first and the last end of a record in it, and how many there
    are."""
    odd = np.searchsorted(quotes, ends) % 2
    found = []
    for inside in (0, 1):
        own = ends[odd == inside]
        sound = are_all_counted(before[inside::2], delimiter)
        edges = [int(own[0]), int(own[-1])] if len(own) else [0, 0]
        found.append([int(sound), (len(quotes) + inside) % 2, *edges, len(own)])
    return found


def _chained(cells: list[list[list[int]]]) -> list[list[int]] | None:
    """Return [first end, last end, records] of each cell, taken as the cells before it say. None:
    they cannot be counted."""
    inside, found = 0, []
    for both in cells:
        sound, inside, *ends = both[inside]
        if not sound:
            return None
        if ends[2]:
            found.append(ends)
    return None if inside else found
