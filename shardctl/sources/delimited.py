"""CSV and TSV files as tables: which columns are numbers, so that no value is changed (docs/inputs.md)."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import InputError
from shardctl.storage import READ_CHUNK, HashingReader, printable

_WHOLE = r"^(0|-?[1-9][0-9]*)$"
_WORDS = r"^(nan|NaN|inf|-inf)$"
_DECIMAL = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-][0-9]+)?$"
_LIKE_A_NUMBER = r"^\s*[+-]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
"""Text that looks like a number: if it is kept as text, a notice says so."""

_ALWAYS_EXACT = 15
"""Digits of a decimal that float64 always gives back; of 16 and 17 only some."""


def read_delimited(path: Path) -> tuple[pa.Table, str]:
    """Return the table of a CSV file (a TSV file by its suffix), every cell as it is written, and the file's SHA-256 in hex.

    Raises InputError.
    """
    shown = printable(str(path))
    from pyarrow import csv as arrow_csv  # 20 ms to import, and most conversions have no CSV

    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        with open(path, encoding="utf-8-sig", newline="") as text:
            names = next(csv.reader(text, delimiter=delimiter), [])
        if not names:
            raise InputError(f"{shown}: the labels file is empty")
        if len(set(names)) < len(names):
            raise InputError(f"{shown}: two columns have the same name ({', '.join(map(printable, names))})")
        with open(path, "rb", buffering=0) as file, HashingReader(file) as raw:
            table = arrow_csv.read_csv(
                io.BufferedReader(raw, READ_CHUNK),
                parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                convert_options=arrow_csv.ConvertOptions(
                    column_types={name: pa.string() for name in names}, strings_can_be_null=False
                ),
            )
        if table.column_names != names:  # cells of columns that were not named are no longer as they are written
            raise InputError(f"{shown}: changed while it was read; run the same command again")
        return table, raw.sha256
    except UnicodeDecodeError as error:
        raise InputError(f"{shown}: not UTF-8 at byte {error.start}; recode it, for instance with iconv -t UTF-8") from None
    except OSError as error:
        raise InputError(f"{shown}: cannot be read ({error.strerror or error})") from error
    except (pa.ArrowInvalid, csv.Error) as error:
        reason = str(error).splitlines()[0]
        advice = "recode it to UTF-8" if "UTF8" in reason.upper().replace("-", "") else "fix the file"
        raise InputError(f"{shown}: not a CSV file that can be read ({reason}); {advice}") from error


def narrowed(table: pa.Table, as_text: Collection[str]) -> tuple[pa.Table, list[str]]:
    """Return a table of strings with its columns of numbers as int64 and float64, and notices on those that only look so.

    A column is one of numbers where every cell that is not empty is written as a number is printed; an empty cell is then
    null. `as_text` names columns that stay as they are.
    """
    columns, notices = [], []
    for name, column in zip(table.column_names, table.columns, strict=True):
        narrow, odd = (column, None) if name in as_text else _narrowed_column(column)
        columns.append(narrow)
        if odd is not None:
            notices.append(
                f"the column {printable(name)} is kept as text: {printable(odd)} would change if it were read as a number"
            )
    return pa.table(columns, names=table.column_names), notices


def _narrowed_column(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, str | None]:
    """Return the column as numbers; or as it is, with the first value for which that is so if all look like numbers."""
    few = [value for value in column.slice(0, 1000).to_pylist() if value]
    if few and not _all(pa.chunked_array([few]), rf"{_LIKE_A_NUMBER}|{_WORDS}"):
        return column, None  # the usual column of text, without a copy of it
    filled = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
    values = filled.drop_null()
    if not len(values) or not _all(values, rf"{_LIKE_A_NUMBER}|{_WORDS}") or not _any(values, "[0-9]"):
        return column, None
    if _all(values, _WHOLE):
        try:
            return filled.cast(pa.int64()), None
        except pa.ArrowInvalid:  # beyond 64 bits
            return column, next(value for value in values.to_pylist() if not -(2**63) <= int(value) < 2**63)
    odd = _first_inexact(values)
    return (filled.cast(pa.float64()), None) if odd is None else (column, odd)


def _first_inexact(values: pa.ChunkedArray) -> str | None:
    """Return the first value that float64 would not give back as it is written, None if there is none."""
    numbers = values.filter(pc.invert(pc.match_substring_regex(values, _WORDS)))
    odd = numbers.filter(pc.invert(pc.match_substring_regex(numbers, _DECIMAL)))
    if len(odd):
        return str(odd[0])
    mantissa = pc.replace_substring_regex(numbers, "[eE].*$", "")
    # 1.10 is not 1.1 where it is a version. Where all values have the same number of places, nothing is lost.
    places = pc.utf8_length(pc.replace_substring_regex(mantissa, r"^[^.]*\.?", ""))
    padded = numbers.filter(pc.match_substring_regex(mantissa, r"\.[0-9]+0$"))
    if len(padded) and len(pc.unique(places)) > 1:
        return str(padded[0])
    digits = pc.utf8_length(pc.replace_substring_regex(pc.replace_substring_regex(mantissa, r"[-.]", ""), "^0+", ""))
    doubtful = pc.or_(pc.greater(digits, _ALWAYS_EXACT), pc.match_substring_regex(numbers, "[eE]"))
    written = numbers.filter(doubtful).to_pylist()
    return next((value for value in written if Decimal(value) != Decimal(repr(float(value)))), None)


def _all(values: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(values, pattern)).as_py())


def _any(values: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(values, pattern)).as_py())
