"""Tokenizers: what goes in comes out; engines give the same tokens; chats, training, conversions,
wrong files."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import examples
from dataset_facts import rejects_of
from dataset_files import content_of, shard_in, tables_in
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert, repair
from json_lines import json_lines, texts_in

import shardctl
from shardctl.errors import InputError, UsageError
from shardctl.making.train_tokenizer import KINDS, SPECIAL
from shardctl.transforms.tokenizers import engines, huggingface
from shardctl.transforms.tokenizers.base import Tokenizer, WithOffsets
from shardctl.transforms.tokenizers.engines import ENGINES, Engine
from shardctl.transforms.tokenizers.huggingface import HuggingFace, pieces_of
from shardctl.transforms.tokenizers.table import open_tokenizer
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
    (tables_in(place) / "tokenizer.json").write_bytes(bpe)
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
    tokens = [bytes((byte,)) for byte in range(256)]
    tokens += [b"th", b"the", b" t", b" the", b"\xe6\x96"]
    return b"".join(
        base64.b64encode(token) + f" {rank}\n".encode() for rank, token in enumerate(tokens)
    )


def trained(kind: str, **options: Any) -> Tokenizer:
    return open_tokenizer(KINDS[kind](corpus_texts(), 400, SPECIAL), **options)


def _words(place: Path) -> Tokenizer:
    (place / "w.txt").write_text("<unk>\n<eos>\nthe\ncat\n文\n", encoding="utf-8")
    return open_tokenizer(f"words:{place / 'w.txt'}")


def _sentencepiece(place: Path) -> Tokenizer:
    package = pytest.importorskip("sentencepiece")
    with (place / "a.model").open("wb") as file:
        package.SentencePieceTrainer.Train(
            sentence_iterator=(text for group in corpus_texts() for text in group),
            model_writer=file,
            vocab_size=300,
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            minloglevel=2,
            num_threads=1,
        )
    return open_tokenizer(str(place / "a.model"))


def _tiktoken(place: Path) -> Tokenizer:
    pytest.importorskip("tiktoken")
    (place / "x.tiktoken").write_bytes(ranks())
    return open_tokenizer(f"tiktoken:cl100k_base:{place / 'x.tiktoken'}")


def _unigram(_: Path) -> Tokenizer:
    pytest.importorskip("sentencepiece")
    return trained("unigram")


SIBLINGS: dict[str, tuple[Callable[[Path], Tokenizer], bool]] = {
    "bytes": (lambda _: open_tokenizer("bytes"), True),
    "words": (_words, False),
    "sentencepiece": (_sentencepiece, False),
    "tiktoken": (_tiktoken, True),
    "bpe": (lambda _: trained("bpe"), True),
    "own": (lambda _: trained("bpe", engine="tokenizers"), True),
    "unigram": (_unigram, True),
    "wordlevel": (lambda _: trained("words"), False),
}
"""How a tokenizer under test is opened, and whether it gives back every text."""


@pytest.fixture(scope="session", params=list(SIBLINGS))
def sibling(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, bool]:
    opened, exact = SIBLINGS[request.param]
    return opened(tmp_path_factory.mktemp("sibling")), exact


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
    assert (engines.not_given_back(tokenizer) is None) == exact
    assert not exact or [tokenizer.decode(row) for row in ids] == texts


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
    for name in "vocabulary eos bos pad special kept_as".split():
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
    assert fast.versions[:-1] == own.versions
    assert fast.versions[-1].startswith(name)
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
        with pytest.raises(UsageError, match="other tokens"):
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
        tokens = each(opened, ["the cat", "<|endoftext|>文"])
        return opened.versions, opened.vocabulary, opened.special, opened.eos, tokens

    first = found()
    assert (len(proofs), found(), len(proofs)) == (1, first, 1)
    whole = kept.read_bytes()
    vocabulary = str(first[1]).encode()
    digit = b"1" if vocabulary[:1] != b"1" else b"2"
    other = whole.replace(vocabulary, digit + vocabulary[1:])
    for damaged in (b"", other):
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


def test_an_engine_that_cannot_do_a_tokenizer_is_refused(tmp_path):
    words = KINDS["words"](corpus_texts(), 100, SPECIAL)
    for given_tokenizer, name in [*((words, name) for name in ENGINES), ("bytes", "tiktoken")]:
        with pytest.raises(UsageError, match=name):
            open_tokenizer(given_tokenizer, engine=name)


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
        "。文",
        "é!",
        "<|im_end|>",
        "don't",
        "12\t\r\n",
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
    (tables_in(tmp_path) / "tokenizer.json").write_bytes(
        (tables_in(folder) / "tokenizer.json").read_bytes()
    )
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
    "nothing.json": (None, "cannot be read"),
    "text.json": (b"hello", "not JSON"),
    "list.json": (b"[]", "not a JSON object"),
    "empty.json": (b"{}", "no model"),
    "model.json": (b'{"model": {"type": "BPE"}}', "tokenizers can read"),
    "x.model": (b"hello", "SentencePiece"),
    "twice.txt": (b"<unk>\na\na\n", "twice"),
    "unknown.txt": (b"a\nb\n", "unknown token"),
    "empty.txt": (b"", "empty"),
    "latin.txt": (b"<unk>\n\xe9\n", "UTF-8"),
    "cl100k_base.tiktoken": (b"YQ== 0\n", "byte 0"),
    "o200k_base.tiktoken": (b"YQ==\n", "line 1"),
    "own.tiktoken": (b"YQ== 0\n", "not known"),
    "tokenizer.tiktoken": (b"YQ== 0\n", "which encoding"),
    "a.zip": (b"", "a tokenizer is"),
    "gpt2": (None, "download"),
    "a\0.json": (None, "such a name"),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_file_is_one_sentence(tmp_path, monkeypatch, name):
    data, problem = WRONG[name]
    monkeypatch.chdir(tmp_path)
    if data is not None:
        Path(name).write_bytes(data)
    with pytest.raises((InputError, UsageError)) as caught:
        open_tokenizer(name)
    assert problem in str(caught.value)
    assert name.partition("\0")[0] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_names_are_refused(tmp_path):
    for spec, problem in (
        (str(tmp_path), "none of tokenizer.json"),
        ("tiktoken:cl100k_base", "tiktoken:ENCODING:FILE"),
        ('{"a": 1}', "not a tokenizer.json"),
    ):
        with pytest.raises((InputError, UsageError), match=problem):
            open_tokenizer(spec)
    os.mkfifo(tables_in(tmp_path) / "tokenizer.json")
    with pytest.raises(InputError, match="regular file"):
        open_tokenizer("tokenizer.json", tmp_path)


def making(tokenizer: object, step: str = "tokenize", **settings: Any) -> dict[str, Any]:
    """Return the recipe of one step that makes tokens."""
    return {"transform": [{"name": step, "tokenizer": str(tokenizer), **settings}]}


MANY_TEXTS = [text for group in corpus_texts()[:2] for text in group]
MANY_TEXTS += engines.strings()[1:90]


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of many kinds, some of them empty or missing, in two files."""
    path = tmp_path_factory.mktemp("documents")
    texts_in(path / "a.jsonl", MANY_TEXTS)
    texts_in(path / "b.jsonl", ["", None, "the last\n"])
    return path


