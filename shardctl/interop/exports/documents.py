"""The documents of a dataset of tokens, in order: of ragged tokens a document per row, of packed blocks its pieces joined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import DatasetError, InputError
from shardctl.format.arrays import dtype_of
from shardctl.format.roles import Tokens
from shardctl.format.token_columns import (
    DOCUMENT_COLUMNS,
    DOCUMENT_KEYS,
    TOKENS,
    is_list_of_whole_numbers,
    list_offsets,
    main_tokens,
)
from shardctl.interop.exports.base import Progress
from shardctl.interop.exports.packed import joined_blocks
from shardctl.interop.exports.source import Shard, Source
from shardctl.system.dataclass import dataclass

Values = npt.NDArray[Any]


@dataclass(frozen=True)
class Documents:
    """Some documents, one behind the other: `tokens` (n,) of any type of whole numbers, `lengths` (documents,) int64."""

    tokens: Values
    lengths: npt.NDArray[np.int64]


@dataclass(frozen=True)
class TokenField:
    """The field of tokens of a dataset. `cut` tells that rows may be pieces of a document, numbered in `variant`."""

    name: str
    role: Tokens
    type: pa.DataType
    cut: bool

    @classmethod
    def of(cls, source: Source) -> TokenField:
        """Find the field of tokens. Raises InputError if there is none, or not one, DatasetError if it holds no tokens."""
        layout, shown = source.layout, source.shown
        main = main_tokens(layout.roles)
        if main is None:
            raise InputError(f"{shown}: has no tokens; convert the texts with --tokenizer, and export that dataset")
        name, role = main
        if len(layout.roles.tokens) > 1 and name != TOKENS:
            raise InputError(
                f"{shown}: has several fields of tokens ({', '.join(layout.roles.tokens)}), and none is called tokens"
            )
        type_ = layout.columns.field(name).type
        if not is_list_of_whole_numbers(type_):
            raise DatasetError(f"{shown}: the field {name} is of type {type_}, which is not a list of tokens")
        most = np.iinfo(dtype_of(type_.value_type)).max
        if role.eos is not None and role.eos > most:
            raise DatasetError(f"{shown}: {name} end with {role.eos}, which their type {type_.value_type} does not hold")
        if role.packed:
            _check_packed(source, name, type_)
        steps: Any = source.manifest.recipe.get("transform")
        packs = any(isinstance(step, dict) and step.get("name") == "pack" for step in steps or ())
        numbered = "variant" in layout.columns.names and pa.types.is_integer(layout.columns.field("variant").type)
        return cls(name, role, type_, cut=packs and numbered and not role.packed)

    def documents(self, source: Source, split: str, progress: Progress) -> Iterator[Documents]:
        """Yield the documents of a split in order, those of about a block at a time. Some may be empty. Raises DatasetError."""
        made: Iterator[tuple[int, Values, npt.NDArray[np.int64]]]
        for shard in source.shards(split):
            made = joined_blocks(shard, self.name) if self.role.packed else self._rows(shard)
            for rows, tokens, lengths in made:
                yield Documents(tokens, lengths)
                progress(rows)

    def _rows(self, shard: Shard) -> Iterator[tuple[int, Values, npt.NDArray[np.int64]]]:
        for block in shard.blocks():
            column = block.column(self.name)
            values = column.flatten()  # without what is behind a missing row
            if values.null_count:
                raise shard.damaged(f"a value is missing in {self.name}")
            if self.cut and pc.any(pc.greater(block.column("variant"), 0)).as_py():
                raise InputError(
                    f"{shard.folder.shown()}: its long documents are cut into rows of their own (pack none); export a dataset"
                    " that is not packed, or packed with concat or bfd"
                )
            yield block.num_rows, np.from_dlpack(values), np.diff(list_offsets(column))


def _check_packed(source: Source, name: str, type_: pa.DataType) -> None:
    """Raise DatasetError if blocks do not say which documents are in them, or have no fixed length."""
    columns = source.layout.columns
    types = {column: columns.field(column).type for column in DOCUMENT_COLUMNS if columns.get_field_index(column) >= 0}
    fits = pa.types.is_fixed_size_list(type_) and type_.list_size > 0 and set(types) == set(DOCUMENT_COLUMNS)
    for column, found in types.items():
        wanted = pa.types.is_string if column == DOCUMENT_KEYS else pa.types.is_integer
        fits = fits and pa.types.is_list(found) and wanted(found.value_type)
    if not fits:
        names = ", ".join(DOCUMENT_COLUMNS)
        raise DatasetError(
            f"{source.shown}: {name} are packed blocks, which have a fixed length and the columns {names}; this dataset lacks"
            " them"
        )


def ended(documents: Documents, eos: int | None) -> Documents:
    """Return the documents without the empty ones, each with `eos` behind it where it does not end so; None adds nothing."""
    lengths = documents.lengths[documents.lengths > 0]
    if eos is None or not len(lengths):
        return Documents(documents.tokens, lengths)
    ends = np.cumsum(lengths)
    lacks = documents.tokens[ends - 1] != eos
    tokens = np.insert(documents.tokens, ends[lacks], eos)
    return Documents(tokens, lengths + lacks)
