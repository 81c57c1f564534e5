"""Megatron's indexed datasets: NAME.bin has the tokens, NAME.idx where each document is. As megatron-core 0.16 reads them.

The index, little-endian: `MMIDIDX\\0\\0`, version 1 (8 bytes), code of the type (1 byte), the number of sequences and that of
documents + 1 (8 bytes each); the length of every sequence (int32), its first byte in NAME.bin (int64), and the sequences at
which documents begin, from 0 to the number of all (int64). Here each document is one sequence.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from shardctl.arguments import truth
from shardctl.errors import InputError
from shardctl.exports.base import Column, Export, Part, Place, Progress, Written, parts_by_split, refuse_choices
from shardctl.exports.documents import TokenField
from shardctl.exports.source import Source
from shardctl.exports.token_files import TokenForm, end_of, notes_on
from shardctl.sources.exported import Field, FileFacts
from shardctl.storage import StreamedFile, naming_the_path, replacing

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
UINT16, INT32 = np.dtype("<u2"), np.dtype("<i4")
CODES = {UINT16: 8, INT32: 4}
"""The numbers of the types in the index. There is none for uint32."""

SMALL_VOCABULARY = 65_500
"""Megatron writes uint16 for a vocabulary below this, and int32 for any other, or for one that is not known."""

LONGEST = 2**31 - 1
SPOOL_ITEMS = 1 << 17
"""Lengths of documents that are read back at a time."""


@dataclass(frozen=True)
class Megatron(Export):
    """A pair of files for each split. With `eos`, the end-of-text token is put behind each document that lacks it."""

    eos: bool = True
    name: ClassVar[str] = "megatron"

    def check(self, source: Source) -> None:
        """Raise InputError or UsageError if there are no tokens, or no token that ends them."""
        refuse_choices(source, self.name)
        self._form(source)

    def place(self, column: Column) -> Place | None:
        """Say how a column is written: the files have the tokens of all columns, and none as it is."""
        return None

    def parts(self, source: Source) -> Sequence[Part]:
        """Return what is written at a time: every split, since a document may begin in one shard and end in another."""
        return parts_by_split(source)

    def facts(self, source: Source) -> dict[str, Any]:
        """Return what a reader of the files needs to know of the tokens."""
        return self._form(source).facts

    def notes(self, source: Source) -> tuple[str, ...]:
        """Return what is lost in such files."""
        return notes_on(source)

    def _form(self, source: Source) -> TokenForm:
        wanted = truth("eos", self.eos)
        field = TokenField.of(source)
        vocabulary = field.role.vocabulary
        is_small = vocabulary is not None and vocabulary < SMALL_VOCABULARY
        return TokenForm(field, end_of(field, wanted, source.shown), UINT16 if is_small else INT32)

    def write(self, source: Source, fields: Sequence[Field], part: Part, folder: Path, progress: Progress) -> Written:
        """Write SPLIT.bin and SPLIT.idx."""
        form = self._form(source)
        path, index = folder / f"{part.split}.bin", folder / f"{part.split}.idx"
        with _Lengths(folder) as lengths:
            facts, counts = form.write(path, source, part.split, progress, lengths.add)
            files = {path.name: facts, index.name: _write_index(index, lengths, form.dtype)}
        return Written(counts.documents, files, asdict(counts))


class _Lengths:
    """The lengths of documents, kept in a nameless file in `folder`: those of a billion documents take 4 GB."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.count = 0

    def __enter__(self) -> _Lengths:
        with naming_the_path(self._folder):
            self._file = tempfile.TemporaryFile(dir=self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, lengths: npt.NDArray[np.int64]) -> None:
        """Add the lengths of some documents. Raises InputError for one that is too long."""
        if len(lengths) and lengths.max() > LONGEST:
            raise InputError(f"a document has {lengths.max():,} tokens; Megatron's index holds {LONGEST:,} at most")
        with naming_the_path(self._folder):
            self._file.write(lengths.astype("<i4").data)
        self.count += len(lengths)

    def chunks(self) -> Iterator[npt.NDArray[np.int32]]:
        """Yield all lengths in order, some at a time."""
        with naming_the_path(self._folder):
            self._file.seek(0)
            while data := self._file.read(SPOOL_ITEMS * INT32.itemsize):
                yield np.frombuffer(data, INT32)


def _write_index(path: Path, lengths: _Lengths, dtype: np.dtype[np.generic]) -> FileFacts:
    """Write the index."""
    count = lengths.count
    with replacing(path, StreamedFile) as sink:
        sink.write(MAGIC + struct.pack("<QBQQ", VERSION, CODES[dtype], count, count + 1))
        for chunk in lengths.chunks():
            sink.write(chunk)
        place = 0
        for chunk in lengths.chunks():
            ends = place + np.cumsum(chunk, dtype="<i8") * dtype.itemsize
            sink.write(ends - chunk * np.int64(dtype.itemsize))
            place = int(ends[-1])
        for first in range(0, count + 1, SPOOL_ITEMS):
            sink.write(np.arange(first, min(first + SPOOL_ITEMS, count + 1), dtype="<i8"))
    return FileFacts(sink.tell(), sink.sha256)