def test_texts_become_tokens_that_give_them_back_for_any_number_of_workers(
    folder, documents, tmp_path
):
    made = [
        shardctl.convert(
            documents, tmp_path / str(n), recipe=making(folder), workers=n, samples_per_shard=30
        )
        for n in (0, 2)
    ]
    assert content_of(tmp_path / "0") == content_of(tmp_path / "2")
    ds = shardctl.open(tmp_path / "0")
    assert ds.schema.field("tokens").type == pa.list_(pa.uint16())
    assert "text" not in ds.schema.names
    tokenizer = open_tokenizer(str(folder))
    assert [tokenizer.decode(sample["tokens"]) for sample in ds] == [*MANY_TEXTS, "the last\n"]
    rejects = [(reject.key, reject.stage, reject.error) for reject in rejects_of(tmp_path / "0")]
    assert rejects == [("b.jsonl#1", "transform", "empty"), ("b.jsonl#2", "transform", "empty")]
    assert made[0].steps[0]["tokens"] == sum(len(sample["tokens"]) for sample in ds)
    assert ds.manifest.fields["tokens"] == {
        "role": "tokens",
        "vocabulary": 400,
        "eos": 3,
        "pad": 1,
        "tokenizer": "tokenizer.json",
    }


def test_the_dataset_has_its_tokenizer_and_needs_the_first_one_no_more(
    folder, documents, tmp_path, out
):
    mine = tmp_path / "mine"
    shutil.copytree(folder, mine)
    recipe = making(mine, eos="<|endoftext|>")
    convert(documents, out, recipe=recipe)
    manifest = json.loads((out / "manifest.json").read_text())
    (step,) = manifest["recipe"]["transform"]
    assert step["tokenizer"] == "tokenizer.json"
    assert str(mine) not in json.dumps(manifest["recipe"])
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= set(
        content_of(out)
    )
    assert f"tokenizers {tokenizers.__version__}" in manifest["fingerprint_parts"]["versions"]
    assert convert(documents, out, recipe=recipe).status == "up-to-date"
    with pytest.raises(shardctl.errors.DatasetError, match="differs in its recipe"):
        convert(documents, out, recipe=making("bytes"))
    before = content_of(out)
    shutil.rmtree(mine)
    shard = shard_in(out, "train-00000")
    shard.write_bytes(before["train-00000"][:-50] + bytes(50))
    assert repair(out).status == "repaired"
    assert content_of(out) == before
    (out / "manifest.json").unlink()
    assert repair(out, sources=[documents]).repaired == ("manifest.json",)
    assert json.loads((out / "manifest.json").read_text())["files"] == manifest["files"]
    (tables_in(out) / "tokenizer.json").write_bytes(before["tokenizer.json"] + b" ")
    assert [finding.kind for finding in shardctl.verify(out).findings] == ["wrong-size"]
    repaired = repair(out)
    assert [entry.file for entry in repaired.unrepaired] == ["tokenizer.json"]
    assert "copy the right one" in repaired.unrepaired[0].message
    with pytest.raises(InputError, match="not the tokenizer of the recipe"):
        convert(
            documents,
            tmp_path / "again",
            recipe={"transform": [{**step, "tokenizer": str(tables_in(out))}]},
        )


