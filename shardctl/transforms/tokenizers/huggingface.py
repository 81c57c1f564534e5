"""Tokenizers of Hugging Face: a `tokenizer.json`, alone or in a folder with its settings and a chat
template.

It needs the extra `text`, and takes a faster engine where one gives the same tokens (engines.py).
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, UsageError, first_line
from shardctl.format.arrays import Bools, bytes_of
from shardctl.format.names import Json
from shardctl.system.packages import install_line, installed_version, needed
from shardctl.system.text import printable
from shardctl.system.user_cache import Remembered, state_of, this_machine
from shardctl.transforms.tokenizers import engines
from shardctl.transforms.tokenizers.base import (
    BEGIN_NAMES,
    END_NAMES,
    MOST,
    PAD_NAMES,
    Encoded,
    Ids,
    TokensInText,
    WithOffsets,
    joined,
    longer_than,
    of_names,
)
from shardctl.transforms.tokenizers.engines import ENGINES, GPT2, Engine, UnfitError
from shardctl.transforms.tokenizers.tiktoken import ENCODINGS, places_of

FILE = "tokenizer.json"
CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
GENERATION = "generation_config.json"
TEMPLATE = "chat_template.jinja"
BESIDE = (CONFIG, SPECIAL_TOKENS, GENERATION, TEMPLATE)
"""Files of a folder that say what its special tokens are for, and how chats are written."""

AUTO, OWN = "auto", "tokenizers"
CHOICES = (AUTO, OWN, *ENGINES)
"""What the setting `engine` may be."""

TOGETHER = 1 << 20
"""Bytes of texts that `tokenizers` is given at once: it takes 110 times as much memory."""

LARGEST = 1 << 24
"""The largest number of a token with which engines are tried: gigatoken ends the process where its
tables do not fit."""

CUT = 1 << 18
"""Bytes of the pieces of longer texts, where a pattern is known by which they can be cut."""

_PATTERNS = frozenset(
    (
        GPT2,
        *(pattern for pattern, _ in ENCODINGS.values()),
        # Llama 3; Qwen 2
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
        r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| "
        r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
"""Patterns of words that always end between a letter and one space, or one line end, that a letter
follows: each of their words has a space or a line end at its start only, or after punctuation, or
is nothing but whitespace."""

_PLACE = re.compile(r"(?<=[a-z])(?= [a-z])|(?<=[^\s]\n)(?=[^\W\d_])")
"""Where texts may be cut."""


class HuggingFace(WithOffsets):
    """A `tokenizer.json`. `engine` says by what it is done: auto takes the fastest that gives the
    same tokens."""

    kept_as = FILE

    def __init__(self, data: bytes, beside: Mapping[str, bytes], where: str, engine: str) -> None:
        self._where, self._data = where, data
        self.files = {FILE: data, **beside}
        self._config = {
            name: _object(beside[name], f"{where}: {name}") for name in beside if name != TEMPLATE
        }
        try:
            self._template = beside[TEMPLATE].decode() if TEMPLATE in beside else None
        except UnicodeDecodeError:
            raise InputError(f"{where}: {TEMPLATE}: not UTF-8") from None
        self._engine: Engine | None
        self._json = _object(data, where)
        if not isinstance(self._json.get("model"), dict):
            raise InputError(f"{where}: not a tokenizer.json of Hugging Face: it has no model")
        proven = self._choose(engine)
        self._engine, facts = proven or (None, _facts(self._json, self._own))
        self._around, self.special, self.vocabulary = facts
        self.eos = self._role("eos", END_NAMES)
        self.bos = self._role("bos", BEGIN_NAMES)
        self.pad = self._role("pad", PAD_NAMES)
        own = f"tokenizers {installed_version('tokenizers')}"
        self.versions = (own,) if self._engine is None else (own, self._engine.version)
        self._pattern = engines.word_pattern(self._json.get("pre_tokenizer") or {})

    def _choose(self, name: str) -> Proven | None:
        """Return the engine; None for `tokenizers` itself. Raises UsageError if the one that is
        named cannot be had."""
        for candidate in ENGINES if name == AUTO else () if name == OWN else (name,):
            found = _proven(self._data, candidate)
            if not isinstance(found, UnfitError):
                return found
            if name != AUTO:
                _ = self._own  # a file that tokenizers cannot open is told of first
                # The command takes 26 ms to find (2026-11-27), and without the name of an engine
                # nobody reads it.
                why = f"{found}; {install_line(found.extra)}" if found.extra else str(found)
                raise UsageError(
                    f"{self._where}: the engine {name} cannot be used: {why}; set engine = auto"
                )
        return None

    @cached_property
    def _own(self) -> Any:
        """The tokenizer of `tokenizers`. It takes 0.03 s to open, and a process that has an engine
        may never need it."""
        needed("tokenizers", "text", f"{self._where}: it")
        try:
            return _own_of(self._data)
        except Exception as error:  # noqa: BLE001 - the package raises plain Exception
            raise InputError(
                f"{self._where}: not a tokenizer.json that tokenizers can read "
                f"({first_line(error)})"
            ) from None

    def _role(self, role: str, names: Sequence[str]) -> int | None:
        """Return the token of a role as the files beside say, or else by its usual names."""
        for name in (CONFIG, SPECIAL_TOKENS):
            token = self._config.get(name, {}).get(f"{role}_token")
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str) and (number := self.number(token)) is not None:
                return number
        said = self._config.get(GENERATION, {}).get(f"{role}_token_id")
        said = said[0] if isinstance(said, list) and said else said
        if type(said) is int and 0 <= said < self.vocabulary:
            return said
        return of_names(self.special, names)

    @cached_property
    def _cuts(self) -> bool:
        """Whether a text may be cut at `_PLACE` without a change of its tokens."""
        odd = any(
            token.get("lstrip")
            or token.get("rstrip")
            or token.get("single_word")
            or re.search(r"\s", token["content"])
            for token in self._json.get("added_tokens") or []
        )
        return (
            self._pattern in _PATTERNS
            and not odd
            and not self._json.get("normalizer")
            and self._around is not None
        )

    @property
    def template(self) -> str | None:
        """The chat template of the folder."""
        if self._template is not None:
            return self._template
        said = self._config.get(CONFIG, {}).get("chat_template")
        if isinstance(said, list):
            listed = [each for each in said if isinstance(each, dict)]
            said = next(
                (each.get("template") for each in listed if each.get("name") == "default"), None
            )
        return said if isinstance(said, str) else None

    def too_long(self, texts: pa.Array) -> Bools:
        """Return which of the texts are above the limit, and cannot be cut into pieces below it."""
        found = longer_than(texts, MOST)
        if self._cuts:
            for row in np.flatnonzero(found).tolist():
                found[row] = any(
                    len(piece.encode()) > MOST for piece in pieces_of(texts[row].as_py())
                )
        elif self._engine is not None:  # engines take five to thirty times as much memory
            found = longer_than(texts, 8 * MOST)
        return found

    def encode(self, texts: pa.Array) -> Encoded:
        """Return the tokens of texts, with those that the tokenizer adds."""
        before, after = self._around or ([], [])
        if self._cuts and longer_than(texts, TOGETHER).any():
            long = (pa.array(list(pieces_of(text)), pa.string()) for text in texts.to_pylist())
            return _within(joined([self._bare(pieces).ids for pieces in long]), before, after)
        if self._engine is not None:
            return _within(self._engine.encode(texts), before, after)
        return self._by_own(texts, True)

    def _bare(self, texts: pa.Array) -> Encoded:
        """Return the tokens of texts, without those that the tokenizer adds."""
        return self._by_own(texts, False) if self._engine is None else self._engine.encode(texts)

    def _by_own(self, texts: pa.Array, add: bool) -> Encoded:
        parts: list[list[int]] = []
        offsets, first = bytes_of(texts).offsets, 0
        while first < len(texts):  # up to TOGETHER bytes at a time; a longer one is alone
            last = int(np.searchsorted(offsets, offsets[first] + TOGETHER, "right")) - 1
            group = texts.slice(first, max(1, last - first)).to_pylist()
            encodings = self._own.encode_batch_fast(group, add_special_tokens=add)
            parts += [encoding.ids for encoding in encodings]
            first += len(group)
        return joined(parts)

    def with_offsets(self, texts: Sequence[str]) -> Iterator[TokensInText]:
        """Yield the tokens of each text with their places: by the bytes of tokens where these add
        up, else as told."""
        if self._pattern is not None:
            found = self._bare(pa.array(texts, pa.string()))
            for number, text in enumerate(texts):
                ids = found.of(number)
                sizes = self._sizes[ids]
                if int(sizes.sum()) == len(text.encode()):
                    yield TokensInText(ids, *places_of(text, sizes))
                else:
                    yield self._as_encoded(text)
        else:
            yield from map(self._as_encoded, texts)

    def _as_encoded(self, text: str) -> TokensInText:
        encoding = self._own.encode_batch([text], add_special_tokens=False)[0]
        starts, ends = np.array(encoding.offsets, np.int64).reshape(-1, 2).T
        return TokensInText(np.array(encoding.ids, np.uint32), starts, ends)

    @cached_property
    def _sizes(self) -> Any:
        """The bytes of each token, (vocabulary,) int64: a character of a byte-level token is a
        byte."""
        sizes = np.zeros(self.vocabulary, np.int64)
        for token, number in self._own.get_vocab(with_added_tokens=True).items():
            sizes[number] = len(token)
        for number, added in self._own.get_added_tokens_decoder().items():
            sizes[number] = len(added.content.encode())
        return sizes

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of tokens, with the names of special ones."""
        return str(self._own.decode(np.asarray(ids).tolist(), skip_special_tokens=False))

    def _token(self, number: int) -> str | None:
        """Return a token; those of byte-level BPE as the text that they are, if they are one."""
        token: str | None = self._own.id_to_token(number)
        text = "" if token is None or self._pattern is None else self.decode([number])
        return text if text and "\ufffd" not in text else token

    def number(self, token: str) -> int | None:
        """Return the number of a token by its name in the vocabulary."""
        found = self.special.get(token)
        found = self._own.token_to_id(token) if found is None else found
        return None if found is None else int(found)


