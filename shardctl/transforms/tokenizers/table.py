"""The tokenizers by what names them: `bytes`, a file, a folder, JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.format.names import is_file_name
from shardctl.format.roles import Roles
from shardctl.format.token_columns import main_tokens
from shardctl.system.folders import FolderHere
from shardctl.system.text import printable
from shardctl.transforms.tokenizers import huggingface, plain, sentencepiece, tiktoken
from shardctl.transforms.tokenizers.base import (
    UINT16_VOCABULARY,
    Tokenizer,
    TokenizerKind,
    WithOffsets,
)
from shardctl.transforms.tokenizers.engines import not_given_back
from shardctl.transforms.tokenizers.huggingface import AUTO

KINDS = (huggingface.KIND, sentencepiece.KIND, plain.WORDS, tiktoken.KIND, plain.BYTES)
"""The kinds of tokenizers. Of the files in a folder, that of the first of them counts."""

NAMES = f"{', '.join(kind.shown for kind in KINDS[:-1])} or {KINDS[-1].shown}"
"""What may name a tokenizer, for messages."""


def open_tokenizer(spec: str | bytes, folder: Path | None = None, engine: str = AUTO) -> Tokenizer:
    """Open a tokenizer: see NAMES; bytes, and a string that begins with {, are the content of a
    tokenizer.json.

    Files are looked for in `folder`, as a rule the current one. `engine` is by what a
    tokenizer.json is done: auto, tokenizers, gigatoken or tiktoken. Raises InputError if a file
    cannot be read or is no tokenizer, UsageError for other names and engines that cannot be used,
    InstallError where a package is missing.
    """
    if isinstance(spec, bytes) or spec.lstrip().startswith("{"):
        data = spec.encode() if isinstance(spec, str) else spec
        return huggingface.HuggingFace(data, {}, "the tokenizer.json that was given", engine)
    if "\0" in spec:
        raise InputError(f"tokenizer {printable(spec)}: no file has such a name; it is {NAMES}")
    is_json = False
    try:
        found = _named(spec, folder or Path())
        if found is None:
            where, kind = _file(Path(spec) if folder is None else folder / spec)
            assert kind.open_file is not None, "it has a file"
            is_json = kind is huggingface.KIND
            found = kind.open_file(where, engine)
    except OSError as error:
        raise InputError(
            f"tokenizer {printable(spec)}: it cannot be read ({error.strerror}); it is {NAMES}"
        ) from None
    if engine != AUTO and not is_json:
        raise UsageError(
            f"engine = {engine} is for a tokenizer.json, and the tokenizer {printable(spec)} is "
            "none"
        )
    return found


def _named(spec: str, folder: Path) -> Tokenizer | None:
    """Return the tokenizer of a name that is no path; None for a path."""
    for kind in KINDS:
        if kind.prefix is None or kind.open_named is None or not spec.startswith(kind.prefix):
            continue
        rest = spec[len(kind.prefix) :]
        if bool(rest) == kind.prefix.endswith(":"):
            return kind.open_named(rest, folder)
    return None


def _file(where: Path) -> tuple[Path, TokenizerKind]:
    """Return the file of a tokenizer, or that which makes a folder one, and the kind that it has.
    Raises InputError."""
    with_files = [(kind.file, kind) for kind in KINDS if kind.file is not None]
    shown = f"tokenizer {printable(str(where))}"
    if where.is_dir():
        found = next(
            ((where / name, kind) for name, kind in with_files if (where / name).is_file()), None
        )
        if found is None:
            raise InputError(
                f"{shown}: the folder has none of {', '.join(name for name, _ in with_files)}"
            )
        return found
    if where.exists() and not where.is_file():  # to read a pipe, for instance, may never end
        raise InputError(f"{shown}: it is not a regular file")
    of_ending = next(
        (kind for name, kind in with_files if where.suffix and name.endswith(where.suffix)), None
    )
    if of_ending is None:
        what = "" if where.is_file() else "there is no such file; "
        raise InputError(
            f"{shown}: {what}a tokenizer is {NAMES}. Of a model of Hugging Face, download the "
            "tokenizer.json"
        )
    return where, of_ending


def digest_of_files(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 of the names and contents of a tokenizer's files, in hex digits."""
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Description:
    """What a tokenizer is.

    `eos`, `bos` and `pad` are the numbers of these tokens, None where there is none, and `roles`
    has their names. `dtype` is the type in which tokens are stored, `special` has the special
    tokens by name, and `lost` is a text that does not come back exactly from its tokens, None if
    all that were tried do. `versions` are the packages that do the work.
    """

    vocabulary: int
    dtype: str
    eos: int | None
    bos: int | None
    pad: int | None
    roles: dict[str, str]
    special: dict[str, int]
    lost: str | None
    chat_template: bool
    versions: tuple[str, ...]


def describe(spec: str) -> Description:
    """Describe the tokenizer that `spec` names. Raises InputError, UsageError, InstallError as
    `open_tokenizer` does."""
    found = open_tokenizer(spec)
    numbers = {"eos": found.eos, "bos": found.bos, "pad": found.pad}
    return Description(
        found.vocabulary,
        "uint16" if found.vocabulary <= UINT16_VOCABULARY else "uint32",
        **numbers,
        roles={role: found.token(number) for role, number in numbers.items() if number is not None},
        special=dict(found.special),
        lost=not_given_back(found),
        chat_template=isinstance(found, WithOffsets) and found.template is not None,
        versions=found.versions,
    )


def stored_tokenizer(folder: FolderHere, roles: Roles) -> Tokenizer:
    """Open the copy of the tokenizer that lies in the folder of a dataset, as the role of its
    tokens says.

    No code that a dataset names is run: what it names is one of shardctl's own kinds of tokenizers.
    Raises DatasetError if there is none or it cannot be used, InstallError if a package is missing.
    """
    main, shown = main_tokens(roles), folder.shown()
    if main is None:
        raise DatasetError(
            f"{shown}: has no tokens, and so no tokenizer; convert texts with --tokenizer FILE"
        )
    role = main[1]
    if role.tokenizer is None:
        raise DatasetError(f"{shown}: does not say which tokenizer made its tokens")
    if not is_file_name(role.tokenizer):
        named = f"{printable(role.tokenizer)!r:.200}"
        raise DatasetError(f"{shown}: names a tokenizer that is not in its folder: {named}")
    tokenizer = open_tokenizer(role.tokenizer, folder.work)
    if role.vocabulary is not None and tokenizer.vocabulary != role.vocabulary:
        other = (
            f"it has {tokenizer.vocabulary:,} tokens, and the dataset was made with "
            f"{role.vocabulary:,}"
        )
        raise DatasetError(f"{shown}: {printable(role.tokenizer)} did not make its tokens: {other}")
    return tokenizer
