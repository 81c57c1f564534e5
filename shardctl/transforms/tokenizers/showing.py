"""What a tokenizer is, for people: `shardctl tokenizer show`."""

from __future__ import annotations

from dataclasses import dataclass

from shardctl.transforms.tokenizers.base import UINT16_VOCABULARY, Placing
from shardctl.transforms.tokenizers.proof import not_given_back
from shardctl.transforms.tokenizers.table import open_tokenizer


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
        chat_template=isinstance(found, Placing) and found.template is not None,
        versions=found.versions,
    )