def pieces_of(text: str) -> Iterator[str]:
    """Yield the pieces of a long text, cut at the first safe place after each CUT characters."""
    start = 0
    while len(text) - start > CUT and (found := _PLACE.search(text, start + CUT)):
        yield text[start : found.start()]
        start = found.start()
    yield text[start:]


@lru_cache(maxsize=4)
def _own_of(data: bytes) -> Any:
    """Return the tokenizer of a tokenizer.json, which cuts no text short and fills none up. Raises
    whatever the package does.

    What is remembered of a file holds for its copies, too: those that a job keeps.
    """
    from tokenizers import Tokenizer

    # there is a process for each core already
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    own = Tokenizer.from_buffer(data)
    own.no_truncation()
    own.no_padding()
    return own


_parsed = lru_cache(maxsize=8)(json.loads)


def _object(data: bytes, where: str) -> Json:
    try:
        said = _parsed(data)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{where}: not JSON ({error}); it may be cut short, get it again"
        ) from None
    if not isinstance(said, dict):
        raise InputError(f"{where}: not a JSON object")
    return said


Around = tuple[list[int], list[int]]


def _added(own: Any) -> Around | None:
    """Return the tokens that are added before and after each text; None if that cannot be told."""
    count = own.num_special_tokens_to_add(False)
    text = "ab 12"
    bare = own.encode(text, add_special_tokens=False).ids
    full = own.encode(text, add_special_tokens=True).ids
    if len(full) != len(bare) + count:
        return None
    for before in range(count + 1):
        if full[before : before + len(bare)] == bare:
            return full[:before], full[before + len(bare) :]
    return None


