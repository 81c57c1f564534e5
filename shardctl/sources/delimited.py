"""CSV and TSV files as tables: which columns are numbers, so that no value is changed (docs/inputs.md)."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Sequence

import pyarrow as pa

from shardctl.errors import InputError
from shardctl.sources.csv_numbers import CellStats, filled
from shardctl.sources.files import local_copy
from shardctl.sources.jsonl import null_notice
from shardctl.sources.types import UNNAMED
from shardctl.sources.walk import suffix_of
from shardctl.system.files import READ_CHUNK, HashingReader, ordinary
from shardctl.system.locations.text import name_of
from shardctl.system.text import printable


def read_delimited(file: str, nulls: Sequence[str] = ()) -> tuple[pa.Table, str]:
    """Return the table of a CSV file (a TSV file by its ending), every cell as it is written, and the file's SHA-256 in hex.

    Cells that are one of `nulls` are null. Raises InputError.
    """
    shown = printable(file)
    from pyarrow import csv as arrow_csv  # 20 ms to import, and most conversions have no CSV

    delimiter = "\t" if suffix_of(name_of(file)) == ".tsv" else ","
    try:
        path = local_copy(file)
        with open(path, encoding="utf-8-sig", newline="", opener=ordinary) as text:
            names = next(csv.reader(text, delimiter=delimiter), [])
        if not names:
            raise InputError(f"{shown}: the labels file is empty")
        if len(set(names)) < len(names):
            raise InputError(f"{shown}: two columns have the same name ({', '.join(map(printable, names))})")
        with open(path, "rb", buffering=0, opener=ordinary) as opened, HashingReader(opened) as raw:
            table = arrow_csv.read_csv(
                io.BufferedReader(raw, READ_CHUNK),
                parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                convert_options=arrow_csv.ConvertOptions(
                    column_types={name: pa.string() for name in names},
                    null_values=list(nulls),
                    strings_can_be_null=bool(nulls),
                ),
            )
        if table.column_names != names:  # cells of columns that were not named are no longer as they are written
            raise InputError(f"{shown}: changed while it was read; run the same command again")
        return (table if names[0] or len(names) == 1 else table.rename_columns([UNNAMED, *names[1:]])), raw.sha256
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
        if name in as_text:
            columns.append(column)
            continue
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
