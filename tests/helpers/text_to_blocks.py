"""What tests of the way from documents to blocks share: conversions that are compared, documents
put together again."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from dataset_files import tables_in

import shardctl


def convert_thrice(
    source: Path | list[Path], folder: Path, recipe: dict[str, Any], **options: Any
) -> Path:
    """Convert with 0, 1 and 2 workers, expect the same bytes, and return the first dataset."""
    for workers in (0, 1, 2):
        shardctl.convert(
            source, folder / f"out-{workers}", recipe=recipe, workers=workers, **options
        )
    sums = {
        (tables_in(folder / f"out-{workers}") / "SHA256SUMS").read_bytes() for workers in (0, 1, 2)
    }
    assert len(sums) == 1
    assert shardctl.verify(folder / "out-1", level="deep").findings == ()
    return folder / "out-0"


def documents(root: Path) -> dict[str, list[int]]:
    """Return the tokens of each document of a dataset of blocks, by its key, as they were before
    they were packed."""
    pieces: defaultdict[str, list[tuple[int, list[int]]]] = defaultdict(list)
    for row in shardctl.open(root):
        at = 0
        tokens = row["tokens"].tolist()
        for key, length, start in zip(
            row["document_keys"], row["document_lengths"], row["document_starts"], strict=True
        ):
            pieces[key].append((int(start), tokens[at : at + int(length)]))
            at += int(length)
    return {
        key: [token for _, tokens in sorted(parts) for token in tokens]
        for key, parts in pieces.items()
    }


def assert_decodes_to(root: Path, texts: dict[str, str]) -> None:
    """Fail unless the documents of a dataset of blocks, decoded, are these texts by their keys."""
    ds = shardctl.open(root)
    tokenizer, end = ds.tokenizer, ds.roles.tokens["tokens"].eos
    found = documents(root)
    assert found.keys() == texts.keys()
    for key, tokens in found.items():
        assert tokens[-1] == end, key
        assert tokenizer.decode(tokens[:-1]) == texts[key], key
