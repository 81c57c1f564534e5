"""Datasets of tokens that tests make themselves: documents, blocks of documents, and rows that are
wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from handmade import write_dataset

from shardctl.format.roles import Tokens

LENGTH = 16
VOCABULARY, EOS, PAD = 261, 256, 257
"""Of tokens that are bytes, and two more."""

PACKED = Tokens(VOCABULARY, EOS, PAD, "bytes", packed=True)
RAGGED = Tokens(VOCABULARY, EOS, PAD, "bytes")

_DOCUMENTS = [
    ("document_keys", pa.list_(pa.string())),
    ("document_lengths", pa.list_(pa.int32())),
    ("document_starts", pa.list_(pa.int32())),
]


def tokens_of(text: str) -> list[int]:
    """Return the tokens of a document, with the one that ends it."""
    return [*text.encode(), EOS]


def packed_blocks(documents: dict[str, str], length: int = LENGTH) -> list[dict[str, Any]]:
    """Pack documents one after the other into blocks, cut where a block is full; the last block is
    padded."""
    pieces: list[list[tuple[str, int, list[int]]]] = [[]]
    for key, text in documents.items():
        tokens = tokens_of(text)
        start = 0
        while start < len(tokens):
            room = length - sum(len(part) for *_, part in pieces[-1])
            if not room:
                pieces.append([])
                continue
            pieces[-1].append((key, start, tokens[start : start + room]))
            start += room
    return [block_of(piece, length) for piece in pieces]


def block_of(pieces: Sequence[tuple[str, int, list[int]]], length: int = LENGTH) -> dict[str, Any]:
    """Return a block of pieces: (key, place of the first token in its document, tokens)."""
    tokens = [token for *_, part in pieces for token in part]
    return {
        "key": pieces[0][0],
        "tokens": tokens + [PAD] * (length - len(tokens)),
        "document_keys": [key for key, *_ in pieces],
        "document_lengths": [len(part) for *_, part in pieces],
        "document_starts": [start for _, start, _ in pieces],
    }


def write_packed(
    root: Path,
    blocks: Iterable[dict[str, Any]],
    role: Tokens = PACKED,
    masks: Any = None,
    per_shard: int = 4,
) -> Path:
    """Write blocks of tokens, two of them in a block of a shard; with `masks` also the column
    loss_mask, of that type."""
    blocks = list(blocks)
    tokens = pa.list_(pa.uint16(), len(blocks[0]["tokens"]))
    schema = pa.schema([("key", pa.string()), ("tokens", tokens), *_DOCUMENTS])
    if masks is not None:
        schema = schema.append(pa.field("loss_mask", masks))
    samples = [tuple(block.get(name) for name in schema.names) for block in blocks]
    write_dataset(root, schema, samples, per_shard, sample_bytes=2_000_000, roles={"tokens": role})
    return root


def write_ragged(root: Path, documents: dict[str, str], role: Tokens = RAGGED) -> Path:
    """Write documents as they are, one in a row."""
    schema = pa.schema([("key", pa.string()), ("tokens", pa.list_(pa.uint16()))])
    rows = [(key, tokens_of(text)) for key, text in documents.items()]
    write_dataset(root, schema, rows, 4, roles={"tokens": role})
    return root
