"""Texts, and chats, as the numbers of tokens; chats with a mask of what the loss counts."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, Rejection
from shardctl.format.arrays import Bytes, Numbers, bytes_of
from shardctl.format.roles import Role, Tokens
from shardctl.format.token_columns import LOSS_MASK, TOKENS
from shardctl.system.files import read_named
from shardctl.system.options import Flag, Text, Word, setting
from shardctl.system.text import format_bytes, printable
from shardctl.transforms.base import BatchTransform, Counts, Records, RejectRow, Transform
from shardctl.transforms.settings import SettingError
from shardctl.transforms.text.base import TEXT, require_text, texts_of
from shardctl.transforms.tokenizers.base import (
    UINT16_VOCABULARY,
    Ids,
    Tokenizer,
    TokensInText,
    WithOffsets,
    joined,
)
from shardctl.transforms.tokenizers.engines import not_given_back
from shardctl.transforms.tokenizers.huggingface import AUTO, CHOICES, TEMPLATE
from shardctl.transforms.tokenizers.table import digest_of_files, open_tokenizer
from shardctl.transforms.tokenizers.templates import (
    CHATML,
    JSON_FIELDS,
    MARKS,
    MEDIA,
    MESSAGES,
    Form,
    Template,
    Written,
    chat_of,
    form_of,
    pair,
    text_in,
    which_chats,
)

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
            ids = encoded.of(row)
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

    def notices(self, before: Sequence[Transform]) -> tuple[str, ...]:
        """Say that the tokenizer loses something, with an example."""
        text = None if self.exact else not_given_back(self.opened)
        if text is None:
            return ()
        back = self.opened.decode(self.opened.encode(pa.array([text], pa.string())).ids)
        return (
            f"the tokenizer {self.tokenizer} does not give every text back: {text!r:.40} becomes "
            f"{back!r:.40} (exact = true rejects such texts)",
        )


# --- chats ---

BUILT_IN = "chatml"

VERSION = 3
"""Which chats get which tokens and masks: a number for each change of that."""


class TokenizeChat(TokenStep, step="tokenize_chat"):
    """Turns chats into the columns tokens and loss_mask, by a chat template.

    The template writes a chat as one text, which is encoded whole, with no tokens added to those
    that it writes. loss_mask is 1 for the tokens that have a part of an answer in it: what stands
    between {% generation %} and {% endgeneration %}, or what the answer adds to the text where a
    template does not have these.
    """

    template: str = setting(
        Text(), AUTO, "auto: that of the tokenizer's folder. chatml: built in. Or a FILE.jinja."
    )
    date: str | None = setting(
        Text(), None, "Day (YYYY-MM-DD) for templates that write today's.", omit_default=True
    )
    user: str | None = setting(Text(), None, "Field that is the user's message.")
    assistant: str | None = setting(Text(), None, "Field that is the answer to it.")
    keep_messages: bool = setting(Flag(), False, "Keep the fields with the messages too.")

    list_field = MESSAGES

    def form(self, names: Collection[str]) -> Form | None:
        """Return how records with these fields hold a chat; None: they hold none."""
        if self.user is None or self.assistant is None:
            return form_of(names)
        return (
            pair(self.user, self.assistant) if {self.user, self.assistant} <= set(names) else None
        )

    def json_fields(self, names: Collection[str]) -> Collection[str]:
        """Return those of a chat that are known by their names."""
        form = self.form(names)
        return JSON_FIELDS.intersection(form.among(names)) if form else ()

    def check(self, folder: Path | None) -> None:
        """Read the template too. Raises SettingError, InputError."""
        super().check(folder)
        if (self.user is None) != (self.assistant is None):
            raise SettingError("user and assistant name two fields of one chat; give both")
        if not isinstance(self.opened, WithOffsets):
            raise SettingError(
                f"the tokenizer {self.tokenizer} does not say where tokens begin in a text; use "
                "a tokenizer.json, tiktoken or bytes",
                "tokenizer",
            )
        try:
            vars(self)["day"] = None if self.date is None else date.fromisoformat(self.date)
        except ValueError:
            raise SettingError(
                f"must be a day such as 2026-01-31; it is {self.date!r}", "date"
            ) from None
        vars(self)["source"] = self._read_template(self.opened, folder)
        for token in ("<|im_start|>", "<|im_end|>") if self.template == BUILT_IN else ():
            if token not in self.opened.special:
                raise SettingError(
                    f"the tokenizer has no special token {token}, which chatml writes; use a "
                    "template of your own",
                    "template",
                )
        self._template  # noqa: B018 - compiled once, and kept

    def _read_template(self, tokenizer: WithOffsets, folder: Path | None) -> str:
        if self.template == BUILT_IN:
            return CHATML
        if self.template == AUTO:
            if tokenizer.template is None:
                raise SettingError(
                    "the tokenizer has no chat template; use template = chatml, or name a "
                    "FILE.jinja",
                    "template",
                )
            return tokenizer.template
        path = Path(self.template) if folder is None else folder / self.template
        try:
            return io.TextIOWrapper(io.BytesIO(read_named(path)), encoding="utf-8").read()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            how = "give auto, chatml, or the path of a FILE.jinja"
            raise InputError(
                f"chat template {printable(path)}: it cannot be read ({reason}); {how}"
            ) from None

    def keep(self, digest: str | None) -> None:
        """Take the settings that open the files that a dataset keeps."""
        super().keep(digest)
        if self._has_own:
            vars(self)["template"] = TEMPLATE

    @property
    def _has_own(self) -> bool:
        return self.template not in (AUTO, BUILT_IN)

    @property
    def files(self) -> dict[str, bytes]:
        """The files of the tokenizer, and the template where it is another one than the
        tokenizer's."""
        own = {TEMPLATE: vars(self)["source"].encode()} if self._has_own else {}
        return {**super().files, **own}

    def versions(self) -> tuple[str, ...]:
        """Return those of the packages that make the tokens, and of what reads templates."""
        import jinja2

        return (*super().versions(), f"Jinja2 {jinja2.__version__}", f"chats {VERSION}")

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the columns with tokens and loss_mask in the place of the messages. Raises
        InputError if there are none."""
        self.refuse_tokens(given)
        form = self.form(given.names)
        if form is None:
            held = ", ".join(map(printable, given.names)) or "no fields"
            raise InputError(
                f"{self.name} needs chats, and the records have {held}; {which_chats()}"
            )
        made = [pa.field(TOKENS, pa.list_(self.numbers)), pa.field(LOSS_MASK, pa.list_(pa.uint8()))]
        others = [
            field
            for field in given
            if self.keep_messages or field.name not in form.among(given.names)
        ]
        return pa.schema([*others, *made], given.metadata)

    counted = ("tokens", "loss_tokens")

    def made(self, records: Records, reject: RejectRow, counts: Counts) -> Iterable[Records]:
        """Return the records with the tokens of their chats."""
        batch, names = records.batch, records.batch.schema.names
        form = self.form(names)
        assert form is not None, "the plan has looked at the fields"
        assert isinstance(self.opened, WithOffsets), "loaded steps have such a tokenizer"
        fields = form.among(names)
        media = tuple(name for name in MEDIA if name in names)
        kept, chats = np.zeros(batch.num_rows, bool), []
        for row, record in enumerate(_records(batch, fields + media)):
            try:
                chats.append(self.written(*chat_of(form, record)))
                kept[row] = True
            except Rejection as rejection:
                reject(row, rejection)
        placed = list(self.opened.with_offsets([chat.text for chat in chats]))
        masks = [mask_of(tokens, chat.spans) for tokens, chat in zip(placed, chats, strict=True)]
        tokens = joined([each.ids for each in placed])
        values = np.concatenate([np.empty(0, np.uint8), *masks])
        counts["tokens"] += len(tokens.ids)
        counts["loss_tokens"] += int(values.sum())
        if unwritten := Counter(name for chat in chats for name in chat.unwritten):
            unwritten.update(counts.get("unwritten", {}))
            counts["unwritten"] = dict(sorted(unwritten.items()))
        left = records.kept(kept)
        if not self.keep_messages:
            left = replace(left, batch=left.batch.drop_columns(list(fields)))
        lists = self.lists(tokens.offsets, tokens.ids)
        mask = pa.ListArray.from_arrays(lists.offsets, pa.array(values))
        return (left.with_column(TOKENS, lists).with_column(LOSS_MASK, mask),)

    @cached_property
    def _template(self) -> Template:
        names = {number: token for token, number in self.opened.special.items()}
        roles = {
            "bos_token": self.opened.bos,
            "eos_token": self._role("eos"),
            "pad_token": self._role("pad"),
        }
        special = {
            role: None if number is None else names.get(number) for role, number in roles.items()
        }
        return Template(
            vars(self)["source"], special, f"template {self.template}", vars(self)["day"]
        )

    def written(self, messages: list[dict[str, Any]], tools: list[Any] | None) -> Written:
        """Return a chat as one text. Raises Rejection if it is not one that can be trained on."""
        said = text_in([messages, tools])
        for token in self.opened.special:
            if token in said:
                message = f"a message has {token} in it, which would become the special token of this name"
                raise Rejection("transform", "special-token", message)
        if any(mark in said for mark in MARKS):
            message = "a message has U+FDD0, U+FDD1 or U+FDD2, which are not characters"
            raise Rejection("transform", "noncharacter", message)
        written = self._template.write(messages, tools)
        if "tool_calls" in written.unwritten:
            message = "the chat template does not write tool_calls"
            raise Rejection("transform", "tool-calls", message)
        if not written.spans:
            message = "the chat has no answer of an assistant that counts"
            raise Rejection("transform", "no-answer", message)
        return written


def mask_of(tokens: TokensInText, spans: Iterable[tuple[int, int]]) -> Bytes:
    """Return 1 for each token that has a character of a span in it, else 0: (n,) uint8."""
    mask = np.zeros(len(tokens.ids), np.uint8)
    # a token of whitespace may be told as one of no characters
    ends = np.maximum(tokens.ends, tokens.starts + 1)
    for start, end in spans:
        mask[(tokens.starts < end) & (ends > start)] = 1
    return mask


def _records(batch: pa.RecordBatch, fields: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the fields of each record; those of JSON as what it says."""
    for record in batch.select(list(fields)).to_pylist():
        yield {
            name: json.loads(value) if name in JSON_FIELDS and value is not None else value
            for name, value in record.items()
        }
