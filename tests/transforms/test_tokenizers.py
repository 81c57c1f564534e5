"""Tokenizers: what goes in comes out; engines give the same tokens; chats, training, conversions,
wrong files."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert, repair

import shardctl
from shardctl.errors import InputError, Rejection, StorageError, UsageError
from shardctl.format.tables import read_rejects
from shardctl.making.train_tokenizer import KINDS, SPECIAL
from shardctl.system.folders import LocalFolder
from shardctl.transforms.tokenizers import engines, huggingface
from shardctl.transforms.tokenizers.base import Tokenizer, WithOffsets
from shardctl.transforms.tokenizers.engines import ENGINES, Engine
from shardctl.transforms.tokenizers.huggingface import HuggingFace, pieces_of
from shardctl.transforms.tokenizers.table import open_tokenizer
from shardctl.transforms.tokenizers.templates import Template
from shardctl.transforms.tokenizers.tiktoken import ENCODINGS

tokenizers = pytest.importorskip("tokenizers")

TEXTS = st.lists(st.text(max_size=40), max_size=8)


def corpus_texts() -> list[list[str]]:
    """Return texts of 600 different words, in groups."""
    rng = random.Random(3)
    words = ["".join(rng.choices("etaoinshrdlucmfwyp", k=rng.randint(2, 8))) for _ in range(600)]
    return [[" ".join(rng.choices(words, k=60)) + ".\n" for _ in range(20)] for _ in range(10)]


@pytest.fixture(scope="session")
def bpe() -> bytes:
    return KINDS["bpe"](corpus_texts(), 400, SPECIAL)


@pytest.fixture(scope="session")
def folder(bpe: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tokenizer, as models have it."""
    place = tmp_path_factory.mktemp("model")
    (place / "tokenizer.json").write_bytes(bpe)
    (place / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "<|im_end|>"}, "pad_token": "<|pad|>"})
    )
    (place / "chat_template.jinja").write_text(
        "{% for m in messages %}[{{ m['role'] }}] "
        "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}{{ eos_token }}{% "
        "endgeneration %}"
        "{% elif m['role'] == 'user' %}{{ m['content'] }}{% else %}{{ raise_exception('role ' + "
        "m['role']) }}{% endif %}\n"
        "{% endfor %}"
    )
    return place


def ranks() -> bytes:
    """Return the ranks of all bytes and a few merges, as a file of tiktoken has them."""
    tokens = [
        *(bytes((byte,)) for byte in range(256)),
        b"th",
        b"the",
        b" t",
        b" the",
        b"\xe6\x96",
        b"ab",
    ]
    return b"".join(
        base64.b64encode(token) + f" {rank}\n".encode() for rank, token in enumerate(tokens)
    )


def sentencepiece_model(path: Path) -> None:
    package = pytest.importorskip("sentencepiece")
    texts = (text for group in corpus_texts() for text in group)
    with path.open("wb") as file:
        package.SentencePieceTrainer.Train(
            sentence_iterator=texts,
            model_writer=file,
            vocab_size=300,
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            minloglevel=2,
            num_threads=1,
        )


@dataclass(frozen=True)
class Sibling:
    """A tokenizer under test: how it is opened, and whether it gives back every text."""

    open: Callable[[Path], Tokenizer]
    exact: bool


def _words(place: Path) -> Tokenizer:
    (place / "w.txt").write_text("<unk>\n<eos>\nthe\ncat\n文\n", encoding="utf-8")
    return open_tokenizer(f"words:{place / 'w.txt'}")


def _sentencepiece(place: Path) -> Tokenizer:
    sentencepiece_model(place / "a.model")
    return open_tokenizer(str(place / "a.model"))


def _tiktoken(place: Path) -> Tokenizer:
    pytest.importorskip("tiktoken")
    (place / "x.tiktoken").write_bytes(ranks())
    return open_tokenizer(f"tiktoken:cl100k_base:{place / 'x.tiktoken'}")


SIBLINGS = {
    "bytes": Sibling(lambda place: open_tokenizer("bytes"), True),
    "words": Sibling(_words, False),
    "sentencepiece": Sibling(_sentencepiece, False),
    "tiktoken": Sibling(_tiktoken, True),
    "bpe": Sibling(lambda place: open_tokenizer(KINDS["bpe"](corpus_texts(), 400, SPECIAL)), True),
    "own": Sibling(
        lambda place: open_tokenizer(
            KINDS["bpe"](corpus_texts(), 400, SPECIAL), engine="tokenizers"
        ),
        True,
    ),
    "unigram": Sibling(
        lambda place: open_tokenizer(KINDS["unigram"](corpus_texts(), 400, SPECIAL)), True
    ),
    "wordlevel": Sibling(
        lambda place: open_tokenizer(KINDS["words"](corpus_texts(), 400, SPECIAL)), False
    ),
}


@pytest.fixture(scope="session", params=list(SIBLINGS))
def sibling(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, bool]:
    if request.param == "unigram":
        pytest.importorskip("sentencepiece")
    known = SIBLINGS[request.param]
    return known.open(tmp_path_factory.mktemp("sibling")), known.exact


