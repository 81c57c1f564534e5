"""Texts as the numbers of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, Rejection
from shardctl.format.arrays import Numbers, bytes_of
from shardctl.format.roles import Role, Tokens
from shardctl.format.token_columns import TOKENS
from shardctl.system.options import Flag, Text, Word, setting
from shardctl.system.text import format_bytes, printable
from shardctl.transforms.base import BatchTransform, Counts, Records, RejectRow
from shardctl.transforms.settings import SettingError
from shardctl.transforms.text.base import TEXT, require_text, texts_of
from shardctl.transforms.text.chat_forms import form_of
from shardctl.transforms.tokenizers.base import (
    UINT16_VOCABULARY,
    Ids,
    Tokenizer,
)
from shardctl.transforms.tokenizers.engines import not_given_back
from shardctl.transforms.tokenizers.huggingface import AUTO, CHOICES
from shardctl.transforms.tokenizers.table import digest_of_files, open_tokenizer

S = TypeVar("S", bound="TokenStep")


@dataclass(frozen=True)
class TokenStep(BatchTransform):
    """A step with a tokenizer. Its settings name one of a person, or the one that a dataset keeps,
    by its `digest`."""

    tokenizer: str = setting(
        Text(),
        help="bytes, a tokenizer.json or a folder with one, a SentencePiece .model, a .txt of "
        "words, tiktoken:ENCODING:FILE.",
    )
    engine: str = setting(
        Word(*CHOICES),
        AUTO,
        "What runs a tokenizer.json. auto: the fastest with the same tokens as tokenizers.",
    )
    eos: str | None = setting(
        Text(), None, "Token that ends a document. Default: as the tokenizer says."
    )
    pad: str | None = setting(Text(), None, "Token that fills up. Default: as the tokenizer says.")
    dtype: str = setting(
        Word("auto", "uint16", "uint32"),
        "auto",
        "Type of the tokens. auto: uint16 for up to 65,536.",
    )
    digest: str | None = setting(
        Text(),
        None,
        "SHA-256 of the tokenizer's files, in the recipe of a dataset.",
        omit_default=True,
    )

    def loaded(self: S, folder: Path | None = None) -> S:
        """Open the tokenizer. Raises InputError if its files are not those of the digest, or cannot
        be read."""
        kept = self.digest is not None
        step = replace(self)  # another object: what it keeps is not that of this one
        vars(step)["opened"] = open_tokenizer(self.tokenizer, folder if kept else None, self.engine)
        step.check(folder if kept else None)
        found = digest_of_files(step.files) if step.files else None
        if kept and found != self.digest:
            where = printable(Path(folder or ".") / self.tokenizer)
            raise InputError(
                f"{where}: this is not the tokenizer of the recipe: its SHA-256 is "
                f"{str(found)[:12]}…, not {str(self.digest)[:12]}…"
            )
        step.keep(found)
        return step

    def check(self, folder: Path | None) -> None:
        """Look at the settings once the tokenizer is open. Raises SettingError."""
        for role in ("eos", "pad"):
            if getattr(self, role) is not None:
                self._role(role)
        if self.dtype == "uint16" and self.opened.vocabulary > UINT16_VOCABULARY:
            size = f"{self.opened.vocabulary:,}"
            problem = (
                f"a vocabulary of {size} tokens does not fit in uint16, which has room for "
                f"{UINT16_VOCABULARY:,}"
            )
            raise SettingError(f"{problem}; use dtype = uint32 or auto", "dtype")

    def keep(self, digest: str | None) -> None:
        """Take the settings that open the files that a dataset keeps."""
        vars(self).update(tokenizer=self.opened.kept_as, digest=digest)

    @cached_property
    def opened(self) -> Tokenizer:
        """The tokenizer. A step that was loaded has it."""
        return open_tokenizer(self.tokenizer, None, self.engine)

    @property
    def files(self) -> dict[str, bytes]:
        """The files of the tokenizer."""
        return dict(self.opened.files)

    def versions(self) -> tuple[str, ...]:
        """Return those of the packages that make the tokens."""
        return self.opened.versions

    def roles(self, given: Mapping[str, Role]) -> Mapping[str, Role]:
        """Return the roles, with that of the tokens."""
        eos, pad = self._role("eos"), self._role("pad")
        return {**given, TOKENS: Tokens(self.opened.vocabulary, eos, pad, self.opened.kept_as)}

    def _role(self, role: str) -> int | None:
        """Return the token of a role. Raises SettingError if the one that the setting names is
        none."""
        name: str | None = getattr(self, role)
        if name is None:
            return self.opened.eos if role == "eos" else self.opened.pad
        number = self.opened.number(name)
        if number is None:
            special = ", ".join(list(self.opened.special)[:10]) or "none"
            raise SettingError(
                f"{role} names the token {name!r}, and the tokenizer has {special}",
                role,
                owner=self.name,
            )
        return number

    @property
    def numbers(self) -> pa.DataType:
        """The type of a token."""
        wide = self.dtype == "uint32" or (
            self.dtype == "auto" and self.opened.vocabulary > UINT16_VOCABULARY
        )
        return pa.uint32() if wide else pa.uint16()

    def refuse_tokens(self, given: pa.Schema) -> None:
        """Raise InputError if there are tokens already."""
        if TOKENS in given.names:
            raise InputError(
                f"{self.name} makes the field {TOKENS}, and the records have one of this name "
                "already"
            )

    def lists(self, offsets: Numbers, ids: Ids) -> pa.Array:
        """Return the tokens of texts as a column: (n,) list of `numbers`."""
        values = ids if pa.types.is_uint32(self.numbers) else ids.astype(np.uint16)
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))


class Tokenize(TokenStep, step="tokenize"):
    """Turns texts into the numbers of tokens: the column tokens takes the place of text.

    Special tokens are added, and found in texts, as the tokenizer says; the end of a document is
    added by packing. Empty and missing texts are rejected.
    """

    keep_text: bool = setting(Flag(), False, "Keep the column text too.")
    exact: bool = setting(
        Flag(),
        False,
        "Reject texts that the tokens do not give back exactly; decodes all.",
    )

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the columns with tokens in the place of text, or before it. Raises InputError if
        there are no texts."""
        form = None if TEXT in given.names else form_of(given.names)
        if form is not None:
            raise InputError(
                f"the records have {' and '.join(form.needs)} and no text: for chats, use "
                "--chat-template, or the step tokenize_chat"
            )
        require_text(given, self.name)
        self.refuse_tokens(given)
        place = given.get_field_index(TEXT)
        field = pa.field(TOKENS, pa.list_(self.numbers))
        return given.insert(place, field) if self.keep_text else given.set(place, field)

    counted = ("tokens",)

    def made(self, records: Records, reject: RejectRow, counts: Counts) -> Iterable[Records]:
        """Return the records with the tokens of their texts."""
        texts = texts_of(records)
        sizes, longer = bytes_of(texts).sizes, self.opened.too_long(texts)
        kept = (sizes > 0) & ~longer
        if longer.any():
            import pyarrow.compute as pc

            texts = pc.if_else(pa.array(longer), pa.scalar("", pa.string()), texts)
            for row in np.flatnonzero(longer).tolist():
                message = (
                    f"the text has {format_bytes(int(sizes[row]))} and cannot be cut, and takes a "
                    "hundred times as much memory: make smaller records (--record paragraph)"
                )
                reject(row, Rejection("transform", "too-large", message))
        encoded = self.opened.encode(texts)
        lengths = np.diff(encoded.offsets)
        for row in np.flatnonzero((lengths == 0) & kept | (sizes == 0)).tolist():
            kept[row] = False
            why = "the text has no tokens" if sizes[row] else "the text is empty"
            reject(row, Rejection("transform", "empty", why))
        special = np.array(sorted(self.opened.special.values()), np.uint32)
        for row in np.flatnonzero(kept).tolist() if self.exact else ():
            ids = encoded.ids[encoded.offsets[row] : encoded.offsets[row + 1]]
            text = texts[row].as_py()
            if text not in map(self.opened.decode, (ids, ids[~np.isin(ids, special)])):
                kept[row] = False
                why = "the tokens do not give the text back exactly"
                reject(row, Rejection("transform", "not-exact", why))
        counts["tokens"] += int(lengths[kept].sum())
        place = records.batch.schema.get_field_index(TEXT)
        lists = self.lists(encoded.offsets, encoded.ids)
        batch = records.batch if self.keep_text else records.batch.remove_column(place)
        made = replace(records, batch=batch.add_column(place, pa.field(TOKENS, lists.type), lists))
        return (made.kept(kept),)

    def notices(self) -> tuple[str, ...]:
        """Say that the tokenizer loses something, with an example."""
        text = None if self.exact else not_given_back(self.opened)
        if text is None:
            return ()
        back = self.opened.decode(self.opened.encode(pa.array([text], pa.string())).ids)
        return (
            f"the tokenizer {self.tokenizer} does not give every text back: {text!r:.40} becomes "
            f"{back!r:.40} (exact = true rejects such texts)",
        )
