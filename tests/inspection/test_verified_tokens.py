"""`verify --level deep` finds tokens that the vocabulary does not have, documents that cannot be,
and masks that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dataset_files import shards_in
from handmade import write_dataset
from token_samples import (
    EOS,
    LENGTH,
    PACKED,
    PAD,
    block_of,
    packed_blocks,
    tokens_of,
    write_packed,
    write_ragged,
)

import shardctl
from shardctl.format.roles import Tokens

DOCUMENTS = {f"{number}.txt": "word " * number + "end" for number in range(12)}


def wrong(**columns: Any) -> dict[str, Any]:
    return {**block_of([("a", 0, [1, 2, EOS]), ("b", 0, [3, EOS])]), **columns}


WRONG: list[tuple[str, str, dict[str, Any]]] = [
    ("bad-tokens", "tokens has the token 261 at place 1, and its vocabulary has the numbers 0 to "
                   "260",
     wrong(tokens=[1, 261, EOS, 3, EOS] + [PAD] * 11)),
    ("bad-documents", "has 1 of document_keys, 2 of document_lengths and 2 of "
                      "document_starts", wrong(document_keys=["a"])),
    ("bad-documents", "has 2 of document_keys, 2 of document_lengths and 3 of document_starts",
     wrong(document_starts=[0, 0, 0])),
    ("bad-documents", "has 0 in document_lengths, and the least is "
                      "1", wrong(document_lengths=[5, 0])),
    ("bad-documents", "has -3 in document_lengths, and the least is "
                      "1", wrong(document_lengths=[8, -3])),
    ("bad-documents", "has -1 in document_starts, and the least is "
                      "0", wrong(document_starts=[0, -1])),
    ("bad-documents", "has documents of 17 tokens together in a block of "
                      "16", wrong(document_lengths=[3, 14])),
    ("bad-documents", "has the token 256 behind its documents, where padding is "
                      "257", wrong(document_lengths=[3, 1])),
    ("bad-documents", "is a block without a document",
     wrong(tokens=[PAD] * LENGTH, document_keys=[], document_lengths=[], document_starts=[])),
]  # fmt: skip


def findings(target: Path) -> list[tuple[str, int | None, int | None, str]]:
    found = shardctl.verify(target, level="deep").findings
    return [
        (each.kind, each.block, each.row, each.message)
        for each in found
        if each.kind.startswith("bad-")
    ]


def test_tokens_and_documents_that_are_wrong_are_found_with_their_place(tmp_path):
    good = block_of([("a", 0, tokens_of("good"))])
    out = write_packed(
        tmp_path / "out", [block for *_, bad in WRONG for block in (good, bad)], per_shard=99
    )
    (shard,) = shards_in(out)
    for target in (out, shard):
        found = findings(target)
        assert [(kind, block, row) for kind, block, row, _ in found] == [
            (kind, place, 2 * place + 1) for place, (kind, *_) in enumerate(WRONG)
        ]
        for (*_, message), (_, says, _) in zip(found, WRONG, strict=True):
            assert message.startswith(says)
    assert not [
        each for each in shardctl.verify(out, level="full").findings if each.kind.startswith("bad-")
    ]


def test_a_loss_mask_is_0_or_1_and_as_long_as_the_tokens(tmp_path):
    blocks = [
        {**wrong(), "loss_mask": mask}
        for mask in ([1] * LENGTH, [0, 2, 3] + [0] * 13, [1] * 15, None)
    ]
    out = write_packed(tmp_path / "out", blocks, masks=pa.list_(pa.uint8()))
    assert [(kind, row) for kind, _, row, _ in findings(out)] == [
        ("bad-loss-mask", row) for row in (1, 2, 3)
    ]
    assert [message.partition(";")[0] for *_, message in findings(out)] == [
        "loss_mask has the number 2, not 0 or 1",
        "loss_mask has 15 numbers, and tokens has 16",
        "loss_mask has 0 numbers, and tokens has 16",
    ]


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("role", [PACKED, Tokens(), Tokens(packed=True)])
def test_what_is_as_it_should_be_is_no_finding(tmp_path, role):
    assert findings(write_packed(tmp_path / "out", packed_blocks(DOCUMENTS), role)) == []
    assert findings(write_ragged(tmp_path / "ragged", {**DOCUMENTS, "empty": ""})) == []


@pytest.mark.thorough
def test_columns_that_are_not_those_of_tokens_are_found(tmp_path):
    types = {"key": pa.string(), "tokens": pa.list_(pa.uint16()), "other": pa.string()}
    for name, tokens, roles, says in (
        ("gap", [1, None], {"tokens": PACKED}, "tokens: a number in a list is missing"),
        ("packed", [1], {"tokens": PACKED}, "its tokens are packed, without a column"),
        ("texts", [1], {"other": Tokens()}, "other: it is of type string, which is not a list"),
    ):
        rows = [("k", tokens, "text"), ("l", [1], "text")]
        write_dataset(tmp_path / name, pa.schema(types), rows, 9, roles=roles)
        assert findings(tmp_path / name)[0][3].startswith(says)
