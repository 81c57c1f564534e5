"""Rates of published runs in samples of a dataset: images are samples, tokens are many to a sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shardctl.benchmark.presets import Preset
from shardctl.dataset import Dataset, open_dataset
from shardctl.errors import UsageError
from shardctl.reader import Column
from shardctl.storage import printable

TOKEN_COLUMNS = ("tokens", "input_ids", "token_ids", "ids")
BYTES_PER_TOKEN = 4
"""Of English text under the usual vocabularies (OpenAI, "What are tokens and how to count them?": about 4 characters)."""

_LOOKED_AT = 512


def samples_per_s(root: Path, preset: Preset, split: str | None) -> tuple[float, tuple[str, ...]]:
    """Return how many samples of this dataset the preset takes per second, and how that was found.

    Raises UsageError where the preset takes what the dataset does not have, DatasetError.
    """
    dataset = open_dataset(root, split)
    columns = [Column.of(field) for field in dataset.schema]
    shown = printable(str(root))
    if preset.unit == "images":
        if not any(column.name == "image" for column in columns):
            raise UsageError(f"{preset.name} takes images, and {shown} has none; give a --consumer-rate in samples/s")
        return preset.rate, ()
    found = _token_column(columns)
    if found is None:
        raise UsageError(f"{preset.name} takes tokens, and {shown} has neither tokens nor text; give a --consumer-rate")
    mean = _mean_tokens(dataset, found)
    how = f"a quarter of the bytes of {found.name}" if found.is_text else f"the mean of {found.name}"
    return preset.rate / mean, (f"{preset.rate:,.0f} tokens/s at {mean:,.1f} tokens per sample ({how})",)


def _token_column(columns: list[Column]) -> Column | None:
    """Return the column that holds tokens: by its name, else the first row of whole numbers, else text."""
    rows = [c for c in columns if c.dtype is not None and c.dtype.kind in "iu" and (c.kind == "variable" or len(c.shape) == 1)]
    named = [column for column in rows if column.name in TOKEN_COLUMNS]
    return next(iter(named + rows + [column for column in columns if column.name == "text"]), None)


def _mean_tokens(dataset: Dataset, column: Column) -> float:
    """Return the mean number of tokens of some samples from all over the dataset."""
    places = np.unique(np.linspace(0, len(dataset) - 1, min(_LOOKED_AT, len(dataset))).astype(np.int64))
    values = dataset.take(places.tolist(), columns=[column.name])[column.name]
    if column.is_text:
        return max(1.0, sum(len(text.encode()) for text in values) / len(values) / BYTES_PER_TOKEN)
    return max(1.0, sum(len(row) for row in values) / len(values))
