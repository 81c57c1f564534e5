"""`shardctl tokenizer train`: texts of any sources or datasets, cleaned by a recipe, become a
tokenizer."""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from shardctl.errors import (
    NOTHING_WRITTEN,
    InputError,
    StorageError,
    TooManyRejectsError,
    UsageError,
    explaining_interrupts,
    first_line,
)
from shardctl.format.names import MANIFEST, Json
from shardctl.loader.dataset import Dataset, open_dataset
from shardctl.making.convert import Listener, convert
from shardctl.making.convert.listener import ConversionProgress
from shardctl.making.paths import check_sources
from shardctl.sources.files import SourceRoot
from shardctl.system.arguments import instance, whole_number
from shardctl.system.files import naming_the_path, write_atomically
from shardctl.system.options import Many, Text
from shardctl.system.packages import needed
from shardctl.system.progress import Phase, Progress, progress_of
from shardctl.system.scratch import scratch_folder
from shardctl.system.text import printable, size_of
from shardctl.transforms.recipe_files.reading import load_recipe
from shardctl.transforms.table import TOKEN_STEPS
from shardctl.transforms.tokenizers.base import UNKNOWN_NAMES
from shardctl.transforms.tokenizers.table import open_tokenizer

AT_ONCE = 4 << 20
"""Bytes of a dataset that are read at once."""

MOST_ROWS = 4096


@dataclass(frozen=True)
class TrainedTokenizer:
    """The tokenizer that was made, in the file `path`.

    `vocabulary` is its number of tokens, special ones included. `documents` and `bytes` (of UTF-8)
    count the texts of the training. `rejected` is the number of records that did not become a text.
    `sha256` is the checksum of the file.
    """

    path: str
    kind: str
    vocabulary: int
    special_tokens: tuple[str, ...]
    documents: int
    bytes: int
    rejected: int
    sha256: str
    seconds: float
    notices: tuple[str, ...] = ()


@explaining_interrupts(NOTHING_WRITTEN)
def train_tokenizer(
    src: str | Path | Sequence[str | Path],
    out: str | Path,
    recipe: dict[str, Any] | str | Path | None = None,
    kind: str = "bpe",
    vocab_size: int = 32_768,
    special_tokens: Sequence[str] | None = None,
    max_bytes: int | str | None = None,
    overwrite: bool = False,
    workers: int | str = "auto",
    listener: Listener | None = None,
    progress: bool = True,
) -> TrainedTokenizer:
    """Train a tokenizer on the texts of sources or datasets, and write it as a tokenizer.json.

    `recipe` cleans the texts of sources first, as convert does. The first step that makes tokens is
    left out, with all steps after it. `kind` is bpe, unigram or words; words can be written as a
    .txt too, one on each line. If there are more than `max_bytes` of text, documents are taken
    evenly from all parts of it. The same texts give the same file. `progress` False shows no
    progress on stderr; a `listener` has callbacks for the reading of sources instead. Raises
    UsageError, InputError, StorageError and what convert raises.
    """
    started = time.monotonic()
    instance("listener", listener, Listener)
    target = Path(out)
    Many(Text()).check("special_tokens", () if special_tokens is None else special_tokens)
    special = tuple(SPECIAL if special_tokens is None else special_tokens)
    whole_number("vocab_size", vocab_size)
    if kind not in KINDS:
        raise UsageError(f"kind must be one of {', '.join(KINDS)}; it is {kind!r}")
    if len(set(special)) < len(special) or not all(special):
        raise UsageError("the special tokens must be different names; one is empty, or there twice")
    least = len(special) + (1 if kind == "words" else BYTES)
    if not least <= vocab_size <= 1 << 24:
        bytes_too = "" if kind == "words" else ", the 256 bytes"
        raise UsageError(
            f"a vocabulary has {least:,} (the special tokens{bytes_too}) to 16,777,216 tokens; "
            f"it is {vocab_size:,}"
        )
    endings, shown = (".json", ".txt") if kind == "words" else (".json",), printable(target)
    if target.suffix not in endings:
        raise UsageError(
            f"{shown}: a tokenizer is written to a file that ends in {' or '.join(endings)}"
        )
    if target.exists() and not overwrite:
        raise StorageError(
            f"{shown}: exists already; give --overwrite to replace it, or another name"
        )
    most = (
        None
        if max_bytes is None
        else whole_number("max_bytes", size_of(max_bytes, "max_bytes"), least=1)
    )
    with scratch_folder() as scratch, progress_of(progress, listener) as bar:
        listener = listener or ConversionProgress(bar).listener()
        datasets, rejected = _datasets(src, str(target), recipe, scratch, workers, listener)
        texts = _Texts(datasets, most, bar)
        if kind == "words" and target.suffix == ".txt":
            words, _ = count_words(texts, vocab_size, special)
            data = "".join(f"{word}\n" for word in words).encode()
        else:
            data = KINDS[kind](texts, vocab_size, special)
    if not texts.bytes:
        raise InputError("there is no text to train on: all are empty, or the recipe kept none")
    with naming_the_path(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, data)
    trained = open_tokenizer(str(target))
    notices = []
    if trained.vocabulary < vocab_size:
        notices.append(
            f"the texts give {trained.vocabulary:,} tokens only, fewer than the {vocab_size:,} "
            "asked for"
        )
    return TrainedTokenizer(
        str(target),
        kind,
        trained.vocabulary,
        special,
        texts.documents,
        texts.bytes,
        rejected,
        hashlib.sha256(data).hexdigest(),
        time.monotonic() - started,
        tuple(notices),
    )


