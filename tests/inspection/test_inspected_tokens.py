"""`inspect` shows tokens as text, the documents in a block, and the blocks that have a document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dataset_files import shards_in
from handmade import write_dataset
from token_samples import (
    EOS,
    PACKED,
    VOCABULARY,
    block_of,
    packed_blocks,
    write_packed,
    write_ragged,
)

import shardctl
from shardctl.errors import DatasetError
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.roles import Tokens
from shardctl.inspection.content.samples import samples_of_key
from shardctl.inspection.content.tokens import Decoder

DOCUMENTS = {
    "a.txt": "alpha",
    "b.txt": "β and then beta goes on and on",
    "c.txt": "gamma",
    "d.txt": "delta",
}


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return write_packed(tmp_path / "packed", packed_blocks(DOCUMENTS), per_shard=2)


@pytest.fixture
def ragged(tmp_path: Path) -> Path:
    return write_ragged(tmp_path / "ragged", DOCUMENTS)


@pytest.mark.parametrize(
    ("role", "message"),
    [
        (Tokens(), "does not say which tokenizer made its tokens"),
        (Tokens(tokenizer="../tokenizer.json"), "names a tokenizer that is not in its folder"),
        (Tokens(tokenizer="/etc/passwd"), "names a tokenizer that is not in its folder"),
        (
            Tokens(vocabulary=100, tokenizer="bytes"),
            "bytes did not make its tokens: it has 261 tokens",
        ),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_one_sentence_and_numbers_are_shown(
    tmp_path, cli, role, message
):
    out = write_ragged(tmp_path / "out", {"a": "text"}, role)
    with pytest.raises(DatasetError, match=message):
        _ = shardctl.open(out).tokenizer
    for way in (["--key", "a"], ["--head", 1]):
        shown = cli("inspect", out, *way)
        assert shown.code == 0
        assert shown.err.count("note: tokens are shown as numbers only") == 1
        assert message in shown.err
        assert "[116, 101, 120, 116, 256]" in shown.out


def test_each_column_of_tokens_is_decoded_by_its_own_tokenizer(out):
    lists = pa.list_(pa.uint16())
    schema = pa.schema([("key", pa.string()), ("tokens", lists), ("other", lists)])
    roles = {
        "tokens": Tokens(VOCABULARY, EOS, None, "bytes"),
        "other": Tokens(tokenizer="words.txt"),
    }
    write_dataset(out, schema, [("a", [104, 105], [0, 1])], 4, roles=roles)
    decoder = Decoder(dataset_in(out))
    (record,) = decoder.decoded(samples_of_key(dataset_in(out), "a"))
    assert record.texts == {"tokens": "hi"}
    assert "words.txt" in (decoder.why_not or "")


def test_a_dataset_never_names_code_to_run(tmp_path, monkeypatch, cli):
    (tmp_path / "evil.py").write_text("raise SystemExit('was run')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("evil:make", "evil", "evil.py"):
        out = write_ragged(tmp_path / f"out-{len(name)}", {"a": "text"}, Tokens(tokenizer=name))
        shown = cli("inspect", out, "--key", "a")
        assert (shown.code, "was run" in shown.out + shown.err) == (0, False)
        assert "tokens are shown as numbers only" in shown.err


def test_text_is_shown_beside_the_tokens(ragged, cli):
    shown = cli("inspect", ragged, "--key", "b.txt")
    assert "  | β and then beta goes on and on<eos>\n" in shown.out
    texts = ["alpha<eos>", DOCUMENTS["b.txt"] + "<eos>"]
    record = cli("inspect", ragged, "--key", "b.txt", "--json").json
    assert record["values"]["tokens_text"] == texts[1]
    listed = cli("inspect", ragged, "--head", 2, "--json").json["samples"]
    assert [sample["tokens_text"] for sample in listed] == texts
    assert texts[0] in cli("inspect", ragged, "--head", 2).out
    assert "tokens_text" not in cli("inspect", ragged, "--head", 2, "--columns", "key").out
    chosen = cli("inspect", ragged, *"--head 1 --columns tokens --json".split()).json["samples"]
    assert chosen == [{"tokens": [*b"alpha", EOS], "tokens_text": texts[0]}]


def test_a_long_text_is_cut_but_for_v(tmp_path, cli):
    out = write_ragged(tmp_path / "out", {"a": "é" * 5000 + "end"})
    shown = cli("inspect", out, "--key", "a").out
    assert "é" * 299 in shown
    assert "é" * 301 not in shown
    assert "\ufffd" not in shown
    assert "é" * 5000 + "end" in cli("inspect", out, "--key", "a", "-v").out
    assert "é" * 5000 + "end" in cli("inspect", out, "--head", 1, "-v").out


def test_texts_of_tokens_are_saved_with_their_numbers(ragged, tmp_path, cli):
    assert cli("inspect", ragged, "--key", "a.txt", "--save", tmp_path / "saved").code == 0
    assert json.loads((tmp_path / "saved" / "a.txt.json").read_text()) == {
        "tokens": [*b"alpha", EOS],
        "tokens_text": "alpha<eos>",
    }


def test_a_block_leads_to_its_documents(packed, cli):
    """Blocks of 16 tokens: a.txt has 6, b.txt 32 from the first block to the third, then c.txt and
    d.txt."""
    record = cli("inspect", packed, "--shard", 0, "--row", 0, "--json").json
    names = ("key", "first", "length", "start", "ends", "text", "cut")
    assert [tuple(piece[name] for name in names) for piece in record["documents"]] == [
        ("a.txt", 0, 6, 0, True, "alpha<eos>", False),
        ("b.txt", 6, 10, 0, False, "β and the", True),
    ]
    assert record["values"]["tokens_text"] == "alpha<eos>β and the"
    shown = cli("inspect", packed, "--shard", 1, "--row", 0).out
    assert "goes on from token 26" in shown
    assert "3 documents:" in shown


def test_a_document_leads_to_its_blocks(packed, cli):
    found = cli("inspect", packed, "--key", "b.txt", "--json").json["records"]
    assert [record["row"] for record in found] == [0, 1, 0]
    assert [record["shard"] for record in found] == ["train-00000"] * 2 + ["train-00001"]
    pieces = [piece for record in found for piece in record["documents"] if piece["key"] == "b.txt"]
    assert "".join(piece["text"] for piece in pieces) == DOCUMENTS["b.txt"] + "<eos>"
    assert [piece["start"] for piece in pieces] == [0, 10, 26]
    shown = cli("inspect", packed, "--key", "b.txt").out
    assert shown.count("checksum of the block") == 3
    assert shown.count("  *  b.txt") == 3


def test_an_unknown_document_suggests_near_ones(packed, cli):
    ran = cli("inspect", packed, "--key", "b.tx")
    assert (ran.code, "did you mean b.txt" in ran.err) == (3, True)


def test_damaged_documents_are_said_and_the_rest_is_shown(tmp_path, cli):
    good = block_of([("a", 0, [104, 105, EOS])])
    blocks = [
        {**good, "document_lengths": [99]},
        {**good, "tokens": [260 + 9] * 16},
        {**good, "document_starts": []},
        good,
    ]
    out = write_packed(tmp_path / "out", blocks, per_shard=9)
    for row, says in (
        (0, "do not fit their block"),
        (1, "the vocabulary does not have"),
        (2, "do not fit their block"),
    ):
        shown = cli("inspect", out, "--shard", 0, "--row", row)
        assert (shown.code, says in shown.err) == (0, True), shown.err
    assert cli("inspect", out, "--head", 4).code == 0
    records = cli("inspect", out, "--key", "a", "--json").json["records"]
    assert records[3]["documents"][0]["text"] == "hi<eos>"


def test_tokens_of_another_type_are_shown_as_they_are(out, cli):
    fields = pa.schema([("key", pa.string()), ("tokens", pa.string())])
    write_dataset(out, fields, [("a", "no numbers")], 9, roles={"tokens": PACKED})
    shown = cli("inspect", out, "--head", 1)
    assert (shown.code, "no numbers" in shown.out) == (0, True)
    shown = cli("inspect", out)
    assert (shown.code, "DAMAGED: 1 of the blocks" in shown.out) == (0, True)


def test_very_many_tokens_are_described_and_their_text_begins(tmp_path, cli, monkeypatch):
    monkeypatch.setattr("shardctl.inspection.content.blocks.MOST_LISTED", 100)
    out = write_ragged(tmp_path / "out", {"a": "long " * 40, "b": "short"})
    shown = cli("inspect", out, "--key", "a")
    assert "201 uint16, mean" in shown.out
    assert "  | long long" in shown.out
    values = cli("inspect", out, "--key", "a", "--json").json["values"]
    assert (values["tokens"]["shape"], values["tokens_text"]) == ([201], "long " * 40 + "<eos>")
    assert cli("inspect", out, "--key", "b", "--json").json["values"]["tokens"] == [*b"short", EOS]


def convert(source: Path, out: Path, method: str, **options: Any) -> None:
    pack = {"name": "pack", "length": 32, "method": method}
    recipe = {"transform": [{"name": "tokenize", "tokenizer": "bytes"}, pack]}
    shardctl.convert(source, out, recipe=recipe, workers=0, **options)


def texts_in(source: Path) -> dict[str, str]:
    return {
        f"in.jsonl#{n}": json.loads(line)["text"]
        for n, line in enumerate(source.read_text().splitlines(), 1)
    }


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    texts = [f"document {n} " + "é" * (7 * n % 50) for n in range(60)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("method", ["concat", "bfd", "none"])
def test_each_document_of_a_conversion_leads_to_its_text(source, out, method):
    convert(source, out, method, samples_per_shard=8, split="train=0.8,val=0.2", shuffle=3)
    decoder = Decoder(dataset_in(out))
    for key, text in texts_in(source).items():
        records = list(decoder.decoded(samples_of_key(dataset_in(out), key)))
        assert {record.source for record in records} == {str(source)}
        parts = [
            (piece.start, record.values["tokens"][piece.first : piece.first + piece.length])
            for record in records
            for piece in record.documents
            if piece.key == key
        ]
        if method == "none":
            parts = [(record.values["variant"], record.values["tokens"]) for record in records]
        tokens = [token for _, part in sorted(parts) for token in part]
        assert shardctl.open(out).tokenizer.decode(tokens) == f"{text}<eos>"
    assert decoder.why_not is None


def test_only_the_shards_that_may_have_a_document_are_read(source, out):
    convert(source, out, "bfd", samples_per_shard=8)
    shards = shards_in(out)
    assert len(shards) > 3
    for shard in shards[1:]:
        shard.unlink()
    records = samples_of_key(dataset_in(out), "in.jsonl#1")
    assert {record.shard for record in records} == {"train-00000"}


def test_a_document_that_is_in_no_block_is_told_why(tmp_path, out, cli):
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n{"text": "no good"}\n{"text": "three"}\n')
    steps = [
        {"name": "filter_length", "min_chars": 4},
        {"name": "tokenize", "tokenizer": "bytes"},
        {"name": "pack", "length": 32},
    ]
    shardctl.convert(tmp_path / "in.jsonl", out, recipe={"transform": steps}, workers=0)
    ran = cli("inspect", out, "--key", "in.jsonl#1")
    assert (ran.code, "was rejected when the dataset was made" in ran.err) == (3, True), ran.err
    assert "filter_length: kept 2 of 3" in cli("inspect", out).out
    ran = cli("inspect", out, "--key", "in.jsonl#9")
    assert (ran.code, "no key 'in.jsonl#9'" in ran.err) == (3, True), ran.err
