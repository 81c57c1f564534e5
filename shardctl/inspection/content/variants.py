"""How different the variants of an input are: augmentation that changes nothing is of no use."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from shardctl.format.roles import Sample
from shardctl.loader.dataset import open_dataset
from shardctl.system.dataclass import dataclass
from shardctl.system.locations.folder import Folder
from shardctl.system.sequences import evenly_spaced

INPUTS = 32
"""Inputs, from all over the dataset, whose variants are compared."""

MOST = 16
"""Samples that are read to find the variants of an input."""


@dataclass(frozen=True)
class VariantStatistics:
    """Comparison of the variants of some inputs: `compared` of them, with `each` variants on
    average.

    `alike` have two variants with the same content. `difference` is the mean absolute difference
    between the pixels of the first variant and of the others, from 0 to 255, over those of the same
    size; None where there are no such images.
    """

    compared: int
    each: float
    alike: int
    difference: float | None

    def record(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)


def variant_statistics(folder: Folder, split: str | None = None) -> VariantStatistics | None:
    """Compare the variants of some inputs; None if the dataset has none. Raises DatasetError."""
    dataset = open_dataset(folder.text, split)
    if "variant" not in dataset.schema.names or not len(dataset):
        return None
    image = dataset.roles.main_image
    content = [name for name in dataset.schema.names if name not in ("key", "variant", "label")]
    counts, alike, differences = [], 0, []
    for place in evenly_spaced(len(dataset), INPUTS):
        first = max(0, min(place - MOST // 2, len(dataset) - MOST))
        batch = dataset.take(
            range(first, min(first + MOST, len(dataset))), ["key", "variant", *content]
        )
        rows = [
            {name: values[row] for name, values in batch.items()}
            for row in range(len(batch["key"]))
        ]
        of_input = [
            row for row in rows if row["key"] == batch["key"][min(place - first, len(rows) - 1)]
        ]
        contents = {repr([_plain(row[name]) for name in content]) for row in of_input}
        counts.append(len(of_input))
        alike += len(contents) < len(of_input)
        if image is not None:
            differences += _differences([row[image] for row in of_input])
    mean = float(np.mean(differences)) if differences else None
    return VariantStatistics(len(counts), float(np.mean(counts)), alike, mean)


def _plain(value: Sample | Any) -> Any:
    """Return a value that is written the same only if it is the same."""
    return (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


def _differences(images: list[Any]) -> list[float]:
    """Return how much each image differs from the first one, where it has the same size."""
    first, *others = images
    if first is None:
        return []
    same = (other for other in others if other is not None and other.shape == first.shape)
    return [float(np.abs(other.astype(np.int16) - first.astype(np.int16)).mean()) for other in same]
