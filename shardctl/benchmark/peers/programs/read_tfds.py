"""Folders of TensorFlow Datasets, as tfds reads them."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf
import tensorflow_datasets as tfds

from .batches import Reading, Values
from .read_tfrecord import in_order, reading_of_samples


def open_reading(options: Values) -> Reading:
    """Open the folder of the files, with all of its splits."""
    builder = tfds.builder_from_directory(str(Path(options["files"][0]).parent))
    features = builder.info.features
    images = [
        name for name, feature in features.items() if isinstance(feature, tfds.features.Image)
    ]
    later = {
        name: tfds.decode.SkipDecoding() for name in images
    }  # encoded images are shuffled, as they are smaller than pixels
    samples = in_order(
        builder.as_dataset(split="all", shuffle_files=options["shuffle"], decoders=later), options
    )

    def decoded(sample: Values) -> Values:
        return {**sample, **{name: features[name].decode_example(sample[name]) for name in images}}

    if options["decode"] and images:
        samples = samples.map(
            decoded, num_parallel_calls=tf.data.AUTOTUNE, deterministic=not options["shuffle"]
        )
    return reading_of_samples(f"tensorflow_datasets {tfds.__version__}", samples, options)
