"""TFDS: TFRecord files with features.json and dataset_info.json: `tensorflow_datasets.builder_from_directory` reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from shardctl.exports.arrays import is_packed
from shardctl.exports.base import Column, Export, Part, Place, Progress, Written
from shardctl.exports.description import Field, FileFacts
from shardctl.exports.images import Recoding
from shardctl.exports.source import Source
from shardctl.exports.tfrecord import TfRecord, write_records
from shardctl.roles import Label
from shardctl.storage import write_atomically

DATASET = "shardctl"
"""The name of the dataset, which the names of its files begin with."""

_PACKAGE = "tensorflow_datasets.core.features"


@dataclass(frozen=True)
class Tfds(Export):
    """A TFRecord for each shard, and the files that describe them."""

    name: ClassVar[str] = "tfds"

    def check(self, source: Source) -> None:
        """Raise InstallError if a package is missing."""
        TfRecord().check(source)

    def place(self, column: Column) -> Place | None:
        """Say which feature a column becomes: as in TFRecord, but TFDS has no missing values, and no paths of images."""
        if column.is_image:
            lacking = column.missing_images
            loss = _missing(lacking) or ("TFDS has no paths of images" if column.has_own_paths else None)
            return Place(column.target, "image", loss)
        if column.is_raw_image:
            form = (Recoding.parse(column.store) or Recoding("png")).form_of(column.type, column.role)
            if form != "value":
                return Place(column.target, form, _missing(column.nulls))
        made = TfRecord().place(column)
        assert made is not None, "a TFRecord has a feature for every column"
        return Place(made.written, made.form, made.loss or _missing(column.nulls))

    def write(self, source: Source, fields: Sequence[Field], part: Part, folder: Path, progress: Progress) -> Written:
        """Write one file, which has no records if no sample was chosen of the shard."""
        name = f"{DATASET}-{part.split}.tfrecord-{part.number:05d}-of-{part.of:05d}"
        samples, facts = write_records(source, fields, part, folder / name, progress)
        return Written(samples, {name: facts})

    def finish(
        self, source: Source, fields: Sequence[Field], folder: Path, written: Sequence[tuple[Part, Written]]
    ) -> dict[str, FileFacts]:
        """Write features.json, the names of classes, and dataset_info.json."""
        made: dict[str, bytes] = {
            "features.json": _dumps(_features(source, fields)),
            "dataset_info.json": _dumps(_info(source, written)),
        }
        for field in fields:
            role = source.exported.roles.get(field.name)
            if isinstance(role, Label) and role.names and _is_label(source, field):
                made[f"{field.written.replace('/', '-')}.labels.txt"] = ("\n".join(role.names) + "\n").encode()
        return {name: FileFacts(len(data), write_atomically(folder / name, data)) for name, data in made.items()}


def _missing(number: int) -> str | None:
    return f"TFDS has no missing values, and {number:,} are missing" if number else None


def _dumps(record: dict[str, Any]) -> bytes:
    return (json.dumps(record, indent=1, sort_keys=True) + "\n").encode()


def _info(source: Source, written: Sequence[tuple[Part, Written]]) -> dict[str, Any]:
    """Return dataset_info.json: the splits, and how many records each of their files has."""
    splits = []
    for split in source.splits:
        of_split = [each for part, each in written if part.split == split]
        size = sum(facts.bytes for each in of_split for facts in each.files.values())
        splits.append(
            {
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "name": split,
                "numBytes": str(size),
                "shardLengths": [str(each.samples) for each in of_split],
            }
        )
    return {"fileFormat": "tfrecord", "name": DATASET, "splits": splits, "version": "1.0.0"}


def _features(source: Source, fields: Sequence[Field]) -> dict[str, Any]:
    """Return features.json (tensorflow_datasets/core/proto/feature.proto)."""
    features: dict[str, Any] = {}
    for field in fields:
        features[field.written] = _feature(source, field)
    return {"featuresDict": {"features": features}, "pythonClassName": f"{_PACKAGE}.features_dict.FeaturesDict"}


def _is_label(source: Source, field: Field) -> bool:
    return bool(pa.types.is_int64(source.exported.columns.field(field.name).type))


def _feature(source: Source, field: Field) -> dict[str, Any]:
    type_, role = source.exported.columns.field(field.name).type, source.exported.roles.get(field.name)
    if field.form in ("image", "png") or field.form.startswith("jpeg"):
        shape = {
            "dimensions": ["-1", "-1", "1" if isinstance(type_, pa.FixedShapeTensorType) and len(type_.shape) == 2 else "3"]
        }
        return _made("image_feature.Image", "image", {"shape": shape, "dtype": "uint8", "encodingFormat": ""})
    if field.form == "json":
        return _made("text_feature.Text", "text", {})
    if isinstance(role, Label) and role.names and _is_label(source, field):
        return _made("class_label_feature.ClassLabel", "classLabel", {"numClasses": str(len(role.names))})
    if is_packed(type_):
        shape_of = type_.shape if isinstance(type_, pa.FixedShapeTensorType) else [type_.list_size]
        return _tensor(type_.value_type, [str(length) for length in shape_of])
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        inner = {"feature": _scalar(type_.value_type), "length": "-1"}
        return {"pythonClassName": f"{_PACKAGE}.sequence_feature.Sequence", "sequence": inner}
    return _scalar(type_)


def _made(class_: str, name: str, facts: dict[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{_PACKAGE}.{class_}", name: facts}


def _scalar(type_: pa.DataType) -> dict[str, Any]:
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return _made("text_feature.Text", "text", {})
    return _tensor(type_, [])


def _tensor(type_: pa.DataType, shape: list[str]) -> dict[str, Any]:
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        dtype = "string"
    else:
        dtype = "bool" if pa.types.is_boolean(type_) else np.dtype(type_.to_pandas_dtype()).name
    of_shape = {"dimensions": shape} if shape else {}
    return _made("tensor_feature.Tensor", "tensor", {"dtype": dtype, "encoding": "none", "shape": of_shape})
