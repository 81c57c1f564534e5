"""The filter of the length of texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, Rejection
from shardctl.roles import Role
from shardctl.transforms.base import BatchTransform
from shardctl.transforms.records import BatchRun, EachBatch, Records, RejectRow
from shardctl.transforms.settings import Optional, SettingError, Whole, setting
from shardctl.transforms.text.base import require_text, texts_of
from shardctl.transforms.text.rules import Rule, broken_by
from shardctl.transforms.text.words import Words

TOKENS = "tokens"
LIMIT = Optional(Whole(0, 2**40))


@dataclasses.dataclass(frozen=True)
class FilterLength(BatchTransform):
    """Keeps texts whose number of characters, words or tokens is within limits. A missing text has none."""

    name: ClassVar[str] = "filter_length"
    min_chars: int | None = setting(LIMIT, None, "Fewest characters (code points).")
    max_chars: int | None = setting(LIMIT, None, "Most characters.")
    min_words: int | None = setting(LIMIT, None, "Fewest words: characters between white space.")
    max_words: int | None = setting(LIMIT, None, "Most words.")
    min_tokens: int | None = setting(LIMIT, None, "Fewest tokens, after the step tokenize.")
    max_tokens: int | None = setting(LIMIT, None, "Most tokens.")

    def __post_init__(self) -> None:
        if all(getattr(self, field.name) is None for field in dataclasses.fields(self)):
            raise SettingError(f"needs one of {', '.join(field.name for field in dataclasses.fields(self))}")
        for what in ("chars", "words", "tokens"):
            least, most = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if least is not None and most is not None and least > most:
                raise SettingError(f"max_{what} {most} is under min_{what} {least}", f"max_{what}")

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the same columns."""
        if self._limits(TOKENS):
            place = given.get_field_index(TOKENS)
            if place < 0 or not _is_list(given.field(place).type):
                raise InputError(f"{self.name} min_tokens, max_tokens: the records have no tokens; put the step after tokenize")
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
            yield Rule("chars", "characters", _numbers(pc.utf8_length(texts_of(records))), self.min_chars, self.max_chars)
        if self._limits("words"):
            yield Rule("words", "words", Words(texts_of(records)).count, self.min_words, self.max_words)
        if self._limits(TOKENS):
            lengths = pc.list_value_length(records.batch.column(TOKENS))
            yield Rule("tokens", "tokens", _numbers(lengths.fill_null(0)), self.min_tokens, self.max_tokens)


def _numbers(values: pa.Array) -> np.typing.NDArray[np.int64]:
    return values.to_numpy().astype(np.int64)  # type: ignore[no-any-return]  # pyarrow has no types


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))