def _datasets(
    src: str | Path | Sequence[str | Path],
    out: str,
    recipe: Json | str | Path | None,
    scratch: Path,
    workers: int | str,
    listener: Listener,
) -> tuple[list[Dataset], int]:
    """Return the datasets with the texts, and the number of records that were rejected. Sources
    become one in `scratch`."""
    roots = [SourceRoot.of(each) for each in ([src] if isinstance(src, str | Path) else src)]
    check_sources(roots, out)
    found = [
        root.text for root in roots if not root.is_stored and Path(root.text, MANIFEST).exists()
    ]
    others = [root.text for root in roots if root.text not in found]
    if found and recipe:
        raise UsageError(f"{printable(found[0])} is a dataset, and a recipe is for sources")
    datasets = [open_dataset(place) for place in found]
    rejected = 0
    if others or not roots:
        given = (
            dict(recipe)
            if isinstance(recipe, dict)
            else load_recipe(Path(recipe))
            if recipe
            else {}
        )
        steps = given.get("transform")
        if isinstance(steps, list):
            named = takewhile(
                lambda step: not isinstance(step, dict) or step.get("name") not in TOKEN_STEPS,
                steps,
            )
            given["transform"] = list(named)
        given["compression"] = "lz4"
        try:
            made = convert(
                others,
                scratch / "texts",
                given,
                listener,
                labels="none",
                split="none",
                workers=workers,
            )
        except TooManyRejectsError as error:
            raise InputError(
                "there is no text to train on: "
                f"{str(error).partition('; nothing was committed')[0]}"
            ) from error
        except KeyboardInterrupt:
            # its message says how to resume the conversion, but `scratch` is deleted
            raise KeyboardInterrupt(NOTHING_WRITTEN) from None
        rejected = made.rejected
        datasets.append(open_dataset(scratch / "texts"))
    for dataset in datasets:
        if "text" not in dataset.schema.names:
            held = ", ".join(map(printable, dataset.schema.names))
            raise InputError(
                f"there are no texts to train on: the records have {held}; name their field with "
                "--text-field FIELD"
            )
    return datasets, rejected


