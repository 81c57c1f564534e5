"""Megatron's indexed datasets: NAME.bin has the tokens, NAME.idx where each document is. As
megatron-core 0.16 reads them.

The index, little-endian: `MMIDIDX\\0\\0`, version 1 (8 bytes), code of the type (1 byte), the
number of sequences and that of documents + 1 (8 bytes each); the length of every sequence (int32),
its first byte in NAME.bin (int64), and the sequences at which documents begin, from 0 to the number
of all (int64). Here each document is one sequence.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from shardctl.errors import InputError
from shardctl.format.roles import Tokens
from shardctl.interop.exports.base import ExportPart, PartResult, Progress
from shardctl.interop.exports.source import Source
from shardctl.interop.exports.token_files import TokenExport
from shardctl.sources.export_description import Field
from shardctl.system.files import FileFacts, StreamedFile, naming_the_path, replacing

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
UINT16, INT32 = np.dtype("<u2"), np.dtype("<i4")
CODES = {UINT16: 8, INT32: 4}
"""The numbers of the types in the index. There is none for uint32."""

SMALL_VOCABULARY = 65_500
"""Megatron writes uint16 for a vocabulary below this, and int32 for any other, or for one that is
not known."""

LONGEST = 2**31 - 1
SPOOL_ITEMS = 1 << 17
"""Lengths of documents that are read back at a time."""


class Megatron(TokenExport):
    """A pair of files for each split."""

    name: ClassVar[str] = "megatron"

    def dtype(self, role: Tokens, shown: str) -> np.dtype[Any]:
        """Return uint16 for a small vocabulary, else int32."""
        return (
            UINT16 if role.vocabulary is not None and role.vocabulary < SMALL_VOCABULARY else INT32
        )

    def write(
        self,
        source: Source,
        fields: Sequence[Field],
        part: ExportPart,
        folder: Path,
        progress: Progress,
    ) -> PartResult:
        """Write SPLIT.bin and SPLIT.idx."""
        form = self.form(source)
        path, index = folder / f"{part.split}.bin", folder / f"{part.split}.idx"
        with _Lengths(folder) as lengths:
            facts, counts = form.write(path, source, part.split, progress, lengths.add)
            files = {path.name: facts, index.name: _write_index(index, lengths, form.dtype)}
        return PartResult(counts.documents, files, asdict(counts))


class _Lengths:
    """The lengths of documents, kept in a nameless file in `folder`: those of a billion documents
    take 4 GB."""

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
            raise InputError(
                f"a document has {lengths.max():,} tokens; Megatron's index holds {LONGEST:,} at "
                "most"
            )
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
    return sink.facts
