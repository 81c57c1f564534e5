"""Tokenizers made from texts: byte-level BPE and unigram, and words. The same texts give the same file, byte by byte."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from shardctl.errors import InputError, InstallError, UsageError, first_line
from shardctl.system.packages import to_install
from shardctl.system.scratch import scratch_folder
from shardctl.transforms.tokenizers.base import UNKNOWN_NAMES

Texts = Iterable[Sequence[str]]
"""Texts in groups, so that not all of them are in memory."""

SPECIAL = ("<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>")
"""The special tokens of a new tokenizer: the end of a document, what fills up, and those of the chat template chatml."""

BYTES = 256


def train_bpe(texts: Texts, vocabulary: int, special: Sequence[str]) -> bytes:
    """Return a tokenizer.json of byte-level BPE, with the words of GPT-2. It gives back every text.

    All bytes are tokens. The trainer leaves out those that do not occur otherwise, and then drops them from texts in silence.
    """
    tokenizers = _package()
    own = _byte_level(tokenizers, tokenizers.models.BPE())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special),
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    with _threads():
        own.train_from_iterator(texts, trainer)
    return _json(own)


def train_unigram(texts: Texts, vocabulary: int, special: Sequence[str]) -> bytes:
    """Return a tokenizer.json of a unigram model over bytes, with the words of GPT-2. It gives back every text.

    SentencePiece trains it, on one thread: the trainer of `tokenizers` gives another model in each process.
    """
    tokenizers = _package()
    symbols = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    cut = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    counts: Counter[str] = Counter()
    for group in texts:
        for text in group:
            counts.update(word for word, _ in cut.pre_tokenize_str(text))
    pieces = _unigram_pieces(counts, symbols, vocabulary - len(special))
    scores = [(name, 0.0) for name in special] + pieces
    own = _byte_level(tokenizers, tokenizers.models.Unigram(scores))
    own.add_special_tokens(list(special))
    return _json(own)


def _unigram_pieces(counts: Counter[str], symbols: Sequence[str], size: int) -> list[tuple[str, float]]:
    """Return up to `size` pieces of words, all of the symbols among them, with the logarithms of their probabilities."""
    try:
        import sentencepiece
    except ImportError as error:
        problem = f"training a unigram needs sentencepiece, which cannot be imported ({error})"
        raise InstallError(f"{problem}; pip install {to_install('sentencepiece')}") from None
    words = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    model = io.BytesIO()
    with scratch_folder() as folder:
        table = folder / "words.tsv"
        table.write_text("".join(f"{word}\t{count}\n" for word, count in words), encoding="utf-8")
        try:
            sentencepiece.SentencePieceTrainer.Train(
                input=str(table),
                input_format="tsv",
                model_writer=model,
                model_type="unigram",
                vocab_size=size + 1,  # the unknown token, which nothing becomes
                hard_vocab_limit=False,
                required_chars="".join(symbols),
                character_coverage=1.0,
                normalization_rule_name="identity",
                add_dummy_prefix=False,
                remove_extra_whitespaces=False,
                split_by_unicode_script=False,
                split_by_number=False,
                split_by_whitespace=False,
                bos_id=-1,
                eos_id=-1,
                pad_id=-1,
                num_threads=1,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise InputError(f"no unigram can be trained on these texts: {first_line(error)}; give more text") from None
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    found = {trained.IdToPiece(number): float(trained.GetScore(number)) for number in range(1, trained.GetPieceSize())}
    least = min(found.values(), default=0.0) - 10
    rare = [(symbol, least) for symbol in symbols if symbol not in found]
    ranked = sorted(found.items(), key=lambda entry: (entry[0] not in symbols, -entry[1], entry[0]))
    return [*rare, *ranked][: max(size, len(symbols))]


def train_words(texts: Texts, vocabulary: int, special: Sequence[str]) -> bytes:
    """Return a tokenizer.json of the most common words: what stands between whitespace. Others are the unknown token."""
    tokenizers = _package()
    words, unknown = count_words(texts, vocabulary, special)
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, unk_token=unknown))
    own.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    own.add_special_tokens([unknown, *special])
    return _json(own)


def count_words(texts: Texts, vocabulary: int, special: Sequence[str]) -> tuple[list[str], str]:
    """Return special tokens and the most common words, those of the same count in the order of their characters; and the name
    of the unknown token, which comes first if it is not among the special ones."""
    counts: Counter[str] = Counter()
    for group in texts:
        for text in group:
            counts.update(text.split())
    unknown = next((name for name in special if name in UNKNOWN_NAMES), UNKNOWN_NAMES[0])
    first = list(dict.fromkeys((*(() if unknown in special else (unknown,)), *special)))
    common = sorted((word for word in counts if word not in first), key=lambda word: (-counts[word], word))
    return [*first, *common[: max(0, vocabulary - len(first))]], unknown


KINDS: dict[str, Callable[[Texts, int, Sequence[str]], bytes]] = {
    "bpe": train_bpe,
    "unigram": train_unigram,
    "words": train_words,
}
"""What can be trained."""


def check_training(kind: str, vocabulary: int, special: Sequence[str]) -> None:
    """Raise UsageError for settings that cannot be, before a text is read."""
    if kind not in KINDS:
        raise UsageError(f"kind must be one of {', '.join(KINDS)}; it is {kind!r}")
    if len(set(special)) < len(special) or not all(special):
        raise UsageError("the special tokens must be different names; one is empty, or there twice")
    least = len(special) + (1 if kind == "words" else BYTES)
    if not least <= vocabulary <= 1 << 24:
        bytes_too = "" if kind == "words" else ", the 256 bytes"
        raise UsageError(
            f"a vocabulary has at least the special tokens{bytes_too}, and at most 16,777,216 tokens: give {least:,} or more;"
            f" it is {vocabulary:,}"
        )


def _byte_level(tokenizers: Any, model: Any) -> Any:
    own = tokenizers.Tokenizer(model)
    own.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = tokenizers.decoders.ByteLevel()
    return own


def _json(own: Any) -> bytes:
    """Return a tokenizer.json with one entry on each line, in the order that the package has."""
    said = json.loads(own.to_str())
    vocabulary = said["model"].get("vocab")
    if isinstance(vocabulary, dict):
        said["model"]["vocab"] = dict(sorted(vocabulary.items(), key=lambda entry: entry[1]))
    return (json.dumps(said, ensure_ascii=False, indent=1) + "\n").encode()


def _package() -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        raise InstallError(
            f"training needs tokenizers, which cannot be imported ({error}); pip install {to_install('text')}"
        ) from None
    return tokenizers


@contextmanager
def _threads() -> Iterator[None]:
    """Let the package use threads while it trains BPE: it counts, so that their order does not matter."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "true"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before
