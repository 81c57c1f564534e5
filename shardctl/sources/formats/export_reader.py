"""Records of files that shardctl exported, as the dataset had them: shardctl.json says where each
column is."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.arrays import dtype_of
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.names import key_of_member
from shardctl.sources.export_description import Description, Field
from shardctl.sources.formats.found_values import Declared, JsonForm, Record
from shardctl.sources.formats.webdataset import IMAGES
from shardctl.sources.formats.webdataset import KEY as MEMBERS_KEY
from shardctl.sources.values import Feature
from shardctl.system.text import printable


class ExportDecoder:
    """What shardctl.json says of the records of a file: the columns of the dataset that it was
    exported from. `declared` has their types: raw images are PNG or JPEG by now, and other tensors
    lists."""

    def __init__(self, export: Description) -> None:
        self._export, self._value = export, _VALUES[export.to]
        names, named = [field.name for field in export.fields], export.layout.roles.names
        self.declared = Declared(
            pa.schema([(field.name, self._type_of(field)) for field in export.fields]),
            {name: named[name] for name in names if name in named},
        )

    def _type_of(self, field: Field) -> pa.DataType:
        type_ = _column_type(self._export, field)
        if _is_coded(field) or self._is_raw_image(field):
            return ENCODED_IMAGE
        return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_

    def _is_raw_image(self, field: Field) -> bool:
        """Return whether a column has raw images, as arrays."""
        return (
            field.form == "value"
            and field.name in self._export.layout.roles.images
            and isinstance(_column_type(self._export, field), pa.FixedShapeTensorType)
        )

    def decoded(self, found: Record) -> Record:
        """Return the columns of a record. Raises Rejection if one is not there as shardctl.json
        says."""
        made = Record()
        for field in self._export.fields:
            try:
                value = self._without_tensor(field, self._value(field, found, self._export))
                if self._export.version == 1 and type(value) is JsonForm:
                    value = JsonForm(_with_characters(value.value))
            except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
                raise Rejection(
                    "decode",
                    "not-as-described",
                    f"its {printable(field.name)} is not as shardctl.json says ({error!r:.100}); "
                    "export it again",
                ) from None
            made[field.name] = value
        return made

    def _without_tensor(self, field: Field, value: Any) -> Any:
        """Return a value whose column is one of tensors as what a column of a conversion can hold:
        PNG, or the flat numbers."""
        type_ = _column_type(self._export, field)
        if field.form != "value" or value is None or not isinstance(type_, pa.FixedShapeTensorType):
            return value
        items = value.items if isinstance(value, Feature) else value
        numbers = np.asarray(items, dtype_of(type_.value_type))
        if not self._is_raw_image(field):
            return numbers.reshape(-1)
        from shardctl.images.codecs.image import ImageEncoding  # Pillow, which few exports need

        pixels = numbers.reshape(type_.shape)
        return {"bytes": ImageEncoding.parse("png").encode(pixels), "path": None}


def _with_characters(value: Any) -> Any:
    """Return JSON of version 1 with the counts of each RLE as its characters, not in Base64."""
    if isinstance(value, dict):
        inner = {name: _with_characters(each) for name, each in value.items()}
        is_rle = list(inner) == ["size", "counts"] and isinstance(inner["counts"], str)
        if is_rle:
            inner["counts"] = base64.b64decode(inner["counts"]).decode("latin-1")
        return inner
    return list(map(_with_characters, value)) if isinstance(value, list) else value


def _of_members(field: Field, record: Record, export: Description) -> Any:
    """Return a column of a sample of a tar."""
    key = key_of_member(record[MEMBERS_KEY])
    others = record.get("json") or {}
    if field.form == "key":
        return key
    if field.written.startswith("json/"):
        return JsonForm(others[field.written.removeprefix("json/")])
    if field.form == "value":
        # one of several images, which a sample need not have
        may_lack = field.written.rpartition(".")[2] in IMAGES
        return record.get(field.written) if may_lack else record[field.written]
    stem = field.written.removesuffix("*")
    data = next(
        (value for name, value in record.items() if _is_image(name, stem) and type(value) is bytes),
        None,
    )
    name = export.facts.get("images", {}).get(field.name, field.name)
    if data is None and name not in others:
        raise KeyError(field.written)
    if field.form != "image":
        return None if data is None else {"bytes": data, "path": None}
    said = others.get(name, {"path": key})
    return None if said is None else {"bytes": data, "path": said["path"]}


def _is_image(name: str, stem: str) -> bool:
    return (
        name.startswith(stem)
        and "." not in name[len(stem) :]
        and name not in ("json", "txt", "cls", MEMBERS_KEY)
    )


def _of_columns(field: Field, record: Record, export: Description) -> Any:
    """Return a column of a sample of MDS."""
    value = record[field.written]
    if field.form == "json":
        return JsonForm(value)
    if field.form.startswith("image:"):
        named = f"{field.written}.path" if field.form.endswith("+path") else str(export.key)
        return {"bytes": value, "path": record[named]}
    return {"bytes": value, "path": None} if _is_coded(field) else value


def _of_features(field: Field, record: Record, export: Description) -> Any:
    """Return a column of an Example; one that is not there has no value."""
    if field.form == "struct":
        parts = _column_type(export, field)
        members = [record.get(f"{field.written}/{part.name}") for part in parts]
        if all(value is None for value in members):
            return None
        return {
            part.name: _in_lists(value, part.type)
            for part, value in zip(parts, members, strict=True)
        }
    value = record.get(field.written)
    if field.form == "value" or value is None:
        return value
    data = value.items[0] if isinstance(value, Feature) else value
    if field.form == "json":
        return JsonForm(json.loads(data))
    path = None
    if field.form == "image+path":
        path = record.get(f"{field.written}/path")
    elif field.form == "image":
        path = record[str(export.key)]
    return {"bytes": data, "path": None if path is None else path.items[0].decode()}


def _is_coded(field: Field) -> bool:
    """Return whether a column has raw images that were encoded for the export."""
    return field.form.startswith(("png", "jpeg:"))


def _column_type(export: Description, field: Field) -> pa.DataType:
    return export.layout.columns.field(field.name).type


def _in_lists(value: Any, type_: pa.DataType) -> Any:
    """Return the numbers of a list of lists of one length as that; a list of plain values as it
    is."""
    if not (
        pa.types.is_list(type_) or pa.types.is_large_list(type_)
    ) or not pa.types.is_fixed_size_list(type_.value_type):
        return value
    return np.asarray(value.items).reshape(-1, type_.value_type.list_size)


_VALUES: dict[str, Callable[[Field, Record, Description], Any]] = {
    "webdataset": _of_members,
    "mds": _of_columns,
    "tfrecord": _of_features,
    "tfds": _of_features,
    "array-record": _of_features,
}
"""What gives a column of a record of each of the RESTORED forms of export."""
