"""What `inspect` counts in tokens: documents and their lengths, padding and cuts, the vocabulary,
bytes per token."""

from __future__ import annotations

import json
from collections import Counter

import pyarrow as pa
import pytest
from conftest import examples
from dataset_files import tables_in
from handmade import write_dataset
from hypothesis import given
from hypothesis import strategies as st
from places import place_of
from token_samples import (
    EOS,
    LENGTH,
    PACKED,
    PAD,
    VOCABULARY,
    block_of,
    packed_blocks,
    tokens_of,
    write_packed,
    write_ragged,
)

from shardctl.format.roles import Tokens
from shardctl.inspection.content.tokens import token_statistics

DOCUMENTS = {
    "a": "alpha",
    "b": "beta goes on and on and on, past two blocks",
    "c": "gamma",
    "d": "d" * (LENGTH - 1),
    "e": "",
}


@examples(12)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=12))
def test_the_statistics_are_those_of_the_documents(tmp_path_factory, texts):
    tmp_path = tmp_path_factory.mktemp("statistics")
    documents = {f"{number}.txt": text for number, text in enumerate(texts)}
    tokens = [token for text in texts for token in tokens_of(text)]
    blocks = packed_blocks(documents)
    roots = (
        write_packed(tmp_path / "packed", blocks, per_shard=3),
        write_ragged(tmp_path / "ragged", documents),
    )
    packed, ragged = (token_statistics(place_of(root))["tokens"] for root in roots)
    lengths = [len(tokens_of(text)) for text in texts]
    for found in (packed, ragged):
        assert (found.tokens, found.documents) == (len(tokens), len(texts))
        assert (found.lengths.low, found.lengths.high) == (min(lengths), max(lengths))
        assert sum(found.lengths.counts) == len(texts)
        counts = Counter(tokens)
        most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:20]
        assert [(each.token, each.count) for each in found.most_common] == most
        assert (found.used, found.unused) == (len(counts), VOCABULARY - len(counts))
        unused = sorted(set(range(VOCABULARY)) - set(counts))
        assert [each.token for each in found.never_used] == unused[:20]
    assert packed.padding == sum(block["tokens"].count(PAD) for block in blocks)
    pieces = Counter(key for block in blocks for key in block["document_keys"])
    assert packed.cut == sum(count > 1 for count in pieces.values())
    assert (ragged.padding, ragged.cut, ragged.per_block) == (None, None, None)
    assert ragged.text_bytes == sum(len(text.encode()) for text in texts)
    assert ragged.text_tokens == len(tokens)


def test_a_few_blocks_are_counted_where_not_all_are_asked_for(tmp_path):
    out = write_packed(
        tmp_path / "out", packed_blocks({str(n): "text" for n in range(64)}), per_shard=2
    )
    (some,) = token_statistics(place_of(out), blocks=2).values()
    (every,) = token_statistics(place_of(out)).values()
    assert (some.blocks, some.samples, every.samples) == (2, 4, 20)


@pytest.mark.parametrize("eos", [None, 300])
def test_documents_are_told_apart_without_an_end_token(tmp_path, eos):
    """But for one that ends where its block does. The tokenizer may have an end token that was not
    used."""
    out = write_packed(tmp_path / "out", packed_blocks(DOCUMENTS), Tokens(400, eos, packed=True))
    found = token_statistics(place_of(out))["tokens"]
    assert (found.documents, found.cut, found.lengths.high) == (5, 2, 44)
    assert found.why_numbers is not None
    assert {each.text for each in found.most_common} == {None}


def test_a_loss_mask_is_counted(tmp_path):
    blocks = [{**block, "loss_mask": [1] * 4 + [0] * 12} for block in packed_blocks(DOCUMENTS)]
    (found,) = token_statistics(
        place_of(write_packed(tmp_path / "out", blocks, masks=pa.list_(pa.uint8())))
    ).values()
    assert found.loss_tokens == 4 * len(blocks)


@pytest.mark.thorough
def test_tokens_outside_of_the_vocabulary_are_counted_and_take_no_memory(tmp_path):
    fields = pa.schema([("key", pa.string()), ("tokens", pa.list_(pa.uint32()))])
    rows = [("a", [1, 2**32 - 1, 2**31]), ("b", [1])]
    for number, role in enumerate((Tokens(300), Tokens(2**32), Tokens())):
        write_dataset(tmp_path / str(number), fields, rows, 9, roles={"tokens": role})
        (found,) = token_statistics(place_of(tmp_path / str(number))).values()
        assert (found.outside, found.used, found.tokens) == (2, 1, 4)


def test_blocks_that_cannot_be_are_said_and_the_others_are_counted(tmp_path, cli):
    good = block_of([("a", 0, [104, 105, EOS])])
    out = write_packed(
        tmp_path / "out", [good, good, {**good, "document_lengths": [99]}, good], per_shard=9
    )
    found = token_statistics(place_of(out))["tokens"]
    assert (found.samples, len(found.faults)) == (2, 1)
    shown = cli("inspect", out, "--stats")
    assert (shown.code, "DAMAGED: 1 of the blocks" in shown.out) == (0, True)


def test_inspect_prints_what_was_counted(tmp_path, cli):
    out = write_packed(tmp_path / "out", packed_blocks(DOCUMENTS), PACKED)
    shown = cli("inspect", out, "--stats").out
    assert "tokens: 73 tokens (of 5 blocks)" in shown
    assert "5 documents, 2 of them cut (40.0%); 7 tokens of padding, 8.75% of the blocks" in shown
    assert "documents in a block: 1 to 3" in shown
    assert "vocabulary: 19 of 261 tokens occur (7.3%)" in shown
    assert "never used: '0x00'" in shown
    assert cli("inspect", out, "--json").json["tokens"][0]["padding_share"] == 0.0875


def test_the_page_has_texts_and_what_was_counted(tmp_path):
    from shardctl.inspection.pages.dataset import dataset_page

    page = dataset_page(place_of(write_packed(tmp_path / "out", packed_blocks(DOCUMENTS), PACKED)))
    for says in ("alpha&lt;eos&gt;", "16 tokens, 2 documents", "most common tokens"):
        assert says in page, says
    assert "beta goes" in dataset_page(place_of(write_ragged(tmp_path / "ragged", DOCUMENTS)))


def test_a_vocabulary_may_have_holes(tmp_path, cli):
    """The encodings of tiktoken have: a number without a token is shown as a number."""
    content = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": {"a": 0, "z": 4}, "unk_token": "a"},
    }
    out = write_ragged(tmp_path / "out", {"x": "\0\4"}, Tokens(5, tokenizer="tokenizer.json"))
    (tables_in(out) / "tokenizer.json").write_text(json.dumps(content))
    found = token_statistics(place_of(out))["tokens"]
    assert [(each.token, each.text) for each in found.never_used] == [(n, None) for n in (1, 2, 3)]
    assert [(each.token, each.text) for each in found.most_common] == [(0, "a"), (4, "z")]
    shown = cli("inspect", out, "--stats")
    assert "never used: 1, 2, 3 (3 in all)" in shown.out
    assert cli("inspect", out, "--key", "x").code == 0
