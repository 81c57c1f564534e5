"""Drops texts, lines or paragraphs that are the same as others. Which these are was found before
the work was divided."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError, Rejection
from shardctl.format.names import DUPLICATES, FILES
from shardctl.format.roles import Role
from shardctl.format.tables import REPAIR_ADVICE, open_table
from shardctl.system.folders import LocalFolder
from shardctl.system.options import Number, Word, setting
from shardctl.system.text import printable
from shardctl.transforms.base import (
    BatchRun,
    BatchTransform,
    Counts,
    Fault,
    Records,
    RejectRow,
)
from shardctl.transforms.duplicates.exact import DuplicatesTable
from shardctl.transforms.duplicates.pieces import (
    DOCUMENT,
    LINE,
    PARAGRAPH,
    pieces_of,
    without_pieces,
)
from shardctl.transforms.duplicates.rule import LEAST_SIMILARITY, SIMILARITY, DuplicateRule
from shardctl.transforms.settings import SettingError
from shardctl.transforms.text.base import require_text, texts_of, with_texts

EXACT, NEAR = "exact", "near"


class Deduplicate(BatchTransform, step="deduplicate"):
    """Rejects texts that are the same as others, or nearly; or drops the lines or paragraphs that
    are the same as others."""

    compares_texts = True

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
        "For near: documents with this share of equal 5-word sequences are alike.",
    )

    def __post_init__(self) -> None:
        if self.method == NEAR and self.unit != DOCUMENT:
            raise SettingError(
                f"near compares documents, and a {self.unit} by its exact text",
                "method",
            )

    @classmethod
    def of_rule(cls, rule: DuplicateRule) -> Deduplicate:
        """Return the step that does what a rule for texts says."""
        if rule.mode == NEAR:
            return cls(method=NEAR, threshold=rule.threshold)
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
        table = DuplicatesTable(LocalFolder(folder), self.table)
        if self.unit != DOCUMENT:
            return BatchRun(partial(self._drop_pieces, table), "pieces_dropped", "bytes_dropped")
        paths = open_table(LocalFolder(folder), FILES, columns=["path"])["path"]
        return BatchRun(
            lambda records, reject, _: (
                records.without(self._documents(table, paths, records), reject),
            )
        )

    def _documents(
        self, table: DuplicatesTable, paths: pa.ChunkedArray, records: Records
    ) -> Iterator[Fault]:
        rows, _, files, kept_records, similarity = table.of(records.file, records.numbers)
        if len(files) and not (files.min() >= 0 and files.max() < len(paths)):
            raise DatasetError(f"{self.table}: contradicts {FILES}; {REPAIR_ADVICE}")
        for number, row in enumerate(rows.tolist()):
            path, record = paths[int(files[number])].as_py(), int(kept_records[number])
            key = printable(f"{path}#{record}" if record else path)
            kind, why = "duplicate", f"has the same text as {key}, which is kept"
            if self.method == NEAR:
                alike = f"their similarity is {similarity[number]:.2f}"
                why = f"has nearly the same text as {key}, which is kept ({alike})"
                kind = "near-duplicate"
            yield row, Rejection("filter", kind, why)

    def _drop_pieces(
        self, table: DuplicatesTable, records: Records, reject: RejectRow, counts: Counts
    ) -> Iterable[Records]:
        """Return the records without the lines or paragraphs that are dropped. One that has no
        other is rejected."""
        rows, numbers, *_ = table.of(records.file, records.numbers)
        if not len(rows):
            return (records,)
        before = texts_of(records)
        pieces = pieces_of(before, self.unit)
        of_row = np.bincount(pieces.row, minlength=len(before))
        if not ((numbers >= 0) & (numbers < of_row[rows])).all():
            raise DatasetError(f"{self.table}: contradicts the texts; {REPAIR_ADVICE}")
        dropped = np.zeros(len(pieces), bool)
        dropped[np.searchsorted(pieces.row, rows) + numbers] = True
        after = without_pieces(before, pieces, dropped)
        empty = (of_row > 0) & (np.bincount(pieces.row[dropped], minlength=len(before)) == of_row)
        why = Rejection("filter", "duplicate", f"all its {self.unit}s are in texts before it too")
        counts["pieces_dropped"] += int(dropped.sum())
        counts["bytes_dropped"] += int(pieces.sizes[dropped].sum())
        faults = ((row, why) for row in np.flatnonzero(empty).tolist())
        return (with_texts(records, after).without(faults, reject),)
