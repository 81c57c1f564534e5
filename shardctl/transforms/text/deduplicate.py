"""Drops texts, lines or paragraphs that are the same as others. Which these are was found before
the work was divided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError, Rejection
from shardctl.format.names import DUPLICATES, FILES
from shardctl.format.roles import Role
from shardctl.format.tables import REPAIR_ADVICE, open_table
from shardctl.system.folders import LocalFolder
from shardctl.system.options import Number, Word, setting
from shardctl.system.text import printable
from shardctl.transforms.base import BatchRun, BatchTransform, NothingHeld, Records, RejectRow
from shardctl.transforms.duplicates.pieces import (
    DOCUMENT,
    LINE,
    PARAGRAPH,
    pieces_of,
    without_pieces,
)
from shardctl.transforms.duplicates.rule import LEAST_SIMILARITY, SIMILARITY, DuplicateRule
from shardctl.transforms.duplicates.table import Dropped, DuplicatesTable
from shardctl.transforms.settings import SettingError
from shardctl.transforms.text.base import require_text, texts_of, with_texts

EXACT, NEAR = "exact", "near"


@dataclass(frozen=True)
class Deduplicate(BatchTransform):
    """Rejects texts that are the same as others, or nearly; or drops the lines or paragraphs that
    are the same as others."""

    name: ClassVar[str] = "deduplicate"
    unit: str = setting(
        Word(DOCUMENT, LINE, PARAGRAPH),
        DOCUMENT,
        "What is compared: document, line or paragraph.",
    )
    method: str = setting(
        Word(EXACT, NEAR),
        EXACT,
        "exact: the same text; near: documents with nearly the same words.",
    )
    threshold: float = setting(
        Number(LEAST_SIMILARITY, 1),
        SIMILARITY,
        "For near: documents are alike if this share of their 5-word sequences is the same, or "
        "more.",
    )

    def __post_init__(self) -> None:
        if self.method == NEAR and self.unit != DOCUMENT:
            raise SettingError(
                f"near compares documents, and a {self.unit} is compared by its exact text",
                "method",
            )

    @classmethod
    def of_rule(cls, rule: DuplicateRule) -> Deduplicate:
        """Return the step that does what a rule for texts says."""
        if rule.mode == NEAR:
            return cls(DOCUMENT, NEAR, rule.threshold)
        return cls(DOCUMENT if rule.mode == EXACT else rule.mode)

    @property
    def table(self) -> str:
        """The name of the file that says what is dropped."""
        return f"{DUPLICATES}{self.unit}.arrow"

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the same columns."""
        require_text(given, self.name)
        return given

    def begin(self, folder: Path, roles: Mapping[str, Role]) -> BatchRun:
        """Return what drops the duplicates of one batch after the other. Raises DatasetError if it
        is not known which."""
        table, paths = (
            DuplicatesTable(folder / self.table),
            open_table(LocalFolder(folder), FILES, columns=["path"])["path"],
        )
        return (
            _Documents(table, paths, self.method)
            if self.unit == DOCUMENT
            else _Pieces(table, self.unit)
        )


class _Documents(NothingHeld):
    """Rejects documents."""

    def __init__(self, table: DuplicatesTable, paths: pa.ChunkedArray, method: str) -> None:
        self._table, self._paths, self._method = table, paths, method

    def apply(self, records: Records, reject: RejectRow) -> Iterable[Records]:
        """Return the records that are kept."""
        dropped = self._table.of(records.file, records.numbers)
        kept = np.ones(len(records.numbers), bool)
        kept[dropped.row] = False
        if len(dropped.row) and not (
            dropped.kept_file.min() >= 0 and dropped.kept_file.max() < len(self._paths)
        ):
            raise DatasetError(
                f"{DUPLICATES}{DOCUMENT}.arrow: contradicts {FILES}; {REPAIR_ADVICE}"
            )
        for number, row in enumerate(dropped.row.tolist()):
            reject(row, self._rejection(dropped, number))
        return (records.kept(kept),)

    def _rejection(self, dropped: Dropped, number: int) -> Rejection:
        path, record = (
            self._paths[int(dropped.kept_file[number])].as_py(),
            int(dropped.kept_record[number]),
        )
        key = printable(f"{path}#{record}" if record else path)
        if self._method == EXACT:
            return Rejection("filter", "duplicate", f"has the same text as {key}, which is kept")
        alike = f"their similarity is {dropped.similarity[number]:.2f}"
        return Rejection(
            "filter",
            "near-duplicate",
            f"has nearly the same text as {key}, which is kept ({alike})",
        )


class _Pieces(NothingHeld):
    """Drops lines or paragraphs."""

    def __init__(self, table: DuplicatesTable, unit: str) -> None:
        self._table, self._unit = table, unit
        self._pieces = self._bytes = 0

    def apply(self, records: Records, reject: RejectRow) -> Iterable[Records]:
        """Return the records without the pieces that are dropped. One that has no other piece is
        rejected."""
        found = self._table.of(records.file, records.numbers)
        if not len(found.row):
            return (records,)
        before = texts_of(records)
        pieces = pieces_of(before, self._unit)
        counts = np.bincount(pieces.row, minlength=len(before))
        if not ((found.piece >= 0) & (found.piece < counts[found.row])).all():
            raise DatasetError(
                f"{DUPLICATES}{self._unit}.arrow: contradicts the texts; {REPAIR_ADVICE}"
            )
        dropped = np.zeros(len(pieces), bool)
        dropped[np.searchsorted(pieces.row, found.row) + found.piece] = True
        after = without_pieces(before, pieces, dropped)
        empty = (counts > 0) & (np.bincount(pieces.row[dropped], minlength=len(before)) == counts)
        for row in np.flatnonzero(empty).tolist():
            reject(
                row,
                Rejection(
                    "filter", "duplicate", f"all its {self._unit}s are in texts before it too"
                ),
            )
        self._pieces += int(dropped.sum())
        self._bytes += int(pieces.sizes[dropped].sum())
        return (with_texts(records, after).kept(~empty),)

    def counts(self) -> dict[str, int]:
        """Return how many pieces were dropped, and the bytes of them."""
        return {"pieces_dropped": self._pieces, "bytes_dropped": self._bytes}