def each(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    encoded = tokenizer.encode(pa.array(texts, pa.string()))
    assert encoded.offsets.dtype == np.int64
    assert encoded.ids.dtype == np.uint32
    assert encoded.offsets[0] == 0
    assert encoded.offsets[-1] == len(encoded.ids)
    assert len(encoded.offsets) == len(texts) + 1
    return [
        encoded.ids[a:b].tolist()
        for a, b in zip(encoded.offsets[:-1], encoded.offsets[1:], strict=True)
    ]


def test_all_kinds_of_unicode_come_back_and_are_numbers_of_tokens(sibling):
    tokenizer, exact = sibling
    texts = list(engines.strings())
    ids = each(tokenizer, texts)
    assert max(max(row, default=0) for row in ids) < tokenizer.vocabulary
    assert ids[0] == []
    if exact:
        assert [tokenizer.decode(row) for row in ids] == texts
        assert engines.not_given_back(tokenizer) is None
    else:
        assert engines.not_given_back(tokenizer) is not None


@given(TEXTS)
@examples(30)
def test_texts_of_a_batch_are_encoded_as_each_alone(sibling, texts):
    tokenizer, exact = sibling
    together = each(tokenizer, texts)
    assert together == [each(tokenizer, [text])[0] for text in texts]
    sliced = tokenizer.encode(pa.array(["before", *texts, "after"]).slice(1, len(texts)))
    assert sliced.ids.tolist() == [number for row in together for number in row]
    special = [name for text in texts for name in tokenizer.special if name in text]
    if exact and not special:
        assert [tokenizer.decode(row) for row in together] == texts


def test_a_dataset_that_keeps_the_files_opens_the_same_tokenizer(sibling, tmp_path):
    tokenizer, _ = sibling
    for name, data in tokenizer.files.items():
        (tmp_path / name).write_bytes(data)
    again = open_tokenizer(tokenizer.kept_as, tmp_path)
    facts = ("vocabulary", "eos", "bos", "pad", "special", "files", "versions", "kept_as")
    for name in facts[:5] + facts[7:]:
        assert getattr(again, name) == getattr(tokenizer, name)
    assert each(again, ["the cat", "文"]) == each(tokenizer, ["the cat", "文"])


def test_tokens_have_names_and_names_have_numbers(sibling):
    tokenizer, _ = sibling
    for name, number in tokenizer.special.items():
        assert tokenizer.number(name) == number
        assert tokenizer.token(number) == name
    used = {number for row in each(tokenizer, engines.strings()[:300]) for number in row}
    assert all(tokenizer.token(number) for number in used)
    assert tokenizer.number("no such token at all") is None
    for wrong in (-1, 10**9):
        with pytest.raises(IndexError):
            tokenizer.token(wrong)


@given(st.text(max_size=60))
@examples(40)
def test_places_of_tokens_cover_a_text(sibling, text):
    """Each character is in the place of a token, and places rise."""
    tokenizer, exact = sibling
    if not isinstance(tokenizer, WithOffsets) or not exact:
        return
    (placed,) = tokenizer.with_offsets([text])
    covered = {
        char
        for a, b in zip(placed.starts.tolist(), placed.ends.tolist(), strict=True)
        for char in range(a, b)
    }
    assert covered == set(range(len(text)))
    assert (np.diff(placed.starts) >= 0).all()


def test_places_by_bytes_are_those_that_the_package_tells(bpe):
    tokenizer = open_tokenizer(bpe)
    assert isinstance(tokenizer, HuggingFace)
    own = tokenizers.Tokenizer.from_buffer(bpe)
    texts = [text for text in engines.with_tokens(SPECIAL, ["the"]) if text]
    for text, placed in zip(texts, tokenizer.with_offsets(texts), strict=True):
        right = own.encode(text)
        assert placed.ids.tolist() == right.ids
        assert list(zip(placed.starts.tolist(), placed.ends.tolist(), strict=True)) == [
            tuple(pair) for pair in right.offsets
        ]


@pytest.mark.parametrize("name", list(ENGINES))
def test_engines_give_the_tokens_of_tokenizers(bpe, name):
    pytest.importorskip(name)
    fast, own = open_tokenizer(bpe, engine=name), open_tokenizer(bpe, engine="tokenizers")
    assert fast.versions == (
        *own.versions,
        next(version for version in fast.versions if version.startswith(name)),
    )
    code_points = (chr(code) for code in range(0x32000) if not 0xD800 <= code < 0xE000)
    text = "".join(f"{c}a {c}1{c}" for c in code_points)
    texts = [text[start : start + 700] for start in range(0, 200_000, 700)]
    assert each(fast, texts) == each(own, texts)


@given(texts=TEXTS)
@examples(30)
@pytest.mark.parametrize("name", list(ENGINES))
def test_engines_give_the_same_tokens_for_drawn_texts(bpe, name, texts):
    pytest.importorskip(name)
    fast, own = open_tokenizer(bpe, engine=name), open_tokenizer(bpe, engine="tokenizers")
    marked = [text.replace("a", "<|im_end|>") for text in texts]
    assert each(fast, texts + marked) == each(own, texts + marked)


def test_tokens_that_a_tokenizer_adds_are_added_by_engines_too(bpe):
    own = tokenizers.Tokenizer.from_buffer(bpe)
    special = [("<|im_start|>", 2), ("<|endoftext|>", 0)]
    own.post_processor = tokenizers.processors.TemplateProcessing(
        "<|im_start|> $A <|endoftext|>", special_tokens=special
    )
    found = open_tokenizer(own.to_str())
    assert each(found, ["the", "", "文"]) == [own.encode(text).ids for text in ("the", "", "文")]
    assert each(found, [""]) == [[2, 0]]
    assert engines.not_given_back(found) is None


def test_an_engine_that_differs_is_not_used(bpe, monkeypatch):
    class Wrong:
        version, code = "wrong 1.0", ("gigatoken.gigatoken_rs",)

        def __init__(self, data: bytes) -> None:
            self._own = open_tokenizer(data, engine="tokenizers")

        def encode(self, texts: pa.Array) -> Any:
            import pyarrow.compute as pc

            return self._own.encode(pc.replace_substring(texts, "\u3000", " "))

    monkeypatch.setitem(ENGINES, "gigatoken", Wrong)
    monkeypatch.delitem(ENGINES, "tiktoken")
    huggingface._proven.cache_clear()
    try:
        assert open_tokenizer(bpe).versions == (f"tokenizers {tokenizers.__version__}",)
        with pytest.raises(
            UsageError,
            match="the engine gigatoken cannot be used: it gives other tokens than tokenizers for",
        ):
            open_tokenizer(bpe, engine="gigatoken")
    finally:
        huggingface._proven.cache_clear()


@pytest.fixture
def proofs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Engine]]:
    """The engines that are proven from now on, by a user who has no proofs yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made: list[Engine] = []
    prove = huggingface._prove
    monkeypatch.setattr(
        huggingface, "_prove", lambda engine, *rest: made.append(engine) or prove(engine, *rest)
    )
    huggingface._proven.cache_clear()
    yield made
    huggingface._proven.cache_clear()


def opened_anew(data: bytes) -> huggingface.HuggingFace:
    """Open a tokenizer as another process does."""
    huggingface._proven.cache_clear()
    found = open_tokenizer(data)
    assert isinstance(found, huggingface.HuggingFace)
    return found


def test_a_proof_is_remembered_and_damage_of_it_does_no_harm(bpe, tmp_path, proofs):
    pytest.importorskip("tiktoken")
    kept = tmp_path / "cache" / "shardctl" / "tokenizers"

    def found() -> Any:
        opened = opened_anew(bpe)
        assert engines.not_given_back(opened) is None
        return (
            opened.versions,
            opened.vocabulary,
            opened.special,
            opened.eos,
            each(opened, ["the cat", "<|endoftext|>文"]),
        )

    first = found()
    assert (len(proofs), found(), len(proofs)) == (1, first, 1)
    whole = kept.read_bytes()
    vocabulary = str(first[1]).encode()
    digit = b"1" if vocabulary[:1] != b"1" else b"2"
    for damaged in (
        b"",
        whole[:-9],
        whole.replace(vocabulary, digit + vocabulary[1:]),
        b"\xff\n" + whole[2:],
        whole * 2,
    ):
        kept.write_bytes(damaged)
        proofs.clear()
        assert found() == first
        assert len(proofs) == 1
    proofs.clear()
    kept.parent.chmod(0o777)  # somebody else may have written it
    assert (found(), len(proofs)) == (first, 1)
    kept.unlink()
    kept.parent.rmdir()
    kept.parent.write_text("no folder")
    assert (found(), len(proofs)) == (first, 2)


def test_a_proof_of_an_engine_holds_for_its_very_files(bpe, tmp_path, monkeypatch, proofs):
    pytest.importorskip("tiktoken")
    code = tmp_path / "engine_of_test.py"
    code.write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in list(ENGINES):
        monkeypatch.setattr(ENGINES[name], "code", ("engine_of_test",))
    opened_anew(bpe)
    assert (opened_anew(bpe).versions, len(proofs)) == (opened_anew(bpe).versions, 1)
    code.write_text("# built again")
    opened_anew(bpe)
    assert len(proofs) == 2
    opened_anew(bpe + b" ")
    assert len(proofs) == 3


def test_a_remembered_engine_that_does_not_open_gives_way_to_another_one(bpe, monkeypatch, proofs):
    pytest.importorskip("tiktoken")
    first = opened_anew(bpe)
    expected = each(first, ["the cat"])
    (engine,) = proofs
    monkeypatch.setattr(type(engine), "encode", lambda *_: 1 / 0)
    second = opened_anew(bpe)
    assert second.versions != first.versions
    assert each(second, ["the cat"]) == expected


def test_an_engine_that_cannot_do_a_tokenizer_is_refused_in_a_sentence(tmp_path):
    words = KINDS["words"](corpus_texts(), 100, SPECIAL)
    for name in ENGINES:
        with pytest.raises(
            UsageError,
            match=f"the engine {name} cannot be used: .*; set engine = auto",
        ):
            open_tokenizer(words, engine=name)
    with pytest.raises(
        UsageError,
        match=r"engine = tiktoken is for a tokenizer.json, and the tokenizer bytes is none",
    ):
        open_tokenizer("bytes", engine="tiktoken")


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("number", range(len(huggingface._PATTERNS)))
def test_long_texts_are_cut_where_their_tokens_do_not_change(bpe, monkeypatch, number):
    """With each of the patterns that are known; the engines do them, or leave them to
    tokenizers."""
    monkeypatch.setattr(huggingface, "TOGETHER", 2_000)
    monkeypatch.setattr(huggingface, "CUT", 300)
    rng = random.Random(5)
    raw = tokenizers.Tokenizer.from_buffer(bpe)
    pattern = tokenizers.Regex(sorted(huggingface._PATTERNS)[number])
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(pattern, "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe = raw.to_str().encode()
    pieces = [
        "the",
        " cat",
        " ",
        "  ",
        "\n",
        "\n\n",
        "。",
        "文",
        "é",
        "!",
        "<|im_end|>",
        "don't",
        "12",
        "\t",
        "\r\n",
        " a",
    ]
    for _ in range(8):
        text = "".join(rng.choices(pieces, k=3_000))
        assert len(list(pieces_of(text))) > 5
        assert "".join(pieces_of(text)) == text
        for engine in ("auto", "tokenizers"):
            assert each(open_tokenizer(bpe, engine=engine), [text, "a"]) == [
                raw.encode(text).ids,
                raw.encode("a").ids,
            ]


def test_a_tokenizer_json_that_cuts_and_fills_does_neither(bpe):
    own = tokenizers.Tokenizer.from_buffer(bpe)
    own.enable_truncation(3)
    own.enable_padding(length=50)
    for engine in ("auto", "tokenizers"):
        assert each(open_tokenizer(own.to_str(), engine=engine), ["a b c d e f g"]) == each(
            open_tokenizer(bpe), ["a b c d e f g"]
        )


def test_the_files_of_a_folder_say_what_tokens_are_for(folder, tmp_path):
    found = open_tokenizer(str(folder))
    assert (found.eos, found.pad) == (SPECIAL.index("<|im_end|>"), SPECIAL.index("<|pad|>"))
    assert set(found.files) == {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    assert open_tokenizer(str(tmp_path)).eos == SPECIAL.index("<|endoftext|>")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')
    assert open_tokenizer(str(tmp_path)).eos == 2
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "<|im_end|>"}')
    assert open_tokenizer(str(tmp_path)).eos == 3


def test_published_encodings_are_those_of_tiktoken(monkeypatch):
    public = pytest.importorskip("tiktoken_ext.openai_public")
    monkeypatch.setattr(public, "load_tiktoken_bpe", lambda *args, **kwargs: {})
    for name, (pattern, special) in ENCODINGS.items():
        theirs = public.ENCODING_CONSTRUCTORS[name]()
        assert (pattern, dict(special)) == (theirs["pat_str"], theirs["special_tokens"])


WRONG = {
    "nothing.json": (None, "it cannot be read"),
    "text.json": (b"hello", "not JSON"),
    "list.json": (b"[]", "not a JSON object"),
    "empty.json": (b"{}", "not a tokenizer.json of Hugging Face: it has no model"),
    "model.json": (b'{"model": {"type": "BPE"}}', "not a tokenizer.json that tokenizers can read"),
    "x.model": (b"hello", "not a SentencePiece model"),
    "twice.txt": (b"<unk>\na\na\n", "the word 'a' occurs twice"),
    "unknown.txt": (b"a\nb\n", "there is no unknown token"),
    "empty.txt": (b"", "it is empty; write a word on each line"),
    "latin.txt": (b"<unk>\n\xe9\n", "a vocabulary is UTF-8"),
    "cl100k_base.tiktoken": (b"YQ== 0\n", "there is no token for the byte 0"),
    "o200k_base.tiktoken": (b"YQ==\n", "line 1 is not a token in base 64 and its rank"),
    "own.tiktoken": (b"YQ== 0\n", "the encoding 'own' is not known"),
    "tokenizer.tiktoken": (
        b"YQ== 0\n",
        "tokenizer_tiktoken.json beside it does not say which encoding it is",
    ),
    "a.zip": (b"", "a tokenizer is a tokenizer.json or a folder with one"),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_file_is_one_sentence(tmp_path, name):
    data, problem = WRONG[name]
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises((InputError, UsageError)) as caught:
        open_tokenizer(str(tmp_path / name))
    assert problem in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_names_are_one_sentence(tmp_path):
    for spec, problem in (
        (str(tmp_path), "the folder has none of tokenizer.json, tokenizer.model"),
        ("tiktoken:cl100k_base", "is not of the form tiktoken:ENCODING:FILE"),
        ("gpt2", "there is no such file; .* download the tokenizer.json"),
        ("no/such/file", "there is no such file; a tokenizer is"),
        ('{"a": 1}', "the tokenizer.json that was given: not a tokenizer.json"),
    ):
        with pytest.raises((InputError, UsageError), match=problem):
            open_tokenizer(spec)


def jsonl(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def documents(path: Path) -> Path:
    """Write texts of many kinds, some of them empty or missing, in two files."""
    path.mkdir()
    texts = [text for group in corpus_texts()[:2] for text in group] + list(engines.strings()[1:90])
    jsonl(path / "a.jsonl", [{"text": text, "n": number} for number, text in enumerate(texts)])
    jsonl(
        path / "b.jsonl",
        [{"text": "", "n": 1}, {"text": None, "n": 2}, {"text": "the last\n", "n": 3}],
    )
    return path


def written(out: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in out.iterdir()
        if path.is_file() and path.name != "manifest.json"
    }


def test_texts_become_tokens_that_give_them_back_for_any_number_of_workers(folder, tmp_path):
    source = documents(tmp_path / "in")
    recipe = {"transform": [{"name": "tokenize", "tokenizer": str(folder)}]}
    made = [
        shardctl.convert(source, tmp_path / str(n), recipe=recipe, workers=n, samples_per_shard=30)
        for n in (0, 2)
    ]
    assert written(tmp_path / "0") == written(tmp_path / "2")
    ds = shardctl.open(tmp_path / "0")
    assert ds.schema.field("tokens").type == pa.list_(pa.uint16())
    assert "text" not in ds.schema.names
    tokenizer = open_tokenizer(str(folder))
    texts = (
        [text for group in corpus_texts()[:2] for text in group]
        + list(engines.strings()[1:90])
        + ["the last\n"]
    )
    assert [tokenizer.decode(sample["tokens"]) for sample in ds] == texts
    rejects = [
        (reject.key, reject.stage, reject.error)
        for reject in read_rejects(LocalFolder(tmp_path / "0"))
    ]
    assert rejects == [("b.jsonl#1", "transform", "empty"), ("b.jsonl#2", "transform", "empty")]
    assert made[0].steps[0]["tokens"] == sum(len(sample["tokens"]) for sample in ds)
    role = json.loads((tmp_path / "0" / "manifest.json").read_text())["fields"]["tokens"]
    assert role == {
        "role": "tokens",
        "vocabulary": 400,
        "eos": 3,
        "pad": 1,
        "tokenizer": "tokenizer.json",
    }


def test_the_dataset_has_its_tokenizer_and_needs_the_first_one_no_more(folder, tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(folder, mine)
    source, out = documents(tmp_path / "in"), tmp_path / "out"
    recipe = {"transform": [{"name": "tokenize", "tokenizer": str(mine), "eos": "<|endoftext|>"}]}
    convert(source, out, recipe=recipe)
    manifest = json.loads((out / "manifest.json").read_text())
    (step,) = manifest["recipe"]["transform"]
    assert step["tokenizer"] == "tokenizer.json"
    assert str(mine) not in json.dumps(manifest["recipe"])
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= set(written(out))
    assert f"tokenizers {tokenizers.__version__}" in manifest["fingerprint_parts"]["versions"]
    assert convert(source, out, recipe=recipe).status == "up-to-date"
    before = written(out)
    shutil.rmtree(mine)
    shard = out / "train-00000.arrow"
    shard.write_bytes(before[shard.name][:-50] + bytes(50))
    assert repair(out).status == "repaired"
    assert written(out) == before
    (out / "tokenizer.json").write_bytes(before["tokenizer.json"] + b" ")
    assert [finding.kind for finding in shardctl.verify(out).findings] == ["wrong-size"]
    with pytest.raises(
        InputError,
        match=r"out: this is not the tokenizer of the recipe: its SHA-256 is",
    ):
        convert(
            source,
            tmp_path / "again",
            recipe={"transform": [{**step, "tokenizer": str(out)}]},
        )


def test_another_tokenizer_makes_another_dataset(folder, tmp_path, out):
    source = documents(tmp_path / "in")
    for number, spec in enumerate((str(folder), str(folder / "tokenizer.json"))):
        recipe = {"transform": [{"name": "tokenize", "tokenizer": spec}]}
        made = convert(source, out, recipe=recipe)
        assert made.status == ("created", "up-to-date")[number]
    with pytest.raises(shardctl.errors.DatasetError, match="differs in its recipe"):
        convert(
            source,
            out,
            recipe={"transform": [{"name": "tokenize", "tokenizer": "bytes"}]},
        )


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (
            {"eos": "<nothing>"},
            "tokenize: eos names the token '<nothing>', and the tokenizer has",
        ),
        ({"engine": "fast"}, "tokenize: engine must be auto, tokenizers, gigatoken or tiktoken"),
        ({"dtype": "uint8"}, "tokenize: dtype must be auto, uint16 or uint32"),
    ],
)
def test_settings_that_cannot_be_are_a_sentence(tmp_path, bpe, step, problem):
    (tmp_path / "t.json").write_bytes(bpe)
    source = documents(tmp_path / "in")
    recipe = {"transform": [{"name": "tokenize", "tokenizer": str(tmp_path / "t.json"), **step}]}
    with pytest.raises((UsageError, InputError), match=problem):
        convert(source, tmp_path / "out", recipe=recipe)


@pytest.mark.thorough
def test_a_vocabulary_that_is_too_large_for_the_dtype_is_a_sentence(tmp_path, out):
    (tmp_path / "w.txt").write_text(
        "<unk>\n" + "".join(f"w{number}\n" for number in range(1 << 16))
    )
    source = documents(tmp_path / "in")
    step = {"name": "tokenize", "tokenizer": str(tmp_path / "w.txt")}
    with pytest.raises(
        UsageError,
        match="a vocabulary of 65,537 tokens does not fit in uint16, which has room for 65,536",
    ):
        convert(source, out, recipe={"transform": [{**step, "dtype": "uint16"}]})
    convert(source, out, recipe={"transform": [step]})
    assert shardctl.open(out).schema.field("tokens").type == pa.list_(pa.uint32())


def test_a_tokenizer_that_loses_something_is_a_notice_or_rejects_what_it_loses(tmp_path):
    (tmp_path / "w.txt").write_text("<unk>\nthe\ncat\n")
    source = jsonl(
        tmp_path / "in.jsonl",
        [{"text": "the cat"}, {"text": "the  cat"}, {"text": "the dog"}, {"text": " "}],
    )
    step = {"name": "tokenize", "tokenizer": str(tmp_path / "w.txt"), "keep_text": True}
    made = convert(source, tmp_path / "a", recipe={"transform": [step]})
    assert any(
        "the tokenizer tokenizer.txt does not give every text back" in notice
        for notice in made.notices
    )
    assert [(s["text"], s["tokens"].tolist()) for s in shardctl.open(tmp_path / "a")] == [
        ("the cat", [1, 2]),
        ("the  cat", [1, 2]),
        ("the dog", [1, 0]),
    ]
    made = convert(
        source,
        tmp_path / "b",
        recipe={"transform": [{**step, "exact": True}]},
        max_rejects="100%",
    )
    assert made.notices == ()
    assert made.reasons == {"transform: not-exact": 2, "transform: empty": 1}


def test_a_text_that_takes_too_much_memory_is_rejected(tmp_path, out, monkeypatch):
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    (tmp_path / "t.json").write_text(own.to_str())
    monkeypatch.setattr(huggingface, "MOST", 800)
    source = jsonl(tmp_path / "in.jsonl", [{"text": "a"}, {"text": "a" * 801}, {"text": "a" * 800}])
    recipe = {"transform": [{"name": "tokenize", "tokenizer": str(tmp_path / "t.json")}]}
    convert(source, out, recipe=recipe)
    assert len(shardctl.open(out)) == 2
    (reject,) = read_rejects(LocalFolder(out))
    assert (reject.key, reject.error) == ("in.jsonl#2", "too-large")
    assert "the text has 801 B and cannot be cut" in reject.message


def test_a_long_text_that_can_be_cut_is_not_too_long(bpe, monkeypatch):
    monkeypatch.setattr(huggingface, "MOST", 400)
    monkeypatch.setattr(huggingface, "CUT", 300)
    for engine in ("auto", "tokenizers"):
        tokenizer = open_tokenizer(bpe, engine=engine)
        assert tokenizer.too_long(pa.array(["the cat " * 60, "文" * 200, "a"])).tolist() == [
            False,
            True,
            False,
        ]
        assert tokenizer.too_long(pa.array(["a b\nc " * 300])).tolist() == [False]


CHATS = [
    [{"role": "user", "content": "hi the cat"}, {"role": "assistant", "content": "yes 文\n"}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": " b c"},
        {"role": "user", "content": "d"},
        {"role": "assistant", "content": "e"},
    ],
]


def counted_text(out: Path, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Return the text of each sample, and that of the tokens which the loss counts."""
    made = []
    for sample in shardctl.open(out):
        tokens, mask = np.asarray(sample["tokens"]), np.asarray(sample["loss_mask"])
        assert tokens.shape == mask.shape
        assert set(mask.tolist()) <= {0, 1}
        made.append((tokenizer.decode(tokens), tokenizer.decode(tokens[mask == 1])))
    return made