def _within(encoded: Encoded, before: list[int], after: list[int]) -> Encoded:
    """Return texts with the same tokens before and after each of them."""
    if not before and not after:
        return encoded
    around = np.array([*before, *after], np.uint32)
    edges = np.column_stack([encoded.offsets[:-1], encoded.offsets[1:]])
    places = np.repeat(edges, [len(before), len(after)], axis=1).ravel()
    ids = np.insert(encoded.ids, places, np.tile(around, len(edges)))
    return Encoded(encoded.offsets + len(around) * np.arange(len(edges) + 1), ids)


Facts = tuple[Around | None, Mapping[str, int], int]
"""What `tokenizers` says of a tokenizer: the tokens around each text (see `_added`), the special
tokens by their names, and one more than the largest number of a token. The package numbers special
tokens anew that do not follow the vocabulary."""


def _facts(said: Json, own: Any) -> Facts:
    names = [token["content"] for token in said.get("added_tokens") or [] if token.get("special")]
    special = {name: int(number) for name in names if (number := own.token_to_id(name)) is not None}
    most = max(own.get_vocab(with_added_tokens=True).values(), default=-1)
    return _added(own), special, most + 1


PROVEN = "tokenizers"
"""The file of the user's cache in which proofs are remembered."""


Proven = tuple[Engine, Facts]
"""An engine that gives the same tokens as `tokenizers`, and what that says of the tokenizer."""


