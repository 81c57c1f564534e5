"""What a record is: the kinds of samples. Each says which files are of it, and what the bytes of a
file that is one record become."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.roles import Sample
from shardctl.images.codecs.backend import SNIFF_BYTES, is_image
from shardctl.images.defaults import KNOWN_SUFFIXES
from shardctl.sources.export_description import described
from shardctl.sources.files import begin_of
from shardctl.sources.format_table import FORMAT_NAMES, FRAME, TABLE_SUFFIXES, TEXT_SUFFIXES
from shardctl.sources.formats import RECORD_BYTES, Reading, ending_of, without_compression
from shardctl.sources.walk import COMPRESSED, FoundFile
from shardctl.system.text import format_bytes


class Form(IntEnum):
    """What a file is to a kind: nothing, one record, or many of them; its name does not say it
    (UNNAMED), or it cannot be read to see it (UNKNOWN)."""

    NOTHING = 0
    ONE = 1
    MANY = 2
    UNNAMED = 3
    UNKNOWN = 4


@dataclass(frozen=True)
class SampleKind:
    """A kind of sample.

    `named` says by the end of its name what a file is to the kind. If the name does not say it,
    `seen` looks at the file; with `of_exports`, only files of an export are looked at. Formats
    (sources/formats) read files of many records. `fields` makes the fields of a sample from the
    bytes and the path of a file that is one record, and raises Rejection (stages `read`, `decode`).
    `columns` are those that `fields` fills; None: one image, whose type is the recipe's.
    `takes_labels_files` says whether labels files beside the files are looked for.
    """

    name: str
    named: Callable[[str, Reading], Form]
    seen: Callable[[FoundFile, Reading], Form]
    fields: Callable[[bytes, str, Reading], Sample]
    columns: pa.Schema | None = None
    takes_labels_files: bool = True
    of_exports: bool = False

    def form(self, file: FoundFile, reading: Reading) -> Form:
        """Return what a file is to the kind."""
        named = self.named(file.suffix, reading)
        return self.seen(file, reading) if named is Form.UNNAMED else named


def _named_table(suffix: str, reading: Reading) -> Form:
    plain = without_compression(suffix)
    if plain in FORMAT_NAMES.get(reading.format, TABLE_SUFFIXES):
        return Form.MANY
    return Form.NOTHING if plain in TABLE_SUFFIXES | TEXT_SUFFIXES else Form.UNNAMED


def _seen_table(file: FoundFile, reading: Reading) -> Form:
    """Tell by other spellings of the name, or by how the file begins."""
    named = Form.NOTHING if file.fault else _named_table(ending_of(file.path, file.opened), reading)
    return Form.NOTHING if named is Form.UNNAMED else named


SIDE_FILES = frozenset(
    (
        ".txt,.text,.md,.csv,.tsv,.json,.jsonl,.ndjson,.xml,.html,.htm,.yaml,.yml,.toml,.ini,.py,.sh,.log,.pdf,.zip,.tar,.gz,.npy,.npz,.parquet,.arrow,.db,.mat,.pkl"
    ).split(",")
)
"""Names of files that are often beside images; they are not opened to check whether they are
images."""


_NAMED = frozenset((*KNOWN_SUFFIXES, *SIDE_FILES, *TABLE_SUFFIXES, *TEXT_SUFFIXES))


def is_unnamed(file: FoundFile) -> bool:
    """Return whether the name of a file does not say what it is: it is opened to see that."""
    return without_compression(file.suffix) not in _NAMED and file.fault is None


def _named_image(suffix: str, reading: Reading) -> Form:
    """Tell images; and tables, where images are in tables."""
    if reading.image is not None:
        return _named_table(suffix, reading)
    if suffix in KNOWN_SUFFIXES:
        return Form.MANY if reading.record == FRAME else Form.ONE
    no_image = suffix in SIDE_FILES or suffix.endswith(tuple(COMPRESSED))
    return Form.NOTHING if no_image else Form.UNNAMED


def _seen_image(file: FoundFile, reading: Reading) -> Form:
    """Tell by the first bytes."""
    if reading.image is not None:
        return _seen_table(file, reading)
    if file.fault:
        return Form.UNKNOWN
    try:
        if not is_image(begin_of(file.opened, SNIFF_BYTES)):
            return Form.NOTHING
    except OSError:
        return Form.UNKNOWN
    return Form.MANY if reading.record == FRAME else Form.ONE


def _fields_of_image(data: bytes, path: str, _: Reading) -> Sample:
    """Keep the bytes, with the path: the recipe says what becomes of them."""
    return {"image": {"bytes": data, "path": path}}


LINES = frozenset((".jsonl", ".ndjson"))


def _named_text(suffix: str, reading: Reading) -> Form:
    plain = without_compression(suffix)
    if plain in TEXT_SUFFIXES:
        return Form.ONE if reading.record == "file" else Form.MANY
    return Form.MANY if plain in LINES else Form.UNNAMED


def _seen_text(file: FoundFile, _: Reading) -> Form:
    """Tell by the export that a table is of."""
    is_table = file.fault is None and (
        without_compression(file.suffix) in TABLE_SUFFIXES
        or ending_of(file.path, file.opened) in TABLE_SUFFIXES
    )
    export = described(file.opened) if is_table else None
    return Form.MANY if export is not None and export.layout.kind == "text" else Form.NOTHING


def _fields_of_text(data: bytes, path: str, reading: Reading) -> Sample:
    """Decompress and decode the file."""
    from shardctl.sources.formats.content import (
        Truncated,
        compression_named,
        decompressed,
        refuse_other_content,
    )
    from shardctl.sources.formats.encodings import decode_text

    compression = compression_named(path)
    if compression is None:
        refuse_other_content(data[:16])
        return {"text": decode_text(data, reading.encoding)}
    plain = bytearray()
    try:
        for part in decompressed(io.BytesIO(data), compression):
            plain += part
            if len(plain) > RECORD_BYTES:
                raise too_large()
    except Truncated:
        raise Rejection(
            "read",
            "truncated",
            f"the compressed file ends early, after {len(plain)} bytes; fetch it again",
        ) from None
    return {"text": decode_text(bytes(plain), reading.encoding)}


def too_large() -> Rejection:
    """Return why a file is rejected that has more text than one record may have."""
    limit = format_bytes(RECORD_BYTES)
    return Rejection(
        "read",
        "too-large",
        f"the file has more than {limit} of text; --record line makes a record of each line",
    )


KINDS = {
    kind.name: kind
    for kind in (
        SampleKind("image", _named_image, _seen_image, _fields_of_image),
        SampleKind(
            "text",
            _named_text,
            _seen_text,
            _fields_of_text,
            pa.schema([("text", pa.string())]),
            of_exports=True,
        ),
        # a row of a table, or an object of JSON, with its columns as they are: no file is one
        SampleKind("table", _named_table, _seen_table, _fields_of_text, takes_labels_files=False),
    )
}
"""The kinds that `--kind` may name, in the order in which they are looked for. A file whose name
says nothing is an image if it begins like one. A `.txt` file is one sample with the field `text`; a
record of a JSONL file is one with the fields of its object."""