@pytest.mark.parametrize("spec", ["bytes", "bpe"])
def test_the_loss_counts_what_an_assistant_says(tmp_path, out, bpe, spec, cli):
    (tmp_path / "t.json").write_bytes(bpe)
    name = spec if spec == "bytes" else str(tmp_path / "t.json")
    source = jsonl(tmp_path / "in.jsonl", [{"messages": chat} for chat in CHATS])
    ran = cli(
        "convert",
        source,
        out,
        "--tokenizer",
        name,
        "--chat-template",
        "chatml",
        "--workers",
        0,
    )
    assert ran.code == 0
    assert counted_text(out, open_tokenizer(name)) == [
        (
            "<|im_start|>user\nhi the cat<|im_end|>\n<|im_start|>assistant\nyes 文\n<|im_end|>\n",
            "yes 文\n<|im_end|>",
        ),
        (
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n b c<|im_end|>\n"
            "<|im_start|>user\nd<|im_end|>\n<|im_start|>assistant\ne<|im_end|>\n",
            " b c<|im_end|>e<|im_end|>",
        ),
    ]


def test_a_chat_is_encoded_as_its_whole_text(folder, tmp_path):
    """As a model gets it when it is used; no other token is added."""
    source = jsonl(tmp_path / "in.jsonl", [{"messages": chat, "n": 1} for chat in CHATS])
    recipe = {"transform": [{"name": "tokenize_chat", "tokenizer": str(folder)}]}
    made = [shardctl.convert(source, tmp_path / str(n), recipe=recipe, workers=n) for n in (0, 2)]
    assert written(tmp_path / "0") == written(tmp_path / "2")
    texts = [text for text, _ in counted_text(tmp_path / "0", open_tokenizer(str(folder)))]
    assert texts[0] == "[user] hi the cat[assistant] yes 文\n<|im_end|>"
    own = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert [list(sample["tokens"]) for sample in shardctl.open(tmp_path / "0")] == [
        own.encode(text).ids for text in texts
    ]
    assert shardctl.open(tmp_path / "0").schema.names == ["key", "n", "tokens", "loss_mask"]
    assert made[0].steps[0]["loss_tokens"] == sum(
        int(sum(sample["loss_mask"])) for sample in shardctl.open(tmp_path / "0")
    )


