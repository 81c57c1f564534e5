"""Chats as the numbers of tokens, with a mask of what the loss counts."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, Rejection
from shardctl.format.arrays import Bytes
from shardctl.format.token_columns import LOSS_MASK, TOKENS
from shardctl.system.files import read_named
from shardctl.system.options import Flag, Text, setting
from shardctl.system.text import printable
from shardctl.transforms.base import Counts, Records, RejectRow
from shardctl.transforms.settings import SettingError
from shardctl.transforms.text.chat_forms import (
    JSON_FIELDS,
    MEDIA,
    MESSAGES,
    Form,
    chat_of,
    form_of,
    pair,
    which_chats,
)
from shardctl.transforms.text.tokens import TokenStep
from shardctl.transforms.tokenizers.base import TokensInText, WithOffsets, joined
from shardctl.transforms.tokenizers.huggingface import TEMPLATE
from shardctl.transforms.tokenizers.templates import CHATML, MARKS, Template, Written, text_in

AUTO, BUILT_IN = "auto", "chatml"

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
        found = next((token for token in self.opened.special if token in said), None)
        if found is not None:
            message = (
                f"a message has {found} in it, which would become the special token of this name"
            )
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
