"""WebDataset: a tar archive for each shard, with the members of a sample one behind the other and
under the same name.

A sample is KEY.jpg (the image; its suffix is that of its bytes), KEY.cls (the label, a number),
KEY.txt (the text), KEY.NAME.png (other images), KEY.NAME.npy (lists of numbers of one length),
KEY.NAME.bin (bytes), and KEY.json, an object with all other columns in the form of python_values.py.
Columns that lack a value somewhere are there too: readers infer types from the first samples. Under
the name that an image has in the target there is {"path": …} if its path was not the key, and null
if there is no image. KEY is the key with its dots escaped (keys.py), since readers split a name at
the first one.
"""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.format.arrays import is_binary
from shardctl.format.names import distinct_name, extension_part, member_key
from shardctl.format.python_values import dumps, to_json
from shardctl.interop.exports.base import (
    COMPRESSED,
    KEY,
    Column,
    ColumnEncoding,
    Export,
    PartResult,
    Source,
    Work,
    arrays_of,
    check_json,
    compressing,
    is_packed,
    suffix_of,
)
from shardctl.interop.exports.loose_files import IMAGE_SUFFIXES
from shardctl.sources.export_description import Field
from shardctl.system.files import StreamedFile, replacing

IN_JSON = "json/"
"""What the written name of a column begins with that is in KEY.json."""

MAIN, OTHERS = "*", ".*"
"""The written name of the main image, whose suffix is that of its bytes, and what those of other
images end with."""

IN_OBJECT = "images"
"""The name in shardctl.json under which images have their names in KEY.json, where these are not
those of their columns."""

TEXTS = ("text", "txt")
"""The column of the first of these names, as they are in the target, becomes KEY.txt."""


@dataclass(frozen=True)
class WebDataset(Export):
    """A .tar for each shard, or a .tar.gz. They are read by webdataset, Hugging Face datasets and
    tar."""

    compression: str = "none"

    def encoding_of(self, column: Column) -> ColumnEncoding | None:
        """Say which member a column becomes, or that it is in the JSON object. Nothing is lost."""
        part = extension_part(column.target)
        if column.name == KEY:
            return ColumnEncoding("__key__", "key")
        if (form := column.image_form()) is not None:
            is_main = column.name == column.source.exported.roles.main_image
            return ColumnEncoding(MAIN if is_main else part + OTHERS, form)
        if _is_image_member(column, part):
            return ColumnEncoding(column.target)
        member = _member(column, part)
        if (
            member is not None
            and not column.nulls
            and not (is_packed(column.type) and column.has_gaps)
        ):
            return ColumnEncoding(member)
        check_json(column)
        return self.encoding_as_json(column)

    def encoding_as_json(self, column: Column) -> ColumnEncoding:
        """Say under which name a column is in the JSON object."""
        return ColumnEncoding(IN_JSON + column.target, "json")

    def write(self, work: Work) -> PartResult:
        """Write one archive; none if no sample was chosen of the shard."""
        name = f"{work.name}.tar{COMPRESSED[self.compression]}"
        path, samples, size, seen = work.folder / name, 0, 0, Counter[str]()
        with replacing(path, StreamedFile) as sink, compressing(sink, path) as stream:
            for batch in work.batches(plain=True):
                for own, files in _samples(work.source, batch, work.fields):
                    key = distinct_name(member_key(own), seen)
                    for extension, data in files:
                        size += stream.write(member(f"{key}.{extension}", data))
                samples += batch.num_rows
            # two empty blocks, and more up to the size that tar reads at once
            size += 2 * tarfile.BLOCKSIZE
            stream.write(bytes(2 * tarfile.BLOCKSIZE + -size % tarfile.RECORDSIZE))
        return PartResult(samples, {name: sink.facts} if samples else {})

    def facts(self, source: Source) -> dict[str, Any]:
        """Say how images are called in KEY.json: as their columns in the target, so that no other
        column has their name."""
        names = {name: source.written_names[name] for name in source.exported.roles.images}
        other = {name: written for name, written in names.items() if written != name}
        return {IN_OBJECT: other} if other else {}


def _is_image_member(column: Column, part: str) -> bool:
    """Return whether a column of bytes is a member as a tar had it, such as left.png: its samples
    had several images."""
    stem, _, suffix = column.target.rpartition(".")
    plain = (
        stem not in column.source.written_names.values()
        and part.replace("%2e", ".") == column.target
    )
    return is_binary(column.type) and bool(stem) and suffix in IMAGE_SUFFIXES and plain


