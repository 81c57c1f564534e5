"""The tokenizers by what names them: `bytes`, a file, a folder, JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.format.names import is_file_name
from shardctl.format.roles import Roles
from shardctl.format.tables import BRING_BACK
from shardctl.format.token_columns import main_tokens
from shardctl.system.files import read_named
from shardctl.system.folders import Folder
from shardctl.system.text import printable
from shardctl.transforms.tokenizers import huggingface, plain, tiktoken
from shardctl.transforms.tokenizers.base import UINT16_VOCABULARY, Tokenizer, WithOffsets
from shardctl.transforms.tokenizers.engines import not_given_back
from shardctl.transforms.tokenizers.huggingface import AUTO
from shardctl.transforms.tokenizers.plain import Bytes, SentencePiece, Words

FILES: Mapping[str, Callable[[Path, str], Tokenizer]] = {
    huggingface.FILE: huggingface.open_file,
    plain.MODEL: lambda where, _: SentencePiece(where.read_bytes(), printable(where)),
    plain.FILE: lambda where, _: Words(where.read_bytes(), printable(where)),
    tiktoken.FILE: lambda where, _: tiktoken.open_file(where),
}
"""What opens the file of a tokenizer, given with an engine, by its name in a dataset: a folder that
has it is such a tokenizer too, the first of several, and so is any file of the same ending. All may
raise OSError."""

NAMED: Mapping[str, Callable[[str, Path], Tokenizer]] = {
    "words:": lambda path, folder: Words(read_named(folder / path), printable(path)),
    "tiktoken:": tiktoken.open_named,
    "bytes": lambda _, folder: Bytes(),
}
"""What opens a name that begins so, by what follows it and the folder that files are looked for
in."""

NAMES = (
    "a tokenizer.json or a folder with one, a SentencePiece .model, a .txt with a word on each "
    "line, tiktoken:ENCODING:FILE or bytes"
)
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
            where, name = _file(Path(spec) if folder is None else folder / spec)
            is_json = name == huggingface.FILE
            found = FILES[name](where, engine)
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
    for prefix, open_named in NAMED.items():
        rest = spec[len(prefix) :]
        if spec.startswith(prefix) and bool(rest) == prefix.endswith(":"):
            return open_named(rest, folder)
    return None


def _file(where: Path) -> tuple[Path, str]:
    """Return the file of a tokenizer, or that which makes a folder one, and the name that such files
    have. Raises InputError."""
    shown = f"tokenizer {printable(where)}"
    if where.is_dir():
        for name in FILES:
            if (where / name).is_file():
                return where / name, name
        raise InputError(f"{shown}: the folder has none of {', '.join(FILES)}")
    if where.exists() and not where.is_file():  # to read a pipe, for instance, may never end
        raise InputError(f"{shown}: it is not a regular file")
    for name in FILES if where.suffix else ():
        if name.endswith(where.suffix):
            return where, name
    what = "" if where.is_file() else "there is no such file; "
    raise InputError(
        f"{shown}: {what}a tokenizer is {NAMES}. Of a model of Hugging Face, download the "
        "tokenizer.json"
    )


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


def stored_tokenizer(folder: Folder, roles: Roles) -> Tokenizer:
    """Open the copy of the tokenizer that lies in the folder of a dataset, as the role of its
    tokens says.

    No code that a dataset names is run: what it names is one of shardctl's own kinds of tokenizers.
    Raises DatasetError if there is none or it cannot be used, InstallError if a package is missing.
    """
    main, shown = main_tokens(roles), folder.shown()
    if main is None:
        raise DatasetError(f"{shown}: has no tokens; convert texts with --tokenizer FILE")
    role = main[1]
    if role.tokenizer is None:
        raise DatasetError(f"{shown}: does not say which tokenizer made its tokens")
    if not is_file_name(role.tokenizer):
        named = f"{printable(role.tokenizer)!r:.200}"
        raise DatasetError(f"{shown}: names a tokenizer that is not in its folder: {named}")
    try:
        beside = folder.path(role.tokenizer).parent
    except FileNotFoundError:
        raise DatasetError(f"{folder.shown(role.tokenizer)}: missing; {BRING_BACK}") from None
    tokenizer = open_tokenizer(role.tokenizer, beside)
    if role.vocabulary is not None and tokenizer.vocabulary != role.vocabulary:
        other = (
            f"it has {tokenizer.vocabulary:,} tokens, and the dataset was made with "
            f"{role.vocabulary:,}"
        )
        raise DatasetError(f"{shown}: {printable(role.tokenizer)} did not make its tokens: {other}")
    return tokenizer
