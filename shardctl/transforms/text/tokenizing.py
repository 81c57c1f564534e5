"""What steps that make tokens have in common: a tokenizer, which becomes part of the dataset, and
the column `tokens`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError
from shardctl.format.roles import Role, Tokens
from shardctl.format.token_columns import TOKENS
from shardctl.system.text import printable
from shardctl.transforms.base import BatchTransform
from shardctl.transforms.settings import Optional, SettingError, Text, Word, setting
from shardctl.transforms.tokenizers.base import UINT16_VOCABULARY, Ids, Offsets, Tokenizer
from shardctl.transforms.tokenizers.huggingface import AUTO, CHOICES
from shardctl.transforms.tokenizers.table import digest_of_files, open_tokenizer

S = TypeVar("S", bound="TokenStep")


@dataclass(frozen=True)
class TokenStep(BatchTransform):
    """A step with a tokenizer. Its settings name one of a person, or the one that a dataset keeps,
    by its `digest`."""

    tokenizer: str = setting(
        Text(),
        doc="bytes, a tokenizer.json or a folder with one, a SentencePiece .model, a .txt of "
        "words, tiktoken:ENCODING:FILE.",
    )
    engine: str = setting(
        Word(CHOICES),
        AUTO,
        "By what a tokenizer.json is done. auto: the fastest that gives the same tokens as "
        "tokenizers.",
    )
    eos: str | None = setting(
        Optional(Text()), None, "Token that ends a document. Default: as the tokenizer says."
    )
    pad: str | None = setting(
        Optional(Text()), None, "Token that fills up. Default: as the tokenizer says."
    )
    dtype: str = setting(
        Word(("auto", "uint16", "uint32")),
        "auto",
        "Type of the tokens. auto: uint16 for up to 65,536 different ones.",
    )
    digest: str | None = setting(
        Optional(Text()),
        None,
        "SHA-256 of the tokenizer's files, in the recipe of a dataset.",
        later=True,
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
            where = printable(str(Path(folder or ".") / self.tokenizer))
            raise InputError(
                f"{where}: this is not the tokenizer of the recipe: the SHA-256 of its files is "
                f"{str(found)[:12]}…, and the"
                f" recipe has {str(self.digest)[:12]}…. Use the right tokenizer, or leave digest "
                "out of the recipe"
            )
        return step.kept(found)

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
            raise SettingError(f"{problem}; use dtype = uint32 or auto", "dtype", owner=self.name)

    def kept(self: S, digest: str | None) -> S:
        """Return the same step with the settings that open the files that a dataset keeps."""
        step = replace(self, tokenizer=self.opened.kept_as, digest=digest)
        vars(step)["opened"] = self.opened
        return step

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
        return {
            **given,
            TOKENS: Tokens(
                self.opened.vocabulary, self._role("eos"), self._role("pad"), self.opened.kept_as
            ),
        }

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
                f"{role} names the token {name!r}, which the tokenizer does not have; its special "
                f"tokens are {special}",
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

    def lists(self, offsets: Offsets, ids: Ids) -> pa.Array:
        """Return the tokens of texts as a column: (n,) list of `numbers`."""
        values = ids if pa.types.is_uint32(self.numbers) else ids.astype(np.uint16)
        # Not pa.array, which at its first array of numpy imports numpy.ma: 15 ms in each worker
        # (measured 2026-11-27).
        starts, numbers = (
            pa.Array.from_buffers(
                type_, len(array), [None, pa.py_buffer(np.ascontiguousarray(array))], null_count=0
            )
            for type_, array in ((pa.int32(), offsets.astype(np.int32)), (self.numbers, values))
        )
        return pa.ListArray.from_arrays(starts, numbers)
