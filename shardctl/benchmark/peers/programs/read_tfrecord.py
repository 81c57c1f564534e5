"""TFRecord files, as tf.data reads them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import tensorflow as tf

from .batches import Batch, Reading, Values, is_image

LOOKED_AT = 64
"""Records that tell which features there are, and which hold images."""

_EMPTY = {"bytes_list": "", "int64_list": 0, "float_list": 0.0}
_TYPES = {"bytes_list": tf.string, "int64_list": tf.int64, "float_list": tf.float32}


def open_reading(options: Values) -> Reading:
    """Open the files: several at once, each record parsed as an Example and its images decoded in
    parallel."""
    files, shuffle = options["files"], options["shuffle"]
    compression = _compression(files[0])
    features, images = _features(files[0], compression)
    paths = tf.data.Dataset.from_tensor_slices(files)
    if shuffle:
        paths = paths.shuffle(len(files))
    records = paths.interleave(
        lambda path: tf.data.TFRecordDataset(path, compression_type=compression),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=not shuffle,
    )

    def example(record: Any) -> Values:
        values: Values = tf.io.parse_single_example(record, features)
        if options["decode"]:
            values |= {name: _pixels(values[name]) for name in images}
        return values

    # Encoded samples are shuffled, as they are smaller than pixels.
    samples = in_order(records, options).map(
        example, num_parallel_calls=tf.data.AUTOTUNE, deterministic=not shuffle
    )
    return reading_of_samples(f"tensorflow {tf.__version__}", samples, options)


def _compression(file: str) -> str:
    for compression in ("", "GZIP", "ZLIB"):
        try:
            next(iter(tf.data.TFRecordDataset(file, compression_type=compression)), None)
        except tf.errors.DataLossError:
            continue
        return compression
    return ""


def _features(file: str, compression: str) -> tuple[Values, list[str]]:
    """Return the features of the first records, and those that hold images."""
    kinds: dict[str, str] = {}
    many: set[str] = set()
    images: set[str] = set()
    for record in islice(tf.data.TFRecordDataset(file, compression_type=compression), LOOKED_AT):
        for name, feature in tf.train.Example.FromString(record.numpy()).features.feature.items():
            kind = feature.WhichOneof("kind")
            if kind is None:
                many.add(name)
                continue
            values = getattr(feature, kind).value
            kinds[name] = kind
            if len(values) != 1:
                many.add(name)
            elif is_image(values[0]):
                images.add(name)
    return {
        name: tf.io.RaggedFeature(_TYPES[kind])
        if name in many
        else tf.io.FixedLenFeature([], _TYPES[kind], _EMPTY[kind])
        for name, kind in kinds.items()
    }, sorted(images - many)


def _pixels(value: Any) -> Any:
    pixels = tf.io.decode_image(value, channels=3, expand_animations=False)
    pixels.set_shape([None, None, 3])
    return pixels


SHUFFLED = 1000
"""Samples that the shuffle buffer has."""


def in_order(samples: Any, options: Values) -> Any:
    """Return a tf.data.Dataset in the order that was asked for, without an end where that was asked
    for."""
    shuffled = samples.shuffle(SHUFFLED) if options["shuffle"] else samples
    return shuffled.repeat() if options["endless"] else shuffled


def reading_of_samples(library: str, samples: Any, options: Values) -> Reading:
    """Return a reader of a tf.data.Dataset: values of several shapes become ragged tensors."""
    batched = samples.ragged_batch(options["batch_size"]).prefetch(tf.data.AUTOTUNE)

    def epoch() -> Iterator[Batch]:
        for example in batched:
            parts = tf.nest.flatten(example, expand_composites=True)
            yield Batch(
                _samples(example), {str(number): part.numpy() for number, part in enumerate(parts)}
            )

    return Reading(library, "the threads of tf.data (AUTOTUNE)", 0, True, epoch)


def _samples(example: Any) -> int:
    value = tf.nest.flatten(example)[0]
    return int(value.nrows() if isinstance(value, tf.RaggedTensor) else value.shape[0])
