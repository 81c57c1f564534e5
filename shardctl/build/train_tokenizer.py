"""`shardctl tokenizer train`: texts of any sources or datasets, cleaned by a recipe, become a tokenizer."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from shardctl.build.convert import Listener, convert
from shardctl.build.convert.conversion_progress import ConversionProgress
from shardctl.errors import NOTHING_WRITTEN, InputError, StorageError, TooManyRejectsError, UsageError, explaining_interrupts
from shardctl.format.names import MANIFEST
from shardctl.loader.dataset import Dataset, open_dataset
from shardctl.sources.roots import SourceRoot
from shardctl.system.arguments import instance, whole_number
from shardctl.system.dataclass import dataclass
from shardctl.system.files import naming_the_path, write_atomically
from shardctl.system.options import Many, Text
from shardctl.system.progress import Phase, Progress, progress_of
from shardctl.system.scratch import scratch_folder
from shardctl.system.text import printable, size_of
from shardctl.transforms.recipe_files.reading import load_recipe
from shardctl.transforms.table import TOKEN_STEPS
from shardctl.transforms.tokenizers.table import open_tokenizer
from shardctl.transforms.tokenizers.training import KINDS, SPECIAL, check_training, count_words

AT_ONCE = 4 << 20
"""Bytes of a dataset that are read at once."""

MOST_ROWS = 4096


@dataclass(frozen=True)
class TrainedTokenizer:
    """The tokenizer that was made, in the file `path`.

    `vocabulary` is its number of tokens, special ones included. `documents` and `bytes` (of UTF-8) count the texts of the
    training. `rejected` is the number of records that did not become a text. `sha256` is the checksum of the file.
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

    `recipe` cleans the texts of sources first, as convert does. The first step that makes tokens is left out, with all steps
    after it. `kind` is bpe, unigram or words; words can be written as a .txt too, one on each line. If there are more than
    `max_bytes` of text, documents are taken evenly from all parts of it. The same texts give the same file. `progress` False
    shows no progress on stderr; a `listener` has callbacks for the reading of sources instead. Raises UsageError, InputError,
    StorageError and what convert raises.
    """
    started = time.monotonic()
    instance("listener", listener, Listener)
    target = Path(out)
    Many(Text()).check("special_tokens", () if special_tokens is None else special_tokens)
    special = tuple(SPECIAL if special_tokens is None else special_tokens)
    whole_number("vocab_size", vocab_size)
    check_training(kind, vocab_size, special)
    _check_target(target, kind, overwrite)
    most = None if max_bytes is None else whole_number("max_bytes", size_of(max_bytes, "max_bytes"), least=1)
    with scratch_folder() as scratch, progress_of(progress, listener) as shown:
        listener = listener or ConversionProgress(shown).listener()
        datasets, rejected = _datasets(src, recipe, scratch, workers, listener)
        texts = _Texts(datasets, most, shown)
        if kind == "words" and target.suffix == ".txt":
            words, _ = count_words(texts, vocab_size, special)
            data = "".join(f"{word}\n" for word in words).encode()
        else:
            data = KINDS[kind](texts, vocab_size, special)
    if not texts.bytes:
        raise InputError("there is no text to train on: all texts are empty, or none was kept by the recipe")
    with naming_the_path(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, data)
    trained = open_tokenizer(str(target))
    notices = []
    if trained.vocabulary < vocab_size:
        notices.append(f"the texts give {trained.vocabulary:,} tokens only, fewer than the {vocab_size:,} asked for")
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


def _check_target(target: Path, kind: str, overwrite: bool) -> None:
    endings = (".json", ".txt") if kind == "words" else (".json",)
    shown = printable(str(target))
    if target.suffix not in endings:
        raise UsageError(f"{shown}: a tokenizer is written to a file that ends in {' or '.join(endings)}")
    if target.exists() and not overwrite:
        raise StorageError(f"{shown}: exists already; give --overwrite to replace it, or another name")


def _datasets(
    src: str | Path | Sequence[str | Path],
    recipe: dict[str, Any] | str | Path | None,
    scratch: Path,
    workers: int | str,
    listener: Listener,
) -> tuple[list[Dataset], int]:
    """Return the datasets with the texts, and the number of records that were rejected. Sources become one in `scratch`."""
    roots = [SourceRoot.of(each) for each in ([src] if isinstance(src, str | Path) else src)]
    found = [root.text for root in roots if not root.is_stored and Path(root.text, MANIFEST).exists()]
    others = [root.text for root in roots if root.text not in found]
    if found and recipe:
        raise UsageError(f"{printable(found[0])} is a dataset, and its texts are not changed: a recipe is for sources")
    datasets = [open_dataset(place) for place in found]
    rejected = 0
    if others or not roots:
        given = dict(recipe) if isinstance(recipe, dict) else load_recipe(Path(recipe)) if recipe else {}
        steps = given.get("transform")
        if isinstance(steps, list):
            given["transform"] = list(takewhile(lambda step: not _makes_tokens(step), steps))
        given["compression"] = "lz4"
        try:
            made = convert(others, scratch / "texts", given, listener, labels="none", split="none", workers=workers)
        except TooManyRejectsError as error:
            raise InputError(f"there is no text to train on: {str(error).partition('; nothing was committed')[0]}") from error
        except KeyboardInterrupt:  # its message says how to resume the conversion, but `scratch` is deleted
            raise KeyboardInterrupt(NOTHING_WRITTEN) from None
        rejected = made.rejected
        datasets.append(open_dataset(scratch / "texts"))
    for dataset in datasets:
        if "text" not in dataset.schema.names:
            held = ", ".join(map(printable, dataset.schema.names))
            raise InputError(
                f"there are no texts to train on: the records have {held}; name the field of the texts with --text-field FIELD"
            )
    return datasets, rejected


def _makes_tokens(step: Any) -> bool:
    return isinstance(step, dict) and step.get("name") in TOKEN_STEPS


class _Texts:
    """The texts of datasets, in groups. `documents` and `bytes` count those that were given.

    Every time that they are read is shown, and that they are trained on behind it.
    """

    def __init__(self, datasets: Sequence[Dataset], most: int | None, shown: Progress) -> None:
        self._datasets, self._most, self._shown = datasets, most, shown
        self.documents = self.bytes = 0

    def __iter__(self) -> Iterator[list[str]]:
        self.documents = self.bytes = 0
        total = sum(len(text.encode()) for group in self._all() for text in group) if self._most is not None else 0
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
                batch = dataset.take(range(first, min(first + rows, len(dataset))), columns=["text"])
                yield [text for text in batch["text"] if text]
                read += len(batch["text"])
                self._shown.report(read)
        self._shown.begin(Phase("training"))
