"""Batches of tf.data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from .batches import Batch

SHUFFLED = 1000
"""Samples that the shuffle buffer has."""


def in_order(samples: Any, options: dict[str, Any]) -> Any:
    """Return a tf.data.Dataset in the order that was asked for, without an end where that was asked
    for."""
    shuffled = samples.shuffle(SHUFFLED) if options["shuffle"] else samples
    return shuffled.repeat() if options["endless"] else shuffled


def batches_of(samples: Any, options: dict[str, Any]) -> Callable[[], Iterator[Batch]]:
    """Return what makes the batches of an epoch: values of several shapes become ragged tensors."""
    batched = samples.ragged_batch(options["batch_size"]).prefetch(tf.data.AUTOTUNE)

    def epoch() -> Iterator[Batch]:
        for example in batched:
            parts = tf.nest.flatten(example, expand_composites=True)
            yield Batch(
                _samples(example), {str(number): part.numpy() for number, part in enumerate(parts)}
            )

    return epoch


def _samples(example: Any) -> int:
    value = tf.nest.flatten(example)[0]
    return int(value.nrows() if isinstance(value, tf.RaggedTensor) else value.shape[0])
