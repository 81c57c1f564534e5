"""What training on tokens needs beside them: computed from the tokens and from the lengths of the
documents in each block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from shardctl.errors import DatasetError, UsageError
from shardctl.format.arrays import Array, DType, Numbers, Shape, edges_of
from shardctl.format.shard import VERIFY_ADVICE
from shardctl.format.token_columns import DOCUMENT_LENGTHS, LOSS_MASK
from shardctl.loader.blocks.column import Column, Lists, Spec, numbers_of
from shardctl.loader.blocks.gather import Located, gather
from shardctl.loader.blocks.locate import BlockSources
from shardctl.loader.blocks.memory import Batch
from shardctl.loader.blocks.shards import Shards
from shardctl.system.text import unknown

LABELS, POSITION_IDS, DOCUMENT_IDS, CU_SEQLENS = DERIVED = (
    "labels",
    "position_ids",
    "document_ids",
    "cu_seqlens",
)
"""The fields that a loader can derive."""

MAX_SEQLEN = "max_seqlen"
"""The field that comes with cu_seqlens."""

NO_LABEL = -100
"""The label of a place that counts for no loss, as PyTorch's cross_entropy and Hugging Face have
it."""

_DTYPES: dict[str, DType] = {
    LABELS: np.dtype(np.int64),
    POSITION_IDS: np.dtype(np.int32),
    DOCUMENT_IDS: np.dtype(np.int32),
}


@dataclass(frozen=True)
class BlockLayout:
    """Where the documents of n rows of `width` places lie: row i has `counts[i]` of them, one
    behind the other from place 0 on.

    `lengths` (documents,) are those of all rows, none of them 0; what is left of a row is padding.
    """

    width: int
    counts: Numbers
    lengths: Numbers

    @cached_property
    def filled(self) -> Numbers:
        """How many places of each row have a token, (n,)."""
        ends = edges_of(self.lengths)[np.cumsum(self.counts)]
        return np.diff(ends, prepend=0)

    @cached_property
    def _with_padding(self) -> tuple[Numbers, Numbers]:
        """The lengths of all documents and of the padding of each row, in their order, and the
        number of each in its row: -1 for padding."""
        ends = np.cumsum(self.counts)
        numbers = np.arange(len(self.lengths)) - np.repeat(ends - self.counts, self.counts)
        padding = self.width - self.filled
        padded = padding > 0
        return (
            np.insert(self.lengths, ends[padded], padding[padded]),
            np.insert(numbers, ends[padded], -1),
        )

    @property
    def segments(self) -> Numbers:
        """The lengths of all documents, and of the padding of each row, in their order."""
        return self._with_padding[0]

    def position_ids(self, found: npt.NDArray[np.int32]) -> None:
        """Set the place of each token in its document, and of padding in the padding: (n,
        width)."""
        lengths = self.segments
        starts = ((np.cumsum(lengths) - lengths) % self.width).astype(np.int32)  # in the row
        places = np.arange(self.width, dtype=np.int32)
        np.subtract(places, np.repeat(starts, lengths).reshape(found.shape), out=found)

    def document_ids(self, found: npt.NDArray[np.int32]) -> None:
        """Set which document of its row each token is of, counted from 0, and -1 for padding: (n,
        width)."""
        lengths, numbers = self._with_padding
        found[:] = np.repeat(numbers.astype(np.int32), lengths).reshape(found.shape)

    def cu_seqlens(self) -> npt.NDArray[np.int32]:
        """Return where each document, and the padding of each row, begins in all rows one behind
        the other, and the end."""
        return edges_of(self.segments).astype(np.int32)

    def labels(self, tokens: Array, mask: Array | None, found: Numbers) -> None:
        """Set the token after each of `tokens` (n, width), NO_LABEL where there is none in the same
        document, or where the `mask` (n, width) of it is 0: (n, width)."""
        found[:, :-1] = tokens[:, 1:]
        if mask is not None:
            np.copyto(found[:, :-1], NO_LABEL, where=mask[:, 1:] == 0)
        found.reshape(-1)[np.cumsum(self.segments) - 1] = NO_LABEL
        padded = np.flatnonzero(self.filled < self.width)
        for row, first in zip(padded.tolist(), self.filled[padded].tolist(), strict=True):
            found[row, first:] = NO_LABEL


class Deriver:
    """Computes the fields that a loader derives. Threads may share it.

    `hidden` are columns that must be read for them, and were not asked for.
    """

    def __init__(
        self,
        shards: Shards,
        columns: Sequence[Column],
        derive: Sequence[str],
        pad: Mapping[str, float],
    ) -> None:
        """Raises UsageError for fields that cannot be derived from these columns."""
        self._shards, self.derive = shards, tuple(derive)
        self.hidden: list[Column] = []
        if not derive:
            return
        for name in derive:
            if name not in DERIVED:
                raise UsageError(unknown("derive:", name, DERIVED))
        roles, schema = shards.layout.roles, shards.layout.columns
        tokens = [column for column in columns if column.name in roles.tokens]
        if len(tokens) != 1:
            raise UsageError(
                f"derive needs one column of tokens (ds.roles.tokens); there are {len(tokens)} among "
                f"{', '.join(column.name for column in columns)}"
            )
        self._tokens = tokens[0]
        read = {column.name for column in columns}
        for name in read & {*derive, MAX_SEQLEN}:
            raise UsageError(
                f"derive: the dataset has a column {name} already; leave it out with columns="
            )
        if self._tokens.is_ragged and self._tokens.name not in pad:
            raise UsageError(
                f"derive: {self._tokens.name} has other lengths in each sample; give "
                f"pad={{{self._tokens.name!r}: 0}} too"
            )
        packed = roles.tokens[self._tokens.name].packed
        self._lengths = self._beside(DOCUMENT_LENGTHS) if packed else None
        masked = LABELS in derive and LOSS_MASK in schema.names
        self._mask = self._beside(LOSS_MASK) if masked else None
        self.hidden = [
            column
            for column in (self._lengths, self._mask)
            if column is not None and column.name not in read
        ]

    def _beside(self, name: str) -> Column:
        """Return a column that belongs to that of the tokens. Raises DatasetError if it cannot be
        what its name says."""
        schema = self._shards.layout.columns
        column = Column.of(schema.field(name)) if name in schema.names else None
        if column is not None and column.dtype is not None and column.dtype.kind in "iu":
            tokens = (self._tokens.kind, self._tokens.shape)
            if (column.kind, column.shape) == (tokens if name == LOSS_MASK else ("variable", ())):
                return column
        found = "there is none" if column is None else f"it is {column.type}"
        raise DatasetError(
            f"{self._shards.root}: the column {name} does not go with {self._tokens.name}, "
            f"{self._tokens.type}: {found}"
        )

    def read(self, batch: Batch, sources: BlockSources) -> Batch:
        """Return the derived fields of a batch, given its other fields. Raises DatasetError."""
        if not self.derive:
            return {}
        tokens = batch[self._tokens.name]
        layout = self._layout(batch, tokens, sources)
        made: Batch = {}
        for name in self.derive:
            if name == CU_SEQLENS:
                made[name] = layout.cu_seqlens()
                made[MAX_SEQLEN] = int(layout.segments.max(initial=0))
                continue
            found = made[name] = sources.wanted.memory.array(name, tokens.shape, _DTYPES[name])
            if name == LABELS:
                layout.labels(tokens, self._mask_of(tokens.shape, sources), found)
            elif name == POSITION_IDS:
                layout.position_ids(found)
            else:
                layout.document_ids(found)
        return made

    def _layout(self, batch: Batch, tokens: Array, sources: BlockSources) -> BlockLayout:
        if self._lengths is None:
            lengths = np.full(len(tokens), tokens.shape[1])
            if self._tokens.is_ragged:
                lengths = batch[f"{self._tokens.name}_length"]
            there = lengths > 0
            return BlockLayout(tokens.shape[1], there.astype(np.int64), lengths[there])
        lists = _lists(self._lengths, sources)
        layout = BlockLayout(tokens.shape[1], lists.lengths[0], lists.numbers.astype(np.int64))
        # Each by itself too: the sum of long ones may begin anew at 0.
        wrong = (layout.lengths <= 0) | (layout.lengths > layout.width)
        if wrong.any() or (layout.filled > layout.width).any():
            raise DatasetError(
                f"{self._shards.root}: {DOCUMENT_LENGTHS} do not fit blocks of {layout.width} "
                f"tokens; {VERIFY_ADVICE}"
            )
        return layout

    def _mask_of(self, shape: Shape, sources: BlockSources) -> Array | None:
        """Return the loss mask of a batch, (n, width), 0 at padding; None if there is none."""
        column = self._mask
        if column is None or column.dtype is None:
            return None
        if not column.is_ragged:
            located = sources.locate(column)
            if isinstance(located, Located):
                data = gather(located).buffers()[2]
                return np.frombuffer(data, column.dtype, shape[0] * shape[1]).reshape(shape)
            return numbers_of(sources.take(column), column)[0]
        full = np.zeros(shape, np.uint8)
        padded = _lists(column, sources).padded(0, lambda wanted: np.empty(wanted, np.uint8))
        width = min(shape[1], padded.shape[1])
        full[:, :width] = padded[:, :width]
        return full

    def specs(self, specs: Mapping[str, Spec]) -> dict[str, Spec]:
        """Return what the derived fields are, given the other fields."""
        if not self.derive:
            return {}
        of_tokens = specs[self._tokens.name]
        fills = {LABELS: NO_LABEL, POSITION_IDS: 0, DOCUMENT_IDS: -1}
        made = {}
        for name in self.derive:
            if name == CU_SEQLENS:
                made[name] = Spec("whole", (-1,), np.dtype(np.int32))
                made[MAX_SEQLEN] = Spec("whole")
            else:
                made[name] = Spec(of_tokens.kind, of_tokens.shape, _DTYPES[name], fills[name])
        return made


def _lists(column: Column, sources: BlockSources) -> Lists:
    """Return lists of numbers."""
    located = sources.locate(column)
    if isinstance(located, Located):
        return Lists.lying(column, located)
    return Lists.of(sources.take(column))