def test_chats_that_cannot_be_trained_on_are_rejected_with_the_reason(folder, tmp_path, out):
    answer = {"role": "assistant", "content": "b"}
    chats: list[tuple[Any, str]] = [
        (CHATS[0], ""),
        ([], "messages"),
        (None, "messages"),
        ([{"role": "user"}, answer], "content"),
        ([{"content": "a"}, answer], "role"),
        ([{"role": "user", "content": "x <|im_end|> y"}, answer], "special-token"),
        ([{"role": "system", "content": "a"}, answer], "template"),
        ([{"role": "user", "content": "a"}], "no-answer"),
        ([{"role": "user", "content": "\ufdd0"}, answer], "noncharacter"),
        ([{"role": "user", "content": "What?", "images": ["a.jpg"]}, answer], "media"),
        ([{"role": "user", "content": [{"type": "image", "text": "x"}]}, answer], "media"),
    ]
    source = jsonl(tmp_path / "in.jsonl", [{"messages": chat} for chat, _ in chats])
    recipe = {"transform": [{"name": "tokenize_chat", "tokenizer": str(folder)}]}
    convert(source, out, recipe=recipe, max_rejects="100%")
    rejects = {reject.key: reject for reject in read_rejects(LocalFolder(out))}
    found = [
        rejects[f"in.jsonl#{number}"].error if f"in.jsonl#{number}" in rejects else ""
        for number in range(1, 12)
    ]
    assert found == [error for _, error in chats]
    assert rejects["in.jsonl#7"].message == "the chat template refuses it: role system"
    assert (
        rejects["in.jsonl#6"].message
        == "a message has <|im_end|> in it, which would become the special token of this name"
    )