def test_a_tokenizer_is_its_files_however_it_is_named(folder, documents, out):
    convert(documents, out, recipe=making(folder))
    again = convert(documents, out, recipe=making(tables_in(folder) / "tokenizer.json"))
    assert again.status == "up-to-date"


@pytest.mark.parametrize("settings", [{"eos": "<nothing>"}, {"engine": "fast"}, {"dtype": "uint8"}])
def test_settings_that_cannot_be_are_refused_by_name(folder, documents, out, settings):
    (name,) = settings
    with pytest.raises((UsageError, InputError), match=f"tokenize: {name} "):
        convert(documents, out, recipe=making(folder, **settings))


@pytest.mark.thorough
def test_a_vocabulary_that_is_too_large_for_the_dtype_is_refused(documents, tmp_path, out):
    words = tmp_path / "w.txt"
    words.write_text("<unk>\n" + "".join(f"w{number}\n" for number in range(1 << 16)))
    with pytest.raises(UsageError, match="65,537 tokens does not fit in uint16"):
        convert(documents, out, recipe=making(words, dtype="uint16"))
    convert(documents, out, recipe=making(words))
    assert shardctl.open(out).schema.field("tokens").type == pa.list_(pa.uint32())


def test_a_tokenizer_that_loses_something_is_a_notice_or_rejects_what_it_loses(tmp_path):
    words = tmp_path / "w.txt"
    words.write_text("<unk>\nthe\ncat\n")
    source = texts_in(tmp_path / "in.jsonl", ["the cat", "the  cat", "the dog", " "])
    made = convert(source, tmp_path / "a", recipe=making(words, keep_text=True))
    assert "tokenizer.txt does not give every text back" in str(made.notices)
    assert [(s["text"], s["tokens"].tolist()) for s in shardctl.open(tmp_path / "a")] == [
        ("the cat", [1, 2]),
        ("the  cat", [1, 2]),
        ("the dog", [1, 0]),
    ]
    recipe = making(words, exact=True)
    made = convert(source, tmp_path / "b", recipe=recipe, max_rejects="100%")
    assert made.notices == ()
    assert made.reasons == {"transform: not-exact": 2, "transform: empty": 1}