class _Texts:
    """The texts of datasets, in groups. `documents` and `bytes` count those that were given.

    Every time that they are read is shown, and that they are trained on behind it.
    """

    def __init__(self, datasets: Sequence[Dataset], most: int | None, shown: Progress) -> None:
        self._datasets, self._most, self._shown = datasets, most, shown
        self.documents = self.bytes = 0

    def __iter__(self) -> Iterator[list[str]]:
        self.documents = self.bytes = 0
        total = (
            sum(len(text.encode()) for group in self._all() for text in group)
            if self._most is not None
            else 0
        )
        size_seen = 0
        for group in self._all():
            chosen = []
            for text in group:
                size = len(text.encode())
                if self._most is None or self.bytes * total <= self._most * size_seen:
                    self.documents += 1
                    self.bytes += size
                    chosen.append(text)
                size_seen += size
            if chosen:
                yield chosen

    def _all(self) -> Iterator[list[str]]:
        self._shown.begin(Phase("reading", "texts", sum(map(len, self._datasets))))
        read = 0
        for dataset in self._datasets:
            each = max(1, dataset.manifest.bytes // max(1, len(dataset)))
            rows = min(MOST_ROWS, max(1, AT_ONCE // each))
            for first in range(0, len(dataset), rows):
                batch = dataset.take(
                    range(first, min(first + rows, len(dataset))), columns=["text"]
                )
                yield [text for text in batch["text"] if text]
                read += len(batch["text"])
                self._shown.report(read)
        self._shown.begin(Phase("training"))


# --- tokenizers made from texts: byte-level BPE and unigram, and words. The same texts give the
# same file, byte by byte ---

Texts = Iterable[Sequence[str]]
"""Texts in groups, so that not all of them are in memory."""

SPECIAL = ("<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>")
"""The special tokens of a new tokenizer: the end of a document, what fills up, and those of the
chat template chatml."""

BYTES = 256


def train_bpe(texts: Texts, vocabulary: int, special: Sequence[str]) -> bytes:
    """Return a tokenizer.json of byte-level BPE, with the words of GPT-2. It gives back every text.

    All bytes are tokens. The trainer leaves out those that do not occur otherwise, and then drops
    them from texts in silence.
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
    """Return a tokenizer.json of a unigram model over bytes, with the words of GPT-2. It gives back
    every text.

    SentencePiece trains it, on one thread: the trainer of `tokenizers` gives another model in each
    process.
    """
    tokenizers = _package()
    symbols = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    cut = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    counts = Counter(
        word for group in texts for text in group for word, _ in cut.pre_tokenize_str(text)
    )
    pieces = _unigram_pieces(counts, symbols, vocabulary - len(special))
    scores = [(name, 0.0) for name in special] + pieces
    own = _byte_level(tokenizers, tokenizers.models.Unigram(scores))
    own.add_special_tokens(list(special))
    return _json(own)


def _unigram_pieces(
    counts: Counter[str], symbols: Sequence[str], size: int
) -> list[tuple[str, float]]:
    """Return up to `size` pieces of words, all of the symbols among them, with the logarithms of
    their probabilities."""
    sentencepiece = needed("sentencepiece", "sentencepiece", "training a unigram")
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
            raise InputError(
                f"no unigram can be trained on these texts: {first_line(error)}; give more text"
            ) from None
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    found = {
        trained.IdToPiece(number): float(trained.GetScore(number))
        for number in range(1, trained.GetPieceSize())
    }
    least = min(found.values(), default=0.0) - 10
    rare = [(symbol, least) for symbol in symbols if symbol not in found]
    ranked = sorted(found.items(), key=lambda entry: (entry[0] not in symbols, -entry[1], entry[0]))
    return [*rare, *ranked][: max(size, len(symbols))]


def train_words(texts: Texts, vocabulary: int, special: Sequence[str]) -> bytes:
    """Return a tokenizer.json of the most common words: what stands between whitespace. Others are
    the unknown token."""
    tokenizers = _package()
    words, unknown = count_words(texts, vocabulary, special)
    own = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, unk_token=unknown)
    )
    own.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    own.add_special_tokens([unknown, *special])
    return _json(own)


def count_words(texts: Texts, vocabulary: int, special: Sequence[str]) -> tuple[list[str], str]:
    """Return special tokens and the most common words, those of the same count in the order of
    their characters; and the name of the unknown token, which comes first if it is not among the
    special ones."""
    counts = Counter(word for group in texts for text in group for word in text.split())
    unknown = next((name for name in special if name in UNKNOWN_NAMES), UNKNOWN_NAMES[0])
    first = list(dict.fromkeys((*(() if unknown in special else (unknown,)), *special)))
    common = sorted(
        (word for word in counts if word not in first), key=lambda word: (-counts[word], word)
    )
    return [*first, *common[: max(0, vocabulary - len(first))]], unknown


KINDS: dict[str, Callable[[Texts, int, Sequence[str]], bytes]] = {
    "bpe": train_bpe,
    "unigram": train_unigram,
    "words": train_words,
}
"""What can be trained."""


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
    for name in ("decoders", "models", "pre_tokenizers", "trainers"):
        needed(f"tokenizers.{name}", "text", "training")
    return needed("tokenizers", "text", "training")


@contextmanager
def _threads() -> Iterator[None]:
    """Let the package use threads while it trains BPE: it counts, so that their order does not
    matter."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "true"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before