TEMPLATES = {
    "{% generation %}{{ x }": "line 1 of the chat template: ",
    "{% generation %}{{ messages|random }}{% endgeneration %}": "No filter named 'random'",
    "{% generation %}{% endgeneration %}"
    + "{% for m in messages %}" * 25
    + "{% endfor %}" * 25: "too many statically nested",
    "{% generation %}{{ "
    + "(" * 3000
    + "1"
    + ")" * 3000
    + " }}{% endgeneration %}": "cannot be compiled: RecursionError",
}


@pytest.mark.parametrize("template", list(TEMPLATES))
def test_a_template_that_cannot_be_used_is_a_sentence(bpe, tmp_path, template):
    (tmp_path / "t.json").write_bytes(bpe)
    (tmp_path / "x.jinja").write_text(template)
    source = jsonl(tmp_path / "in.jsonl", [{"messages": chat} for chat in CHATS])
    step = {
        "name": "tokenize_chat",
        "tokenizer": str(tmp_path / "t.json"),
        "template": str(tmp_path / "x.jinja"),
    }
    with pytest.raises(InputError) as caught:
        convert(source, tmp_path / "out", recipe={"transform": [step]})
    assert TEMPLATES[template] in str(caught.value)


@pytest.mark.parametrize(
    "template",
    [
        "{% generation %}{{ nothing.at.all }}{% endgeneration %}",
        "{% generation %}{{ ''.__class__.__mro__ }}{% endgeneration %}",
        "{% generation %}{{ strftime_now('%Y') }}{% endgeneration %}",
        "{% generation %}{{ messages.append(1) }}{% endgeneration %}",
        "{% include 'x.jinja' %}{% generation %}a{% endgeneration %}",
    ],
)
def test_a_template_that_asks_for_what_is_not_there_or_not_allowed_rejects(template):
    with pytest.raises(Rejection, match=r"the chat template (refuses it|fails): ") as caught:
        Template(template, {}, "x.jinja").write(CHATS[0])
    assert caught.value.error == "template"


