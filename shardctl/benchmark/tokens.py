"""Rates of published runs in samples of a dataset: images are samples, tokens are many to a sample."""

from __future__ import annotations

from typing import Any

from shardctl.benchmark.presets import Preset
from shardctl.dataset import Dataset
from shardctl.errors import UsageError
from shardctl.reader import Column
from shardctl.roles import Roles
from shardctl.spread import spread
from shardctl.storage import printable

TOKEN_COLUMNS = ("tokens", "input_ids", "token_ids", "ids")
BYTES_PER_TOKEN = 4
"""Of English text under the usual vocabularies (OpenAI, "What are tokens and how to count them?": about 4 characters)."""

_LOOKED_AT = 512


def samples_per_s(dataset: Dataset, preset: Preset, shown: str) -> tuple[float, tuple[str, ...]]:
    """Return the rate of a preset in samples/s of a dataset, and a description of how it was computed.

    `shown` names the dataset in messages. Raises UsageError if the dataset does not have what the preset needs.
    """
    roles, columns = dataset.roles, [Column.of(field) for field in dataset.schema]
    if preset.unit == "images":
        if not roles.images:
            raise UsageError(
                f"{preset.name} takes images, and {printable(shown)} has none; give a --consumer-rate in samples/s"
            )
        return preset.rate, ()
    found = _token_columns(columns, roles)
    if not found:
        raise UsageError(
            f"{preset.name} takes tokens, and {printable(shown)} has no tokens and no text; give a --consumer-rate"
        )
    mean = _mean_tokens(dataset, found)
    names = " and ".join(column.name for column in found)
    how = f"a quarter of the bytes of {names}" if found[0].is_text else f"the mean of {names}"
    return preset.rate / mean, (f"{preset.rate:,.0f} tokens/s at {mean:,.1f} tokens per sample ({how})",)


def _token_columns(columns: list[Column], roles: Roles) -> list[Column]:
    """Return the column that holds tokens: by role, by name, or the first of lists of whole numbers; else all text."""
    rows = [c for c in columns if c.dtype is not None and c.dtype.kind in "iu" and (c.kind == "variable" or len(c.shape) == 1)]
    tokens = [column for column in rows if column.name in roles.tokens]
    named = [column for column in rows if column.name in TOKEN_COLUMNS]
    return (tokens + named + rows)[:1] or [column for column in columns if column.is_text and column.name != "key"]


def _mean_tokens(dataset: Dataset, columns: list[Column]) -> float:
    """Return the mean number of tokens of some samples from all over the dataset."""
    places = spread(len(dataset), _LOOKED_AT)
    batch = dataset.take(places, columns=[column.name for column in columns])
    return max(1.0, sum(_tokens(value) for values in batch.values() for value in values) / len(places))


def _tokens(value: Any) -> float:
    if isinstance(value, str):
        return len(value.encode()) / BYTES_PER_TOKEN
    return 0.0 if value is None else len(value)
