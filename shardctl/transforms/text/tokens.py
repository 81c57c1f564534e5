"""Texts as the numbers of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import InputError, Rejection
from shardctl.format.arrays import bytes_of
from shardctl.format.roles import Role
from shardctl.format.token_columns import TOKENS
from shardctl.system.text import format_bytes
from shardctl.transforms.records import BatchRun, NothingHeld, Records, RejectRow
from shardctl.transforms.settings import Flag, setting
from shardctl.transforms.text.base import TEXT, require_text, texts_of
from shardctl.transforms.text.chat_forms import form_of
from shardctl.transforms.text.tokenizing import TokenStep
from shardctl.transforms.tokenizers.base import Encoded, Rows
from shardctl.transforms.tokenizers.huggingface import HuggingFace
from shardctl.transforms.tokenizers.proof import not_given_back


@dataclass(frozen=True)
class Tokenize(TokenStep):
    """Turns texts into the numbers of tokens: the column tokens takes the place of text.

    Special tokens are added, and found in texts, as the tokenizer says; the end of a document is
    added by packing. Empty and missing texts are rejected.
    """

    name: ClassVar[str] = "tokenize"
    keep_text: bool = setting(Flag(), False, "Keep the column text too.")
    exact: bool = setting(
        Flag(),
        False,
        "Reject texts that the tokens do not give back exactly; this decodes every one.",
    )

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the columns with tokens in the place of text, or before it. Raises InputError if
        there are no texts."""
        form = None if TEXT in given.names else form_of(given.names)
        if form is not None:
            raise InputError(
                f"the records have {' and '.join(form.needs)} and no text: they are chats. To make "
                "tokens of them, use"
                " --chat-template chatml (or auto, or a FILE.jinja), or the step tokenize_chat"
            )
        require_text(given, self.name)
        self.refuse_tokens(given)
        place = given.get_field_index(TEXT)
        field = pa.field(TOKENS, pa.list_(self.numbers))
        return given.insert(place, field) if self.keep_text else given.set(place, field)

    def begin(self, folder: Path, roles: Mapping[str, Role]) -> BatchRun:
        """Return what encodes the texts of one batch after the other."""
        return _Run(self)

    def notices(self) -> tuple[str, ...]:
        """Say that the tokenizer loses something, with an example."""
        return () if self.exact or self._lost is None else (self._lost,)

    @cached_property
    def _lost(self) -> str | None:
        opened = self.opened
        text = opened.not_given_back if isinstance(opened, HuggingFace) else not_given_back(opened)
        if text is None:
            return None
        back = self.opened.decode(self.opened.encode(pa.array([text], pa.string())).ids)
        return (
            f"the tokenizer {self.tokenizer} does not give every text back exactly: {text!r:.40} "
            f"comes back as {back!r:.40}"
            " (exact = true in the step tokenize rejects such texts)"
        )

    def encoded(self, texts: pa.Array, reject: RejectRow) -> tuple[Encoded, Rows]:
        """Return the tokens of texts, (n,) string without nulls, and which of them, (n,), are not
        rejected."""
        sizes = bytes_of(texts).sizes
        kept = sizes > 0
        longer = self.opened.too_long(texts)
        if longer.any():
            texts = self._without(texts, longer, sizes, reject)
            kept &= ~longer
        encoded = self.opened.encode(texts)
        counts = np.diff(encoded.offsets)
        for row in np.flatnonzero((counts == 0) | (sizes == 0)).tolist():
            if kept[row] or not sizes[row]:
                kept[row] = False
                reject(
                    row,
                    Rejection(
                        "transform",
                        "empty",
                        "the text has no tokens" if sizes[row] else "the text is empty",
                    ),
                )
        if self.exact:
            self._compare(texts, encoded, kept, reject)
        return encoded, kept

    def _without(
        self, texts: pa.Array, longer: Rows, sizes: npt.NDArray[np.int64], reject: RejectRow
    ) -> pa.Array:
        """Return the texts with an empty one for each that is too long."""
        import pyarrow.compute as pc

        for row in np.flatnonzero(longer).tolist():
            message = (
                f"the text has {format_bytes(int(sizes[row]))} and cannot be cut, and this "
                "tokenizer takes a hundred times as"
                " much memory: make smaller records (--record paragraph)"
            )
            reject(row, Rejection("transform", "too-large", message))
        return pc.if_else(pa.array(longer), pa.scalar("", pa.string()), texts)

    def _compare(self, texts: pa.Array, encoded: Encoded, kept: Rows, reject: RejectRow) -> None:
        """Reject those of the kept texts that their tokens do not give back."""
        special = np.array(sorted(self.opened.special.values()), np.uint32)
        for row in np.flatnonzero(kept).tolist():
            ids = encoded.ids[encoded.offsets[row] : encoded.offsets[row + 1]]
            text = texts[row].as_py()
            if (
                self.opened.decode(ids) != text
                and self.opened.decode(ids[~np.isin(ids, special)]) != text
            ):
                kept[row] = False
                reject(
                    row,
                    Rejection(
                        "transform", "not-exact", "the tokens do not give the text back exactly"
                    ),
                )


class _Run(NothingHeld):
    """The work of the step in one shard."""

    def __init__(self, step: Tokenize) -> None:
        self._step = step
        self._tokens = 0

    def apply(self, records: Records, reject: RejectRow) -> Iterable[Records]:
        """Return the records with their tokens."""
        encoded, kept = self._step.encoded(texts_of(records), reject)
        self._tokens += int(np.diff(encoded.offsets)[kept].sum())
        place = records.batch.schema.get_field_index(TEXT)
        lists = self._step.lists(encoded.offsets, encoded.ids)
        batch = records.batch if self._step.keep_text else records.batch.remove_column(place)
        made = replace(records, batch=batch.add_column(place, pa.field(TOKENS, lists.type), lists))
        return (made.kept(kept),)

    def counts(self) -> dict[str, int]:
        """Return the number of tokens that were made."""
        return {"tokens": self._tokens}