def test_a_text_that_takes_too_much_memory_is_rejected(tmp_path, out, monkeypatch):
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    (tmp_path / "t.json").write_text(own.to_str())
    monkeypatch.setattr(huggingface, "MOST", 800)
    source = texts_in(tmp_path / "in.jsonl", ["a", "a" * 801, "a" * 800])
    convert(source, out, recipe=making(tmp_path / "t.json"))
    assert len(shardctl.open(out)) == 2
    (reject,) = rejects_of(out)
    assert (reject.key, reject.error) == ("in.jsonl#2", "too-large")


def test_a_long_text_that_can_be_cut_is_not_too_long(bpe, monkeypatch):
    monkeypatch.setattr(huggingface, "MOST", 400)
    monkeypatch.setattr(huggingface, "CUT", 300)
    for engine in ("auto", "tokenizers"):
        tokenizer = open_tokenizer(bpe, engine=engine)
        texts = pa.array(["the cat " * 60, "文" * 200, "a", "a b\nc " * 300])
        assert np.flatnonzero(tokenizer.too_long(texts)).tolist() == [1]


def test_a_chat_is_encoded_as_its_whole_text(folder, tmp_path):
    """As a model gets it when it is used; no other token is added."""
    chats = [
        [{"role": "user", "content": "hi the cat"}, {"role": "assistant", "content": "yes 文\n"}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": " b c"}] * 2,
    ]
    source = json_lines(tmp_path / "in.jsonl", [{"messages": chat, "n": 1} for chat in chats])
    recipe = making(folder, "tokenize_chat")
    made = [shardctl.convert(source, tmp_path / str(n), recipe=recipe, workers=n) for n in (0, 2)]
    assert content_of(tmp_path / "0") == content_of(tmp_path / "2")
    ds = shardctl.open(tmp_path / "0")
    texts = [ds.tokenizer.decode(sample["tokens"]) for sample in ds]
    assert texts[0] == "[user] hi the cat[assistant] yes 文\n<|im_end|>"
    own = tokenizers.Tokenizer.from_file(str(tables_in(folder) / "tokenizer.json"))
    assert [list(sample["tokens"]) for sample in ds] == [own.encode(text).ids for text in texts]
    assert ds.schema.names == ["key", "n", "tokens", "loss_mask"]
    assert made[0].steps[0]["loss_tokens"] == sum(int(sum(sample["loss_mask"])) for sample in ds)


def test_the_option_tokenizer_comes_after_the_steps_of_a_recipe(tmp_path, out, cli):
    (tmp_path / "r.toml").write_text(
        'kind = "text"\n[[transform]]\nname = "tokenize"\ntokenizer = "nothing"\n'
    )
    source = texts_in(tmp_path / "in.jsonl", ["ab"])
    arguments = ("--recipe", tmp_path / "r.toml", "--tokenizer", "bytes", "--workers", 0)
    assert cli("convert", source, out, *arguments).code == 0
    (sample,) = shardctl.open(out)
    assert list(sample["tokens"]) == [97, 98]


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("kind", list(KINDS))
def test_training_is_the_same_each_time(documents, tmp_path, cli, kind):
    if kind == "unigram":
        pytest.importorskip("sentencepiece")
    for name in ("1.json", "2.json"):
        options = f"--kind {kind} --vocab-size 300 --workers 0 --json".split()
        ran = cli("tokenizer", "train", documents, tmp_path / name, *options)
        assert ran.code == 0, ran.err
        assert [ran.json[name] for name in ("vocabulary", "documents", "rejected")] == [300, 130, 0]
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()
    shown = cli("tokenizer", "show", tmp_path / "1.json", "--json").json
    assert (shown["vocabulary"], shown["dtype"]) == (300, "uint16")
    words = kind == "words"
    assert (shown["lost"] is not None) == words
    assert [shown["special"][name] for name in SPECIAL] == list(range(words, words + 4))


def test_a_tokenizer_is_trained_on_what_a_recipe_leaves_and_on_datasets(tmp_path):
    bodies = [*["aaa bbb"] * 40, None]
    source = json_lines(tmp_path / "in.jsonl", [{"body": body} for body in bodies])
    steps = [{"name": "tokenize", "tokenizer": "bytes"}, {"name": "filter_length", "min_tokens": 1}]
    recipe = {"text_field": "body"}

    def train(source: Path, name: str, **options: Any) -> Any:
        options |= {"kind": "words", "vocab_size": 10, "workers": 0}
        return shardctl.train_tokenizer(source, tmp_path / name, **options)

    first = train(source, "a.txt", recipe={**recipe, "transform": steps})
    words = (tmp_path / "a.txt").read_text().split("\n")
    assert words[0] == "<unk>"
    assert {"aaa", "bbb"} <= set(words)
    assert (first.documents, first.bytes, len(first.notices)) == (40, 280, 1)
    convert(source, tmp_path / "ds", recipe=recipe)
    assert train(tmp_path / "ds", "b.txt").sha256 == first.sha256
    assert 70 <= train(tmp_path / "ds", "c.txt", max_bytes=70).bytes <= 77


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        ("in.jsonl t.json --vocab-size 100", 2, "260"),
        ("in.jsonl t.bin", 2, ".json"),
        ("in.jsonl old.json", 3, "--overwrite"),
        ("empty.jsonl t.json", 3, "no text"),
        ("in.jsonl t.json --special-tokens <a>,<a>", 2, "different names"),
    ],
)
def test_training_that_cannot_be_is_refused(tmp_path, cli, monkeypatch, arguments, code, problem):
    monkeypatch.chdir(tmp_path)
    texts_in(tmp_path / "in.jsonl", ["a"])
    texts_in(tmp_path / "empty.jsonl", [""])
    (tmp_path / "old.json").write_text("mine")
    ran = cli("tokenizer", "train", *arguments.split(), "--workers", 0)
    assert (ran.code, ran.out) == (code, "")
    assert problem in ran.err
    assert (tmp_path / "old.json").read_text() == "mine"


