"""Chats as the numbers of tokens, with a mask of what the loss counts."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import InputError, Rejection
from shardctl.format.roles import Role
from shardctl.format.token_columns import LOSS_MASK, TOKENS
from shardctl.system.dataclass import dataclass
from shardctl.system.files import read_named
from shardctl.system.text import printable
from shardctl.transforms.records import BatchRun, NothingHeld, Records, RejectRow
from shardctl.transforms.settings import Flag, Optional, SettingError, Text, setting
from shardctl.transforms.text.tokenizing import TokenStep
from shardctl.transforms.tokenizers.base import Placed, Placing, joined
from shardctl.transforms.tokenizers.huggingface import TEMPLATE
from shardctl.transforms.tokenizers.templates import CHATML, Template, Written, strings_in, without_missing

MESSAGES = "messages"
AUTO, BUILT_IN = "auto", "chatml"

MEDIA = ("<image>", "<video>", "<audio>")
"""What stands in a message where an image or the like belongs. As text, the loss would count answers about nothing."""


@dataclass(frozen=True)
class TokenizeChat(TokenStep):
    """Turns chats (the field messages) into the columns tokens and loss_mask, by a chat template.

    The template writes a chat as one text, which is encoded whole, with no tokens added to those that it writes. loss_mask is
    1 for the tokens that have a part of what stands between {% generation %} and {% endgeneration %} in it.
    """

    name: ClassVar[str] = "tokenize_chat"
    template: str = setting(
        Text(), AUTO, "auto: that of the tokenizer's folder. chatml: built in. Or a FILE.jinja, with {% generation %} in it."
    )
    user: str | None = setting(Optional(Text()), None, "Field that is the user's message, where there is no field messages.")
    assistant: str | None = setting(Optional(Text()), None, "Field that is the answer to it.")
    keep_messages: bool = setting(Flag(), False, "Keep the fields with the messages too.")

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that hold a chat."""
        return (MESSAGES,) if self.user is None or self.assistant is None else (self.user, self.assistant)

    def check(self, folder: Path | None) -> None:
        """Read the template too. Raises SettingError, InputError."""
        super().check(folder)
        if (self.user is None) != (self.assistant is None):
            raise SettingError("user and assistant name two fields of one chat; give both", owner=self.name)
        if not isinstance(self.opened, Placing):
            raise SettingError(
                f"the tokenizer {self.tokenizer} does not say where its tokens begin in a text, so that there is no loss mask;"
                " a tokenizer.json, tiktoken and bytes do",
                "tokenizer",
                owner=self.name,
            )
        vars(self)["source"] = self._read_template(self.opened, folder)
        if self.template == BUILT_IN:
            missing = [token for token in ("<|im_start|>", "<|im_end|>") if token not in self.opened.special]
            if missing:
                problem = f"the tokenizer has no special token {missing[0]}, which the template chatml writes"
                raise SettingError(f"{problem}; use a template of your own", "template", owner=self.name)
        self._template  # noqa: B018 - compiled once, and kept

    def _read_template(self, tokenizer: Placing, folder: Path | None) -> str:
        if self.template == BUILT_IN:
            return CHATML
        if self.template == AUTO:
            if tokenizer.template is None:
                raise SettingError(
                    "the tokenizer has no chat template; use template = chatml, or name a FILE.jinja",
                    "template",
                    owner=self.name,
                )
            return tokenizer.template
        path = Path(self.template) if folder is None else folder / self.template
        try:
            return io.TextIOWrapper(io.BytesIO(read_named(path)), encoding="utf-8").read()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            how = "give auto, chatml, or the path of a FILE.jinja"
            raise InputError(f"chat template {printable(str(path))}: it cannot be read ({reason}); {how}") from None

    def kept(self, digest: str | None) -> TokenizeChat:
        """Return the same step with the settings that open the files that a dataset keeps."""
        step = super().kept(digest)
        own = self.template not in (AUTO, BUILT_IN)
        kept = replace(step, template=TEMPLATE, digest=digest) if own else step
        vars(kept).update(opened=self.opened, source=vars(self)["source"])
        return kept

    @property
    def files(self) -> dict[str, bytes]:
        """The files of the tokenizer, and the template where it is another one than the tokenizer's."""
        own = self.template not in (AUTO, BUILT_IN)
        return {**super().files, **({TEMPLATE: vars(self)["source"].encode()} if own else {})}

    def versions(self) -> tuple[str, ...]:
        """Return those of the packages that make the tokens, and of what reads templates."""
        import jinja2

        return (*super().versions(), f"Jinja2 {jinja2.__version__}")

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the columns with tokens and loss_mask in the place of the messages. Raises InputError if there are none."""
        self.refuse_tokens(given)
        missing = [name for name in self.fields if name not in given.names]
        if missing:
            held = ", ".join(map(printable, given.names)) or "no fields"
            hint = "" if self.user else "; user and assistant name the fields of chats that are a question and an answer"
            raise InputError(f"{self.name} needs the field {printable(missing[0])}, and the records have {held}{hint}")
        made = [pa.field(TOKENS, pa.list_(self.numbers)), pa.field(LOSS_MASK, pa.list_(pa.uint8()))]
        others = [field for field in given if self.keep_messages or field.name not in self.fields]
        return pa.schema([*others, *made], given.metadata)

    def begin(self, folder: Path, roles: Mapping[str, Role]) -> BatchRun:
        """Return what encodes the chats of one batch after the other."""
        return _Run(self)

    @cached_property
    def _template(self) -> Template:
        names = {number: token for token, number in self.opened.special.items()}
        roles = {"bos_token": self.opened.bos, "eos_token": self._role("eos"), "pad_token": self._role("pad")}
        special = {role: None if number is None else names.get(number) for role, number in roles.items()}
        return Template(vars(self)["source"], special, f"template {self.template}")

    def written(self, chat: Any) -> Written:
        """Return a chat as one text. Raises Rejection if it is not one that can be trained on."""
        messages = _messages(chat)
        for text in strings_in(messages):
            found = next((token for token in self.opened.special if token in text), None)
            if found is not None:
                message = f"a message has {found} in it, which would become the special token of this name"
                raise Rejection("transform", "special-token", message)
            media = next((mark for mark in MEDIA if mark in text), None)
            if media is not None:
                message = f"a message has {media} in it, which stands for what tokens of text do not have"
                raise Rejection("transform", "media", message)
        written = self._template.write(messages)
        if not written.spans:
            raise Rejection(
                "transform", "no-answer", "the chat has no answer of an assistant, so there is nothing to learn from"
            )
        return written


class _Run(NothingHeld):
    """The work of the step in one shard."""

    def __init__(self, step: TokenizeChat) -> None:
        self._step = step
        self._tokens = self._counted = 0

    def apply(self, records: Records, reject: RejectRow) -> Iterable[Records]:
        """Return the records with their tokens and masks."""
        step = self._step
        rows, chats = [], []
        for row, chat in enumerate(_chats(records.batch, step.fields)):
            try:
                chats.append(step.written(chat))
                rows.append(row)
            except Rejection as rejection:
                reject(row, rejection)
        assert isinstance(step.opened, Placing), "loaded steps have such a tokenizer"
        placed = list(step.opened.place([chat.text for chat in chats]))
        masks = [mask_of(tokens, chat.spans) for tokens, chat in zip(placed, chats, strict=True)]
        tokens = joined([each.ids for each in placed])
        values = np.concatenate([np.empty(0, np.uint8), *masks])
        self._tokens += len(tokens.ids)
        self._counted += int(values.sum())
        kept = np.zeros(records.batch.num_rows, bool)
        kept[rows] = True
        left = records.kept(kept)
        batch = left.batch if step.keep_messages else left.batch.drop_columns(list(step.fields))
        lists = step.lists(tokens.offsets, tokens.ids)
        mask = pa.ListArray.from_arrays(pa.array(tokens.offsets.astype(np.int32)), pa.array(values))
        batch = batch.append_column(pa.field(TOKENS, lists.type), lists).append_column(pa.field(LOSS_MASK, mask.type), mask)
        return (replace(left, batch=batch),)

    def counts(self) -> dict[str, int]:
        """Return the number of tokens that were made, and of those that the loss counts."""
        return {"tokens": self._tokens, "loss_tokens": self._counted}


def mask_of(tokens: Placed, spans: Iterable[tuple[int, int]]) -> npt.NDArray[np.uint8]:
    """Return 1 for each token that has a character of a span in it, else 0: (n,) uint8."""
    mask = np.zeros(len(tokens.ids), np.uint8)
    ends = np.maximum(tokens.ends, tokens.starts + 1)  # a token of whitespace may be told as one of no characters
    for start, end in spans:
        mask[(tokens.starts < end) & (ends > start)] = 1
    return mask


def _chats(batch: pa.RecordBatch, fields: tuple[str, ...]) -> Iterable[Any]:
    """Yield the chat of each record: a list of messages, as plain data; None where there is none."""
    if len(fields) == 1:
        yield from batch.column(batch.schema.get_field_index(MESSAGES)).to_pylist()
        return
    said = (batch.column(batch.schema.get_field_index(name)).to_pylist() for name in fields)
    for user, assistant in zip(*said, strict=True):
        yield [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


def _messages(chat: Any) -> list[dict[str, Any]]:
    """Return the messages of a chat. Raises Rejection."""
    if isinstance(chat, str):  # records whose messages fit no common type are JSON
        try:
            chat = json.loads(chat)
        except (ValueError, RecursionError):
            raise Rejection("transform", "messages", "the messages are not a list of {role, content}") from None
    if not isinstance(chat, list) or not chat:
        raise Rejection("transform", "messages", "there are no messages" if not chat else "the messages are not a list")
    messages = []
    for number, message in enumerate(chat, 1):
        for key in ("role", "content"):
            value = message.get(key) if isinstance(message, dict) else None
            if not isinstance(value, str) or (key == "role" and not value):
                raise Rejection("transform", key, f"message {number} of {len(chat)} has no {key} that is text")
        messages.append(without_missing(message))
    return messages