def test_messages_may_have_values_that_are_no_text():
    """As those of Parquet files have."""
    messages = [
        {"role": "user", "content": "a", "at": datetime(2026, 1, 2), "weight": 1.5, "parts": [b"b"]}
    ]
    written = Template(
        "{% generation %}{{ messages[0].content }}{% endgeneration %} b", {}, "x.jinja"
    ).write(messages)
    assert (written.text, written.spans) == ("a b", ((0, 1),))


def test_a_template_of_a_file_is_part_of_the_dataset(bpe, tmp_path, out):
    (tmp_path / "x.jinja").write_text(
        "{% for m in messages %}{% if m.name %}{{ m.name }}{% endif %}{% generation %}{{ m.content "
        "}}{% endgeneration %}"
        "{% endfor %}"
    )
    source = jsonl(tmp_path / "in.jsonl", [{"messages": chat} for chat in CHATS])
    step = {"name": "tokenize_chat", "tokenizer": "bytes", "template": str(tmp_path / "x.jinja")}
    convert(source, out, recipe={"transform": [step]})
    assert counted_text(out, open_tokenizer("bytes"))[1] == ("a b cde", "a b cde")
    before = written(out)
    assert "chat_template.jinja" in before
    (tmp_path / "x.jinja").unlink()
    (out / "train-00000.arrow").unlink()
    assert repair(out).status == "repaired"
    assert written(out) == before


