"""The tokenisers by what names them: `bytes`, a file, a folder, JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from shardctl.errors import InputError, UsageError
from shardctl.storage import printable
from shardctl.tokenizers import byte, huggingface, sentencepiece, tiktoken, words
from shardctl.tokenizers.base import Tokenizer
from shardctl.tokenizers.huggingface import AUTO

_BY_ENDING: dict[str, Callable[[Path, str], Tokenizer]] = {
    ".json": huggingface.open_file,
    ".model": lambda where, engine: sentencepiece.SentencePiece(where.read_bytes(), printable(str(where))),
    ".tiktoken": lambda where, engine: tiktoken.open_file(where),
    ".txt": lambda where, engine: words.Words(where.read_bytes(), printable(str(where))),
}
"""What opens a file of a tokeniser, by its ending. Files may raise OSError."""

_IN_FOLDERS = (huggingface.FILE, sentencepiece.FILE, tiktoken.FILE, words.FILE)
"""The files that make a folder one of a tokeniser: the first that is there counts."""

NAMES = (
    "a tokenizer.json or a folder with one, a SentencePiece .model, a .txt with a word on each line, tiktoken:ENCODING:FILE,"
    " words:FILE or bytes"
)
"""What may name a tokeniser, for messages."""


def open_tokenizer(spec: str | bytes, folder: Path | None = None, engine: str = AUTO) -> Tokenizer:
    """Open a tokeniser: see NAMES; bytes, and a string that begins with {, are the content of a tokenizer.json.

    Files are looked for in `folder`, as a rule the current one. `engine` is by what a tokenizer.json is done: auto,
    tokenizers, gigatoken or tiktoken. Raises InputError if a file cannot be read or is no tokeniser, UsageError for other
    names and engines that cannot be used, InstallError where a package is missing.
    """
    if isinstance(spec, bytes) or spec.lstrip().startswith("{"):
        data = spec.encode() if isinstance(spec, str) else spec
        return huggingface.HuggingFace(data, {}, "the tokenizer.json that was given", engine)
    if "\0" in spec:
        raise InputError(f"tokenizer {printable(spec)}: no file has such a name; it is {NAMES}")
    kind, _, rest = spec.partition(":")
    is_json = False
    try:
        if spec == byte.Bytes.kept_as:
            found: Tokenizer = byte.Bytes()
        elif kind == "tiktoken" and rest:
            name, _, path = rest.partition(":")
            if not path:
                raise UsageError(
                    f"tokenizer {printable(spec)!r} is not of the form tiktoken:ENCODING:FILE, as in"
                    " tiktoken:cl100k_base:cl100k_base.tiktoken"
                )
            found = tiktoken.Tiktoken(name, _place(path, folder).read_bytes(), printable(path))
        elif kind == "words" and rest:
            found = words.Words(_place(rest, folder).read_bytes(), printable(rest))
        else:
            where = _file(_place(spec, folder))
            is_json = where.suffix == ".json"
            found = _opener(where)(where, engine)
    except OSError as error:
        raise InputError(f"tokenizer {printable(spec)}: it cannot be read ({error.strerror}); it is {NAMES}") from None
    if engine != AUTO and not is_json:
        raise UsageError(f"engine = {engine} is for a tokenizer.json, and the tokenizer {printable(spec)} is none")
    return found


def digest_of_files(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 of the names and contents of a tokeniser's files, in hex digits."""
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def _place(path: str, folder: Path | None) -> Path:
    return Path(path) if folder is None else folder / path


def _file(where: Path) -> Path:
    """Return the file that makes a folder one of a tokeniser, or the file itself. Raises InputError."""
    if not where.is_dir():
        if where.exists() and not where.is_file():  # to read a pipe, for instance, may never end
            raise InputError(f"tokenizer {printable(str(where))}: it is not a regular file")
        return where
    found = next((where / name for name in _IN_FOLDERS if (where / name).is_file()), None)
    if found is None:
        raise InputError(f"tokenizer {printable(str(where))}: the folder has none of {', '.join(_IN_FOLDERS)}")
    return found


def _opener(where: Path) -> Callable[[Path, str], Tokenizer]:
    found = _BY_ENDING.get(where.suffix)
    if found is None:
        what = "" if where.is_file() else "there is no such file; "
        raise InputError(f"tokenizer {printable(str(where))}: {what}a tokeniser is {NAMES}")
    return found
