"""All samples of a dataset, as values that can be compared, whatever their order and their
shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import shardctl


def samples_of(root: Path) -> dict[tuple[str, int], tuple[str, str]]:
    """Return the split and all values of every sample, by key and variant."""
    found: dict[tuple[str, int], tuple[str, str]] = {}
    for facts in shardctl.open(root).manifest.splits:
        split = shardctl.open(root, split=facts.name)
        columns = split.schema.names
        batch = (
            split.take(range(len(split)), columns, decode=False)
            if len(split)
            else {name: [] for name in columns}
        )
        for row in range(len(split)):
            values = {name: plain(batch[name][row]) for name in columns}
            name = (str(values["key"]), int(values.get("variant") or 0))
            if name in found:
                raise ValueError(f"{root}: {name} is there twice")
            found[name] = (facts.name, repr(values))
    return found


def plain(value: Any) -> Any:
    """Return a value that is written the same if it is the same."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.tolist())
    return value.item() if isinstance(value, np.generic) else value