def test_chats_without_a_template_and_texts_that_are_chats_are_sentences(bpe, tmp_path, out, cli):
    (tmp_path / "t.json").write_bytes(bpe)
    source = jsonl(tmp_path / "in.jsonl", [{"messages": chat} for chat in CHATS])
    for arguments, problem in (
        (
            ("--tokenizer", tmp_path / "t.json"),
            "the records have messages and no text: for chats, use --chat-template",
        ),
        (
            ("--tokenizer", tmp_path / "t.json", "--chat-template", "auto"),
            "the tokenizer has no chat template; use template =",
        ),
        (("--chat-template", "chatml"), "--chat-template needs a tokenizer; give --tokenizer too"),
    ):
        ran = cli("convert", source, out, *arguments, "--workers", 0)
        assert ran.code in (2, 3)
        assert problem in ran.err
    texts = jsonl(tmp_path / "texts.jsonl", [{"text": "a"}])
    ran = cli(
        "convert",
        texts,
        out,
        *"--tokenizer bytes --chat-template chatml --workers 0".split(),
    )
    assert "tokenize_chat needs chats, and the records have text; chats have messages, " in ran.err


def test_the_option_tokenizer_comes_after_the_steps_of_a_recipe(tmp_path, out, cli):
    (tmp_path / "r.toml").write_text(
        'kind = "text"\n[[transform]]\nname = "tokenize"\ntokenizer = "nothing"\n'
    )
    source = jsonl(tmp_path / "in.jsonl", [{"text": "ab"}])
    arguments = ("--recipe", tmp_path / "r.toml", "--tokenizer", "bytes", "--workers", 0)
    assert cli("convert", source, out, *arguments).code == 0
    (sample,) = shardctl.open(out)
    assert list(sample["tokens"]) == [97, 98]


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("kind", list(KINDS))
def test_training_is_the_same_each_time(tmp_path, cli, kind):
    if kind == "unigram":
        pytest.importorskip("sentencepiece")
    source = documents(tmp_path / "in")
    for number in (1, 2):
        arguments = (
            source,
            tmp_path / f"{number}.json",
            "--kind",
            kind,
            "--vocab-size",
            300,
            "--workers",
            0,
            "--json",
        )
        ran = cli("tokenizer", "train", *arguments)
        assert ran.code == 0, ran.err
        assert (ran.json["vocabulary"], ran.json["documents"], ran.json["rejected"]) == (
            300,
            130,
            0,
        )
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()
    shown = cli("tokenizer", "show", tmp_path / "1.json", "--json").json
    assert (shown["vocabulary"], shown["dtype"], shown["lost"] is None) == (
        300,
        "uint16",
        kind != "words",
    )
    assert [shown["special"][name] for name in SPECIAL] == (
        [0, 1, 2, 3] if kind != "words" else [1, 2, 3, 4]
    )


