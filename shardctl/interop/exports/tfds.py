"""TFDS: TFRecord files with features.json and dataset_info.json:
`tensorflow_datasets.builder_from_directory` reads them.

A column a/b is the feature b of the dict a, which is how TFDS stores dicts too. Paths of images
that are not the keys are in the records beside them (NAME/path). features.json has no place for
these: TFDS passes over them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa

from shardctl.errors import InputError, UsageError
from shardctl.format.arrays import dtype_of, is_list, is_text
from shardctl.format.names import Json
from shardctl.format.roles import Label, Mask, Objects, Role
from shardctl.interop.exports.base import (
    Column,
    ColumnEncoding,
    Done,
    Export,
    PartResult,
    Source,
    Work,
    is_bytes,
    is_packed,
    suffixes_in,
)
from shardctl.interop.exports.examples import (
    STRUCT,
    WITH_PATHS,
    TfRecord,
    form_of,
    form_of_images,
    loss_of,
    write_records,
)
from shardctl.sources.export_description import Field
from shardctl.sources.formats.tfds import label_file
from shardctl.system.files import FileFacts

DATASET = "shardctl"
"""The name of the dataset, which the names of its files begin with."""

DECODED = {"jpg": "jpeg", "png": "png"}
"""The suffixes of images that TFDS decodes, and its names of their encodings. All other images are
bytes to it."""

IMAGES = ("image", WITH_PATHS)
"""The forms of encoded images."""

_PACKAGE = "tensorflow_datasets.core.features"


@dataclass(frozen=True)
class Tfds(Export):
    """A TFRecord for each shard, and the files that describe them."""

    def check(self, source: Source) -> None:
        """Raise InputError for a split that TFDS cannot name, UsageError for names of columns,
        InstallError."""
        TfRecord().check(source)
        for split in source.splits:
            if "." in split:
                raise InputError(
                    f"{source.shown}: the split {split!r} has a dot in its name, which TFDS does "
                    "not read"
                )
        _check_names(list(source.written_names.values()))
        labels = [source.written_names[name] for name in source.exported.roles.names]
        labels += [_category(source.written_names[name]) for name in source.exported.roles.objects]
        files = list(map(label_file, labels))
        for file in files:
            if files.count(file) > 1:
                raise UsageError(
                    f"the classes of two labels would be in one file, {file}; use --rename"
                )

    def encoding_of(self, column: Column) -> ColumnEncoding | None:
        """Say which feature a column becomes: as in TFRecord, but TFDS has no missing values.

        Raises UsageError if a column has the name of the paths of images.
        """
        if (form := form_of_images(column)) is not None:
            missing = column.missing_images if column.is_image else column.nulls
            return ColumnEncoding(column.target, form, _missing(missing))
        return ColumnEncoding(
            column.target,
            form_of(column),
            loss_of(column) or _missing(column.nulls) or _loss_of_names(column),
        )

    def write(self, work: Work) -> PartResult:
        """Write one file, which has no records if no sample was chosen of the shard."""
        name = f"{DATASET}-{work.split}.tfrecord-{work.number:05d}-of-{work.of:05d}"
        suffixes: dict[str, set[str]] = {
            field.name: set() for field in work.fields if field.form in IMAGES
        }
        given = _noted(work.batches(), work.fields, suffixes)
        samples, facts = write_records(given, work.fields, work.folder / name)
        return PartResult(
            samples,
            {name: facts},
            facts={"suffixes": {name: sorted(found) for name, found in suffixes.items()}},
        )

    def finish(self, done: Done) -> dict[str, FileFacts]:
        """Write features.json, the names of classes, and dataset_info.json."""
        made: dict[str, bytes] = {
            "features.json": _dumps(_features(done)),
            "dataset_info.json": _dumps(_info(done)),
        }
        for field in done.fields:
            names = _classes(done.source, field)
            if names:
                name = _category(field.written) if field.form == STRUCT else field.written
                made[label_file(name)] = ("\n".join(names) + "\n").encode()
        return done.write(made)


def _check_names(names: Sequence[str]) -> None:
    """Raise UsageError for a column that TFDS cannot have beside the others: a/b is a part of a
    dict, which a number is not."""
    for name in names:
        parts = name.split("/")
        if "" in parts:
            raise UsageError(
                f"{name!r} has an empty part between its slashes, which TFDS does not read; use "
                "--rename"
            )
        for above in accumulate(parts[:-1], "{}/{}".format):
            if above in names:
                raise UsageError(
                    f"TFDS takes {name!r} for a part of {above!r}; --rename gives it another name"
                )


def _category(name: str) -> str:
    """Return the name of the feature with the classes of objects."""
    return f"{name}/category"


def _loss_of_names(column: Column) -> str | None:
    """Return what becomes of the names of classes that a file with a name in each line cannot have,
    None if it has them."""
    if isinstance(column.role, Objects):
        return _fault_of_names(column.role.names or (), _category(column.target))
    names = (_names_of(column.role) if pa.types.is_integer(column.type) else None) or ()
    return _fault_of_names(names, column.target)


def _fault_of_names(names: Sequence[str], label: str) -> str | None:
    """Return why the names of the classes of a label cannot be in its file, None if they can."""
    if any(name != name.strip() or not name or set("\r\n") & set(name) for name in names):
        return (
            "TFDS has a name of a class in each line, and a name here is empty, or has line "
            "ends or spaces around it"
        )
    if len(set(names)) < len(names):
        return "TFDS has no two classes of the same name"
    if names and (set("\\\0\r\n") & set(label) or len(label_file(label).encode()) > 255):
        return "TFDS has the names of classes in a file named as the column; --rename helps"
    return None


def _names_of(role: object) -> tuple[str, ...] | None:
    return role.names if isinstance(role, Label) else None


def _missing(number: int) -> str | None:
    return f"TFDS has no missing values, and {number:,} are missing" if number else None


def _dumps(record: Json) -> bytes:
    return (json.dumps(record, indent=1, sort_keys=True) + "\n").encode()


def _info(done: Done) -> Json:
    """Return dataset_info.json: the splits, and how many records each of their files has. TFDS
    cannot read one without any."""
    splits = []
    for split, of_split in done.of_splits():
        size = sum(facts.bytes for each in of_split for facts in each.files.values())
        if not size:
            continue
        splits.append(
            {
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "name": split,
                "numBytes": str(size),
                "shardLengths": [str(each.samples) for each in of_split],
            }
        )
    return {"fileFormat": "tfrecord", "name": DATASET, "splits": splits, "version": "1.0.0"}


def _noted(
    given: Iterator[pa.RecordBatch], fields: Sequence[Field], suffixes: dict[str, set[str]]
) -> Iterator[pa.RecordBatch]:
    """Yield what is given, and add the suffixes of its encoded images to those of their columns."""
    for batch in given:
        for place, field in enumerate(fields):
            if field.name in suffixes:
                suffixes[field.name] |= suffixes_in(batch.column(place))
        yield batch


def _features(done: Done) -> Json:
    """Return features.json (tensorflow_datasets/core/proto/feature.proto)."""
    features: Json = {}
    for field in done.fields:
        inside = features
        *above, last = field.written.split("/")
        for part in above:
            inside = inside.setdefault(part, _dict_of({}))["featuresDict"]["features"]
        found = (part.facts["suffixes"].get(field.name, ()) for _, part in done.parts)
        inside[last] = _feature(done.source, field, set().union(*found))
    return _dict_of(features)


def _dict_of(features: Json) -> Json:
    return _made("features_dict.FeaturesDict", "featuresDict", {"features": features})


def _classes(source: Source, field: Field) -> tuple[str, ...] | None:
    """Return the names of the classes of a column that is written as numbers of classes, None if it
    is not or has none."""
    role = source.exported.roles.get(field.name)
    if field.form == STRUCT:
        return (role.names or None) if isinstance(role, Objects) else None
    if field.form != "value" or not pa.types.is_integer(source.type_of(field.name)):
        return None
    return _names_of(role) or None


def _feature(source: Source, field: Field, suffixes: set[str]) -> Json:
    type_, names = source.type_of(field.name), _classes(source, field)
    if field.form == "json":
        return _TEXT
    if not suffixes <= DECODED.keys():
        return _tensor(pa.binary(), [])
    if field.form == STRUCT:
        inner = {"category": _class_label(names)} if names else {}
        return _dict_of({each.name: _plain(each.type, inner.get(each.name)) for each in type_})
    if field.form != "value":
        formats = suffixes or {"png" if field.form == "png" else "jpg"}
        return _image(
            type_,
            source.exported.roles.get(field.name),
            DECODED[formats.pop()] if len(formats) == 1 else "",
        )
    return _class_label(names) if names else _plain(type_)


def _class_label(names: Sequence[str]) -> Json:
    return _made("class_label_feature.ClassLabel", "classLabel", {"numClasses": str(len(names))})


def _plain(type_: pa.DataType, inner: Json | None = None) -> Json:
    """Return the feature of values, or of lists; `inner` is that of the values of lists, where it
    is not of their type."""
    if isinstance(type_, pa.FixedShapeTensorType):
        return _tensor(type_.value_type, [str(length) for length in type_.shape])
    if pa.types.is_fixed_size_list(type_):
        return _tensor(type_.value_type, [str(type_.list_size)])
    if is_list(type_):
        inner = inner or _plain(type_.value_type)
        return _made("sequence_feature.Sequence", "sequence", {"feature": inner, "length": "-1"})
    return _TEXT if is_text(type_) else _tensor(type_, [])


def _image(type_: pa.DataType, role: Role | None, encoding: str) -> Json:
    """Return the feature of images, raw ones before or encoded; `encoding` is empty where they have
    several."""
    if is_packed(type_):
        channels, dtype = (type_.shape[2] if len(type_.shape) == 3 else 1), _dtype(type_.value_type)
    else:
        channels, dtype = (1, f"uint{role.bits}") if isinstance(role, Mask) else (3, "uint8")
    facts = {
        "dtype": dtype,
        "encodingFormat": encoding,
        "shape": {"dimensions": ["-1", "-1", str(channels)]},
    }
    return _made("image_feature.Image", "image", facts)


def _made(class_: str, name: str, facts: Json) -> Json:
    return {"pythonClassName": f"{_PACKAGE}.{class_}", name: facts}


_TEXT = _made("text_feature.Text", "text", {})


def _tensor(type_: pa.DataType, shape: list[str]) -> Json:
    of_shape = {"dimensions": shape} if shape else {}
    return _made(
        "tensor_feature.Tensor",
        "tensor",
        {"dtype": _dtype(type_), "encoding": "none", "shape": of_shape},
    )


def _dtype(type_: pa.DataType) -> str:
    """Return the name that numpy has for a type, and `string` for bytes."""
    return "string" if is_bytes(type_) else str(dtype_of(type_).name)