def _member(column: Column, part: str) -> str | None:
    """Return the extension of the member that a column could be on its own, None if it goes into
    the JSON object."""
    if column.name == column.source.exported.roles.main_label and pa.types.is_integer(column.type):
        return "cls"
    targets = column.source.written_names.values()
    if column.target == next(
        (name for name in TEXTS if name in targets), None
    ) and pa.types.is_string(column.type):
        return "txt"
    if is_packed(column.type):
        return f"{part}.npy"
    return f"{part}.bin" if is_binary(column.type) else None


def _samples(
    source: Source, batch: pa.RecordBatch, fields: Sequence[Field]
) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Yield the key of each sample of a batch, and its members as pairs of extension and bytes."""
    keys = batch.column("__key__").to_pylist()
    columns = list(zip(fields, batch.columns, strict=True))
    makers = [
        _MAKERS.get("image" if field.form != "value" else field.written.rpartition(".")[2], _bytes)(
            column, field.written
        )
        for field, column in columns
        if field.written != "__key__" and not field.written.startswith(IN_JSON)
    ]
    objects: dict[str, list[Any]] = {
        field.written.removeprefix(IN_JSON): to_json(column)
        for field, column in columns
        if field.written.startswith(IN_JSON)
    }
    pictures = [
        (
            source.written_names[field.name],
            column.is_valid().to_pylist(),
            column.field("path").to_pylist(),
        )
        for field, column in columns
        if field.form == "image"
    ]
    for row, key in enumerate(keys):
        files = [member for maker in makers if (member := maker(row)) is not None]
        values = {name: column[row] for name, column in objects.items()}
        for name, valid, path in pictures:
            if not valid[row]:
                values[name] = None
            elif path[row] != key:  # it is the key more often than not
                values[name] = {"path": path[row]}
        if values or not files:
            files.append(("json", dumps(values).encode()))
        yield key, files


Maker = Callable[[int], "tuple[str, bytes] | None"]
"""Returns the member of a row: its extension and its bytes, None if there is none."""


def _images(array: pa.Array, written: str) -> Maker:
    stem = written.removesuffix("*")
    encoded = array.field("bytes")
    valid = array.is_valid().to_pylist()

    def member(row: int) -> tuple[str, bytes] | None:
        data = encoded[row].as_py()
        if data is None or not valid[row]:
            return None
        return stem + suffix_of(data), data

    return member


def _texts(array: pa.Array, written: str) -> Maker:
    values = array.to_pylist()
    return lambda row: (written, str(values[row]).encode())


def _bytes(array: pa.Array, written: str) -> Maker:
    return lambda row: (written, array[row].as_py()) if array[row].is_valid else None


def _arrays(array: pa.Array, written: str) -> Maker:
    rows = arrays_of(array)

    def member(row: int) -> tuple[str, bytes]:
        target = io.BytesIO()
        np.lib.format.write_array(target, rows[row], allow_pickle=False)
        return written, target.getvalue()

    return member


_MAKERS: dict[str, Callable[[pa.Array, str], Maker]] = {
    "image": _images,
    "cls": _texts,
    "txt": _texts,
    "npy": _arrays,
}


_NAME, _SIZE, _SUM = slice(0, 100), slice(124, 136), slice(148, 156)
"""Where a header has the name of its member, the size of it, and the sum of its own bytes."""

_LARGE = 8**11
"""Bytes of a member from which on its size is written in another way."""

_BARE = tarfile.TarInfo("").tobuf(tarfile.GNU_FORMAT)
"""The header of a member without a name and without data: owned by root, from 1970, for its owner
to write and all to read."""


def member(name: str, data: bytes) -> bytes:
    """Return a member with its header and the rest of its last block. All that is not in its name
    and its data is the same for every member."""
    return b"".join([member_header(name, len(data)), data, bytes(-len(data) % tarfile.BLOCKSIZE)])


def member_header(name: str, size: int) -> bytes:
    """Return the header of a member in GNU's format: the bytes that tarfile makes, in a sixth of
    the time where the name is short."""
    encoded = name.encode()
    if len(encoded) > _NAME.stop or size >= _LARGE:
        info = tarfile.TarInfo(name)
        info.size = size
        return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")
    header = bytearray(_BARE)
    header[: len(encoded)] = encoded
    header[_SIZE] = b"%011o\0" % size
    header[_SUM] = b" " * 8
    header[_SUM] = b"%06o\0 " % sum(header)
    return bytes(header)
