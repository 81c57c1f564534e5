"""A folder of files as people look at it: SPLIT/CLASS/NAME.jpg, or SPLIT/NAME.txt, and
SPLIT/metadata.jsonl.

Hugging Face datasets reads it as an ImageFolder. metadata.jsonl has a line for each sample, in
order: `file_name` is the path of its file below SPLIT, NAME_file_name that of another image, and
the other columns are in the form of python_values.py. The path of an image in the dataset is there as
NAME.path where it is not the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from shardctl.errors import InputError
from shardctl.format.names import Json, extension_part
from shardctl.format.python_values import dumps, to_json
from shardctl.interop.exports.base import (
    KEY,
    Column,
    ColumnEncoding,
    Done,
    Export,
    PartResult,
    Source,
    Work,
    check_json,
    file_form,
    path_below,
    refuse_missing,
    refuse_taken,
    suffix_of,
)
from shardctl.interop.exports.loose_files import (
    IMAGE_SUFFIXES,
    MARK,
    TEXT_SUFFIXES,
    NameSet,
    class_folders,
    folded,
    plain_stem,
    safe_name,
    writing,
)
from shardctl.sources.export_description import Field
from shardctl.system.files import FileFacts, replacing
from shardctl.system.text import counted, some

FILE_NAME = "file_name"
METADATA = "metadata.jsonl"
PATHS = ".path"


@dataclass(frozen=True)
class Files(Export):
    """A file for each image or text, and a line of JSON for each sample."""

    def check(self, source: Source) -> None:
        """Raise InputError if there is nothing to make files of."""
        main_file(source)

    def encoding_of(self, column: Column) -> ColumnEncoding | None:
        """Say how a column is written: images and the text as files, all else as JSON."""
        is_main = column.name == main_file(column.source)
        written = FILE_NAME if is_main else f"{column.target}_{FILE_NAME}"
        if column.is_image and column.has_own_paths:
            refuse_taken(column, {column.name + PATHS}, "the paths")
        if is_main and (column.is_image or column.is_raw_image):
            return ColumnEncoding(written, file_form(column))
        if (form := column.image_form()) is not None:
            return ColumnEncoding(written, form)
        if is_main:
            refuse_missing(column, column.nulls, "text")
            return ColumnEncoding(written, "text")
        check_json(column)
        return self.encoding_as_json(column)

    def write(self, work: Work) -> PartResult:
        """Write the files of a shard, and its lines of metadata as a piece."""
        naming, several = _Naming(work.source), _repeated(work.source, work.split)
        samples = renamed = 0
        piece = f"{work.split}/{METADATA}.{work.number:05d}"
        with replacing(work.piece(piece)) as lines, writing(work, work.split) as loose:
            for batch in work.batches(plain=True):
                columns = {field.name: batch.column(field.written) for field in work.fields}
                named = naming.names(columns.__getitem__)
                for row, ((stem, wanted), (files, others)) in enumerate(
                    zip(named, _records(batch, work.fields), strict=True), samples
                ):
                    if folded(stem) in several:
                        stem = f"{stem}{MARK}{MARK}{work.number}-{row}"
                    renamed += stem != wanted
                    paths = {}
                    for field, data in files:
                        suffix = "txt" if field.form == "text" else suffix_of(data)
                        other = (
                            "" if field.written == FILE_NAME else MARK + extension_part(field.name)
                        )
                        paths[field.written] = f"{stem}{other}.{suffix}"
                        loose.write(f"{work.split}/{paths[field.written]}", data)
                    lines.write(dumps({**paths, **others}).encode() + b"\n")
                samples += batch.num_rows
        pieces = {piece: lines.facts, **loose.piece}
        return PartResult(samples, {}, facts={"renamed": renamed}, pieces=pieces, loose=loose.found)

    def notes(self, source: Source) -> Iterator[str]:
        """Say which classes have folders of other names."""
        if renamed := _Naming(source).renamed():
            folders = counted(len(renamed), "class folder")
            yield f"{folders} of another name than the class: {some(renamed)}"

    def notes_of(self, done: Done) -> Iterator[str]:
        """Say how many files are not called as their keys are."""
        if renamed := sum(each.facts["renamed"] for _, each in done.parts):
            yield f"{counted(renamed, 'file')} with another name than the key, which {METADATA} has"

    def finish(self, done: Done) -> dict[str, FileFacts]:
        """Write SPLIT/metadata.jsonl: the pieces of all shards."""
        made: dict[str, FileFacts] = {}
        for split, of_split in done.of_splits():
            name = f"{split}/{METADATA}"
            if not any(each.samples for each in of_split):
                continue
            with replacing(path_below(done.folder, name)) as sink:
                for piece in done.pieces(of_split):
                    with open(piece, "rb") as lines:
                        while chunk := lines.read(1 << 20):
                            sink.write(chunk)
            made[name] = sink.facts
        return made


def main_file(source: Source) -> str:
    """Return the column of which each sample is a file: the image, or the text where there is none.
    Raises InputError."""
    image = source.exported.roles.main_image
    if image is not None:
        return image
    if "text" in source.names and pa.types.is_string(source.type_of("text")):
        return "text"
    raise InputError(
        f"{source.shown}: has no image and no text to make files of; export it to parquet"
    )


class _Naming:
    """Makes paths of files from keys and labels: CLASS/NAME, or NAME where there is no class.
    Several may be the same."""

    def __init__(self, source: Source) -> None:
        label = source.exported.roles.main_label
        self._classes = (
            source.exported.roles.names.get(label) if label is not None else None
        ) or ()
        self._label = label if self._classes else None
        self._folders = class_folders(self._classes)
        self._suffixes = TEXT_SUFFIXES if main_file(source) == "text" else IMAGE_SUFFIXES

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that `paths` needs."""
        return (KEY,) if self._label is None else (KEY, self._label)

    def renamed(self) -> list[str]:
        """Return the classes whose folders have other names, each with that."""
        pairs = zip(self._classes, self._folders, strict=True)
        return [f"{name} is in {folder}" for name, folder in pairs if folder != name]

    def names(self, column: Callable[[str], pa.Array]) -> list[tuple[str, str]]:
        """Return the path of each sample's file below its split, without a suffix, and the same if
        any name could be one."""
        keys = column(KEY).to_pylist()
        labels = [None] * len(keys) if self._label is None else column(self._label).to_pylist()
        return [self._name(key, label) for key, label in zip(keys, labels, strict=True)]

    def _name(self, key: str, label: int | None) -> tuple[str, str]:
        if label is None or not 0 <= label < len(self._folders):
            plain = plain_stem(key, None, self._suffixes)
            return safe_name(plain), plain
        folder, plain = self._folders[label], plain_stem(key, self._classes[label], self._suffixes)
        return f"{folder}/{safe_name(plain)}", f"{folder}/{plain}"


