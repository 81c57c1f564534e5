"""The filter of the length of texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, Rejection
from shardctl.format.roles import Role
from shardctl.format.token_columns import TOKENS, is_list_of_whole_numbers, list_offsets
from shardctl.transforms.base import BatchTransform
from shardctl.transforms.records import BatchRun, EachBatch, Records, RejectRow
from shardctl.transforms.settings import Optional, SettingError, Whole, setting
from shardctl.transforms.text.base import require_text, texts_of
from shardctl.transforms.text.rules import Rule, broken_by, whole_numbers
from shardctl.transforms.text.words import Words

LIMIT = Optional(Whole(0, 2**40))


@dataclass(frozen=True)
class FilterLength(BatchTransform):
    """Keeps texts whose number of characters, words or tokens is within limits. A missing text has
    none."""

    name: ClassVar[str] = "filter_length"
    min_chars: int | None = setting(LIMIT, None, "Fewest characters (code points).")
    max_chars: int | None = setting(LIMIT, None, "Most characters.")
    min_words: int | None = setting(LIMIT, None, "Fewest words: characters between white space.")
    max_words: int | None = setting(LIMIT, None, "Most words.")
    min_tokens: int | None = setting(LIMIT, None, "Fewest tokens, after the step tokenize.")
    max_tokens: int | None = setting(LIMIT, None, "Most tokens.")

    def __post_init__(self) -> None:
        if all(getattr(self, field.name) is None for field in fields(self)):
            raise SettingError(
                f"needs at least one of {', '.join(field.name for field in fields(self))}"
            )
        for what in ("chars", "words", "tokens"):
            least, most = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if least is not None and most is not None and least > most:
                raise SettingError(f"max_{what} {most} is under min_{what} {least}", f"max_{what}")

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the same columns."""
        if self._limits(TOKENS):
            place = given.get_field_index(TOKENS)
            if place < 0 or not is_list_of_whole_numbers(given.field(place).type):
                raise InputError(
                    f"{self.name} min_tokens, max_tokens: the records have no tokens; put the step "
                    "after tokenize"
                )
        if self._limits("chars") or self._limits("words"):
            require_text(given, self.name)
        return given

    def begin(self, folder: Path, roles: Mapping[str, Role]) -> BatchRun:
        """Return what judges one batch after the other."""
        return EachBatch(self._apply)

    def _limits(self, what: str) -> bool:
        return getattr(self, f"min_{what}") is not None or getattr(self, f"max_{what}") is not None

    def _apply(self, records: Records, reject: RejectRow) -> Records:
        kept = np.ones(len(records.numbers), bool)
        for fault in broken_by(self._rules(records)):
            kept[fault.row] = False
            reject(fault.row, Rejection(fault.stage, fault.rule, fault.why))
        return records.kept(kept)

    def _rules(self, records: Records) -> Iterator[Rule]:
        import pyarrow.compute as pc

        if self._limits("chars"):
            yield Rule(
                "chars",
                "characters",
                whole_numbers(pc.utf8_length(texts_of(records))),
                self.min_chars,
                self.max_chars,
            )
        if self._limits("words"):
            yield Rule(
                "words", "words", Words(texts_of(records)).count, self.min_words, self.max_words
            )
        if self._limits(TOKENS):
            lengths = np.diff(list_offsets(records.batch.column(TOKENS)))
            yield Rule("tokens", "tokens", lengths, self.min_tokens, self.max_tokens)