def test_a_file_of_yours_is_not_replaced_by_the_tokenizer_of_a_new_dataset(bpe, tmp_path, out):
    (tmp_path / "t.json").write_bytes(bpe)
    source, recipe = texts_in(tmp_path / "in.jsonl", ["a b"]), making(tmp_path / "t.json")
    convert(source, out)
    (out / "tokenizer.json").write_text("mine")
    convert(source, out, recipe=recipe, overwrite=True)
    assert (out / "tokenizer.json").read_text() == "mine"
    assert (tables_in(out) / "tokenizer.json").read_bytes() == bpe
    convert(source, out, recipe=making(tmp_path / "t.json", pad="<|pad|>"), overwrite=True)
    assert shardctl.verify(out).ok
    convert(source, out, overwrite=True)
    assert not (tables_in(out) / "tokenizer.json").exists()


def test_a_tokenizer_with_a_huge_number_does_not_end_the_process(bpe):
    """As gigatoken does, which asks for a table of so many tokens."""
    said = json.loads(bpe)
    token = {**said["added_tokens"][0], "content": "<z>", "id": 2**32 - 1}
    said["added_tokens"].append(token)
    found = open_tokenizer(json.dumps(said))
    assert found.special["<z>"] == found.vocabulary - 1 < 1000  # as the package numbers it
    assert found.encode(pa.array(["a<z>"])).ids[-1] == found.special["<z>"]
    said = json.loads(bpe)
    numbers = said["model"]["vocab"]
    numbers[max(numbers, key=numbers.get)] = 2**32 - 1
    with pytest.raises(UsageError, match="a number above"):
        open_tokenizer(json.dumps(said), engine="gigatoken")
    assert open_tokenizer(json.dumps(said)).vocabulary == 2**32
