"""Tables: records with columns of their own."""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa

from shardctl.format.roles import Sample
from shardctl.sources.endings import ending_of, without_compression
from shardctl.sources.format_table import FORMAT_NAMES, TABLE_SUFFIXES
from shardctl.sources.formats import Reading
from shardctl.sources.kinds.base import Form
from shardctl.sources.walk import FoundFile


class TableKind:
    """A record is a row of a table, or an object of JSON, with its columns as they are."""

    name: ClassVar[str] = "table"
    has_sidecars: ClassVar[bool] = False
    columns: ClassVar[pa.Schema | None] = None

    def form(self, file: FoundFile, reading: Reading) -> Form:
        """Tell by the name, or by how the file begins where the name says nothing."""
        ending = file.suffix if file.fault else ending_of(file.path, file.opened)
        wanted = FORMAT_NAMES.get(reading.format, TABLE_SUFFIXES)
        return Form.MANY if without_compression(ending) in wanted else Form.NOTHING

    def fields(self, data: bytes, path: str, reading: Reading) -> Sample:
        """No file is one record."""
        raise NotImplementedError