@lru_cache(maxsize=8)
def _proven(data: bytes, name: str) -> Proven | UnfitError:
    """Return an engine that gives the same tokens as `tokenizers` for all strings of engines.py; else
    why there is none."""
    try:
        engine: Engine = ENGINES[name](data)
        digest, remembered = _digest_of_proof(data, engine), Remembered(PROVEN)
        found = None if digest is None else remembered.find(digest)
        if found is not None:
            # it opens a tokenizer for its first text, for which memory may be missing: then it is
            # proven anew, and why it cannot be used is told
            with suppress(Exception):
                engine.encode(pa.array([""], pa.string()))
                around, special, vocabulary = found
                return engine, (around, special, vocabulary)
        said, own = _parsed(data), _own_of(data)
        facts = _facts(said, own)
        _prove(engine, said, own, facts)
        if digest is not None:
            remembered.add(digest, facts)
        return engine, facts
    except UnfitError as error:
        return error
    except Exception as error:  # noqa: BLE001 - young packages raise anything, and panics of Rust arrive as exceptions
        return UnfitError(f"it fails ({type(error).__name__}: {str(error)[:200]})")


def _digest_of_proof(data: bytes, engine: Engine) -> str | None:
    """Return the SHA-256 of all that decides whether an engine gives the same tokens. None if the
    files are not known.

    That is the tokenizer, this machine, and the very files of both packages and of the engines. In
    another version, or in a copy that was built again, all is proven anew.
    """
    modules = ("tokenizers.tokenizers", *engine.code, engines.__name__, __name__)
    try:
        files = [state_of(str(importlib.import_module(name).__file__)) for name in modules]
    except (ImportError, OSError):
        return None
    told = [this_machine(), files, engine.version, hashlib.sha256(data).hexdigest()]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _prove(engine: Engine, said: Json, own: Any, facts: Facts) -> None:
    """Compare an engine with `tokenizers`. Raises UnfitError where it gives other tokens, and
    whatever it raises itself."""
    around, _, vocabulary = facts
    added = said.get("added_tokens") or []
    if max(vocabulary - 1, *(token["id"] for token in added), 0) > LARGEST:
        raise UnfitError(
            f"a token has a number above {LARGEST:,}, and an engine may make a table of so many"
        )
    if around is None:
        raise UnfitError("the tokens that are added to each text are not the same for all")
    tokens = [token["content"] for token in added]
    size = own.get_vocab_size()
    numbers = [[number] for number in range(0, size, max(1, size // engines.SOME))]
    some = own.decode_batch(numbers, skip_special_tokens=False)
    texts = engines.with_tokens(tokens, list(filter(None, some)))
    got = _within(engine.encode(pa.array(texts, pa.string())), *around)
    right = joined([encoding.ids for encoding in own.encode_batch_fast(texts)])
    if not (np.array_equal(right.offsets, got.offsets) and np.array_equal(right.ids, got.ids)):
        differs = next(
            text
            for number, text in enumerate(texts)
            if not np.array_equal(right.of(number), got.of(number))
        )
        raise UnfitError(f"it gives other tokens than tokenizers for {differs!r:.60}")


def open_file(where: Path, engine: str) -> HuggingFace:
    """Open a JSON file; one of the name tokenizer.json together with those beside it that belong to
    it. Raises OSError."""
    near = [where.with_name(name) for name in BESIDE] if where.name == FILE else []
    beside = {path.name: path.read_bytes() for path in near if path.is_file()}
    return HuggingFace(where.read_bytes(), beside, printable(where), engine)
