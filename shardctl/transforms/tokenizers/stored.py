"""The copy of its tokenizer that a dataset has."""

from __future__ import annotations

from shardctl.errors import DatasetError
from shardctl.format.names import is_file_name
from shardctl.format.roles import Roles
from shardctl.format.token_columns import main_tokens
from shardctl.system.folders import FolderHere
from shardctl.system.text import printable
from shardctl.transforms.tokenizers.base import Tokenizer


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
        raise DatasetError(
            f"{shown}: names a tokenizer that is not in its folder: "
            f"{printable(role.tokenizer)!r:.200}"
        )
    # only datasets of tokens need it
    from shardctl.transforms.tokenizers.table import open_tokenizer

    tokenizer = open_tokenizer(role.tokenizer, folder.work)
    if role.vocabulary is not None and tokenizer.vocabulary != role.vocabulary:
        other = (
            f"it has {tokenizer.vocabulary:,} tokens, and the dataset was made with "
            f"{role.vocabulary:,}"
        )
        raise DatasetError(
            f"{shown}: {printable(role.tokenizer)} is not the tokenizer that made its tokens: "
            f"{other}"
        )
    return tokenizer
