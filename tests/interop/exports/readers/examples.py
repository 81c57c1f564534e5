"""Reads TFRecord files with TensorFlow, and folders of TFDS with tensorflow_datasets."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import grain.python as grain
import tensorflow as tf
import tensorflow_datasets as tfds
from plain import plain, show

KINDS = {"bytes_list": tf.string, "float_list": tf.float32, "int64_list": tf.int64}


def records(folder: Path, split: str) -> list[dict[str, Any]]:
    """Return the features that each record has, as lists: parsed with the types that they have in
    some record."""
    files = sorted(map(str, folder.glob(f"{split}-*.tfrecord*")))
    data = tf.data.TFRecordDataset(files, "GZIP" if files[0].endswith(".gz") else None)
    there = [
        tf.train.Example.FromString(record).features.feature for record in data.as_numpy_iterator()
    ]
    spec = {
        name: tf.io.VarLenFeature(KINDS[of.WhichOneof("kind")])
        for each in there
        for name, of in each.items()
    }
    parsed = data.map(lambda record: tf.io.parse_single_example(record, spec))
    return [
        {name: plain(value.values.numpy().tolist()) for name, value in row.items() if name in has}
        for row, has in zip(parsed, there, strict=True)
    ]


def by_number(folder: Path, split: str) -> list[dict[str, Any]]:
    """Return the features of the records of ArrayRecord files, as Grain takes them by number."""
    source = grain.ArrayRecordDataSource(sorted(map(str, folder.glob(f"{split}-*.array_record"))))
    return [of_example(source[number]) for number in range(len(source))]


def of_example(data: bytes) -> dict[str, Any]:
    features = tf.train.Example.FromString(data).features.feature
    return {
        name: plain(list(getattr(of, of.WhichOneof("kind")).value)) for name, of in features.items()
    }


def samples(folder: Path, split: str) -> list[dict[str, Any]]:
    """Return the samples of a folder of TFDS, and the pixels of their images as NAME.pixels."""
    builder = tfds.builder_from_directory(folder)
    in_order = tfds.ReadConfig(interleave_cycle_length=1)
    images = [
        name
        for name, feature in builder.info.features.items()
        if isinstance(feature, tfds.features.Image)
    ]
    encoded = {name: tfds.decode.SkipDecoding() for name in images}
    bare = tfds.as_numpy(builder.as_dataset(split=split, read_config=in_order, decoders=encoded))
    decoded = tfds.as_numpy(builder.as_dataset(split=split, read_config=in_order))
    assert builder.info.splits[split].num_examples == len(bare)
    return [
        {**listed(row), **{f"{name}.pixels": pixels[name].tolist() for name in images}}
        for row, pixels in zip(bare, decoded, strict=True)
    ]


def listed(value: Any) -> Any:
    """Return what TFDS gave as plain JSON."""
    if isinstance(value, dict):
        return {name: listed(each) for name, each in value.items()}
    return plain(value.tolist() if hasattr(value, "tolist") else value)


root = Path(sys.argv[1])
found: dict[str, Any] = {}
for folder in sorted(root.glob("tfrecord-*")):
    for split in sorted({file.name.partition("-")[0] for file in folder.glob("*.tfrecord*")}):
        found[f"{folder.name} {split}"] = records(folder, split)
for folder in sorted(root.glob("array-record-*")):
    for split in sorted({file.name.partition("-")[0] for file in folder.glob("*.array_record")}):
        found[f"{folder.name} {split}"] = by_number(folder, split)
for folder in sorted(root.glob("tfds-*")):
    builder = tfds.builder_from_directory(folder)
    found[f"{folder.name} splits"] = sorted(builder.info.splits)
    for split in builder.info.splits:
        found[f"{folder.name} {split}"] = samples(folder, split)
    if "label" in builder.info.features:
        found[f"{folder.name} classes"] = getattr(builder.info.features["label"], "names", None)
    if "objects" in builder.info.features:
        found[f"{folder.name} classes of objects"] = builder.info.features["objects"][
            "category"
        ].feature.names
show(found)
