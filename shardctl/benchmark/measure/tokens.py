"""Rates of published runs in samples of a dataset: images are samples, tokens are many to a
sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardctl.benchmark.presets import Preset
from shardctl.errors import UsageError
from shardctl.format.roles import Roles
from shardctl.format.token_columns import DOCUMENT_LENGTHS, packed_column
from shardctl.loader.blocks.column import Column
from shardctl.loader.dataset import Dataset
from shardctl.system.permutation import evenly_spaced
from shardctl.system.text import printable

TOKEN_COLUMNS = ("tokens", "input_ids", "token_ids", "ids")
BYTES_PER_TOKEN = 4
"""Of English text under the usual vocabularies (OpenAI, "What are tokens and how to count them?":
about 4 characters)."""

_LOOKED_AT = 512


def samples_per_s(dataset: Dataset, preset: Preset, shown: str) -> tuple[float, tuple[str, ...]]:
    """Return the rate of a preset in samples/s of a dataset, and a description of how it was
    computed.

    `shown` names the dataset in messages. Raises UsageError if the dataset does not have what the
    preset needs.
    """
    roles, columns = dataset.roles, [Column.of(field) for field in dataset.schema]
    if preset.unit == "images":
        if not roles.images:
            raise UsageError(
                f"{preset.name} takes images, but {printable(shown)} has none; give a "
                "--consumer-rate in samples/s"
            )
        return preset.rate, ()
    found = _token_columns(columns, roles)
    if not found:
        raise UsageError(
            f"{preset.name} takes tokens, but {printable(shown)} has no tokens and no text; give a "
            "--consumer-rate"
        )
    mean = max(1.0, _mean_tokens(dataset, found))
    names = " and ".join(column.name for column in found)
    how = (
        f"a quarter of the bytes of {names}"
        if found[0].is_text
        else f"the mean of {names}{_without(found, roles)}"
    )
    return preset.rate / mean, (
        f"{preset.rate:,.0f} tokens/s at {mean:,.1f} tokens per sample ({how})",
    )


def tokens_per_sample(dataset: Dataset) -> float | None:
    """Return the mean number of tokens of a sample, without padding; None if none of its fields has
    the role of tokens."""
    columns = _lists_of_numbers(
        [Column.of(field) for field in dataset.schema if field.name in dataset.roles.tokens]
    )
    return _mean_tokens(dataset, columns[:1]) if columns else None


def _without(columns: list[Column], roles: Roles) -> str:
    return (
        " without padding" if any(column.name == packed_column(roles) for column in columns) else ""
    )


def _token_columns(columns: list[Column], roles: Roles) -> list[Column]:
    """Return the column that holds tokens: by role, by name, or the first of lists of whole
    numbers; else all text."""
    rows = _lists_of_numbers(columns)
    tokens = [column for column in rows if column.name in roles.tokens]
    named = [column for column in rows if column.name in TOKEN_COLUMNS]
    return (tokens + named + rows)[:1] or [
        column for column in columns if column.is_text and column.name != "key"
    ]


def _lists_of_numbers(columns: list[Column]) -> list[Column]:
    """Return the columns of lists of whole numbers, of any length or of one."""
    whole = [column for column in columns if column.dtype is not None and column.dtype.kind in "iu"]
    return [column for column in whole if column.kind == "variable" or len(column.shape) == 1]


def _mean_tokens(dataset: Dataset, columns: list[Column]) -> float:
    """Return the mean number of tokens of some samples from all over the dataset; those of padding
    do not count."""
    places = evenly_spaced(len(dataset), _LOOKED_AT)
    if columns[0].name == packed_column(dataset.roles) and DOCUMENT_LENGTHS in dataset.schema.names:
        lengths = dataset.take(places, columns=[DOCUMENT_LENGTHS])[DOCUMENT_LENGTHS]
        return sum(float(np.sum(of_block)) for of_block in lengths if of_block is not None) / max(
            1, len(places)
        )
    batch = dataset.take(places, columns=[column.name for column in columns])
    return sum(_tokens(value) for values in batch.values() for value in values) / max(
        1, len(places)
    )


def _tokens(value: Any) -> float:
    if isinstance(value, str):
        return len(value.encode()) / BYTES_PER_TOKEN
    return 0.0 if value is None else len(value)
