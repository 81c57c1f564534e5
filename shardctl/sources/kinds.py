"""What a record is: the kinds of samples. Each says which files are of it, and what the bytes of a
file that is one record become."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

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


class Form(Enum):
    """What a file is to a kind: one record, many of them, or nothing; or it cannot be read to see
    which."""

    ONE = "one record"
    MANY = "many records"
    NOTHING = "nothing"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class SampleKind:
    """A kind of sample. `form` says what a file is to it. Files of many records are read by their
    formats (sources/formats); `fields` turns the bytes of a file that is one record, and its path,
    into fields of a sample, and raises Rejection (stages `read`, `decode`).

    `columns` are those that `fields` fills; None: one image, whose type is the recipe's.
    `takes_labels_files` says whether labels files beside the files are looked for.
    """

    name: str
    form: Callable[[FoundFile, Reading], Form]
    fields: Callable[[bytes, str, Reading], Sample]
    columns: pa.Schema | None = None
    takes_labels_files: bool = True


def _form_of_table(file: FoundFile, reading: Reading) -> Form:
    """Tell by the name, or by how the file begins where the name says nothing."""
    ending = file.suffix if file.fault else ending_of(file.path, file.opened)
    wanted = FORMAT_NAMES.get(reading.format, TABLE_SUFFIXES)
    return Form.MANY if without_compression(ending) in wanted else Form.NOTHING


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
    return (
        file.suffix not in _NAMED
        and without_compression(file.suffix) not in _NAMED
        and file.fault is None
    )


def _form_of_image(file: FoundFile, reading: Reading) -> Form:
    """Tell by the name, or by the first bytes where the name says nothing. Tables, where images
    are in tables."""
    if reading.image is not None:
        return _form_of_table(file, reading)
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


def _fields_of_image(data: bytes, path: str, _: Reading) -> Sample:
    """Keep the bytes, with the path: the recipe says what becomes of them."""
    return {"image": {"bytes": data, "path": path}}


LINES = frozenset((".jsonl", ".ndjson"))


def _form_of_text(file: FoundFile, reading: Reading) -> Form:
    """Tell by the name, or by the export that a file is of."""
    plain = without_compression(file.suffix)
    if plain in TEXT_SUFFIXES:
        return Form.ONE if reading.record == "file" else Form.MANY
    if plain in LINES:
        return Form.MANY
    is_table = file.fault is None and (
        plain in TABLE_SUFFIXES or ending_of(file.path, file.opened) in TABLE_SUFFIXES
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
        SampleKind("image", _form_of_image, _fields_of_image),
        SampleKind("text", _form_of_text, _fields_of_text, pa.schema([("text", pa.string())])),
        # a row of a table, or an object of JSON, with its columns as they are: no file is one
        SampleKind("table", _form_of_table, _fields_of_text, takes_labels_files=False),
    )
}
"""The kinds that `--kind` may name, in the order in which they are looked for. A file whose name
says nothing is an image if it begins like one. A `.txt` file is one sample with the field `text`; a
record of a JSONL file is one with the fields of its object."""
