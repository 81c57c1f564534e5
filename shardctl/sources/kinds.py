"""What a record is: the kinds of samples. Each says which files are of it, and what the bytes of a
file that is one record become."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from enum import Enum
from typing import ClassVar

import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.roles import Sample
from shardctl.images.codecs.backend import SNIFF_BYTES, is_image
from shardctl.images.defaults import OTHER_SUFFIXES, SUFFIXES
from shardctl.sources.export_description import described
from shardctl.sources.files import begin_of
from shardctl.sources.format_table import FORMAT_NAMES, FRAME, TABLE_SUFFIXES, TEXT_SUFFIXES
from shardctl.sources.formats import RECORD_BYTES, Reading, ending_of, without_compression
from shardctl.sources.walk import COMPRESSED, FoundFile
from shardctl.system.text import format_bytes


class Form(Enum):
    """What a file is to a kind: one record, many of them, or nothing; or it cannot be read to see
    which."""

    ONE = "one record"
    MANY = "many records"
    NOTHING = "nothing"
    UNKNOWN = "unknown"


class SampleKind(ABC):
    """A kind of sample. Files of many records are read by their formats (sources/formats); the
    others by `fields`."""

    name: ClassVar[str]
    columns: ClassVar[pa.Schema | None] = None
    """Those that `fields` fills; None: one image, whose type is the recipe's."""

    has_sidecars: ClassVar[bool] = True
    """Whether labels files beside the files are looked for."""

    @abstractmethod
    def form(self, file: FoundFile, reading: Reading) -> Form:
        """Return what a file is to this kind."""

    def fields(self, data: bytes, path: str, reading: Reading) -> Sample:
        """Turn the bytes of a file that is one record into fields of a sample. Raises Rejection
        (stages `read`, `decode`)."""
        raise NotImplementedError


class TableKind(SampleKind):
    """A record is a row of a table, or an object of JSON, with its columns as they are."""

    name = "table"
    has_sidecars = False

    def form(self, file: FoundFile, reading: Reading) -> Form:
        """Tell by the name, or by how the file begins where the name says nothing."""
        ending = file.suffix if file.fault else ending_of(file.path, file.opened)
        wanted = FORMAT_NAMES.get(reading.format, TABLE_SUFFIXES)
        return Form.MANY if without_compression(ending) in wanted else Form.NOTHING


SIDE_FILES = frozenset(
    (
        ".txt,.text,.md,.csv,.tsv,.json,.jsonl,.ndjson,.xml,.html,.htm,.yaml,.yml,.toml,.ini,"
        ".py,.sh,.log,.pdf,.zip,.tar,.gz,.npy,.npz,.parquet,.arrow,.db,.mat,.pkl"
    ).split(",")
)
"""Names of files that are often beside images; they are not opened to check whether they are
images."""


KNOWN_SUFFIXES = SUFFIXES | OTHER_SUFFIXES


_NAMED = frozenset((*KNOWN_SUFFIXES, *SIDE_FILES, *TABLE_SUFFIXES, *TEXT_SUFFIXES))


def is_unnamed(file: FoundFile) -> bool:
    """Return whether the name of a file does not say what it is: it is opened to see that."""
    return (
        file.suffix not in _NAMED
        and without_compression(file.suffix) not in _NAMED
        and file.fault is None
    )


class ImageKind(SampleKind):
    """One image per file, or per record of a table. A file whose name says nothing is an image if
    it begins like one."""

    name = "image"

    def form(self, file: FoundFile, reading: Reading) -> Form:
        """Tell by the name, or by the first bytes where the name says nothing. Tables, where images
        are in tables."""
        if reading.image is not None:
            return TableKind().form(file, reading)
        suffix = file.suffix
        one = Form.MANY if reading.record == FRAME else Form.ONE
        if suffix in KNOWN_SUFFIXES:
            return one
        if suffix in SIDE_FILES or suffix.endswith(tuple(COMPRESSED)):
            return Form.NOTHING
        if file.fault:
            return Form.UNKNOWN
        try:
            return one if is_image(begin_of(file.opened, SNIFF_BYTES)) else Form.NOTHING
        except OSError:
            return Form.UNKNOWN

    def fields(self, data: bytes, path: str, reading: Reading) -> Sample:
        """Keep the bytes, with the path: the recipe says what becomes of them."""
        return {"image": {"bytes": data, "path": path}}


LINES = frozenset((".jsonl", ".ndjson"))
_COMPRESSED = tuple(COMPRESSED)


class TextKind(SampleKind):
    """A `.txt` file is one sample with the field `text`; a record of a JSONL file is one with the
    fields of its object."""

    name = "text"
    columns = pa.schema([("text", pa.string())])

    def form(self, file: FoundFile, reading: Reading) -> Form:
        """Tell by the name."""
        plain = without_compression(file.suffix)
        if plain in TEXT_SUFFIXES:
            return Form.ONE if reading.record == "file" else Form.MANY
        return Form.MANY if plain in LINES or _has_exported_texts(file, plain) else Form.NOTHING

    def fields(self, data: bytes, path: str, reading: Reading) -> Sample:
        """Decompress and decode the file."""
        from shardctl.sources.formats.content import refuse_other_content
        from shardctl.sources.formats.encodings import decode_text

        if path.lower().endswith(_COMPRESSED):
            data = _decompressed(data, path.lower().rpartition(".")[2])
        else:
            refuse_other_content(data[:16])
        return {"text": decode_text(data, reading.encoding)}


def _has_exported_texts(file: FoundFile, plain: str) -> bool:
    """Return whether a file is of an export of a dataset of texts."""
    if file.fault is not None or (
        plain not in TABLE_SUFFIXES and ending_of(file.path, file.opened) not in TABLE_SUFFIXES
    ):
        return False
    export = described(file.opened)
    return export is not None and export.layout.kind == TextKind.name


def too_large() -> Rejection:
    """Return why a file is rejected that has more text than one record may have."""
    limit = format_bytes(RECORD_BYTES)
    return Rejection(
        "read",
        "too-large",
        f"the file has more than {limit} of text; --record line makes a record of each line",
    )


def _decompressed(data: bytes, compression: str) -> bytes:
    from shardctl.sources.formats.content import Truncated, decompressed

    parts, size = [], 0
    try:
        for part in decompressed(io.BytesIO(data), compression):
            parts.append(part)
            size += len(part)
            if size > RECORD_BYTES:
                raise too_large()
    except Truncated:
        raise Rejection(
            "read",
            "truncated",
            f"the compressed file ends early, after {size} bytes; fetch it again",
        ) from None
    return b"".join(parts)


KINDS: dict[str, SampleKind] = {kind.name: kind for kind in (ImageKind(), TextKind(), TableKind())}
"""The kinds that `--kind` may name, in the order in which they are looked for."""