@lru_cache(maxsize=1)
def _repeated(source: Source, split: str) -> NameSet:
    """Return the paths, folded, that several samples of a split would have. All keys of the split
    are looked at, once."""
    naming = _Naming(source)
    return NameSet.repeated(
        path
        for block in source.columns(naming.columns, split)
        for path, _ in naming.names(block.column)
    )


def _records(
    batch: pa.RecordBatch, fields: Sequence[Field]
) -> Iterator[tuple[list[tuple[Field, bytes]], Json]]:
    """Yield the samples of a batch: the files of each as pairs of field and bytes, and all else for
    its line of metadata."""
    columns = list(zip(fields, batch.columns, strict=True))
    keys = next(column for field, column in columns if field.name == KEY).to_pylist()
    values = {field.written: to_json(column) for field, column in columns if field.form == "json"}
    texts = [(field, column.to_pylist()) for field, column in columns if field.form == "text"]
    images = [each for each in columns if each[0].form not in ("json", "text")]
    for row, key in enumerate(keys):
        files = [(field, text[row].encode()) for field, text in texts]
        record: Json = {}
        for field, column in images:
            image = column[row].as_py()
            if image is None or image["bytes"] is None:
                record[field.written] = None
            else:
                files.append((field, image["bytes"]))
            if field.form == "image" and image is not None and image["path"] != key:
                record[field.name + PATHS] = image["path"]
        yield files, {**record, **{name: column[row] for name, column in values.items()}}
