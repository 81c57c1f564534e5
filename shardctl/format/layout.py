"""What the fields of a dataset are: their Arrow types, and the role of each."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from shardctl.format.arrays import Shape
from shardctl.format.names import Json
from shardctl.format.roles import Image, Label, Mask, Names, Plain, Role, Roles

ENCODED_IMAGE = pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])
"""The type of an encoded image column, as Hugging Face datasets defines it."""


NO_PICTURES = ("audio", "video", "speech", "sound", "pdf")
"""Parts of the names of columns that have the type of images (Hugging Face gives it to all kinds of
files) and are none."""


def may_be_pictures(name: str) -> bool:
    """Return whether a column of the type of images has them, by its name."""
    return not any(word in name.lower() for word in NO_PICTURES)


def image_lists(columns: pa.Schema) -> list[str]:
    """Return the columns with a list of encoded images for each sample. They have no role: nothing
    is done with the images."""
    of_lists = [f for f in columns if pa.types.is_list(f.type) or pa.types.is_large_list(f.type)]
    return [
        f.name
        for f in of_lists
        if f.type.value_type.equals(ENCODED_IMAGE) and may_be_pictures(f.name)
    ]


def image_tensor(shape: Shape) -> pa.DataType:
    """Return the Arrow type of a raw image column, (height, width, 3) uint8, or of a raw mask
    column, (height, width)."""
    return pa.fixed_shape_tensor(pa.uint8(), list(shape))


@dataclass(frozen=True)
class Layout:
    """What the fields of a dataset are: the Arrow types of its columns, and their roles."""

    kind: str
    columns: pa.Schema
    roles: Roles = field(default_factory=Roles)

    @classmethod
    def by_name(
        cls,
        kind: str,
        columns: pa.Schema,
        image: Image | None,
        classes: Names | None,
        kept_images: Collection[str] = (),
        annotated: Mapping[str, Role] | None = None,
    ) -> Layout:
        """Return the layout of columns whose names are those that shardctl gives: `image`, `label`,
        `text`.

        `kept_images` are columns with other images, whose bytes are stored as they came;
        `annotated` are the roles of columns of annotations.
        """
        roles: dict[str, Role] = {}
        for column in columns:
            if annotated and column.name in annotated:
                roles[column.name] = annotated[column.name]
            elif column.name == "image" and image is not None:
                roles[column.name] = image
            elif column.name in kept_images:
                roles[column.name] = Image("source")
            elif column.name == "label":
                roles[column.name] = Label(classes)
            elif column.name == "text" and pa.types.is_string(column.type):
                roles[column.name] = Plain("text")
        return cls(kind, columns, Roles(roles))

    @property
    def classes(self) -> Names | None:
        """The names of the classes of the main label (Roles.main_label); None if they have no
        names."""
        return self.roles.classes

    @property
    def image(self) -> Image | None:
        """The role of the main image (Roles.main_image), None if there is none."""
        return None if self.roles.main_image is None else self.roles.images[self.roles.main_image]

    def fields(self) -> Json:
        """Return the part of the layout that goes into JSON: `fields` in docs/format.md."""
        return self.roles.to_json()

    def to_json(self) -> Json:
        """Return the whole layout as plain data that `loads` reads."""
        schema = base64.b64encode(self.columns.serialize()).decode("ascii")
        return {"kind": self.kind, "fields": self.fields(), "schema": schema}

    @classmethod
    def loads(cls, record: Json) -> Layout:
        """Build the layout that `to_json` gave."""
        columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(record["schema"])))
        return cls.from_json(record["kind"], record["fields"], columns)

    @classmethod
    def from_json(cls, kind: Any, fields: Any, columns: pa.Schema) -> Layout:
        """Build a layout from what `fields` returned, untrusted. Raises ValueError or TypeError
        where it does not fit."""
        if type(kind) is not str:
            raise TypeError("kind is a string")
        roles = Roles.from_json(fields)
        for name in roles.by_name:
            if columns.get_field_index(name) < 0:
                raise ValueError(
                    f"{name!r:.200} has a role, and there is no such column, or more than one"
                )
        for name, role in roles.images.items():
            _check_image(name, role, columns.field(name).type)
        return cls(kind, columns, roles)

    def with_shape(self, shape: Shape | None) -> Layout:
        """Return the same layout with the decoded shape that the images of the main field turned
        out to share."""
        name = self.roles.main_image
        if name is None:
            return self
        changed = replace(self.roles.images[name], shape=shape)
        return replace(self, roles=Roles({**self.roles.by_name, name: changed}))

    def huggingface_features(self) -> Json | None:
        """Name the types that Hugging Face datasets cannot guess. None if it has no such type (raw
        tensors)."""
        features: Json = {}
        in_lists = image_lists(self.columns)
        for column in self.columns:
            if isinstance(column.type, pa.BaseExtensionType):
                return None
            if column.name in self.roles.images:
                features[column.name] = {"_type": "Image"}
            elif column.name in in_lists:
                # not a Sequence of List, as in _huggingface_feature
                features[column.name] = [{"_type": "Image"}]
            elif self.roles.names.get(column.name):
                features[column.name] = _class_label(self.roles.names[column.name])
            elif column.name in self.roles.objects:
                features[column.name] = feature = _huggingface_feature(column.type)
                names = self.roles.objects[column.name].names
                if names and isinstance(feature, dict) and "category" in feature:
                    feature["category"] = {"feature": _class_label(names), "_type": "Sequence"}
            else:
                features[column.name] = _huggingface_feature(column.type)
        return features


def _check_image(name: str, role: Image, type_: pa.DataType) -> None:
    """Raise ValueError for a column that does not hold images as its role says."""
    if type_.equals(ENCODED_IMAGE):
        return
    is_raw = isinstance(type_, pa.FixedShapeTensorType) and len(type_.shape) == len(role.axes)
    if isinstance(role, Mask):
        fits = is_raw and pa.types.is_integer(type_.value_type)
    else:
        fits = is_raw and type_.value_type == pa.uint8() and type_.shape[2] == 3
    if not fits or role.shape not in (None, tuple(type_.shape)):
        raise ValueError(
            f"{name!r:.200} is of type {type_}, which is no {role.name} as its role describes it"
        )


def _class_label(names: Names) -> Json:
    return {"names": list(names), "_type": "ClassLabel"}


HUGGINGFACE_NAMES = {
    "double": "float64",
    "halffloat": "float16",
    "date32[day]": "date32",
    "date64[ms]": "date64",
}
"""What Hugging Face datasets calls the types that Arrow prints under another name."""


def _huggingface_feature(type_: pa.DataType) -> Any:
    """Return a type in a notation that releases 3.6 to 5 of Hugging Face datasets read in the same
    way."""
    if pa.types.is_list(type_) and pa.types.is_struct(type_.value_type):
        # A list of one dict. As a Sequence it would be a dict of lists, and List is unknown to the
        # older releases.
        return [_huggingface_feature(type_.value_type)]
    if pa.types.is_fixed_size_list(type_):
        return {
            "feature": _huggingface_feature(type_.value_type),
            "length": type_.list_size,
            "_type": "Sequence",
        }
    if pa.types.is_list(type_):
        return {"feature": _huggingface_feature(type_.value_type), "_type": "Sequence"}
    if pa.types.is_struct(type_):
        return {child.name: _huggingface_feature(child.type) for child in type_}
    return {"dtype": HUGGINGFACE_NAMES.get(str(type_), str(type_)), "_type": "Value"}