def test_a_tokenizer_is_trained_on_what_a_recipe_leaves_and_on_datasets(tmp_path):
    source = jsonl(
        tmp_path / "in.jsonl",
        [{"body": "aaa bbb", "n": n} for n in range(40)] + [{"body": None, "n": 1}],
    )
    steps = [{"name": "tokenize", "tokenizer": "bytes"}, {"name": "filter_length", "min_tokens": 1}]
    recipe = {"text_field": "body", "transform": steps}
    first = shardctl.train_tokenizer(
        source, tmp_path / "a.txt", recipe, kind="words", vocab_size=10, workers=0
    )
    assert (tmp_path / "a.txt").read_text().split("\n")[:1] == ["<unk>"]
    assert {"aaa", "bbb"} <= set((tmp_path / "a.txt").read_text().split("\n"))
    assert (first.documents, first.bytes, len(first.notices)) == (40, 280, 1)
    convert(source, tmp_path / "ds", recipe={"text_field": "body"})
    again = shardctl.train_tokenizer(
        tmp_path / "ds", tmp_path / "b.txt", kind="words", vocab_size=10
    )
    assert again.sha256 == first.sha256
    some = shardctl.train_tokenizer(
        tmp_path / "ds", tmp_path / "c.txt", kind="words", vocab_size=10, max_bytes=70
    )
    assert 70 <= some.bytes <= 77


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("in.jsonl", "t.json", "--vocab-size", "100"), 2, "give 260 or more; it is 100"),
        (("in.jsonl", "t.bin"), 2, "a tokenizer is written to a file that ends in .json"),
        (("in.jsonl", "old.json"), 3, "old.json: exists already; give --overwrite to replace it"),
        (("empty.jsonl", "t.json"), 3, "there is no text to train on"),
        (
            ("in.jsonl", "t.json", "--special-tokens", "<a>,<a>"),
            2,
            "the special tokens must be different names",
        ),
    ],
)
def test_training_that_cannot_be_is_a_sentence(
    tmp_path, cli, monkeypatch, arguments, code, problem
):
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "in.jsonl", [{"text": "a"}])
    jsonl(tmp_path / "empty.jsonl", [{"text": ""}])
    jsonl(tmp_path / "other.jsonl", [{"n": 1}])
    (tmp_path / "old.json").write_text("mine")
    ran = cli("tokenizer", "train", *arguments, "--workers", 0)
    assert (ran.code, ran.out) == (code, "")
    assert problem in ran.err
    assert (tmp_path / "old.json").read_text() == "mine"


def test_a_file_of_yours_is_not_replaced_by_the_tokenizer_of_a_new_dataset(bpe, tmp_path):
    (tmp_path / "t.json").write_bytes(bpe)
    out, source = tmp_path / "out", jsonl(tmp_path / "in.jsonl", [{"text": "a b"}])
    recipe = {"transform": [{"name": "tokenize", "tokenizer": str(tmp_path / "t.json")}]}
    convert(source, out)
    (out / "tokenizer.json").write_text("mine")
    for dry_run in (True, False):
        with pytest.raises(StorageError, match="not of a dataset"):
            convert(source, out, recipe=recipe, overwrite=True, dry_run=dry_run)
    assert (out / "tokenizer.json").read_text() == "mine"
    (out / "tokenizer.json").write_bytes(bpe)  # nothing is lost then
    convert(source, out, recipe=recipe, overwrite=True)
    convert(
        source,
        out,
        recipe={"transform": [{**recipe["transform"][0], "pad": "<|pad|>"}]},
        overwrite=True,
    )
    assert shardctl.verify(out).ok


def test_a_tokenizer_with_a_huge_number_does_not_end_the_process(bpe):
    """As gigatoken does, which asks for a table of so many tokens."""
    said = json.loads(bpe)
    token = {
        "content": "<z>",
        "special": True,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
    }
    said["added_tokens"].append({**token, "id": 2**32 - 1})
    found = open_tokenizer(json.dumps(said))
    assert found.special["<z>"] == found.vocabulary - 1 < 1000  # as the package numbers it
    assert found.encode(pa.array(["a<z>"])).ids[-1] == found.special["<z>"]
    said = json.loads(bpe)
    number = max(said["model"]["vocab"].values())
    symbol = next(name for name in said["model"]["vocab"] if said["model"]["vocab"][name] == number)
    said["model"]["vocab"][symbol] = 2**32 - 1
    with pytest.raises(UsageError, match="a token has a number above 16,777,216"):
        open_tokenizer(json.dumps(said), engine="gigatoken")
    assert open_tokenizer(json.dumps(said)).vocabulary == 2**32


def test_what_is_no_file_is_not_opened_as_a_tokenizer(tmp_path):
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(InputError, match="it is not a regular file"):
        open_tokenizer("tokenizer.json", tmp_path)
    with pytest.raises(InputError, match="no file has such a name"):
        open_tokenizer("a\0.json", tmp_path)
