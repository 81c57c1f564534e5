"""shardctl in TensorFlow: a tf.data.Dataset of batches with the right specs.

    for batch in shardctl.tensorflow.dataset(ds.loader(256, shuffle=True)):
        ...  # a dict of tensors; ragged fields are RaggedTensors, text is tf.string

Needs TensorFlow (`pip install shardctl[tensorflow]`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardctl.system.packages import install_line

try:
    import tensorflow as tf
except ImportError as error:  # pragma: no cover - the tests have it, or skip
    raise ImportError(
        f"shardctl.tensorflow needs TensorFlow: {install_line('tensorflow')}"
    ) from error

from shardctl.errors import UsageError
from shardctl.loader.blocks.column import Spec
from shardctl.loader.blocks.memory import without_views
from shardctl.loader.loader import Loader
from shardctl.system.python_names import named_arguments


@named_arguments(
    "shardctl.tensorflow.dataset", "shardctl.tensorflow.dataset(ds.loader(256))", Loader
)
def dataset(loader: Loader) -> tf.data.Dataset:
    """Return the batches of a loader as a tf.data.Dataset; iterating it again gives the next epoch.

    Raises UsageError for fields that TensorFlow has no type for (leave them out with `columns`),
    and for `reuse`.
    """
    loader.options.check_keeping("TensorFlow")
    specs = loader.specs()
    signature = {name: _signature(name, spec) for name, spec in specs.items()}

    def batches() -> Iterator[dict[str, Any]]:
        for batch in map(without_views, loader):
            yield {name: _value(values, specs[name]) for name, values in batch.items()}

    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def _signature(name: str, spec: Spec) -> Any:
    shape = (None, *(length if length >= 0 else None for length in spec.shape))
    if spec.kind in ("fixed", "padded"):
        return tf.TensorSpec(shape, spec.dtype)
    if spec.kind == "whole":
        return tf.TensorSpec(shape[1:], spec.dtype)
    if spec.kind == "ragged" and spec.shape[0] >= 0:
        raise UsageError(
            f"TensorFlow needs one size for {name} with the channels first; give crop= or "
            "resize=(height, width)"
        )
    if spec.kind == "ragged":
        return tf.RaggedTensorSpec(
            shape, spec.dtype, ragged_rank=sum(length is None for length in shape[1:])
        )
    if spec.kind in ("text", "bytes"):
        return tf.TensorSpec((None,), tf.string)
    raise UsageError(f"TensorFlow has no type for the field {name}; leave it out with columns=")


def _value(values: Any, spec: Spec) -> Any:
    if spec.kind != "ragged":
        return values
    if all(length < 0 for length in spec.shape):  # lists of numbers, or lists of such lists
        depth = len(spec.shape)
        return tf.ragged.constant(
            [_plain(value) for value in values], dtype=spec.dtype, ragged_rank=depth
        )
    return (
        tf.ragged.stack([tf.RaggedTensor.from_tensor(value) for value in values])
        if len(values)
        else values
    )


def _plain(value: Any) -> Any:
    """Return an array as lists; a list of arrays as a list of lists."""
    return [_plain(inner) for inner in value] if isinstance(value, list) else value.tolist()
