"""What every kind of sample can say: which files are of it, and what the bytes of a file that is
one record become."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar, Protocol

import pyarrow as pa

from shardctl.format.roles import Sample
from shardctl.sources.formats import Reading
from shardctl.sources.walk import FoundFile


class Form(Enum):
    """What a file is to a kind: one record, many of them, or nothing; or it cannot be read to see
    which."""

    ONE = "one record"
    MANY = "many records"
    NOTHING = "nothing"
    UNKNOWN = "unknown"


class SampleKind(Protocol):
    """A kind of sample. Files of many records are read by their formats (sources/formats); the
    others by `fields`."""

    name: ClassVar[str]
    columns: ClassVar[pa.Schema | None]
    """Those that `fields` fills; None: one image, whose type is the recipe's."""

    has_sidecars: ClassVar[bool]
    """Whether labels files beside the files are looked for."""

    def form(self, file: FoundFile, reading: Reading) -> Form:
        """Return what a file is to this kind."""
        ...

    def fields(self, data: bytes, path: str, reading: Reading) -> Sample:
        """Turn the bytes of a file that is one record into fields of a sample. Raises Rejection
        (stages `read`, `decode`)."""
        ...
