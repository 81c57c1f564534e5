"""What can be said about storing texts and tokens: how well they compress, and what blocks of some
lengths cost."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.benchmark.measure.consumers import BYTES_PER_TOKEN
from shardctl.format.arrays import Numbers
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.dataset_location import DatasetLocation
from shardctl.format.packing import METHODS
from shardctl.format.roles import Roles
from shardctl.format.shard import BlockFile, load_file
from shardctl.format.tables import ShardTable
from shardctl.format.token_columns import (
    DOCUMENT_LENGTHS,
    DOCUMENT_STARTS,
    documents_in,
    main_tokens,
    token_rows,
)
from shardctl.inspection.content.blocks import some_blocks

BLOCK_LENGTHS = (512, 1024, 2048, 4096)

DOCUMENTS = 10_000
"""Documents of a shard for which blocks are computed, as long as those that were tried: in a few
hundred, best fit finds fewer that go together.
"""

DECODE_SECONDS = 0.1


@dataclass(frozen=True)
class BlockChoice:
    """Blocks of `length` tokens by a method of the step `pack`: the share of documents that it
    cuts, and of padding.

    With the method none a block is a document, or a piece of one, padded to the length; a loader
    pads less.
    """

    length: int
    method: str
    cut: float
    padding: float


@dataclass(frozen=True)
class BlockAdvice:
    """What blocks of documents cost that have `low` to `high` tokens, `median` in the middle, the
    one that ends them counted.

    `estimated` says that texts were tried, and no tokens: then they are taken for a quarter of the
    bytes.
    """

    documents: int
    low: int
    median: int
    high: int
    estimated: bool
    choices: tuple[BlockChoice, ...]


def block_advice(root: Path) -> BlockAdvice | None:
    """Say what blocks of the texts or tokens of a dataset cost; None if it has neither. Raises
    DatasetError."""
    parts = [
        _lengths(block.data, block.shard.roles)
        for block in some_blocks(DatasetLocation(dataset_in(root)), None)
    ]
    known = [lengths for lengths, _ in parts if len(lengths)]
    if not known:
        return None
    lengths = np.concatenate(known)
    choices = [_choice(lengths, length, method) for length in BLOCK_LENGTHS for method in METHODS]
    spread = (int(lengths.min()), int(np.median(lengths)), int(lengths.max()))
    return BlockAdvice(
        len(lengths), *spread, any(estimated for _, estimated in parts), tuple(choices)
    )


def _lengths(block: pa.RecordBatch, roles: Roles) -> tuple[Numbers, bool]:
    """Return how many tokens each document of a block has, (n,), and whether that is estimated."""
    main = main_tokens(roles)
    if main is not None:
        name, role = main
        tokens = token_rows(block.column(name))
        if not role.packed:
            return tokens.lengths[tokens.lengths > 0] + 1, False
        found = documents_in(
            tokens, {column: block.column(column) for column in (DOCUMENT_LENGTHS, DOCUMENT_STARTS)}
        )
        return found.lengths(tokens, role.eos), False
    if "text" not in block.schema.names or not pa.types.is_string(block.schema.field("text").type):
        return np.zeros(0, np.int64), False
    sizes = np.from_dlpack(pc.binary_length(block.column("text").drop_null()))
    return -(-sizes[sizes > 0].astype(np.int64) // BYTES_PER_TOKEN) + 1, True


def _choice(lengths: Numbers, size: int, method: str) -> BlockChoice:
    many = np.resize(lengths, max(DOCUMENTS, len(lengths)))
    pieces = METHODS[method](many, size)
    cut = np.count_nonzero(np.bincount(pieces.document) > 1) / len(many)
    blocks = int(pieces.block.max()) + 1
    return BlockChoice(size, method, round(cut, 4), round(1 - int(many.sum()) / (blocks * size), 4))


def decode_mb_per_s(root: Path) -> float:
    """Return how fast one core decompresses the blocks of a dataset, in 10^6 uncompressed bytes per
    second."""
    dataset = dataset_in(root)
    files = [BlockFile.at(dataset.path(path), load_file) for path in ShardTable(dataset).paths]
    size, began = 0, time.perf_counter()
    while time.perf_counter() - began < DECODE_SECONDS:
        size += sum(file.fetch(n)[0].nbytes for file in files for n in range(len(file)))
    return round(size / 1e6 / (time.perf_counter() - began), 1)
