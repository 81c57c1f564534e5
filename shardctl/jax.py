"""shardctl in JAX: a random-access source for Grain, and batches as jax.Arrays.

    for batch in shardctl.jax.batches(ds.loader(256, shuffle=True)):
        ...  # a dict of jax.Arrays; text and ragged fields stay lists

    grain.MapDataset.source(shardctl.jax.Source(ds)).shuffle(seed=0).batch(256)

Needs JAX (`pip install shardctl[jax]`); `Source` needs nothing but shardctl.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, SupportsIndex

import numpy as np

from shardctl.format.roles import Sample
from shardctl.loader.blocks.memory import without_views
from shardctl.loader.dataset import Dataset
from shardctl.loader.loader import Loader
from shardctl.system.packages import install_line
from shardctl.system.python_names import named_arguments


class Source:
    """The samples of a dataset by index, as a grain.sources.RandomAccessDataSource. Can be pickled
    for workers."""

    @named_arguments("shardctl.jax.Source", "shardctl.jax.Source(ds)", Dataset)
    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._dataset)

    def __getitem__(self, index: SupportsIndex) -> Sample:
        """Return one sample."""
        return self._dataset[int(index)]

    def __repr__(self) -> str:
        """Return the identity of the dataset: Grain stores it in checkpoints, to detect another
        dataset."""
        which = ", ".join(f"{name}={value!r}" for name, value in self._dataset.identity.items())
        return f"shardctl.jax.Source({which})"


@named_arguments("shardctl.jax.batches", "shardctl.jax.batches(ds.loader(256))", Loader)
def batches(loader: Loader, device: Any = None) -> Iterator[dict[str, Any]]:
    """Yield the batches of a loader with jax.Arrays in place of arrays, on `device` or a sharding
    (None: JAX's default).

    Raises UsageError for a loader with `reuse`.
    """
    loader.options.check_keeping("JAX")
    try:
        import jax
    except ImportError as error:  # pragma: no cover - the tests have it, or skip
        raise ImportError(f"shardctl.jax needs JAX: {install_line('jax')}") from error
    for batch in map(without_views, loader):
        yield {
            name: jax.device_put(v, device) if isinstance(v, np.ndarray) else v
            for name, v in batch.items()
        }
